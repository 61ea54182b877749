/* small_files.h - private to the room: config.json and the small files of store/sidecar.h, written beside
 * weights in formats of other frameworks. */
#ifndef SHARDLINE_FORMAT_HF_SMALL_FILES_H
#define SHARDLINE_FORMAT_HF_SMALL_FILES_H

#include "format/ckpt.h"
#include "format/ckpt_write.h"

/* Small files that travel with weights beside config.json and those of the tokenizer: the cut table, what
 * describes a quantisation, an adapter, adapters that were merged, a model of embeddings. */
#define SMALL_FILES 8
extern const char *const small_file_names[SMALL_FILES];
/* What a published folder has besides: nothing of it is needed to read the weights. */
#define CARD_FILES 13
extern const char *const card_file_names[CARD_FILES];
#define CODE_FILES_MAX 64

/* The file in a folder of its own that sentence-transformers writes, and that folder. A native checkpoint,
 * whose files lie directly in its folder, has it as CKPT_POOLING. */
#define POOLING_FOLDER "1_Pooling"
#define POOLING_PLACE POOLING_FOLDER "/config.json"

/* 1: a name that small_files_find() may find. */
int small_file_is_known(const char *name);
/* Lists what of these, and of the files of a tokenizer, lies beside an open checkpoint that has files of
 * another framework; is_folder: it was opened as one. Code (*.py) where config.json's auto_map asks for
 * some. */
int small_files_find(struct ckpt *c, int is_folder, struct err *e);

/* Writes config.json and the extra files of meta into the folder dir. The other members are not used. */
int small_files_write(const char *dir, const struct ckpt_meta *meta, struct err *e);

#endif

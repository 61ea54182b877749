/* small_files.h - private to the room: config.json and the small files of store/sidecar.h, written beside
 * weights in formats of other frameworks. */
#ifndef SHARDLINE_FORMAT_HF_SMALL_FILES_H
#define SHARDLINE_FORMAT_HF_SMALL_FILES_H

#include "format/ckpt_write.h"

/* Small files that travel with weights beside config.json and those of the tokenizer: the cut table, what
 * describes a quantisation, an adapter, adapters that were merged. */
#define SMALL_FILES 6
extern const char *const small_file_names[SMALL_FILES];

/* Writes config.json and the extra files of meta into the folder dir. The other members are not used. */
int small_files_write(const char *dir, const struct ckpt_meta *meta, struct err *e);

#endif

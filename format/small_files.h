/* small_files.h - private to the room: the small files beside weights, by name; and config.json with them
 * written beside weights in formats of other frameworks. */
#ifndef SHARDLINE_FORMAT_SMALL_FILES_H
#define SHARDLINE_FORMAT_SMALL_FILES_H

#include "format/ckpt_write.h"

/* Files of a tokenizer and the like that belong to a model and are carried with its weights. */
#define SMALL_FILES 10
extern const char *const small_file_names[SMALL_FILES];

/* Writes config.json and the extra files of meta into the folder dir. The other members are not used. */
int small_files_write(const char *dir, const struct ckpt_meta *meta, struct err *e);

#endif

/* small_files.h - private to the room: config.json and the files that are carried along, written beside the
 * weights of other formats. */
#ifndef SHARDLINE_FORMAT_SMALL_FILES_H
#define SHARDLINE_FORMAT_SMALL_FILES_H

#include "format/ckpt_write.h"

/* meta: config_json and the extra ones. */
int small_files_write(const char *dir, const struct ckpt_meta *meta, struct err *e);

#endif

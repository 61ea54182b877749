/* out_file.h - private to the room: files of a checkpoint that is being written, in a folder or in memory
 * (store/memory.h). dir: the folder, or mem:PID/SET. */
#ifndef SHARDLINE_FORMAT_NATIVE_OUT_FILE_H
#define SHARDLINE_FORMAT_NATIVE_OUT_FILE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

/* Creates a file for writing and reading; path: dir/name, for messages. */
int out_create(const char *dir, const char *name, const char *path, struct err *e);
/* Closes the file: on the disk, or with the keeper. fd is closed in any case. */
int out_finish(int fd, const char *dir, const char *name, const char *path, struct err *e);
/* Creates, writes and finishes. */
int out_put(const char *dir, const char *name, const void *data, size_t n, struct err *e);
/* Bytes of a finished file. */
int64_t out_size(const char *dir, const char *name, const char *path, struct err *e);
/* The names of the files are on the disk. */
int out_sync(const char *dir, struct err *e);

#endif

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

/* The memory of a file of a set in memory, to write it there: its pages are large where the system gives
 * large ones, which takes a fraction of the time. */
struct out_memory {
    char *at; /* NULL: none, the file is written by io_pwrite */
    size_t bytes;
};
/* Maps a new file of dir and gives it its size; *m stays zeroed where dir is a folder,
 * or the kernel cannot say that a page is missing. ERR_MEMORY. */
int out_map(struct out_memory *m, int fd, const char *dir, const char *path, size_t bytes, struct err *e);
/* Writes n bytes at off. ERR_MEMORY. */
int out_fill(const struct out_memory *m, const char *path, const void *data, size_t n, size_t off,
             struct err *e);
/* Before out_finish. */
void out_unmap(struct out_memory *m);

#endif

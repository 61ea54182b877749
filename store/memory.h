/* memory.h - checkpoints in memory: a set of files that are memfds, held open by one process, its keeper.
 *
 *     mem:PID/SET     the set SET that process PID keeps
 *     mem:PID         its newest whole set
 *
 * A file is the memfd `shardline:SET/FILE`. Readers find the files of a set by the links in /proc/PID/fd and
 * open them there, so there is no registry and no file system, and the memory is freed with its last holder.
 * Writers fill a memfd and pass it to the keeper over a unix socket (abstract, named after the keeper's PID;
 * both ends check that the other process has the same user). A set is whole from the moment its last file
 * comes, the one named MEMORY_LAST. The keeper drops a set that is not whole when one of its writers ends.
 *
 * Functions without a struct keeper may be called by any thread. */
#ifndef SHARDLINE_STORE_MEMORY_H
#define SHARDLINE_STORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

#define MEMORY_LAST "manifest.json"
#define MEMORY_NAME_BYTES 200 /* of a set or a file, with the NUL */
#define MEMORY_PATH_BYTES 256 /* of mem:PID/SET, with the NUL */

/* 1: a name that a set or a file may have: letters, digits, and ._- */
int memory_name_is_good(const char *name);
/* 1: path begins with mem:. */
int memory_is(const char *path);

/* ---- reading ---- */

struct memory_set;
/* Opens all files of a set; they stay readable until memory_close, also when the keeper drops the set or
 * ends. ERR_USAGE: path is no mem:PID or mem:PID/SET. ERR_FILE: no such process or set, or the set is not
 * whole. */
int memory_open(struct memory_set **out, const char *path, struct err *e);
/* NULL is allowed. */
void memory_close(struct memory_set *m);
/* mem:PID/SET, also where mem:PID was opened. */
const char *memory_path(const struct memory_set *m);
/* A path that opens file `name` in this process, until memory_close. NULL: the set has no such file. */
const char *memory_file(const struct memory_set *m, const char *name);

/* A set of this process's own, without a keeper: path is for messages. memory_add puts a file in it: `bytes`
 * bytes, of which the first n are data and the others zeros without memory. ERR_MEMORY. */
int memory_private(struct memory_set **out, const char *path, struct err *e);
int memory_add(struct memory_set *m, const char *name, const void *data, int64_t n, int64_t bytes,
               struct err *e);
/* The same for a file that is open: fd belongs to the set from then on, also after an error. */
int memory_add_open(struct memory_set *m, const char *name, int fd, struct err *e);
/* Closes file `name` and takes it out of the set. */
void memory_take_out(struct memory_set *m, const char *name);
/* Its files, in no order. */
int memory_n_files(const struct memory_set *m);
const char *memory_file_name(const struct memory_set *m, int i);

/* The whole sets of process pid, the oldest first. *name: n names, freed by the caller in one piece.
 * ERR_FILE: as memory_open. */
int memory_list(pid_t pid, char (**name)[MEMORY_NAME_BYTES], int *n, struct err *e);

/* ---- writing: path is mem:PID/SET, PID a keeper ---- */

/* A new set of this process: drops one of the same name that is not whole. ERR_FILE: the keeper has a whole
 * one, or there is no keeper. */
int memory_begin(const char *path, struct err *e);
/* A memfd for file `name` of the set. ERR_MEMORY. */
int memory_create(const char *path, const char *name, struct err *e);
/* Passes the file to the keeper and closes fd, also on error. The bytes cannot be changed afterwards. A file
 * that another keeper has may be passed, too. ERR_FILE: the keeper does not take it. */
int memory_give(int fd, const char *path, const char *name, struct err *e);
/* Bytes of a file that the keeper has, also of a set that is not whole. ERR_FILE: it has none. */
int64_t memory_bytes(const char *path, const char *name, struct err *e);
/* The keeper closes all files of the set. 0 where there is none. */
int memory_drop(const char *path, struct err *e);

/* ---- the keeper ---- */

struct keeper;
struct keeper_opts {
    /* Called by the keeper's thread when a set has become whole, before its writer goes on; or NULL. */
    void (*whole)(void *arg, const char *set);
    void *arg;
};
/* Makes this process a keeper: one thread, which waits for writers. A process has one keeper at most. o NULL:
 * no options. The thread takes no signals. ERR_FILE: no socket, no thread, or there is a keeper. */
int keeper_open(struct keeper **out, const struct keeper_opts *o, struct err *e);
/* Ends the thread and closes all files. NULL is allowed. */
void keeper_close(struct keeper *k);
/* Drops what is not whole. Any thread. */
void keeper_drop_unfinished(struct keeper *k);
/* 1: process pid is a keeper of this user. */
int keeper_is_at(pid_t pid);

#endif

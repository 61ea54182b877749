/* pack_cache.h - a folder of weights in the form in which servers map them (--cache DIR), for later starts.
 *
 *     DIR/DIGEST-KIND/           a checkpoint of the serve format (format/panels_file.h), in its panels
 *     DIR/source-MARK            the weights of a source: their digest, and a newline
 *     DIR/packing-MARK-KIND/     one that is being made, or that a killed server left whole
 *
 * MARK is a hash of the files of a source: names, lengths, inodes, times of change. A file that is written to
 * gets another time, so a mark stands for the same bytes for ever, once the files have been left alone for a
 * while (CACHE_QUIET_NS): the clock of a file system moves in steps.
 *
 * All checkpoints together have at most `most` bytes; the one whose last use is longest ago goes first, never
 * one that a process has mapped. Several servers may share the folder. It may be removed at any time: what is
 * not there is made again.
 *
 * Any thread, one at a time for each struct cache. */
#ifndef SHARDLINE_SERVE_CACHE_PACK_CACHE_H
#define SHARDLINE_SERVE_CACHE_PACK_CACHE_H

#include "base/err.h"
#include "format/ckpt.h"

#define CACHE_PATH 4096
#define CACHE_NAME 64 /* of a checkpoint in the folder */
#define CACHE_QUIET_NS INT64_C(2000000000)

enum cache_kind { CACHE_PLAIN, CACHE_B12, CACHE_KINDS };
struct cache {
    char dir[3000];
    enum cache_kind kind; /* of what is looked for and made */
    int64_t most;         /* bytes; 0: half of what the disk has besides the rest of its files */
};
struct cache_mark {
    char hex[33];
    int64_t newest_ns; /* when the last of the files was changed */
};

/* Makes the folder where it is missing. ERR_USAGE: its name is too long. ERR_FILE: it cannot be made. */
int cache_open(struct cache *c, const char *dir, enum cache_kind kind, int64_t most, struct err *e);

/* Marks a source, a folder or a file of this machine. ERR_FILE. */
int cache_mark(struct cache_mark *m, const char *source, struct err *e);
/* 1: name is the checkpoint with the weights of a source. opened: its tables, whose digest is the name where
 * the files store one; NULL: not known. */
int cache_find(const struct cache *c, const struct cache_mark *m, const struct ckpt *opened,
               char name[CACHE_NAME]);
/* DIR/name. 0: longer than CACHE_PATH. */
int cache_path(const struct cache *c, const char *name, char path[CACHE_PATH]);
/* 1: an opened checkpoint holds the weights that its name in the folder says. */
int cache_is_named(const char *name, const struct ckpt *opened);

/* Makes room for so many bytes. 0: there is none. */
int cache_make_room(const struct cache *c, int64_t bytes);
/* The name of what is made of a source. */
void cache_packing(const struct cache *c, const struct cache_mark *m, char name[CACHE_NAME]);
/* Takes in what was made under that name. name: what it is called now. ERR_FILE, ERR_FORMAT,
 * ERR_INTEGRITY: it is no checkpoint, and removed. */
int cache_take_in(const struct cache *c, const struct cache_mark *m, char name[CACHE_NAME], struct err *e);
/* A server begins to use it. */
void cache_use(const struct cache *c, const char *name);
/* It is damaged: no later start finds it. */
void cache_drop(const struct cache *c, const char *name);

#endif

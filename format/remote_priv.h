/* remote_priv.h - private to remote.c (the folder) and remote_file.c (one large file of it). */
#ifndef SHARDLINE_FORMAT_REMOTE_PRIV_H
#define SHARDLINE_FORMAT_REMOTE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include "format/remote.h"
#include "store/store.h"

#define REMOTE_UNIT ((int64_t)64 << 10)   /* there or not */
#define REMOTE_BLOCK ((int64_t)1 << 20)   /* small parts of data are asked for in whole ones */
#define REMOTE_REQUEST (8 * REMOTE_BLOCK) /* bytes of one request, at most */

struct have;
struct far {
    char *name, *path;
    struct store_info info;
    int fd;
    struct have *have; /* mapped: which units are there */
    size_t map_bytes;
};
struct remote {
    struct store *store;
    char *dir, *path;
    char remark[400];
    int users_fd, alone; /* alone: nobody else had the folder open when this did */
    int n, one_stream;
    struct far *file;
    pthread_mutex_t lock; /* of err and log */
    struct log *log;      /* progress of a fetch, or NULL */
    double start_s;
    int64_t here_before, got_before; /* when the fetch began: bytes in the files, bytes received */
    struct err err;
};

/* remote.c */
/* A small file, whole: 1 it is there, 0 there is none. name may have folders in front ("TAG/file"), made
 * where they are missing. */
int remote_small(struct remote *r, const char *name, struct err *e);
int remote_large(struct remote *r, const char *name, struct err *e);     /* must be there */
int remote_try_large(struct remote *r, const char *name, struct err *e); /* 1 there, 0 not */

/* remote_foreign.c: 1 found, 0: not a folder of another framework */
int remote_foreign(struct remote *r, struct err *e);

/* remote_file.c */
void fmt_boot_id(char out[40]); /* of this machine and this boot */
/* dir/sub/.NAME.ENDING of sub/NAME; malloc'd */
char *far_hidden(const char *dir, const char *name, const char *ending);
/* name and info are set; its header is there afterwards */
int far_open(struct remote *r, struct far *f, struct err *e);
void far_close(struct far *f);
int far_need(struct remote *r, struct far *f, int64_t off, int64_t n, int exact, struct err *e);
int far_check(struct remote *r, struct far *f, struct err *e);
int64_t far_units_here(const struct far *f);
int far_seal(struct far *f, struct err *e); /* fsync, close */

#endif

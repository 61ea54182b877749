/* dest.h - private to reshard/: where a conversion goes: the temporary folder in which the files are written,
 * and how the checkpoint gets its name, on this machine or at an s3:// URL.
 *
 * For a URL the temporary folder lies in the cache folder (SHARDLINE_CACHE), files are sent while they grow,
 * and the file that makes a checkpoint of them is put last. */
#ifndef SHARDLINE_RESHARD_DEST_H
#define SHARDLINE_RESHARD_DEST_H

#include "reshard/reshard.h"

#define DEST_PATH 4096

struct upload;
struct dest {
    char tmp[DEST_PATH];
    int lock;
    struct upload *upload; /* NULL: a folder of this machine */
};

/* A URL that --format f can be written to, or no URL. ERR_USAGE: any other, with what to do. */
int dest_check(const char *dst, enum target_format f, struct err *e);
/* Makes the temporary folder, and connects to the URL. ERR_FILE: dst exists, or another process writes it.
 * Collective over req->procs. On an error there is nothing to close. */
int dest_open(struct dest *d, const struct request *req, struct log *log, struct err *e);
/* What a writer of files tells them to (format/ckpt_write.h); w->arg: the upload. */
struct ckpt_watch;
void dest_watch(struct ckpt_watch *w, struct upload *u);
/* The checkpoint in the folder is whole: sends what is not sent yet, all but the files that publish it. Does
 * nothing for a folder of this machine. */
int dest_send(const struct dest *d, struct err *e);
/* Proven: it gets its name. Frees *d in any case. Collective. */
int dest_publish(struct dest *d, const struct request *req, struct log *log, struct err *e);
/* After the error *e: removes the temporary folder and frees *d. What was sent stays for the next try; after
 * a signal or wrong digests it is removed. Adds to the text of *e what stays. */
void dest_fail(struct dest *d, const struct request *req, struct err *e);

#endif

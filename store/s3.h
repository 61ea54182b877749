/* s3.h - private to the room: the requests of S3 that write and list. A request that may succeed later is
 * repeated by the rules of store.h; thread-safe. name: a path below the URL of s.
 *
 * Source: Amazon S3 API Reference: ListObjectsV2, ListMultipartUploads, ListParts, CreateMultipartUpload,
 * UploadPart, CompleteMultipartUpload, AbortMultipartUpload, PutObject, DeleteObject. */
#ifndef SHARDLINE_STORE_S3_H
#define SHARDLINE_STORE_S3_H

#include "store/md5.h"
#include "store/store.h"

#define S3_ID 1100   /* bytes of an upload's id, with its NUL */
#define S3_NAME 1100 /* of the name of an object */

/* Part of a file of this machine, or bytes in memory (data not NULL). */
struct s3_body {
    const char *data, *path;
    int fd;
    int64_t off, bytes;
    unsigned char md5[MD5_BYTES];
};
/* One of a list: an object (name, bytes, etag), an unfinished upload (name, id, when), a part (number, bytes,
 * etag). etag: without quotes. */
struct s3_item {
    char name[S3_NAME], id[S3_ID], etag[80], when[40];
    int64_t bytes, number;
};
enum s3_list { S3_OBJECTS, S3_UPLOADS, S3_PARTS };

/* Calls visit for every object or upload below the URL, or for every part of the upload `id` of name. */
int s3_list(struct store *s, enum s3_list what, const char *name, const char *id,
            int (*visit)(void *arg, const struct s3_item *item, struct err *e), void *arg, struct err *e);

/* Begins an upload of parts. */
int s3_begin(struct store *s, const char *name, char id[S3_ID], struct err *e);
/* Sends part `number`, from 1. etag: the server's, without quotes. */
int s3_put_part(struct store *s, const char *name, const char *id, int number, const struct s3_body *b,
                char etag[80], struct err *e);
/* Makes the object of its n parts; etag[n]. */
int s3_complete(struct store *s, const char *name, const char *id, int n, char (*etag)[80], struct err *e);
/* Drops an upload and its parts; one that is not there is fine. */
int s3_abort(struct store *s, const char *name, const char *id, struct err *e);
/* Writes a whole object. only_new: 1, and nothing written, where there is one of that name. */
int s3_put(struct store *s, const char *name, const struct s3_body *b, int only_new, struct err *e);
/* Removes an object; one that is not there is fine. */
int s3_delete(struct store *s, const char *name, struct err *e);

#endif

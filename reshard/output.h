/* output.h - private to the room: the files of the target that this process writes. */
#ifndef SHARDLINE_RESHARD_OUTPUT_H
#define SHARDLINE_RESHARD_OUTPUT_H

#include "format/dcp_write.h"
#include "format/hf_write.h"
#include "format/universal_write.h"
#include "reshard/reshard.h"

struct output;
/* How one format is written. A unit is closed, by its owner, when all of its pieces are there; rank 0 seals
 * when all units are closed. */
struct sink {
    /* files belong to units: several processes can share them. Else one process writes all */
    int by_unit;
    /* what was put is read back while it is in a cache: output_digest knows it */
    int checks;
    int (*open)(struct output *o, const char *tmp, struct err *e);
    int (*put)(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
               struct err *e);
    int (*close)(struct output *o, int unit, struct err *e); /* or NULL */
    /* what rank 0 needs of this process; or NULL */
    int (*pack)(const struct output *o, char **blob, size_t *n, struct err *e);
    int (*seal)(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                struct err *e);
};
struct output {
    const struct plan *p;
    const struct sink *sink;
    struct ckpt_shard **shard; /* native: one a unit of this process, others NULL */
    void **table;              /* likewise, once closed */
    size_t *table_bytes;
    struct ckpt_tensor *list; /* others: the tensors, for the writer */
    struct hf_write *hf;
    struct dcp_write *dcp;
    struct universal_write *universal;
    struct ckpt_state state; /* for it */
};
/* *o zeroed before */
int output_open(struct output *o, const struct plan *p, const char *tmp, struct err *e);
void output_free(struct output *o); /* what was not closed is removed */
int output_owns(const struct output *o, const struct target_piece *q);
/* The next n elements of piece q: written, and (sink->checks) read back while they are in a cache. Different
 * tensors from different threads. */
int output_put(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
               struct err *e);
/* sink->checks: the digest of piece q as its file holds it. */
int output_digest(struct output *o, const struct target_piece *q, struct ckpt_digest *d, struct err *e);
/* Closing a unit is where the disk is waited for, and where files are compressed. Not ours: nothing to do. */
int output_close(struct output *o, int unit, struct err *e);
/* Config, small files and manifest: the folder tmp is a whole checkpoint then. Collective over the processes
 * that share the work. */
int output_seal(struct output *o, const char *tmp, struct err *e);

#endif

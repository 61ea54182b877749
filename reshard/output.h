/* output.h - private to reshard/: the files of the target that this process writes. */
#ifndef SHARDLINE_RESHARD_OUTPUT_H
#define SHARDLINE_RESHARD_OUTPUT_H

#include "format/dcp_write.h"
#include "format/gguf_write.h"
#include "format/hf_write.h"
#include "format/megatron_write.h"
#include "format/universal_write.h"
#include "reshard/dest.h"

struct output;
/* How one format is written. The owner of a unit closes it when all of its pieces are there; rank 0 seals
 * when all units are closed. */
struct sink {
    int by_unit; /* files belong to units, so several processes can share them; else one process writes all */
    int checks;  /* what was put is read back while it is in a cache: output_digest() returns its digest */
    int (*open)(struct output *o, const char *tmp, struct err *e);
    int (*put)(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
               struct err *e);
    int (*close)(struct output *o, int unit, struct err *e); /* or NULL */
    /* *blob, malloc'd, *n bytes: what rank 0 needs of this process; or NULL */
    int (*pack)(struct output *o, char **blob, size_t *n, struct err *e);
    int (*seal)(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                struct err *e);
};
struct output {
    const struct plan *p;
    const struct sink *sink;
    /* native, [n_ranks * UNITS]; NULL where the unit is another process's */
    struct ckpt_shard **shard;
    void **table; /* of closed shards */
    size_t *table_bytes;
    /* other formats: their tensors and their writer */
    struct ckpt_tensor *list;
    struct hf_write *hf;
    struct dcp_write *dcp;
    struct universal_write *universal;
    struct gguf_write *gguf;
    struct panels_write *serve;
    struct ckpt_state state; /* of universal */
    struct ckpt_watch watch; /* arg NULL: the files stay on this machine */
    struct megatron_write *megatron;
    int *n_items; /* of megatron, by unit */
    char *ours;
};

/* Opens the files of this process in the folder d->tmp. Borrows p and what d points to. *o zeroed before;
 * output_free() also after an error. */
int output_open(struct output *o, const struct plan *p, const struct dest *d, struct err *e);
/* Removes files that were not closed. */
void output_free(struct output *o);
/* Whether this process writes piece q. */
int output_owns(const struct output *o, const struct target_piece *q);
/* Writes the next n elements of piece q, and (sink->checks) reads them back while they are in a cache.
 * Different tensors from different threads. */
int output_put(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
               struct err *e);
/* *d: the digest of piece q as its file holds it. Only where sink->checks. */
int output_digest(struct output *o, const struct target_piece *q, struct ckpt_digest *d, struct err *e);
/* Closes a unit: waits for the disk, and compresses the files. Does nothing for another process's unit. */
int output_close(struct output *o, int unit, struct err *e);
/* Writes config, small files and manifest: the folder tmp is then a whole checkpoint. Collective over the
 * processes that share the work. */
int output_seal(struct output *o, const char *tmp, struct err *e);

/* For sinks: whether this process writes a unit; fills o->list with the tensors of the target. */
int output_is_ours(const struct plan *p, int unit);
int output_list(struct output *o, struct err *e);

/* The functions of Megatron's sink (output_megatron.c). */
int megatron_sink_open(struct output *o, const char *tmp, struct err *e);
int megatron_sink_put(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                      struct err *e);
int megatron_sink_close(struct output *o, int unit, struct err *e);
int megatron_sink_seal(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                       struct err *e);
void megatron_sink_free(struct output *o);

#endif

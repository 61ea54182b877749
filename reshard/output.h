/* output.h - private to the room: the files of the target that this process writes. */
#ifndef SHARDLINE_RESHARD_OUTPUT_H
#define SHARDLINE_RESHARD_OUTPUT_H

#include "format/hf_write.h"
#include "reshard/reshard.h"

struct output {
    const struct plan *p;
    struct ckpt_shard **shard;          /* native: one a unit of this process, others NULL */
    void **table;                       /* likewise, once closed */
    size_t *table_bytes;
    struct ckpt_tensor *list;           /* Hugging Face: the tensors, for the writer */
    struct hf_write *hf;
};
int output_open(struct output *o, const struct plan *p, const char *tmp, struct err *e);       /* *o zeroed before */
void output_free(struct output *o);                    /* what was not closed is removed */
int output_owns(const struct output *o, const struct target_piece *q);
/* The next n elements of piece q: written, and (native) read back while they are in a cache. Different tensors from different threads. */
int output_put(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n, struct err *e);
/* Native: the digest of piece q as its file holds it. */
int output_digest(struct output *o, const struct target_piece *q, struct ckpt_digest *d, struct err *e);
/* Native: closing a unit is where the disk is waited for, and where files are compressed. Not ours: nothing to do. */
int output_close(struct output *o, int unit, struct err *e);
/* Config, small files and manifest: the folder tmp is a whole checkpoint then. Collective over the processes that share the work. */
int output_seal(struct output *o, const char *tmp, struct err *e);

#endif

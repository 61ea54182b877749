/* piece_reader.h - a box of a tensor read by all threads of a pool, piece by piece, with its digest: each
 * piece is digested while it is in the cache of the core that has read it. */
#ifndef SHARDLINE_SERVE_WEIGHTS_PIECE_READER_H
#define SHARDLINE_SERVE_WEIGHTS_PIECE_READER_H

#include <signal.h>
#include "base/pool.h"
#include "format/ckpt_proof.h"

struct piece_read {
    struct ckpt *c;
    int tensor;
    const struct box *box;
    int64_t lo, hi;             /* elements of the box's row-major order */
    void *dst;                  /* of element lo; in the tensor's own dtype */
    struct ckpt_digest *digest; /* what was read is added here; or NULL */
    /* The caller compares this digest of the whole tensor before it uses anything, so that checksums of
     * blocks are not computed. Without it the box is one piece. */
    int is_proven;
    const volatile sig_atomic_t *stop; /* not 0: ERR_STOPPED, soon */
};

/* The owner of pool. An error of one of the pieces. */
int piece_read(struct pool *pool, const struct piece_read *x, struct err *e);

#endif

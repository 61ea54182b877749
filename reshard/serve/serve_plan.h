/* serve_plan.h - private to reshard/: what the file of the serve format holds (--format serve): the packs of
 * the model's units, and all other tensors as they are. */
#ifndef SHARDLINE_RESHARD_SERVE_PLAN_H
#define SHARDLINE_RESHARD_SERVE_PLAN_H

#include "format/ckpt_write.h"
#include "reshard/reshard.h"

/* Packs of bf16 that are stored in 12 bits, and those that are not; of the former values, and escapes. */
struct serve_narrow {
    int packs, wide;
    int64_t values, escapes;
};
struct serve_plan {
    struct panels_layout layout; /* pieces as unit 0 of the plan numbers them */
    size_t pack_room, piece_room;
    struct panels_pack *pack;
    struct panels_piece *piece;
    struct serve_narrow narrow;
};
/* Places every target of p, whose tensors are picked and whose model is known: p->serve. ERR_USAGE: weights
 * that no pack can hold; ERR_CONFIG: a model that nothing computes. */
int serve_place(struct plan *p, struct err *e);
/* Memory of the writer: windows that are not full, matrices stored [in][out] of every thread. An estimate. */
int64_t serve_memory_bytes(const struct plan *p);
void serve_plan_free(struct serve_plan *s); /* NULL is allowed */

#endif

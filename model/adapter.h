/* adapter.h - low-rank adapters (LoRA; Hu et al. 2021, section 4.1) of a model, for pserve and ptrain.
 *
 *     y = W x + scale B (A x)       W [out][in], A [rank][in], B [out][rank]
 *
 * An adapter is a second struct model, whose parameter table holds A and B of every matrix that the adapter
 * changes: A has the kind of the matrix, B has P_LORA_B + kind, both its unit and expert. So everything that
 * works on parameters works on an adapter: a server fills it with resident_fill, a trainer opens its ZeRO
 * vectors, optimizer state and checkpoints on it (while the base model has none), a plan asks
 * resident_measure. Unit numbers, the stages of a pipeline and `layout` are those of the base model.
 *
 * Names and shapes. Tensor X.weight of the base has X.lora_A.weight [rank, in] and X.lora_B.weight
 * [out, rank]; a tensor X without ".weight" has X.lora_A and X.lora_B. Parameters that are fused in one
 * tensor (GPT-2's c_attn, gate_up_proj) share one A, and their Bs are fused in one tensor too. Both are
 * [out][in] where the base stores its matrix the other way round as well.
 *
 * Cuts follow from the table, too: what tp cuts by outputs (q, k, v, gate, up) has A on every rank and rows
 * of B on each. Of what it cuts by inputs (o, down), each rank has columns of A and all of B.
 *
 * Numerics (kernels/NUMERICS.md, "Adapters"). z = Tree(GRAIN) of A x in fp32, rounded once to dt; where tp
 * cuts the inputs the parts of z travel with the sums of the base, so there is no exchange more (but with
 * sp, where every rank needs all rows of z: they have an all-reduce of their own). d = a chain over the rank
 * of B z; y = fma(scale, d, y) in fp32, before bias and rounding. A row without an adapter
 * skips the step: it has the bits that it has without adapters. A row's bits depend on its own adapter only.
 *
 * One thread a rank calls these functions. None is collective, but what an adapter's weights do (struct
 * weights). */
#ifndef SHARDLINE_MODEL_ADAPTER_H
#define SHARDLINE_MODEL_ADAPTER_H

#include "model/model.h"

/* A tensor that an adapter changes. param: in the base's table, as param_find gives it; its neighbours that
 * are fused in the same tensor come along (of experts in one tensor: those of the same expert). */
struct adapter_matrix {
    int param;
    int64_t rank;
    float scale; /* alpha / rank, or alpha / sqrt(rank) */
};

struct adapter_unit; /* units.h */
struct adapter {
    struct model m; /* A and B: table, local (params.h), packs. Nothing is computed with it alone */
    const struct model *base;
    /* Provides A and B of a unit (borrowed). The caller sets it: &resident.w or zero_weights(). */
    struct weights *w;
    struct adapter_unit *unit; /* [n_units]: what the adapter adds to each product */
    int64_t rank;              /* the largest one */
    /* Above 0, alike on all ranks, another one for every adapter of a call: it travels with rows to the ranks
     * of their experts. The caller sets it; training does not need it. */
    int32_t number;
    /* The unit that is borrowed from w now; NULL: none. */
    const struct unit_weights *uw;
};

/* Makes the tables of an adapter; its weights come later (a->w). base: opened, or of model_shape for a plan;
 * it must outlive the adapter. list: n tensors in any order, none twice. ERR_CONFIG: a matrix for which no
 * adapter is computed (embedding, head, router, kv_b of latent attention), or some experts of a layer without
 * the others: the message names it. ERR_USAGE: a rank of 0, or above base->adapter_rank where base is open.
 * ERR_MEMORY. */
int adapter_open(struct adapter *a, const struct model *base, const struct adapter_matrix *list, int n,
                 struct err *e);
void adapter_close(struct adapter *a); /* a zeroed one is fine; the weights are closed before */
/* 1: an adapter of this parameter is computed. */
int adapter_computed(const struct param *p);

/* ---- which rows of a call have which adapter ---- */
/* Rows [first, first + n) of the call. */
struct adapter_run {
    struct adapter *a; /* borrowed; NULL: none */
    int64_t first, n;
};
/* Runs in ascending order, apart from each other; an adapter may have several. Rows in no run have no
 * adapter. The fewer runs, the fewer products: a server sorts the rows of a step by adapter. Where ranks of
 * an expert group have rows of their own, each rank lists the adapters of all of them: those that none of its
 * own rows has come last, with n 0. */
struct adapter_rows {
    int n;
    const struct adapter_run *run;
};

/* ---- memory of the base model for adapters (struct model_open.adapter_rank) ---- */
/* Bytes that model_open() takes for calls of so many rows and adapters of a rank up to `rank`; m: from
 * model_shape() too. A plan sets m->adapter_rank before it measures forward_work: experts take more there. */
size_t adapter_room_measure(const struct model *m, int64_t rows, int64_t rank);

/* ---- training: all rows have one adapter, and only its A and B have gradients ----
 *
 * struct work_shape.adapter names it. The base is frozen: no gradient of its parameters is made, and its
 * weights must be available in two forms: packed for forward, in natural order for backward. A and B come
 * through a->w; the vectors of struct grads are those of a->m.local; done() is called with the unit numbers
 * of the base, whether or not the adapter changes the unit. */

#endif

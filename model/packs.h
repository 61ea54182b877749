/* packs.h - which part of which tensor every pack of a rank is made of: for files that hold packs as the
 * products read them (format/panels_file.h), and for who maps those.
 *
 * A pack is the matrices of one product, stacked over their outputs (model.h, struct unit_weights). Pure
 * functions of a model from model_shape() or model_open(): any thread. */
#ifndef SHARDLINE_MODEL_PACKS_H
#define SHARDLINE_MODEL_PACKS_H

#include "model/model.h"

#define PACK_MATRICES 3

struct pack_matrix {
    int param;           /* index in the model's table */
    struct box box;      /* this rank's part of the tensor; one index of every dim but two: */
    int out_dim, in_dim; /* the dims that count outputs and elements of the contraction */
};
struct pack_info {
    int tied;   /* the matrix is unit 0's, for a head without one of its own */
    int expert; /* -1: of no expert */
    int n;
    struct pack_matrix matrix[PACK_MATRICES]; /* in the order of the outputs */
    int64_t outputs, inputs;                  /* of all matrices; of each */
    struct leaves leaves;                     /* of the inputs */
};

/* Packs of a unit on this rank. */
int model_n_packs(const struct model *m, int unit);
/* pack: an index in unit_weights.pack. */
void model_pack_info(const struct model *m, int unit, int pack, struct pack_info *out);

#endif

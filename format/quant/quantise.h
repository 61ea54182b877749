/* quantise.h - private to the room: scales of weights that are quantised here, and which weights those are.
 * */
#ifndef SHARDLINE_FORMAT_QUANT_QUANTISE_H
#define SHARDLINE_FORMAT_QUANT_QUANTISE_H

#include <jansson.h>
#include <pthread.h>
#include "format/quant/encode.h"
#include "format/quant_view.h"

#define QUANTISE_TENSORS 3 /* stored tensors of a weight, at most */

/* What a kind makes of a weight X.weight [N, K], or of experts X of gpt-oss. */
struct quantise_kind {
    int64_t block_n, block_k; /* values under one scale */
    float largest;            /* of a code: scale = largest value of the block / this */
    int is_e8m0;              /* scales are powers of two: 2^(floor(log2 of the largest value) - 2) */
};
/* The row of a kind. */
const struct quantise_kind *quantise_kind_of(enum quant_kind kind);

/* ---- which (quantise_pick.c) ---- */

enum quantise_form { QUANTISE_NOT, QUANTISE_LINEAR, QUANTISE_EXPERTS };
/* Whether a tensor is a weight to quantise: a linear one of the layers, whose K is a multiple of the kind's
 * blocks (of FP8: any); or, for mxfp4, the experts of gpt-oss. *narrow: 1 where only K is in the way. */
enum quantise_form quantise_form_of(enum quant_kind kind, const struct ckpt_tensor *t, int is_gpt_oss,
                                    int *narrow);
/* config.json of the view, malloc'd; stay: names of tensors that stay as they are, n of them. NULL: *e is
 * set. */
char *quantise_config(enum quant_kind kind, const char *text, const char *const *stay, int n, int is_gpt_oss,
                      struct err *e);

/* ---- scales (quantise_scale.c) ---- */

#define SCALE_ROWS 32 /* rows of blocks whose scales are kept for the next read */
struct scale_row {
    const struct encoder *of;
    int64_t row;
    float *scale; /* NULL: free */
};
struct scale_cache {
    const struct quantise_kind *kind;
    enum stored_dtype dtype; /* of the scales */
    pthread_mutex_t *lock;
    struct scale_row *row; /* [SCALE_ROWS], shared by all weights */
    int *next;
};
/* encoder.scales of a weight that is quantised; its arg: a struct scale_cache. ERR_FORMAT: a value that is
 * not finite. */
int quantise_scales(const struct encoder *c, struct ckpt *below, const struct patch *p, struct region *r,
                    struct err *e);
/* The ckpt_compute of a tensor of scales. arg: its struct encoder. */
int quantise_compute_scales(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi,
                            void *dst, struct err *e);

#endif

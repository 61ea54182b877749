/* scheme.h - private to format/quant: what a configuration says about quantised weights, and the shapes of
 * stored tensors against it. */
#ifndef SHARDLINE_FORMAT_QUANT_SCHEME_H
#define SHARDLINE_FORMAT_QUANT_SCHEME_H

#include <jansson.h>
#include "format/quant.h"

#define QUANT_HINTS 32

/* How the weights of some modules are quantised. */
struct quant_hint {
    int bits;                 /* 0: not said */
    int64_t group;            /* values of K under one scale; 0: not said, -1: all of K */
    int64_t block_n, block_k; /* 0: not said */
    int is_float, symmetric;
    const json_t *targets; /* names of modules; NULL: all. Borrowed from the text */
};
struct quant_says {
    json_t *root;
    char method[64];
    int is_known; /* the method, and the layout that it names, is one of quant.h */
    int n;
    struct quant_hint hint[QUANT_HINTS];
    int zero_less_one, desc_act; /* GPTQ */
    int per_module;              /* bits and groups may differ by module: shapes say them */
    int transposed;              /* the model stores its matrices as [K, N] (GPT-2) */
};
/* Reads what the texts say. ERR_FORMAT: not JSON, a member of another type, a number out of range.
 * quant_says_free() frees it, after an error too. */
int quant_says_read(struct quant_says *s, const struct quant_texts *texts, struct err *e);
void quant_says_free(struct quant_says *s);
/* 1: the targets of the hint name this module. */
int quant_hint_names(const struct quant_hint *h, const char *module);

/* Fills in w, whose name, form and stored tensors (role and number) are known: shape, scheme, axes. t: the
 * list of tensors. ERR_FORMAT: a shape or dtype that does not fit, with both. */
int quant_fit(struct quant_weight *w, const struct quant_says *s, const struct ckpt_tensor *const *t,
              struct err *e);
/* The shape of a tensor as text: [2,3]. Returns out. */
char *quant_shape_text(int n_dims, const int64_t *shape, char out[96]);

#endif

/* merge_priv.h - private to format/peft/: a merge, and the arithmetic of it. */
#ifndef SHARDLINE_FORMAT_PEFT_MERGE_PRIV_H
#define SHARDLINE_FORMAT_PEFT_MERGE_PRIV_H

#include <stdatomic.h>
#include "format/peft.h"

/* A tensor that is computed. */
struct merge_job {
    struct peft_merge *m;
    const struct ckpt_tensor *t;   /* of the checkpoint below */
    int from;                      /* its number there */
    int saved;                     /* tensor of the adapter in place of it, or -1 */
    const struct peft_module *mod; /* or NULL */
    int transposed;                /* rows of the tensor count inputs, columns outputs */
    int expert;                    /* of the module; -1: dim 0 of the tensor counts the experts */
    int n_parts;                   /* tensors of each expert in the module's matrix: gate and up, or 1 */
    int64_t first_row;             /* of the tensor in that matrix */
};
struct peft_merge {
    struct ckpt *adapter;
    struct peft a;
    char *path;
    const char *config; /* of the model, or NULL */
    char type[64];      /* its model_type; "": unknown */
    int n_jobs;
    struct merge_job *job;          /* [tensors of the model] */
    char *is_used;                  /* [a.n + a.n_saved] */
    int64_t *n_used;                /* [a.n] tensors */
    _Atomic int64_t moved, changed; /* elements with a sum that is not zero; with other bits */
};

/* Reads m->adapter and finds the tensors of c that it changes. After an error merge_free() is needed, too. */
int merge_prepare(struct peft_merge *m, const struct ckpt *c, struct err *e);
/* Frees m, and the adapter. NULL is fine. */
void merge_free(void *m);
/* Sets ERR_MEMORY. */
int merge_no_memory(const struct peft_merge *m, struct err *e);
/* Finds what every tensor of c takes of the adapter: m->job[0 .. m->n_jobs). All of the adapter must have its
 * place. */
int merge_find_jobs(struct peft_merge *m, const struct ckpt *c, struct err *e);
/* Adds the module of a job to elements [lo, hi) of box b, which dst holds as they are stored. */
int merge_add_module(const struct merge_job *j, const struct box *b, int64_t lo, int64_t hi, char *dst,
                     struct err *e);

/* Of expert x of a job's module: rows [at, at + n) of the left factor, out [n][r], or columns of the right
 * one, out [r][n]; see peft.h. */
int merge_factor(const struct merge_job *j, int64_t x, int is_right, int64_t at, int64_t n, double *out,
                 struct err *e);

/* ---- arithmetic (merge_row.c) ---- */

/* The values of n elements of a float (stored_is_float). */
void merge_widen(enum stored_dtype t, const char *data, int64_t n, double *out);
/* The value of the dtype that is nearest to x, ties to even, written as element i of out. Values beyond the
 * largest become infinite, a NaN a quiet NaN; denormals are kept. */
void merge_round(enum stored_dtype t, double x, void *out, int64_t i);
/* What merge_row met: elements with a sum that is not zero; those whose bits changed; those whose sum is not
 * finite, or whose weight is finite and becomes infinite. */
struct merge_tally {
    int64_t moved, changed, bad;
};
/* Adds scale * (left[0] right[0][i] + left[1] right[1][i] + ...) to n elements w of dtype t, in place. left:
 * [r]; right: [r][stride]. */
void merge_row(enum stored_dtype t, char *w, int64_t n, int64_t r, const double *left, const double *right,
               int64_t stride, double scale, struct merge_tally *tally);

#endif

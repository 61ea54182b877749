/* cuts.h - private to reshard/: cut tables. They say how tensors of a model without a family are divided.
 *
 * The text has a line a row: a pattern of names, then words. CUTS.md specifies it. A table and the tensors of
 * a checkpoint give the same struct param_table that a family gives, so that everything behind it (ranks,
 * stages, experts, ZeRO slices) is the code of families. Pure functions, but for what they allocate. */
#ifndef SHARDLINE_RESHARD_CUTS_H
#define SHARDLINE_RESHARD_CUTS_H

#include <stdio.h>
#include "format/quant.h"
#include "model/params.h"

#define CUTS_BYTES_MAX ((size_t)1 << 20)

/* How tp cuts the values of the dim. */
enum cut_rule {
    CUT_WHOLE, /* not at all: every tp rank holds the tensor, the first one writes it */
    CUT_UNITS, /* at multiples of `unit` values, as many units a rank */
    CUT_BLOCKS /* at the blocks of the table's grain */
};
struct cut_row {
    char *pattern;
    int line;
    enum cut_rule rule;
    int dim;
    int n_units;
    int64_t unit[PARTS_MAX]; /* of each part; n_units 1: the first holds for all */
    int copies;              /* fewer units than tp ranks: neighbours hold the same unit */
    int n_parts;
    int64_t part[PARTS_MAX]; /* sizes of fused parts, in any scale; n_parts 1: not fused */
    int interleave;          /* values that alternate along the dim; 1: none do */
    int stacked;             /* dim 0 counts experts */
    int block;               /* values that one index of the dim stands for */
    int64_t values;          /* of the dim, where the last block is short; 0: block times its indices */
    char *companion;         /* the pattern of the weight whose cut this row takes, or NULL */
    int n_shape;             /* dims that the row asks of its tensors; 0: any */
    int64_t shape[BOX_DIMS]; /* their sizes, 0: any */
    char *layers;            /* the numbers that {layer} may be, as "3,7-9"; NULL: any */
    int last;                /* on the last pipeline stage */
    int optional;            /* may match no tensor */
    int n_matched;
};
struct cuts {
    char *what; /* the file, for messages */
    int grain;  /* blocks of CUT_BLOCKS */
    int n;
    struct cut_row *row;
};

/* Parses n bytes. what: the name of the file. ERR_FORMAT: file, line, what is wrong, what to write instead.
 * ERR_MEMORY. cuts_free() frees it, after an error too; a zeroed table is empty. */
int cuts_parse(struct cuts *c, const char *text, size_t n, const char *what, struct err *e);
void cuts_free(struct cuts *c);

/* 1: the name fits the pattern. *layer, *expert: the numbers at {layer} and {expert}, or -1. */
int cuts_match(const char *pattern, const char *name, int64_t *layer, int64_t *expert);
/* 1: the name fits the row, its layer being one of the row's. */
int cuts_row_match(const struct cut_row *r, const char *name, int64_t *layer, int64_t *expert);

/* Parameters of n tensors. */
struct cut_model {
    struct param_table table;
    const char **name;     /* [table.n]: of the parameter's tensor, borrowed; table.p[].name is empty */
    int n_unmatched;       /* tensors in no row: whole for tp, on the first stage */
    const char *unmatched; /* the first of them, borrowed */
};
/* The parameters of these tensors under the table, for this layout. ERR_CONFIG: two rows for one tensor, a
 * row without a tensor, a dim or size that does not fit. ERR_USAGE: the layout does not divide it.
 * cut_model_close() frees it. */
int cut_model_open(struct cut_model *m, struct cuts *c, const struct ckpt_tensor *const *t, int n,
                   const struct layout *l, struct err *e);
void cut_model_close(struct cut_model *m); /* a zeroed one is fine */
/* The same where weights are quantised (format/quant.h): the row of a weight X.weight cuts all of its stored
 * tensors, unless the table has rows for them. q: the list made of these tensors. */
int cut_model_open_quant(struct cut_model *m, struct cuts *c, const struct quant_list *q,
                         const struct ckpt_tensor *const *t, int n, const struct layout *l, struct err *e);

/* The cut table of a family's model, as the text that cuts_parse() reads. */
int cuts_print(const struct param_table *t, FILE *out, struct err *e);

#endif

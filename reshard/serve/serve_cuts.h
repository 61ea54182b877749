/* serve_cuts.h - private to reshard/: where ranks of a server cut the outputs of matrices. */
#ifndef SHARDLINE_RESHARD_SERVE_CUTS_H
#define SHARDLINE_RESHARD_SERVE_CUTS_H

#include "model/packs.h"

/* A rank of some tp begins at index `at` of dim `dim` of the parameter's tensor. */
struct serve_cut {
    int param, dim;
    int64_t at;
};
struct serve_cuts {
    int64_t n;
    size_t room;
    struct serve_cut *cut; /* sorted, each once */
};
/* The cuts of every tp that leaves the sums of the model as they are. serve_cuts_free() after it, also after
 * an error. */
int serve_cuts_find(struct serve_cuts *x, const struct model_config *cfg, struct err *e);
void serve_cuts_free(struct serve_cuts *x);
/* The ends of the runs of a matrix, out[most], counted from its first output: one where every cut lies at a
 * multiple of `unit` outputs. Returns how many; 0: they are more than `most`. */
int serve_cuts_runs(const struct serve_cuts *x, const struct pack_matrix *m, int unit, int64_t *out,
                    int most);

#endif

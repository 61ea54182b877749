/* adapter_file.h - an adapter of PEFT beside the model that is served: which of its matrices it changes, and
 * this rank's parts of A and B as model/adapter.h wants them. Any thread, one at a time; not collective. */
#ifndef SHARDLINE_SERVE_ADAPTERS_ADAPTER_FILE_H
#define SHARDLINE_SERVE_ADAPTERS_ADAPTER_FILE_H

#include "format/peft.h"
#include "model/adapter.h"
#include "serve/adapters/adapter_limits.h"
#include "format/ckpt_proof.h"

struct adapter_file {
    char *path;
    struct ckpt *ckpt; /* the fit's */
    struct peft_fit *fit;
    const struct ckpt *model;
    const struct param_table *table; /* of the model */
    int *fit_of;                     /* [tensors of the model's checkpoint] in the fit, or -1 */
    int n;
    struct adapter_matrix *matrix; /* [n] */
    int64_t rank;                  /* the largest one */
    struct dev *host;              /* for conversions; set by the caller before it reads */
    double *wide;                  /* of what was read last */
    int64_t wide_cap;
};

/* The model that an adapter is for; borrowed while the file is open. Requests to a server end when *stop is
 * not 0. */
struct adapter_base {
    const struct ckpt *ckpt;
    const struct param_table *table;
    const volatile sig_atomic_t *stop;
};
/* Opens the adapter at path (folder or URL) and finds its matrices in the model. ERR_CONFIG: it is of another
 * model (tensor and both shapes), or changes a weight for which no adapter is computed. ERR_FORMAT,
 * ERR_USAGE: it cannot be read, or is no plain LoRA. adapter_file_close() frees it, after an error too. */
int adapter_file_open(struct adapter_file *f, const char *path, const struct adapter_base *base,
                      struct err *e);
void adapter_file_close(struct adapter_file *f); /* zeroes are fine */

/* A model_read (model.h) for the parameters of an adapter: ctx is f. ERR_FORMAT: a value that is not finite,
 * also when rounded to dt. */
int adapter_file_read(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                      enum dtype dt, struct err *e);

/* Digests of the tensors whose number is part modulo n_parts, to seen[i]; the others stay. */
int adapter_file_digest(const struct adapter_file *f, int part, int n_parts, struct ckpt_digest *seen,
                        struct err *e);
/* Of those of all tensors: what tells the adapter from others (adapter_limits.h). ERR_MEMORY. */
int adapter_file_name(const struct adapter_file *f, const struct ckpt_digest *seen,
                      char out[ADAPTER_DIGEST_MAX], struct err *e);

#endif

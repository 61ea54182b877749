/* pooling.h - one vector for a text, of the final hidden states of its tokens (/v1/embeddings): those behind
 * the model's last norm, which the head reads. kernels/NUMERICS.md ("Embeddings") has the order of the sums.
 *
 * Rows come in the order of positions, whatever the chunks of the prompt, the batch and the layout are; a row
 * that comes again, because its sequence was preempted, is left out. The engine's thread. */
#ifndef SHARDLINE_SERVE_ENGINE_POOLING_H
#define SHARDLINE_SERVE_ENGINE_POOLING_H

#include "kernels/kernels.h"
#include "serve/service.h"

struct pooled {
    double *sum; /* [n] the last row, or the sum of all */
    void *row;   /* a row of the device, for the host */
    int64_t n;   /* elements of a row */
    int64_t next;
};
/* Adds the row of position pos, n elements of dt at `row`, memory of dev. 0, or -1: no memory. */
int pooled_add(struct pooled *p, struct dev *dev, enum pooling how, const void *row, enum dtype dt, int64_t n,
               int64_t pos);
void pooled_free(struct pooled *p);
/* Is an element NaN or infinite? */
int pooled_is_broken(const struct pooled *p);
/* The vector to out[n], n at most p->n: the first n elements, of their mean over `rows` rows, divided by
 * their length with normalize. */
void pooled_vector(const struct pooled *p, int64_t rows, int64_t n, int normalize, float *out);

#endif

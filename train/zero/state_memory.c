/* state_memory.c - masters and moments in the device's memory: the store of a run that offloads nothing. */
#include "train/zero/zero_priv.h"

static struct zero *zero_of(const struct state_store *s)
{
    return (struct zero *)((char *)(uintptr_t)s - offsetof(struct zero, in_memory));
}

static float *memory_of(const struct state_store *s, int v, enum zero_state k)
{
    const struct zero_vector *x = &zero_of(s)->vector[v];
    float *const state[ZERO_STATES] = { NULL, x->master, x->exp_avg, x->exp_avg_sq };
    return state[k];
}

static int begin(struct state_store *s, struct err *e)
{
    struct zero *z = zero_of(s);
    int rc = 0;
    for (int v = 0; rc >= 0 && v < z->n_vectors; v++) {
        struct state_piece p = { .v = v, .n = z->vector[v].own };
        for (enum zero_state k = 0; k < ZERO_STATES; k++)
            p.state[k] = memory_of(s, v, k);
        rc = s->update.run(s->update.ctx, &p, e);
    }
    return rc;
}

const struct state_ops state_in_memory = { .memory = memory_of, .begin = begin };

/* zero_spill.c - summed gradients that a store keeps instead of memory (stages 2 and 3): the counter over
 * super-steps, run by run. See zero.h. */
#include "train/zero/zero_priv.h"

#define RUN_ELEMENTS ((int64_t)1 << 20)

double zero_spill_bytes(void) { return 2.0 * (double)RUN_ELEMENTS * sizeof(float); }

int zero_open_spill(struct zero *z, struct err *e)
{
    if (!z->store->has_grads)
        return 0;
    for (int i = 0; i < 2; i++)
        if (!(z->spilled[i] = mem_alloc(z->m->dev->mem, MEM_GRADS, RUN_ELEMENTS * sizeof *z->spilled[i])))
            return err_set(e, ERR_MEMORY, "no memory for gradients on their way to files");
    return 0;
}

void zero_close_spill(struct zero *z)
{
    for (int i = 0; i < 2; i++)
        mem_free(z->m->dev->mem, z->spilled[i]);
}

static int is_tied(const struct zero *z, int v)
{
    return z->m->table.cfg.tied && (v == 0 || v == z->n_vectors);
}

int zero_spill(struct zero *z, int v, int64_t begin, int64_t n, float *sum, struct err *e)
{
    const struct state_ops *ops = z->store->ops;
    int last = z->super + 1 == z->plan.supers, rc = 0;
    for (int64_t at = 0, some; at < n; at += some) {
        struct joining j = zero_joining(z);
        some = n - at < z->store->run ? n - at : z->store->run;
        for (int k = 0; k < j.merges; k++) {
            const float *in[2] = { z->spilled[0], sum + at };
            TRY(ops->get_grads(z->store, v, --j.depth, at, some, z->spilled[0], e));
            KERNEL(z->m->dev, tree_add, sum + at, in, 2, some);
        }
        if (last && !is_tied(z, v))
            zero_add_squares(z, v, begin + at, some, sum + at);
        TRY(ops->put_grads(z->store, v, j.depth, at, some, sum + at, e));
    }
out:
    return rc;
}

int zero_join_spilled(struct zero *z, struct err *e)
{
    const struct state_ops *ops = z->store->ops;
    const struct zero_vector *x = &z->vector[0];
    float *look_up = z->spilled[0], *head = z->spilled[1];
    int rc = 0;
    for (int64_t at = 0, n; at < x->own; at += n) {
        const float *in[2] = { look_up, head };
        n = x->own - at < z->store->run ? x->own - at : z->store->run;
        TRY(ops->get_grads(z->store, 0, 0, at, n, look_up, e));
        TRY(ops->get_grads(z->store, z->n_vectors, 0, at, n, head, e));
        TRY(zero_swap_tied(z, look_up, head, n, e));
        KERNEL(z->m->dev, tree_add, look_up, in, 2, n);
        zero_add_squares(z, 0, x->own_begin + at, n, look_up);
        TRY(ops->put_grads(z->store, 0, 0, at, n, look_up, e));
    }
out:
    return rc;
}

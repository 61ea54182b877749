/* offload_host.c - masters and moments in pinned memory of the host, beside a GPU. The device's thread
 * walks: the gradients come down, AdamW runs on the host, the weights go up. */
#include <stdlib.h>
#include <string.h>
#include "train/offload/offload_priv.h"

static size_t bytes_of(const struct offload *o, int v)
{
    int64_t n = 0;
    for (int i = o->of.first[v]; i < o->of.end[v]; i++)
        n += o->of.piece[i].n;
    return (size_t)n * sizeof(float) + 64;
}

int host_open(struct offload *o, struct err *e)
{
    for (int k = 0; k < KIND_STATES; k++) {
        o->host[k] = calloc((size_t)o->of.n_vectors + 1, sizeof **o->host);
        for (int v = 0; o->host[k] && v < o->of.n_vectors; v++) {
            o->host[k][v] = dev_pin(o->m->dev, bytes_of(o, v));
            if (!o->host[k][v])
                return err_set(e, ERR_MEMORY, "no pinned memory for masters and moments: use more ranks");
            memset(o->host[k][v], 0, bytes_of(o, v));
        }
        if (!o->host[k])
            return err_set(e, ERR_MEMORY, "no memory for offloaded state");
    }
    return 0;
}

void host_close(struct offload *o)
{
    for (int k = 0; k < KIND_STATES; k++) {
        for (int v = 0; o->host[k] && v < o->of.n_vectors; v++)
            if (o->host[k][v])
                dev_unpin(o->m->dev, o->host[k][v], bytes_of(o, v));
        free(o->host[k]);
    }
}

static float *state_of(const struct state_store *s, int v, int k)
{
    return ((const struct offload *)(const void *)s)->host[k - ZERO_MASTER][v];
}

static float *no_device_memory(const struct state_store *s, int v, enum zero_state k)
{
    (void)s;
    (void)v;
    (void)k;
    return NULL;
}

static int read_state(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, void *out,
                      struct err *e)
{
    (void)e;
    memcpy(out, state_of(s, v, (int)k) + at, (size_t)n * sizeof(float));
    return 0;
}

static int write_state(struct state_store *s, int v, enum zero_state k, int64_t at, int64_t n, const void *in,
                       struct err *e)
{
    (void)e;
    memcpy(state_of(s, v, (int)k) + at, in, (size_t)n * sizeof(float));
    return 0;
}

static int begin(struct state_store *s, struct err *e)
{
    struct offload *o = (struct offload *)(void *)s;
    int rc = 0;
    for (int i = 0; rc >= 0 && i < o->of.n_pieces; i++) {
        const struct piece *x = &o->of.piece[i];
        struct state_piece p = { .v = x->vector, .at = x->at, .n = x->n };
        for (int k = 0; k < KIND_STATES; k++)
            p.state[ZERO_MASTER + k] = o->host[k][x->vector] + x->at;
        rc = s->update.run(s->update.ctx, &p, e);
    }
    return rc;
}

const struct state_ops offload_in_host = {
    .memory = no_device_memory, .read = read_state, .write = write_state, .begin = begin
};

/* output_megatron.c - a Megatron target: pieces become parts of its arrays (format/megatron_write.h). */
#include <stdlib.h>
#include "base/io.h"
#include "reshard/output.h"

int megatron_sink_open(struct output *o, const char *tmp, struct err *e)
{
    const struct plan *p = o->p;
    int n_units = p->n_ranks * UNITS, rc = output_list(o, e);
    o->n_items = calloc((size_t)n_units, sizeof *o->n_items);
    o->ours = calloc((size_t)n_units, 1);
    if (rc >= 0 && (!o->n_items || !o->ours))
        rc = err_set(e, ERR_MEMORY, "no memory for %d ranks", p->n_ranks);
    TRY(rc);

    for (int u = 0; u < n_units; u++) {
        o->n_items[u] = p->unit[u].n_pieces;
        o->ours[u] = (char)output_is_ours(p, u);
    }
    io_raise_file_limit((int64_t)n_units + 256);

    TRY(megatron_write_open(&o->megatron,
                            &(struct megatron_target){ tmp, p->config, p->n, o->list, n_units, o->n_items,
                                                       o->ours, p->req->layout.ep > 1 },
                            e));
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->target[i].n_pieces; k++) {
            const struct target_piece *q = &p->target[i].piece[k];
            TRY(megatron_write_piece(o->megatron, q->unit, q->index, i, &q->box, e));
        }
    TRY(megatron_write_start(o->megatron, e));
out:
    return rc < 0 ? rc : 0;
}

int megatron_sink_put(struct output *o, int target, const struct target_piece *q, const void *data, int64_t n,
                      struct err *e)
{
    (void)target;
    return megatron_write_put(o->megatron, q->unit, q->index, data, n, e);
}

int megatron_sink_close(struct output *o, int unit, struct err *e)
{
    return megatron_write_close(o->megatron, unit, e);
}

int megatron_sink_seal(struct output *o, const char *tmp, char *blob, size_t n, const struct ckpt_meta *meta,
                       struct err *e)
{
    (void)tmp, (void)blob, (void)n;
    return megatron_write_seal(o->megatron, meta, e);
}

void megatron_sink_free(struct output *o)
{
    megatron_write_free(o->megatron);
    free(o->n_items);
    free(o->ours);
}

/* zero_borrow.c - the units of weights that the computation borrows: in place (stages 0 to 2), or gathered
 * into slots (stage 3). See zero.h.
 *
 * A slot of stage 3 is memory once a machine: every rank copies its slice there and packs a share. So all
 * dp ranks must have released the slot's last unit before a copy begins (comm_start_all_gather_shared
 * waits for that), and must have packed their shares before any rank computes. Which slot a unit uses
 * depends on the order of calls alone, which is the same on all ranks. */
#include "train/zero/zero_priv.h"

#include <string.h>

/* ---- stages 0 to 2 ---- */
/* Packs the units after an update. No rank reads the old packs any more: the collective sum of the
 * gradients' norm came after their last use. */
static int pack_all(struct zero *z, struct err *e)
{
    for (int u = 0; u < z->n_units; u++) {
        struct zero_unit *x = &z->unit[u];
        struct pack_from from = { x->weight, z->unit[0].weight, z->share, z->n_shares };
        model_pack(z->m, u, &from, &x->uw, x->packs);
    }
    int rc = comm_barrier(z->dp, e);
    z->packed = rc >= 0;
    return rc;
}

static int get_resident(struct weights *w, int u, int backward, const struct unit_weights **out,
                        struct err *e)
{
    struct zero *z = (struct zero *)w;
    int rc = backward || z->packed ? 0 : pack_all(z, e);
    *out = &z->unit[u].uw;
    return rc;
}

static void put_resident(struct weights *w, int u)
{
    (void)w;
    (void)u;
}

const struct weights zero_borrow_resident = { get_resident, put_resident, NULL };

/* ---- stage 3 ---- */
static struct zero_slot *slot_of(struct zero *z, int u)
{
    for (int i = 0; i < ZERO_SLOTS; i++)
        if (z->slot[i].unit == u)
            return &z->slot[i];
    return NULL;
}

static int is_tied_head(const struct model *m, int u) { return m->table.cfg.tied && u == m->n_layers + 1; }

/* The slots that unit u may lie in: [first, end). */
struct slot_range {
    int first, end;
};
static struct slot_range slots_for(const struct model *m, int u)
{
    int end = SLOT_OF_ENDS + is_tied_head(m, u);
    return u > 0 && u <= m->n_layers ? (struct slot_range){ SLOT_OF_LAYERS, SLOT_OF_ENDS }
                                     : (struct slot_range){ end, end + 1 };
}

/* Of the slots that are not borrowed, the one used longest ago; NULL: all are borrowed. */
static struct zero_slot *slot_to_fill(struct zero *z, int u)
{
    struct slot_range r = slots_for(z->m, u);
    struct zero_slot *best = NULL;
    for (int i = r.first; i < r.end; i++)
        if (!z->slot[i].n_borrowed && (!best || z->slot[i].used < best->used))
            best = &z->slot[i];
    return best;
}

static void pack_share(void *arg)
{
    struct zero_slot *s = arg;
    struct zero *z = s->z;
    const void *tied = is_tied_head(z->m, s->holds) ? slot_of(z, 0)->flat : NULL;
    struct pack_from from = { s->flat, tied, z->share, z->n_shares };
    model_pack(z->m, s->holds, &from, &s->uw, s->packs);
}

/* Starts to gather unit u into a slot, and with `pack` to pack it there. The tied head's packs need unit 0
 * too, so they are made when the head is borrowed. */
static int fetch(struct zero *z, int u, int pack, struct zero_slot **out, struct err *e)
{
    struct zero_slot *s = slot_to_fill(z, u);
    size_t bytes = (size_t)(z->m->local.unit[u].flat / z->n_dp) * dtype_size(z->m->dt);
    int rc = 0;
    if (!s)
        return err_set(e, ERR_INTERNAL, "unit %d asked for while its slots are borrowed", u);
    TRY(comm_finish(&s->gather, e)); /* of a unit that was fetched and not borrowed */
    s->unit = s->holds = u;
    s->used = ++z->clock;
    s->packed = pack && !is_tied_head(z->m, u);
    model_point(z->m, u, s->flat, &s->uw);
    rc = comm_start_all_gather_shared(&s->gather, z->dp, s->flat, z->unit[u].weight, bytes,
                                      (struct comm_callback){ s->packed ? pack_share : NULL, s }, e);
out:
    *out = s;
    if (rc >= 0)
        return 0;
    s->unit = -1;
    return err_add(e, "gathering unit %d", u);
}

static void put_gathered(struct weights *w, int u)
{
    struct zero_slot *s = slot_of((struct zero *)w, u);
    if (s && s->n_borrowed)
        s->n_borrowed--;
}

/* Makes the packs of a unit that was gathered without them. Collective over dp. */
static int pack_now(struct zero *z, struct zero_slot *s, struct err *e)
{
    const struct unit_weights *table;
    int tied = is_tied_head(z->m, s->unit), rc = 0;
    if (tied)
        TRY(z->w.get(&z->w, 0, 1, &table, e));
    pack_share(s);
    rc = comm_barrier(z->dp, e);
    s->packed = rc >= 0;
    if (tied)
        z->w.put(&z->w, 0);
out:
    return rc;
}

static int get_gathered(struct weights *w, int u, int backward, const struct unit_weights **out,
                        struct err *e)
{
    struct zero *z = (struct zero *)w;
    struct zero_slot *s = slot_of(z, u);
    int rc = 0;
    if (!s)
        TRY(fetch(z, u, !backward, &s, e));
    s->n_borrowed++;
    s->used = ++z->clock;
    rc = comm_finish(&s->gather, e);
    if (rc >= 0 && !backward && !s->packed)
        rc = pack_now(z, s, e);
    *out = &s->uw;
    if (rc < 0)
        s->n_borrowed--;
out:
    return rc < 0 ? rc : 0;
}

static int soon_gathered(struct weights *w, int u, int backward, struct err *e)
{
    struct zero *z = (struct zero *)w;
    struct zero_slot *s;
    return z->overlap && !slot_of(z, u) ? fetch(z, u, !backward, &s, e) : 0;
}

const struct weights zero_borrow_gathered = { get_gathered, put_gathered, soon_gathered };

/* A gather that is under way goes on: fetch() finishes it before it fills the slot again. */
void zero_forget_packs(struct zero *z)
{
    z->packed = 0;
    for (int i = 0; i < ZERO_SLOTS; i++)
        z->slot[i].unit = -1;
}

void zero_slot_sizes(const struct model *m, struct slot_size size[ZERO_SLOTS])
{
    memset(size, 0, sizeof *size * ZERO_SLOTS);
    for (int u = 0; u < m->local.n_units; u++) {
        struct slot_range r = slots_for(m, u);
        size_t packs = model_pack_bytes(m, u);
        for (int i = r.first; i < r.end; i++) {
            size[i].flat = m->local.unit[u].flat > size[i].flat ? m->local.unit[u].flat : size[i].flat;
            size[i].packs = packs > size[i].packs ? packs : size[i].packs;
        }
    }
}

int zero_open_slots(struct zero *z, struct err *e)
{
    struct slot_size size[ZERO_SLOTS];
    int rc = 0;
    zero_slot_sizes(z->m, size);
    for (int i = 0; i < ZERO_SLOTS; i++) {
        struct zero_slot *s = &z->slot[i];
        s->z = z;
        s->unit = -1;
        if (z->stage < 3)
            continue;
        TRY(unit_weights_open(&s->uw, z->m, e));
        TRY(comm_alloc_shared(&s->flat, z->dp, MEM_PARAMS, (size_t)size[i].flat * dtype_size(z->m->dt) + 64,
                              e));
        TRY(comm_alloc_shared(&s->packs, z->dp, MEM_PARAMS, size[i].packs + 64, e));
    }
out:
    return rc < 0 ? err_add(e, "memory for gathered units") : 0;
}

void zero_close_slots(struct zero *z)
{
    struct err ignored;
    for (int i = 0; i < ZERO_SLOTS; i++) {
        comm_finish(&z->slot[i].gather, &ignored);
        comm_free_shared(z->dp, z->slot[i].flat, &ignored);
        comm_free_shared(z->dp, z->slot[i].packs, &ignored);
        unit_weights_close(&z->slot[i].uw);
    }
}

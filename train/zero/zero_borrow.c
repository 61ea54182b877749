/* zero_borrow.c - the units of weights that the computation borrows: in place (stages 0 to 2), or gathered
 * into slots (stage 3). See zero.h.
 *
 * A slot of stage 3 is memory once a machine: every rank copies its slice there and packs a share. So all
 * dp ranks must have released the slot's last unit before a copy begins (comm_start_all_gather_shared
 * waits for that), and must have packed their shares before any rank computes. Which slot a unit uses
 * depends on the order of calls alone, which is the same on all ranks. */
#include "train/zero/zero_priv.h"

#include <string.h>

/* Waits for all ranks that pack a share of this rank's units. */
static int groups_barrier(struct zero *z, struct err *e)
{
    int rc = comm_barrier(z->group[GROUP_DENSE].ranks, e);
    return rc < 0 || z->n_vectors == z->n_units ? rc : comm_barrier(z->group[GROUP_EXPERT].ranks, e);
}

/* ---- stages 0 to 2 ---- */
/* This rank's share of the packs of a vector. */
static void pack_vector(struct zero *z, int v)
{
    struct zero_vector *x = &z->vector[v];
    const struct unit_part *of = &z->m->local.unit[v];
    const struct zero_group *g = &z->group[of->group];
    struct pack_from from = { x->weight, z->vector[0].weight, g->share, g->n_shares };
    model_pack(z->m, v, &from, &z->uw[of->unit], x->packs);
}

/* Packs the units after an update. No rank reads the old packs any more: the collective sum of the
 * gradients' norm came after their last use. */
static int pack_all(struct zero *z, struct err *e)
{
    for (int v = 0; v < z->n_vectors; v++)
        pack_vector(z, v);
    int rc = groups_barrier(z, e);
    z->packed = rc >= 0;
    return rc;
}

static int get_resident(struct weights *w, int u, int backward, const struct unit_weights **out,
                        struct err *e)
{
    struct zero *z = (struct zero *)w;
    int rc = backward || z->packed ? 0 : pack_all(z, e);
    *out = &z->uw[u];
    return rc;
}

static void put_resident(struct weights *w, int u)
{
    (void)w;
    (void)u;
}

const struct weights zero_borrow_resident = { get_resident, put_resident, NULL };

/* With a late store: packs a unit when its new weights are there and first needed. */
static int get_late(struct weights *w, int u, int backward, const struct unit_weights **out, struct err *e)
{
    struct zero *z = (struct zero *)w;
    int vector[] = { u, z->m->local.experts_of[u] }, rc = zero_settle(z, u, e);
    if (rc >= 0 && !backward && !z->vector[u].packed) {
        for (int i = 0; i < 2; i++)
            if (vector[i] >= 0)
                pack_vector(z, vector[i]);
        rc = groups_barrier(z, e);
        z->vector[u].packed = rc >= 0;
    }
    *out = &z->uw[u];
    return rc;
}

const struct weights zero_borrow_late = { get_late, put_resident, NULL };

/* ---- stage 3 ---- */
static struct zero_slot *slot_of(struct zero *z, int u)
{
    for (int i = 0; i < ZERO_SLOTS; i++)
        if (z->slot[i].unit == u)
            return &z->slot[i];
    return NULL;
}

/* Frozen weights of a rank that holds them all need no slot: they are packed from where they lie, and no
 * other unit is fetched meanwhile. */
static int is_in_place(const struct zero *z)
{
    return z->frozen && z->group[GROUP_DENSE].size == 1 && z->group[GROUP_EXPERT].size == 1;
}

static int is_tied_head(const struct model *m, int u) { return m->table.cfg.tied && u == m->n_layers + 1; }

/* The slots that unit u may lie in: [first, end). */
struct slot_range {
    int first, end;
};
static struct slot_range slots_for(const struct model *m, int u, int in_place)
{
    int end = SLOT_OF_ENDS + is_tied_head(m, u);
    return u > 0 && u <= m->n_layers
               ? (struct slot_range){ SLOT_OF_LAYERS, in_place ? SLOT_OF_LAYERS + 1 : SLOT_OF_ENDS }
               : (struct slot_range){ end, end + 1 };
}

/* Of the slots that are not borrowed, the one used longest ago; NULL: all are borrowed. */
static struct zero_slot *slot_to_fill(struct zero *z, int u)
{
    struct slot_range r = slots_for(z->m, u, is_in_place(z));
    struct zero_slot *best = NULL;
    for (int i = r.first; i < r.end; i++)
        if (!z->slot[i].n_borrowed && (!best || z->slot[i].used < best->used))
            best = &z->slot[i];
    return best;
}

/* This rank's share of the packs of one vector. */
static void pack_share(void *arg)
{
    struct slot_vector *x = arg;
    struct zero_slot *s = x->slot;
    struct zero *z = s->z;
    const struct zero_group *g = &z->group[z->m->local.unit[x->vector].group];
    const void *tied = is_tied_head(z->m, s->holds) ? slot_of(z, 0)->of[GROUP_DENSE].flat : NULL;
    struct pack_from from = { x->flat, tied, g->share, g->n_shares };
    model_pack(z->m, x->vector, &from, &s->uw, x->packs);
}

/* Starts to gather a vector from `own`, this rank's slice. */
static int start_gather(struct zero_slot *s, int group, const void *own, struct err *e)
{
    struct zero *z = s->z;
    struct slot_vector *x = &s->of[group];
    const struct zero_group *g = &z->group[group];
    size_t bytes = (size_t)(z->m->local.unit[x->vector].flat / g->size) * dtype_size(z->m->dt);
    return comm_start_all_gather_shared(&x->gather, g->ranks, x->flat, own, bytes,
                                        (struct comm_callback){ s->packed ? pack_share : NULL, x }, e);
}

static int store_slot(const struct zero_slot *s, int group) { return (int)(s - s->z->slot) * GROUPS + group; }
_Static_assert(ZERO_SLOTS *GROUPS <= STATE_FETCHES, "a fetch for every vector of every slot");

/* What a store brings is gathered when it is there. */
static int finish_gathers(struct zero_slot *s, struct err *e)
{
    struct zero *z = s->z;
    int rc = 0;
    for (int g = 0; rc >= 0 && g < GROUPS; g++) {
        struct slot_vector *x = &s->of[g];
        if (x->reading) {
            x->reading = 0;
            rc = z->store->ops->fetched(z->store, store_slot(s, g), e);
            if (rc >= 0)
                rc = start_gather(s, g, x->own ? x->own : x->flat, e);
        }
        if (rc >= 0)
            rc = comm_finish(&x->gather, e);
    }
    return rc;
}

/* Starts to gather one vector of unit s->holds, or to bring this rank's slice from the store. */
static int fetch_vector(struct zero_slot *s, int group, struct err *e)
{
    struct zero *z = s->z;
    struct slot_vector *x = &s->of[group];
    int v = zero_vector_of(z->m, s->holds, group);

    if (v < 0)
        return 0;
    x->vector = v;
    if (is_in_place(z))
        x->flat = z->vector[v].weight;
    model_point(z->m, v, x->flat, &s->uw);
    if (is_in_place(z)) {
        if (s->packed)
            pack_share(x);
        return 0;
    }
    if (!z->store->has_weights)
        return start_gather(s, group, z->vector[v].weight, e);
    int rc = z->store->ops->fetch(z->store, store_slot(s, group), v, x->own ? x->own : x->flat, e);
    x->reading = rc >= 0;
    return rc;
}

/* Starts to gather unit u into a slot, and with `pack` to pack it there. The tied head's packs need unit 0
 * too, so they are made when the head is borrowed. */
static int fetch(struct zero *z, int u, int pack, struct zero_slot **out, struct err *e)
{
    struct zero_slot *s = slot_to_fill(z, u);
    int rc = 0;

    if (!s)
        return err_set(e, ERR_INTERNAL, "unit %d asked for while its slots are borrowed", u);
    TRY(zero_settle(z, u, e));
    TRY(finish_gathers(s, e)); /* of a unit that was fetched and not borrowed */
    s->unit = s->holds = u;
    s->used = ++z->clock;
    s->packed = pack && !is_tied_head(z->m, u);
    for (int g = 0; g < GROUPS; g++)
        TRY(fetch_vector(s, g, e));
    rc = 0;
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

/* Makes the packs of a unit that was gathered without them. Collective over the groups. */
static int pack_now(struct zero *z, struct zero_slot *s, struct err *e)
{
    const struct unit_weights *table;
    int tied = is_tied_head(z->m, s->unit), rc = 0;
    if (tied)
        TRY(z->w.get(&z->w, 0, 1, &table, e));
    for (int g = 0; g < GROUPS; g++)
        if (zero_vector_of(z->m, s->holds, g) >= 0)
            pack_share(&s->of[g]);
    rc = groups_barrier(z, e);
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
    rc = finish_gathers(s, e);
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
    /* the computation does not wait for the next unit's update */
    int ahead = z->overlap || z->store->has_weights;
    return ahead && !slot_of(z, u) && !zero_is_late(z, u) ? fetch(z, u, !backward, &s, e) : 0;
}

const struct weights zero_borrow_gathered = { get_gathered, put_gathered, soon_gathered };

/* A gather that is under way goes on: fetch() finishes it before it fills the slot again. */
void zero_forget_packs(struct zero *z)
{
    z->packed = 0;
    for (int v = 0; v < z->n_vectors; v++)
        z->vector[v].packed = 0;
    for (int i = 0; i < ZERO_SLOTS; i++)
        z->slot[i].unit = -1;
}

void zero_slot_sizes(const struct model *m, int in_place, struct slot_size size[ZERO_SLOTS][GROUPS])
{
    memset(size, 0, sizeof *size * ZERO_SLOTS);
    for (int v = 0; v < m->local.n_trained; v++) {
        const struct unit_part *of = &m->local.unit[v];
        struct slot_range r = slots_for(m, of->unit, in_place);
        size_t packs = model_pack_bytes(m, v);
        for (int i = r.first; i < r.end; i++) {
            struct slot_size *most = &size[i][of->group];
            most->flat = of->flat > most->flat && !in_place ? of->flat : most->flat;
            most->packs = packs > most->packs ? packs : most->packs;
        }
    }
}

static void *aligned(void *p, size_t align) { return (char *)p + (align - (uintptr_t)p % align) % align; }

static int open_slot_vector(struct zero *z, struct slot_vector *x, int group, const struct slot_size *size,
                            struct err *e)
{
    const struct zero_group *g = &z->group[group];
    struct comm *ranks = g->ranks;
    const enum mem_cat cat = z->frozen ? MEM_WORK : MEM_PARAMS;
    size_t flat = (size_t)size->flat * dtype_size(z->m->dt), align = (size_t)z->store->align, more = 64;
    int rc = 0;

    if (z->store->has_weights)
        more = 2 * align;
    TRY(comm_alloc_shared(&x->memory, ranks, cat, flat + more, e));
    x->flat = z->store->has_weights && g->size == 1 ? aligned(x->memory, align) : x->memory;
    if (z->store->has_weights && g->size > 1) {
        x->own_memory = mem_alloc(z->m->dev->mem, MEM_PARAMS, flat / (size_t)g->size + more);
        x->own = aligned(x->own_memory, align);
        rc = x->own_memory ? 0 : err_set(e, ERR_MEMORY, "no memory for a unit's slice: use more ranks");
        TRY(comm_agree(ranks, rc, e));
    }
    TRY(comm_alloc_shared(&x->packs, ranks, cat, size->packs + 64, e));
out:
    return rc;
}

int zero_open_slots(struct zero *z, struct err *e)
{
    struct slot_size size[ZERO_SLOTS][GROUPS];
    int rc = 0;

    zero_slot_sizes(z->m, is_in_place(z), size);
    for (int i = 0; i < ZERO_SLOTS; i++) {
        struct zero_slot *s = &z->slot[i];
        s->z = z;
        s->unit = -1;
        if (z->stage < 3)
            continue;
        TRY(unit_weights_open(&s->uw, z->m, e));
        for (int g = 0; g < GROUPS; g++) {
            s->of[g].slot = s;
            if (g == GROUP_DENSE || size[i][g].flat || size[i][g].packs)
                TRY(open_slot_vector(z, &s->of[g], g, &size[i][g], e));
        }
    }
out:
    return rc < 0 ? err_add(e, "memory for gathered units") : 0;
}

void zero_close_slots(struct zero *z)
{
    struct err ignored;
    for (int i = 0; i < ZERO_SLOTS; i++) {
        struct zero_slot *s = &z->slot[i];
        for (int g = 0; g < GROUPS; g++) {
            comm_finish(&s->of[g].gather, &ignored);
            mem_free(z->m->dev->mem, s->of[g].own_memory);
            comm_free_shared(z->group[g].ranks, s->of[g].memory, &ignored);
            comm_free_shared(z->group[g].ranks, s->of[g].packs, &ignored);
        }
        unit_weights_close(&s->uw);
    }
}

/* resident_test.c - resident weights that a source points at, reads, or that are replaced: the same bits. */
#include "tests/unit/model/model_rig.h"

static struct mem mem;

static float value(const struct param *p, int64_t row, int64_t col)
{
    return (float)((row * 131 + col * 7 + (int64_t)strlen(p->name) * 1009) % 997) / 997 - 0.4f;
}

/* Weights as numbers of their place. n: how many parameters were read. */
struct numbers {
    struct served *points; /* has what the source points at, or NULL */
    int every;             /* of the packs and parts, one in so many is pointed at */
    int n_asked, n_read;
    int fails; /* the read after so many ends with an error; 0: none does */
    float add; /* to every value */
};
struct served {
    struct dev *d;
    struct world *world;
    struct mesh mesh;
    struct model m;
    struct resident r;
};

static int read_values(void *ctx, const struct param *p, const struct box *b, struct ring *ring, void *dst,
                       enum dtype dt, struct err *e)
{
    struct numbers *x = ctx;
    int64_t cols = b->n_dims == 2 ? b->extent[1] : 1, n = box_count(b);
    (void)ring, (void)dt;
    if (x->fails && x->n_read == x->fails)
        return err_set(e, ERR_INTEGRITY, "of the test");
    x->n_read++;
    for (int64_t i = 0; i < n; i++)
        ((float *)dst)[i] = value(p, b->start[0] + i / cols, i % cols) + x->add;
    return 0;
}

static int point_pack(void *ctx, int unit, int pack, struct panels *p, struct err *e)
{
    struct numbers *x = ctx;
    (void)e;
    if (x->n_asked++ % x->every)
        return 0;
    CHECK_INT(p->n, x->points->r.unit[unit].pack[pack].n);
    *p = x->points->r.unit[unit].pack[pack];
    return 1;
}

static int point_part(void *ctx, int part, const void **at, struct err *e)
{
    struct numbers *x = ctx;
    (void)e;
    if (x->n_asked++ % x->every)
        return 0;
    *at = *model_place(&x->points->m,
                       &x->points->r.unit[x->points->m.local.unit[x->points->m.local.part[part].vector].unit],
                       part);
    return 1;
}

static void open_model(struct served *s, const struct model_config *c)
{
    const int size[AXIS_COUNT] = { 1, 1, 1, 1 };
    const struct layout lay = { 1, 1, 1, 1, 1, 0 };
    struct err e;
    CHECK_INT(dev_open(&s->d, "cpu", 1, &mem, &e), 0);
    CHECK_INT(world_open(&s->world, "self", 0, s->d, &mem, &e), 0);
    CHECK_INT(mesh_open(&s->mesh, s->world, size, &e), 0);
    struct model_open how = {
        .layout = lay, .dev = s->d, .tp = s->mesh.axis[AXIS_TP], .dt = DT_F32, .max_rows = 8, .max_pos = 64
    };
    CHECK_INT(model_open(&s->m, c, &how, &e), 0);
}

static void open_served(struct served *s, int tied)
{
    const struct model_config c = rig_config(tied, 0.15);
    open_model(s, &c);
}

static void fill(struct served *s, struct numbers *x)
{
    struct err e;
    struct resident_source from = { .read = read_values,
                                    .ctx = x,
                                    .pack = x->points ? point_pack : NULL,
                                    .part = x->points ? point_part : NULL };
    CHECK_INT(resident_fill(&s->r, &s->m, &from, &e), 0);
}

static void close_served(struct served *s)
{
    resident_close(&s->r);
    model_close(&s->m);
    mesh_close(&s->mesh);
    world_close(s->world);
    dev_close(s->d);
}

/* Every pack of b holds what that of a holds, and so does every part that stays. */
static void check_same(const struct served *a, const struct served *b)
{
    for (int v = 0; v < a->m.local.n_trained; v++) {
        const struct unit_part *u = &a->m.local.unit[v];
        for (int i = u->first; i < u->first + u->n; i++) {
            const void *p = *model_place(&a->m, &a->r.unit[u->unit], i),
                       *q = *model_place(&b->m, &b->r.unit[u->unit], i);
            CHECK(!p == !q);
            if (p)
                CHECK_SAME(p, q, a->m.local.part[i].count * 4);
        }
        for (int i = -1; (i = model_vector_packs(&a->m, v, i + 1)) >= 0;) {
            struct panels shape;
            size_t bytes = model_pack_shape(&a->m, u->unit, i, &shape);
            CHECK_SAME(a->r.unit[u->unit].pack[i].p, b->r.unit[u->unit].pack[i].p, bytes);
        }
    }
}

TEST(weights_that_are_pointed_at_are_not_read_and_the_rest_is_made_the_same)
{
    for (int tied = 0; tied < 2; tied++)
        for (int every = 1; every <= 3; every++) {
            struct served whole = { 0 }, part = { 0 };
            struct numbers all = { 0 }, some = { .points = &whole, .every = every };
            open_served(&whole, tied);
            open_served(&part, tied);
            fill(&whole, &all);
            int64_t before = mem.now[MEM_PARAMS];
            fill(&part, &some);
            check_same(&whole, &part);
            CHECK(every > 1 ? some.n_read > 0 && some.n_read < all.n_read : some.n_read == 0);
            CHECK(every > 1 || mem.now[MEM_PARAMS] == before);
            close_served(&part);
            close_served(&whole);
            CHECK_INT(mem.total_now, 0);
        }
}

TEST(a_replaced_pack_is_used_from_then_on_and_its_memory_is_freed)
{
    struct served s = { 0 };
    struct numbers all = { 0 };
    open_served(&s, 0);
    fill(&s, &all);
    int64_t before = mem.now[MEM_PARAMS];
    for (int i = 0; i < 2; i++) {
        struct panels p = s.r.unit[1].pack[0];
        p.p = dev_alloc(s.d, MEM_PARAMS, 4096);
        resident_replace(&s.r, 1, 0, &p, p.p);
        CHECK(s.r.unit[1].pack[0].p == p.p);
        CHECK_INT(mem.now[MEM_PARAMS], before + 4096);
    }
    close_served(&s);
    CHECK_INT(mem.total_now, 0);
}

TEST(memory_of_weights_that_were_given_up_holds_the_next_ones_and_no_other_is_taken)
{
    struct served a = { 0 }, b = { 0 };
    struct numbers first = { .add = 1 }, plain = { 0 }, breaks = { .fails = 5 };
    struct resident_memory kept = { 0 };
    struct err e;
    open_served(&a, 0);
    open_served(&b, 0);
    fill(&b, &plain);
    struct resident_source from = { .read = read_values, .ctx = &first, .reuse = &kept };
    CHECK_INT(resident_fill(&a.r, &a.m, &from, &e), 0);
    const int64_t all = resident_bytes(&a.r), now = mem.now[MEM_PARAMS];
    void *const block = a.r.memory[1];
    resident_retire(&a.r, &kept);
    CHECK_INT(resident_memory_bytes(&kept), all + (int64_t)kept.flat_bytes);
    const int64_t total = mem.total_now;

    from.ctx = &breaks; /* what breaks in the middle gives the memory back */
    CHECK_INT(resident_fill(&a.r, &a.m, &from, &e), -ERR_INTEGRITY);
    CHECK_INT(resident_memory_bytes(&kept), all + (int64_t)kept.flat_bytes);
    CHECK_INT(mem.total_now, total);

    plain.n_read = 0;
    from.ctx = &plain;
    mem.total_peak = total;
    CHECK_INT(resident_fill(&a.r, &a.m, &from, &e), 0);
    CHECK(a.r.memory[1] == block);
    CHECK_INT(mem.now[MEM_PARAMS], now);
    CHECK_INT(mem.total_peak, total);
    check_same(&a, &b);
    CHECK_INT(resident_memory_bytes(&kept), (int64_t)kept.flat_bytes);
    resident_memory_close(&kept, a.d);
    close_served(&a);
    close_served(&b);
    CHECK_INT(mem.total_now, 0);
}

TEST(memory_that_was_made_ready_is_what_filling_takes)
{
    struct served a = { 0 };
    struct numbers all = { 0 };
    struct resident_memory kept = { 0 }, cut = { 0 };
    struct err e;
    for (int tied = 0; tied < 2; tied++) {
        open_served(&a, tied);
        resident_memory_open(&kept, &a.m, &(volatile sig_atomic_t){ 0 });
        mem.total_peak = mem.total_now;
        const int64_t before = mem.total_now;
        CHECK(resident_memory_bytes(&kept) > 0);
        CHECK_INT(resident_fill(&a.r, &a.m,
                                &(struct resident_source){ .read = read_values, .ctx = &all, .reuse = &kept },
                                &e),
                  0);
        CHECK_INT(mem.total_peak, before);
        CHECK_INT(resident_memory_bytes(&kept), (int64_t)kept.flat_bytes);
        resident_memory_close(&kept, a.d);
        resident_memory_open(&cut, &a.m, &(volatile sig_atomic_t){ 1 });
        CHECK_INT(resident_memory_bytes(&cut), 0);
        resident_memory_close(&cut, a.d);
        close_served(&a);
        CHECK_INT(mem.total_now, 0);
    }
}

/* Two sets of weights for one model, as in a reload beside serving: parameters with a dtype of their own (the
 * bias of a router in DeepSeek-V3) are each set's. */
TEST(another_set_leaves_parameters_with_a_dtype_of_their_own)
{
    struct served s = { 0 };
    struct resident next;
    struct numbers now = { 0 }, later = { .add = 1 };
    const struct resident_source from = { .read = read_values, .ctx = &later };
    struct err e;
    int n = 0;
    for (int i = 0; i < RIG_FAMILIES; i++) {
        const struct model_config c = rig_family_config(i);
        open_model(&s, &c);
        fill(&s, &now);
        CHECK_INT(resident_fill(&next, &s.m, &from, &e), 0);
        for (int v = s.m.local.n_trained; v < s.m.local.n_vectors; v++) {
            const struct unit_part *u = &s.m.local.unit[v];
            const struct part *p = &s.m.local.part[u->first];
            const float *a = s.r.unit[u->unit].own[v], *b = next.unit[u->unit].own[v];
            CHECK(a[p->offset] == value(&s.m.table.p[p->param], 0, 0));
            CHECK(b[p->offset] == a[p->offset] + 1);
            n++;
        }
        resident_close(&next);
        close_served(&s);
        CHECK_INT(mem.total_now, 0);
    }
    CHECK(n > 0);
}

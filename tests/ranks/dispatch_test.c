/* ranks: 1 2 4 8 */
/* dispatch_test.c - the lists of arrived rows and the two exchanges, against their definition. All ranks form
 * one expert group of every tp that divides it. Every rank knows all ranks' choices, a function of dp rank,
 * sequence and position, so it computes what must arrive without the lists. Rounds: the same for the leaves
 * of each. */
#include "base/rnd.h"
#include "kernels/tree.h"
#include "model/dispatch.h"
#include "tests/test.h"

enum { GRAIN = 8, CAP = 4096 };

static struct world *world;
static struct mesh mesh;
static struct mem mem;
static struct err err;

static void close_world(void)
{
    mesh_close(&mesh);
    world_close(world);
}

static struct comm *all(void)
{
    int size[AXIS_COUNT] = { 1, 1, 1, 1 };
    if (world)
        return mesh.all;
    if (world_open(&world, "auto", 0, NULL, &mem, &err) < 0)
        exit(1);
    size[AXIS_DP] = world_size(world);
    if (mesh_open(&mesh, world, size, &err) < 0)
        exit(1);
    atexit(close_world);
    return mesh.all;
}

enum choice { DRAWN, ONE_EXPERT, LAST_EXPERTS, SOME_EMPTY };

struct shape {
    int n_experts, k, n_seq;
    int64_t len;
    enum choice choice;
    int blocks; /* 1: blocks of positions are counted apart */
};

static const struct shape shapes[] = {
    { 8, 2, 1, 16, DRAWN, 0 },       { 13, 3, 2, 63, DRAWN, 0 },     { 11, 2, 3, 63, DRAWN, 1 },
    { 8, 8, 2, 9, DRAWN, 1 },        { 9, 1, 2, 32, ONE_EXPERT, 0 }, { 9, 2, 2, 17, LAST_EXPERTS, 1 },
    { 12, 3, 2, 40, SOME_EMPTY, 0 }, { 10, 2, 4, 8, SOME_EMPTY, 1 }, { 8, 1, 1, 3, DRAWN, 0 },
};

/* Whether a token of dp rank d chooses an expert: k experts, each once. */
static int chooses(const struct shape *s, int d, int seq, int64_t row, int expert)
{
    uint64_t draw = rnd_u64(3, (uint64_t)(d * 64 + seq), (uint64_t)row);
    int first = (int)(draw % (uint64_t)s->n_experts), at;

    switch (s->choice) {
    case ONE_EXPERT: first = 5; break;
    case LAST_EXPERTS: first = s->n_experts - s->k; break;
    case SOME_EMPTY: /* all sequences of a dp rank choose the same experts, other experts have no rows */
        first = d ? 5 : s->n_experts / 2;
        break;
    case DRAWN: break;
    }
    at = (expert - first + s->n_experts) % s->n_experts;
    return at < s->k;
}

/* A value that no other routed row has. */
static int64_t name_of(const struct shape *s, int d, int seq, int64_t row, int expert)
{
    return (((int64_t)d * s->n_seq + seq) * s->len + row) * s->n_experts + expert;
}

struct rig {
    struct shape s;
    int ep, tp, rank;
    struct routing home;
    struct arrivals a;
    void *memory;
    int64_t *sent, *arrived, *results, *returned; /* [CAP] */
};

static void carve_rig(struct rig *r, struct arena *from)
{
    routing_carve(&r->home, from);
    arrivals_carve(&r->a, from);
    r->sent = ARENA_NEW(from, int64_t, CAP);
    r->arrived = ARENA_NEW(from, int64_t, CAP);
    r->results = ARENA_NEW(from, int64_t, CAP);
    r->returned = ARENA_NEW(from, int64_t, CAP);
}

static void choose(struct rig *r)
{
    for (int64_t row = 0; row < r->home.rows; row++) {
        int64_t slot = row * r->s.k;
        for (int x = 0; x < r->s.n_experts; x++)
            if (chooses(&r->s, r->rank / r->tp, (int)(row / r->s.len), row % r->s.len, x))
                r->home.expert[slot++] = x;
        CHECK_INT(slot, (row + 1) * r->s.k);
    }
}

/* How much room there is, and which sequences stay together (struct arrivals). */
struct room {
    double buffer;
    int joined;
};

static void open_rig(struct rig *r, const struct shape *s, int tp, struct room room)
{
    struct arena a = { 0 };
    int ep = comm_size(all()), rank = comm_rank(all()), each = GRAIN / tp;
    int64_t begin = block_begin(s->len, GRAIN, rank % tp * each);

    *r = (struct rig){ .s = *s, .ep = ep, .tp = tp, .rank = rank };
    r->home = (struct routing){ .n_experts = s->n_experts,
                                .k = s->k,
                                .n_local = s->n_experts,
                                .n_leaves = s->n_seq,
                                .grain = s->blocks ? GRAIN : 0,
                                .rows = s->n_seq * s->len,
                                .leaf_rows = s->len,
                                .home = begin,
                                .n_home = block_begin(s->len, GRAIN, (rank % tp + 1) * each) - begin };
    r->a = (struct arrivals){ .ep = ep,
                              .tp = tp,
                              .rank = rank,
                              .n_experts = s->n_experts,
                              .k = s->k,
                              .n_seq = s->n_seq,
                              .leaf_rows = s->len,
                              .buffer = room.buffer,
                              .joined = room.joined,
                              .parts = s->blocks ? each : 1 };
    carve_rig(r, &a);
    r->memory = calloc(1, a.used);
    a = (struct arena){ r->memory, 0, a.used };
    carve_rig(r, &a);
    choose(r);
    routing_fill(&r->home);
    if (arrivals_fill(&r->a, all(), &r->home, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

/* Sends the name of every home row of a round, and of what arrives its name times 3 back. */
static void exchange(struct rig *r, int round)
{
    arrivals_select(&r->a, round);
    r->home.n_routed = arrivals_home(&r->a, &r->home.leaf);
    routing_fill(&r->home);
    for (int64_t i = 0; i < r->home.n; i++) {
        int64_t row = r->home.row[i];
        r->sent[i] = name_of(&r->s, r->rank / r->tp, (int)(row / r->s.len), row % r->s.len,
                             r->home.expert[r->home.slot[i]]);
    }
    struct comm_request *q = NULL;
    if (arrivals_send(&r->a, &q, all(), r->arrived, r->sent, sizeof *r->sent, &err) < 0 ||
        comm_finish(&q, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    for (int64_t i = 0; i < r->a.n; i++)
        r->results[i] = 3 * r->arrived[i];
    if (arrivals_return(&r->a, &q, all(), r->returned, r->results, sizeof *r->sent, &err) < 0 ||
        comm_finish(&q, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

/* The rows of one sequence for one expert, by position: grouped rows from `n` on. */
static int64_t check_sequence(const struct rig *r, int local, int expert, int leaf, int64_t n)
{
    int d = leaf / r->s.n_seq, seq = leaf % r->s.n_seq, block = 0, per_leaf = r->tp * r->a.parts;
    int64_t at = (int64_t)local * r->a.n_leaf + leaf - r->a.leaf;
    const int64_t *block_end = arrivals_blocks(&r->a).leaf_end + at * per_leaf;

    for (int64_t row = 0; row < r->s.len; row++) {
        for (; r->s.blocks && block_begin(r->s.len, GRAIN, block + 1) <= row; block++)
            CHECK_INT(block_end[block], n);
        if (!chooses(&r->s, d, seq, row, expert))
            continue;
        if (n < r->a.n) {
            CHECK_INT(r->arrived[r->a.list[n]], name_of(&r->s, d, seq, row, expert));
            CHECK_INT(r->a.back[r->a.list[n]], n);
        }
        n++;
    }
    for (; r->s.blocks && block < GRAIN; block++)
        CHECK_INT(block_end[block], n);
    CHECK_INT(arrivals_groups(&r->a).leaf_end[at], n);
    return n;
}

/* The selected round's rows: how many came. */
static int64_t check_round(struct rig *r)
{
    const struct shape *s = &r->s;
    int64_t n = 0;
    int local = 0;

    for (int x = 0; x < s->n_experts; x++) {
        if (x * r->ep / s->n_experts != r->rank)
            continue;
        CHECK_INT(r->a.begin[local], n);
        for (int leaf = r->a.leaf; leaf < r->a.leaf + r->a.n_leaf; leaf++)
            n = check_sequence(r, local, x, leaf, n);
        local++;
    }
    CHECK_INT(arrivals_groups(&r->a).n, local);
    CHECK_INT(r->a.begin[local], n);
    CHECK_INT(r->a.n, n);
    CHECK(n <= r->a.capacity);
    for (int64_t i = 0; i < r->home.n; i++)
        CHECK_INT(r->returned[i], 3 * r->sent[i]);
    return n;
}

/* Every leaf is in one round. */
static void check_shape(const struct shape *s, int tp, struct room room)
{
    struct rig r;
    int leaf = 0, leaves;

    open_rig(&r, s, tp, room);
    leaves = r.ep / tp * s->n_seq;
    for (int i = 0; i < r.a.n_rounds; i++) {
        exchange(&r, i);
        CHECK_INT(r.a.leaf, leaf);
        CHECK(r.a.n_leaf > 0);
        leaf += r.a.n_leaf;
        CHECK(leaf == leaves || leaf % room.joined == 0);
        check_round(&r);
    }
    CHECK_INT(leaf, leaves);
    if (room.buffer == 0 || room.buffer > 99)
        CHECK_INT(r.a.n_rounds, 1);
    else if (s->choice == LAST_EXPERTS && r.ep > 2)
        CHECK_INT(r.a.n_rounds, (leaves + room.joined - 1) / room.joined);
    free(r.memory);
}

static void check_shapes(struct room room)
{
    for (int tp = 1; tp <= comm_size(all()); tp *= 2)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            check_shape(&shapes[i], tp, room);
}

TEST(rows_arrive_by_expert_then_dp_rank_sequence_and_position_and_return)
{
    check_shapes((struct room){ 0, 1 });
}

TEST(what_has_no_room_travels_in_rounds_of_whole_leaves)
{
    check_shapes((struct room){ 100, 1 });
    check_shapes((struct room){ 0.01, 1 });
    check_shapes((struct room){ 0.01, 2 });
}

TEST(room_is_a_multiple_of_an_even_load_but_one_leaf_always_fits)
{
    /* 3 ranks, 8 experts: rank 0 has 3 of them; 6 sequences of 10 rows, 2 chosen of each */
    struct arrivals a = {
        .ep = 3, .tp = 1, .n_experts = 8, .k = 2, .n_seq = 2, .leaf_rows = 10, .joined = 1
    };
    CHECK_INT(arrivals_worst(&a, 0), 3 * 2 * 10 * 2);
    CHECK_INT(arrivals_even(&a, 0), 3 * 2 * 10 * 2 * 3 / 8);
    CHECK_INT(arrivals_even(&a, 2), 3 * 2 * 10 * 2 * 2 / 8);
    CHECK_INT(arrivals_room(&a, 0), 120);
    a.buffer = 1.5;
    CHECK_INT(arrivals_room(&a, 0), 68);
    a.buffer = 0.1;
    CHECK_INT(arrivals_room(&a, 0), 20);
    a.joined = 2;
    CHECK_INT(arrivals_room(&a, 0), 40);
    a.buffer = 1e9;
    CHECK_INT(arrivals_room(&a, 0), 120);
}

TEST(expert_e_belongs_to_rank_floor_of_e_times_ep_over_the_experts)
{
    for (int ep = 1; ep <= 16; ep++)
        for (int n = ep; n < 40; n++)
            for (int x = 0; x < n; x++) {
                int owner = x * ep / n;
                CHECK(dispatch_first(n, ep, owner) <= x && x < dispatch_first(n, ep, owner + 1));
            }
}

TEST(counts_of_traffic_are_those_of_the_peers)
{
    struct rig r;
    int64_t to[8], ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };

    open_rig(&r, &shapes[1], 1, (struct room){ 0, 1 });
    arrivals_select(&r.a, 0);
    CHECK_INT(comm_all_to_all_v(all(), to, ones, r.a.to, ones, sizeof *to, &err), 0);
    CHECK_SAME(to, r.a.from, (size_t)r.ep * sizeof *to);
    free(r.memory);
}

/* routing_test.c - the lists of routed rows, against their definition. */
#include "base/rnd.h"
#include "model/routing.h"
#include "tests/test.h"

/* Lists for rows of two sequences; expert ids are drawn from [0, n_experts). */
static void *open_routing(struct routing *r, int n_experts, int k, int first, int n_local, int64_t rows)
{
    struct arena a = { 0 };
    *r = (struct routing){ .n_experts = n_experts,
                           .k = k,
                           .first = first,
                           .n_local = n_local,
                           .n_leaves = 2,
                           .rows = rows,
                           .leaf_rows = rows / 2,
                           .n_home = rows / 2 };
    routing_carve(r, &a);
    a = (struct arena){ calloc(1, a.used), 0, a.used };
    routing_carve(r, &a);
    for (int64_t row = 0; row < rows; row++)
        for (int j = 0; j < k; j++) {
            int room = n_experts - k + 1;
            int draw = (int)(rnd_u64(1, 2, (uint64_t)(row * k)) % (uint64_t)room);
            r->expert[row * k + j] = draw + j;
        }
    routing_fill(r);
    return a.base;
}

TEST(rows_are_grouped_by_expert_then_by_row)
{
    struct routing r;
    void *memory = open_routing(&r, 7, 3, 0, 7, 40);
    int64_t n = 0;

    for (int e = 0; e < 7; e++) {
        CHECK_INT(r.begin[e], n);
        for (int64_t slot = 0; slot < 40 * 3; slot++) {
            if (r.expert[slot] != e)
                continue;
            CHECK_INT(r.row[n], slot / 3);
            CHECK_INT(r.slot[n], slot);
            CHECK_INT(r.place[slot], n);
            n++;
        }
    }
    CHECK_INT(n, 40 * 3);
    CHECK_INT(r.n, n);
    CHECK_INT(r.begin[7], n);
    free(memory);
}

TEST(leaves_end_where_a_sequence_ends)
{
    struct routing r;
    void *memory = open_routing(&r, 5, 2, 0, 5, 30);

    for (int e = 0; e < 5; e++)
        for (int64_t i = r.begin[e]; i < r.begin[e + 1]; i++)
            CHECK_INT(i < r.leaf_end[2 * e], r.row[i] < 15);
    for (int e = 0; e < 5; e++)
        CHECK_INT(r.leaf_end[2 * e + 1], r.begin[e + 1]);
    free(memory);
}

TEST(joined_leaves_end_where_their_last_sequence_ends)
{
    const int64_t begin[3] = { 0, 7, 9 }, end[8] = { 2, 2, 5, 7, 7, 8, 8, 9 };
    const struct expert_rows g = { 2, begin, 4, end };
    const int64_t two[4] = { 2, 7, 8, 9 }, four[2] = { 7, 9 };
    int64_t ends[8];
    struct expert_rows joined = leaves_joined(&g, 2, ends);

    CHECK_INT(joined.n_leaves, 2);
    for (int i = 0; i < 4; i++)
        CHECK_INT(joined.leaf_end[i], two[i]);
    joined = leaves_joined(&g, 4, ends);
    CHECK_INT(joined.n_leaves, 1);
    for (int i = 0; i < 2; i++)
        CHECK_INT(joined.leaf_end[i], four[i]);
    joined = leaves_joined(&g, 1, ends);
    for (int i = 0; i < 8; i++)
        CHECK_INT(joined.leaf_end[i], end[i]);
}

TEST(experts_of_other_ranks_have_no_rows_here)
{
    struct routing all, r;
    void *whole = open_routing(&all, 6, 2, 0, 6, 20), *memory = open_routing(&r, 6, 2, 2, 3, 20);

    CHECK_INT(r.n, all.begin[5] - all.begin[2]);
    for (int64_t slot = 0; slot < 40; slot++) {
        int here = all.expert[slot] >= 2 && all.expert[slot] < 5;
        CHECK_INT(r.place[slot], here ? all.place[slot] - all.begin[2] : -1);
    }
    free(whole);
    free(memory);
}

TEST(only_home_rows_are_routed)
{
    struct routing r;
    void *memory = open_routing(&r, 4, 2, 0, 4, 20);

    r.home = 3;
    r.n_home = 5;
    routing_fill(&r);
    CHECK_INT(r.n, 2 * 5 * 2);
    for (int64_t slot = 0; slot < 40; slot++) {
        int64_t at = slot / 2 % 10;
        CHECK_INT(r.place[slot] >= 0, at >= 3 && at < 8);
    }
    free(memory);
}

TEST(an_expert_without_rows_has_empty_leaves)
{
    struct routing r;
    void *memory = open_routing(&r, 4, 1, 0, 4, 8);

    for (int64_t slot = 0; slot < 8; slot++)
        r.expert[slot] = 2;
    routing_fill(&r);
    CHECK_INT(r.begin[2], 0);
    CHECK_INT(r.begin[3], 8);
    CHECK_INT(r.leaf_end[2 * 2], 4);
    CHECK_INT(r.leaf_end[2 * 0 + 1], 0);
    CHECK_INT(r.leaf_end[2 * 3 + 1], 8);
    free(memory);
}

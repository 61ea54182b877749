/* train_batch_test.c - rows of the global batch: every row once, and sums that are nodes of the tree
 * (numerics contract, "Rows"). */
#include "tests/test.h"
#include "train/zero/zero.h"

static struct err e;

TEST(every_row_is_taken_once_whatever_the_layout)
{
    int plans = 0;
    for (int zero = 0; zero < 4; zero++) {
        for (int dp = 1; dp <= 8; dp++) {
            for (int64_t G = dp; G <= 48; G += dp) {
                for (int64_t M = 1; M <= G / dp; M++) {
                    struct batch_plan b;
                    int seen[48] = { 0 };
                    if (G / dp % M)
                        continue;
                    CHECK_INT(batch_plan(&b, G, M, dp, zero, &e), 0);
                    CHECK_INT(b.supers * b.local * dp, G);
                    CHECK_INT(b.local % M, 0);
                    for (int64_t s = 0; s < b.supers; s++)
                        for (int d = 0; d < dp; d++)
                            for (int64_t j = 0; j < b.local; j++)
                                seen[batch_row(&b, dp, s, d, j)]++;
                    for (int64_t r = 0; r < G; r++)
                        if (seen[r] != 1)
                            test_fail(__FILE__, __LINE__,
                                      "zero %d dp %d G %lld M %lld: row %lld is taken %d times", zero, dp,
                                      (long long)G, (long long)M, (long long)r, seen[r]);
                    plans++;
                }
            }
        }
    }
    CHECK(plans > 1000);
}

/* Rows of a rank in a super-step, and those of all ranks in it, are neighbours and a node each; else in_tree
 * says no. */
TEST(the_rows_of_a_super_step_are_a_node_of_the_tree)
{
    for (int zero = 0; zero < 4; zero++) {
        for (int dp = 1; dp <= 8; dp *= 2) {
            for (int64_t G = dp; G <= 48; G += dp) {
                struct batch_plan b;
                CHECK_INT(batch_plan(&b, G, 1, dp, zero, &e), 0);
                for (int64_t s = 0; s < b.supers && b.in_tree; s++) {
                    for (int d = 0; d < dp; d++) {
                        CHECK(tree_is_node(G, batch_row(&b, dp, s, d, 0), b.local));
                        for (int64_t j = 1; j < b.local; j++)
                            CHECK_INT(batch_row(&b, dp, s, d, j), batch_row(&b, dp, s, d, 0) + j);
                    }
                    CHECK(tree_is_node(G, batch_row(&b, dp, s, 0, 0), b.local * dp));
                }
                if (!b.in_tree) /* only where no number of rows of a rank would do */
                    for (int64_t r = 1; r <= G / dp; r++)
                        CHECK(G / dp % r || !tree_is_node(G, 0, r) || !tree_is_node(G, 0, r * dp) ||
                              (zero < 2 && r < G / dp));
            }
        }
    }
}

TEST(known_plans)
{
    static const struct {
        int64_t G, M;
        int dp, zero;
        int64_t local, supers;
        int in_tree;
    } want[] = {
        { 8, 0, 1, 0, 8, 1, 1 },  { 8, 1, 4, 1, 2, 1, 1 },  { 8, 1, 2, 2, 1, 4, 1 },
        { 8, 2, 2, 3, 2, 2, 1 },  { 12, 1, 4, 3, 3, 1, 1 }, { 12, 1, 2, 2, 3, 2, 1 },
        { 12, 2, 2, 2, 6, 1, 1 }, { 24, 1, 4, 2, 3, 2, 1 }, { 12, 1, 3, 0, 4, 1, 0 },
        { 6, 1, 3, 2, 1, 2, 1 },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct batch_plan b;
        CHECK_INT(batch_plan(&b, want[i].G, want[i].M, want[i].dp, want[i].zero, &e), 0);
        if (b.local != want[i].local || b.supers != want[i].supers || b.in_tree != want[i].in_tree)
            test_fail(__FILE__, __LINE__,
                      "G %lld M %lld dp %d zero %d: %lld rows, %lld super-steps, in tree %d",
                      (long long)want[i].G, (long long)want[i].M, want[i].dp, want[i].zero,
                      (long long)b.local, (long long)b.supers, b.in_tree);
    }
}

TEST(batches_that_do_not_divide_are_refused_with_both_numbers)
{
    struct batch_plan b;
    CHECK_INT(batch_plan(&b, 10, 0, 4, 0, &e), -ERR_USAGE);
    CHECK_STR(e.text, "--global-batch 10 is not a multiple of dp 4: use a multiple");
    CHECK_INT(batch_plan(&b, 0, 0, 1, 0, &e), -ERR_USAGE);
    CHECK_INT(batch_plan(&b, 12, 4, 2, 0, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "--micro-batch 4 does not divide the 6 sequences");
    CHECK_INT(batch_plan(&b, 12, -1, 2, 0, &e), -ERR_USAGE);
}

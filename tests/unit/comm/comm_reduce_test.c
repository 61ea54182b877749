/* comm_reduce_test.c - sums over ranks: the tree for any number of them, bits; the maximum; integers. */
#include <math.h>

#include "comm/reduce.h"
#include "kernels/tree.h"
#include "tests/test.h"

#define MOST 17
#define N 1003

static float data[MOST][N];

static void fill(void)
{
    uint64_t h = 1;
    for (int r = 0; r < MOST; r++)
        for (int i = 0; i < N; i++) {
            h = h * 6364136223846793005u + 1442695040888963407u;
            data[r][i] = ldexpf((float)(h >> 40) / 16777216.0f - 0.5f, (int)(h >> 36 & 15) - 8);
        }
}

static void sum_nested(float *out, int ranks, int inner, int64_t n)
{
    void *in[MOST];
    for (int r = 0; r < ranks; r++)
        in[r] = data[r];
    sum_over(SUM_TREE, out, in, ranks, inner, n);
}

static void sum(float *out, int ranks, int64_t n) { sum_nested(out, ranks, 0, n); }

TEST(tree_add_is_the_tree_for_any_number_of_ranks)
{
    float out[N];
    fill();
    for (int ranks = 1; ranks <= MOST; ranks++) {
        sum(out, ranks, N);
        for (int i = 0; i < N; i++)
            if (memcmp(&out[i], &(float){ tree_sum(ranks, &data[0][i], N) }, 4)) {
                test_fail(__FILE__, __LINE__, "%d ranks, element %d is %a", ranks, i, (double)out[i]);
                break;
            }
    }
}

TEST(every_length_is_summed_to_its_end_and_no_further)
{
    fill();
    for (int ranks = 2; ranks <= 8; ranks++)
        for (int n = 0; n < 70; n++) {
            float out[72];
            for (int i = 0; i < 72; i++)
                out[i] = 777;
            sum(out, ranks, n);
            for (int i = 0; i < 72; i++)
                CHECK_BITS(out[i], i < n ? tree_sum(ranks, &data[0][i], N) : 777);
        }
}

TEST(the_sum_may_replace_one_of_its_inputs)
{
    for (int ranks = 2; ranks <= 9; ranks++)
        for (int mine = 0; mine < ranks; mine++) {
            float want[N];
            fill();
            sum(want, ranks, N);
            sum(data[mine], ranks, N);
            CHECK_SAME(data[mine], want, sizeof want);
        }
}

TEST(rank_order_would_give_other_bits)
{
    int differs = 0;
    fill();
    for (int i = 0; i < N; i++) {
        float s = data[0][i];
        for (int r = 1; r < 6; r++)
            s += data[r][i];
        differs += s != tree_sum(6, &data[0][i], N);
    }
    CHECK(differs > 50);
}

TEST(a_nested_sum_adds_groups_of_neighbours_first)
{
    int differs = 0;
    fill();
    for (int groups = 3; groups * 4 <= MOST; groups++)
        for (int inner = 2; inner <= 4; inner += 2) {
            float out[N], group[8];
            sum_nested(out, groups * inner, inner, N);
            for (int i = 0; i < N; i++) {
                for (int g = 0; g < groups; g++)
                    group[g] = tree_sum(inner, &data[g * inner][i], N);
                CHECK_BITS(out[i], tree_sum(groups, group, 1));
                differs += out[i] != tree_sum(groups * inner, &data[0][i], N);
            }
        }
    CHECK(differs > 50);
}

TEST(maximum_does_not_depend_on_who_holds_it)
{
    float x[4] = { -0.0f, 1, NAN, -INFINITY }, y[4] = { 0.0f, -1, 5, -2 }, a[4], b[4];
    void *xy[] = { x, y }, *yx[] = { y, x };
    sum_over(SUM_MAX, a, xy, 2, 0, 4);
    sum_over(SUM_MAX, b, yx, 2, 0, 4);
    CHECK_SAME(a, b, sizeof a);
    CHECK_BITS(a[0], 0.0f);
    CHECK_BITS(a[1], 1.0f);
    CHECK(isnan(a[2]));
    CHECK_BITS(a[3], -2.0f);
}

TEST(integers_wrap_without_harm)
{
    int64_t x[2] = { INT64_MAX, -5 }, y[2] = { 1, 3 }, out[2];
    void *in[] = { x, y };
    sum_over(SUM_I64, out, in, 2, 0, 2);
    CHECK(out[0] == INT64_MIN && out[1] == -2);
}

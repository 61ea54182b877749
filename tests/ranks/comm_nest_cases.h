/* comm_nest_cases.h - nested sums: the end of comm_cases.h, which has what they use. */

/* Tree over pairs of neighbours of the sum of each. */
static float nested_sum_of(int size, int64_t i)
{
    float x[64], pair[32];
    for (int r = 0; r < size; r++)
        x[r] = value(r, i);
    for (int p = 0; p < size / 2; p++)
        pair[p] = tree_sum(2, x + 2 * p, 1);
    return tree_sum(size / 2, pair, 1);
}

static void check_nested(const char *what, const float *x, int64_t n, int64_t first, int size)
{
    for (int64_t i = 0; i < n; i++)
        if (differ(what, n, i, x[i], nested_sum_of(size, first + i)))
            break;
}

TEST(nested_sums_add_neighbours_first)
{
    struct comm *c;
    OK(comm_split(&c, all(), 0, &err));
    int size = comm_size(c), me = comm_rank(c);
    if (size % 2) {
        test_skip("%d ranks are no pairs", size);
        comm_close(c);
        return;
    }

    comm_nest(c, 2);
    for (int s = 0; s < N_LESS; s++)
        for (int place = 0; place < 3; place++) {
            int64_t n = sizes[s];
            float *in = take(c, place, (size_t)(n * size) * 4), *x = take(c, place, (size_t)n * 4);
            struct comm_request *q;

            fill(x, me, 0, n);
            OK(comm_all_reduce(c, x, n, &err));
            check_nested("all-reduce", x, n, 0, size);
            fill(in, me, 0, n * size);
            OK(comm_reduce_scatter(c, x, in, n, &err));
            check_nested("reduce-scatter", x, n, me * n, size);
            fill(x, me, 0, n);
            OK(comm_start_all_reduce(&q, c, x, n, &err));
            OK(comm_finish(&q, &err));
            check_nested("started all-reduce", x, n, 0, size);
            give(c, place, x);
            give(c, place, in);
        }
    comm_close(c);
}

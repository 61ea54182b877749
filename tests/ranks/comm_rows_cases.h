/* comm_rows_cases.h - all-to-alls of rows: the end of comm_cases.h, which has what they use. */
/* Rows that rank `from` sends to rank `to`: some pairs exchange none. Round 7: rank 0 sends and gets none;
 * in round 8 no rank sends rows. */
static int64_t exchanged(int from, int to, int round)
{
    if (round == 8 || (round == 7 && (from == 0 || to == 0)))
        return 0;
    return (int64_t)(mix((uint64_t)(from * 64 + to * 8 + round)) % 5);
}

/* An all-to-all with rows of `bytes` bytes, each filled with its sender, its receiver and its number. */
struct exchange {
    struct comm_request *q;
    size_t bytes;
    int round, place;
    int64_t to[64], from[64];
    unsigned char *in, *out;
};

static void fill_exchange(struct comm *c, struct exchange *x, size_t bytes, int round, int place)
{
    int n = comm_size(c), me = comm_rank(c);
    int64_t sent = 0, got = 0, at = 0;

    *x = (struct exchange){ .bytes = bytes, .round = round, .place = place };
    for (int r = 0; r < n; r++) {
        sent += x->to[r] = exchanged(me, r, round);
        got += x->from[r] = exchanged(r, me, round);
    }
    x->in = take(c, place, (size_t)sent * bytes);
    x->out = take(c, place, (size_t)got * bytes);
    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < x->to[r]; i++, at++)
            for (size_t b = 0; b < bytes; b++)
                x->in[(size_t)at * bytes + b] = (unsigned char)(mix((uint64_t)(me * 4096 + r * 64 + i)) + b);
}

static void check_exchanged(struct comm *c, struct exchange *x)
{
    int n = comm_size(c), me = comm_rank(c);
    size_t bytes = x->bytes;
    int64_t at = 0;

    for (int r = 0; r < n; r++)
        for (int64_t i = 0; i < exchanged(r, me, x->round); i++, at++)
            for (size_t b = 0; b < bytes; b++)
                if (x->out[(size_t)at * bytes + b] !=
                    (unsigned char)(mix((uint64_t)(r * 4096 + me * 64 + i)) + b)) {
                    test_fail(__FILE__, __LINE__, "row %lld of rank %d, byte %zu", (long long)i, r, b);
                    goto out;
                }
out:
    give(c, x->place, x->in);
    give(c, x->place, x->out);
}

static void check_exchange(struct comm *c, size_t bytes, int round, int place)
{
    struct exchange x;
    fill_exchange(c, &x, bytes, round, place);
    dawdle(round);
    OK(comm_all_to_all_v(c, x.out, x.from, x.in, x.to, bytes, &err));
    check_exchanged(c, &x);
}

/* The counts may change once it has started. */
static void start_exchange(struct comm *c, struct exchange *x, size_t bytes, int round, int place)
{
    fill_exchange(c, x, bytes, round, place);
    dawdle(round);
    OK(comm_start_all_to_all_v(&x->q, c, x->out, x->from, x->in, x->to, bytes, &err));
    memset(x->from, 255, sizeof x->from);
    memset(x->to, 255, sizeof x->to);
}

static void finish_exchange(struct comm *c, struct exchange *x)
{
    OK(comm_finish(&x->q, &err));
    CHECK(x->q == NULL);
    check_exchanged(c, x);
}

TEST(rows_of_all_ranks_come_to_their_ranks)
{
    for (int round = 0; round < 9; round++)
        check_exchange(all(), round % 2 ? 4 : 1 + (size_t)round * 300, round, round % 3);
    check_exchange(all(), 3 << 20, 6, 0);
}

TEST(rows_travel_while_the_rank_makes_other_calls)
{
    struct comm *c = all(), *other;
    struct exchange x[4];
    struct comm_count a[COMM_OPS], b[COMM_OPS];
    int64_t rows = 0;

    OK(comm_split(&other, c, 0, &err));
    comm_counts(c, a);
    for (int round = 0; round < 9; round++) {
        for (int i = 0; i < 3; i++)
            start_exchange(c, &x[i], i == 1 ? 4 : 700 + (size_t)round, (round + i) % 9, (round + i) % 3);
        start_exchange(other, &x[3], 3001, round, 0);
        check_all_reduce(c, NULL, round % 2 ? 100 : 4099, round % 3);
        check_exchange(c, 12, round, 1);
        for (int i = 0; i < round % 3; i++)
            OK(comm_progress(c, &err));
        finish_exchange(other, &x[3]);
        finish_exchange(c, &x[round % 2 ? 2 : 0]);
        finish_exchange(c, &x[1]);
        finish_exchange(c, &x[round % 2 ? 0 : 2]);
    }
    comm_counts(c, b);
    CHECK_INT(b[COMM_ALL_TO_ALL].calls - a[COMM_ALL_TO_ALL].calls, 4 * 9);
    for (int round = 0; round < 9; round++)
        for (int r = 0; r < comm_size(c); r++)
            for (int i = 0; i < 4 && r != comm_rank(c); i++)
                rows += exchanged(comm_rank(c), r, i < 3 ? (round + i) % 9 : round) * (i == 3 ? 12
                                                                                       : i == 1
                                                                                           ? 4
                                                                                           : 700 + round);
    CHECK_INT(b[COMM_ALL_TO_ALL].bytes - a[COMM_ALL_TO_ALL].bytes, rows);
    comm_close(other);
}

TEST(more_exchanges_than_lanes_wait_for_the_oldest)
{
    static struct exchange x[30];
    for (int k = 0; k < 30; k++)
        start_exchange(all(), &x[k], 256, k % 9, k % 3);
    for (int k = 29; k >= 0; k--)
        finish_exchange(all(), &x[k]);
}

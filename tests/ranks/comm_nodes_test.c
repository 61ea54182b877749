/* ranks: 2 3 4 6 8 */
/* comm_nodes_test.c - every collective over messages, with two ranks on every machine
 * (SHARDLINE_RANKS_PER_NODE divides this one): the bits of the flat tree, and fewer bytes between machines
 * when their number is a power of two. */
#include <stdlib.h>
__attribute__((constructor)) static void cut(void) { setenv("SHARDLINE_RANKS_PER_NODE", "2", 1); }
#define TRANSPORT (world_size(world) > 2 ? "mpi" : "shm")
#define OPEN_AS "auto"
#include "tests/ranks/comm_cases.h"

static int64_t across(struct comm *c, enum comm_op op)
{
    struct comm_count n[COMM_OPS];
    comm_counts(c, n);
    return n[op].across;
}

/* Bytes sent to other machines by one rank of P = 2 N: a slice of 1/2 to and from N machines, or flat, of
 * 1/P to and from all ranks. */
TEST(sums_inside_a_machine_first_cross_the_network_less)
{
    struct comm *c = all();
    int P = comm_size(c), N = P / 2;
    int64_t n = 8 * 3 * 16 * 1024, before = across(c, COMM_ALL_REDUCE);
    if (P < 4 || P % 2) {
        test_skip("one machine, or machines with different numbers of ranks");
        return;
    }
    float *x = calloc((size_t)n, 4);
    OK(comm_all_reduce(c, x, n, &err));
    int64_t inside_first = 2 * (N - 1) * (n / 2 / N) * 4, flat = 2 * (P - 2) * (n / P) * 4;
    CHECK_INT(across(c, COMM_ALL_REDUCE) - before, (N & (N - 1)) == 0 ? inside_first : flat);
    CHECK(inside_first * 2 <= flat || N > 3);
    free(x);
}

TEST(groups_of_one_machine_send_nothing)
{
    struct comm *c = all(), *pair;
    OK(comm_split(&pair, c, comm_rank(c) / 2, &err));
    int member[2] = { comm_rank(c) / 2 * 2, comm_rank(c) / 2 * 2 + 1 };
    check_all_reduce(pair, member, 100003, 1);
    CHECK_INT(across(pair, COMM_ALL_REDUCE), 0);
    comm_close(pair);
}

/* Groups whose ranks are not neighbours on equal machines: flat, and the same bits. */
TEST(groups_that_do_not_fill_machines_evenly_sum_flat)
{
    struct comm *c = all(), *odd;
    int member[64], n = 0, mine = comm_rank(c) != 1;
    OK(comm_split(&odd, c, mine, &err));
    for (int r = 0; r < comm_size(c); r++)
        if ((r != 1) == mine)
            member[n++] = r;
    for (int s = 0; s < N_LESS; s++)
        check_all_reduce(odd, member, sizes[s], s % 3);
    comm_close(odd);
}

TEST(the_ranks_of_a_group_that_are_here_are_counted)
{
    struct comm *c = all(), *odd;
    int P = comm_size(c), first = comm_rank(c) / 2 * 2, mine = comm_rank(c) != 1;
    CHECK_INT(comm_local_size(c), first + 1 < P ? 2 : 1);
    OK(comm_split(&odd, c, mine, &err));
    CHECK_INT(comm_local_size(odd), first + 1 < P && first > 0 ? 2 : 1);
    comm_close(odd);
}

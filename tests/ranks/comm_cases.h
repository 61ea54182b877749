/* comm_cases.h - every collective against a scalar reference, for whatever transport the including test
 * opens (TRANSPORT). All ranks know all ranks' inputs (a function of rank and index), so each can compute
 * what must come out. */
#include <math.h>
#include <time.h>

#include "comm/comm.h"
#include "kernels/tree.h"
#include "tests/test.h"

#ifndef OPEN_AS
#define OPEN_AS TRANSPORT /* what world_open is asked for */
#endif

static struct world *world;
static struct mesh mesh;
static struct mem mem;
static struct err err;

static void close_world(void)
{
    mesh_close(&mesh);
    world_close(world);
}

/* One world for all tests of the program: the first test opens it, exit closes it. */
static struct comm *all(void)
{
    if (!world) {
        const int flat[AXIS_COUNT] = { [AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_DP] = 1, [AXIS_PP] = 1 };
        int size[AXIS_COUNT];
        memcpy(size, flat, sizeof size);
        if (world_open(&world, OPEN_AS, 0, NULL, &mem, &err) < 0) {
            printf("%s\n", err.text);
            exit(1);
        }
        size[AXIS_DP] = world_size(world);
        if (mesh_open(&mesh, world, size, &err) < 0) {
            printf("%s\n", err.text);
            exit(1);
        }
        atexit(close_world);
    }
    return mesh.all;
}

#define OK(call) \
    do { \
        if ((call) < 0) \
            test_fail(__FILE__, __LINE__, "%s: %s", #call, err.text); \
    } while (0)

/* the last is larger than a staging buffer */
static const int64_t sizes[] = { 0, 1, 7, 511, 512, 513, 4099, 100003, 270001 };
#define N_SIZES ((int)(sizeof sizes / sizeof *sizes))
/* for tests in which every rank checks the data of all: the largest would only take time */
#define N_LESS (N_SIZES - 1)

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Magnitudes from 2^-8 to 2^8, both signs: any other order of additions shows in many elements. */
static float value(int rank, int64_t i)
{
    uint64_t h = mix((uint64_t)rank * 1000003u + (uint64_t)i);
    return ldexpf((float)(h & 0xffffff) / 16777216.0f - 0.5f, (int)(h >> 60) - 8);
}

static void fill(float *x, int rank, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value(rank, first + i);
}

static float sum_of(int size, const int *member, int64_t i)
{
    float x[64];
    for (int r = 0; r < size; r++)
        x[r] = value(member ? member[r] : r, i);
    return tree_sum(size, x, 1);
}

/* place 0: in the segment on all ranks, 1: on none, 2: on even ranks only */
static void *take(struct comm *c, int place, size_t bytes)
{
    int shared = place == 0 || (place == 2 && comm_rank(c) % 2 == 0);
    void *p = shared ? comm_alloc(c, MEM_COMM, bytes + 4) : malloc(bytes + 4);
    if (!p)
        test_fail(__FILE__, __LINE__, "no memory for %zu bytes", bytes);
    return p;
}

static void give(struct comm *c, int place, void *p)
{
    if (place == 0 || (place == 2 && comm_rank(c) % 2 == 0))
        comm_free(c, p);
    else
        free(p);
}

/* Makes ranks call at different times. */
static void dawdle(int salt)
{
    struct timespec t = { 0, (long)(mix((uint64_t)world_rank(world) * 77u + (uint64_t)salt) % 2000000) };
    if (salt % 3 == 0)
        nanosleep(&t, NULL);
}

static int differ(const char *what, int64_t n, int64_t i, float got, float want)
{
    if (!memcmp(&got, &want, 4))
        return 0;
    test_fail(__FILE__, __LINE__, "%s of %lld: element %lld is %a, not %a", what, (long long)n, (long long)i,
              (double)got, (double)want);
    return 1;
}

static void check_all_reduce(struct comm *c, const int *member, int64_t n, int place)
{
    float *x = take(c, place, (size_t)n * 4);
    fill(x, member ? member[comm_rank(c)] : comm_rank(c), 0, n);
    OK(comm_all_reduce(c, x, n, &err));
    for (int64_t i = 0; i < n; i++)
        if (differ("all-reduce", n, i, x[i], sum_of(comm_size(c), member, i)))
            break;
    give(c, place, x);
}

TEST(all_reduce_is_the_tree_over_ranks)
{
    struct comm *c = all();
    CHECK_STR(world_transport(world), TRANSPORT);
    for (int s = 0; s < N_SIZES; s++)
        for (int place = 0; place < 3; place++) {
            dawdle(s + place);
            check_all_reduce(c, NULL, sizes[s], place);
        }
}

TEST(a_ring_or_rank_order_would_differ_on_this_data)
{
    struct comm *c = all();
    int size = comm_size(c), differs = 0;
    if (size < 4 || tree_run(size) == size) {
        test_skip("Tree(%d) is the rank order", size);
        return;
    }
    for (int64_t i = 0; i < 1000; i++) {
        float s = value(0, i);
        for (int r = 1; r < size; r++)
            s += value(r, i);
        differs += s != sum_of(size, NULL, i);
    }
    CHECK(differs > 100);
}

TEST(reduce_scatter_gives_every_rank_its_segment_of_the_tree)
{
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c);
    for (int s = 0; s < N_LESS; s++)
        for (int place = 0; place < 3; place++)
            for (int inplace = 0; inplace < 2; inplace++) {
                int64_t n = sizes[s];
                float *in = take(c, place, (size_t)(n * size) * 4), *own = malloc((size_t)n * 4 + 4);
                float *out = inplace ? in + me * n : own;
                fill(in, me, 0, n * size);
                dawdle(s);
                OK(comm_reduce_scatter(c, out, in, n, &err));
                for (int64_t i = 0; i < n; i++)
                    if (differ("reduce-scatter", n, i, out[i], sum_of(size, NULL, me * n + i)))
                        break;
                free(own);
                give(c, place, in);
            }
}

TEST(all_gather_brings_every_part_to_its_place)
{
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c);
    for (int s = 0; s < N_SIZES; s++)
        for (int place = 0; place < 3; place++)
            for (int inplace = 0; inplace < (s < N_LESS ? 2 : 1); inplace++) {
                int64_t n = sizes[s];
                float *out = take(c, place, (size_t)(n * size) * 4), *own = take(c, place, (size_t)n * 4);
                float *in = inplace ? out + me * n : own;
                fill(in, me, 0, n);
                dawdle(s);
                OK(comm_all_gather(c, out, in, (size_t)n * 4, &err));
                for (int64_t i = 0; i < n * size; i++)
                    if (differ("all-gather", n, i, out[i], value((int)(i / n), i % n)))
                        break;
                give(c, place, own);
                give(c, place, out);
            }
}

TEST(all_gather_takes_odd_byte_counts)
{
    struct comm *c = all();
    size_t each = 3001;
    unsigned char *out = malloc(each * (size_t)comm_size(c)), *in = malloc(each);
    for (size_t i = 0; i < each; i++)
        in[i] = (unsigned char)(mix(i) + (uint64_t)comm_rank(c));
    OK(comm_all_gather(c, out, in, each, &err));
    for (size_t i = 0; i < each * (size_t)comm_size(c); i++)
        if (out[i] != (unsigned char)(mix(i % each) + i / each)) {
            test_fail(__FILE__, __LINE__, "byte %zu is wrong", i);
            break;
        }
    free(out);
    free(in);
}

TEST(broadcast_copies_the_root_to_all)
{
    struct comm *c = all();
    for (int root = 0; root < comm_size(c); root++)
        for (int s = 0; s < (root ? N_LESS : N_SIZES); s++)
            for (int place = 0; place < 3; place++) {
                int64_t n = sizes[s];
                float *x = take(c, place, (size_t)n * 4);
                fill(x, comm_rank(c) == root ? root : 63, 0, n);
                dawdle(s + root);
                OK(comm_broadcast(c, x, (size_t)n * 4, root, &err));
                for (int64_t i = 0; i < n; i++)
                    if (differ("broadcast", n, i, x[i], value(root, i)))
                        break;
                give(c, place, x);
            }
}

TEST(max_is_exact_and_a_nan_wins)
{
    struct comm *c = all();
    for (int s = 0; s < N_SIZES; s++) {
        int64_t n = sizes[s];
        float *x = take(c, s % 3, (size_t)n * 4);
        fill(x, comm_rank(c), 0, n);
        if (n > 3) {
            x[1] = comm_rank(c) == comm_size(c) - 1 ? NAN : 1;
            x[2] = comm_rank(c) == 0 ? -INFINITY : -1e30f;
            x[3] = comm_rank(c) % 2 ? 0.0f : -0.0f;
        }
        OK(comm_all_reduce_max(c, x, n, &err));
        for (int64_t i = n > 3 ? 4 : 0; i < n; i++) {
            float m = value(0, i);
            for (int r = 1; r < comm_size(c); r++)
                m = fmaxf(m, value(r, i));
            if (differ("max", n, i, x[i], m))
                break;
        }
        if (n > 3) {
            CHECK(isnan(x[1]));
            CHECK_BITS(x[2], comm_size(c) == 1 ? -INFINITY : -1e30f);
            CHECK_BITS(x[3], comm_size(c) == 1 ? -0.0f : 0.0f);
        }
        give(c, s % 3, x);
    }
}

TEST(integer_sums_are_exact)
{
    struct comm *c = all();
    for (int s = 0; s < N_SIZES; s++) {
        int64_t n = sizes[s], *x = take(c, s % 3, (size_t)n * 8 + 8);
        for (int64_t i = 0; i < n; i++)
            x[i] = (int64_t)(mix((uint64_t)(i + comm_rank(c))) >> 8) - (INT64_C(1) << 54);
        OK(comm_all_reduce_i64(c, x, n, &err));
        for (int64_t i = 0; i < n; i++) {
            int64_t want = 0;
            for (int r = 0; r < comm_size(c); r++)
                want += (int64_t)(mix((uint64_t)(i + r)) >> 8) - (INT64_C(1) << 54);
            if (x[i] != want) {
                test_fail(__FILE__, __LINE__, "element %lld of %lld is wrong", (long long)i, (long long)n);
                break;
            }
        }
        give(c, s % 3, x);
    }
}

TEST(messages_arrive_whole_and_in_order_around_the_ring)
{
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c), next = (me + 1) % size, prev = (me + size - 1) % size;
    if (size == 1)
        return;
    for (int s = 0; s < N_SIZES; s++)
        for (int place = 0; place < 2; place++) {
            int64_t n = sizes[s];
            float *x = take(c, place, (size_t)n * 4), *y = take(c, place, (size_t)n * 4);
            /* all send first: a send must not wait for the receiver */
            for (int k = 0; k < 3; k++) {
                fill(x, me, k * n, n);
                OK(comm_send(c, x, (size_t)n * 4, next, &err));
            }
            dawdle(s);
            for (int k = 0; k < 3; k++) {
                OK(comm_recv(c, y, (size_t)n * 4, prev, &err));
                for (int64_t i = 0; i < n; i++)
                    if (differ("message", n, i, y[i], value(prev, k * n + i)))
                        break;
            }
            give(c, place, y);
            give(c, place, x);
        }
}

TEST(messages_of_two_groups_and_collectives_do_not_meet)
{
    struct comm *c = all(), *other;
    int size = comm_size(c), me = comm_rank(c), next = (me + 1) % size, prev = (me + size - 1) % size;
    if (size == 1)
        return;
    OK(comm_split(&other, c, 3, &err));
    for (int k = 0; k < 20; k++) {
        float x = value(me, 2 * k), y = value(me, 2 * k + 1), z = value(me, k), all_of[64];
        OK(comm_send(c, &x, 4, next, &err));
        OK(comm_send(other, &y, 4, next, &err));
        OK(comm_all_gather(c, all_of, &z, 4, &err));
        CHECK_BITS(all_of[prev], value(prev, k));
        OK(comm_recv(other, &y, 4, prev, &err));
        OK(comm_recv(c, &x, 4, prev, &err));
        CHECK_BITS(x, value(prev, 2 * k));
        CHECK_BITS(y, value(prev, 2 * k + 1));
    }
    comm_close(other);
}

TEST(a_long_row_of_messages_waits_for_the_receiver)
{
    struct comm *c = all();
    if (comm_size(c) == 1)
        return;
    int last = comm_size(c) - 1;
    for (int64_t k = 0; k < 200; k++) {
        int64_t x = k * k;
        if (comm_rank(c) == 0)
            OK(comm_send(c, &x, sizeof x, last, &err));
        if (comm_rank(c) == last) {
            dawdle((int)k * 30);
            OK(comm_recv(c, &x, sizeof x, 0, &err));
            CHECK_INT(x, k * k);
        }
    }
}

TEST(blobs_of_different_sizes_come_to_the_root)
{
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c);
    for (int root = 0; root < size; root++) {
        size_t mine = me == 1 ? 0 : (size_t)(me + 1) * 700001 / (size_t)(root + 1), got[64] = { 0 }, at = 0;
        unsigned char *blob = malloc(mine + 1), *out = NULL;
        for (size_t i = 0; i < mine; i++)
            blob[i] = (unsigned char)mix(i * 64 + (size_t)me);
        OK(comm_gather_blobs(c, blob, mine, root, (void **)&out, got, &err));
        CHECK((out != NULL) == (me == root));
        for (int r = 0; out && r < size; at += got[r++]) {
            CHECK_INT(got[r], r == 1 ? 0 : (size_t)(r + 1) * 700001 / (size_t)(root + 1));
            for (size_t i = 0; i < got[r]; i += 97)
                if (out[at + i] != (unsigned char)mix(i * 64 + (size_t)r)) {
                    test_fail(__FILE__, __LINE__, "byte %zu of rank %d is wrong", i, r);
                    break;
                }
        }
        free(out);
        free(blob);
    }
}

TEST(agreement_carries_the_text_of_the_lowest_failing_rank)
{
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c);
    CHECK_INT(comm_agree(c, 0, &err), 0);
    for (int bad = 0; bad < size; bad++) {
        struct err e = { 0 };
        int rc = me >= bad ? err_set(&e, ERR_FILE, "file %d is missing", me) : 0;
        char want[64];
        CHECK_INT(comm_agree(c, rc, &e), -ERR_FILE);
        CHECK_INT(e.code, ERR_FILE);
        /* all failed: no rank is named */
        snprintf(want, sizeof want, bad ? "rank %d: file %d is missing" : "file %d is missing", bad, bad);
        CHECK_STR(e.text, want);
        CHECK_INT(comm_agree(c, -ERR_FILE, &e), -ERR_FILE);
        CHECK_STR(e.text, want); /* agreements nest: the rank is named once */
    }
}

TEST(numbers_that_differ_are_found_by_all_ranks)
{
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c);
    uint64_t own[2] = { 7, 9 };
    CHECK_INT(comm_agree_alike(c, own, 2, "differs", &err), 0);
    for (int other = 1; other < size; other++) {
        struct err e = { 0 };
        char want[32];
        own[1] = 9 + (me == other);
        CHECK_INT(comm_agree_alike(c, own, 1, "differs", &e), 0);
        CHECK_INT(comm_agree_alike(c, own, 2, "differs", &e), -ERR_CONFIG);
        snprintf(want, sizeof want, "rank %d: differs", other);
        CHECK_STR(e.text, want);
    }
}

TEST(groups_of_a_mesh_work_at_the_same_time)
{
    struct comm *c = all();
    int size = comm_size(c), tp = size % 2 ? 1 : 2, dp = size / tp % 2 ? 1 : 2, pp = size / tp / dp;
    const int degree[AXIS_COUNT] = { [AXIS_TP] = tp, [AXIS_CP] = 1, [AXIS_DP] = dp, [AXIS_PP] = pp };
    struct mesh m;
    OK(mesh_open(&m, world, degree, &err));
    CHECK_INT(m.at[AXIS_TP] + tp * (m.at[AXIS_DP] + dp * m.at[AXIS_PP]), comm_rank(c));
    for (int round = 0; round < 40; round++)
        for (int a = 0; a < AXIS_COUNT; a++) {
            int member[64], stride = a == AXIS_TP || a == AXIS_CP ? 1 : a == AXIS_DP ? tp : tp * dp;
            int first = comm_rank(c) - m.at[a] * stride;
            stride = a == AXIS_CP ? 0 : stride;
            CHECK_INT(comm_size(m.axis[a]), degree[a]);
            CHECK_INT(comm_rank(m.axis[a]), m.at[a]);
            for (int r = 0; r < degree[a]; r++)
                member[r] = first + r * stride;
            dawdle(round * 4 + a);
            check_all_reduce(m.axis[a], member, sizes[(round + comm_rank(c) - m.at[a] * stride) % 7],
                             round % 3);
        }
    mesh_close(&m);
}

TEST(groups_come_and_go)
{
    struct comm *c = all(), *half, *odd;
    int64_t used = 0;
    for (int round = 0; round < 30; round++) {
        int member[64], n = 0, parity = comm_rank(c) & 1;
        OK(comm_split(&half, c, parity, &err));
        OK(comm_split(&odd, half, comm_rank(half) == 0 ? -5 : 7, &err));
        for (int r = parity; r < comm_size(c); r += 2)
            member[n++] = r;
        CHECK_INT(comm_size(half), n);
        check_all_reduce(half, member, 700, round % 2);
        check_all_reduce(odd, comm_rank(half) ? member + 1 : member, 100, round % 2);
        comm_close(odd);
        comm_close(half);
        OK(comm_barrier(c, &err));
        if (round == 15)
            used = mem.total_now;
    }
    CHECK_INT(mem.total_now, used); /* nothing grows with the number of groups */
}

TEST(a_mesh_that_does_not_fit_is_an_error_that_says_both_numbers)
{
    struct mesh m;
    char want[32];
    int degree[AXIS_COUNT] = {
        [AXIS_TP] = comm_size(all()) + 1, [AXIS_CP] = 1, [AXIS_DP] = 1, [AXIS_PP] = 1
    };
    CHECK_INT(mesh_open(&m, world, degree, &err), -ERR_USAGE);
    snprintf(want, sizeof want, "number of ranks, %d", world_size(world));
    CHECK_HAS(err.text, want);
    degree[AXIS_TP] = 0;
    CHECK_INT(mesh_open(&m, world, degree, &err), -ERR_USAGE);
}

TEST(memory_is_zeroed_aligned_and_counted)
{
    struct comm *c = all();
    int64_t before = mem.now[MEM_KV];
    for (int round = 0; round < 3; round++) {
        unsigned char *p = comm_alloc(c, MEM_KV, 3000000), *q = comm_alloc(c, MEM_KV, 100);
        CHECK(p && q && (uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0);
        CHECK_INT(mem.now[MEM_KV], before + 3000100);
        for (size_t i = 0; i < 3000000; i++)
            if (p[i]) {
                test_fail(__FILE__, __LINE__, "byte %zu is not zero", i);
                break;
            }
        for (size_t i = 0; i < 100; i++)
            CHECK_INT(q[i], 0);
        memset(p, 255, 3000000);
        memset(q, 255, 100);
        comm_free(c, p);
        comm_free(c, q);
    }
    CHECK_INT(mem.now[MEM_KV], before);
    CHECK(comm_alloc(c, MEM_KV, (size_t)1 << 61) == NULL);
    comm_free(c, NULL);
}

TEST(counts_tell_calls_and_bytes)
{
    struct comm *c = all();
    struct comm_count a[COMM_OPS], b[COMM_OPS];
    float x[64] = { 0 };
    comm_counts(c, a);
    OK(comm_all_reduce(c, x, 64, &err));
    comm_counts(c, b);
    CHECK_INT(b[COMM_ALL_REDUCE].calls - a[COMM_ALL_REDUCE].calls, 1);
    CHECK_INT(b[COMM_ALL_REDUCE].bytes - a[COMM_ALL_REDUCE].bytes,
              2 * (comm_size(c) - 1) * 256 / comm_size(c));
    CHECK(b[COMM_ALL_REDUCE].seconds >= a[COMM_ALL_REDUCE].seconds);
    CHECK_STR(comm_op_name(COMM_ALL_REDUCE), "all_reduce");
}

TEST(thousands_of_small_operations_in_a_row)
{
    struct comm *c = all();
    for (int k = 0; k < 3000; k++) {
        float x[3];
        fill(x, comm_rank(c), k, 3);
        OK(comm_all_reduce(c, x, 3, &err));
        if (differ("small all-reduce", 3, k, x[0], sum_of(comm_size(c), NULL, k)))
            break;
        if (k % 7 == 0)
            OK(comm_barrier(c, &err));
    }
}

/* ---- shared memory, started operations ---- */
static void check_shared(struct comm *c, int64_t n, int round, float *shared, int in_place)
{
    int size = comm_size(c), me = comm_rank(c);
    float *own = malloc((size_t)n * 4), *in = in_place ? shared + me * n : own;
    if (in_place)
        OK(comm_barrier(c, &err)); /* no rank reads any more, so that all may write */
    fill(in, me + round, 0, n);
    dawdle(round);
    OK(comm_all_gather_shared(c, shared, in, (size_t)n * 4, &err));
    for (int64_t i = 0; i < n * size; i++)
        if (differ("shared all-gather", n, i, shared[i], value((int)(i / n) + round, i % n)))
            break;
    free(own);
}

TEST(all_gather_into_shared_memory_is_seen_by_all)
{
    struct comm *c = all();
    for (int s = 1; s < N_LESS; s++) {
        void *shared = NULL;
        OK(comm_alloc_shared(&shared, c, MEM_PARAMS, (size_t)(sizes[s] * comm_size(c)) * 4, &err));
        for (int round = 0; round < 6; round++)
            check_shared(c, sizes[s], round, shared, round % 2);
        OK(comm_free_shared(c, shared, &err));
    }
    CHECK_INT(mem.now[MEM_PARAMS], 0);
}

TEST(shared_memory_is_counted_by_shares)
{
    struct comm *c = all();
    int64_t before = mem.now[MEM_PARAMS], sum[1];
    int rank, size;
    void *shared;
    comm_shared_group(c, &rank, &size);
    OK(comm_alloc_shared(&shared, c, MEM_PARAMS, 100001, &err));
    sum[0] = mem.now[MEM_PARAMS] - before;
    CHECK(sum[0] >= 100001 / size && sum[0] < 100001 / size + size);
    OK(comm_all_reduce_i64(c, sum, 1, &err));
    CHECK_INT(sum[0], 100001 * (comm_size(c) / size));
    OK(comm_free_shared(c, shared, &err));
    CHECK_INT(mem.now[MEM_PARAMS], before);
}

TEST(shared_memory_that_is_not_there_is_an_error_on_all_ranks)
{
    struct comm *c = all();
    void *p = &p;
    CHECK_INT(comm_alloc_shared(&p, c, MEM_PARAMS, (size_t)1 << 61, &err), -ERR_MEMORY);
    CHECK_INT(err.code, ERR_MEMORY);
    CHECK(p == NULL);
    OK(comm_barrier(c, &err)); /* and no more than that */
}

struct started {
    struct comm_request *q;
    int op, place;
    int64_t n;
    float *in, *out;
};

static void start_one(struct comm *c, struct started *x, int k)
{
    int size = comm_size(c), me = comm_rank(c);
    x->op = k % 3;
    x->place = k % 4 == 3 ? 1 : k % 4;
    x->n = sizes[(k * 5 + 3) % N_LESS];
    int64_t n_in = x->op == 1 ? x->n * size : x->n, n_out = x->op == 2 ? x->n * size : x->n;
    x->in = take(c, x->place, (size_t)n_in * 4);
    x->out = x->op == 0 ? x->in : take(c, x->place, (size_t)n_out * 4);
    fill(x->in, me, k, n_in);
    if (x->op == 0)
        OK(comm_start_all_reduce(&x->q, c, x->in, x->n, &err));
    else if (x->op == 1)
        OK(comm_start_reduce_scatter(&x->q, c, x->out, x->in, x->n, &err));
    else
        OK(comm_start_all_gather(&x->q, c, x->out, x->in, (size_t)x->n * 4, &err));
}

static void finish_one(struct comm *c, const int *member, struct started *x, int k)
{
    int size = comm_size(c), me = comm_rank(c);
    OK(comm_finish(&x->q, &err));
    CHECK(x->q == NULL);
    for (int64_t i = 0; i < (x->op == 2 ? x->n * size : x->n); i++) {
        float want = x->op == 2 ? value((int)(i / x->n), k + i % x->n)
                                : sum_of(size, member, k + i + (x->op == 1 ? me * x->n : 0));
        if (differ("started operation", x->n, i, x->out[i], want))
            break;
    }
    if (x->op)
        give(c, x->place, x->out);
    give(c, x->place, x->in);
}

TEST(started_operations_give_the_bits_of_blocking_ones)
{
    struct comm *c = all();
    struct started x[8] = { { 0 } };
    for (int k = 0; k < 40; k++) {
        if (k >= 5)
            finish_one(c, NULL, &x[(k - 5) % 8], k - 5);
        dawdle(k);
        start_one(c, &x[k % 8], k);
        for (int i = 0; i < k % 3; i++)
            OK(comm_progress(c, &err));
    }
    for (int k = 35; k < 40; k++)
        finish_one(c, NULL, &x[k % 8], k);
    OK(comm_finish(&x[0].q, &err)); /* nothing started: nothing to do */
}

TEST(started_operations_finish_in_any_order_and_between_other_calls)
{
    struct comm *c = all(), *other;
    int size = comm_size(c), me = comm_rank(c);
    OK(comm_split(&other, c, 0, &err));
    for (int round = 0; round < 10; round++) {
        struct started x[12] = { { 0 } };
        for (int k = 0; k < 6; k++)
            start_one(c, &x[k], round * 12 + k);
        check_all_reduce(other, NULL, 4099, round % 3);
        for (int k = 6; k < 8; k++)
            start_one(other, &x[k], round * 12 + k);
        check_all_reduce(c, NULL, round % 2 ? 100 : 4099, round % 3);
        /* a rank may finish while another waits for it in another call */
        if (size > 1) {
            float y = value(me, round);
            if (me == 0)
                for (int k = 0; k < 8; k++)
                    finish_one(k < 6 ? c : other, NULL, &x[k], round * 12 + k);
            OK(comm_all_reduce(other, &y, 1, &err));
            CHECK_BITS(y, sum_of(size, NULL, round));
        }
        for (int k = 7; k >= 0; k--)
            if (x[k].in && !(size > 1 && me == 0))
                finish_one(k < 6 ? c : other, NULL, &x[k], round * 12 + k);
    }
    comm_close(other);
}

/* on_complete of a gather: this rank's share of the work of its machine, negated into the other half of the
 * memory. The share is not the part that this rank contributed. */
struct follow {
    struct comm *c;
    float *shared;
    int64_t n;
    int runs;
};

static void negate_my_share(void *arg)
{
    struct follow *f = arg;
    int rank, size;
    comm_shared_group(f->c, &rank, &size);
    rank = (rank + 1) % size;
    for (int64_t i = f->n * rank / size; i < f->n * (rank + 1) / size; i++)
        f->shared[f->n + i] = -f->shared[i];
    f->runs++;
}

TEST(a_started_gather_into_shared_memory_and_what_follows_are_seen_by_all)
{
    enum { N = 4099, SLOTS = 3, ROUNDS = 60 };
    struct comm *c = all();
    int size = comm_size(c), me = comm_rank(c);
    struct follow f[SLOTS];
    struct comm_request *q[SLOTS] = { 0 };
    float *mine[SLOTS];
    for (int s = 0; s < SLOTS; s++) {
        void *p;
        OK(comm_alloc_shared(&p, c, MEM_PARAMS, (size_t)(2 * N * size) * 4, &err));
        f[s] = (struct follow){ c, p, N * size, 0 };
        mine[s] = comm_alloc(c, MEM_PARAMS, N * 4);
    }
    for (int k = 0; k < ROUNDS + SLOTS - 1; k++) {
        if (k < ROUNDS) {
            dawdle(k);
            fill(mine[k % SLOTS], me + k, 0, N);
            OK(comm_start_all_gather_shared(&q[k % SLOTS], c, f[k % SLOTS].shared, mine[k % SLOTS], N * 4,
                                            (struct comm_callback){ k % 5 ? negate_my_share : NULL,
                                                                    &f[k % SLOTS] },
                                            &err));
            /* some ranks have posted their part and have not copied it yet */
            dawdle(k + 1);
            check_all_reduce(c, NULL, 7, 1); /* any call takes part of the work */
        }
        int old = k - SLOTS + 1, s = (old + SLOTS) % SLOTS;
        if (old < 0)
            continue;
        OK(comm_finish(&q[s], &err));
        for (int64_t i = 0; i < N * size; i++) {
            float want = value((int)(i / N) + old, i % N);
            if (differ("started shared gather", N, i, f[s].shared[i], want) ||
                (old % 5 && differ("what follows it", N, i, f[s].shared[N * size + i], -want)))
                break;
        }
    }
    for (int s = 0; s < SLOTS; s++) {
        CHECK_INT(f[s].runs, ROUNDS / SLOTS - ROUNDS / SLOTS / 5);
        comm_free(c, mine[s]);
        OK(comm_free_shared(c, f[s].shared, &err));
    }
}

TEST(more_starts_than_lanes_wait_for_the_oldest)
{
    struct comm *c = all();
    struct started x[30] = { { 0 } };
    for (int k = 0; k < 30; k++) {
        dawdle(k);
        start_one(c, &x[k], k);
    }
    for (int k = 29; k >= 0; k--)
        finish_one(c, NULL, &x[k], k);
}

TEST(started_operations_are_counted_once)
{
    struct comm *c = all();
    struct comm_count a[COMM_OPS], b[COMM_OPS];
    struct comm_request *q;
    float x[64] = { 0 };
    comm_counts(c, a);
    OK(comm_start_all_reduce(&q, c, x, 64, &err));
    OK(comm_finish(&q, &err));
    comm_counts(c, b);
    CHECK_INT(b[COMM_ALL_REDUCE].calls - a[COMM_ALL_REDUCE].calls, 1);
    CHECK_INT(b[COMM_ALL_REDUCE].bytes - a[COMM_ALL_REDUCE].bytes,
              2 * (comm_size(c) - 1) * 256 / comm_size(c));
}

#include "tests/ranks/comm_rows_cases.h"
#include "tests/ranks/comm_nest_cases.h"

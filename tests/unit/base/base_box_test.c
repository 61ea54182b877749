/* base_box_test.c - regions against a walk element by element. */
#include "tests/test.h"

#include "base/box.h"
#include "base/rnd.h"

static struct box make(int n, const int64_t *start, const int64_t *extent)
{
    struct box b = { .n_dims = n };
    memcpy(b.start, start, sizeof(int64_t) * (size_t)n);
    memcpy(b.extent, extent, sizeof(int64_t) * (size_t)n);
    return b;
}
#define V(...) ((const int64_t[]){ __VA_ARGS__ })

TEST(a_whole_box_starts_at_0)
{
    struct box b = box_whole(3, V(2, 3, 4));
    CHECK_INT(b.n_dims, 3);
    CHECK_INT(box_count(&b), 24);
    CHECK(b.start[0] == 0 && b.start[2] == 0 && b.extent[1] == 3);
}

TEST(boxes_intersect)
{
    struct box a = make(2, V(2, 3), V(4, 5)), b = make(2, V(4, 0), V(9, 6)), c;
    struct box want = make(2, V(4, 3), V(2, 3)), far = make(2, V(6, 3), V(1, 1));
    CHECK_INT(box_intersect(&a, &b, &c), 6);
    CHECK(box_equal(&c, &want));
    CHECK_INT(box_intersect(&b, &a, &c), 6);
    CHECK(box_equal(&c, &want));
    CHECK_INT(box_intersect(&a, &far, &c), 0);
    CHECK_INT(c.extent[0], 0);
    far.extent[0] = 0;
    CHECK_INT(box_intersect(&b, &far, &c), 0);
}

TEST(equal_looks_at_every_member)
{
    struct box a = make(2, V(1, 2), V(3, 4)), b = a;
    CHECK(box_equal(&a, &b));
    b.start[1]++;
    CHECK(!box_equal(&a, &b));
    b = a;
    b.extent[0]++;
    CHECK(!box_equal(&a, &b));
    b = a;
    b.n_dims = 1;
    CHECK(!box_equal(&a, &b));
}

/* Offset in b of the element at absolute index at, or -1. */
static int64_t where(const struct box *b, const int64_t *at)
{
    int64_t off = 0;
    for (int d = 0; d < b->n_dims; d++) {
        if (at[d] < b->start[d] || at[d] >= b->start[d] + b->extent[d])
            return -1;
        off = off * b->extent[d] + at[d] - b->start[d];
    }
    return off;
}

static int64_t element(const struct box *b, int64_t off, int64_t *at)
{
    for (int d = b->n_dims - 1; d >= 0; d--) {
        at[d] = b->start[d] + off % b->extent[d];
        off /= b->extent[d];
    }
    return off;
}

/* The runs of the walk are exactly the pairs of offsets found element by element, in order. Returns the
 * number of runs. */
static int check_walk(const struct box *of, int64_t lo, int64_t hi, const struct box *part)
{
    struct box_walk w = { 0 };
    struct box_run run = { 0, 0, 0 };
    int64_t n_of = box_count(of), in_run = 0;
    int n_runs = 0, bad = 0;
    for (int64_t i = lo < 0 ? 0 : lo; i < hi && i < n_of && !bad; i++) {
        int64_t at[BOX_DIMS], p;
        element(of, i, at);
        if ((p = where(part, at)) < 0)
            continue;
        if (in_run == run.count) {
            bad |= !box_next_run(of, lo, hi, part, &w, &run) || run.count <= 0;
            in_run = 0;
            n_runs++;
        }
        bad |= run.of_off + in_run != i || run.part_off + in_run != p;
        in_run++;
    }
    bad |= in_run != run.count;
    for (int k = 0; k < 3; k++)
        bad |= box_next_run(of, lo, hi, part, &w, &run) != 0;
    CHECK(!bad);
    return n_runs;
}

TEST(runs_are_the_elements_in_common_in_order)
{
    uint64_t at = 0;
#define PICK(n) ((int64_t)(rnd_u64(1, 1, at++) % (uint64_t)(n)))
    for (int i = 0; i < 4000; i++) {
        struct box of = { .n_dims = 1 + i % BOX_DIMS }, part = { .n_dims = of.n_dims };
        for (int d = 0; d < of.n_dims; d++) {
            of.start[d] = PICK(4), of.extent[d] = PICK(5) + (i % 3 != 0);
            int same = PICK(2) == 0;
            part.start[d] = same ? of.start[d] : PICK(6);
            part.extent[d] = same ? of.extent[d] : PICK(6);
        }
        int64_t n = box_count(&of), lo = n ? PICK(n + 1) : 0, hi = n ? PICK(n + 2) : 0;
        check_walk(&of, 0, n, &part);
        check_walk(&of, lo, hi, &part);
    }
}

TEST(runs_are_as_long_as_they_can_be)
{
    struct box of = box_whole(3, V(4, 6, 8)), rows = make(3, V(1, 0, 0), V(2, 6, 8)),
               columns = make(3, V(0, 0, 2), V(4, 6, 3));
    CHECK_INT(check_walk(&of, 0, 192, &of), 1);
    CHECK_INT(check_walk(&of, 0, 192, &rows), 1);
    CHECK_INT(check_walk(&of, 50, 60, &of), 1);
    CHECK_INT(check_walk(&of, 0, 192, &columns), 24);
    CHECK_INT(check_walk(&of, 0, 0, &of), 0);
    CHECK_INT(check_walk(&of, -5, 1000, &of), 1);
}

TEST(a_slice_far_inside_of_a_large_tensor_is_found_at_once)
{
    int64_t rows = INT64_C(1) << 40;
    struct box of = box_whole(2, V(rows, 1000)), part = make(2, V(0, 10), V(rows, 20));
    struct box_walk w = { 0 };
    struct box_run run;
    int64_t lo = (rows - 2) * 1000 + 15;
    CHECK(box_next_run(&of, lo, rows * 1000, &part, &w, &run));
    CHECK(run.of_off == lo && run.part_off == (rows - 2) * 20 + 5 && run.count == 15);
    CHECK(box_next_run(&of, lo, rows * 1000, &part, &w, &run));
    CHECK(run.of_off == (rows - 1) * 1000 + 10 && run.part_off == (rows - 1) * 20 && run.count == 20);
    CHECK(!box_next_run(&of, lo, rows * 1000, &part, &w, &run));
}

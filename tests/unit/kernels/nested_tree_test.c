/* nested_tree_test.c - sums over the leaves of cut sequences: a tree inside of every sequence, then the tree
 * over sequences (nested trees of kernels/tree.h), in every op that adds leaves over several calls. */
#include "tests/unit/kernels/rows_rig.h"

enum { INNER = 4, GROUPS = 6, LEAVES = INNER * GROUPS, LEN = 3, ROWS = 5, COLS = 40, N = ROWS * COLS };

/* Tree(GROUPS) of Tree(INNER), from the leaves one by one; x: LEAVES numbers, N apart. */
static float by_groups(const float *x)
{
    float sum[GROUPS];
    for (int g = 0; g < GROUPS; g++)
        sum[g] = tree_sum(INNER, x + (int64_t)g * INNER * N, N);
    return tree_sum(GROUPS, sum, 1);
}

/* Operands of LEAVES leaves of LEN rows. */
struct in {
    struct mat dy, x; /* [LEAVES LEN][ROWS], [… ][COLS] */
    float rstd[LEAVES * LEN];
    int32_t id[LEAVES * LEN];
    float leaf[LEAVES * N];
};

/* n leaves from leaf `first` on, into acc. */
typedef void adds(struct dev *d, const struct tree_acc *acc, const struct in *in, int first, int n);

static void add_linear(struct dev *d, const struct tree_acc *acc, const struct in *in, int first, int n)
{
    KERNEL(d, linear_dw, acc, COLS, mat_rows(in->dy, first * LEN, n * LEN),
           mat_rows(in->x, first * LEN, n * LEN), n, LEN);
}
static void add_norm(struct dev *d, const struct tree_acc *acc, const struct in *in, int first, int n)
{
    struct mat x = mat_rows(in->x, first * LEN, n * LEN);
    KERNEL(d, rms_norm_dw, acc, x, x, in->rstd + first * LEN, seqs_of(n, LEN, 2));
}
static void add_ready(struct dev *d, const struct tree_acc *acc, const struct in *in, int first, int n)
{
    KERNEL(d, add_leaves, acc, in->leaf + (int64_t)first * N, N, N, n);
}
static void add_table(struct dev *d, const struct tree_acc *acc, const struct in *in, int first, int n)
{
    KERNEL(d, embed_dw, acc, COLS, 0, ROWS, mat_rows(in->x, first * LEN, n * LEN), in->id + first * LEN,
           seqs_of(n, LEN, 1));
}
static void add_expert(struct dev *d, const struct tree_acc *acc, const struct in *in, int first, int n)
{
    const int64_t begin[2] = { 0, (int64_t)n * LEN };
    int64_t end[LEAVES];
    for (int i = 0; i < n; i++)
        end[i] = (int64_t)(i + 1) * LEN;
    const struct expert_rows g = { 1, begin, n, end };
    KERNEL(d, linear_dw_experts, acc, COLS, listed_of(mat_rows(in->dy, first * LEN, n * LEN), NULL),
           listed_of(mat_rows(in->x, first * LEN, n * LEN), NULL), &g);
}

static struct mat matrix(int64_t cols, uint64_t stream)
{
    struct mat m = mat_of(malloc(sizeof(float) * (size_t)(LEAVES * LEN * cols)), DT_F32, LEAVES * LEN, cols,
                          cols);
    for (int64_t i = 0; i < m.rows * cols; i++)
        ((float *)m.p)[i] = value(stream, i);
    return m;
}

static struct in *in_new(void)
{
    struct in *in = calloc(1, sizeof *in);
    in->dy = matrix(ROWS, 1);
    in->x = matrix(COLS, 2);
    for (int i = 0; i < LEAVES * LEN; i++) {
        in->rstd[i] = 1 + (float)i / 64;
        in->id[i] = i * 7 % ROWS;
    }
    for (int64_t i = 0; i < LEAVES * N; i++)
        in->leaf[i] = value(3, i);
    return in;
}

/* In calls of per_call leaves each. */
static void check(struct rig *r, adds *add, const struct in *in, int per_call, const char *what)
{
    static float leaf[LEAVES][N], level[8][N];
    EACH_DEV(r, d)
    {
        struct tree_acc acc = { .n = LEAVES, .inner = INNER };
        memset(leaf, 0, sizeof leaf);
        memset(level, 0, sizeof level);
        for (int i = 0; i < LEAVES; i++) {
            const struct tree_acc one = { .n = 1, .level = { leaf[i] } };
            add(d, &one, in, i, 1);
        }
        for (int i = 0; i < 8; i++)
            acc.level[i] = level[i];
        for (; acc.next < LEAVES; acc.next += per_call)
            add(d, &acc, in, (int)acc.next, per_call);
        for (int64_t i = 0; i < N; i++) {
            const float want = by_groups(leaf[0] + i);
            if (memcmp(&level[0][i], &want, sizeof want)) {
                test_fail(__FILE__, __LINE__, "%s, %s, %d leaves a call: element %d is %a, not %a", what,
                          d->isa, per_call, (int)i, (double)level[0][i], (double)want);
                break;
            }
        }
    }
}

TEST(leaves_of_sequences_add_up_before_sequences_do)
{
    static const struct {
        adds *add;
        const char *name;
    } op[] = { { add_linear, "linear_dw" },
               { add_norm, "rms_norm_dw" },
               { add_ready, "add_leaves" },
               { add_table, "embed_dw" },
               { add_expert, "linear_dw_experts" } };
    static const int per_call[] = { LEAVES, INNER, 2 * INNER, 2, 1 };
    struct rig *r = rig_open();
    struct in *in = in_new();
    EACH(i, op) {
        EACH(k, per_call) {
            check(r, op[i].add, in, per_call[k], op[i].name);
        }
    }
    free(in->dy.p), free(in->x.p), free(in);
    rig_close(r);
}

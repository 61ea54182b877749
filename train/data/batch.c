/* batch.c - rows of the global batch: which rank adds which, in which order (numerics contract, "Rows"). */
#include "base/alter.h"
#include "train/zero/zero.h"

/* Whether the sum of r local rows, and the same over dp, are nodes of Tree(rows). */
static int sums_are_nodes(int64_t rows, int64_t r, int dp)
{
    return tree_is_node(rows, 0, r) && tree_is_node(rows, 0, r * dp);
}

/* Altered: a rank reduces after any number of rows. */
static int any_sum(int64_t rows, int64_t r, int dp)
{
    (void)rows;
    (void)r;
    (void)dp;
    return 1;
}

int batch_plan(struct batch_plan *b, int64_t rows, int64_t micro, int dp, int zero, struct err *e)
{
    if (rows < 1 || rows % dp)
        return err_set(e, ERR_USAGE, "--global-batch %lld is not a multiple of dp %d: use a multiple",
                       (long long)rows, dp);
    int64_t mine = rows / dp;
    micro = micro ? micro : mine;
    if (micro < 1 || mine % micro)
        return err_set(e, ERR_USAGE,
                       "--micro-batch %lld does not divide the %lld sequences a rank has in a step (global "
                       "batch %lld, dp %d): use a divisor",
                       (long long)micro, (long long)mine, (long long)rows, dp);
    *b = (struct batch_plan){ .rows = rows, .local = mine, .micro = micro };

    /* stages 2 and 3 reduce after the fewest rows whose sums are nodes of the tree */
    int (*may_reduce)(int64_t rows, int64_t r, int dp) = ALTERED("super_rows") ? any_sum : sums_are_nodes;
    for (int64_t r = micro; zero >= 2 && r < mine; r += micro) {
        if (mine % r == 0 && may_reduce(rows, r, dp)) {
            b->local = r;
            break;
        }
    }
    b->supers = mine / b->local;
    b->in_tree = sums_are_nodes(rows, b->local, dp);
    return 0;
}

/* With cp a micro-batch is one sequence. */
static int check_micro(int64_t micro, const struct layout *l, struct err *e)
{
    if (l->cp == 1 || micro <= 1)
        return 0;
    return err_set(e, ERR_USAGE,
                   "--micro-batch %lld with --cp %d: a micro-batch is one sequence then: leave it out",
                   (long long)micro, l->cp);
}

/* With cp a sequence's gradients are summed over cp before they are added to the next sequence's: every
 * super-step is one sequence of each dp rank. The sum over dp and cp is Tree(dp) of Tree(cp). */
static int plan_of_leaves(struct batch_plan *b, int64_t rows, int64_t micro, const struct layout *l,
                          struct err *e)
{
    int rc = check_micro(micro, l, e);
    if (rc >= 0)
        rc = batch_plan(b, rows, 1, l->dp, 0, e);
    if (rc < 0)
        return rc;
    b->supers = b->local;
    b->local = 1;
    b->in_tree = tree_is_node(rows, 0, l->dp);
    return 0;
}

int batch_plan_layout(struct batch_plan *b, int64_t rows, int64_t micro, const struct layout *l,
                      struct err *e)
{
    int whole = l->ep > 1, zero = whole && l->zero < 2 ? 2 : l->zero;
    int rc = l->cp > 1 ? plan_of_leaves(b, rows, micro, l, e) : batch_plan(b, rows, micro, l->dp, zero, e);

    if (rc < 0 || !whole)
        return rc;
    if (b->local != b->micro)
        return err_set(
            e, ERR_USAGE,
            "--micro-batch %lld with --ep %d: the gradients of %lld sequences are no node of the tree "
            "of %lld: use a micro-batch that is a power of two",
            (long long)b->micro, l->ep, (long long)b->micro, (long long)rows);
    b->in_tree = b->in_tree && tree_is_node(rows, 0, b->local * layout_fold(l));
    return 0;
}

int batch_plan_eval(struct batch_plan *b, int64_t micro, const struct layout *l, struct err *e)
{
    enum { USUAL = 4 };
    int64_t n = micro ? micro : l->cp > 1 ? 1 : USUAL;
    *b = (struct batch_plan){ .local = n, .micro = n, .supers = 1 };
    return check_micro(micro, l, e);
}

int batch_check_leaf(const struct batch_plan *b, const struct layout *l, int leaf, struct err *e)
{
    int64_t rows = b->micro * layout_fold(l);
    if (leaf <= 1 || rows % leaf == 0)
        return 0;
    return err_set(e, ERR_USAGE,
                   "--expert-leaf %d does not divide the %lld sequences of a micro-step (%lld a rank, of %d "
                   "ranks that share experts): use a larger --micro-batch",
                   leaf, (long long)rows, (long long)b->micro, layout_fold(l));
}

/* The contract's order: a super-step gives each rank a block of neighbouring rows. */
static int64_t row_in_blocks(const struct batch_plan *b, int dp, int64_t super, int d, int64_t j)
{
    return (super * dp + d) * b->local + j;
}

/* Altered: rows are dealt out in turn. */
static int64_t row_in_turn(const struct batch_plan *b, int dp, int64_t super, int d, int64_t j)
{
    return (super * b->local + j) * dp + d;
}

int64_t batch_row(const struct batch_plan *b, int dp, int64_t super, int d, int64_t j)
{
    return (ALTERED("batch_rows") ? row_in_turn : row_in_blocks)(b, dp, super, d, j);
}

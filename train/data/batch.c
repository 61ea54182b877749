/* batch.c - rows of the global batch: which rank adds which, in which order (numerics contract, "Rows"). */
#include "base/alter.h"
#include "train/zero/zero.h"

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
    /* the fewest rows whose sum over dp is a node of the tree: reduce after each such super-step */
    if (zero >= 2) {
        for (int64_t r = micro; r < mine; r += micro) {
            if (mine % r == 0 &&
                ((tree_is_node(rows, 0, r) && tree_is_node(rows, 0, r * dp)) || ALTERED("super_rows"))) {
                b->local = r;
                break;
            }
        }
    }
    b->supers = mine / b->local;
    b->in_tree = tree_is_node(rows, 0, b->local) && tree_is_node(rows, 0, b->local * dp);
    return 0;
}

int64_t batch_row(const struct batch_plan *b, int dp, int64_t super, int d, int64_t j)
{
    if (ALTERED("batch_rows")) /* dealt out in turn */
        return (super * b->local + j) * dp + d;
    return (super * dp + d) * b->local + j;
}

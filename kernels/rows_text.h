/* rows_text.h - the text of all row ops, compiled once a CPU class: a file defines ROWS_TABLE and includes this.
 *
 * Every op: a struct with its arguments, a task over a range of rows or elements, and the function in the table. How a sum is
 * ordered and where a value is rounded is said at the op; kernels.h says what it computes. */
#include "kernels/lanes.h"
#include "kernels/rows.h"

#include "kernels/rows_each_text.h"
#include "kernels/rows_vector_text.h"
#include "kernels/rows_head_dw_text.h"
#include "kernels/rows_embed_dw_text.h"
#include "kernels/rows_tree_text.h"

const struct row_ops ROWS_TABLE = {
#define X(name) .name = op_##name,
    ROW_OPS(X)
#undef X
};

/* order.h - the order of a loop's indices as data, for ORDER (base/alter.h). */
#ifndef SHARDLINE_KERNELS_ORDER_H
#define SHARDLINE_KERNELS_ORDER_H

#include "base/alter.h"
#include "kernels/fn.h"

/* The order of a loop over i = 0 .. n - 1: index first + i * step. */
struct index_order {
    int64_t first, step;
};
FN struct index_order forward_order(void)
{
    struct index_order w = { 0, 1 };
    return w;
}
FN struct index_order backward_order(int64_t n)
{
    struct index_order w = { n - 1, -1 };
    return w;
}
FN int64_t index_at(struct index_order w, int64_t i) { return w.first + i * w.step; }

#endif

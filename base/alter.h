/* alter.h - the altered build, which shows that a test covers every order of the numerics contract.
 *
 * ORDER("name", contract, other) picks one of two orders of a sum, once in front of its loop: two
 * functions, or two constants. `make CONFIG=altered` defines SHARDLINE_ALTER; there it is `other` while
 * the environment variable SHARDLINE_ALTER equals the name. In every other build it is the constant
 * `contract`. tests/altered.d lists, for each name, the test that must fail in the other order. */
#ifndef SHARDLINE_BASE_ALTER_H
#define SHARDLINE_BASE_ALTER_H

#include <stdint.h>

#ifdef SHARDLINE_ALTER
/* 1 when the environment names this order (test_hooks.c). */
int alter_is(const char *name);
#define ALTERED(name) alter_is(name)
#else
#define ALTERED(name) 0
#endif

#define ORDER(name, contract, other) (ALTERED(name) ? (other) : (contract))

#ifdef __CUDACC__
#define ALTER_FN static __device__ __forceinline__
#else
#define ALTER_FN static inline
#endif
/* The order of a loop over i = 0 .. n - 1: index first + i * step. */
struct index_order {
    int64_t first, step;
};
ALTER_FN struct index_order forward_order(void)
{
    struct index_order w = { 0, 1 };
    return w;
}
ALTER_FN struct index_order backward_order(int64_t n)
{
    struct index_order w = { n - 1, -1 };
    return w;
}
ALTER_FN int64_t index_at(struct index_order w, int64_t i) { return w.first + i * w.step; }

#endif

/* alter.h - the altered build, which shows that a test covers every order of the numerics contract.
 *
 * ORDER("name", contract, other) picks one of two orders of a sum, once in front of its loop: two
 * functions, or two constants. `make CONFIG=altered` defines SHARDLINE_ALTER; there it is `other` while
 * the environment variable SHARDLINE_ALTER equals the name. In every other build it is the constant
 * `contract`. tests/altered.d lists, for each name, the test that must fail in the other order. */
#ifndef SHARDLINE_BASE_ALTER_H
#define SHARDLINE_BASE_ALTER_H

#ifdef SHARDLINE_ALTER
#ifdef __cplusplus
extern "C" {
#endif
/* 1 when the environment names this order (test_hooks.c). */
int alter_is(const char *name);
#ifdef __cplusplus
}
#endif
#define ALTERED(name) alter_is(name)
#else
#define ALTERED(name) 0
#endif

#define ORDER(name, contract, other) (ALTERED(name) ? (other) : (contract))

#endif

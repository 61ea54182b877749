/* alter.h - the altered build, which shows that a test covers every order of the numerics contract.
 *
 * `make CONFIG=altered` defines SHARDLINE_ALTER. There ALTERED("name") is true when the environment variable
 * SHARDLINE_ALTER equals the name, and the code at that place sums in another order. tests/altered.d lists
 * for each name the test that must fail. In every other build ALTERED is the constant 0. */
#ifndef SHARDLINE_BASE_ALTER_H
#define SHARDLINE_BASE_ALTER_H

#ifdef SHARDLINE_ALTER
/* 1 when the environment names this order (test_hooks.c). */
int alter_is(const char *name);
#define ALTERED(name) alter_is(name)
#else
#define ALTERED(name) 0
#endif

#endif

/* alter.h - the altered build: proof that every order of the numerics contract is tested.
 *
 * `make CONFIG=altered` defines SHARDLINE_ALTER; there ALTERED("name") is true when the environment variable
 * SHARDLINE_ALTER equals the name, and the code at that place sums in another order. tests/altered.d/ lists,
 * for each name, the test that must fail then. In every other build it is the constant 0. */
#ifndef SHARDLINE_BASE_ALTER_H
#define SHARDLINE_BASE_ALTER_H

#ifdef SHARDLINE_ALTER
int alter_is(const char *name);
#define ALTERED(name) alter_is(name)
#else
#define ALTERED(name) 0
#endif

#endif

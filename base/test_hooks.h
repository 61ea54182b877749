/* test_hooks.h - what tests do to a running program, through its environment. Nothing set: nothing done.
 *
 *   SHARDLINE_IO_FAULT=op:N:ERRNO    the N-th call of an operation fails, as if the kernel had said ERRNO.
 *                                    Operations: the words of
 *                                    HOOK_LIST; malloc counts mem_alloc and its like (base/mem.h)
 *   SHARDLINE_IO_SLOW=MS             every write and fsync takes MS milliseconds longer
 *   SHARDLINE_IO_RECORD=FILE         operations that change files or folders are appended to FILE once they
 *                                    are done: a struct
 *                                    hook_record, the path, the second path of a rename, the bytes of a
 *                                    write. What a crash may leave of
 *                                    them is worked out by tests/unit/format/crash_test.c */
#ifndef SHARDLINE_BASE_TEST_HOOKS_H
#define SHARDLINE_BASE_TEST_HOOKS_H

#include <stddef.h>
#include <stdint.h>

#define HOOK_LIST(X) \
    X(OPEN, "open") /* recorded when it may make a file */ \
    X(READ, "read") /* never recorded */ \
    X(WRITE, "write") \
    X(FSYNC, "fsync") /* of a file or a folder */ \
    X(CLOSE, "close") \
    X(RENAME, "rename") \
    X(MKDIR, "mkdir") \
    X(UNLINK, "unlink")     /* of a file or an empty folder */ \
    X(TRUNCATE, "truncate") /* off: the new size */ \
    X(MALLOC, "malloc")

enum hook_op {
#define X(name, text) HOOK_##name,
    HOOK_LIST(X)
#undef X
        HOOK_OPS
};
struct hook_record {
    uint32_t op, path_bytes, to_bytes, unused;
    int64_t off, bytes;
};

/* The path of a record that says: this operation was made to fail. */
#define HOOK_FAILED "(made to fail)"
/* 1, with errno set, when this call was chosen to fail. The counters are process-wide on purpose: they count
 * the calls of a run. */
int hook_fault(enum hook_op op);
/* to, data: NULL where there is none. */
void hook_note(enum hook_op op, const char *path, const char *to, int64_t off, const void *data,
               size_t bytes);

#endif

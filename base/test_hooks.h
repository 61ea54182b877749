/* test_hooks.h - the only door through which a test changes a running program: its environment. Every
 * variable of kind ENV_TEST (base/env.h) is read here and nowhere else. With none of them set the hooks do
 * nothing.
 *
 *   SHARDLINE_IO_FAULT=op:N:ERRNO  The N-th call of an operation fails as if the kernel had returned ERRNO.
 *                                  Operations: HOOK_LIST. malloc counts calls of mem_alloc (base/mem.h).
 *   SHARDLINE_IO_SLOW=MS           Every write and fsync takes MS milliseconds longer.
 *   SHARDLINE_IO_STALL=op:N:MS     The N-th call of an operation takes MS milliseconds longer.
 *   SHARDLINE_IO_SHORT=1           hook_short_counts()
 *   SHARDLINE_AIO=threads          hook_aio_threads()
 *   SHARDLINE_LARGE_FOLIOS=off     hook_no_large_folios()
 *   SHARDLINE_MAP=off|rows|MS      hook_maps_weights(), hook_packs_every_ms()
 *   SHARDLINE_IO_RECORD=FILE       Every operation that changed a file or folder is appended to FILE: a
 *                                  struct hook_record, the path, the second path of a rename, the bytes of a
 *                                  write. tests/unit/format/crash_test.c derives what a crash may leave.
 *   SHARDLINE_MEMORY_ROOM=BYTES    hook_free_memory()
 *   SHARDLINE_MACHINE_ROOT=DIR     hook_machine_root()
 *   SHARDLINE_DEVICE=FILE          hook_device_library()
 *   SHARDLINE_DRAFTER=NAME         hook_drafter()
 *   SHARDLINE_ANSWER=FILE          hook_answer()
 *   SHARDLINE_ALTER=NAME           alter_is() in the altered build (base/alter.h)
 *
 * Any thread may call these functions. The call counters belong to the process. */
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
    X(MALLOC, "malloc") \
    X(AIO_READ, "aio_read") /* a block of base/aio.h; never recorded, as the next: they are scratch files */ \
    X(AIO_WRITE, "aio_write")

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

/* The path of a record of an operation that was made to fail. */
#define HOOK_FAILED "(made to fail)"

/* 1, with errno set, when this call was chosen to fail. */
int hook_fault(enum hook_op op);

/* Records an operation that succeeded. to: second path of a rename, else NULL. data: [bytes] of a write, else
 * NULL. */
void hook_note(enum hook_op op, const char *path, const char *to, int64_t off, const void *data,
               size_t bytes);

/* 1: every block of base/aio.h is read and written in halves. */
int hook_short_counts(void);

/* 1: base/aio.h takes threads, as where the kernel has no io_uring. */
int hook_aio_threads(void);

/* 0: pserve reads every folder and maps none. */
int hook_maps_weights(void);
/* Milliseconds that pass between two matrices of a mapped folder that pserve packs; -1: it packs none. */
int hook_packs_every_ms(void);
/* 1: mapped files count as lying in small pages, as on a kernel without large folios (store/mapped.h). */
int hook_no_large_folios(void);

/* Bytes of free memory that the machine is taken to have; -1: ask the machine. */
int64_t hook_free_memory(void);

/* Folder with the /proc and /sys that tell the machine's memory (base/machine.h); "": the real ones. */
const char *hook_machine_root(void);

/* File of the shared library whose device --device cuda opens (kernels/dev_library.h); NULL: the real one. */
const char *hook_device_library(void);

/* What guesses tokens in place of what --speculate names, at every step; NULL: what it names. */
const char *hook_drafter(void);

/* File with the text that every answer of pserve has (serve/engine/scripted.h); NULL: the model's own. */
const char *hook_answer(void);

#endif

/* dev_library.h - a device in a shared library of its own. SHARDLINE_DEVICE names the file; --device cuda
 * then loads it instead of the CUDA device. tests/devices/fake is such a library: products hold no device
 * for tests.
 *
 * The library and the program come from one build: struct dev has no version. */
#ifndef SHARDLINE_KERNELS_DEV_LIBRARY_H
#define SHARDLINE_KERNELS_DEV_LIBRARY_H

#include "kernels/kernels.h"

/* The functions of the program that the library calls; programs export no symbols. */
struct dev_program {
    int (*err_set)(struct err *e, int code, const char *fmt, ...);
    void *(*mem_alloc)(struct mem *m, enum mem_cat c, size_t bytes);
    void (*mem_free)(struct mem *m, void *p);
    size_t (*panels_bytes)(int64_t n, int64_t k, enum dtype dt, const struct leaves *l);
};

/* The library's one symbol. Fills in kind, ops, isa, memory and back of d; d->host, the CPU, is open.
 * *program outlives d. */
int dev_library_open(struct dev *d, const struct dev_program *program, struct err *e);

#endif

/* cublaslt_stub.h - what cuda_lt_test asks cublaslt_stub.c about. */
#ifndef SHARDLINE_TESTS_DEVICES_CUBLASLT_STUB_H
#define SHARDLINE_TESTS_DEVICES_CUBLASLT_STUB_H

#include <stdint.h>

#define STUB_STREAM ((void *)0x5eed)
struct stub_seen {
    int open, objects, lists, calls, compute;
    uint32_t align, reduction;
    int64_t cols;
    void *stream;
};
/* in the library: found by name */
extern struct stub_seen stub_seen;
/* of its six algorithms; only the fifth and the sixth may be taken */
extern int stub_offers;
extern int stub_slow; /* ms that a call of the fifth takes longer */

#endif

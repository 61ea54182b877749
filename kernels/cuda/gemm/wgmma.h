/* wgmma.h - products on Hopper's own tensor-core instructions (wgmma.cuh): the choice whether to use them,
 * and their launch.
 *
 * A weight's products must have the same bits for every number of rows, so on one device all of them have to
 * round alike:
 *
 *     off      mma alone: no sm_90, or the self-check found numbers that are wrong
 *     beside   wgmma where it is faster, mma elsewhere: the self-check found them equal, bit for bit
 *     alone    wgmma for all, few rows filled up to 64: the numbers are right, but not mma's bits
 *
 * No document promises that the two round alike, so a self-check compares them when the device is opened:
 * products of every form, over numbers of wide range, by mma and by every tile size of wgmma. The result
 * is a property of the kind of GPU and so the same on all ranks. A mistake of ours in code that no GPU has
 * run yet then costs speed, not correctness. SHARDLINE_CUDA=mma: off; wgmma: alone; both without the
 * check. SHARDLINE_WGMMA=128x256|128x128|128x64|64x64|64x32: this tile size wherever it can make the
 * product, to time sizes against each other. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_WGMMA_H
#define SHARDLINE_KERNELS_CUDA_GEMM_WGMMA_H

struct dev;
struct err;

/* Few processors in the self-check, so that a block has several tiles. */
enum { WGMMA_SIZES = 4, CHECK_PROCESSORS = 2 };
enum wgmma_use { WGMMA_OFF, WGMMA_BESIDE, WGMMA_ALONE, WGMMA_ASK };
struct wgmma {
    enum wgmma_use use;
    /* SHARDLINE_WGMMA's size; "": chosen by the product */
    char first[12];
    /* during the self-check: this size, from 1 on; 0: chosen by the product */
    int only;
    void *encode;  /* the driver's cuTensorMapEncodeTiled; NULL: no wgmma here */
    char why[100]; /* for the log; "": nothing to report */
};

#ifdef __cplusplus
extern "C" {
#endif
/* The device's state, which products.c opened. */
struct wgmma *cuda_wgmma(struct dev *d);
/* Sets w; the device is open. WGMMA_ASK: by the self-check. ERR_USAGE: SHARDLINE_WGMMA names no size. */
int wgmma_open(struct dev *d, struct wgmma *w, enum wgmma_use use, struct err *e);
/* The self-check (wgmma_check.c). Changes w->use and w->only while it runs. No memory: WGMMA_OFF. */
void wgmma_check(struct dev *d, struct wgmma *w);
#ifdef __cplusplus
}

struct gemm_job;
enum form { FORM_LINEAR, FORM_DX, FORM_DW, FORMS };
/* The tile size of a product; "": mma makes it. slots: sums that wait at a time, besides the newest. */
const char *wgmma_size(const struct wgmma *w, const struct gemm_job &j, enum form form, int slots,
                       size_t shared_most, int64_t processors);
/* Launches a product. 0: mma must make it. */
int wgmma_start(struct dev *d, const struct gemm_job &j, enum form form, int slots, size_t shared_most,
                int64_t processors);
#endif

#endif

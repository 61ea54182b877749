/* wgmma.h - products on Hopper's own tensor-core instructions (wgmma.cuh): whether they are used, and their
 * start.
 *
 * A weight's products must have the same bits for every number of rows, so on one device all of them have to
 * round alike:
 *
 *     off      mma alone: no sm_90, or the self-check found numbers that are wrong
 *     beside   wgmma where it is faster, mma elsewhere: the self-check found them equal, bit for bit
 *     alone    wgmma for all, few rows filled up to 64: the numbers are right, but not mma's bits
 *
 * That the two round alike nobody promises, so it is looked at when the device is opened: some products of
 * every form, over numbers of wide range, by mma and by every size of block that wgmma has. It is a property
 * of the kind of GPU, and so the same on all ranks. A mistake of ours in what no GPU has run yet costs speed
 * then, not numbers. SHARDLINE_CUDA=mma: off; wgmma: alone; both without a look.
 * SHARDLINE_WGMMA=128x256|128x128|128x64|64x64|64x32: tiles of that size wherever it can make the product,
 * so that sizes can be timed beside each other. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_WGMMA_H
#define SHARDLINE_KERNELS_CUDA_GEMM_WGMMA_H

struct dev;
struct err;

/* so few in the self-check that a block has several tiles */
enum { WGMMA_SIZES = 4, CHECK_PROCESSORS = 2 };
enum wgmma_use { WGMMA_OFF, WGMMA_BESIDE, WGMMA_ALONE, WGMMA_ASK };
struct wgmma {
    enum wgmma_use use;
    /* SHARDLINE_WGMMA: this size where it can be; "": by the product */
    char first[12];
    /* while the self-check looks: this one of the sizes, from 1 on; 0: by the product */
    int only;
    void *encode;  /* the driver's cuTensorMapEncodeTiled; NULL: no wgmma here */
    char why[100]; /* for the log; "": nothing to say */
};

#ifdef __cplusplus
extern "C" {
#endif
/* The device's, by products.c. */
struct wgmma *cuda_wgmma(struct dev *d);
/* Sets w. ASK: what the self-check finds. The device stands. ERR_USAGE: SHARDLINE_WGMMA names no size. */
int wgmma_open(struct dev *d, struct wgmma *w, enum wgmma_use wish, struct err *e);
/* The self-check (wgmma_check.c): changes w->use and w->only while it runs; memory that cannot be had: OFF.
 * */
void wgmma_check(struct dev *d, struct wgmma *w);
#ifdef __cplusplus
}

struct gemm_job;
enum form { FORM_LINEAR, FORM_DX, FORM_DW, FORMS };
/* Tiles of this size it would get; "": mma makes it. slots: sums that wait at a time but the newest. */
const char *wgmma_size(const struct wgmma *w, const struct gemm_job &j, enum form form, int slots,
                       size_t shared_most, int64_t processors);
/* 0: not this product, mma makes it. */
int wgmma_start(struct dev *d, const struct gemm_job &j, enum form form, int slots, size_t shared_most,
                int64_t processors);
#endif

#endif

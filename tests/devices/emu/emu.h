/* emu.h - a CUDA block on the CPU, for tests: the kernels' own text, built by g++; every thread of a block
 * is a fiber.
 *
 *     kernel text --words.h--> emu_barrier, emu_warp_op, ... --> the fiber waits, the next one runs
 *
 * Blocks run one after the other, odd ones from their last thread to the first. A fiber runs until a
 * barrier or an operation of its warp, where it waits for the other threads; kernels may rely on no order
 * between two of these. Copies to shared memory (cp.async) happen as late as allowed; until then their
 * targets hold NaN.
 *
 * Reported as a failed launch, with threads, file and line, and so by dev_check():
 *   - threads that wait for others that never arrive: at a barrier, or in an operation of a warp - lanes
 *   of a warp in different operations, or with different masks - shared memory that two threads access,
 *   one of them writing, without a barrier between them (bytes are tracked
 *     in pairs)
 *   - memory that is neither the device's, nor shared, nor the thread's own: through the calls that
 *     -fsanitize=thread inserts at each access (shadow.c replaces its library). With -fsanitize=address that
 *     sanitizer's own checks apply instead
 *   - an access of 2 to 16 bytes that is not aligned to its size (there too)
 *   - more threads or shared memory than the smallest supported GPU has
 *
 * Hopper (SHARDLINE_EMU_SM=90): mbarriers, copies of boxes of a tensor (async.c), products of groups of warps
 * (group.c), each as late as allowed. Reported:
 *   - memory read or multiplied before its copy has arrived, or written while a product reads it; bytes
 *   that an
 *     mbarrier expects and never gets
 *   - threads' writes that are multiplied without a proxy fence; a product's registers without the group's
 *   fence; a
 *     block that ends while any of these is under way
 *
 * Blocks of a cluster run together, each with a shared memory of its own. Reported: accesses to a block
 * that has ended, and to another block's mbarrier before a cluster barrier has followed its
 * initialisation.
 *
 * Not emulated: a GPU's speed, its rounding inside of mma (here: exact products, summed in double, rounded
 * once), weak ordering of memory other than shared. */
#ifndef SHARDLINE_TESTS_DEVICES_EMU_EMU_H
#define SHARDLINE_TESTS_DEVICES_EMU_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMU_THREADS_MAX = 1024,
    EMU_CLUSTER_MAX = 2,
    EMU_SHARED_MAX = 227 * 1024,
    EMU_SHARED_STATIC_MAX = 48 * 1024
};
/* The most dynamic shared memory of a block in bytes: 99 KiB, the smallest GPU's, or SHARDLINE_EMU_SHARED
 * KiB (sm_80: 163, sm_90: 227). */
size_t emu_shared_limit(void);

struct emu_dim {
    unsigned x, y, z;
};
/* The running fiber: threadIdx and so on. rank: of its block in the cluster; linear: the thread's number
 * in the cluster, -1: no kernel runs. */
struct emu_here {
    struct emu_dim thread, block, threads, blocks;
    int lane, rank, linear;
};
extern struct emu_here emu_here;

/* Runs call(arg) for every thread of every block, `cluster` blocks of neighbouring x at a time. arg: the
 * kernel's parameters. 0: a fault, see emu_fault. */
int emu_launch(struct emu_dim blocks, unsigned cluster, struct emu_dim threads, size_t shared,
               void (*call)(void *arg), void *arg, size_t arg_bytes);
/* The first fault since emu_fault_clear; "": none. A fault ends the block and the launch. */
const char *emu_fault(void);
void emu_fault_clear(void);
/* Counts of the host's calls, for tests. */
struct emu_calls {
    long launches, copies, fills;
};
extern struct emu_calls emu_calls;
/* Records a fault and ends the running fiber's launch. */
void emu_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- called by kernels ---- */
/* __syncthreads. */
void emu_barrier(const char *file, int line);
/* The block's dynamic shared memory: full of NaN when a block begins. */
void *emu_shared(void);

/* Operations of a warp. */
enum emu_kind {
    EMU_SYNC,
    EMU_SHFL,
    EMU_SHFL_UP,
    EMU_SHFL_DOWN,
    EMU_SHFL_XOR,
    EMU_BALLOT,
    EMU_LDMATRIX,
    EMU_LDMATRIX_TRANS,
    EMU_MMA_BF16
};
/* Waits for the lanes of mask and runs the operation. v: the lane's value, or the address of its
 * registers; other: a lane, for shuffles. */
uint64_t emu_warp_op(enum emu_kind kind, unsigned mask, uint64_t v, int other, const char *file, int line);
/* m16n8k16: d 4, a 4, b 2 registers */
struct emu_mma {
    float *d;
    const uint32_t *a, *b;
};
/* n: 1, 2 or 4 matrices of 8 x 8 */
struct emu_ldmatrix {
    uint32_t *to;
    const void *row;
    int n;
};

/* cp.async: the copy of 16 bytes happens at the wait for its group. bytes < 16: the rest is zeros.
 * emu_copy_wait: all but the newest `groups` groups are complete. */
void emu_copy(void *shared, const void *from, int bytes);
void emu_copy_commit(void);
void emu_copy_wait(int groups);
void emu_copies_forget(int threads);

/* ---- Hopper (kernels/cuda/gemm/hopper.cuh describes each) ---- */
/* The 32-bit shared address of p: aligned to 128 bytes as a GPU's, not to 1024. */
uint32_t emu_window(const void *p);
/* mbarriers, the proxy fence, copies of boxes (emu_copy_box_to: to the blocks whose bits are set), cluster
 * barrier. */
void emu_bar_init(void *bar, int n);
void emu_bar_arrive(void *bar, int bytes);
int emu_bar_wait(void *bar, int parity, const char *file, int line);
void emu_proxy_fence(void);
void emu_copy_box(void *to, const void *map, int x, int y, int z, void *bar);
void emu_copy_box_to(void *to, const void *map, int x, int y, int z, void *bar, int ranks);
void emu_bar_arrive_at(void *bar, int rank);
void emu_cluster_sync(const char *file, int line);
enum emu_group_op { EMU_GROUP_FENCE, EMU_GROUP_MMA, EMU_GROUP_COMMIT, EMU_GROUP_WAIT };
struct emu_product {
    float *acc;
    uint64_t a, b;
    int cols, a_across, b_across;
};
/* An operation of a group of 4 warps. arg: of EMU_GROUP_WAIT, the groups that may be under way. */
void emu_group(enum emu_group_op op, int arg, const struct emu_product *p, const char *file, int line);

/* ---- between the files of the emulation ---- */
struct emu_lane {
    enum emu_kind kind;
    unsigned mask;
    uint64_t v;
    int other;
    const char *file;
    int line;
    uint64_t result;
};
/* All lanes of mask have arrived: computes their results. */
void emu_warp_run(struct emu_lane *const lane[32], unsigned mask);
/* Logical time for races: advanced by a barrier for the block, by __syncwarp for the warp, by a cluster
 * barrier. */
struct emu_clock {
    uint32_t block, warp, cluster;
};
/* Of the running fiber; is p on its stack; is p in the kernel's parameters; its block's shared memory. */
struct emu_clock emu_clock(void);
int emu_on_stack(const void *p);
int emu_is_param(const void *p);
char *emu_shared_at(size_t *bytes);
/* p, in the running block's shared memory, as an address of another block's; NULL: that block has ended. */
void *emu_at_rank(void *p, int rank);
/* A thread's block; is p memory of the emulated device (runtime.c); checks an access (shadow.c). */
int emu_rank_of(int linear);
int emu_owns(const void *p, size_t bytes);
void emu_touch(const void *p, size_t bytes, int is_write);
/* The running fiber waits until ready(arg), which is polled. what: for the report of a deadlock. */
void emu_wait_for(int (*ready)(void *), void *arg, const char *what, const char *file, int line);
/* A launch begins; a block begins. */
void emu_async_launch(void), emu_async_begin(void), emu_groups_begin(void);
/* When no fiber can run: one deferred operation happens; 0: there is none. */
int emu_run_deferred(int backwards), emu_run_deferred_groups(int backwards);
/* When there is none: do the waits with a limit end? */
int emu_give_up(void);
/* What a block left under way; NULL: nothing. */
const char *emu_async_left(void), *emu_groups_left(void);
/* A thread accesses byte `at` of dynamic shared memory; a product begins or ends reading it. */
void emu_touch_async(size_t at, int is_write);
void emu_product_reads(size_t at, int begins);
/* The memory of a shared address, for `what` of so many bytes; the address that a swizzle maps it to. */
char *emu_of_window(uint32_t at, size_t bytes, const char *what);
uint32_t emu_swizzle(uint32_t at, int row_bytes);
#ifdef __cplusplus
}
#endif

#endif

/* emu.h - a CUDA block on the CPU, for tests: the kernels' own text, built by g++, every thread of a block a
 * fiber.
 *
 *     kernel text --words.h--> emu_barrier, emu_meet, ... --> the fiber waits, the next one runs
 *
 * Blocks run one after the other, odd ones from their last thread to the first. A fiber runs until a
 * barrier, or an operation of its warp, where it waits for the others; what the threads do between two of
 * these is in no order that a kernel may count on. Copies to shared memory (cp.async) happen as late as they
 * may; until then their targets hold NaN.
 *
 * Reported as a launch that failed, with threads, file and line, and so by dev_check:
 *   - threads that wait where others never come: a barrier not reached by all, an operation of a warp
 *   without some of its lanes
 *   - lanes of a warp that meet in different operations, or disagree about who takes part
 *   - shared memory that two threads touch, one of them writing, with no barrier between them (bytes are
 *   watched in pairs)
 *   - memory that is neither the device's, nor shared, nor the thread's own: where the compiler calls for
 *     each access (-fsanitize=thread, without its
 *     library: shadow.c stands in its place). With -fsanitize=address its own checks come instead
 *   - an access of 2 to 16 bytes at no multiple of that (there too)
 *   - more threads or shared memory than the smallest GPU has that this is built for
 *
 * Of Hopper (SHARDLINE_EMU_SM=90) mbarriers, copies of boxes of a tensor (async.c), products of groups of
 *   warps (group.c); all of that as late as it may be. Reported:
 *   - memory touched or multiplied before a copy has arrived, or written while a product reads it; bytes
 *   that an mbarrier waits for in vain
 *   - what threads wrote, multiplied without a proxy fence; registers of a product without the group's
 *   fence; a block that ends with any of it under way
 *
 * Blocks of a cluster run together, each with a shared memory of its own. Reported: what goes to a block
 * that has ended, or to a barrier of another block that was made with no meeting of the cluster between.
 *
 * What it is not: a GPU's speed, its rounding inside of mma (here: exact products, summed in double, rounded
 * once), other memory than shared seen in a weak order. */
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
/* Dynamic shared memory that a block may have: of the smallest GPU, 99 KiB, or as the environment's
 * SHARDLINE_EMU_SHARED says, in KiB (sm_80: 163, sm_90: 227). */
size_t emu_shared_limit(void);

struct emu_dim {
    unsigned x, y, z;
};
/* The fiber that runs: what threadIdx and so on are. rank: of its block in the cluster; linear: the thread's
 * number in the cluster; -1: no kernel runs. */
struct emu_here {
    struct emu_dim thread, block, threads, blocks;
    int lane, rank, linear;
};
extern struct emu_here emu_here;

/* Runs call(arg) for every thread of every block, `cluster` blocks of neighbouring x at a time. 0: a fault,
 * emu_fault says which. arg: the kernel's parameters. */
int emu_launch(struct emu_dim blocks, unsigned cluster, struct emu_dim threads, size_t shared,
               void (*call)(void *arg), void *arg, size_t arg_bytes);
/* The first fault since it was forgotten; "": none. A block with a fault is left at once, a launch ends
 * there. */
const char *emu_fault(void);
void emu_forget(void);
/* What the host asked of the device so far, for tests. */
struct emu_asked {
    long launches, copies, fills;
};
extern struct emu_asked emu_asked;
/* Ends the running fiber's launch. */
void emu_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- what kernels call ---- */
void emu_barrier(const char *file, int line);
/* the launch's dynamic shared memory: full of NaN when a block begins */
void *emu_shared(void);

/* Operations in which the lanes of a warp meet. v: the lane's value, or the address of its registers; other:
 * a lane, for shuffles. */
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
uint64_t emu_meet(enum emu_kind kind, unsigned mask, uint64_t v, int other, const char *file, int line);
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

/* cp.async: the copy of 16 bytes happens at the wait that asks for its group. bytes < 16: the rest is zeros.
 * */
void emu_copy(void *shared, const void *from, int bytes);
void emu_copy_commit(void);
void emu_copy_wait(int groups); /* all but the newest so many groups are over */
void emu_copies_forget(int threads);

/* ---- Hopper's (hopper.cuh says what they mean) ---- */
/* a shared address: aligned to 128 bytes as a GPU's, not to 1024 */
uint32_t emu_window(const void *p);
void emu_bar_init(void *bar, int n);
void emu_bar_arrive(void *bar, int bytes);
int emu_bar_wait(void *bar, int parity, const char *file, int line);
void emu_proxy_fence(void);
void emu_copy_box(void *to, const void *map, int x, int y, int z, void *bar);
/* to the blocks whose bits are set */
void emu_copy_box_to(void *to, const void *map, int x, int y, int z, void *bar, int ranks);
void emu_bar_arrive_at(void *bar, int rank);
void emu_cluster_meet(const char *file, int line);
enum emu_group_op { EMU_GROUP_FENCE, EMU_GROUP_MMA, EMU_GROUP_COMMIT, EMU_GROUP_WAIT };
struct emu_product {
    float *acc;
    uint64_t a, b;
    int cols, a_across, b_across;
};
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
/* all lanes of mask have come: results */
void emu_warp_run(struct emu_lane *const lane[32], unsigned mask);
/* The clock of races: a barrier moves it for the block, __syncwarp for the warp, a meeting for the cluster.
 * */
struct emu_clock {
    uint32_t block, warp, cluster;
};
struct emu_clock emu_clock(void);
int emu_on_stack(const void *p); /* of the running fiber */
int emu_is_param(const void *p);
char *emu_shared_at(size_t *bytes); /* of the block emu_here.rank */
/* what p of that block's memory is in another one; NULL: it has ended, or is not there */
void *emu_at_rank(void *p, int rank);
int emu_rank_of(int linear);
int emu_owns(const void *p, size_t bytes);                 /* memory of the emulated device (runtime.c) */
void emu_touch(const void *p, size_t bytes, int is_write); /* shadow.c */
/* The running fiber waits until ready(arg), asked whenever it could run; what: for the report when nobody
 * can. */
void emu_wait_for(int (*ready)(void *), void *arg, const char *what, const char *file, int line);
/* A block begins; nobody can go on: something that runs beside the threads happens, 0: there is nothing;
 * what a block left behind, NULL: nothing. */
void emu_async_launch(void), emu_async_begin(void), emu_groups_begin(void);
int emu_late(int backwards), emu_groups_late(int backwards);
int emu_give_up(void); /* nothing does: do waits end? */
const char *emu_async_left(void), *emu_groups_left(void);
void emu_touch_async(size_t at, int is_write); /* byte `at` of dynamic shared memory, by a thread */
void emu_product_reads(size_t at, int begins);
char *emu_of_window(uint32_t at, size_t bytes, const char *what);
uint32_t emu_swizzle(uint32_t at, int row_bytes);
#ifdef __cplusplus
}
#endif

#endif

/* hopper.cuh - what kernels need of sm_90a below C++, as warp.cuh: barriers that count bytes, copies of
 * boxes of a tensor, products of a group of 4 warps over operands in shared memory. PTX where the file is
 * built for sm_90a (HOPPER), the emulation (tests/devices/emu: async.c, group.c) in tests.
 *
 * bar_init(bar, n)
 *     an mbarrier, 8 bytes of shared memory, for n arrivals a phase. The thread that made barriers calls
 *     bars_ready() before a __syncthreads.
 * bar_arrive(bar), bar_arrive_bytes(bar, n)
 *     one arrival; and n bytes that copies will bring before the phase ends.
 * bar_wait(bar, parity, patient)
 *     waits until the phase of this parity has ended; the phase before the first counts as one of parity
 *     1. Returns 0 after BAR_MOST_NS, which is a mistake of ours and would hang the GPU; not patient:
 *     after one poll.
 * copy_box(to, map, x, y, z, bar)
 *     one thread: copies the map's box from there into shared memory and counts its bytes at bar: all of
 *     them, zeros outside of the tensor.
 *
 * Clusters: blocks that run side by side and see each other's shared memory, which has the same layout in
 * all. cluster_sync()
 *     a barrier of all threads of the cluster; what was written and initialised before is visible behind it.
 * bar_arrive_at(bar, rank)
 *     one arrival at this barrier of the block with that number in the cluster.
 * copy_box_to_all(to, map, x, y, z, bar, mask)
 *     copy_box to the blocks whose bits are set; each block's own bar counts.
 *
 * writes_ready()
 *     this thread's writes to shared memory may be read by mma_group after a barrier.
 *
 * Groups: 128 threads from a multiple of 128, all at the same place.
 * group_fence()
 *     before the first mma_group after acc was accessed.
 * mma_group<N, A_ACROSS, B_ACROSS>(acc, a, b)
 *     acc += A B, 64 x N += 64 x 16 . 16 x N, bf16 to fp32, asynchronously: it owns acc and the operands
 *     until the wait. acc[i] of thread t: row t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column i / 4 * 8 +
 *     t % 4 * 2 + i % 2.
 * group_commit(), group_wait<N>()
 *     as with cp_async: all but the newest N.
 * group_hold<N>(acc)
 *     the compiler moves no use of acc[0..N) over this: behind a wait, and before a fence.
 * registers_take<N>(), registers_release<N>()
 *     this group of warps continues with N registers a thread, more or fewer than it began with; registers
 *     must have been released before others take them.
 * operand(p, LEAD, STRIDE, SWIZZLE)
 *     a matrix for mma_group at p (PTX ISA, "Matrix Descriptor Format"). Rows of 128 or 64 bytes whose
 *     16-byte pieces are exchanged (piece ^ row mod 8; 64: ^ row / 2 mod 4), 8 rows an atom. Along the
 *     contraction: a row is a row of A (column of B), the next 8 rows STRIDE bytes on. Across: a row is an
 *     element of the contraction, the next 8 of those STRIDE bytes on, the next 64 (32) rows of A (columns
 *     of B) LEAD bytes on. */
#ifndef SHARDLINE_KERNELS_CUDA_GEMM_HOPPER_CUH
#define SHARDLINE_KERNELS_CUDA_GEMM_HOPPER_CUH

#include <cuda.h>
#include "kernels/cuda/warp.cuh"

/* as an operand has them */
enum swizzle { SWIZZLE_128 = 1, SWIZZLE_64 = 2 };
constexpr uint64_t BAR_MOST_NS = 4000000000u; /* other ranks may use the GPU meanwhile */

#if defined(CUDA_EMU)
#define HOPPER 1
static inline uint32_t window_address(const void *p) { return emu_window(p); }
static inline void bar_init(uint64_t *bar, int n) { emu_bar_init(bar, n); }
static inline void bars_ready(void) { emu_proxy_fence(); }
static inline void bar_arrive(uint64_t *bar) { emu_bar_arrive(bar, 0); }
static inline void bar_arrive_bytes(uint64_t *bar, int n) { emu_bar_arrive(bar, n); }
static inline int bar_wait(uint64_t *bar, int parity, int, EMU_AT)
{
    return emu_bar_wait(bar, parity, file, line);
}
static inline void copy_box(void *to, const CUtensorMap *map, int x, int y, int z, uint64_t *bar)
{
    emu_copy_box(to, map, x, y, z, bar);
}
static inline void cluster_sync(EMU_AT) { emu_cluster_sync(file, line); }
static inline void bar_arrive_at(uint64_t *bar, int rank) { emu_bar_arrive_at(bar, rank); }
static inline void copy_box_to_all(void *to, const CUtensorMap *map, int x, int y, int z, uint64_t *bar,
                                   int mask)
{
    emu_copy_box_to(to, map, x, y, z, bar, mask);
}
static inline void writes_ready(void) { emu_proxy_fence(); }
template <int N> static inline void group_hold(float *acc) { (void)acc; }
template <int N> static inline void registers_take(void) {}
template <int N> static inline void registers_release(void) {}
static inline void group_fence(EMU_AT) { emu_group(EMU_GROUP_FENCE, 0, NULL, file, line); }
static inline void group_commit(EMU_AT) { emu_group(EMU_GROUP_COMMIT, 0, NULL, file, line); }
template <int N> static inline void group_wait(EMU_AT) { emu_group(EMU_GROUP_WAIT, N, NULL, file, line); }
template <int N, int A_ACROSS, int B_ACROSS>
static inline void mma_group(float *acc, uint64_t a, uint64_t b, EMU_AT)
{
    struct emu_product p = { acc, a, b, N, A_ACROSS, B_ACROSS };
    emu_group(EMU_GROUP_MMA, 0, &p, file, line);
}

#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER 1
static __device__ __forceinline__ uint32_t window_address(const void *p) { return shared_address(p); }
static __device__ __forceinline__ void bar_init(uint64_t *bar, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(n) : "memory");
}
static __device__ __forceinline__ void writes_ready(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ __forceinline__ void bars_ready(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    writes_ready();
}
static __device__ __forceinline__ void bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
static __device__ __forceinline__ void bar_arrive_bytes(uint64_t *bar, int n)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(n)
                 : "memory");
}
static __device__ __forceinline__ int bar_wait(uint64_t *bar, int parity, int patient)
{
    const uint32_t at = shared_address(bar);
    uint64_t began = 0;
    /* the hardware ends a poll by itself, after a time that is not documented */
    for (int i = 0;; i++) {
        int over;
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.s32 %0, "
                     "1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(at), "r"(parity)
                     : "memory");
        if (over || !patient)
            return over;
        if (i % 16 == 15) {
            uint64_t now;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            if (began && now - began > BAR_MOST_NS)
                return 0;
            began = began ? began : now;
        }
    }
}
static __device__ __forceinline__ void copy_box(void *to, const CUtensorMap *map, int x, int y, int z,
                                                uint64_t *bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(bar))
                 : "memory");
}
static __device__ __forceinline__ void copy_box_to_all(void *to, const CUtensorMap *map, int x, int y, int z,
                                                       uint64_t *bar, int mask)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast:"
                 ":cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(bar)), "h"((uint16_t)mask)
                 : "memory");
}
static __device__ __forceinline__ void bar_arrive_at(uint64_t *bar, int rank)
{
    asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, "
                 "%1;\nmbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(shared_address(bar)),
                 "r"(rank)
                 : "memory");
}
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_release(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
static __device__ __forceinline__ void group_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void group_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

template <int N> static __device__ __forceinline__ void group_hold(float *acc)
{
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(acc[i])::"memory");
}

/* acc's registers: their names in the text, and as operands */
#define NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_32 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_48 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_64 \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%" \
    "89,%90,%91,%92,%93,%94,%95"
#define NAMES_96 \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%" \
    "117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define FOUR(i) "+f"(acc[i]), "+f"(acc[(i) + 1]), "+f"(acc[(i) + 2]), "+f"(acc[(i) + 3])
#define SIXTEEN(i) FOUR(i), FOUR((i) + 4), FOUR((i) + 8), FOUR((i) + 12)
/* n: columns, names and registers of acc; a b t s: the numbers of the operands behind them */
#define MMA_GROUP(n, names, a_, b_, ta, tb, ...) \
    asm volatile("{\n.reg .pred p;\nsetp.eq.s32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" n \
                 "k16.f32.bf16.bf16 {" names "}, " a_ ", " b_ ", p, 1, 1, " ta ", " tb ";\n}" \
                 : __VA_ARGS__ \
                 : "l"(a), "l"(b), "n"(A_ACROSS), "n"(B_ACROSS))
template <int N, int A_ACROSS, int B_ACROSS>
static __device__ __forceinline__ void mma_group(float *acc, uint64_t a, uint64_t b)
{
    static_assert(N == 32 || N == 64 || N == 128 || N == 256);
    if constexpr (N == 32)
        MMA_GROUP("32", NAMES_0, "%16", "%17", "%18", "%19", SIXTEEN(0));
    else if constexpr (N == 64)
        MMA_GROUP("64", NAMES_0 "," NAMES_16, "%32", "%33", "%34", "%35", SIXTEEN(0), SIXTEEN(16));
    else if constexpr (N == 128)
        MMA_GROUP("128", NAMES_0 "," NAMES_16 "," NAMES_32 "," NAMES_48, "%64", "%65", "%66", "%67",
                  SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48));
    else
        MMA_GROUP("256", NAMES_0 "," NAMES_16 "," NAMES_32 "," NAMES_48 "," NAMES_64 "," NAMES_96, "%128",
                  "%129", "%130", "%131", SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64),
                  SIXTEEN(80), SIXTEEN(96), SIXTEEN(112));
}
#else
#define HOPPER 0 /* another GPU: kernels are empty, and never started (wgmma.h) */
#endif

#if HOPPER
static __device__ __forceinline__ uint64_t operand(const void *p, int lead, int stride, enum swizzle s)
{
    return (uint64_t)(window_address(p) >> 4 & 0x3fff) | (uint64_t)(lead >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)s << 62;
}
#endif

#endif

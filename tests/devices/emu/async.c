/* async.c - what runs beside a block's threads on Hopper and is waited for at an mbarrier: copies of boxes
 * of a tensor to shared memory; and which threads may access that memory then (PTX ISA, "Asynchronous
 * operations", "Async proxy", "mbarrier", "Swizzling modes").
 *
 *   copy_box: the target holds NaN --no other fiber can run--> the bytes arrive, the mbarrier counts them
 *
 * SHARDLINE_EMU_LOST=n: the n-th copy of a launch never arrives. When no fiber can run then, waits are
 * given up, as after a long time, and what follows is not
 * looked at: it shall end.
 *
 * A piece is 16 bytes of shared memory: copies and products under way there, and the thread that wrote it
 * last by ordinary means, which a product reads only behind that thread's proxy fence. */
#include "tests/devices/emu/cuda.h"
#include "tests/devices/emu/emu.h"

#include <stdlib.h>
#include <string.h>

/* lose: copies until one is lost, 0: none; tired: it was, and waits end */
static int lose, tired;

/* WINDOW: address of the first byte, a multiple of 128 and not of 1024 */
enum { BARS_MAX = 64, BOXES_MAX = 64, WINDOW = 384 };

/* ---- pieces ---- */
/* writer: thread + 1 */
static struct piece {
    int16_t arriving, read, writer;
    uint32_t fence;
} piece[EMU_CLUSTER_MAX][EMU_SHARED_MAX / 16 + 1];
static uint32_t fences[EMU_THREADS_MAX];

uint32_t emu_window(const void *p)
{
    size_t bytes;
    return (uint32_t)((const char *)p - emu_shared_at(&bytes)) + WINDOW;
}

char *emu_of_window(uint32_t at, size_t bytes, const char *what)
{
    size_t all;
    char *shared = emu_shared_at(&all);
    if (at < WINDOW || at - WINDOW + bytes > all)
        emu_wrong("%s of %zu bytes at %u of shared memory, which has %zu from %d", what, bytes, at, all,
                  WINDOW);
    return shared + (at - WINDOW);
}

void emu_proxy_fence(void) { fences[emu_here.linear]++; }

void emu_touch_async(size_t at, int is_write)
{
    struct piece *p = &piece[emu_here.rank][at / 16];
    if (p->arriving)
        emu_wrong("%s shared memory at byte %zu, where a copy has not arrived", is_write ? "writes" : "reads",
                  at);
    if (!is_write)
        return;
    if (p->read)
        emu_wrong("writes shared memory at byte %zu, which a product under way reads", at);
    p->writer = (int16_t)(emu_here.linear + 1);
    p->fence = fences[emu_here.linear];
}

void emu_product_reads(size_t at, int begins)
{
    struct piece *p = &piece[emu_here.rank][at / 16];
    if (begins && p->arriving && !tired)
        emu_wrong("multiplies shared memory at byte %zu, where a copy has not arrived", at);
    if (begins && p->writer && fences[p->writer - 1] == p->fence)
        emu_wrong("multiplies shared memory at byte %zu, which thread %d wrote with no proxy fence behind it",
                  at, p->writer - 1);
    p->read = (int16_t)(p->read + (begins ? 1 : -1));
}

/* ---- mbarriers ---- */
/* phase: that is not over; bytes: it still expects */
static struct bar {
    const void *at;
    int count, left, phase, bytes, maker;
    uint32_t made_block, made_cluster, made_fence;
} bars[BARS_MAX];
static int n_bars;

static struct bar *find_bar(const void *at)
{
    for (int i = 0; i < n_bars; i++)
        if (bars[i].at == at)
            return &bars[i];
    return NULL;
}

static struct bar *bar_of(const void *at)
{
    struct bar *b = find_bar(at);
    if (!b)
        emu_wrong("no mbarrier was made at %p", at);
    if (emu_rank_of(b->maker) != emu_here.rank
            ? b->made_cluster == emu_clock().cluster
            : b->maker != emu_here.linear && b->made_block == emu_clock().block)
        emu_wrong("thread %d made an mbarrier, with no barrier between", b->maker);
    return b;
}

static void look_at(struct bar *b)
{
    if (b->left || b->bytes)
        return;
    b->left = b->count;
    b->phase++;
}

void emu_bar_init(void *at, int n)
{
    if (n_bars == BARS_MAX || find_bar(at) || n < 1 || ((uintptr_t)at & 7))
        emu_wrong("an mbarrier at %p for %d arrivals: more than %d, or twice, or at no multiple of 8", at, n,
                  BARS_MAX);
    bars[n_bars++] = (struct bar){ .at = at,
                                   .count = n,
                                   .left = n,
                                   .maker = emu_here.linear,
                                   .made_block = emu_clock().block,
                                   .made_cluster = emu_clock().cluster,
                                   .made_fence = fences[emu_here.linear] };
}

void emu_bar_arrive(void *at, int bytes)
{
    struct bar *b = bar_of(at);
    if (!b->left && tired)
        return;
    if (!b->left)
        emu_wrong("an mbarrier of %d arrivals gets one more in a phase", b->count);
    b->bytes += bytes;
    b->left--;
    look_at(b);
}

void emu_bar_arrive_at(void *at, int rank)
{
    void *there = emu_at_rank(at, rank);
    if (!there)
        emu_wrong("arrives at an mbarrier of block %d of the cluster, which has ended or is not there", rank);
    emu_bar_arrive(there, 0);
}

struct bar_phase {
    const struct bar *b;
    int parity;
};
static int is_over(void *arg)
{
    const struct bar_phase *w = arg;
    return tired || (w->b->phase & 1) != w->parity;
}

int emu_give_up(void)
{
    const int now = lose < 0 && !tired;
    tired |= now;
    return now;
}

int emu_bar_wait(void *at, int parity, const char *file, int line)
{
    struct bar_phase w = { bar_of(at), parity };
    emu_wait_for(is_over, &w, "an mbarrier", file, line);
    return (w.b->phase & 1) != parity;
}

/* ---- tensors and boxes ---- */
/* row_bytes: 64 or 128, swizzled */
struct map {
    const char *p;
    uint64_t size[3], stride[2];
    uint32_t box[3];
    int row_bytes;
};
_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "a map in its map");

CUresult cuTensorMapEncodeTiled(CUtensorMap *to, CUtensorMapDataType type, cuuint32_t rank, void *p,
                                const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                                const cuuint32_t *step, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                                CUtensorMapFloatOOBfill fill)
{
    struct map m = { .p = p, .row_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : 64 };
    int well = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && rank == 3 && !((uintptr_t)p & 15) &&
               !((uintptr_t)to & 63) && !interleave && !fill && l2 == CU_TENSOR_MAP_L2_PROMOTION_L2_128B &&
               (swizzle == CU_TENSOR_MAP_SWIZZLE_64B || swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
    for (int i = 0; i < 3; i++) {
        m.size[i] = size[i], m.box[i] = box[i];
        well &= size[i] >= 1 && size[i] <= (uint64_t)1 << 32 && box[i] >= 1 && box[i] <= 256 && step[i] == 1;
    }
    for (int i = 0; i < 2; i++) {
        m.stride[i] = stride[i];
        well &= stride[i] % 16 == 0 && stride[i] < (uint64_t)1 << 40 &&
                stride[i] >= size[i] * (i ? stride[0] : 2);
    }
    well &= (int)box[0] * 2 == m.row_bytes; /* narrower boxes are not emulated */
    if (well)
        memcpy(to, &m, sizeof m);
    return well ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* under way; rank: of the block that they come to */
static struct box {
    struct map m;
    int at[3], rank;
    char *to;
    struct bar *bar;
} boxes[BOXES_MAX];
static int n_boxes, n_lost; /* lost: that came to a block which had ended */

static int box_bytes(const struct map *m) { return (int)(m->box[0] * m->box[1] * m->box[2]) * 2; }

static void begin_box(int rank, void *to, const void *map, int x, int y, int z, void *bar)
{
    struct box b = { .at = { x, y, z }, .rank = rank, .to = emu_at_rank(to, rank) };
    if (!b.to)
        emu_wrong("copies a box to block %d of the cluster, which has ended or is not there", rank);
    b.bar = bar_of(emu_at_rank(bar, rank));
    memcpy(&b.m, map, sizeof b.m);
    const int bytes = box_bytes(&b.m);
    const uint32_t at = emu_window(to);
    if (n_boxes == BOXES_MAX || !b.m.p || !(emu_is_param(map) || emu_on_stack(map)))
        emu_wrong("a copy of a box by a map that is no parameter, or was not made, or more than %d under way",
                  BOXES_MAX);
    if (b.bar->made_fence == fences[b.bar->maker])
        emu_wrong("an mbarrier counts bytes, with no fence behind its making");
    if (at % (uint32_t)(b.m.row_bytes * 8))
        emu_wrong("a swizzled box goes to %u of shared memory: use a multiple of %d", at, b.m.row_bytes * 8);
    emu_of_window(at, (size_t)bytes, "a box");
    for (uint32_t i = 0; i < (uint32_t)bytes / 16; i++) {
        struct piece *p = &piece[rank][(at - WINDOW) / 16 + i];
        if ((p->arriving || p->read) && !tired)
            emu_wrong("a copy begins at byte %u of shared memory, where %s under way", at - WINDOW + i * 16,
                      p->read ? "a product is" : "another copy is");
        p->arriving = 1;
        p->writer = 0;
    }
    memset(b.to, 0xff, (size_t)bytes);
    if (lose > 0 && !--lose)
        lose = -1;
    else
        boxes[n_boxes++] = b;
}

void emu_copy_box(void *to, const void *map, int x, int y, int z, void *bar)
{
    begin_box(emu_here.rank, to, map, x, y, z, bar);
}
void emu_copy_box_to(void *to, const void *map, int x, int y, int z, void *bar, int ranks)
{
    for (int r = 0; ranks >> r; r++)
        if (ranks >> r & 1)
            begin_box(r, to, map, x, y, z, bar);
}

/* Element (x, y, z) of the tensor, or zero. */
static uint16_t element(const struct map *m, int64_t x, int64_t y, int64_t z)
{
    uint16_t v = 0;
    if (x >= 0 && y >= 0 && z >= 0 && (uint64_t)x < m->size[0] && (uint64_t)y < m->size[1] &&
        (uint64_t)z < m->size[2]) {
        const char *from = m->p + z * (int64_t)m->stride[1] + y * (int64_t)m->stride[0] + x * 2;
        if (!emu_owns(from, 2))
            return 0xffff; /* NaN: no fiber runs that could be stopped */
        memcpy(&v, from, 2);
    }
    return v;
}

uint32_t emu_swizzle(uint32_t at, int row_bytes)
{
    return at ^ (at >> 7 & (uint32_t)(row_bytes / 16 - 1)) << 4;
}

static void arrive_box(int which)
{
    const struct box b = boxes[which];
    emu_here.rank = b.rank;
    const uint32_t base = emu_window(b.to);
    uint32_t at = base;
    n_lost += !emu_at_rank(b.to, b.rank);
    for (uint32_t z = 0; z < b.m.box[2]; z++)
        for (uint32_t y = 0; y < b.m.box[1]; y++)
            for (uint32_t x = 0; x < b.m.box[0]; x++, at += 2) {
                const uint16_t v = element(&b.m, b.at[0] + (int64_t)x, b.at[1] + (int64_t)y,
                                           b.at[2] + (int64_t)z);
                memcpy(b.to + (emu_swizzle(at, b.m.row_bytes) - base), &v, 2);
            }
    for (uint32_t i = 0; i < (at - base) / 16; i++)
        piece[b.rank][(base - WINDOW) / 16 + i].arriving = 0;
    boxes[which] = boxes[--n_boxes];
    b.bar->bytes -= (int)(at - base);
    look_at(b.bar);
}

/* ---- deferred operations ---- */
int emu_run_deferred(int backwards)
{
    if (backwards && emu_run_deferred_groups(backwards))
        return 1;
    if (n_boxes) {
        arrive_box(backwards ? n_boxes - 1 : 0);
        return 1;
    }
    return !backwards && emu_run_deferred_groups(backwards);
}

void emu_async_launch(void)
{
    const char *lost = getenv("SHARDLINE_EMU_LOST");
    lose = lost ? atoi(lost) : 0;
}

void emu_async_begin(void)
{
    lose = lose < 0 ? 0 : lose;
    tired = 0;
    memset(piece, 0, sizeof piece);
    memset(fences, 0, sizeof fences);
    n_bars = n_boxes = n_lost = 0;
    emu_groups_begin();
}

const char *emu_async_left(void)
{
    if (lose < 0)
        return NULL;
    if (n_boxes)
        return "it ends with copies under way";
    if (n_lost)
        return "copies came to a block of the cluster that had ended";
    for (int i = 0; i < n_bars; i++)
        if (bars[i].bytes)
            return "an mbarrier was told of other bytes than came";
    return emu_groups_left();
}

/* warp.c - what the lanes of a warp do together, all at once when the last of them has come; and copies to
 * shared memory. */
#include "tests/devices/emu/emu.h"

#include <string.h>

static float of_bf16(uint32_t pair, int upper)
{
    uint32_t w = upper ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &w, 4);
    return x;
}

/* D[16][8] = A[16][16] B[16][8] + C: with g = lane / 4, c = lane % 4
 *   a[0] = A[g][2c, 2c+1]   a[1] = A[g+8][2c ..]   a[2] = A[g][2c+8 ..]   a[3] = A[g+8][2c+8 ..]
 *   b[0] = B[2c, 2c+1][g]   b[1] = B[2c+8 ..][g]   d[0], d[1] = D[g][2c, 2c+1]   d[2], d[3] = D[g+8][2c ..]
 * (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Products of bf16 are exact in double, a sum of 16 of them
 * nearly so. */
static void run_mma(struct emu_lane *const lane[32])
{
    double a[16][16], b[16][8], d[16][8];
    for (int i = 0; i < 32; i++) {
        const struct emu_mma *m = (const struct emu_mma *)(uintptr_t)lane[i]->v;
        const int g = i / 4, c = i % 4 * 2;
        for (int h = 0; h < 2; h++) {
            a[g][c + h] = of_bf16(m->a[0], h), a[g + 8][c + h] = of_bf16(m->a[1], h);
            a[g][c + 8 + h] = of_bf16(m->a[2], h), a[g + 8][c + 8 + h] = of_bf16(m->a[3], h);
            b[c + h][g] = of_bf16(m->b[0], h), b[c + 8 + h][g] = of_bf16(m->b[1], h);
            d[g][c + h] = m->d[h], d[g + 8][c + h] = m->d[2 + h];
        }
    }
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                d[r][n] += a[r][k] * b[k][n];
    for (int i = 0; i < 32; i++) {
        const struct emu_mma *m = (const struct emu_mma *)(uintptr_t)lane[i]->v;
        for (int h = 0; h < 2; h++) {
            m->d[h] = (float)d[i / 4][i % 4 * 2 + h];
            m->d[2 + h] = (float)d[i / 4 + 8][i % 4 * 2 + h];
        }
    }
}

/* Matrix m of 8 x 8 halves: lane 8 m + r holds the address of its row r; lane i gets elements 2 (i mod 4)
 * and the next of row i / 4 (transposed: of column i / 4). */
static void run_ldmatrix(struct emu_lane *const lane[32], int trans)
{
    for (int m = 0; m < ((const struct emu_ldmatrix *)(uintptr_t)lane[0]->v)->n; m++) {
        uint16_t cell[8][8];
        for (int r = 0; r < 8; r++) {
            const void *row = ((const struct emu_ldmatrix *)(uintptr_t)lane[8 * m + r]->v)->row;
            if ((uintptr_t)row & 15)
                emu_wrong("ldmatrix of a row at %p, which is no multiple of 16, at %s:%d", row, lane[0]->file,
                          lane[0]->line);
            memcpy(cell[r], row, 16);
        }
        for (int i = 0; i < 32; i++) {
            const int r = i / 4, c = i % 4 * 2;
            const uint32_t lo = trans ? cell[c][r] : cell[r][c], hi = trans ? cell[c + 1][r] : cell[r][c + 1];
            ((const struct emu_ldmatrix *)(uintptr_t)lane[i]->v)->to[m] = lo | hi << 16;
        }
    }
}

static void run_shuffle(struct emu_lane *const lane[32], unsigned mask)
{
    for (int i = 0; i < 32; i++) {
        if (!lane[i])
            continue;
        const int by = lane[i]->other;
        int from = by & 31;
        if (lane[i]->kind == EMU_SHFL_UP)
            from = i - by >= 0 ? i - by : i;
        if (lane[i]->kind == EMU_SHFL_DOWN)
            from = i + by < 32 ? i + by : i;
        if (lane[i]->kind == EMU_SHFL_XOR)
            from = i ^ by;
        if (!(mask >> from & 1))
            emu_wrong("lane %d takes from lane %d, which is not among %08x, at %s:%d", i, from, mask,
                      lane[i]->file, lane[i]->line);
        lane[i]->result = lane[from]->v;
    }
}

static void run_vote(struct emu_lane *const lane[32])
{
    uint64_t all = 0;
    for (int i = 0; i < 32; i++)
        all |= (uint64_t)(lane[i] && lane[i]->v) << i;
    for (int i = 0; i < 32; i++)
        if (lane[i])
            lane[i]->result = all;
}

void emu_warp_run(struct emu_lane *const lane[32], unsigned mask)
{
    const enum emu_kind kind = lane[__builtin_ctz(mask)]->kind;
    if (kind >= EMU_LDMATRIX && mask != 0xffffffffu)
        emu_wrong("an operation of all lanes with %08x", mask);
    if (kind == EMU_MMA_BF16)
        run_mma(lane);
    else if (kind >= EMU_LDMATRIX)
        run_ldmatrix(lane, kind == EMU_LDMATRIX_TRANS);
    else if (kind == EMU_BALLOT)
        run_vote(lane);
    else if (kind != EMU_SYNC)
        run_shuffle(lane, mask);
}

/* ---- copies that happen later ---- */
enum { COPIES_MAX = 256 };
struct copies {
    int n, n_groups;
    struct {
        char *to;
        const char *from;
        int bytes, group;
    } copy[COPIES_MAX];
};
static struct copies copies[EMU_THREADS_MAX];

static struct copies *mine(void) { return &copies[emu_here.linear]; }

void emu_copies_forget(int threads)
{
    for (int t = 0; t < threads; t++)
        copies[t].n = copies[t].n_groups = 0;
}

void emu_copy(void *shared, const void *from, int bytes)
{
    struct copies *c = mine();
    if (((uintptr_t)shared | (bytes ? (uintptr_t)from : 0)) & 15 || bytes < 0 || bytes > 16)
        emu_wrong("cp.async of %d bytes from %p to %p: 16 bytes must lie at multiples of 16", bytes, from,
                  shared);
    if (c->n == COPIES_MAX)
        emu_wrong("more than %d copies under way", COPIES_MAX);
    emu_touch(shared, 16, 1);
    if (bytes)
        emu_touch(from, (size_t)bytes, 0);
    memset(shared, 0xff, 16);
    c->copy[c->n].to = shared;
    c->copy[c->n].from = from;
    c->copy[c->n].bytes = bytes;
    c->copy[c->n++].group = c->n_groups;
}

void emu_copy_commit(void) { mine()->n_groups++; }

void emu_copy_wait(int groups)
{
    struct copies *c = mine();
    int left = 0;
    for (int i = 0; i < c->n; i++) {
        if (c->copy[i].group >= c->n_groups - groups) {
            c->copy[left++] = c->copy[i];
            continue;
        }
        char sixteen[16] = { 0 };
        memcpy(sixteen, c->copy[i].from, (size_t)c->copy[i].bytes);
        emu_touch(c->copy[i].to, 16, 1);
        memcpy(c->copy[i].to, sixteen, 16);
    }
    c->n = left;
}

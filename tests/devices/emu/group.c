/* group.c - products of a warpgroup (wgmma): 4 warps at the same place, operands in shared memory by
 * descriptor, results in registers that belong to the product until they are waited for (PTX ISA,
 * "Asynchronous warpgroup level matrix instructions").
 *
 * A product reads its operands as late as allowed: in the wait for it, when no other fiber can run.
 * Until then its registers hold NaN. Sums as in
 * mma: exact products, added in double, rounded once. SHARDLINE_EMU_WGMMA=other: then to 20 bits; =wrong:
 * rows of B exchanged; =wide: where B has 256 columns. For tests of the self-check. */
#include "tests/devices/emu/emu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROUP = 128,
    GROUPS_MAX = EMU_THREADS_MAX / GROUP,
    PRODUCTS_MAX = 32,
    NUMBERS_MAX = 128,
    ROWS = 64,
    STEP = 16,
    COLS_MAX = 256
};

struct product {
    struct emu_product p;
    int batch;
};
static struct group {
    int n, turn; /* threads that have come; how often all had */
    enum emu_group_op op;
    int arg, line;
    struct emu_product first;
    /* registers, and what is in them while they hold NaN */
    float *acc[GROUP], kept[GROUP][NUMBERS_MAX];
    /* batch: of products, to be committed; wanted: batches before it must be complete; 0: no thread waits */
    int fenced, n_products, batch, wanted;
    struct product product[PRODUCTS_MAX];
} groups[GROUPS_MAX];
static enum { EXACT, OTHER, WRONG, WIDE } sums;

/* ---- operands ---- */
struct matrix {
    uint32_t begin, lead, stride;
    int row_bytes, across;
};

static struct matrix matrix_of(uint64_t d, int across)
{
    struct matrix m = { (uint32_t)(d & 0x3fff) << 4, (uint32_t)(d >> 16 & 0x3fff) << 4,
                        (uint32_t)(d >> 32 & 0x3fff) << 4, d >> 62 == 1 ? 128 : 64, across };
    if ((d >> 62 != 1 && d >> 62 != 2) || (d >> 49 & 7))
        emu_wrong("an operand without swizzle, with one of 32 bytes, or with a base offset: not emulated");
    return m;
}

/* Where element (i, k) lies: i of the rows of A or the columns of B. The canonical layouts, in bytes. */
static uint32_t place(const struct matrix *m, int i, int k)
{
    const uint32_t a = (uint32_t)i, b = (uint32_t)k, per = (uint32_t)m->row_bytes / 2;
    const uint32_t at = m->across ? a % per * 2 + a / per * m->lead + b % 8 * (uint32_t)m->row_bytes +
                                        b / 8 * m->stride
                                  : a % 8 * (uint32_t)m->row_bytes + a / 8 * m->stride + b * 2;
    return emu_swizzle(m->begin + at, m->row_bytes);
}

static double value(const struct matrix *m, int i, int k)
{
    uint16_t half;
    uint32_t word;
    float x;
    memcpy(&half, emu_of_window(place(m, i, k), 2, "an operand"), 2);
    word = (uint32_t)half << 16;
    memcpy(&x, &word, 4);
    return x;
}

static void mark(const struct matrix *m, int n, int begins)
{
    const uint32_t first = emu_window(emu_shared());
    for (int i = 0; i < n; i += m->across ? 8 : 1)
        for (int k = 0; k < STEP; k += m->across ? 1 : 8) {
            emu_of_window(place(m, i, k), 16, "an operand");
            emu_product_reads(place(m, i, k) - first, begins);
        }
}

static void mark_both(const struct emu_product *p, int begins)
{
    struct matrix a = matrix_of(p->a, p->a_across), b = matrix_of(p->b, p->b_across);
    mark(&a, ROWS, begins);
    mark(&b, p->cols, begins);
}

/* ---- a product ---- */
static float rounded(double d)
{
    float f = (float)d;
    uint32_t bits;
    if (sums != OTHER || !isfinite(f))
        return f;
    memcpy(&bits, &f, 4);
    bits &= ~0xfu;
    memcpy(&f, &bits, 4);
    return f;
}

static void run(struct group *g, const struct emu_product *p)
{
    static double a[ROWS][STEP], b[STEP][COLS_MAX];
    const struct matrix ma = matrix_of(p->a, p->a_across), mb = matrix_of(p->b, p->b_across);
    for (int k = 0; k < STEP; k++) {
        for (int i = 0; i < ROWS; i++)
            a[i][k] = value(&ma, i, k);
        for (int i = 0; i < p->cols; i++)
            b[k ^ (sums == WRONG || (sums == WIDE && p->cols == 256))][i] = value(&mb, i, k);
    }
    for (int t = 0; t < GROUP; t++)
        for (int i = 0; i < p->cols / 2; i++) {
            const int r = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, c = i / 4 * 8 + t % 4 * 2 + i % 2;
            double d = g->kept[t][i];
            for (int k = 0; k < STEP; k++)
                d += a[r][k] * b[k][c];
            g->kept[t][i] = rounded(d);
        }
    mark_both(p, 0);
}

static void begin(struct group *g)
{
    const struct emu_product *p = &g->first;
    if (!g->fenced)
        emu_wrong("a product of a group with no fence of the group before it");
    if (g->n_products == PRODUCTS_MAX || p->cols % 8 || p->cols < 8 || p->cols > COLS_MAX ||
        p->cols / 2 > NUMBERS_MAX)
        emu_wrong("a product of %d columns, or more than %d under way", p->cols, PRODUCTS_MAX);
    for (int t = 0; t < GROUP && !g->n_products; t++) {
        memcpy(g->kept[t], g->acc[t], (size_t)p->cols / 2 * 4);
        memset(g->acc[t], 0xff, (size_t)p->cols / 2 * 4);
    }
    mark_both(p, 1);
    g->product[g->n_products++] = (struct product){ *p, g->batch };
}

/* Products of batches before `wanted` are over. */
static void finish(struct group *g)
{
    int n = 0;
    const int cols = g->n_products ? g->product[0].p.cols : 0;
    while (n < g->n_products && g->product[n].batch < g->wanted)
        run(g, &g->product[n++].p);
    memmove(g->product, g->product + n, sizeof *g->product * (size_t)(g->n_products - n));
    g->n_products -= n;
    for (int t = 0; t < GROUP && n && !g->n_products; t++)
        memcpy(g->acc[t], g->kept[t], (size_t)cols / 2 * 4);
    g->wanted = 0;
}

/* ---- meeting ---- */
struct group_wait {
    struct group *g;
    int turn;
};
static int all_came(void *arg)
{
    const struct group_wait *w = arg;
    return w->g->turn != w->turn && !w->g->wanted;
}

static void all_here(struct group *g)
{
    g->n = 0;
    g->turn++;
    if (g->op == EMU_GROUP_FENCE)
        g->fenced = 1;
    if (g->op == EMU_GROUP_MMA)
        begin(g);
    if (g->op == EMU_GROUP_COMMIT)
        g->batch++;
    if (g->op == EMU_GROUP_WAIT) {
        g->fenced = 0;
        if (g->n_products && g->product[0].batch < g->batch - g->arg)
            g->wanted = g->batch - g->arg;
    }
}

void emu_group(enum emu_group_op op, int arg, const struct emu_product *p, const char *file, int line)
{
    const int me = emu_here.linear % GROUP;
    struct group *g = &groups[emu_here.linear / GROUP];
    struct group_wait w = { g, g->turn };
    if (!g->n) {
        g->op = op, g->arg = arg, g->line = line;
        if (p)
            g->first = *p;
    }
    if (g->op != op || g->arg != arg || g->line != line || (p && (p->a != g->first.a || p->b != g->first.b)))
        emu_wrong("lanes of a group of warps at different places, or with other operands: %s:%d and line %d",
                  file, line, g->line);
    if (p) {
        if (g->n_products && g->acc[me] != p->acc)
            emu_wrong("two sums of one group under way: not emulated");
        g->acc[me] = p->acc;
    }
    if (++g->n == GROUP)
        all_here(g);
    emu_wait_for(all_came, &w, "an operation of a group of warps", file, line);
}

/* ---- for async.c ---- */
int emu_run_deferred_groups(int backwards)
{
    for (int i = 0; i < GROUPS_MAX; i++) {
        struct group *g = &groups[backwards ? GROUPS_MAX - 1 - i : i];
        if (g->wanted) {
            emu_here.rank = emu_rank_of((int)(g - groups) * GROUP);
            finish(g);
            return 1;
        }
    }
    return 0;
}

void emu_groups_begin(void)
{
    const char *how = getenv("SHARDLINE_EMU_WGMMA");
    sums = !how || !strcmp(how, "exact") ? EXACT
           : !strcmp(how, "other")       ? OTHER
           : !strcmp(how, "wide")        ? WIDE
                                         : WRONG;
    for (int i = 0; i < GROUPS_MAX; i++) {
        struct group *g = &groups[i];
        g->n = g->turn = g->fenced = g->n_products = g->batch = g->wanted = 0;
    }
}

const char *emu_groups_left(void)
{
    for (int i = 0; i < GROUPS_MAX; i++)
        if (groups[i].n_products || groups[i].n)
            return "it ends with products under way";
    return NULL;
}

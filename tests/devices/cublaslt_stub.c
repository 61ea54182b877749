/* cublaslt_stub.c - a library with the calls of lt_api.h over the host's memory, for cuda_lt_test: plain
 * loops, and words on what was asked of it.
 *
 * Its list of algorithms begins with some that must not be taken. Every algorithm adds in an order of its
 * own (blocks of `tile` elements of the contraction), so that a choice that depends on the number of rows
 * shows in the bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "kernels/cuda/lt/lt_api.h"
#include "tests/devices/cublaslt_stub.h"

struct stub_desc {
    int compute, trans[2];
};
struct stub_layout {
    int type, batch;
    int64_t rows, cols, ld, step;
};
struct stub_pref {
    uint64_t bytes;
    uint32_t reduction, align[4];
};

struct stub_seen stub_seen;
int stub_offers = 5, stub_slow;
static int handles;

#define EXPORT(name) int cublasLt##name
size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void) { return 990000; }

#define X(name, args) EXPORT(name) args;
LT_LIST(X)
#undef X

EXPORT(Create)(void **handle) { return *handle = &handles, stub_seen.open++, 0; }
EXPORT(Destroy)(void *handle) { return handle != &handles || (stub_seen.open--, 0); }

static int made(void **out, size_t bytes) { return (*out = calloc(1, bytes)) ? (stub_seen.objects++, 0) : 1; }
static int gone(void *p) { return free(p), stub_seen.objects--, 0; }

EXPORT(MatmulDescCreate)(void **desc, int compute, int scale)
{
    if (made(desc, sizeof(struct stub_desc)) || scale != LT_F32)
        return 1;
    ((struct stub_desc *)*desc)->compute = compute;
    return 0;
}
EXPORT(MatmulDescDestroy)(void *desc) { return gone(desc); }
EXPORT(MatmulDescSetAttribute)(void *desc, int what, const void *value, size_t bytes)
{
    return bytes != 4 || what < LT_DESC_TRANS_A || what > LT_DESC_TRANS_B ||
           (memcpy(&((struct stub_desc *)desc)->trans[what - LT_DESC_TRANS_A], value, 4), 0);
}

EXPORT(MatrixLayoutCreate)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    if (made(layout, sizeof(struct stub_layout)))
        return 1;
    *(struct stub_layout *)*layout = (struct stub_layout){ type, 1, (int64_t)rows, (int64_t)cols, ld, 0 };
    return ld < (int64_t)rows;
}
EXPORT(MatrixLayoutDestroy)(void *layout) { return gone(layout); }
EXPORT(MatrixLayoutSetAttribute)(void *layout, int what, const void *value, size_t bytes)
{
    struct stub_layout *l = layout;
    if (what == LT_LAYOUT_BATCH && bytes == 4)
        return memcpy(&l->batch, value, 4), 0;
    return what != LT_LAYOUT_STEP || bytes != 8 || (memcpy(&l->step, value, 8), 0);
}

EXPORT(MatmulPreferenceCreate)(void **pref) { return made(pref, sizeof(struct stub_pref)); }
EXPORT(MatmulPreferenceDestroy)(void *pref) { return gone(pref); }
EXPORT(MatmulPreferenceSetAttribute)(void *pref, int what, const void *value, size_t bytes)
{
    struct stub_pref *p = pref;
    if (what == LT_PREF_WORKSPACE && bytes == 8)
        return memcpy(&p->bytes, value, 8), 0;
    if (what == LT_PREF_REDUCTION && bytes == 4)
        return memcpy(&p->reduction, value, 4), 0;
    return what < LT_PREF_ALIGN_A || what > LT_PREF_ALIGN_D || bytes != 4 ||
           (memcpy(&p->align[what - LT_PREF_ALIGN_A], value, 4), 0);
}

/* data[0] id, [1] tile, [2] split-K, [3] reduction scheme. The best fit for few columns adds otherwise than
 * the one for many. */
EXPORT(MatmulAlgoGetHeuristic)
(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int wanted, struct lt_found *found,
 int *n_found)
{
    const uint64_t tile = ((struct stub_layout *)d)->cols <= 64 ? 3 : 5;
    const struct stub_pref *p = pref;
    const struct lt_found all[] = {
        /* splits the contraction */
        { { { 1, tile, 4, 0 } }, 0, 0, 0, { 0 } },
        /* adds in another buffer */
        { { { 2, tile, 1, 2 } }, 0, 0, 0, { 0 } },
        /* needs more memory than there is */
        { { { 3, tile, 1, 0 } }, p->bytes + 1, 0, 0, { 0 } },
        /* does not run here */
        { { { 4, tile, 1, 0 } }, 0, 7, 0, { 0 } },
        { { { 5, tile, 1, 0 } }, 0, 0, 0, { 0 } },
        { { { 6, 7, 1, 0 } }, 0, 0, 0, { 0 } },
    };
    (void)desc, (void)a, (void)b, (void)c;
    stub_seen.lists++;
    stub_seen.compute = ((struct stub_desc *)desc)->compute;
    stub_seen.align = p->align[0];
    stub_seen.reduction = p->reduction;
    if (handle != &handles)
        return 1;
    for (*n_found = 0; *n_found < stub_offers && *n_found < wanted; ++*n_found)
        found[*n_found] = all[*n_found];
    return 0;
}

EXPORT(MatmulAlgoConfigGetAttribute)
(const struct lt_algo *algo, int what, void *value, size_t bytes, size_t *written)
{
    static const int at[LT_ALGO_CONFIGS] = {
        [LT_ALGO_ID] = 0,        [LT_ALGO_TILE] = 1,    [LT_ALGO_SPLIT_K] = 2,
        [LT_ALGO_REDUCTION] = 3, [LT_ALGO_SWIZZLE] = 4, [LT_ALGO_OPTION] = 5,
        [LT_ALGO_STAGES] = 6,    [LT_ALGO_INNER] = 7,   [LT_ALGO_CLUSTER] = 7
    };
    const size_t size = what >= LT_ALGO_INNER ? 2 : 4;
    *written = size;
    return bytes != size || (memcpy(value, &algo->data[at[what]], size), 0);
}

static float element(const struct stub_layout *l, const char *p, int64_t row, int64_t col, int batch)
{
    const int64_t at = row + col * l->ld + batch * l->step;
    float v;
    if (l->type == LT_F32)
        return memcpy(&v, p + 4 * at, 4), v;
    uint16_t h;
    memcpy(&h, p + 2 * at, 2);
    uint32_t bits = (uint32_t)h << 16;
    return memcpy(&v, &bits, 4), v;
}

EXPORT(Matmul)
(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb,
 const void *beta, const void *c, void *lc, void *d, void *ld, const struct lt_algo *algo, void *workspace,
 size_t bytes, void *stream)
{
    const struct stub_desc *how = desc;
    const struct stub_layout *y = ld;
    const int64_t inner = how->trans[0] ? ((struct stub_layout *)la)->rows : ((struct stub_layout *)la)->cols,
                  block = (int64_t)algo->data[1];
    const int bad = handle != &handles || !workspace || !bytes || *(const float *)alpha != 1 || c != d ||
                    lc != ld || algo->data[0] < 5;
    stub_seen.calls++;
    stub_seen.cols = y->cols;
    stub_seen.stream = stream;
    if (bad)
        return 1;
    if (algo->data[0] == 5 && stub_slow)
        nanosleep(&(struct timespec){ 0, stub_slow * 1000000L }, NULL);
    for (int n = 0; n < y->batch; n++)
        for (int64_t j = 0; j < y->cols; j++)
            for (int64_t i = 0; i < y->rows; i++) {
                float sum = 0, *to = (float *)d + i + j * y->ld + n * y->step;
                for (int64_t k0 = 0; k0 < inner; k0 += block) {
                    float part = 0;
                    for (int64_t k = k0; k < k0 + block && k < inner; k++)
                        part += (how->trans[0] ? element(la, a, k, i, n) : element(la, a, i, k, n)) *
                                (how->trans[1] ? element(lb, b, j, k, n) : element(lb, b, k, j, n));
                    sum += part;
                }
                *to = *(const float *)beta == 1 ? *to + sum : sum;
            }
    return 0;
}

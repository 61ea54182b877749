/* codes_choose.c - the functions that compute with quantised panels on this machine, and their self-test at
 * start. */
#include <stdlib.h>
#include <string.h>
#include "kernels/codes/codes_core.h"

enum { N = 33, K = 280, ROWS = 9, BYTES = 1 << 16 };

/* What a self-test multiplies. */
struct trial {
    uint8_t code[N * K], panels[BYTES];
    uint16_t x[ROWS * K];
    float scale[N * K / 32 + N], y[2][ROWS * N];
};

static void fill_trial(struct trial *t)
{
    uint32_t state = 1;
    for (int i = 0; i < N * K; i++) /* no NaN of e4m3, whose bits need not agree */
        t->code[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24 & 0xf7);
    for (int i = 0; i < ROWS * K; i++) {
        state = state * 1664525u + 1013904223u;
        t->x[i] = (uint16_t)(state >> 31 << 15 | (100 + (state >> 16 & 31)) << 7 | (state >> 8 & 127));
    }
    for (size_t i = 0; i < sizeof t->scale / sizeof *t->scale; i++)
        t->scale[i] = (float)(1 + i % 7) / 64;
}

/* Does a form of codes give the same bits by both? */
static int is_same(struct dev *d, struct trial *t, const struct codes_ops *ops, const struct panel_codes *c)
{
    const struct leaves l = leaves_of(K, 2, 0, 2);
    const struct panels w = {
        .p = t->panels, .n = N, .k = K, .dt = DT_BF16, .leaves = l, .kind = PANEL_CODES, .codes = c
    };
    const struct codes_source s = {
        .n = N, .code = t->code, .code_ld = K, .scale = t->scale, .scale_rows = 1, .scale_ld = (K + 31) / 32
    };
    const struct codes_ops *both[2] = { &codes_portable, ops };
    codes_pack(d, &w, 1, &s);
    for (int i = 0; i < 2; i++)
        for (int m = 1; m <= ROWS; m += ROWS - 1)
            codes_product(d, both[i], mat_of(t->y[i], DT_F32, m, N, N),
                          listed_of(mat_of(t->x, DT_BF16, m, K, K), NULL), NULL, &w);
    return !memcmp(t->y[0], t->y[1], sizeof t->y[0]);
}

/* Integer codes in both classes, and floating-point ones. */
static int is_right(struct dev *d, const struct codes_ops *ops)
{
    static const struct panel_codes forms[] = { { CODE_S8, CODES_GRP, CODE_SCALE_F32, 0, 0, 32, 0 },
                                                { CODE_S8, CODES_INT, CODE_SCALE_F32, 0, 0, 32, 0 },
                                                { CODE_E4M3, CODES_DEQ, CODE_SCALE_F32, 0, 0, 0, 0 } };
    struct trial *t = dev_alloc(d, MEM_WORK, sizeof *t);
    int same = t != NULL;
    if (t)
        fill_trial(t);
    for (size_t i = 0; same && i < sizeof forms / sizeof *forms; i++)
        same = is_same(d, t, ops, &forms[i]);
    dev_free(d, t);
    return same;
}

const struct codes_ops *codes_choose(struct dev *d, const char *isa)
{
#if defined(__x86_64__)
    static const struct {
        const char *isa;
        const struct codes_ops *ops;
    } best[] = { { "avx512bf16", &codes_avx512vnni },
                 { "avx512bf16", &codes_avx2 },
                 { "avx512", &codes_avx2 },
                 { "avx2", &codes_avx2 } };
    for (size_t i = 0; i < sizeof best / sizeof *best; i++)
        if (!strcmp(isa, best[i].isa) && best[i].ops->here() && is_right(d, best[i].ops))
            return best[i].ops;
#endif
    (void)d, (void)isa;
    return &codes_portable;
}

/* rows_kv_test.c - rope_store and latent_k into pages of codes (kernels/kv_codes.h) equal their definitions
 * in every CPU class: what would be rounded to the dtype is rounded to the code, once. */
#include "tests/test.h"

#include "tests/unit/kernels/rows_rig.h"

static float turned(const float *x, int i, int half, const float *c, const float *s)
{
    const int k = i % half;
    const float a = x[i] * c[k], b = x[i < half ? i + half : i - half] * s[k];
    return i < half ? a - b : a + b;
}

/* n components as codes, `step` apart, and their scale. */
static void put_plain(char *codes, float *scale, enum kv_kind kv, int64_t step, const float *x, int n)
{
    float top = 0;
    for (int i = 0; i < n; i++)
        top = top < FN_INF && !(fabsf(x[i]) <= top) ? fabsf(x[i]) : top;
    const float by = top < FN_INF ? top / 127 : FN_NAN;
    if (kv == KV_INT8)
        *scale = by;
    for (int i = 0; i < n; i++) {
        const uint16_t half = fn_to_bf16(x[i]);
        if (kv == KV_BF16)
            memcpy(codes + 2 * i * step, &half, 2);
        else if (kv == KV_FP8)
            codes[i * step] = (char)kv_to_fp8(x[i]);
        else
            codes[i * step] = (char)(int8_t)(by > 0 ? fminf(127, fmaxf(-127, rintf(x[i] / by))) : 0);
    }
}

enum { HEADS = 4, KVS = 2, HD = 24, ROWS = 70, POS = 30, PAGES = 2, OFF = 256 };

/* Rows of very different sizes; one of zeros, one with a NaN. */
static void vary(struct mat m)
{
    for (int64_t r = 0; r < m.rows; r++)
        for (int64_t c = 0; c < m.cols; c++)
            ((float *)m.p)[r * m.ld + c] *= ldexpf(1, (int)(r % 23) - 11) * (r != 7);
    ((float *)m.p)[9 * m.ld + m.cols - 3] = FN_NAN;
}

static void rope_case(struct rig *r, enum dtype dt, enum kv_kind kv)
{
    const int half = HD / 2, width = (HEADS + 2 * KVS) * HD, code = (int)kv_code_size(kv, dt);
    struct mat given = new_mat(DT_F32, ROWS, width, 8), tab = new_mat(DT_F32, 2, 400 * half, 9);
    const float *cs = tab.p, *sn = cs + tab.ld;
    char *want[PAGES], *got[PAGES];
    struct attn_seq seq = { 0, ROWS, POS, got };
    struct attn a = { .n_heads = HEADS,
                      .n_kv = KVS,
                      .head_dim = HD,
                      .dt = dt,
                      .page_off = OFF,
                      .n_seq = 1,
                      .seq = &seq,
                      .kv = kv };
    const size_t head = attn_head_bytes(&a), bytes = OFF + KVS * head;

    vary(given);
    for (int p = 0; p < PAGES; p++)
        want[p] = calloc(1, bytes), got[p] = malloc(bytes);
    for (int i = 0; i < ROWS; i++)
        for (int h = 0; h < KVS; h++) {
            const int64_t p = POS + i, slot = p % 64;
            const float *k = (float *)given.p + i * given.ld + (HEADS + h) * HD, *v = k + KVS * HD;
            char *at = want[p / 64] + OFF + h * head, *by = at + 2 * 64 * HD * code;
            float x[HD];
            for (int e = 0; e < HD; e++)
                x[e] = turned(k, e, half, cs + p * half, sn + p * half);
            put_plain(at + slot * code, (float *)(void *)by + slot, kv, 64, x, HD);
            put_plain(at + (64 + slot) * HD * code, (float *)(void *)by + 64 + slot, kv, 1, v, HD);
        }
    EACH_DEV(r, d)
    {
        struct mat q = new_mat(dt, ROWS, HEADS * HD, 0), qkv = new_mat(DT_F32, ROWS, width, 8);
        vary(qkv);
        for (int p = 0; p < PAGES; p++)
            memset(got[p], 0, bytes);
        KERNEL(d, rope_store, &a, q, qkv, NULL, cs, sn);
        for (int p = 0; p < PAGES; p++)
            CHECK_SAME(got[p], want[p], bytes);
        FREE(q, qkv);
    }
    for (int p = 0; p < PAGES; p++)
        free(want[p]), free(got[p]);
    FREE(given, tab);
}

TEST(rope_rounds_keys_and_values_to_codes_once)
{
    struct rig *r = rig_open();
    for (int kv = KV_BF16; kv <= KV_INT8; kv++) {
        rope_case(r, DT_F32, (enum kv_kind)kv);
        rope_case(r, DT_BF16, (enum kv_kind)kv);
    }
    rig_close(r);
}

enum { LATENT = 36, TURNED = 10 };

static void latent_case(struct rig *r, enum dtype dt, enum kv_kind kv)
{
    struct mat c = new_mat(dt, ROWS, LATENT, 5), given = new_mat(DT_F32, ROWS, TURNED, 6),
               tab = new_mat(DT_F32, 2, 400 * TURNED / 2, 9);
    const float *cs = tab.p, *sn = cs + tab.ld;
    char *want[PAGES], *got[PAGES];
    struct attn_seq seq = { 0, ROWS, POS, got };
    struct attn a = { .n_heads = 3,
                      .n_kv = 1,
                      .head_dim = LATENT + TURNED,
                      .v_dim = LATENT,
                      .dt = dt,
                      .page_off = OFF,
                      .n_seq = 1,
                      .seq = &seq,
                      .kv = kv };
    const size_t bytes = OFF + attn_head_bytes(&a), code = kv_code_size(kv, dt);

    vary(given);
    for (int p = 0; p < PAGES; p++)
        want[p] = calloc(1, bytes), got[p] = malloc(bytes);
    for (int i = 0; i < ROWS; i++) {
        const int64_t p = POS + i, slot = p % 64;
        const float *x = (float *)given.p + i * given.ld, *ct = cs + p * TURNED / 2,
                    *st = sn + p * TURNED / 2;
        float key[LATENT + TURNED];
        for (int e = 0; e < LATENT; e++)
            key[e] = elem(c, i, e);
        for (int e = 0; e < TURNED; e += 2) {
            key[LATENT + e] = x[e] * ct[e / 2] - x[e + 1] * st[e / 2];
            key[LATENT + e + 1] = x[e + 1] * ct[e / 2] + x[e] * st[e / 2];
        }
        char *at = want[p / 64] + OFF;
        put_plain(at + (size_t)slot * code, (float *)(void *)(at + 64 * (LATENT + TURNED) * code) + slot, kv,
                  64, key, LATENT + TURNED);
    }
    EACH_DEV(r, d)
    {
        struct mat raw = new_mat(DT_F32, ROWS, TURNED, 6);
        vary(raw);
        for (int p = 0; p < PAGES; p++)
            memset(got[p], 0, bytes);
        KERNEL(d, latent_k, &a, c, raw, cs, sn);
        for (int p = 0; p < PAGES; p++)
            CHECK_SAME(got[p], want[p], bytes);
        FREE(raw);
    }
    for (int p = 0; p < PAGES; p++)
        free(want[p]), free(got[p]);
    FREE(c, given, tab);
}

TEST(latent_keys_are_rounded_to_codes_with_one_scale)
{
    struct rig *r = rig_open();
    for (int kv = KV_BF16; kv <= KV_INT8; kv++) {
        latent_case(r, DT_F32, (enum kv_kind)kv);
        latent_case(r, DT_BF16, (enum kv_kind)kv);
    }
    rig_close(r);
}

/* gguf_block_encode_k.c - Q4_K, Q5_K, Q6_K: super-blocks of 256 values. See gguf_block_encode.h.
 *
 * Q4_K and Q5_K: 8 groups of 32 values, each with a scale and a minimum of six bits: d sc q - dmin m. Q6_K:
 * 16 groups of 16 with a scale of eight bits: d sc (q - 32). A group's scale is searched: a number of steps
 * around the one that the largest value gives, each with its least squares, and the one with the least
 * weighted error is taken. The order of every sum is ggml's, because it decides between two steps. */
#include "format/gguf/gguf_block_encode.h"

#include <math.h>
#include <string.h>

#define VALUES 256
#define GROUP 32 /* of Q4_K and Q5_K */
#define GROUPS (VALUES / GROUP)
#define SMALL 16 /* group of Q6_K */
#define LEAST_SCALE 1e-15f

/* The nearest integer, ties to even, by an addition that leaves it in the low bits. Beyond 2^22 the result is
 * as wrong as ggml's. */
static int nearest(float x)
{
    float moved = x + 12582912.f;
    int bits;
    memcpy(&bits, &moved, sizeof bits);
    return (bits & 0x007fffff) - 0x00400000;
}

static int clamp(int x, int least, int most) { return x < least ? least : x > most ? most : x; }

static int put_f16(unsigned char *out, float x)
{
    uint16_t bits = gguf_f16_bits(x);
    out[0] = (unsigned char)bits;
    out[1] = (unsigned char)(bits >> 8);
    return (bits & 0x7c00) == 0x7c00 ? -1 : 0;
}

static float get_f16(const unsigned char *in) { return gguf_f16_value((uint16_t)(in[0] | in[1] << 8)); }

/* ---- a scale and a minimum ---- */

/* A group's weights and their sums. */
struct group {
    const float *x;
    float weight[GROUP], sum_w, sum_x, min, max;
};

static void weigh(struct group *g, const float *x)
{
    float squares = 0;
    g->x = x;
    for (int i = 0; i < GROUP; i++)
        squares += x[i] * x[i];
    float mean = sqrtf(squares / GROUP);
    for (int i = 0; i < GROUP; i++)
        g->weight[i] = mean + fabsf(x[i]);

    g->min = g->max = x[0];
    g->sum_w = g->weight[0];
    g->sum_x = g->sum_w * x[0];
    for (int i = 1; i < GROUP; i++) {
        g->min = x[i] < g->min ? x[i] : g->min;
        g->max = x[i] > g->max ? x[i] : g->max;
        g->sum_w += g->weight[i];
        g->sum_x += g->weight[i] * x[i];
    }
    g->min = g->min > 0 ? 0 : g->min;
}

static float weighted_error(const struct group *g, const unsigned char *code, float scale, float min)
{
    float error = 0;
    for (int i = 0; i < GROUP; i++) {
        float off = scale * (float)code[i] + min - g->x[i];
        error += g->weight[i] * (off * off);
    }
    return error;
}

/* The scale and minimum of least squares for these codes. 0: all codes are the same. */
static int least_squares(const struct group *g, const unsigned char *code, float *scale, float *min)
{
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < GROUP; i++) {
        float l = (float)code[i];
        sum_l += g->weight[i] * l;
        sum_l2 += g->weight[i] * l * l;
        sum_xl += g->weight[i] * l * g->x[i];
    }
    float det = g->sum_w * sum_l2 - sum_l * sum_l;
    if (!(det > 0))
        return 0;
    *scale = (g->sum_w * sum_xl - g->sum_x * sum_l) / det;
    *min = (sum_l2 * g->sum_x - sum_l * sum_xl) / det;
    if (*min > 0) {
        *min = 0;
        *scale = sum_xl / sum_l2;
    }
    return 1;
}

static void round_codes(const struct group *g, float inverse, int top, unsigned char *code)
{
    for (int i = 0; i < GROUP; i++)
        code[i] = (unsigned char)clamp(nearest(inverse * (g->x[i] - g->min)), 0, top);
}

/* Searches a group's scale and minimum for codes 0 .. top: n + 1 steps of 0.1 from `first` on. Returns the
 * scale; *min: what is subtracted. */
static float search_group(const float *x, int top, float first, int n, unsigned char *code, float *min)
{
    struct group g;
    unsigned char tried[GROUP];
    weigh(&g, x);
    *min = -g.min;
    memset(code, 0, GROUP);
    if (g.max == g.min)
        return 0;

    float scale = 1 / ((float)top / (g.max - g.min));
    round_codes(&g, (float)top / (g.max - g.min), top, code);
    float best = weighted_error(&g, code, scale, g.min);
    for (int step = 0; step <= n; step++) {
        float s, m;
        round_codes(&g, (first + 0.1f * (float)step + (float)top) / (g.max - g.min), top, tried);
        if (!least_squares(&g, tried, &s, &m))
            continue;
        float error = weighted_error(&g, tried, s, m);
        if (error < best) {
            memcpy(code, tried, GROUP);
            best = error;
            scale = s;
            g.min = m; /* further steps begin there */
        }
    }
    *min = -g.min;
    return scale;
}

/* Six bits each: the first four groups' in bytes j and j + 4, the others' low bits in byte j + 4 and high
 * bits above those of groups j - 4. */
static void put_six(unsigned char *packed, int j, int scale, int min)
{
    if (j < 4) {
        packed[j] = (unsigned char)scale;
        packed[j + 4] = (unsigned char)min;
        return;
    }
    packed[j + 4] = (unsigned char)((scale & 15) | (min & 15) << 4);
    packed[j - 4] |= (unsigned char)(scale >> 4 << 6);
    packed[j] |= (unsigned char)(min >> 4 << 6);
}

/* ggml keeps these in a byte before it limits them: a negative scale becomes the largest. */
static int six_bits(float x)
{
    int i = (unsigned char)nearest(x);
    return i > 63 ? 63 : i;
}

/* Codes 0 .. top of a super-block in code[256]; d, dmin and the packed scales in head[16]. */
static int encode_affine(const float *x, int top, float first, int n, unsigned char *head,
                         unsigned char *code)
{
    float scale[GROUPS], min[GROUPS], most_scale = 0, most_min = 0;
    for (int j = 0; j < GROUPS; j++) {
        scale[j] = search_group(x + GROUP * j, top, first, n, code + GROUP * j, &min[j]);
        most_scale = scale[j] > most_scale ? scale[j] : most_scale;
        most_min = min[j] > most_min ? min[j] : most_min;
    }

    int bad = put_f16(head, most_scale / 63) + put_f16(head + 2, most_min / 63);
    float to_scale = most_scale > 0 ? 63 / most_scale : 0, to_min = most_min > 0 ? 63 / most_min : 0;
    int packed_scale[GROUPS], packed_min[GROUPS];
    for (int j = 0; j < GROUPS; j++) {
        packed_scale[j] = six_bits(to_scale * scale[j]);
        packed_min[j] = six_bits(to_min * min[j]);
        put_six(head + 4, j, packed_scale[j], packed_min[j]);
    }

    /* the codes that fit the scale and minimum as they are stored */
    for (int j = 0; j < GROUPS; j++) {
        float d = get_f16(head) * (float)packed_scale[j], m = get_f16(head + 2) * (float)packed_min[j];
        for (int i = GROUP * j; d != 0 && i < GROUP * (j + 1); i++)
            code[i] = (unsigned char)clamp(nearest((x[i] + m) / d), 0, top);
    }
    return bad ? -1 : 0;
}

/* Low nibbles of values i of 64, high ones of values i + 32. */
static void put_nibbles(const unsigned char *code, unsigned char *out)
{
    for (int at = 0; at < VALUES; at += 64)
        for (int i = 0; i < 32; i++)
            *out++ = (unsigned char)((code[at + i] & 15) | (code[at + i + 32] & 15) << 4);
}

int gguf_encode_q4_k(const float x[256], unsigned char *out)
{
    unsigned char code[VALUES];
    int rc = encode_affine(x, 15, -1.f, 20, out, code);
    put_nibbles(code, out + 16);
    return rc;
}

int gguf_encode_q5_k(const float x[256], unsigned char *out)
{
    unsigned char code[VALUES];
    int rc = encode_affine(x, 31, -0.5f, 15, out, code);
    memset(out + 16, 0, 32);
    for (int i = 0; i < VALUES; i++) /* bit j of byte i: the fifth one of value i of group j */
        out[16 + i % GROUP] |= (unsigned char)(code[i] >> 4 << i / GROUP);
    put_nibbles(code, out + 48);
    return rc;
}

/* ---- a scale alone ---- */

/* Sums of the codes of a step: with x, and with themselves; weights are x squared. */
struct sums {
    float xl, l2;
};

static struct sums try_scale(const float *x, float inverse)
{
    struct sums s = { 0, 0 };
    for (int i = 0; i < SMALL; i++) {
        float l = (float)clamp(nearest(inverse * x[i]), -32, 31), w = x[i] * x[i];
        s.xl += w * x[i] * l;
        s.l2 += w * l * l;
    }
    return s;
}

/* Searches the scale of 16 values for codes -32 .. 31, which it leaves in code, 32 added. */
static float search_scale(const float *x, unsigned char *code)
{
    float largest = 0;
    for (int i = 0; i < SMALL; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    memset(code, 0, SMALL);
    if (fabsf(largest) < LEAST_SCALE)
        return 0;

    float taken = -32 / largest;
    struct sums s = try_scale(x, taken);
    float scale = s.l2 != 0 ? s.xl / s.l2 : 0, best = scale * s.xl;
    for (int step = -9; step <= 9; step++) {
        float inverse = -(32 + 0.1f * (float)step) / largest;
        if (step == 0)
            continue;
        s = try_scale(x, inverse);
        if (s.l2 > 0 && s.xl * s.xl > best * s.l2) {
            taken = inverse;
            scale = s.xl / s.l2;
            best = scale * s.xl;
        }
    }
    for (int i = 0; i < SMALL; i++)
        code[i] = (unsigned char)(32 + clamp(nearest(taken * x[i]), -32, 31));
    return scale;
}

/* 128 bytes of low nibbles, 64 of the two high bits, 16 scales, f16 d. */
static void put_sixes(const unsigned char *code, unsigned char *low, unsigned char *high)
{
    for (int at = 0; at < VALUES; at += 128, low += 64, high += 32)
        for (int i = 0; i < 32; i++) {
            const unsigned char *c = code + at + i;
            low[i] = (unsigned char)((c[0] & 15) | (c[64] & 15) << 4);
            low[i + 32] = (unsigned char)((c[32] & 15) | (c[96] & 15) << 4);
            high[i] = (unsigned char)(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
        }
}

int gguf_encode_q6_k(const float x[256], unsigned char *out)
{
    unsigned char code[VALUES], *scales = out + 192, *head = out + 208;
    float scale[VALUES / SMALL], largest = 0;
    for (int j = 0; j < VALUES / SMALL; j++) {
        scale[j] = search_scale(x + SMALL * j, code + SMALL * j);
        largest = fabsf(scale[j]) > fabsf(largest) ? scale[j] : largest;
    }
    memset(out, 0, 210);
    if (fabsf(largest) < LEAST_SCALE)
        return 0;

    float inverse = -128.f / largest;
    int rc = put_f16(head, 1 / inverse);
    for (int j = 0; j < VALUES / SMALL; j++) {
        int whole = nearest(inverse * scale[j]);
        scales[j] = (unsigned char)(whole > 127 ? 127 : whole);
        float d = get_f16(head) * (float)(signed char)scales[j];
        for (int i = SMALL * j; d != 0 && i < SMALL * (j + 1); i++)
            code[i] = (unsigned char)(clamp(nearest(x[i] / d), -32, 31) + 32);
    }
    put_sixes(code, out, out + 128);
    return rc;
}

/* b12.c - packs weights in 12 bits, and decodes them in plain C: the definition (layout: b12.h). */
#include "kernels/gemm/b12.h"

#include <string.h>

enum { VALUES = 128, TABLE = 8, NO_CODE = 0xff };

/* One leaf of a panel. */
struct leaf {
    const char *const *w; /* rows */
    int n;
    int64_t at, n_elems; /* in a row */
};

static inline unsigned element(const struct leaf *l, int output, int64_t e)
{
    uint16_t h;
    memcpy(&h, l->w[output] + 2 * (l->at + e), 2);
    return h;
}

/* ---- the table ---- */
/* Four counters a value: equal neighbours do not wait for each other. */
static void count_values(const struct leaf *l, uint32_t count[VALUES])
{
    uint32_t part[4][VALUES] = { 0 };
    for (int o = 0; o < l->n; o++) {
        int64_t e = 0;
        for (; e + 4 <= l->n_elems; e += 4) {
            uint64_t four;
            memcpy(&four, l->w[o] + 2 * (l->at + e), 8);
            part[0][four >> 8 & 127]++;
            part[1][four >> 24 & 127]++;
            part[2][four >> 40 & 127]++;
            part[3][four >> 56 & 127]++;
        }
        for (; e < l->n_elems; e++)
            part[0][element(l, o, e) >> 8 & 127]++;
    }
    for (int v = 0; v < VALUES; v++)
        count[v] = part[0][v] + part[1][v] + part[2][v] + part[3][v];
}

/* Fills the table, and code by value; returns the elements without one. */
static int64_t choose_table(const struct leaf *l, unsigned char table[TABLE], unsigned char code[VALUES])
{
    uint32_t count[VALUES];
    int64_t left = l->n * l->n_elems;
    count_values(l, count);
    memset(table, 0, TABLE);
    memset(code, NO_CODE, VALUES);
    for (int i = 0; i < TABLE; i++) {
        int best = VALUES - 1;
        for (int v = VALUES - 2; v >= 0; v--)
            best = count[v] > count[best] ? v : best;
        if (count[best] == 0) {
            table[i] = table[0];
            continue;
        }
        table[i] = (unsigned char)best;
        code[best] = (unsigned char)i;
        left -= count[best];
        count[best] = 0;
    }
    return left;
}

/* ---- packing ---- */
/* Two units, elements 4 i to 4 i + 3; code is that of an element's high byte.
 */
static void pack_pair(unsigned char *block, const struct leaf *l, const unsigned char code[2 * VALUES],
                      int64_t i)
{
    memset(block, 0, B12_PAIR);
    for (int o = 0; o < l->n; o++) {
        const int j = 16 * (o % 16 / 4) + 8 * (o / 16) + 2 * (o % 4);
        unsigned h[4] = { 0 };
        const int64_t left = l->n_elems - 4 * i;
        for (int e = 0; e < 4 && e < left; e++) {
            h[e] = element(l, o, 4 * i + e);
            block[64 + 64 * (e / 2) + j + 1 - e % 2] = (unsigned char)h[e];
        }
        const unsigned c0 = code[h[0] >> 8], c1 = left > 1 ? code[h[1] >> 8] : 0,
                       c2 = left > 2 ? code[h[2] >> 8] : 0, c3 = left > 3 ? code[h[3] >> 8] : 0;
        block[j + 1] = (unsigned char)(c0 | c2 << 4);
        block[j] = (unsigned char)(c1 | c3 << 4);
    }
}

/* The escapes, in order of position. */
static void list_escapes(char *to, const struct leaf *l, const unsigned char code[VALUES])
{
    for (int64_t e = 0; e < l->n_elems; e++)
        for (int o = 0; o < l->n; o++) {
            const unsigned h = element(l, o, e);
            if (code[h >> 8 & 127] != NO_CODE)
                continue;
            const uint32_t word = (uint32_t)(e * 32 + o) << 8 | h >> 8;
            memcpy(to, &word, 4);
            to += 4;
        }
}

static int64_t pack_piece(char *to, const struct leaf *l)
{
    const int64_t lines = b12_lines(l->n_elems);
    unsigned char table[TABLE], code[VALUES], signed_code[2 * VALUES];
    const int64_t escapes = choose_table(l, table, code);
    if (escapes >= 16 * lines - B12_HEAD_WORDS || l->n_elems > B12_LEAF_MAX)
        return -1;
    if (!to)
        return escapes;
    memset(to, 0, 16);
    memcpy(to, table, TABLE);
    memset(to + 16, 0xff, (size_t)(64 * lines - 16));
    if (escapes > 0)
        list_escapes(to + 16, l, code);
    for (int v = 0; v < VALUES; v++) {
        const unsigned char c = code[v] == NO_CODE ? 0 : code[v];
        signed_code[v] = c;
        signed_code[VALUES + v] = code[v] == NO_CODE ? 0 : c | 8;
    }
    for (int64_t i = 0; 4 * i < l->n_elems; i++)
        pack_pair((unsigned char *)to + 64 * lines + i * B12_PAIR, l, signed_code, i);
    return escapes;
}

int64_t b12_pack_panel(char *to, const struct gemm_sum *s, const char *const *w, int n)
{
    int64_t all = 0;
    for (int g = 0; g < s->n; g++) {
        const int64_t begin = g ? s->elem_end[g - 1] : 0;
        const struct leaf l = { w, n, begin, s->elem_end[g] - begin };
        const int64_t escapes = pack_piece(to, &l);
        if (escapes < 0)
            return -1;
        all += escapes;
        to = to ? to + b12_piece_bytes(l.n_elems) : NULL;
    }
    return all;
}

/* ---- reading ---- */
struct b12_table {
    unsigned char at[16];
};
static inline struct b12_table b12_table_of(const char *values)
{
    struct b12_table table;
    for (int i = 0; i < 16; i++)
        table.at[i] = (unsigned char)((unsigned char)values[i % TABLE] | i / TABLE * 128);
    return table;
}

static void b12_pair(float *to, int64_t unit_step, int64_t half, const char *block, struct b12_table table)
{
    const unsigned char *n = (const unsigned char *)block;
    for (int u = 0; u < 2; u++)
        for (int o = 0; o < GEMM_COLS; o++) {
            const int j = 16 * (o % 16 / 4) + 8 * (o / 16) + 2 * (o % 4);
            const unsigned char *low = n + 64 + 64 * u + j;
            const unsigned later = table.at[n[j] >> 4 * u & 15], earlier = table.at[n[j + 1] >> 4 * u & 15];
            const uint32_t word = earlier << 24 | (uint32_t)low[1] << 16 | later << 8 | low[0];
            memcpy(to + u * unit_step + (o / 16) * half + o % 16, &word, 4);
        }
}

#define B12_TABLE_TYPE struct b12_table
#define B12_TABLE(t) b12_table_of(t)
#define B12_STATIC
#define B12_UNPACK b12_unpack
#include "kernels/gemm/b12_read.inc"

/* panel_b12.c - see panel_b12.h.
 *
 * A high byte of bf16 is the sign and 7 bits of the exponent, of which few values occur: a table of eight
 * stands for most of them, the others are listed. The low byte is kept. */
#include "format/native/panel_b12.h"

#include <stdlib.h>
#include <string.h>
#include "format/ckpt_write.h"

#define COLS PANEL_OUTPUTS
#define LINE 64
#define BODY 192 /* of 4 elements: 64 bytes of codes, 2 x 64 of low bytes */
#define TABLE 8
#define NO_ESCAPE UINT32_MAX

static int64_t head_bytes(int64_t n) { return LINE * (1 + COLS * n / 4096); }

int64_t b12_leaf_bytes(int64_t n) { return head_bytes(n) + BODY * (((n + 1) / 2 + 1) / 2); }

int64_t b12_room(int64_t n) { return (head_bytes(n) - 16) / 4 - 1; }

/* ---- the table of a leaf ---- */

static uint16_t value_at(struct panel_view from, int c, int64_t i)
{
    uint16_t v;
    memcpy(&v, from.p + c * from.out + i * from.in, sizeof v);
    return v;
}

static void count_values(struct panel_view from, int n_out, int64_t n, int64_t count[128])
{
    memset(count, 0, 128 * sizeof *count);
    for (int c = 0; c < n_out; c++)
        for (int64_t i = 0; i < n; i++)
            count[value_at(from, c, i) >> 8 & 127]++;
}

/* The most frequent values first, of equal counts the larger one; entries without a value repeat the first.
 * Returns how many values are left over; index[value]: its place, or -1. */
static int64_t make_table(int64_t count[128], uint8_t table[TABLE], signed char index[128])
{
    int64_t left = 0;
    memset(index, -1, 128);
    memset(table, 0, TABLE);
    for (int k = 0; k < TABLE; k++) {
        int best = -1;
        for (int v = 0; v < 128; v++)
            if (count[v] && index[v] < 0 && (best < 0 || count[v] >= count[best]))
                best = v;
        table[k] = best < 0 ? table[0] : (uint8_t)best;
        if (best >= 0)
            index[best] = (signed char)k;
    }
    for (int v = 0; v < 128; v++)
        left += index[v] < 0 ? count[v] : 0;
    return left;
}

int64_t b12_escapes(struct panel_view from, int n_out, int64_t n)
{
    int64_t count[128];
    uint8_t table[TABLE];
    signed char index[128];
    count_values(from, n_out, n, count);
    return make_table(count, table, index);
}

int panels_b12_fits(const struct panels_pack *k, const char *p, const int64_t step[2], int n_out,
                    int64_t *escapes)
{
    int fits = 1;
    *escapes = 0;
    for (int g = 0; g < k->n_leaves; g++) {
        int64_t begin = g ? k->leaf_end[g - 1] : 0, n = k->leaf_end[g] - begin;
        struct panel_view from = { (char *)(uintptr_t)p + begin * step[1], step[0], step[1] };
        int64_t found = n < B12_ELEMENTS ? b12_escapes(from, n_out, n) : B12_ELEMENTS;
        fits &= n < B12_ELEMENTS && found <= b12_room(n);
        *escapes += found;
    }
    return fits;
}

/* ---- places ---- */

/* Byte of output c among 64: s 1 for the earlier element of a unit. */
static int place_of(int c, int s) { return 16 * (c % 16 / 4) + 8 * (c / 16) + 2 * (c % 4) + s; }

/* Where element i of output c has its code and its low byte, from the leaf's first byte. */
struct spot {
    int64_t code, low;
    int shift; /* of the code in its byte */
};
static struct spot spot_of(int64_t head, int64_t i, int c)
{
    int64_t unit = i / 2, body = head + unit / 2 * BODY;
    int j = place_of(c, i % 2 == 0), odd = unit % 2;
    return (struct spot){ body + j, body + LINE * (1 + odd) + j, 4 * odd };
}

/* ---- there and back ---- */

int b12_encode(char *to, struct panel_view from, int n_out, int64_t n)
{
    const int64_t head = head_bytes(n), room = b12_room(n);
    int64_t count[128], n_escapes = 0;
    uint8_t table[TABLE], *out = (uint8_t *)to;
    signed char index[128];

    count_values(from, n_out, n, count);
    if (make_table(count, table, index) > room)
        return -1;
    memset(to, 0, (size_t)b12_leaf_bytes(n));
    memcpy(to, table, TABLE);
    memset(to + 16, 0xff, (size_t)(head - 16));
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < n_out; c++) {
            uint16_t v = value_at(from, c, i);
            struct spot s = spot_of(head, i, c);
            int k = index[v >> 8 & 127];
            out[s.low] = (uint8_t)v;
            if (k >= 0) {
                out[s.code] |= (uint8_t)((v >> 15 << 3 | k) << s.shift);
                continue;
            }
            uint32_t word = (uint32_t)(i * COLS + c) << 8 | v >> 8;
            memcpy(to + 16 + 4 * n_escapes++, &word, sizeof word);
        }
    return 0;
}

/* Puts the high bytes of escapes in their places. */
static void put_escapes(const char *from, int64_t n, int64_t begin, int64_t end, int first, int n_out,
                        struct panel_view to)
{
    for (int64_t k = 0; k <= b12_room(n); k++) {
        uint32_t word;
        memcpy(&word, from + 16 + 4 * k, sizeof word);
        if (word == NO_ESCAPE)
            break;
        int64_t i = (word >> 8) / COLS;
        int c = (int)((word >> 8) % COLS);
        if (i >= begin && i < end && c >= first && c < first + n_out)
            to.p[(c - first) * to.out + (i - begin) * to.in + 1] = (char)word;
    }
}

void b12_decode(const char *from, int64_t n, int64_t begin, int64_t end, int first, int n_out,
                struct panel_view to)
{
    const int64_t head = head_bytes(n);
    const uint8_t *in = (const uint8_t *)from;
    for (int64_t i = begin; i < end; i++)
        for (int c = 0; c < n_out; c++) {
            struct spot s = spot_of(head, i, first + c);
            int code = in[s.code] >> s.shift & 15;
            uint16_t v = (uint16_t)((code >> 3) << 15 | in[code & 7] << 8 | in[s.low]);
            memcpy(to.p + c * to.out + (i - begin) * to.in, &v, sizeof v);
        }
    put_escapes(from, n, begin, end, first, n_out, to);
}

/* json_out.c - see json_out.h. */
#include "serve/api/json_out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"

void json_out_free(struct json_out *o)
{
    free(o->p);
    memset(o, 0, sizeof *o);
}

/* Room for n more bytes and a NUL. */
static int json_out_reserve(struct json_out *o, size_t n)
{
    if (o->failed)
        return 0;
    if (o->cap - o->n > n)
        return 1;
    size_t cap = (o->n + n + 1) * 3 / 2 + 64;
    char *p = realloc(o->p, cap);
    if (!p) {
        o->failed = 1;
        return 0;
    }
    o->p = p;
    o->cap = cap;
    return 1;
}

void json_out_bytes(struct json_out *o, const char *p, size_t n)
{
    if (!n || !json_out_reserve(o, n))
        return;
    memcpy(o->p + o->n, p, n);
    o->n += n;
    o->p[o->n] = 0;
}

void json_out_text(struct json_out *o, const char *text) { json_out_bytes(o, text, strlen(text)); }

void json_out_fmt(struct json_out *o, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0 && json_out_reserve(o, (size_t)n))
        o->n += (size_t)vsnprintf(o->p + o->n, (size_t)n + 1, fmt, again);
    va_end(again);
}

/* Follows the table of well-formed UTF-8 byte sequences (Unicode 15, table 3-7): lead byte, range of the
 * second byte, length. */
size_t utf8_char(const char *p, size_t n)
{
    static const struct {
        unsigned char lead_lo, lead_hi, second_lo, second_hi, length;
    } row[] = {
        { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
        { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
        { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };
    const unsigned char *s = (const unsigned char *)p;
    if (!n)
        return 0;
    if (s[0] < 0x80)
        return 1;

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (s[0] < row[i].lead_lo || s[0] > row[i].lead_hi)
            continue;
        size_t length = row[i].length;
        if (n < length || s[1] < row[i].second_lo || s[1] > row[i].second_hi)
            return 0;
        for (size_t j = 2; j < length; j++)
            if ((s[j] & 0xc0) != 0x80)
                return 0;
        return length;
    }

    return 0;
}

int64_t utf8_count(const char *p, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; count++) {
        size_t k = utf8_char(p + i, n - i);
        i += k ? k : 1;
    }
    return count;
}

static void json_out_char(struct json_out *o, const char *p, size_t k)
{
    static const char from[] = "\"\\\b\f\n\r\t", *const to[] = { "\\\"", "\\\\", "\\b", "\\f",
                                                                 "\\n",  "\\r",  "\\t" };
    const char *at = *p ? strchr(from, *p) : NULL;
    if (!k)
        json_out_text(o, "\xef\xbf\xbd");
    else if (at)
        json_out_text(o, to[at - from]);
    else if ((unsigned char)*p < 0x20 || *p == 0x7f)
        json_out_fmt(o, "\\u%04x", (unsigned)(unsigned char)*p);
    else
        json_out_bytes(o, p, k);
}

void json_out_string_n(struct json_out *o, const char *p, size_t n)
{
    json_out_bytes(o, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t k = utf8_char(p + i, n - i);
        json_out_char(o, p + i, k);
        i += k ? k : 1;
    }
    json_out_bytes(o, "\"", 1);
}

void json_out_string(struct json_out *o, const char *text)
{
    if (text)
        json_out_string_n(o, text, strlen(text));
    else
        json_out_text(o, "null");
}

void json_out_logprob(struct json_out *o, float x)
{
    char digits[32];
    json_out_text(o, isinf(x) ? "-9999.0" : jx_float32(x, digits));
}

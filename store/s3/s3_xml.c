/* s3_xml.c - see s3_xml.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "store/s3/s3_xml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first tag of that name at or behind p; *behind: the byte after its ">". NULL: none. */
static const char *find_tag(const char *p, const char *end, const char *open, const char **behind)
{
    size_t n = strlen(open);
    while (p < end && (p = memmem(p, (size_t)(end - p), open, n))) {
        const char *after = p + n, *close;
        if (after < end && (*after == '>' || *after == ' ') &&
            (close = memchr(after, '>', (size_t)(end - after)))) {
            *behind = close + 1;
            return p;
        }
        p = after;
    }
    return NULL;
}

int xml_next(struct xml_span *in, const char *name, struct xml_span *out)
{
    char open[64], close[64];
    const char *end = in->p + in->n, *begin, *last, *behind;
    snprintf(open, sizeof open, "<%s", name);
    snprintf(close, sizeof close, "</%s", name);
    if (!in->n || !find_tag(in->p, end, open, &begin))
        return 0;
    if (!(last = find_tag(begin, end, close, &behind)))
        return 0;
    *out = (struct xml_span){ begin, (size_t)(last - begin) };
    *in = (struct xml_span){ behind, (size_t)(end - behind) };
    return 1;
}

/* Decodes what begins with "&" at p. Returns its length, and the byte; 0: it is no such thing. */
static size_t decode(const char *p, size_t n, char *byte)
{
    static const struct {
        const char *word;
        char byte;
    } words[] = { { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&quot;", '"' }, { "&apos;", '\'' } };
    char number[16];
    const char *end = memchr(p, ';', n < 12 ? n : 12);
    unsigned v = 0;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (n >= strlen(words[i].word) && !memcmp(p, words[i].word, strlen(words[i].word))) {
            *byte = words[i].byte;
            return strlen(words[i].word);
        }
    if (!end || p[1] != '#')
        return 0;
    snprintf(number, sizeof number, "%.*s", (int)(end - p - 2), p + 2);
    if (sscanf(number, *number == 'x' ? "x%x" : "%u", &v) != 1 || v == 0 || v > 127)
        return 0;
    *byte = (char)v;
    return (size_t)(end - p) + 1;
}

int xml_text(struct xml_span in, const char *name, char *out, size_t room)
{
    struct xml_span t;
    size_t at = 0, k;
    out[0] = 0;
    if (!xml_next(&in, name, &t) || t.n >= room || memchr(t.p, 0, t.n))
        return 0;
    for (size_t i = 0; i < t.n; i += k) {
        k = t.p[i] == '&' ? decode(t.p + i, t.n - i, &out[at]) : 0;
        if (!k) {
            out[at] = t.p[i];
            k = 1;
        }
        at++;
    }
    out[at] = 0;
    return 1;
}

int64_t xml_number(struct xml_span in, const char *name)
{
    char text[24], *end;
    if (!xml_text(in, name, text, sizeof text) || *text < '0' || *text > '9')
        return -1;
    int64_t v = strtoll(text, &end, 10);
    return *end || v < 0 ? -1 : v;
}

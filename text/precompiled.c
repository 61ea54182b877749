/* precompiled.c - the normaliser Precompiled: SentencePiece's table of replacements (Kudo and Richardson
 * 2018), as the Hugging Face library runs it.
 *
 * The table, in base64: bytes of the tree u32, the tree (a double array, Aoe 1989: u32 units,
 * little-endian), then the replacements, each ended by NUL. The tree maps a text to the place of its
 * replacement. Text is replaced by grapheme clusters: a cluster of less than 6 bytes that begins with a
 * text of the table becomes the replacement of its shortest such text, whatever follows in the cluster;
 * other clusters go character by character. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

#define CLUSTER_BYTES 6 /* a cluster of so many bytes and more is not looked up whole */

/* --- the tree --- */

static uint32_t unit_at(const struct step *s, size_t i)
{
    uint32_t u;
    memcpy(&u, s->content + 4 + 4 * i, sizeof u);
    return u;
}

static uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

/* NULL: the place is inside a character. */
static const char *character_at(const char *text) { return (text[0] & 0xC0) == 0x80 ? NULL : text; }

/* The replacement of the shortest text of the table that s begins with, ended by NUL; NULL: none. */
static const char *find(const struct step *s, const char *text, size_t n)
{
    const size_t units = (size_t)s->count, texts = 4 + 4 * units;
    size_t at = offset_of(unit_at(s, 0));
    for (size_t i = 0; i < n && text[i]; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((at ^= c) >= units)
            return NULL;
        uint32_t unit = unit_at(s, at);
        if ((unit & 0x800000FF) != c)
            return NULL;
        at ^= offset_of(unit);
        if (unit >> 8 & 1) {
            uint32_t value = at < units ? unit_at(s, at) & 0x7FFFFFFF : UINT32_MAX;
            return value < s->n_content - texts ? character_at(s->content + texts + value) : NULL;
        }
    }
    return NULL;
}

int precompiled_run(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e)
{
    (void)e;
    for (size_t i = 0; i < n;) {
        size_t cluster = uni_cluster(text + i, n - i), end = i + cluster;
        const char *to = cluster < CLUSTER_BYTES ? find(s, text + i, cluster) : NULL;
        if (to) {
            buf_add(out, to, strlen(to));
            i = end;
        }
        while (i < end) {
            uint32_t cp;
            size_t len = (size_t)utf8_next(text + i, end - i, &cp);
            to = find(s, text + i, len);
            buf_add(out, to ? to : text + i, to ? strlen(to) : len);
            i += len;
        }
    }
    return 0;
}

/* --- loading --- */

static int digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *d = c ? strchr(digits, c) : NULL;
    return d ? (int)(d - digits) : -1;
}

/* Decodes base64 (RFC 4648) into s->content, with a NUL behind it. -1: it is none, or no memory. */
static int decode(struct step *s, const char *text, size_t n)
{
    uint32_t bits = 0;
    int n_bits = 0;
    while (n && text[n - 1] == '=')
        n--;
    if (!(s->content = malloc(n / 4 * 3 + 4)))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (digit(text[i]) < 0)
            return -1;
        bits = bits << 6 | (uint32_t)digit(text[i]);
        if ((n_bits += 6) >= 8)
            s->content[s->n_content++] = (char)(bits >> (n_bits -= 8));
    }
    s->content[s->n_content] = 0; /* ends the last replacement */
    return 0;
}

static int is_utf8(const char *text, size_t n)
{
    uint32_t cp;
    for (int len; n > 0; text += len, n -= (size_t)len)
        if ((len = utf8_next(text, n, &cp)) <= 0)
            return 0;
    return 1;
}

int precompiled_load(struct step *s, const json_t *node, const char *what, struct err *e)
{
    const char *text = NULL;
    size_t n = 0;
    uint32_t bytes = 0;
    int rc = text_member(node, "precompiled_charsmap", &text, &n, what, e);
    if (rc < 0)
        return rc;
    if (rc == 0 || decode(s, text, n) < 0)
        return err_set(e, ERR_CONFIG, "%s: Precompiled has no precompiled_charsmap in base64", what);
    if (s->n_content >= 4)
        memcpy(&bytes, s->content, sizeof bytes);
    if (bytes < 4 || bytes % 4 || bytes > s->n_content - 4)
        return err_set(e, ERR_CONFIG,
                       "%s: Precompiled: its table of %zu bytes has a tree of %u: is it cut off", what,
                       s->n_content, bytes);
    s->count = (int)(bytes / 4);
    if (!is_utf8(s->content + 4 + bytes, s->n_content - 4 - bytes))
        return err_set(e, ERR_CONFIG, "%s: Precompiled: its replacements are not UTF-8", what);
    return 0;
}

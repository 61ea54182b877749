/* unicode.c - UTF-8, properties of characters and normal forms; tables from utf8proc.
 *
 * Sources: Unicode 15, 3.9 (maximal subparts), UAX 15 (normal forms), UTS 18 annex C (\w); byte_char:
 * bytes_to_unicode of GPT-2. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "text/unicode_new.h"

int utf8_next(const char *text, size_t n, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned c = s[0];

    if (c < 0x80) {
        *cp = c;
        return 1;
    }

    if (c < 0xC2 || c > 0xF4)
        return -1;
    int len = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;

    /* the range of the second byte excludes overlong forms, surrogates and code points above U+10FFFF */
    unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    uint32_t v = c & (0x7Fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return -i;
        lo = 0x80, hi = 0xBF;
        v = v << 6 | (s[i] & 0x3Fu);
    }

    *cp = v;
    return len;
}

int utf8_prev(const char *s, size_t n, uint32_t *cp)
{
    size_t i = n - 1;
    while (i > 0 && n - i < 4 && ((unsigned char)s[i] & 0xC0) == 0x80)
        i--;
    return utf8_next(s + i, n - i, cp);
}

size_t utf8_repair(const char *s, size_t n, int last, struct buf *out)
{
    size_t from = 0, i = 0;
    while (i < n) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        if (len > 0) {
            i += (size_t)len;
            continue;
        }
        buf_add(out, s + from, i - from);
        if (len == 0 && !last)
            return i;
        buf_add(out, "\xEF\xBF\xBD", 3);
        i += len ? (size_t)-len : n - i;
        from = i;
    }

    buf_add(out, s + from, i - from);
    return n;
}

int uni_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= 9 && cp <= 13) || cp == 32;
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

uint32_t uni_stand_in(uint32_t cp)
{
    size_t lo = 0, hi = sizeof unicode_new / sizeof *unicode_new;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > unicode_new[mid].last)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < sizeof unicode_new / sizeof *unicode_new && cp >= unicode_new[lo].first
               ? unicode_new[lo].stand_in
               : cp;
}

static unsigned category_bit(uint32_t cp)
{
    return 1u << utf8proc_category((utf8proc_int32_t)uni_stand_in(cp));
}
#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)
#define MARKS (BIT(MN) | BIT(MC) | BIT(ME))
#define NUMBERS (BIT(ND) | BIT(NL) | BIT(NO))
#define LETTERS (BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO))

int uni_is_word(uint32_t cp)
{
    /* circled and squared letters are Other_Alphabetic symbols; the two joiners are Join_Control */
    if ((cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
        (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189) || cp == 0x200C || cp == 0x200D)
        return 1;
    return (category_bit(cp) & (LETTERS | MARKS | BIT(ND) | BIT(NL) | BIT(PC))) != 0;
}

int uni_is_numeric(uint32_t cp) { return (category_bit(cp) & NUMBERS) != 0; }
int uni_is_mark(uint32_t cp) { return (category_bit(cp) & MARKS) != 0; }

int uni_is_punct(uint32_t cp)
{
    if (cp < 0x80)
        return (cp > 32 && cp < '0') || (cp > '9' && cp < 'A') || (cp > 'Z' && cp < 'a') ||
               (cp > 'z' && cp < 127);
    return (category_bit(cp) & (BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO))) != 0;
}

uint32_t uni_lower(uint32_t cp) { return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp); }

/* --- normal forms --- */

static unsigned combining(int32_t cp) { return utf8proc_get_property(cp)->combining_class; }

/* Sorts a run of marks by class, stable. Counting sort: quadratic time on a megabyte of marks would be
 * hours. */
static int sort_marks(int32_t *v, size_t n)
{
    size_t at[257] = { 0 };
    int32_t *copy = malloc(n * sizeof *v);
    if (!copy)
        return -1;
    memcpy(copy, v, n * sizeof *v);
    for (size_t i = 0; i < n; i++)
        at[combining(v[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++)
        v[at[combining(copy[i])]++] = copy[i];
    free(copy);
    return 0;
}

static int canonical_order(int32_t *v, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t from = i;
        int sorted = 1;
        unsigned before = 0;
        for (unsigned c; i < n && (c = combining(v[i])) != 0; i++) {
            sorted &= c >= before;
            before = c;
        }
        if (!sorted && sort_marks(v + from, i - from) < 0)
            return -1;
        i += i == from;
    }
    return 0;
}

struct points {
    int32_t *v;
    size_t n, cap;
};

static int decompose(struct points *p, const char *s, size_t n, int form)
{
    utf8proc_option_t how = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form & UNI_COMPAT ? UTF8PROC_COMPAT : 0);
    p->n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int bound = 0;
        i += (size_t)utf8_next(s + i, n - i, &cp);
        if (p->cap < p->n + 32) { /* the longest decomposition has 18 */
            int32_t *q = buf_grow(p->v, &p->cap, p->n + 32, sizeof *p->v);
            if (!q)
                return -1;
            p->v = q;
        }
        utf8proc_ssize_t m = utf8proc_decompose_char((utf8proc_int32_t)cp, p->v + p->n, 32, how, &bound);
        if (m < 0 || m > 32)
            return -1;
        p->n += (size_t)m;
    }
    return 0;
}

/* Normalises text whose first character does not compose with the text in front of it. */
static int normalize_stretch(struct points *p, const char *s, size_t n, int form, struct buf *out)
{
    if (decompose(p, s, n, form) < 0 || canonical_order(p->v, p->n) < 0)
        return -1;
    if (form & UNI_COMPOSE) {
        utf8proc_ssize_t m = utf8proc_normalize_utf32(p->v, (utf8proc_ssize_t)p->n,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (m < 0)
            return -1;
        p->n = (size_t)m;
    }
    for (size_t i = 0; i < p->n; i++)
        buf_add_cp(out, (uint32_t)p->v[i]);
    return 0;
}

void uni_normalize(const char *s, size_t n, int form, struct buf *out)
{
    struct points p = { 0 };
    for (size_t i = 0; i < n && !out->failed;) {
        size_t from = i, ascii;
        while (i < n && !((unsigned char)s[i] & 0x80))
            i++;
        ascii = i < n && i > from ? i - 1 : i; /* the last one may compose with what follows */
        buf_add(out, s + from, ascii - from);
        from = ascii;
        while (i < n && ((unsigned char)s[i] & 0x80))
            i++;
        if (i > from && normalize_stretch(&p, s + from, i - from, form, out) < 0)
            out->failed = 1;
    }
    free(p.v);
}

/* --- bytes as characters --- */

/* Bytes that are visible characters of Latin-1 map to themselves, the other 68 to U+0100 … U+0143 in
 * order. */
static int stands_for_itself(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t byte_char(unsigned char b)
{
    if (stands_for_itself(b))
        return b;
    return 0x100u + (b <= 0x20 ? b : b < 0xA1 ? b - 0x7Fu + 33 : 67);
}

int char_byte(uint32_t cp)
{
    if (cp < 0x100)
        return stands_for_itself(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

size_t uni_cluster(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    uint32_t cp, next;
    size_t at = (size_t)utf8_next(s, n, &cp);
    while (at < n) {
        size_t len = (size_t)utf8_next(s + at, n - at, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
            break;
        at += len;
        cp = next;
    }
    return at;
}

/* cpset.c - see cpset.h. */
#include "text/grammar/cpset.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/buf.h"
#include "text/tok.h"

void cpset_add(struct cpset *s, uint32_t lo, uint32_t hi)
{
    if (s->n && s->v[s->n - 1].hi + 1 == lo) {
        s->v[s->n - 1].hi = hi;
        return;
    }
    if (s->n == s->cap) {
        struct cprange *p = buf_grow(s->v, &s->cap, s->n + 1, sizeof *p);
        if (!p) {
            s->failed = 1;
            return;
        }
        s->v = p;
    }
    s->v[s->n++] = (struct cprange){ lo, hi };
}

void cpset_join(struct cpset *s, const struct cpset *b)
{
    for (size_t i = 0; i < b->n; i++)
        cpset_add(s, b->v[i].lo, b->v[i].hi);
}

static int by_lo(const void *a, const void *b)
{
    const struct cprange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void cpset_normalise(struct cpset *s)
{
    size_t n = 0;
    if (s->n)
        qsort(s->v, s->n, sizeof *s->v, by_lo);
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->v[i].lo <= s->v[n - 1].hi + 1) {
            if (s->v[i].hi > s->v[n - 1].hi)
                s->v[n - 1].hi = s->v[i].hi;
        } else {
            s->v[n++] = s->v[i];
        }
    }
    s->n = n;
}

void cpset_invert(struct cpset *s)
{
    struct cpset out = { .failed = s->failed };
    uint32_t next = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].lo > next)
            cpset_add(&out, next, s->v[i].lo - 1);
        next = s->v[i].hi + 1;
    }
    if (next <= CP_MAX)
        cpset_add(&out, next, CP_MAX);
    cpset_free(s);
    *s = out;
}

int cpset_has(const struct cpset *s, uint32_t cp)
{
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > s->v[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n && s->v[lo].lo <= cp;
}

void cpset_free(struct cpset *s)
{
    free(s->v);
    memset(s, 0, sizeof *s);
}

static int is_digit(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND; }
static int is_word(uint32_t cp) { return uni_is_word(cp) || uni_is_numeric(cp); }
static int is_space(uint32_t cp)
{
    return uni_is_space(cp) || cp == 0xFEFF || cp == 0x180E || (cp >= 0x1C && cp <= 0x1F);
}

void cpset_class(struct cpset *s, enum cp_class which, int wide)
{
    static const struct {
        int (*wide)(uint32_t cp);
        struct cprange narrow[8];
    } classes[] = {
        [CP_DIGIT] = { is_digit, { { '0', '9' } } },
        [CP_WORD] = { is_word, { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } } },
        [CP_SPACE] = { is_space,
                       { { 9, 13 },
                         { ' ', ' ' },
                         { 0xA0, 0xA0 },
                         { 0x1680, 0x1680 },
                         { 0x2000, 0x200A },
                         { 0x2028, 0x2029 },
                         { 0x202F, 0x202F },
                         { 0x3000, 0x3000 } } },
    };
    for (int i = 0; i < 8 && classes[which].narrow[i].hi; i++)
        cpset_add(s, classes[which].narrow[i].lo, classes[which].narrow[i].hi);
    for (uint32_t cp = 0; wide && cp <= CP_MAX; cp++)
        if (classes[which].wide(cp))
            cpset_add(s, cp, cp);
}

static const struct {
    const char *name, *is; /* is: the first letters of the categories */
} categories[] = {
    { "Letter", "L" },
    { "Uppercase_Letter", "Lu" },
    { "Lowercase_Letter", "Ll" },
    { "Mark", "M" },
    { "Number", "N" },
    { "Decimal_Number", "Nd" },
    { "Punctuation", "P" },
    { "Symbol", "S" },
    { "Separator", "Z" },
    { "Other", "C" },
};

int cpset_category(struct cpset *s, const char *name, size_t n)
{
    char want[3] = "";
    size_t before = s->n;
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (strlen(categories[i].name) == n && !memcmp(categories[i].name, name, n))
            memcpy(want, categories[i].is, strlen(categories[i].is));
    if (!want[0] && (n == 1 || n == 2))
        memcpy(want, name, n);
    if (!want[0])
        return -1;

    for (uint32_t cp = 0; cp <= CP_MAX; cp++) {
        const char *has = utf8proc_category_string((utf8proc_int32_t)cp);
        if (has[0] == want[0] && (!want[1] || has[1] == want[1]))
            cpset_add(s, cp, cp);
    }
    return s->n > before ? 0 : -1;
}

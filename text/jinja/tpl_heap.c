/* tpl_heap.c - the heap of a parse or a rendering, freed all at once; errors; limits of steps and depth;
 * growing strings. */
#include "text/jinja/tpl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/tok.h"

#define BLOCK ((size_t)32 << 10)
#define STEPS_A_CHECK 4096 /* steps between two looks at the limit: less than a millisecond */
#define ADD_BYTES 16       /* adding to a string costs as much as so many of its bytes */
#define HEAD ((sizeof(struct heap_block) + 15) & ~(size_t)15)

void *tpl_alloc(struct tpl *t, size_t n)
{
    struct heap *h = &t->heap;
    struct heap_block *b = h->blocks;
    size_t want = (n + 15) & ~(size_t)15;

    if (t->failed)
        return NULL;
    if (n > h->limit - h->total || want < n) {
        t->failed = tpl_fail(t, ERR_USAGE,
                             "the values need more than %zu MiB: is a text repeated without end",
                             h->limit >> 20);
        return NULL;
    }

    if (!b || b->n - b->used < want) {
        size_t size = want > BLOCK / 4 ? want : BLOCK;
        struct heap_block *q = malloc(HEAD + size);
        if (!q) {
            t->failed = tpl_fail(t, ERR_MEMORY, "no memory for %zu more bytes: use shorter messages", size);
            return NULL;
        }
        q->n = size;
        q->used = 0;
        /* a block of one large allocation goes behind the current block, which has space left */
        if (b && size != BLOCK) {
            q->next = b->next;
            b->next = q;
        } else {
            q->next = b;
            h->blocks = q;
        }
        b = q;
    }

    void *p = (char *)b + HEAD + b->used;
    b->used += want;
    h->total += want;
    return memset(p, 0, want);
}

void heap_free(struct heap *h)
{
    struct heap_block *b = h->blocks;
    while (b) {
        struct heap_block *next = b->next;
        free(b);
        b = next;
    }
    h->blocks = NULL;
}

int tpl_fail(struct tpl *t, int code, const char *fmt, ...)
{
    char text[768];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32)
            *p = ' ';
    /* drop an incomplete character at the end of a truncated text */
    for (size_t n = strlen(text); n + 1 == sizeof text && n > 0;) {
        uint32_t cp;
        int len = utf8_prev(text, n, &cp);
        if (len > 0)
            break;
        text[--n] = 0;
    }
    return err_set(t->e, code, "%.120s, line %d: %s", t->what, t->line, text);
}

int tpl_steps(struct tpl *t, size_t n)
{
    if (t->failed)
        return t->failed;
    if ((int64_t)n < 0 || (t->steps -= (int64_t)n) < 0)
        return t->failed =
                   tpl_fail(t, ERR_USAGE,
                            "too many steps: is there a loop over loops, or are the messages too long");
    if (t->limit && t->steps < t->check) {
        t->check = t->steps - STEPS_A_CHECK;
        t->failed = work_check(t->limit, t->e);
    }
    return t->failed;
}

int tpl_bytes(struct tpl *t, size_t n)
{
    n += t->rest;
    t->rest = n % 64;
    return tpl_steps(t, n / 64);
}

int tpl_enter(struct tpl *t)
{
    RETURN_IF_ERROR(tpl_steps(t, 1));
    if (++t->depth > TPL_DEPTH) {
        t->depth--;
        return tpl_fail(t, ERR_USAGE, "more than %d nested evaluations: does a macro call itself without end",
                        TPL_DEPTH);
    }
    return 0;
}

/* --- growing strings --- */

static int reserve(struct sb *b, size_t n)
{
    if (n <= b->cap - b->n)
        return 1;
    size_t cap = b->cap ? b->cap : 32;
    while (cap - b->n < n && cap < SIZE_MAX / 4)
        cap *= 2;
    char *p = tpl_alloc(b->t, cap), *m = b->m ? tpl_alloc(b->t, cap) : NULL;
    if (!p || (b->m && !m))
        return 0;
    if (b->n)
        memcpy(p, b->p, b->n);
    if (b->n && m)
        memcpy(m, b->m, b->n);
    b->p = p;
    b->m = m;
    b->cap = cap;
    return 1;
}

void sb_add(struct sb *b, const char *p, size_t n, const char *mark)
{
    if (!n || tpl_bytes(b->t, n + ADD_BYTES) < 0 || !reserve(b, n))
        return;
    if (mark && !b->m && !(b->m = tpl_alloc(b->t, b->cap)))
        return;
    memcpy(b->p + b->n, p, n);
    if (mark)
        memcpy(b->m + b->n, mark, n);
    else if (b->m)
        memset(b->m + b->n, 0, n);
    b->n += n;
}

void sb_text(struct sb *b, const char *text) { sb_add(b, text, strlen(text), NULL); }
void sb_str(struct sb *b, const struct str *s) { sb_add(b, s->p, s->n, s->mark); }
void sb_part(struct sb *b, const struct str *s, size_t from, size_t to)
{
    sb_add(b, s->p + from, to - from, s->mark ? s->mark + from : NULL);
}

void sb_cp(struct sb *b, uint32_t cp, int marked)
{
    static const char ones[4] = { 1, 1, 1, 1 };
    char bytes[4];
    size_t n = 0;

    if (cp < 0x80) {
        bytes[n++] = (char)cp;
    } else {
        if (cp < 0x800) {
            bytes[n++] = (char)(0xC0 | cp >> 6);
        } else {
            if (cp < 0x10000) {
                bytes[n++] = (char)(0xE0 | cp >> 12);
            } else {
                bytes[n++] = (char)(0xF0 | cp >> 18);
                bytes[n++] = (char)(0x80 | (cp >> 12 & 63));
            }
            bytes[n++] = (char)(0x80 | (cp >> 6 & 63));
        }
        bytes[n++] = (char)(0x80 | (cp & 63));
    }
    sb_add(b, bytes, n, marked ? ones : NULL);
}

void sb_mark_model(struct sb *b, size_t from)
{
    if (from >= b->n || (!b->m && !(b->m = tpl_alloc(b->t, b->cap))))
        return;
    for (size_t i = from; i < b->n; i++)
        b->m[i] |= MARK_MODEL;
}

int sb_done(struct sb *b, struct val *out)
{
    if (b->t->failed)
        return b->t->failed;
    return v_str(b->t, b->n ? b->p : "", b->n, b->m, out);
}

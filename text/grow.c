/* grow.c - growing arrays of characters, pieces and ids. A failed allocation is remembered in `failed`. */
#include "text/tok.h"

#include <stdlib.h>

#define GROWTH 64                       /* times a text may grow */
#define GROWTH_LEAST 1024               /* bytes that any text may become */
#define GROWTH_FREE ((size_t)256 << 20) /* from here on */
#define GROWTH_LONG 8                   /* it may grow less */

int text_memory(struct err *e)
{
    return err_set(e, ERR_MEMORY, "no memory for the tokenizer's work: use shorter texts");
}

size_t text_growth(size_t n)
{
    if (n < GROWTH_FREE / GROWTH)
        return n * GROWTH + GROWTH_LEAST;
    return n > GROWTH_FREE / GROWTH_LONG ? n * GROWTH_LONG : GROWTH_FREE;
}

int text_failed(const struct buf *b, const char *what, size_t n, struct err *e)
{
    if (b->failed != BUF_BEYOND_MAX)
        return text_memory(e);
    return err_set(e, ERR_CONFIG,
                   "the tokenizer's %s makes more than %zu bytes of a text of %zu: does it replace one "
                   "character by many",
                   what, b->max, n);
}

void buf_add_cp(struct buf *b, uint32_t cp)
{
    char s[4];
    size_t n = 0;

    if (cp < 0x80) {
        s[n++] = (char)cp;
    } else {
        if (cp < 0x800) {
            s[n++] = (char)(0xC0 | cp >> 6);
        } else {
            if (cp < 0x10000) {
                s[n++] = (char)(0xE0 | cp >> 12);
            } else {
                s[n++] = (char)(0xF0 | cp >> 18);
                s[n++] = (char)(0x80 | (cp >> 12 & 0x3F));
            }
            s[n++] = (char)(0x80 | (cp >> 6 & 0x3F));
        }
        s[n++] = (char)(0x80 | (cp & 0x3F));
    }
    buf_add(b, s, n);
}

void pieces_add(struct pieces *ps, size_t off, size_t n, int32_t id, int first)
{
    if (ps->failed || n == 0)
        return;
    if (ps->n == ps->cap) {
        struct piece *q = buf_grow(ps->v, &ps->cap, ps->n + 1, sizeof *ps->v);
        if (!q) {
            ps->failed = 1;
            return;
        }
        ps->v = q;
    }
    ps->v[ps->n++] = (struct piece){ off, n, id, first };
}

void pieces_free(struct pieces *ps)
{
    buf_free(&ps->text);
    free(ps->v);
    *ps = (struct pieces){ 0 };
}

void ids_add(struct ids *l, int32_t id)
{
    if (l->failed)
        return;
    if (l->n == l->cap) {
        int32_t *q = buf_grow(l->v, &l->cap, l->n + 1, sizeof *l->v);
        if (!q) {
            l->failed = 1;
            return;
        }
        l->v = q;
    }
    l->v[l->n++] = id;
}

int ids_detach(struct ids *l, int32_t **ids, size_t *n, struct err *e)
{
    if (l->failed || (!l->v && !(l->v = malloc(sizeof *l->v))))
        return text_memory(e);
    *ids = l->v;
    *n = l->n;
    l->v = NULL;
    return 0;
}

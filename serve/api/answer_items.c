/* answer_items.c - see answer_items.h. */
#include "serve/api/answer_items.h"

#include <stdlib.h>
#include "text/tools.h"

static const struct tool_text *divided(const struct choice *c)
{
    return c->parts.parser ? tool_parser_text(c->parts.parser) : NULL;
}

static void add_item(struct choice *c, enum item_kind kind, size_t from, struct json_out *o)
{
    struct answer_items *x = &c->items;

    if (x->n == x->cap) {
        size_t cap = 2 * x->cap + 4;
        struct answer_item *more = realloc(x->item, cap * sizeof *more);
        if (!more) {
            o->failed = 1;
            return;
        }
        x->item = more;
        x->cap = cap;
    }
    /* what is between a text and a call belongs to the call */
    size_t raw = kind == ITEM_TEXT || !x->n ? c->parts.fed : x->grown + 1;
    x->item[x->n++] = (struct answer_item){ .kind = kind, .from = from, .raw = raw };
}

/* The text of this kind, n bytes at p, had *seen of them. It goes on in the last item if that is of its kind;
 * else a new one begins, without the line end that the parser puts between two. */
static void note_text(struct choice *c, enum item_kind kind, size_t *seen, const char *p, size_t n,
                      struct json_out *o)
{
    struct answer_items *x = &c->items;

    if (n > *seen && (!x->n || x->item[x->n - 1].kind != kind)) {
        add_item(c, kind, *seen, o);
        if (!o->failed && *seen)
            x->item[x->n - 1].skip = p[*seen] == '\n';
    }
    if (n > *seen)
        x->grown = c->parts.fed;
    *seen = n;
}

static void note_calls(struct choice *c, const struct tool_text *t, struct json_out *o)
{
    struct answer_items *x = &c->items;

    for (; x->calls < t->n_calls; x->calls++) {
        add_item(c, ITEM_CALL, x->calls, o);
        x->grown = c->parts.fed;
        x->arguments = 0;
    }
    if (x->calls && t->call[x->calls - 1].arguments.n > x->arguments) {
        x->arguments = t->call[x->calls - 1].arguments.n;
        x->grown = c->parts.fed;
    }
}

void items_note(struct choice *c, struct json_out *o)
{
    const struct tool_text *t = divided(c);
    struct answer_items *x = &c->items;

    if (t) {
        note_text(c, ITEM_REASONING, &x->reasoning, t->reasoning.p, t->reasoning.n, o);
        note_text(c, ITEM_TEXT, &x->content, t->content.p, t->content.n, o);
        note_calls(c, t, o);
    } else {
        note_text(c, ITEM_TEXT, &x->content, c->text.p, c->parts.fed, o);
    }
    if (c->parts.finished && !x->n)
        add_item(c, ITEM_TEXT, 0, o);
}

struct item_text item_text(const struct choice *c, size_t i)
{
    const struct tool_text *t = divided(c);
    const struct answer_items *x = &c->items;
    const struct answer_item *item = &x->item[i];

    if (item->kind == ITEM_CALL) {
        const struct buf *b = &t->call[item->from].arguments;
        return (struct item_text){ b->p ? b->p : "", b->n };
    }
    const char *p = !t ? c->text.p : item->kind == ITEM_REASONING ? t->reasoning.p : t->content.p;
    size_t begin = item->from + item->skip, end = item->kind == ITEM_REASONING ? x->reasoning : x->content;
    for (size_t k = i + 1; k < x->n; k++)
        if (x->item[k].kind == item->kind) {
            end = x->item[k].from;
            break;
        }
    return (struct item_text){ p ? p + begin : "", end - begin };
}

struct item_text item_name(const struct choice *c, size_t i)
{
    const struct buf *b = &divided(c)->call[c->items.item[i].from].name;
    return (struct item_text){ b->p ? b->p : "", b->n };
}

int item_is_whole(const struct choice *c, size_t i) { return i + 1 < c->items.n || c->finish != FINISH_NONE; }

int items_are_noted(const struct request *rq)
{
    return rq->in_items || (rq->divided && rq->separate_reasoning && rq->sv->form.reasoning);
}

/* The first generated token whose text reaches byte `raw`. */
static int64_t token_at(const struct choice *c, size_t raw)
{
    int64_t lo = c->prompt->n, hi = c->n_ids;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (c->ends[mid] < raw)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void item_tokens(const struct choice *c, size_t i, int64_t *first, int64_t *last)
{
    const struct answer_items *x = &c->items;
    *first = i ? token_at(c, x->item[i].raw) : c->prompt->n;
    *last = i + 1 < x->n        ? token_at(c, x->item[i + 1].raw)
            : c->parts.finished ? c->n_ids
                                : token_at(c, x->grown + 1);
}

int64_t items_count_tokens(const struct choice *c, enum item_kind kind)
{
    int64_t n = 0, first, last;
    for (size_t i = 0; i < c->items.n; i++) {
        if (c->items.item[i].kind != kind)
            continue;
        item_tokens(c, i, &first, &last);
        n += last - first;
    }
    return n;
}

/* fake_order.c - see fake_order.h. */
#include "tests/devices/fake/fake_order.h"

#include <stdlib.h>

static void merge(struct clock *c, const struct clock *other)
{
    for (int q = 0; q < DEV_QUEUES; q++)
        if (other->at[q] > c->at[q])
            c->at[q] = other->at[q];
}

void fake_order_op(struct order *o, enum dev_queue q) { o->of[q].at[q]++; }

int fake_order_mark(struct order *o, enum dev_queue q)
{
    if (o->n_marks == o->cap) {
        int cap = o->cap ? 2 * o->cap : 64;
        struct clock *more = realloc(o->mark, sizeof *more * (size_t)cap);
        if (!more)
            return 0;
        o->mark = more;
        o->cap = cap;
    }
    o->mark[o->n_marks++] = o->of[q];
    return o->n_marks;
}

void fake_order_wait(struct order *o, enum dev_queue q, int mark)
{
    if (mark > 0 && mark <= o->n_marks)
        merge(&o->of[q], &o->mark[mark - 1]);
}

static void merge_into_all(struct order *o, struct clock c)
{
    for (int q = 0; q < DEV_QUEUES; q++)
        merge(&o->of[q], &c);
}

void fake_order_sync(struct order *o, enum dev_queue q) { merge_into_all(o, o->of[q]); }

void fake_order_sync_mark(struct order *o, int mark)
{
    if (mark > 0 && mark <= o->n_marks)
        merge_into_all(o, o->mark[mark - 1]);
}

void fake_order_close(struct order *o)
{
    free(o->mark);
    *o = (struct order){ 0 };
}

/* ---- spans ---- */
static int insert(struct spans *s, int at, struct span x)
{
    if (s->n == s->cap) {
        int cap = s->cap ? 2 * s->cap : 4;
        struct span *more = realloc(s->span, sizeof *more * (size_t)cap);
        if (!more)
            return -1;
        s->span = more;
        s->cap = cap;
    }
    for (int i = s->n; i > at; i--)
        s->span[i] = s->span[i - 1];
    s->span[at] = x;
    s->n++;
    return 0;
}

/* Cuts the span around `at` in two and returns the index of the one that begins there; -1: out of memory. */
static int cut(struct spans *s, size_t at)
{
    int lo = 0, hi = s->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->span[mid].end <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == s->n || s->span[lo].begin >= at)
        return lo;
    struct span rest = s->span[lo];
    rest.begin = at;
    if (insert(s, lo + 1, rest) < 0)
        return -1;
    s->span[lo].end = at;
    return lo + 1;
}

static int same_accesses(const struct span *a, const struct span *b)
{
    int same = a->write.number == b->write.number && a->write.queue == b->write.queue && a->end == b->begin;
    for (int q = 0; q < DEV_QUEUES; q++)
        same &= a->read[q].number == b->read[q].number;
    return same;
}

/* Joins neighbours from span `first` to `last` that have the same last accesses. */
static void join(struct spans *s, int first, int last)
{
    int to = first;
    if (first < 0 || first >= s->n)
        return;
    last = last < s->n ? last : s->n - 1;
    for (int i = first + 1; i < s->n; i++) {
        if (i <= last && same_accesses(&s->span[to], &s->span[i]))
            s->span[to].end = s->span[i].end;
        else
            s->span[++to] = s->span[i];
    }
    s->n = to + 1;
}

/* 1: clock c covers the access; else 0 and *who is the access. */
static int covered(const struct touch *t, const struct clock *c, struct touch *who)
{
    if (!t->number || c->at[t->queue] >= t->number)
        return 1;
    *who = *t;
    return 0;
}

static int in_order(const struct span *x, const struct clock *c, int writes, struct touch *who, int *wrote)
{
    *wrote = 1;
    if (!covered(&x->write, c, who))
        return 0;
    *wrote = 0;
    for (int q = 0; writes && q < DEV_QUEUES; q++)
        if (!covered(&x->read[q], c, who))
            return 0;
    return 1;
}

int spans_touch(struct spans *s, const struct order *o, enum dev_queue q, const char *op, size_t begin,
                size_t end, int writes, struct touch *who, int *wrote)
{
    const struct touch me = { o->of[q].at[q], q, op };
    int first, last, bad = 0;
    if (begin == end)
        return 0;
    if (!s->n && insert(s, 0, (struct span){ .end = SIZE_MAX }) < 0)
        return -1;
    if ((first = cut(s, begin)) < 0 || (last = cut(s, end)) < 0)
        return -1;
    for (int i = first; i < last; i++) {
        struct span *x = &s->span[i];
        bad = bad || !in_order(x, &o->of[q], writes, who, wrote);
        if (writes)
            *x = (struct span){ x->begin, x->end, me, { { 0 } } };
        else
            x->read[q] = me;
    }
    join(s, first - 1 > 0 ? first - 1 : 0, last);
    return bad;
}

void spans_close(struct spans *s)
{
    free(s->span);
    *s = (struct spans){ 0 };
}

/* closure.c - a configuration in the making: all threads that a place of the text has, found from nodes at
 * which rules go on.
 *
 * Frames of rules that are called at this place are open: another caller may still come. When a rule has
 * returned without a byte, a caller that comes later is answered at once. At the end open frames get numbers,
 * callers before those whom they call; a rule that begins with itself is refused when a program is built, so
 * there is such an order. */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/grammar/automaton.h"

/* A frame: what it counts (a repeat's count, a set of keys), then its edges: a node and a frame to go on
 * in. */
struct edge {
    int32_t node, frame; /* a frame < 0: the open one -1 - frame. node -1: all edges of that frame */
};
struct open_frame {
    int32_t rule, number; /* number: when it has one, else -1 */
    int32_t aux;
    int32_t base;       /* has the edges of this open frame; -1: its own */
    int32_t first_edge; /* of closure->edge, by link; -1: none */
    int returned;       /* without a byte */
};
struct closure {
    struct open_frame *open;
    size_t n_open, cap_open;
    struct edge *edge;
    struct ints link; /* of edges: the next one of its frame */
    size_t n_edges, cap_edges;
    struct ints todo; /* pairs: node, frame */
    struct intern seen;
    struct thread *thread;
    size_t n_threads, cap_threads;
    struct intern of_rule; /* rules that are called here */
    struct ints rule_open; /* and their open frames */
    int accepts;
    struct ints scratch;
};

static void no_memory(struct machine *m)
{
    if (!m->failed)
        m->failed = ERR_MEMORY;
}

int closure_open(struct machine *m) { return (m->closure = calloc(1, sizeof *m->closure)) ? 0 : -1; }

void closure_close(struct machine *m)
{
    struct closure *c = m->closure;
    if (!c)
        return;
    free(c->open);
    free(c->edge);
    free(c->thread);
    ints_free(&c->link);
    ints_free(&c->todo);
    ints_free(&c->scratch);
    ints_free(&c->rule_open);
    intern_free(&c->seen);
    intern_free(&c->of_rule);
    free(c);
}

size_t closure_size(const struct machine *m)
{
    const struct closure *c = m->closure;
    return intern_size(&c->seen) + intern_size(&c->of_rule) + c->cap_threads * sizeof *c->thread +
           c->cap_open * sizeof *c->open + c->cap_edges * (sizeof *c->edge + 4);
}

static void forget(struct intern *t)
{
    if (t->n_slots > 4096 && t->n < t->n_slots / 64) /* a large place was behind us long ago */
        intern_free(t);
    if (t->n)
        memset(t->slot, 0, t->n_slots * sizeof *t->slot);
    t->n = 0;
    t->n_bytes = 0;
}

void closure_begin(struct machine *m)
{
    struct closure *c = m->closure;
    c->n_open = c->n_edges = c->n_threads = 0;
    c->link.n = c->todo.n = c->rule_open.n = 0;
    c->accepts = 0;
    forget(&c->seen);
    forget(&c->of_rule);
}

void closure_thread(struct machine *m, struct thread t)
{
    struct closure *c = m->closure;
    if (c->n_threads == MACHINE_THREADS) {
        m->failed = m->failed ? m->failed : ERR_CONFIG;
        return;
    }
    if (c->n_threads == c->cap_threads) {
        struct thread *v = buf_grow(c->thread, &c->cap_threads, c->n_threads + 1, sizeof *v);
        if (!v) {
            no_memory(m);
            return;
        }
        c->thread = v;
    }
    c->thread[c->n_threads++] = t;
}

static void later(struct machine *m, int32_t node, int32_t frame)
{
    ints_add(&m->closure->todo, node);
    ints_add(&m->closure->todo, frame);
    if (m->closure->todo.failed)
        no_memory(m);
}

/* --- frames --- */

static const struct edge *frame_edges(const struct machine *m, int32_t frame, size_t *n)
{
    size_t bytes;
    const int32_t *k = intern_key(&m->frames, (uint32_t)frame, &bytes);
    *n = (bytes - sizeof *k) / sizeof(struct edge);
    return (const struct edge *)(const void *)(k + 1);
}

static int32_t frame_aux(const struct machine *m, int32_t frame)
{
    size_t bytes;
    return *(const int32_t *)intern_key(&m->frames, (uint32_t)frame, &bytes);
}

uint32_t frame_set(const struct machine *m, int32_t frame) { return (uint32_t)frame_aux(m, frame); }

static int32_t aux_of(const struct machine *m, int32_t frame)
{
    return frame < 0 ? m->closure->open[-1 - frame].aux : frame_aux(m, frame);
}

/* The frame with the same edges that counts aux. */
static int32_t frame_with(struct machine *m, int32_t frame, int32_t aux)
{
    size_t bytes;
    const int32_t *k = intern_key(&m->frames, (uint32_t)frame, &bytes);
    struct ints *s = &m->closure->scratch;
    s->n = 0;
    ints_add(s, aux);
    for (size_t i = 1; i < bytes / sizeof *k; i++)
        ints_add(s, k[i]);
    int32_t id = (int32_t)intern_put(&m->frames, s->v, s->n * sizeof *s->v);
    if (s->failed || m->frames.failed)
        no_memory(m);
    return id;
}

static int32_t new_open(struct machine *m, int32_t rule, int32_t aux, int32_t base)
{
    struct closure *c = m->closure;
    if (c->n_open == c->cap_open) {
        struct open_frame *v = buf_grow(c->open, &c->cap_open, c->n_open + 1, sizeof *v);
        if (!v) {
            no_memory(m);
            return -1;
        }
        c->open = v;
    }
    c->open[c->n_open++] = (struct open_frame){ rule, -1, aux, base, -1, 0 };
    if (c->n_open > MACHINE_THREADS && !m->failed)
        m->failed = ERR_CONFIG;
    return (int32_t)c->n_open - 1;
}

static void go_back(struct machine *m, int32_t frame);

/* Adds an edge to an open frame, unless it has it. */
static void add_edge(struct machine *m, int32_t open, struct edge x)
{
    struct closure *c = m->closure;
    for (int32_t i = c->open[open].first_edge; i >= 0; i = c->link.v[i])
        if (c->edge[i].node == x.node && c->edge[i].frame == x.frame)
            return;
    if (c->n_edges == c->cap_edges) {
        struct edge *v = buf_grow(c->edge, &c->cap_edges, c->n_edges + 1, sizeof *v);
        if (!v) {
            no_memory(m);
            return;
        }
        c->edge = v;
    }
    c->edge[c->n_edges++] = x;
    ints_add(&c->link, c->open[open].first_edge);
    if (c->link.failed) {
        no_memory(m);
        return;
    }
    c->open[open].first_edge = (int32_t)c->n_edges - 1;
    if (c->open[open].returned) {
        if (x.node < 0)
            go_back(m, x.frame);
        else
            later(m, x.node, x.frame);
    }
}

/* Calls a rule, to go on at a node of a frame. */
static void call(struct machine *m, int32_t rule, int32_t node, int32_t frame)
{
    struct closure *c = m->closure;
    uint32_t before = c->of_rule.n, id = intern_put(&c->of_rule, &rule, sizeof rule);
    struct edge x = { node, frame };
    size_t n;

    if (c->of_rule.failed) {
        no_memory(m);
        return;
    }
    if (c->of_rule.n > before) {
        int32_t open = new_open(m, rule, 0, -1);
        ints_add(&c->rule_open, open);
        if (open < 0 || c->rule_open.failed)
            return;
        later(m, m->p->rule[rule], -1 - open);
    }
    id = (uint32_t)c->rule_open.v[id];

    /* a call at the end of a rule gives its own callers: the stack does not grow in a list */
    if (m->p->node[node].kind != NODE_RETURN) {
        add_edge(m, (int32_t)id, x);
    } else if (frame < 0) {
        add_edge(m, (int32_t)id, (struct edge){ -1, frame });
    } else {
        const struct edge *edges = frame_edges(m, frame, &n);
        for (size_t i = 0; i < n; i++)
            add_edge(m, (int32_t)id, edges[i]);
    }
}

/* The rule of a frame has ended: goes on at its callers. */
static void go_back(struct machine *m, int32_t frame)
{
    struct closure *c = m->closure;
    size_t n;
    if (frame >= 0) {
        const struct edge *edges = frame_edges(m, frame, &n);
        for (size_t i = 0; i < n; i++)
            later(m, edges[i].node, edges[i].frame);
        return;
    }

    int32_t open = -1 - frame;
    while (c->open[open].base >= 0)
        open = c->open[open].base;
    if (c->open[open].returned)
        return;
    c->open[open].returned = 1;
    for (int32_t i = c->open[open].first_edge; i >= 0; i = c->link.v[i]) {
        if (c->edge[i].node < 0)
            go_back(m, c->edge[i].frame);
        else
            later(m, c->edge[i].node, c->edge[i].frame);
    }
}

/* --- nodes --- */

static void do_repeat(struct machine *m, const struct node *x, int32_t node, int32_t frame)
{
    const struct repeat *r = &m->p->repeat[x->b];
    int32_t count = aux_of(m, frame), more = count + 1, next;
    if (frame < 0 && m->closure->open[-1 - frame].base >= 0)
        return; /* a body that has read nothing: the count it stands for is reached without it */
    if (count >= r->min)
        later(m, x->next, frame);
    if ((r->max >= 0 && count >= r->max) || !m->p->node[m->p->rule[x->a]].productive)
        return;
    if (r->max < 0 && more > r->min)
        more = (int32_t)r->min;
    if (frame >= 0) {
        next = frame_with(m, frame, more);
    } else {
        int32_t copy = new_open(m, m->closure->open[-1 - frame].rule, more, -1 - frame);
        if (copy < 0)
            return;
        next = -1 - copy;
    }
    call(m, x->a, node, next);
}

static void do_term(struct machine *m, const struct node *x, int32_t node, int32_t frame)
{
    uint32_t at = term_begin(m, x->a);
    if (!at)
        return;
    if (m->term[at].extends)
        closure_thread(m, (struct thread){ node, at, frame });
    if (m->term[at].accepts)
        later(m, x->next, frame);
}

static void do_object(struct machine *m, const struct node *x, int32_t frame)
{
    uint32_t set = (uint32_t)aux_of(m, frame);
    int first = x->kind == NODE_FIRST;
    if (object_may_close(m, x->a, set))
        later(m, x->next, frame);
    if (object_may_go_on(m, x->a, set))
        later(m, first ? m->p->object[x->a].key_node : x->b, frame);
}

static void do_node(struct machine *m, int32_t node, int32_t frame)
{
    const struct node *x = &m->p->node[node];
    int32_t pair[2] = { node, frame };
    uint32_t before = m->closure->seen.n;

    m->work--;
    if (!x->productive)
        return;
    intern_put(&m->closure->seen, pair, sizeof pair);
    if (m->closure->seen.failed)
        no_memory(m);
    if (m->closure->seen.n == before)
        return;

    switch ((enum node_kind)x->kind) {
    case NODE_RETURN: go_back(m, frame); break;
    case NODE_DEAD: break;
    case NODE_ACCEPT: m->closure->accepts = 1; break;
    case NODE_TERM: do_term(m, x, node, frame); break;
    case NODE_CALL: call(m, x->a, x->next, frame); break;
    case NODE_ALT:
        for (int32_t i = 0; i < x->b; i++)
            later(m, m->p->target.v[x->a + i], frame);
        break;
    case NODE_REPEAT: do_repeat(m, x, node, frame); break;
    case NODE_FIRST:
    case NODE_AFTER: do_object(m, x, frame); break;
    case NODE_KEY:
        closure_thread(m, (struct thread){ node, term_begin(m, m->p->object[x->a].terminal), frame });
        break;
    }
}

static void run(struct machine *m)
{
    struct ints *t = &m->closure->todo;
    while (t->n && !m->failed) {
        t->n -= 2;
        do_node(m, t->v[t->n], t->v[t->n + 1]);
        if (m->work < 0 && !m->failed)
            m->failed = ERR_CONFIG;
    }
}

void closure_node(struct machine *m, int32_t node, int32_t frame)
{
    later(m, node, frame);
    run(m);
}

void closure_key(struct machine *m, int32_t object, int32_t rule, int32_t frame, uint32_t set)
{
    call(m, rule, m->p->object[object].after_node, frame_with(m, frame, (int32_t)set));
    run(m);
}

/* --- the end --- */

static int32_t number_open(struct machine *m, int32_t open, int depth);

static int by_edge(const void *a, const void *b) { return memcmp(a, b, sizeof(struct edge)); }

/* Adds the edges of an open frame to list, with numbers for frames. */
static void collect(struct machine *m, int32_t open, struct ints *list, int depth)
{
    struct closure *c = m->closure;
    size_t n;
    while (c->open[open].base >= 0)
        open = c->open[open].base;
    for (int32_t i = c->open[open].first_edge; i >= 0 && !m->failed; i = c->link.v[i]) {
        struct edge x = c->edge[i];
        if (x.node < 0 && x.frame < 0) {
            collect(m, -1 - x.frame, list, depth + 1);
            continue;
        }
        if (x.node < 0) {
            const struct edge *edges = frame_edges(m, x.frame, &n);
            for (size_t j = 0; j < n; j++) {
                ints_add(list, edges[j].node);
                ints_add(list, edges[j].frame);
            }
            continue;
        }
        ints_add(list, x.node);
        ints_add(list, x.frame < 0 ? number_open(m, -1 - x.frame, depth + 1) : x.frame);
    }
}

static int32_t number_open(struct machine *m, int32_t open, int depth)
{
    struct closure *c = m->closure;
    struct ints list = { 0 };
    size_t unique = 1;
    if (c->open[open].number >= 0)
        return c->open[open].number;
    if (depth > 10000 && !m->failed)
        m->failed = ERR_CONFIG;
    if (m->failed)
        return 0;
    ints_add(&list, c->open[open].aux);
    collect(m, open, &list, depth);

    if (!list.failed && list.n > 3) {
        struct edge *x = (struct edge *)(void *)(list.v + 1);
        size_t n = (list.n - 1) / 2;
        qsort(x, n, sizeof *x, by_edge);
        for (size_t i = 1; i < n; i++)
            if (by_edge(&x[i], &x[unique - 1]))
                x[unique++] = x[i];
        list.n = 1 + 2 * unique;
    }
    int32_t id = (int32_t)intern_put(&m->frames, list.v, list.n * sizeof *list.v);
    if (list.failed || m->frames.failed)
        no_memory(m);
    ints_free(&list);
    return c->open[open].number = id;
}

static int by_thread(const void *a, const void *b) { return memcmp(a, b, sizeof(struct thread)); }

uint32_t closure_end(struct machine *m)
{
    struct closure *c = m->closure;
    size_t n = 0;
    run(m);
    for (size_t i = 0; i < c->n_threads && !m->failed; i++)
        if (c->thread[i].frame < 0)
            c->thread[i].frame = number_open(m, -1 - c->thread[i].frame, 0);
    if (m->failed || (!c->n_threads && !c->accepts))
        return 0;
    if (c->n_threads)
        qsort(c->thread, c->n_threads, sizeof *c->thread, by_thread);
    for (size_t i = 0; i < c->n_threads; i++)
        if (!n || by_thread(&c->thread[i], &c->thread[n - 1]))
            c->thread[n++] = c->thread[i];

    /* whether it accepts is one more number behind its threads: so two of them differ */
    size_t bytes = n * sizeof *c->thread;
    struct ints *s = &c->scratch;
    s->n = 0;
    for (size_t i = 0; i < bytes / sizeof(int32_t); i++)
        ints_add(s, ((const int32_t *)(const void *)c->thread)[i]);
    ints_add(s, c->accepts);
    uint32_t before = m->configs.n;
    uint32_t id = s->failed ? 0 : intern_put(&m->configs, s->v, s->n * sizeof *s->v);
    if (s->failed || m->configs.failed) {
        no_memory(m);
        return 0;
    }
    if (m->configs.n == before)
        return id;
    struct config_info *v = m->config;
    if (id >= m->cap_configs && !(v = buf_grow(v, &m->cap_configs, (size_t)id + 1, sizeof *v))) {
        no_memory(m);
        return 0;
    }
    m->config = v;
    m->config[id] = (struct config_info){ .accepts = (uint8_t)c->accepts };
    return id;
}

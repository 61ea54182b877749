/* analyse.c - what is true of a whole program: which nodes lead to an end, and which rules begin with
 * themselves. */
#include <stdlib.h>
#include <string.h>
#include "text/grammar/automaton.h"

static int object_productive(const struct program *p, const struct object *o)
{
    int64_t possible = 0;
    for (int32_t i = 0; i < o->n_keys; i++) {
        const struct object_key *k = &o->key[i];
        int can = !k->forbidden && k->rule >= 0 && p->node[p->rule[k->rule]].productive;
        if (k->required && !can)
            return 0;
        possible += can;
    }
    if (o->max >= 0 && o->n_required > o->max)
        return 0;
    if (possible >= o->min)
        return 1;
    for (int i = 0; i < 1 << o->n_patterns; i++)
        if (o->rule_of_class[i] >= 0 && p->node[p->rule[o->rule_of_class[i]]].productive)
            return 1;
    return 0;
}

static int is_productive(const struct program *p, const struct node *x, const uint8_t *empty)
{
    switch (x->kind) {
    case NODE_RETURN:
    case NODE_ACCEPT: return 1;
    case NODE_DEAD: return 0;
    case NODE_TERM: return !empty[x->a] && p->node[x->next].productive;
    case NODE_CALL: return p->node[p->rule[x->a]].productive && p->node[x->next].productive;
    case NODE_ALT:
        for (int32_t i = 0; i < x->b; i++)
            if (p->node[p->target.v[x->a + i]].productive)
                return 1;
        return 0;
    case NODE_REPEAT: return p->repeat[x->b].min == 0 || p->node[p->rule[x->a]].productive;
    case NODE_FIRST:
    case NODE_KEY:
    case NODE_AFTER: return object_productive(p, &p->object[x->a]);
    default: return 0;
    }
}

/* Adds to `from` who must be asked again when a node becomes productive: a list a node, as first[] and link
 * lists. */
struct users {
    struct ints first, next, user;
};
static void uses(struct users *u, int32_t node, int32_t user)
{
    ints_add(&u->next, u->first.v[node]);
    ints_add(&u->user, user);
    u->first.v[node] = (int32_t)u->user.n - 1;
}

static void object_uses(const struct program *p, struct users *u, const struct object *o, int32_t user)
{
    for (int32_t i = 0; i < o->n_keys; i++)
        if (!o->key[i].forbidden && o->key[i].rule >= 0)
            uses(u, p->rule[o->key[i].rule], user);
    for (int i = 0; i < 1 << o->n_patterns; i++)
        if (o->rule_of_class[i] >= 0)
            uses(u, p->rule[o->rule_of_class[i]], user);
}

static void node_uses(const struct program *p, struct users *u, int32_t i)
{
    const struct node *x = &p->node[i];
    if (x->kind == NODE_TERM || x->kind == NODE_CALL)
        uses(u, x->next, i);
    if (x->kind == NODE_CALL || x->kind == NODE_REPEAT)
        uses(u, p->rule[x->a], i);
    for (int32_t j = 0; x->kind == NODE_ALT && j < x->b; j++)
        uses(u, p->target.v[x->a + j], i);
    if (x->kind == NODE_FIRST)
        object_uses(p, u, &p->object[x->a], i);
}

/* Marks the productive nodes: a worklist, each node once. The three nodes of an object are alike. */
static void mark_productive(struct program *p, const uint8_t *empty, struct users *u)
{
    struct ints work = { 0 };
    for (size_t i = 0; i < p->n_nodes; i++)
        ints_add(&u->first, -1);
    for (size_t i = 0; i < p->n_nodes && !u->first.failed && program_check(p) == 0; i++) {
        node_uses(p, u, (int32_t)i);
        ints_add(&work, (int32_t)i);
    }
    while (work.n && !work.failed && program_check(p) == 0) {
        int32_t i = work.v[--work.n];
        struct node *x = &p->node[i];
        if (x->productive || !is_productive(p, x, empty))
            continue;
        x->productive = 1;
        if (x->kind == NODE_FIRST) { /* looked at again, they are found productive, too */
            ints_add(&work, p->object[x->a].key_node);
            ints_add(&work, p->object[x->a].after_node);
        }
        for (int32_t j = u->first.v[i]; j >= 0; j = u->next.v[j])
            ints_add(&work, u->user.v[j]);
    }
    if (work.failed || u->first.failed || u->next.failed || u->user.failed)
        program_fail(p, ERR_MEMORY, "no memory for a grammar");
    ints_free(&work);
}

/* What no text can satisfy is forbidden, so that no text begins it. */
static void forbid_unproductive(struct program *p)
{
    for (size_t i = 0; i < p->n_objects; i++) {
        struct object *o = &p->object[i];
        for (int32_t j = 0; j < o->n_keys; j++)
            if (o->key[j].rule < 0 || !p->node[p->rule[o->key[j].rule]].productive)
                o->key[j].forbidden = 1;
        o->has_others = 0;
        for (int j = 0; j < 1 << o->n_patterns; j++) {
            if (o->rule_of_class[j] >= 0 && !p->node[p->rule[o->rule_of_class[j]]].productive)
                o->rule_of_class[j] = -1;
            o->has_others |= o->rule_of_class[j] >= 0;
        }
    }
}

/* --- rules that begin with themselves --- */

enum { NEW, OPEN, DONE, DONE_NULLABLE };
struct walk {
    struct program *p;
    uint8_t *nullable; /* of terminals: 1 */
    uint8_t *rule;     /* [n_rules] the rule can match nothing */
    uint8_t *state;    /* [n_rules] of the search for cycles */
    uint8_t *seen;     /* [n_nodes] */
    struct ints touched, stack;
};

/* Rules that the rule can call before it reads a byte, to out; *nullable: it can end before that. */
static void first_calls(struct walk *w, int32_t rule, struct ints *out, int *nullable)
{
    const struct program *p = w->p;
    *nullable = 0;
    w->stack.n = w->touched.n = 0;
    ints_add(&w->stack, p->rule[rule]);
    while (w->stack.n && !w->stack.failed) {
        int32_t i = w->stack.v[--w->stack.n];
        const struct node *x = &p->node[i];
        if (w->seen[i])
            continue;
        w->seen[i] = 1;
        ints_add(&w->touched, i);
        if (x->kind == NODE_RETURN)
            *nullable = 1;
        if (x->kind == NODE_CALL || x->kind == NODE_REPEAT)
            ints_add(out, x->a);
        if ((x->kind == NODE_TERM && w->nullable[x->a]) || (x->kind == NODE_CALL && w->rule[x->a]) ||
            (x->kind == NODE_REPEAT && (p->repeat[x->b].min == 0 || w->rule[x->a])))
            ints_add(&w->stack, x->next);
        for (int32_t j = 0; x->kind == NODE_ALT && j < x->b; j++)
            ints_add(&w->stack, p->target.v[x->a + j]);
    }
    for (size_t i = 0; i < w->touched.n; i++)
        w->seen[w->touched.v[i]] = 0;
}

/* Which rules can match nothing: until nothing changes. Few rounds, as few rules can. */
static void find_nullable(struct walk *w)
{
    struct ints calls = { 0 };
    for (int changed = 1; changed && program_check(w->p) == 0;) {
        changed = 0;
        for (size_t i = 0; i < w->p->n_rules; i++) {
            int nullable;
            if (w->rule[i])
                continue;
            calls.n = 0;
            first_calls(w, (int32_t)i, &calls, &nullable);
            changed |= nullable;
            w->rule[i] = (uint8_t)nullable;
        }
    }
    ints_free(&calls);
}

/* Depth first along first calls. Returns a rule on a cycle, or -1. */
static int32_t find_cycle(struct walk *w)
{
    struct ints path = { 0 }, calls = { 0 };
    int32_t found = -1;
    int nullable;
    for (size_t begin = 0; begin < w->p->n_rules && found < 0 && program_check(w->p) == 0; begin++) {
        ints_add(&path, (int32_t)begin);
        while (path.n && found < 0 && !path.failed) {
            int32_t r = path.v[path.n - 1];
            if (w->state[r] != NEW) {
                if (w->state[r] == OPEN)
                    w->state[r] = DONE;
                path.n--;
                continue;
            }
            w->state[r] = OPEN;
            calls.n = 0;
            first_calls(w, r, &calls, &nullable);
            for (size_t i = 0; i < calls.n && found < 0; i++) {
                if (w->state[calls.v[i]] == OPEN)
                    found = calls.v[i];
                else if (w->state[calls.v[i]] == NEW)
                    ints_add(&path, calls.v[i]);
            }
        }
    }
    if (path.failed || calls.failed)
        program_fail(w->p, ERR_MEMORY, "no memory for a grammar");
    ints_free(&path);
    ints_free(&calls);
    return found;
}

static void refuse_left_recursion(struct program *p, uint8_t *nullable,
                                  const char *(*rule_name)(void *arg, int32_t rule), void *arg)
{
    struct walk w = { .p = p, .nullable = nullable };
    w.rule = calloc(p->n_rules + 1, 1);
    w.state = calloc(p->n_rules + 1, 1);
    w.seen = calloc(p->n_nodes + 1, 1);
    if (!w.rule || !w.state || !w.seen) {
        program_fail(p, ERR_MEMORY, "no memory for a grammar");
    } else {
        find_nullable(&w);
        for (size_t i = 0; i < p->n_nodes; i++) /* a body that can match nothing fulfils any count */
            if (p->node[i].kind == NODE_REPEAT && w.rule[p->node[i].a])
                p->repeat[p->node[i].b].min = 0;
        int32_t cycle = find_cycle(&w);
        const char *name = cycle >= 0 && rule_name ? rule_name(arg, cycle) : NULL;
        if (cycle >= 0)
            program_fail(p, ERR_CONFIG,
                         "rule %s begins with itself (left recursion), which is not honoured: put what it "
                         "begins with first",
                         name ? name : "of the grammar");
    }
    free(w.rule);
    free(w.state);
    free(w.seen);
    ints_free(&w.touched);
    ints_free(&w.stack);
}

int program_finish(struct program *p, const char *(*rule_name)(void *arg, int32_t rule), void *arg)
{
    struct machine *m = NULL;
    struct users u = { 0 };
    uint8_t *empty = calloc(p->n_terminals + 1, 1), *nullable = calloc(p->n_terminals + 1, 1);
    if (!empty || !nullable)
        program_fail(p, ERR_MEMORY, "no memory for a grammar");
    if (!p->failed && machine_open(&m, p, p->e) < 0)
        p->failed = 1;

    for (size_t i = 0; i < p->n_terminals && program_check(p) == 0; i++) {
        empty[i] = p->terminal[i].object < 0 && terminal_is_empty(m, (int32_t)i);
        nullable[i] = p->terminal[i].object < 0 && terminal_has(m, (int32_t)i, "", 0) &&
                      p->terminal[i].decoder == DECODER_TEXT;
    }
    if (m && m->failed && !p->failed) {
        machine_error(m, p->e);
        p->failed = 1;
    }
    if (!p->failed)
        mark_productive(p, empty, &u);
    if (!p->failed && !p->node[p->begin].productive)
        program_fail(p, ERR_CONFIG, "no text is within the grammar: what it asks for contradicts itself");
    if (!p->failed)
        forbid_unproductive(p);
    if (!p->failed)
        refuse_left_recursion(p, nullable, rule_name, arg);

    ints_free(&u.first);
    ints_free(&u.next);
    ints_free(&u.user);
    machine_close(m);
    free(empty);
    free(nullable);
    return p->failed ? -p->e->code : 0;
}

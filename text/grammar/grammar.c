/* grammar.c - specs to programs, and what the matchers of a grammar share: see text/grammar.h. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "text/grammar/compile.h"
#include "text/grammar/matching.h"
#include "text/tok.h"

#define SPEC_DEPTH 64

static int32_t compile(struct program *p, struct rule_names *names, const struct grammar_spec *s,
                       int32_t next, int depth);

static int32_t compile_words(struct program *p, const struct grammar_spec *s, int32_t next)
{
    const char **word = malloc((s->n_parts + 1) * sizeof *word);
    size_t *n = malloc((s->n_parts + 1) * sizeof *n);
    int32_t t = 0;
    if (!word || !n)
        program_fail(p, ERR_MEMORY, "no memory for a list of texts");
    if (!s->n_parts)
        program_fail(p, ERR_CONFIG, "choice is an empty list: give at least one text");
    for (size_t i = 0; i < s->n_parts && !p->failed; i++) {
        word[i] = s->part[i].text ? s->part[i].text : "";
        n[i] = s->part[i].text ? s->part[i].n : 0;
    }
    if (!p->failed)
        t = program_words(p, DECODER_TEXT, word, n, (int32_t)s->n_parts);
    free(word);
    free(n);
    return program_node(p, NODE_TERM, t, 0, next);
}

static int32_t compile_literal(struct program *p, const struct grammar_spec *s, int32_t next)
{
    if (!s->n)
        return next;
    int32_t t = program_words(p, DECODER_TEXT, &s->text, &s->n, 1);
    if (!p->failed)
        p->terminal[t].flags = s->flags & GRAMMAR_ADDED_TOKENS ? TERMINAL_ADDED : 0;
    return program_node(p, NODE_TERM, t, 0, next);
}

static int32_t compile_free(struct program *p, const struct grammar_spec *s, int32_t next)
{
    int32_t node = compile_words(p, s, next);
    if (p->failed)
        return 0;
    struct terminal *t = &p->terminal[p->node[node].a];
    t->flags = s->flags & GRAMMAR_ADDED_TOKENS ? TERMINAL_ADDED : 0;
    if (component_avoid(&p->component[t->part[0].component], p->e) < 0)
        p->failed = 1;
    return node;
}

static int32_t compile_regex(struct program *p, const struct grammar_spec *s, int32_t next)
{
    int32_t c = program_regex(p, s->text, s->n, REGEX_WHOLE, NULL);
    return program_node(p, NODE_TERM, program_simple(p, DECODER_TEXT, c), 0, next);
}

static int32_t compile_sequence(struct program *p, struct rule_names *names, const struct grammar_spec *s,
                                int32_t next, int depth)
{
    for (size_t i = s->n_parts; i-- > 0;)
        next = compile(p, names, &s->part[i], next, depth);
    return next;
}

static int32_t compile_any(struct program *p, struct rule_names *names, const struct grammar_spec *s,
                           int32_t next, int depth)
{
    struct ints nodes = { 0 };
    if (!s->n_parts)
        program_fail(p, ERR_CONFIG, "a list of alternatives is empty");
    for (size_t i = 0; i < s->n_parts; i++)
        ints_add(&nodes, compile(p, names, &s->part[i], next, depth));
    if (nodes.failed)
        program_fail(p, ERR_MEMORY, "no memory for a grammar");
    int32_t node = p->failed ? 0 : program_alt(p, nodes.v, nodes.n);
    ints_free(&nodes);
    return node;
}

static int32_t compile_repeat(struct program *p, struct rule_names *names, const struct grammar_spec *s,
                              int32_t next, int depth)
{
    if (s->n_parts != 1 || s->min < 0 || (s->max >= 0 && s->max < s->min) || s->min > INT32_MAX / 2 ||
        s->max > INT32_MAX / 2) {
        program_fail(p, ERR_CONFIG, "a repetition needs one part, and a count");
        return 0;
    }
    int32_t rule = program_rule(p), end = program_node(p, NODE_RETURN, 0, 0, 0);
    int32_t body = compile(p, names, s->part, end, depth);
    if (p->failed)
        return 0;
    p->rule[rule] = body;
    return program_repeat(p, rule, s->min, s->max, next);
}

static int32_t compile(struct program *p, struct rule_names *names, const struct grammar_spec *s,
                       int32_t next, int depth)
{
    static const char any_object[] = "{\"type\":\"object\"}";
    if (p->failed)
        return 0;
    if (depth > SPEC_DEPTH) {
        program_fail(p, ERR_CONFIG, "a grammar's parts are nested more than %d deep", SPEC_DEPTH);
        return 0;
    }
    switch (s->kind) {
    case GRAMMAR_SCHEMA: return compile_schema(p, s->text, s->n, s->flags, next);
    case GRAMMAR_JSON_OBJECT: return compile_schema(p, any_object, sizeof any_object - 1, s->flags, next);
    case GRAMMAR_REGEX: return compile_regex(p, s, next);
    case GRAMMAR_CHOICE: return compile_words(p, s, next);
    case GRAMMAR_EBNF: return compile_ebnf(p, names, s->text, s->n, next);
    case GRAMMAR_LITERAL: return compile_literal(p, s, next);
    case GRAMMAR_SEQUENCE: return compile_sequence(p, names, s, next, depth + 1);
    case GRAMMAR_ANY_OF: return compile_any(p, names, s, next, depth + 1);
    case GRAMMAR_REPEAT: return compile_repeat(p, names, s, next, depth + 1);
    case GRAMMAR_FREE: return compile_free(p, s, next);
    }
    return 0;
}

const char *rule_name(void *names, int32_t rule)
{
    struct rule_names *r = names;
    size_t n;
    for (size_t i = 0; i < r->rule.n; i++)
        if (r->rule.v[i] == rule)
            return intern_key(&r->name, (uint32_t)i, &n);
    return NULL;
}

/* Texts of a spec and its parts are UTF-8: components take them apart without looking. */
static int check_texts(const struct grammar_spec *s, int depth, struct err *e)
{
    uint32_t cp;
    int rc = 0;
    for (size_t i = 0; s->text && i < s->n;) {
        int len = utf8_next(s->text + i, s->n - i, &cp);
        if (len <= 0)
            return err_set(e, ERR_CONFIG, "byte %zu of a grammar's text is not UTF-8", i);
        i += (size_t)len;
    }
    for (size_t i = 0; i < s->n_parts && rc == 0 && depth <= SPEC_DEPTH; i++)
        rc = check_texts(&s->part[i], depth + 1, e);
    return rc;
}

int grammar_open(struct grammar **out, const struct grammar_spec *spec, const struct work_limit *limit,
                 struct err *e)
{
    struct grammar *g = calloc(1, sizeof *g);
    struct rule_names names = { 0 };
    int rc = check_texts(spec, 0, e);
    *out = NULL;
    if (!g || rc < 0) {
        free(g);
        return rc < 0 ? rc : err_set(e, ERR_MEMORY, "no memory for a grammar");
    }

    struct program *p = &g->program;
    program_begin(p, limit, e);
    int32_t end = program_node(p, NODE_ACCEPT, 0, 0, 0), rule = program_rule(p);
    int32_t back = program_node(p, NODE_RETURN, 0, 0, 0);
    int32_t first = compile(p, &names, spec, back, 0);
    if (!p->failed) {
        p->rule[rule] = first;
        p->begin = program_node(p, NODE_CALL, rule, 0, end);
    }
    if (!p->failed)
        program_finish(p, rule_name, &names);
    rc = p->failed ? -e->code : 0;
    p->limit = NULL;
    p->e = NULL;
    ints_free(&names.rule);
    intern_free(&names.name);

    if (rc == 0 && pthread_mutex_init(&g->lock, NULL))
        rc = err_set(e, ERR_MEMORY, "no memory for a grammar");
    if (rc < 0) {
        program_close(p);
        free(g);
        return rc;
    }
    atomic_store(&g->refs, 1);
    *out = g;
    return 0;
}

struct grammar *grammar_share(struct grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_close(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1)
        return;
    pthread_mutex_lock(&g->lock);
    shared_drop(g);
    pthread_mutex_unlock(&g->lock);
    memory_leave(g);
    pthread_mutex_destroy(&g->lock);
    program_close(&g->program);
    free(g);
}

/* --- machines --- */

static void free_shared(struct shared_machine *s)
{
    memory_forget(s);
    machine_close(s->m);
    free(s);
}

void shared_leave(struct shared_machine *s)
{
    if (!s || --s->matchers)
        return;
    memory_machines(s->g, -1);
    if (s->g->now != s)
        free_shared(s);
}

void shared_drop(struct grammar *g)
{
    struct shared_machine *s = g->now;
    g->now = NULL;
    if (s && !s->matchers)
        free_shared(s);
}

struct shared_machine *shared_take(struct grammar *g, const struct token_trie *t, struct err *e)
{
    struct shared_machine *s = g->now;
    if (s && (s->m->failed || (t && s->m->trie && s->m->trie != t) || machine_size(s->m) > memory_share(g))) {
        shared_drop(g);
        s = NULL;
    }
    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s) {
            err_set(e, ERR_MEMORY, "no memory for the states of a grammar");
            return NULL;
        }
        if (machine_open(&s->m, &g->program, e) < 0) {
            free(s);
            return NULL;
        }
        s->g = g;
        g->now = s;
    }
    s->m->trie = t ? t : s->m->trie;
    s->m->work = MACHINE_WORK;
    if (!s->matchers++)
        memory_machines(g, 1);
    return s;
}

int grammar_accepts(struct grammar *g, const char *text, size_t n, size_t *at, struct err *e)
{
    int rc;
    pthread_mutex_lock(&g->lock);
    struct shared_machine *s = shared_take(g, NULL, e);
    uint32_t config = s ? machine_begin(s->m) : 0;
    *at = 0;
    for (size_t i = 0; s && i < n && config; i++) {
        s->m->work = MACHINE_WORK;
        config = machine_step(s->m, config, (unsigned char)text[i]);
        *at = config ? i + 1 : *at;
        if (config && i % 1024 == 0 && machine_size(s->m) > 4 * MACHINE_BYTES)
            s->m->failed = ERR_CONFIG;
    }
    rc = !s ? -e->code : s->m->failed ? machine_error(s->m, e) : config && s->m->config[config].accepts;
    shared_leave(s);
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* program.c - building a program: see program.h. */
#include "text/grammar/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"

void program_begin(struct program *p, const struct work_limit *limit, struct err *e)
{
    memset(p, 0, sizeof *p);
    p->limit = limit;
    p->e = e;
}

void program_close(struct program *p)
{
    for (size_t i = 0; i < p->n_components; i++)
        component_close(&p->component[i]);
    for (size_t i = 0; i < p->n_objects; i++) {
        free(p->object[i].key);
        free(p->object[i].word_of);
        free(p->object[i].rule_of_class);
    }
    free(p->component);
    free(p->terminal);
    free(p->node);
    free(p->rule);
    free(p->repeat);
    free(p->object);
    ints_free(&p->target);
    ints_free(&p->word_component);
    intern_free(&p->words);
    memset(p, 0, sizeof *p);
}

static size_t regex_size(const struct regex *r)
{
    size_t n = sizeof *r + r->cap_states * sizeof *r->state + r->cap_sets * sizeof *r->set;
    for (size_t i = 0; i < r->n_sets; i++)
        n += r->set[i].cap * sizeof *r->set[i].v;
    return n + r->n_ranges * (sizeof *r->range + sizeof *r->class);
}

size_t program_size(const struct program *p)
{
    size_t n = p->cap_components * sizeof *p->component + p->cap_terminals * sizeof *p->terminal +
               p->cap_nodes * sizeof *p->node + p->cap_rules * sizeof *p->rule +
               p->cap_repeats * sizeof *p->repeat + p->cap_objects * sizeof *p->object +
               (p->target.cap + p->word_component.cap) * sizeof *p->target.v + intern_size(&p->words);
    for (size_t i = 0; i < p->n_components; i++) {
        const struct component *c = &p->component[i];
        n += (c->regex ? regex_size(c->regex) : 0) + c->words.cap * sizeof *c->words.node +
             (size_t)c->words.n_words * sizeof *c->words.order;
    }
    for (size_t i = 0; i < p->n_objects; i++)
        n += (size_t)p->object[i].n_keys * (sizeof *p->object->key + sizeof *p->object->word_of) +
             (sizeof *p->object->rule_of_class << p->object[i].n_patterns);
    return n;
}

void program_fail(struct program *p, int code, const char *fmt, ...)
{
    char text[sizeof p->e->text];
    va_list args;
    if (p->failed)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(p->e, code, "%s", text);
    p->failed = 1;
}

int program_check(struct program *p)
{
    if (!p->failed && ++p->work % 256 == 0 && work_check(p->limit, p->e) < 0)
        p->failed = 1;
    return p->failed ? -1 : 0;
}

/* Room for one more of *n elements of `size` bytes. The new element, zeroed; NULL after a failure. */
static void *add(struct program *p, void *list, size_t *n, size_t *cap, size_t size)
{
    char **v = list;
    if (program_check(p) < 0)
        return NULL;
    if (*n >= PROGRAM_NODES) {
        program_fail(p, ERR_CONFIG, "the grammar has more than %d parts: make it smaller", PROGRAM_NODES);
        return NULL;
    }
    char *grown = *n < *cap ? *v : buf_grow(*v, cap, *n + 1, size);
    if (!grown) {
        program_fail(p, ERR_MEMORY, "no memory for a grammar of %zu parts", *n);
        return NULL;
    }
    *v = grown;
    return memset(grown + size * (*n)++, 0, size);
}
#define ADD(list, n, cap) add(p, &p->list, &p->n, &p->cap, sizeof *p->list)

int32_t program_component(struct program *p, struct component *c)
{
    struct component *to = ADD(component, n_components, cap_components);
    if (!to) {
        component_close(c);
        return 0;
    }
    *to = *c;
    memset(c, 0, sizeof *c);
    return (int32_t)p->n_components - 1;
}

int32_t program_regex(struct program *p, const char *text, size_t n, enum regex_use use, const char *place)
{
    struct component c = { .kind = PART_REGEX };
    char *key = malloc(n + 1);
    uint32_t before = p->words.n, id;

    if (!key || p->failed) {
        free(key);
        program_fail(p, ERR_MEMORY, "no memory for a regex");
        return 0;
    }
    memcpy(key, text, n);
    key[n] = (char)use;
    id = intern_put(&p->words, key, n + 1);
    free(key);
    if (p->words.failed)
        program_fail(p, ERR_MEMORY, "no memory for a regex");
    if (p->words.n == before)
        return p->failed ? 0 : p->word_component.v[id];

    if (regex_open(&c.regex, text, n, use, p->e) < 0) {
        if (place)
            err_add(p->e, "%s", place);
        p->failed = 1;
        return 0;
    }
    int32_t component = program_component(p, &c);
    ints_add(&p->word_component, component);
    if (p->word_component.failed)
        program_fail(p, ERR_MEMORY, "no memory for a regex");
    return component;
}

int32_t program_terminal(struct program *p, const struct terminal *t)
{
    struct terminal *to = ADD(terminal, n_terminals, cap_terminals);
    if (to)
        *to = *t;
    return to ? (int32_t)p->n_terminals - 1 : 0;
}

int32_t program_simple(struct program *p, enum decoder decoder, int32_t component)
{
    struct terminal t = { .decoder = (uint8_t)decoder, .n_parts = 1, .object = -1 };
    t.part[0].component = component;
    return program_terminal(p, &t);
}

int32_t program_pattern(struct program *p, const char *regex)
{
    return program_simple(p, DECODER_TEXT, program_regex(p, regex, strlen(regex), REGEX_WHOLE, NULL));
}

int32_t program_words(struct program *p, enum decoder d, const char *const *word, const size_t *n,
                      int32_t n_words)
{
    struct component c = { .kind = PART_WORDS };
    if (p->failed)
        return 0;
    if (words_open(&c.words, word, n, n_words, p->e) < 0) {
        p->failed = 1;
        return 0;
    }
    return program_simple(p, d, program_component(p, &c));
}

int32_t program_node(struct program *p, enum node_kind kind, int32_t a, int32_t b, int32_t next)
{
    struct node *x = ADD(node, n_nodes, cap_nodes);
    if (x)
        *x = (struct node){ .kind = (uint8_t)kind, .a = a, .b = b, .next = next };
    return x ? (int32_t)p->n_nodes - 1 : 0;
}

int32_t program_alt(struct program *p, const int32_t *node, size_t n)
{
    if (n == 1)
        return node[0];
    int32_t first = (int32_t)p->target.n;
    for (size_t i = 0; i < n; i++)
        ints_add(&p->target, node[i]);
    if (p->target.failed)
        program_fail(p, ERR_MEMORY, "no memory for a grammar");
    return program_node(p, n ? NODE_ALT : NODE_DEAD, first, (int32_t)n, 0);
}

int32_t program_rule(struct program *p)
{
    int32_t *to = ADD(rule, n_rules, cap_rules);
    if (to)
        *to = -1;
    return to ? (int32_t)p->n_rules - 1 : 0;
}

int32_t program_repeat(struct program *p, int32_t body, int64_t min, int64_t max, int32_t next)
{
    int32_t end = program_node(p, NODE_RETURN, 0, 0, 0), rule = program_rule(p);
    struct repeat *r = ADD(repeat, n_repeats, cap_repeats);
    if (!r)
        return 0;
    *r = (struct repeat){ min, max };
    p->rule[rule] = program_node(p, NODE_REPEAT, body, (int32_t)p->n_repeats - 1, end);
    return program_node(p, NODE_CALL, rule, 0, next);
}

int32_t program_object(struct program *p)
{
    return ADD(object, n_objects, cap_objects) ? (int32_t)p->n_objects - 1 : 0;
}

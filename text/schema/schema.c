/* schema.c - sets of schemas and their rules: see schema.h. */
#include "text/schema/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/jx.h"
#include "text/grammar/compile.h"

/* --- messages --- */

int schema_within(const json_t *at, const json_t *node, int depth)
{
    const char *key;
    json_t *value;
    int found = at == node;
    if (depth < 200 && json_is_object(at))
        json_object_foreach((json_t *)(uintptr_t)at, key, value) {
            found = found || schema_within(value, node, depth + 1);
        }
    for (size_t i = 0; depth < 200 && json_is_array(at) && !found && i < json_array_size(at); i++)
        found = schema_within(json_array_get(at, i), node, depth + 1);
    return found;
}

/* Appends the path from `at` to node. */
static void find_path(const json_t *at, const json_t *node, char *path, size_t n)
{
    const char *key;
    json_t *value;
    size_t used = strlen(path);
    if (at == node)
        return;
    if (json_is_object(at))
        json_object_foreach((json_t *)(uintptr_t)at, key, value) {
            if (schema_within(value, node, 0)) {
                snprintf(path + used, n - used, "/%.60s", key);
                find_path(value, node, path, n);
                return;
            }
        }
    for (size_t i = 0; json_is_array(at) && i < json_array_size(at); i++)
        if (schema_within(json_array_get(at, i), node, 0)) {
            snprintf(path + used, n - used, "/%zu", i);
            find_path(json_array_get(at, i), node, path, n);
            return;
        }
}

void schema_fail(struct schemas *s, const json_t *node, const char *keyword, const char *what)
{
    char path[400] = "#";
    if (s->p->failed)
        return;
    if (schema_within(s->root, node, 0))
        find_path(s->root, node, path, sizeof path);
    program_fail(s->p, ERR_CONFIG, "schema: %.60s at %s %s", keyword, path, what);
}

/* --- sets --- */

void members_add(struct schemas *s, struct members *m, const json_t *node)
{
    if (m->n == m->cap) {
        const json_t **v = buf_grow((void *)m->v, &m->cap, m->n + 1, sizeof *v);
        if (!v) {
            program_fail(s->p, ERR_MEMORY, "no memory for a schema");
            return;
        }
        m->v = v;
    }
    m->v[m->n++] = node;
}

static int by_pointer(const void *a, const void *b)
{
    const json_t *x = *(const json_t *const *)a, *y = *(const json_t *const *)b;
    return ((uintptr_t)x > (uintptr_t)y) - ((uintptr_t)x < (uintptr_t)y);
}

/* The numbers of sets do not depend on addresses: they come in order of arrival, and a set's members keep the
 * order in which they are found. Only the key that finds it again is sorted. */
int32_t schema_set(struct schemas *s, const struct members *m)
{
    const json_t **v = malloc((m->n + 1) * sizeof *v);
    size_t n = 0;
    if (!v || s->p->failed) {
        free((void *)v);
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
        return 0;
    }
    if (m->n)
        memcpy((void *)v, (const void *)m->v, m->n * sizeof *v);
    if (m->n)
        qsort((void *)v, m->n, sizeof *v, by_pointer);
    for (size_t i = 0; i < m->n; i++)
        if (!json_is_true(v[i]) && (!n || v[i] != v[n - 1]))
            v[n++] = v[i];

    uint32_t before = s->sets.n, set = intern_put(&s->sets, (void *)v, n * sizeof *v);
    free((void *)v);
    if (s->sets.n > before) {
        ints_add(&s->rule, -1);
        ints_add(&s->member_rule, -1);
        ints_add(&s->satisfiable, 0);
        ints_add(&s->first_member, (int32_t)s->member.n);
        for (size_t i = 0; i < m->n; i++)
            if (!json_is_true(m->v[i]))
                members_add(s, &s->member, m->v[i]);
    }
    if (s->sets.failed || s->rule.failed || s->member_rule.failed || s->satisfiable.failed ||
        s->first_member.failed)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    if (s->sets.n > SCHEMA_SETS)
        program_fail(s->p, ERR_CONFIG, "the schema describes more than %d places", SCHEMA_SETS);
    return s->p->failed ? 0 : (int32_t)set;
}

void schema_set_members(struct schemas *s, int32_t set, struct members *out)
{
    if (s->p->failed)
        return;
    size_t end = (size_t)set + 1 < s->first_member.n ? (size_t)s->first_member.v[set + 1] : s->member.n;
    for (size_t i = (size_t)s->first_member.v[set]; i < end; i++)
        members_add(s, out, s->member.v[i]);
}

int32_t schema_rule(struct schemas *s, int32_t set)
{
    if (s->p->failed)
        return 0;
    if (s->rule.v[set] < 0) {
        s->rule.v[set] = program_rule(s->p);
        ints_add(&s->todo, set);
        if (s->todo.failed)
            program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    }
    return s->p->failed ? 0 : s->rule.v[set];
}

int32_t schema_member_rule(struct schemas *s, int32_t set)
{
    int32_t value = schema_rule(s, set);
    if (s->p->failed)
        return 0;
    if (s->member_rule.v[set] < 0) {
        int32_t rule = program_rule(s->p), call = program_node(s->p, NODE_CALL, value, 0, s->end);
        int32_t node = program_node(s->p, NODE_TERM, s->colon, 0, call);
        if (s->p->failed)
            return 0;
        s->p->rule[rule] = node;
        s->member_rule.v[set] = rule;
    }
    return s->member_rule.v[set];
}

/* --- keywords --- */

static const struct {
    const char *name;
    unsigned types; /* for which it is refused */
    int any;        /* 1: with every value; 0: but true and {} */
} refused[] = {
    { "contains", T_ARRAY, 1 },  { "unevaluatedItems", T_ARRAY, 0 }, { "unevaluatedProperties", T_OBJECT, 0 },
    { "$dynamicRef", T_ALL, 1 }, { "$recursiveRef", T_ALL, 1 },      { "extends", T_ALL, 1 },
    { "disallow", T_ALL, 1 },    { "divisibleBy", T_NUMBER, 1 },
};

void schema_check_keywords(struct schemas *s, const struct members *m, unsigned types)
{
    for (size_t i = 0; i < m->n && !s->p->failed; i++)
        for (size_t j = 0; j < sizeof refused / sizeof *refused; j++) {
            const json_t *v = json_object_get(m->v[i], refused[j].name);
            int says_nothing = json_is_true(v) || (json_is_object(v) && !json_object_size(v));
            if (v && types & refused[j].types && (refused[j].any || !says_nothing))
                schema_fail(s, m->v[i], refused[j].name, "is not honoured");
        }
    for (size_t i = 0; s->legacy && types & T_STRING && i < m->n; i++) /* an assertion in draft 7 */
        if (json_object_get(m->v[i], "contentEncoding") || json_object_get(m->v[i], "contentMediaType"))
            schema_fail(s, m->v[i], "contentEncoding or contentMediaType", "is not honoured");
}

/* --- alternatives --- */

/* A list or an object of enum or const as a schema of its own. */
static const json_t *value_schema(struct schemas *s, const json_t *v)
{
    const json_t *made = schema_made(s, v, "\001value");
    json_t *list, *item, *to;
    const char *key;
    if (made)
        return made;
    if (json_is_array(v)) {
        list = json_array();
        for (size_t i = 0; i < json_array_size(v); i++)
            json_array_append_new(list, json_pack("{s:O}", "const", json_array_get(v, i)));
        to = json_pack("{s:s,s:o,s:I,s:I}", "type", "array", "prefixItems", list, "minItems",
                       (json_int_t)json_array_size(v), "maxItems", (json_int_t)json_array_size(v));
    } else {
        json_t *properties = json_object();
        list = json_array();
        json_object_foreach((json_t *)(uintptr_t)v, key, item) {
            json_object_set_new(properties, key, json_pack("{s:O}", "const", item));
            json_array_append_new(list, json_string(key));
        }
        to = json_pack("{s:s,s:o,s:o,s:b}", "type", "object", "properties", properties, "required", list,
                       "additionalProperties", 0);
    }
    return schema_make(s, v, "\001value", to);
}

/* Members beside a list or an object that is one of the values. */
static void with_value(struct schemas *s, const struct members *m, const json_t *v, struct members *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < m->n; i++)
        members_add(s, out, m->v[i]);
    const json_t *made = value_schema(s, v);
    if (made)
        members_add(s, out, made);
}

static void add_terminal(struct schemas *s, struct ints *nodes, int32_t terminal)
{
    if (terminal >= 0 && !s->p->failed)
        ints_add(nodes, program_node(s->p, NODE_TERM, terminal, 0, s->end));
}

static void add_node(struct ints *nodes, int32_t node)
{
    if (node >= 0)
        ints_add(nodes, node);
}

/* Lists and objects among the values. */
static void add_values(struct schemas *s, const struct members *m, unsigned types, const json_t *enums,
                       struct ints *nodes)
{
    for (size_t i = 0; i < json_array_size(enums) && !s->p->failed; i++) {
        const json_t *v = json_array_get(enums, i);
        struct members with;
        if (!(json_is_array(v) && types & T_ARRAY) && !(json_is_object(v) && types & T_OBJECT))
            continue;
        with_value(s, m, v, &with);
        add_node(nodes, json_is_array(v) ? schema_array(s, &with) : schema_object(s, &with));
        free((void *)with.v);
    }
}

/* The nodes of one alternative, added to the list arg. */
static int add_alternative(struct schemas *s, const struct members *m, void *arg)
{
    struct ints *nodes = arg;
    unsigned types = schema_types(s, m);
    json_t *enums = types ? schema_enums(s, m) : NULL;
    schema_check_keywords(s, m, types);
    if (types & (T_NULL | T_FALSE | T_TRUE))
        add_terminal(s, nodes, schema_words(s, types, enums));
    if (types & T_NUMBER)
        add_terminal(s, nodes, schema_number(s, m, types, enums));
    if (types & T_STRING)
        add_terminal(s, nodes, schema_string(s, m, enums));
    if (enums) {
        add_values(s, m, types, enums, nodes);
    } else {
        if (types & T_ARRAY)
            add_node(nodes, schema_array(s, m));
        if (types & T_OBJECT)
            add_node(nodes, schema_object(s, m));
    }
    json_decref(enums);
    return s->p->failed;
}

static int value_satisfiable(struct schemas *s, const struct members *m, unsigned types, const json_t *enums)
{
    for (size_t i = 0; i < json_array_size(enums) && !s->p->failed; i++) {
        const json_t *v = json_array_get(enums, i);
        struct members with;
        int can;
        if (!(json_is_array(v) && types & T_ARRAY) && !(json_is_object(v) && types & T_OBJECT))
            continue;
        with_value(s, m, v, &with);
        can = json_is_array(v) ? schema_array_satisfiable(s, &with) : schema_object_satisfiable(s, &with);
        free((void *)with.v);
        if (can)
            return 1;
    }
    return 0;
}

/* 1: a value of the alternative may exist. */
static int may_exist(struct schemas *s, const struct members *m, void *arg)
{
    unsigned types = schema_types(s, m);
    json_t *enums = types ? schema_enums(s, m) : NULL;
    (void)arg;
    int can = types & (T_NULL | T_FALSE | T_TRUE) && schema_words(s, types, enums) >= 0;
    can = can || (types & T_NUMBER && schema_number(s, m, types, enums) >= 0);
    can = can || (types & T_STRING && schema_string(s, m, enums) >= 0);
    if (enums)
        can = can || value_satisfiable(s, m, types, enums);
    else
        can = can || (types & T_ARRAY && schema_array_satisfiable(s, m)) ||
              (types & T_OBJECT && schema_object_satisfiable(s, m));
    json_decref(enums);
    return can || s->p->failed;
}

#define DECIDING_DEPTH 24
int schema_satisfiable(struct schemas *s, int32_t set)
{
    if (s->p->failed)
        return 1;
    if (s->satisfiable.v[set])
        return s->satisfiable.v[set] == 2;
    if (s->deciding >= DECIDING_DEPTH)
        return 1;

    /* a set that is met again within itself is taken to have values: then none is refused wrongly */
    s->satisfiable.v[set] = 2;
    s->deciding++;
    int can = schema_expand(s, set, may_exist, NULL);
    s->deciding--;
    if (!s->p->failed)
        s->satisfiable.v[set] = can ? 2 : 1;
    return can;
}

/* --- the whole --- */

static void make_rules(struct schemas *s)
{
    while (s->todo.n && program_check(s->p) == 0) {
        struct ints nodes = { 0 };
        int32_t set = s->todo.v[--s->todo.n];
        schema_expand(s, set, add_alternative, &nodes);
        if (nodes.failed)
            program_fail(s->p, ERR_MEMORY, "no memory for a schema");
        int32_t entry = s->p->failed ? 0 : program_alt(s->p, nodes.v, nodes.n);
        if (!s->p->failed)
            s->p->rule[s->rule.v[set]] = entry;
        ints_free(&nodes);
    }
}

static void make_signs(struct schemas *s)
{
#define SPACE "(?: |\\n[ \\t]{0,80})?"
    int compact = s->flags & GRAMMAR_COMPACT;
    s->end = program_node(s->p, NODE_RETURN, 0, 0, 0);
    s->open_brace = program_pattern(s->p, compact ? "\\{" : "\\{" SPACE);
    s->close_brace = program_pattern(s->p, compact ? "\\}" : SPACE "\\}");
    s->empty_brace = program_pattern(s->p, "\\}");
    s->open_bracket = program_pattern(s->p, compact ? "\\[" : "\\[" SPACE);
    s->close_bracket = program_pattern(s->p, compact ? "\\]" : SPACE "\\]");
    s->empty_bracket = program_pattern(s->p, "\\]");
    s->comma = program_pattern(s->p, compact ? "," : SPACE "," SPACE);
    s->colon = program_pattern(s->p, compact ? ":" : SPACE ":" SPACE);
}

static void read_dialect(struct schemas *s)
{
    static const char *const old[] = { "draft-03", "draft-04", "draft-06", "draft-07" };
    const char *dialect = json_string_value(json_object_get(s->root, "$schema"));
    s->nullable = !dialect;
    for (size_t i = 0; dialect && i < sizeof old / sizeof *old; i++)
        s->legacy |= strstr(dialect, old[i]) != NULL;
}

static void schemas_free(struct schemas *s)
{
    machine_close(s->m);
    json_decref(s->made);
    intern_free(&s->name);
    intern_free(&s->sets);
    intern_free(&s->string_terminals);
    ints_free(&s->rule);
    ints_free(&s->member_rule);
    ints_free(&s->satisfiable);
    ints_free(&s->first_member);
    ints_free(&s->todo);
    ints_free(&s->string_terminal);
    free((void *)s->member.v);
}

int32_t compile_schema(struct program *p, const char *text, size_t n, unsigned flags, int32_t next)
{
    static const struct jx_limits limits = { 400000, 2000000 };
    struct schemas s = { .p = p, .flags = flags, .inner_bases = -1, .made = json_array() };
    struct members first = { 0 };
    json_t *root = jx_parse_within(text, n, &limits, "schema", p->e);
    int32_t rule = 0;
    if (!root) {
        p->e->code = p->e->code == ERR_MEMORY ? ERR_MEMORY : ERR_CONFIG;
        p->failed = 1;
    } else if (!json_is_object(root) && !json_is_boolean(root)) {
        program_fail(p, ERR_CONFIG, "schema: it is no object");
    } else if (!s.made || machine_open(&s.m, p, p->e) < 0) {
        program_fail(p, ERR_MEMORY, "no memory for a schema");
    } else {
        s.root = root;
        s.m->work = SCHEMA_WORK;
        read_dialect(&s);
        make_signs(&s);
        members_add(&s, &first, root);
        rule = schema_rule(&s, schema_set(&s, &first));
        make_rules(&s);
    }
    free((void *)first.v);
    schemas_free(&s);
    json_decref(root);
    return program_node(p, NODE_CALL, rule, 0, next);
}

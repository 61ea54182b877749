/* schema_object.c - objects of an alternative: its keys, and the schemas that hold for each. */
#include <stdlib.h>
#include <string.h>
#include "text/schema/schema.h"

struct shape {
    const char **key; /* declared or required, in the order of the schema */
    size_t n, cap;
    struct intern known;
    const char *pattern[OBJECT_PATTERNS];
    int32_t test[OBJECT_PATTERNS]; /* terminals of them, of plain text */
    int n_patterns;
    int64_t min, max;
    struct terminal names; /* what propertyNames say: parts of a terminal */
    int32_t names_test;    /* of plain text; -1: they say nothing */
};

static void add_key(struct schemas *s, struct shape *o, const char *key)
{
    uint32_t before = o->known.n;
    intern_put(&o->known, key, strlen(key) + 1);
    if (o->known.n == before)
        return;
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 16;
        const char **v = realloc((void *)o->key, cap * sizeof *v);
        if (!v) {
            program_fail(s->p, ERR_MEMORY, "no memory for a schema");
            return;
        }
        o->key = v;
        o->cap = cap;
    }
    o->key[o->n++] = key;
}

static int find_pattern(const struct shape *o, const char *regex)
{
    for (int i = 0; i < o->n_patterns; i++)
        if (!strcmp(o->pattern[i], regex))
            return i;
    return -1;
}

static void add_pattern(struct schemas *s, struct shape *o, const json_t *node, const char *regex)
{
    if (s->p->failed || find_pattern(o, regex) >= 0)
        return;
    if (o->n_patterns == OBJECT_PATTERNS) {
        schema_fail(s, node, "patternProperties", "has more than 8 patterns for one object");
        return;
    }
    int32_t c = program_regex(s->p, regex, strlen(regex), REGEX_SEARCH, "patternProperties of the schema");
    o->pattern[o->n_patterns] = regex;
    o->test[o->n_patterns++] = program_simple(s->p, DECODER_TEXT, c);
}

static void add_required(struct schemas *s, struct shape *o, const json_t *node)
{
    const json_t *list = json_object_get(node, "required");
    if (list && !json_is_array(list))
        schema_fail(s, node, "required", "is not a list of keys");
    for (size_t i = 0; i < json_array_size(list) && !s->p->failed; i++) {
        const char *key = json_string_value(json_array_get(list, i));
        if (!key)
            schema_fail(s, node, "required", "is not a list of keys");
        else
            add_key(s, o, key);
    }
}

struct names {
    struct terminal *t;
    int n;
};
/* The parts of one alternative of propertyNames. */
static int add_names(struct schemas *s, const struct members *m, void *arg)
{
    struct names *x = arg;
    json_t *enums = schema_enums(s, m);
    if (!(schema_types(s, m) & T_STRING))
        return 0;
    schema_check_keywords(s, m, T_STRING);
    if (x->n++ || enums)
        schema_fail(s, m->n ? m->v[0] : s->root, "propertyNames", "has alternatives, which is not honoured");
    json_decref(enums);
    schema_string_parts(s, m, x->t);
    return 0;
}

static void read_names(struct schemas *s, const struct members *m, struct shape *o)
{
    struct members all = { 0 };
    struct names x = { &o->names, 0 };
    o->names_test = -1;
    for (size_t i = 0; i < m->n; i++) {
        const json_t *names = json_object_get(m->v[i], "propertyNames");
        if (names)
            members_add(s, &all, names);
    }
    if (all.n) {
        schema_expand(s, schema_set(s, &all), add_names, &x);
        struct terminal t = o->names;
        if (!x.n) { /* no name fits */
            const char *none = "";
            size_t n = 0;
            o->names_test = program_words(s->p, DECODER_TEXT, &none, &n, 0);
            o->names = s->p->failed ? o->names : s->p->terminal[o->names_test];
        } else if (t.n_parts) {
            t.decoder = DECODER_TEXT;
            t.object = -1;
            o->names_test = program_terminal(s->p, &t);
        }
    }
    free((void *)all.v);
}

static void read_shape(struct schemas *s, const struct members *m, struct shape *o)
{
    const char *key;
    json_t *value;
    int64_t x;
    memset(o, 0, sizeof *o);
    o->max = -1;
    for (size_t i = 0; i < m->n && !s->p->failed; i++) {
        json_t *properties = json_object_get(m->v[i], "properties");
        json_t *patterns = json_object_get(m->v[i], "patternProperties");
        if ((properties && !json_is_object(properties)) || (patterns && !json_is_object(patterns)))
            schema_fail(s, m->v[i], "properties", "is not an object of schemas");
        json_object_foreach(properties, key, value) {
            add_key(s, o, key);
        }
        json_object_foreach(patterns, key, value) {
            add_pattern(s, o, m->v[i], key);
        }
        if (schema_count(s, m->v[i], "minProperties", &x) && x > o->min)
            o->min = x;
        if (schema_count(s, m->v[i], "maxProperties", &x) && (o->max < 0 || x < o->max))
            o->max = x;
    }
    for (size_t i = 0; i < m->n && !s->p->failed; i++)
        add_required(s, o, m->v[i]);
    read_names(s, m, o);
    if (o->known.failed)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
}

static void shape_free(struct shape *o)
{
    free((void *)o->key);
    intern_free(&o->known);
}

static int is_required(const struct members *m, const char *key)
{
    for (size_t i = 0; i < m->n; i++) {
        const json_t *list = json_object_get(m->v[i], "required");
        for (size_t j = 0; j < json_array_size(list); j++) {
            const char *one = json_string_value(json_array_get(list, j));
            if (one && !strcmp(one, key))
                return 1;
        }
    }
    return 0;
}

/* The schemas that hold for the value of a key. key NULL: another key, of the patterns of `class`. */
static int32_t value_set(struct schemas *s, const struct members *m, const struct shape *o, const char *key,
                         int class)
{
    struct members all = { 0 };
    const char *regex;
    json_t *schema;
    for (size_t i = 0; i < m->n && !s->p->failed; i++) {
        const json_t *own = key ? json_object_get(json_object_get(m->v[i], "properties"), key) : NULL;
        int matched = own != NULL;
        if (own)
            members_add(s, &all, own);
        json_object_foreach(json_object_get(m->v[i], "patternProperties"), regex, schema) {
            int at = find_pattern(o, regex);
            if (at >= 0 && class >> at & 1) {
                members_add(s, &all, schema);
                matched = 1;
            }
        }
        const json_t *more = json_object_get(m->v[i], "additionalProperties");
        if (more && !matched)
            members_add(s, &all, more);
    }
    int32_t set = schema_set(s, &all);
    free((void *)all.v);
    return set;
}

/* The patterns that a declared key matches. */
static int class_of(struct schemas *s, const struct shape *o, const char *key)
{
    int class = 0;
    for (int i = 0; i < o->n_patterns && !s->p->failed; i++)
        class |= terminal_has(s->m, o->test[i], key, strlen(key)) << i;
    return class;
}

static int32_t declared_set(struct schemas *s, const struct members *m, const struct shape *o,
                            const char *key)
{
    return value_set(s, m, o, key, class_of(s, o, key));
}

static int name_allowed(struct schemas *s, const struct shape *o, const char *key)
{
    return o->names_test < 0 || terminal_has(s->m, o->names_test, key, strlen(key));
}

int schema_object_satisfiable(struct schemas *s, const struct members *m)
{
    struct shape o;
    int can = 1;
    int64_t n_required = 0;
    read_shape(s, m, &o);
    for (size_t i = 0; i < o.n && can && !s->p->failed; i++) {
        if (!is_required(m, o.key[i]))
            continue;
        n_required++;
        can = name_allowed(s, &o, o.key[i]) && schema_satisfiable(s, declared_set(s, m, &o, o.key[i]));
    }
    if (o.max >= 0 && (n_required > o.max || o.min > o.max))
        can = 0;
    /* without keys of other names, those that can come must suffice */
    if (can && o.min > n_required && !o.n_patterns && !schema_satisfiable(s, value_set(s, m, &o, NULL, 0))) {
        int64_t possible = 0;
        for (size_t i = 0; i < o.n && !s->p->failed; i++)
            possible += name_allowed(s, &o, o.key[i]) &&
                        schema_satisfiable(s, declared_set(s, m, &o, o.key[i]));
        can = possible >= o.min;
    }
    shape_free(&o);
    return s->p->failed || can;
}

/* --- nodes --- */

/* Does a key exist that matches the patterns of a class and no other one? */
static int class_exists(struct schemas *s, const struct shape *o, int class)
{
    struct terminal t;
    memset(&t, 0, sizeof t);
    t.decoder = DECODER_TEXT;
    t.object = -1;
    t.n_parts = (uint8_t)o->n_patterns;
    for (int i = 0; i < o->n_patterns && !s->p->failed; i++) {
        t.part[i].component = s->p->terminal[o->test[i]].part[0].component;
        t.part[i].negated = !(class >> i & 1);
    }
    int32_t terminal = program_terminal(s->p, &t);
    return !s->p->failed && (!o->n_patterns || !terminal_is_empty(s->m, terminal));
}

/* The rules of keys that are not declared, by class. */
static int32_t *class_rules(struct schemas *s, const struct members *m, const struct shape *o, int *any)
{
    int n = 1 << o->n_patterns;
    int32_t *rule = malloc((size_t)n * sizeof *rule);
    *any = 0;
    for (int i = 0; rule && i < n; i++) {
        rule[i] = -1;
        if (!class_exists(s, o, i))
            continue;
        int32_t set = value_set(s, m, o, NULL, i);
        if (schema_satisfiable(s, set))
            rule[i] = schema_member_rule(s, set);
        *any |= rule[i] >= 0;
    }
    if (!rule)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    return rule;
}

/* The terminal of a key: declared ones, patterns, what propertyNames say. */
static void make_key_terminal(struct schemas *s, const struct shape *o, int32_t object, const size_t *len)
{
    struct component words = { .kind = PART_WORDS };
    struct terminal t;
    memset(&t, 0, sizeof t);
    t.decoder = DECODER_STRING;
    t.object = object;
    if (s->p->failed || o->n_patterns + 1 + o->names.n_parts > TERMINAL_PARTS) {
        program_fail(s->p, ERR_CONFIG, "more than %d patterns hold for one key", TERMINAL_PARTS - 1);
        return;
    }
    if (words_open(&words.words, o->key, len, (int32_t)o->n, s->p->e) < 0) {
        s->p->failed = 1;
        return;
    }
    t.part[t.n_parts++].component = program_component(s->p, &words);
    for (int i = 0; i < o->n_patterns && !s->p->failed; i++)
        t.part[t.n_parts++].component = s->p->terminal[o->test[i]].part[0].component;
    for (int i = 0; i < o->names.n_parts; i++)
        t.part[t.n_parts++] = o->names.part[i];
    int32_t terminal = program_terminal(s->p, &t);
    if (s->p->failed)
        return;
    s->p->object[object].words = t.part[0].component;
    s->p->object[object].terminal = terminal;
    s->p->object[object].n_patterns = o->n_patterns;
}

/* The declared keys: rules of their values. */
static void fill_keys(struct schemas *s, const struct members *m, const struct shape *o, int32_t object)
{
    struct object_key *key = calloc(o->n + 1, sizeof *key);
    int32_t *word_of = calloc(o->n + 1, sizeof *word_of), n_required = 0;
    struct intern required = { 0 };
    if (!key || !word_of)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    for (size_t i = 0; i < m->n; i++) {
        const json_t *list = json_object_get(m->v[i], "required");
        for (size_t j = 0; j < json_array_size(list); j++) {
            const char *text = json_string_value(json_array_get(list, j));
            intern_put(&required, text, strlen(text) + 1);
        }
    }
    uint32_t n = required.n;
    for (size_t i = 0; i < o->n && !s->p->failed; i++) {
        int32_t set = declared_set(s, m, o, o->key[i]);
        uint32_t id = intern_put(&required, o->key[i], strlen(o->key[i]) + 1);
        word_of[i] = (int32_t)i;
        key[i].required = id < n;
        n_required += key[i].required;
        key[i].forbidden = !name_allowed(s, o, o->key[i]) || !schema_satisfiable(s, set);
        key[i].rule = key[i].forbidden ? -1 : schema_member_rule(s, set);
    }
    intern_free(&required);
    if (s->p->failed) {
        free(key);
        free(word_of);
        return;
    }
    struct object *to = &s->p->object[object];
    to->key = key;
    to->word_of = word_of;
    to->n_keys = (int32_t)o->n;
    to->n_required = n_required;
}

static void fill_object(struct schemas *s, const struct members *m, const struct shape *o, int32_t object)
{
    size_t *len = malloc((o->n + 1) * sizeof *len);
    int any = 0;
    for (size_t i = 0; len && i < o->n; i++)
        len[i] = strlen(o->key[i]);
    if (!len)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    else
        make_key_terminal(s, o, object, len);
    free(len);
    fill_keys(s, m, o, object);
    int32_t *rules = s->p->failed ? NULL : class_rules(s, m, o, &any);
    if (s->p->failed) {
        free(rules);
        return;
    }

    struct object *to = &s->p->object[object];
    to->rule_of_class = rules;
    to->has_others = any;
    to->min = o->min;
    to->max = o->max;
    /* the same key may come twice where it is not declared, so such keys cannot be counted up */
    if (any && o->min > 1 && o->min > to->n_required)
        schema_fail(s, m->v[0], "minProperties",
                    "above 1 is not honoured where keys beside the declared ones may come");
    to->in_order = s->flags & GRAMMAR_IN_ORDER && o->min <= to->n_required;
}

int32_t schema_object(struct schemas *s, const struct members *m)
{
    struct program *p = s->p;
    struct shape o;
    int32_t object = program_object(p);
    read_shape(s, m, &o);
    if (!p->failed)
        fill_object(s, m, &o, object);
    shape_free(&o);

    int32_t close = program_node(p, NODE_TERM, s->close_brace, 0, s->end);
    int32_t closed = program_node(p, NODE_TERM, s->empty_brace, 0, s->end);
    int32_t key = program_node(p, NODE_KEY, object, 0, 0);
    int32_t comma = program_node(p, NODE_TERM, s->comma, 0, key);
    int32_t after = program_node(p, NODE_AFTER, object, comma, close);
    int32_t first = program_node(p, NODE_FIRST, object, 0, closed);
    int32_t rule = program_rule(p), open = program_node(p, NODE_TERM, s->open_brace, 0, first);
    if (p->failed)
        return -1;
    p->object[object].key_node = key;
    p->object[object].after_node = after;
    p->rule[rule] = open;
    /* a rule of its own: its frame has the set of keys */
    return program_node(p, NODE_CALL, rule, 0, s->end);
}

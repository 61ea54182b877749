/* schema_expand.c - a set of schemas to its alternatives: lists of members whose applicators are gone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/schema/schema.h"

struct expansion {
    struct members seen, done, todo; /* done: those that count */
    struct members choices;          /* schemas that have alternatives: pairs of schema and list */
    unsigned types;
};
struct search {
    int (*fn)(struct schemas *s, const struct members *m, void *arg);
    void *arg;
    int n, stopped;
};

static int expand(struct schemas *s, struct expansion *x, struct search *to);

/* --- what a schema says --- */

static const struct {
    const char *name;
    unsigned types;
} type_names[] = { { "null", T_NULL },       { "boolean", T_FALSE | T_TRUE },
                   { "integer", T_INTEGER }, { "number", T_NUMBER },
                   { "string", T_STRING },   { "array", T_ARRAY },
                   { "object", T_OBJECT },   { "any", T_ALL } };

static unsigned type_bits(struct schemas *s, const json_t *node, const json_t *v)
{
    const char *name = json_string_value(v);
    for (size_t i = 0; name && i < sizeof type_names / sizeof *type_names; i++)
        if (!strcmp(name, type_names[i].name))
            return type_names[i].types;
    schema_fail(s, node, "type", "is not the name of a type");
    return 0;
}

static unsigned value_type(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL: return T_NULL;
    case JSON_FALSE: return T_FALSE;
    case JSON_TRUE: return T_TRUE;
    case JSON_STRING: return T_STRING;
    case JSON_ARRAY: return T_ARRAY;
    case JSON_OBJECT: return T_OBJECT;
    default: return T_NUMBER;
    }
}

/* Types that one schema allows by itself. */
static unsigned own_types(struct schemas *s, const json_t *node)
{
    const json_t *type = json_object_get(node, "type"), *list = json_object_get(node, "enum");
    const json_t *one = json_object_get(node, "const");
    unsigned types = type ? 0 : T_ALL, among = 0;
    if (json_is_array(type))
        for (size_t i = 0; i < json_array_size(type); i++)
            types |= type_bits(s, node, json_array_get(type, i));
    else if (type)
        types = type_bits(s, node, type);
    if (type && s->nullable && json_is_true(json_object_get(node, "nullable")))
        types |= T_NULL;

    for (size_t i = 0; i < json_array_size(list); i++)
        among |= value_type(json_array_get(list, i));
    types &= list ? among : T_ALL;
    return one ? types & value_type(one) : types;
}

unsigned schema_types(struct schemas *s, const struct members *m)
{
    unsigned types = T_ALL;
    for (size_t i = 0; i < m->n; i++)
        types &= own_types(s, m->v[i]);
    return types;
}

/* --- $ref --- */

/* Percent escapes of a fragment. */
static void unescape_fragment(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        const char hex[3] = { p[1], p[1] ? p[2] : 0 };
        if (*p == '%' && strspn(hex, "0123456789abcdefABCDEF") == 2) {
            *to++ = (char)strtol(hex, NULL, 16);
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = 0;
}

/* "~1" and "~0" of a word of a pointer. */
static void unescape_word(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p == '~' && (p[1] == '0' || p[1] == '1'))
            *to++ = *++p == '0' ? '~' : '/';
        else
            *to++ = *p;
    }
    *to = 0;
}

static const json_t *follow(const json_t *at, const char *pointer)
{
    while (*pointer == '/' && at) {
        size_t n = strcspn(++pointer, "/");
        char *word = strndup(pointer, n), *end;
        if (!word)
            return NULL;
        unescape_word(word);
        long index = strtol(word, &end, 10);
        at = json_is_array(at) ? (*word && !*end && index >= 0 ? json_array_get(at, (size_t)index) : NULL)
                               : json_object_get(at, word);
        free(word);
        pointer += n;
    }
    return *pointer ? NULL : at;
}

/* The schema in `at` whose $id or $anchor is the name, to *found; depth first. ids: names of $id, else of
 * anchors. Returns how many there are. */
static int find_named(const json_t *at, const char *name, size_t n, int ids, const json_t **found)
{
    static const char *const keys[2][3] = { { "$anchor", "$id", "id" }, { "$id", "id", NULL } };
    const char *key;
    json_t *value;
    int count = 0;
    for (int i = 0; json_is_object(at) && i < 3 && keys[ids][i]; i++) {
        const char *text = json_string_value(json_object_get(at, keys[ids][i]));
        if (text && !ids && i > 0)
            text = *text == '#' ? text + 1 : NULL;
        if (text && strlen(text) == n && !memcmp(text, name, n)) {
            *found = at;
            count = 1;
        }
    }
    for (size_t i = 0; json_is_array(at) && i < json_array_size(at); i++)
        count += find_named(json_array_get(at, i), name, n, ids, found);
    if (json_is_object(at))
        json_object_foreach((json_t *)(uintptr_t)at, key, value) {
            count += find_named(value, name, n, ids, found);
        }
    return count;
}

/* Does node stand within a schema below the root that has a base of its own, from which "#/…" counts? node
 * NULL: is there such a schema at all? */
static int has_inner_base(const json_t *at, const json_t *node, int depth)
{
    const char *key, *id = depth ? json_string_value(json_object_get(at, "$id")) : NULL;
    json_t *value;
    int found = 0;
    if (id && *id != '#' && !node)
        return 1;
    if (id && *id != '#')
        return schema_within(at, node, 0);
    if (json_is_object(at) && depth < 200)
        json_object_foreach((json_t *)(uintptr_t)at, key, value) {
            found = found ||
                    (strcmp(key, "enum") && strcmp(key, "const") && has_inner_base(value, node, depth + 1));
        }
    for (size_t i = 0; json_is_array(at) && depth < 200 && !found && i < json_array_size(at); i++)
        found = has_inner_base(json_array_get(at, i), node, depth + 1);
    return found;
}

/* Text of the reference in a message. */
static void refuse_ref(struct schemas *s, const json_t *node, const char *ref, const char *why)
{
    char what[300];
    snprintf(what, sizeof what, "\"%.200s\" %s", ref, why);
    schema_fail(s, node, "$ref", what);
}

const json_t *schema_ref(struct schemas *s, const json_t *node, const char *ref)
{
    const char *hash = strchr(ref, '#'), *root_id = json_string_value(json_object_get(s->root, "$id"));
    size_t n = hash ? (size_t)(hash - ref) : strlen(ref);
    const json_t *at = s->root;
    char *fragment = strdup(hash ? hash + 1 : "");

    root_id = root_id ? root_id : json_string_value(json_object_get(s->root, "id"));
    size_t n_root = root_id ? strcspn(root_id, "#") : 0;
    if (!fragment) {
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
        return NULL;
    }
    if (n && !(root_id && n == n_root && !memcmp(ref, root_id, n)) &&
        find_named(s->root, ref, n, 1, &at) != 1)
        at = NULL;
    if (s->inner_bases < 0)
        s->inner_bases = has_inner_base(s->root, NULL, 0);
    if (s->inner_bases && has_inner_base(s->root, node, 0)) {
        refuse_ref(s, node, ref,
                   "cannot be followed: an inner $id changes what it means, which is not honoured");
        at = NULL;
    } else if (!at) {
        refuse_ref(s, node, ref, "leads to another document, which is not honoured");
    } else if (*fragment && *fragment != '/') {
        const json_t *in = at;
        if (find_named(in, fragment, strlen(fragment), 0, &at) != 1)
            at = NULL;
    } else {
        unescape_fragment(fragment); /* before the pointer is cut: RFC 6901, section 6 */
        at = follow(at, fragment);
    }
    if (!at && !s->p->failed)
        refuse_ref(s, node, ref, "leads nowhere");
    free(fragment);
    return s->p->failed ? NULL : at;
}

/* --- choices --- */

static void add_choice(struct schemas *s, struct expansion *x, const json_t *node, const json_t *list)
{
    if (!list) {
        return;
    }
    if (!json_is_array(list) || !json_array_size(list)) {
        schema_fail(s, node, "anyOf", "is not a list of schemas");
        return;
    }
    members_add(s, &x->choices, node);
    members_add(s, &x->choices, list);
}

/* {"anyOf": options}, kept and found again: its list. A NULL in options is what cannot be made. */
static const json_t *made_list(struct schemas *s, const json_t *of, const char *tag, json_t *a, json_t *b)
{
    json_t *list = a && b ? json_pack("{s:[o,o]}", "anyOf", a, b) : NULL;
    return json_object_get(schema_make(s, of, tag, list), "anyOf");
}

static json_t *own(const json_t *node) { return json_incref((json_t *)(uintptr_t)node); }

/* if: it and then, or neither it but else. */
static void add_if(struct schemas *s, struct expansion *x, const json_t *node)
{
    const json_t *when = json_object_get(node, "if"), *then = json_object_get(node, "then");
    const json_t *other = json_object_get(node, "else"), *made = schema_made(s, node, "if");
    if (!when || (!then && !other))
        return;
    if (!made) {
        const json_t *not = schema_not(s, when, 0);
        if (!not ) {
            schema_fail(s, node, "if", "is not honoured: its opposite cannot be written as a schema");
            return;
        }
        json_t *yes = json_pack("{s:[O,o]}", "allOf", when, then ? own(then) : json_true());
        json_t *no = json_pack("{s:[O,o]}", "allOf", not, other ? own(other) : json_true());
        made_list(s, node, "if", yes, no);
        made = schema_made(s, node, "if");
    }
    add_choice(s, x, node, json_object_get(made, "anyOf"));
}

/* dependencies, dependentRequired, dependentSchemas: the key is not there, or what it asks for holds. */
static void add_dependencies(struct schemas *s, struct expansion *x, const json_t *node, const char *keyword)
{
    json_t *all = json_object_get(node, keyword), *value;
    const char *key;
    char tag[300];
    if (all && !json_is_object(all))
        schema_fail(s, node, keyword, "is not an object");
    json_object_foreach(all, key, value) {
        snprintf(tag, sizeof tag, "%.40s/%.200s", keyword, key);
        const json_t *made = json_object_size(all) && strlen(key) < 200 ? schema_made(s, node, tag) : NULL;
        if (strlen(key) >= 200)
            schema_fail(s, node, keyword, "has a key of more than 200 bytes");
        if (!made) {
            json_t *absent = json_pack("{s:{s:b}}", "properties", key, 0);
            json_t *present = json_is_array(value)
                                  ? json_pack("{s:[{s:[s]},{s:O}]}", "allOf", "required", key, "required",
                                              value)
                                  : json_pack("{s:[{s:[s]},O]}", "allOf", "required", key, value);
            made_list(s, node, tag, absent, present);
            made = schema_made(s, node, tag);
        }
        add_choice(s, x, node, json_object_get(made, "anyOf"));
    }
}

static void add_not(struct schemas *s, struct expansion *x, const json_t *node)
{
    const json_t *not = json_object_get(node, "not");
    if (!not )
        return;
    const json_t *opposite = schema_not(s, not, 0);
    if (!opposite)
        schema_fail(s, node, "not", "is not honoured: its opposite cannot be written as a schema");
    else
        members_add(s, &x->todo, opposite);
}

/* --- oneOf --- */

/* A member without its applicators: those have been followed. */
static const json_t *plain(struct schemas *s, const json_t *node)
{
    static const char *const applicators[] = {
        "oneOf",           "anyOf", "allOf", "not", "if", "$ref", "dependencies", "dependentRequired",
        "dependentSchemas"
    };
    const json_t *made = schema_made(s, node, "\001plain");
    json_t *copied = made ? NULL : json_copy((json_t *)(uintptr_t)node);
    for (size_t i = 0; copied && i < sizeof applicators / sizeof *applicators; i++)
        json_object_del(copied, applicators[i]);
    return made ? made : schema_make(s, node, "\001plain", copied);
}

/* 1: no value is within both and the third one (or NULL), beside the members. */
static int disjoint(struct schemas *s, const struct expansion *x, const json_t *a, const json_t *b,
                    const json_t *third)
{
    struct members both = { 0 };
    for (size_t i = 0; i < x->done.n; i++)
        members_add(s, &both, plain(s, x->done.v[i]));
    members_add(s, &both, a);
    members_add(s, &both, b);
    if (third)
        members_add(s, &both, third);
    int32_t set = schema_set(s, &both);
    free((void *)both.v);
    return !s->p->failed && !schema_satisfiable(s, set);
}

/* What a value of one alternative must be beside, so that it is none of the other: NULL, not known. */
static const json_t *none_of(struct schemas *s, const struct expansion *x, const json_t *one,
                             const json_t *other)
{
    const json_t *not = schema_not(s, other, 0), *some = schema_made(s, s->root, "\001some");
    if (not )
        return not ;
    if (!some)
        some = schema_make(s, s->root, "\001some", json_pack("{s:i}", "minItems", 1));
    /* lists of different items have but the empty one in common */
    return disjoint(s, x, one, other, some) ? some : NULL;
}

/* Alternative i of a oneOf, without what others allow, too. */
static const json_t *only_one(struct schemas *s, const struct expansion *x, const json_t *node,
                              const json_t *list, size_t i)
{
    const json_t *one = json_array_get(list, i);
    json_t *all = NULL;
    for (size_t j = 0; j < json_array_size(list) && !s->p->failed; j++) {
        const json_t *other = json_array_get(list, j);
        if (j == i || disjoint(s, x, one, other, NULL))
            continue;
        const json_t *not = none_of(s, x, one, other);
        if (!not ) {
            char what[300];
            snprintf(
                what, sizeof what,
                "is not honoured: alternatives %zu and %zu may both hold, and the opposite of one cannot be "
                "written as a schema (anyOf, or a const that tells them apart, is honoured)",
                i, j);
            schema_fail(s, node, "oneOf", what);
            break;
        }
        all = all ? all : json_pack("[O]", one);
        json_array_append(all, (json_t *)(uintptr_t) not );
    }
    if (!all || s->p->failed) {
        json_decref(all);
        return one;
    }
    /* found again by its members, since what overlaps depends on the members beside it */
    struct members of = { 0 };
    char tag[64];
    for (size_t j = 0; j < json_array_size(all); j++)
        members_add(s, &of, json_array_get(all, j));
    snprintf(tag, sizeof tag, "\001one of %zu, %d", i, schema_set(s, &of));
    free((void *)of.v);
    const json_t *made = schema_made(s, node, tag);
    if (!made)
        made = schema_make(s, node, tag, json_pack("{s:o}", "allOf", all));
    else
        json_decref(all);
    return made;
}

/* --- expansion --- */

static void push(struct schemas *s, struct expansion *x, const json_t *node);

static void add_all(struct schemas *s, struct expansion *x, const json_t *node)
{
    const json_t *all = json_object_get(node, "allOf");
    if (all && !json_is_array(all))
        schema_fail(s, node, "allOf", "is not a list of schemas");
    for (size_t i = 0; i < json_array_size(all); i++)
        members_add(s, &x->todo, json_array_get(all, i));
}

/* One schema that holds. */
static void push(struct schemas *s, struct expansion *x, const json_t *node)
{
    const json_t *ref = json_object_get(node, "$ref");
    if (json_is_true(node))
        return;
    if (json_is_false(node)) {
        x->types = 0;
        return;
    }
    if (!json_is_object(node)) {
        schema_fail(s, node, "a schema", "is no object");
        return;
    }
    for (size_t i = 0; i < x->seen.n; i++)
        if (x->seen.v[i] == node)
            return;
    members_add(s, &x->seen, node);

    if (ref && !json_is_string(ref)) {
        schema_fail(s, node, "$ref", "is not a text");
    } else if (ref) {
        const json_t *to = schema_ref(s, node, json_string_value(ref));
        if (to)
            members_add(s, &x->todo, to);
        if (s->legacy)
            return;
    }
    members_add(s, &x->done, node);
    x->types &= own_types(s, node);
    add_all(s, x, node);
    add_not(s, x, node);
    add_if(s, x, node);
    add_dependencies(s, x, node, "dependencies");
    add_dependencies(s, x, node, "dependentRequired");
    add_dependencies(s, x, node, "dependentSchemas");
    add_choice(s, x, node, json_object_get(node, "anyOf"));
    if (json_object_get(node, "oneOf"))
        add_choice(s, x, node, json_object_get(node, "oneOf"));
}

static void copy(struct schemas *s, struct expansion *to, const struct expansion *from)
{
    memset(to, 0, sizeof *to);
    to->types = from->types;
    for (size_t i = 0; i < from->seen.n; i++)
        members_add(s, &to->seen, from->seen.v[i]);
    for (size_t i = 0; i < from->done.n; i++)
        members_add(s, &to->done, from->done.v[i]);
    for (size_t i = 0; i < from->choices.n; i++)
        members_add(s, &to->choices, from->choices.v[i]);
}

static void expansion_free(struct expansion *x)
{
    free((void *)x->seen.v);
    free((void *)x->done.v);
    free((void *)x->todo.v);
    free((void *)x->choices.v);
}

/* Each option of the first choice that is left; one of oneOf comes when no other is left. */
static int choose(struct schemas *s, struct expansion *x, struct search *to)
{
    size_t at = 0;
    int is_one = 0;
    for (size_t i = 0; i < x->choices.n; i += 2) {
        is_one = json_object_get(x->choices.v[i], "oneOf") == x->choices.v[i + 1];
        at = i;
        if (!is_one)
            break;
    }
    const json_t *node = x->choices.v[at], *list = x->choices.v[at + 1];
    memmove((void *)(x->choices.v + at), (void *)(x->choices.v + at + 2),
            (x->choices.n - at - 2) * sizeof *x->choices.v);
    x->choices.n -= 2;

    for (size_t i = 0; i < json_array_size(list) && !s->p->failed && !to->stopped; i++) {
        struct expansion y;
        copy(s, &y, x);
        members_add(s, &y.todo, is_one ? only_one(s, x, node, list, i) : json_array_get(list, i));
        expand(s, &y, to);
        expansion_free(&y);
    }
    return to->stopped;
}

static void turn_round(struct members *m, size_t from)
{
    for (size_t i = from, j = m->n; i + 1 < j; i++) {
        const json_t *last = m->v[--j];
        m->v[j] = m->v[i];
        m->v[i] = last;
    }
}

/* Follows what is to be done, depth first: what a schema refers to comes before its neighbours, so that keys
 * come in the order in which a reader meets them. */
static void push_todo(struct schemas *s, struct expansion *x)
{
    turn_round(&x->todo, 0);
    while (x->todo.n && x->types && program_check(s->p) == 0) {
        const json_t *node = x->todo.v[--x->todo.n];
        size_t n = x->todo.n;
        push(s, x, node);
        turn_round(&x->todo, n);
    }
    x->todo.n = 0;
}

static int expand(struct schemas *s, struct expansion *x, struct search *to)
{
    if (++s->depth > SCHEMA_DEPTH)
        program_fail(s->p, ERR_CONFIG, "the schema has more than %d applicators in one another",
                     SCHEMA_DEPTH);
    push_todo(s, x);
    if (x->types && !s->p->failed) {
        if (x->choices.n) {
            choose(s, x, to);
        } else if (++to->n > SCHEMA_ALTERNATIVES) {
            program_fail(s->p, ERR_CONFIG,
                         "the schema has more than %d combinations of alternatives at one place: use fewer "
                         "anyOf and oneOf beside each other",
                         SCHEMA_ALTERNATIVES);
        } else {
            to->stopped = to->fn(s, &x->done, to->arg);
        }
    }
    s->depth--;
    return to->stopped;
}

int schema_expand(struct schemas *s, int32_t set,
                  int (*fn)(struct schemas *s, const struct members *m, void *arg), void *arg)
{
    struct expansion x = { .types = T_ALL };
    struct search to = { fn, arg, 0, 0 };
    schema_set_members(s, set, &x.todo);
    expand(s, &x, &to);
    expansion_free(&x);
    return to.stopped;
}

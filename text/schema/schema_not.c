/* schema_not.c - the opposite of a schema, as a schema: by De Morgan, assertion by assertion. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/schema/schema.h"

#define NOT_DEPTH 8

const json_t *schema_made(struct schemas *s, const json_t *of, const char *tag)
{
    size_t n = strlen(tag), bytes = sizeof of + n;
    char *key = malloc(bytes);
    const json_t *found = NULL;
    if (!key) {
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
        return NULL;
    }
    memcpy(key, &of, sizeof of);
    memcpy(key + sizeof of, tag, n);
    uint32_t id = intern_put(&s->name, key, bytes);
    while (json_array_size(s->made) < s->name.n)
        if (json_array_append_new(s->made, json_null()) < 0)
            break;
    if (s->name.failed || json_array_size(s->made) < s->name.n)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    else
        found = json_array_get(s->made, id);
    free(key);
    return json_is_null(found) ? NULL : found;
}

const json_t *schema_make(struct schemas *s, const json_t *of, const char *tag, json_t *made)
{
    schema_made(s, of, tag); /* gives it a place */
    size_t n = strlen(tag);
    char *key = malloc(sizeof of + n);
    if (!made || !key || s->p->failed) {
        if (!key)
            program_fail(s->p, ERR_MEMORY, "no memory for a schema");
        free(key);
        json_decref(made);
        return NULL;
    }
    memcpy(key, &of, sizeof of);
    memcpy(key + sizeof of, tag, n);
    json_array_set_new(s->made, intern_put(&s->name, key, sizeof of + n), made);
    free(key);
    return made;
}

/* --- opposites of assertions: each a new schema, or NULL --- */

typedef json_t *opposite_fn(struct schemas *s, const json_t *node, const json_t *v, int depth);

static json_t *not_type(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    static const char *const names[] = { "null", "boolean", "string", "array", "object", "number" };
    json_t *list = json_array(),
           *types = json_is_array(v) ? json_incref((json_t *)(uintptr_t)v) : json_pack("[O]", v);
    int integer = 0, number = 0;
    (void)s;
    (void)node;
    (void)depth;
    for (size_t j = 0; j < json_array_size(types); j++) {
        const char *has = json_string_value(json_array_get(types, j));
        integer |= has && !strcmp(has, "integer");
        number |= has && !strcmp(has, "number");
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int among = (i == 5 && integer);
        for (size_t j = 0; j < json_array_size(types); j++) {
            const char *has = json_string_value(json_array_get(types, j));
            among |= has && !strcmp(has, names[i]);
        }
        if (!among)
            json_array_append_new(list, json_string(names[i]));
    }
    json_decref(types);
    json_t *rest = json_pack("{s:o}", "type", list);
    if (!integer || number)
        return rest;
    return json_pack("{s:[o,{s:s,s:b}]}", "anyOf", rest, "type", "number", KEY_FRACTION, 1);
}

/* A value that is none of a list: all of another type, and those of its type that differ. */
static json_t *not_values(const json_t *list)
{
    json_t *texts = json_array(), *all = json_array(), *value = NULL;
    int has[3] = { 0 };
    for (size_t i = 0; i < json_array_size(list); i++) {
        value = json_array_get(list, i);
        if (json_is_array(value) || json_is_object(value)) {
            json_decref(texts);
            json_decref(all);
            return NULL;
        }
        if (json_is_string(value))
            json_array_append(texts, value);
        else if (json_is_number(value)) /* below it, above it, or no number */
            json_array_append_new(all, json_pack("{s:[{s:O},{s:O},{s:[s,s,s,s,s]}]}", "anyOf",
                                                 "exclusiveMaximum", value, "exclusiveMinimum", value, "type",
                                                 "null", "boolean", "string", "array", "object"));
        else
            has[json_is_null(value) ? 0 : json_is_true(value) ? 1 : 2] = 1;
    }
    if (has[0])
        json_array_append_new(all, json_pack("{s:[s,s,s,s,s]}", "type", "boolean", "string", "array",
                                             "object", "number"));
    if (has[1] || has[2]) {
        json_t *other = json_pack("[{s:[s,s,s,s,s]}]", "type", "null", "string", "array", "object", "number");
        if (!has[1] || !has[2])
            json_array_append_new(other, json_pack("{s:b}", "const", !has[1]));
        json_array_append_new(all, json_pack("{s:o}", "anyOf", other));
    }
    json_array_append_new(all, json_pack("{s:o}", KEY_NOT_WORDS, texts));
    return json_pack("{s:o}", "allOf", all);
}

static json_t *not_enum(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    (void)s;
    (void)node;
    (void)depth;
    return not_values(v);
}

static json_t *not_const(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    json_t *list = json_pack("[O]", v), *made = not_values(list);
    (void)s;
    (void)node;
    (void)depth;
    json_decref(list);
    return made;
}

static json_t *not_pattern(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    (void)s;
    (void)node;
    (void)depth;
    return json_pack("{s:s,s:O}", "type", "string", KEY_NOT_PATTERN, v);
}

static json_t *not_required(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    json_t *list = json_array();
    (void)s;
    (void)node;
    (void)depth;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *key = json_string_value(json_array_get(v, i));
        if (key)
            json_array_append_new(list, json_pack("{s:s,s:{s:b}}", "type", "object", "properties", key, 0));
    }
    return json_pack("{s:o}", "anyOf", list);
}

static json_t *not_properties(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    json_t *list = json_array(), *value;
    const char *key;
    (void)node;
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        const json_t *not = schema_not(s, value, depth + 1);
        if (!not ) {
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, json_pack("{s:s,s:[s],s:{s:O}}", "type", "object", "required", key,
                                              "properties", key, not ));
    }
    return json_pack("{s:o}", "anyOf", list);
}

static json_t *not_all(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    json_t *list = json_array();
    const char *word = json_object_get(node, "anyOf") == v ? "allOf" : "anyOf";
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *not = schema_not(s, json_array_get(v, i), depth + 1);
        if (!not ) {
            json_decref(list);
            return NULL;
        }
        json_array_append(list, (json_t *)(uintptr_t) not );
    }
    return json_pack("{s:o}", word, list);
}

static json_t *not_not(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    (void)s;
    (void)node;
    (void)depth;
    return json_pack("{s:[O]}", "allOf", v);
}

static json_t *not_ref(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    const json_t *to = json_is_string(v) ? schema_ref(s, node, json_string_value(v)) : NULL;
    const json_t *not = to ? schema_not(s, to, depth + 1) : NULL;
    return not ? json_pack("{s:[O]}", "allOf", not ) : NULL;
}

static json_t *unknown(struct schemas *s, const json_t *node, const json_t *v, int depth)
{
    (void)s;
    (void)node;
    (void)v;
    (void)depth;
    return NULL;
}

/* A count or a bound: its opposite is another keyword, with the count moved by `step`. */
struct opposite {
    const char *keyword;
    opposite_fn *fn;
    const char *type, *other;
    int step;
};
static const struct opposite opposites[] = {
    { "type", not_type, NULL, NULL, 0 },
    { "enum", not_enum, NULL, NULL, 0 },
    { "const", not_const, NULL, NULL, 0 },
    { "pattern", not_pattern, NULL, NULL, 0 },
    { "required", not_required, NULL, NULL, 0 },
    { "properties", not_properties, NULL, NULL, 0 },
    { "anyOf", not_all, NULL, NULL, 0 },
    { "allOf", not_all, NULL, NULL, 0 },
    { "not", not_not, NULL, NULL, 0 },
    { "$ref", not_ref, NULL, NULL, 0 },
    { "minimum", NULL, "number", "exclusiveMaximum", 0 },
    { "maximum", NULL, "number", "exclusiveMinimum", 0 },
    { "exclusiveMinimum", NULL, "number", "maximum", 0 },
    { "exclusiveMaximum", NULL, "number", "minimum", 0 },
    { "minLength", NULL, "string", "maxLength", -1 },
    { "maxLength", NULL, "string", "minLength", 1 },
    { "minItems", NULL, "array", "maxItems", -1 },
    { "maxItems", NULL, "array", "minItems", 1 },
    { "minProperties", NULL, "object", "maxProperties", -1 },
    { "maxProperties", NULL, "object", "minProperties", 1 },
    { "oneOf", unknown, NULL, NULL, 0 },
    { "items", unknown, NULL, NULL, 0 },
    { "prefixItems", unknown, NULL, NULL, 0 },
    { "additionalItems", unknown, NULL, NULL, 0 },
    { "additionalProperties", unknown, NULL, NULL, 0 },
    { "patternProperties", unknown, NULL, NULL, 0 },
    { "propertyNames", unknown, NULL, NULL, 0 },
    { "multipleOf", unknown, NULL, NULL, 0 },
    { "format", unknown, NULL, NULL, 0 },
    { "uniqueItems", unknown, NULL, NULL, 0 },
    { "contains", unknown, NULL, NULL, 0 },
    { "if", unknown, NULL, NULL, 0 },
    { "dependencies", unknown, NULL, NULL, 0 },
    { "dependentRequired", unknown, NULL, NULL, 0 },
    { "dependentSchemas", unknown, NULL, NULL, 0 },
    { "unevaluatedItems", unknown, NULL, NULL, 0 },
    { "unevaluatedProperties", unknown, NULL, NULL, 0 },
    { "$dynamicRef", unknown, NULL, NULL, 0 },
    { "$recursiveRef", unknown, NULL, NULL, 0 },
    { KEY_NOT_PATTERN, unknown, NULL, NULL, 0 },
    { KEY_NOT_WORDS, unknown, NULL, NULL, 0 },
    { KEY_FRACTION, unknown, NULL, NULL, 0 },
};

static json_t *bound(const struct opposite *o, const json_t *v)
{
    if (!json_is_number(v))
        return NULL;
    if (!o->step)
        return json_pack("{s:s,s:O}", "type", o->type, o->other, v);
    int64_t count = (int64_t)json_number_value(v) + o->step;
    if (count < 0) /* any count is at least 0 */
        return json_false();
    return json_pack("{s:s,s:I}", "type", o->type, o->other, (json_int_t)count);
}

/* The opposite of one keyword; *known 0: there is none. NULL with *known 1: the keyword says nothing. */
static json_t *not_keyword(struct schemas *s, const json_t *node, const char *key, const json_t *v, int depth,
                           int *known)
{
    for (size_t i = 0; i < sizeof opposites / sizeof *opposites; i++) {
        const struct opposite *o = &opposites[i];
        if (strcmp(o->keyword, key))
            continue;
        json_t *made = o->fn ? o->fn(s, node, v, depth) : bound(o, v);
        *known = made != NULL;
        return made;
    }
    return NULL;
}

const json_t *schema_not(struct schemas *s, const json_t *node, int depth)
{
    const json_t *made = schema_made(s, node, "\001not");
    json_t *list, *value;
    const char *key;
    int known = 1;
    if (made || depth > NOT_DEPTH || s->p->failed)
        return made;
    if (!json_is_object(node)) /* true and false have no place of their own */
        return json_is_boolean(node) ? (json_is_true(node) ? json_false() : json_true()) : NULL;

    list = json_array();
    int only_ref = s->legacy && json_object_get(node, "$ref");
    json_object_foreach((json_t *)(uintptr_t)node, key, value) {
        if (only_ref && strcmp(key, "$ref"))
            continue;
        json_t *one = known ? not_keyword(s, node, key, value, depth, &known) : NULL;
        if (one)
            json_array_append_new(list, one);
    }
    if (!known) {
        json_decref(list);
        return NULL;
    }
    if (!json_array_size(list)) { /* it always holds */
        json_decref(list);
        return json_false();
    }
    return schema_make(s, node, "\001not", json_pack("{s:o}", "anyOf", list));
}

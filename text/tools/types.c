/* types.c - values of parameters that a model writes without quotes: their types are in the tool's schema.
 * See parse.h. */
#include "text/tools/parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA_DEPTH 16 /* of $ref and anyOf */

struct tool_set *tool_set_open(const json_t *tools)
{
    struct tool_set *s = calloc(1, sizeof *s);
    if (s)
        s->tools = json_incref((json_t *)(uintptr_t)tools);
    return s;
}

void tool_set_close(struct tool_set *s)
{
    if (!s)
        return;
    json_decref(s->tools);
    free(s);
}

static const json_t *find_tool(const struct tool_set *s, const char *name, size_t n)
{
    size_t i;
    const json_t *t;

    if (s)
        json_array_foreach(s->tools, i, t) {
            const json_t *fn = json_object_get(t, "function"), *own = json_object_get(fn, "name");
            if (json_string_length(own) == n && n && !memcmp(json_string_value(own), name, n))
                return fn;
        }
    return NULL;
}

int tool_set_has(const struct tool_set *s, const char *name, size_t n)
{
    return find_tool(s, name, n) != NULL;
}

/* ---- what a schema allows ---- */

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = { { "string", TYPE_STRING },   { "number", TYPE_NUMBER }, { "integer", TYPE_INTEGER },
                  { "boolean", TYPE_BOOLEAN }, { "null", TYPE_NULL },     { "object", TYPE_OBJECT },
                  { "array", TYPE_ARRAY } };
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name))
            return types[i].bit;
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_INTEGER;
    case JSON_REAL: return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return TYPE_BOOLEAN;
    case JSON_NULL: return TYPE_NULL;
    case JSON_OBJECT: return TYPE_OBJECT;
    case JSON_ARRAY: return TYPE_ARRAY;
    }
    return 0;
}

/* The part of root that a reference "#/a/b" names; NULL: none. */
static const json_t *resolve(const json_t *root, const char *ref)
{
    char key[256];

    if (strncmp(ref, "#", 1))
        return NULL;
    for (ref++; root && *ref == '/';) {
        size_t n = strcspn(++ref, "/");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, ref, n);
        key[n] = 0;
        root = json_is_array(root) ? json_array_get(root, strtoul(key, NULL, 10))
                                   : json_object_get(root, key);
        ref += n;
    }
    return root;
}

static unsigned types_of(const json_t *root, const json_t *schema, int depth)
{
    static const char *const unions[] = { "anyOf", "oneOf", "allOf" };
    const json_t *type = json_object_get(schema, "type"), *one, *list = json_object_get(schema, "enum");
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    unsigned bits = type_named(json_string_value(type));
    size_t i;

    if (!json_is_object(schema) || depth == SCHEMA_DEPTH)
        return 0;
    json_array_foreach(type, i, one)
        bits |= type_named(json_string_value(one));
    if (ref && !bits)
        bits = types_of(root, resolve(root, ref), depth + 1);
    for (size_t k = 0; k < 3 && !bits; k++)
        json_array_foreach(json_object_get(schema, unions[k]), i, one)
            bits |= types_of(root, one, depth + 1);
    if (!bits)
        json_array_foreach(list, i, one)
            bits |= type_of_value(one);
    if (!bits && (one = json_object_get(schema, "const")))
        bits = type_of_value(one);
    if (!bits && json_object_get(schema, "properties"))
        bits = TYPE_OBJECT;
    return !bits && json_object_get(schema, "items") ? TYPE_ARRAY : bits;
}

unsigned tool_types(const struct tool_set *s, const struct buf *tool, const struct buf *param)
{
    const json_t *fn = find_tool(s, tool->p, tool->n), *root = json_object_get(fn, "parameters"), *v;
    const json_t *schema = root;
    const char *ref = json_string_value(json_object_get(root, "$ref")), *key;

    if (ref)
        schema = resolve(root, ref);
    json_object_foreach((json_t *)(uintptr_t)json_object_get(schema, "properties"), key, v)
        if (strlen(key) == param->n && !memcmp(key, param->p, param->n))
            return types_of(root, v, 0);
    return 0;
}

/* ---- values ---- */

static int same(const char *s, size_t n, const char *text)
{
    return n == strlen(text) && !memcmp(s, text, n);
}

/* Appends a list or object: as it stands where it is JSON, else made from Python's syntax. 0: it is
 * neither. */
static int write_container(const char *s, size_t n, struct buf *out)
{
    struct literal l = { 0 };
    struct buf made = { 0 };
    size_t used = 0;
    json_t *j = json_loadb(s, n, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    int ok = j != NULL;

    json_decref(j);
    if (ok) {
        buf_add(out, s, n);
        return 1;
    }
    ok = literal_read(&l, s, n, 1, &used, &made) == YES && used == n;
    j = ok ? json_loadb(made.p, made.n, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL) : NULL;
    if (j)
        buf_add(out, made.p, made.n);
    ok = j != NULL;
    json_decref(j);
    buf_free(&made);
    return ok;
}

/* Appends s if it is a number of the types. */
static int write_number(unsigned types, const char *s, size_t n, struct buf *out)
{
    json_t *j = json_loadb(s, n, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    double x = json_real_value(j);
    int fits = json_is_real(j) &&
               (types & TYPE_NUMBER || (x > -1e18 && x < 1e18 && x == (double)(long long)x));

    json_decref(j);
    if (fits)
        buf_add(out, s, n);
    return fits;
}

void tool_write_value(unsigned types, const char *s, size_t n, struct buf *out)
{
    static const struct {
        const char *text, *json;
        unsigned type;
    } words[] = { { "true", "true", TYPE_BOOLEAN }, { "false", "false", TYPE_BOOLEAN },
                  { "True", "true", TYPE_BOOLEAN }, { "False", "false", TYPE_BOOLEAN },
                  { "null", "null", TYPE_NULL },    { "None", "null", TYPE_NULL } };
    const char *t = s;
    size_t k = n;

    types = types ? types : ~0U;
    while (k && strchr(" \t\r\n", *t)) {
        t++;
        k--;
    }
    while (k && strchr(" \t\r\n", t[k - 1]))
        k--;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (types & words[i].type && same(t, k, words[i].text)) {
            buf_add(out, words[i].json, strlen(words[i].json));
            return;
        }
    if (types & (TYPE_NUMBER | TYPE_INTEGER) && k && write_number(types, t, k, out))
        return;
    if (k && ((*t == '{' && types & TYPE_OBJECT) || (*t == '[' && types & TYPE_ARRAY)) &&
        write_container(t, k, out))
        return;
    buf_add(out, "\"", 1);
    json_add_escaped(out, s, n);
    buf_add(out, "\"", 1);
}

/* jx.c - see jx.h. */
#include "base/jx.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"

#define DEPTH_MAX 64

/* What a text of JSON will become. Counted before parsing: the depth protects the parser's stack, the numbers
 * its memory. values: an upper bound, lists and objects included. */
struct shape {
    int depth;
    size_t lists, values;
};

static struct shape shape_of(const char *text, size_t n)
{
    struct shape s = { 0, 0, 1 };
    int depth = 0, in_string = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = 0;
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '{' || c == '[') {
            s.lists++;
            s.values++;
            if (++depth > s.depth)
                s.depth = depth;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',') {
            s.values++;
        }
    }
    return s;
}

static int is_blank(const char *text, size_t n)
{
    while (n && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
        n--;
    return !n;
}

/* Reports why the parser failed. For U+0000 its own text names flags of its calls, so this has its own. */
static void report_failure(const json_error_t *at, const char *what, struct err *e)
{
    int zero = json_error_code(at) == json_error_null_character ||
               json_error_code(at) == json_error_null_byte_in_key;
    err_set(e, ERR_FORMAT, "%s: line %d, column %d: %s", what, at->line, at->column,
            zero ? "a text with the character U+0000 (\\u0000), which is not taken: leave it out" : at->text);
}

json_t *jx_parse(const char *text, size_t n, const char *what, struct err *e)
{
    static const struct jx_limits none = { SIZE_MAX, SIZE_MAX };
    return jx_parse_within(text, n, &none, what, e);
}

json_t *jx_parse_within(const char *text, size_t n, const struct jx_limits *limits, const char *what,
                        struct err *e)
{
    json_error_t at;
    const struct shape s = shape_of(text, n);
    if (is_blank(text, n)) {
        err_set(e, ERR_FORMAT, "%s: empty: JSON is needed", what);
        return NULL;
    }
    if (s.depth > DEPTH_MAX) {
        err_set(e, ERR_FORMAT, "%s: JSON is nested %d deep, at most %d is read here", what, s.depth,
                DEPTH_MAX);
        return NULL;
    }
    if (s.lists > limits->lists || s.values > limits->values) {
        err_set(
            e, ERR_FORMAT,
            "%s: JSON of %zu values, of which %zu are lists and objects: at most %zu and %zu are read here",
            what, s.values, s.lists, limits->values, limits->lists);
        return NULL;
    }
    /* without JSON_ALLOW_NUL an escaped \u0000 is an error too; NaN is no JSON; JSON_DECODE_ANY: the caller
     * checks the type */
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &at);
    if (!j)
        report_failure(&at, what, e);
    return j;
}

json_t *jx_load(const char *path, size_t limit, struct err *e)
{
    void *text;
    size_t n;
    if (io_read_file(path, limit, &text, &n, e) < 0)
        return NULL;
    json_t *j = jx_parse(text, n, path, e);
    free(text);
    return j;
}

static const char *type_name(const json_t *v)
{
    static const char *const name[] = { "an object", "a list", "a text", "an integer",
                                        "a number",  "true",   "false",  "null" };
    return name[json_typeof(v)];
}

static int wrong_type(struct err *e, const char *what, const char *key, const json_t *v, const char *wanted)
{
    return err_set(e, ERR_FORMAT, "%s: \"%s\" is %s, must be %s", what, key, type_name(v), wanted);
}

/* The member, or NULL when absent or null. */
static const json_t *member(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

int jx_int(const json_t *o, const char *what, const char *key, int64_t *out, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    if (!json_is_integer(v))
        return wrong_type(e, what, key, v, "an integer");
    *out = json_integer_value(v);
    return 1;
}

int jx_float(const json_t *o, const char *what, const char *key, double *out, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    if (!json_is_number(v))
        return wrong_type(e, what, key, v, "a number");
    *out = json_number_value(v);
    return 1;
}

int jx_bool(const json_t *o, const char *what, const char *key, int *out, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return wrong_type(e, what, key, v, "true or false");
    *out = json_is_true(v);
    return 1;
}

int jx_text(const json_t *o, const char *what, const char *key, const char **out, struct err *e)
{
    const json_t *v = member(o, key);
    if (!v)
        return 0;
    if (!json_is_string(v))
        return wrong_type(e, what, key, v, "a text");
    *out = json_string_value(v);
    return 1;
}

/* %.9g: "1e-05" and "0" are JSON already, but -0 would be read back as the integer 0. JSON has no NaN and no
 * infinity: null. */
char *jx_float32(float x, char out[32])
{
    if (!isfinite(x))
        return strcpy(out, "null");
    snprintf(out, 32, "%.9g", (double)x);
    if (x == 0 && signbit(x))
        strcpy(out, "-0.0");
    return out;
}

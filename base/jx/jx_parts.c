/* jx_parts.c - see jx.h: lists of JSON that are read and printed an element at a time. jansson needs about
 * 1 kB for what a table says of one tensor, and tables have 100,000 of them. */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"

#define FLAGS (JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY)

/* ---- reading ---- */

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static const char *skip_space(const char *s, const char *end)
{
    while (s < end && is_space(*s))
        s++;
    return s;
}

/* Behind the text that begins at s with a quote; NULL: it does not end. */
static const char *skip_text(const char *s, const char *end)
{
    for (s++; s < end && *s != '"'; s++)
        s += *s == '\\';
    return s < end ? s + 1 : NULL;
}

/* Behind the value that begins at s; NULL: it does not end. */
static const char *skip_value(const char *s, const char *end)
{
    int depth = 0;
    while (s && s < end) {
        char c = *s;
        if (c == '"') {
            s = skip_text(s, end);
        } else if (!depth && (c == ',' || c == '}' || c == ']' || is_space(c))) {
            return s;
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            s++;
        }
        if (!depth && (c == '"' || c == '}' || c == ']'))
            return s;
    }
    return depth ? NULL : s;
}

struct jx_walk jx_walk(struct jx_slice of)
{
    const char *text = of.text ? of.text : "", *end = text + of.n, *s = skip_space(text, end);
    struct jx_walk w = { .at = s, .end = end };
    if (s < end && (*s == '{' || *s == '['))
        w.closing = *s == '{' ? '}' : ']';
    return w;
}

/* Behind the comma or the bracket in front of the next value; NULL: neither is there. *ends: the last bracket
 * was, and nothing follows. */
static const char *skip_separator(struct jx_walk *w, int *ends)
{
    const char *s = skip_space(w->at, w->end);
    *ends = 0;
    if (!w->begun)
        s = skip_space(s + 1, w->end);
    if (s < w->end && *s == w->closing) {
        *ends = skip_space(s + 1, w->end) == w->end;
        return *ends ? s : NULL;
    }
    if (!w->begun)
        return s;
    return s < w->end && *s == ',' ? skip_space(s + 1, w->end) : NULL;
}

int jx_walk_next(struct jx_walk *w, struct jx_slice *key, struct jx_slice *value)
{
    int ends;
    const char *s = w->closing ? skip_separator(w, &ends) : NULL, *behind;
    if (!s || ends)
        return s ? 0 : -1;
    w->begun = 1;
    if (w->closing == '}') {
        behind = s < w->end && *s == '"' ? skip_text(s, w->end) : NULL;
        if (!behind)
            return -1;
        if (key)
            *key = (struct jx_slice){ s, (size_t)(behind - s) };
        s = skip_space(behind, w->end);
        if (s == w->end || *s != ':')
            return -1;
        s = skip_space(s + 1, w->end);
    }

    behind = skip_value(s, w->end);
    if (!behind || behind == s)
        return -1;
    *value = (struct jx_slice){ s, (size_t)(behind - s) };
    w->at = behind;
    return 1;
}

int jx_walk_parse(struct jx_walk *w, const char *what, json_t **out, struct err *e)
{
    struct jx_slice value;
    int rc = jx_walk_next(w, NULL, &value);
    if (rc < 0)
        return err_set(e, ERR_FORMAT, "%s: a list in it is damaged", what);
    if (rc > 0 && !(*out = jx_parse(value.text, value.n, what, e)))
        return -e->code;
    return rc;
}

size_t jx_count(struct jx_slice of)
{
    struct jx_walk w = jx_walk(of);
    struct jx_slice key, value;
    size_t n = 0;
    while (jx_walk_next(&w, &key, &value) > 0)
        n++;
    return n;
}

/* Which of the n keys this one in quotes is; n: none. */
static int find_key(const char *name, const char *const *key, int n)
{
    int i = 0;
    while (i < n && strcmp(name, key[i]))
        i++;
    return i;
}

/* One member into the object. 0: it is not JSON, or there twice. */
static int take_member(json_t *o, struct jx_slice name, struct jx_slice value, const char *const *key,
                       struct jx_slice *apart, int n)
{
    struct err ignored;
    json_t *k = jx_parse(name.text, name.n, "", &ignored), *v = NULL;
    const char *text = json_string_value(k);
    int ok = text && !json_object_get(o, text);
    if (ok) {
        int i = find_key(text, key, n);
        if (i < n && *value.text == '[') {
            apart[i] = value;
            v = json_array();
        } else {
            v = jx_parse(value.text, value.n, "", &ignored);
        }
        ok = v && json_object_set_new(o, text, v) == 0;
    }
    json_decref(k);
    return ok;
}

json_t *jx_parse_apart(struct jx_slice text, const char *const *key, struct jx_slice *apart, int n,
                       const char *what, struct err *e)
{
    struct jx_walk w = jx_walk(text);
    struct jx_slice name, value;
    json_t *o = w.closing == '}' ? json_object() : NULL;
    int rc = o ? 1 : -1;
    memset(apart, 0, sizeof *apart * (size_t)n);
    while (rc > 0 && (rc = jx_walk_next(&w, &name, &value)) > 0)
        if (!take_member(o, name, value, key, apart, n))
            rc = -1;
    if (rc >= 0)
        return o;

    /* no object, or damaged: the parser of the whole finds where */
    json_decref(o);
    memset(apart, 0, sizeof *apart * (size_t)n);
    o = jx_parse(text.text, text.n, what, e);
    if (!json_is_object(o))
        return o;
    json_decref(o);
    err_set(e, ERR_FORMAT, "%s: JSON that one parser takes and another does not: is it damaged", what);
    return NULL;
}

/* ---- printing ---- */

static int add(const char *text, size_t n, void *to)
{
    buf_add(to, text, n);
    return 0;
}

void jx_put(struct buf *to, const json_t *v)
{
    if (!v || json_dump_callback(v, add, to, FLAGS) < 0)
        to->failed = to->failed ? to->failed : BUF_NO_MEMORY;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void jx_put_with(struct buf *to, const json_t *o, const struct jx_member *more, int n)
{
    const char **all = malloc(sizeof *all * (json_object_size(o) + (size_t)n + 1)), *one;
    json_t *v;
    size_t n_all = 0;
    if (!all) {
        to->failed = BUF_NO_MEMORY;
        return;
    }
    json_object_foreach((json_t *)o, one, v)
        all[n_all++] = one;
    for (int i = 0; i < n; i++)
        all[n_all++] = more[i].key;
    qsort(all, n_all, sizeof *all, compare_keys);

    buf_add(to, "{", 1);
    for (size_t k = 0; k < n_all; k++) {
        json_t *name = json_string(all[k]);
        int i = 0;
        while (i < n && strcmp(all[k], more[i].key))
            i++;
        buf_add(to, ",", k > 0);
        jx_put(to, name);
        buf_add(to, ":", 1);
        if (i < n)
            more[i].put(to, more[i].arg);
        else
            jx_put(to, json_object_get(o, all[k]));
        json_decref(name);
    }
    buf_add(to, "}", 1);
    free(all);
}

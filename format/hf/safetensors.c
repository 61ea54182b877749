/* safetensors.c - see safetensors.h. The rules are those of the safetensors README, and its gaps are closed:
 * a name that occurs twice, unknown members, leading spaces, holes and overlaps are errors. Every length is
 * compared with the bytes that exist before it is used. */
#include "format/hf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/fmt.h"

#define HEADER_MAX 100000000u /* the limit of the format */

/* Files that are saved by mistake under such a name, recognised by their first bytes. */
static const struct {
    const char *start, *what;
} impostors[] = {
    { "version https://git-lfs",
      "a git-lfs pointer, not the weights: run `git lfs pull` or download the file" },
    { "<!DOCTYPE", "an HTML page: was an error page saved instead of the file" },
    { "<!doctype", "an HTML page: was an error page saved instead of the file" },
    { "<html", "an HTML page: was an error page saved instead of the file" },
    { "{\"error", "a JSON error message: was the download refused" },
    { "PK\003\004", "a zip file: is it a pytorch_model.bin under another name" },
};

static int not_an_impostor(const char *start, size_t n, const char *path, struct err *e)
{
    for (size_t i = 0; i < sizeof impostors / sizeof *impostors; i++)
        if (n >= strlen(impostors[i].start) && !memcmp(start, impostors[i].start, strlen(impostors[i].start)))
            return err_set(e, ERR_FORMAT, "%s: %s", path, impostors[i].what);
    return 0;
}

int st_read(struct st_table *t, int fd, const char *path, int64_t bytes, struct err *e)
{
    char start[32] = { 0 };
    size_t n_start = bytes < (int64_t)sizeof start ? (size_t)bytes : sizeof start;
    int rc = 0;
    char *text = NULL;
    memset(t, 0, sizeof *t);
    TRY(io_pread(fd, path, start, n_start, 0, e));
    TRY(not_an_impostor(start, n_start, path, e));
    if (bytes < 8)
        return err_set(e, ERR_FORMAT,
                       "%s: has %lld bytes, a safetensors file begins with an 8-byte length: is it whole",
                       path, (long long)bytes);
    uint64_t n;
    memcpy(&n, start, sizeof n);
    if (n > HEADER_MAX)
        return err_set(e, ERR_FORMAT,
                       "%s: header of %llu bytes, the format allows %u: is it a safetensors file", path,
                       (unsigned long long)n, HEADER_MAX);
    if ((int64_t)n > bytes - 8)
        return err_set(e, ERR_FORMAT,
                       "%s: header of %llu bytes passes the end of the file at %lld: is it whole", path,
                       (unsigned long long)n, (long long)bytes);
    text = malloc(n + 1);
    if (!text)
        return err_set(e, ERR_MEMORY, "%s: no memory for a header of %llu bytes", path,
                       (unsigned long long)n);
    TRY(io_pread(fd, path, text, n, 8, e));
    text[n] = 0;
    TRY(st_parse(t, text, n, bytes - 8 - (int64_t)n, path, e));
    t->data = 8 + (int64_t)n;
out:
    free(text);
    return rc < 0 ? rc : 0;
}

static int parse_shape(struct st_entry *t, const json_t *shape, const char *path, struct err *e)
{
    if (!json_is_array(shape))
        return err_set(e, ERR_FORMAT, "%s: %s has no shape: is the header damaged", path, t->name);
    size_t n = json_array_size(shape);
    struct buf tail = { 0 };
    int rc = 0;
    t->n_dims = n > BOX_DIMS ? BOX_DIMS : (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(shape, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            TRY(err_set(e, ERR_FORMAT,
                        "%s: dimension %zu of %s is not a whole number from 0: is the header damaged", path,
                        i, t->name));
        if (i < BOX_DIMS)
            t->shape[i] = json_integer_value(v);
        if (n <= BOX_DIMS || i < BOX_DIMS - 1)
            continue;
        char text[32];
        buf_add(&tail, text,
                (size_t)snprintf(text, sizeof text, "%s%lld", tail.n ? "," : "",
                                 (long long)json_integer_value(v)));
    }
    if (tail.failed)
        TRY(err_set(e, ERR_MEMORY, "%s: no memory for the shape of %s", path, t->name));
    if (tail.n) {
        tail.p[tail.n] = 0;
        TRY(fmt_tail_check(tail.p, &t->shape[BOX_DIMS - 1], path, t->name, e));
    }
    t->tail = tail.p;
    tail = (struct buf){ 0 }; /* t owns the text now */
out:
    buf_free(&tail);
    return rc < 0 ? rc : 0;
}

static int parse_offsets(struct st_entry *t, const json_t *v, int64_t data_bytes, const char *path,
                         struct err *e)
{
    const json_t *begin = json_array_get(v, 0), *end = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return err_set(e, ERR_FORMAT,
                       "%s: data_offsets of %s are not two whole numbers: is the header damaged", path,
                       t->name);
    t->begin = json_integer_value(begin);
    t->end = json_integer_value(end);
    if (t->begin < 0 || t->end < t->begin)
        return err_set(e, ERR_FORMAT, "%s: %s is said to lie from %lld to %lld: is the header damaged", path,
                       t->name, (long long)t->begin, (long long)t->end);
    if (t->end > data_bytes)
        return err_set(e, ERR_FORMAT, "%s: %s needs %lld bytes of data, the file has %lld: is it whole", path,
                       t->name, (long long)t->end, (long long)data_bytes);
    return 0;
}

static int parse_entry(struct st_entry *t, const char *name, const json_t *v, int64_t data_bytes,
                       const char *path, struct err *e)
{
    static const char *const known[] = { "dtype", "shape", "data_offsets" };
    int rc = fmt_name_check(name, strlen(name), path, e);
    if (rc < 0)
        return rc;
    t->name = strdup(name);
    if (!t->name)
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its tensors", path);
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    if (!json_is_object(v) || !dtype)
        return err_set(e, ERR_FORMAT, "%s: %s has no dtype: is the header damaged", path, name);
    if (json_object_size(v) > sizeof known / sizeof *known)
        return err_set(e, ERR_FORMAT,
                       "%s: %s has members besides dtype, shape, data_offsets: is it a safetensors file",
                       path, name);
    int d = stored_dtype_find(dtype);
    if (d < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %s has dtype %.40s, which this program does not know: convert it first", path,
                       name, dtype);
    t->dtype = (enum stored_dtype)d;
    int64_t need;
    if ((rc = parse_shape(t, json_object_get(v, "shape"), path, e)) < 0 ||
        (rc = parse_offsets(t, json_object_get(v, "data_offsets"), data_bytes, path, e)) < 0 ||
        (rc = fmt_shape_check(t->dtype, t->n_dims, t->shape, path, name, &need, e)) < 0)
        return rc;
    if (need != t->end - t->begin)
        return err_set(e, ERR_FORMAT,
                       "%s: %s needs %lld bytes by its shape, its offsets give %lld: is the header damaged",
                       path, name, (long long)need, (long long)(t->end - t->begin));
    return 0;
}

static int check_metadata(const json_t *meta, const char *path, struct err *e)
{
    const char *key;
    json_t *v;
    if (!json_is_object(meta))
        return err_set(e, ERR_FORMAT, "%s: __metadata__ is not an object: is the header damaged", path);
    json_object_foreach((json_t *)meta, key, v)
        if (!json_is_string(v))
            return err_set(e, ERR_FORMAT,
                           "%s: __metadata__ member %.80s is not a string: is the header damaged", path, key);
    return 0;
}

static int compare_begin(const void *pa, const void *pb)
{
    const struct st_entry *a = pa, *b = pb;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end != b->end ? (a->end < b->end ? -1 : 1) : strcmp(a->name, b->name);
}

/* Sorted by begin, every tensor must start where the one before it ends, and the last one end where the file
 * does. */
static int check_holes(const struct st_table *t, int64_t data_bytes, const char *path, struct err *e)
{
    int64_t at = 0;
    for (int i = 0; i < t->n; i++) {
        const struct st_entry *s = &t->entry[i];
        if (s->begin != at)
            return err_set(e, ERR_FORMAT, "%s: %s starts at byte %lld, %s ends at %lld: %s", path, s->name,
                           (long long)s->begin, i ? t->entry[i - 1].name : "the header", (long long)at,
                           s->begin < at ? "they overlap" : "there is a hole");
        at = s->end;
    }
    if (at != data_bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: tensors end at byte %lld, the file goes on to %lld: what is behind them", path,
                       (long long)at, (long long)data_bytes);
    return 0;
}

static int compare_name(const void *pa, const void *pb)
{
    const struct st_entry *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

static int check_twice(const struct st_table *t, const char *path, struct err *e)
{
    for (int i = 1; i < t->n; i++)
        if (!strcmp(t->entry[i - 1].name, t->entry[i].name))
            return err_set(e, ERR_FORMAT, "%s: duplicate key %s: is the header damaged", path,
                           t->entry[i].name);
    return 0;
}

/* One member of the header. */
static int parse_member(struct st_table *t, struct jx_slice key, struct jx_slice value, int64_t data_bytes,
                        const char *path, struct err *e)
{
    json_t *name = jx_parse(key.text, key.n, path, e),
           *v = name ? jx_parse(value.text, value.n, path, e) : NULL;
    const char *text = json_string_value(name);
    int rc = v ? 0 : -e->code;
    if (v && !strcmp(text, "__metadata__"))
        rc = t->metadata++ ? err_set(e, ERR_FORMAT, "%s: duplicate key %s: is the header damaged", path, text)
                           : check_metadata(v, path, e);
    else if (v)
        rc = parse_entry(&t->entry[t->n++], text, v, data_bytes, path, e);
    json_decref(name);
    json_decref(v);
    return rc;
}

/* Not JSON: the parser of the whole says where. */
static int report_damage(const char *text, size_t n, const char *path, struct err *e)
{
    json_t *root = jx_parse(text, n, path, e);
    if (!root)
        return -e->code;
    json_decref(root);
    return err_set(e, ERR_FORMAT, "%s: the header is not an object: is it a safetensors file", path);
}

int st_parse(struct st_table *t, const char *text, size_t n, int64_t data_bytes, const char *path,
             struct err *e)
{
    struct jx_slice whole = { text, n }, key, value;
    struct jx_walk w = jx_walk(whole);
    int rc = 0, more;
    memset(t, 0, sizeof *t);
    if (n == 0 || text[0] != '{')
        return err_set(e, ERR_FORMAT, "%s: the header does not begin with {: is it a safetensors file", path);

    /* an entry at a time: the header of 100,000 tensors would be 100 MB as one value */
    t->entry = calloc(jx_count(whole) + 1, sizeof *t->entry);
    if (!t->entry)
        return err_set(e, ERR_MEMORY, "%s: no memory for %zu tensors", path, jx_count(whole));
    while ((more = jx_walk_next(&w, &key, &value)) > 0)
        TRY(parse_member(t, key, value, data_bytes, path, e));
    if (more < 0)
        TRY(report_damage(text, n, path, e));
    qsort(t->entry, (size_t)t->n, sizeof *t->entry, compare_name);
    TRY(check_twice(t, path, e));
    qsort(t->entry, (size_t)t->n, sizeof *t->entry, compare_begin);
    TRY(check_holes(t, data_bytes, path, e));
out:
    if (rc < 0)
        st_free(t);
    return rc < 0 ? rc : 0;
}

void st_free(struct st_table *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->entry[i].name);
        free(t->entry[i].tail);
    }
    free(t->entry);
    memset(t, 0, sizeof *t);
}

/* ---- writing ---- */

static void put_entry(struct buf *to, const struct st_entry *t)
{
    char text[128];
    json_t *name = json_string(t->name);
    int dims = t->n_dims - (t->tail != NULL);
    buf_add(to, ",", 1);
    jx_put(to, name);
    json_decref(name);

    buf_add(to, text, (size_t)sprintf(text, ":{\"dtype\":\"%s\",\"shape\":[", stored_dtype_name(t->dtype)));
    for (int i = 0; i < dims; i++)
        buf_add(to, text, (size_t)sprintf(text, "%s%lld", i ? "," : "", (long long)t->shape[i]));
    buf_add(to, ",", t->tail != NULL);
    buf_add(to, t->tail, t->tail ? strlen(t->tail) : 0);
    buf_add(to, text,
            (size_t)sprintf(text, "],\"data_offsets\":[%lld,%lld]}", (long long)t->begin, (long long)t->end));
}

int st_make(const struct st_entry *entry, int n, size_t align, char **head, size_t *bytes, struct err *e)
{
    /* transformers requires it */
    static const char first[] = "{\"__metadata__\":{\"format\":\"pt\"}";
    struct buf b = { 0 };
    uint64_t n_header = 0;
    buf_add(&b, &n_header, sizeof n_header);
    buf_add(&b, first, sizeof first - 1);
    for (int i = 0; i < n; i++)
        put_entry(&b, &entry[i]);
    buf_add(&b, "}", 1);
    for (size_t rest = (align - b.n % align) % align; rest && !b.failed; rest--)
        buf_add(&b, " ", 1);

    n_header = b.n - sizeof n_header;
    int rc = 0;
    if (b.failed)
        rc = err_set(e, ERR_MEMORY, "no memory for a header of %d tensors", n);
    else if (n_header > HEADER_MAX)
        rc = err_set(e, ERR_FORMAT,
                     "a header of %d tensors needs %zu bytes, the format allows %u: use more ranks", n, b.n,
                     HEADER_MAX);
    if (rc < 0) {
        buf_free(&b);
        return rc;
    }
    memcpy(b.p, &n_header, sizeof n_header);
    *head = b.p;
    *bytes = b.n;
    return 0;
}

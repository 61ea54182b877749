/* indexed.c - see indexed.h. */
#include "text/indexed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/io.h"

#define MAGIC "MMIDIDX\0"
#define HEAD 34 /* bytes before the tables */
#define INDEX_LIMIT ((size_t)1 << 36)

/* Bytes of an id by its type code; 0: no ids. */
static const int widths[] = { [1] = 1, [2] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2 };

/* NAME of "NAME.bin", "NAME.idx" and "NAME", with `end` behind it; malloc'd. NULL: no memory. */
static char *pair_path(const char *path, const char *end)
{
    size_t n = strlen(path);
    if (n > 4 && (!strcmp(path + n - 4, ".bin") || !strcmp(path + n - 4, ".idx")))
        n -= 4;
    char *out = malloc(n + 5);
    if (out)
        sprintf(out, "%.*s%s", (int)n, path, end);
    return out;
}

static int is_file(const char *path)
{
    struct stat st;
    return path && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

int indexed_is(const char *path)
{
    char *bin = pair_path(path, ".bin"), *idx = pair_path(path, ".idx");
    int is = is_file(bin) && is_file(idx);
    free(bin);
    free(idx);
    return is;
}

static int64_t number(const unsigned char *p)
{
    int64_t x;
    memcpy(&x, p, sizeof x); /* every supported machine is little-endian */
    return x;
}

/* The tables of an index in memory. */
struct tables {
    const unsigned char *length, *first, *document;
    int64_t n_sequences, n_bounds;
};

static int find_tables(struct tables *t, struct indexed *x, const unsigned char *p, size_t n, struct err *e)
{
    if (n < HEAD || memcmp(p, MAGIC, 9))
        return err_set(e, ERR_FORMAT, "its first bytes are not those of an index of Megatron-LM");
    if (number(p + 9) != 1)
        return err_set(e, ERR_FORMAT, "version %lld of the index: only version 1 is read",
                       (long long)number(p + 9));
    x->width = p[17] < sizeof widths / sizeof *widths ? widths[p[17]] : 0;
    if (!x->width)
        return err_set(e, ERR_FORMAT, "type code %d is no whole number: are these token ids", p[17]);

    t->n_sequences = number(p + 18);
    t->n_bounds = number(p + 26);
    uint64_t sequences = (uint64_t)t->n_sequences, bounds = (uint64_t)t->n_bounds;
    if (sequences > n / 12 || bounds > n / 8 || n < HEAD + 12 * sequences + 8 * bounds)
        return err_set(e, ERR_FORMAT,
                       "%zu bytes are too few for %lld sequences and %lld documents: is it cut off", n,
                       (long long)t->n_sequences, (long long)t->n_bounds);
    t->length = p + HEAD;
    t->first = t->length + 4 * sequences;
    t->document = t->first + 8 * sequences;
    return 0;
}

/* Checks that the sequences lie one behind the other, and fills the ends of documents. */
static int read_tables(struct indexed *x, const struct tables *t, struct err *e)
{
    int64_t bound = 0;
    if (!(x->end = malloc(sizeof *x->end * (size_t)(t->n_bounds + 1))))
        return err_set(e, ERR_MEMORY, "no memory for %lld documents", (long long)t->n_bounds);
    for (int64_t i = 0; i <= t->n_sequences; i++) {
        int32_t length = 0;
        for (; bound < t->n_bounds && number(t->document + 8 * bound) == i; bound++)
            if (i)
                x->end[x->n_ends++] = x->n;
        if (i == t->n_sequences)
            break;
        memcpy(&length, t->length + 4 * i, sizeof length);
        if (length < 0 || x->n > INT64_MAX / 16 || number(t->first + 8 * i) != x->n * x->width)
            return err_set(e, ERR_FORMAT,
                           "sequence %lld does not begin where the one before it ends: write the files again",
                           (long long)i);
        x->n += length;
    }
    if (bound < t->n_bounds)
        return err_set(e, ERR_FORMAT, "document %lld begins at no sequence: write the files again",
                       (long long)bound);
    if (x->n_ends && x->end[x->n_ends - 1] != x->n)
        x->end[x->n_ends++] = x->n;
    return 0;
}

static int check_size(const struct indexed *x, struct err *e)
{
    struct stat st;
    if (stat(x->bin, &st) < 0)
        return err_sys(e, "%s: cannot read it", x->bin);
    if (st.st_size != x->n * x->width)
        return err_set(e, ERR_FORMAT, "%s has %lld bytes, the index says %lld: is it cut off", x->bin,
                       (long long)st.st_size, (long long)(x->n * x->width));
    return 0;
}

int indexed_open(struct indexed *x, const char *path, struct err *e)
{
    char *idx = pair_path(path, ".idx");
    struct tables t = { 0 };
    void *text = NULL;
    size_t n;
    int rc = 0;
    if (!idx || !(x->bin = pair_path(path, ".bin"))) {
        free(idx);
        return err_set(e, ERR_MEMORY, "no memory to open %s", path);
    }
    TRY(io_read_file(idx, INDEX_LIMIT, &text, &n, e));
    rc = find_tables(&t, x, text, n, e);
    rc = rc < 0 ? rc : read_tables(x, &t, e);
    rc = rc < 0 ? rc : check_size(x, e);
    if (rc < 0)
        err_add(e, "%s", idx);
out:
    free(text);
    free(idx);
    return rc;
}

void indexed_close(struct indexed *x)
{
    free(x->bin);
    free(x->end);
    *x = (struct indexed){ 0 };
}

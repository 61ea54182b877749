/* carry.c - see carry.h. */
#include "text/carry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "text/tokfile.h"

#define FILE_LIMIT ((size_t)1 << 30)

static int from_folder(struct carried *x, const char *folder, const char *name, struct err *e)
{
    char *path = io_join(folder, name);
    int rc = 0;
    if (!path)
        return err_set(e, ERR_MEMORY, "no memory for tokenizer files");
    if (io_exists(path)) {
        x->name[x->n] = name;
        rc = io_read_file(path, FILE_LIMIT, (void **)(uintptr_t)&x->data[x->n], &x->bytes[x->n], e);
        x->n += rc >= 0;
    }
    free(path);
    return rc < 0 ? rc : 0;
}

static int from_token_file(struct carried *x, const struct tokfile *f, const char *name, struct err *e)
{
    size_t n;
    const void *data = tokfile_part(f, name, &n);
    void *copy;
    if (!data)
        return 0;
    if (!(copy = malloc(n + 1)))
        return err_set(e, ERR_MEMORY, "no memory for tokenizer files");
    memcpy(copy, data, n);
    x->name[x->n] = name;
    x->bytes[x->n] = n;
    x->data[x->n++] = copy;
    return 0;
}

int carried_read(struct carried *x, const char *tokenizer, const char *const *names, int n_names,
                 struct err *e)
{
    struct tokfile *f = NULL;
    int rc = 0;
    if (!strcmp(tokenizer, "bytes"))
        return 0;
    x->name = calloc((size_t)n_names, sizeof *x->name);
    x->data = calloc((size_t)n_names, sizeof *x->data);
    x->bytes = calloc((size_t)n_names, sizeof *x->bytes);
    if (!x->name || !x->data || !x->bytes)
        return err_set(e, ERR_MEMORY, "no memory for tokenizer files");

    if (tokfile_is_path(tokenizer))
        TRY(tokfile_open(&f, tokenizer, e));
    for (int i = 0; i < n_names; i++)
        TRY(f ? from_token_file(x, f, names[i], e) : from_folder(x, tokenizer, names[i], e));
out:
    tokfile_close(f);
    return rc < 0 ? rc : 0;
}

static int grow_by_one(struct carried *x)
{
    size_t n = (size_t)x->n + 1;
    const char **name = realloc(x->name, n * sizeof *name);
    x->name = name ? name : x->name;
    const void **all = realloc(x->data, n * sizeof *all);
    x->data = all ? all : x->data;
    size_t *bytes = realloc(x->bytes, n * sizeof *bytes);
    x->bytes = bytes ? bytes : x->bytes;
    return name && all && bytes ? 0 : -1;
}

int carried_put(struct carried *x, const char *name, const void *data, size_t n, struct err *e)
{
    void *copy = malloc(n + 1);
    int i = 0;
    while (i < x->n && strcmp(x->name[i], name))
        i++;
    if (!copy || (i == x->n && grow_by_one(x) < 0)) {
        free(copy);
        return err_set(e, ERR_MEMORY, "no memory for tokenizer files");
    }

    memcpy(copy, data, n);
    if (i < x->n)
        free((void *)(uintptr_t)x->data[i]);
    x->name[i] = name;
    x->data[i] = copy;
    x->bytes[i] = n;
    x->n += i == x->n;
    return 0;
}

void carried_free(struct carried *x)
{
    for (int i = 0; i < x->n; i++)
        free((void *)(uintptr_t)x->data[i]);
    free(x->name);
    free(x->data);
    free(x->bytes);
    *x = (struct carried){ 0 };
}

/* lt_table.c - see lt_table.h. */
#include "kernels/cuda/lt/lt_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/io.h"

#define MOST_BYTES ((size_t)16 << 20)

int lt_table_open(struct lt_table *t, struct err *e)
{
    const char *path = env_get(ENV_SHARDLINE_CUBLASLT_TABLE), *tune = env_get(ENV_SHARDLINE_CUBLASLT_TUNE);
    *t = (struct lt_table){ .tunes = tune && !strcmp(tune, "1") };
    if (t->tunes && !path)
        return err_set(e, ERR_USAGE,
                       "SHARDLINE_CUBLASLT_TUNE=1 times algorithms for a table: name its file, "
                       "SHARDLINE_CUBLASLT_TABLE");
    if (!path)
        return 0;
    if (strlen(path) >= sizeof t->path)
        return err_set(e, ERR_USAGE, "SHARDLINE_CUBLASLT_TABLE: a path of %zu bytes, at most %zu",
                       strlen(path), sizeof t->path - 1);
    strcpy(t->path, path);
    if (access(path, R_OK) < 0)
        return t->tunes && errno == ENOENT
                   ? 0
                   : err_set(e, ERR_FILE, "%s: %s: make it with SHARDLINE_CUBLASLT_TUNE=1", path,
                             strerror(errno));
    void *text;
    size_t n;
    int rc = io_read_file(path, MOST_BYTES, &text, &n, e);
    if (rc >= 0)
        t->text = text;
    return rc;
}

void lt_table_close(struct lt_table *t)
{
    free(t->text);
    t->text = NULL;
}

/* A line that begins so, and goes on with `then`. */
static int find(const struct lt_table *t, const char *what, char then)
{
    const size_t n = strlen(what);
    for (const char *line = t->text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (!strncmp(line, what, n) && line[n] == then)
            return 1;
    return 0;
}

int lt_table_says(const struct lt_table *t, const char *what) { return find(t, what, ','); }
int lt_table_knows(const struct lt_table *t, const char *product) { return find(t, product, ':'); }

int lt_table_add(struct lt_table *t, const char *line)
{
    struct err e;
    FILE *f = io_write_text(t->path, 1, &e);
    int ok = f && fprintf(f, "%s\n", line) > 0;
    return f ? fclose(f) == 0 && ok : 0;
}

/* keys.c - see keys.h. */
#include "serve/http/keys.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/io.h"

#define FILE_MAX ((size_t)1 << 20)

/* Index of the key that equals text, or -1. Compares every byte of every key, whatever was given: the time
 * tells nothing about them. */
static int find(const struct keys *k, const char *text)
{
    char given[KEY_MAX] = { 0 };
    size_t n = strlen(text);
    int found = -1;
    memcpy(given, text, n < KEY_MAX ? n : KEY_MAX - 1);
    for (int i = 0; i < k->n; i++) {
        unsigned char differs = n >= KEY_MAX || !n;
        for (int b = 0; b < KEY_MAX; b++)
            differs |= (unsigned char)(given[b] ^ k->key[i].text[b]);
        /* 1 when nothing differs: no branch on the key */
        int same = (int)(((unsigned)differs - 1) >> 31);
        found = (found & -(1 - same)) | (i & -same);
    }
    return found;
}

/* Adds the key in a line of n bytes; an empty line or a comment has none. */
static int add_line(struct keys *k, const char *path, int line, const char *p, size_t n, struct err *e)
{
    char text[KEY_MAX] = { 0 };

    while (n && strchr(" \t\r", p[n - 1]))
        n--;
    while (n && strchr(" \t", *p)) {
        p++;
        n--;
    }
    if (!n || *p == '#')
        return 0;
    if (n >= KEY_MAX)
        return err_set(e, ERR_CONFIG, "%s: the key in line %d has %zu bytes, at most %d are taken", path,
                       line, n, KEY_MAX - 1);
    memcpy(text, p, n);
    if (strlen(text) != n || find(k, text) >= 0)
        return err_set(e, ERR_CONFIG, "%s: line %d %s", path, line,
                       strlen(text) != n ? "holds a NUL" : "repeats a key");
    struct key *more = realloc(k->key, sizeof *more * (size_t)(k->n + 1));
    if (!more)
        return err_set(e, ERR_MEMORY, "no memory for the keys of %s", path);
    k->key = more;
    memcpy(k->key[k->n].text, text, sizeof text);
    k->key[k->n].n_active = 0;
    k->key[k->n++].bodies.held = 0;
    return 0;
}

int keys_open(struct keys *k, const char *path, struct err *e)
{
    void *data = NULL;
    size_t n;
    int rc, line = 1;

    memset(k, 0, sizeof *k);
    TRY(io_read_file(path, FILE_MAX, &data, &n, e));
    for (const char *p = data, *end = p + n, *next; p < end; p = next + 1, line++) {
        next = memchr(p, '\n', (size_t)(end - p));
        next = next ? next : end;
        TRY(add_line(k, path, line, p, (size_t)(next - p), e));
    }

    if (!k->n)
        rc = err_set(e, ERR_CONFIG, "%s holds no key: write one in a line", path);
out:
    free(data);
    if (rc < 0)
        keys_close(k);
    return rc < 0 ? rc : 0;
}

void keys_close(struct keys *k)
{
    free(k->key);
    memset(k, 0, sizeof *k);
}

int keys_find(const struct keys *k, const char *authorization, const char *x_api_key)
{
    const char *text = x_api_key;
    if (authorization && !strncasecmp(authorization, "bearer ", 7))
        text = authorization + 7 + strspn(authorization + 7, " ");
    return text ? find(k, text) : -1;
}

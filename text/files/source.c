/* source.c - see source.h. */
#include "text/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>
#include "base/io.h"
#include "text/tok.h"
#include "text/tokfile.h"

#define CHUNK ((size_t)256 << 10)

struct source {
    char *path, *field;
    int is_lines, fd;
    int64_t size, off;  /* of the file, read so far */
    ZSTD_DStream *zstd; /* NULL: plain */
    size_t zstd_left;   /* 0: between frames */
    char *in;
    size_t n_in, at_in;
    struct buf text; /* read and not handed out */
    size_t at;       /* in text */
    int ended;
    int64_t line, byte, next_line, next_byte;
};

static int ends_with(const char *s, size_t n, const char *end)
{
    size_t m = strlen(end);
    return n >= m && !memcmp(s + n - m, end, m);
}

const char *source_not_text(const void *begin, size_t n)
{
    static const struct {
        const char *begin, *what;
    } other[] = {
        { "\x28\xb5\x2f\xfd", "is compressed by zstd: make a token file of it with ptok prepare, under a "
                              "name that ends in .zst" },
        { "\x1f\x8b", "is compressed by gzip: unpack it" },
        { "\x93NUMPY", "is a NumPy array: write its ids alone, as .u16 or .u32" },
        { "PAR1",
          "is a Parquet file: write its texts as .jsonl and make a token file of them with ptok prepare" },
    };
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (n >= strlen(other[i].begin) && !memcmp(begin, other[i].begin, strlen(other[i].begin)))
            return other[i].what;
    return tokfile_is(begin, n) ? "is a token file of ptok: give it to ptrain as it is" : NULL;
}

/* Rejects a file that is not plain text by its first bytes. */
static int check_begin(const struct source *s, struct err *e)
{
    char begin[8];
    size_t n = s->size < (int64_t)sizeof begin ? (size_t)s->size : sizeof begin;
    int rc = io_pread(s->fd, s->path, begin, n, 0, e);
    const char *why = rc < 0 ? NULL : source_not_text(begin, n);
    if (why)
        return err_set(e, ERR_FORMAT, "%s %s", s->path, why);
    return rc < 0 ? rc : 0;
}

int source_open(struct source **out, const char *path, const char *field, struct err *e)
{
    struct source *s = calloc(1, sizeof *s);
    size_t n = strlen(path);
    int rc = 0, packed = ends_with(path, n, ".zst");

    if (!s)
        return text_memory(e);
    s->fd = -1;
    s->next_line = 1;
    n -= packed ? 4 : 0;
    s->is_lines = ends_with(path, n, ".jsonl") || ends_with(path, n, ".ndjson");
    if (!(s->path = strdup(path)) || (field && !(s->field = strdup(field))) || !(s->in = malloc(CHUNK)) ||
        (packed && !(s->zstd = ZSTD_createDStream()))) {
        rc = text_memory(e);
        goto out;
    }

    TRY(s->fd = io_open_read(path, e));
    if ((s->size = io_size(s->fd, path, e)) < 0) {
        rc = (int)s->size;
        goto out;
    }

    if (!packed)
        TRY(check_begin(s, e));
    *out = s;
    return 0;
out:
    source_close(s);
    return rc;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    io_close(s->fd);
    ZSTD_freeDStream(s->zstd);
    buf_free(&s->text);
    free(s->in);
    free(s->path);
    free(s->field);
    free(s);
}

int64_t source_line(const struct source *s) { return s->line; }
int64_t source_byte(const struct source *s) { return s->byte; }

/* Reads the next bytes of the file into s->in. */
static int fill(struct source *s, struct err *e)
{
    size_t n = s->size - s->off < (int64_t)CHUNK ? (size_t)(s->size - s->off) : CHUNK;
    int rc = io_pread(s->fd, s->path, s->in, n, s->off, e);
    s->off += (int64_t)n;
    s->n_in = n;
    s->at_in = 0;
    return rc;
}

/* Checks that a frame starts with the current magic number or is skippable. The formats before zstd 0.8,
 * which the library may still read, are rejected. */
static int check_frame(struct source *s, struct err *e)
{
    uint32_t magic;
    int rc = 0;
    if (s->n_in - s->at_in < sizeof magic && s->off < s->size) {
        s->off -= (int64_t)(s->n_in - s->at_in);
        if ((rc = fill(s, e)) < 0)
            return rc;
    }
    if (s->n_in - s->at_in < sizeof magic)
        return 0; /* the end of the file: the decompressor says that it is cut */
    memcpy(&magic, s->in + s->at_in, sizeof magic);
    if (magic == ZSTD_MAGICNUMBER || (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START)
        return 0;
    return err_set(e, ERR_FORMAT, "%s: byte %lld: no zstd frame begins there: is it a whole .zst file",
                   s->path, (long long)(s->off - (int64_t)(s->n_in - s->at_in)));
}

static int unpack(struct source *s, struct err *e)
{
    int rc = s->zstd_left ? 0 : check_frame(s, e);
    if (rc < 0)
        return rc;
    char chunk[16384];
    ZSTD_inBuffer in = { s->in, s->n_in, s->at_in };
    ZSTD_outBuffer to = { chunk, sizeof chunk, 0 };
    s->zstd_left = ZSTD_decompressStream(s->zstd, &to, &in);
    if (ZSTD_isError(s->zstd_left))
        return err_set(e, ERR_FORMAT, "%s: byte %lld of the compressed file: %s: is it a whole .zst file",
                       s->path, (long long)(s->off - (int64_t)s->n_in + (int64_t)in.pos),
                       ZSTD_getErrorName(s->zstd_left));
    s->at_in = in.pos;
    buf_add(&s->text, chunk, to.pos);
    return s->text.failed ? text_memory(e) : to.pos == sizeof chunk;
}

/* Appends more text to s->text; sets s->ended at the end of the file. */
static int more_text(struct source *s, struct err *e)
{
    int rc = 0;
    if (s->at_in == s->n_in && s->off < s->size && (rc = fill(s, e)) < 0)
        return rc;
    if (!s->zstd) {
        buf_add(&s->text, s->in + s->at_in, s->n_in - s->at_in);
        s->at_in = s->n_in;
        s->ended = s->off == s->size;
        return s->text.failed ? text_memory(e) : 0;
    }

    int full = s->at_in < s->n_in || s->zstd_left ? unpack(s, e) : 0;
    if (full < 0)
        return full;
    s->ended = !full && s->at_in == s->n_in && s->off == s->size;
    if (s->ended && s->zstd_left)
        return err_set(e, ERR_FORMAT, "%s ends inside of a compressed frame, at byte %lld: is it cut off",
                       s->path, (long long)s->size);
    return 0;
}

/* Drops the text that was returned, when it is much. */
static void compact(struct source *s)
{
    if (s->at < (1u << 20) && s->at < s->text.n)
        return;
    if (s->text.n > s->at)
        memmove(s->text.p, s->text.p + s->at, s->text.n - s->at);
    s->text.n -= s->at;
    s->at = 0;
}

/* --- a file of text --- */

static int next_text(struct source *s, size_t bytes, char **text, size_t *n, int *more, struct err *e)
{
    size_t limit = bytes ? bytes : TEXT_LIMIT;
    int rc = 0;

    if (s->ended && s->at == s->text.n && s->line)
        return 0;
    while (!s->ended && s->text.n - s->at < limit + !bytes)
        if ((rc = more_text(s, e)) < 0)
            return rc;
    *n = s->text.n - s->at < limit ? s->text.n - s->at : limit;
    *more = !(s->ended && s->at + *n == s->text.n);
    if (!bytes && *more)
        return err_set(
            e, ERR_FORMAT,
            "%s: a text of more than %zu MiB: cut it into several files, or make it JSONL, a document a line",
            s->path, TEXT_LIMIT >> 20);
    if (!s->text.n && !s->line)
        return err_set(e, ERR_FORMAT, "%s: the file is empty: give a file with text", s->path);
    if (!(*text = malloc(*n + 1)))
        return text_memory(e);
    memcpy(*text, s->text.p + s->at, *n);
    (*text)[*n] = 0;
    s->line = 1;
    s->byte = s->next_byte;
    s->next_byte += (int64_t)*n;
    s->at += *n;
    compact(s);
    return 1;
}

/* --- JSONL --- */

/* Returns 1: the next line, without its line end; 0: there are no more. */
static int next_line(struct source *s, const char **line, size_t *n, struct err *e)
{
    size_t looked = s->at;
    for (;;) {
        const char *end = s->text.n > looked ? memchr(s->text.p + looked, '\n', s->text.n - looked) : NULL;
        if (end || (s->ended && s->text.n > s->at)) {
            *line = s->text.p + s->at;
            *n = end ? (size_t)(end - *line) : s->text.n - s->at;
            s->line = s->next_line++;
            s->byte = s->next_byte;
            s->next_byte += (int64_t)(*n + (end != NULL));
            s->at += *n + (end != NULL);
            if (*n && (*line)[*n - 1] == '\r')
                --*n;
            return 1;
        }
        if (s->ended)
            return 0;
        if (s->text.n - s->at > TEXT_LIMIT)
            return err_set(e, ERR_FORMAT,
                           "%s: line %lld, byte %lld: more than %zu MiB in one line: is it JSONL", s->path,
                           (long long)s->next_line, (long long)s->next_byte, TEXT_LIMIT >> 20);
        looked = s->text.n;
        size_t before = s->at;
        compact(s);
        looked -= before - s->at;
        int rc = more_text(s, e);
        if (rc < 0)
            return rc;
    }
}

static int take_field(struct source *s, const char *line, size_t n, char **text, size_t *n_text,
                      struct err *e)
{
    json_error_t at;
    json_t *j = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &at);
    const json_t *field = json_object_get(j, s->field);

    long long byte = (long long)s->byte;
    int rc = 0;
    if (!j)
        rc = err_set(e, ERR_FORMAT, "%s: line %lld, byte %lld: no JSON: %s", s->path, (long long)s->line,
                     byte + at.position, at.text);
    else if (!json_is_object(j))
        rc = err_set(e, ERR_FORMAT, "%s: line %lld, byte %lld: no JSON object", s->path, (long long)s->line,
                     byte);
    else if (!json_is_string(field))
        rc = err_set(
            e, ERR_FORMAT,
            "%s: line %lld, byte %lld: the object has no text \"%s\": name the field with --jsonl-field",
            s->path, (long long)s->line, byte, s->field);
    else
        rc = text_copy(text, n_text, json_string_value(field), json_string_length(field), e);
    json_decref(j);
    return rc < 0 ? rc : 1;
}

static int is_blank(const char *line, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t", line[i]) && line[i])
        i++;
    return i == n;
}

int source_next(struct source *s, size_t bytes, char **text, size_t *n, int *more, struct err *e)
{
    const char *line = NULL;
    size_t n_line = 0;
    int rc;
    *more = 0;
    if (!s->is_lines)
        return next_text(s, bytes, text, n, more, e);
    do
        rc = next_line(s, &line, &n_line, e);
    while (rc == 1 && is_blank(line, n_line));
    if (rc != 1)
        return rc;
    if (s->field)
        return take_field(s, line, n_line, text, n, e);
    rc = text_copy(text, n, line, n_line, e);
    return rc < 0 ? rc : 1;
}

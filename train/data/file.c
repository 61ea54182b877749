/* file.c - see file.h. */
#include "train/data/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "text/chats.h"
#include "text/source.h"
#include "text/text.h"

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static int map_opened(struct bytes *b, const char *path, int fd, struct err *e)
{
    int rc = io_mark(fd, path, &b->mark, e);
    if (rc < 0)
        return rc;
    if (b->mark.bytes == 0)
        return err_set(e, ERR_FORMAT, "%s: the file is empty: give a file with text or tokens", path);
    void *p = mmap(NULL, (size_t)b->mark.bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, "%s: cannot map it", path);
    b->p = p;
    b->n = (size_t)b->mark.bytes;
    return 0;
}

static int map_bytes(struct bytes *b, const char *path, struct err *e)
{
    int fd = io_open_read(path, e);
    if (fd < 0)
        return fd;
    int rc = map_opened(b, path, fd, e);
    io_close(fd);
    return rc;
}

static void unmap_bytes(struct bytes *b)
{
    if (b->n)
        munmap((void *)(uintptr_t)b->p, b->n);
    else
        free((void *)(uintptr_t)b->p);
    b->p = NULL;
    b->n = 0;
}

/* Refuses files that are text by default but do not look like it: their bytes would be trained on as they
 * are. */
static int check_text(const struct data_file *f, struct err *e)
{
    const char *why = source_not_text(f->ids.p, f->ids.n);
    if (why)
        return err_set(e, ERR_FORMAT, "%s %s", f->path, why);
    if (ends_with(f->path, ".bin"))
        return err_set(
            e, ERR_FORMAT,
            "%s does not begin as a token file of ptok does, and no .idx is beside it: name raw ids "
            ".u16 or .u32, and text .txt",
            f->path);
    return 0;
}

static int encode_file(struct data_file *f, const char *tokenizer, struct err *e)
{
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int rc;
    TRY(tokenizer_open_named(&t, tokenizer, e));
    TRY(tokenizer_encode(t, (const char *)f->ids.p, f->ids.n, 0, &ids, &n, e));
    unmap_bytes(&f->ids);
    f->ids.p = (unsigned char *)ids;
    f->width = 4;
    f->n = (int64_t)n;
out:
    tokenizer_close(t);
    return rc < 0 ? err_add(e, "%s", f->path) : 0;
}

static int open_tokfile(struct data_file *f, struct err *e)
{
    unmap_bytes(&f->ids);
    int rc = tokfile_open(&f->tok, f->path, e);
    if (rc < 0)
        return rc;
    f->width = tokfile_width(f->tok);
    f->n = tokfile_count(f->tok);
    return 0;
}

static int open_pair(struct data_file *f, struct err *e)
{
    int rc = indexed_open(&f->pair, f->path, e);
    if (rc < 0)
        return rc;
    f->path = f->pair.bin;
    f->width = f->pair.width;
    f->n = f->pair.n;
    return map_bytes(&f->ids, f->path, e);
}

static int open_ids(struct data_file *f, const char *tokenizer, struct err *e)
{
    if (!tokfile_is_path(f->path) && indexed_is(f->path))
        return open_pair(f, e);
    int rc = map_bytes(&f->ids, f->path, e);
    if (rc < 0)
        return rc;
    if (tokfile_is(f->ids.p, f->ids.n))
        return open_tokfile(f, e);
    f->width = ends_with(f->path, ".u16") ? 2 : ends_with(f->path, ".u32") ? 4 : 1;
    if (f->ids.n % (size_t)f->width)
        return err_set(e, ERR_FORMAT,
                       "%s: %zu bytes are no whole number of %d-byte token ids: is the file cut off", f->path,
                       f->ids.n, f->width);
    f->n = (int64_t)(f->ids.n / (size_t)f->width);
    if (f->width == 1 && (rc = check_text(f, e)) < 0)
        return rc;
    if (f->width == 1 && strcmp(tokenizer, "bytes"))
        return encode_file(f, tokenizer, e);
    return 0;
}

/* ---- conversations ---- */
/* The tokens of all lines, which grow. */
struct lines {
    int32_t *ids;
    float *weight;
    int64_t *end;
    int64_t n, room, n_ends, room_ends;
};

static int grow_lines(struct lines *l, size_t more)
{
    int64_t n = l->n + (int64_t)more;
    if (n > l->room || !l->ids) {
        l->room = 2 * n + 1024;
        int32_t *ids = realloc(l->ids, (size_t)l->room * sizeof *ids);
        l->ids = ids ? ids : l->ids;
        float *weight = realloc(l->weight, (size_t)l->room * sizeof *weight);
        l->weight = weight ? weight : l->weight;
        if (!ids || !weight)
            return -1;
    }
    if (l->n_ends == l->room_ends) {
        l->room_ends = 2 * l->room_ends + 64;
        int64_t *end = realloc(l->end, (size_t)l->room_ends * sizeof *end);
        l->end = end ? end : l->end;
        return end ? 0 : -1;
    }
    return 0;
}

static int add_line(struct lines *l, const struct chat_coder *c, const char *line, size_t n, struct err *e)
{
    struct chat_tokens x = { 0 };
    int rc = chats_encode(c, line, n, &x, e);
    if (rc >= 0 && grow_lines(l, x.n) < 0)
        rc = err_set(e, ERR_MEMORY, "no memory for %lld tokens: make a token file with ptok prepare",
                     (long long)l->n);
    if (rc >= 0 && x.n) {
        memcpy(l->ids + l->n, x.ids, x.n * sizeof *x.ids);
        memcpy(l->weight + l->n, x.weight, x.n * sizeof *x.weight);
        l->end[l->n_ends++] = l->n += (int64_t)x.n;
    }
    chat_tokens_free(&x);
    return rc;
}

static int read_lines(struct lines *l, const struct chat_coder *c, const char *path, struct err *e)
{
    struct source *s = NULL;
    char *line = NULL;
    size_t n;
    int more, rc = source_open(&s, path, NULL, e);
    while (rc >= 0 && (rc = source_next(s, 0, &line, &n, &more, e)) == 1) {
        rc = add_line(l, c, line, n, e);
        free(line);
        if (rc < 0)
            err_add(e, "%s: line %lld", path, (long long)source_line(s));
    }
    source_close(s);
    return rc;
}

static int open_chats(struct data_file *f, const struct data_options *o, struct err *e)
{
    struct tokenizer *t = NULL;
    struct template *form = NULL;
    struct chat_style style;
    struct lines l = { 0 };
    int rc;
    TRY(tokenizer_open_named(&t, o->tokenizer, e));
    TRY(chats_open_template(&form, &style, o->chats.template, o->tokenizer, e));
    struct chat_coder coder = { t, form, form ? &style : NULL, o->chats.turns, o->vocab };
    TRY(read_lines(&l, &coder, f->path, e));
    f->is_chats = 1;
    f->width = 4;
    f->n = l.n;
    f->n_ends = l.n_ends;
    rc = 0;
out:
    f->ids.p = (unsigned char *)l.ids;
    f->weight = l.weight;
    f->end = l.end;
    template_close(form);
    tokenizer_close(t);
    return rc;
}

/* The ends of a token file's conversations, for the packer. */
static int copy_ends(struct data_file *f, struct err *e)
{
    f->n_ends = tokfile_documents(f->tok);
    f->end = malloc(((size_t)f->n_ends + 1) * sizeof *f->end);
    if (!f->end)
        return err_set(e, ERR_MEMORY, "no memory for %lld conversations", (long long)f->n_ends);
    for (int64_t i = 0; i < f->n_ends; i++)
        f->end[i] = tokfile_document_end(f->tok, i);
    f->is_chats = 1;
    return 0;
}

/* ---- weights ---- */
static int open_weights(struct data_file *f, struct err *e)
{
    if (!ends_with(f->given_path, ".f32"))
        return err_set(
            e, ERR_USAGE,
            "--loss-weights %s: give a .f32 file of little-endian floats, one for each token of %s",
            f->given_path, f->path);
    int rc = map_bytes(&f->given, f->given_path, e);
    if (rc < 0)
        return rc;
    if (f->given.n != 4 * (size_t)f->n)
        return err_set(e, ERR_FORMAT,
                       "%s: %zu bytes of weights for the %lld tokens of %s: 4 bytes a token are needed",
                       f->given_path, f->given.n, (long long)f->n, f->path);
    return 0;
}

int data_file_weighted(const struct data_file *f)
{
    return f->given_path || f->weight || (f->tok && tokfile_has_weights(f->tok));
}

int data_file_weights(const struct data_file *f, int64_t at, int64_t n, float *weights, struct err *e)
{
    if (f->weight)
        memcpy(weights, f->weight + at, (size_t)n * sizeof *weights);
    else if (f->tok && tokfile_has_weights(f->tok))
        tokfile_weights(f->tok, at, n, weights);
    else
        for (int64_t i = 0; i < n; i++)
            weights[i] = 1;
    if (!f->given_path)
        return 0;

    int rc = io_check_mark(f->given_path, &f->given.mark, e);
    for (int64_t i = 0; rc >= 0 && i < n; i++) {
        float w;
        memcpy(&w, f->given.p + 4 * (at + i), 4);
        weights[i] *= w;
        if (!isfinite(weights[i]))
            rc = err_set(e, ERR_FORMAT, "%s: the weight of token %lld is %g: weights are finite",
                         f->given_path, (long long)(at + i), (double)w);
    }
    return rc;
}

int64_t data_file_weighted_tokens(const struct data_file *f)
{
    int64_t n = 0;
    if (f->tok)
        return tokfile_has_weights(f->tok) ? tokfile_weighted(f->tok) : f->n;
    for (int64_t i = 0; f->weight && i < f->n; i++)
        n += f->weight[i] != 0;
    return n;
}

/* ---- the file ---- */
int data_file_open(struct data_file *f, const struct data_options *o, int i, struct err *e)
{
    int rc;
    f->path = o->files->item[i];
    f->given_path = o->weights && o->weights->n ? o->weights->item[i] : NULL;
    TRY(chats_is_path(f->path, NULL, e));
    if (rc)
        TRY(open_chats(f, o, e));
    else if (chats_is_lines(f->path) && (o->chats.template || o->chats.turns != CHAT_TURNS_ALL))
        TRY(err_set(
            e, ERR_FORMAT,
            "%s: the first line is no conversation (an object with messages, conversations, prompt and "
            "completion, or ids)",
            f->path));
    else
        TRY(open_ids(f, o->tokenizer, e));
    if (f->tok && tokfile_is_chats(f->tok))
        TRY(copy_ends(f, e));
    if (f->given_path)
        TRY(open_weights(f, e));
    if (f->is_chats)
        TRY(pack_make(&f->pack, f->end, f->n_ends, o->seq_len + 1, o->documents > 1 ? o->documents : 1, e));
    rc = 0;
out:
    return rc;
}

void data_file_close(struct data_file *f)
{
    unmap_bytes(&f->ids);
    unmap_bytes(&f->given);
    tokfile_close(f->tok);
    indexed_close(&f->pair);
    pack_free(&f->pack);
    free(f->weight);
    free(f->end);
}

int data_file_check_size(const struct data_file *f, struct err *e)
{
    if (f->tok)
        return tokfile_check_size(f->tok, e);
    return f->ids.n ? io_check_mark(f->path, &f->ids.mark, e) : 0;
}

static int64_t id_at(const struct data_file *f, int64_t i)
{
    int64_t whole;
    uint32_t wide;
    uint16_t half;
    if (f->width == 8) {
        memcpy(&whole, f->ids.p + 8 * i, 8);
        return whole >= 0 ? whole : INT64_MAX; /* outside of every vocabulary */
    }
    if (f->width == 1)
        return f->ids.p[i];
    if (f->width == 2) {
        memcpy(&half, f->ids.p + 2 * i, 2);
        return half;
    }
    memcpy(&wide, f->ids.p + 4 * i, 4);
    return wide;
}

int data_file_read(const struct data_file *f, int64_t at, int64_t n, int64_t vocab, int32_t *ids,
                   struct err *e)
{
    int rc = f->tok ? tokfile_read(f->tok, at, n, ids, e) : 0;
    for (int64_t i = 0; rc >= 0 && i < n; i++) {
        int64_t id = f->tok ? ids[i] : id_at(f, at + i);
        if (id >= vocab)
            return err_set(e, ERR_FORMAT,
                           "%s: token %lld at position %lld is outside the vocabulary of %lld: was it made "
                           "with another tokenizer",
                           f->path, (long long)id, (long long)(at + i), (long long)vocab);
        ids[i] = (int32_t)id;
    }
    return rc;
}

int64_t data_file_documents(const struct data_file *f)
{
    return f->is_chats ? f->n_ends : f->tok ? tokfile_documents(f->tok) : f->pair.n_ends;
}

int64_t data_file_document_end(const struct data_file *f, int64_t i)
{
    return f->is_chats ? f->end[i] : f->tok ? tokfile_document_end(f->tok, i) : f->pair.end[i];
}

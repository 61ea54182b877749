/* data.c - see data.h. */
#include "train/data/data.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/io.h"
#include "base/rnd.h"
#include "text/indexed.h"
#include "text/source.h"
#include "text/text.h"
#include "text/tokfile.h"

/* Of so many samples in a row, every file of a mixture has exactly its part. */
#define MIX_BLOCK 4096

struct file {
    const char *path;
    int64_t first_window, windows; /* of a mixture: its windows among all */
    int64_t per_block;             /* of a mixture: its samples in a block */
    int width;                     /* bytes an id */
    int64_t first, n;              /* its tokens in the whole sequence */
    const unsigned char *map;      /* of the file, or of the encoded text */
    size_t bytes;                  /* mapped; 0: malloc'd */
    struct io_mark mark;           /* of the map */
    struct tokfile *tok;           /* a file of ptok, or NULL */
    struct indexed pair;           /* Megatron's index of the map, or zeroed */
};
struct data {
    int n_files;
    struct file *file;
    int64_t tokens, seq_len, windows, vocab, stride; /* stride 0: shuffle */
    int mixed;
    uint64_t seed;
};

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static int map_bytes(struct file *f, int fd, int64_t size, struct err *e)
{
    if (size == 0)
        return err_set(e, ERR_FORMAT, "%s: the file is empty: give a file with text or tokens", f->path);
    void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, "%s: cannot map it", f->path);
    f->map = p;
    f->bytes = (size_t)size;
    return 0;
}

static int map_file(struct file *f, struct err *e)
{
    int fd = io_open_read(f->path, e);
    if (fd < 0)
        return fd;
    int rc = io_mark(fd, f->path, &f->mark, e);
    if (rc >= 0)
        rc = map_bytes(f, fd, f->mark.bytes, e);
    io_close(fd);
    return rc;
}

static void unmap_file(struct file *f)
{
    if (f->bytes)
        munmap((void *)(uintptr_t)f->map, f->bytes);
    else
        free((void *)(uintptr_t)f->map);
    f->map = NULL;
    f->bytes = 0;
}

/* Refuses files that are text by default but do not look like it: their bytes would be trained on as they
 * are. */
static int check_text(const struct file *f, struct err *e)
{
    const char *why = source_not_text(f->map, f->bytes);
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

static int encode_file(struct file *f, const char *tokenizer, struct err *e)
{
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int rc;
    TRY(tokenizer_open_named(&t, tokenizer, e));
    TRY(tokenizer_encode(t, (const char *)f->map, f->bytes, 0, &ids, &n, e));
    unmap_file(f);
    f->map = (unsigned char *)ids;
    f->width = 4;
    f->n = (int64_t)n;
out:
    tokenizer_close(t);
    return rc < 0 ? err_add(e, "%s", f->path) : 0;
}

static int open_tokfile(struct file *f, struct err *e)
{
    unmap_file(f);
    int rc = tokfile_open(&f->tok, f->path, e);
    if (rc < 0)
        return rc;
    f->width = tokfile_width(f->tok);
    f->n = tokfile_count(f->tok);
    return 0;
}

static int open_pair(struct file *f, struct err *e)
{
    int rc = indexed_open(&f->pair, f->path, e);
    if (rc < 0)
        return rc;
    f->path = f->pair.bin;
    f->width = f->pair.width;
    f->n = f->pair.n;
    return map_file(f, e);
}

static int open_file(struct file *f, const char *tokenizer, struct err *e)
{
    if (!tokfile_is_path(f->path) && indexed_is(f->path))
        return open_pair(f, e);
    int rc = map_file(f, e);
    if (rc < 0)
        return rc;
    if (tokfile_is(f->map, f->bytes))
        return open_tokfile(f, e);
    f->width = ends_with(f->path, ".u16") ? 2 : ends_with(f->path, ".u32") ? 4 : 1;
    if (f->bytes % (size_t)f->width)
        return err_set(e, ERR_FORMAT,
                       "%s: %zu bytes are no whole number of %d-byte token ids: is the file cut off", f->path,
                       f->bytes, f->width);
    f->n = (int64_t)(f->bytes / (size_t)f->width);
    if (f->width == 1 && (rc = check_text(f, e)) < 0)
        return rc;
    if (f->width == 1 && strcmp(tokenizer, "bytes"))
        return encode_file(f, tokenizer, e);
    return 0;
}

static int parse_order(struct data *d, const char *order, struct err *e)
{
    if (!strcmp(order, "shuffle"))
        return 0;
    if (strncmp(order, "stride:", 7) || opt_parse_size(order + 7, &d->stride) < 0 || d->stride < 1)
        return err_set(e, ERR_USAGE, "--data-order %s: it is shuffle or stride:K with K of 1 or more", order);
    return 0;
}

static int parse_weights(const char *mix, int n, double *weight, struct err *e)
{
    const char *at = mix;
    for (int i = 0; i < n; i++) {
        char *end;
        weight[i] = strtod(at, &end);
        if (end == at || !(weight[i] > 0) || weight[i] > 1e12 || *end != (i + 1 < n ? ',' : 0))
            return err_set(
                e, ERR_USAGE,
                "--data-mix %s: give a weight above 0 for each of the %d files, with commas between", mix, n);
        at = end + 1;
    }
    return 0;
}

/* What is missing to file i's exact part of a block. */
static double missing_part(const struct data *d, const double *weight, double sum, int i)
{
    return weight[i] / sum * MIX_BLOCK - (double)d->file[i].per_block;
}

/* Divides a block's samples among the files by largest remainder: the parts add up to MIX_BLOCK, and each
 * is less than one sample away from its exact value. */
static int divide_block(struct data *d, const double *weight, struct err *e)
{
    double sum = 0;
    int64_t given = 0;
    for (int i = 0; i < d->n_files; i++)
        sum += weight[i];
    for (int i = 0; i < d->n_files; i++) {
        d->file[i].per_block = (int64_t)(weight[i] / sum * MIX_BLOCK);
        given += d->file[i].per_block;
    }

    for (; given < MIX_BLOCK; given++) {
        int best = 0;
        for (int i = 1; i < d->n_files; i++)
            if (missing_part(d, weight, sum, i) > missing_part(d, weight, sum, best))
                best = i;
        d->file[best].per_block++;
    }

    for (int i = 0; i < d->n_files; i++)
        if (!d->file[i].per_block)
            return err_set(
                e, ERR_USAGE,
                "%s: less than one sample of %d is its share: leave it out or give it more of --data-mix",
                d->file[i].path, MIX_BLOCK);
    return 0;
}

static int open_mix(struct data *d, const char *mix, struct err *e)
{
    double *weight = calloc((size_t)d->n_files + 1, sizeof *weight);
    int rc = 0;
    if (!weight)
        return err_set(e, ERR_MEMORY, "no memory for the weights of %d files", d->n_files);
    if (d->stride)
        rc = err_set(e, ERR_USAGE, "--data-mix needs --data-order shuffle");
    else
        TRY(parse_weights(mix, d->n_files, weight, e));
    if (rc >= 0)
        TRY(divide_block(d, weight, e));

    for (int i = 0; rc >= 0 && i < d->n_files; i++) {
        struct file *f = &d->file[i];
        f->first_window = d->windows;
        f->windows = (f->n - 1) / d->seq_len;
        d->windows += f->windows;
        if (f->windows < 1)
            rc = err_set(e, ERR_USAGE,
                         "%s: its %lld tokens are less than one sequence, %lld: leave it out or use a "
                         "smaller --seq-len",
                         f->path, (long long)f->n, (long long)d->seq_len + 1);
    }

    d->mixed = 1;
out:
    free(weight);
    return rc;
}

int data_open(struct data **out, const struct data_options *o, struct err *e)
{
    const struct opt_list *files = o->files;
    struct data *d = calloc(1, sizeof *d);
    int rc;
    if (!d || !(d->file = calloc((size_t)files->n + 1, sizeof *d->file))) {
        free(d);
        return err_set(e, ERR_MEMORY, "no memory for %d data files", files->n);
    }
    d->seq_len = o->seq_len;
    d->vocab = o->vocab;
    d->seed = o->seed;
    TRY(parse_order(d, o->order, e));

    for (int i = 0; i < files->n; i++) {
        struct file *f = &d->file[d->n_files++];
        f->path = files->item[i];
        f->first = d->tokens;
        TRY(open_file(f, o->tokenizer, e));
        d->tokens += f->n;
        if (f->width == 1 && !f->pair.bin && d->vocab < 256) {
            rc = err_set(
                e, ERR_USAGE,
                "%s: text as bytes needs a vocabulary of 256 and more, the model has %lld: give --tokenizer",
                f->path, (long long)d->vocab);
            goto out;
        }
    }

    if (o->mix)
        TRY(open_mix(d, o->mix, e));
    else
        d->windows = (d->tokens - 1) / d->seq_len;
    if (d->windows < 1) {
        rc = err_set(
            e, ERR_USAGE,
            "the data have %lld tokens, one sequence needs %lld: use more data or a smaller --seq-len",
            (long long)d->tokens, (long long)d->seq_len + 1);
        goto out;
    }
    *out = d;
    return 0;
out:
    data_close(d);
    return rc;
}

void data_close(struct data *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_files; i++) {
        unmap_file(&d->file[i]);
        tokfile_close(d->file[i].tok);
        indexed_close(&d->file[i].pair);
    }
    free(d->file);
    free(d);
}

int64_t data_tokens(const struct data *d) { return d->tokens; }
int64_t data_windows(const struct data *d) { return d->windows; }

/* The window of sample number k of a file: each epoch has an order of its own. */
static int64_t window_of(const struct data *d, int64_t windows, const char *stream, int64_t which, int64_t k)
{
    uint64_t order = rnd_stream(stream) + ((uint64_t)which << 40) + (uint64_t)(k / windows);
    return (int64_t)rnd_permute(d->seed, order, (uint64_t)(k % windows), (uint64_t)windows);
}

/* In every block the files' samples lie one file after the other, then the block is shuffled. That gives
 * the file of a sample, and the sample's number among those of its file. */
static int64_t mixed_window(const struct data *d, int64_t sample)
{
    int64_t block = sample / MIX_BLOCK;
    int64_t at = (int64_t)rnd_permute(d->seed, rnd_stream("data mix") + (uint64_t)block,
                                      (uint64_t)(sample % MIX_BLOCK), MIX_BLOCK);
    int i = 0;
    while (at >= d->file[i].per_block) {
        at -= d->file[i].per_block;
        i++;
    }
    const struct file *f = &d->file[i];
    return f->first_window + window_of(d, f->windows, "data of a mix", i, block * f->per_block + at);
}

int64_t data_window(const struct data *d, int64_t sample)
{
    if (d->mixed)
        return mixed_window(d, sample);
    int64_t epoch = sample / d->windows, i = sample % d->windows;
    if (d->stride) /* modular, without overflow */
        return (int64_t)((unsigned __int128)(uint64_t)sample * (uint64_t)d->stride % (uint64_t)d->windows);
    return (int64_t)rnd_permute(d->seed, rnd_stream("data order") + (uint64_t)epoch, (uint64_t)i,
                                (uint64_t)d->windows);
}

/* Before a window is read from the file. */
static int check_size(const struct file *f, struct err *e)
{
    if (f->tok)
        return tokfile_check_size(f->tok, e);
    return f->bytes ? io_check_mark(f->path, &f->mark, e) : 0;
}

static int64_t id_at(const struct file *f, int64_t i)
{
    int64_t whole;
    uint32_t wide;
    uint16_t half;
    if (f->width == 8) {
        memcpy(&whole, f->map + 8 * i, 8);
        return whole >= 0 ? whole : INT64_MAX; /* outside of every vocabulary */
    }
    if (f->width == 1)
        return f->map[i];
    if (f->width == 2) {
        memcpy(&half, f->map + 2 * i, 2);
        return half;
    }
    memcpy(&wide, f->map + 4 * i, 4);
    return wide;
}

/* The window's first token in the whole sequence, and the file that holds it. */
static int64_t window_begin(const struct data *d, int64_t window, int *file)
{
    int64_t at = window * d->seq_len;
    int k = 0;
    while (k + 1 < d->n_files &&
           (d->mixed ? d->file[k + 1].first_window <= window : d->file[k + 1].first <= at))
        k++;
    *file = k;
    return d->mixed ? d->file[k].first + (window - d->file[k].first_window) * d->seq_len : at;
}

/* Documents of a file; 0: ends are not known. */
static int64_t documents_of(const struct file *f)
{
    return f->tok ? tokfile_documents(f->tok) : f->pair.n_ends;
}

/* Tokens of the file up to the end of its document i. */
static int64_t document_end(const struct file *f, int64_t i)
{
    return f->tok ? tokfile_document_end(f->tok, i) : f->pair.end[i];
}

int data_knows_documents(const struct data *d)
{
    for (int k = 0; k < d->n_files; k++)
        if (documents_of(&d->file[k]) > 0)
            return 1;
    return 0;
}

/* The first document of the file that ends after token `at`. */
static int64_t document_at(const struct file *f, int64_t at)
{
    int64_t lo = 0, hi = documents_of(f);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (document_end(f, mid) <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct begins {
    int64_t *begin;
    int n, most;
};

static int add_begin(struct begins *b, int64_t at)
{
    if (at <= b->begin[b->n - 1]) /* an empty document */
        return 0;
    if (b->n == b->most)
        return -1;
    b->begin[b->n++] = at;
    return 0;
}

int data_documents(const struct data *d, int64_t window, int64_t *begin, int most, struct err *e)
{
    struct begins b = { begin, 1, most };
    int k, full = 0;
    int64_t at = window_begin(d, window, &k), end = at + d->seq_len;
    begin[0] = 0;
    for (; k < d->n_files && d->file[k].first < end && !full; k++) {
        const struct file *f = &d->file[k];
        int rc = check_size(f, e);
        if (rc < 0)
            return rc;
        int64_t n = documents_of(f), past = 0;
        for (int64_t i = n ? document_at(f, at - f->first) : 0;
             i < n && !full && (past = f->first + document_end(f, i)) < end; i++)
            full = add_begin(&b, past - at);
        if (!full && f->first + f->n < end)
            full = add_begin(&b, f->first + f->n - at);
    }
    return full ? err_set(e, ERR_USAGE, "a sequence of %s has more than %d documents: raise --documents",
                          d->file[k - 1].path, most)
                : b.n;
}

int data_read(const struct data *d, int64_t window, int32_t *ids, int32_t *targets, struct err *e)
{
    int k, rc;
    int64_t at = window_begin(d, window, &k);
    if ((rc = check_size(&d->file[k], e)) < 0)
        return rc;
    for (int64_t i = 0; i <= d->seq_len; i++, at++) {
        while (at >= d->file[k].first + d->file[k].n)
            if ((rc = check_size(&d->file[++k], e)) < 0)
                return rc;
        int64_t id = 0;
        int32_t checked;
        if (d->file[k].tok) {
            rc = tokfile_read(d->file[k].tok, at - d->file[k].first, 1, &checked, e);
            if (rc < 0)
                return rc;
            id = checked;
        } else {
            id = id_at(&d->file[k], at - d->file[k].first);
        }

        if (id >= d->vocab)
            return err_set(e, ERR_FORMAT,
                           "%s: token %lld at position %lld is outside the vocabulary of %lld: was it made "
                           "with another tokenizer",
                           d->file[k].path, (long long)id, (long long)(at - d->file[k].first),
                           (long long)d->vocab);
        if (i < d->seq_len)
            ids[i] = (int32_t)id;
        if (i)
            targets[i - 1] = (int32_t)id;
    }
    return 0;
}

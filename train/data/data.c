/* data.c - see data.h. */
#include "train/data/data.h"

#include <stdlib.h>
#include <string.h>
#include "base/rnd.h"
#include "train/data/file.h"

/* Of so many samples in a row, every file of a mixture has exactly its part. */
#define MIX_BLOCK 4096

struct data {
    int n_files;
    struct data_file *file;
    int64_t tokens, seq_len, windows, vocab, stride; /* stride 0: shuffle */
    int mixed, by_file; /* by_file: each file has windows of its own: a mixture, or conversations */
    int weighted, n_chats;
    uint64_t seed;
};

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
        const struct data_file *f = &d->file[i];
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

static int open_files(struct data *d, const struct data_options *o, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < o->files->n; i++) {
        struct data_file *f = &d->file[d->n_files++];
        f->first = d->tokens;
        TRY(data_file_open(f, o, i, e));
        d->tokens += f->n;
        d->n_chats += f->is_chats;
        d->weighted = d->weighted || data_file_weighted(f);
        if (f->width == 1 && !f->pair.bin && d->vocab < 256)
            return err_set(
                e, ERR_USAGE,
                "%s: text as bytes needs a vocabulary of 256 and more, the model has %lld: give --tokenizer",
                f->path, (long long)d->vocab);
    }
out:
    return rc;
}

/* Windows that lie in one file each. */
static void count_by_file(struct data *d)
{
    d->by_file = 1;
    for (int i = 0; i < d->n_files; i++) {
        struct data_file *f = &d->file[i];
        f->first_window = d->windows;
        f->windows = f->is_chats ? f->pack.n_rows : (f->n - 1) / d->seq_len;
        d->windows += f->windows;
    }
}

static int count_windows(struct data *d, const char *mix, struct err *e)
{
    int rc = 0;
    if (d->n_chats && d->n_chats < d->n_files && !mix)
        return err_set(
            e, ERR_USAGE,
            "%d of the %d files have conversations and the others do not: give each a weight with --data-mix",
            d->n_chats, d->n_files);
    if (mix || d->n_chats)
        count_by_file(d);
    else
        d->windows = (d->tokens - 1) / d->seq_len;
    if (mix)
        TRY(open_mix(d, mix, e));
    if (d->windows < 1)
        return err_set(
            e, ERR_USAGE,
            "the data have %lld tokens, one sequence needs %lld: use more data or a smaller --seq-len",
            (long long)d->tokens, (long long)d->seq_len + 1);
out:
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
    if (o->weights && o->weights->n && o->weights->n != files->n) {
        rc = err_set(e, ERR_USAGE,
                     "--loss-weights has %d files, --data %d: give one for each, in their order",
                     o->weights->n, files->n);
        goto out;
    }
    TRY(open_files(d, o, e));
    TRY(count_windows(d, o->mix, e));
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
    for (int i = 0; i < d->n_files; i++)
        data_file_close(&d->file[i]);
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
    const struct data_file *f = &d->file[i];
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

/* The window's first token in the whole sequence, and the file that holds it. */
static int64_t window_begin(const struct data *d, int64_t window, int *file)
{
    int64_t at = window * d->seq_len;
    int k = 0;
    while (k + 1 < d->n_files &&
           (d->by_file ? d->file[k + 1].first_window <= window : d->file[k + 1].first <= at))
        k++;
    *file = k;
    return d->by_file ? d->file[k].first + (window - d->file[k].first_window) * d->seq_len : at;
}

int data_knows_documents(const struct data *d)
{
    for (int k = 0; k < d->n_files; k++)
        if (data_file_documents(&d->file[k]) > 0)
            return 1;
    return 0;
}

/* The first document of the file that ends after token `at`. */
static int64_t document_at(const struct data_file *f, int64_t at)
{
    int64_t lo = 0, hi = data_file_documents(f);
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (data_file_document_end(f, mid) <= at)
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

/* Documents of a window that is cut out of the sequence. */
static int stream_documents(const struct data *d, int64_t window, int64_t *begin, int most, struct err *e)
{
    struct begins b = { begin, 1, most };
    int k, full = 0;
    int64_t at = window_begin(d, window, &k), end = at + d->seq_len;
    begin[0] = 0;
    for (; k < d->n_files && d->file[k].first < end && !full; k++) {
        const struct data_file *f = &d->file[k];
        int rc = data_file_check_size(f, e);
        if (rc < 0)
            return rc;
        int64_t n = data_file_documents(f), past = 0;
        for (int64_t i = n ? document_at(f, at - f->first) : 0;
             i < n && !full && (past = f->first + data_file_document_end(f, i)) < end; i++)
            full = add_begin(&b, past - at);
        if (!full && f->first + f->n < end)
            full = add_begin(&b, f->first + f->n - at);
    }
    return full ? err_set(e, ERR_USAGE, "a sequence of %s has more than %d documents: raise --documents",
                          d->file[k - 1].path, most)
                : b.n;
}

/* ---- what a window is made of ---- */
/* Ids [from, from + n) of a file are tokens [at, at + n) of the seq_len + 1 tokens of a window. */
struct piece {
    const struct data_file *f;
    int64_t from, n, at;
};
struct walk {
    const struct data *d;
    int64_t row, doc; /* of conversations; row -1: the window goes on over files */
    int k;            /* the file, */
    int64_t next, at; /* its next token; tokens of the window so far */
};

static struct walk walk_window(const struct data *d, int64_t window)
{
    struct walk w = { .d = d, .row = -1 };
    int64_t begin = window_begin(d, window, &w.k);
    const struct data_file *f = &d->file[w.k];
    w.next = begin - f->first;
    if (f->is_chats) {
        w.row = window - f->first_window;
        w.doc = f->pack.first[w.row];
    }
    return w;
}

static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* 1: the next piece; 0: there are no more. */
static int next_piece(struct walk *w, struct piece *p)
{
    const struct data_file *f = &w->d->file[w->k];
    int64_t left = w->d->seq_len + 1 - w->at;
    if (w->row >= 0) {
        if (w->doc == f->pack.first[w->row + 1])
            return 0;
        int64_t i = f->pack.doc[w->doc++], from = i ? f->end[i - 1] : 0;
        *p = (struct piece){ f, from, at_most(f->end[i] - from, left), w->at };
    } else {
        if (!left)
            return 0;
        for (; w->next == f->n; w->next = 0)
            f = &w->d->file[++w->k];
        *p = (struct piece){ f, w->next, at_most(f->n - w->next, left), w->at };
        w->next += p->n;
    }
    w->at += p->n;
    return 1;
}

int data_documents(const struct data *d, int64_t window, int64_t *begin, int most, struct err *e)
{
    struct walk w = walk_window(d, window);
    struct begins b = { begin, 1, most };
    struct piece p;
    begin[0] = 0;
    if (w.row < 0)
        return stream_documents(d, window, begin, most, e);
    while (next_piece(&w, &p))
        if (p.at && p.at < d->seq_len && add_begin(&b, p.at) < 0)
            return err_set(e, ERR_USAGE, "a sequence of %s has more than %d documents: raise --documents",
                           p.f->path, most);
    return b.n;
}

int64_t data_targets(const struct data *d, int64_t window)
{
    struct walk w = walk_window(d, window);
    struct piece p;
    while (next_piece(&w, &p)) {}
    return w.at - 1;
}

int data_read(const struct data *d, int64_t window, int32_t *ids, int32_t *targets, struct err *e)
{
    struct walk w = walk_window(d, window);
    int64_t T = d->seq_len;
    struct piece p;
    memset(ids, 0, (size_t)T * sizeof *ids);
    targets[T - 1] = 0;
    while (next_piece(&w, &p)) {
        int64_t n = at_most(p.n, T - p.at);
        int rc = data_file_check_size(p.f, e);
        if (rc >= 0)
            rc = data_file_read(p.f, p.from, n, d->vocab, ids + p.at, e);
        if (rc >= 0 && n < p.n)
            rc = data_file_read(p.f, p.from + n, 1, d->vocab, targets + T - 1, e);
        if (rc < 0)
            return rc;
    }
    memcpy(targets, ids + 1, (size_t)(T - 1) * sizeof *ids);
    return 0;
}

int data_weighted(const struct data *d) { return d->weighted; }

/* The token at place q of a window is the target of place q - 1. */
int data_weights(const struct data *d, int64_t window, float *weights, struct err *e)
{
    struct walk w = walk_window(d, window);
    struct piece p;
    memset(weights, 0, (size_t)d->seq_len * sizeof *weights);
    while (next_piece(&w, &p)) {
        int64_t skip = p.at == 0;
        int rc = data_file_check_size(p.f, e);
        if (rc >= 0)
            rc = data_file_weights(p.f, p.from + skip, p.n - skip, weights + p.at + skip - 1, e);
        if (rc < 0)
            return rc;
        if (p.f->is_chats && p.at) /* nothing predicts a conversation's first token */
            weights[p.at - 1] = 0;
    }
    return 0;
}

struct data_packed data_packed(const struct data *d)
{
    struct data_packed x = { 0 };
    for (int k = 0; k < d->n_files; k++) {
        const struct data_file *f = &d->file[k];
        if (!f->is_chats && !f->tok && chats_is_lines(f->path))
            x.plain_lines = f->path;
        if (!f->is_chats)
            continue;
        x.conversations += f->n_ends;
        x.rows += f->pack.n_rows;
        x.n_cut += f->pack.n_cut;
        x.weighted += data_file_weighted_tokens(f);
        for (int64_t i = 0; i < f->n_ends; i++)
            x.tokens += at_most(f->end[i] - (i ? f->end[i - 1] : 0), d->seq_len + 1);
    }
    return x;
}

/* hf_write.c - see hf_write.h. */
#include "format/hf_write.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/peft.h"
#include "format/quant_view.h"
#include "format/hf/small_files.h"
#include "format/hf/fused_experts.h"
#include "format/hf/safetensors.h"

struct shard {
    char name[48], *path;
    int fd, first, n; /* of the stored tensors */
};
/* A tensor as a file holds it: one that the caller gives, or a fused one of many. */
struct stored {
    char *name;
    struct ckpt_tensor t;
    int n_parts; /* tensors of the caller in it */
    int origin;  /* its number before it was sorted */
    int shard;
    int64_t offset, bytes;
};
/* Where a tensor of the caller lies in its stored one. */
struct place {
    int stored;
    int64_t offset, bytes, done;
};
struct hf_write {
    char *dir;
    int n, n_stored, n_shards;
    int has_kept; /* the last shard holds what --dequantize keeps (quant_view.h), and no index names it */
    const struct ckpt_tensor *t;
    struct place *place;
    struct stored *stored;
    struct shard *shard;
    int is_adapter;                 /* one file, that of PEFT byte for byte */
    const struct ckpt_watch *watch; /* or NULL */
};

static int64_t tensor_bytes(const struct ckpt_tensor *t)
{
    struct box b = box_whole(t->n_dims, t->shape);
    return stored_bytes(t->dtype, box_count(&b));
}

/* ---- what the files hold ---- */

/* The stored tensor of this name; a new one at the end where there is none yet. NULL: no memory. */
static struct stored *stored_named(struct hf_write *w, const char *name)
{
    /* The parts of one fused tensor are near each other: names are sorted. */
    for (int i = w->n_stored - 1; i >= 0; i--)
        if (!strcmp(w->stored[i].name, name))
            return &w->stored[i];
    struct stored *s = &w->stored[w->n_stored];
    s->name = strdup(name);
    return s->name ? &w->stored[w->n_stored++] : NULL;
}

/* Puts tensor i, part of an expert, into its fused tensor. */
static int fuse(struct hf_write *w, int i, const struct fused_place *at, struct err *e)
{
    const struct ckpt_tensor *t = &w->t[i];
    int n_before = w->n_stored;
    struct stored *s = stored_named(w, at->name);
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors", w->n);
    if (w->n_stored > n_before) {
        s->t = *t;
        s->t.n_dims = 3;
        s->t.shape[0] = 0;
        s->t.shape[1] = t->shape[0] * at->n_parts;
        s->t.shape[2] = t->shape[1];
    }
    if (t->n_dims != 2 || s->t.dtype != t->dtype || s->t.shape[1] != t->shape[0] * at->n_parts ||
        s->t.shape[2] != t->shape[1])
        return err_set(e, ERR_CONFIG,
                       "%s has not the shape and dtype of the other experts: they cannot be "
                       "fused",
                       t->name);

    int64_t index = (int64_t)at->expert * at->n_parts + at->part;
    w->place[i].stored = (int)(s - w->stored);
    w->place[i].offset = index * w->place[i].bytes;
    s->n_parts++;
    s->t.shape[0] = s->t.shape[0] > at->expert + 1 ? s->t.shape[0] : at->expert + 1;
    return 0;
}

/* Scales of fused FP8 matrices: a block holds rows of gate or of up, never of both. */
static int check_scales(const struct hf_write *w, int i, const struct fused_place *at, int64_t block,
                        struct err *e)
{
    const struct ckpt_tensor *t = &w->t[i], *codes;
    char name[FMT_NAME_MAX + 1];
    snprintf(name, sizeof name, "%.*s", (int)(strrchr(t->name, '.') - t->name) + 7, t->name); /* .weight */
    codes = fmt_find_tensor(w->t, w->n, t->role, name);
    if (!at->is_scale || at->n_parts < 2 || !codes || t->shape[0] == codes->shape[0] ||
        codes->shape[0] % block == 0)
        return 0;
    return err_set(e, ERR_CONFIG,
                   "--experts fused: %s has %lld rows, no multiple of its blocks of %lld: one scale would be "
                   "of gate and up rows: leave --experts out",
                   codes->name, (long long)codes->shape[0], (long long)block);
}

/* Other quantised experts have no fused form. */
static int check_name(const struct expert_form *form, const char *name, struct err *e)
{
    if (!form || !fused_experts_quantised(form, name))
        return 0;
    return err_set(e, ERR_CONFIG,
                   "--experts fused: %s is part of a quantised weight, whose fused form is known for FP8 "
                   "blocks (weight_scale_inv) only: leave --experts out",
                   name);
}

static int add_whole(struct hf_write *w, int i, const char *name, struct err *e)
{
    struct stored *s = &w->stored[w->n_stored];
    if (!(s->name = strdup(name)))
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors", w->n);
    s->t = w->t[i];
    s->n_parts = 1;
    w->place[i].stored = w->n_stored++;
    return 0;
}

/* Every expert must be there: what no tensor fills would be zeros. */
static int check_fused(const struct stored *s, int64_t n_parts, struct err *e)
{
    return s->n_parts == n_parts
               ? 0
               : err_set(e, ERR_CONFIG, "%s would have %d of %lld parts: is an expert missing", s->name,
                         s->n_parts, (long long)n_parts);
}

static int is_kept(const char *name) { return !strncmp(name, QUANT_KEPT_PREFIX, strlen(QUANT_KEPT_PREFIX)); }

/* Kept tensors last. */
static int compare_stored(const void *pa, const void *pb)
{
    const char *a = ((const struct stored *)pa)->name, *b = ((const struct stored *)pb)->name;
    return is_kept(a) != is_kept(b) ? is_kept(a) - is_kept(b) : strcmp(a, b);
}

/* As the safetensors library has them: large elements first, then by name. */
static int compare_sizes(const void *pa, const void *pb)
{
    const struct stored *a = pa, *b = pb;
    int bits_a = stored_dtype_bits(a->t.dtype), bits_b = stored_dtype_bits(b->t.dtype);
    return bits_a != bits_b ? (bits_a < bits_b) - (bits_a > bits_b) : strcmp(a->name, b->name);
}

/* Puts the stored tensors in order: fused experts stand where their names belong. */
static int sort_stored(struct hf_write *w, int (*compare)(const void *, const void *), struct err *e)
{
    int *now = calloc((size_t)w->n_stored + 1, sizeof *now);
    if (!now)
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors", w->n);
    for (int i = 0; i < w->n_stored; i++)
        w->stored[i].origin = i;
    qsort(w->stored, (size_t)w->n_stored, sizeof *w->stored, compare);
    for (int i = 0; i < w->n_stored; i++)
        now[w->stored[i].origin] = i;
    for (int i = 0; i < w->n; i++)
        w->place[i].stored = now[w->place[i].stored];
    free(now);
    return 0;
}

/* Lists the tensors that are kept, or all others. */
static int list_some(struct hf_write *w, const struct expert_form *form, int64_t block, int kept,
                     struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n && rc >= 0; i++) {
        struct fused_place at = { .expert = -1 };
        if (is_kept(w->t[i].name) != kept)
            continue;
        w->place[i].bytes = tensor_bytes(&w->t[i]);
        if (form && (rc = fused_experts_place(form, w->t[i].name, &at, e)) < 0)
            return rc;
        if ((rc = at.expert >= 0 ? check_scales(w, i, &at, block, e) : check_name(form, w->t[i].name, e)) < 0)
            return rc;
        rc = at.expert >= 0 ? fuse(w, i, &at, e) : add_whole(w, i, form ? at.name : w->t[i].name, e);
    }
    return rc;
}

static int list_stored(struct hf_write *w, const struct expert_form *form, int64_t block, struct err *e)
{
    int rc = list_some(w, form, block, 0, e);
    if (rc >= 0)
        rc = list_some(w, form, block, 1, e);
    for (int i = 0; i < w->n && rc >= 0; i++) {
        struct stored *s = &w->stored[w->place[i].stored];
        s->bytes = tensor_bytes(&s->t);
        if (w->place[i].bytes)
            rc = check_fused(s, s->bytes / w->place[i].bytes, e);
    }
    if (rc >= 0 && w->is_adapter)
        return sort_stored(w, compare_sizes, e);
    return form && rc >= 0 ? sort_stored(w, compare_stored, e) : rc;
}

/* Cuts the list into shards: a new one when the next tensor does not fit. */
static void cut(struct hf_write *w, int64_t shard_bytes)
{
    int64_t at = 0;
    for (int i = 0; i < w->n_stored; i++) {
        struct stored *s = &w->stored[i];
        int first_kept = is_kept(s->name) && !w->has_kept;
        if (i == 0 || first_kept || (at + s->bytes > shard_bytes && !w->has_kept && !w->is_adapter)) {
            w->shard[w->n_shards] = (struct shard){ .fd = -1, .first = i };
            w->n_shards++;
            w->has_kept |= first_kept;
            at = 0;
        }
        s->shard = w->n_shards - 1;
        s->offset = at; /* in the data, for now */
        at += s->bytes;
        w->shard[s->shard].n++;
    }
    int n_named = w->n_shards - w->has_kept;
    for (int s = 0; s < w->n_shards; s++) {
        if (s == n_named)
            snprintf(w->shard[s].name, sizeof w->shard[s].name, QUANT_KEPT_TENSORS);
        else if (n_named == 1)
            snprintf(w->shard[s].name, sizeof w->shard[s].name, "%s",
                     w->is_adapter ? PEFT_TENSORS : "model.safetensors");
        else
            snprintf(w->shard[s].name, sizeof w->shard[s].name, "model-%05d-of-%05d.safetensors", s + 1,
                     n_named);
    }
}

/* ---- writing ---- */

static int start_shard(struct hf_write *w, struct shard *s, struct err *e)
{
    struct st_entry *entry = calloc((size_t)s->n + 1, sizeof *entry);
    char *head = NULL;
    size_t n = 0;
    int rc = 0;
    s->path = io_join(w->dir, s->name);
    if (!entry || !s->path) {
        rc = err_set(e, ERR_MEMORY, "no memory for the header of %s", s->name);
        goto out;
    }
    for (int i = 0; i < s->n; i++) {
        const struct stored *q = &w->stored[s->first + i];
        entry[i] = (struct st_entry){ .name = q->name,
                                      .dtype = q->t.dtype,
                                      .n_dims = q->t.is_scalar ? 0 : q->t.n_dims,
                                      .tail = (char *)q->t.tail,
                                      .begin = q->offset,
                                      .end = q->offset + q->bytes };
        memcpy(entry[i].shape, q->t.shape, sizeof q->t.shape);
    }
    TRY(st_make(entry, s->n, w->is_adapter ? 8 : ST_ALIGN, &head, &n, e));
    for (int i = 0; i < s->n; i++)
        w->stored[s->first + i].offset += (int64_t)n;
    TRY(s->fd = io_create(s->path, e));
    TRY(io_pwrite(s->fd, s->path, head, n, 0, e));
    if (w->watch) {
        const struct stored *last = &w->stored[s->first + s->n - 1];
        TRY(w->watch->begin(w->watch->arg, s->name, s->n ? last->offset + last->bytes : (int64_t)n, e));
        TRY(w->watch->final(w->watch->arg, s->name, 0, (int64_t)n, e));
    }
out:
    free(entry);
    free(head);
    return rc < 0 ? rc : 0;
}

int hf_fuses(enum hf_experts how, const char *config)
{
    return how == HF_EXPERTS_FUSED ||
           (how == HF_EXPERTS_PUBLISHED && expert_form_is_published(expert_form_of(config)));
}

/* 1: published files of the family are fused, and no expert is quantised in a way that has no fused form. */
static int is_published_fused(const struct expert_form *form, int n, const struct ckpt_tensor *t)
{
    struct fused_place at;
    struct err ignored = { 0 };
    if (!expert_form_is_published(form))
        return 0;
    for (int i = 0; i < n; i++)
        if (fused_experts_place(form, t[i].name, &at, &ignored) >= 0 && at.expert < 0 &&
            fused_experts_quantised(form, t[i].name))
            return 0;
    return 1;
}

int hf_write_open(struct hf_write **out, const char *dir, int n, const struct ckpt_tensor *t,
                  const struct hf_write_opts *how, struct err *e)
{
    const struct expert_form *form = how->config ? expert_form_of(how->config) : NULL;
    if (how->experts == HF_EXPERTS_EACH ||
        (how->experts == HF_EXPERTS_PUBLISHED && !is_published_fused(form, n, t)))
        form = NULL;
    if (how->experts == HF_EXPERTS_FUSED && !form)
        return err_set(e, ERR_USAGE,
                       "--experts fused: config.json names no family whose experts have that form: leave it "
                       "out");
    struct hf_write *w = calloc(1, sizeof *w);
    int rc = 0;
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory to write %d tensors", n);
    w->n = n;
    w->t = t;
    w->watch = how->watch;
    w->is_adapter = how->is_adapter;
    w->dir = strdup(dir);
    w->place = calloc((size_t)n + 1, sizeof *w->place);
    w->stored = calloc((size_t)n + 1, sizeof *w->stored);
    w->shard = calloc((size_t)n + 1, sizeof *w->shard);
    if (!w->dir || !w->place || !w->stored || !w->shard) {
        rc = err_set(e, ERR_MEMORY, "no memory to write %d tensors", n);
        goto out;
    }
    TRY(list_stored(w, form, expert_block_rows(how->config), e));
    cut(w, how->shard_bytes);
    for (int s = 0; s < w->n_shards; s++)
        TRY(start_shard(w, &w->shard[s], e));
out:
    if (rc < 0) {
        hf_write_abort(w);
        return rc;
    }
    *out = w;
    return 0;
}

int hf_write_put(struct hf_write *w, int i, const void *data, int64_t n_elements, struct err *e)
{
    struct place *p = &w->place[i];
    const struct stored *to = &w->stored[p->stored];
    struct shard *s = &w->shard[to->shard];
    int64_t n = stored_bytes(w->t[i].dtype, n_elements);
    if (n > p->bytes - p->done)
        return err_set(e, ERR_INTERNAL, "more elements than %s has: please report it", w->t[i].name);
    int64_t off = to->offset + p->offset + p->done;
    int rc = io_pwrite(s->fd, s->path, data, (size_t)n, off, e);
    if (rc >= 0 && w->watch && n > 0)
        rc = w->watch->final(w->watch->arg, s->name, off, n, e);
    p->done += n;
    return rc < 0 ? rc : 0;
}

static int write_index(const struct hf_write *w, struct err *e)
{
    json_t *map = json_object();
    int64_t total = 0;
    for (int i = 0; i < w->n_stored; i++) {
        if (w->has_kept && w->stored[i].shard == w->n_shards - 1)
            continue;
        json_object_set_new(map, w->stored[i].name, json_string(w->shard[w->stored[i].shard].name));
        total += w->stored[i].bytes;
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map",
                             map);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL,
         *path = io_join(w->dir, "model.safetensors.index.json");
    int rc = text && path ? io_write_file(path, text, strlen(text), e)
                          : err_set(e, ERR_MEMORY, "no memory for the index of %d tensors", w->n_stored);
    json_decref(root);
    free(text);
    free(path);
    return rc < 0 ? rc : 0;
}

int hf_write_seal(struct hf_write *w, const struct ckpt_meta *meta, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < w->n; i++)
        if (w->place[i].done != w->place[i].bytes) {
            rc = err_set(e, ERR_INTERNAL, "%s got %lld of %lld bytes: please report it", w->t[i].name,
                         (long long)w->place[i].done, (long long)w->place[i].bytes);
            goto out;
        }
    for (int s = 0; s < w->n_shards; s++) {
        int fd = w->shard[s].fd;
        w->shard[s].fd = -1;
        TRY(io_sync_close(fd, w->shard[s].path, e));
    }
    if (w->n_shards - w->has_kept > 1)
        TRY(write_index(w, e));
    TRY(small_files_write(w->dir, meta, e));
    TRY(io_sync_dir(w->dir, e));
out:
    if (rc < 0)
        ckpt_abandon(w->dir, -1);
    hf_write_abort(w);
    return rc < 0 ? rc : 0;
}

void hf_write_abort(struct hf_write *w)
{
    if (!w)
        return;
    for (int s = 0; s < w->n_shards; s++) {
        io_close(w->shard[s].fd);
        free(w->shard[s].path);
    }
    for (int i = 0; i < w->n_stored; i++)
        free(w->stored[i].name);
    free(w->dir);
    free(w->place);
    free(w->stored);
    free(w->shard);
    free(w);
}

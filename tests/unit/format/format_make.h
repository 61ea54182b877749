/* format_make.h - small checkpoints for the tests of format/: unique values, cut in several ways over several
 * ranks. */
#ifndef SHARDLINE_TESTS_UNIT_FORMAT_FORMAT_MAKE_H
#define SHARDLINE_TESTS_UNIT_FORMAT_FORMAT_MAKE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_write.h"

enum cut { CUT_NONE, CUT_ROWS, CUT_COLUMNS, CUT_RANGES, CUT_COLUMN_RANGES };
struct spec {
    struct ckpt_tensor t;
    enum cut cut;
};

static inline struct spec spec(enum ckpt_role role, const char *name, enum stored_dtype dtype, int n_dims,
                               int64_t d0, int64_t d1, enum cut cut)
{
    return (struct spec){
        { .name = name, .role = role, .dtype = dtype, .n_dims = n_dims, .shape = { d0, d1 } }, cut
    };
}

/* The bytes of element i of a tensor: unique over tensors and elements, so that equality cannot hide a
 * permutation. */
static inline uint64_t value_of(const struct ckpt_tensor *t, int64_t i)
{
    uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)t->role * 77;
    for (const char *p = t->name; *p; p++)
        z = (z ^ (unsigned char)*p) * 0x100000001b3u;
    return z ^ z >> 29;
}

static inline void fill_range(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi,
                              char *out)
{
    size_t size = (size_t)stored_bytes(t->dtype, 1);
    for (int64_t e = lo; e < hi; e++) {
        int64_t rest = e, index = 0, idx[BOX_DIMS];
        for (int d = b->n_dims - 1; d >= 0; d--) {
            idx[d] = rest % b->extent[d] + b->start[d];
            rest /= b->extent[d];
        }
        for (int d = 0; d < b->n_dims; d++)
            index = index * t->shape[d] + idx[d];
        uint64_t v = value_of(t, index);
        memcpy(out + size * (size_t)(e - lo), &v, size);
    }
}

/* The piece of rank r of n; hi == lo: none. */
static inline struct ckpt_piece piece_of(const struct spec *s, int r, int n)
{
    struct ckpt_piece p = { .t = s->t, .box = box_whole(s->t.n_dims, s->t.shape) };
    int dim = s->cut == CUT_COLUMNS || s->cut == CUT_COLUMN_RANGES ? s->t.n_dims - 1 : 0;
    int parts = s->cut == CUT_COLUMN_RANGES ? (n > 1 ? 2 : 1) : n,
        at = s->cut == CUT_COLUMN_RANGES ? r % parts : r;
    if (s->cut == CUT_ROWS || s->cut == CUT_COLUMNS || s->cut == CUT_COLUMN_RANGES) {
        int64_t total = s->t.shape[dim];
        p.box.start[dim] = total * at / parts;
        p.box.extent[dim] = total * (at + 1) / parts - p.box.start[dim];
    }
    p.hi = box_count(&p.box);
    if (s->cut == CUT_NONE && r)
        p.hi = 0;
    if (s->cut == CUT_RANGES || s->cut == CUT_COLUMN_RANGES) {
        int m = n / parts, k = r / parts;
        int64_t count = p.hi;
        if (s->cut == CUT_RANGES)
            m = n, k = r;
        p.lo = count * k / m;
        p.hi = count * (k + 1) / m;
    }
    return p;
}

/* How a checkpoint is written: n_specs tensors over n_ranks ranks, `step` elements at once; backwards: the
 * last piece first. */
struct make {
    const struct spec *s;
    int n_specs, n_ranks;
    int64_t step;
    int backwards;
};

/* Writes the files of rank r. */
static inline int write_rank(const char *dir, const struct make *m, int r, void **table, size_t *bytes,
                             struct err *e)
{
    struct ckpt_piece *p = calloc((size_t)m->n_specs, sizeof *p);
    struct ckpt_shard *shard = NULL;
    int rc = 0;
    for (int i = 0; i < m->n_specs; i++)
        p[i] = piece_of(&m->s[i], r, m->n_ranks);
    rc = ckpt_shard_open(&shard, dir, r, m->n_specs, p, e);
    for (int k = 0; k < m->n_specs && rc >= 0; k++) {
        int i = m->backwards ? m->n_specs - 1 - k : k;
        for (int64_t lo = p[i].lo; lo < p[i].hi && rc >= 0; lo += m->step) {
            int64_t hi = lo + m->step < p[i].hi ? lo + m->step : p[i].hi;
            char *data = malloc((size_t)(hi - lo) * 8);
            fill_range(&p[i].t, &p[i].box, lo, hi, data);
            rc = ckpt_shard_put(shard, i, data, hi - lo, e);
            free(data);
        }
        if (rc < 0)
            ckpt_shard_abort(shard);
    }
    free(p);
    return rc < 0 ? rc : ckpt_shard_close(shard, table, bytes, e);
}

static inline struct ckpt_meta make_meta(int n_ranks)
{
    static const char *const names[] = { "tokenizer.json", "generation_config.json" };
    static const void *const data[] = { "{\"version\":\"1.0\"}", "{}" };
    static size_t bytes[] = { 17, 2 };
    return (struct ckpt_meta){
        .layout = { n_ranks, 1, 1, 1, 1, 0 },
        .state = { .has_state = 1,
                   .step = 7,
                   .seed = 0xfedcba9876543210u,
                   .epoch = 1,
                   .sample = 40,
                   .grain = 8,
                   .expert_leaf = 2,
                   .cp_grain = 4,
                   .run_json = "{\"lr\":0.1,\"schedule\":\"cosine\",\"nested\":[1,2.5,null,true]}" },
        .config_json = "{\"model_type\":\"llama\"}\n",
        .n_extra = 2,
        .extra_name = (const char **)names,
        .extra_data = (const void **)data,
        .extra_bytes = bytes,
    };
}

static inline int make_ckpt_of(const char *dst, const struct make *how, const struct ckpt_meta *meta,
                               struct ckpt_digests *got, struct err *e)
{
    void *table[64] = { 0 };
    size_t bytes[64] = { 0 };
    char tmp[4096];
    int rc = ckpt_begin(dst, tmp, NULL, NULL, e);
    if (rc < 0)
        return rc;
    for (int r = 0; r < how->n_ranks && rc >= 0; r++)
        rc = write_rank(tmp, how, r, &table[r], &bytes[r], e);
    if (rc < 0)
        ckpt_abandon(tmp, -1);
    else
        rc = ckpt_publish(tmp, dst, how->n_ranks, table, bytes, meta, got, e);
    for (int r = 0; r < how->n_ranks; r++)
        free(table[r]);
    return rc;
}

static inline int make_ckpt(const char *dst, const struct spec *s, int n_specs, int n_ranks, int64_t step,
                            int backwards, struct ckpt_digests *got, struct err *e)
{
    struct ckpt_meta meta = make_meta(n_ranks);
    struct make how = { s, n_specs, n_ranks, step, backwards };
    return make_ckpt_of(dst, &how, &meta, got, e);
}

#define N_SPECS 7
static inline const struct spec *small_specs(void)
{
    static struct spec s[N_SPECS];
    s[0] = spec(ROLE_WEIGHT, "model.norm.weight", STORED_BF16, 1, 13, 0, CUT_NONE);
    s[1] = spec(ROLE_WEIGHT, "model.embed.weight", STORED_BF16, 2, 24, 10, CUT_ROWS);
    s[2] = spec(ROLE_WEIGHT, "model.layers.0.down.weight", STORED_BF16, 2, 9, 16, CUT_COLUMNS);
    s[3] = spec(ROLE_MASTER, "model.layers.0.down.weight", STORED_F32, 2, 9, 16, CUT_COLUMN_RANGES);
    s[4] = spec(ROLE_EXP_AVG, "model.norm.weight", STORED_F32, 1, 13, 0, CUT_RANGES);
    s[5] = spec(ROLE_EXP_AVG_SQ, "model.norm.weight", STORED_F32, 1, 13, 0, CUT_RANGES);
    s[6] = spec(ROLE_MASTER, "model.embed.weight", STORED_F32, 2, 24, 10, CUT_RANGES);
    return s;
}

static inline const char *in_tmp(const char *tmp_dir, const char *name, char out[512])
{
    if (snprintf(out, 512, "%s/%s", tmp_dir, name) >= 512)
        abort(); /* the folder for tests has too long a name */
    return out;
}

/* Names of the files in a folder, "." left out; returns how many. */
static inline int list_dir(const char *dir, char name[][64], int room)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    int n = 0;
    while (d && (f = readdir(d)))
        if (f->d_name[0] != '.' && n < room)
            snprintf(name[n++], 64, "%.63s", f->d_name);
    if (d)
        closedir(d);
    return n;
}

/* Opens the checkpoint at path and checks every byte of it. */
static inline int opens_and_verifies(const char *path, struct err *e)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, path, NULL, e);
    if (rc == 0)
        rc = ckpt_verify(c, 0, e);
    ckpt_close(c);
    return rc;
}

#endif

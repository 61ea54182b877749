/* view.c - answers about checkpoints on stdout: what is inside, its digests, how two differ, what a reshard would do. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "reshard/cast.h"
#include "reshard/reshard.h"

#define CHUNK ((int64_t)2 << 20)        /* elements compared at once */

static const char *const role_name[ROLE_COUNT] = { "weight", "master", "exp_avg", "exp_avg_sq" };

static int64_t tensor_bytes(const struct ckpt_tensor *t)
{
    struct box b = box_whole(t->n_dims, t->shape);
    return box_count(&b) * (int64_t)ckpt_dtype_size(t->dtype);
}

static const char *shape_text(const struct ckpt_tensor *t, char out[96])
{
    int at = 0;
    for (int i = 0; i < t->n_dims; i++)
        at += snprintf(out + at, 96 - (size_t)at, "%s%lld", i ? "," : "[", (long long)t->shape[i]);
    snprintf(out + at, 96 - (size_t)at, "]");
    return out;
}

static void print_json(json_t *o, FILE *out)
{
    json_dumpf(o, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(o);
}

/* ---- inspect ---- */

struct group { int n; int64_t params, bytes; };         /* of one role and dtype */

static void sum_groups(const struct ckpt *c, struct group g[ROLE_COUNT][CK_DTYPES])
{
    memset(g, 0, sizeof(struct group) * ROLE_COUNT * CK_DTYPES);
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        struct group *q = &g[t->role][t->dtype];
        q->n++;
        q->bytes += tensor_bytes(t);
        q->params += tensor_bytes(t) / (int64_t)ckpt_dtype_size(t->dtype);
    }
}

static json_t *tensor_json(const struct ckpt_tensor *t)
{
    json_t *shape = json_array();
    char hex[33];
    for (int i = 0; i < t->n_dims; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    ckpt_digest_hex(t->digest, hex);
    return json_pack("{s:s, s:s, s:s, s:o, s:I, s:o}", "name", t->name, "role", role_name[t->role], "dtype", ckpt_dtype_name(t->dtype), "shape", shape,
                     "bytes", (json_int_t)tensor_bytes(t), "digest", t->has_digest ? json_string(hex) : json_null());
}

static void inspect_json(const struct ckpt *c, int tensors, FILE *out)
{
    const struct ckpt_layout *l = ckpt_layout(c);
    const struct ckpt_state *s = ckpt_state(c);
    struct group g[ROLE_COUNT][CK_DTYPES];
    json_t *groups = json_array(), *root = json_pack("{s:s, s:s}", "path", ckpt_path(c), "format", ckpt_driver(c));
    sum_groups(c, g);
    for (int r = 0; r < ROLE_COUNT; r++)
        for (int d = 0; d < CK_DTYPES; d++)
            if (g[r][d].n)
                json_array_append_new(groups, json_pack("{s:s, s:s, s:i, s:I, s:I}", "role", role_name[r], "dtype", ckpt_dtype_name((enum ckpt_dtype)d),
                                                        "tensors", g[r][d].n, "parameters", (json_int_t)g[r][d].params, "bytes",
                                                        (json_int_t)g[r][d].bytes));
    json_object_set_new(root, "roles", groups);
    json_object_set_new(root, "layout", json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "tp", l->tp, "pp", l->pp, "cp", l->cp, "dp", l->dp, "ep", l->ep,
                                                  "zero", l->zero, "vpp", l->vpp > 1 ? l->vpp : 1));
    json_object_set_new(root, "grain", json_integer(s->grain));
    json_object_set_new(root, "state", s->has_state ? json_pack("{s:I,s:I,s:I}", "step", (json_int_t)s->step, "epoch", (json_int_t)s->epoch, "sample",
                                                                (json_int_t)s->sample)
                                                    : json_null());
    if (tensors) {
        json_t *list = json_array();
        for (int i = 0; i < ckpt_n_tensors(c); i++)
            json_array_append_new(list, tensor_json(ckpt_tensor(c, i)));
        json_object_set_new(root, "tensors", list);
    }
    print_json(root, out);
}

static void inspect_state(const struct ckpt *c, FILE *out)
{
    const struct ckpt_layout *l = ckpt_layout(c);
    const struct ckpt_state *s = ckpt_state(c);
    fprintf(out, "%-12s %s\n", "format", ckpt_driver(c));
    if (!strcmp(ckpt_driver(c), "native"))
        fprintf(out, "%-12s tp %d, pp %d, cp %d, dp %d, ep %d, zero %d, virtual stages %d\n", "layout", l->tp, l->pp, l->cp, l->dp, l->ep, l->zero,
                l->vpp > 1 ? l->vpp : 1);
    if (s->grain)
        fprintf(out, "%-12s %d\n", "grain", s->grain);
    if (strcmp(ckpt_driver(c), "native") && (l->tp > 1 || l->pp > 1 || l->dp > 1 || l->zero))
        fprintf(out, "%-12s tp %d, pp %d, dp %d, zero %d\n", "written by", l->tp, l->pp, l->dp, l->zero);
    if (s->has_state && strcmp(ckpt_driver(c), "native"))
        fprintf(out, "%-12s step %lld\n", "state", (long long)s->step);
    else if (s->has_state)
        fprintf(out, "%-12s step %lld, seed %llu, epoch %lld, sample %lld\n", "state", (long long)s->step, (unsigned long long)s->seed,
                (long long)s->epoch, (long long)s->sample);
    else
        fprintf(out, "%-12s none (weights only)\n", "state");
    if (ckpt_note(c))
        fprintf(out, "%-12s %s\n", "note", ckpt_note(c));
    fprintf(out, "%-12s %s", "files", ckpt_config_json(c) ? "config.json" : "no config.json");
    for (int i = 0; i < ckpt_n_extra(c); i++)
        fprintf(out, ", %s", ckpt_extra_name(c, i));
    fputc('\n', out);
}

int view_inspect(struct ckpt *c, const struct view_options *o, FILE *out, struct err *e)
{
    struct group g[ROLE_COUNT][CK_DTYPES];
    char size[32], shape[96];
    (void)e;
    if (o->json) {
        inspect_json(c, o->tensors, out);
        return 0;
    }
    inspect_state(c, out);
    fprintf(out, "\n%-12s %-6s %8s %16s %12s\n", "role", "dtype", "tensors", "parameters", "size");
    sum_groups(c, g);
    for (int r = 0; r < ROLE_COUNT; r++)
        for (int d = 0; d < CK_DTYPES; d++)
            if (g[r][d].n) {
                log_bytes(size, (double)g[r][d].bytes);
                fprintf(out, "%-12s %-6s %8d %16lld %12s\n", role_name[r], ckpt_dtype_name((enum ckpt_dtype)d), g[r][d].n, (long long)g[r][d].params,
                        size);
            }
    if (o->tensors)
        fprintf(out, "\n%-60s %-6s %-20s %12s\n", "tensor", "dtype", "shape", "size");
    for (int i = 0; i < ckpt_n_tensors(c) && o->tensors; i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        int room = 60 - (int)strlen(ckpt_role_prefix[t->role]);
        log_bytes(size, (double)tensor_bytes(t));
        fprintf(out, "%s%-*s %-6s %-20s %12s\n", ckpt_role_prefix[t->role], room, t->name, ckpt_dtype_name(t->dtype), shape_text(t, shape), size);
    }
    return 0;
}

/* ---- digest ---- */

int view_digest(struct ckpt *c, const struct view_options *o, FILE *out, struct err *e)
{
    int n = ckpt_n_tensors(c), rc = 0;
    struct ckpt_digest *d = calloc((size_t)n + 1, sizeof *d);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    char hex[33];
    if (!d || !t) {
        rc = err_set(e, ERR_MEMORY, "no room for the digests of %d tensors", n);
        goto out;
    }
    TRY(prove_digests(c, o->n_threads, NULL, d, e));
    TRY(ckpt_check_rest(c, 0, 1, e));
    for (int i = 0; i < n; i++) {
        t[i] = *ckpt_tensor(c, i);
        t[i].digest = d[i];
    }
    struct ckpt_digests all = ckpt_digest_all(n, t, ckpt_state(c));
    ckpt_digest_hex(all.weights, hex);
    fprintf(out, "weights_digest %s\n", hex);
    ckpt_digest_hex(all.state, hex);
    fprintf(out, "state_digest %s\n", all.has_state ? hex : "-");
    for (int i = 0; i < n && o->tensors; i++) {
        ckpt_digest_hex(d[i], hex);
        fprintf(out, "%s%s %s\n", ckpt_role_prefix[t[i].role], t[i].name, hex);
    }
out:
    free(d);
    free(t);
    return rc < 0 ? rc : 0;
}

/* ---- diff ---- */

struct difference { int64_t first, count, n; double a, b, largest; };      /* first -1: none */

/* Elements are compared as bits where the dtypes are the same, as values where they differ. */
static void compare_chunk(const struct ckpt_tensor *x, const struct ckpt_tensor *y, const char *a, const char *b, int64_t lo, int64_t n,
                          struct difference *d)
{
    size_t size = ckpt_dtype_size(x->dtype);
    int same_dtype = x->dtype == y->dtype;
    if (same_dtype && !memcmp(a, b, size * (size_t)n))
        return;
    for (int64_t i = 0; i < n; i++) {
        double va = cast_value(x->dtype, a, i), vb = cast_value(y->dtype, b, i), by = fabs(va - vb);
        if (same_dtype ? !memcmp(a + size * (size_t)i, b + size * (size_t)i, size) : va == vb)
            continue;
        if (d->first < 0) {
            d->first = lo + i;
            d->a = va;
            d->b = vb;
        }
        d->count++;
        if (by > d->largest || by != by)
            d->largest = by;
    }
}

static int diff_values(struct ckpt *a, int i, struct ckpt *b, int j, struct difference *d, struct err *e)
{
    const struct ckpt_tensor *x = ckpt_tensor(a, i), *y = ckpt_tensor(b, j);
    struct box whole = box_whole(x->n_dims, x->shape);
    int64_t n = box_count(&whole);
    char *p = malloc((size_t)CHUNK * 8), *q = malloc((size_t)CHUNK * 8);
    int rc = 0;
    *d = (struct difference){ .first = -1, .n = n };
    if (!p || !q) {
        rc = err_set(e, ERR_MEMORY, "no room to compare tensors");
        goto out;
    }
    for (int64_t lo = 0; lo < n; lo += CHUNK) {
        int64_t hi = lo + CHUNK < n ? lo + CHUNK : n;
        TRY(ckpt_read_range(a, i, &whole, lo, hi, p, e));
        TRY(ckpt_read_range(b, j, &whole, lo, hi, q, e));
        compare_chunk(x, y, p, q, lo, hi - lo, d);
    }
out:
    free(p);
    free(q);
    return rc < 0 ? rc : 0;
}

static void index_text(const struct ckpt_tensor *t, int64_t at, char out[96])
{
    int64_t idx[BOX_DIMS];
    int n = 0;
    for (int k = t->n_dims - 1; k >= 0; k--) {
        idx[k] = at % t->shape[k];
        at /= t->shape[k];
    }
    for (int k = 0; k < t->n_dims; k++)
        n += snprintf(out + n, 96 - (size_t)n, "%s%lld", k ? "," : "[", (long long)idx[k]);
    snprintf(out + n, 96 - (size_t)n, "]");
}

/* 1: different (one line printed), 0: the same. */
static int diff_tensor(struct ckpt *a, int i, struct ckpt *b, int j, FILE *out, struct err *e)
{
    const struct ckpt_tensor *x = ckpt_tensor(a, i), *y = ckpt_tensor(b, j);
    const char *prefix = ckpt_role_prefix[x->role];
    char sx[96], sy[96], at[96];
    struct difference d;
    if (x->n_dims != y->n_dims || memcmp(x->shape, y->shape, sizeof *x->shape * (size_t)x->n_dims)) {
        fprintf(out, "%s%s: shape %s and %s\n", prefix, x->name, shape_text(x, sx), shape_text(y, sy));
        return 1;
    }
    int rc = diff_values(a, i, b, j, &d, e);
    if (rc < 0)
        return rc;
    if (x->dtype != y->dtype)
        fprintf(out, "%s%s: dtype %s and %s\n", prefix, x->name, ckpt_dtype_name(x->dtype), ckpt_dtype_name(y->dtype));
    if (d.first >= 0) {
        index_text(x, d.first, at);
        fprintf(out, "%s%s: %lld of %lld elements differ, first %s: %.9g and %.9g, largest difference %.9g\n", prefix, x->name, (long long)d.count,
                (long long)d.n, at, d.a, d.b, d.largest);
    }
    return x->dtype != y->dtype || d.first >= 0;
}

static int diff_state(const struct ckpt *a, const struct ckpt *b, FILE *out)
{
    const struct ckpt_state *x = ckpt_state(a), *y = ckpt_state(b);
    const struct { const char *name; long long x, y; } rows[] = {
        { "step", x->step, y->step }, { "seed", (long long)x->seed, (long long)y->seed },
        { "epoch", x->epoch, y->epoch }, { "sample", x->sample, y->sample },
    };
    int different = 0;
    if (x->has_state != y->has_state) {
        fprintf(out, "optimizer state: only in %s\n", ckpt_path(x->has_state ? a : b));
        return 1;
    }
    for (size_t i = 0; x->has_state && i < sizeof rows / sizeof *rows; i++)
        if (rows[i].x != rows[i].y) {
            fprintf(out, "%s: %lld and %lld\n", rows[i].name, rows[i].x, rows[i].y);
            different = 1;
        }
    return different;
}

int view_diff(struct ckpt *a, struct ckpt *b, const struct view_options *o, FILE *out, struct err *e)
{
    int different = diff_state(a, b, out);
    (void)o;
    for (int i = 0; i < ckpt_n_tensors(a); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(a, i);
        int j = ckpt_find(b, t->role, t->name), rc = 1;
        if (j < 0)
            fprintf(out, "%s%s: only in %s\n", ckpt_role_prefix[t->role], t->name, ckpt_path(a));
        else if ((rc = diff_tensor(a, i, b, j, out, e)) < 0)
            return rc;
        different |= rc;
    }
    for (int j = 0; j < ckpt_n_tensors(b); j++) {
        const struct ckpt_tensor *t = ckpt_tensor(b, j);
        if (ckpt_find(a, t->role, t->name) < 0) {
            fprintf(out, "%s%s: only in %s\n", ckpt_role_prefix[t->role], t->name, ckpt_path(b));
            different = 1;
        }
    }
    return different;
}

/* ---- plan ---- */

int view_plan(const struct plan *p, const struct view_options *o, FILE *out, struct err *e)
{
    const double bytes_per_s = 1e9;     /* a modest disk; hashing and converting are faster on one core */
    int64_t bytes_in = 0, tables = p->n_pieces * 512;
    int n_files = 0;
    char a[32], b[32], c[32], d[32];
    (void)e;
    for (int i = 0; i < p->n; i++)
        bytes_in += tensor_bytes(ckpt_tensor(p->src, p->target[i].src));
    for (int r = 0; r < p->n_ranks; r++)
        n_files += p->unit[r * UNITS].n_pieces + p->unit[r * UNITS + 1].n_pieces > 0;
    int64_t memory = ((int64_t)16 << 20) * p->req->n_threads + ((int64_t)16 << 20) + tables;
    double s = (double)(bytes_in + 2 * p->bytes_out) / bytes_per_s;
    if (o->json) {
        print_json(json_pack("{s:I, s:I, s:i, s:I, s:i, s:I, s:I, s:f}", "bytes_read", (json_int_t)bytes_in, "bytes_written", (json_int_t)p->bytes_out,
                             "tensors", p->n, "pieces", (json_int_t)p->n_pieces, "ranks_with_files", n_files, "largest_rank_bytes",
                             (json_int_t)p->most_bytes, "memory_bytes", (json_int_t)memory, "seconds_at_1GBps", s),
                   out);
        return 0;
    }
    log_bytes(a, (double)bytes_in);
    log_bytes(b, (double)p->bytes_out);
    log_bytes(c, (double)p->most_bytes);
    log_bytes(d, (double)memory);
    fprintf(out, "%-10s %s\n%-10s %s, read once more as proof\n", "read", a, "write", b);
    fprintf(out, "%-10s %lld of %d tensors, on %d of %d ranks, at most %s on one\n", "pieces", (long long)p->n_pieces, p->n, n_files, p->n_ranks, c);
    fprintf(out, "%-10s about %s\n%-10s about %.1f s on a disk of 1 GB/s\n", "memory", d, "time", s);
    return 0;
}

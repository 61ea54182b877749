/* report.c - reports about checkpoints: what is inside, digests, what a conversion would do. (How two
 * differ: diff.c.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/tmp_folder.h"
#include "reshard/reshard.h"
#include "reshard/report.h"
#include "reshard/serve/report_serve.h"

const char *const report_role[ROLE_COUNT] = { "weight", "master", "exp_avg", "exp_avg_sq" };

int64_t tensor_bytes(const struct ckpt_tensor *t)
{
    struct box b = box_whole(t->n_dims, t->shape);
    return stored_bytes(t->dtype, box_count(&b));
}

const char *report_shape(const struct ckpt_tensor *t, char out[96])
{
    int at = 0;
    for (int i = 0; i < t->n_dims - (t->tail != NULL); i++)
        at += snprintf(out + at, 96 - (size_t)at, "%s%lld", i ? "," : "[", (long long)t->shape[i]);
    snprintf(out + at, 96 - (size_t)at, "%s%.30s]", t->tail ? "," : "", t->tail ? t->tail : "");
    return out;
}

void report_json(json_t *o, FILE *out)
{
    json_dumpf(o, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(o);
}

json_t *report_path(const struct ckpt *c)
{
    const char *path = ckpt_path(c);
    json_t *o = json_string(path);
    char text[4096];
    size_t n = 0;
    for (; path[n] && n + 1 < sizeof text; n++)
        text[n] = path[n] & 0x80 ? '?' : path[n];
    text[n] = 0;
    return o ? o : json_string(text);
}

static int index_of(const struct ckpt_tensor *t, int64_t at, int64_t idx[BOX_DIMS])
{
    for (int k = t->n_dims - 1; k >= 0; k--) {
        idx[k] = at % t->shape[k];
        at /= t->shape[k];
    }
    return t->n_dims;
}

json_t *report_index(const struct ckpt_tensor *t, int64_t at)
{
    int64_t idx[BOX_DIMS];
    json_t *list = json_array();
    for (int k = 0, n = index_of(t, at, idx); k < n; k++)
        json_array_append_new(list, json_integer(idx[k]));
    return list;
}

void report_index_text(const struct ckpt_tensor *t, int64_t at, char out[96])
{
    struct ckpt_tensor index = { 0 };
    index.n_dims = index_of(t, at, index.shape);
    report_shape(&index, out);
}

json_t *report_number(double v)
{
    return isnan(v) ? json_string("nan") : isinf(v) ? json_string(v > 0 ? "inf" : "-inf") : json_real(v);
}

/* ---- inspect ---- */

/* of one role and dtype */
struct group {
    int n;
    int64_t params, bytes;
};

static void sum_groups(const struct ckpt *c, struct group g[ROLE_COUNT][STORED_DTYPES])
{
    memset(g, 0, sizeof(struct group) * ROLE_COUNT * STORED_DTYPES);
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        struct group *q = &g[t->role][t->dtype];
        struct box whole = box_whole(t->n_dims, t->shape);
        q->n++;
        q->bytes += tensor_bytes(t);
        q->params += box_count(&whole);
    }
}

/* What the checkpoint holds beside the weights. */
static const char *optimizer_text(const struct ckpt *c, struct group g[ROLE_COUNT][STORED_DTYPES])
{
    int n[ROLE_COUNT] = { 0 };
    for (int r = 0; r < ROLE_COUNT; r++)
        for (int d = 0; d < STORED_DTYPES; d++)
            n[r] += g[r][d].n;
    if (!n[ROLE_EXP_AVG] || !n[ROLE_EXP_AVG_SQ])
        return n[ROLE_MASTER] ? "masters only" : "absent";
    if (!ckpt_state(c)->has_state)
        return "moments without a step";
    return n[ROLE_MASTER] ? "masters, moments, step" : "moments, step";
}

static json_t *stats_json(const struct tensor_stats *s)
{
    json_t *o = json_pack("{s:I, s:I, s:I}", "finite", (json_int_t)s->n_finite, "nan", (json_int_t)s->n_nan,
                          "inf", (json_int_t)s->n_inf);
    const struct {
        const char *name;
        double v;
    } rows[] = { { "min", s->min }, { "max", s->max }, { "mean", s->mean } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(o, rows[i].name, s->n_finite ? report_number(rows[i].v) : json_null());
    return o;
}

static json_t *tensor_json(const struct ckpt_tensor *t)
{
    json_t *shape = json_array();
    char hex[33];
    for (int i = 0; i < t->n_dims - (t->tail != NULL); i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    for (const char *s = t->tail; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
        json_array_append_new(shape, json_integer(strtoll(s, NULL, 10)));
    ckpt_digest_hex(t->digest, hex);
    return json_pack("{s:s, s:s, s:s, s:o, s:I, s:o}", "name", t->name, "role", report_role[t->role], "dtype",
                     stored_dtype_name(t->dtype), "shape", shape, "bytes", (json_int_t)tensor_bytes(t),
                     "digest", t->has_digest ? json_string(hex) : json_null());
}

static json_t *state_json(const struct ckpt_state *s)
{
    const struct ckpt_counts *counts = &s->counts;
    json_t *o, *list, *layer;
    if (!s->has_state)
        return json_null();

    o = json_pack("{s:I,s:I,s:I}", "step", (json_int_t)s->step, "epoch", (json_int_t)s->epoch, "sample",
                  (json_int_t)s->sample);
    if (!counts->count)
        return o;
    list = json_array();
    for (int64_t l = 0; l < counts->n_layers; l++) {
        layer = json_array();
        for (int64_t x = 0; x < counts->n_experts; x++)
            json_array_append_new(layer, json_integer(counts->count[l * counts->n_experts + x]));
        json_array_append_new(list, layer);
    }
    json_object_set_new(o, "expert_counts", list);
    return o;
}

static json_t *orders_json(const struct ckpt_state *s)
{
    json_t *o = json_object();
    if (s->expert_leaf > 1)
        json_object_set_new(o, "expert_leaf", json_integer(s->expert_leaf));
    if (s->cp_grain > 1)
        json_object_set_new(o, "cp_grain", json_integer(s->cp_grain));
    return o;
}

static void inspect_json(struct ckpt *c, int tensors, const struct tensor_stats *stats, FILE *out)
{
    const struct ckpt_layout *l = ckpt_layout(c);
    const struct ckpt_state *s = ckpt_state(c);
    struct group g[ROLE_COUNT][STORED_DTYPES];
    json_t *groups = json_array(),
           *root = json_pack("{s:o, s:s}", "path", report_path(c), "format", ckpt_driver(c));
    sum_groups(c, g);
    for (int r = 0; r < ROLE_COUNT; r++)
        for (int d = 0; d < STORED_DTYPES; d++)
            if (g[r][d].n)
                json_array_append_new(groups,
                                      json_pack("{s:s, s:s, s:i, s:I, s:I}", "role", report_role[r], "dtype",
                                                stored_dtype_name((enum stored_dtype)d), "tensors", g[r][d].n,
                                                "parameters", (json_int_t)g[r][d].params, "bytes",
                                                (json_int_t)g[r][d].bytes));

    json_object_set_new(root, "roles", groups);
    json_object_set_new(root, "layout",
                        json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "tp", l->tp, "pp", l->pp, "cp", l->cp,
                                  "dp", l->dp, "ep", l->ep, "zero", l->zero, "vpp", l->vpp > 1 ? l->vpp : 1));

    if (ckpt_writer(c)) {
        json_object_set_new(root, "writer", json_string(ckpt_writer(c)));
        json_object_set_new(root, "ranks",
                            ckpt_writer_ranks(c) ? json_integer(ckpt_writer_ranks(c)) : json_null());
    }
    json_object_set_new(root, "resumable", json_boolean(s->has_state));
    json_object_set_new(root, "optimizer_state", json_string(optimizer_text(c, g)));
    json_object_set_new(root, "settings",
                        s->run_json ? json_loads(s->run_json, JSON_DECODE_ANY, NULL) : json_null());
    json_object_set_new(root, "note", ckpt_note(c) ? json_string(ckpt_note(c)) : json_null());
    json_object_set_new(root, "grain", json_integer(s->grain));
    if (s->expert_leaf > 1 || s->cp_grain > 1)
        json_object_set_new(root, "orders", orders_json(s));
    json_object_set_new(root, "state", state_json(s));

    report_adapter_json(c, root);
    report_packs_json(c, root);
    if (tensors) {
        json_t *list = json_array();
        for (int i = 0; i < ckpt_n_tensors(c); i++) {
            json_t *o = tensor_json(ckpt_tensor(c, i));
            if (stats)
                json_object_set_new(o, "stats", stats_json(&stats[i]));
            json_array_append_new(list, o);
        }
        json_object_set_new(root, "tensors", list);
    }
    report_json(root, out);
}

static void inspect_state(const struct ckpt *c, FILE *out)
{
    const struct ckpt_layout *l = ckpt_layout(c);
    const struct ckpt_state *s = ckpt_state(c);
    struct group g[ROLE_COUNT][STORED_DTYPES];
    sum_groups(c, g);
    fprintf(out, "%-12s %s\n", "format", ckpt_driver(c));
    if (!strcmp(ckpt_driver(c), "native"))
        fprintf(out, "%-12s tp %d, pp %d, cp %d, dp %d, ep %d, zero %d, virtual stages %d\n", "layout", l->tp,
                l->pp, l->cp, l->dp, l->ep, l->zero, l->vpp > 1 ? l->vpp : 1);

    report_packs(c, out);
    if (s->grain)
        fprintf(out, "%-12s %d\n", "grain", s->grain);
    if (s->expert_leaf > 1)
        fprintf(out, "%-12s expert leaf %d\n", "orders", s->expert_leaf);
    if (s->cp_grain > 1)
        fprintf(out, "%-12s %d leaves a sequence\n", "orders", s->cp_grain);
    if (ckpt_writer(c))
        fprintf(out, "%-12s %s", "written by", ckpt_writer(c));
    if (ckpt_writer(c) && ckpt_writer_ranks(c))
        fprintf(out, ", %d rank%s", ckpt_writer_ranks(c), ckpt_writer_ranks(c) > 1 ? "s" : "");
    if (ckpt_writer(c) && (l->tp > 1 || l->pp > 1 || l->dp > 1 || l->zero))
        fprintf(out, ": tp %d, pp %d, dp %d, zero %d", l->tp, l->pp, l->dp, l->zero);
    if (ckpt_writer(c))
        fputc('\n', out);

    if (s->has_state && strcmp(ckpt_driver(c), "native"))
        fprintf(out, "%-12s step %lld\n", "state", (long long)s->step);
    else if (s->has_state)
        fprintf(out, "%-12s step %lld, seed %llu, epoch %lld, sample %lld\n", "state", (long long)s->step,
                (unsigned long long)s->seed, (long long)s->epoch, (long long)s->sample);
    else
        fprintf(out, "%-12s none (weights only)\n", "state");
    if (s->has_state && s->counts.count)
        fprintf(out, "%-12s of the last step: %lld layers of %lld experts\n", "counts",
                (long long)s->counts.n_layers, (long long)s->counts.n_experts);

    if (ckpt_writer(c)) {
        fprintf(out, "optimizer state: %s%s\n", optimizer_text(c, g),
                s->has_state ? "; ptrain --resume takes it" : "; ptrain --init takes the weights");
        if (s->run_json)
            fprintf(out, "%-12s %s\n", "settings", s->run_json);
    }
    if (ckpt_note(c))
        fprintf(out, "%-12s %s\n", "note", ckpt_note(c));

    fprintf(out, "%-12s %s", "files", ckpt_config_json(c) ? "config.json" : "no config.json");
    for (int i = 0; i < ckpt_n_extra(c); i++)
        fprintf(out, ", %s", ckpt_extra_name(c, i));
    fputc('\n', out);
}

static void inspect_groups(const struct ckpt *c, FILE *out)
{
    struct group g[ROLE_COUNT][STORED_DTYPES];
    char size[32];
    fprintf(out, "\n%-12s %-6s %8s %16s %12s\n", "role", "dtype", "tensors", "parameters", "size");
    sum_groups(c, g);
    for (int r = 0; r < ROLE_COUNT; r++)
        for (int d = 0; d < STORED_DTYPES; d++)
            if (g[r][d].n) {
                log_bytes(size, (double)g[r][d].bytes);
                fprintf(out, "%-12s %-6s %8d %16lld %12s\n", report_role[r],
                        stored_dtype_name((enum stored_dtype)d), g[r][d].n, (long long)g[r][d].params, size);
            }
}

static int widest_name(const struct ckpt *c)
{
    int most = 6;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        int n = (int)(strlen(ckpt_role_prefix[t->role]) + strlen(t->name));
        most = n > most ? n : most;
    }
    return most < 80 ? most : 80;
}

/* stats: NULL: none */
static void inspect_tensors(const struct ckpt *c, const struct tensor_stats *stats, FILE *out)
{
    int width = widest_name(c);
    char size[32], shape[96];
    fprintf(out, "\n%-*s %-6s %-16s %10s", width, "tensor", "dtype", "shape", "size");
    if (stats)
        fprintf(out, " %12s %12s %12s %8s %8s", "min", "max", "mean", "NaN", "Inf");
    fputc('\n', out);

    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        const char *prefix = ckpt_role_prefix[t->role];
        log_bytes(size, (double)tensor_bytes(t));
        fprintf(out, "%s%-*s %-6s %-16s %10s", prefix, width - (int)strlen(prefix), t->name,
                stored_dtype_name(t->dtype), report_shape(t, shape), size);
        if (stats && stats[i].n_finite)
            fprintf(out, " %12.5g %12.5g %12.5g", stats[i].min, stats[i].max, stats[i].mean);
        else if (stats)
            fprintf(out, " %12s %12s %12s", "-", "-", "-");
        if (stats)
            fprintf(out, " %8lld %8lld", (long long)stats[i].n_nan, (long long)stats[i].n_inf);
        fputc('\n', out);
    }
}

int report_inspect(struct ckpt *c, const struct report_options *o, FILE *out, struct err *e)
{
    struct tensor_stats *stats = NULL;
    int rc = 0;
    if (o->stats) {
        if (!(stats = calloc((size_t)ckpt_n_tensors(c) + 1, sizeof *stats)))
            return err_set(e, ERR_MEMORY, "no memory for the statistics of %d tensors", ckpt_n_tensors(c));
        TRY(stats_of_all(c, o->n_threads, o->log, stats, e));
    }
    if (o->json) {
        inspect_json(c, o->tensors || o->stats, stats, out);
        goto out;
    }
    inspect_state(c, out);
    report_adapter(c, out);
    inspect_groups(c, out);
    if (o->tensors || o->stats)
        inspect_tensors(c, stats, out);
out:
    free(stats);
    return rc < 0 ? rc : 0;
}

/* ---- digest ---- */

static json_t *digest_json(const struct ckpt_digests *all, const struct ckpt_tensor *t, int n, int tensors)
{
    char weights[33], state[33], hex[33];
    ckpt_digest_hex(all->weights, weights);
    ckpt_digest_hex(all->state, state);
    json_t *o = json_pack("{s:s, s:o}", "weights_digest", weights, "state_digest",
                          all->has_state ? json_string(state) : json_null());
    json_t *list = tensors ? json_array() : NULL;
    for (int i = 0; i < n && tensors; i++) {
        ckpt_digest_hex(t[i].digest, hex);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", t[i].name, "role",
                                              report_role[t[i].role], "digest", hex));
    }
    if (list)
        json_object_set_new(o, "tensors", list);
    return o;
}

static void print_digests(const struct ckpt_digests *all, const struct ckpt_tensor *t, int n, int tensors,
                          FILE *out)
{
    char hex[33];
    ckpt_digest_hex(all->weights, hex);
    fprintf(out, "weights_digest %s\n", hex);
    ckpt_digest_hex(all->state, hex);
    fprintf(out, "state_digest %s\n", all->has_state ? hex : "-");
    for (int i = 0; i < n && tensors; i++) {
        ckpt_digest_hex(t[i].digest, hex);
        fprintf(out, "%s%s %s\n", ckpt_role_prefix[t[i].role], t[i].name, hex);
    }
}

int report_digest(struct ckpt *c, const struct report_options *o, FILE *out, struct err *e)
{
    int n = ckpt_n_tensors(c), rc = 0;
    struct ckpt_digest *d = calloc((size_t)n + 1, sizeof *d);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    if (!d || !t) {
        rc = err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", n);
        goto out;
    }
    TRY(prove_digests(c, o->n_threads, NULL, d, e));
    TRY(ckpt_check_rest(c, 0, 1, e));

    for (int i = 0; i < n; i++) {
        t[i] = *ckpt_tensor(c, i);
        t[i].digest = d[i];
    }

    struct ckpt_digests all = ckpt_digest_all(n, t, ckpt_state(c));
    if (o->json)
        report_json(digest_json(&all, t, n, o->tensors), out);
    else
        print_digests(&all, t, n, o->tensors, out);
out:
    free(d);
    free(t);
    return rc < 0 ? rc : 0;
}

/* ---- plan ---- */

int report_plan(const struct plan *p, const struct report_options *o, FILE *out, struct err *e)
{
    const double bytes_per_s = 1e9; /* a modest disk; hashing and converting are faster on one core */
    int64_t bytes_in = 0, memory = plan_memory_bytes(p);
    int n_files = 0;
    char a[32], b[32], c[32], d[32];
    (void)e;
    for (int i = 0; i < p->n; i++)
        bytes_in += tensor_bytes(ckpt_tensor(p->src, p->target[i].src));
    for (int r = 0; r < p->n_ranks; r++)
        n_files += p->unit[r * UNITS].n_pieces + p->unit[r * UNITS + 1].n_pieces > 0;

    double s = (double)(bytes_in + 2 * p->bytes_out) / bytes_per_s;
    if (o->json) {
        report_json(json_pack("{s:I, s:I, s:i, s:I, s:i, s:I, s:I, s:f}", "bytes_read", (json_int_t)bytes_in,
                              "bytes_written", (json_int_t)p->bytes_out, "tensors", p->n, "pieces",
                              (json_int_t)p->n_pieces, "ranks_with_files", n_files, "largest_rank_bytes",
                              (json_int_t)p->most_bytes, "memory_bytes", (json_int_t)memory,
                              "seconds_at_1GBps", s),
                    out);
        return 0;
    }

    log_bytes(a, (double)bytes_in);
    log_bytes(b, (double)p->bytes_out);
    log_bytes(c, (double)p->most_bytes);
    log_bytes(d, (double)memory);
    fprintf(out, "%-10s %s\n%-10s %s, read once more as proof\n", "read", a, "write", b);
    fprintf(out, "%-10s %lld of %d tensors, on %d of %d ranks, at most %s on one\n", "pieces",
            (long long)p->n_pieces, p->n, n_files, p->n_ranks, c);
    fprintf(out, "%-10s about %s\n%-10s about %.1f s on a disk of 1 GB/s\n", "memory", d, "time", s);
    return 0;
}

/* ---- an unpublished checkpoint ---- */

/* Prints a path as one word of a shell. */
static void print_word(const char *path, FILE *out)
{
    fputs(*path == '-' ? "'./" : "'", out);
    for (; *path; path++)
        if (*path == '\'')
            fputs("'\\''", out);
        else
            fputc(*path, out);
    fputc('\'', out);
}

void report_rescue(const char *path, enum ckpt_proof proof, FILE *out)
{
    char dst[4096];
    int lock;
    if (!ckpt_place_of(path, dst))
        return;
    enum tmp_folder state = tmp_folder_look(path, &lock);
    io_close(lock);
    if (state == TMP_WRITTEN || state == TMP_READ) {
        fprintf(out, "%s: not published yet: another process uses it\n", path);
        return;
    }
    if (proof != CKPT_DIGESTS) {
        fprintf(out,
                "%s: not published, and this format does not show whether all files were written: "
                "convert again\n",
                path);
        return;
    }

    fprintf(out, "%s: whole, but not published: its writer was interrupted; publish it with: rm -f ", path);
    print_word(path, out);
    fputs("/" TMP_MARKER " && mv -T ", out);
    print_word(path, out);
    fputc(' ', out);
    print_word(dst, out);
    fputs(io_exists(dst) ? ".rescued\n" : "\n", out);
}

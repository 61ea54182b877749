/* manifest.c - see manifest.h.
 *
 * The text ends with ,"manifest_checksum":"<32 digits>"}\n and the checksum covers every byte before the
 * value. Behind it are only those 36 bytes, so that no byte of the file can change unnoticed. */
#include "format/native/manifest.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"

#define TAIL_KEY ",\"manifest_checksum\":"
#define TAIL_VALUE 36 /* quote, 32 digits, quote, brace, newline */

const char *const manifest_role[ROLE_COUNT] = { "weight", "master", "exp_avg", "exp_avg_sq" };

const struct layout_row manifest_layout[LAYOUT_ROWS] = {
    { "cp", offsetof(struct ckpt_layout, cp) },     { "dp", offsetof(struct ckpt_layout, dp) },
    { "ep", offsetof(struct ckpt_layout, ep) },     { "pp", offsetof(struct ckpt_layout, pp) },
    { "tp", offsetof(struct ckpt_layout, tp) },     { "vpp", offsetof(struct ckpt_layout, vpp), 1 },
    { "zero", offsetof(struct ckpt_layout, zero) },
};

char *manifest_text(const json_t *root, const struct jx_member *list, int n_lists, size_t *n, struct err *e)
{
    char hex[33], tail[TAIL_VALUE + 1];
    struct buf text = { 0 };
    jx_put_with(&text, root, list, n_lists);
    text.n -= text.n > 0; /* the closing brace */
    buf_add(&text, TAIL_KEY, sizeof TAIL_KEY - 1);
    if (!text.failed)
        fmt_hex128(fmt_sum128(text.p, text.n), hex);
    buf_add(&text, tail, (size_t)snprintf(tail, sizeof tail, "\"%.32s\"}\n", text.failed ? "" : hex));
    if (text.failed)
        err_set(e, ERR_MEMORY, "no memory for a manifest of %zu bytes", text.n);
    else if (text.n > FMT_MANIFEST_MAX)
        err_set(e, ERR_FORMAT, "a manifest of %zu bytes, the limit is %zu: use fewer ranks", text.n,
                (size_t)FMT_MANIFEST_MAX);
    if (text.failed || text.n > FMT_MANIFEST_MAX) {
        buf_free(&text);
        return NULL;
    }
    text.p[text.n] = 0;
    *n = text.n;
    return text.p;
}

int manifest_check(const char *text, size_t n, const char *path, struct err *e)
{
    char hex[33], want[TAIL_VALUE + 1];
    size_t tail = TAIL_VALUE + sizeof TAIL_KEY - 1;
    if (n <= tail || memcmp(text + n - tail, TAIL_KEY, sizeof TAIL_KEY - 1))
        return err_set(e, ERR_INTEGRITY,
                       "%s: does not end with its checksum: it is cut, changed, or of another program", path);
    fmt_hex128(fmt_sum128(text, n - TAIL_VALUE), hex);
    snprintf(want, sizeof want, "\"%s\"}\n", hex);
    if (memcmp(want, text + n - TAIL_VALUE, TAIL_VALUE))
        return err_set(
            e, ERR_INTEGRITY,
            "%s: its bytes have checksum %s, its last line says %.32s: restore it from a good copy", path,
            hex, text + n - TAIL_VALUE + 1);
    return 0;
}

json_t *manifest_sum128(struct sum128 s)
{
    char hex[33];
    fmt_hex128(s, hex);
    return json_string(hex);
}

json_t *manifest_blocks(const uint64_t *block, int64_t n)
{
    char *hex = malloc((size_t)n * 16 + 1);
    json_t *out = NULL;
    if (hex) {
        hex[0] = 0;
        for (int64_t i = 0; i < n; i++)
            snprintf(hex + i * 16, 17, "%016llx", (unsigned long long)block[i]);
        out = json_string(hex);
    }
    free(hex);
    return out;
}

json_t *manifest_ints(const int64_t *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(a, json_integer(v[i]));
    return a;
}

json_t *manifest_shard_file(const char *name, int64_t length, const uint64_t *block, int64_t n_blocks,
                            int n_pieces)
{
    return json_pack("{s:s, s:I, s:o, s:o, s:i}", "name", name, "length", (json_int_t)length, "checksum",
                     manifest_sum128(fmt_sum_blocks(block, n_blocks)), "blocks",
                     manifest_blocks(block, n_blocks), "n_pieces", n_pieces);
}

json_t *manifest_shard_piece(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi,
                             int64_t offset, struct ckpt_digest digest)
{
    return json_pack("{s:s, s:i, s:i, s:b, s:o, s:s*, s:o, s:o, s:[I,I], s:I, s:o}", "name", t->name, "role",
                     (int)t->role, "dtype", (int)t->dtype, "scalar", t->is_scalar, "shape",
                     manifest_ints(t->shape, t->n_dims), MANIFEST_TAIL, t->tail, "start",
                     manifest_ints(b->start, b->n_dims), "extent", manifest_ints(b->extent, b->n_dims),
                     "range", (json_int_t)lo, (json_int_t)hi, "offset", (json_int_t)offset, "digest",
                     manifest_sum128((struct sum128){ digest.lo, digest.hi }));
}

struct sum128 manifest_save_id(const struct ckpt_digests *d, const struct ckpt_layout *l)
{
    char text[256], hex[33];
    ckpt_digest_hex(d->has_state ? d->state : d->weights, hex);
    int n = snprintf(text, sizeof text, "%s %s\n", d->has_state ? "state" : "weights", hex);
    for (int i = 0; i < LAYOUT_ROWS; i++) {
        int degree = LAYOUT_AT((struct ckpt_layout *)l, &manifest_layout[i]);
        if (!layout_left_out(&manifest_layout[i], degree))
            n += snprintf(text + n, sizeof text - (size_t)n, "%s %d\n", manifest_layout[i].key, degree);
    }
    n += snprintf(text + n, sizeof text - (size_t)n, "version %d\n", MANIFEST_VERSION);
    return fmt_sum128(text, (size_t)n);
}

/* ---- settings of the run: reals as hex-float strings, so that they come back to the last bit ---- */

/* "0x1.8p-3", "-0x1p+0": what %a prints */
static int is_hex_float(const char *s)
{
    s += *s == '-';
    if (strncmp(s, "0x", 2) || !isxdigit((unsigned char)s[2]))
        return 0;
    s += 2;
    while (isxdigit((unsigned char)*s) || *s == '.')
        s++;
    if (*s++ != 'p' || (*s != '+' && *s != '-') || !isdigit((unsigned char)s[1]))
        return 0;
    while (isdigit((unsigned char)*++s))
        ;
    return *s == 0;
}

static json_t *real_out(const json_t *v, struct err *e)
{
    char text[64];
    (void)e;
    snprintf(text, sizeof text, "%a", json_real_value(v));
    return json_string(text);
}

static json_t *text_out(const json_t *v, struct err *e)
{
    if (is_hex_float(json_string_value(v))) {
        err_set(
            e, ERR_USAGE,
            "a setting of the run is the text %s, which is how the manifest writes numbers: choose another",
            json_string_value(v));
        return NULL;
    }
    return json_copy((json_t *)v);
}

static json_t *text_in(const json_t *v, struct err *e)
{
    (void)e;
    const char *s = json_string_value(v);
    return is_hex_float(s) ? json_real(strtod(s, NULL)) : json_copy((json_t *)v);
}

static json_t *as_is(const json_t *v, struct err *e)
{
    (void)e;
    return json_copy((json_t *)v);
}

/* A copy of v with its reals and texts converted by the given functions; the parser limits the depth to
 * 64. */
struct map {
    json_t *(*real)(const json_t *, struct err *), *(*text)(const json_t *, struct err *);
};
static json_t *copy(const json_t *v, const struct map *m, struct err *e)
{
    json_t *out = NULL, *child, *made;
    const char *key;
    size_t i;
    if (json_is_real(v))
        return m->real(v, e);
    if (json_is_string(v))
        return m->text(v, e);
    if (json_is_object(v)) {
        out = json_object();
        json_object_foreach((json_t *)v, key, child) {
            if (!(made = copy(child, m, e)) || json_object_set_new(out, key, made) < 0)
                goto fail;
        }
        return out;
    }
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach((json_t *)v, i, child) {
            if (!(made = copy(child, m, e)) || json_array_append_new(out, made) < 0)
                goto fail;
        }
        return out;
    }
    return json_copy((json_t *)v);
fail:
    json_decref(out);
    return NULL;
}

json_t *manifest_run_encode(const char *text, struct err *e)
{
    static const struct map out = { real_out, text_out };
    json_t *v = jx_parse(text, strlen(text), "settings of the run", e), *r = NULL;
    if (!v)
        return NULL;
    err_set(e, ERR_MEMORY, "no memory for the settings of the run");
    if (json_is_object(v))
        r = copy(v, &out, e);
    else
        err_set(e, ERR_INTERNAL, "the settings of the run are not a JSON object: please report it");
    json_decref(v);
    return r;
}

char *manifest_run_decode(const json_t *run)
{
    static const struct map in = { as_is, text_in };
    struct err e;
    json_t *v = copy(run, &in, &e);
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(v);
    return text;
}

void manifest_put_orders(json_t *root, const struct ckpt_state *s)
{
    json_t *orders = json_object();
    if (s->has_state && s->expert_leaf > 1)
        json_object_set_new(orders, MANIFEST_EXPERT_LEAF, json_integer(s->expert_leaf));
    if (s->has_state && s->cp_grain > 1)
        json_object_set_new(orders, MANIFEST_CP_GRAIN, json_integer(s->cp_grain));
    if (json_object_size(orders))
        json_object_set(root, "orders", orders);
    json_decref(orders);
}

json_t *manifest_state(const struct ckpt_state *s, struct err *e)
{
    char seed[17];
    json_t *run, *o;
    if (!s->has_state)
        return json_null();

    snprintf(seed, sizeof seed, "%016llx", (unsigned long long)s->seed);
    run = s->run_json ? manifest_run_encode(s->run_json, e) : json_null();
    if (!run)
        return NULL;
    o = json_pack("{s:I, s:I, s:I, s:s, s:o}", "step", (json_int_t)s->step, "epoch", (json_int_t)s->epoch,
                  "sample", (json_int_t)s->sample, "seed", seed, "run", run);
    if (o && s->counts.count && json_object_set_new(o, MANIFEST_COUNTS, manifest_counts(&s->counts)) < 0) {
        err_set(e, ERR_MEMORY, "no memory for the counts of experts");
        json_decref(o);
        o = NULL;
    }
    return o;
}

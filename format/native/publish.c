/* publish.c - a checkpoint becomes visible: the shards' tables are merged and checked, the manifest is
 * written, everything is fsynced, then one rename (place.c).
 *
 *     mkdir dst.tmp-save -> marker -> files, each fsynced -> manifest, fsynced -> fsync of the folder
 *     -> marker removed -> fsync of the folder -> rename to dst, never over an existing one
 *     -> fsync of the parent
 * A crash before the rename leaves no dst; after it, a whole one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/ckpt_write.h"
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "format/native/out_file.h"
#include "format/native/panels_table.h"

/* A checkpoint being put together: the tables of struct ckpt, and what only the manifest needs. */
struct seal {
    struct ckpt c; /* tensors and pieces, checked as a reader checks them */
    struct file {
        json_t *root;     /* its line in the table */
        const char *name; /* borrowed from it */
        int64_t bytes;
        const struct record *record; /* [n] its pieces */
        int64_t n;
        struct buf packs; /* of panels: as the manifest lists them */
    } * file;
    /* the pieces, as the tables list them */
    struct record {
        struct ckpt_tensor t;
        struct fmt_piece p;
        char *name, *tail; /* of t */
        json_t *run;       /* what the manifest says besides of a run of panels; NULL: it is none */
        int is_copy;
    } * record;
    int n_files;
    int64_t n_records;
    int n_tables;
};

/* ---- tables of the shards ---- */

static int get_ints(const json_t *a, int64_t *out)
{
    size_t n = json_array_size(a);
    for (size_t i = 0; i < n && i < BOX_DIMS; i++)
        out[i] = json_integer_value(json_array_get(a, i));
    return (int)n;
}

static void get_record(struct record *r, int file, const json_t *o)
{
    struct sum128 digest = { 0, 0 };
    int64_t range[BOX_DIMS] = { 0 };
    memset(r, 0, sizeof *r);
    r->t.name = json_string_value(json_object_get(o, "name"));
    r->t.role = (enum ckpt_role)json_integer_value(json_object_get(o, "role"));
    r->t.dtype = (enum stored_dtype)json_integer_value(json_object_get(o, "dtype"));
    r->t.n_dims = get_ints(json_object_get(o, "shape"), r->t.shape);
    r->t.is_scalar = json_is_true(json_object_get(o, "scalar"));
    get_ints(json_object_get(o, "start"), r->p.box.start);
    r->p.box.n_dims = get_ints(json_object_get(o, "extent"), r->p.box.extent);
    get_ints(json_object_get(o, "range"), range);
    r->p.lo = range[0];
    r->p.hi = range[1];
    r->p.offset = json_integer_value(json_object_get(o, "offset"));
    r->p.file = file;
    r->run = panels_run_json(o);
    r->is_copy = json_is_true(json_object_get(o, MANIFEST_COPY));
    fmt_parse_hex128(json_string_value(json_object_get(o, "digest")), &digest);
    r->t.digest = (struct ckpt_digest){ digest.lo, digest.hi };
}

static int make_room(struct seal *s, void *const *table, const size_t *bytes, struct err *e)
{
    size_t n = 0; /* lines */
    for (int k = 0; k < s->n_tables; k++)
        for (const char *at = table[k], *end = at + bytes[k]; at && at < end; n++)
            at = (at = memchr(at, '\n', (size_t)(end - at))) ? at + 1 : NULL;
    s->file = calloc(n + 1, sizeof *s->file);
    s->record = calloc(n + 1, sizeof *s->record);
    s->c.piece = calloc(n + 1, sizeof *s->c.piece);
    s->c.tensor = calloc(n + 1, sizeof *s->c.tensor);
    s->c.first_piece = calloc(n + 2, sizeof *s->c.first_piece);
    if (!s->file || !s->record || !s->c.piece || !s->c.tensor || !s->c.first_piece)
        return err_set(e, ERR_MEMORY, "no memory to merge %zu pieces", n);
    return 0;
}

static void get_file(struct seal *s, json_t *o)
{
    s->file[s->n_files++] = (struct file){ .root = o,
                                           .name = json_string_value(json_object_get(o, "name")),
                                           .bytes = json_integer_value(json_object_get(o, "length")),
                                           .record = s->record + s->n_records };
}

/* A line is a file, a pack of the file above, or one of its pieces. */
static int get_line(struct seal *s, json_t *o, struct err *e)
{
    if (json_object_get(o, MANIFEST_LEAVES)) {
        struct buf *to = &s->file[s->n_files - 1].packs;
        buf_add(to, to->n ? "," : "[", 1);
        jx_put(to, o);
        json_decref(o);
        return to->failed ? err_set(e, ERR_MEMORY, "no memory for the packs of panels") : 0;
    }
    if (json_object_get(o, "n_pieces")) {
        get_file(s, o);
        return 0;
    }
    struct record *r = &s->record[s->n_records++];
    get_record(r, s->n_files - 1, o);
    s->file[s->n_files - 1].n++;
    const char *tail = json_string_value(json_object_get(o, MANIFEST_TAIL));
    r->t.name = r->name = strdup(r->t.name);
    r->t.tail = r->tail = tail ? strdup(tail) : NULL;
    json_decref(o);
    return r->name && !r->tail == !tail ? 0 : err_set(e, ERR_MEMORY, "no memory for the names of tensors");
}

static int parse_tables(struct seal *s, void *const *table, const size_t *bytes, struct err *e)
{
    int rc = make_room(s, table, bytes, e);
    for (int k = 0; k < s->n_tables; k++) {
        const char *at = table[k], *end = at + bytes[k], *stop;
        for (; rc >= 0 && at < end && (stop = memchr(at, '\n', (size_t)(end - at))); at = stop + 1) {
            json_t *o = stop > at ? jx_parse(at, (size_t)(stop - at), "table of a shard", e) : NULL;
            if (stop > at)
                rc = o ? get_line(s, o, e) : -e->code;
        }
    }
    return rc;
}

/* ---- merging ---- */

static int compare_records(const void *pa, const void *pb)
{
    const struct record *a = *(struct record *const *)pa, *b = *(struct record *const *)pb;
    return fmt_compare_tensors(&a->t, &b->t);
}

static int same_tensor(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
    return a->dtype == b->dtype && a->is_scalar == b->is_scalar && ckpt_shape_same(a, b);
}

/* One tensor out of the records of each name; digests of pieces add up. */
static int merge_tensors(struct seal *s, struct err *e)
{
    struct record **sorted = malloc(sizeof *sorted * (size_t)(s->n_records + 1));
    int rc = 0;
    if (!sorted)
        return err_set(e, ERR_MEMORY, "no memory to merge %lld pieces", (long long)s->n_records);
    for (int64_t i = 0; i < s->n_records; i++)
        sorted[i] = &s->record[i];
    qsort(sorted, (size_t)s->n_records, sizeof *sorted, compare_records);
    for (int64_t i = 0; i < s->n_records && rc == 0; i++) {
        struct record *r = sorted[i];
        struct ckpt_tensor *last = s->c.tensor + s->c.n_tensors - 1;
        if (i == 0 || fmt_compare_tensors(last, &r->t)) {
            s->c.tensor[s->c.n_tensors++] = r->t;
        } else if (same_tensor(last, &r->t)) {
            last->digest.lo += r->t.digest.lo;
            last->digest.hi += r->t.digest.hi;
        } else {
            rc = err_set(e, ERR_INTERNAL,
                         "%s%s has one shape or dtype on one rank and another elsewhere: please report it",
                         ckpt_role_prefix[r->t.role], r->t.name);
        }
        r->p.tensor = s->c.n_tensors - 1;
    }
    free(sorted);
    return rc;
}

static int check_pieces(struct seal *s, const char *tmp, struct err *e)
{
    struct ckpt *c = &s->c;
    int rc = 0;
    for (int64_t i = 0; i < s->n_records; i++)
        if (!s->record[i].is_copy)
            c->piece[c->n_pieces++] = s->record[i].p;
    fmt_sort_tensors(c);
    for (int t = 0; t < c->n_tensors && rc >= 0; t++)
        rc = fmt_cover(&c->tensor[t], c->piece + c->first_piece[t], c->first_piece[t + 1] - c->first_piece[t],
                       tmp, e);
    free(c->piece); /* the manifest is made of the records, which keep the order of the files */
    c->piece = NULL;
    return rc < 0 ? rc : 0;
}

static int compare_files(const void *pa, const void *pb)
{
    const struct file *a = pa, *b = pb;
    return strcmp(a->name ? a->name : "", b->name ? b->name : "");
}

/* Another rank may have written it on another machine: it must be visible here, and whole. */
static int check_file(const char *tmp, const struct file *f, struct err *e)
{
    char *path = io_join(tmp, f->name);
    if (!path)
        return err_set(e, ERR_MEMORY, "no memory for the path of %s", f->name);
    int64_t have = out_size(tmp, f->name, path, e);
    int rc = have < 0 ? (int)have : 0;
    if (have >= 0 && have != f->bytes)
        rc = err_set(e, ERR_FILE, "%s has %lld bytes, %lld were written: does another program write there",
                     path, (long long)have, (long long)f->bytes);
    free(path);
    return rc;
}

/* ---- the manifest ---- */

static void put_comma(struct buf *to) { buf_add(to, ",", to->n && to->p[to->n - 1] != '['); }

static void put_entry(struct buf *to, json_t *o)
{
    put_comma(to);
    jx_put(to, o);
    json_decref(o);
}

/* Lists grow by an entry at a time: jansson needs ten times their bytes. arg: struct seal. */
static void put_tensors(struct buf *to, const void *arg)
{
    const struct ckpt *c = &((const struct seal *)arg)->c;
    buf_add(to, "[", 1);
    for (int i = 0; i < c->n_tensors; i++) {
        const struct ckpt_tensor *t = &c->tensor[i];
        json_t *o = json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", t->name, "role", manifest_role[t->role],
                              "dtype", stored_dtype_name(t->dtype), "shape",
                              manifest_ints(t->shape, t->n_dims), "digest",
                              manifest_sum128((struct sum128){ t->digest.lo, t->digest.hi }));
        if (t->is_scalar)
            json_object_set_new(o, "scalar", json_true());
        if (t->tail)
            json_object_set_new(o, MANIFEST_TAIL, json_string(t->tail));
        put_entry(to, o);
    }
    buf_add(to, "]", 1);
}

/* arg: struct file. */
static void put_pieces(struct buf *to, const void *arg)
{
    const struct file *f = arg;
    buf_add(to, "[", 1);
    for (int64_t i = 0; i < f->n; i++) {
        const struct fmt_piece *p = &f->record[i].p;
        json_t *o = json_pack("{s:i, s:I, s:o, s:o, s:[I,I]}", "tensor", p->tensor, "offset",
                              (json_int_t)p->offset, "start", manifest_ints(p->box.start, p->box.n_dims),
                              "extent", manifest_ints(p->box.extent, p->box.n_dims), "range",
                              (json_int_t)p->lo, (json_int_t)p->hi);
        if (o && f->record[i].run)
            json_object_update(o, f->record[i].run);
        put_entry(to, o);
    }
    buf_add(to, "]", 1);
}

/* arg: struct file. */
static void put_packs(struct buf *to, const void *arg)
{
    const struct file *f = arg;
    buf_add(to, f->packs.p, f->packs.n);
    buf_add(to, "]", 1);
}

/* arg: struct seal, whose files are sorted. */
static void put_files(struct buf *to, const void *arg)
{
    const struct seal *s = arg;
    buf_add(to, "[", 1);
    for (int i = 0; i < s->n_files; i++) {
        const struct jx_member more[] = { { MANIFEST_PIECES, put_pieces, &s->file[i] },
                                          { MANIFEST_PACKS, put_packs, &s->file[i] } };
        put_comma(to);
        jx_put_with(to, s->file[i].root, more, s->file[i].packs.n ? 2 : 1);
    }
    buf_add(to, "]", 1);
}

static int check_files(struct seal *s, const char *tmp, struct err *e)
{
    int rc = 0;
    qsort(s->file, (size_t)s->n_files, sizeof *s->file, compare_files);
    for (int i = 0; i < s->n_files; i++) {
        const struct file *f = &s->file[i];
        TRY(fmt_file_name_check(f->name ? f->name : "", "table of a shard", e));
        if (i && !strcmp(f[-1].name, f->name))
            return err_set(e, ERR_INTERNAL, "two ranks wrote %s: please report it", f->name);
        TRY(check_file(tmp, f, e));
        json_object_del(f->root, "n_pieces"); /* the rest is what the manifest says of it */
    }
out:
    return rc < 0 ? rc : 0;
}

/* Writes one small file and returns its entry in the manifest. NULL: *e is set. */
static json_t *put_small(const char *tmp, const char *name, const void *data, size_t n, struct err *e)
{
    if (n > FMT_EXTRA_MAX) {
        err_set(e, ERR_FORMAT, "%s has %zu bytes, more than fit beside the weights", name, n);
        return NULL;
    }
    int rc = out_put(tmp, name, data, n, e);
    return rc < 0 ? NULL
                  : json_pack("{s:s, s:I, s:o}", "name", name, "length", (json_int_t)n, "xxh128",
                              manifest_sum128(fmt_sum128(data, n)));
}

static int put_extras(const char *tmp, const struct ckpt_meta *m, json_t *list, struct err *e)
{
    const char *last = "", *next = NULL;
    for (int done = 0; done < m->n_extra; done++, last = next) {
        int at = -1;
        for (int i = 0; i < m->n_extra; i++) /* a handful: the next name in order */
            if (strcmp(m->extra_name[i], last) > 0 &&
                (at < 0 || strcmp(m->extra_name[i], m->extra_name[at]) < 0))
                at = i;
        if (at < 0)
            return err_set(e, ERR_INTERNAL, "a file is to be carried along twice: please report it");
        next = m->extra_name[at];
        size_t n = strlen(next);
        int rc = fmt_file_name_check(next, "files to carry along", e);
        if (rc < 0)
            return rc;
        if (!strcmp(next, FMT_MANIFEST) || !strcmp(next, FMT_CONFIG) ||
            (n > 12 && !strcmp(next + n - 12, ".safetensors")))
            return err_set(e, ERR_INTERNAL, "%s cannot be carried along: the name is taken", next);
        json_t *o = put_small(tmp, next, m->extra_data[at], m->extra_bytes[at], e);
        if (!o || json_array_append_new(list, o) < 0)
            return -e->code;
    }
    return 0;
}

static json_t *layout_json(const struct ckpt_layout *l)
{
    json_t *o = json_object();
    for (int i = 0; i < LAYOUT_ROWS; i++) {
        int degree = LAYOUT_AT((struct ckpt_layout *)l, &manifest_layout[i]);
        if (!layout_left_out(&manifest_layout[i], degree))
            json_object_set_new(o, manifest_layout[i].key, json_integer(degree));
    }
    return o;
}

/* Only features that are used, so that older programs can read a checkpoint without them. */
static json_t *features_json(const struct seal *s, const struct ckpt_state *state)
{
    json_t *list = json_array();
    int zstd = 0, planes = 0, panels = 0;
    if (state->has_state && state->counts.count)
        json_array_append_new(list, json_string(MANIFEST_COUNTS));
    for (int i = 0; i < s->n_files; i++) {
        zstd |= json_object_get(s->file[i].root, "frames") != NULL;
        planes |= json_object_get(s->file[i].root, "planes") != NULL;
        panels |= s->file[i].packs.n > 0;
    }
    if (panels)
        json_array_append_new(list, json_string(MANIFEST_PANELS));
    if (planes)
        json_array_append_new(list, json_string(MANIFEST_PLANES));
    if (zstd)
        json_array_append_new(list, json_string(MANIFEST_ZSTD));
    return list;
}

static int write_manifest(const struct seal *s, const char *tmp, const struct ckpt_meta *m,
                          const struct ckpt_digests *d, struct err *e)
{
    const struct jx_member list[MANIFEST_LISTS] = {
        [LIST_FILES] = { MANIFEST_FILES, put_files, s }, [LIST_TENSORS] = { MANIFEST_TENSORS, put_tensors, s }
    };
    json_t *extra = json_array(), *config = json_null(), *state = NULL, *root = NULL;
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    err_set(e, ERR_MEMORY, "no memory for the manifest");
    if (m->config_json && !(config = put_small(tmp, FMT_CONFIG, m->config_json, strlen(m->config_json), e))) {
        rc = -e->code;
        goto out;
    }
    TRY(put_extras(tmp, m, extra, e));
    if (!(state = manifest_state(&m->state, e))) {
        rc = -e->code;
        goto out;
    }
    root = json_pack("{s:s, s:i, s:o, s:i, s:o, s:o, s:i, s:O, s:O, s:O, s:o, s:o}", "format",
                     MANIFEST_FORMAT, "version", MANIFEST_VERSION, "must_understand",
                     features_json(s, &m->state), "block_bytes", (int)FMT_BLOCK, "save_id",
                     manifest_sum128(manifest_save_id(d, &m->layout)), "layout", layout_json(&m->layout),
                     "grain", m->state.grain, "state", state, "config", config, "extra", extra,
                     "weights_digest", manifest_sum128((struct sum128){ d->weights.lo, d->weights.hi }),
                     "state_digest",
                     d->has_state ? manifest_sum128((struct sum128){ d->state.lo, d->state.hi })
                                  : json_null());
    manifest_put_orders(root, &m->state);
    if (!root || !(text = manifest_text(root, list, MANIFEST_LISTS, &n, e))) {
        rc = -e->code;
        goto out;
    }
    TRY(out_put(tmp, FMT_MANIFEST, text, n, e));
out:
    json_decref(extra);
    json_decref(config);
    json_decref(state);
    json_decref(root);
    free(text);
    return rc < 0 ? rc : 0;
}

int ckpt_seal(const char *tmp, int n, void *const *table, const size_t *table_bytes,
              const struct ckpt_meta *meta, struct ckpt_digests *got, struct err *e)
{
    struct seal s = { .n_tables = n };
    struct ckpt_digests d;
    int rc = 0;
    TRY(parse_tables(&s, table, table_bytes, e));
    TRY(merge_tensors(&s, e));
    TRY(check_pieces(&s, tmp, e));
    TRY(check_files(&s, tmp, e));
    d = ckpt_digest_all(s.c.n_tensors, s.c.tensor, &meta->state);
    TRY(write_manifest(&s, tmp, meta, &d, e));
    TRY(out_sync(tmp, e));
    if (got)
        *got = d;
out:
    for (int i = 0; i < s.n_files; i++) {
        json_decref(s.file[i].root);
        buf_free(&s.file[i].packs);
    }
    for (int64_t i = 0; i < s.n_records; i++) {
        free(s.record[i].name);
        free(s.record[i].tail);
        json_decref(s.record[i].run);
    }
    free(s.file);
    free(s.record);
    free(s.c.piece);
    free(s.c.tensor);
    free(s.c.first_piece);
    if (rc < 0)
        ckpt_abandon(tmp, -1);
    return rc < 0 ? rc : 0;
}

int ckpt_publish(const char *tmp, const char *dst, int n, void *const *table, const size_t *table_bytes,
                 const struct ckpt_meta *meta, struct ckpt_digests *got, struct err *e)
{
    int rc = ckpt_seal(tmp, n, table, table_bytes, meta, got, e);
    return rc < 0 ? rc : ckpt_reveal(tmp, dst, e);
}

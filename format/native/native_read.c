/* native_read.c - the driver of native checkpoints: manifest.json into tables. Nothing in it is trusted:
 * names are confined to the folder, sizes are compared with the files, pieces must cover every tensor exactly
 * once. FORMAT.md is the specification. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "format/native/panels_table.h"
#include "format/native/zst.h"

int manifest_need_int(const json_t *o, const char *what, const char *key, int64_t min, int64_t *out,
                      struct err *e)
{
    int rc = jx_int(o, what, key, out, e);
    if (rc < 0)
        return rc;
    if (rc == 0 || *out < min)
        return err_set(e, ERR_FORMAT, "%s: %s is %s: is it written by another program", what, key,
                       rc ? "too small" : "missing");
    return 0;
}

int manifest_need_text(const json_t *o, const char *what, const char *key, const char **out, struct err *e)
{
    int rc = jx_text(o, what, key, out, e);
    if (rc < 0)
        return rc;
    return rc ? 0 : err_set(e, ERR_FORMAT, "%s: %s is missing: is it written by another program", what, key);
}

static int need_sum(const json_t *o, const char *what, const char *key, struct sum128 *out, struct err *e)
{
    const char *hex;
    int rc = manifest_need_text(o, what, key, &hex, e);
    if (rc < 0)
        return rc;
    return fmt_parse_hex128(hex, out) == 0 ? 0
                                           : err_set(e, ERR_FORMAT, "%s: %s is not 32 hex digits", what, key);
}

static int need_array(const json_t *o, const char *what, const char *key, const json_t **out, struct err *e)
{
    *out = json_object_get(o, key);
    return json_is_array(*out)
               ? 0
               : err_set(e, ERR_FORMAT, "%s: %s is not a list: is it written by another program", what, key);
}

static int need_ints(const json_t *o, const char *what, const char *key, int64_t *out, int n_min, int n_max,
                     int *n, struct err *e)
{
    const json_t *a = json_object_get(o, key), *v;
    size_t i;
    if (!json_is_array(a) || json_array_size(a) < (size_t)n_min || json_array_size(a) > (size_t)n_max)
        return err_set(e, ERR_FORMAT, "%s: %s is not a list of %d to %d numbers", what, key, n_min, n_max);
    json_array_foreach((json_t *)a, i, v) {
        if (!json_is_integer(v))
            return err_set(e, ERR_FORMAT, "%s: %s holds something that is not a whole number", what, key);
        out[i] = json_integer_value(v);
    }
    *n = (int)json_array_size(a);
    return 0;
}

/* ---- head ---- */

static int is_known(const char *feature)
{
    static const char *const known[] = { MANIFEST_COUNTS, MANIFEST_PANELS, MANIFEST_PLANES, MANIFEST_ZSTD };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(feature, known[i]))
            return 1;
    return 0;
}

static int check_version(const json_t *root, const char *path, struct err *e)
{
    const char *format = "";
    int64_t version = 0, block = 0;
    const json_t *must;
    int rc = 0;
    TRY(manifest_need_text(root, path, "format", &format, e));
    if (strcmp(format, MANIFEST_FORMAT))
        return err_set(e, ERR_FORMAT, "%s: format is \"%.60s\", this program reads \"%s\"", path, format,
                       MANIFEST_FORMAT);
    TRY(manifest_need_int(root, path, "version", 0, &version, e));
    if (version != MANIFEST_VERSION)
        return err_set(e, ERR_FORMAT,
                       "%s: version %lld of the format, this program reads version %d: use a newer program",
                       path, (long long)version, MANIFEST_VERSION);
    TRY(need_array(root, path, "must_understand", &must, e));
    for (size_t i = 0; i < json_array_size(must); i++) {
        const char *feature = json_string_value(json_array_get(must, i));
        if (!feature || !is_known(feature))
            return err_set(
                e, ERR_FORMAT,
                "%s: needs the feature \"%.60s\", which this program does not know: use a newer program",
                path, feature ? feature : "?");
    }
    TRY(manifest_need_int(root, path, "block_bytes", 1, &block, e));
    if (block != FMT_BLOCK)
        return err_set(e, ERR_FORMAT, "%s: blocks of %lld bytes, this version has %lld", path,
                       (long long)block, (long long)FMT_BLOCK);
out:
    return rc < 0 ? rc : 0;
}

static int read_layout(struct ckpt *c, const json_t *root, const char *path, struct err *e)
{
    const json_t *o = json_object_get(root, "layout");
    for (int i = 0; i < LAYOUT_ROWS; i++) {
        int64_t v = 0;
        if (manifest_layout[i].optional && !json_object_get(o, manifest_layout[i].key))
            continue;
        int rc = manifest_need_int(o, path, manifest_layout[i].key, 0, &v, e);
        if (rc < 0)
            return rc;
        if (v > 1 << 24)
            return err_set(e, ERR_FORMAT, "%s: layout says %s %lld", path, manifest_layout[i].key,
                           (long long)v);
        LAYOUT_AT(&c->layout, &manifest_layout[i]) = (int)v;
    }
    return 0;
}

/* Takes the order `key` where it is there. */
static int read_order(int *to, const json_t *orders, const char *key, const char *path, struct err *e)
{
    enum { MOST = 1 << 20 }; /* the limit of ptrain's options: sizes are made of it */
    int64_t n = 1;
    if (!json_object_get(orders, key))
        return 0;
    int rc = manifest_need_int(orders, path, key, 1, &n, e);
    if (rc < 0)
        return rc;
    if (n > MOST || (n & (n - 1)))
        return err_set(e, ERR_FORMAT, "%s: %s is %lld, which is no power of two up to %d", path, key,
                       (long long)n, MOST);
    *to = (int)n;
    return 0;
}

/* An order that this program does not know would be lost when the run goes on. */
static int read_orders(struct ckpt_state *s, const json_t *root, const char *path, struct err *e)
{
    json_t *orders = json_object_get(root, "orders"), *value;
    const char *key;
    json_object_foreach(orders, key, value) {
        if (strcmp(key, MANIFEST_EXPERT_LEAF) && strcmp(key, MANIFEST_CP_GRAIN))
            return err_set(
                e, ERR_FORMAT,
                "%s: orders names \"%.60s\", which this program does not know: use a newer program", path,
                key);
    }
    int rc = read_order(&s->expert_leaf, orders, MANIFEST_EXPERT_LEAF, path, e);
    return rc < 0 ? rc : read_order(&s->cp_grain, orders, MANIFEST_CP_GRAIN, path, e);
}

int manifest_read_state(struct ckpt *c, const json_t *root, const char *path, struct err *e)
{
    const json_t *o = json_object_get(root, "state"), *run;
    struct ckpt_state *s = &c->state;
    const char *seed = "";
    int64_t grain = 0;
    int rc = 0;
    TRY(manifest_need_int(root, path, "grain", 0, &grain, e));
    s->grain = (int)grain;
    TRY(read_orders(s, root, path, e));
    if (!o || json_is_null(o))
        return 0;
    TRY(manifest_need_int(o, path, "step", 0, &s->step, e));
    TRY(manifest_need_int(o, path, "epoch", 0, &s->epoch, e));
    TRY(manifest_need_int(o, path, "sample", 0, &s->sample, e));
    TRY(manifest_need_text(o, path, "seed", &seed, e));
    if (strlen(seed) != 16 || fmt_parse_hex(seed, 16, &s->seed))
        return err_set(e, ERR_FORMAT, "%s: seed is not 16 hex digits", path);
    run = json_object_get(o, "run");
    free(c->run_json);
    c->run_json = NULL;
    if (json_is_object(run) && !(c->run_json = manifest_run_decode(run)))
        return err_set(
            e, ERR_FORMAT,
            "%s: the settings of the run hold a number that is none: is it written by another program", path);
    s->run_json = c->run_json;
    TRY(manifest_read_counts(c, o, path, e));
    s->has_state = 1;
out:
    return rc < 0 ? rc : 0;
}

/* ---- tensors ---- */

static int role_of(const char *text)
{
    for (int i = 0; i < ROLE_COUNT; i++)
        if (!strcmp(text, manifest_role[i]))
            return i;
    return -1;
}

/* The dims behind the first seven, where there are more than eight. */
static int read_tail(struct ckpt *c, struct ckpt_tensor *t, const json_t *o, const char *path, struct err *e)
{
    const char *tail = NULL;
    int64_t size = 0;
    int rc = jx_text(o, path, MANIFEST_TAIL, &tail, e);
    if (rc <= 0 || (rc = fmt_tail_check(tail, &size, path, t->name, e)) < 0)
        return rc;
    if (t->n_dims != BOX_DIMS || size != t->shape[BOX_DIMS - 1])
        return err_set(e, ERR_FORMAT, "%s: the tail of %s has %lld elements, its last dimension %lld", path,
                       t->name, (long long)size, (long long)t->shape[t->n_dims - 1]);
    return fmt_keep_tail(c, t, strdup(tail), e);
}

static int read_tensor(struct ckpt *c, struct ckpt_tensor *t, const json_t *o, const char *path,
                       struct err *e)
{
    const char *name = "", *role = "", *dtype = "";
    struct sum128 digest = { 0, 0 };
    int64_t bytes;
    int rc = 0;
    TRY(manifest_need_text(o, path, "name", &name, e));
    TRY(fmt_name_check(name, strlen(name), path, e));
    TRY(manifest_need_text(o, path, "role", &role, e));
    TRY(manifest_need_text(o, path, "dtype", &dtype, e));
    if (role_of(role) < 0 || stored_dtype_find(dtype) < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %s has role %.40s and dtype %.40s, this program does not know both", path, name,
                       role, dtype);
    t->role = (enum ckpt_role)role_of(role);
    t->dtype = (enum stored_dtype)stored_dtype_find(dtype);
    TRY(need_ints(o, path, "shape", t->shape, 1, BOX_DIMS, &t->n_dims, e));
    TRY(fmt_shape_check(t->dtype, t->n_dims, t->shape, path, name, &bytes, e));
    TRY(jx_bool(o, path, "scalar", &t->is_scalar, e));
    t->is_scalar &= t->n_dims == 1 && t->shape[0] == 1;
    TRY(need_sum(o, path, "digest", &digest, e));
    t->digest = (struct ckpt_digest){ digest.lo, digest.hi };
    t->has_digest = 1;
    t->name = strdup(name);
    if (!t->name)
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its tensors", path);
    TRY(read_tail(c, t, o, path, e));
out:
    return rc < 0 ? rc : 0;
}

static int read_tensors(struct ckpt *c, const json_t *root, struct jx_slice list, const char *path,
                        struct err *e)
{
    const json_t *is_list;
    struct jx_walk w = jx_walk(list);
    json_t *o = NULL;
    size_t n = jx_count(list);
    int rc = 0;
    TRY(need_array(root, path, MANIFEST_TENSORS, &is_list, e));
    c->tensor = calloc(n + 1, sizeof *c->tensor);
    c->first_piece = calloc(n + 2, sizeof *c->first_piece);
    if (!c->tensor || !c->first_piece)
        return err_set(e, ERR_MEMORY, "%s: no memory for %zu tensors", path, n);
    for (size_t i = 0; i < n; i++) {
        TRY(jx_walk_parse(&w, path, &o, e));
        c->n_tensors = (int)i + 1;
        TRY(read_tensor(c, &c->tensor[i], o, path, e));
        json_decref(o);
        o = NULL;
        if (i && fmt_compare_tensors(&c->tensor[i - 1], &c->tensor[i]) >= 0)
            return err_set(e, ERR_FORMAT, "%s: %s is not in order, or twice", path, c->tensor[i].name);
    }
out:
    json_decref(o);
    return rc < 0 ? rc : 0;
}

/* ---- files and pieces ---- */

static int read_piece(struct ckpt *c, struct fmt_piece *p, int file, const json_t *o, const char *path,
                      struct err *e)
{
    int64_t tensor = 0, range[2], bits;
    const struct fmt_file *f = &c->file[file];
    int n = 0, n2 = 0, rc = 0;
    TRY(manifest_need_int(o, path, "tensor", 0, &tensor, e));
    if (tensor >= c->n_tensors)
        return err_set(e, ERR_FORMAT, "%s: a piece of tensor %lld, there are %d", path, (long long)tensor,
                       c->n_tensors);
    p->tensor = (int)tensor;
    p->file = file;
    TRY(manifest_need_int(o, path, "offset", 8, &p->offset, e));
    TRY(need_ints(o, path, "start", p->box.start, 1, BOX_DIMS, &n, e));
    TRY(need_ints(o, path, "extent", p->box.extent, n, n, &p->box.n_dims, e));
    TRY(need_ints(o, path, "range", range, 2, 2, &n2, e));
    p->lo = range[0];
    p->hi = range[1];
    const struct ckpt_tensor *t = &c->tensor[tensor];
    int natural = !json_object_get(o, MANIFEST_PACK); /* a run of panels lies where its pack does */
    if (p->lo < 0 || p->hi < p->lo ||
        __builtin_mul_overflow(p->hi - p->lo, (int64_t)stored_dtype_bits(t->dtype), &bits) ||
        p->offset > f->bytes || (natural && bits / 8 > f->bytes - p->offset))
        return err_set(e, ERR_FORMAT, "%s: a piece of %s%s passes the end of %s at %lld", path,
                       ckpt_role_prefix[t->role], t->name, f->name, (long long)f->bytes);
out:
    return rc < 0 ? rc : 0;
}

static int read_blocks(struct fmt_file *f, const json_t *o, const char *path, struct err *e)
{
    const char *hex = "";
    int rc = manifest_need_text(o, path, "blocks", &hex, e);
    int64_t n = (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    if (rc < 0)
        return rc;
    if ((int64_t)json_string_length(json_object_get(o, "blocks")) != n * 16)
        return err_set(e, ERR_FORMAT, "%s: %s of %lld bytes has %zu digits of block checksums, not %lld",
                       path, f->name, (long long)f->bytes, json_string_length(json_object_get(o, "blocks")),
                       (long long)(n * 16));
    f->block = malloc(sizeof *f->block * (size_t)(n + 1));
    f->seen = calloc((size_t)n + 1, 1);
    if (!f->block || !f->seen)
        return err_set(e, ERR_MEMORY, "%s: no memory for %lld checksums", path, (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (fmt_parse_hex(hex + 16 * i, 16, &f->block[i]))
            return err_set(e, ERR_FORMAT, "%s: block checksums of %s are not hex digits", path, f->name);
    struct sum128 all = fmt_sum_blocks(f->block, n);
    if (all.lo != f->sum.lo || all.hi != f->sum.hi)
        return err_set(e, ERR_INTEGRITY,
                       "%s: checksum of %s is not that of its blocks: restore it from a good copy", path,
                       f->name);
    return 0;
}

/* The file must exist and have its length; it is opened for data later. */
static int check_length(const char *path, const char *manifest, int64_t want, struct err *e)
{
    int fd = io_open_read(path, e);
    if (fd < 0)
        return err_add(e, "%s lists a file that cannot be read", manifest);
    int64_t have = io_size(fd, path, e);
    io_close(fd);
    if (have < 0)
        return (int)have;
    return have == want
               ? 0
               : err_set(e, ERR_INTEGRITY, "%s: has %lld bytes, %s says %lld: restore it from a good copy",
                         path, (long long)have, FMT_MANIFEST, (long long)want);
}

/* Makes room for n further pieces. */
static int grow_pieces(struct ckpt *c, int64_t n, size_t *room, const char *path, struct err *e)
{
    struct fmt_piece *grown = c->piece;
    if (!*room || (size_t)(c->n_pieces + n) > *room)
        grown = buf_grow(c->piece, room, (size_t)(c->n_pieces + n), sizeof *grown);
    if (!grown)
        return err_set(e, ERR_MEMORY, "%s: no memory for %lld pieces", path, (long long)(c->n_pieces + n));
    c->piece = grown;
    return 0;
}

/* Of the last file, whose packs begin at first_pack. A copy of panels is no piece: pieces cover a tensor
 * once. */
static int read_pieces(struct ckpt *c, struct jx_slice list, int first_pack, size_t *room, const char *path,
                       struct err *e)
{
    struct fmt_file *f = &c->file[c->n_files - 1];
    struct jx_walk w = jx_walk(list);
    json_t *o = NULL;
    int64_t n = (int64_t)jx_count(list);
    int rc = 0;
    TRY(grow_pieces(c, n, room, path, e));
    for (int64_t i = 0; i < n; i++) {
        struct fmt_piece *p = &c->piece[c->n_pieces];
        memset(p, 0, sizeof *p);
        TRY(jx_walk_parse(&w, path, &o, e));
        TRY(read_piece(c, p, c->n_files - 1, o, path, e));
        int kept = json_object_get(o, MANIFEST_PACK) ? panels_read_run(c, first_pack, p, o, path, e) : 1;
        TRY(kept);
        json_decref(o);
        o = NULL;
        if (p->offset < f->data)
            f->data = p->offset;
        c->n_pieces += kept;
    }
out:
    json_decref(o);
    return rc < 0 ? rc : 0;
}

/* o: without its list of pieces. */
static int read_file(struct ckpt *c, const json_t *o, const char *path, const char *last, struct err *e)
{
    const char *name = "";
    int64_t bytes = 0, stored = 0;
    int rc = 0;
    TRY(manifest_need_text(o, path, "name", &name, e));
    TRY(fmt_file_name_check(name, path, e));
    if (last && strcmp(last, name) >= 0)
        return err_set(e, ERR_FORMAT, "%s: the file %s is not in order, or twice", path, name);
    TRY(manifest_need_int(o, path, "length", 8, &stored, e));
    bytes = stored;
    if (json_object_get(o, "frames"))
        TRY(manifest_need_int(o, path, "plain", 8, &bytes, e));
    if (stored >= (int64_t)1 << 60 || bytes >= (int64_t)1 << 60)
        return err_set(e, ERR_FORMAT, "%s: %s of %lld bytes is beyond the limit", path, name,
                       (long long)(stored > bytes ? stored : bytes));
    /* a frame has at least one byte: nothing is allocated for blocks that cannot exist */
    if (bytes / FMT_BLOCK > stored)
        return err_set(e, ERR_FORMAT, "%s: %s of %lld bytes cannot hold %lld", path, name, (long long)stored,
                       (long long)bytes);
    struct fmt_file *f = fmt_add_file(c, name, bytes, e);
    if (!f)
        return -e->code;
    TRY(need_sum(o, path, "checksum", &f->sum, e));
    /* before anything is allocated by the length: the file exists and has it */
    TRY(check_length(fmt_real(f), path, stored, e));
    TRY(read_blocks(f, o, path, e));
    if (json_object_get(o, "frames"))
        TRY(zst_table(f, json_object_get(o, "frames"), stored, path, e));
    if (f->frame && json_object_get(o, "planes"))
        TRY(zst_widths(f, json_object_get(o, "planes"), path, e));
    f->data = bytes;
out:
    return rc < 0 ? rc : 0;
}

/* A file and its pieces. */
static int take_file(struct ckpt *c, struct jx_slice text, size_t *room, const char *path, struct err *e)
{
    static const char *const key[] = { MANIFEST_PACKS, MANIFEST_PIECES };
    struct jx_slice list[2];
    const json_t *is_list;
    json_t *o = jx_parse_apart(text, key, list, 2, path, e);
    const int first_pack = c->panels ? c->panels->n_packs : 0;
    const char *last = c->n_files ? c->file[c->n_files - 1].name : NULL;
    int rc = o ? 0 : -e->code;
    TRY(rc);
    TRY(read_file(c, o, path, last, e));
    TRY(need_array(o, path, MANIFEST_PIECES, &is_list, e));
    TRY(panels_read_packs(c, list[0], path, e));
    TRY(read_pieces(c, list[1], first_pack, room, path, e));
out:
    json_decref(o);
    return rc < 0 ? rc : 0;
}

static int read_files(struct ckpt *c, const json_t *root, struct jx_slice list, const char *path,
                      struct err *e)
{
    const json_t *is_list;
    struct jx_walk w = jx_walk(list);
    struct jx_slice one;
    size_t room = 0;
    int rc = 0;
    TRY(need_array(root, path, MANIFEST_FILES, &is_list, e));
    while ((rc = jx_walk_next(&w, NULL, &one)) > 0)
        TRY(take_file(c, one, &room, path, e));
    TRY(rc < 0 && list.n ? err_set(e, ERR_FORMAT, "%s: a list in it is damaged", path) : 0);
    fmt_sort_tensors(c);
    for (int t = 0; t < c->n_tensors; t++)
        TRY(fmt_cover(&c->tensor[t], c->piece + c->first_piece[t], c->first_piece[t + 1] - c->first_piece[t],
                      path, e));
    TRY(panels_finish(c, path, e));
out:
    return rc < 0 ? rc : 0;
}

/* Older programs refuse the feature by its name. */
static int check_panels(const struct ckpt *c, const json_t *root, const char *path, struct err *e)
{
    const json_t *must = json_object_get(root, "must_understand");
    int named = 0;
    for (size_t i = 0; i < json_array_size(must); i++)
        named |= !strcmp(json_string_value(json_array_get(must, i)), MANIFEST_PANELS);
    return !c->panels || named
               ? 0
               : err_set(e, ERR_FORMAT,
                         "%s: has packs of panels and does not name the feature \"%s\": is it "
                         "written by another program",
                         path, MANIFEST_PANELS);
}

/* ---- config.json and the small files ---- */

static int small_file(struct ckpt *c, struct fmt_extra *x, const json_t *o, const char *path, void **data,
                      struct err *e)
{
    const char *name = "";
    char *full = NULL;
    void *got = NULL;
    size_t n = 0;
    int rc = 0;
    TRY(manifest_need_text(o, path, "name", &name, e));
    TRY(fmt_file_name_check(name, path, e));
    TRY(manifest_need_int(o, path, "length", 0, &x->bytes, e));
    TRY(need_sum(o, path, "xxh128", &x->sum, e));
    x->has_sum = 1;
    x->name = strdup(name);
    full = fmt_place(c, name);
    if (!x->name || !full) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for the name of %s", path, name);
        goto out;
    }
    TRY(check_length(full, path, x->bytes, e));
    TRY(io_read_file(full, FMT_EXTRA_MAX, &got, &n, e));
    struct sum128 s = fmt_sum128(got, n);
    if (s.lo != x->sum.lo || s.hi != x->sum.hi)
        rc = err_set(e, ERR_INTEGRITY, "%s: does not have the checksum in %s: restore it from a good copy",
                     full, FMT_MANIFEST);
out:
    free(full);
    if (rc >= 0 && data)
        *data = got;
    else
        free(got);
    return rc < 0 ? rc : 0;
}

static int read_small(struct ckpt *c, const json_t *root, const char *path, struct err *e)
{
    const json_t *list, *config = json_object_get(root, "config");
    struct fmt_extra x = { 0 };
    void *text = NULL;
    int rc = 0;
    if (json_is_object(config)) {
        rc = small_file(c, &x, config, path, &text, e);
        free(x.name);
        if (rc < 0)
            return rc;
        c->config = text;
    }
    TRY(need_array(root, path, "extra", &list, e));
    size_t n = json_array_size(list);
    c->extra = calloc(n + 1, sizeof *c->extra);
    if (!c->extra)
        return err_set(e, ERR_MEMORY, "%s: no memory for %zu files", path, n);
    for (size_t i = 0; i < n; i++) {
        c->n_extra = (int)i + 1;
        TRY(small_file(c, &c->extra[i], json_array_get(list, i), path, NULL, e));
    }
out:
    return rc < 0 ? rc : 0;
}

static int read_said(struct ckpt *c, const json_t *root, const char *path, struct err *e)
{
    struct sum128 weights = { 0, 0 }, state = { 0, 0 }, id = { 0, 0 };
    int rc = 0;
    TRY(need_sum(root, path, "weights_digest", &weights, e));
    if (c->state.has_state)
        TRY(need_sum(root, path, "state_digest", &state, e));
    TRY(need_sum(root, path, "save_id", &id, e));
    struct ckpt_digests got = ckpt_digest_all(c->n_tensors, c->tensor, &c->state);
    if (got.weights.lo != weights.lo || got.weights.hi != weights.hi || got.state.lo != state.lo ||
        got.state.hi != state.hi)
        return err_set(
            e, ERR_INTEGRITY,
            "%s: its weights_digest or state_digest is not that of its tensors: restore it from a good copy",
            path);
    struct sum128 want = manifest_save_id(&got, &c->layout);
    if (want.lo != id.lo || want.hi != id.hi)
        return err_set(e, ERR_INTEGRITY,
                       "%s: its save_id is not that of its digest and layout: restore it from a good copy",
                       path);
out:
    return rc < 0 ? rc : 0;
}

int native_probe(const struct ckpt *c, int is_folder)
{
    char *path = is_folder ? fmt_place(c, FMT_MANIFEST) : NULL;
    int yes = path && io_exists(path);
    free(path);
    return yes;
}

int native_open(struct ckpt *c, int is_folder, struct err *e)
{
    (void)is_folder;
    char *path = io_join(c->dir, FMT_MANIFEST), *real = fmt_place(c, FMT_MANIFEST);
    static const char *const key[MANIFEST_LISTS] = {
        [LIST_FILES] = MANIFEST_FILES, [LIST_TENSORS] = MANIFEST_TENSORS
    };
    struct jx_slice list[MANIFEST_LISTS];
    void *text = NULL;
    json_t *root = NULL;
    size_t n = 0;
    int rc = 0;
    if (!path || !real) {
        rc = err_set(e, ERR_MEMORY, "%s: no memory for a path", c->dir);
        goto out;
    }
    TRY(io_read_file(real, FMT_MANIFEST_MAX, &text, &n, e));
    TRY(manifest_check(text, n, path, e));
    root = jx_parse_apart((struct jx_slice){ text, n }, key, list, MANIFEST_LISTS, path, e);
    TRY(root ? 0 : -e->code);
    TRY(check_version(root, path, e));
    TRY(read_layout(c, root, path, e));
    TRY(manifest_read_state(c, root, path, e));
    TRY(read_tensors(c, root, list[LIST_TENSORS], path, e));
    TRY(read_files(c, root, list[LIST_FILES], path, e));
    TRY(check_panels(c, root, path, e));
    TRY(read_small(c, root, path, e));
    TRY(read_said(c, root, path, e));
out:
    json_decref(root);
    free(text);
    free(path);
    free(real);
    return rc < 0 ? rc : 0;
}

/* diff.c - how two checkpoints differ: which tensors, at how many elements, the first one, the largest
 * difference. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "reshard/cast.h"
#include "base/clock.h"
#include "reshard/report.h"

#define CHUNK ((int64_t)1 << 20) /* elements compared at once */

/* Every difference is printed as a line, or added to a list of JSON objects. */
struct diff {
    const struct report_options *o;
    FILE *out;
    json_t *state, *tensors; /* NULL: lines are printed */
    char *buffer[2];
    double bytes, all_bytes, start_s;
    int n_different;
};
struct difference {
    int64_t first, count; /* first -1: none */
    int64_t n;            /* elements of the tensor */
    int64_t largest_at;
    double a, b, largest;
};

/* ---- elements ---- */

/* Elements are compared as bits where the dtypes are the same, as values where they differ. */
static void compare_chunk(const struct ckpt_tensor *x, const struct ckpt_tensor *y, const char *a,
                          const char *b, int64_t lo, int64_t n, struct difference *d)
{
    int same_dtype = x->dtype == y->dtype;
    if (same_dtype && !memcmp(a, b, (size_t)stored_bytes(x->dtype, n)))
        return;
    for (int64_t i = 0; i < n; i++) {
        if (same_dtype && stored_pattern(x->dtype, a, i) == stored_pattern(y->dtype, b, i))
            continue;

        double va = stored_value(x->dtype, a, i), vb = stored_value(y->dtype, b, i), by = fabs(va - vb);
        if (!same_dtype && (va == vb || (isnan(va) && isnan(vb))))
            continue;

        if (d->first < 0) {
            d->first = lo + i;
            d->a = va;
            d->b = vb;
        }
        d->count++;
        if (!isnan(d->largest) && (by > d->largest || isnan(by) || d->largest_at < 0)) {
            d->largest = by;
            d->largest_at = lo + i;
        }
    }
}

static int compare_values(struct diff *r, struct ckpt *a, int i, struct ckpt *b, int j, struct difference *d,
                          struct err *e)
{
    const struct ckpt_tensor *x = ckpt_tensor(a, i), *y = ckpt_tensor(b, j);
    struct box whole = box_whole(x->n_dims, x->shape);
    int64_t n = box_count(&whole);
    int rc;
    *d = (struct difference){ .first = -1, .largest_at = -1, .n = n };
    for (int64_t lo = 0; lo < n; lo += CHUNK) {
        int64_t hi = lo + CHUNK < n ? lo + CHUNK : n;
        if ((rc = ckpt_read_range(a, i, &whole, lo, hi, r->buffer[0], e)) < 0 ||
            (rc = ckpt_read_range(b, j, &whole, lo, hi, r->buffer[1], e)) < 0)
            return rc;
        compare_chunk(x, y, r->buffer[0], r->buffer[1], lo, hi - lo, d);
        r->bytes += (double)stored_bytes(x->dtype, hi - lo);
        if (r->o->log)
            log_rate(r->o->log, "compared", r->bytes, r->all_bytes, r->start_s);
    }
    return 0;
}

/* ---- printing ---- */

static json_t *named(const struct ckpt_tensor *t)
{
    return json_pack("{s:s, s:s}", "name", t->name, "role", report_role[t->role]);
}

static void add_only(struct diff *r, const struct ckpt_tensor *t, const char *where, const struct ckpt *c)
{
    r->n_different++;
    if (!r->tensors) {
        fprintf(r->out, "%s%s: only in %s\n", ckpt_role_prefix[t->role], t->name, ckpt_path(c));
        return;
    }
    json_t *o = named(t);
    json_object_set_new(o, "only_in", json_string(where));
    json_array_append_new(r->tensors, o);
}

static void add_shapes(struct diff *r, const struct ckpt_tensor *x, const struct ckpt_tensor *y)
{
    char sx[96], sy[96];
    r->n_different++;
    if (!r->tensors) {
        fprintf(r->out, "%s%s: shape %s and %s\n", ckpt_role_prefix[x->role], x->name, report_shape(x, sx),
                report_shape(y, sy));
        return;
    }
    json_t *o = named(x);
    json_object_set_new(o, "shapes", json_pack("[s,s]", report_shape(x, sx), report_shape(y, sy)));
    json_array_append_new(r->tensors, o);
}

static void add_values(struct diff *r, const struct ckpt_tensor *x, const struct ckpt_tensor *y,
                       const struct difference *d)
{
    char first[96], largest[96];
    r->n_different++;
    if (!r->tensors) {
        if (x->dtype != y->dtype)
            fprintf(r->out, "%s%s: dtype %s and %s\n", ckpt_role_prefix[x->role], x->name,
                    stored_dtype_name(x->dtype), stored_dtype_name(y->dtype));
        if (d->first < 0)
            return;
        report_index_text(x, d->first, first);
        report_index_text(x, d->largest_at, largest);
        fprintf(
            r->out,
            "%s%s: %lld of %lld elements differ, first %s: %.9g and %.9g, largest difference %.9g at %s\n",
            ckpt_role_prefix[x->role], x->name, (long long)d->count, (long long)d->n, first, d->a, d->b,
            d->largest, largest);
        return;
    }

    json_t *o = named(x);
    if (x->dtype != y->dtype)
        json_object_set_new(o, "dtypes",
                            json_pack("[s,s]", stored_dtype_name(x->dtype), stored_dtype_name(y->dtype)));
    json_object_set_new(o, "elements", json_integer(d->n));
    json_object_set_new(o, "different", json_integer(d->count));

    if (d->first >= 0) {
        json_object_set_new(o, "first",
                            json_pack("{s:o, s:o, s:o}", "index", report_index(x, d->first), "a",
                                      report_number(d->a), "b", report_number(d->b)));
        json_object_set_new(o, "largest",
                            json_pack("{s:o, s:o}", "index", report_index(x, d->largest_at), "difference",
                                      report_number(d->largest)));
    }
    json_array_append_new(r->tensors, o);
}

/* ---- what is compared ---- */

static int diff_tensor(struct diff *r, struct ckpt *a, int i, struct ckpt *b, int j, struct err *e)
{
    const struct ckpt_tensor *x = ckpt_tensor(a, i), *y = ckpt_tensor(b, j);
    struct difference d;
    if (!ckpt_shape_same(x, y)) {
        add_shapes(r, x, y);
        return 0;
    }
    int rc = compare_values(r, a, i, b, j, &d, e);
    if (rc >= 0 && (x->dtype != y->dtype || d.first >= 0))
        add_values(r, x, y, &d);
    return rc;
}

/* 1: the runs' counts of experts differ. */
static int diff_counts(struct diff *r, const struct ckpt_state *x, const struct ckpt_state *y)
{
    if (ckpt_counts_same(&x->counts, &y->counts))
        return 0;
    if (r->state)
        json_array_append_new(r->state, json_pack("{s:s, s:b}", "name", "expert_counts", "different", 1));
    else
        fprintf(r->out, "counts of experts: they differ\n");
    return 1;
}

/* 1: different. */
static int diff_state(struct diff *r, const struct ckpt *a, const struct ckpt *b)
{
    const struct ckpt_state *x = ckpt_state(a), *y = ckpt_state(b);
    const struct {
        const char *name;
        long long x, y;
    } rows[] = {
        { "step", x->step, y->step },
        { "seed", (long long)x->seed, (long long)y->seed },
        { "epoch", x->epoch, y->epoch },
        { "sample", x->sample, y->sample },
    };
    int different = x->has_state != y->has_state;
    if (different && r->state)
        json_array_append_new(r->state,
                              json_pack("{s:s, s:s}", "name", "state", "only_in", x->has_state ? "a" : "b"));
    else if (different)
        fprintf(r->out, "optimizer state: only in %s\n", ckpt_path(x->has_state ? a : b));

    for (size_t i = 0; x->has_state && y->has_state && i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].x == rows[i].y)
            continue;
        different = 1;
        if (r->state)
            json_array_append_new(r->state, json_pack("{s:s, s:I, s:I}", "name", rows[i].name, "a",
                                                      (json_int_t)rows[i].x, "b", (json_int_t)rows[i].y));
        else
            fprintf(r->out, "%s: %lld and %lld\n", rows[i].name, rows[i].x, rows[i].y);
    }
    if (x->has_state && y->has_state)
        different |= diff_counts(r, x, y);
    return different;
}

static int diff_tensors(struct diff *r, struct ckpt *a, struct ckpt *b, struct err *e)
{
    for (int i = 0; i < ckpt_n_tensors(a); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(a, i);
        int j = ckpt_find(b, t->role, t->name), rc = 0;
        if (j < 0)
            add_only(r, t, "a", a);
        else if ((rc = diff_tensor(r, a, i, b, j, e)) < 0)
            return rc;
    }
    for (int j = 0; j < ckpt_n_tensors(b); j++)
        if (ckpt_find(a, ckpt_tensor(b, j)->role, ckpt_tensor(b, j)->name) < 0)
            add_only(r, ckpt_tensor(b, j), "b", b);
    return 0;
}

int report_diff(struct ckpt *a, struct ckpt *b, const struct report_options *o, FILE *out, struct err *e)
{
    struct diff r = { .o = o, .out = out, .start_s = clock_s() };
    int rc = 0, state;
    for (int i = 0; i < ckpt_n_tensors(a); i++)
        r.all_bytes += (double)tensor_bytes(ckpt_tensor(a, i));
    if (o->json) {
        r.state = json_array();
        r.tensors = json_array();
    }

    for (int k = 0; k < 2; k++)
        if (!(r.buffer[k] = malloc((size_t)CHUNK * 8))) {
            rc = err_set(e, ERR_MEMORY, "no memory to compare tensors");
            goto out;
        }

    state = diff_state(&r, a, b);
    TRY(diff_tensors(&r, a, b, e));
    if (o->json)
        report_json(json_pack("{s:o, s:o, s:b, s:i, s:O, s:O}", "a", report_path(a), "b", report_path(b),
                              "equal", !state && !r.n_different, "tensors_in_a", ckpt_n_tensors(a), "state",
                              r.state, "tensors", r.tensors),
                    out);
    else if (r.n_different)
        fprintf(out, "%d of %d tensors differ\n", r.n_different,
                ckpt_n_tensors(a) > ckpt_n_tensors(b) ? ckpt_n_tensors(a) : ckpt_n_tensors(b));

    rc = state || r.n_different;
out:
    free(r.buffer[0]);
    free(r.buffer[1]);
    json_decref(r.state);
    json_decref(r.tensors);
    return rc;
}

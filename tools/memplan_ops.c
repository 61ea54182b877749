/* memplan_ops.c - see memplan_sim.h: kernels of a trace that ptrain --trace wrote, as measured calls of a
 * cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "tools/memplan_sim.h"

enum { MOST_KEYS = CLUSTER_OPS, MOST_SAMPLES = 64, MOST_RANKS = 4096 };
static const size_t most_bytes = (size_t)2 << 30;

struct key {
    struct cluster_op op;
    int64_t n; /* the last MOST_SAMPLES are kept */
    double s[MOST_SAMPLES];
};
struct reading {
    const char *path;
    enum sim_dtype dtype;
    double seq_len;
    struct key *key;
    int n_keys, threads;
    /* of a rank: outputs of the gradients of weights since its last linear_dx, which go through one product:
     * a trace has no width of its operand */
    double outputs[MOST_RANKS];
};

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static int keep(struct reading *r, const struct cluster_op *op, double s, struct err *e)
{
    int i = 0;
    while (i < r->n_keys && memcmp(&r->key[i].op, op, sizeof *op))
        i++;
    if (i == MOST_KEYS)
        return err_set(e, ERR_FORMAT,
                       "%s: kernels of more than %d shapes: give a trace of one layout and length of "
                       "sequences",
                       r->path, MOST_KEYS);
    if (i == r->n_keys)
        r->key[r->n_keys++].op = *op;
    r->key[i].s[r->key[i].n++ % MOST_SAMPLES] = s;
    return 0;
}

/* "2048x384x1024" */
static void read_shape(const char *text, double shape[3])
{
    char *end;
    for (int i = 0; i < 3 && text && *text; i++) {
        shape[i] = strtod(text, &end);
        text = *end == 'x' ? end + 1 : NULL;
    }
}

static int read_event(struct reading *r, const json_t *v, struct err *e)
{
    const char *name = NULL, *cat = NULL, *shape = NULL;
    double us = 0, size[3] = { 0 };
    int64_t rank = 0, thread = 0;
    int rc, kind;
    TRY(jx_text(v, r->path, "name", &name, e));
    TRY(jx_text(v, r->path, "cat", &cat, e));
    TRY(jx_int(v, r->path, "pid", &rank, e));
    TRY(jx_int(v, r->path, "tid", &thread, e));
    r->threads = thread < 4096 && thread >= r->threads ? (int)thread + 1 : r->threads;
    if (!name || !cat || strcmp(cat, "kernel") || rank < 0 || rank >= MOST_RANKS)
        return 0;
    TRY(jx_float(v, r->path, "dur", &us, e));
    TRY(jx_text(json_object_get(v, "args"), r->path, "shape", &shape, e));
    kind = cluster_op_of(name, strlen(name));
    read_shape(shape, size);
    if (kind < 0 || size[0] < 1 || !(us > 0 && us < 1e12))
        return 0;
    if (kind == SIM_OP_linear_dx) {
        size[2] = r->outputs[rank];
        r->outputs[rank] = 0;
    }
    if (kind == SIM_OP_linear_dw)
        r->outputs[rank] += size[1];
    struct cluster_op op = { .name = (enum sim_op)kind,
                             .dtype = r->dtype,
                             .rows = size[0],
                             .cols = size[1],
                             .other = size[2],
                             .seq_len = r->seq_len };
    rc = keep(r, &op, us * 1e-6, e);
out:
    return rc;
}

static int read_events(struct reading *r, struct jx_slice text, struct err *e)
{
    struct jx_walk top = jx_walk(text);
    struct jx_slice key, value;
    json_t *v;
    while (jx_walk_next(&top, &key, &value) > 0) {
        if (key.n != 13 || memcmp(key.text, "\"traceEvents\"", 13))
            continue;
        struct jx_walk events = jx_walk(value);
        int rc;
        while ((rc = jx_walk_parse(&events, r->path, &v, e)) > 0) {
            rc = read_event(r, v, e);
            json_decref(v);
            if (rc < 0)
                return rc;
        }
        return rc;
    }
    return err_set(e, ERR_FORMAT, "%s: it has no traceEvents: give a file that ptrain --trace wrote",
                   r->path);
}

/* A call of several threads took that long on all of them. */
static void put(struct reading *r, struct cluster *c)
{
    c->n_ops = 0;
    for (int i = 0; i < r->n_keys; i++) {
        struct key *k = &r->key[i];
        int n = k->n < MOST_SAMPLES ? (int)k->n : MOST_SAMPLES;
        qsort(k->s, (size_t)n, sizeof *k->s, by_value);
        k->op.seconds = k->s[n / 2] * (r->threads > 0 ? r->threads : 1);
        c->op[c->n_ops++] = k->op;
    }
}

int memplan_ops_read(struct cluster *c, const char *path, enum sim_dtype dtype, int64_t seq_len,
                     struct err *e)
{
    struct reading *r = calloc(1, sizeof *r);
    void *text = NULL;
    size_t n;
    int rc = 0;
    if (!r || !(r->key = calloc(MOST_KEYS, sizeof *r->key))) {
        rc = err_set(e, ERR_MEMORY, "no memory for the kernels of %s", path);
        goto out;
    }
    r->path = path;
    r->dtype = dtype;
    r->seq_len = (double)seq_len;
    TRY(io_read_file(path, most_bytes, &text, &n, e));
    TRY(read_events(r, (struct jx_slice){ text, n }, e));
    if (!r->n_keys)
        rc = err_set(e, ERR_FORMAT, "%s: no kernel of a layer in it: give a trace of ptrain with --model",
                     path);
    else
        put(r, c);
out:
    free(text);
    if (r)
        free(r->key);
    free(r);
    return rc < 0 ? rc : 0;
}

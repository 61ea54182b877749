/* lt.c - the library, its choices, and one call of it (lt.h). */
#include "kernels/cuda/lt/lt.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/io.h"
#include "kernels/cuda/lt/lt_api.h"
#include "kernels/cuda/lt/lt_table.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* fixed: an algorithm may depend on what it is offered */
/* what the library is asked for: --numerics fast has a choice of its own for few rows */
#define ROWS_FEW 64
#define ROWS_MANY 2048
enum { LIST = 32 }; /* algorithms that are looked at */

/* What a choice is made for: nothing that a batch or the calls before it could change. */
struct key {
    int32_t form, dt, batch, align;
    int64_t d_rows, d_cols, inner;
};
struct choice {
    struct key key;
    void *desc;
    struct lt_algo algo;
    int rank, n_found;
};

struct lt {
    struct dev *dev;
    void *library, *handle, *stream, *workspace;
    char name[128], what[256];
    struct lt_table table;
#define X(name, args) int(*name) args;
    LT_LIST(X)
#undef X
    struct choice *choice;
    int n_choices, cap;
    /* lt_run_nth's last list */
    struct {
        struct key key;
        void *desc;
        int n;
        struct lt_found found[LIST];
    } tried;
};

/* trans: of a and b as the library sees them, by columns */
static const struct {
    const char *name;
    int32_t trans_a, trans_b;
    int rows_free;
} forms[] = { [LT_LINEAR] = { "linear", LT_OP_T, LT_OP_N, 1 },
              [LT_DX] = { "dx", LT_OP_N, LT_OP_N, 1 },
              [LT_DW] = { "dw", LT_OP_N, LT_OP_T, 0 } };

static int note(struct lt *l, int ok, const char *what, const struct key *k)
{
    if (!ok && !l->what[0])
        snprintf(l->what, sizeof l->what,
                 "cuBLASLt: %s, for %s %s [%" PRId64 "][%" PRId64 "] over %" PRId64
                 ": use SHARDLINE_CUDA=own",
                 what, forms[k->form].name, dtype_name((enum dtype)k->dt), k->d_cols, k->d_rows, k->inner);
    return ok;
}

int lt_check(struct lt *l, struct err *e)
{
    char text[sizeof l->what];
    if (!l->what[0])
        return 0;
    memcpy(text, l->what, sizeof text);
    l->what[0] = 0;
    return err_set(e, ERR_DEVICE, "%s", text);
}

/* ---- the library ---- */
static void *find_library(const char **name)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so" };
    const char *wanted = env_get(ENV_SHARDLINE_CUBLASLT);
    void *found = NULL;
    if (wanted)
        return *name = wanted, dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++)
        found = dlopen(*name = names[i], RTLD_NOW | RTLD_LOCAL);
    return found;
}

static int find_calls(struct lt *l)
{
    int all = 1;
#define X(name, args) all &= (*(void **)&l->name = dlsym(l->library, "cublasLt" #name)) != NULL;
    LT_LIST(X)
#undef X
    return all;
}

int lt_open(struct lt **out, struct dev *d, void *stream, struct err *e)
{
    struct lt *l = calloc(1, sizeof *l);
    const char *name = "libcublasLt.so";
    size_t (*version)(void);
    int rc = 0;
    *out = NULL;
    if (!l)
        return err_set(e, ERR_MEMORY, "no memory for cuBLASLt's table");
    l->dev = d;
    l->stream = stream;
    TRY(lt_table_open(&l->table, e));
    if (!(l->library = find_library(&name))) {
        rc = err_set(e, ERR_DEVICE, "%s cannot be opened", name);
        goto out;
    }
    if (!find_calls(l) || !(*(void **)&version = dlsym(l->library, "cublasLtGetVersion"))) {
        rc = err_set(e, ERR_DEVICE, "%s lacks calls that are needed", name);
        goto out;
    }
    if (l->Create(&l->handle) || !(l->workspace = dev_alloc(d, MEM_WORK, WORKSPACE_BYTES))) {
        rc = err_set(e, ERR_DEVICE, "%s does not start on this device", name);
        goto out;
    }
    const char *file = strrchr(name, '/');
    snprintf(l->name, sizeof l->name, "%.80s %zu%s", file ? file + 1 : name, version(),
             l->table.tunes  ? ", timed"
             : l->table.text ? ", by table"
                             : "");
    *out = l;
    l = NULL;
out:
    lt_close(l);
    return rc;
}

void lt_close(struct lt *l)
{
    if (!l)
        return;
    for (int i = 0; i < l->n_choices; i++)
        l->MatmulDescDestroy(l->choice[i].desc);
    if (l->tried.desc)
        l->MatmulDescDestroy(l->tried.desc);
    dev_free(l->dev, l->workspace);
    if (l->handle)
        l->Destroy(l->handle);
    if (l->library)
        dlclose(l->library);
    lt_table_close(&l->table);
    free(l->choice);
    free(l);
}

const char *lt_name(const struct lt *l) { return l->name; }
struct dev *lt_dev(const struct lt *l) { return l->dev; }

/* ---- layouts of one call ---- */
struct layouts {
    void *a, *b, *d;
};

static int make_layout(struct lt *l, void **out, int type, int64_t rows, int64_t cols, int64_t ld, int batch,
                       int64_t step)
{
    int32_t n = batch;
    if (l->MatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)cols, ld))
        return 0;
    return batch == 1 || (!l->MatrixLayoutSetAttribute(*out, LT_LAYOUT_BATCH, &n, sizeof n) &&
                          !l->MatrixLayoutSetAttribute(*out, LT_LAYOUT_STEP, &step, sizeof step));
}

/* A matrix that is not transposed stands by columns with the result's rows (or columns, as b) first. */
static int make_layouts(struct lt *l, struct layouts *y, const struct lt_product *p, const struct key *k)
{
    const int type = p->dt == DT_BF16 ? LT_BF16 : LT_F32, ta = forms[p->form].trans_a,
              tb = forms[p->form].trans_b;
    return make_layout(l, &y->a, type, ta ? k->inner : k->d_rows, ta ? k->d_rows : k->inner, p->a.ld,
                       p->batch, p->a.step) &&
           make_layout(l, &y->b, type, tb ? k->d_cols : k->inner, tb ? k->inner : k->d_cols, p->b.ld,
                       p->batch, p->b.step) &&
           make_layout(l, &y->d, LT_F32, k->d_rows, k->d_cols, p->ld, p->batch, p->step);
}

static void drop_layouts(struct lt *l, const struct layouts *y)
{
    void *const all[] = { y->a, y->b, y->d };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            l->MatrixLayoutDestroy(all[i]);
}

/* ---- choices ---- */
/* The largest power of two up to 16 that all of it is a multiple of: longer accesses there are none. */
static int align_of(const struct lt_product *p)
{
    const int64_t size = (int64_t)dtype_size(p->dt);
    int64_t all = 16 | (int64_t)(intptr_t)p->a.p | (int64_t)(intptr_t)p->b.p | (int64_t)(intptr_t)p->d |
                  p->a.ld * size | p->b.ld * size | p->ld * 4;
    if (p->batch > 1)
        all |= p->a.step * size | p->b.step * size | p->step * 4;
    return (int)(all & -all);
}

static struct key key_of(const struct lt *l, const struct lt_product *p)
{
    const int64_t asked = l->dev->fast && p->rows <= ROWS_FEW ? ROWS_FEW : ROWS_MANY;
    return (struct key){ p->form,     p->dt,   p->batch,
                         align_of(p), p->cols, forms[p->form].rows_free ? asked : p->rows,
                         p->inner };
}

static int config_of(const struct lt *l, const struct lt_algo *a, enum lt_config what)
{
    uint32_t v = 0; /* some are of two bytes */
    size_t written, bytes = what >= LT_ALGO_INNER ? 2 : 4;
    return l->MatmulAlgoConfigGetAttribute(a, what, &v, bytes, &written) ? -1 : (int)v;
}

/* -1 would be a library that does not know what it is asked. */
static int fits(const struct lt *l, const struct lt_found *f)
{
    const int split = config_of(l, &f->algo, LT_ALGO_SPLIT_K);
    return !f->state && f->workspace_bytes <= WORKSPACE_BYTES && (split == 0 || split == 1) &&
           config_of(l, &f->algo, LT_ALGO_REDUCTION) == 0;
}

static int make_preference(struct lt *l, void **pref, int align)
{
    const uint64_t bytes = WORKSPACE_BYTES;
    const uint32_t none = 0, a = (uint32_t)align;
    int ok = !l->MatmulPreferenceCreate(pref) &&
             !l->MatmulPreferenceSetAttribute(*pref, LT_PREF_WORKSPACE, &bytes, sizeof bytes) &&
             !l->MatmulPreferenceSetAttribute(*pref, LT_PREF_REDUCTION, &none, sizeof none);
    for (int i = LT_PREF_ALIGN_A; i <= LT_PREF_ALIGN_D; i++)
        ok = ok && !l->MatmulPreferenceSetAttribute(*pref, i, &a, sizeof a);
    return ok;
}

static int make_desc(struct lt *l, void **desc, const struct key *k)
{
    return !l->MatmulDescCreate(desc, k->dt == DT_BF16 ? LT_COMPUTE_F32 : LT_COMPUTE_F32_PEDANTIC, LT_F32) &&
           !l->MatmulDescSetAttribute(*desc, LT_DESC_TRANS_A, &forms[k->form].trans_a, sizeof(int32_t)) &&
           !l->MatmulDescSetAttribute(*desc, LT_DESC_TRANS_B, &forms[k->form].trans_b, sizeof(int32_t));
}

/* The library's list for the key's rows, the best first: how many, or -1. */
static int list(struct lt *l, void *desc, const struct lt_product *p, const struct key *k,
                struct lt_found found[LIST])
{
    struct layouts y = { 0 };
    void *pref = NULL;
    int n = 0, ok = make_preference(l, &pref, k->align) && make_layouts(l, &y, p, k);
    int rc = ok ? l->MatmulAlgoGetHeuristic(l->handle, desc, y.a, y.b, y.d, y.d, pref, LIST, found, &n) : -1;
    drop_layouts(l, &y);
    if (pref)
        l->MatmulPreferenceDestroy(pref);
    return rc ? -1 : n;
}

static struct choice *new_choice(struct lt *l)
{
    if (l->n_choices == l->cap) {
        int cap = l->cap ? 2 * l->cap : 64;
        struct choice *more = realloc(l->choice, sizeof *more * (size_t)cap);
        if (!more)
            return NULL;
        l->choice = more;
        l->cap = cap;
    }
    return &l->choice[l->n_choices];
}

/* ---- words ---- */
/* What a choice is for, and, with an algorithm, which it is. */
static void describe(const struct lt *l, const struct key *k, const struct lt_algo *a, char *text,
                     size_t bytes)
{
    static const struct {
        const char *name;
        enum lt_config what;
    } parts[] = { { "algo", LT_ALGO_ID },         { "tile", LT_ALGO_TILE },     { "stages", LT_ALGO_STAGES },
                  { "swizzle", LT_ALGO_SWIZZLE }, { "option", LT_ALGO_OPTION }, { "inner", LT_ALGO_INNER },
                  { "cluster", LT_ALGO_CLUSTER } };
    int at = snprintf(text, bytes,
                      "product %s %s %" PRId64 "x%" PRId64 " over %" PRId64 " batch %d align %d%s",
                      forms[k->form].name, dtype_name((enum dtype)k->dt), k->d_cols, k->d_rows, k->inner,
                      k->batch, k->align, a ? ":" : "");
    for (size_t j = 0; a && j < sizeof parts / sizeof *parts && at > 0 && (size_t)at < bytes; j++)
        at += snprintf(text + at, bytes - (size_t)at, " %s %d", parts[j].name,
                       config_of(l, a, parts[j].what));
}

void lt_choice_text(const struct lt *l, int i, char *text, size_t bytes)
{
    const struct choice *c = &l->choice[i];
    describe(l, &c->key, &c->algo, text, bytes);
    const size_t at = strlen(text);
    snprintf(text + at, bytes - at, ", number %d of %d", c->rank + 1, c->n_found);
}

/* Appends a line to the file in SHARDLINE_CUBLASLT_LOG. */
static void record(const struct lt *l)
{
    const char *path = env_get(ENV_SHARDLINE_CUBLASLT_LOG);
    struct err e;
    FILE *f = path ? io_write_text(path, 1, &e) : NULL;
    char text[256];
    if (!f)
        return;
    lt_choice_text(l, l->n_choices - 1, text, sizeof text);
    fprintf(f, "%s, %s\n", text, l->name);
    fclose(f);
}

/* ---- timing: only what was asked for it (lt_table.h) ---- */
static int call(struct lt *l, const struct lt_product *p, void *desc, const struct lt_algo *algo);

/* Seconds of one call, the best of some rounds; below 0: it does not run. */
static double time_of(struct lt *l, const struct lt_product *p, void *desc, const struct lt_algo *a)
{
    enum { ROUNDS = 3, CALLS = 8 };
    double best = -1;
    for (int round = 0; round <= ROUNDS; round++) {
        const double began = clock_s();
        for (int i = 0; i < (round ? CALLS : 1); i++)
            if (!call(l, p, desc, a))
                return -1;
        dev_sync(l->dev);
        const double s = (clock_s() - began) / CALLS;
        if (round && (best < 0 || s < best)) /* the first only warms up */
            best = s;
    }
    return best;
}

/* The fastest of those that fit, for the number of rows that the key asks for and zeroes as rows; of two
 * alike the library's own first. */
static int fastest(struct lt *l, const struct lt_product *p, const struct choice *c,
                   const struct lt_found *found)
{
    struct lt_product q = *p;
    q.rows = c->key.d_cols;
    q.add = 0;
    const size_t b_bytes = (size_t)(q.rows * q.b.ld + q.batch * q.b.step) * dtype_size(q.dt),
                 d_bytes = (size_t)(q.rows * q.ld + q.batch * q.step) * sizeof(float);
    void *b = forms[q.form].rows_free ? dev_alloc(l->dev, MEM_WORK, b_bytes) : NULL;
    double best = -1;
    int rank = c->rank;
    q.b.p = b ? b : p->b.p;
    q.d = dev_alloc(l->dev, MEM_WORK, d_bytes);
    for (int i = c->rank; i < c->n_found && q.d && (b || !forms[q.form].rows_free); i++) {
        const double s = fits(l, &found[i]) ? time_of(l, &q, c->desc, &found[i].algo) : -1;
        if (s >= 0 && (best < 0 || s < 0.98 * best)) {
            best = s;
            rank = i;
        }
    }
    dev_free(l->dev, q.d);
    dev_free(l->dev, b);
    return rank;
}

/* The first that fits, or the one that a table names; or else the fastest by time. c->rank: behind the
 * list when nothing fits. */
static void rank_choice(struct lt *l, const struct lt_product *p, struct choice *c,
                        const struct lt_found *found)
{
    char text[256];
    while (c->rank < c->n_found && !fits(l, &found[c->rank]))
        c->rank++;
    for (int i = c->rank; i < c->n_found; i++) {
        describe(l, &c->key, &found[i].algo, text, sizeof text);
        if (fits(l, &found[i]) && lt_table_says(&l->table, text)) {
            c->rank = i;
            return;
        }
    }
    describe(l, &c->key, NULL, text, sizeof text);
    if (!l->table.tunes || c->rank >= c->n_found || lt_table_knows(&l->table, text))
        return;
    c->rank = fastest(l, p, c, found);
    describe(l, &c->key, &found[c->rank].algo, text, sizeof text - 40);
    const size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, ", timed, number %d of %d", c->rank + 1, c->n_found);
    note(l, lt_table_add(&l->table, text), "the table of choices cannot be written", &c->key);
}

static const struct choice *choose(struct lt *l, const struct lt_product *p, const struct key *k)
{
    for (int i = 0; i < l->n_choices; i++)
        if (!memcmp(&l->choice[i].key, k, sizeof *k))
            return &l->choice[i];
    struct choice *c = new_choice(l);
    struct lt_found found[LIST];
    if (!note(l, c != NULL, "no memory for a choice", k))
        return NULL;
    *c = (struct choice){ .key = *k };
    c->n_found = make_desc(l, &c->desc, k) ? list(l, c->desc, p, k, found) : -1;
    rank_choice(l, p, c, found);
    if (!note(l, c->rank < c->n_found, "no algorithm without split-K", k)) {
        if (c->desc)
            l->MatmulDescDestroy(c->desc);
        return NULL;
    }
    c->algo = found[c->rank].algo;
    l->n_choices++;
    record(l);
    return c;
}

int lt_n_choices(const struct lt *l) { return l->n_choices; }

/* ---- a call ---- */
static int call(struct lt *l, const struct lt_product *p, void *desc, const struct lt_algo *algo)
{
    const struct key own = { .d_rows = p->cols, .d_cols = p->rows, .inner = p->inner };
    const float one = 1, beta = p->add ? 1 : 0;
    struct layouts y = { 0 };
    int rc = !make_layouts(l, &y, p, &own) ||
             l->Matmul(l->handle, desc, &one, p->a.p, y.a, p->b.p, y.b, &beta, p->d, y.d, p->d, y.d, algo,
                       l->workspace, WORKSPACE_BYTES, l->stream);
    drop_layouts(l, &y);
    return !rc;
}

int lt_run(struct lt *l, const struct lt_product *p)
{
    const struct key k = key_of(l, p);
    const struct choice *c = l->what[0] ? NULL : choose(l, p, &k);
    return c && note(l, call(l, p, c->desc, &c->algo), "the algorithm does not run", &k);
}

static void try_list(struct lt *l, const struct lt_product *p, const struct key *k)
{
    if (l->tried.desc && !memcmp(&l->tried.key, k, sizeof *k))
        return;
    if (l->tried.desc)
        l->MatmulDescDestroy(l->tried.desc);
    l->tried.desc = NULL;
    l->tried.key = *k;
    l->tried.n = make_desc(l, &l->tried.desc, k) ? list(l, l->tried.desc, p, k, l->tried.found) : -1;
}

int lt_run_nth(struct lt *l, const struct lt_product *p, int n)
{
    struct key k = key_of(l, p);
    k.d_cols = p->rows; /* the best for what is asked */
    try_list(l, p, &k);
    return n < l->tried.n && !l->tried.found[n].state && call(l, p, l->tried.desc, &l->tried.found[n].algo);
}

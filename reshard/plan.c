/* plan.c - which tensors the target has, and which rank writes which part of each. Boxes are in
 * coordinates of the whole tensor, so that the source's layout does not matter here. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/peft.h"
#include "format/quant_view.h"
#include "model/family.h"
#include "reshard/cast.h"
#include "reshard/reshard.h"
#include "reshard/serve/serve_plan.h"

#define CONFIG_MAX ((size_t)1 << 24)
#define MOST_GRAIN 64
#define MOST_RANKS (1 << 20)
#define NAME_BYTES 640 /* bytes of a tensor's name, and of numbers in it */

/* ---- which tensors ---- */

/* What --requantize needs of a dequantised checkpoint. */
static int is_kept(const char *name) { return !strncmp(name, QUANT_KEPT_PREFIX, strlen(QUANT_KEPT_PREFIX)); }

/* Buffers that are state: what the optimizer does not see, what is exponentiated, frequencies, statistics.
 * Rounded to bf16 they would be another model; transformers keeps them in fp32, too. */
static int stays_fp32(const char *name)
{
    static const char *const ends[] = { "e_score_correction_bias",
                                        "expert_bias",
                                        "router_bias",
                                        "A_log",
                                        "layer_scalar",
                                        "inv_freq",
                                        "running_mean",
                                        "running_var" };
    const char *dot = strrchr(name, '.'), *word = dot ? dot + 1 : name;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!strcmp(word, ends[i]))
            return 1;
    return 0;
}

static int add_target(struct plan *p, int src, enum ckpt_role role, enum stored_dtype dtype, struct err *e)
{
    const struct ckpt_tensor *s = ckpt_tensor(p->src, src);
    struct target *t = &p->target[p->n++];
    if (!cast_known(s->dtype, dtype))
        return err_set(e, ERR_USAGE, "%s is %s: --dtype cannot turn it into %s", s->name,
                       stored_dtype_name(s->dtype), stored_dtype_name(dtype));
    memset(t, 0, sizeof *t);
    t->src = src;
    t->t = *s;
    t->t.role = role;
    t->t.dtype = dtype;
    t->t.has_digest = 0;
    return 0;
}

/* --dtype on a checkpoint with optimizer state: bf16 weights have fp32 masters, fp32 weights are their own
 * masters. So fp32 takes the masters as the weights, and bf16 keeps the fp32 weights as masters: nothing
 * of the state is lost. Without optimizer state the weights are converted. Scales of quantised weights stay
 * as they are: rounded ones would be another model. */
static int pick_weight(struct plan *p, int i, int keep_state, struct err *e)
{
    const struct ckpt_tensor *s = ckpt_tensor(p->src, i);
    enum target_dtype want = p->req->format == TARGET_GGUF ? TARGET_AS_IS : p->req->dtype;
    int master = keep_state ? ckpt_find(p->src, ROLE_MASTER, s->name) : -1, rc;
    if (want == TARGET_AS_IS || !stored_is_float(s->dtype) || is_kept(s->name) ||
        (p->quant.n && p->quant.weight_of[i] >= 0))
        return add_target(p, i, ROLE_WEIGHT, s->dtype, e);
    if (want == TARGET_BF16 && s->dtype == STORED_F32 && stays_fp32(s->name))
        return add_target(p, i, ROLE_WEIGHT, s->dtype, e);
    if (want == TARGET_F32)
        return add_target(p, master >= 0 ? master : i, ROLE_WEIGHT, STORED_F32, e);
    rc = add_target(p, i, ROLE_WEIGHT, STORED_BF16, e);
    if (rc >= 0 && keep_state && master < 0 && s->dtype == STORED_F32)
        rc = add_target(p, i, ROLE_MASTER, STORED_F32, e);
    return rc;
}

static int compare_targets(const void *pa, const void *pb)
{
    const struct target *a = pa, *b = pb;
    return a->t.role != b->t.role ? (a->t.role > b->t.role) - (a->t.role < b->t.role)
                                  : strcmp(a->t.name, b->t.name);
}

static int pick_tensors(struct plan *p, struct err *e)
{
    int n = ckpt_n_tensors(p->src), keep_state = ckpt_state(p->src)->has_state && !p->req->weights_only,
        rc = 0;
    p->target = calloc((size_t)n * 2 + 1, sizeof *p->target);
    if (!p->target)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", n);
    for (int i = 0; i < n && rc >= 0; i++) {
        const struct ckpt_tensor *s = ckpt_tensor(p->src, i);
        if (p->req->format == TARGET_MEGATRON && (param_is_derived(s->name) || is_kept(s->name)))
            continue; /* Megatron computes rotary tables itself, and has no place for either */
        if (s->role == ROLE_WEIGHT)
            rc = pick_weight(p, i, keep_state, e);
        else if (!p->req->weights_only &&
                 !(s->role == ROLE_MASTER && p->req->dtype == TARGET_F32 && keep_state))
            rc = add_target(p, i, s->role, s->dtype, e);
    }
    qsort(p->target, (size_t)p->n, sizeof *p->target, compare_targets);
    return rc < 0 ? rc : 0;
}

/* ---- the model ---- */

static int is_trivial(const struct layout *l)
{
    return l->tp == 1 && l->pp == 1 && l->ep == 1 && l->zero == 0;
}

/* Whether no tensor of the model has the same first word: a buffer of the training code (DeepSpeed keeps
 * those too), not a sign of another model. */
static int is_buffer(const struct plan *p, const char *name)
{
    size_t n = strcspn(name, ".");
    for (int i = 0; i < p->table.n; i++)
        if (strcspn(p->table.p[i].name, ".") == n && !memcmp(p->table.p[i].name, name, n))
            return 0;
    return 1;
}

/* Tensors that checkpoints carry beside those of the table: a tied head (neither added nor lost), tables
 * that follow from the config, buffers. */
static int known_beside(const struct plan *p, const char *name)
{
    return (p->cfg.tied && !strcmp(name, "lm_head.weight")) || param_is_derived(name) || is_buffer(p, name);
}

/* Names of the table's tensors, sorted for bsearch. */
struct named {
    const char *name;
    int param, seen;
};
static int compare_named(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* The name with its first two numbers between dots replaced; a name with fewer numbers stays as it is. */
static void renumber(const char *name, int64_t first, int64_t second, char out[NAME_BYTES])
{
    const int64_t to[] = { first, second };
    size_t at = 0;
    int n = 0;
    for (const char *s = name; *s && at < NAME_BYTES - 32;) {
        size_t word = strcspn(s, ".");
        if (n < 2 && word && strspn(s, "0123456789") == word)
            at += (size_t)sprintf(out + at, "%lld", (long long)to[n++]);
        else
            at += (size_t)snprintf(out + at, NAME_BYTES - at, "%.*s", (int)word, s);
        s += word;
        if (*s == '.' && at < NAME_BYTES - 1)
            out[at++] = *s++;
    }
    out[at] = 0;
}

/* Layers that predict further tokens lie behind those that config.json counts. */
static int64_t further_layers(const struct plan *p)
{
    struct err ignored = { 0 };
    int64_t n = 0;
    json_t *o = jx_parse(p->config, strlen(p->config), "config.json", &ignored);
    jx_int(o, "config.json", "num_nextn_predict_layers", &n, &ignored);
    json_decref(o);
    return n > 0 ? n : 0;
}

/* Whether a tensor beside the table is one of its own but for the number of its layer or expert, of which
 * config.json has fewer: that is the config of another model. */
static int is_beyond(const struct plan *p, const char *name)
{
    char other[NAME_BYTES];
    long long layer;
    if (sscanf(name, "model.layers.%lld.", &layer) == 1 && layer >= p->cfg.n_layers &&
        layer < p->cfg.n_layers + further_layers(p))
        return 0;
    for (int64_t l = 0; l < p->cfg.n_layers; l++) {
        renumber(name, l, 0, other);
        if (strcmp(name, other) && param_find(&p->table, other) >= 0)
            return 1;
    }
    return 0;
}

/* What the table says of a tensor: its own name and shape, or those of the quantised weight that it stores a
 * part of. */
static struct ckpt_tensor as_weight(const struct plan *p, const struct target *t)
{
    struct ckpt_tensor out = t->t;
    int w = t->t.role == ROLE_WEIGHT && t->src < p->quant.n_tensors ? p->quant.weight_of[t->src] : -1;
    if (w >= 0) {
        out.name = p->quant.weight[w].name;
        out.n_dims = p->quant.weight[w].n_dims;
        memcpy(out.shape, p->quant.weight[w].shape, sizeof out.shape);
    }
    return out;
}

/* 1: all is well, and there are tensors beside those of the table. */
static int check_against_table(const struct plan *p, int n, struct named *names, struct err *e)
{
    const char *path = ckpt_path(p->src);
    int beside = 0;
    for (int i = 0; i < p->n; i++) {
        const struct ckpt_tensor weight = as_weight(p, &p->target[i]), *t = &weight;
        struct named key = { t->name, 0, 0 },
                     *found = bsearch(&key, names, (size_t)n, sizeof key, compare_named);
        if (!found && known_beside(p, t->name))
            continue;
        if (!found && is_beyond(p, t->name))
            return err_set(e, ERR_CONFIG,
                           "%s: %s is not a tensor of the %s model in its config.json: is it the config of "
                           "another model",
                           path, t->name, p->cfg.family->name);
        beside |= !found || t->name != p->target[i].t.name;
        if (!found)
            continue;

        const struct param *q = &p->table.p[found->param];
        char how[320];
        if (!param_shape_fits(q, t->n_dims, t->shape))
            return err_set(e, ERR_CONFIG, "%s: %s %s", path, t->name,
                           param_shape_differs(q, t->n_dims, t->shape, how));
        if (t->role == ROLE_WEIGHT)
            found->seen = 1;
    }

    for (int i = 0; i < n; i++)
        if (!names[i].seen)
            return err_set(e, ERR_CONFIG,
                           "%s: has no %s, which config.json asks for: is it the config of another model",
                           path, names[i].name);
    return beside;
}

int plan_needs_no_table(const struct plan *p)
{
    const struct layout *l = &p->req->layout;
    return l->tp == 1 && l->pp == 1 && l->ep == 1;
}

/* Quantised weights of the source. What is not understood is carried where no tensor is cut. */
static int open_quant(struct plan *p, struct log *log, struct err *e)
{
    int rc = quant_open_as(&p->quant, p->src, p->config, e);
    if (rc >= 0)
        rc = quant_settle_shapes(&p->quant, p->src, e);
    p->carries_quant = plan_needs_no_table(p) && (rc < 0 || !p->quant.is_known);
    if (rc >= 0 || !p->carries_quant)
        return rc;
    if (log)
        log_line(log, "quantised weights are carried unchecked: %s", e->text);
    quant_close(&p->quant);
    return 0;
}

/* Quantised tensors that do not fit the model of config.json are carried where tp, pp and ep are 1. */
static int carry(struct plan *p, struct log *log, struct err *e)
{
    param_table_close(&p->table);
    p->has_model = 0;
    p->carries_quant = 1;
    return plan_cuts(p, e->text, log, e);
}

static int read_model(struct plan *p, struct log *log, struct err *e)
{
    const char *text = p->config, *what = p->req->config_path ? p->req->config_path : "config.json";
    int rc = 0, n = 0;
    if (p->req->format == TARGET_GGUF)
        return 0; /* gguf_target_prepare() has compared them */
    if (p->req->cuts_path || (peft_is(p->src) && text))
        return plan_cuts(p, NULL, log, e);
    if (!text)
        return is_trivial(&p->req->layout) ? 0 : plan_cuts(p, "has no config.json", log, e);
    if (p->carries_quant) {
        char why[128];
        snprintf(why, sizeof why, "quant_method %s is not known", p->quant.method);
        return plan_cuts(p, p->quant.n_tensors ? why : NULL, log, e);
    }
    if (model_config_parse(&p->cfg, text, what, e) < 0)
        return plan_cuts(p, e->text, log, e);

    TRY(param_table_open(&p->table, &p->cfg, e));
    p->has_model = 1;

    struct named *names = calloc((size_t)p->table.n + 1, sizeof *names);
    if (!names)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", p->table.n);
    for (int i = 0; i < p->table.n; i++)
        if (p->table.p[i].n_sharing)
            names[n++] = (struct named){ p->table.p[i].name, i, 0 };
    qsort(names, (size_t)n, sizeof *names, compare_named);
    rc = check_against_table(p, n, names, e);
    free(names);
    if (rc < 0 && p->quant.n && plan_needs_no_table(p))
        return carry(p, log, e);
    if (rc > 0)
        rc = plan_cuts(p, NULL, log, e);
    if (rc >= 0)
        rc = layout_check(&p->req->layout, &p->cfg, e);
out:
    return rc < 0 ? rc : 0;
}

/* ---- who writes what ---- */

int plan_add_piece(struct plan *p, struct target *t, int rank, const struct box *b, int64_t lo, int64_t hi,
                   struct err *e)
{
    if (stored_dtype_bits(t->t.dtype) < 8) {
        int rc = ckpt_piece_check(&(struct ckpt_piece){ t->t, *b, lo, hi }, e);
        if (rc < 0)
            return rc;
    }
    if ((t->n_pieces & (t->n_pieces - 1)) == 0) { /* the capacity doubles */
        struct target_piece *grown = realloc(t->piece,
                                             sizeof *grown * (size_t)(t->n_pieces ? t->n_pieces * 2 : 1));
        if (!grown)
            return err_set(e, ERR_MEMORY, "no memory for a plan of %lld pieces", (long long)p->n_pieces);
        t->piece = grown;
    }
    int unit = rank * UNITS + (t->t.role == ROLE_WEIGHT ? UNIT_WEIGHTS : UNIT_OPTIM);
    t->piece[t->n_pieces++] = (struct target_piece){ unit, p->unit[unit].n_pieces++, *b, lo, hi };
    p->unit[unit].bytes += stored_bytes(t->t.dtype, hi - lo);
    p->n_pieces++;
    return 0;
}

static struct target *find_target(const struct plan *p, enum ckpt_role role, const char *name)
{
    struct target key = { .t = { .name = name, .role = role } };
    return bsearch(&key, p->target, (size_t)p->n, sizeof key, compare_targets);
}

int plan_find(const struct plan *p, enum ckpt_role role, const char *name)
{
    const struct target *t = find_target(p, role, name);
    return t ? (int)(t - p->target) : -1;
}

/* Tensors outside the table are written whole, in the files of rank 0. */
static int add_whole(struct plan *p, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < p->n && rc >= 0; i++) {
        struct box b = box_whole(p->target[i].t.n_dims, p->target[i].t.shape);
        if (!p->target[i].n_pieces)
            rc = plan_add_piece(p, &p->target[i], 0, &b, 0, box_count(&b), e);
    }
    return rc < 0 ? rc : 0;
}

/* DCP and Megatron's files hold boxes, not ranges: dp cuts the rows of a tp rank's box, as FSDP2 does
 * (torch.chunk: ceil(n / dp) rows each, the last ranks fewer or none). The ranks with the same experts cut
 * those of experts. Cuts q to the rows of dp rank d; 0: d has none. */
static int cut_rows(struct param_piece *q, const struct params_local *l, int d)
{
    const struct unit_part *u = &l->unit[l->part[q->part].vector];
    int dp = l->layout.dp;
    if (u->group == GROUP_EXPERT) {
        dp = u->n_slices;
        d /= layout_expert_sources(&l->layout);
    }

    int64_t rows = q->box.extent[0], step = (rows + dp - 1) / dp, from = d * step < rows ? d * step : rows,
            to = from + step < rows ? from + step : rows;
    q->box.start[0] += from;
    q->box.extent[0] = to - from;
    q->lo = 0;
    q->hi = box_count(&q->box);
    return q->hi > 0;
}

/* Formats whose files hold boxes, not ranges. */
static int holds_boxes(enum target_format f) { return f == TARGET_DCP || f == TARGET_MEGATRON; }

static int list_parts(const struct plan *p, const struct params_local *l, int dp, int sliced,
                      struct param_piece *out)
{
    if (!holds_boxes(p->req->format) || !sliced)
        return params_pieces(l, dp, sliced, out);
    int n = params_pieces(l, 0, 0, out), kept = 0;
    for (int i = 0; i < n; i++) {
        struct param_piece q = out[i];
        if (cut_rows(&q, l, dp))
            out[kept++] = q;
    }
    return kept;
}

static int add_rank(struct plan *p, const struct params_local *l, int rank, int dp, struct param_piece *out,
                    struct err *e)
{
    int zero = p->req->layout.zero, rc = 0;
    for (int role = 0; role < ROLE_COUNT; role++) {
        int n = list_parts(p, l, dp, role == ROLE_WEIGHT ? zero == 3 : zero >= 1, out);
        for (int i = 0; i < n && rc >= 0; i++) {
            int param = l->part[out[i].part].param;
            const char *name = p->has_cuts ? p->cut.name[param] : p->table.p[param].name;
            struct target *t = find_target(p, (enum ckpt_role)role, name);
            if (t)
                rc = plan_add_piece(p, t, rank, &out[i].box, out[i].lo, out[i].hi, e);
        }
    }
    return rc < 0 ? rc : 0;
}

static int place_pieces(struct plan *p, struct err *e)
{
    const struct layout *lay = &p->req->layout;
    const struct param_table *table = p->has_cuts ? &p->cut.table : &p->table;
    struct param_piece *out = calloc((size_t)table->n + 1, sizeof *out);
    int rc = 0;
    if (!out)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d tensors", table->n);
    for (int rank = 0; rank < p->n_ranks && rc >= 0; rank++) {
        struct rank_at at = layout_at(lay, rank);
        struct params_local l;
        if ((rc = params_local_open(&l, table, lay, at, e)) < 0)
            break;
        rc = add_rank(p, &l, rank, at.dp, out, e);
        params_local_close(&l);
    }
    free(out);
    return rc < 0 ? rc : 0;
}

static void sum_up(struct plan *p)
{
    for (int r = 0; r < p->n_ranks; r++) {
        int64_t bytes = p->unit[r * UNITS + UNIT_WEIGHTS].bytes + p->unit[r * UNITS + UNIT_OPTIM].bytes;
        p->bytes_out += bytes;
        p->most_bytes = bytes > p->most_bytes ? bytes : p->most_bytes;
    }
}

static int compare_units(const void *pa, const void *pb)
{
    const struct unit *a = *(struct unit *const *)pa, *b = *(struct unit *const *)pb;
    return a->bytes != b->bytes ? (a->bytes < b->bytes) - (a->bytes > b->bytes) : (a > b) - (a < b);
}

/* Assigns whole files to processes, the largest first, each to the process with the fewest bytes. Two
 * processes never write one file, because network file systems do not promise that neighbouring bytes of
 * two writers stay apart. */
static int assign_units(struct plan *p, struct err *e)
{
    int n = procs_size(p->req->procs), n_units = p->n_ranks * UNITS;
    struct unit **order = malloc(sizeof *order * (size_t)n_units);
    int64_t *load = calloc((size_t)n, sizeof *load);
    if (!order || !load) {
        free(order);
        free(load);
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d ranks", p->n_ranks);
    }

    for (int i = 0; i < n_units; i++)
        order[i] = &p->unit[i];
    qsort(order, (size_t)n_units, sizeof *order, compare_units);

    for (int i = 0; i < n_units && order[i]->n_pieces; i++) {
        int least = 0;
        for (int k = 1; k < n; k++)
            least = load[k] < load[least] ? k : least;
        order[i]->owner = least;
        load[least] += order[i]->bytes;
    }
    p->bytes_here = load[procs_rank(p->req->procs)];
    free(order);
    free(load);
    return 0;
}

/* ---- config.json of the target ---- */

static void set_dtype(json_t *o, enum target_dtype d)
{
    const char *word = d == TARGET_F32 ? "float32" : "bfloat16";
    int old = json_object_get(o, "torch_dtype") != NULL, new = json_object_get(o, "dtype") != NULL;
    if (old || !new)
        json_object_set_new(o, "torch_dtype", json_string(word));
    if (new)
        json_object_set_new(o, "dtype", json_string(word));
}

/* Hugging Face has no other place for the grain of the sums: config.json holds it where the formula gives
 * another. */
static void set_grain(const struct plan *p, json_t *o)
{
    if (p->grain && p->grain != model_grain_formula(&p->cfg))
        json_object_set_new(o, "shardline_grain", json_integer(p->grain));
    else
        json_object_del(o, "shardline_grain");
}

/* Rewrites config.json only when something changes; otherwise the file stays as it was, byte for byte. */
static int target_config(struct plan *p, struct err *e)
{
    json_t *o, *was;
    if (!p->config)
        return 0;
    if (!(o = jx_parse(p->config, strlen(p->config), "config.json", e)))
        return -e->code;

    was = json_deep_copy(o);
    if (p->req->dtype != TARGET_AS_IS && json_is_object(o))
        set_dtype(o, p->req->dtype);
    if (p->has_model && p->req->format != TARGET_NATIVE && p->req->format != TARGET_SERVE)
        set_grain(p, o);
    if (quant_names_follow(o, hf_fuses(p->req->experts, p->config), e) < 0) {
        json_decref(o);
        json_decref(was);
        return -e->code;
    }

    if (was && !json_equal(o, was)) {
        char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17)),
             *line = text ? realloc(text, strlen(text) + 2) : NULL;
        if (line) {
            free(p->config);
            p->config = strcat(line, "\n");
        }
    }
    json_decref(o);
    json_decref(was);
    return 0;
}

static int load_config(struct plan *p, struct err *e)
{
    const char *text = ckpt_config_json(p->src);
    void *data = NULL;
    size_t n = 0;
    if (p->req->config_path) {
        int rc = io_read_file(p->req->config_path, CONFIG_MAX, &data, &n, e);
        p->config = data;
        return rc < 0 ? rc : 0;
    }
    if (text && !(p->config = strdup(text)))
        return err_set(e, ERR_MEMORY, "no memory for config.json");
    return 0;
}

/* tp cuts along the blocks of the run that wrote SRC, whatever the formula gives. */
static int take_grain(struct plan *p, struct err *e)
{
    if (p->grain > MOST_GRAIN || p->cfg.n_heads % p->grain)
        return err_set(
            e, ERR_CONFIG,
            "%s: grain %d does not divide the %lld heads of the model: is it the config of another model",
            ckpt_path(p->src), p->grain, (long long)p->cfg.n_heads);
    p->cfg.grain = p->table.cfg.grain = p->grain;
    if (p->has_cuts)
        p->cut.table.cfg.grain = p->grain;
    return 0;
}

int plan_make(struct plan *p, struct ckpt *src, const struct request *req, struct log *log, struct err *e)
{
    int rc = 0;
    memset(p, 0, sizeof *p);
    p->req = req;
    p->src = src;
    if ((double)req->layout.tp * req->layout.pp * req->layout.dp > MOST_RANKS)
        return err_set(e, ERR_USAGE, "--tp %d x --pp %d x --dp %d: at most %d ranks", req->layout.tp,
                       req->layout.pp, req->layout.dp, MOST_RANKS);
    p->n_ranks = layout_ranks(&req->layout);
    p->unit = calloc((size_t)(p->n_ranks > 0 ? p->n_ranks : 1) * UNITS, sizeof *p->unit);
    if (!p->unit)
        return err_set(e, ERR_MEMORY, "no memory for a plan of %d ranks", p->n_ranks);

    TRY(load_config(p, e));
    TRY(open_quant(p, log, e));
    TRY(pick_tensors(p, e));
    TRY(read_model(p, log, e));

    p->grain = ckpt_state(src)->grain ? ckpt_state(src)->grain : p->has_model ? p->cfg.grain : 0;
    if (p->has_model && p->grain)
        TRY(take_grain(p, e));
    if ((p->has_model || p->has_cuts) && (req->format == TARGET_NATIVE || holds_boxes(req->format)))
        TRY(place_pieces(p, e));
    cut_model_close(&p->cut); /* the pieces say it now */
    if (req->format == TARGET_SERVE)
        TRY(serve_place(p, e));
    TRY(add_whole(p, e));

    sum_up(p);
    TRY(assign_units(p, e));
    TRY(target_config(p, e));
out:
    if (rc < 0)
        plan_free(p);
    return rc < 0 ? rc : 0;
}

int64_t plan_memory_bytes(const struct plan *p)
{
    const int64_t buffer = (int64_t)16 << 20, table_bytes_a_piece = 512;
    return buffer * (p->req->n_threads + 1) + p->n_pieces * table_bytes_a_piece +
           (p->serve ? serve_memory_bytes(p) : 0);
}

void plan_free(struct plan *p)
{
    for (int i = 0; p->target && i < p->n; i++)
        free(p->target[i].piece);
    free(p->target);
    free(p->unit);
    free(p->config);
    free(p->cuts);
    serve_plan_free(p->serve);
    quant_close(&p->quant);
    cut_model_close(&p->cut);
    if (p->has_model)
        param_table_close(&p->table);
    memset(p, 0, sizeof *p);
}

/* model_cut_test.c - the values of models to come, cut to ranks and joined again.
 *
 * Every element of every tensor has a value of its own, so that no permutation can hide. A rank's memory is
 * compared with formulas for where a value lies in the published file (struct place), which are written
 * here and know nothing of the table; changed tables (gate and up swapped, two experts swapped) must be
 * noticed. */
#include "tests/test.h"
#include "tests/unit/model/published_tables.h"

static struct err e;

/* Small, but a cut falls inside of the blocks of 32 and 128. */
enum { HIDDEN = 160, INTER = 96, WIDE = 160, EXPERTS = 4, HEADS = 8, LAYERS = 2, DENSE = 1 };
static const struct model_config sizes[PUBLISHED_MODELS] = {
#define SMALL .hidden = HIDDEN, .n_layers = LAYERS, .n_heads = HEADS, .vocab = 24, .n_experts = EXPERTS
    [MIXTRAL] = { SMALL, .n_kv = 2, .head_dim = 4, .expert_inter = INTER },
    [QWEN3_MOE] = { SMALL, .n_kv = 4, .head_dim = 4, .inter = 16, .expert_inter = INTER },
    [QWEN3_MOE_FUSED] = { SMALL, .n_kv = 4, .head_dim = 4, .inter = 16, .expert_inter = INTER },
    [FUSED_FP8] = { SMALL, .n_kv = 4, .head_dim = 4, .inter = 16, .expert_inter = WIDE },
    [GPT_OSS] = { SMALL, .n_kv = 2, .head_dim = 4, .expert_inter = INTER },
    [GPT_OSS_MXFP4] = { SMALL, .n_kv = 2, .head_dim = 4, .expert_inter = INTER },
    [DEEPSEEK_V3] = { SMALL, .n_kv = HEADS, .head_dim = 24, .inter = 384, .expert_inter = WIDE,
                      .shared_inter = WIDE,
                      .latent = { .q_rank = 40, .kv_rank = 32, .rope_dim = 8, .nope_dim = 16, .v_dim = 16 } },
};

struct opened {
    struct family f;
    struct model_config c;
    struct param_table t;
    int32_t *value, *joined; /* of all tensors, one behind the other */
    unsigned char *written;  /* how often an element was */
    int64_t *named;          /* where the tensor of a parameter begins */
    int64_t *begin;          /* the same for those who cut and join: check_swap() swaps two of these */
    int64_t n_values;
};

static int64_t tensor_size(const struct param *p)
{
    int64_t n = 1;
    for (int d = 0; d < p->n_dims; d++)
        n *= p->shape[d];
    return n;
}

static void open_model(struct opened *o, enum published_model which)
{
    memset(o, 0, sizeof *o);
    o->f = published_family(which);
    o->c = published_config(&o->f, sizes[which], which == DEEPSEEK_V3 ? DENSE : 0);
    CHECK_INT(param_table_open(&o->t, &o->c, &e), 0);
    o->named = calloc((size_t)o->t.n, sizeof *o->named);
    o->begin = calloc((size_t)o->t.n, sizeof *o->begin);
    for (int i = 0; i < o->t.n; i++) {
        const struct param *p = &o->t.p[i];
        o->named[i] = p->n_sharing ? o->n_values : o->named[param_find(&o->t, p->name)];
        o->begin[i] = o->named[i];
        o->n_values += p->n_sharing ? tensor_size(p) : 0;
    }
    o->value = malloc((size_t)o->n_values * sizeof *o->value);
    for (int64_t i = 0; i < o->n_values; i++)
        o->value[i] = (int32_t)i + 1;
    o->joined = calloc((size_t)o->n_values, sizeof *o->joined);
    o->written = calloc((size_t)o->n_values, 1);
}

static void close_model(struct opened *o)
{
    param_table_close(&o->t);
    free(o->named);
    free(o->begin);
    free(o->value);
    free(o->joined);
    free(o->written);
}

/* ---- a rank's memory ---- */

struct rank {
    const struct opened *o;
    struct params_local l;
    int32_t **memory; /* [n_vectors] */
};

static int32_t *part_memory(const struct rank *r, int i)
{
    return r->memory[r->l.part[i].vector] + r->l.part[i].offset;
}

/* Walks what box b and the parameter's tensor have in common, as runs. */
static int next_run(const struct param *p, const struct box *b, struct box_walk *w, struct box_run *run)
{
    struct box whole = box_whole(p->n_dims, p->shape);
    return box_next_run(&whole, 0, box_count(&whole), b, w, run);
}

static void open_rank(struct rank *r, const struct opened *o, const struct layout *l, struct rank_at at)
{
    r->o = o;
    CHECK_INT(params_local_open(&r->l, &o->t, l, at, &e), 0);
    r->memory = calloc((size_t)r->l.n_vectors, sizeof *r->memory);
    for (int v = 0; v < r->l.n_vectors; v++)
        r->memory[v] = calloc((size_t)r->l.unit[v].flat + 1, sizeof **r->memory);
    for (int i = 0; i < r->l.n_parts; i++) {
        const struct part *q = &r->l.part[i];
        struct box_walk w = { 0 };
        struct box_run run;
        while (next_run(&o->t.p[q->param], &q->box, &w, &run))
            memcpy(part_memory(r, i) + run.part_off, o->value + o->begin[q->param] + run.of_off,
                   (size_t)run.count * sizeof **r->memory);
    }
}

static void close_rank(struct rank *r)
{
    for (int v = 0; v < r->l.n_vectors; v++)
        free(r->memory[v]);
    free(r->memory);
    params_local_close(&r->l);
}

/* ---- where the published files have a value ---- */

#define H HIDDEN
#define I INTER
#define W WIDE
#define BLOCKS(n) (((n) + 127) / 128)
/* The element of the tensor that has value (i, j), output and input, of expert x. */
typedef int64_t element(int64_t x, int64_t i, int64_t j);
/* clang-format off */
#define ELEMENT(name, formula) \
    static int64_t name(int64_t x, int64_t i, int64_t j) { (void)x, (void)j; return formula; }
ELEMENT(fused_gate, (x * 2 * I + i) * H + j)
ELEMENT(fused_up, (x * 2 * I + I + i) * H + j)
ELEMENT(fused_down, (x * H + i) * I + j)
ELEMENT(fp8_gate, (x * 2 * W + i) * H + j)
ELEMENT(fp8_up, (x * 2 * W + W + i) * H + j)
ELEMENT(fp8_down, (x * H + i) * W + j)
/* 160 rows of gate and 160 of up have 3 rows of scales: gate the first two, up the last two. */
ELEMENT(fp8_gate_scale, (x * BLOCKS(2 * W) + i / 128) * BLOCKS(H) + j / 128)
ELEMENT(fp8_up_scale, (x * BLOCKS(2 * W) + (W + i) / 128) * BLOCKS(H) + j / 128)
ELEMENT(fp8_down_scale, (x * BLOCKS(H) + i / 128) * BLOCKS(W) + j / 128)
ELEMENT(oss_gate, (x * H + j) * 2 * I + 2 * i)
ELEMENT(oss_up, (x * H + j) * 2 * I + 2 * i + 1)
ELEMENT(oss_down, (x * I + j) * H + i)
ELEMENT(oss_gate_bias, x * 2 * I + 2 * i)
ELEMENT(oss_up_bias, x * 2 * I + 2 * i + 1)
ELEMENT(oss_down_bias, x * H + i)
ELEMENT(mxfp4_gate, (x * 2 * I + 2 * i) * (H / 2) + j / 2)
ELEMENT(mxfp4_up, (x * 2 * I + 2 * i + 1) * (H / 2) + j / 2)
ELEMENT(mxfp4_down, (x * H + i) * (I / 2) + j / 2)
ELEMENT(mxfp4_gate_scale, (x * 2 * I + 2 * i) * (H / 32) + j / 32)
ELEMENT(mxfp4_up_scale, (x * 2 * I + 2 * i + 1) * (H / 32) + j / 32)
ELEMENT(mxfp4_down_scale, (x * H + i) * (I / 32) + j / 32)

/* One kind in layer 1: its tensor, its size in values, the dim that tp cuts, and the element of each value
 * (NULL: row by row). per_row, per_col: values that share an element, 0 means 1. */
enum cut { COPY, ROWS, COLUMNS };
struct place {
    enum param_kind kind;
    int is_scale;
    const char *name; /* %d: the expert */
    int64_t rows, cols;
    enum cut cut;
    int per_row, per_col;
    element *at;
};
#define L "model.layers.1."
#define EX L "mlp.experts."
#define PLACE(k, n, r, c, which, ...) \
    { .kind = k, .name = n, .rows = r, .cols = c, .cut = which, __VA_ARGS__ }
#define SCALE128 .is_scale = 1, .per_row = 128, .per_col = 128
#define SCALE32 .is_scale = 1, .per_col = 32
#define END { .kind = P_KINDS }
static const struct place mixtral_places[] = {
    PLACE(P_ROUTER, L "block_sparse_moe.gate.weight", EXPERTS, H, COPY),
    PLACE(P_GATE, L "block_sparse_moe.experts.%d.w1.weight", I, H, ROWS),
    PLACE(P_UP, L "block_sparse_moe.experts.%d.w3.weight", I, H, ROWS),
    PLACE(P_DOWN, L "block_sparse_moe.experts.%d.w2.weight", H, I, COLUMNS),
    PLACE(P_Q, L "self_attn.q_proj.weight", HEADS * 4, H, ROWS),
    END
};
static const struct place qwen3_places[] = {
    PLACE(P_GATE, EX "%d.gate_proj.weight", I, H, ROWS),
    PLACE(P_UP, EX "%d.up_proj.weight", I, H, ROWS),
    PLACE(P_DOWN, EX "%d.down_proj.weight", H, I, COLUMNS),
    END
};
static const struct place fused_places[] = {
    PLACE(P_GATE, EX "gate_up_proj", I, H, ROWS, .at = fused_gate),
    PLACE(P_UP, EX "gate_up_proj", I, H, ROWS, .at = fused_up),
    PLACE(P_DOWN, EX "down_proj", H, I, COLUMNS, .at = fused_down),
    PLACE(P_ROUTER, L "mlp.gate.weight", EXPERTS, H, COPY),
    END
};
static const struct place fused_fp8_places[] = {
    PLACE(P_GATE, EX "gate_up_proj", W, H, ROWS, .at = fp8_gate),
    PLACE(P_UP, EX "gate_up_proj", W, H, ROWS, .at = fp8_up),
    PLACE(P_DOWN, EX "down_proj", H, W, COLUMNS, .at = fp8_down),
    PLACE(P_GATE, EX "gate_up_proj_scales_inv", W, H, ROWS, .at = fp8_gate_scale, SCALE128),
    PLACE(P_UP, EX "gate_up_proj_scales_inv", W, H, ROWS, .at = fp8_up_scale, SCALE128),
    PLACE(P_DOWN, EX "down_proj_scales_inv", H, W, COLUMNS, .at = fp8_down_scale, SCALE128),
    END
};
static const struct place gpt_oss_places[] = {
    PLACE(P_GATE, EX "gate_up_proj", I, H, ROWS, .at = oss_gate),
    PLACE(P_UP, EX "gate_up_proj", I, H, ROWS, .at = oss_up),
    PLACE(P_DOWN, EX "down_proj", H, I, COLUMNS, .at = oss_down),
    PLACE(P_GATE_BIAS, EX "gate_up_proj_bias", I, 1, ROWS, .at = oss_gate_bias),
    PLACE(P_UP_BIAS, EX "gate_up_proj_bias", I, 1, ROWS, .at = oss_up_bias),
    PLACE(P_DOWN_BIAS, EX "down_proj_bias", H, 1, COPY, .at = oss_down_bias),
    PLACE(P_ROUTER_BIAS, L "mlp.router.bias", EXPERTS, 1, COPY),
    PLACE(P_SINKS, L "self_attn.sinks", HEADS, 1, ROWS),
    END
};
static const struct place mxfp4_places[] = {
    PLACE(P_GATE, EX "gate_up_proj_blocks", I, H, ROWS, .at = mxfp4_gate, .per_col = 2),
    PLACE(P_UP, EX "gate_up_proj_blocks", I, H, ROWS, .at = mxfp4_up, .per_col = 2),
    PLACE(P_DOWN, EX "down_proj_blocks", H, I, COLUMNS, .at = mxfp4_down, .per_col = 2),
    PLACE(P_GATE, EX "gate_up_proj_scales", I, H, ROWS, .at = mxfp4_gate_scale, SCALE32),
    PLACE(P_UP, EX "gate_up_proj_scales", I, H, ROWS, .at = mxfp4_up_scale, SCALE32),
    PLACE(P_DOWN, EX "down_proj_scales", H, I, COLUMNS, .at = mxfp4_down_scale, SCALE32),
    END
};
static const struct place deepseek_places[] = {
    PLACE(P_Q_B, L "self_attn.q_b_proj.weight", HEADS * 24, 40, ROWS),
    PLACE(P_Q_B, L "self_attn.q_b_proj.weight_scale_inv", HEADS * 24, 40, ROWS, SCALE128),
    PLACE(P_KV_A, L "self_attn.kv_a_proj_with_mqa.weight", 40, H, COPY),
    PLACE(P_KV_A, L "self_attn.kv_a_proj_with_mqa.weight_scale_inv", 40, H, COPY, SCALE128),
    PLACE(P_KV_B, L "self_attn.kv_b_proj.weight", HEADS * 32, 32, ROWS),
    PLACE(P_O, L "self_attn.o_proj.weight", H, HEADS * 16, COLUMNS),
    PLACE(P_O, L "self_attn.o_proj.weight_scale_inv", H, HEADS * 16, COLUMNS, SCALE128),
    PLACE(P_SHARED_UP, L "mlp.shared_experts.up_proj.weight", W, H, ROWS),
    PLACE(P_ROUTER_BIAS, L "mlp.gate.e_score_correction_bias", EXPERTS, 1, COPY),
    PLACE(P_GATE, EX "%d.gate_proj.weight", W, H, ROWS),
    PLACE(P_UP, EX "%d.up_proj.weight", W, H, ROWS),
    PLACE(P_DOWN, EX "%d.down_proj.weight", H, W, COLUMNS),
    PLACE(P_GATE, EX "%d.gate_proj.weight_scale_inv", W, H, ROWS, SCALE128),
    PLACE(P_UP, EX "%d.up_proj.weight_scale_inv", W, H, ROWS, SCALE128),
    PLACE(P_DOWN, EX "%d.down_proj.weight_scale_inv", H, W, COLUMNS, SCALE128),
    END
};
static const struct place *const places[PUBLISHED_MODELS] = {
    [MIXTRAL] = mixtral_places, [QWEN3_MOE] = qwen3_places, [QWEN3_MOE_FUSED] = fused_places,
    [FUSED_FP8] = fused_fp8_places, [GPT_OSS] = gpt_oss_places, [GPT_OSS_MXFP4] = mxfp4_places,
    [DEEPSEEK_V3] = deepseek_places,
};
/* clang-format on */

static int is_of_expert(const struct place *p)
{
    return strstr(p->name, "experts.") && !strstr(p->name, "shared_experts.");
}
static int64_t per(int n) { return n ? n : 1; }

/* The published value. begin: of the tensor among all values. */
static int32_t published_value(const struct opened *o, const struct place *p, int64_t begin, int64_t x,
                               int64_t i, int64_t j)
{
    int64_t a = per(p->per_row), b = per(p->per_col), each = (p->cols + b - 1) / b;
    return o->value[begin + (p->at ? p->at(x, i, j) : i / a * each + j / b)];
}

/* The value in a rank's memory, as a sublayer finds it: i and j count from the first that the rank has. */
static int32_t memory_value(const struct rank *r, const struct place *p, int part, const struct component *c,
                            int64_t i, int64_t j)
{
    const struct part *q = &r->l.part[part];
    const struct param *of = &r->o->t.p[q->param];
    struct box whole = param_box(&r->o->t.p[c->param]);
    int first = of->stacked;
    int64_t outer = q->box.extent[first], inner = q->count / outer;
    int64_t row = i * c->stride + c->box.start[of->split_dim] - whole.start[of->split_dim];
    row = (row + (p->cut == ROWS ? q->skip : 0)) / per(p->per_row);
    int64_t col = (j + (p->cut == COLUMNS ? q->skip : 0)) / per(p->per_col);
    return part_memory(r, part)[of->transposed ? col * inner + row : row * inner + col];
}

/* Values of one kind and expert in a rank's memory that are not the published ones. */
static int64_t count_wrong(const struct rank *r, const struct place *p, int x)
{
    const struct param_table *t = &r->o->t;
    struct component c;
    char name[96];
    int part = params_part(&r->l, 2, p->kind, x), whole = r->l.layout.ep > 1 && is_of_expert(p);
    snprintf(name, sizeof name, "%s", p->name);
    if (strstr(p->name, "%d"))
        snprintf(name, sizeof name, "%.*s%d%s", (int)(strstr(p->name, "%d") - p->name), p->name, x,
                 strstr(p->name, "%d") + 2);
    int tensor = param_find(t, name);
    if (tensor < 0 || part < 0 || !param_component(t, 2, p->kind, x, &c))
        return 1;
    if (p->is_scale)
        part = r->l.part_of[t->p[c.param].companion];

    int n = whole ? 1 : r->l.layout.tp, at = whole ? 0 : r->l.at.tp;
    int64_t rows = p->cut == ROWS ? p->rows / n : p->rows, cols = p->cut == COLUMNS ? p->cols / n : p->cols;
    int64_t row0 = p->cut == ROWS ? rows * at : 0, col0 = p->cut == COLUMNS ? cols * at : 0, wrong = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            wrong += published_value(r->o, p, r->o->named[tensor], x, row0 + i, col0 + j) !=
                     memory_value(r, p, part, &c, i, j);
    return wrong;
}

/* ---- joining ---- */

/* The element of the rank's memory at these indices of a tensor, in one of the n parts from i on. */
static int32_t element_of_parts(const struct rank *r, int i, int n, const int64_t *index)
{
    for (const struct part *q = &r->l.part[i]; q < &r->l.part[i + n]; q++) {
        int64_t off = 0, inside = 1;
        for (int d = 0; d < q->box.n_dims; d++) {
            int64_t k = index[d] - q->box.start[d];
            inside &= k >= 0 && k < q->box.extent[d];
            off = off * q->box.extent[d] + k;
        }
        if (inside)
            return part_memory(r, (int)(q - r->l.part))[off];
    }
    return 0;
}

/* Writes a piece into the joined tensors. */
static void write_piece(struct opened *o, const struct rank *r, const struct param_piece *x)
{
    const struct part *q = &r->l.part[x->part];
    const struct param *p = &o->t.p[q->param];
    for (int64_t k = x->lo; k < x->hi; k++) {
        int64_t index[BOX_DIMS], at = k, to = 0;
        for (int d = x->box.n_dims - 1; d >= 0; d--) {
            index[d] = x->box.start[d] + at % x->box.extent[d];
            at /= x->box.extent[d];
        }
        for (int d = 0; d < p->n_dims; d++)
            to = to * p->shape[d] + index[d];
        int32_t v = element_of_parts(r, x->part, x->n_parts, index);
        if (x->flat >= 0 && x->n_parts == 1)
            CHECK_INT(r->memory[q->vector][x->flat + k - x->lo], v);
        o->joined[o->begin[q->param] + to] = v;
        o->written[o->begin[q->param] + to]++;
    }
}

/* Elements that the pieces of all ranks give another value, or do not write exactly once. */
static int64_t count_not_joined(struct opened *o)
{
    int64_t n = 0;
    for (int64_t i = 0; i < o->n_values; i++)
        n += o->joined[i] != o->value[i] || o->written[i] != 1;
    memset(o->joined, 0, (size_t)o->n_values * sizeof *o->joined);
    memset(o->written, 0, (size_t)o->n_values);
    return n;
}

/* ---- the tests ---- */

/* Of all kinds and of the experts that the rank has. */
static int64_t count_all_wrong(const struct rank *r, const struct place *p)
{
    int ep = r->l.layout.ep;
    int64_t wrong = 0;
    for (; p->kind != P_KINDS; p++)
        for (int x = 0; x < (is_of_expert(p) ? EXPERTS : 1); x++)
            if (!is_of_expert(p) || ep == 1 || x * ep / EXPERTS == r->l.at.ep)
                wrong += count_wrong(r, p, x);
    return wrong;
}

/* Cuts the model to every rank and joins what the ranks write. Returns the values that are wrong in memory,
 * looked at where whole boxes are written; joined: the values that are wrong then. */
static int64_t cut_and_join(struct opened *o, enum published_model which, const struct layout *l, int sliced,
                            int64_t *joined)
{
    int64_t wrong = 0;
    for (int n = 0; n < layout_ranks(l); n++) {
        struct rank r;
        open_rank(&r, o, l, layout_at(l, n));
        if (!sliced && params_stage_rank(&o->t, l, 2) == r.l.at.pp)
            wrong += count_all_wrong(&r, places[which]);
        struct param_piece *piece = calloc((size_t)r.l.n_parts, sizeof *piece);
        int n_pieces = params_pieces(&r.l, r.l.at.dp, sliced, piece);
        for (int i = 0; i < n_pieces; i++)
            write_piece(o, &r, &piece[i]);
        free(piece);
        close_rank(&r);
    }
    *joined = count_not_joined(o);
    return wrong;
}

/* tp 1, 2, 4, 8 with the experts cut by tp, and whole experts over ep ranks made of dp and tp ranks. */
static const struct layout layouts[] = {
    { .tp = 1, .pp = 1, .cp = 1, .dp = 1, .ep = 1 }, { .tp = 2, .pp = 1, .cp = 1, .dp = 2, .ep = 1 },
    { .tp = 4, .pp = 2, .cp = 1, .dp = 1, .ep = 1 }, { .tp = 8, .pp = 1, .cp = 1, .dp = 1, .ep = 1 },
    { .tp = 1, .pp = 1, .cp = 1, .dp = 2, .ep = 2 }, { .tp = 1, .pp = 1, .cp = 1, .dp = 4, .ep = 4 },
    { .tp = 1, .pp = 1, .cp = 1, .dp = 6, .ep = 2 }, { .tp = 2, .pp = 1, .cp = 1, .dp = 2, .ep = 2 },
    { .tp = 2, .pp = 1, .cp = 1, .dp = 4, .ep = 4 }, { .tp = 4, .pp = 1, .cp = 1, .dp = 1, .ep = 4 },
};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static void check_model(enum published_model which)
{
    struct opened o;
    open_model(&o, which);
    for (size_t i = 0; i < LAYOUTS; i++) {
        for (int sliced = 0; sliced < 2; sliced++) {
            int64_t joined, wrong = cut_and_join(&o, which, &layouts[i], sliced, &joined);
            if (wrong || joined)
                test_fail(__FILE__, __LINE__,
                          "model %d, tp %d dp %d ep %d: %lld values wrong, %lld not joined", which,
                          layouts[i].tp, layouts[i].dp, layouts[i].ep, (long long)wrong, (long long)joined);
        }
    }
    close_model(&o);
}
TEST(mixtral_is_cut_and_joined_value_by_value) { check_model(MIXTRAL); }
TEST(qwen3_moe_is_cut_and_joined_value_by_value) { check_model(QWEN3_MOE); }
TEST(fused_experts_are_cut_and_joined_value_by_value) { check_model(QWEN3_MOE_FUSED); }
TEST(fused_fp8_experts_are_cut_with_their_scales) { check_model(FUSED_FP8); }
TEST(gpt_oss_is_cut_and_joined_value_by_value) { check_model(GPT_OSS); }
TEST(gpt_oss_in_mxfp4_is_cut_with_its_scales) { check_model(GPT_OSS_MXFP4); }
TEST(deepseek_v3_is_cut_with_its_scales) { check_model(DEEPSEEK_V3); }

/* ---- swapped on purpose ---- */

static void swap(int64_t *a, int64_t *b)
{
    int64_t tmp = *a;
    *a = *b;
    *b = tmp;
}

/* Lets each of two parameters stand where the other one does in the files. */
static void swap_places(struct opened *o, int a, int b)
{
    struct param *p = &o->t.p[a], *q = &o->t.p[b];
    int expert = p->expert;
    p->expert = q->expert;
    q->expert = expert;
    swap(&p->begin, &q->begin);
    swap(&o->begin[a], &o->begin[b]);
}

/* Swaps the places of two parameters, or the components of one. What is cut joins to the same files all the
 * same, as any permutation does: the values in memory show it. */
static void check_swap(enum published_model which, enum param_kind a, int expert_a, enum param_kind b,
                       int expert_b, int of_companions)
{
    struct opened o;
    int64_t joined, wrong;
    open_model(&o, which);
    int i = param_at(&o.t, 2, a, expert_a), k = param_at(&o.t, 2, b, expert_b);
    if (of_companions) {
        i = o.t.p[i].companion;
        k = o.t.p[k].companion;
    }
    if (i == k) {
        enum param_kind first = o.t.p[i].alternating[0];
        o.t.p[i].alternating[0] = o.t.p[i].alternating[1];
        o.t.p[i].alternating[1] = first;
    } else {
        swap_places(&o, i, k);
    }
    wrong = cut_and_join(&o, which, &layouts[1], 0, &joined);
    CHECK_INT(joined, 0);
    if (wrong < INTER)
        test_fail(__FILE__, __LINE__, "model %d: kinds %d and %d swapped: %lld values are wrong", which, a, b,
                  (long long)wrong);
    close_model(&o);
}
TEST(swapping_gate_and_up_is_noticed)
{
    for (int m = 0; m < PUBLISHED_MODELS; m++)
        check_swap((enum published_model)m, P_GATE, 1, P_UP, 1, 0);
    check_swap(GPT_OSS, P_GATE_BIAS, 1, P_UP_BIAS, 1, 0);
}
TEST(swapping_two_experts_is_noticed)
{
    for (int m = 0; m < PUBLISHED_MODELS; m++)
        check_swap((enum published_model)m, P_DOWN, 1, P_DOWN, 2, 0);
}
TEST(swapping_scales_is_noticed)
{
    static const enum published_model some[] = { FUSED_FP8, GPT_OSS_MXFP4, DEEPSEEK_V3 };
    for (int m = 0; m < 3; m++)
        check_swap(some[m], P_DOWN, 0, P_DOWN, 3, 1);
    check_swap(DEEPSEEK_V3, P_GATE, 0, P_UP, 0, 1);
}

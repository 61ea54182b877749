/* model_published_test.c - tables of models to come against the names, shapes and dtypes that are published.
 *
 * The lists are written from what is published, not from the tables: files on the hub of Mixtral 8x7B,
 * Qwen3-30B-A3B, gpt-oss-20b and DeepSeek-V3 (without its layer for multi-token prediction); the fused form
 * is that of transformers 5 (its conversion mapping). */
#include <time.h>
#include "tests/test.h"
#include "tests/unit/model/published_tables.h"

static struct err e;

/* One line a tensor name; of says in which layers, and OF_EXPERT that every expert has one. */
struct published {
    const char *name;
    int64_t shape[BOX_DIMS];
    const char *dtype; /* NULL: bf16, as the run */
    enum row_of of;
};

#define MOST 48
/* clang-format off */
#define ENDS(V, H) \
    { "model.embed_tokens.weight", { V, H } }, { "model.norm.weight", { H } }, { "lm_head.weight", { V, H } }
#define ATTENTION(H, Q, KV) \
    { "model.layers.%d.input_layernorm.weight", { H } }, \
    { "model.layers.%d.post_attention_layernorm.weight", { H } }, \
    { "model.layers.%d.self_attn.q_proj.weight", { Q, H } }, \
    { "model.layers.%d.self_attn.k_proj.weight", { KV, H } }, \
    { "model.layers.%d.self_attn.v_proj.weight", { KV, H } }, \
    { "model.layers.%d.self_attn.o_proj.weight", { H, Q } }
#define HEAD_NORMS \
    { "model.layers.%d.self_attn.q_norm.weight", { 128 } }, \
    { "model.layers.%d.self_attn.k_norm.weight", { 128 } }
#define GPT_OSS_COMMON \
    ENDS(201088, 2880), ATTENTION(2880, 4096, 512), \
    { "model.layers.%d.self_attn.q_proj.bias", { 4096 } }, \
    { "model.layers.%d.self_attn.k_proj.bias", { 512 } }, \
    { "model.layers.%d.self_attn.v_proj.bias", { 512 } }, \
    { "model.layers.%d.self_attn.o_proj.bias", { 2880 } }, \
    { "model.layers.%d.self_attn.sinks", { 64 } }, \
    { "model.layers.%d.mlp.router.weight", { 32, 2880 } }, \
    { "model.layers.%d.mlp.router.bias", { 32 } }, \
    { "model.layers.%d.mlp.experts.gate_up_proj_bias", { 32, 5760 } }, \
    { "model.layers.%d.mlp.experts.down_proj_bias", { 32, 2880 } }
#define FP8_PAIR(name, of, N, K) \
    { "model.layers.%d." name ".weight", { N, K }, "F8_E4M3", of }, \
    { "model.layers.%d." name ".weight_scale_inv", { (N + 127) / 128, (K + 127) / 128 }, "F32", of }

static const struct {
    const char *what;
    struct model_config sizes;
    int n_dense;
    struct published tensor[MOST];
} model[PUBLISHED_MODELS] = {
    [MIXTRAL] = { "Mixtral 8x7B",
        { .hidden = 4096, .n_layers = 32, .n_heads = 32, .n_kv = 8, .head_dim = 128, .vocab = 32000,
          .n_experts = 8, .expert_inter = 14336 }, 0,
        { ENDS(32000, 4096), ATTENTION(4096, 4096, 1024),
          { "model.layers.%d.block_sparse_moe.gate.weight", { 8, 4096 } },
          { "model.layers.%d.block_sparse_moe.experts.%d.w1.weight", { 14336, 4096 }, NULL, OF_EXPERT },
          { "model.layers.%d.block_sparse_moe.experts.%d.w2.weight", { 4096, 14336 }, NULL, OF_EXPERT },
          { "model.layers.%d.block_sparse_moe.experts.%d.w3.weight", { 14336, 4096 }, NULL, OF_EXPERT } } },
    [QWEN3_MOE] = { "Qwen3-30B-A3B",
        { .hidden = 2048, .n_layers = 48, .n_heads = 32, .n_kv = 4, .head_dim = 128, .vocab = 151936,
          .inter = 6144, .n_experts = 128, .expert_inter = 768 }, 0,
        { ENDS(151936, 2048), ATTENTION(2048, 4096, 512), HEAD_NORMS,
          { "model.layers.%d.mlp.gate.weight", { 128, 2048 } },
          { "model.layers.%d.mlp.experts.%d.gate_proj.weight", { 768, 2048 }, NULL, OF_EXPERT },
          { "model.layers.%d.mlp.experts.%d.up_proj.weight", { 768, 2048 }, NULL, OF_EXPERT },
          { "model.layers.%d.mlp.experts.%d.down_proj.weight", { 2048, 768 }, NULL, OF_EXPERT } } },
    [QWEN3_MOE_FUSED] = { "Qwen3-30B-A3B, fused",
        { .hidden = 2048, .n_layers = 48, .n_heads = 32, .n_kv = 4, .head_dim = 128, .vocab = 151936,
          .inter = 6144, .n_experts = 128, .expert_inter = 768 }, 0,
        { ENDS(151936, 2048), ATTENTION(2048, 4096, 512), HEAD_NORMS,
          { "model.layers.%d.mlp.gate.weight", { 128, 2048 } },
          { "model.layers.%d.mlp.experts.gate_up_proj", { 128, 1536, 2048 } },
          { "model.layers.%d.mlp.experts.down_proj", { 128, 2048, 768 } } } },
    [FUSED_FP8] = { "Qwen3-30B-A3B, experts fused in FP8",
        { .hidden = 2048, .n_layers = 48, .n_heads = 32, .n_kv = 4, .head_dim = 128, .vocab = 151936,
          .inter = 6144, .n_experts = 128, .expert_inter = 768 }, 0,
        { ENDS(151936, 2048), ATTENTION(2048, 4096, 512), HEAD_NORMS,
          { "model.layers.%d.mlp.gate.weight", { 128, 2048 } },
          { "model.layers.%d.mlp.experts.gate_up_proj", { 128, 1536, 2048 }, "F8_E4M3" },
          { "model.layers.%d.mlp.experts.gate_up_proj_scales_inv", { 128, 12, 16 }, "F32" },
          { "model.layers.%d.mlp.experts.down_proj", { 128, 2048, 768 }, "F8_E4M3" },
          { "model.layers.%d.mlp.experts.down_proj_scales_inv", { 128, 16, 6 }, "F32" } } },
    [GPT_OSS] = { "gpt-oss-20b in bf16",
        { .hidden = 2880, .n_layers = 24, .n_heads = 64, .n_kv = 8, .head_dim = 64, .vocab = 201088,
          .n_experts = 32, .expert_inter = 2880 }, 0,
        { GPT_OSS_COMMON,
          { "model.layers.%d.mlp.experts.gate_up_proj", { 32, 2880, 5760 } },
          { "model.layers.%d.mlp.experts.down_proj", { 32, 2880, 2880 } } } },
    [GPT_OSS_MXFP4] = { "gpt-oss-20b in MXFP4",
        { .hidden = 2880, .n_layers = 24, .n_heads = 64, .n_kv = 8, .head_dim = 64, .vocab = 201088,
          .n_experts = 32, .expert_inter = 2880 }, 0,
        { GPT_OSS_COMMON,
          { "model.layers.%d.mlp.experts.gate_up_proj_blocks", { 32, 5760, 90, 16 }, "U8" },
          { "model.layers.%d.mlp.experts.gate_up_proj_scales", { 32, 5760, 90 }, "U8" },
          { "model.layers.%d.mlp.experts.down_proj_blocks", { 32, 2880, 90, 16 }, "U8" },
          { "model.layers.%d.mlp.experts.down_proj_scales", { 32, 2880, 90 }, "U8" } } },
    [DEEPSEEK_V3] = { "DeepSeek-V3",
        { .hidden = 7168, .n_layers = 61, .n_heads = 128, .n_kv = 128, .head_dim = 192, .vocab = 129280,
          .inter = 18432, .n_experts = 256, .expert_inter = 2048, .shared_inter = 2048,
          .latent = { .q_rank = 1536, .kv_rank = 512, .rope_dim = 64, .nope_dim = 128, .v_dim = 128 } }, 3,
        { ENDS(129280, 7168),
          { "model.layers.%d.input_layernorm.weight", { 7168 } },
          { "model.layers.%d.post_attention_layernorm.weight", { 7168 } },
          FP8_PAIR("self_attn.q_a_proj", OF_ANY, 1536, 7168),
          { "model.layers.%d.self_attn.q_a_layernorm.weight", { 1536 } },
          FP8_PAIR("self_attn.q_b_proj", OF_ANY, 24576, 1536),
          FP8_PAIR("self_attn.kv_a_proj_with_mqa", OF_ANY, 576, 7168),
          { "model.layers.%d.self_attn.kv_a_layernorm.weight", { 512 } },
          FP8_PAIR("self_attn.kv_b_proj", OF_ANY, 32768, 512),
          FP8_PAIR("self_attn.o_proj", OF_ANY, 7168, 16384),
          FP8_PAIR("mlp.gate_proj", OF_DENSE, 18432, 7168),
          FP8_PAIR("mlp.up_proj", OF_DENSE, 18432, 7168),
          FP8_PAIR("mlp.down_proj", OF_DENSE, 7168, 18432),
          { "model.layers.%d.mlp.gate.weight", { 256, 7168 }, NULL, OF_SPARSE },
          { "model.layers.%d.mlp.gate.e_score_correction_bias", { 256 }, "F32", OF_SPARSE },
          FP8_PAIR("mlp.shared_experts.gate_proj", OF_SPARSE, 2048, 7168),
          FP8_PAIR("mlp.shared_experts.up_proj", OF_SPARSE, 2048, 7168),
          FP8_PAIR("mlp.shared_experts.down_proj", OF_SPARSE, 7168, 2048),
          FP8_PAIR("mlp.experts.%d.gate_proj", OF_EXPERT, 2048, 7168),
          FP8_PAIR("mlp.experts.%d.up_proj", OF_EXPERT, 2048, 7168),
          FP8_PAIR("mlp.experts.%d.down_proj", OF_EXPERT, 7168, 2048) } },
};
/* clang-format on */

struct opened {
    struct family f;
    struct model_config c;
    struct param_table t;
};
static void open_model(struct opened *o, enum published_model which)
{
    o->f = published_family(which);
    o->c = published_config(&o->f, model[which].sizes, model[which].n_dense);
    CHECK_INT(param_table_open(&o->t, &o->c, &e), 0);
}

/* The table's entry of a published tensor, which is marked as seen. */
static void check_tensor(const struct param_table *t, const struct published *x, const char *name, char *seen)
{
    int i = param_find(t, name);
    if (i < 0) {
        test_fail(__FILE__, __LINE__, "%s is in no table", name);
        return;
    }
    const struct param *p = &t->p[i];
    int same = !strcmp(p->name, name) && p->n_sharing && !seen[i];
    for (int d = 0; d < BOX_DIMS; d++)
        same &= d < p->n_dims ? p->shape[d] == x->shape[d] : !x->shape[d];
    same &= x->dtype ? p->dtype && !strcmp(p->dtype, x->dtype) : !p->dtype;
    if (!same)
        test_fail(__FILE__, __LINE__, "%s: %d dims, [%lld,%lld,%lld,%lld], %s, seen %d", name, p->n_dims,
                  (long long)p->shape[0], (long long)p->shape[1], (long long)p->shape[2],
                  (long long)p->shape[3], p->dtype ? p->dtype : "the run's dtype", seen[i]);
    seen[i] = 1;
}

/* All tensors of one line of the list. Returns how many. */
static int64_t check_line(const struct param_table *t, const struct published *x, char *seen)
{
    const struct model_config *c = &t->cfg;
    int64_t n = 0, experts = x->of == OF_EXPERT ? c->n_experts : 1;
    if (!strstr(x->name, "%d")) {
        check_tensor(t, x, x->name, seen);
        return 1;
    }
    for (int l = 0; l < c->n_layers; l++) {
        int sparse = model_has_experts(c, l);
        if ((x->of == OF_DENSE && sparse) || (x->of > OF_DENSE && !sparse))
            continue;
        for (int k = 0; k < experts; k++, n++) {
            char name[80];
            int mark = (int)(strstr(x->name, "%d") - x->name);
            const char *rest = x->name + mark + 2, *second = strstr(rest, "%d");
            if (second)
                snprintf(name, sizeof name, "%.*s%d%.*s%d%s", mark, x->name, l, (int)(second - rest), rest, k,
                         second + 2);
            else
                snprintf(name, sizeof name, "%.*s%d%s", mark, x->name, l, rest);
            check_tensor(t, x, name, seen);
        }
    }
    return n;
}

TEST(every_published_tensor_is_one_entry_with_its_shape_and_dtype_and_there_is_no_other)
{
    for (int m = 0; m < PUBLISHED_MODELS; m++) {
        struct opened o;
        int64_t published = 0, tensors = 0;
        open_model(&o, (enum published_model)m);
        char *seen = calloc((size_t)o.t.n, 1);
        for (const struct published *x = model[m].tensor; x->name; x++)
            published += check_line(&o.t, x, seen);
        for (int i = 0; i < o.t.n; i++)
            tensors += o.t.p[i].n_sharing > 0;
        if (tensors != published)
            test_fail(__FILE__, __LINE__, "%s: %lld tensors are published, the table has %lld", model[m].what,
                      (long long)published, (long long)tensors);
        free(seen);
        param_table_close(&o.t);
    }
}

TEST(every_parameter_is_found_by_unit_kind_and_expert)
{
    for (int m = 0; m < PUBLISHED_MODELS; m++) {
        struct opened o;
        int wrong = 0;
        open_model(&o, (enum published_model)m);
        for (int i = 0; i < o.t.n; i++) {
            const struct param *p = &o.t.p[i];
            int found = param_at(&o.t, p->unit, p->kind, p->expert);
            wrong += p->companion_of >= 0 ? found != p->companion_of : found != i;
            wrong += p->companion >= 0 && o.t.p[p->companion].companion_of != i;
        }
        CHECK_INT(wrong, 0);
        CHECK_INT(param_at(&o.t, 1, P_POS, -1), -1);
        CHECK_INT(param_at(&o.t, 5, P_DOWN, (int)o.c.n_experts), -1);
        CHECK_INT(param_find(&o.t, "model.layers.0.mlp.nothing"), -1);
        param_table_close(&o.t);
    }
}

/* ---- cuts, in numbers worked out by hand ---- */

/* A rank's part: its box, the values of its first block that the rank below owns. */
static void check_part(const struct opened *o, struct layout l, struct rank_at at, enum param_kind kind,
                       int expert, int companion, struct box want, int skip, int line)
{
    struct params_local local;
    CHECK_INT(params_local_open(&local, &o->t, &l, at, &e), 0);
    int i = params_part(&local, 5, kind, expert);
    if (i >= 0 && companion)
        i = local.part_of[o->t.p[local.part[i].param].companion];
    if (i < 0)
        test_fail(__FILE__, line, "the rank holds no such part");
    else if (!box_equal(&local.part[i].box, &want) || local.part[i].skip != skip)
        test_fail(__FILE__, line, "starts at %lld,%lld,%lld of %lld x %lld x %lld, skip %lld",
                  (long long)local.part[i].box.start[0], (long long)local.part[i].box.start[1],
                  (long long)local.part[i].box.start[2], (long long)local.part[i].box.extent[0],
                  (long long)local.part[i].box.extent[1], (long long)local.part[i].box.extent[2],
                  (long long)local.part[i].skip);
    params_local_close(&local);
}
#define BOX2(a, b, na, nb) ((struct box){ 2, { a, b }, { na, nb } })
#define BOX3(a, b, c, na, nb, nc) ((struct box){ 3, { a, b, c }, { na, nb, nc } })
#define BOX4(a, b, c, d, na, nb, nc, nd) ((struct box){ 4, { a, b, c, d }, { na, nb, nc, nd } })
#define TP(n) ((struct layout){ .tp = n, .pp = 1, .cp = 1, .dp = 1, .ep = 1 })
#define EP(n) ((struct layout){ .tp = 1, .pp = 1, .cp = 1, .dp = n, .ep = n })
#define RANK(r) ((struct rank_at){ .tp = r })
#define PART(l, at, kind, expert, box, skip) check_part(&o, l, at, kind, expert, 0, box, skip, __LINE__)
#define SCALES(l, at, kind, expert, box, skip) check_part(&o, l, at, kind, expert, 1, box, skip, __LINE__)

TEST(fused_experts_are_cut_in_each_half)
{
    struct opened o;
    open_model(&o, QWEN3_MOE_FUSED);
    PART(TP(4), RANK(1), P_GATE, 7, BOX3(7, 192, 0, 1, 192, 2048), 0);
    PART(TP(4), RANK(1), P_UP, 7, BOX3(7, 768 + 192, 0, 1, 192, 2048), 0);
    PART(TP(8), RANK(7), P_DOWN, 127, BOX3(127, 0, 672, 1, 2048, 96), 0);
    PART(EP(4), ((struct rank_at){ .dp = 2, .ep = 2 }), P_UP, 95, BOX3(95, 768, 0, 1, 768, 2048), 0);
    param_table_close(&o.t);
}

/* 192 rows a rank at tp 4 end inside of a block of 128: both ranks hold its scale. */
TEST(scales_cover_every_block_that_a_rank_has_values_of)
{
    struct opened o;
    open_model(&o, FUSED_FP8);
    SCALES(TP(4), RANK(0), P_GATE, 3, BOX3(3, 0, 0, 1, 2, 16), 0);
    SCALES(TP(4), RANK(1), P_GATE, 3, BOX3(3, 1, 0, 1, 2, 16), 64);
    SCALES(TP(4), RANK(2), P_UP, 3, BOX3(3, 6 + 3, 0, 1, 2, 16), 0);
    SCALES(TP(8), RANK(3), P_DOWN, 3, BOX3(3, 0, 2, 1, 16, 1), 32);
    param_table_close(&o.t);
}

TEST(gate_and_up_of_gpt_oss_are_cut_in_pairs)
{
    struct opened o;
    open_model(&o, GPT_OSS);
    PART(TP(8), RANK(3), P_GATE, 31, BOX3(31, 0, 3 * 720, 1, 2880, 720), 0);
    PART(TP(8), RANK(3), P_UP, 31, BOX3(31, 0, 3 * 720, 1, 2880, 720), 0);
    PART(TP(2), RANK(1), P_UP_BIAS, 4, BOX2(4, 2880, 1, 2880), 0);
    PART(TP(4), RANK(3), P_DOWN, 4, BOX3(4, 2160, 0, 1, 720, 2880), 0);
    param_table_close(&o.t);
}

/* 2880 columns are 90 blocks of 32: at tp 4 a rank has 22.5. */
TEST(blocks_of_mxfp4_that_a_cut_divides_lie_on_both_ranks)
{
    struct opened o;
    open_model(&o, GPT_OSS_MXFP4);
    PART(TP(4), RANK(0), P_DOWN, 4, BOX4(4, 0, 0, 0, 1, 2880, 23, 16), 0);
    PART(TP(4), RANK(1), P_DOWN, 4, BOX4(4, 0, 22, 0, 1, 2880, 23, 16), 16);
    SCALES(TP(4), RANK(1), P_DOWN, 4, BOX3(4, 0, 22, 1, 2880, 23), 16);
    PART(TP(8), RANK(1), P_DOWN, 4, BOX4(4, 0, 11, 0, 1, 2880, 12, 16), 8);
    PART(TP(2), RANK(1), P_DOWN, 4, BOX4(4, 0, 45, 0, 1, 2880, 45, 16), 0);
    PART(TP(8), RANK(1), P_GATE_UP, 4, BOX4(4, 720, 0, 0, 1, 720, 90, 16), 0);
    SCALES(TP(8), RANK(1), P_GATE_UP, 4, BOX3(4, 720, 0, 1, 720, 90), 0);
    param_table_close(&o.t);
}

TEST(latent_attention_is_cut_by_heads_and_its_compressed_part_is_copied)
{
    struct opened o;
    open_model(&o, DEEPSEEK_V3);
    PART(TP(8), RANK(5), P_Q_B, -1, BOX2(5 * 3072, 0, 3072, 1536), 0);
    PART(TP(8), RANK(5), P_KV_B, -1, BOX2(5 * 4096, 0, 4096, 512), 0);
    SCALES(TP(8), RANK(5), P_KV_B, -1, BOX2(5 * 32, 0, 32, 4), 0);
    PART(TP(8), RANK(5), P_KV_A, -1, BOX2(0, 0, 576, 7168), 0);
    SCALES(TP(8), RANK(5), P_KV_A, -1, BOX2(0, 0, 5, 56), 0);
    PART(TP(4), RANK(3), P_O, -1, BOX2(0, 12288, 7168, 4096), 0);
    PART(TP(2), RANK(1), P_SHARED_GATE, -1, BOX2(1024, 0, 1024, 7168), 0);
    PART(TP(2), RANK(1), P_DOWN, 255, BOX2(0, 1024, 7168, 1024), 0);
    PART(EP(4), ((struct rank_at){ .dp = 3, .ep = 3 }), P_DOWN, 255, BOX2(0, 0, 7168, 2048), 0);
    param_table_close(&o.t);
}

/* dp 2, tp 1 of a layout where two neighbouring dp ranks with both their tp ranks share the experts out. */
static void check_vectors(enum published_model which)
{
    struct opened o;
    struct params_local local;
    struct layout l = { .tp = 2, .pp = 1, .cp = 1, .dp = 6, .ep = 4 };
    open_model(&o, which);
    CHECK_INT(params_local_open(&local, &o.t, &l, layout_at(&l, 5), &e), 0);
    for (int k = 0; k < o.c.n_experts; k++)
        CHECK_INT(params_part(&local, 5, P_GATE, k) >= 0, k * 4 / o.c.n_experts == 1);
    for (int v = 0; v < local.n_vectors; v++) {
        const struct unit_part *u = &local.unit[v];
        CHECK_INT(u->n_slices, u->dtype ? 1 : u->group == GROUP_EXPERT ? 3 : 6);
        CHECK_INT(u->flat % (64 * u->n_slices), 0);
        for (int i = u->first; i < u->first + u->n; i++) {
            const struct param *p = &o.t.p[local.part[i].param];
            CHECK_INT(local.part[i].vector, v);
            CHECK_INT(p->unit, u->unit);
            CHECK(u->dtype ? p->dtype && !strcmp(u->dtype, p->dtype) : !p->dtype);
            CHECK_INT(u->group, p->expert < 0 ? GROUP_DENSE : GROUP_EXPERT);
            CHECK(local.part[i].offset % 64 == 0 && local.part[i].offset + local.part[i].count <= u->flat);
        }
    }
    params_local_close(&local);
    param_table_close(&o.t);
}
TEST(experts_have_a_vector_of_their_own_where_ep_shares_them_out)
{
    struct layout l = { .tp = 2, .pp = 1, .cp = 1, .dp = 6, .ep = 4 };
    for (int rank = 0; rank < layout_ranks(&l); rank++) {
        struct rank_at at = layout_at(&l, rank);
        CHECK_INT(at.ep, at.dp % 2 * 2 + at.tp);
        CHECK_INT(at.edp, at.dp / 2);
    }
    check_vectors(QWEN3_MOE_FUSED);
    check_vectors(DEEPSEEK_V3);
}

/* ---- how long it takes ---- */

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* The table, every name once, one rank's parts and what it writes: 90,000 tensors. Time of the processor,
 * so that a busy machine does not count. */
TEST(planning_deepseek_v3_takes_less_than_a_second)
{
    struct opened o;
    struct params_local local;
    struct layout l = { .tp = 1, .pp = 1, .cp = 1, .dp = 8, .ep = 8 };
    double start = seconds();
    int found = 0;
    open_model(&o, DEEPSEEK_V3);
    for (int i = 0; i < o.t.n; i++)
        found += param_find(&o.t, o.t.p[i].name) == i;
    CHECK_INT(found, o.t.n);
    CHECK_INT(params_local_open(&local, &o.t, &l, (struct rank_at){ 0 }, &e), 0);
    struct param_piece *piece = calloc((size_t)local.n_parts, sizeof *piece);
    CHECK_INT(params_pieces(&local, 0, 0, piece), local.n_parts);
    printf("    %d tensors: %.3f s\n", o.t.n, seconds() - start);
    CHECK(o.t.n > 89000);
    CHECK(seconds() - start < 1);
    free(piece);
    params_local_close(&local);
    param_table_close(&o.t);
}

/* transformers#47031: experts with both sizes equal were transposed in silence. gate_up shows the orientation
 * where down cannot, and the other way round. */
TEST(experts_of_the_wrong_orientation_are_named)
{
    struct model_config c;
    struct param_table t;
    char how[320];
    const char *text = "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":1,\"hidden_size\":64,"
                       "\"intermediate_size\":64,\"num_local_experts\":4,\"head_dim\":16}";
    CHECK_INT(model_config_parse(&c, text, "config.json", &e), 0);
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    const struct param *up = &t.p[param_find(&t, "model.layers.0.mlp.experts.gate_up_proj")];
    const struct param *down = &t.p[param_find(&t, "model.layers.0.mlp.experts.down_proj")];
    const int64_t right[3] = { 4, 64, 128 }, turned[3] = { 4, 128, 64 }, other[3] = { 4, 64, 96 };

    CHECK(down->shape[1] == down->shape[2]);
    CHECK(param_shape_fits(up, 3, right) && !param_shape_fits(up, 3, turned));
    CHECK_HAS(param_shape_differs(up, 3, turned, how), "is [4,128,64], config.json says [4,64,128]");
    CHECK_HAS(how, "its matrices are [out][in], this family stores [in][out]");
    CHECK_HAS(param_shape_differs(up, 3, other, how), "is it the config of another model");
    CHECK_HAS(param_shape_differs(up, 2, turned, how), "is [4,128], config.json says [4,64,128]");
    param_table_close(&t);
}

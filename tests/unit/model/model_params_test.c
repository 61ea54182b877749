/* model_params_test.c - the parameter table's consequences: boxes and pieces of all ranks cover every tensor
 * exactly once. */
#include "model/family.h"
#include "tests/test.h"

static struct err e;

static struct model_config config(int heads, int kv, int64_t inter, int64_t vocab, int tied)
{
    char text[600];
    struct model_config c;
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":%"
             "d,\"num_key_value_heads\":%d,"
             "\"head_dim\":4,\"intermediate_size\":%lld,\"vocab_size\":%lld,\"tie_word_embeddings\":%s}",
             heads, kv, (long long)inter, (long long)vocab, tied ? "true" : "false");
    if (model_config_parse(&c, text, "config.json", &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return c;
}

static const char *const other_families[] = {
    "{\"model_type\":\"qwen2\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_"
    "key_value_heads\":2,\"head_dim\":4,"
    "\"intermediate_size\":33,\"vocab_size\":70,\"tie_word_embeddings\":true}",
    "{\"model_type\":\"qwen3\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_"
    "key_value_heads\":4,\"head_dim\":6,"
    "\"intermediate_size\":40,\"vocab_size\":70,\"attention_bias\":true}",
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_"
    "key_value_heads\":1,\"head_dim\":6,"
    "\"intermediate_size\":50,\"vocab_size\":70,\"attention_bias\":true,\"mlp_bias\":true}",
    "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":3,\"n_head\":8,\"vocab_size\":71,\"n_positions\":19}",
    "{\"model_type\":\"gpt2\",\"n_embd\":12,\"n_layer\":3,\"n_head\":6,\"n_inner\":50,\"vocab_size\":71,\"n_"
    "positions\":5,\"tie_word_embeddings\":false}",
    "{\"model_type\":\"gpt_neox\",\"hidden_size\":24,\"num_hidden_layers\":3,\"rotary_pct\":1.0,\"num_"
    "attention_heads\":6,"
    "\"intermediate_size\":50,\"vocab_size\":71}",
    "{\"model_type\":\"gemma3_text\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":4,"
    "\"intermediate_size\":33,\"vocab_size\":70}",
    "{\"model_type\":\"mixtral\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_"
    "key_value_heads\":4,"
    "\"head_dim\":4,\"intermediate_size\":18,\"num_local_experts\":5,\"vocab_size\":70}",
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":24,\"num_hidden_layers\":3,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"head_dim\":6,"
    "\"intermediate_size\":40,\"moe_intermediate_size\":11,\"num_experts\":3,\"num_experts_per_tok\":2,\"mlp_"
    "only_layers\":[1],\"vocab_"
    "size\":70}",
};
#define OTHERS (sizeof other_families / sizeof *other_families)

static int64_t size_of(const struct param *p) { return p->shape[0] * p->shape[1]; }

/* The first of the parameters that share i's tensor. */
static int tensor_of(const struct param_table *t, int i)
{
    while (!t->p[i].n_sharing)
        i--;
    return i;
}

/* Marks elements [lo, hi) of box b of tensor p. */
static void mark(const struct param *p, unsigned char *seen, const struct box *b, int64_t lo, int64_t hi)
{
    int64_t cols = p->n_dims == 2 ? b->extent[1] : 1, whole = p->n_dims == 2 ? p->shape[1] : 1;
    for (int64_t i = lo; i < hi; i++) {
        int64_t row = b->start[0] + i / cols, col = (p->n_dims == 2 ? b->start[1] : 0) + i % cols;
        if (row < 0 || row >= p->shape[0] || col < 0 || col >= whole)
            test_fail(__FILE__, __LINE__, "%s: [%lld,%lld] lies outside", p->name, (long long)row,
                      (long long)col);
        else
            seen[row * whole + col]++;
    }
}

enum what { BOXES, WHOLE_PIECES, SLICED_PIECES };

static void mark_place(const struct param_table *t, const struct layout *l, int tp, int pp, enum what what,
                       unsigned char **seen)
{
    struct params_local local;
    CHECK_INT(params_local_open(&local, t, l, (struct rank_at){ .tp = tp, .pp = pp }, &e), 0);
    struct param_piece *piece = calloc((size_t)local.n_parts + 1, sizeof *piece);
    for (int i = 0; what == BOXES && i < local.n_parts; i++)
        if (local.part[i].owner)
            mark(&t->p[local.part[i].param], seen[tensor_of(t, local.part[i].param)], &local.part[i].box, 0,
                 local.part[i].count);
    for (int dp = 0; what != BOXES && dp < l->dp; dp++) {
        int n = params_pieces(&local, dp, what == SLICED_PIECES, piece);
        for (int i = 0; i < n; i++) {
            const struct part *p = &local.part[piece[i].part];
            /* one rank stores tensors whole */
            CHECK(what == SLICED_PIECES || l->tp > 1 || box_count(&piece[i].box) == size_of(&t->p[p->param]));
            int64_t slice = local.unit[t->p[p->param].unit].flat / l->dp;
            CHECK_INT(piece[i].flat, p->offset + piece[i].lo);
            if (what == SLICED_PIECES)
                CHECK(piece[i].flat >= slice * dp && p->offset + piece[i].hi <= slice * (dp + 1));
            mark(&t->p[p->param], seen[tensor_of(t, p->param)], &piece[i].box, piece[i].lo, piece[i].hi);
        }
    }
    free(piece);
    params_local_close(&local);
}

static void check_cover(const struct model_config *c, const struct layout *l, enum what what)
{
    struct param_table t;
    CHECK_INT(param_table_open(&t, c, &e), 0);
    unsigned char **seen = calloc((size_t)t.n, sizeof *seen);
    for (int i = 0; i < t.n; i++)
        seen[i] = calloc((size_t)size_of(&t.p[i]), 1);
    for (int pp = 0; pp < l->pp; pp++)
        for (int tp = 0; tp < l->tp; tp++)
            mark_place(&t, l, tp, pp, what, seen);
    for (int i = 0; i < t.n; i++) {
        for (int64_t k = 0; t.p[i].n_sharing && k < size_of(&t.p[i]); k++) {
            if (seen[i][k] == 1)
                continue;
            test_fail(__FILE__, __LINE__,
                      "%s, heads %lld/%lld tp %d pp %d dp %d, %d: %s[%lld] is covered %d times",
                      c->family->name, (long long)c->n_heads, (long long)c->n_kv, l->tp, l->pp, l->dp, what,
                      t.p[i].name, (long long)k, seen[i][k]);
            break;
        }
        free(seen[i]);
    }
    free(seen);
    param_table_close(&t);
}

static const struct {
    int heads, kv;
    int64_t inter, vocab;
} shapes[] = {
    { 8, 8, 32, 64 }, { 8, 2, 33, 701 }, { 8, 1, 100, 5 },
    { 6, 3, 21, 50 }, { 12, 4, 24, 97 }, { 7, 7, 14, 9 },
};

static int each_layout_of(const struct model_config *c, enum what what)
{
    int n = 0;
    for (int tp = 1; tp <= 12; tp++) {
        for (int pp = 1; pp <= 3; pp++) {
            for (int dp = 1; dp <= 5; dp += 2) {
                struct layout l = { tp, pp, 1, dp, 1, 0 };
                if (layout_check(&l, c, &e) < 0)
                    continue;
                check_cover(c, &l, what);
                n++;
            }
        }
    }
    return n;
}

static int each_layout(enum what what)
{
    int n = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct model_config c = config(shapes[s].heads, shapes[s].kv, shapes[s].inter, shapes[s].vocab,
                                       s % 2);
        n += each_layout_of(&c, what);
    }
    for (size_t s = 0; s < OTHERS; s++) {
        struct model_config c;
        if (model_config_parse(&c, other_families[s], "config.json", &e) < 0)
            test_fail(__FILE__, __LINE__, "%s", e.text);
        n += each_layout_of(&c, what);
    }
    return n;
}

TEST(boxes_of_the_owners_cover_every_tensor_once) { CHECK(each_layout(BOXES) > 100); }
TEST(whole_pieces_cover_every_tensor_once) { CHECK(each_layout(WHOLE_PIECES) > 100); }
TEST(zero_slices_cover_every_tensor_once) { CHECK(each_layout(SLICED_PIECES) > 100); }

TEST(replicated_kv_heads_have_one_owner_and_all_hold_the_head_of_their_queries)
{
    struct model_config c = config(8, 2, 32, 64, 0);
    struct layout l = { 8, 1, 1, 1, 1, 0 };
    struct param_table t;
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    for (int tp = 0; tp < 8; tp++) {
        struct params_local local;
        CHECK_INT(params_local_open(&local, &t, &l, (struct rank_at){ .tp = tp }, &e), 0);
        for (int i = 0; i < local.n_parts; i++) {
            const struct part *p = &local.part[i];
            if (t.p[p->param].kind != P_K && t.p[p->param].kind != P_V)
                continue;
            /* query head tp belongs to kv head tp / 4, of 4 rows */
            CHECK_INT(p->box.start[0], tp / 4 * 4);
            CHECK_INT(p->box.extent[0], 4);
            CHECK_INT(p->owner, tp % 4 == 0);
        }
        params_local_close(&local);
    }
    param_table_close(&t);
}

TEST(parameters_that_share_a_tensor_lie_side_by_side_along_the_cut)
{
    struct model_config c;
    struct layout l = { 2, 1, 1, 1, 1, 0 };
    struct param_table t;
    struct params_local local;
    CHECK_INT(model_config_parse(&c, other_families[3], "config.json", &e), 0);
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    CHECK_INT(params_local_open(&local, &t, &l, (struct rank_at){ .tp = 1 }, &e), 0);
    int i = param_find(&t, "transformer.h.1.attn.c_attn.weight"), p = 0;
    while (local.part[p].param != i)
        p++;
    /* q, k, v of rank 1: the upper half of each third */
    for (int k = 0; k < 3; k++) {
        CHECK_INT(t.p[i + k].kind, P_Q + k);
        CHECK_INT(t.p[i + k].shape[1], 72);
        CHECK_INT(t.p[i + k].n_sharing, k ? 0 : 3);
        CHECK_INT(param_count(&t.p[i + k]), 24 * 24);
        CHECK_INT(local.part[p + k].box.start[1], 24 * k + 12);
        CHECK_INT(local.part[p + k].box.extent[1], 12);
        CHECK_INT(local.part[p + k].box.extent[0], 24);
    }
    params_local_close(&local);
    param_table_close(&t);
}

TEST(experts_are_rows_of_their_own_with_their_number)
{
    struct model_config c;
    struct param_table t;
    char name[80];
    CHECK_INT(model_config_parse(&c, other_families[OTHERS - 1], "config.json", &e), 0);
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    for (int l = 0; l < 3; l++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate_proj.weight", l);
        CHECK_INT(param_find(&t, name) >= 0, l == 1);
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        CHECK_INT(param_find(&t, name) >= 0, l != 1);
        for (int x = 0; x < 4; x++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", l, x);
            int i = param_find(&t, name);
            CHECK_INT(i >= 0, l != 1 && x < 3);
            if (i < 0)
                continue;
            CHECK_INT(t.p[i].expert, x);
            CHECK_INT(t.p[i].layer, l);
            CHECK_INT(t.p[i].shape[0], 24);
            CHECK_INT(t.p[i].shape[1], 11);
            CHECK_INT(t.p[i].split_dim, 1);
        }
    }
    CHECK_INT(t.p[0].expert, -1);
    param_table_close(&t);
}

TEST(a_rank_has_q_k_and_v_of_the_same_heads_where_they_alternate)
{
    struct model_config c;
    struct param_table t;
    struct params_local local;
    struct layout l = { 2, 1, 1, 1, 1, 0 };
    CHECK_INT(model_config_parse(&c, other_families[OTHERS - 4], "config.json", &e), 0);
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    for (int tp = 0; tp < 2; tp++) {
        CHECK_INT(params_local_open(&local, &t, &l, (struct rank_at){ .tp = tp }, &e), 0);
        for (int i = 0; i < local.n_parts; i++) {
            if (t.p[local.part[i].param].kind != P_QKV)
                continue;
            /* three heads of q, k and v, four rows each */
            CHECK_INT(local.part[i].box.start[0], tp * 3 * 3 * 4);
            CHECK_INT(local.part[i].box.extent[0], 3 * 3 * 4);
        }
        params_local_close(&local);
    }
    param_table_close(&t);
}

TEST(parts_of_a_unit_do_not_overlap_and_slices_are_aligned)
{
    struct model_config c = config(8, 2, 33, 701, 0);
    struct param_table t;
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    for (int dp = 1; dp <= 6; dp++) {
        struct layout l = { 4, 1, 1, dp, 1, 3 };
        struct params_local local;
        CHECK_INT(params_local_open(&local, &t, &l, (struct rank_at){ .tp = 1 }, &e), 0);
        for (int u = 0; u < local.n_units; u++) {
            int64_t at = 0;
            for (int i = local.unit[u].first; i < local.unit[u].first + local.unit[u].n; i++) {
                CHECK(local.part[i].offset >= at && local.part[i].offset % 64 == 0);
                CHECK_INT(t.p[local.part[i].param].unit, u);
                at = local.part[i].offset + local.part[i].count;
            }
            CHECK(local.unit[u].flat >= at);
            CHECK_INT(local.unit[u].flat % (64 * dp), 0);
        }
        params_local_close(&local);
    }
    param_table_close(&t);
}

TEST(ranks_lie_tp_first_then_cp_dp_pp)
{
    struct layout l = { 2, 3, 5, 7, 1, 0 };
    for (int r = 0; r < layout_ranks(&l); r++) {
        struct rank_at a = layout_at(&l, r);
        CHECK_INT(((a.pp * l.dp + a.dp) * l.cp + a.cp) * l.tp + a.tp, r);
        CHECK(a.tp < l.tp && a.cp < l.cp && a.dp < l.dp && a.pp < l.pp);
    }
}

TEST(impossible_layouts_are_refused_by_name)
{
    static const struct {
        struct layout l;
        const char *text;
    } wrong[] = {
        { { 3, 1, 1, 1, 1, 0 }, "--tp 3 does not divide the 8 attention heads" },
        { { 0, 1, 1, 1, 1, 0 }, "--tp 0: a degree is 1 or more" },
        { { 1, 4, 1, 1, 1, 0 }, "--pp 4 stages for 3 layers" },
        { { 1, 1, 1, 1, 2, 0 }, "--ep 2: this model has no experts" },
        { { 1, 1, 1, 1, 1, 4 }, "--zero 4" },
        { { 1, 1, 1, -1, 1, 0 }, "--dp -1" },
    };
    struct model_config c = config(8, 2, 32, 64, 0), odd = config(12, 4, 24, 97, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_INT(layout_check(&wrong[i].l, &c, &e), -ERR_USAGE);
        CHECK_HAS(e.text, wrong[i].text);
    }
    struct layout six = { 6, 1, 1, 1, 1, 0 };
    CHECK_INT(layout_check(&six, &odd, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "--tp 6 neither divides the 4 kv heads nor is a multiple of them");
}

TEST(the_grain_that_runs_is_the_models_where_tp_allows)
{
    struct model_config c = config(8, 2, 32, 64, 0), six = config(6, 3, 12, 64, 0);
    for (int tp = 1; tp <= 8; tp *= 2)
        CHECK_INT(layout_grain(&(struct layout){ tp, 1, 1, 1, 1, 0 }, &c), 8);
    CHECK_INT(six.grain, 2);
    CHECK_INT(layout_grain(&(struct layout){ 2, 1, 1, 1, 1, 0 }, &six), 2);
    CHECK_INT(layout_grain(&(struct layout){ 3, 1, 1, 1, 1, 0 }, &six), 3);
}

/* gguf_write_test.c - a GGUF file of a checkpoint: every form of a tensor by a formula of its own, read whole
 * and in parts; the file's header, byte by byte; a vocabulary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "format/ckpt_write.h"
#include "format/gguf_write.h"
#include "format/hf_write.h"
#include "format/gguf/gguf_block_encode.h"
#include "format/vocab/gguf_pre.h"
#include "tests/test.h"

/* ---- a source: Hugging Face tensors whose value i is unique ---- */

#define MOST 16
struct made {
    int n;
    struct ckpt_tensor t[MOST];
};

static void add(struct made *m, const char *name, enum stored_dtype dtype, int n_dims, int64_t a, int64_t b,
                int64_t c, int64_t d)
{
    m->t[m->n++] = (struct ckpt_tensor){
        .name = name, .dtype = dtype, .n_dims = n_dims, .shape = { a, b, c, d }
    };
}

static int64_t count(const struct ckpt_tensor *t)
{
    struct box b = box_whole(t->n_dims, t->shape);
    return box_count(&b);
}

/* Value i of tensor k, exact in fp32 and bf16's neighbours; of bytes the byte itself. */
static float value(int k, int64_t i) { return (float)(k * 4096 + i + 1); }
static unsigned char byte(int k, int64_t i) { return (unsigned char)(i * 37 + k * 11 + 5); }

static struct ckpt *make(const char *name, struct made *m)
{
    char dir[512];
    struct hf_write *w = NULL;
    struct ckpt *c = NULL;
    struct err e = { 0 };
    snprintf(dir, sizeof dir, "%s/%s", test_tmp_dir(), name);
    io_make_dirs(dir, &e);
    int rc = hf_write_open(&w, dir, m->n, m->t, &(struct hf_write_opts){ .shard_bytes = 1 << 30 }, &e);
    for (int k = 0; k < m->n && rc >= 0; k++) {
        int64_t n = count(&m->t[k]);
        char *data = malloc((size_t)n * 4);
        for (int64_t i = 0; i < n; i++) {
            float x = value(k, i);
            uint32_t u;
            memcpy(&u, &x, 4);
            if (m->t[k].dtype == STORED_U8)
                data[i] = (char)byte(k, i);
            else if (m->t[k].dtype == STORED_BF16)
                memcpy(data + 2 * i, (char *)&u + 2, 2);
            else
                memcpy(data + 4 * i, &u, 4);
        }
        rc = hf_write_put(w, k, data, n, &e);
        free(data);
    }
    if (rc >= 0)
        rc = hf_write_seal(w, &(struct ckpt_meta){ 0 }, &e);
    if (rc < 0 || ckpt_open(&c, dir, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return c;
}

static struct ckpt *open_view(struct gguf_target **t, const char *name, struct made *m,
                              const struct gguf_target_opts *how)
{
    struct ckpt *v = NULL;
    struct err e = { 0 };
    if (gguf_target_open(&v, t, make(name, m), how, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    return v;
}

/* ---- forms ---- */

static struct gguf_target_opts opts(const char *model_type)
{
    return (struct gguf_target_opts){ .model_type = model_type,
                                      .n_layers = 2,
                                      .n_heads = 2,
                                      .n_kv = 1,
                                      .n_experts = 3,
                                      .nope_dim = 3,
                                      .v_dim = 2,
                                      .dtype = -1 };
}

/* The index in the source of index i of a tensor of the file. */
typedef int64_t index_of(int64_t i);

/* Tensor `name` of the view has the shape, and value i is f(value(k, from(i))): whole, in ranges of every
 * odd size, and in a box. */
static void check_tensor(struct ckpt *v, const char *name, int k, const int64_t *shape, int n_dims,
                         index_of *from, float plus)
{
    struct err e = { 0 };
    int at = ckpt_find(v, ROLE_WEIGHT, name);
    CHECK(at >= 0);
    if (at < 0)
        return;
    const struct ckpt_tensor *t = ckpt_tensor(v, at);
    CHECK(t->n_dims == n_dims && !memcmp(t->shape, shape, sizeof *shape * (size_t)n_dims));
    CHECK(t->dtype == STORED_F32);
    int64_t n = count(t);
    float *x = malloc(sizeof *x * (size_t)n);
    struct box whole = box_whole(t->n_dims, t->shape);
    for (int64_t step = 1; step <= n; step += step < 7 ? 1 : n - 7 > step ? n - 7 : 1) {
        for (int64_t lo = 0; lo < n; lo += step)
            CHECK(ckpt_read_range(v, at, &whole, lo, lo + step < n ? lo + step : n, x + lo, &e) == 0);
        for (int64_t i = 0; i < n; i++)
            CHECK(x[i] == value(k, from(i)) + plus);
    }
    struct box part = whole;
    for (int d = 0; d < n_dims; d++)
        if (part.extent[d] > 1) {
            part.start[d] = 1;
            part.extent[d]--;
        }
    CHECK(ckpt_read(v, at, &part, x, &e) == 0);
    for (int64_t i = 0; i < box_count(&part); i++) {
        int64_t rest = i, index = 0, step = 1;
        for (int d = n_dims - 1; d >= 0; d--) {
            index += (rest % part.extent[d] + part.start[d]) * step;
            rest /= part.extent[d];
            step *= t->shape[d];
        }
        CHECK(x[i] == value(k, from(index)) + plus);
    }
    free(x);
}
#define CHECK_TENSOR(v, name, k, from, plus, ...) \
    check_tensor(v, name, k, (int64_t[]){ __VA_ARGS__ }, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / 8), \
                 from, plus)

static int64_t same(int64_t i) { return i; }
/* heads of 4 rows, 3 columns: row 2 i + s of a head from its row 2 s + i */
static int64_t rope_row(int64_t r) { return r / 4 * 4 + r % 2 * 2 + r % 4 / 2; }
static int64_t rope(int64_t i) { return rope_row(i / 3) * 3 + i % 3; }

TEST(rows_of_q_and_k_have_llama_s_order)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct gguf_target_opts how = opts("llama");
    add(&m, "model.layers.0.self_attn.q_proj.weight", STORED_F32, 2, 8, 3, 0, 0);
    add(&m, "model.layers.0.self_attn.k_proj.bias", STORED_F32, 1, 4, 0, 0, 0);
    add(&m, "model.layers.1.self_attn.v_proj.weight", STORED_F32, 2, 4, 3, 0, 0);
    add(&m, "lm_head.weight", STORED_F32, 2, 5, 3, 0, 0);
    add(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", STORED_F32, 1, 2, 0, 0, 0);
    add(&m, "model.layers.2.self_attn.q_proj.weight", STORED_F32, 2, 8, 3, 0, 0);
    how.n_factors = 2;
    how.factor = (float[]){ 4097, 4098 };
    struct ckpt *v = open_view(&t, "llama", &m, &how);
    const char *first;
    CHECK_INT(ckpt_n_tensors(v), 5);
    CHECK_TENSOR(v, "blk.0.attn_q.weight", 0, rope, 0, 8, 3);
    CHECK_TENSOR(v, "blk.0.attn_k.bias", 1, rope_row, 0, 4);
    CHECK_TENSOR(v, "blk.1.attn_v.weight", 2, same, 0, 4, 3);
    CHECK_TENSOR(v, "output.weight", 3, same, 0, 5, 3);
    CHECK_TENSOR(v, "rope_freqs.weight", 1, same, 0, 2);
    CHECK_INT(gguf_target_left_out(t, &first), 2);
    ckpt_close(v);
}

/* 2 heads of 2 rows each of q, k and v, 5 columns */
static int64_t qkv_row(int64_t r) { return (r / 2 % 2 * 3 + r / 4) * 2 + r % 2; }
static int64_t qkv(int64_t i) { return qkv_row(i / 5) * 5 + i % 5; }
static int64_t turned(int64_t i) { return i % 3 * 9 + i / 3; } /* [9][3] of [3][9] */

TEST(joined_and_transposed_matrices)
{
    struct made m = { 0 }, g = { 0 };
    struct gguf_target *t;
    struct gguf_target_opts neox = opts("gpt_neox"), gpt2 = opts("gpt2");
    add(&m, "gpt_neox.layers.0.attention.query_key_value.weight", STORED_F32, 2, 12, 5, 0, 0);
    add(&m, "gpt_neox.layers.0.attention.query_key_value.bias", STORED_F32, 1, 12, 0, 0, 0);
    struct ckpt *v = open_view(&t, "neox", &m, &neox);
    CHECK_TENSOR(v, "blk.0.attn_qkv.weight", 0, qkv, 0, 12, 5);
    CHECK_TENSOR(v, "blk.0.attn_qkv.bias", 1, qkv_row, 0, 12);
    ckpt_close(v);

    add(&g, "transformer.h.1.attn.c_attn.weight", STORED_F32, 2, 3, 9, 0, 0);
    add(&g, "transformer.h.1.attn.c_attn.bias", STORED_F32, 1, 9, 0, 0, 0);
    gpt2.tied = 1;
    add(&g, "lm_head.weight", STORED_F32, 2, 4, 3, 0, 0);
    v = open_view(&t, "gpt2", &g, &gpt2);
    CHECK_INT(ckpt_n_tensors(v), 2);
    CHECK_TENSOR(v, "blk.1.attn_qkv.weight", 0, turned, 0, 9, 3);
    CHECK_TENSOR(v, "blk.1.attn_qkv.bias", 1, same, 0, 9);
    ckpt_close(v);
}

/* [2][n 2][in 3] of [2][in 3][4], even or odd columns */
static int64_t even(int64_t i) { return i / 6 * 12 + i % 3 * 4 + i / 3 % 2 * 2; }
static int64_t odd(int64_t i) { return even(i) + 1; }
static int64_t even_bias(int64_t i) { return 2 * i; }
static int64_t odd_bias(int64_t i) { return 2 * i + 1; }
static int64_t down(int64_t i) { return i / 6 * 6 + i % 2 * 3 + i / 2 % 3; } /* [2][3][2] of [2][2][3] */

TEST(experts_whose_gate_and_up_alternate)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct gguf_target_opts how = opts("gpt_oss");
    how.tied = 1;
    add(&m, "model.layers.0.mlp.experts.gate_up_proj", STORED_F32, 3, 2, 3, 4, 0);
    add(&m, "model.layers.0.mlp.experts.gate_up_proj_bias", STORED_F32, 2, 2, 4, 0, 0);
    add(&m, "model.layers.0.mlp.experts.down_proj", STORED_F32, 3, 2, 2, 3, 0);
    add(&m, "model.embed_tokens.weight", STORED_F32, 2, 4, 3, 0, 0);
    struct ckpt *v = open_view(&t, "gptoss", &m, &how);
    CHECK_INT(ckpt_n_tensors(v), 7);
    CHECK_TENSOR(v, "blk.0.ffn_gate_exps.weight", 0, even, 0, 2, 2, 3);
    CHECK_TENSOR(v, "blk.0.ffn_up_exps.weight", 0, odd, 0, 2, 2, 3);
    CHECK_TENSOR(v, "blk.0.ffn_gate_exps.bias", 1, even_bias, 0, 2, 2);
    CHECK_TENSOR(v, "blk.0.ffn_up_exps.bias", 1, odd_bias, 0, 2, 2);
    CHECK_TENSOR(v, "blk.0.ffn_down_exps.weight", 2, down, 0, 2, 3, 2);
    CHECK_TENSOR(v, "token_embd.weight", 3, same, 0, 4, 3);
    CHECK_TENSOR(v, "output.weight", 3, same, 0, 4, 3); /* llama.cpp wants it here */
    ckpt_close(v);
}

/* kv_b: 2 heads of 3 nope rows and 2 v rows, rank 4 */
static int64_t key_b(int64_t i) { return (i / 12 * 5 + i % 3) * 4 + i / 3 % 4; }
static int64_t value_b(int64_t i) { return (i / 8 * 5 + 3 + i / 4 % 2) * 4 + i % 4; }

TEST(latent_keys_and_values_part)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct gguf_target_opts how = opts("deepseek_v3");
    add(&m, "model.layers.0.self_attn.kv_b_proj.weight", STORED_F32, 2, 10, 4, 0, 0);
    struct ckpt *v = open_view(&t, "deepseek", &m, &how);
    CHECK_INT(ckpt_n_tensors(v), 2);
    CHECK_TENSOR(v, "blk.0.attn_k_b.weight", 0, key_b, 0, 2, 4, 3);
    CHECK_TENSOR(v, "blk.0.attn_v_b.weight", 0, value_b, 0, 2, 2, 4);
    ckpt_close(v);
}

TEST(norms_of_gemma_and_the_gate_of_shared_experts)
{
    struct made m = { 0 }, q = { 0 };
    struct gguf_target *t;
    struct gguf_target_opts gemma = opts("gemma2"), qwen = opts("qwen2_moe");
    add(&m, "model.norm.weight", STORED_F32, 1, 7, 0, 0, 0);
    struct ckpt *v = open_view(&t, "gemma", &m, &gemma);
    CHECK_TENSOR(v, "output_norm.weight", 0, same, 1, 7);
    ckpt_close(v);

    add(&q, "model.layers.0.mlp.shared_expert_gate.weight", STORED_F32, 2, 1, 6, 0, 0);
    v = open_view(&t, "qwen2moe", &q, &qwen);
    CHECK_TENSOR(v, "blk.0.ffn_gate_inp_shexp.weight", 0, same, 0, 1, 6);
    ckpt_close(v);
}

/* Tensors of the source are numbered as they were added: expert e is tensor (e + 1) % 3, so that their order
 * in the file is that of their numbers, not of the source. */
TEST(experts_are_one_tensor_in_the_order_of_their_numbers)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct err e = { 0 };
    struct gguf_target_opts how = opts("qwen3_moe");
    float x[24];
    add(&m, "model.layers.1.mlp.experts.2.up_proj.weight", STORED_F32, 2, 2, 4, 0, 0);
    add(&m, "model.layers.1.mlp.experts.0.up_proj.weight", STORED_F32, 2, 2, 4, 0, 0);
    add(&m, "model.layers.1.mlp.experts.1.up_proj.weight", STORED_F32, 2, 2, 4, 0, 0);
    struct ckpt *v = open_view(&t, "experts", &m, &how);
    struct box b = box_whole(3, (int64_t[]){ 3, 2, 4 });
    CHECK_INT(ckpt_n_tensors(v), 1);
    CHECK(ckpt_read(v, 0, &b, x, &e) == 0);
    for (int i = 0; i < 24; i++)
        CHECK(x[i] == value((i / 8 + 1) % 3, i % 8));
    ckpt_close(v);

    struct ckpt *src;
    m.n = 2;
    src = make("missing", &m);
    CHECK(gguf_target_open(&v, &t, src, &how, &e) < 0);
    CHECK_HAS(e.text, "lack expert 1");
    m.n = 3;
    how.n_experts = 2;
    src = make("many", &m);
    CHECK(gguf_target_open(&v, &t, src, &how, &e) < 0);
    CHECK_HAS(e.text, "2 experts");
}

/* ---- blocks ---- */

TEST(mxfp4_of_gpt_oss_moves_without_a_change)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct err e = { 0 };
    struct gguf_target_opts how = opts("gpt_oss");
    unsigned char got[2 * 3 * 2 * 17], part[40], want[17], pairs[16];
    add(&m, "model.layers.0.mlp.experts.gate_up_proj_blocks", STORED_U8, 4, 2, 6, 2, 16);
    add(&m, "model.layers.0.mlp.experts.gate_up_proj_scales", STORED_U8, 3, 2, 6, 2, 0);
    struct ckpt *v = open_view(&t, "mxfp4", &m, &how);
    int at = ckpt_find(v, ROLE_WEIGHT, "blk.0.ffn_up_exps.weight");
    struct box b = box_whole(3, (int64_t[]){ 2, 3, 34 });
    CHECK(at >= 0 && ckpt_read(v, at, &b, got, &e) == 0);
    for (int i = 0; i < 12; i++) {
        int64_t block = (i / 2 * 2 + 1) * 2 + i % 2; /* odd rows of 2 blocks */
        for (int j = 0; j < 16; j++)
            pairs[j] = byte(0, block * 16 + j);
        gguf_mxfp4_of_pairs(pairs, byte(1, block), want);
        CHECK_SAME(got + i * 17, want, 17);
    }
    for (int lo = 0; lo + 40 <= 204; lo += 13) {
        CHECK(ckpt_read_range(v, at, &b, lo, lo + 40, part, &e) == 0);
        CHECK_SAME(part, got + lo, 40);
    }
    CHECK_INT(gguf_target_file_type(t), 38);
    ckpt_close(v);
}

TEST(matrices_become_blocks_and_others_do_not)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct err e = { 0 };
    struct gguf_target_opts how = opts("llama");
    float row[96];
    unsigned char got[8 * 3 * 34], part[50], want[3 * 34];
    how.quantize = "q4_k";
    add(&m, "model.layers.0.self_attn.q_proj.weight", STORED_BF16, 2, 8, 96, 0, 0);
    add(&m, "model.layers.0.mlp.down_proj.weight", STORED_BF16, 2, 4, 256, 0, 0);
    add(&m, "model.layers.0.mlp.up_proj.weight", STORED_BF16, 2, 4, 40, 0, 0);
    add(&m, "model.norm.weight", STORED_BF16, 1, 96, 0, 0, 0);
    struct ckpt *v = open_view(&t, "blocks", &m, &how);
    CHECK_INT(ckpt_tensor(v, ckpt_find(v, ROLE_WEIGHT, "blk.0.ffn_down.weight"))->shape[1], 144);
    CHECK(ckpt_tensor(v, ckpt_find(v, ROLE_WEIGHT, "blk.0.ffn_up.weight"))->dtype == STORED_BF16);
    CHECK(ckpt_tensor(v, ckpt_find(v, ROLE_WEIGHT, "output_norm.weight"))->dtype == STORED_F32);
    CHECK_INT(gguf_target_not_quantized(t), 2); /* 96 columns: Q8_0; 40: bf16 */

    int at = ckpt_find(v, ROLE_WEIGHT, "blk.0.attn_q.weight");
    struct box b = box_whole(2, (int64_t[]){ 8, 3 * 34 });
    CHECK(ckpt_read(v, at, &b, got, &e) == 0);
    for (int r = 0; r < 8; r++) {
        for (int i = 0; i < 96; i++) {
            uint32_t u;
            float x = value(0, rope_row(r) * 96 + i);
            memcpy(&u, &x, 4);
            u &= 0xffff0000; /* as make() cuts it */
            memcpy(&row[i], &u, 4);
        }
        CHECK(gguf_encode(GGUF_Q8_0, row, 96, want) == 0);
        CHECK_SAME(got + r * 102, want, 102);
    }
    for (int lo = 0; lo + 50 <= 8 * 102; lo += 29) {
        CHECK(ckpt_read_range(v, at, &b, lo, lo + 50, part, &e) == 0);
        CHECK_SAME(part, got + lo, 50);
    }
    ckpt_close(v);
}

/* ---- the file ---- */

static const unsigned char golden[] = {
    'G', 'G', 'U', 'F', 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
    /* a.n: u32 258 */
    3, 0, 0, 0, 0, 0, 0, 0, 'a', '.', 'n', 4, 0, 0, 0, 2, 1, 0, 0,
    /* a.x: f32 1.5 */
    3, 0, 0, 0, 0, 0, 0, 0, 'a', '.', 'x', 6, 0, 0, 0, 0, 0, 0xc0, 0x3f,
    /* a.b: bools 1 0 */
    3, 0, 0, 0, 0, 0, 0, 0, 'a', '.', 'b', 9, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0,
    /* a.t: "hi" */
    3, 0, 0, 0, 0, 0, 0, 0, 'a', '.', 't', 8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 'h', 'i',
    /* output_norm.weight [3] F32 at 0 */
    18, 0, 0, 0, 0, 0, 0, 0, 'o', 'u', 't', 'p', 'u', 't', '_', 'n', 'o', 'r', 'm', '.', 'w', 'e', 'i', 'g',
    'h', 't', 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /* blk.0.attn_v.weight [2, 3] BF16 at 32: its dims are 3, 2 */
    19, 0, 0, 0, 0, 0, 0, 0, 'b', 'l', 'k', '.', '0', '.', 'a', 't', 't', 'n', '_', 'v', '.', 'w', 'e', 'i',
    'g', 'h', 't', 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 30, 0, 0, 0, 32, 0, 0, 0, 0, 0,
    0, 0
};

TEST(the_file_has_this_header_and_the_view_s_bytes)
{
    struct made m = { 0 };
    struct gguf_target *t;
    struct gguf_write *w = NULL;
    struct ckpt *c = NULL;
    struct err e = { 0 };
    struct gguf_target_opts how = opts("llama");
    char path[512], x[64], y[64];
    void *data = NULL;
    size_t n = 0;
    add(&m, "model.layers.0.self_attn.v_proj.weight", STORED_BF16, 2, 2, 3, 0, 0);
    add(&m, "model.norm.weight", STORED_BF16, 1, 3, 0, 0, 0);
    struct ckpt *v = open_view(&t, "file", &m, &how);
    struct gguf_keys *k = gguf_target_keys(t);
    gguf_key_u32(k, "a.n", 258);
    gguf_key_f32(k, "a.x", 1.5);
    gguf_key_bools(k, "a.b", (unsigned char[]){ 1, 0 }, 2);
    gguf_key_text(k, "a.t", "hi", 2);

    snprintf(path, sizeof path, "%s/x.gguf", test_tmp_dir());
    unlink(path);
    CHECK(gguf_write_open(&w, path, t, &e) == 0);
    for (int i = 0; i < ckpt_n_tensors(v); i++) {
        const struct ckpt_tensor *s = ckpt_tensor(v, i);
        struct box b = box_whole(s->n_dims, s->shape);
        for (int64_t lo = 0; lo < box_count(&b); lo++)
            CHECK(ckpt_read_range(v, i, &b, lo, lo + 1, x, &e) == 0 &&
                  gguf_write_put(w, s->name, x, 1, &e) == 0);
    }
    CHECK(gguf_write_put(w, "output_norm.weight", x, 1, &e) < 0);
    CHECK(gguf_write_seal(w, &e) == 0);
    CHECK(io_read_file(path, 1 << 20, &data, &n, &e) == 0);
    CHECK(n > sizeof golden && n % 32 == 0);
    CHECK_SAME(data, golden, sizeof golden);
    free(data);

    CHECK(gguf_open_stored(&c, path, &e) == 0);
    CHECK_INT(ckpt_n_tensors(c), 2);
    for (int i = 0; c && i < 2; i++) {
        const struct ckpt_tensor *s = ckpt_tensor(v, i), *r = ckpt_tensor(c, i);
        struct box b = box_whole(s->n_dims, s->shape);
        CHECK(!strcmp(r->name, s->name) && r->dtype == s->dtype && r->n_dims == s->n_dims);
        CHECK(ckpt_read(c, i, &b, x, &e) == 0 && ckpt_read(v, i, &b, y, &e) == 0);
        CHECK_SAME(x, y, (size_t)stored_bytes(s->dtype, box_count(&b)));
    }
    ckpt_close(c);
    ckpt_close(v);
}

/* ---- vocabularies ---- */

static int holds(const struct gguf_keys *k, const void *part, size_t n)
{
    for (size_t i = 0; i + n <= k->bytes; i++)
        if (!memcmp(k->data + i, part, n))
            return 1;
    return 0;
}
/* A text of the metadata: its length before it. */
static int says(const struct gguf_keys *k, const char *text)
{
    char part[300] = { 0 };
    size_t n = strlen(text);
    memcpy(part, &n, 8);
    memcpy(part + 8, text, n);
    return holds(k, part, 8 + n);
}

#define LLAMA3 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| " \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT(pattern) \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{" \
    "\"Regex\":\"" pattern \
    "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false," \
    "\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
#define MODEL(more) "\"model\":{\"type\":\"BPE\"," more "}}"

static const char *vocabulary(struct gguf_keys *k, const char *json, const char *config)
{
    struct err e = { 0 };
    struct gguf_vocabulary v = {
        .tokenizer_json = json, .tokenizer_config = config, .n_vocab = 8, .bos = -1, .eos = 2
    };
    static char why[160];
    gguf_keys_free(k);
    if (gguf_key_vocabulary(k, &v, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    snprintf(why, sizeof why, "%s%s", v.why ? v.why : "", v.inexact ? "inexact" : "");
    return why;
}

TEST(byte_level_vocabularies_have_their_pre_tokenizer_s_name)
{
    struct gguf_keys k = { 0 };
    static const char json[] = "{" SPLIT(
        LLAMA3) "\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true},{\"id\":6,\"content\":\"x "
                "y\"}],"
                "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                "\"<s>\"}},"
                "{\"Sequence\":{\"id\":\"A\"}}]}," MODEL(
                    "\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]");
    static const char config[] = "{\"bos_token\":\"<s>\",\"chat_template\":\"{{ x }}\"}";
    CHECK_STR(vocabulary(&k, json, config), "");
    CHECK(says(&k, "gpt2") && says(&k, "llama-bpe") && says(&k, "a b") && says(&k, "{{ x }}"));
    CHECK(says(&k, "[PAD3]") && says(&k, "[PAD7]") && !says(&k, "[PAD5]"));
    static const int types[] = { 1, 1, 1, 5, 5, 3, 4, 5 };
    CHECK(holds(&k, types, sizeof types));
    CHECK(holds(&k, "tokenizer.ggml.bos_token_id\4\0\0\0\5\0\0\0", 35));
    CHECK(holds(&k, "tokenizer.ggml.eos_token_id\4\0\0\0\2\0\0\0", 35));
    CHECK(holds(&k, "tokenizer.ggml.add_bos_token\7\0\0\0\1", 33));
    CHECK(holds(&k, "tokenizer.ggml.add_eos_token\7\0\0\0\0", 33));

    CHECK_HAS(vocabulary(&k, "{" SPLIT("x+") MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), NULL),
              "nothing like its pre-tokenizer");
    CHECK(says(&k, "none") && !says(&k, "gpt2"));
    CHECK_HAS(vocabulary(&k, "{\"model\":{\"type\":\"WordPiece\"}}", NULL), "not BPE");
    CHECK_HAS(vocabulary(&k, NULL, NULL), "no tokenizer.json");
    gguf_keys_free(&k);
}

TEST(a_pre_tokenizer_is_found_by_its_patterns)
{
    static const char *const names[][2] = {
        { "gpt-2", "gpt-2" },           { "llama3", "llama-bpe" },  { "chatglm-bpe", "dbrx" },
        { "glm5", "llama-bpe" },        { "qwen2", "qwen2" },       { "stablelm2", "qwen2" },
        { "qwen35", "qwen35" },         { "starcoder", "smollm" },  { "llama4", "gpt-4o" },
        { "joyai-llm", "deepseek-v3" }, { "spark2_5", "spark2_5" }, { "deepseek-llm", "deepseek-llm" },
        { "poro-chat", "bloom" },       { "viking", "viking" },     { "seed-coder", "seed-coder" }
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct gguf_pre *row = gguf_pre_find(names[i][0], (int64_t)strlen(names[i][0]));
        CHECK(row != NULL);
        int n = 0;
        while (row && n < GGUF_PRE_SPLITS && row->split[n])
            n++;
        const struct gguf_pre *found = row ? gguf_pre_of(row->split, n, row->flags & GGUF_PRE_WHOLE) : NULL;
        CHECK_STR(found ? found->name : "", names[i][1]);
    }
    static const char *const both[] = { "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+",
                                        GGUF_PRE_DIGIT };
    CHECK_STR(gguf_pre_of(both, 5, 1)->name,
              "deepseek-coder"); /* a line's end as itself, and no whole words */
    CHECK(!gguf_pre_of(both, 4, 0) && !gguf_pre_of(both, 0, 0) && !gguf_pre_find("gpt", 3));
}

TEST(sentencepiece_vocabularies_have_scores)
{
    struct gguf_keys k = { 0 };
    static const char all[] = "{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"}," MODEL(
        "\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"<0x0A>\":1,\"a\":2,\"b\":3,"
        "\"c\":4,\"ab\":5,\"bc\":6,\"abc\":7},\"merges\":[[\"b\",\"c\"],[\"a\",\"b\"],[\"ab\",\"c\"],"
        "[\"a\",\"bc\"]]");
    static const int types[] = { 2, 6, 1, 1, 1, 1, 1, 1 };
    static const float scores[] = { 0, 0, -1e6f, -1e6f, -1e6f, -1, -0.0f, -2 };
    CHECK_STR(vocabulary(&k, all, NULL), "");
    CHECK(says(&k, "llama") && holds(&k, types, sizeof types) && holds(&k, scores, sizeof scores));
    CHECK(holds(&k, "tokenizer.ggml.add_space_prefix\7\0\0\0\1", 36));

    /* without the merge of a and bc scores would join them all the same */
    char some[1024];
    snprintf(some, sizeof some, "%s", all);
    strcpy(strstr(some, ",[\"a\",\"bc\"]"), "]}}");
    CHECK_STR(vocabulary(&k, some, NULL), "inexact");
    CHECK(says(&k, "llama"));
    memcpy(strstr(some, "Prepend"), "Replace", 7); /* and where no space is put before the text, merges do */
    CHECK_STR(vocabulary(&k, some, NULL), "");
    CHECK(says(&k, "sarvam-moe") && says(&k, "ab c") && !says(&k, "llama"));
    gguf_keys_free(&k);
}

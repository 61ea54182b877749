/* quantised weights under cut tables: what each rank holds of every stored tensor is what its part of the
 * weight needs, found here value by value from the formats' own descriptions, and every stored element is
 * written once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reshard/cuts.h"
#include "tests/test.h"

#define MOST 6

/* Sizes of a case: experts (0: no such dim), N, K, values of a group or block. */
struct sizes {
    int64_t e, n, k, g;
};
/* Where value (e, n, k) lies in a stored tensor: the first and the last element that holds a part of it. */
typedef void locate(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2]);

struct stored {
    const char *suffix;
    enum stored_dtype dtype;
    int64_t shape[4]; /* 0: no such dim */
    locate *where;
};
struct kind {
    const char *what, *config; /* @ stands for the group */
    const char *weight;        /* the weight's name, as a row has it */
    int bits, stacked, experts_of_blocks;
    int unit_n, unit_k; /* what N and K are multiples of */
    void (*make)(const struct sizes *s, struct stored out[MOST]);
};

static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void at_one(int64_t at[2], int64_t i) { at[0] = at[1] = i; }

/* ---- formats, each from its own description ---- */

static void whole(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)s, (void)e, (void)n, (void)k;
    at_one(at, 0);
}
static void both_of_shape(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    whole(s, e, n, k, at);
    at[1] = 1;
}
static void nk(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    at_one(at, (e * s->n + n) * s->k + k);
}
static void n_alone(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)s, (void)e, (void)k;
    at_one(at, n);
}
static void k_alone(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)s, (void)e, (void)n;
    at_one(at, k);
}
static void square(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    at_one(at, (e * up(s->n, s->g) + n / s->g) * up(s->k, s->g) + k / s->g);
}
static void two_a_byte(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    at_one(at, ((e * s->n + n) * s->k + k) / 2);
}
static void row_group(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    at_one(at, (e * s->n + n) * (s->k / s->g) + k / s->g);
}
static void block32(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    at[0] = ((e * s->n + n) * (s->k / 32) + k / 32) * 16;
    at[1] = at[0] + 15;
}
static void block32_scale(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    at_one(at, (e * s->n + n) * (s->k / 32) + k / 32);
}
static void words4(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at_one(at, n * up(s->k, 8) + k / 8);
}
static void words3(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at[0] = n * up(3 * s->k, 32) + 3 * k / 32;
    at[1] = n * up(3 * s->k, 32) + (3 * k + 2) / 32;
}
static void zero_words4(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at_one(at, n / 8 * (s->k / s->g) + k / s->g);
}
static void k_first4(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at_one(at, k / 8 * s->n + n);
}
static void k_first3(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at[0] = 3 * k / 32 * s->n + n;
    at[1] = (3 * k + 2) / 32 * s->n + n;
}
static void group_n(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at_one(at, k / s->g * s->n + n);
}
static void group_words4(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at_one(at, k / s->g * (s->n / 8) + n / 8);
}
static void k_words_of_n(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)e;
    at_one(at, k * (s->n / 8) + n / 8);
}
static void words3_of_n(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)s, (void)e, (void)k;
    at[0] = 3 * n / 32;
    at[1] = (3 * n + 2) / 32;
}

/* With a reordered K the group of a column can be any: -1 stands for every row of the tensor. */
static void any_group_n(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)s, (void)e, (void)k;
    at[0] = -1;
    at[1] = n;
}
static void any_group_words4(const struct sizes *s, int64_t e, int64_t n, int64_t k, int64_t at[2])
{
    (void)s, (void)e, (void)k;
    at[0] = -1;
    at[1] = n / 8;
}

static void fp8_blocks(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight", STORED_F8_E4M3, { s->n, s->k }, nk };
    out[1] = (struct stored){ ".weight_scale_inv", STORED_F32, { up(s->n, s->g), up(s->k, s->g) }, square };
}
static void fp8_fused(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ "", STORED_F8_E4M3, { s->e, s->n, s->k }, nk };
    out[1] = (struct stored){ "_scales_inv", STORED_F32, { s->e, up(s->n, s->g), up(s->k, s->g) }, square };
}
static void fp8_channel(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight", STORED_F8_E4M3, { s->n, s->k }, nk };
    out[1] = (struct stored){ ".weight_scale", STORED_BF16, { s->n, 1 }, n_alone };
}
static void fp8_tensor(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight", STORED_F8_E5M2, { s->n, s->k }, nk };
    out[1] = (struct stored){ ".weight_scale", STORED_F32, { 1 }, whole };
    out[2] = (struct stored){ ".input_scale", STORED_F32, { 1 }, whole };
}
static void int8_channel(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight", STORED_I8, { s->n, s->k }, nk };
    out[1] = (struct stored){ ".weight_scale", STORED_F32, { s->n, 1 }, n_alone };
    out[2] = (struct stored){ ".weight_zero_point", STORED_I8, { s->n, 1 }, n_alone };
}
static void mxfp4(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ "_blocks", STORED_U8, { s->e, s->n, s->k / 32, 16 }, block32 };
    out[1] = (struct stored){ "_scales", STORED_U8, { s->e, s->n, s->k / 32 }, block32_scale };
}
static void nvfp4(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight_packed", STORED_U8, { s->n, s->k / 2 }, two_a_byte };
    out[1] = (struct stored){ ".weight_scale", STORED_F8_E4M3, { s->n, s->k / s->g }, row_group };
    out[2] = (struct stored){ ".weight_global_scale", STORED_F32, { 1 }, whole };
}
static void packed4(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight_packed", STORED_I32, { s->n, up(s->k, 8) }, words4 };
    out[1] = (struct stored){ ".weight_scale", STORED_BF16, { s->n, s->k / s->g }, row_group };
    out[2] = (struct stored){ ".weight_zero_point", STORED_I32, { s->n / 8, s->k / s->g }, zero_words4 };
    out[3] = (struct stored){ ".weight_shape", STORED_I64, { 2 }, both_of_shape };
}
static void packed3(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".weight_packed", STORED_I32, { s->n, up(3 * s->k, 32) }, words3 };
    out[1] = (struct stored){ ".weight_scale", STORED_BF16, { s->n, 1 }, n_alone };
    out[2] = (struct stored){ ".weight_shape", STORED_I64, { 2 }, both_of_shape };
}
static void gptq4(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".qweight", STORED_I32, { s->k / 8, s->n }, k_first4 };
    out[1] = (struct stored){ ".scales", STORED_F16, { s->k / s->g, s->n }, group_n };
    out[2] = (struct stored){ ".qzeros", STORED_I32, { s->k / s->g, s->n / 8 }, group_words4 };
    out[3] = (struct stored){ ".g_idx", STORED_I32, { s->k }, k_alone };
}
static void gptq4_order(const struct sizes *s, struct stored out[MOST])
{
    gptq4(s, out);
    out[1].where = any_group_n;
    out[2].where = any_group_words4;
}
static void gptq3(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".qweight", STORED_I32, { s->k * 3 / 32, s->n }, k_first3 };
    out[1] = (struct stored){ ".scales", STORED_F16, { 1, s->n }, n_alone };
    out[2] = (struct stored){ ".qzeros", STORED_I32, { 1, s->n * 3 / 32 }, words3_of_n };
    out[3] = (struct stored){ ".g_idx", STORED_I32, { s->k }, k_alone };
}
static void awq(const struct sizes *s, struct stored out[MOST])
{
    out[0] = (struct stored){ ".qweight", STORED_I32, { s->k, s->n / 8 }, k_words_of_n };
    out[1] = (struct stored){ ".scales", STORED_F16, { s->k / s->g, s->n }, group_n };
    out[2] = (struct stored){ ".qzeros", STORED_I32, { s->k / s->g, s->n / 8 }, group_words4 };
}

#define QC(text) "{\"quantization_config\":{" text "}}"
#define CT(weights) \
    QC("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"weights\":{" weights "}}}")
#define LINEAR ".weight"
static const struct kind kinds[] = {
    { "fp8 in blocks", QC("\"quant_method\":\"fp8\",\"weight_block_size\":[@,@]"), LINEAR, 8, 0, 0, 1, 1,
      fp8_blocks },
    { "fused fp8", QC("\"quant_method\":\"fp8\",\"weight_block_size\":[@,@]"), "", 8, 1, 0, 1, 1, fp8_fused },
    { "fp8 by channel", CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\""), LINEAR, 8, 0, 0, 1,
      1, fp8_channel },
    { "fp8 by tensor", QC("\"quant_method\":\"fp8\",\"weight_block_size\":null"), LINEAR, 8, 0, 0, 1, 1,
      fp8_tensor },
    { "int8 by channel", CT("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\""), LINEAR, 8, 0, 0, 1,
      1, int8_channel },
    { "mxfp4 of gpt-oss", QC("\"quant_method\":\"mxfp4\""), "", 4, 1, 1, 1, 32, mxfp4 },
    { "nvfp4", CT("\"num_bits\":4,\"type\":\"float\",\"group_size\":16"), LINEAR, 4, 0, 0, 1, 16, nvfp4 },
    { "packed int4", CT("\"num_bits\":4,\"type\":\"int\",\"group_size\":@"), LINEAR, 4, 0, 0, 8, 1, packed4 },
    { "packed int3", CT("\"num_bits\":3,\"type\":\"int\",\"strategy\":\"channel\""), LINEAR, 3, 0, 0, 1, 32,
      packed3 },
    { "gptq", QC("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":@"), LINEAR, 4, 0, 0, 8, 8, gptq4 },
    { "gptq act-order", QC("\"quant_method\":\"gptq\",\"bits\":4,\"desc_act\":true,\"group_size\":@"), LINEAR,
      4, 0, 0, 8, 8, gptq4_order },
    { "gptq of 3 bits", QC("\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":-1"), LINEAR, 3, 0, 0, 32, 32,
      gptq3 },
    { "awq", QC("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":@"), LINEAR, 4, 0, 0, 8, 1, awq },
};

/* ---- one case ---- */

static uint64_t seed = 20261123;
static int64_t draw(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

struct cut_case {
    const struct kind *kind;
    struct sizes s;
    int by_k, parts, interleave;
    struct layout l;
    int n;
    struct stored st[MOST];
    char name[MOST][64], text[128], config[256];
    struct ckpt_tensor t[MOST];
    const struct ckpt_tensor *list[MOST];
};

static void set_sizes(struct cut_case *c)
{
    const struct kind *k = c->kind;
    const int64_t groups[] = { 16, 32, 8, 64 };
    c->s.g = groups[draw(4)];
    if (strstr(k->config, "16}")) /* nvfp4 */
        c->s.g = 16;
    c->s.e = k->stacked ? 4 : 0;

    /* the dim that is cut: tp divides each part, at any value inside blocks, words and groups */
    int64_t cut = (1 + draw(4)) * 8 * c->parts * c->interleave, unit = c->by_k ? k->unit_k : k->unit_n;
    while (cut % unit || (c->by_k && cut % c->s.g && k->make != fp8_blocks && k->make != fp8_fused))
        cut += 8 * c->parts * c->interleave;
    int64_t other = (1 + draw(3)) * (c->by_k ? k->unit_n : k->unit_k);
    while (!c->by_k && other % c->s.g && k->make != fp8_blocks && k->make != fp8_fused)
        other += k->unit_k;
    c->s.n = c->by_k ? other : cut;
    c->s.k = c->by_k ? cut : other;
}

static void put_group(struct cut_case *c)
{
    size_t at = 0;
    for (const char *s = c->kind->config; *s && at < sizeof c->config - 8; s++) {
        if (*s == '@')
            at += (size_t)snprintf(c->config + at, 8, "%lld", (long long)c->s.g);
        else
            c->config[at++] = *s;
    }
    c->config[at] = 0;
}

/* The tensors and the table's row. */
static void make_case(struct cut_case *c)
{
    const struct kind *k = c->kind;
    int nd = k->stacked ? 3 : 2, dim = k->stacked + (c->by_k != k->experts_of_blocks);
    int at = snprintf(c->text, sizeof c->text, "cuts 1\nl.{layer}.x%s dim %d", k->weight, dim);
    set_sizes(c);
    if (c->parts > 1)
        at += snprintf(c->text + at, sizeof c->text - (size_t)at, " parts 1,1");
    if (c->interleave > 1)
        at += snprintf(c->text + at, sizeof c->text - (size_t)at, " interleave 2");
    snprintf(c->text + at, sizeof c->text - (size_t)at, "%s\n", nd == 3 ? " expert-dim 0" : "");
    put_group(c);

    memset(c->st, 0, sizeof c->st);
    k->make(&c->s, c->st);
    for (c->n = 0; c->n < MOST && c->st[c->n].suffix; c->n++) {
        struct ckpt_tensor *t = &c->t[c->n];
        snprintf(c->name[c->n], sizeof c->name[0], "l.0.x%s", c->st[c->n].suffix);
        *t = (struct ckpt_tensor){ .name = c->name[c->n], .dtype = c->st[c->n].dtype };
        for (int d = 0; d < 4 && c->st[c->n].shape[d]; d++)
            t->shape[t->n_dims++] = c->st[c->n].shape[d];
        c->list[c->n] = t;
    }
}

/* 1: this rank holds value (e, n, k) of the weight: its part of the cut dim, or its experts. */
static int holds(const struct cut_case *c, struct rank_at at, int64_t e, int64_t n, int64_t k)
{
    int64_t size = (c->by_k ? c->s.k : c->s.n) / c->parts, i = (c->by_k ? k : n) % size,
            each = size / c->l.tp;
    if (c->s.e && c->l.ep > 1)
        return e * c->l.ep / c->s.e == at.ep;
    return i / each == at.tp;
}

static int64_t elements(const struct ckpt_tensor *t)
{
    struct box b = box_whole(t->n_dims, t->shape);
    return box_count(&b);
}

/* Which elements of stored tensor i the rank needs. */
static void mark_needed(const struct cut_case *c, int i, struct rank_at at, unsigned char *need)
{
    int64_t count = elements(&c->t[i]), row = c->t[i].shape[c->t[i].n_dims - 1];
    int64_t between = c->st[i].where == block32 ? 1 : count; /* of a block all bytes */
    for (int64_t e = 0; e < (c->s.e ? c->s.e : 1); e++)
        for (int64_t n = 0; n < c->s.n; n++)
            for (int64_t k = 0; k < c->s.k; k++) {
                int64_t p[2];
                if (!holds(c, at, e, n, k))
                    continue;
                c->st[i].where(&c->s, e, n, k, p);
                for (int64_t x = p[0]; p[0] >= 0 && x <= p[1]; x += between)
                    need[x] = 1;
                if (p[0] >= 0)
                    need[p[1]] = 1;
                for (int64_t x = p[1]; p[0] < 0 && x < count; x += row)
                    need[x] = 1;
            }
}

/* Adds 1 to the elements [lo, hi) of the box. */
static void mark_box(const struct ckpt_tensor *t, const struct box *b, int64_t lo, int64_t hi,
                     unsigned char *seen)
{
    for (int64_t i = lo; i < hi; i++) {
        int64_t rest = i, at = 0, step = 1;
        for (int d = b->n_dims - 1; d >= 0; d--) {
            at += (b->start[d] + rest % b->extent[d]) * step;
            step *= t->shape[d];
            rest /= b->extent[d];
        }
        seen[at]++;
    }
}

static void check_rank(const struct cut_case *c, const struct cut_model *m, int rank,
                       unsigned char *written[MOST])
{
    struct rank_at at = layout_at(&c->l, rank);
    struct params_local local;
    struct err e;
    struct param_piece *piece = calloc((size_t)m->table.n + 1, sizeof *piece);
    CHECK_INT(params_local_open(&local, &m->table, &c->l, at, &e), 0);
    for (int i = 0; i < c->n; i++) {
        int64_t count = elements(&c->t[i]), wrong = 0;
        unsigned char *need = calloc((size_t)count, 1), *held = calloc((size_t)count, 1);
        mark_needed(c, i, at, need);
        for (int p = 0; p < local.n_parts; p++)
            if (!strcmp(m->name[local.part[p].param], c->name[i]))
                mark_box(&c->t[i], &local.part[p].box, 0, local.part[p].count, held);
        for (int64_t x = 0; x < count; x++)
            wrong += !need[x] != !held[x];
        if (wrong)
            test_fail(__FILE__, __LINE__,
                      "%s, %s [%lld,%lld] g %lld, tp %d ep %d rank %d: %s: %lld of %lld wrong", c->kind->what,
                      strchr(c->text, 'l'), (long long)c->s.n, (long long)c->s.k, (long long)c->s.g, c->l.tp,
                      c->l.ep, rank, c->name[i], (long long)wrong, (long long)count);
        free(need);
        free(held);
    }

    int n = params_pieces(&local, at.dp, c->l.zero == 3, piece);
    for (int p = 0; p < n; p++)
        for (int i = 0; i < c->n; i++)
            if (!strcmp(m->name[local.part[piece[p].part].param], c->name[i]))
                mark_box(&c->t[i], &piece[p].box, piece[p].lo, piece[p].hi, written[i]);
    params_local_close(&local);
    free(piece);
}

static void check_case(struct cut_case *c)
{
    struct quant_texts texts = { c->config, NULL, NULL };
    struct quant_list q = { 0 };
    struct cut_model m = { 0 };
    struct cuts cuts = { 0 };
    struct err e = { 0 };
    unsigned char *written[MOST];
    make_case(c);
    int rc = cuts_parse(&cuts, c->text, strlen(c->text), "cuts.txt", &e);
    if (rc >= 0)
        rc = quant_open(&q, &texts, c->list, c->n, &e);
    if (rc >= 0)
        rc = cut_model_open_quant(&m, &cuts, &q, c->list, c->n, &c->l, &e);
    if (rc < 0)
        test_fail(__FILE__, __LINE__, "%s, %s: %s", c->kind->what, c->text, e.text);
    CHECK_INT(q.n, 1);

    for (int i = 0; i < c->n; i++)
        written[i] = calloc((size_t)elements(&c->t[i]), 1);
    for (int r = 0; rc >= 0 && r < layout_ranks(&c->l); r++)
        check_rank(c, &m, r, written);
    for (int i = 0; i < c->n; i++) {
        int64_t wrong = 0;
        for (int64_t x = 0; x < elements(&c->t[i]); x++)
            wrong += written[i][x] != 1;
        if (wrong)
            test_fail(__FILE__, __LINE__, "%s, tp %d ep %d zero %d: %lld elements of %s are not written once",
                      c->kind->what, c->l.tp, c->l.ep, c->l.zero, (long long)wrong, c->name[i]);
        free(written[i]);
    }
    cut_model_close(&m);
    quant_close(&q);
    cuts_free(&cuts);
}

TEST(a_rank_holds_the_codes_and_scales_of_its_part_and_all_are_written_once)
{
    static const struct {
        int parts, interleave, by_k;
    } how[] = { { 1, 1, 0 }, { 2, 1, 0 }, { 1, 2, 0 }, { 1, 1, 1 }, { 2, 1, 1 } };
    static const struct layout layouts[] = {
        { 1, 1, 1, 1, 1, 0 }, { 2, 1, 1, 1, 1, 0 }, { 4, 1, 1, 1, 1, 0 },
        { 8, 1, 1, 1, 1, 0 }, { 2, 1, 1, 3, 1, 3 }, { 4, 1, 1, 2, 1, 3 },
        { 1, 1, 1, 2, 2, 0 }, { 1, 1, 1, 4, 4, 3 }, { 2, 1, 1, 4, 4, 3 },
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t h = 0; h < sizeof how / sizeof *how; h++)
            for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
                struct cut_case c = { .kind = &kinds[k],
                                      .by_k = how[h].by_k,
                                      .parts = how[h].parts,
                                      .interleave = how[h].interleave,
                                      .l = layouts[l] };
                if (c.l.ep == 1 || kinds[k].stacked)
                    check_case(&c);
            }
}

/* A table with rows for the stored tensors says how they are cut; a weight without a row is carried whole. */
TEST(rows_of_stored_tensors_win_and_weights_without_a_row_are_carried)
{
    static const char *const tables[] = {
        "cuts 1\na.{layer}.weight dim 0\na.{layer}.weight_scale_inv companion a.{layer}.weight block 16\n",
        "cuts 1\na.{layer}.weight dim 0\n",
        "cuts 1\nb.{layer}.weight whole optional\n",
    };
    const struct layout l = { 2, 1, 1, 1, 1, 0 };
    const struct ckpt_tensor t[2] = {
        { .name = "a.0.weight", .dtype = STORED_F8_E4M3, .n_dims = 2, .shape = { 48, 16, 1, 1 } },
        { .name = "a.0.weight_scale_inv", .dtype = STORED_F32, .n_dims = 2, .shape = { 3, 1, 1, 1 } },
    };
    const struct ckpt_tensor *list[2] = { &t[0], &t[1] };
    struct quant_texts texts = { QC("\"quant_method\":\"fp8\",\"weight_block_size\":[16,16]"), NULL, NULL };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct quant_list q;
        struct cut_model m;
        struct cuts cuts;
        struct err e = { 0 };
        CHECK_INT(cuts_parse(&cuts, tables[i], strlen(tables[i]), "cuts.txt", &e), 0);
        CHECK_INT(quant_open(&q, &texts, list, 2, &e), 0);
        CHECK_INT(cut_model_open_quant(&m, &cuts, &q, list, 2, &l, &e), 0);
        CHECK_INT(m.table.n, 2);
        quant_close(&q);
        for (int k = 0; k < m.table.n && i < 2; k++)
            CHECK_INT(m.table.p[k].block, !strcmp(m.name[k], t[1].name) ? 16 : 1);
        if (i == 2)
            CHECK_STR(m.unmatched, "a.0.weight");
        cut_model_close(&m);
        cuts_free(&cuts);
    }
}

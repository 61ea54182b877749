/* quantised weights: which stored tensors hold which weight, by names, shapes and the configuration. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/quant.h"
#include "tests/test.h"

#define MOST 16

struct listed {
    char text[MOST][128];
    struct ckpt_tensor t[MOST];
    const struct ckpt_tensor *p[MOST];
    int n;
};

/* Tensors from lines "NAME DTYPE A,B,C". */
static void list(struct listed *l, const char *lines)
{
    l->n = 0;
    while (*lines && l->n < MOST) {
        char dtype[16], dims[64];
        struct ckpt_tensor *t = &l->t[l->n];
        CHECK_INT(sscanf(lines, "%127s %15s %63s", l->text[l->n], dtype, dims), 3);
        *t = (struct ckpt_tensor){ .name = l->text[l->n],
                                   .dtype = (enum stored_dtype)stored_dtype_find(dtype) };
        for (char *d = strtok(dims, ","); d; d = strtok(NULL, ","))
            t->shape[t->n_dims++] = atoll(d);
        l->p[l->n++] = t;
        lines += strcspn(lines, "\n");
        lines += *lines == '\n';
    }
}

static int open_list(struct quant_list *q, struct listed *l, const char *lines, const char *config,
                     struct err *e)
{
    struct quant_texts texts = { config, NULL, NULL };
    *e = (struct err){ 0 };
    list(l, lines);
    return quant_open(q, &texts, l->p, l->n, e);
}

#define QC(text) "{\"quantization_config\":{" text "}}"
#define FP8 QC("\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]")
#define CT(weights) \
    QC("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"targets\":[\"Linear\"]," \
       "\"weights\":{" weights "}}}")
#define INT4 CT("\"num_bits\":4,\"type\":\"int\",\"group_size\":32,\"strategy\":\"group\"")
#define INT3 CT("\"num_bits\":3,\"type\":\"int\",\"group_size\":-1,\"strategy\":\"channel\"")
#define GPTQ(more) QC("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32" more)
#define AWQ QC("\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32,\"version\":\"gemm\"")

/* axes: of every stored tensor, in the order of the list: N's and K's dim:values/indices, "-": none. */
static const struct case_of {
    const char *config, *tensors, *name;
    int64_t shape[3];
    enum quant_form form;
    int bits;
    int64_t block_n, block_k;
    const char *axes;
} cases[] = {
    { FP8,
      "a.weight F8_E4M3 320,192\na.weight_scale_inv F32 3,2\n",
      "a.weight",
      { 320, 192 },
      QUANT_FP8,
      8,
      128,
      128,
      "0:1/1 1:1/1; 0:128/1 1:128/1;" },
    { FP8,
      "x.gate_up_proj F8_E4M3 4,384,256\nx.gate_up_proj_scales_inv F32 4,3,2\n",
      "x.gate_up_proj",
      { 4, 384, 256 },
      QUANT_FP8,
      8,
      128,
      128,
      "1:1/1 2:1/1; 1:128/1 2:128/1;" },
    { FP8,
      "a.weight I8 320,96\na.scale F8_E8M0 320,6\n",
      "a.weight",
      { 320, 192 },
      QUANT_FP4,
      4,
      1,
      32,
      "0:1/1 1:2/1; 0:1/1 1:32/1;" },
    { FP8,
      "a.weight F8_E4M3 256,128\na.scale F8_E8M0 2,1\n",
      "a.weight",
      { 256, 128 },
      QUANT_FP8,
      8,
      128,
      128,
      "0:1/1 1:1/1; 0:128/1 1:128/1;" },
    { CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\""),
      "a.weight F8_E4M3 6,10\na.weight_scale BF16 6,1\n",
      "a.weight",
      { 6, 10 },
      QUANT_FP8,
      8,
      1,
      0,
      "0:1/1 1:1/1; 0:1/1 -;" },
    { CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"tensor\""),
      "a.weight F8_E4M3 6,10\na.weight_scale F32 1\na.input_scale F32 1\n",
      "a.weight",
      { 6, 10 },
      QUANT_FP8,
      8,
      0,
      0,
      "0:1/1 1:1/1; - -; - -;" },
    { CT("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\""),
      "a.weight I8 6,10\na.weight_scale BF16 6,1\na.weight_zero_point I8 6,1\n",
      "a.weight",
      { 6, 10 },
      QUANT_INT8,
      8,
      1,
      0,
      "0:1/1 1:1/1; 0:1/1 -; 0:1/1 -;" },
    { QC("\"quant_method\":\"mxfp4\""),
      "x.down_proj_blocks U8 4,40,6,16\nx.down_proj_scales U8 4,40,6\n",
      "x.down_proj",
      { 4, 192, 40 },
      QUANT_FP4,
      4,
      1,
      32,
      "1:1/1 2:32/1; 1:1/1 2:32/1;" },
    { INT4,
      "a.weight_packed I32 24,12\na.weight_scale BF16 24,3\na.weight_shape I64 2\na.weight_zero_point I32 "
      "3,3\n",
      "a.weight",
      { 24, 96 },
      QUANT_PACKED,
      4,
      1,
      32,
      "0:1/1 1:8/1; 0:1/1 1:32/1; 0:8/1 1:32/1; - -;" },
    { INT3,
      "a.weight_packed I32 24,9\na.weight_scale BF16 24,1\na.weight_shape I64 2\n",
      "a.weight",
      { 24, 96 },
      QUANT_PACKED,
      3,
      1,
      0,
      "0:1/1 1:32/3; 0:1/1 -; - -;" },
    { CT("\"num_bits\":4,\"type\":\"float\",\"group_size\":16,\"strategy\":\"tensor_group\""),
      "a.weight_packed U8 24,24\na.weight_scale F8_E4M3 24,3\na.weight_global_scale F32 1\n",
      "a.weight",
      { 24, 48 },
      QUANT_FP4,
      4,
      1,
      16,
      "0:1/1 1:2/1; 0:1/1 1:16/1; - -;" },
    { QC("\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\""),
      "a.weight U8 24,24\na.weight_scale F8_E4M3 24,3\na.weight_scale_2 F32 1\na.input_scale F32 1\n",
      "a.weight",
      { 24, 48 },
      QUANT_FP4,
      4,
      1,
      16,
      "0:1/1 1:2/1; 0:1/1 1:16/1; - -; - -;" },
    { GPTQ(""),
      "a.qweight I32 12,40\na.scales F16 3,40\na.qzeros I32 3,5\na.g_idx I32 96\n",
      "a.weight",
      { 40, 96 },
      QUANT_GPTQ,
      4,
      1,
      32,
      "1:1/1 0:8/1; 1:1/1 0:32/1; 1:8/1 0:32/1; - 0:1/1;" },
    { GPTQ(",\"desc_act\":true"),
      "a.qweight I32 12,40\na.scales F16 3,40\na.qzeros I32 3,5\na.g_idx I32 96\n",
      "a.weight",
      { 40, 96 },
      QUANT_GPTQ,
      4,
      1,
      32,
      "1:1/1 0:8/1; 1:1/1 -; 1:8/1 -; - 0:1/1;" },
    { QC("\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":-1"),
      "a.qweight I32 9,64\na.scales F16 1,64\na.qzeros I32 1,6\na.g_idx I32 96\n",
      "a.weight",
      { 64, 96 },
      QUANT_GPTQ,
      3,
      1,
      0,
      "1:1/1 0:32/3; 1:1/1 -; 1:32/3 -; - 0:1/1;" },
    { AWQ,
      "a.qweight I32 96,5\na.scales F16 3,40\na.qzeros I32 3,5\n",
      "a.weight",
      { 40, 96 },
      QUANT_AWQ,
      4,
      1,
      32,
      "1:8/1 0:1/1; 1:1/1 0:32/1; 1:8/1 0:32/1;" },
};

static void axes_text(const struct quant_weight *w, char out[256])
{
    const int dims[2] = { w->dim_n, w->dim_k };
    int at = 0;
    for (int i = 0; i < w->n_stored; i++)
        for (int k = 0; k < 2; k++) {
            const struct quant_axis *a = &w->stored[i].axis[dims[k]];
            char one[48];
            snprintf(one, sizeof one, "%d:%lld/%d", a->dim, (long long)a->values, a->indices);
            at += snprintf(out + at, 256 - (size_t)at, "%s%s", a->dim < 0 ? "-" : one, k ? "; " : " ");
        }
    out[at ? at - 1 : 0] = 0;
}

TEST(every_scheme_gives_its_weight_and_says_how_it_lies)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct case_of *c = &cases[i];
        struct quant_list q;
        struct listed l;
        struct err e;
        char axes[256];
        if (open_list(&q, &l, c->tensors, c->config, &e) < 0)
            printf("case %zu: %s\n", i, e.text);
        CHECK_INT(q.n, 1);
        CHECK_INT(q.is_known, 1);
        const struct quant_weight *w = &q.weight[0];
        CHECK_STR(w->name, c->name);
        for (int d = 0; d < w->n_dims; d++)
            CHECK_INT(w->shape[d], c->shape[d]);
        CHECK_INT(w->scheme.form, c->form);
        CHECK_INT(w->scheme.bits, c->bits);
        CHECK_INT(w->scheme.block_n, c->block_n);
        CHECK_INT(w->scheme.block_k, c->block_k);
        axes_text(w, axes);
        CHECK_STR(axes, c->axes);
        for (int k = 0; k < l.n; k++)
            CHECK_INT(q.weight_of[k], 0);
        CHECK_INT(quant_find(&q, c->name), 0);
        quant_close(&q);
    }
}

TEST(a_misfit_is_named_with_both_shapes)
{
    static const struct {
        const char *config, *tensors, *message;
    } bad[] = {
        { FP8, "a.weight F8_E4M3 320,192\na.weight_scale_inv F32 2,2\n",
          "a.weight_scale_inv: is [2,2], the codes in a.weight [320,192] need [3,2] in blocks of 128 x 128" },
        { FP8, "a.weight F8_E4M3 320,192\na.weight_scale_inv I16 3,2\n",
          "a.weight_scale_inv: is I16, a float" },
        { FP8, "x.y F8_E4M3 4,384,256\nx.y_scale_inv F32 2,3,2\n",
          "x.y_scale_inv: is [2,3,2], the codes in x.y" },
        { INT4, "a.weight_packed I32 24,12\na.weight_scale BF16 24,4\n",
          "a.weight_scale: is [24,4], the codes" },
        { INT4, "a.weight_packed I32 24,12\n", "a.weight_packed: has no scales beside it" },
        { QC("\"quant_method\":\"mxfp4\""), "x_blocks U8 4,40,6,15\nx_scales U8 4,40,6\n",
          "x_blocks: is [4,40,6,15], the codes in x_blocks [4,40,6,15] need blocks of 16 bytes" },
        { QC("\"quant_method\":\"mxfp4\""), "x_blocks U8 4,40,6,16\nx_scales U8 4,40,5\n",
          "x_scales: is [4,40,5], the codes in x_blocks [4,40,6,16] need [4,40,6]" },
        { GPTQ(""), "a.qweight I32 12,40\na.scales F16 2,40\na.qzeros I32 3,5\na.g_idx I32 96\n",
          "a.scales: is [2,40], the codes in a.qweight [12,40] need [3,40] in groups of 32" },
        { GPTQ(""), "a.qweight I32 12,40\na.scales F16 3,40\na.qzeros I32 3,4\na.g_idx I32 96\n",
          "a.qzeros: is [3,4], the codes in a.qweight [12,40] need [3,5]" },
        { GPTQ(""), "a.qweight I32 13,40\na.scales F16 3,40\na.qzeros I32 3,5\na.g_idx I32 96\n",
          "a.qweight: has 13 rows of words for the 96 columns of a.g_idx: codes of 4 bits need 12 rows" },
        { AWQ, "a.qweight I32 96,5\na.scales F16 3,41\na.qzeros I32 3,5\n",
          "a.scales: is [3,41], the codes" },
        { QC("\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]"), "a F32 1\n",
          "weight_block_size is not two sizes from 1 to 1048576" },
        { QC("\"quant_method\":\"gptq\",\"bits\":99"), "a F32 1\n", "bits is 99: codes of 1 to 16 bits" },
        { QC("\"quant_method\":\"gptq\",\"group_size\":\"x\""), "a F32 1\n", "group_size" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct quant_list q;
        struct listed l;
        struct err e;
        CHECK(open_list(&q, &l, bad[i].tensors, bad[i].config, &e) < 0);
        CHECK_HAS(e.text, bad[i].message);
        quant_close(&q);
    }
}

/* What is not understood is carried: the same misfits under an unknown method are no error. */
TEST(an_unknown_method_is_carried)
{
    struct quant_list q;
    struct listed l;
    struct err e;
    CHECK_INT(open_list(&q, &l,
                        "a.weight F8_E4M3 320,192\na.weight_scale F32 2,2\nb.weight F8_E4M3 8,8\n"
                        "b.weight_scale F32 8,1\n",
                        QC("\"quant_method\":\"quark\""), &e),
              0);
    CHECK_INT(q.is_known, 0);
    CHECK_STR(q.method, "quark");
    CHECK_INT(q.n, 1);
    CHECK_STR(q.weight[0].name, "b.weight");
    quant_close(&q);
    CHECK_INT(open_list(&q, &l, "a F32 1\n", GPTQ(",\"checkpoint_format\":\"marlin\""), &e), 0);
    CHECK_INT(q.is_known, 0);
    quant_close(&q);
    CHECK_INT(open_list(&q, &l, "a F32 1\nb.weight F8_E4M3 24,12\n", FP8, &e), 0);
    CHECK_INT(q.n, 0);
    CHECK_INT(q.unscaled, 1);
    quant_close(&q);
}

/* Two groups fit the shapes: the one whose targets name the module counts. */
TEST(targets_decide_between_groups_that_fit)
{
    static const char config[] = QC(
        "\"quant_method\":\"compressed-tensors\",\"config_groups\":{"
        "\"a\":{\"targets\":[\"re:.*q_proj\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"group_size\":64}"
        "},"
        "\"b\":{\"targets\":[\"re:.*down_proj$\"],\"weights\":{\"num_bits\":8,\"type\":\"int\","
        "\"group_size\":32}}}");
    struct quant_list q;
    struct listed l;
    struct err e;
    CHECK_INT(open_list(&q, &l,
                        "m.down_proj.weight_packed I32 8,16\nm.down_proj.weight_scale BF16 8,2\n"
                        "m.q_proj.weight_packed I32 8,16\nm.q_proj.weight_scale BF16 8,2\n",
                        config, &e),
              0);
    CHECK_INT(q.n, 2);
    CHECK_INT(q.weight[0].scheme.bits, 8);
    CHECK_INT(q.weight[0].shape[1], 64);
    CHECK_INT(q.weight[1].scheme.bits, 4);
    CHECK_INT(q.weight[1].shape[1], 128);
    quant_close(&q);
}

TEST(the_box_of_a_stored_tensor_covers_that_of_its_weight)
{
    struct quant_list q;
    struct listed l;
    struct err e;
    struct box b = { 2, { 8, 40 }, { 16, 20 } }, got;
    CHECK_INT(open_list(&q, &l, "a.weight_packed I32 24,9\na.weight_scale BF16 24,1\na.weight_shape I64 2\n",
                        INT3, &e),
              0);
    got = quant_box(&q.weight[0], &q.weight[0].stored[0], 2, l.t[0].shape, &b);
    CHECK_INT(got.start[0], 8);
    CHECK_INT(got.extent[0], 16);
    CHECK_INT(got.start[1], 3); /* bit 120 is in word 3, bit 179 in word 5 */
    CHECK_INT(got.extent[1], 3);
    got = quant_box(&q.weight[0], &q.weight[0].stored[1], 2, l.t[1].shape, &b);
    CHECK_INT(got.start[0], 8);
    CHECK_INT(got.extent[1], 1);
    quant_close(&q);
}

/* cut_template_test.c - the tables that ship: the language model is found in nested configs and behind
 * prefixes, sizes follow from config.json, and a damaged one is refused. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "reshard/cuts/cut_families.h"
#include "reshard/cuts/cut_sizes.h"
#include "reshard/cuts/cut_template.h"
#include "reshard/cuts.h"
#include "tests/test.h"

#define NAMES_MAX 12

/* The table of these names; NULL: none, with the message in e. */
static char *table_of(const char *config, const char *const *name, struct err *e)
{
    struct ckpt_tensor tensor[NAMES_MAX];
    const struct ckpt_tensor *list[NAMES_MAX];
    struct cut_query q = { .config = config, .what = "config.json", .tensor = list };
    char *text = NULL;
    for (; q.n < NAMES_MAX && name[q.n]; q.n++) {
        tensor[q.n] = (struct ckpt_tensor){ .name = name[q.n] };
        list[q.n] = &tensor[q.n];
    }
    *e = (struct err){ 0 };
    cut_template(&q, &text, e);
    return text;
}

TEST(a_nested_language_model_is_cut_behind_its_prefix)
{
    static const char config[] =
        "{\"model_type\":\"qwen3_5_moe\",\"text_config\":{\"model_type\":\"qwen3_5_moe_text\","
        "\"head_dim\":64,\"linear_num_key_heads\":4,\"linear_key_head_dim\":32,"
        "\"linear_num_value_heads\":8,\"linear_value_head_dim\":16}}";
    static const char *const names[] = { "model.language_model.layers.0.linear_attn.in_proj_qkv.weight",
                                         "model.language_model.layers.3.self_attn.q_proj.weight",
                                         "model.language_model.layers.3.mlp.experts.7.up_proj.weight",
                                         "model.visual.blocks.0.attn.qkv.weight",
                                         "mtp.layers.0.self_attn.k_proj.weight",
                                         "mtp.fc.weight",
                                         NULL };
    struct err e;
    char *text = table_of(config, names, &e);
    CHECK(text != NULL);
    CHECK_STR(text, "cuts 1\ngrain 8\n"
                    "model.language_model.layers.{layer}.self_attn.q_proj.weight dim 0 unit 128\n"
                    "model.language_model.layers.{layer}.mlp.experts.{expert}.up_proj.weight dim 0 blocks\n"
                    "model.language_model.layers.{layer}.linear_attn.in_proj_qkv.weight dim 0 unit 32,32,32 "
                    "parts 128,128,128\n"
                    "mtp.layers.*.self_attn.k_proj.weight dim 0 unit 64 copies last\n"
                    "mtp.*.weight whole last\n");
    free(text);
}

TEST(a_family_prints_its_own_rows_and_those_of_layers_beside_it)
{
    static const char config[] =
        "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":1,\"first_k_dense_replace\":1,"
        "\"num_nextn_predict_layers\":1,\"hidden_size\":32,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":4,\"intermediate_size\":16,\"vocab_size\":16}";
    static const char *const names[] = { "model.layers.1.eh_proj.weight", "model.layers.1.enorm.weight",
                                         "model.layers.1.mlp.experts.3.down_proj.weight", NULL };
    struct err e;
    char *text = table_of(config, names, &e);
    CHECK(text != NULL);
    CHECK_HAS(text, "model.layers.{layer}.self_attn.kv_b_proj.weight dim 0 unit 256 shape *,512\n");
    CHECK_HAS(text, "model.layers.{layer}.eh_proj.weight whole\n");
    CHECK_HAS(text, "model.layers.{layer}.*norm*.weight whole\n");
    CHECK_HAS(text, "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight dim 1 shape 32,* blocks\n");
    free(text);
}

TEST(layers_of_two_kinds_have_rows_of_their_own)
{
    static const char config[] =
        "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":7,\"head_dim\":8,\"global_head_dim\":16%s}";
    static const char *const names[] = { "model.layers.0.self_attn.k_proj.weight", NULL };
    static const char types[] = ",\"layer_types\":[\"s\",\"s\",\"full_attention\",\"full_attention\",\"s\","
                                "\"s\",\"full_attention\"]";
    char text[512];
    struct err e;
    for (int listed = 0; listed < 2; listed++) {
        snprintf(text, sizeof text, "%.*s%s}", (int)(strlen(config) - 3), config, listed ? types : "");
        char *table = table_of(text, names, &e);
        CHECK(table != NULL);
        CHECK_HAS(table,
                  listed ? "unit 16 copies layers 2-3,6 optional" : "unit 16 copies layers 5 optional");
        CHECK_HAS(table,
                  listed ? "unit 8 copies layers 0-1,4-5 optional" : "unit 8 copies layers 0-4,6 optional");
        free(table);
    }
}

TEST(a_damaged_config_is_refused)
{
    static const char *const names[] = { "model.layers.0.self_attn.q_proj.weight", NULL };
    static const struct {
        const char *config, *message;
    } bad[] = {
        { "[]", "not a JSON object" },
        { "{}", "no model_type" },
        { "{\"model_type\":\"nova\"}", "model_type nova is not known" },
        { "{\"model_type\":\"olmo2\"}", "has no hidden_size, which the cuts of its model_type need" },
        { "{\"model_type\":\"olmo2\",\"hidden_size\":30,\"num_attention_heads\":8}",
          "30 / 8 is not a whole number" },
        { "{\"model_type\":\"olmo2\",\"hidden_size\":32,\"num_attention_heads\":0}",
          "32 / 0 is not a whole number" },
        { "{\"model_type\":\"olmo2\",\"head_dim\":\"x\"}", "head_dim is not a whole number" },
        { "{\"model_type\":\"olmo2\",\"head_dim\":-4}", "head_dim is -4" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        CHECK(!table_of(bad[i].config, names, &e));
        CHECK_HAS(e.text, bad[i].message);
    }
}

TEST(expressions_follow_the_rules_of_arithmetic)
{
    static const struct {
        const char *text;
        int64_t value; /* -1: refused */
    } cases[] = { { "2+3*4", 14 }, { "(2+3)*4", 20 },
                  { "a/b*2", 6 },  { "in.c+t", 6 },
                  { "d", 8 },      { "12/5", -1 },
                  { "1-2", -1 },   { "a*a*a*a*a*a*a*a*a*a*a*a*a*a", -1 },
                  { "2 3", -1 },   { "(1", -1 },
                  { "", -1 },      { "1+", -1 },
                  { "loop", -1 },  { "99999999999999999999", -1 },
                  { "9x", -1 } };
    json_t *o = json_pack("{s:i, s:i, s:b, s:{s:i}, s:n}", "a", 12, "b", 4, "t", 1, "in", "c", 5, "d");
    const struct cut_sizes s = { .text = o, .root = o, .given = { "d=2*b", "loop=loop+1" }, .what = "x" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        int64_t v = -1;
        if (cut_sizes_value(&s, cases[i].text, &v, &e) < 0)
            v = -1;
        CHECK_INT(v, cases[i].value);
    }
    json_decref(o);
}

/* Every row of every template is a row of a cut table once its expressions are numbers. */
TEST(templates_hold_rows_alone)
{
    for (int i = 0; cut_family_at(i); i++) {
        const struct cut_family *f = cut_family_at(i);
        char table[1 << 14] = "cuts 1\n";
        size_t at = strlen(table);
        for (int k = 0; k < CUT_FAMILY_PARTS && f->part[k]; k++) {
            size_t before = at;
            for (const char *s = f->part[k]; *s; s += strcspn(s, "\n") + 1) {
                const char *words = s + strcspn(s, " ");
                at = before;
                if (!strncmp(s, "layer ", 6))
                    continue;
                at += (size_t)sprintf(table + at, "%s",
                                      strstr(s, "{expert}") < words && strstr(s, "{expert}")
                                          ? "{layer}.{expert}"
                                          : "{layer}");
                for (const char *w = words; *w && *w != '\n'; w += strspn(w, " ")) {
                    int n = (int)strcspn(w, " \n"), parts = 1;
                    for (int c = 0; c < n; c++)
                        parts += w[c] == ',';
                    if (*w == '$')
                        at += (size_t)sprintf(table + at, " %.*s", 2 * parts - 1, "1,1,1,1,1,1,1,1");
                    else if (*w == '%')
                        at += (size_t)sprintf(table + at, " 1-2");
                    else if (!strncmp(w, "size ", 5))
                        at += (size_t)sprintf(table + at, " shape");
                    else if (*w != '?' && strncmp(w, "last", 4))
                        at += (size_t)sprintf(table + at, " %.*s", n, w);
                    w += n;
                }
                strcpy(table + at, "\n");

                struct cuts c;
                struct err e = { 0 };
                CHECK_INT(cuts_parse(&c, table, strlen(table), f->types, &e), 0);
                CHECK_STR(e.text, "");
                cuts_free(&c);
            }
            at = before;
        }
    }
}

/* 60 layers of 250 experts: the table is made and applied, and a rank's pieces are listed, in less than a
 * second of one core. */
TEST(tables_of_45000_tensors_take_less_than_a_second)
{
    enum { LAYERS = 60, EXPERTS = 250, N = LAYERS * EXPERTS * 3 };
    static const char *const part[] = { "gate", "up", "down" };
    static const char config[] = "{\"model_type\":\"glm4_moe\",\"hidden_size\":64,\"num_attention_heads\":8}";
    static char name[N][64];
    struct ckpt_tensor *t = calloc(N, sizeof *t);
    const struct ckpt_tensor **list = calloc(N, sizeof *list);
    struct cut_query q = { .config = config, .what = "config.json", .tensor = list, .n = N };
    const struct layout l = { 2, 2, 1, 2, 4, 1 };
    struct params_local local;
    struct cut_model m;
    struct cuts c;
    struct err e;
    char *text;
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "model.layers.%d.mlp.experts.%d.%s_proj.weight", i / 3 / EXPERTS,
                 i / 3 % EXPERTS, part[i % 3]);
        t[i] = (struct ckpt_tensor){
            .name = name[i], .dtype = STORED_BF16, .n_dims = 2, .shape = { 64, 64 }
        };
        list[i] = &t[i];
    }

    clock_t start = clock();
    CHECK_INT(cut_template(&q, &text, &e), 1);
    CHECK_INT(cuts_parse(&c, text, strlen(text), "cuts.txt", &e), 0);
    CHECK_INT(cut_model_open(&m, &c, list, N, &l, &e), 0);
    struct param_piece *out = calloc((size_t)m.table.n, sizeof *out);
    CHECK_INT(params_local_open(&local, &m.table, &l, layout_at(&l, 0), &e), 0);
    CHECK(params_pieces(&local, 0, 0, out) > 0);
    double s = (double)(clock() - start) / CLOCKS_PER_SEC;
#ifdef __SANITIZE_ADDRESS__
    s /= 20;
#endif
    CHECK_INT(m.n_unmatched, 0);
    CHECK(s < 1);

    params_local_close(&local);
    cut_model_close(&m);
    cuts_free(&c);
    free(out);
    free(text);
    free(t);
    free(list);
}

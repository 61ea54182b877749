/* gguf_tables_test.c - the tables of GGUF: names in both directions, block sizes, families. */
#include <string.h>
#include "format/gguf/gguf.h"
#include "tests/test.h"

TEST(every_name_of_every_family_is_found_from_both_sides)
{
    char hf[GGUF_NAME_MAX], file[GGUF_NAME_MAX];
    const struct gguf_family *f;
    for (int i = 0; (f = gguf_family_row(i)); i++)
        for (const struct gguf_name *n = f->names; n->hf; n++) {
            int layer = -2, expert = -2;
            const struct gguf_name *first = gguf_find_hf(f->names, gguf_fill(n->hf, 30, 107, hf), &layer,
                                                         &expert);
            CHECK(first && !strcmp(first->hf, n->hf));
            CHECK(layer == (strchr(n->hf, '%') ? 30 : -1));
            CHECK(expert == (n->form == GGUF_EXPERT ? 107 : -1));
            layer = -2;
            CHECK(gguf_find_file(f->names, gguf_fill(n->file, 30, -1, file), &layer) == n);
            CHECK(layer == (strchr(n->file, '%') ? 30 : -1));
        }
}

TEST(a_name_matches_with_plain_numbers_only)
{
    int layer, expert;
    CHECK(gguf_match("blk.%d.attn_q.weight", "blk.12.attn_q.weight", &layer, &expert) && layer == 12);
    CHECK(!gguf_match("blk.%d.attn_q.weight", "blk.012.attn_q.weight", &layer, &expert));
    CHECK(!gguf_match("blk.%d.attn_q.weight", "blk.-1.attn_q.weight", &layer, &expert));
    CHECK(!gguf_match("blk.%d.attn_q.weight", "blk.1.attn_q.weight.x", &layer, &expert));
    CHECK(!gguf_match("blk.%d.attn_q.weight", "blk.12345678901.attn_q.weight", &layer, &expert));
}

TEST(a_file_s_family_has_its_experts_and_router)
{
    CHECK(!strcmp(gguf_family_of_file("llama", 0, 0)->model_type, "llama"));
    CHECK(!strcmp(gguf_family_of_file("llama", 1, 0)->model_type, "mixtral"));
    CHECK(!strcmp(gguf_family_of_file("deepseek2", 1, 1)->model_type, "deepseek_v3"));
    CHECK(!strcmp(gguf_family_of_file("deepseek2", 1, 0)->model_type, "deepseek_v2"));
    CHECK(!gguf_family_of_file("mamba", 0, 0));
    CHECK(!strcmp(gguf_family_of_config("mistral")->arch, "llama"));
}

TEST(types_are_found_by_number_and_name)
{
    CHECK(gguf_type_row(39)->bytes == 17 && gguf_type_row(39)->values == 32);
    CHECK(gguf_type_named("q4_k")->id == 12);
    CHECK(!gguf_type_row(4) && !gguf_type_row(31) && !gguf_type_named("Q9"));
    CHECK(gguf_is_f32("blk.0.attn_norm.weight", 1) && gguf_is_f32("blk.0.ffn_gate_inp.weight", 2));
    CHECK(!gguf_is_f32("blk.0.attn_q.weight", 2) && gguf_is_f32("blk.0.ffn_gate_exps.bias", 2));
}

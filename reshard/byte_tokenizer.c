/* byte_tokenizer.c - the tokenizer of a byte model, written out for transformers: token id = byte value.
 *
 * A byte-level BPE without merges: the pre-tokenizer turns every byte into one printable character (the
 * table of GPT-2: printable Latin-1 stays, the 68 others move to U+0100 and up), the vocabulary gives that
 * character the byte's value. */
#include <jansson.h>
#include <stdio.h>
#include "reshard/reshard.h"

static int stays(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

static json_t *vocabulary(void)
{
    json_t *v = json_object();
    int moved = 0;
    for (int b = 0; b < 256; b++) {
        unsigned u = stays(b) ? (unsigned)b : 256u + (unsigned)moved++;
        char text[3] = { (char)u, 0, 0 };
        if (u >= 128) { /* two bytes of UTF-8 */
            text[0] = (char)(0xc0 | u >> 6);
            text[1] = (char)(0x80 | (u & 63));
        }
        json_object_set_new(v, text, json_integer(b));
    }
    return v;
}

static char *dump(json_t *o)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;
    json_decref(o);
    return text;
}

char *byte_tokenizer_json(void)
{
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", 0);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary(), "merges");
    return dump(json_pack("{s:s, s:n, s:n, s:[], s:n, s:O, s:n, s:o, s:o}", "version", "1.0", "truncation",
                          "padding", "added_tokens", "normalizer", "pre_tokenizer", level, "post_processor",
                          "decoder", level, "model", model));
}

char *byte_tokenizer_config_json(int64_t max_len)
{
    return dump(json_pack("{s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                          "clean_up_tokenization_spaces", 0, "model_max_length", (json_int_t)max_len));
}

char *byte_generation_config_json(const struct model_config *c)
{
    json_t *o = json_pack("{s:b}", "_from_model_config", 1), *eos = json_array();
    for (int i = 0; i < c->n_eos; i++)
        json_array_append_new(eos, json_integer(c->eos[i]));
    if (c->bos >= 0)
        json_object_set_new(o, "bos_token_id", json_integer(c->bos));
    if (c->n_eos == 1)
        json_object_set(o, "eos_token_id", json_array_get(eos, 0));
    else if (c->n_eos > 1)
        json_object_set(o, "eos_token_id", eos);
    json_decref(eos);
    return dump(o);
}

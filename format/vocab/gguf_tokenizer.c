/* gguf_tokenizer.c - see gguf_tokenizer.h. Forms of the tokenizers library, version 1.0 of its file. */
#include "format/vocab/gguf_tokenizer.h"

#include <string.h>

static int flag_of(const struct gguf_file *f, const char *key, int absent)
{
    int64_t v = absent;
    gguf_int(f, key, &v);
    return v != 0;
}

/* Where the file does not say it. */
static int begins_with_bos(const struct gguf_tokens *t) { return !t->pre || t->pre->flags & GGUF_PRE_BOS; }

/* The token that a key names; NULL: none. */
static const struct gguf_token_row *special(const struct gguf_tokens *t, const char *key, int64_t *id)
{
    int64_t v = -1;
    gguf_int(t->f, key, &v);
    *id = v;
    return v >= 0 && v < t->n && t->row[v].is_kept ? &t->row[v] : NULL;
}

/* ---- sections of tokenizer.json ---- */

/* SentencePiece's blanks are tokens of the model: only others are looked for in the text first. */
static int is_added(const struct gguf_tokens *t, const struct gguf_token_row *r)
{
    if (!r->is_kept || (t->is_spm && gguf_only_blanks(r->raw)))
        return 0;
    return r->type == GGUF_CONTROL || r->type == GGUF_USER_DEFINED || (r->type == GGUF_UNKNOWN && t->is_spm);
}

static void put_added(struct buf *o, const struct gguf_tokens *t)
{
    int first = 1;
    gguf_print(o, "\"added_tokens\":[");
    for (int32_t i = 0; i < t->n; i++) {
        const struct gguf_token_row *r = &t->row[i];
        if (!is_added(t, r))
            continue;
        gguf_print(o, "%s\n{\"id\":%d,\"content\":", first ? "" : ",", i);
        gguf_print_json(o, r->raw.p, r->raw.n);
        gguf_print(
            o,
            ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
            r->type == GGUF_USER_DEFINED ? "false" : "true");
        first = 0;
    }
    gguf_print(o, "],\n");
}

static void put_normalizer(struct buf *o, const struct gguf_tokens *t)
{
    static const char blank[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" GGUF_BLANK "\"}";
    if (!t->is_spm)
        gguf_print(o, "\"normalizer\":%s,\n", t->pre->flags & GGUF_PRE_NFC ? "{\"type\":\"NFC\"}" : "null");
    else if (flag_of(t->f, "tokenizer.ggml.add_space_prefix", !t->pre))
        gguf_print(o,
                   "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                   "\"" GGUF_BLANK "\"},%s]},\n",
                   blank);
    else
        gguf_print(o, "\"normalizer\":%s,\n", blank);
}

static void put_pre_tokenizer(struct buf *o, const struct gguf_tokens *t)
{
    if (t->is_spm) {
        gguf_print(o, "\"pre_tokenizer\":null,\n");
        return;
    }
    gguf_print(o, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < GGUF_PRE_SPLITS && t->pre->split[i]; i++) {
        gguf_print(o, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        gguf_print_json(o, t->pre->split[i], (int64_t)strlen(t->pre->split[i]));
        gguf_print(o, "},\"behavior\":\"Isolated\",\"invert\":false},\n");
    }
    gguf_print(
        o,
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},\n");
}

static void put_special(struct buf *o, const struct gguf_token_row *r)
{
    gguf_print(o, "{\"SpecialToken\":{\"id\":");
    gguf_print_json(o, r->text.p, r->text.n);
    gguf_print(o, ",\"type_id\":0}}");
}

static void put_post_processor(struct buf *o, const struct gguf_tokens *t)
{
    int64_t id[2];
    const struct gguf_token_row *r[2] = { special(t, "tokenizer.ggml.bos_token_id", &id[0]),
                                          special(t, "tokenizer.ggml.eos_token_id", &id[1]) };
    if (!flag_of(t->f, "tokenizer.ggml.add_bos_token", begins_with_bos(t)))
        r[0] = NULL;
    if (!flag_of(t->f, "tokenizer.ggml.add_eos_token", 0))
        r[1] = NULL;
    if (!r[0] && !r[1]) {
        gguf_print(o, "\"post_processor\":null,\n");
        return;
    }

    gguf_print(o, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (r[0])
        put_special(o, r[0]);
    gguf_print(o, "%s{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}%s", r[0] ? "," : "", r[1] ? "," : "");
    if (r[1])
        put_special(o, r[1]);
    gguf_print(o,
               "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_"
               "id\":1}}],"
               "\"special_tokens\":{");
    for (int i = 0; i < 2; i++) {
        if (!r[i] || (i && r[0] == r[1]))
            continue;
        gguf_print(o, i && r[0] ? "," : "");
        gguf_print_json(o, r[i]->text.p, r[i]->text.n);
        gguf_print(o, ":{\"id\":");
        gguf_print_json(o, r[i]->text.p, r[i]->text.n);
        gguf_print(o, ",\"ids\":[%lld],\"tokens\":[", (long long)id[i]);
        gguf_print_json(o, r[i]->text.p, r[i]->text.n);
        gguf_print(o, "]}");
    }
    gguf_print(o, "}},\n");
}

static void put_decoder(struct buf *o, const struct gguf_tokens *t)
{
    if (!t->is_spm) {
        gguf_print(o, "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
                      "\"use_regex\":true},\n");
        return;
    }
    gguf_print(
        o, "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
           "\"" GGUF_BLANK "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (flag_of(t->f, "tokenizer.ggml.add_space_prefix", !t->pre))
        gguf_print(o, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    gguf_print(o, "]},\n");
}

/* ---- the model ---- */

/* The vocabulary: of SentencePiece all tokens (blanks as it spells them), of BPE those that are not added. */
static void put_vocabulary(struct buf *o, const struct gguf_tokens *t)
{
    int first = 1;
    gguf_print(o, "\"vocab\":{");
    for (int32_t i = 0; i < t->n; i++) {
        const struct gguf_token_row *r = &t->row[i];
        if (!r->is_kept || (!t->is_spm && is_added(t, r)))
            continue;
        gguf_print(o, first ? "\n" : ",\n");
        gguf_print_json(o, r->text.p, r->text.n);
        gguf_print(o, ":%d", i);
        first = 0;
    }
    gguf_print(o, "},\n");
}

static int put_bpe_merges(struct buf *o, const struct gguf_tokens *t, struct err *e)
{
    const struct gguf_meta *m = gguf_meta_find(t->f, "tokenizer.ggml.merges");
    const unsigned char *at = m ? m->data : NULL;
    if (!m || m->type != GGUF_VALUE_ARRAY || m->of != GGUF_VALUE_TEXT)
        return err_set(e, ERR_FORMAT, "%s: tokenizer.ggml.merges is no list of texts", t->f->path);
    gguf_print(o, "[");
    for (int64_t i = 0, n = 0; i < m->n; i++) {
        struct gguf_text x = gguf_next_text(&at);
        if (!gguf_is_utf8(x.p, x.n))
            continue;
        gguf_print(o, n++ ? ",\n" : "\n");
        gguf_print_json(o, x.p, x.n);
    }
    gguf_print(o, "]");
    return 0;
}

static int put_model(struct buf *o, const struct gguf_tokens *t, struct err *e)
{
    int64_t id;
    const struct gguf_token_row *unknown = special(t, "tokenizer.ggml.unknown_token_id", &id);
    for (int32_t i = 0; i < t->n && t->is_spm && !unknown; i++)
        unknown = t->row[i].type == GGUF_UNKNOWN && t->row[i].is_kept ? &t->row[i] : NULL;
    gguf_print(o, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (unknown && t->is_spm)
        gguf_print_json(o, unknown->text.p, unknown->text.n);
    else
        gguf_print(o, "null");
    gguf_print(o,
               ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,\"byte_"
               "fallback\":%s,"
               "\"ignore_merges\":%s,\n",
               t->is_spm ? "true" : "false", t->is_spm ? "true" : "false",
               !t->is_spm && t->pre->flags & GGUF_PRE_WHOLE ? "true" : "false");
    put_vocabulary(o, t);
    gguf_print(o, "\"merges\":");
    int rc = t->pre ? put_bpe_merges(o, t, e) : gguf_print_merges(o, t, e);
    gguf_print(o, "}}\n");
    return rc;
}

int gguf_tokenizer_json(struct buf *o, const struct gguf_tokens *t, struct err *e)
{
    gguf_print(o, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(o, t);
    put_normalizer(o, t);
    put_pre_tokenizer(o, t);
    put_post_processor(o, t);
    put_decoder(o, t);
    return put_model(o, t, e);
}

/* ---- the small files ---- */

void gguf_tokenizer_config(struct buf *o, const struct gguf_tokens *t)
{
    static const char *const names[][2] = { { "bos_token", "tokenizer.ggml.bos_token_id" },
                                            { "eos_token", "tokenizer.ggml.eos_token_id" },
                                            { "unk_token", "tokenizer.ggml.unknown_token_id" },
                                            { "pad_token", "tokenizer.ggml.padding_token_id" } };
    int bos = flag_of(t->f, "tokenizer.ggml.add_bos_token", begins_with_bos(t));
    struct gguf_text chat;
    gguf_print(
        o,
        "{\n\"tokenizer_class\":\"PreTrainedTokenizerFast\",\n\"clean_up_tokenization_spaces\":false,\n"
        "\"add_bos_token\":%s,\n\"add_eos_token\":%s",
        bos ? "true" : "false", flag_of(t->f, "tokenizer.ggml.add_eos_token", 0) ? "true" : "false");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t id;
        const struct gguf_token_row *r = special(t, names[i][1], &id);
        if (!r)
            continue;
        gguf_print(o, ",\n\"%s\":", names[i][0]);
        gguf_print_json(o, r->text.p, r->text.n);
    }
    if (gguf_get_text(t->f, "tokenizer.chat_template", &chat) && gguf_is_utf8(chat.p, chat.n)) {
        gguf_print(o, ",\n\"chat_template\":");
        gguf_print_json(o, chat.p, chat.n);
    }
    gguf_print(o, "\n}\n");
}

void gguf_generation_config(struct buf *o, const struct gguf_file *f)
{
    static const char *const ends[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id" };
    int64_t seen[3], v;
    int n = 0;
    gguf_print(o, "{\n");
    if (gguf_int(f, "tokenizer.ggml.bos_token_id", &v) && v >= 0)
        gguf_print(o, "\"bos_token_id\":%lld,\n", (long long)v);
    gguf_print(o, "\"eos_token_id\":[");
    for (int i = 0; i < 3; i++) {
        int is_new = gguf_int(f, ends[i], &v) && v >= 0;
        for (int k = 0; k < n; k++)
            is_new &= seen[k] != v;
        if (is_new) {
            gguf_print(o, "%s%lld", n ? "," : "", (long long)v);
            seen[n++] = v;
        }
    }
    gguf_print(o, "]\n}\n");
}

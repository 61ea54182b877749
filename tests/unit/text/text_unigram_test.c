/* text_unigram_test.c - unigram models and SentencePiece's table of replacements: ids and texts of the
 * Hugging Face library; what is refused. */
#include "tests/unit/text/text_help.h"

#include "tests/unit/text/text_unigram_cases.inc"

enum { CASES = sizeof cases / sizeof *cases, TOKENIZERS = sizeof tokenizers / sizeof *tokenizers };

/* The reference's ids of a case, separated by spaces; their number. */
static size_t ids_of(const char *text, int32_t *ids)
{
    size_t n = 0;
    for (char *end; *text; text = *end ? end + 1 : end)
        ids[n++] = (int32_t)strtol(text, &end, 10);
    return n;
}

TEST(ids_and_texts_are_those_of_the_library)
{
    struct tokenizer *t[TOKENIZERS];
    struct err e = { 0 };
    for (int k = 0; k < TOKENIZERS; k++)
        CHECK_INT(tokenizer_open(&t[k], tokenizers[k], strlen(tokenizers[k]), NULL, 0, "t.json", &e), 0);
    for (int i = 0; i < CASES; i++) {
        int32_t want[256], *got = NULL;
        size_t n_want = ids_of(cases[i].ids, want), n = 0, n_text = 0;
        char *text = NULL;
        CHECK_INT(tokenizer_encode(t[cases[i].tokenizer], cases[i].text, strlen(cases[i].text), 0, &got, &n,
                                   &e),
                  0);
        if (n != n_want || memcmp(got, want, n * sizeof *got))
            test_fail(__FILE__, __LINE__, "case %d: \"%s\" gives %s, not %s", i, cases[i].text,
                      ids_text(got, n), cases[i].ids);
        CHECK_INT(tokenizer_decode(t[cases[i].tokenizer], want, n_want, 0, &text, &n_text, &e), 0);
        CHECK_STR(text, cases[i].decoded);
        free(got);
        free(text);
    }
    for (int k = 0; k < TOKENIZERS; k++)
        tokenizer_close(t[k]);
}

#define MODEL(more) "{'model':{'type':'Unigram'" more "}}"

TEST(a_tie_goes_to_the_path_that_is_found_first)
{
    /* ab + c, a + bc: the same sum */
    struct tokenizer *t = must_open(
        MODEL(",'unk_id':0,'vocab':[['<unk>',0],['a',-1],['ab',-2],['bc',-2],['c',-1]]"));
    CHECK_STR(encoded(t, "abc"), "1 3");
    tokenizer_close(t);
    t = must_open(MODEL(",'unk_id':0,'vocab':[['<unk>',0],['a',-1],['ab',-2],['bc',-2],['c',-0.5]]"));
    CHECK_STR(encoded(t, "abc"), "2 4");
    CHECK_STR(encoded(t, "aXYc"), "1 0 4"); /* unknown characters join */
    tokenizer_close(t);
}

TEST(an_unknown_character_is_its_bytes_where_the_vocabulary_has_them)
{
    struct tokenizer *t = must_open(
        MODEL(",'byte_fallback':true,'unk_id':0,'vocab':[['<unk>',0],['a',-1],['<0xC3>',-5],['<0xA9>',-5]]"));
    CHECK_STR(encoded(t, "a\xC3\xA9"), "1 2 3");
    CHECK_STR(encoded(t, "a\xC3\xA8"), "1 0");
    tokenizer_close(t);
}

TEST(a_model_that_cannot_be_is_refused)
{
    static const char *const bad[][2] = {
        { MODEL(""), "model has no list vocab" },
        { MODEL(",'vocab':[]"), "model has no list vocab" },
        { MODEL(",'vocab':{'a':0}"), "model has no list vocab" },
        { MODEL(",'vocab':[['a',0],['b']]"), "token 1 of vocab is not [\"text\", score]" },
        { MODEL(",'vocab':[['a',0],['a',0]]"), "token \"a\" has two ids" },
        { MODEL(",'vocab':[['a',0]],'unk_id':1"), "unk_id is not the id of a token" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_HAS(refusal(bad[i][0]), bad[i][1]);

    struct tokenizer *t = must_open(MODEL(",'vocab':[['a',0]]"));
    struct err e = { 0 };
    int32_t *ids;
    size_t n;
    CHECK_INT(tokenizer_encode(t, "ab", 2, 0, &ids, &n, &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "a character without a token (\"b\"), and the model has no unk_id");
    tokenizer_close(t);
}

TEST(a_table_of_replacements_that_is_cut_or_not_utf8_is_refused)
{
    static const char *const bad[] = { "",
                                       ",'precompiled_charsmap':'A*=='",
                                       ",'precompiled_charsmap':''",
                                       ",'precompiled_charsmap':'BAAAAA=='",
                                       ",'precompiled_charsmap':'AwAAAAAAAAA='",
                                       ",'precompiled_charsmap':'BAAAAAAAAABhAIA='" /* ends with 0x80 */ };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{'normalizer':{'type':'Precompiled'%s},'model':{'vocab':{'a':0},'merges':[]}}", bad[i]);
        CHECK_HAS(refusal(json), "normalizer: Precompiled");
    }
}

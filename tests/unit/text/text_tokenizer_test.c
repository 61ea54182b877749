/* text_tokenizer_test.c - whole tokenizers: bytes, added tokens, decoding (also as ids arrive), what is
 * refused. */
#include "base/rnd.h"
#include "tests/unit/text/text_help.h"

#define LB "\xE2\x96\x81"
#define BAD "\xEF\xBF\xBD"

/* --- bytes --- */

TEST(the_byte_tokenizer_is_the_identity_on_bytes)
{
    struct err e = { 0 };
    struct tokenizer *t = NULL;
    size_t n;
    CHECK_INT(tokenizer_open_named(&t, "bytes", &e), 0);
    CHECK_INT(tokenizer_vocab(t), 256);
    CHECK_INT(tokenizer_bos(t), -1);
    CHECK_INT(tokenizer_eos(t), -1);
    CHECK_STR(encoded_n(t, "A\x00\xFF", 3, 1), "65 0 255");
    CHECK_STR(encoded(t, ""), "");
    for (int i = 0; i < 256; i++) {
        const char *s = tokenizer_token_bytes(t, i, &n);
        CHECK(n == 1 && (unsigned char)s[0] == i && !tokenizer_is_special(t, i));
    }
    CHECK(!tokenizer_token_bytes(t, 256, &n) && !tokenizer_token_text(t, -1, &n));
    CHECK_STR(decoded(t, 0, IDS(0xC3, 0xA9, 0xC3, 'x', 300, -5, 'y')), "\xC3\xA9" BAD "xy");
    tokenizer_close(t);
}

TEST(a_tokenizer_json_over_bytes_does_the_same)
{
    char json[8192];
    size_t at = (size_t)sprintf(json,
                                "{'decoder':{'type':'ByteLevel'},'pre_tokenizer':{'type':'ByteLevel','add_"
                                "prefix_space':false,'use_regex':false},'model':{'merges':[],'vocab':{");
    struct buf b = { 0 };
    struct err e = { 0 };
    struct tokenizer *plain = NULL;
    for (int i = 0; i < 256; i++) {
        b.n = 0;
        buf_add_cp(&b, byte_char((unsigned char)i));
        const char *escape = i == '"' ? "\\\\u0022" : i == '\'' ? "\\u0027" : "\\\\";
        if (strchr("\"'\\", i) && i)
            at += (size_t)sprintf(json + at, ",'%s':%d", escape, i);
        else
            at += (size_t)sprintf(json + at, "%s'%.*s':%d", i ? "," : "", (int)b.n, b.p, i);
    }
    char *q = strstr(json, "\\\\u0022");
    memmove(q, q + 1, strlen(q)); /* one backslash: an escape for JSON */
    strcat(json, "}}}");
    struct tokenizer *t = must_open(json);
    CHECK_INT(tokenizer_bytes(&plain, &e), 0);
    static const char text[] = "So 'it' \"is\"\n\\ \xE2\x82\xAC\t\x01\x7F";
    char *want = strdup(encoded(plain, text));
    CHECK_STR(encoded(t, text), want);
    free(want);
    buf_free(&b);
    tokenizer_close(t);
    tokenizer_close(plain);
}

/* --- added tokens --- */

#define LETTERS "'vocab':{'a':0,'b':1,' ':2,'c':3,'<':4,'>':5,'\xC3\xA9':6,'e':7},'merges':[]"
#define ADDED(id, text, flags) "{'id':" #id ",'content':'" text "'" flags "}"

TEST(the_longest_added_token_at_the_leftmost_place_wins)
{
    struct tokenizer *t = must_open(
        "{'model':{" LETTERS
        "},'added_tokens':[" ADDED(10, "<a", "") "," ADDED(11, "<a>", "") "," ADDED(12, "a>b", "") "]}");
    CHECK_STR(encoded(t, "<a>b"), "11 1");
    CHECK_STR(encoded(t, "<ab"), "10 1");
    CHECK_STR(encoded(t, "a>b<a"), "12 10");
    CHECK_INT(tokenizer_vocab(t), 13);
    tokenizer_close(t);
}

TEST(added_tokens_strip_the_spaces_beside_them)
{
    struct tokenizer *t = must_open("{'model':{" LETTERS "},'added_tokens':[" ADDED(
        10, "<l>", ",'lstrip':true") "," ADDED(11, "<r>", ",'rstrip':true") "," ADDED(12, "<n>", "") "]}");
    CHECK_STR(encoded(t, "a  <l>  b"), "0 10 2 2 1");
    CHECK_STR(encoded(t, "a  <r>  b"), "0 2 2 11 1");
    CHECK_STR(encoded(t, "a <n> b"), "0 2 12 2 1");
    /* the first took the spaces, the second takes none */
    CHECK_STR(encoded(t, "<r>  <l>"), "11 10");
    CHECK_STR(encoded(t, " <l>"), "10");
    tokenizer_close(t);
}

TEST(a_single_word_is_not_found_inside_of_words)
{
    struct tokenizer *t = must_open("{'model':{" LETTERS
                                    "},'added_tokens':[" ADDED(10, "ab", ",'single_word':true") "]}");
    CHECK_STR(encoded(t, "ab"), "10");
    CHECK_STR(encoded(t, "c ab<ab>"), "3 2 10 4 10 5");
    CHECK_STR(encoded(t, "abc"), "0 1 3");
    CHECK_STR(encoded(t, "\xC3\xA9"
                         "ab"),
              "6 0 1");
    tokenizer_close(t);
}

TEST(normalized_added_tokens_are_sought_in_normalised_text)
{
    struct tokenizer *t = must_open(
        "{'normalizer':{'type':'NFC'},'model':{" LETTERS
        "},'added_tokens':[" ADDED(10, "b\xC3\xA9",
                                   ",'normalized':true") "," ADDED(11, "a\xC3\xA9",
                                                                   ",'normalized':false") "]}");
    CHECK_STR(encoded(t, "be\xCC\x81"), "10");
    CHECK_STR(encoded(t, "ae\xCC\x81"), "0 6");
    CHECK_STR(encoded(t, "a\xC3\xA9"), "11");
    tokenizer_close(t);
}

TEST(text_between_added_tokens_is_normalised_piece_by_piece)
{
    struct tokenizer *t = must_open("{'normalizer':{'type':'Prepend','prepend':'c'},'model':{" LETTERS
                                    "},'added_tokens':[" ADDED(10, "<>", ",'normalized':false") "]}");
    CHECK_STR(encoded(t, "a<>b<>"), "3 0 10 3 1 10");
    CHECK_STR(encoded(t, ""), "");
    tokenizer_close(t);
}

#define TEMPLATE(single) \
    "'post_processor':{'type':'TemplateProcessing','single':[" single \
    "],'special_tokens':{'<s>':{'id':'<s>','ids':[10],'tokens':['<s>']}}}"
#define TPL_S "{'SpecialToken':{'id':'<s>','type_id':0}}"
#define TPL_A "{'Sequence':{'id':'A','type_id':0}}"
#define SPECIAL_S "'added_tokens':[" ADDED(10, "<s>", ",'special':true") "]"

TEST(the_template_adds_ids_only_when_asked)
{
    struct tokenizer *t = must_open("{'model':{" LETTERS "}," SPECIAL_S
                                    "," TEMPLATE(TPL_S "," TPL_A "," TPL_S "," TPL_S) "}");
    CHECK_STR(encoded_n(t, "ab", 2, 1), "10 0 1 10 10");
    CHECK_STR(encoded_n(t, "ab", 2, 0), "0 1");
    CHECK_STR(encoded_n(t, "", 0, 1), "10 10 10");
    CHECK_STR(encoded_n(t, "<s>a", 4, 0), "10 0"); /* written in the text it counts either way */
    CHECK(tokenizer_is_special(t, 10) && !tokenizer_is_special(t, 0) && !tokenizer_is_special(t, 99));
    tokenizer_close(t);
}

TEST(bos_and_eos_come_from_the_config)
{
    char *json = quoted("{'model':{" LETTERS "}," SPECIAL_S "}"),
         *config = quoted("{'bos_token':{'content':'<s>'},'eos_token':'b','chat_template':'x'}");
    struct tokenizer *t = NULL;
    struct err e = { 0 };
    CHECK_INT(tokenizer_open(&t, json, strlen(json), config, strlen(config), "t", &e), 0);
    CHECK_INT(tokenizer_bos(t), 10);
    CHECK_INT(tokenizer_eos(t), 1);
    CHECK_INT(tokenizer_id(t, "<s>", 3), 10);
    CHECK_INT(tokenizer_id(t, "zz", 2), -1);
    tokenizer_close(t);
    free(config);
    config = quoted("{'bos_token':'<none>'}");
    CHECK(tokenizer_open(&t, json, strlen(json), config, strlen(config), "t", &e) == -ERR_CONFIG);
    CHECK_HAS(e.text, "bos_token \"<none>\" is not in tokenizer.json");
    free(config);
    free(json);
}

/* --- decoding --- */

#define LLAMA_DECODER \
    "'decoder':{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'" LB \
    "'},'content':' '},{'type':'ByteFallback'}," \
    "{'type':'Fuse'},{'type':'Strip','content':' ','start':1,'stop':0}]}"
#define LLAMA \
    "{'model':{'vocab':{'" LB "a':0,'b':1,'<0xC3>':2,'<0xA9>':3,'<0xFF>':4,'" LB LB \
    "':5,'<0xF0>':6,'<0x9F>':7,'<0x98>':8,'<0x80>':9},'merges':[]}," SPECIAL_S "," LLAMA_DECODER "}"

TEST(byte_tokens_become_characters_or_are_replaced_as_a_run)
{
    struct tokenizer *t = must_open(LLAMA);
    CHECK_STR(decoded(t, 0, IDS(0, 1, 0)), "ab a");
    CHECK_STR(decoded(t, 0, IDS(2, 3, 1)), "\xC3\xA9"
                                           "b");
    CHECK_STR(decoded(t, 0, IDS(2, 3, 4, 1)), BAD BAD BAD "b"); /* one wrong byte spoils its run */
    CHECK_STR(decoded(t, 0, IDS(2, 1, 3)), BAD "b" BAD);
    CHECK_STR(decoded(t, 0, IDS(5, 0)), "  a");
    CHECK_STR(decoded(t, 0, IDS(10, 0)), "<s> a");
    CHECK_STR(decoded(t, 1, IDS(10, 0)), "a");
    tokenizer_close(t);
}

TEST(tokens_stand_for_bytes_in_the_middle_of_a_text)
{
    struct tokenizer *t = must_open(LLAMA);
    size_t n;
    const char *s = tokenizer_token_bytes(t, 0, &n);
    CHECK(n == 2 && !memcmp(s, " a", 2));
    s = tokenizer_token_bytes(t, 4, &n);
    CHECK(n == 1 && (unsigned char)s[0] == 0xFF);
    CHECK_STR(tokenizer_token_text(t, 4, &n), "<0xFF>");
    CHECK_INT(n, 6);
    CHECK_STR(tokenizer_token_bytes(t, 10, &n), "<s>");
    tokenizer_close(t);
}

/* No wait: a regex that searched a part of a character for what follows it never came to its end. */
TEST(a_byte_that_is_no_character_passes_the_stages_behind_it)
{
    struct tokenizer *t = must_open(
        "{'model':{'vocab':{'<0xE9>':0,'" LB
        "':1,'<0xC3>':2,'<0x61>':3},'merges':[]},'decoder':{'type':'Sequence','decoders':["
        "{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Replace','pattern':{'Regex':'" LB
        "+|a'},'content':'-'}]}}");
    size_t n;
    CHECK_STR(tokenizer_token_bytes(t, 0, &n), "\xE9");
    CHECK_STR(tokenizer_token_bytes(t, 3, &n), "-");
    CHECK_STR(decoded(t, 0, IDS(1, 1, 3, 1, 0)), "---" BAD);
    tokenizer_close(t);
}

TEST(strip_takes_characters_at_both_ends_and_no_more)
{
    struct tokenizer *t = must_open("{'model':{'vocab':{'--a-':0,'---':1,'-':2,'b':3},'merges':[]},'decoder':"
                                    "{'type':'Sequence','decoders':[{'type':'Fuse'},"
                                    "{'type':'Strip','content':'-','start':1,'stop':2}]}}");
    CHECK_STR(decoded(t, 0, IDS(0, 1)), "-a--");
    CHECK_STR(decoded(t, 0, IDS(3, 2)), "b");
    CHECK_STR(decoded(t, 0, IDS(3, 2, 2, 3)), "b--b");
    CHECK_STR(decoded(t, 0, IDS(2)), "");
    CHECK_STR(decoded(t, 0, IDS(1)), "");
    CHECK_STR(decoded(t, 0, IDS(2, 3)), "b");
    tokenizer_close(t);
}

TEST(the_other_decoders)
{
    struct tokenizer *t = must_open(
        "{'model':{'vocab':{'" LB "a':0,'" LB
        "b':1},'merges':[]},'decoder':{'type':'Metaspace','prepend_scheme':'always'}}");
    struct tokenizer *u = must_open(
        "{'model':{'vocab':{'" LB "a':0,'" LB
        "b':1},'merges':[]},'decoder':{'type':'Metaspace','prepend_scheme':'never'}}");
    struct tokenizer *none = must_open("{'model':{'vocab':{'a':0,'b':1},'merges':[]}}");
    struct tokenizer *level = must_open(
        "{'model':{'vocab':{'\xC4\xA0"
        "a':0,'\xC3\x83':1,'\xC2\xA9':2,'\xE2\x82\xAC x':3},'merges':[]},'decoder':{'type':'ByteLevel'}}");
    CHECK_STR(decoded(t, 0, IDS(0, 1, 0)), "a b a");
    CHECK_STR(decoded(u, 0, IDS(0, 1)), " a b");
    CHECK_STR(decoded(none, 0, IDS(0, 1, 1)), "a b b");
    CHECK_STR(decoded(level, 0, IDS(0, 1, 2)), " a\xC3\xA9");
    /* not in the byte map: the token stands for itself */
    CHECK_STR(decoded(level, 0, IDS(3, 1)), "\xE2\x82\xAC x" BAD);
    tokenizer_close(t);
    tokenizer_close(u);
    tokenizer_close(none);
    tokenizer_close(level);
}

/* Random ids through both ways: the joined pieces are the whole, and every piece ends with a whole
 * character. */
static void check_stream(const struct tokenizer *t, uint64_t seed, int skip)
{
    struct err e = { 0 };
    struct tokenizer_stream *s = NULL;
    struct buf joined = { 0 };
    int32_t ids[24];
    char *whole = NULL;
    const char *p;
    size_t n = rnd_u64(seed, 1, 0) % 24, n_whole = 0, n_p;
    if (tokenizer_stream_open(&s, t, skip, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(rnd_u64(seed, 2, i) % (uint64_t)(tokenizer_vocab(t) + 1));
        CHECK_INT(tokenizer_stream_feed(s, ids[i], &p, &n_p, &e), 0);
        buf_add(&joined, p, n_p);
        struct buf check = { 0 };
        CHECK_INT(utf8_repair(p, n_p, 0, &check), n_p);
        buf_free(&check);
    }
    CHECK_INT(tokenizer_stream_finish(s, &p, &n_p, &e), 0);
    buf_add(&joined, p, n_p);
    tokenizer_stream_close(s);
    CHECK_INT(tokenizer_decode(t, ids, n, skip, &whole, &n_whole, &e), 0);
    CHECK_INT(joined.n, n_whole);
    CHECK(joined.n == n_whole && (!n_whole || !memcmp(joined.p, whole, n_whole)));
    free(whole);
    buf_free(&joined);
}

TEST(a_stream_gives_the_bytes_of_the_whole)
{
    struct err e = { 0 };
    struct tokenizer *t[3] = { must_open(LLAMA), NULL,
                               must_open("{'model':{'vocab':{'-':0,'a-':1,'--':2},'merges':[]},'decoder':{'"
                                         "type':'Sequence','decoders':[{'type':'Fuse'},"
                                         "{'type':'Strip','content':'-','start':2,'stop':2}]}}") };
    CHECK_INT(tokenizer_bytes(&t[1], &e), 0);
    for (int k = 0; k < 3; k++) {
        for (uint64_t seed = 0; t[k] && seed < 2000; seed++)
            check_stream(t[k], seed, (int)(seed & 1));
        tokenizer_close(t[k]);
    }
}

TEST(a_stream_waits_only_for_what_may_change)
{
    struct tokenizer *t = must_open(LLAMA);
    struct tokenizer_stream *s = NULL;
    struct err e = { 0 };
    const char *p;
    size_t n;
    CHECK_INT(tokenizer_stream_open(&s, t, 0, &e), 0);
    static const struct {
        int32_t id;
        const char *wants;
    } step[] = { { 0, "a" },
                 { 1, "b" },
                 { 6, "" },
                 { 7, "" },
                 { 8, "" },
                 { 9, "" },
                 { 1, "\xF0\x9F\x98\x80"
                      "b" },
                 { 2, "" } };
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        CHECK_INT(tokenizer_stream_feed(s, step[i].id, &p, &n, &e), 0);
        CHECK(n == strlen(step[i].wants) && !memcmp(p, step[i].wants, n));
    }
    CHECK_INT(tokenizer_stream_finish(s, &p, &n, &e), 0);
    CHECK(n == 3 && !memcmp(p, BAD, 3));
    tokenizer_stream_close(s);
    tokenizer_close(t);
}

/* A stream that begins behind a prompt: the prompt's text, and what the tokens after it add. */
static void check_begin(const struct tokenizer *t, const int32_t *ids, size_t n_prompt, size_t n,
                        const char *prompt, const char *rest)
{
    struct tokenizer_stream *s = NULL;
    struct err e = { 0 };
    struct buf got = { 0 };
    const char *p;
    size_t n_p;
    CHECK_INT(tokenizer_stream_open(&s, t, 1, &e), 0);
    CHECK_INT(tokenizer_stream_begin(s, ids, n_prompt, 1, &p, &n_p, &e), 0);
    CHECK(n_p == strlen(prompt) && !memcmp(p, prompt, n_p));
    for (size_t i = n_prompt; i < n; i++) {
        CHECK_INT(tokenizer_stream_feed(s, ids[i], &p, &n_p, &e), 0);
        buf_add(&got, p, n_p);
    }
    CHECK_INT(tokenizer_stream_finish(s, &p, &n_p, &e), 0);
    buf_add(&got, p, n_p);
    buf_add(&got, "", 1);
    CHECK_STR(got.p, rest);
    buf_free(&got);
    tokenizer_stream_close(s);
}

TEST(a_stream_can_begin_behind_a_prompt)
{
    struct tokenizer *t = must_open(LLAMA), *bytes = NULL;
    struct err e = { 0 };
    /* 0 and 1 are " a" and "b", 6 to 9 the bytes of U+1F600 */
    check_begin(t, (const int32_t[]){ 0, 1, 0 }, 1, 3, "a", "b a");
    check_begin(t, (const int32_t[]){ 0, 6, 7, 8, 9, 1 }, 5, 6, "a\xF0\x9F\x98\x80", "b");
    check_begin(t, (const int32_t[]){ 0, 6, 7, 8, 9, 1 }, 3, 6, "a",
                "\xF0\x9F\x98\x80"
                "b");
    check_begin(t, (const int32_t[]){ 0, 9, 6, 7 }, 4, 4, "a" BAD, BAD BAD);
    CHECK_INT(tokenizer_bytes(&bytes, &e), 0);
    check_begin(bytes, (const int32_t[]){ 'x', 0xC3, 0xA9, 'y' }, 2, 4, "x", "\xC3\xA9y");
    tokenizer_close(t);
    tokenizer_close(bytes);
}

/* --- what is refused --- */

TEST(what_is_not_supported_is_refused_by_name)
{
#define OK "'model':{'vocab':{'a':0,'b':1},'merges':[]}"
    CHECK_STR(refusal("{" OK "}"), "");
    CHECK_STR(refusal("{" OK ",'normalizer':null,'pre_tokenizer':null,'decoder':null,'post_processor':null,'"
                      "added_tokens':null}"),
              "");
    CHECK_STR(refusal("{'model':{'type':'WordPiece'}}"),
              "t.json: model: the model is WordPiece: only BPE and Unigram are supported");
    CHECK_HAS(refusal("{" OK ",'pre_tokenizer':{'type':'BertPreTokenizer'}}"),
              "t.json: pre_tokenizer: BertPreTokenizer is not supported");
    CHECK_HAS(
        refusal(
            "{" OK
            ",'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'BertNormalizer'}]}}"),
        "normalizer: BertNormalizer is not supported");
    CHECK_HAS(refusal("{" OK ",'decoder':{'type':'WordPiece'}}"), "decoder: WordPiece is not supported");
    CHECK_HAS(refusal("{" OK ",'post_processor':{'type':'Other'}}"),
              "post_processor: Other is not supported");
    CHECK_HAS(refusal("{'model':{'dropout':0.1,'vocab':{},'merges':[]}}"), "dropout");
    CHECK_HAS(refusal("{'model':{'end_of_word_suffix':'</w>','vocab':{},'merges':[]}}"),
              "end_of_word_suffix \"</w>\"");
    CHECK_STR(refusal("{'model':{'dropout':null,'continuing_subword_prefix':'','vocab':{},'merges':[]}}"),
              "");
}

TEST(files_that_make_no_sense_are_refused_with_a_reason)
{
    CHECK_HAS(refusal("{"), "t.json: line 1");
    CHECK_HAS(refusal("[]"), "it has no model");
    CHECK_HAS(refusal("{'model':{'merges':[]}}"), "no vocab");
    CHECK_HAS(refusal("{'model':{'vocab':{}}}"), "no list of merges");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':'0'},'merges':[]}}"), "\"a\" is not an integer");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':-1},'merges':[]}}"), "has the id -1");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':4000000000},'merges':[]}}"), "has the id 4000000000");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':1,'b':1},'merges':[]}}"),
              "id 1 stands for two tokens, \"a\" and \"b\"");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':1,'b':2},'merges':['a b']}}"),
              "merge 0 (\"a b\" and \"b\") needs a token");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':1},'merges':['a']}}"), "merge 0 is neither");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':1},'merges':[['a']]}}"), "merge 0 is neither");
    CHECK_HAS(refusal("{'model':{'vocab':{'a':1},'merges':['a b c']}}"), "merge 0 is neither");
    CHECK_HAS(refusal("{'model':{'vocab':{},'merges':[],'unk_token':'u'}}"), "unk_token \"u\"");
    CHECK_HAS(refusal("{'model':{'vocab':{},'merges':[],'fuse_unk':1}}"),
              "fuse_unk is neither true nor false");
    CHECK_HAS(refusal("{" OK ",'added_tokens':[{'id':1,'content':'z'}]}"),
              "id 1 stands for two tokens, \"b\" and \"z\"");
    CHECK_HAS(refusal("{" OK ",'added_tokens':[{'id':7,'content':'a'}]}"),
              "token \"a\" has two ids, 0 and 7");
    CHECK_HAS(refusal("{" OK ",'added_tokens':[{'content':'a'}]}"), "without content or id");
    CHECK_HAS(refusal("{" OK ",'added_tokens':{}}"), "added_tokens is not a list");
    CHECK_HAS(refusal("{" OK ",'pre_tokenizer':{'type':'Split','behavior':'Odd','pattern':{'String':'a'}}}"),
              "\"Odd\": known are Isolated");
    CHECK_HAS(refusal("{" OK ",'pre_tokenizer':{'type':'Split','behavior':'Removed'}}"),
              "neither a String nor a Regex");
    CHECK_HAS(refusal("{" OK ",'pre_tokenizer':{'type':'Sequence'}}"), "without a list of pretokenizers");
    CHECK_HAS(refusal("{" OK ",'pre_tokenizer':[]}"), "without a type");
    CHECK_HAS(refusal(
                  "{" OK
                  ",'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}}]}}"),
              "\"x\" has no ids");
    CHECK_HAS(refusal("{" OK ",'post_processor':{'type':'BertProcessing','cls':['a',0],'sep':['b']}}"),
              "sep is not a [token, id]");
    CHECK_HAS(refusal("{" OK ",'decoder':{'type':'Strip','content':'ab','start':0,'stop':0}}"),
              "one character");
    CHECK_HAS(refusal("{" OK ",'decoder':{'type':'Strip','content':'a','start':-1,'stop':0}}"), "no start");
}

TEST(templates_need_the_text_once_and_ids_that_exist)
{
    CHECK_HAS(refusal("{'model':{" LETTERS "}," SPECIAL_S "," TEMPLATE(TPL_S) "}"),
              "does not hold the text exactly once");
    CHECK_HAS(refusal("{'model':{" LETTERS "}," SPECIAL_S "," TEMPLATE(TPL_A "," TPL_A) "}"),
              "does not hold the text exactly once");
    CHECK_HAS(refusal("{'model':{" LETTERS "}," TEMPLATE(TPL_S "," TPL_A) "}"),
              "adds id 10, which the vocabulary does not have");
}

/* A file cut anywhere, or with one byte changed, is refused or opens: nothing else happens (run under
 * sanitizers too). */
TEST(damaged_files_do_no_harm)
{
    char *json = quoted(LLAMA);
    size_t n = strlen(json);
    for (size_t i = 0; i <= n; i++) {
        struct err e = { 0 };
        struct tokenizer *t = NULL;
        if (tokenizer_open(&t, json, i, NULL, 0, "t", &e) == 0 && i < n)
            test_fail(__FILE__, __LINE__, "opened when cut at %zu", i);
        tokenizer_close(t);
    }
    for (uint64_t k = 0; k < 3000; k++) {
        struct err e = { 0 };
        struct tokenizer *t = NULL;
        size_t at = rnd_u64(7, 1, k) % n;
        char was = json[at];
        json[at] = (char)rnd_u64(7, 2, k);
        if (tokenizer_open(&t, json, n, NULL, 0, "t", &e) == 0) {
            encoded(t, "a b\xC3\xA9<s>");
            decoded(t, 1, IDS(0, 1, 2, 3, 4, 10, 5));
        } else if (!e.text[0]) {
            test_fail(__FILE__, __LINE__, "refused without a word");
        }
        tokenizer_close(t);
        json[at] = was;
    }
    free(json);
}

TEST(random_bytes_never_break_encoding)
{
    struct tokenizer *t = must_open(
        "{'normalizer':{'type':'NFKC'},'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Split','"
        "behavior':'Isolated','pattern':"
        "{'Regex':'\\\\p{L}+|\\\\s+|[^\\\\s\\\\p{L}]'}},{'type':'Metaspace'}]},'model':{" LETTERS
        ",'byte_fallback':true},'added_tokens':[" ADDED(10, "<a>", ",'lstrip':true,'rstrip':true") "," ADDED(
            11, "ab", ",'single_word':true,'normalized':true") "]}");
    static const char parts[] = "ab <>\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xCC\x81\n";
    for (uint64_t seed = 0; seed < 3000; seed++) {
        char text[64];
        size_t n = rnd_u64(seed, 1, 0) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = parts[rnd_u64(seed, 2, i) % (sizeof parts - 1)];
        encoded_n(t, text, n, 1);
    }
    tokenizer_close(t);
}

TEST(a_folder_without_a_tokenizer_says_so)
{
    struct err e = { 0 };
    struct tokenizer *t = NULL;
    CHECK_INT(tokenizer_open_dir(&t, test_tmp_dir(), &e), -ERR_FILE);
    CHECK_HAS(e.text, "tokenizer.json");
}

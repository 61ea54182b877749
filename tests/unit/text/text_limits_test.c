/* text_limits_test.c - what a tokenizer.json or a long text may cost: growth of texts, tokens, time. */
#include "tests/unit/text/text_help.h"

#define MODEL "'model':{'vocab':{'a':0,' ':1,'ab':2},'merges':[]}"
#define AAAAAAAA "aaaaaaaa"
#define MANY_A AAAAAAAA AAAAAAAA AAAAAAAA AAAAAAAA AAAAAAAA AAAAAAAA AAAAAAAA AAAAAAAA
#define REPLACE "{'type':'Replace','pattern':{'String':'a'},'content':'" MANY_A "'}"
#define FIVE_REPLACES REPLACE "," REPLACE "," REPLACE "," REPLACE "," REPLACE

static int encode(const char *json, const char *text, size_t max_ids, const struct work_limit *limit,
                  struct err *e)
{
    struct tokenizer *t = must_open(json);
    const struct marked_text m = { .text = text, .n = strlen(text), .max_ids = max_ids, .limit = limit };
    int32_t *ids = NULL;
    size_t n = 0;
    *e = (struct err){ 0 };
    int rc = t ? tokenizer_encode_marked(t, &m, 0, &ids, &n, e) : -1;
    if (rc == 0)
        free(ids);
    tokenizer_close(t);
    return rc;
}

TEST(a_normalizer_may_not_make_a_gigabyte_of_one_byte)
{
    struct err e;
    CHECK_INT(encode("{'normalizer':{'type':'Sequence','normalizers':[" FIVE_REPLACES "]}," MODEL "}", "a", 0,
                     NULL, &e),
              -ERR_CONFIG);
    CHECK_HAS(e.text, "the tokenizer's normalizer makes more than 1088 bytes of a text of 1");
    CHECK_INT(encode("{'normalizer':{'type':'Sequence','normalizers':[" REPLACE "]}," MODEL "}", MANY_A, 0,
                     NULL, &e),
              0);
}

TEST(a_pretokenizer_may_not_double_a_text_thirty_times)
{
    static const char step[] = "{'type':'ByteLevel','add_prefix_space':false,'use_regex':false}";
    char json[4096] = "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[";
    struct err e;
    for (int i = 0; i < 30; i++)
        sprintf(json + strlen(json), "%s%s", i ? "," : "", step);
    strcat(json, "]}," MODEL "}");
    CHECK_INT(encode(json, "\xC3\xA9", 0, NULL, &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "the tokenizer's pre-tokenizer makes more than 1152 bytes of a text of");
}

TEST(a_long_prefix_of_many_short_pieces_is_bounded_together)
{
    static char json[16384];
    char text[2 * 500 + 1], *p = json;
    struct err e;
    p += sprintf(p, "{'normalizer':{'type':'Prepend','prepend':'");
    memset(p, 'a', 1000);
    sprintf(p + 1000, "'},'added_tokens':[{'id':3,'content':'<','special':true}]," MODEL "}");
    for (int i = 0; i < 500; i++)
        memcpy(text + 2 * i, "a<", 3);
    CHECK_INT(encode(json, text, 0, NULL, &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "the tokenizer's normalizer makes more than 65024 bytes");
}

TEST(a_decoder_that_makes_a_gigabyte_of_a_token_is_refused_at_once)
{
    CHECK_HAS(refusal("{'decoder':{'type':'Sequence','decoders':[" FIVE_REPLACES "]}," MODEL "}"),
              "the tokenizer's decoder makes more than 1088 bytes of a text of 1");
}

TEST(a_decoder_behind_fuse_may_not_make_a_gigabyte_of_the_text)
{
    struct err e = { 0 };
    char *text;
    size_t n;
    int32_t ids[64];
    struct tokenizer *t = must_open("{'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},"
                                    "{'type':'Replace','pattern':{'String':'    '},'content':'" MANY_A
                                    "'}," FIVE_REPLACES "]},'model':{'vocab':{' ':0},'merges':[]}}");
    for (int i = 0; i < 64; i++)
        ids[i] = 0;
    CHECK_INT(tokenizer_decode(t, ids, 64, 0, &text, &n, &e), -ERR_CONFIG);
    CHECK_HAS(e.text, "the tokenizer's decoder makes more than 5120 bytes of a text of 64");
    tokenizer_close(t);
}

TEST(encoding_gives_up_beyond_the_ids_that_are_wanted)
{
    struct err e;
    CHECK_INT(encode("{" MODEL "}", MANY_A, 64, NULL, &e), 0);
    CHECK_INT(encode("{'pre_tokenizer':{'type':'WhitespaceSplit'}," MODEL "}", "a a a a a a a", 5, NULL, &e),
              -ERR_CONFIG);
    CHECK_STR(e.text, "the text has more than 5 tokens");
}

TEST(encoding_ends_at_its_limit)
{
    _Atomic int state = 1;
    struct err e;
    const struct work_limit late = { .end_s = clock_s() }, stops = { .state = &state, .stop_at = 2 },
                            later = { .end_s = clock_s() + 1000 };
    CHECK_INT(encode("{" MODEL "}", "ab", 0, &later, &e), 0);
    CHECK_INT(encode("{" MODEL "}", "ab", 0, &stops, &e), 0);
    CHECK_INT(encode("{" MODEL "}", "ab", 0, &late, &e), -ERR_STOPPED);
    state = 2;
    CHECK_INT(encode("{" MODEL "}", "ab", 0, &stops, &e), -ERR_STOPPED);
}

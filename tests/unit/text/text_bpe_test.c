/* text_bpe_test.c - merges by rank, checked against the plainest way to write them down; unknown characters;
 * long inputs. */
#include <pthread.h>
#include <time.h>
#include "base/rnd.h"
#include "tests/unit/text/text_help.h"

#define MODEL(rest) "{'model':{'type':'BPE'," rest "},'decoder':{'type':'Fuse'}}"
#define ABC "'vocab':{'a':0,'b':1,'c':2,'ab':3,'bc':4,'abc':5,'aa':6,'aaaa':7}"

TEST(the_lowest_rank_merges_first)
{
    struct tokenizer *t = must_open(MODEL(ABC ",'merges':['b c','a b','ab c']"));
    struct tokenizer *u = must_open(MODEL(ABC ",'merges':['a b','b c','ab c']"));
    CHECK_STR(encoded(t, "abc"), "0 4"); /* bc first; a bc is no merge */
    CHECK_STR(encoded(u, "abc"), "5");
    tokenizer_close(t);
    tokenizer_close(u);
}

TEST(of_equal_ranks_the_leftmost_merges_first)
{
    struct tokenizer *t = must_open(MODEL(ABC ",'merges':['a a','aa aa']"));
    CHECK_STR(encoded(t, "aaa"), "6 0");
    CHECK_STR(encoded(t, "aaaaa"), "7 0");
    CHECK_STR(encoded(t, "aaaaaaa"), "7 6 0");
    tokenizer_close(t);
}

TEST(merges_as_strings_and_as_pairs_are_the_same)
{
    struct tokenizer *t = must_open(MODEL(ABC ",'merges':[['a','b'],['ab','c']]"));
    CHECK_STR(encoded(t, "cabc"), "2 5");
    tokenizer_close(t);
}

TEST(a_merge_waits_until_its_parts_are_there)
{
    struct tokenizer *t = must_open(
        MODEL("'vocab':{'a':0,'b':1,'c':2,'d':3,'bc':4,'abc':5,'cd':6},'merges':['a bc','c d','b c']"));
    CHECK_STR(encoded(t, "abcd"), "0 1 6");
    CHECK_STR(encoded(t, "abc"), "5");
    tokenizer_close(t);
}

TEST(unknown_characters_vanish_without_an_unknown_token)
{
    struct tokenizer *t = must_open(MODEL(ABC ",'merges':['a b']"));
    CHECK_STR(encoded(t, "a?b"), "3");
    CHECK_STR(encoded(t, "??"), "");
    tokenizer_close(t);
}

#define UNK \
    "'unk_token':'u','vocab':{'u':0,'a':1,'b':2,'<0x3F>':3,'<0xC3>':4,'<0xA9>':5,'<0xE2>':6},'merges':[]"
TEST(unknown_tokens_fuse_only_when_told)
{
    struct tokenizer *apart = must_open(MODEL(UNK)), *fused = must_open(MODEL(UNK ",'fuse_unk':true"));
    CHECK_STR(encoded(apart, "a!!b!"), "1 0 0 2 0");
    CHECK_STR(encoded(fused, "a!!b!"), "1 0 2 0");
    tokenizer_close(apart);
    tokenizer_close(fused);
}

TEST(bytes_stand_in_when_all_of_a_character_are_there)
{
    struct tokenizer *t = must_open(MODEL(UNK ",'byte_fallback':true,'fuse_unk':true"));
    CHECK_STR(encoded(t, "a?\xC3\xA9"), "1 3 4 5");
    CHECK_STR(encoded(t, "a\xE2\x82\xAC"), "1 0"); /* one of three bytes is known: not enough */
    /* bytes overtake a held unknown token, as in the library */
    CHECK_STR(encoded(t, "!?a"), "3 0 1");
    tokenizer_close(t);
}

TEST(ignore_merges_takes_whole_words_first)
{
    struct tokenizer *t = must_open("{'model':{'ignore_merges':true," ABC
                                    ",'merges':['b c']},'pre_tokenizer':{'type':'WhitespaceSplit'}}");
    CHECK_STR(encoded(t, "abc abca"), "5 0 4 0");
    tokenizer_close(t);
}

/* 40 characters are more than CUT_WORD: the word is cut where no merge reaches across, and nobody can
 * tell. */
TEST(cutting_long_words_changes_nothing)
{
    struct tokenizer *whole = must_open("{'model':{'ignore_merges':true," ABC
                                        ",'merges':['b c','a b','ab c']}}");
    struct tokenizer *fused = must_open(MODEL(UNK ",'fuse_unk':true")),
                     *bytes = must_open(MODEL(UNK ",'fuse_unk':true,'byte_fallback':true"));
    CHECK_STR(encoded(whole, "abcabcabcabcabcabcabcabcabcabcabcabc"),
              "0 4 0 4 0 4 0 4 0 4 0 4 0 4 0 4 0 4 0 4 0 4 0 4");
    CHECK_STR(encoded(fused, "a!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!b!a"), "1 0 2 0 1");
    CHECK_STR(encoded(bytes, "!?a!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!?b"), "3 0 1 3 0 2");
    tokenizer_close(whole);
    tokenizer_close(fused);
    tokenizer_close(bytes);
}

TEST(added_tokens_are_no_part_of_the_model)
{
    struct tokenizer *t = must_open("{'model':{'vocab':{'a':0,'x':2},'merges':[]},'added_tokens':[{'id':1,'"
                                    "content':'b','single_word':true,'special':false}]}");
    CHECK_STR(encoded(t, "a b"), "0 1");
    /* b inside of a word is unknown, though id 1 is written b */
    CHECK_STR(encoded(t, "ab"), "0");
    tokenizer_close(t);
    t = must_open("{'model':{'vocab':{'a':0,'x':2},'merges':[]},'added_tokens':[{'id':1,'content':'"
                  "\xE2\x82\xAC','single_word':true}]}");
    CHECK_STR(encoded(t, "a\xE2\x82\xAC"), "0");
    tokenizer_close(t);
}

/* --- against the plainest way --- */

#define N_SYMS 64
struct plain {
    int32_t left, right, id;
};

/* Merge the leftmost pair of lowest rank, again and again. Ranks are such that no token is made by two
 * pairs. */
static size_t plain_bpe(const struct plain *m, size_t n_m, int32_t *s, size_t n)
{
    for (;;) {
        size_t best = n_m, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t r = 0; r < best; r++)
                if (m[r].left == s[i] && m[r].right == s[i + 1])
                    best = r, at = i;
        if (best == n_m)
            return n;
        s[at] = m[best].id;
        memmove(s + at + 1, s + at + 2, (n - at - 2) * sizeof *s);
        n--;
    }
}

TEST(random_words_merge_as_the_plainest_way_says)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        static char json[16384];
        char names[N_SYMS][64] = { "a", "b", "c" };
        struct plain merges[N_SYMS];
        int n_syms = 3, n_merges = 0;
        uint64_t draw = 0;
        /* random pairs of what there is, so long tokens and short ones */
        while (n_syms < 24) {
            int l = (int)(rnd_u64(seed, 1, draw++) % (uint64_t)n_syms),
                r = (int)(rnd_u64(seed, 1, draw++) % (uint64_t)n_syms), known = 0;
            char name[64];
            if (snprintf(name, sizeof name, "%.30s%.30s", names[l], names[r]) > 20)
                continue;
            for (int i = 0; i < n_syms; i++)
                known |= !strcmp(names[i], name);
            if (known)
                continue;
            merges[n_merges++] = (struct plain){ l, r, n_syms };
            strcpy(names[n_syms++], name);
        }
        /* shuffle the ranks: a pair may well merge before its parts are common */
        for (int i = n_merges - 1; i > 0; i--) {
            int k = (int)(rnd_u64(seed, 2, (uint64_t)i) % (uint64_t)(i + 1));
            struct plain x = merges[i];
            merges[i] = merges[k];
            merges[k] = x;
        }
        size_t at = (size_t)sprintf(json, "{'model':{'vocab':{");
        for (int i = 0; i < n_syms; i++)
            at += (size_t)sprintf(json + at, "%s'%s':%d", i ? "," : "", names[i], i);
        at += (size_t)sprintf(json + at, "},'merges':[");
        for (int i = 0; i < n_merges; i++)
            at += (size_t)sprintf(json + at, "%s['%s','%s']", i ? "," : "", names[merges[i].left],
                                  names[merges[i].right]);
        sprintf(json + at, "]}}");
        struct tokenizer *t = must_open(json);
        for (uint64_t w = 0; t && w < 50; w++) {
            char text[128];
            int32_t want[128];
            size_t n = 1 + rnd_u64(seed, 3, w) % 100;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + (want[i] = (int32_t)(rnd_u64(seed, 4 + w, i) % 3)));
            char *expected = strdup(ids_text(want, plain_bpe(merges, (size_t)n_merges, want, n)));
            CHECK_STR(encoded_n(t, text, n, 0), expected);
            free(expected);
        }
        tokenizer_close(t);
    }
}

/* --- long inputs --- */

static double encode_s(const struct tokenizer *t, const char *text, size_t n, size_t *n_ids)
{
    struct err e = { 0 };
    int32_t *ids = NULL;
    clock_t t0 = clock();
    if (tokenizer_encode(t, text, n, 0, &ids, n_ids, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    free(ids);
    return (double)(clock() - t0) / CLOCKS_PER_SEC;
}

TEST(a_megabyte_without_spaces_takes_near_linear_time)
{
    struct tokenizer *t = must_open(MODEL(ABC ",'merges':['a a','aa aa','b c','a b']"));
    size_t n = 1 << 20, n_ids = 0;
    char *text = malloc(n);
    memset(text, 'a', n);
    CHECK(encode_s(t, text, n, &n_ids) < 10); /* 0.2 s here; n squared would be hours */
    CHECK_INT(n_ids, n / 4);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + rnd_u64(1, 1, i) % 3);
    CHECK(encode_s(t, text, n, &n_ids) < 10);
    free(text);
    tokenizer_close(t);
}

TEST(a_megabyte_of_each_kind_of_space_takes_near_linear_time)
{
    static const char *const unit[] = { " ", "\n", " \n", "\xC2\xA0", "<", "'", "\xE3\x80\x80\t" };
    struct tokenizer *t = must_open(
        "{'model':{'vocab':{'\xC4\xA0':0,'\xC4\x8A':1},'merges':[]},'added_tokens':[{'id':2,'content':'<|x|>'"
        ",'lstrip':true,"
        "'rstrip':true}],'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Split','behavior':'"
        "Isolated','pattern':{'Regex':"
        "'\\\\s*[\\\\r\\\\n]+|[^\\\\s\\\\p{L}]+|\\\\s+(?!\\\\S)|\\\\s+'}},{'type':'ByteLevel'}]}}");
    char *text = malloc(1 << 20);
    for (size_t k = 0; k < sizeof unit / sizeof *unit; k++) {
        size_t len = strlen(unit[k]), n = (1 << 20) / len * len, n_ids = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = unit[k][i % len];
        CHECK(encode_s(t, text, n, &n_ids) < 10);
    }
    free(text);
    tokenizer_close(t);
}

/* --- threads --- */

struct job {
    const struct tokenizer *t;
    char want[64];
    int wrong;
};

static void *encode_often(void *arg)
{
    struct job *j = arg;
    for (int i = 0; i < 500; i++) {
        struct err e = { 0 };
        int32_t *ids = NULL;
        size_t n = 0;
        char got[64] = "";
        if (tokenizer_encode(j->t, "abcaaaa ab?", 11, 1, &ids, &n, &e) < 0)
            j->wrong++;
        for (size_t k = 0, at = 0; k < n; k++)
            at += (size_t)sprintf(got + at, " %d", ids[k]);
        j->wrong += strcmp(got, j->want) != 0;
        free(ids);
    }
    return NULL;
}

TEST(threads_may_share_a_tokenizer)
{
    struct tokenizer *t = must_open("{'model':{" ABC ",'merges':['a b','ab c','a a','aa "
                                    "aa']},'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':false}}");
    struct job job[4];
    pthread_t id[4];
    for (int i = 0; i < 4; i++) {
        job[i] = (struct job){ t, " 5 7 3", 0 };
        if (pthread_create(&id[i], NULL, encode_often, &job[i])) {
            test_fail(__FILE__, __LINE__, "no thread");
            return;
        }
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(id[i], NULL);
        CHECK_INT(job[i].wrong, 0);
    }
    tokenizer_close(t);
}

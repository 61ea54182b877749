/* text_split_test.c - normalisers, pre-tokenisers and patterns, one by one. */
#include "tests/unit/text/text_help.h"

/* The pieces of a text, as "a|b|c"; or what loading said. */
static const char *pieces_of(const char *json, const char *text)
{
    static char out[1024];
    static struct err e;
    struct steps s = { 0 };
    struct pieces ps = { 0 };
    char *q = quoted(json);
    json_t *node = text_json(q, strlen(q), "t", &e);
    out[0] = 0;
    if (!node || steps_load(&s, node, split_kinds, "pretokenizers", "t", &e) < 0) {
        snprintf(out, sizeof out, "%s", e.text);
        goto out;
    }
    buf_add(&ps.text, text, strlen(text));
    pieces_add(&ps, 0, strlen(text), -1, 1);
    if (split_run(&s, &ps, &e) < 0) {
        snprintf(out, sizeof out, "%s", e.text);
        goto out;
    }
    for (size_t i = 0, at = 0; i < ps.n; i++)
        at += (size_t)sprintf(out + at, "%s%.*s", i ? "|" : "", (int)ps.v[i].n, ps.text.p + ps.v[i].off);
out:
    steps_free(&s);
    pieces_free(&ps);
    json_decref(node);
    free(q);
    return out;
}

static const char *split(const char *behavior, int invert, const char *text)
{
    char json[256];
    snprintf(json, sizeof json, "{'type':'Split','pattern':{'Regex':'-'},'behavior':'%s','invert':%s}",
             behavior, invert ? "true" : "false");
    return pieces_of(json, text);
}

TEST(the_five_behaviors_cut_as_documented)
{
    CHECK_STR(split("Isolated", 0, "the-final--countdown"), "the|-|final|-|-|countdown");
    CHECK_STR(split("Removed", 0, "the-final--countdown"), "the|final|countdown");
    CHECK_STR(split("MergedWithPrevious", 0, "the-final--countdown"), "the-|final-|-|countdown");
    CHECK_STR(split("MergedWithNext", 0, "the-final--countdown"), "the|-final|-|-countdown");
    CHECK_STR(split("Contiguous", 0, "the-final--countdown"), "the|-|final|--|countdown");
}

TEST(behaviors_at_the_ends_of_a_text)
{
    CHECK_STR(split("MergedWithPrevious", 0, "-a-"), "-|a-");
    CHECK_STR(split("MergedWithNext", 0, "-a-"), "-a|-");
    CHECK_STR(split("MergedWithNext", 0, "--"), "-|-");
    CHECK_STR(split("Contiguous", 0, "--a"), "--|a");
    CHECK_STR(split("Removed", 0, "---"), "");
    CHECK_STR(split("Isolated", 0, "abc"), "abc");
}

TEST(an_inverted_split_swaps_matches_and_the_rest)
{
    CHECK_STR(split("Removed", 1, "a-b--c"), "-|-|-");
    CHECK_STR(split("MergedWithPrevious", 1, "a-b--c"), "a|-b|-|-c");
}

TEST(an_empty_match_cuts_and_does_not_loop)
{
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'x*'},'behavior':'Isolated'}", "axxb"), "a|xx|b");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'(?=b)'},'behavior':'Isolated'}", "abab"),
              "a|ba|b");
}

TEST(patterns_that_are_strings_are_not_regexes)
{
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'String':'.'},'behavior':'Removed'}", "a.b"), "a|b");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'String':'aa'},'behavior':'Isolated'}", "aaab"), "aa|ab");
}

TEST(gpt2_words)
{
    CHECK_STR(pieces_of("{'type':'ByteLevel','add_prefix_space':false}", "I'll go  to 12 caf\xC3\xA9s!!"),
              "I|'ll|\xC4\xA0go|\xC4\xA0|\xC4\xA0to|\xC4\xA0"
              "12|\xC4\xA0"
              "caf\xC3\x83\xC2\xA9s|!!");
    CHECK_STR(pieces_of("{'type':'ByteLevel','add_prefix_space':true}", "a"), "\xC4\xA0"
                                                                              "a");
    CHECK_STR(pieces_of("{'type':'ByteLevel','add_prefix_space':true}", " a"), "\xC4\xA0"
                                                                               "a");
    CHECK_STR(pieces_of("{'type':'ByteLevel','add_prefix_space':false,'use_regex':false}", "a b"), "a\xC4\xA0"
                                                                                                   "b");
}

TEST(space_in_a_regex_is_unicodes_not_pcres)
{
    /* U+180E has not been a space since Unicode 6.3; the class and the shorthand must agree on it */
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\s'},'behavior':'Isolated'}", "a\xE1\xA0\x8E"
                                                                                              "b c"),
              "a\xE1\xA0\x8E"
              "b| |c");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'[^\\\\sx]'},'behavior':'Isolated'}",
                        "x\xE1\xA0\x8E x"),
              "x|\xE1\xA0\x8E| x");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\S+'},'behavior':'Isolated'}",
                        "a\xE1\xA0\x8E b"),
              "a\xE1\xA0\x8E| |b");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'[\\\\S]+'},'behavior':'Isolated'}",
                        "a\xE1\xA0\x8E b"),
              "a\xE1\xA0\x8E| |b");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\w+'},'behavior':'Isolated'}", "e\xCC\x81!"),
              "e\xCC\x81|!");
}

TEST(words_and_posix_classes_in_a_regex_are_onigurumas)
{
    static const struct {
        const char *regex, *text, *want;
    } rows[] = {
        /* a power is a word's, a circled letter too */
        { "\\\\w+", "m\xC2\xB2 \xE2\x92\xB6", "m\xC2\xB2| |\xE2\x92\xB6" },
        /* but not in a class: so it is there */
        { "[\\\\w]+", "m\xC2\xB2", "m|\xC2\xB2" },
        { "\\\\W+", "m\xC2\xB2..a", "m\xC2\xB2|..|a" },
        /* no edge between a letter and its mark */
        { "\\\\b[a-z]+\\\\b", "ab e\xCC\x81x ab", "ab| e\xCC\x81x |ab" },
        { "\\\\Bb",
          "ab b\xCC\x81"
          "b",
          "a|b| b\xCC\x81|b" },
        /* symbols are punctuation */
        { "[[:punct:]]+", "a\xE2\x82\xAC+b", "a|\xE2\x82\xAC+|b" },
        /* a Roman numeral is a letter */
        { "[[:alpha:]]+",
          "\xE2\x85\xA0"
          "a1",
          "\xE2\x85\xA0"
          "a|1" },
        { "[^[:alnum:]_]+",
          "a_1-\xE2\x82\xAC"
          "b",
          "a_1|-\xE2\x82\xAC|b" },
        /* one character, not the ends of lines */
        { "\\\\v+|[\\\\vz]", "a\n\x0B\x0B\rz", "a\n|\x0B\x0B|\r|z" },
        { "a{,2}b|[{,1}]", "aaab{", "a|aab|{" },
        { "[\\\\u4e00-\\\\u9fff]+|\\\\u00e9", "a\xE4\xB8\x80\xC3\xA9", "a|\xE4\xB8\x80|\xC3\xA9" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char json[300];
        snprintf(json, sizeof json, "{'type':'Split','pattern':{'Regex':'%s'},'behavior':'Isolated'}",
                 rows[i].regex);
        CHECK_STR(pieces_of(json, rows[i].text), rows[i].want);
    }
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'[[:print:]]'},'behavior':'Isolated'}", ""),
              "a [:class:] other than alpha");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'[[:^alpha:]]'},'behavior':'Isolated'}", ""),
              "a [:class:] other than alpha");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\Qa.\\\\E'},'behavior':'Isolated'}", ""),
              "\\Q, which is not supported");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\u12'},'behavior':'Isolated'}", ""),
              "\\u, which is not supported");
}

TEST(letters_newer_than_the_regex_library_are_letters)
{
    /* U+1C89 (Unicode 16), U+31350 (15): the library behind the reference files knows them */
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\p{L}+'},'behavior':'Isolated'}",
                        "-\xE1\xB2\x89-\xF0\xB1\x8D\x90-"),
              "-|\xE1\xB2\x89|-|\xF0\xB1\x8D\x90|-");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'[^\\\\s\\\\p{L}]+'},'behavior':'Isolated'}",
                        "-\xE1\xB2\x89-"),
              "-|\xE1\xB2\x89|-");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\P{L}+'},'behavior':'Isolated'}",
                        "-\xE1\xB2\x89-"),
              "-|\xE1\xB2\x89|-");
}

TEST(regexes_that_mean_something_else_there_are_refused)
{
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\h'},'behavior':'Isolated'}", ""),
              "\\h, which is not supported");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'[a[b]]'},'behavior':'Isolated'}", ""),
              "a class inside of a class");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'[a&&b]'},'behavior':'Isolated'}", ""),
              "an intersection");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'(?m:a.b)'},'behavior':'Isolated'}", ""), "(?m");
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'(a'},'behavior':'Isolated'}", ""),
              "does not compile: missing closing parenthesis");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'[]a]'},'behavior':'Removed'}", "x]y"), "x|y");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'[[:digit:]-]'},'behavior':'Removed'}", "x1-y"),
              "x|y");
    CHECK_STR(pieces_of("{'type':'Split','pattern':{'Regex':'\\\\[h\\\\]'},'behavior':'Removed'}", "x[h]y"),
              "x|y");
}

TEST(a_regex_that_explodes_ends_with_an_error)
{
    CHECK_HAS(pieces_of("{'type':'Split','pattern':{'Regex':'(a|aa)+$'},'behavior':'Isolated'}",
                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
              "gives up on this text");
}

TEST(the_small_pre_tokenizers)
{
    CHECK_STR(pieces_of("{'type':'Digits','individual_digits':true}", "a12b"), "a|1|2|b");
    CHECK_STR(pieces_of("{'type':'Digits','individual_digits':false}", "a12b"), "a|12|b");
    CHECK_STR(pieces_of("{'type':'Punctuation'}", "a,b!!c"), "a|,|b|!|!|c");
    CHECK_STR(pieces_of("{'type':'Punctuation','behavior':'Contiguous'}", "a,b!!c"), "a|,|b|!!|c");
    CHECK_STR(pieces_of("{'type':'WhitespaceSplit'}", " a\t b,c\n"), "a|b,c");
    CHECK_STR(pieces_of("{'type':'Whitespace'}", " ab!! c_1 \xE2\x80\x94x"), "ab|!!|c_1|\xE2\x80\x94|x");
    CHECK_STR(pieces_of("{'type':'CharDelimiterSplit','delimiter':'/'}", "a//b"), "a|b");
    CHECK_STR(pieces_of("{'type':'Sequence','pretokenizers':[{'type':'WhitespaceSplit'},{'type':'Sequence','"
                        "pretokenizers':[{'type':'Digits','individual_digits':true}]}]}",
                        "a1 2b"),
              "a|1|2|b");
}

#define LB "\xE2\x96\x81"
TEST(metaspace_prepends_by_scheme)
{
    CHECK_STR(pieces_of("{'type':'Metaspace','replacement':'" LB "','prepend_scheme':'always','split':true}",
                        "a b"),
              LB "a|" LB "b");
    CHECK_STR(pieces_of("{'type':'Metaspace','replacement':'" LB "','prepend_scheme':'never','split':true}",
                        "a  b"),
              "a|" LB "|" LB "b");
    CHECK_STR(pieces_of("{'type':'Metaspace','replacement':'" LB "','prepend_scheme':'first','split':false}",
                        " a b"),
              LB "a" LB "b");
    CHECK_STR(pieces_of("{'type':'Metaspace','replacement':'" LB "','add_prefix_space':false}", "a b"),
              "a|" LB "b");
    CHECK_STR(pieces_of("{'type':'Sequence','pretokenizers':[{'type':'Digits'},{'type':'Metaspace','prepend_"
                        "scheme':'first','split':false}]}",
                        "a1"),
              LB "a|1");
    CHECK_STR(pieces_of("{'type':'Sequence','pretokenizers':[{'type':'Digits'},{'type':'Metaspace','prepend_"
                        "scheme':'always','split':false}]}",
                        "a1"),
              LB "a|" LB "1");
    CHECK_HAS(pieces_of("{'type':'Metaspace','prepend_scheme':'often'}", ""),
              "\"often\": known are never, first, always");
}

static const char *normal(const char *json, const char *text)
{
    static char out[1024];
    struct err e = { 0 };
    struct steps s = { 0 };
    struct buf b = { 0 };
    char *q = quoted(json);
    json_t *node = text_json(q, strlen(q), "t", &e);
    if (!node || steps_load(&s, node, normalizer_kinds, "normalizers", "t", &e) < 0 ||
        normalize(&s, text, strlen(text), &b, &e) < 0)
        snprintf(out, sizeof out, "%s", e.text);
    else
        snprintf(out, sizeof out, "%.*s", (int)b.n, b.p ? b.p : "");
    steps_free(&s);
    buf_free(&b);
    json_decref(node);
    free(q);
    return out;
}

TEST(the_normalizers)
{
    CHECK_STR(normal("{'type':'Lowercase'}", "A\xC3\x89\xC4\xB0"), "a\xC3\xA9i\xCC\x87");
    CHECK_STR(normal("{'type':'Prepend','prepend':'_'}", "a"), "_a");
    CHECK_STR(normal("{'type':'Prepend','prepend':'_'}", ""), "");
    CHECK_STR(normal("{'type':'Replace','pattern':{'String':' '},'content':'" LB "'}", " a "), LB "a" LB);
    CHECK_STR(normal("{'type':'Replace','pattern':{'Regex':' {2,}'},'content':' '}", "a    b c"), "a b c");
    CHECK_STR(normal("{'type':'Strip','strip_left':true,'strip_right':false}", "  a "), "a ");
    CHECK_STR(normal("{'type':'Strip','strip_left':true,'strip_right':true}", " \xE3\x80\x80 "), "");
    CHECK_STR(
        normal(
            "{'type':'Sequence','normalizers':[{'type':'NFD'},{'type':'StripAccents'},{'type':'Lowercase'}]}",
            "CAF\xC3\x89"),
        "cafe");
    CHECK_STR(normal("{'type':'NFKC'}", "\xEF\xAC\x81"), "fi");
    CHECK_STR(normal("{'type':'NFKD'}", "\xC3\xA9"), "e\xCC\x81");
    CHECK_STR(normal("{'type':'ByteLevel'}", " \xC3\xA9"), "\xC4\xA0\xC3\x83\xC2\xA9");
}

TEST(order_of_normalizers_matters)
{
    CHECK_STR(normal("{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':' "
                     "'},{'type':'Replace','pattern':{'String':' '},'content':'_'}]}",
                     "a b"),
              "_a_b");
    CHECK_STR(normal("{'type':'Sequence','normalizers':[{'type':'Replace','pattern':{'String':' "
                     "'},'content':'_'},{'type':'Prepend','prepend':' '}]}",
                     "a b"),
              " a_b");
}

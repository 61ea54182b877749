/* base_opt_config_test.c - options from a TOML file: what is read, what the command line overrides, what is
 * refused with its line. */
#include "tests/test.h"

#include "base/opt.h"

struct target {
    int64_t seq_len;
    double lr;
    int sp;
    const char *out, *config;
    struct opt_list data;
};
#define AT(m) offsetof(struct target, m)

static const struct opt table[] = {
    { OPT_INT, "seq-len", AT(seq_len), "64", "T", "tokens of a sequence", 1, 1 << 20, 0 },
    { OPT_FLOAT, "lr", AT(lr), "3e-4", "X", "learning rate", 0, 10, 0 },
    { OPT_SWITCH, "sp", AT(sp), "0", NULL, "split rows", 0, 0, 0 },
    { OPT_TEXT, "out", AT(out), NULL, "DIR", "where to", 0, 0, OPT_NOT_STORED },
    { OPT_TEXT, "config", AT(config), NULL, "FILE", "options", 0, 0, OPT_NOT_STORED },
    { OPT_LIST, "data", AT(data), NULL, "FILE", "texts", 0, 0, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
static const struct opt_program program = { "prog", "does things", "", table, 0, 0, NULL };

static struct target got;
static struct opt_words words;
static struct opt_args args;
static struct err e;

/* Parses `more` (NULL-ended) alone, then with the file's options in front. */
static int parse(const char *text, const char *const *more)
{
    static char *argv[8];
    unsigned char given[8];
    int n = 1;
    argv[0] = (char *)(uintptr_t)program.name;
    for (; more[n - 1]; n++)
        argv[n] = (char *)(uintptr_t)more[n - 1];
    int rc = opt_parse(&program, n, argv, &got, &args, given, &e);
    CHECK_INT(rc, 0);
    opt_free(&program, &got, &args);
    if ((rc = opt_config_words(&program, text, n, argv, given, &words, &e)) < 0)
        return rc;
    return opt_parse(&program, words.n, words.item, &got, &args, NULL, &e);
}
#define PARSE(text, ...) parse(text, (const char *const[]){ __VA_ARGS__, NULL })

static void done(void)
{
    opt_free(&program, &got, &args);
    opt_words_free(&words);
}

TEST(every_kind_of_value_is_read)
{
    CHECK_INT(PARSE("# a run\n"
                    "seq-len = 1_024   # tokens\r\n"
                    "\"lr\"=3e-3\n"
                    "\n"
                    "sp = true\n"
                    "out = \"a \\\"b\\\" \\u00e9\\t#\"\n"
                    "data = [ 'c:\\x', # one\n"
                    "   \"d\",\n"
                    "]",
                    NULL),
              0);
    CHECK_INT(got.seq_len, 1024);
    CHECK(got.lr == 3e-3 && got.sp == 1);
    CHECK_STR(got.out, "a \"b\" \xC3\xA9\t#");
    CHECK_INT(got.data.n, 2);
    CHECK_STR(got.data.item[0], "c:\\x");
    CHECK_STR(got.data.item[1], "d");
    done();
}

TEST(the_command_line_wins_also_over_a_list)
{
    CHECK_INT(PARSE("seq-len = 8\nlr = 1\ndata = ['a', 'b']\n", "--data", "c", "--lr=2"), 0);
    CHECK_INT(got.seq_len, 8);
    CHECK(got.lr == 2);
    CHECK_INT(got.data.n, 1);
    CHECK_STR(got.data.item[0], "c");
    done();
    CHECK_INT(PARSE("\n# nothing\n", "--seq-len", "9"), 0);
    CHECK_INT(got.seq_len, 9);
    done();
}

TEST(sizes_with_suffixes_are_strings_and_ranges_are_those_of_the_options)
{
    CHECK_INT(PARSE("seq-len = \"4k\"", NULL), 0);
    CHECK_INT(got.seq_len, 4000);
    done();
    CHECK_INT(PARSE("seq-len = 0", NULL), -ERR_USAGE);
    CHECK_STR(e.text, "--seq-len 0 is too small: it must be at least 1");
    opt_words_free(&words);
}

TEST(what_is_no_option_or_no_toml_is_refused_with_its_line)
{
    static const char *const bad[][2] = {
        { "seq-len = 1\nseq-len = 2", "line 2: seq-len is there twice" },
        { "seq_len = 1", "line 1: unknown option --seq_len: did you mean --seq-len" },
        { "\nlr 3", "line 2: no = behind lr" },
        { "lr = 4k", "line 1: a value is a string in quotation marks" },
        { "lr = ", "line 1: a value is" },
        { "lr = 1 2", "line 1: more behind a value" },
        { "lr = [1]", "line 1: lr takes one value" },
        { "data = ['a' 'b']", "line 1: values of an array need a comma" },
        { "data = ['a',\n'b'", "line 2: an array does not end" },
        { "out = \"a", "line 1: a string does not end in its line" },
        { "out = \"\"\"a\"\"\"", "line 1: a string of several lines" },
        { "out = \"\\q\"", "line 1: an unknown escape" },
        { "out = \"\\u12\"", "line 1: an escape of a string is no character" },
        { "out = \"\\ud800\"", "line 1: an escape of a string is no character" },
        { "[train]\nlr = 1", "line 1: tables are not supported" },
        { "train.lr = 1", "line 1: tables are not supported" },
        { "= 1", "line 1: no option" },
        { "help = true", "line 1: help is for the command line only" },
        { "config = 'x'", "line 1: config is for the command line only" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_INT(PARSE(bad[i][0], NULL), -ERR_USAGE);
        CHECK_HAS(e.text, bad[i][1]);
        CHECK(!words.item);
    }
}

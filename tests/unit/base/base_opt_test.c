/* base_opt_test.c - a table of options of every kind: parsed, refused with advice, stored, shown. */
#include "tests/test.h"

#include <unistd.h>
#include "base/opt.h"

struct target {
    int64_t seq_len, memory, cp;
    double lr;
    int sp, overlap, dtype, async;
    const char *out, *name;
    struct opt_list data;
};
#define AT(m) offsetof(struct target, m)

static const struct opt table[] = {
    { OPT_GROUP, "layout", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_INT, "seq-len", AT(seq_len), "64", "T", "tokens of a sequence", 1, 1 << 20, 0 },
    { OPT_SIZE, "kv-memory", AT(memory), "1GiB", "SIZE", "bytes of the cache", 0, 0, 0 },
    { OPT_INT, "cp", AT(cp), "1", "N", "context parallel (1: one rank)", 1, 64, OPT_NEUTRAL_ONLY },
    { OPT_FLOAT, "lr", AT(lr), "3e-4", "X", "learning rate", 0, 10, 0 },
    { OPT_GROUP, "run", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_SWITCH, "sp", AT(sp), "0", NULL, "split rows", 0, 0, 0 },
    { OPT_SWITCH, "overlap", AT(overlap), "1", NULL, "overlap", 0, 0, 0 },
    { OPT_SWITCH, "save-async", AT(async), "0", NULL, "write behind", 0, 0,
      OPT_NEUTRAL_ONLY | OPT_NOT_STORED },
    { OPT_CHOICE, "dtype", AT(dtype), "fp32", "fp32|bf16|fp16", "arithmetic", 0, 0, 0 },
    { OPT_TEXT, "out", AT(out), NULL, "DIR", "where to", 0, 0, OPT_NOT_STORED },
    { OPT_TEXT, "name", AT(name), "x", "NAME",
      "a name that is explained at such length that it takes two whole lines", 0, 0, 0, "x|y" },
    { OPT_LIST, "data", AT(data), NULL, "FILE", "texts", 0, 0, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
static const struct opt diff_table[] = {
    { OPT_CHOICE, "how", AT(dtype), "bits", "bits|values", "what is compared: [a]", 0, 0, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
static const struct opt_program diff = { "prog diff", "compares", "A B", diff_table, 2, 2, NULL };
static const struct opt_program *const commands[] = { &diff, NULL };
static const struct opt_program program = {
    .name = "prog",
    .summary = "does things",
    .usage = "SRC [DST]",
    .opts = table,
    .max_args = 2,
    .examples = "# one\nprog a b\n",
    .commands = commands,
};

static struct target got;
static struct opt_args args;
static unsigned char given[sizeof table / sizeof *table];
static struct err e;

/* argv after the program's name */
static int parse(const char *const *words)
{
    static char *argv[24];
    int n = 1;
    argv[0] = (char *)(uintptr_t)program.name;
    for (; words[n - 1]; n++)
        argv[n] = (char *)(uintptr_t)words[n - 1];
    memset(&got, 0x55, sizeof got);
    return opt_parse(&program, n, argv, &got, &args, given, &e);
}
#define PARSE(...) parse((const char *const[]){ __VA_ARGS__, NULL })
#define REFUSED(message, ...) \
    do { \
        CHECK_INT(PARSE(__VA_ARGS__), -ERR_USAGE); \
        CHECK_STR(e.text, message); \
    } while (0)

static void done(void) { opt_free(&program, &got, &args); }

TEST(defaults_hold_where_nothing_is_said)
{
    CHECK_INT(parse((const char *const[]){ NULL }), 0);
    CHECK_INT(got.seq_len, 64);
    CHECK_INT(got.memory, 1 << 30);
    CHECK(got.lr == 3e-4 && got.sp == 0 && got.overlap == 1 && got.dtype == 0 && got.out == NULL &&
          !strcmp(got.name, "x"));
    CHECK(got.data.n == 0 && args.n == 0);
    for (size_t i = 0; i < sizeof given; i++)
        CHECK_INT(given[i], 0);
    done();
}

TEST(values_are_taken_in_both_spellings)
{
    CHECK_INT(PARSE("--seq-len", "4k", "--kv-memory=1.5GiB", "src", "--sp", "--no-overlap", "--dtype", "bf16",
                    "--lr=-0", "--out", "-x", "dst"),
              0);
    CHECK_INT(got.seq_len, 4000);
    CHECK_INT(got.memory, 3 << 29);
    CHECK(got.sp == 1 && got.overlap == 0 && got.dtype == 1 && got.lr == 0);
    CHECK_STR(got.out, "-x");
    CHECK_INT(args.n, 2);
    CHECK_STR(args.item[1], "dst");
    CHECK(given[1] && given[2] && !given[3] && given[7]);
    done();
    CHECK_INT(PARSE("--sp", "--sp=off", "--seq-len=1", "--seq-len=2", "--name="), 0);
    CHECK(got.sp == 0 && got.seq_len == 2 && !*got.name);
    done();
}

TEST(a_list_goes_up_to_the_next_option_and_grows)
{
    CHECK_INT(PARSE("--data", "a", "b", "--sp", "src", "--data=c", "dst"), 0);
    CHECK_INT(got.data.n, 3);
    CHECK(!strcmp(got.data.item[1], "b") && !strcmp(got.data.item[2], "c"));
    CHECK_INT(args.n, 2);
    done();
    CHECK_INT(PARSE("--data", "a", "--", "--sp", "-"), 0);
    CHECK(got.data.n == 1 && args.n == 2 && !got.sp);
    CHECK_STR(args.item[0], "--sp");
    CHECK_STR(args.item[1], "-");
    done();
    CHECK(got.data.n == 0 && got.data.item == NULL && args.n == 0);
}

TEST(unknown_names_suggest_the_nearest)
{
    REFUSED("unknown option --seqlen: did you mean --seq-len", "--seqlen", "5");
    REFUSED("unknown option --dtpye: did you mean --dtype", "--dtpye=bf16");
    REFUSED("unknown option --over: did you mean --overlap", "--over");
    REFUSED("unknown option --halp: did you mean --help", "--halp");
    REFUSED("unknown option --quux-and-more: see --help", "--quux-and-more");
    REFUSED("unknown option --no-seq-len: did you mean --seq-len", "--no-seq-len");
    REFUSED("unknown option -n: options are long, see --help", "-n");
}

TEST(words_of_other_tools_name_the_option_here)
{
    REFUSED("unknown option --sequence-length: did you mean --seq-len", "--sequence-length", "5");
    REFUSED("unknown option --learning_rate: did you mean --lr", "--learning_rate=1");
    REFUSED("unknown option --seq_len: did you mean --seq-len", "--seq_len", "5");
    REFUSED("unknown option --gpu-memory-utilization: did you mean --kv-memory",
            "--gpu-memory-utilization=0.9");
    REFUSED("unknown option --no-sequence-parallel: did you mean --sp", "--no-sequence-parallel");
    REFUSED("unknown option --bf16: give --dtype bf16", "--bf16");
    REFUSED("unknown option -o: did you mean --out", "-o", "x");
    REFUSED("unknown option -seq-len: did you mean --seq-len", "-seq-len", "5");
    REFUSED("unknown option --tensor-parallel-size: see --help", "--tensor-parallel-size", "2"); /* no --tp */
}

TEST(bad_values_say_what_is_good)
{
    REFUSED("--seq-len 0 is too small: it must be at least 1", "--seq-len", "0");
    REFUSED("--seq-len 2M is too large: it must be at most 1048576", "--seq-len", "2M");
    REFUSED("--seq-len 4q is not a whole number: 64, 4k and 64Ki are", "--seq-len", "4q");
    REFUSED("--kv-memory -1 is not a size: 80GB, 2GiB and 512M are", "--kv-memory", "-1");
    REFUSED("--lr nan is not a number: 0.1 and 3e-4 are", "--lr", "nan");
    REFUSED("--lr 1e-3x is not a number: 0.1 and 3e-4 are", "--lr=1e-3x");
    REFUSED("--dtype bf: it must be one of fp32|bf16|fp16", "--dtype", "bf");
    REFUSED("--dtype : it must be one of fp32|bf16|fp16", "--dtype=");
    REFUSED("--sp=2: it is a switch: use --sp or --no-sp", "--sp=2");
    REFUSED("--seq-len needs a value: --seq-len T", "--seq-len");
    REFUSED("--data needs a value: --data FILE", "--data", "--sp");
    REFUSED("--name is not UTF-8: rename what it names", "--name", "\xff");
    REFUSED("three is one argument too many (expected: SRC [DST]): see --help", "one", "two", "three");
    struct opt_program needs = program;
    needs.min_args = 1;
    char *argv[] = { NULL };
    CHECK_INT(opt_parse(&needs, 1, argv, &got, &args, NULL, &e), -ERR_USAGE);
    CHECK_STR(e.text, "0 of 1 arguments given: prog SRC [DST]");
}

TEST(a_feature_not_built_yet_is_taken_at_its_neutral_value_only)
{
    CHECK_INT(PARSE("--cp", "1", "--no-save-async"), 0);
    done();
    REFUSED("--cp 2 is not built yet: only --cp 1 is", "--cp", "2");
    REFUSED("--save-async is not built yet: leave it out", "--save-async");
}

TEST(sizes_are_powers_of_1000_and_of_1024)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        { "0", 0 },
        { "4k", 4000 },
        { "7B", 7000000000 },
        { "2M", 2000000 },
        { "80GB", 80000000000 },
        { "64Ki", 65536 },
        { "2GiB", INT64_C(2) << 30 },
        { "1.5Gi", INT64_C(3) << 29 },
        { "0.5B", 500000000 },
        { "-3", -3 },
        { "1.0", 1 },
        { "9223372036854775807", INT64_MAX },
        { "8388607TiB", INT64_C(8388607) << 40 },
        { "1TB", 1000000000000 },
        { ".5k", 500 },
    };
    static const char *const bad[] = { "",
                                       "k",
                                       "-",
                                       ".",
                                       "1.5",
                                       "1e3",
                                       "4kk",
                                       "4 k",
                                       "9223372036854775808",
                                       "8388608TiB",
                                       "0x10",
                                       "1.2.3k",
                                       "100000000000000000000000",
                                       "4m",
                                       "+4" };
    int64_t x;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_INT(opt_parse_size(good[i].text, &x), 0);
        CHECK_INT(x, good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (opt_parse_size(bad[i], &x) == 0)
            test_fail(__FILE__, __LINE__, "\"%s\" is taken as %lld", bad[i], (long long)x);
}

TEST(what_is_stored_is_json_in_the_order_of_the_table)
{
    CHECK_INT(PARSE("--data", "a\"b", "c", "--out", "/tmp/x", "--lr", "0.5", "--dtype", "fp16", "--sp"), 0);
    char *json = opt_json(&program, &got);
    CHECK_STR(json, "{\"seq-len\":64,\"kv-memory\":1073741824,\"cp\":1,\"lr\":0.5,\"sp\":true,\"overlap\":"
                    "true,\"dtype\":\"fp16\","
                    "\"name\":\"x\",\"data\":[\"a\\\"b\",\"c\"]}");
    free(json);
    done();
}

/* stdout of one of the options that opt_parse answers itself. */
static const char *answer(const char *a, const char *b)
{
    static char text[8000];
    FILE *f = tmpfile();
    fflush(stdout);
    int saved = dup(1), rc = -1;
    if (f && dup2(fileno(f), 1) == 1)
        rc = PARSE(a, b);
    fflush(stdout);
    CHECK(dup2(saved, 1) == 1);
    close(saved);
    CHECK_INT(rc, 1);
    CHECK(args.item == NULL);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

TEST(help_is_grouped_with_one_default_a_flag_and_examples)
{
    const char *help = answer("--help", NULL);
    CHECK_HAS(help, "usage: prog SRC [DST] [options]\ndoes things\n\nexamples:\n  # one\n  prog a b\n");
    CHECK_HAS(help,
              "\ncommands, each with a --help of its own:\n  prog diff A B                    compares\n");
    CHECK_HAS(help, "\n  --seq-len T                      tokens of a sequence (default 64)\n");
    CHECK_HAS(help, "\n  --overlap                        overlap (default on)\n");
    CHECK_HAS(help, "\n  --sp                             split rows\n");
    CHECK_HAS(help, "\n  --cp N                           context parallel (default 1: one rank)\n");
    CHECK_HAS(help, "\n  --dtype fp32|bf16|fp16           arithmetic (default fp32)\n");
    CHECK_HAS(help, "\n  --name NAME                      a name that is explained at such length that "
                    "it takes two whole\n                                   lines (default x)\n");
    CHECK_HAS(help, "\n  --data FILE...                   texts\n");
    CHECK_HAS(help, "\nrun:\n");
    CHECK_HAS(help, "\n  --version ");
    CHECK_HAS(answer("-h", NULL), "usage: prog");
    CHECK_STR(answer("--version", NULL), "prog\n");
}

TEST(the_man_page_and_the_shell_know_every_option)
{
    const char *man = answer("--man", NULL);
    CHECK_HAS(man, ".TH PROG 1");
    for (const struct opt *o = table; o->name; o++) {
        char dashed[64] = "";
        for (const char *c = o->name; *c; c++)
            strcat(dashed, *c == '-' ? "\\-" : (char[]){ *c, 0 });
        CHECK_HAS(man, dashed);
    }
    const char *sh = answer("--completion", "bash");
    CHECK_HAS(sh, "--dtype) COMPREPLY=($(compgen -W \"fp32 bf16 fp16 \"");
    CHECK_HAS(sh, "--seq-len --kv-memory --cp --lr --sp ");
    CHECK_HAS(sh, "complete -o filenames -F _prog prog\n");
    char first[8000];
    strcpy(first, sh);
    CHECK_STR(answer("--completion=bash", NULL), first);
    CHECK_HAS(sh, "--name) COMPREPLY=($(compgen -W \"x y \" -- \"$cur\")); return ;;");
    CHECK_HAS(sh, "--how) COMPREPLY=($(compgen -W \"bits values \"");
    const char *zsh = answer("--completion", "zsh");
    CHECK_HAS(zsh, "#compdef prog\n");
    CHECK_HAS(zsh, "'--dtype=[arithmetic (default fp32)]:fp32|bf16|fp16:(fp32 bf16 fp16 )'");
    CHECK_HAS(zsh, "'--how=[what is compared\\: \\[a\\] (default bits)]");
    CHECK_HAS(answer("--completion", "fish"), "complete -c prog -n '__fish_seen_subcommand_from diff' -l how "
                                              "-x -a 'bits values '");
    REFUSED("--completion csh: it must be one of bash|zsh|fish", "--completion", "csh");
}

TEST(a_mistyped_command_is_named)
{
    CHECK_INT(opt_check_command(&program, "dif", &e), -ERR_USAGE);
    CHECK_STR(e.text, "dif is neither a command nor a checkpoint here: did you mean prog diff");
    CHECK_INT(opt_check_command(&program, "diff", &e), 0);
    CHECK_INT(opt_check_command(&program, NULL, &e), 0);
    CHECK_INT(opt_check_command(&program, "--dif", &e), 0);
    CHECK_INT(opt_check_command(&program, "./dif", &e), 0);
    CHECK_INT(opt_check_command(&program, "run", &e), 0);
}

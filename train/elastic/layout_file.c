/* layout_file.c - see layout_file.h. */
#include "train/elastic/layout_file.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"

/* What a file may name: the layout of struct train_opts, and dp. */
struct wish {
    int64_t ranks, tp, pp, dp, cp, ep, zero, virtual_stages, micro_batch;
    int sp, pipeline;
};
#define AT(member) offsetof(struct wish, member)
#define SCHEDULES "gpipe|1f1b|interleaved|zero-bubble|naive"
/* clang-format off */
static const struct opt table[] = {
    { OPT_INT,    "ranks",          AT(ranks),          "1",    "N", "", 1, 4096, 0 },
    { OPT_INT,    "tp",             AT(tp),             "1",    "N", "", 1, 4096, 0 },
    { OPT_INT,    "pp",             AT(pp),             "1",    "N", "", 1, 4096, 0 },
    { OPT_INT,    "dp",             AT(dp),             "1",    "N", "", 1, 4096, 0 },
    { OPT_INT,    "cp",             AT(cp),             "1",    "N", "", 1, 4096, 0 },
    { OPT_INT,    "ep",             AT(ep),             "1",    "N", "", 1, 4096, 0 },
    { OPT_INT,    "zero",           AT(zero),           "0",    "N", "", 0, 3, 0 },
    { OPT_SWITCH, "sp",             AT(sp),             "0",    NULL, "", 0, 0, 0 },
    { OPT_CHOICE, "schedule",       AT(pipeline),       "1f1b", SCHEDULES, "", 0, 0, 0 },
    { OPT_INT,    "virtual-stages", AT(virtual_stages), "1",    "V", "", 1, 4096, 0 },
    { OPT_INT,    "micro-batch",    AT(micro_batch),    "0",    "M", "", 0, 1e9, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
/* clang-format on */
#define KEYS (sizeof table / sizeof *table)
static const struct opt_program program = { .name = "layout", .opts = table };

/* What *w has of the keys that are given, into *o. */
static int take(const struct wish *w, const unsigned char *given, struct train_opts *o, struct err *e)
{
    const struct {
        const char *name;
        int64_t value, *to;
    } number[] = {
        { "ranks", w->ranks, &o->ranks },
        { "tp", w->tp, &o->tp },
        { "pp", w->pp, &o->pp },
        { "cp", w->cp, &o->cp },
        { "ep", w->ep, &o->ep },
        { "zero", w->zero, &o->zero },
        { "virtual-stages", w->virtual_stages, &o->virtual_stages },
        { "micro-batch", w->micro_batch, &o->micro_batch },
    };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (opt_given(&program, given, number[i].name))
            *number[i].to = number[i].value;
    if (opt_given(&program, given, "sp"))
        o->sp = w->sp;
    if (opt_given(&program, given, "schedule"))
        o->pipeline = w->pipeline;

    const int64_t inner = o->tp * o->pp * o->cp;
    const int has_dp = opt_given(&program, given, "dp");
    if (has_dp && opt_given(&program, given, "ranks") && o->ranks != inner * w->dp)
        return err_set(
            e, ERR_USAGE,
            "ranks = %lld, but tp %lld x pp %lld x cp %lld x dp %lld are %lld: leave ranks or dp out",
            (long long)o->ranks, (long long)o->tp, (long long)o->pp, (long long)o->cp, (long long)w->dp,
            (long long)(inner * w->dp));
    if (has_dp)
        o->ranks = inner * w->dp;
    if (o->ranks % inner)
        return err_set(e, ERR_USAGE, "%lld ranks are not a multiple of tp %lld x pp %lld x cp %lld",
                       (long long)o->ranks, (long long)o->tp, (long long)o->pp, (long long)o->cp);
    return 0;
}

int layout_file_read(const char *path, struct train_opts *o, struct err *e)
{
    static char name[] = "layout";
    char *self[] = { name, NULL };
    unsigned char given[KEYS] = { 0 }, none[KEYS] = { 0 };
    struct train_opts wanted = *o;
    struct opt_words words = { 0 };
    struct opt_args args = { 0 };
    struct wish w;
    void *text = NULL;
    size_t n;
    int rc;
    TRY(io_read_file(path, 1 << 16, &text, &n, e));
    if (strlen(text) < n)
        rc = err_set(e, ERR_USAGE, "it holds a NUL byte: is it TOML");
    else
        rc = opt_config_words(&program, text, 1, self, none, &words, e);
    if (rc >= 0)
        rc = opt_parse(&program, words.n, words.item, &w, &args, given, e);
    if (rc == 0) {
        rc = take(&w, given, &wanted, e);
        opt_free(&program, &w, &args);
    }
    if (rc >= 0)
        *o = wanted;
    else
        err_add(e, "%s", path);
    if (words.n_own)
        opt_words_free(&words);
out:
    free(text);
    return rc < 0 ? rc : 0;
}

int layout_file_same(const struct train_opts *a, const struct train_opts *b)
{
    char x[LAYOUT_ARGS_BYTES], y[LAYOUT_ARGS_BYTES];
    layout_args(a, x);
    layout_args(b, y);
    return !strcmp(x, y);
}

/* The word of the schedule. */
static const char *schedule_of(const struct train_opts *o, char word[24])
{
    const char *at = SCHEDULES;
    for (int i = 0; i < o->pipeline; i++)
        at += strcspn(at, "|") + 1;
    snprintf(word, 24, "%.*s", (int)strcspn(at, "|"), at);
    return word;
}

void layout_args(const struct train_opts *o, char text[LAYOUT_ARGS_BYTES])
{
    char word[24];
    snprintf(text, LAYOUT_ARGS_BYTES,
             "--ranks=%lld --tp=%lld --pp=%lld --cp=%lld --ep=%lld --zero=%lld --schedule=%s "
             "--virtual-stages=%lld --micro-batch=%lld %s",
             (long long)o->ranks, (long long)o->tp, (long long)o->pp, (long long)o->cp, (long long)o->ep,
             (long long)o->zero, schedule_of(o, word), (long long)o->virtual_stages,
             (long long)o->micro_batch, o->sp ? "--sp" : "--no-sp");
}

void layout_words(const struct train_opts *o, char text[LAYOUT_ARGS_BYTES])
{
    const struct {
        const char *name;
        int64_t n, usual;
    } part[] = { { "tp", o->tp, 1 },
                 { "pp", o->pp, 1 },
                 { "cp", o->cp, 1 },
                 { "dp", o->ranks / (o->tp * o->pp * o->cp), 1 },
                 { "ep", o->ep, 1 },
                 { "zero", o->zero, 0 },
                 { "virtual-stages", o->virtual_stages, 1 },
                 { "micro-batch", o->micro_batch, 0 } };
    char word[24];
    int at = snprintf(text, LAYOUT_ARGS_BYTES, "%lld rank%s", (long long)o->ranks, o->ranks == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].n != part[i].usual)
            at += snprintf(text + at, LAYOUT_ARGS_BYTES - (size_t)at, ", %s %lld", part[i].name,
                           (long long)part[i].n);
    if (o->pp > 1)
        at += snprintf(text + at, LAYOUT_ARGS_BYTES - (size_t)at, ", %s", schedule_of(o, word));
    if (o->sp)
        snprintf(text + at, LAYOUT_ARGS_BYTES - (size_t)at, ", sp");
}

/* opt_help.c - see opt_help.h. */
#include "base/opt/opt_help.h"

#include <string.h>

#define COLUMN 34   /* where the explanations begin; longer names push theirs to the right */
#define COLUMNS 100 /* no line is longer */
#define TEXT_MAX 1024

const struct opt_builtin opt_builtins[] = {
    { "help", NULL, "this text" },
    { "version", NULL, "version, CPU class, devices and transports" },
    { "completion", "bash|zsh|fish", "completion for this shell: source <(PROGRAM --completion bash)" },
    { "man", NULL, "this text as a man page: PROGRAM --man | man -l -" },
    { NULL, NULL, NULL },
};

const struct opt_env_group opt_env_groups[OPT_ENV_GROUPS] = {
    { ENV_USER, "environment" },
    { ENV_OTHER, "environment of other software" },
};

const char *opt_command_word(const struct opt_program *p)
{
    const char *space = strrchr(p->name, ' ');
    return space ? space + 1 : p->name;
}

/* The default to print; NULL for a switch that is off and an empty text. */
static const char *shown_default(const struct opt *o)
{
    if (!o->value || !*o->value || (o->kind == OPT_SWITCH && !strcmp(o->value, "0")))
        return NULL;
    return o->kind == OPT_SWITCH ? "on" : o->value;
}

void opt_explain(const struct opt *o, char *text, size_t n)
{
    const char *value = shown_default(o), *help = o->help ? o->help : "";
    char meaning[64] = "";
    if (value) /* "(0: as many as cores)" of an option whose default is 0 */
        snprintf(meaning, sizeof meaning, "(%s: ", value);

    const char *at = value ? strstr(help, meaning) : NULL;
    if (at)
        snprintf(text, n, "%.*s(default %s", (int)(at - help), help, at + 1);
    else if (value)
        snprintf(text, n, "%s (default %s)", help, value);
    else
        snprintf(text, n, "%s", help);
}

/* Columns that the first n bytes of UTF-8 take. */
static int columns_of(const char *text, size_t n)
{
    int columns = 0;
    for (size_t i = 0; i < n; i++)
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
    return columns;
}

/* Prints text and a line feed, broken at spaces before COLUMNS. at: the column of the cursor; further lines
 * begin at column `indent`. */
static void print_wrapped(FILE *out, const char *text, int at, int indent)
{
    int first = 1;
    while (*text) {
        size_t n = strcspn(text, " ");
        int columns = columns_of(text, n);
        if (!first && at + 1 + columns > COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (!first) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, n, out);
        at += columns;
        text += n + (text[n] == ' ');
        first = 0;
    }
    fputc('\n', out);
}

static void print_row(FILE *out, const char *name, const char *unit, const char *more, const char *help)
{
    int n = fprintf(out, "  %s%s%s%s", name, unit ? " " : "", unit ? unit : "", more);
    if (n >= COLUMN) { /* a long name has a line of its own */
        fputc('\n', out);
        n = 0;
    }
    fprintf(out, "%*s ", COLUMN - n, "");
    print_wrapped(out, help, COLUMN + 1, COLUMN + 1);
}

static void print_option(FILE *out, const char *name, const char *unit, const char *more, const char *help)
{
    char dashed[80];
    snprintf(dashed, sizeof dashed, "--%s", name);
    print_row(out, dashed, unit, more, help);
}

static void print_commands(const struct opt_program *p, FILE *out)
{
    if (!p->commands)
        return;
    fprintf(out, "\ncommands, each with a --help of its own:\n");
    for (const struct opt_program *const *c = p->commands; *c; c++) {
        char words[80];
        snprintf(words, sizeof words, "%s %s", (*c)->name, (*c)->usage);
        print_row(out, words, NULL, "", (*c)->summary);
    }
}

static void print_options(const struct opt_program *p, FILE *out)
{
    char text[TEXT_MAX];
    if (p->opts->kind != OPT_GROUP)
        fprintf(out, "\noptions:\n");
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP) {
            fprintf(out, "\n%s:\n", o->name);
            continue;
        }
        opt_explain(o, text, sizeof text);
        print_option(out, o->name, o->kind == OPT_SWITCH ? NULL : o->unit,
                     o->kind == OPT_LIST && !(o->flags & OPT_ONE_WORD) ? "..." : "", text);
    }
}

static void print_environment(FILE *out)
{
    for (int g = 0; g < OPT_ENV_GROUPS; g++) {
        fprintf(out, "\n%s:\n", opt_env_groups[g].title);
        for (int v = 0; v < ENV_COUNT; v++)
            if (env_table[v].kind == opt_env_groups[g].kind)
                print_row(out, env_table[v].name, NULL, "", env_table[v].meaning);
    }
}

static void print_examples(const char *examples, FILE *out)
{
    fprintf(out, "\nexamples:\n");
    while (*examples) {
        size_t n = strcspn(examples, "\n");
        fprintf(out, "  %.*s\n", (int)n, examples);
        examples += n + (examples[n] == '\n');
    }
}

void opt_print_help(const struct opt_program *p, FILE *out)
{
    char usage[TEXT_MAX];
    snprintf(usage, sizeof usage, "usage: %s %s%s[options]", p->name, p->usage ? p->usage : "",
             p->usage && *p->usage ? " " : "");
    print_wrapped(out, usage, 0, 7);
    print_wrapped(out, p->summary, 0, 0);
    if (p->examples)
        print_examples(p->examples, out);
    print_commands(p, out);
    print_options(p, out);

    fprintf(out, "\nalways there:\n");
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        print_option(out, b->name, b->unit, "", b->help);
    print_environment(out);
    fprintf(out,
            "\n4k 7B 2M are powers of 1000, 64Ki 2GiB of 1024; --name=value works too, and --no-name for a "
            "switch\n");
}

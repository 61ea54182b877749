/* opt_man.c - the man page of a program, from its table of options. */
#include "base/opt/opt_help.h"
#include "base/version.h"

#include <ctype.h>
#include <string.h>

#define TEXT_MAX 1024

/* Prints text for roff: hyphens that can be copied, no line that begins as a request. */
static void print_roff(FILE *out, const char *text)
{
    int begins = 1;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        begins = *text == '\n';
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\\\", out);
        else
            fputc(*text, out);
    }
}

static void print_entry(FILE *out, const char *dashes, const char *name, const char *unit, const char *help)
{
    fprintf(out, ".TP\n\\fB");
    print_roff(out, dashes);
    print_roff(out, name);
    fprintf(out, "\\fR");
    if (unit) {
        fprintf(out, " \\fI");
        print_roff(out, unit);
        fprintf(out, "\\fR");
    }
    fputc('\n', out);
    print_roff(out, help);
    fputc('\n', out);
}

static void print_options(const struct opt_program *p, FILE *out)
{
    char text[TEXT_MAX];
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP) {
            fprintf(out, ".SS ");
            print_roff(out, o->name);
            fputc('\n', out);
            continue;
        }
        opt_explain(o, text, sizeof text);
        print_entry(out, "--", o->name, o->kind == OPT_SWITCH ? NULL : o->unit, text);
    }
}

static void print_commands(const struct opt_program *p, FILE *out)
{
    if (!p->commands)
        return;
    fprintf(out, ".SH COMMANDS\n");
    for (const struct opt_program *const *c = p->commands; *c; c++) {
        fprintf(out, ".SS ");
        print_roff(out, (*c)->name);
        fputc(' ', out);
        print_roff(out, (*c)->usage);
        fputc('\n', out);
        print_roff(out, (*c)->summary);
        fputc('\n', out);
        for (const struct opt *o = (*c)->opts; !opt_is_end(o); o++) {
            char text[TEXT_MAX];
            if (o->kind == OPT_GROUP)
                continue;
            opt_explain(o, text, sizeof text);
            print_entry(out, "--", o->name, o->kind == OPT_SWITCH ? NULL : o->unit, text);
        }
    }
}

static void print_environment(FILE *out)
{
    for (int g = 0; g < OPT_ENV_GROUPS; g++) {
        fprintf(out, g == 0 ? ".SH ENVIRONMENT\n" : ".SS %s\n", opt_env_groups[g].title);
        for (int v = 0; v < ENV_COUNT; v++)
            if (env_table[v].kind == opt_env_groups[g].kind)
                print_entry(out, "", env_table[v].name, NULL, env_table[v].meaning);
    }
}

void opt_print_man(const struct opt_program *p, FILE *out)
{
    fprintf(out, "'\\\" -*- coding: UTF-8 -*-\n.TH ");
    for (const char *c = p->name; *c; c++)
        fputc(*c == ' ' ? '-' : toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"Shardline %s\" \"Shardline\"\n.SH NAME\n", SHARDLINE_VERSION);
    print_roff(out, p->name);
    fprintf(out, " \\- ");
    print_roff(out, p->summary);
    fprintf(out, "\n.SH SYNOPSIS\n\\fB");
    print_roff(out, p->name);
    fprintf(out, "\\fR ");
    print_roff(out, p->usage ? p->usage : "");
    fprintf(out, " [options]\n");

    if (p->examples) {
        fprintf(out, ".SH EXAMPLES\n.nf\n");
        print_roff(out, p->examples);
        fprintf(out, ".fi\n");
    }
    fprintf(out, ".SH OPTIONS\n");
    print_options(p, out);
    fprintf(out, ".SS always there\n");
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        print_entry(out, "--", b->name, b->unit, b->help);
    print_commands(p, out);
    print_environment(out);
    fprintf(out, ".SH EXIT STATUS\n0: done; 1: failed while working; 2: wrong usage\n");
}

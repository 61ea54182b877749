/* opt_help.c - see opt_help.h. */
#include "base/opt/opt_help.h"
#include "base/env.h"

#include <ctype.h>
#include <string.h>

#define COLUMN 34 /* where the explanations begin; longer names push theirs to the right */

const struct opt_builtin opt_builtins[] = {
    { "help", NULL, "this text" },
    { "version", NULL, "version, CPU class, devices and transports" },
    { "completion", "bash", "a completion script for the shell: source <(PROGRAM --completion bash)" },
    { "man", NULL, "this text as a man page: PROGRAM --man | man -l -" },
    { NULL, NULL, NULL },
};

/* The default to print; NULL for a switch that is off and an empty text. */
static const char *shown_default(const struct opt *o)
{
    if (!o->value || !*o->value || (o->kind == OPT_SWITCH && !strcmp(o->value, "0")))
        return NULL;
    return o->kind == OPT_SWITCH ? "on" : o->value;
}

static void print_row(FILE *out, const char *name, const char *unit, const char *more, const char *help)
{
    int n = fprintf(out, "  --%s%s%s%s", name, unit ? " " : "", unit ? unit : "", more);
    fprintf(out, "%*s %s", n < COLUMN ? COLUMN - n : 1, "", help ? help : "");
}

static const struct {
    enum env_kind kind;
    const char *title;
} env_group[] = {
    { ENV_USER, "environment" },
    { ENV_OTHER, "environment of other software" },
};
enum { ENV_GROUPS = sizeof env_group / sizeof *env_group };

static void print_environment(FILE *out)
{
    for (int g = 0; g < ENV_GROUPS; g++) {
        fprintf(out, "\n%s:\n", env_group[g].title);
        for (int v = 0; v < ENV_COUNT; v++)
            if (env_table[v].kind == env_group[g].kind)
                fprintf(out, "  %-*s %s\n", COLUMN - 2, env_table[v].name, env_table[v].meaning);
    }
}

void opt_print_help(const struct opt_program *p, FILE *out)
{
    fprintf(out, "usage: %s %s%s[options]\n%s\n", p->name, p->usage ? p->usage : "",
            p->usage && *p->usage ? " " : "", p->summary);
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP) {
            fprintf(out, "\n%s:\n", o->name);
            continue;
        }
        print_row(out, o->name, o->kind == OPT_SWITCH ? NULL : o->unit, o->kind == OPT_LIST ? "..." : "",
                  o->help);
        const char *def = shown_default(o);
        fprintf(out, def ? " (%s)\n" : "\n", def);
    }
    fprintf(out, "\nalways there:\n");
    for (const struct opt_builtin *b = opt_builtins; b->name; b++) {
        print_row(out, b->name, b->unit, "", b->help);
        fputc('\n', out);
    }
    print_environment(out);
    fprintf(out, "\nin parentheses: the default; 4k 7B 2M are powers of 1000, 64Ki 2GiB of 1024; "
                 "--name=value works too,"
                 " and --no-name for a switch\n");
}

/* Prints text for roff: hyphens that can be copied, no line that begins as a request. */
static void print_roff(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (; *text; text++) {
        if (*text == '-')
            fputs("\\-", out);
        else if (*text == '\\')
            fputs("\\\\", out);
        else
            fputc(*text, out);
    }
}

static void print_man_row(FILE *out, const char *name, const char *unit, const char *help, const char *def)
{
    fprintf(out, ".TP\n\\fB\\-\\-");
    print_roff(out, name);
    fprintf(out, "\\fR");
    if (unit) {
        fprintf(out, " \\fI");
        print_roff(out, unit);
        fprintf(out, "\\fR");
    }
    fputc('\n', out);
    print_roff(out, help ? help : "");
    if (def) {
        fprintf(out, " (default ");
        print_roff(out, def);
        fputc(')', out);
    }
    fputc('\n', out);
}

static void print_man_environment(FILE *out)
{
    for (int g = 0; g < ENV_GROUPS; g++) {
        fprintf(out, g == 0 ? ".SH ENVIRONMENT\n" : ".SS %s\n", env_group[g].title);
        for (int v = 0; v < ENV_COUNT; v++) {
            if (env_table[v].kind != env_group[g].kind)
                continue;
            fprintf(out, ".TP\n\\fB%s\\fR\n", env_table[v].name);
            print_roff(out, env_table[v].meaning);
            fputc('\n', out);
        }
    }
}

void opt_print_man(const struct opt_program *p, FILE *out)
{
    fprintf(out, ".TH ");
    for (const char *c = p->name; *c; c++)
        fputc(toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"Shardline\"\n.SH NAME\n%s \\- ", p->name);
    print_roff(out, p->summary);
    fprintf(out, "\n.SH SYNOPSIS\n\\fB%s\\fR ", p->name);
    print_roff(out, p->usage ? p->usage : "");
    fprintf(out, " [options]\n.SH OPTIONS\n");
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP) {
            fprintf(out, ".SS ");
            print_roff(out, o->name);
            fputc('\n', out);
        } else {
            print_man_row(out, o->name, o->kind == OPT_SWITCH ? NULL : o->unit, o->help, shown_default(o));
        }
    }
    fprintf(out, ".SS always there\n");
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        print_man_row(out, b->name, b->unit, b->help, NULL);
    print_man_environment(out);
    fprintf(out, ".SH EXIT STATUS\n0: done; 1: failed while working; 2: wrong usage\n");
}

static void print_words(FILE *out, const char *words)
{
    for (; *words; words++)
        fputc(*words == '|' ? ' ' : *words, out);
}

void opt_print_completion(const struct opt_program *p, FILE *out)
{
    fprintf(out,
            "_%s()\n{\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n    case "
            "$prev in\n",
            p->name);
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind != OPT_CHOICE)
            continue;
        fprintf(out, "    --%s) COMPREPLY=($(compgen -W \"", o->name);
        print_words(out, o->unit);
        fprintf(out, "\" -- \"$cur\")); return ;;\n");
    }
    fprintf(out, "    --completion) COMPREPLY=($(compgen -W \"bash\" -- \"$cur\")); return ;;\n    esac\n"
                 "    if [[ $cur == -* ]]; then\n        COMPREPLY=($(compgen -W \"");
    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP)
            fprintf(out, "--%s ", o->name);
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        fprintf(out, "--%s%s", b->name, b[1].name ? " " : "");
    fprintf(out,
            "\" -- \"$cur\"))\n    else\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n}\n"
            "complete -o filenames -F _%s %s\n",
            p->name, p->name);
}

/* opt_shell.c - completion scripts for bash, zsh and fish, from the tables of options. */
#include "base/opt/opt_help.h"

#include <ctype.h>
#include <string.h>

#define TEXT_MAX 1024

/* ---- what a value may be ---- */

static int is_literal(const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isupper((unsigned char)word[i]))
            return 0;
    return n > 0;
}

/* Appends the words of "a|B|c" that are meant literally (no capitals), each with a space behind it. */
static void add_words(char *text, size_t bytes, const char *words)
{
    while (words && *words) {
        size_t n = strcspn(words, "|"), have = strlen(text);
        if (is_literal(words, n) && have + n + 2 < bytes) {
            memcpy(text + have, words, n);
            memcpy(text + have + n, " ", 2);
        }
        words += n + (words[n] == '|');
    }
}

/* Fills text with the words that the value of this option may be: "fp32 bf16 ". "" : no such word. */
static void words_of(const struct opt *o, char *text, size_t bytes)
{
    *text = 0;
    if (o->kind == OPT_CHOICE || (o->unit && strchr(o->unit, '|')))
        add_words(text, bytes, o->unit);
    add_words(text, bytes, o->words);
}

static int takes_file(const struct opt *o)
{
    static const char *const kinds[] = { "FILE", "DIR", "CKPT" };
    for (size_t i = 0; o->unit && i < sizeof kinds / sizeof *kinds; i++)
        if (strstr(o->unit, kinds[i]))
            return 1;
    return 0;
}

/* The words that may be the first argument. */
static void first_words(const struct opt_program *p, char *text, size_t bytes)
{
    *text = 0;
    add_words(text, bytes, p->first_words);
    for (const struct opt_program *const *c = p->commands; c && *c; c++)
        add_words(text, bytes, opt_command_word(*c));
}

/* ---- bash ---- */

static void print_bash_options(const struct opt_program *p, const char *indent, FILE *out)
{
    char words[TEXT_MAX];
    fprintf(out, "%scase $prev in\n", indent);
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP || o->kind == OPT_SWITCH)
            continue;
        words_of(o, words, sizeof words);
        fprintf(out, "%s--%s) COMPREPLY=(", indent, o->name);
        if (*words)
            fprintf(out, "$(compgen -W \"%s\" -- \"$cur\")", words);
        if (takes_file(o))
            fprintf(out, "%s$(compgen -f -- \"$cur\")", *words ? " " : "");
        fprintf(out, "); %s ;;\n",
                o->kind == OPT_LIST && !(o->flags & OPT_ONE_WORD) ? "[[ $cur == -* ]] || return" : "return");
    }
    fprintf(out,
            "%s--completion) COMPREPLY=($(compgen -W \"bash zsh fish\" -- \"$cur\")); return ;;\n%sesac\n",
            indent, indent);

    fprintf(out, "%soptions=\"", indent);
    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP)
            fprintf(out, "--%s ", o->name);
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        fprintf(out, "--%s%s", b->name, b[1].name ? " " : "");
    fprintf(out, "\"\n");
}

static void print_bash(const struct opt_program *p, FILE *out)
{
    char words[TEXT_MAX];
    first_words(p, words, sizeof words);
    fprintf(out,
            "_%s()\n{\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options\n"
            "    COMPREPLY=()\n"
            "    # --name=value comes as three words\n"
            "    [[ $prev != = ]] || prev=${COMP_WORDS[COMP_CWORD-2]}\n    [[ $cur != = ]] || cur=\n",
            p->name);
    if (p->commands)
        fprintf(out, "    case ${COMP_WORDS[1]} in\n");
    for (const struct opt_program *const *c = p->commands; c && *c; c++) {
        fprintf(out, "    %s)\n", opt_command_word(*c));
        print_bash_options(*c, "        ", out);
        fprintf(out, "        ;;\n");
    }
    if (p->commands)
        fprintf(out, "    *)\n");
    print_bash_options(p, p->commands ? "        " : "    ", out);
    if (p->commands)
        fprintf(out, "        ;;\n    esac\n");

    fprintf(out,
            "    if [[ $cur == -* ]]; then\n        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n");
    if (*words)
        fprintf(out,
                "    elif [ \"$COMP_CWORD\" = 1 ]; then\n        COMPREPLY=($(compgen -W \"%s\" -- \"$cur\") "
                "$(compgen -f -- \"$cur\"))\n",
                words);
    fprintf(out,
            "    else\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n}\n"
            "complete -o filenames -F _%s %s\n",
            p->name, p->name);
}

/* ---- zsh ---- */

/* Text inside of '…' and [...] of a specification of _arguments. */
static void print_zsh_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *text))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
}

static void print_zsh_options(const struct opt_program *p, const char *indent, const char *rest, FILE *out)
{
    char words[TEXT_MAX], text[TEXT_MAX];
    fprintf(out, "%s_arguments \\\n", indent);
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP)
            continue;
        opt_explain(o, text, sizeof text);
        fprintf(out, "%s    '%s--%s%s[", indent, o->kind == OPT_LIST ? "*" : "", o->name,
                o->kind == OPT_SWITCH ? "" : "=");
        print_zsh_text(out, text);
        fprintf(out, "]");
        if (o->kind != OPT_SWITCH) {
            words_of(o, words, sizeof words);
            fprintf(out, ":");
            print_zsh_text(out, o->unit ? o->unit : "value");
            fprintf(out, takes_file(o) ? *words ? ":{compadd -- %s; _files}" : ":%s_files" : ":(%s)", words);
        }
        fprintf(out, "' \\\n");
    }
    for (const struct opt_builtin *b = opt_builtins; b->name; b++) {
        fprintf(out, "%s    '--%s[", indent, b->name);
        print_zsh_text(out, b->help);
        fprintf(out, b->unit ? "]:shell:(bash zsh fish)' \\\n" : "]' \\\n");
    }
    fprintf(out, "%s    %s\n", indent, rest);
}

static void print_zsh(const struct opt_program *p, FILE *out)
{
    char words[TEXT_MAX], rest[TEXT_MAX + 80] = "'*:file:_files'";
    first_words(p, words, sizeof words);
    if (*words)
        snprintf(rest, sizeof rest, "'1:command:{compadd -- %s; _files}' '*:file:_files'", words);
    fprintf(out, "#compdef %s\n_%s()\n{\n", p->name, p->name);
    if (p->commands)
        fprintf(out, "    case $words[2] in\n");
    for (const struct opt_program *const *c = p->commands; c && *c; c++) {
        fprintf(out, "    %s)\n", opt_command_word(*c));
        print_zsh_options(*c, "        ", "'1:command:' '*:file:_files'", out);
        fprintf(out, "        ;;\n");
    }
    if (p->commands)
        fprintf(out, "    *)\n");
    print_zsh_options(p, p->commands ? "        " : "    ", rest, out);
    if (p->commands)
        fprintf(out, "        ;;\n    esac\n");
    /* found in fpath: the file is the body of the function; sourced: the function is named to compsys */
    fprintf(out, "}\nif [[ $funcstack[1] == _%s ]]; then _%s \"$@\"; else compdef _%s %s; fi\n", p->name,
            p->name, p->name, p->name);
}

/* ---- fish ---- */

static void print_fish_text(FILE *out, const char *text)
{
    for (; *text; text++)
        fprintf(out, *text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
}

/* condition: of these options, in quotes; NULL: always. */
static void print_fish_options(const struct opt_program *p, const char *name, const char *condition,
                               FILE *out)
{
    char words[TEXT_MAX], text[TEXT_MAX];
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP)
            continue;
        words_of(o, words, sizeof words);
        opt_explain(o, text, sizeof text);
        fprintf(out, "complete -c %s", name);
        if (condition)
            fprintf(out, " -n '%s'", condition);
        fprintf(out, " -l %s", o->name);
        if (o->kind != OPT_SWITCH)
            fprintf(out, takes_file(o) ? " -rF" : " -x");
        if (*words)
            fprintf(out, " -a '%s'", words);
        fprintf(out, " -d '");
        print_fish_text(out, text);
        fprintf(out, "'\n");
    }
}

static void print_fish(const struct opt_program *p, FILE *out)
{
    char words[TEXT_MAX], condition[TEXT_MAX + 80];
    first_words(p, words, sizeof words);
    snprintf(condition, sizeof condition, "not __fish_seen_subcommand_from %s", words);
    print_fish_options(p, p->name, p->commands ? condition : NULL, out);
    if (*words)
        fprintf(out, "complete -c %s -n '%s' -a '%s'\n", p->name, condition, words);
    for (const struct opt_program *const *c = p->commands; c && *c; c++) {
        snprintf(condition, sizeof condition, "__fish_seen_subcommand_from %s", opt_command_word(*c));
        print_fish_options(*c, p->name, condition, out);
    }
    for (const struct opt_builtin *b = opt_builtins; b->name; b++) {
        fprintf(out, "complete -c %s -l %s%s -d '", p->name, b->name, b->unit ? " -xa 'bash zsh fish'" : "");
        print_fish_text(out, b->help);
        fprintf(out, "'\n");
    }
}

/* ---- the door ---- */

int opt_print_completion(const struct opt_program *p, const char *shell, FILE *out)
{
    static const struct {
        const char *name;
        void (*print)(const struct opt_program *p, FILE *out);
    } shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };
    for (size_t i = 0; shell && i < sizeof shells / sizeof *shells; i++)
        if (!strcmp(shell, shells[i].name)) {
            shells[i].print(p, out);
            return 0;
        }
    return -1;
}

/* opt_help.h - what opt_parse prints from the table of options: help, a man page, completion scripts.
 * Private to opt. */
#ifndef SHARDLINE_BASE_OPT_OPT_HELP_H
#define SHARDLINE_BASE_OPT_OPT_HELP_H

#include <stddef.h>
#include <stdio.h>
#include "base/env.h"
#include "base/opt.h"

/* An option of every program. */
struct opt_builtin {
    const char *name, *unit, *help;
};
extern const struct opt_builtin opt_builtins[]; /* ends with name NULL: --help, --version, … */

/* The environment variables of the help, by kind. */
struct opt_env_group {
    enum env_kind kind;
    const char *title;
};
#define OPT_ENV_GROUPS 2
extern const struct opt_env_group opt_env_groups[OPT_ENV_GROUPS];

/* Print what --help and --man answer. */
void opt_print_help(const struct opt_program *p, FILE *out);
void opt_print_man(const struct opt_program *p, FILE *out);

/* Prints the completion script for bash, zsh or fish. Returns -1 for another shell (NULL too). */
int opt_print_completion(const struct opt_program *p, const char *shell, FILE *out);

/* Writes the explanation of an option, with its default named once, into text, cut off at n bytes. */
void opt_explain(const struct opt *o, char *text, size_t n);

/* "diff" of the program "reshard diff". */
const char *opt_command_word(const struct opt_program *p);

/* Sets ERR_USAGE: no option has this name; the nearest one is suggested (opt.c). Returns -ERR_USAGE. */
int opt_refuse_unknown(const struct opt_program *p, const char *name, struct err *e);

/* 1 for the row that ends the table. */
static inline int opt_is_end(const struct opt *o) { return o->kind == OPT_GROUP && !o->name; }

#endif

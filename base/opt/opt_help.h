/* opt_help.h - what opt_parse answers by itself, from the same table: help, a man page, words for the shell.
 * Private to opt. */
#ifndef SHARDLINE_BASE_OPT_OPT_HELP_H
#define SHARDLINE_BASE_OPT_OPT_HELP_H

#include <stdio.h>
#include "base/opt.h"

struct opt_builtin {
    const char *name, *unit, *help;
};
extern const struct opt_builtin opt_builtins[]; /* ends with name NULL: --help, --version, … */

/* Print the text of --help, --man and --completion. */
void opt_print_help(const struct opt_program *p, FILE *out);
void opt_print_man(const struct opt_program *p, FILE *out);
void opt_print_completion(const struct opt_program *p, FILE *out); /* bash */

/* The end of the table; rows are o .. while !opt_is_end(o). */
static inline int opt_is_end(const struct opt *o) { return o->kind == OPT_GROUP && !o->name; }

#endif

/* opt_help.h - what opt_parse prints from the table of options: help, a man page, a completion script.
 * Private to opt. */
#ifndef SHARDLINE_BASE_OPT_OPT_HELP_H
#define SHARDLINE_BASE_OPT_OPT_HELP_H

#include <stdio.h>
#include "base/opt.h"

/* An option of every program. */
struct opt_builtin {
    const char *name, *unit, *help;
};
extern const struct opt_builtin opt_builtins[]; /* ends with name NULL: --help, --version, … */

/* Print what --help, --man and --completion bash answer. */
void opt_print_help(const struct opt_program *p, FILE *out);
void opt_print_man(const struct opt_program *p, FILE *out);
void opt_print_completion(const struct opt_program *p, FILE *out);

/* 1 for the row that ends the table. */
static inline int opt_is_end(const struct opt *o) { return o->kind == OPT_GROUP && !o->name; }

#endif

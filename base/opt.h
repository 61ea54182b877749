/* opt.h - options of a program as one table: parsed, printed as help, dumped as JSON, offered to the shell.
 *
 * A program fills a struct of its own; each row says which member. --name value and --name=value; an unknown
 * name suggests the nearest known one; numbers: 4k 7B 2M are powers of 1000, 2GiB 64Ki of 1024; a name may
 * be negated where it is a switch (--no-name).
 * --help, --version, --completion bash and --man are answered by opt_parse itself. */
#ifndef SHARDLINE_BASE_OPT_H
#define SHARDLINE_BASE_OPT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

enum opt_kind {
    OPT_GROUP,  /* a heading in the help: name is its text */
    OPT_SWITCH, /* int: 0 or 1 */
    OPT_INT,    /* int64_t, with suffixes; min..max checked */
    OPT_SIZE,   /* int64_t bytes, with suffixes */
    OPT_FLOAT,  /* double */
    OPT_TEXT,   /* const char *: points into argv */
    OPT_CHOICE, /* int: index of the word in `words` ("a|b|c") */
    OPT_LIST    /* struct opt_list: one or more words, up to the next option; may be given again */
};
/* item: malloc'd by opt_parse, freed by opt_free */
struct opt_list {
    int n;
    const char **item;
};

struct opt {
    enum opt_kind kind;
    const char *name; /* "seq-len" */
    size_t offset;    /* of the member in the program's struct */
    /* default as text ("0", "cosine", "1GiB"); NULL: none (text NULL, list empty) */
    const char *value;
    const char *unit; /* "N", "FILE", "fp32|bf16" (for OPT_CHOICE: the words) */
    const char *help; /* one line */
    double min, max;  /* OPT_INT, OPT_SIZE, OPT_FLOAT; both 0: no limits */
    unsigned flags;
};
#define OPT_NOT_STORED 1u   /* not part of opt_json: paths, logs, threads … */
#define OPT_NEUTRAL_ONLY 2u /* a feature not built yet: any value but the default is refused by name */

struct opt_program {
    const char *name, *summary, *usage; /* usage: "SRC DST" … shown behind the name */
    const struct opt *opts;             /* ends with kind OPT_GROUP, name NULL */
    int min_args, max_args;             /* positional arguments; max_args -1: any number */
    void (*print_version)(FILE *out);   /* answers --version */
};
/* positional arguments, in order; "--" ends options */
struct opt_args {
    int n;
    char **item;
};

/* Fills *target with defaults, then with what argv says. Returns 0, or 1 when --help/--version/… was
 * answered (exit 0), or
 * -ERR_USAGE. given: which options argv named, one byte a row (may be NULL). */
int opt_parse(const struct opt_program *p, int argc, char **argv, void *target, struct opt_args *args,
              unsigned char *given, struct err *e);
/* did argv name this option? */
int opt_given(const struct opt_program *p, const unsigned char *given, const char *name);
void opt_free(const struct opt_program *p, void *target, struct opt_args *args);
/* {"seq-len":64,…} of the stored options; malloc'd. */
char *opt_json(const struct opt_program *p, const void *target);
int opt_parse_size(const char *text, int64_t *out); /* 0, or -1: not a number with a known suffix */

#endif

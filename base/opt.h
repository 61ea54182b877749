/* opt.h - the options of a program as one table: parsed, printed as help, stored as JSON, offered to the
 * shell.
 *
 * A program fills a struct of its own; each row names a member. --name value and --name=value are the same,
 * and --no-name turns a switch off. An unknown name is an error that suggests the nearest known one. Numbers
 * may have suffixes: 4k 7B 2M are powers of 1000, 2GiB 64Ki of 1024. opt_parse itself answers --help,
 * --version, --completion bash|zsh|fish and --man. Only one thread runs when options are parsed. */
#ifndef SHARDLINE_BASE_OPT_H
#define SHARDLINE_BASE_OPT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "base/err.h"

/* The kind of a row, and the type of its member. */
enum opt_kind {
    OPT_GROUP,  /* a heading of the help: name is its text */
    OPT_SWITCH, /* int: 0 or 1 */
    OPT_INT,    /* int64_t, with suffixes; min..max is checked */
    OPT_SIZE,   /* int64_t bytes, with suffixes */
    OPT_FLOAT,  /* double */
    OPT_TEXT,   /* const char *: borrowed from argv */
    OPT_CHOICE, /* int: index of the word in `unit` ("a|b|c") */
    OPT_LIST    /* struct opt_list: one or more words, up to the next option; may be given again */
};

struct opt_list {
    int n;
    const char **item; /* malloc'd by opt_parse, freed by opt_free; the words are borrowed from argv */
};

struct opt {
    enum opt_kind kind;
    const char *name;  /* "seq-len" */
    size_t offset;     /* of the member in the program's struct */
    const char *value; /* the default as text ("0", "cosine", "1GiB"); NULL: none (text NULL, list empty) */
    const char *unit;  /* "N", "FILE"; for OPT_CHOICE the words: "fp32|bf16" */
    const char *help;  /* one line */
    double min, max;   /* OPT_INT, OPT_SIZE, OPT_FLOAT; both 0: no limits */
    unsigned flags;
    const char *words; /* "tiny|10m": values that the shell offers besides the lower-case words of unit */
};
#define OPT_NOT_STORED 1u   /* not part of opt_json: paths, logs, threads … */
#define OPT_ONE_WORD 4u     /* OPT_LIST: one word each time that it is given */
#define OPT_URL_OR_NONE 8u  /* OPT_TEXT: the word behind it is its value where it is a URL; else it is "" */
#define OPT_NEUTRAL_ONLY 2u /* a feature that is not built yet: any value but the default is an error */

/* What users of other programs may ask for and this one does not do, for a reason. value NULL: an option that
 * there is not; else a value of an OPT_CHOICE. */
struct opt_refusal {
    const char *name, *value, *why;
};

struct opt_program {
    const char *name, *summary, *usage; /* usage: the positional arguments, "SRC DST" */
    const struct opt *opts;             /* ends with kind OPT_GROUP, name NULL */
    int min_args, max_args;             /* positional arguments; max_args -1: any number */
    void (*print_version)(FILE *out);   /* answers --version */
    const struct opt_refusal *refused;  /* ends with name NULL; NULL: none */
    const char *examples;               /* of the help: lines of the shell, each ends with a line feed */
    const char *first_words;            /* "encode|decode": what the first argument may be; NULL: a file */
    /* Programs of their own behind a first word, the last word of their name ("reshard diff"); ends with
     * NULL. The caller chooses one before it calls opt_parse; help, man page and completion list them. */
    const struct opt_program *const *commands;
};

/* Positional arguments, in order. "--" ends the options. */
struct opt_args {
    int n;
    char **item; /* malloc'd by opt_parse, freed by opt_free; the words are borrowed from argv */
};

/* Fills *target with the defaults, then with what argv sets. given (may be NULL): one byte a row, 1 where
 * argv names the option. Returns 0; 1 when --help, --version and the like were answered, and the program
 * should exit with 0; -ERR_USAGE (also where the stack is too small, machine_check_stack), -ERR_MEMORY. After
 * 0 the caller calls opt_free. */
int opt_parse(const struct opt_program *p, int argc, char **argv, void *target, struct opt_args *args,
              unsigned char *given, struct err *e);

/* The error for a first word that names no command and no file of this machine, but nearly names a command.
 * Returns 0 for every other word (NULL too), else -ERR_USAGE. */
int opt_check_command(const struct opt_program *p, const char *word, struct err *e);

/* 1 when argv named this option. */
int opt_given(const struct opt_program *p, const unsigned char *given, const char *name);

/* Frees the lists in *target, and the arguments (args may be NULL). */
void opt_free(const struct opt_program *p, void *target, struct opt_args *args);

/* {"seq-len":64,…} of the stored options; malloc'd. NULL: out of memory. */
char *opt_json(const struct opt_program *p, const void *target);

/* The same of all options, also those that are not stored. */
char *opt_json_all(const struct opt_program *p, const void *target);

/* A command line in memory: item[0] the program, item[1 .. n_own] made here, the rest borrowed from argv. */
struct opt_words {
    int n, n_own;
    char **item; /* [n], and a NULL behind them */
};
/* Puts the options of a TOML file between argv[0] and the rest of argv, as --name=value, without those that
 * given marks (as opt_parse filled it from argv): the command line wins. text: the file, ended by 0. The
 * caller calls opt_words_free, after the last use of what opt_parse made of the words. ERR_USAGE: names the
 * line. */
int opt_config_words(const struct opt_program *p, const char *text, int argc, char **argv,
                     const unsigned char *given, struct opt_words *out, struct err *e);
void opt_words_free(struct opt_words *w);

/* Parses "4k", "2GiB", "1.5M". Returns 0, or -1: no number with a known suffix, or not a whole number. */
int opt_parse_size(const char *text, int64_t *out);

#endif

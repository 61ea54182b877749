/* compile.h - private to room text: kinds of grammars to nodes of a program. Each function returns the node
 * from which the part's text is read and then goes on at `next`; 0 after a failure (p->failed). */
#ifndef SHARDLINE_TEXT_GRAMMAR_COMPILE_H
#define SHARDLINE_TEXT_GRAMMAR_COMPILE_H

#include "text/grammar.h"
#include "text/grammar/program.h"

/* Names of rules, for messages. */
struct rule_names {
    struct ints rule;
    struct intern name;
};
/* The name of a rule; NULL: it has none. names: a struct rule_names. */
const char *rule_name(void *names, int32_t rule);

/* Rules in GBNF; see ebnf.c. */
int32_t compile_ebnf(struct program *p, struct rule_names *names, const char *text, size_t n, int32_t next);
/* A JSON Schema; flags: GRAMMAR_COMPACT, GRAMMAR_IN_ORDER. */
int32_t compile_schema(struct program *p, const char *text, size_t n, unsigned flags, int32_t next);

#endif

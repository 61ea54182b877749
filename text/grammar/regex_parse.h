/* regex_parse.h - private to text/grammar: the tree of a regex. */
#ifndef SHARDLINE_TEXT_GRAMMAR_REGEX_PARSE_H
#define SHARDLINE_TEXT_GRAMMAR_REGEX_PARSE_H

#include "text/grammar/regex.h"

enum ast_kind { AST_EMPTY, AST_SET, AST_CAT, AST_ALT, AST_REPEAT, AST_BEGIN, AST_END };
struct ast {
    enum ast_kind kind;
    int32_t a, b;     /* children; AST_SET: a is an index of regex->set */
    int32_t min, max; /* AST_REPEAT; max -1: without end */
};
struct regex_tree {
    struct ast *v;
    size_t n, cap;
    int32_t top;
};
/* Parses n bytes of text; its sets go to r. The caller frees t->v, also after an error. ERR_CONFIG. */
int regex_parse(struct regex_tree *t, struct regex *r, const char *text, size_t n, struct err *e);
/* Adds an empty set to r; NULL: no memory. The pointer is valid until the next call. */
struct cpset *regex_add_set(struct regex *r);

#endif

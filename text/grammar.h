/* grammar.h - constrained output: which tokens may follow, so that a text stays within a grammar.
 *
 * A grammar is compiled once from a spec: a JSON Schema, any JSON object, a regex, a list of choices, rules
 * in GBNF, or a tree of such parts (for tool calls and reasoning). It is immutable for its users: any
 * number of matchers of any threads share it. What it computes on the way (states, masks) is kept in it,
 * under a lock. A token trie holds the bytes of every id of a tokenizer; one serves all grammars. A matcher
 * follows one sequence and belongs to one thread at a time.
 *
 * A mask is a function of the grammar, the vocabulary and the tokens taken: not of the batch, not of
 * time. */
#ifndef SHARDLINE_TEXT_GRAMMAR_H
#define SHARDLINE_TEXT_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/work_limit.h"
#include "text/text.h"

/* --- grammars --- */

enum grammar_kind {
    GRAMMAR_SCHEMA,      /* text: a JSON Schema (2020-12, draft 7 and older by their $schema) */
    GRAMMAR_JSON_OBJECT, /* any JSON object */
    GRAMMAR_REGEX,       /* text: a regex (ECMA 262, without look-around); the whole text matches */
    GRAMMAR_CHOICE,      /* one of the texts of its parts */
    GRAMMAR_EBNF,        /* text: rules in GBNF, the form of llama.cpp; the text is a `root` */
    GRAMMAR_LITERAL,     /* text, as it is */
    GRAMMAR_SEQUENCE,    /* its parts, one after the other */
    GRAMMAR_ANY_OF,      /* one of its parts */
    GRAMMAR_REPEAT,      /* its only part, min to max times; max -1: without end */
    GRAMMAR_FREE         /* any text in which none of the texts of its parts occurs */
};
enum {
    GRAMMAR_COMPACT = 1,  /* JSON without white space between its parts; else at most one space, or a newline
                            * and an indent, where JSON allows white space */
    GRAMMAR_IN_ORDER = 2, /* an object's keys come in the order of the schema; else in any order */
    GRAMMAR_ADDED_TOKENS = 4 /* GRAMMAR_LITERAL, GRAMMAR_FREE: added tokens may write it, too */
};
struct grammar_spec {
    enum grammar_kind kind;
    unsigned flags;
    const char *text; /* n bytes of UTF-8, or NULL */
    size_t n;
    const struct grammar_spec *part; /* [n_parts] */
    size_t n_parts;
    int64_t min, max; /* GRAMMAR_REPEAT */
};

struct grammar;
/* Compiles a spec, whose memory is the caller's. ERR_CONFIG: the text is not of its kind, or has a part that
 * is not honoured; the message names the keyword and its place. ERR_STOPPED: the limit is reached. */
int grammar_open(struct grammar **out, const struct grammar_spec *spec, const struct work_limit *limit,
                 struct err *e);
/* Another reference to g. Any thread. */
struct grammar *grammar_share(struct grammar *g);
/* Releases a reference; the last one frees g. NULL is allowed. Any thread. */
void grammar_close(struct grammar *g);

/* --- memory --- */

/* A bound for grammars, their states and masks together. */
struct grammar_memory;
/* most: bytes. ERR_MEMORY. */
int grammar_memory_open(struct grammar_memory **out, size_t most, struct err *e);
void grammar_memory_close(struct grammar_memory *y); /* NULL is allowed; grammars that count in it live on */
/* Bytes that they take now. */
size_t grammar_memory_used(struct grammar_memory *y);
/* Counts g, which no matcher has used yet, in y. When the space is short, states that no matcher uses are
 * forgotten, and then those of the largest grammars, which find them again. ERR_MEMORY: what is compiled
 * would take more than a quarter of it. */
int grammar_count_in(struct grammar *g, struct grammar_memory *y, struct err *e);

/* --- texts --- */

/* Is the text of n bytes one of the grammar's? Returns 1, or 0 with *at: the bytes that some text of the
 * grammar begins with (n: the text is only a beginning). < 0: ERR_MEMORY, ERR_CONFIG (see matcher_mask). */
int grammar_accepts(struct grammar *g, const char *text, size_t n, size_t *at, struct err *e);

/* --- the bytes of a vocabulary --- */

struct token_trie;
/* ends: ids that end a text, [n_ends]. vocab: ids of the model; those that the tokenizer does not have are
 * never allowed. t must outlive the trie. ERR_MEMORY. */
int token_trie_open(struct token_trie **out, const struct tokenizer *t, int64_t vocab, const int32_t *ends,
                    int n_ends, struct err *e);
/* The same of texts: token i has bytes [off[i], off[i + 1]) of text; none: never allowed. */
int token_trie_of(struct token_trie **out, const char *text, const size_t *off, int64_t vocab,
                  const int32_t *ends, int n_ends, struct err *e);
void token_trie_close(struct token_trie *t); /* NULL is allowed */
/* uint32_t of a mask: a bit an id, the lowest bit first. */
size_t token_trie_words(const struct token_trie *t);

/* --- one sequence --- */

struct matcher;
/* Shares g; the trie must outlive the matcher. ERR_MEMORY. */
int matcher_open(struct matcher **out, struct grammar *g, const struct token_trie *t, struct err *e);
void matcher_close(struct matcher *m); /* NULL is allowed */
/* Writes token_trie_words() words: the ids that may come next. End ids are allowed where the text may end.
 * ERR_CONFIG: no id fits (the vocabulary lacks a byte), or the grammar has too many states here. */
int matcher_mask(struct matcher *m, uint32_t *bits, struct err *e);
/* Takes an id. 1: taken; 0: the mask does not allow it, and nothing has changed. After an end id no other
 * id is taken. < 0: as matcher_mask. */
int matcher_take(struct matcher *m, int32_t id, struct err *e);
/* Takes back the last n ids. */
void matcher_rewind(struct matcher *m, int64_t n);
/* 1: the text may end here. 2: it can only end here, by an end id. 0: it may not. */
int matcher_at_end(const struct matcher *m);
/* Ids that are likely to be the next ones: they write the only bytes that can follow, cut as the tokenizer
 * cuts them, else into the longest tokens. For drafts, which the draw of tokens proves. The grammar takes all
 * of them. Returns their number, at most max; < 0: as matcher_mask. */
int matcher_forced(struct matcher *m, int32_t *ids, int max, struct err *e);

#endif

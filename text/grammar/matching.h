/* matching.h - private to text/grammar: what grammar.c, matcher.c, mask.c and token_trie.c share. */
#ifndef SHARDLINE_TEXT_GRAMMAR_MATCHING_H
#define SHARDLINE_TEXT_GRAMMAR_MATCHING_H

#include <pthread.h>
#include "text/grammar.h"
#include "text/grammar/automaton.h"

/* A machine with its users: the grammar, while it is the newest one, and matchers that began with it. */
struct shared_machine {
    struct machine *m;
    int users; /* guarded by the grammar's lock */
};
struct grammar {
    struct program program;
    _Atomic int refs;
    pthread_mutex_t lock; /* of machines and what they find out */
    struct shared_machine *now;
};
/* A machine for a vocabulary (NULL: any), one user more; under the lock. NULL: *e. */
struct shared_machine *shared_take(struct grammar *g, const struct token_trie *t, struct err *e);
/* One user less; under the lock (but by the grammar's last reference). */
void shared_release(struct shared_machine *s);

/* --- the vocabulary --- */

/* Tokens by their bytes, depth first: a node's children follow it, its `end` is behind the last of them. */
struct byte_node {
    uint8_t byte;
    uint8_t depth; /* bytes down to here */
    int32_t end;
    int32_t first, n; /* ids that end here: of token_trie->ids */
};
#define TOKEN_BYTES 250 /* longer tokens are matched one by one */
struct byte_trie {
    struct byte_node *node;
    size_t n, cap;
};

/* Kinds of tokens by their characters, which many states treat alike: letters within a word, say. The
 * tokens of a slice are a trie and, for states in which every character leads to the same state, ready
 * masks. */
enum slice_kind { SLICE_LOWER, SLICE_NAME, SLICE_ASCII, SLICE_TEXT, N_SLICES };
#define SLICE_LENGTHS 24 /* characters of a token of a slice, at most */
struct slice {
    struct byte_trie trie;
    size_t n_tokens;
    int32_t first_id;                   /* of token_trie->ids */
    int longest;                        /* characters of its longest token */
    uint32_t *up_to[SLICE_LENGTHS + 1]; /* masks of tokens of at most so many characters; [0]: of all */
};
struct token_trie {
    const struct tokenizer *tokenizer; /* or NULL */
    int64_t vocab;
    size_t n_words;
    char *text; /* of all tokens */
    size_t *off;
    uint8_t *kind; /* of an id: enum token_kind */
    int32_t *end;
    int n_ends;
    int32_t *ids; /* of nodes */
    struct slice slice[N_SLICES];
    struct byte_trie rest;
    uint32_t *all_slices; /* mask of all tokens of slices */
    int32_t *added;       /* added tokens with a text */
    int n_added;
    int32_t *longer; /* tokens of more than TOKEN_BYTES */
    int n_longer;
};
enum token_kind { TOKEN_NONE, TOKEN_PLAIN, TOKEN_OF_ADDED, TOKEN_END };

/* The longest token that text[n] begins with: its bytes; 0: there is none. */
size_t token_trie_longest(const struct token_trie *t, const char *text, size_t n, int32_t *id);

/* The mask of a configuration: t->n_words words, kept by the machine until the next call. NULL: m has
 * failed. */
const uint32_t *config_mask(struct machine *m, const struct token_trie *t, uint32_t config);
/* The configuration behind a token; 0: it is not allowed. */
uint32_t config_take(struct machine *m, const struct token_trie *t, uint32_t config, int32_t id);

#endif

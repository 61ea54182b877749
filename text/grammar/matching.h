/* matching.h - private to text/grammar: what grammar.c, matcher.c, mask.c and token_trie.c share. */
#ifndef SHARDLINE_TEXT_GRAMMAR_MATCHING_H
#define SHARDLINE_TEXT_GRAMMAR_MATCHING_H

#include <pthread.h>
#include <stdatomic.h>
#include "text/grammar.h"
#include "text/grammar/automaton.h"

/* A machine with its users: the grammar, while it is the newest one, and matchers that began with it. Guarded
 * by the grammar's lock. */
struct shared_machine {
    struct machine *m;
    struct grammar *g;
    int matchers;
    size_t bytes; /* of m, when memory_note() looked */
};
struct grammar {
    struct program program;
    _Atomic int refs;
    pthread_mutex_t lock; /* of machines and what they find out */
    struct shared_machine *now;
    struct grammar_memory *memory; /* or NULL; it counts the grammar from here on: */
    struct grammar *next;          /* guarded by memory->lock */
    size_t bytes;                  /* of the program */
};
/* A machine for a vocabulary (NULL: any), one matcher more; under the lock. NULL: *e. */
struct shared_machine *shared_take(struct grammar *g, const struct token_trie *t, struct err *e);
/* One matcher less; under the lock. NULL is allowed. */
void shared_leave(struct shared_machine *s);
/* The newest machine gets no new matchers; under the lock. */
void shared_drop(struct grammar *g);

/* --- memory.c --- */

struct grammar_memory {
    pthread_mutex_t lock; /* of what follows, but what is atomic */
    size_t most, programs;
    int refs;
    struct grammar *first;
    _Atomic size_t used;
    _Atomic int machines; /* that matchers use */
};
/* Notes what a machine takes now, or that it is freed; under the grammar's lock. */
void memory_note(struct shared_machine *s);
void memory_forget(const struct shared_machine *s);
/* More or fewer machines of g have matchers. */
void memory_machines(const struct grammar *g, int more);
/* Bytes that one machine of g should take. */
size_t memory_share(const struct grammar *g);
/* Is most of the space taken? */
int memory_is_short(const struct grammar *g);
/* g is freed: it counts no more. */
void memory_leave(struct grammar *g);

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

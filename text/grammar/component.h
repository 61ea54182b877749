/* component.h - private to room text: the parts of which the language of a terminal is an intersection. Each
 * is a deterministic automaton over code points whose states are numbers. */
#ifndef SHARDLINE_TEXT_GRAMMAR_COMPONENT_H
#define SHARDLINE_TEXT_GRAMMAR_COMPONENT_H

#include "text/grammar/regex.h"

#define STATE_DEAD UINT32_MAX
enum component_kind {
    PART_REGEX,
    PART_WORDS,    /* one of a list of texts */
    PART_LENGTH,   /* min to max code points */
    PART_BOUND,    /* a decimal number on one side of a bound */
    PART_MULTIPLE, /* a decimal number that is a multiple */
    PART_AVOID     /* a text in which none of some texts occurs */
};

/* A tree of prefixes. */
struct word_node {
    uint32_t cp;
    int32_t child, n_children; /* in order of cp */
    int32_t word;              /* that ends here; -1: none */
    int32_t first, end;        /* words below it, in their order */
    int32_t fail;              /* PART_AVOID: the longest end of this prefix that is a prefix, too */
};
struct words {
    struct word_node *node; /* node 0: the empty prefix */
    size_t n, cap;
    int32_t *order; /* [n_words] words in order of their code points, as the caller numbers them */
    int32_t n_words;
};
/* word[i]: n[i] bytes of UTF-8. ERR_MEMORY. Words that are equal: one of them is found. */
int words_open(struct words *w, const char *const *word, const size_t *n, int32_t n_words, struct err *e);
void words_close(struct words *w); /* what w holds, not w */
/* The child of a node, or STATE_DEAD. */
uint32_t words_step(const struct words *w, uint32_t node, uint32_t cp);

#define DIGITS_MAX 340
/* A decimal number without exponent. */
struct decimal {
    int negative, n_whole, n_part;
    char whole[DIGITS_MAX], part[DIGITS_MAX]; /* digits; whole has no zeros in front, but "0" */
};
/* The shortest decimal that reads as x. 0; -1: it is not finite. */
int decimal_of(struct decimal *d, double x);
struct bound {
    struct decimal at;
    int below, exclusive; /* below: at is the largest value */
};
struct multiple {
    uint32_t of; /* the number times ten to the power scale is a multiple of this */
    int scale;
};

struct component {
    enum component_kind kind;
    struct regex *regex;
    struct words words;
    int64_t min, max; /* PART_LENGTH; max -1: without end */
    struct bound bound;
    struct multiple multiple;
};
void component_close(struct component *c); /* what c holds, not c */
/* Automata but PART_REGEX: the first state, the next one, and whether the text may end. */
uint32_t component_begin(const struct component *c);
uint32_t component_step(const struct component *c, uint32_t state, uint32_t cp);
int component_accepts(const struct component *c, uint32_t state);
/* Adds code points to cuts: from each of them to the next one, all are alike for the component. */
void component_cuts(const struct component *c, struct ints *cuts);
/* Makes c, of PART_WORDS whose list is avoided, PART_AVOID. ERR_MEMORY, ERR_CONFIG: an empty text. */
int component_avoid(struct component *c, struct err *e);

#endif

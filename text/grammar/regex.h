/* regex.h - private to room text: regular expressions (ECMA 262, without look-around) as automata over code
 * points. A regex is a nondeterministic automaton; struct dfa determinises it as texts ask for it, so that
 * a step takes constant time once its state is known, and time in proportion to the regex before. No regex
 * makes a text take more than (bytes of the text) x (states of the regex). */
#ifndef SHARDLINE_TEXT_GRAMMAR_REGEX_H
#define SHARDLINE_TEXT_GRAMMAR_REGEX_H

#include "base/err.h"
#include "text/grammar/cpset.h"
#include "text/grammar/intern.h"

#define REGEX_STATES 20000 /* of one regex, its counts written out */
#define REGEX_DEPTH 200    /* groups in groups */
enum { STATE_SET, STATE_SPLIT, STATE_BEGIN, STATE_END, STATE_MATCH };
struct regex_state {
    uint8_t kind;
    int32_t set;       /* STATE_SET: index of regex->set */
    int32_t next, or ; /* STATE_SPLIT goes to both */
};
struct regex {
    struct regex_state *state;
    size_t n_states, cap_states;
    struct cpset *set;
    size_t n_sets, cap_sets;
    int32_t begin, match;
    struct cprange *range; /* [n_ranges] all code points, cut where a set begins or ends */
    size_t n_ranges;
    uint16_t *class; /* [n_ranges]: ranges of one class are in the same sets */
    int n_classes;
    uint16_t ascii[128]; /* class of a code point below 128 */
};
/* What the text of a regex must do with a text. */
enum regex_use { REGEX_WHOLE, REGEX_SEARCH };
/* Compiles n bytes. ERR_CONFIG: not a regex, or a part that is not honoured, which the message names. */
int regex_open(struct regex **out, const char *text, size_t n, enum regex_use use, struct err *e);
void regex_close(struct regex *r); /* NULL is allowed */

/* The states that texts have asked for. */
#define DFA_DEAD UINT32_MAX
#define DFA_BYTES ((size_t)128 << 20) /* of the states of one regex */
struct dfa {
    const struct regex *r;
    struct intern states; /* sets of states of r */
    uint32_t **row;       /* [states.n][r->n_classes]: state + 2, 1: dead, 0: not known yet */
    uint8_t *accepts;
    size_t cap;
    struct ints now, stack;
    uint8_t *mark;
    int64_t work; /* states of r that were looked at, for whoever counts them */
    int failed;   /* an enum err_code: memory, or DFA_BYTES */
};
/* ERR_MEMORY. */
int dfa_open(struct dfa *d, const struct regex *r, struct err *e);
void dfa_close(struct dfa *d); /* what d holds, not d */
/* State 0 is the first one. Returns a state or DFA_DEAD. d->failed: none can be found any more. */
uint32_t dfa_step(struct dfa *d, uint32_t state, uint32_t cp);
/* Does the text that led to the state match? */
int dfa_accepts(const struct dfa *d, uint32_t state);
/* Bytes of memory that d holds. */
size_t dfa_size(const struct dfa *d);

#endif

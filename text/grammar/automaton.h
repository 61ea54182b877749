/* automaton.h - private to text/grammar: running a program. A configuration is what may be read at a place
 * of a text: threads, each a terminal that has been read in part and a frame of the stack. Configurations
 * have numbers and are found again, so that a byte is one look-up once its state is known.
 *
 * The stack is shared: all calls of a rule at one place of the text have one frame, with an edge to each
 * caller (a graph-structured stack, Tomita 1985; as in Earley's parser). So an ambiguous grammar does not
 * multiply threads. */
#ifndef SHARDLINE_TEXT_GRAMMAR_AUTOMATON_H
#define SHARDLINE_TEXT_GRAMMAR_AUTOMATON_H

#include "text/grammar/program.h"

#define MACHINE_BYTES ((size_t)64 << 20) /* a machine beyond it is left for a new one */
#define MACHINE_THREADS 20000            /* of one configuration */
#define MACHINE_MOST ((size_t)256 << 20) /* a machine that needs more in one call fails */
#define MACHINE_WORK ((int64_t)40000000) /* of one call, in small steps: less than a second */

struct thread {
    int32_t node;  /* NODE_TERM or NODE_KEY */
    uint32_t at;   /* terminal state */
    int32_t frame; /* -1 is not one of them: the first frame is number 0 */
};
/* What a decoder has read of a code point. */
enum decoding {
    AT_OPEN,    /* before the quote */
    AT_CHAR,    /* between two code points */
    AT_UTF8,    /* in bytes: value is rest << 24 | smallest code point that it can become */
    AT_SAME,    /* the same, and all its code points lead to one state, which is `vector`; value: rest */
    AT_LIMITED, /* the same, where not all bytes make a code point; value: as of AT_UTF8 */
    AT_ESCAPE,  /* behind a backslash */
    AT_HEX,     /* value: digits << 24 | number */
    AT_LOW,     /* behind a high surrogate, which is value */
    AT_LOW_U,   /* and its backslash */
    AT_LOW_HEX, /* value: digits << 28 | high part << 16 | number */
    AT_CLOSED   /* behind the closing quote */
};
struct term_state {
    int32_t vector;
    uint32_t value;
    uint8_t decoding, accepts, extends;
    uint32_t *row; /* [256] terminal states; 0: none */
};
enum { LIVE_UNKNOWN, LIVE_NO, LIVE_YES };
struct vector_info {
    uint8_t accepts, live;
};
struct config_info {
    uint8_t accepts;
    uint16_t checked; /* what is known of slices, see mask.c */
    uint32_t *row;    /* see machine_row() */
    uint32_t *mask;
    struct places *places; /* of mask.c */
};
/* What is known of a terminal: ranges of code points that are alike for all its components. */
struct terminal_ranges {
    struct cprange *v;
    size_t n;
    uint32_t begin; /* the first state + 1; 0: not known yet */
};

struct open_frame; /* closure.c */
struct closure;
struct machine {
    const struct program *p;
    struct dfa **dfa; /* [n_components]; NULL: not asked for yet */
    struct terminal_ranges *ranges;
    size_t n_components, n_terminals; /* for which there are places */

    struct intern vectors; /* terminal, states of its components */
    struct vector_info *vector;
    size_t cap_vectors;
    struct intern term_states;
    struct term_state *term;
    size_t cap_term;
    struct intern sets; /* keys that an object has: struct key_set */
    struct intern frames;
    struct intern configs;
    struct config_info *config;
    size_t cap_configs;
    struct closure *closure;

    const void *trie; /* of the masks */
    size_t row_bytes, mask_bytes, masks_most;
    int64_t work; /* left */
    int failed;   /* an enum err_code: memory, or too large */
};
/* ERR_MEMORY. */
int machine_open(struct machine **out, const struct program *p, struct err *e);
void machine_close(struct machine *m); /* NULL is allowed */
/* The error of m->failed, as a return code. */
int machine_error(const struct machine *m, struct err *e);
/* Bytes of memory that m holds. */
size_t machine_size(const struct machine *m);

/* --- terminal states (terminal.c) --- */
/* The first state of a terminal; 0: its language is empty. */
uint32_t term_begin(struct machine *m, int32_t terminal);
/* The states behind each byte, [256], until the next call; NULL: m has failed. */
const uint32_t *term_row(struct machine *m, uint32_t state);
/* Some text makes the vector accept. */
int vector_live(struct machine *m, int32_t vector);
/* May a text end in this state of a component? */
int part_accepts(struct machine *m, int32_t component, uint32_t state);
/* States of a vector's components. */
const uint32_t *vector_states(const struct machine *m, int32_t vector);
/* Is a terminal's language empty? */
int terminal_is_empty(struct machine *m, int32_t terminal);
/* Is a text one of the terminal's, decoded? */
int terminal_has(struct machine *m, int32_t terminal, const char *text, size_t n);

/* --- keys of objects (object.c) --- */
/* The empty set of keys of an object. */
uint32_t key_set_begin(struct machine *m);
int object_may_close(const struct machine *m, int32_t object, uint32_t set);
int object_may_go_on(const struct machine *m, int32_t object, uint32_t set);
/* Can a key in this state become one that is allowed? */
int key_live(struct machine *m, int32_t object, uint32_t set, int32_t vector);
/* The same of a terminal state. */
int key_state_live(struct machine *m, int32_t object, uint32_t set, uint32_t state);
/* The rule of a key that ends in this state and the set with it; -1: it is not allowed. */
int32_t key_end(struct machine *m, int32_t object, uint32_t set, int32_t vector, uint32_t *with);
/* Of vectors of keys: it ends another key that is allowed. */
int key_is_other(struct machine *m, const struct terminal *t, const uint32_t *states);

/* --- configurations (closure.c, automaton.c) --- */
/* The first configuration of the program; 0: none. */
uint32_t machine_begin(struct machine *m);
/* The configurations behind each byte: [256], 0: none, NOT_KNOWN: machine_resolve() finds it. Bytes that are
 * alike follow, [256] of uint8_t. NULL: m has failed. */
#define NOT_KNOWN UINT32_MAX
const uint32_t *machine_row(struct machine *m, uint32_t config);
/* The configuration behind a byte, which becomes known. */
uint32_t machine_resolve(struct machine *m, uint32_t config, unsigned char byte);
static inline uint32_t machine_step(struct machine *m, uint32_t config, unsigned char byte)
{
    const uint32_t *row = m->config[config].row;
    if (!row && !(row = machine_row(m, config)))
        return 0;
    return row[byte] != NOT_KNOWN ? row[byte] : machine_resolve(m, config, byte);
}
/* The configuration without threads whose terminals added tokens may not write; 0: none is left. */
uint32_t machine_added(struct machine *m, uint32_t config);
const struct thread *machine_threads(const struct machine *m, uint32_t config, size_t *n);

/* A configuration in the making. */
void closure_begin(struct machine *m);
/* Adds a thread. */
void closure_thread(struct machine *m, struct thread t);
/* Goes on at a node. frame: a number of m->frames. */
void closure_node(struct machine *m, int32_t node, int32_t frame);
/* A key of an object has ended: goes on with its value. */
void closure_key(struct machine *m, int32_t object, int32_t rule, int32_t frame, uint32_t set);
/* The number of the configuration; 0: nothing can follow and the text cannot end. */
uint32_t closure_end(struct machine *m);
/* The set of keys of a frame. */
uint32_t frame_set(const struct machine *m, int32_t frame);
int closure_open(struct machine *m);
void closure_close(struct machine *m);
size_t closure_size(const struct machine *m);

#endif

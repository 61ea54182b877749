/* program.h - private to room text: what a grammar is compiled to.
 *
 * A program is a graph of nodes. Rules are called and return, so that it is a pushdown automaton; between
 * two calls it reads terminals, which are regular: intersections of components (component.h) over code
 * points that a decoder makes of bytes. An object of JSON is a node of its own kind: the set of keys it has
 * belongs to its frame on the stack, not to the graph. */
#ifndef SHARDLINE_TEXT_GRAMMAR_PROGRAM_H
#define SHARDLINE_TEXT_GRAMMAR_PROGRAM_H

#include "base/work_limit.h"
#include "text/grammar/component.h"
#include "text/grammar/intern.h"

#define TERMINAL_PARTS 14
#define PROGRAM_NODES 4000000 /* and rules, terminals, components */

enum decoder {
    DECODER_TEXT,  /* UTF-8 */
    DECODER_STRING /* a string of JSON with its quotes and escapes */
};
enum { TERMINAL_ADDED = 1 /* added tokens may write it */ };
struct terminal {
    uint8_t decoder, flags, n_parts;
    struct {
        int32_t component;
        uint8_t negated; /* the text is not in the component's language */
    } part[TERMINAL_PARTS];
    int32_t object; /* a terminal that is a key: its object; else -1 */
};

enum node_kind {
    NODE_RETURN, /* the rule ends */
    NODE_DEAD,   /* nothing follows */
    NODE_ACCEPT, /* the whole text ends */
    NODE_TERM,   /* terminal a, then next */
    NODE_CALL,   /* rule a, then next */
    NODE_ALT,    /* one of program->target[a, a + b) */
    NODE_REPEAT, /* rule a, min to max times (of repeat b), counted in the frame; then the rule ends */
    NODE_FIRST,  /* object a, behind its opening brace: a key, or next, which is its closing brace */
    NODE_KEY,    /* a key of object a */
    NODE_AFTER   /* object a, behind a value: b, which is a comma and a key, or next, its closing brace */
};
struct node {
    uint8_t kind, productive; /* productive: some text leads from here to the rule's end */
    int32_t a, b, next;
};
struct repeat {
    int64_t min, max; /* max -1: without end */
};
struct object_key {
    int32_t rule; /* ":" and a value */
    uint8_t required, forbidden;
};
#define OBJECT_PATTERNS 8
struct object {
    struct object_key *key; /* [n_keys] in the order of the schema */
    int32_t n_keys, n_required;
    int32_t *word_of;        /* [n_keys] component word -> key */
    int32_t words, terminal; /* the component of declared keys; the terminal of a key */
    int n_patterns;          /* parts 1 … n_patterns of the terminal say which class another key is of */
    int32_t *rule_of_class;  /* [1 << n_patterns] of a key that matches these patterns; -1: it is forbidden */
    int has_others;          /* some other key is allowed */
    int64_t min, max;        /* number of keys; max -1: without end */
    int in_order;
    int32_t key_node, after_node;
};

struct program {
    struct component *component;
    size_t n_components, cap_components;
    struct terminal *terminal;
    size_t n_terminals, cap_terminals;
    struct node *node;
    size_t n_nodes, cap_nodes;
    struct ints target;
    int32_t *rule; /* entry nodes */
    size_t n_rules, cap_rules;
    struct repeat *repeat;
    size_t n_repeats, cap_repeats;
    struct object *object;
    size_t n_objects, cap_objects;
    struct intern words; /* texts of regexes of components, to find them again */
    struct ints word_component;
    int32_t begin; /* node */
    const struct work_limit *limit;
    unsigned work;
    struct err *e; /* of the building */
    int failed;    /* *e is set: what is built is thrown away */
};

/* Zeroes p; the calls below set *e once and do nothing from then on. */
void program_begin(struct program *p, const struct work_limit *limit, struct err *e);
void program_close(struct program *p); /* what p holds, not p */
/* Bytes of memory that p holds. */
size_t program_size(const struct program *p);
/* Sets the error, unless one is set. */
void program_fail(struct program *p, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Looks at the limit now and then. 0, or -1 once something has failed. */
int program_check(struct program *p);

/* Parts. Each returns its index; 0 after a failure. A component is moved into p, which closes it. */
int32_t program_component(struct program *p, struct component *c);
/* A regex; one with the same text and use is found again. place: for messages. */
int32_t program_regex(struct program *p, const char *text, size_t n, enum regex_use use, const char *place);
int32_t program_terminal(struct program *p, const struct terminal *t);
/* A terminal with one component. */
int32_t program_simple(struct program *p, enum decoder decoder, int32_t component);
/* A terminal of plain text that matches a regex. */
int32_t program_pattern(struct program *p, const char *regex);
/* A terminal that is one of these texts. flags: of the terminal. */
int32_t program_words(struct program *p, enum decoder d, const char *const *word, const size_t *n,
                      int32_t n_words);
int32_t program_node(struct program *p, enum node_kind kind, int32_t a, int32_t b, int32_t next);
/* A node for one of n nodes. */
int32_t program_alt(struct program *p, const int32_t *node, size_t n);
/* A rule; its entry is set when it is known. */
int32_t program_rule(struct program *p);
/* A node that repeats rule `body` min to max times, then goes on. */
int32_t program_repeat(struct program *p, int32_t body, int64_t min, int64_t max, int32_t next);
/* An object, all zero; its index. */
int32_t program_object(struct program *p);

/* Nodes without a target that ends are marked; a rule that calls itself before it reads a byte is refused.
 * rule_name (or NULL) names a rule in messages. 0, or < 0 with *p->e: also when no text exists at all. */
int program_finish(struct program *p, const char *(*rule_name)(void *arg, int32_t rule), void *arg);

#endif

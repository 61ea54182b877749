/* schema.h - private to text/schema: JSON Schemas to nodes of a program.
 *
 * What is compiled is a set of schemas that hold together (a conjunction): $ref and allOf add members, and
 * so do the properties and items that several members describe. anyOf, oneOf, if, dependencies and not
 * divide a set into alternatives, of which each is a list of plain members. An alternative is, type by
 * type, a terminal (a string, a number), an array or an object. Every set has one rule, so recursion ends.
 *
 * A keyword that cannot be honoured exactly is an error where the type it speaks of is possible. */
#ifndef SHARDLINE_TEXT_SCHEMA_SCHEMA_H
#define SHARDLINE_TEXT_SCHEMA_SCHEMA_H

#include <jansson.h>
#include "text/grammar.h"
#include "text/grammar/automaton.h"

#define SCHEMA_SETS 100000                /* of one schema */
#define SCHEMA_ALTERNATIVES 300           /* of one set */
#define SCHEMA_WORK ((int64_t)1000000000) /* steps of automata while it is compiled */
#define SCHEMA_DEPTH 400                  /* applicators in applicators, of one set */

/* Types, as bits. */
enum {
    T_NULL = 1,
    T_FALSE = 2,
    T_TRUE = 4,
    T_INTEGER = 8,
    T_FRACTION = 16, /* numbers that are not integers */
    T_STRING = 32,
    T_ARRAY = 64,
    T_OBJECT = 128,
    T_NUMBER = T_INTEGER | T_FRACTION,
    T_ALL = 255
};
/* Keywords of schemas that are made here, of the form that no schema of a client has. */
#define KEY_NOT_PATTERN "\001notPattern"
#define KEY_NOT_WORDS "\001notWords"
#define KEY_FRACTION "\001fraction"

/* A list of schemas. */
struct members {
    const json_t **v;
    size_t n, cap;
};

struct schemas {
    struct program *p;
    const json_t *root;
    json_t *made;       /* list of schemas that are made here, which lives as long as the compiler */
    struct intern name; /* of made ones: what they were made of */
    unsigned flags;
    int legacy;            /* draft 7 and older: members beside $ref are ignored */
    int nullable;          /* OpenAPI's word counts: the schema names no dialect */
    struct intern sets;    /* sorted pointers */
    struct members member; /* of all sets, in the order in which they were found */
    struct ints first_member;
    struct ints rule, member_rule; /* of sets; -1: none yet */
    struct ints satisfiable;       /* of sets: 0 not known, 1 no, 2 yes or not to be decided */
    struct ints todo;              /* sets whose rules have no entry yet */
    int32_t end;                   /* a NODE_RETURN */
    int32_t open_brace, close_brace, empty_brace, comma, colon, open_bracket, close_bracket, empty_bracket;
    struct machine *m;              /* to look at terminals */
    struct intern string_terminals; /* terminals by their parts, to find them again */
    struct ints string_terminal;
    int depth, deciding;
    int inner_bases; /* some schema below the root has an $id; -1: not looked for yet */
};

/* Sets the error: what is wrong with a keyword, and where it stands. */
void schema_fail(struct schemas *s, const json_t *node, const char *keyword, const char *what);
/* Is node in a schema, at most 200 levels down? */
int schema_within(const json_t *at, const json_t *node, int depth);
/* Adds a schema to a list. */
void members_add(struct schemas *s, struct members *m, const json_t *node);
/* The number of a set of schemas, in any order. */
int32_t schema_set(struct schemas *s, const struct members *m);
/* The members of a set. */
void schema_set_members(struct schemas *s, int32_t set, struct members *out);
/* The rule that reads a value of the set; the one that reads ":" before it. */
int32_t schema_rule(struct schemas *s, int32_t set);
int32_t schema_member_rule(struct schemas *s, int32_t set);
/* Does a value of the set exist? 0: none does. 1: one may. */
int schema_satisfiable(struct schemas *s, int32_t set);

/* --- schema_expand.c --- */
/* Calls fn with the members of every alternative of a set, until it returns 1. Returns 1 then. */
int schema_expand(struct schemas *s, int32_t set,
                  int (*fn)(struct schemas *s, const struct members *m, void *arg), void *arg);
/* The schema to which $ref leads; NULL after a failure. */
const json_t *schema_ref(struct schemas *s, const json_t *node, const char *ref);
/* Refuses what is not honoured of the members, given the types that are possible. */
void schema_check_keywords(struct schemas *s, const struct members *m, unsigned types);
/* Types that the members allow. */
unsigned schema_types(struct schemas *s, const struct members *m);

/* --- schema_not.c --- */
/* A schema that holds where node does not; NULL: there is none here. Kept by s. */
const json_t *schema_not(struct schemas *s, const json_t *node, int depth);
/* Keeps a schema that is made here (may be NULL), and finds it again by its origin and a tag. */
const json_t *schema_made(struct schemas *s, const json_t *of, const char *tag);
const json_t *schema_make(struct schemas *s, const json_t *of, const char *tag, json_t *made);

/* --- schema_value.c: terminals of an alternative; -1: none --- */
/* enums: values of enum and const among which the value is, or NULL. */
int32_t schema_string(struct schemas *s, const struct members *m, const json_t *enums);
int32_t schema_number(struct schemas *s, const struct members *m, unsigned types, const json_t *enums);
int32_t schema_words(struct schemas *s, unsigned types, const json_t *enums);
/* The parts of a terminal of strings that the members allow. */
void schema_string_parts(struct schemas *s, const struct members *m, struct terminal *t);
/* Values of enum and const that all members have (a new reference), or NULL: no member has them. */
json_t *schema_enums(struct schemas *s, const struct members *m);
/* Two values are equal; 1 and 1.0 are. */
int schema_equal(const json_t *a, const json_t *b);

/* --- schema_array.c, schema_object.c: the node from which one is read; -1: there is none --- */
int32_t schema_array(struct schemas *s, const struct members *m);
int32_t schema_object(struct schemas *s, const struct members *m);
/* 0: no array, no object of these members exists; 1: one may. */
int schema_array_satisfiable(struct schemas *s, const struct members *m);
int schema_object_satisfiable(struct schemas *s, const struct members *m);

/* --- schema_formats.c --- */
/* A format of texts, as regexes. */
struct format {
    const char *name, *regex, *but_not; /* but_not: texts in which this is found are not of the format */
    int max;                            /* characters; 0: any number */
};
/* The regexes of a format; NULL: not one of JSON Schema's. *refused: one of JSON Schema's that is not
 * honoured. */
const struct format *schema_format(const char *name, int *refused);

/* A number of items or characters: 1 and *value, or 0: absent. */
int schema_count(struct schemas *s, const json_t *node, const char *keyword, int64_t *value);

#endif

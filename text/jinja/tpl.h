/* tpl.h - private to text/jinja: what the parts of the template interpreter share.
 *
 *   source --lexer--> tokens --parser--> nodes --+
 *                                                +--> rendering --> text and spans
 *   JSON values --v_from_json--> marked values --+
 *
 * Values are those of Python as far as templates see them. They do not change once made, except namespaces
 * and generators, so all of them live in one heap that is freed at the end: nothing else needs freeing.
 * A string has a mark for every byte: MARK_USER if the byte is untrusted (from messages, tools, documents,
 * user variables), MARK_MODEL if it is from a block {% generation %}, both, or 0.
 *
 * Unless noted, functions return 0 or a negative code with the error in t->e. A failed allocation is
 * remembered in t->failed, which the function that returns the result checks. One struct tpl belongs to one
 * thread. */
#ifndef SHARDLINE_TEXT_JINJA_TPL_H
#define SHARDLINE_TEXT_JINJA_TPL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "text/template.h"

#define TPL_PARSE_DEPTH 100 /* nested brackets and blocks in the source */
#define TPL_DEPTH 800       /* nested evaluations while rendering, macro calls included */
#define TPL_DATA_DEPTH 100  /* nested lists and dicts in JSON input */
#define TPL_RANGE 100000    /* items of a range: the limit of Jinja's sandbox */

/* Returns the negative code of a failed call. Nothing needs freeing on the way: the heap owns all memory. */
#define RETURN_IF_ERROR(call) \
    do { \
        int call_rc = (call); \
        if (call_rc < 0) \
            return call_rc; \
    } while (0)

/* --- memory (tpl_heap.c) --- */
struct heap_block {
    struct heap_block *next;
    size_t n, used;
};
struct heap {
    struct heap_block *blocks;
    size_t total, limit;
};
void heap_free(struct heap *h); /* everything allocated from it */

/* --- values (tpl_value.c) --- */
enum val_type {
    V_ABSENT,
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_DICT,
    V_NAMESPACE,
    V_LOOP,
    V_FUNC,
    V_METHOD,
    V_MACRO
};
/* L_VIEW: keys, values or items of a dict, without index; L_GEN: a generator, read once */
enum list_kind { L_LIST, L_TUPLE, L_RANGE, L_VIEW, L_GEN };
struct val {
    enum val_type type;
    union {
        int64_t i;
        double f;
        const struct str *s;
        struct list *l;
        struct dict *d; /* V_NAMESPACE too */
        struct loop *loop;
        const struct fn *fn;
        const struct method *m;
        const struct macro *mac;
        const char *why; /* V_UNDEF: what is undefined */
    } u;
};
enum { MARK_USER = 1, MARK_MODEL = 2 };
struct str {
    const char *p, *mark; /* mark: one byte for each byte of p, or NULL: all 0 */
    size_t n;
    int markup; /* safe HTML */
};
struct list {
    struct val *v;
    size_t n, cap;
    size_t at; /* L_GEN: the next item; L_VIEW: 0 keys, 1 values, 2 items */
    enum list_kind kind;
    int64_t range[3];
};
struct pair {
    struct val k, v;
};
/* Beyond a few pairs, slot finds string keys: a hash table of indices into v, plus 1. Only v_dict_add
 * appends. */
struct dict {
    struct pair *v;
    size_t n, cap;
    uint32_t *slot;
    size_t n_slots;
};
struct loop {
    struct list *items;
    size_t at;
    struct val changed;
};
struct scope {
    struct scope *parent;
    struct dict vars; /* by name */
};
struct macro {
    const struct node *node;
    struct scope *scope;
};
struct kwarg {
    const struct str *name;
    struct val v;
};
struct args {
    struct val *v;
    size_t n;
    struct kwarg *kw;
    size_t n_kw;
};

/* One parse or one rendering. */
struct tpl {
    struct heap heap;
    struct err *e;
    const char *what; /* the source, for messages */
    int line, depth;
    int failed;                     /* negative code of a failed allocation or an exhausted limit; else 0 */
    int64_t steps;                  /* left */
    int64_t check;                  /* the limit is checked when fewer steps are left */
    size_t rest;                    /* bytes of tpl_bytes that no step was counted for yet */
    const struct work_limit *limit; /* NULL: none */
    int64_t now;                    /* seconds since 1970, 0: the clock */
    struct sb *out;                 /* the current output */
    struct scope *scope;
    size_t max_text;
};

/* A function, filter, test or method. params: the parameters' names in order ("old new count"), of which the
 * first n_least are required; a[i] is V_ABSENT if the caller did not pass it. params NULL: the function reads
 * the arguments from raw itself. */
#define FN_ARGS 6
typedef int fn_call(struct tpl *t, struct val self, const struct val *a, const struct args *raw,
                    struct val *out);
struct fn {
    const char *name, *params;
    int n_least;
    fn_call *call;
};
struct method {
    struct val self;
    const struct fn *fn;
};
/* Calls f: binds args to its parameters. self: the filter's input or the method's object. */
int fn_run(struct tpl *t, const struct fn *f, struct val self, const struct args *args, struct val *out);
/* Tables of rows, ended by a row without a name. */
extern const struct fn tpl_filters[], tpl_list_filters[], tpl_tests[], tpl_functions[], tpl_str_methods[],
    tpl_dict_methods[], tpl_list_methods[], tpl_loop_methods[];
/* Names of Python's methods that are rejected, with blanks between them. */
extern const char tpl_str_unsupported[], tpl_list_mutators[], tpl_dict_mutators[];
/* The row of that name; NULL: none. filter_find looks in both tables of filters. */
const struct fn *fn_find(const struct fn *table, const char *name, size_t n);
const struct fn *filter_find(const struct str *name);
/* The number of `name` among the words, from 1; 0: it is not one of them. */
int word_index(const char *words, const char *name, size_t n);

#define FN(name) \
    static int name(struct tpl *t, struct val self, const struct val *a, const struct args *raw, \
                    struct val *out)
#define UNUSED (void)t, (void)self, (void)a, (void)raw, (void)out
static inline int arg_absent(struct val v) { return v.type == V_ABSENT || v.type == V_NONE; }
/* An argument as a string or an integer (`absent` if it is absent or none). ERR_USAGE: another type; the
 * message starts with what. */
int arg_str(struct tpl *t, struct val v, const char *what, const struct str **out);
int arg_int(struct tpl *t, struct val v, int64_t absent, const char *what, int64_t *out);

/* n zeroed bytes from the heap; NULL: t->failed is set. */
void *tpl_alloc(struct tpl *t, size_t n);
/* Sets the error, with the source and the line in front; returns -code. */
int tpl_fail(struct tpl *t, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Counts n more steps. ERR_USAGE: none are left; ERR_STOPPED: t->limit is reached. */
int tpl_steps(struct tpl *t, size_t n);
/* Counts the work on n bytes: a step for 64 of them. Errors as tpl_steps. */
int tpl_bytes(struct tpl *t, size_t n);
/* Counts one more level of nesting; the caller decrements t->depth. ERR_USAGE: too deep. */
int tpl_enter(struct tpl *t);

/* A string that grows. */
struct sb {
    struct tpl *t;
    char *p, *m;
    size_t n, cap;
};
/* Append bytes (mark NULL: all 0), a C string, a string with its marks, bytes [from, to) of a string, a
 * character. Errors are remembered in t->failed. sb_done makes the string a value. */
void sb_add(struct sb *b, const char *p, size_t n, const char *mark);
void sb_text(struct sb *b, const char *text);
void sb_str(struct sb *b, const struct str *s);
void sb_part(struct sb *b, const struct str *s, size_t from, size_t to);
void sb_cp(struct sb *b, uint32_t cp, int marked);
int sb_done(struct sb *b, struct val *out);
/* Adds MARK_MODEL to the marks of all bytes from `from` on. */
void sb_mark_model(struct sb *b, size_t from);

/* Values of each type; v_number of an integer or a float. */
static inline struct val v_none(void) { return (struct val){ .type = V_NONE }; }
static inline struct val v_bool(int b) { return (struct val){ .type = V_BOOL, .u.i = b != 0 }; }
static inline struct val v_int(int64_t i) { return (struct val){ .type = V_INT, .u.i = i }; }
static inline struct val v_float(double f) { return (struct val){ .type = V_FLOAT, .u.f = f }; }
static inline struct val v_undef(const char *why) { return (struct val){ .type = V_UNDEF, .u.why = why }; }
static inline struct val v_list(struct list *l) { return (struct val){ .type = V_LIST, .u.l = l }; }
static inline struct val v_dict(struct dict *d) { return (struct val){ .type = V_DICT, .u.d = d }; }
static inline int v_is_int(struct val v) { return v.type == V_INT || v.type == V_BOOL; }
static inline int v_is_number(struct val v) { return v_is_int(v) || v.type == V_FLOAT; }
static inline double v_number(struct val v) { return v.type == V_FLOAT ? v.u.f : (double)v.u.i; }
/* An undefined value; the message is reported if the template uses it. */
int v_undef_of(struct tpl *t, struct val *out, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A string of n bytes at p, and bytes [from, to) of a string. p and mark are borrowed for the heap's life. */
int v_str(struct tpl *t, const char *p, size_t n, const char *mark, struct val *out);
int v_part(struct tpl *t, const struct str *s, size_t from, size_t to, struct val *out);
/* An empty list or dict, and adding to them. v_dict_add does not look for k, v_dict_put replaces its
 * value. */
int v_list_new(struct tpl *t, enum list_kind kind, struct val *out);
int v_list_add(struct tpl *t, struct list *l, struct val v);
int v_dict_new(struct tpl *t, struct val *out);
int v_dict_add(struct tpl *t, struct dict *d, struct val k, struct val v);
int v_dict_put(struct tpl *t, struct dict *d, struct val k, struct val v);
/* 1: found, in *out; 0: not found. */
int v_dict_get(struct tpl *t, const struct dict *d, struct val k, struct val *out);
/* The value of a string key; NULL: none. */
const struct val *v_dict_text(const struct dict *d, const char *name, size_t n);
const char *v_type(struct val v); /* Python's name of the type ("str", "list", …), for messages */
/* Python's truth of v; a == b; v in `in`. Return 1, 0 or a negative code. */
int v_true(struct val v);
int v_equal(struct tpl *t, struct val a, struct val b);
int v_contains(struct tpl *t, struct val in, struct val v);
/* *order: -1, 0, 1; 2: one is NaN. ERR_USAGE: Python has no order for these types. */
int v_order(struct tpl *t, struct val a, struct val b, int *order);
/* The items of v as a list, which is borrowed and must not be changed. ERR_USAGE: v has no items. */
int v_iterate(struct tpl *t, struct val v, struct list **out);
/* len(v); and whether v may be a key of a dict. ERR_USAGE: it has no length, it may not. */
int v_length(struct tpl *t, struct val v, size_t *n);
int v_hashable(struct tpl *t, struct val v);
/* 1: the same bytes; marks are not compared. */
int str_same(const struct str *a, const struct str *b);
size_t str_chars(const struct str *s); /* characters */
/* The byte at which character `chars` starts; s->n past the end. */
size_t str_offset(const struct str *s, size_t chars);

/* --- values as text (tpl_print.c) --- */
int v_print(struct sb *b, struct val v); /* str(v) */
int v_repr(struct sb *b, struct val v);
/* str(v) as a string */
int v_to_str(struct tpl *t, struct val v, const struct str **out);
void float_text(double f, char out[40]); /* repr of a float */
/* A copy of a JSON value. user: 1: its strings are untrusted. */
int v_from_json(struct tpl *t, const json_t *j, int user, struct val *out);
/* json.dumps(v). a: the arguments ensure_ascii, indent, separators, sort_keys. */
int v_to_json(struct sb *b, struct val v, const struct val *a);

/* --- text as Python sees it (tpl_text.c) --- */
int py_is_space(uint32_t cp); /* str.isspace of one character */
/* str.lstrip and str.rstrip: the first byte that stays, and the end of what stays (at least `least`). chars
 * NULL: white space. */
size_t strip_left(const struct str *s, const struct str *chars);
size_t strip_right(const struct str *s, const struct str *chars, size_t least);
/* how: 'u' upper, 'l' lower, 'c' capitalize, 't' title, 's' swapcase, 'f' the filter title */
int str_case(struct tpl *t, const struct str *s, int how, struct val *out);
/* The byte at which `what` first occurs at or after from; -1: nowhere. */
int64_t str_find(const struct str *s, size_t from, const struct str *what);
/* str.replace; count -1: all. str.splitlines, which appends to out. */
int str_replace(struct tpl *t, const struct str *s, const struct str *old, const struct str *by,
                int64_t count, struct val *out);
int str_lines(struct tpl *t, const struct str *s, int keep_ends, struct list *out);
/* s % arg; s.format(args) */
int str_percent(struct tpl *t, const struct str *s, struct val arg, struct val *out);
int str_format(struct tpl *t, const struct str *s, const struct args *args, struct val *out);
/* Escapes s for HTML. */
int str_escape(struct tpl *t, const struct str *s, struct val *out);

/* --- operators (tpl_ops.c) --- */
enum op {
    OP_NONE,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOOR,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
};
/* Operators of two values, comparisons (*out: 1, 0) and signs, with Python's rules. */
int op_arith(struct tpl *t, enum op op, struct val a, struct val b, struct val *out);
int op_compare(struct tpl *t, enum op op, struct val a, struct val b, int *out);
int op_sign(struct tpl *t, int minus, struct val a, struct val *out);
/* v.name and v[key]; what does not exist is an undefined value. */
int get_attr(struct tpl *t, struct val v, const struct str *name, struct val *out);
int get_item(struct tpl *t, struct val v, struct val key, struct val *out);
/* path: "a.0.b", as filters take it; absent or none: v itself. */
int get_path(struct tpl *t, struct val v, struct val path, struct val *out);
/* v[part[0]:part[1]:part[2]]; parts may be none. */
int get_slice(struct tpl *t, struct val v, const struct val part[3], struct val *out);
/* Sorts l in place by keys, which do not change. Stable. */
int list_sort(struct tpl *t, struct list *keys, struct list *l, int reverse);
/* A new list of the given kind with the items of l in reverse. */
int list_reverse(struct tpl *t, const struct list *l, enum list_kind kind, struct val *out);

/* --- source to tokens (tpl_lex.c) --- */
enum tok_kind { T_END, T_DATA, T_VAR, T_VAR_END, T_BLOCK, T_BLOCK_END, T_NAME, T_STR, T_INT, T_FLOAT, T_OP };
struct tpl_token {
    enum tok_kind kind;
    int line;
    const char *p;
    size_t n;
    struct val v;
};
struct tpl_tokens {
    struct tpl_token *v;
    size_t n, cap;
};
/* Splits the source into tokens; the last is T_END. ERR_CONFIG: not UTF-8, or not a template. */
int tpl_lex(struct tpl *t, const char *s, size_t n, struct tpl_tokens *out);

/* --- nodes (tpl_parse.c, tpl_parse_expr.c) --- */
enum node_kind {
    N_CONST,
    N_NAME,
    N_NSREF,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_PAIR,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_BINARY,
    N_COMPARE,
    N_AND,
    N_OR,
    N_CONCAT,
    N_COND,
    N_KWARG,
    N_EXPRESSIONS,
    N_DATA,
    N_OUTPUT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_FILTER_BLOCK,
    N_WITH,
    N_SCOPE,
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
    N_KINDS
};
/* a, b, c: operands, by kind. list: arguments, elements, statements; more: keyword arguments, else branch,
 * parameters. next: the next node of the list that this node is in. */
struct node {
    enum node_kind kind;
    enum op op;
    int line;
    struct val v; /* N_CONST, N_DATA */
    const struct str *name;
    struct node *a, *b, *c, *list, *more, *next;
};
struct parser {
    struct tpl *t;
    const struct tpl_token *tok; /* the current token */
    const struct tpl_token *end; /* the last token, T_END */
    int depth, loops;
    int generations;   /* blocks {% generation %} so far */
    int rc;            /* the first error; tok is at T_END from then on */
    struct node spare; /* returned when an allocation fails, so that the parser need not check */
};
/* Parses a template. *generations: its blocks {% generation %}. NULL: the error is set. */
struct node *tpl_parse(struct tpl *t, const char *s, size_t n, int *generations);
/* Parse one expression, a tuple of expressions up to end_word (or one without commas), the target of an
 * assignment, a chain of filters on n. They never return NULL; errors are in p->rc. */
struct node *parse_expression(struct parser *p, int with_condition);
struct node *parse_tuple(struct parser *p, int with_condition, const char *end_word, int brackets);
struct node *parse_target(struct parser *p, const char *end_word, int namespaces);
struct node *parse_filters(struct parser *p, struct node *n, int inline_first);
/* A new node at the current line; sets the first error; goes to the next token. */
struct node *parser_node(struct parser *p, enum node_kind kind);
void parser_fail(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void parser_next(struct parser *p);
/* Whether the current token is of that kind and text (NULL: any); parser_skip then goes on, parser_expect
 * goes on or fails. */
int parser_is(const struct parser *p, enum tok_kind kind, const char *text);
int parser_skip(struct parser *p, enum tok_kind kind, const char *text);
void parser_expect(struct parser *p, enum tok_kind kind, const char *text);
/* Takes a name. */
const struct str *parser_name(struct parser *p);
/* One more level of nesting, 0: too deep; the caller decrements p->depth. */
int parser_deeper(struct parser *p);
/* The current token, for messages. */
void parser_describe(const struct parser *p, char out[64]);

/* --- rendering (tpl_eval.c, tpl_exec.c) --- */
/* The value of an expression; calls of any value and of a macro. */
int tpl_eval(struct tpl *t, const struct node *n, struct val *out);
int tpl_call(struct tpl *t, struct val callee, const struct args *args, struct val *out);
int tpl_macro(struct tpl *t, const struct macro *m, const struct args *args, struct val *out);
/* Runs statements and appends to t->out. Returns 0, RUN_BREAK or RUN_CONTINUE. */
enum { RUN_BREAK = 1, RUN_CONTINUE };
int tpl_exec(struct tpl *t, const struct node *list);
/* Sets a variable of scope s; finds one in s and its parents (NULL: none). */
int scope_set(struct tpl *t, struct scope *s, const struct str *name, struct val v);
const struct val *scope_find(struct tpl *t, const struct scope *s, const struct str *name);

#endif

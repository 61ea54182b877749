/* tpl.h - inside of chat templates: what the parts share.
 *
 *   source --lexer--> tokens --parser--> nodes --+
 *                                                 +--> rendering --> text and spans
 *   JSON values --tpl_json--> marked values ------+
 *
 * Values are those of Python as far as templates see them, and none of them changes once made (namespaces
 * and generators apart), so that all live in one heap which is freed at the end. A string carries a mark for
 * every byte: 1 where it came from outside. Functions return 0 or a negative code, the error is in t->e; a
 * failed allocation is kept in t->failed, and who hands a result on looks at it. */
#ifndef SHARDLINE_TEXT_JINJA_TPL_H
#define SHARDLINE_TEXT_JINJA_TPL_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "text/template.h"

#define TPL_PARSE_DEPTH 100 /* brackets and blocks in one another */
#define TPL_DEPTH 800       /* nested evaluations while rendering, calls of macros included */
#define TPL_DATA_DEPTH 100  /* lists in lists, in JSON and when compared or printed */
#define TPL_RANGE 100000    /* the sandbox's limit */

/* Returns the negative code of a failed call. Nothing needs freeing on the way: the heap owns all memory. */
#define RETURN_IF_ERROR(call) \
    do { \
        int call_rc = (call); \
        if (call_rc < 0) \
            return call_rc; \
    } while (0)

/* --- memory (tpl_heap.c)
 * ------------------------------------------------------------------------------------------------ */
struct heap_block {
    struct heap_block *next;
    size_t n, used;
};
struct heap {
    struct heap_block *blocks;
    size_t total, limit;
};
void heap_free(struct heap *h);

/* --- values (tpl_value.c)
 * ------------------------------------------------------------------------------------------------ */
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
/* L_GEN: read once; L_VIEW: of a dict, no index */
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
/* mark: a byte for each byte of p, or NULL: all trusted */
struct str {
    const char *p, *mark;
    size_t n;
    int markup;
};
/* at: of L_GEN, the next; of L_VIEW, keys, values or items */
struct list {
    struct val *v;
    size_t n, cap, at;
    enum list_kind kind;
    int64_t range[3];
};
struct pair {
    struct val k, v;
};
struct dict {
    struct pair *v;
    size_t n, cap;
};
struct loop {
    struct list *items;
    size_t at;
    struct val changed;
};
struct var {
    const struct str *name;
    struct val v;
    struct var *next;
};
struct scope {
    struct scope *parent;
    struct var *vars;
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

struct tpl { /* one parse, or one rendering */
    struct heap heap;
    struct err *e;
    const char *what;
    int line, depth, failed;
    int64_t steps; /* left */
    int64_t now;
    struct sb *out; /* where output goes now */
    struct scope *scope;
    size_t max_text;
};

/* A function, filter, test or method: params are names in order ("old new count"), the first n_least must be
 * given; NULL: raw is used. a[i] is V_ABSENT where the caller gave nothing. */
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
int fn_run(struct tpl *t, const struct fn *f, struct val self, const struct args *args, struct val *out);
extern const struct fn tpl_filters[], tpl_filters_of_lists[], tpl_tests[], tpl_functions[], tpl_str_methods[],
    tpl_dict_methods[], tpl_list_methods[], tpl_loop_methods[];
/* names of Python's methods that are refused */
extern const char tpl_str_unbuilt[], tpl_list_changes[], tpl_dict_changes[];
const struct fn *fn_find(const struct fn *table, const char *name, size_t n);
const struct fn *filter_find(const struct str *name);
int word_in(const char *words, const char *name, size_t n);

#define FN(name) \
    static int name(struct tpl *t, struct val self, const struct val *a, const struct args *raw, \
                    struct val *out)
#define UNUSED (void)t, (void)self, (void)a, (void)raw, (void)out
static inline int arg_absent(struct val v) { return v.type == V_ABSENT || v.type == V_NONE; }
/* a string, else the error names what */
int arg_str(struct tpl *t, struct val v, const char *what, const struct str **out);
int arg_int(struct tpl *t, struct val v, int64_t absent, const char *what, int64_t *out);

void *tpl_take(struct tpl *t, size_t n); /* zeroed; NULL: t->failed is set */
int tpl_fail(struct tpl *t, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* n more steps: ERR_USAGE when none are left */
int tpl_steps(struct tpl *t, size_t n);
/* one deeper; t->depth-- is the caller's */
int tpl_enter(struct tpl *t);

/* strings that grow */
struct sb {
    struct tpl *t;
    char *p, *m;
    size_t n, cap;
};
void sb_add(struct sb *b, const char *p, size_t n, const char *mark);
void sb_text(struct sb *b, const char *text);
void sb_str(struct sb *b, const struct str *s);
void sb_part(struct sb *b, const struct str *s, size_t from, size_t to);
void sb_cp(struct sb *b, uint32_t cp, int marked);
int sb_done(struct sb *b, struct val *out);

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
int v_undef_of(struct tpl *t, struct val *out, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* p and mark are not copied */
int v_str(struct tpl *t, const char *p, size_t n, const char *mark, struct val *out);
int v_part(struct tpl *t, const struct str *s, size_t from, size_t to, struct val *out);
int v_list_new(struct tpl *t, enum list_kind kind, struct val *out);
int v_list_add(struct tpl *t, struct list *l, struct val v);
int v_dict_new(struct tpl *t, struct val *out);
/* without looking for k */
int v_dict_add(struct tpl *t, struct dict *d, struct val k, struct val v);
int v_dict_put(struct tpl *t, struct dict *d, struct val k, struct val v);
/* 1 found, 0 not there */
int v_dict_get(struct tpl *t, const struct dict *d, struct val k, struct val *out);
const struct val *v_dict_text(const struct dict *d, const char *name, size_t n);
const char *v_type(struct val v); /* "str", "list" …, for messages */
int v_true(struct val v);
int v_equal(struct tpl *t, struct val a, struct val b); /* 1, 0 */
/* -1, 0, 1 (2: NaN); TypeError as Python */
int v_order(struct tpl *t, struct val a, struct val b, int *order);
int v_contains(struct tpl *t, struct val in, struct val v); /* 1, 0 */
/* its items as a list: lent, not to be changed */
int v_iterate(struct tpl *t, struct val v, struct list **out);
int v_length(struct tpl *t, struct val v, size_t *n);
int v_hashable(struct tpl *t, struct val v);
int str_same(const struct str *a, const struct str *b);
size_t str_chars(const struct str *s);
/* byte where character `chars` begins; n at the end */
size_t str_offset(const struct str *s, size_t chars);

/* --- values as text (tpl_print.c)
 * ---------------------------------------------------------------------------------------- */
int v_print(struct sb *b, struct val v); /* str(v) */
int v_repr(struct sb *b, struct val v);
int v_to_str(struct tpl *t, struct val v, const struct str **out);
void float_text(double f, char out[40]); /* repr of a float */
int v_from_json(struct tpl *t, const json_t *j, int user, struct val *out);
/* a: ensure_ascii indent separators sort_keys */
int v_to_json(struct sb *b, struct val v, const struct val *a);

/* --- text as Python sees it (tpl_text.c)
 * ---------------------------------------------------------------------------------- */
int py_is_space(uint32_t cp);
/* chars NULL: white space; the first byte that stays */
size_t strip_left(const struct str *s, const struct str *chars);
size_t strip_right(const struct str *s, const struct str *chars, size_t least);
/* 'u' upper, 'l' lower, 'c' capitalize, 't' title, 's' swapcase, 'f' the filter title */
int str_case(struct tpl *t, const struct str *s, int how, struct val *out);
/* byte offset or -1 */
int64_t str_find(const struct str *s, size_t from, const struct str *what);
int str_replace(struct tpl *t, const struct str *s, const struct str *old, const struct str *by,
                int64_t count, struct val *out);
int str_lines(struct tpl *t, const struct str *s, int keep_ends, struct list *out);
int str_percent(struct tpl *t, const struct str *s, struct val arg, struct val *out); /* s % arg */
int str_format(struct tpl *t, const struct str *s, const struct args *args, struct val *out);
int str_escape(struct tpl *t, const struct str *s, struct val *out); /* for HTML */

/* --- operators (tpl_ops.c)
 * ------------------------------------------------------------------------------------------------ */
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
int op_arith(struct tpl *t, enum op op, struct val a, struct val b, struct val *out);
int op_compare(struct tpl *t, enum op op, struct val a, struct val b, int *out);
int op_sign(struct tpl *t, int minus, struct val a, struct val *out);
int get_attr(struct tpl *t, struct val v, const struct str *name, struct val *out);
int get_item(struct tpl *t, struct val v, struct val key, struct val *out);
/* "a.0.b", as filters take it */
int get_path(struct tpl *t, struct val v, struct val path, struct val *out);
int get_slice(struct tpl *t, struct val v, const struct val part[3], struct val *out);
/* stable, by keys */
int list_sort(struct tpl *t, struct list *keys, struct list *l, int reverse);
int list_reverse(struct tpl *t, const struct list *l, enum list_kind kind, struct val *out);

/* --- source to tokens (tpl_lex.c)
 * ------------------------------------------------------------------------------------------ */
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
int tpl_lex(struct tpl *t, const char *s, size_t n, struct tpl_tokens *out);

/* --- nodes (tpl_parse.c, tpl_parse_expr.c)
 * ---------------------------------------------------------------------------------- */
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
    N_BREAK,
    N_CONTINUE,
    N_KINDS
};
/* a, b, c by kind; list: arguments, elements, statements; next: the following one of a list */
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
    const struct tpl_token *tok; /* the current one; the last is T_END */
    const struct tpl_token *end;
    int depth, loops, rc; /* rc: the first error; then tok stands on T_END */
    struct node spare;    /* what a failed allocation gives */
};
struct node *tpl_parse(struct tpl *t, const char *s, size_t n); /* NULL: error set */
struct node *parse_expression(struct parser *p, int with_condition);
struct node *parse_tuple(struct parser *p, int with_condition, const char *end_word, int brackets);
struct node *parse_target(struct parser *p, const char *end_word, int namespaces);
struct node *parse_filters(struct parser *p, struct node *n, int inline_first);
struct node *parser_node(struct parser *p, enum node_kind kind);
void parser_fail(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void parser_next(struct parser *p);
/* text NULL: any */
int parser_is(const struct parser *p, enum tok_kind kind, const char *text);
int parser_skip(struct parser *p, enum tok_kind kind, const char *text);
void parser_expect(struct parser *p, enum tok_kind kind, const char *text);
const struct str *parser_name(struct parser *p);
int parser_deeper(struct parser *p);
void parser_shown(const struct parser *p, char out[64]); /* the current token, for messages */

/* --- rendering (tpl_eval.c, tpl_exec.c)
 * ---------------------------------------------------------------------------------- */
int tpl_eval(struct tpl *t, const struct node *n, struct val *out);
int tpl_call(struct tpl *t, struct val callee, const struct args *args, struct val *out);
int tpl_macro(struct tpl *t, const struct macro *m, const struct args *args, struct val *out);
int tpl_exec(struct tpl *t, const struct node *list); /* 0, or RUN_BREAK, RUN_CONTINUE */
enum { RUN_BREAK = 1, RUN_CONTINUE };
int scope_set(struct tpl *t, struct scope *s, const struct str *name, struct val v);
const struct val *scope_find(const struct scope *s, const struct str *name);

#endif

/* tpl_parse_expr.c - parses expressions, tokens to nodes, with Jinja's operator precedence. */
#include "text/jinja/tpl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- tokens --- */

void parser_describe(const struct parser *p, char out[64])
{
    if (p->tok->kind == T_END)
        snprintf(out, 64, "the end of the template");
    else if (p->tok->kind == T_STR)
        snprintf(out, 64, "a string");
    else
        snprintf(out, 64, "'%.*s'", (int)(p->tok->n < 40 ? p->tok->n : 40), p->tok->p);
}

void parser_fail(struct parser *p, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (p->rc)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->t->line = p->tok->line;
    p->rc = tpl_fail(p->t, ERR_CONFIG, "%s", text);
    p->tok = p->end;
}

void parser_next(struct parser *p)
{
    if (p->tok < p->end)
        p->tok++;
    p->t->line = p->tok->line;
}

int parser_is(const struct parser *p, enum tok_kind kind, const char *text)
{
    return p->tok->kind == kind &&
           (!text || (p->tok->n == strlen(text) && !memcmp(p->tok->p, text, p->tok->n)));
}

int parser_skip(struct parser *p, enum tok_kind kind, const char *text)
{
    int is = parser_is(p, kind, text);
    if (is)
        parser_next(p);
    return is;
}

void parser_expect(struct parser *p, enum tok_kind kind, const char *text)
{
    char shown[64];
    if (parser_skip(p, kind, text))
        return;
    parser_describe(p, shown);
    parser_fail(p, "%s where %s is needed", shown,
                text                  ? text
                : kind == T_VAR_END   ? "}}"
                : kind == T_BLOCK_END ? "%}"
                                      : "a name");
}

struct node *parser_node(struct parser *p, enum node_kind kind)
{
    struct node *n = tpl_alloc(p->t, sizeof *n);
    if (!n) {
        if (!p->rc)
            p->rc = p->t->failed;
        p->tok = p->end;
        n = &p->spare;
    }
    n->kind = kind;
    n->line = p->tok->line;
    return n;
}

const struct str *parser_name(struct parser *p)
{
    static const struct str nothing = { "", NULL, 0, 0 };
    struct val v;
    const struct tpl_token *tok = p->tok;
    int is = parser_is(p, T_NAME, NULL);
    parser_expect(p, T_NAME, NULL);
    if (!is || v_str(p->t, tok->p, tok->n, NULL, &v) < 0)
        return &nothing;
    return v.u.s;
}

int parser_deeper(struct parser *p)
{
    if (p->depth >= TPL_PARSE_DEPTH)
        parser_fail(p, "more than %d nested expressions and blocks", TPL_PARSE_DEPTH);
    else
        p->depth++;
    return p->rc == 0;
}

/* --- constants, names, lists, dicts --- */

static struct node *constant(struct parser *p, struct val v)
{
    struct node *n = parser_node(p, N_CONST);
    n->v = v;
    parser_next(p);
    return n;
}

static struct node *parse_string(struct parser *p)
{
    struct node *n = constant(p, p->tok->v);
    struct sb b = { .t = p->t };
    if (!parser_is(p, T_STR, NULL))
        return n;
    sb_str(&b, n->v.u.s);
    while (parser_is(p, T_STR, NULL)) {
        sb_str(&b, p->tok->v.u.s);
        parser_next(p);
    }
    if (sb_done(&b, &n->v) < 0 && !p->rc)
        p->rc = p->t->failed;
    return n;
}

static struct node *parse_word(struct parser *p)
{
    static const struct {
        const char *word;
        enum val_type type;
        int i;
    } words[] = {
        { "true", V_BOOL, 1 },  { "True", V_BOOL, 1 }, { "false", V_BOOL, 0 },
        { "False", V_BOOL, 0 }, { "none", V_NONE, 0 }, { "None", V_NONE, 0 },
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (parser_is(p, T_NAME, words[i].word))
            return constant(p, (struct val){ .type = words[i].type, .u.i = words[i].i });
    struct node *n = parser_node(p, N_NAME);
    n->name = parser_name(p);
    return n;
}

/* Parses elements up to close, separated by commas; a comma at the end is allowed. */
static struct node *parse_elements(struct parser *p, enum node_kind kind, const char *close)
{
    struct node *n = parser_node(p, kind), **tail = &n->list;
    parser_next(p);
    while (!p->rc && !parser_is(p, T_OP, close)) {
        if (n->list)
            parser_expect(p, T_OP, ",");
        if (parser_is(p, T_OP, close))
            break;
        struct node *one = parse_expression(p, 1);
        if (kind == N_DICT) {
            struct node *pair = parser_node(p, N_PAIR);
            parser_expect(p, T_OP, ":");
            pair->a = one;
            pair->b = parse_expression(p, 1);
            one = pair;
        }
        *tail = one;
        tail = &one->next;
    }

    parser_expect(p, T_OP, close);
    return n;
}

static struct node *parse_primary(struct parser *p)
{
    char shown[64];
    struct node *n;

    switch (p->tok->kind) {
    case T_NAME: return parse_word(p);
    case T_STR: return parse_string(p);
    case T_INT:
    case T_FLOAT: return constant(p, p->tok->v);
    default: break;
    }

    if (parser_is(p, T_OP, "["))
        return parse_elements(p, N_LIST, "]");
    if (parser_is(p, T_OP, "{"))
        return parse_elements(p, N_DICT, "}");
    if (parser_skip(p, T_OP, "(")) {
        n = parse_tuple(p, 1, NULL, 1);
        parser_expect(p, T_OP, ")");
        return n;
    }

    parser_describe(p, shown);
    parser_fail(p, "unexpected %s", shown);
    return parser_node(p, N_CONST);
}

/* with_condition 0: "a if b" is not parsed as a condition ("for x in a if b"). end_word: a name that also
 * ends the tuple. brackets 1: it may be empty. */
struct node *parse_tuple(struct parser *p, int with_condition, const char *end_word, int brackets)
{
    struct node *n = parser_node(p, N_TUPLE), **tail = &n->list;
    int is_tuple = 0, n_parts = 0;

    for (;;) {
        if (n_parts)
            parser_expect(p, T_OP, ",");
        if (p->rc || p->tok->kind == T_VAR_END || p->tok->kind == T_BLOCK_END || parser_is(p, T_OP, ")") ||
            (end_word && parser_is(p, T_NAME, end_word)))
            break;
        *tail = parse_expression(p, with_condition);
        tail = &(*tail)->next;
        n_parts++;
        if (!parser_is(p, T_OP, ","))
            break;
        is_tuple = 1;
    }

    if (is_tuple)
        return n;
    if (!n_parts && !brackets) {
        char shown[64];
        parser_describe(p, shown);
        parser_fail(p, "%s where an expression is needed", shown);
    }
    return n_parts ? n->list : n;
}

/* --- postfix: subscripts, calls, filters, tests --- */

static void parse_arguments(struct parser *p, struct node *n)
{
    struct node **tail = &n->list, **kw_tail = &n->more;
    int any = 0;

    parser_expect(p, T_OP, "(");
    while (!p->rc && !parser_is(p, T_OP, ")")) {
        if (any++)
            parser_expect(p, T_OP, ",");
        if (p->rc || parser_is(p, T_OP, ")"))
            break;
        if (parser_is(p, T_OP, "*") || parser_is(p, T_OP, "**"))
            parser_fail(p, "arguments with * and ** are not supported: write them out");
        if (p->tok->kind == T_NAME && p->tok + 1 < p->end && p->tok[1].kind == T_OP && p->tok[1].n == 1 &&
            *p->tok[1].p == '=') {
            struct node *kw = parser_node(p, N_KWARG);
            kw->name = parser_name(p);
            parser_next(p);
            kw->a = parse_expression(p, 1);
            *kw_tail = kw;
            kw_tail = &kw->next;
            continue;
        }
        if (n->more)
            parser_fail(p, "an argument without a name behind one with a name");
        *tail = parse_expression(p, 1);
        tail = &(*tail)->next;
    }
    parser_expect(p, T_OP, ")");
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = parser_node(p, N_CALL);
    n->a = callee;
    parse_arguments(p, n);
    return n;
}

static int at_slice_end(const struct parser *p)
{
    return parser_is(p, T_OP, ":") || parser_is(p, T_OP, "]") || parser_is(p, T_OP, ",");
}

static struct node *parse_brackets(struct parser *p, struct node *of)
{
    struct node *n = parser_node(p, N_ITEM);
    parser_next(p);
    n->a = of;
    struct node *first = parser_is(p, T_OP, ":") ? NULL : parse_expression(p, 1);
    if (!parser_skip(p, T_OP, ":")) {
        n->b = first;
        if (parser_is(p, T_OP, ",")) { /* x[1, 2]: the key is a tuple */
            struct node *key = parser_node(p, N_TUPLE), *last = first;
            key->list = first;
            while (parser_skip(p, T_OP, ","))
                last = last->next = parse_expression(p, 1);
            n->b = key;
        }
    } else {
        n->kind = N_SLICE;
        n->b = first;
        n->c = at_slice_end(p) ? NULL : parse_expression(p, 1);
        if (parser_skip(p, T_OP, ":"))
            n->list = at_slice_end(p) ? NULL : parse_expression(p, 1);
    }

    parser_expect(p, T_OP, "]");
    return n;
}

static struct node *parse_dot(struct parser *p, struct node *of)
{
    struct node *n = parser_node(p, N_ATTR);
    parser_next(p);
    n->a = of;
    if (parser_is(p, T_INT, NULL)) {
        n->kind = N_ITEM;
        n->b = constant(p, p->tok->v);
    } else {
        n->name = parser_name(p);
    }
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        if (parser_is(p, T_OP, "."))
            n = parse_dot(p, n);
        else if (parser_is(p, T_OP, "["))
            n = parse_brackets(p, n);
        else if (parser_is(p, T_OP, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static struct node *named(struct parser *p, enum node_kind kind, struct node *of)
{
    struct node *n = parser_node(p, kind);
    n->a = of;
    n->name = parser_name(p);
    return n;
}

struct node *parse_filters(struct parser *p, struct node *n, int inline_first)
{
    while (!p->rc && (inline_first || parser_skip(p, T_OP, "|"))) {
        inline_first = 0;
        n = named(p, N_FILTER, n);
        if (parser_is(p, T_OP, "("))
            parse_arguments(p, n);
    }
    return n;
}

static struct node *parse_test(struct parser *p, struct node *of)
{
    parser_next(p);
    int negated = parser_skip(p, T_NAME, "not");
    struct node *n = named(p, N_TEST, of);
    if (parser_is(p, T_OP, "(")) {
        parse_arguments(p, n);
    } else if (((p->tok->kind >= T_NAME && p->tok->kind <= T_FLOAT) || parser_is(p, T_OP, "[") ||
                parser_is(p, T_OP, "{")) &&
               !parser_is(p, T_NAME, "else") && !parser_is(p, T_NAME, "or") && !parser_is(p, T_NAME, "and")) {
        if (parser_is(p, T_NAME, "is"))
            parser_fail(p, "two tests in a row: join them with 'and'");
        n->list = parse_postfix(p, parse_primary(p));
    }

    if (!negated)
        return n;
    struct node *negation = parser_node(p, N_NOT);
    negation->a = n;
    return negation;
}

static struct node *parse_unary(struct parser *p, int with_filter)
{
    struct node *n;
    if (!parser_deeper(p))
        return parser_node(p, N_CONST);
    int minus = parser_is(p, T_OP, "-");
    if (minus || parser_is(p, T_OP, "+")) {
        n = parser_node(p, minus ? N_NEG : N_POS);
        parser_next(p);
        n->a = parse_unary(p, 0);
    } else {
        n = parse_primary(p);
    }

    n = parse_postfix(p, n);
    while (with_filter && !p->rc) {
        if (parser_is(p, T_OP, "|"))
            n = parse_filters(p, n, 0);
        else if (parser_is(p, T_NAME, "is"))
            n = parse_test(p, n);
        else if (parser_is(p, T_OP, "("))
            n = parse_call(p, n);
        else
            break;
    }

    p->depth--;
    return n;
}

/* --- operators --- */

enum level { LV_OR, LV_AND, LV_NOT, LV_COMPARE, LV_ADD, LV_CONCAT, LV_MUL, LV_POW, LV_UNARY };
static const struct {
    enum level level;
    enum tok_kind kind;
    const char *text;
    enum node_kind node;
    enum op op;
} operators[] = {
    { LV_OR, T_NAME, "or", N_OR, OP_NONE },         { LV_AND, T_NAME, "and", N_AND, OP_NONE },
    { LV_COMPARE, T_OP, "==", N_COMPARE, OP_EQ },   { LV_COMPARE, T_OP, "!=", N_COMPARE, OP_NE },
    { LV_COMPARE, T_OP, "<", N_COMPARE, OP_LT },    { LV_COMPARE, T_OP, "<=", N_COMPARE, OP_LE },
    { LV_COMPARE, T_OP, ">", N_COMPARE, OP_GT },    { LV_COMPARE, T_OP, ">=", N_COMPARE, OP_GE },
    { LV_COMPARE, T_NAME, "in", N_COMPARE, OP_IN }, { LV_ADD, T_OP, "+", N_BINARY, OP_ADD },
    { LV_ADD, T_OP, "-", N_BINARY, OP_SUB },        { LV_CONCAT, T_OP, "~", N_CONCAT, OP_NONE },
    { LV_MUL, T_OP, "*", N_BINARY, OP_MUL },        { LV_MUL, T_OP, "/", N_BINARY, OP_DIV },
    { LV_MUL, T_OP, "//", N_BINARY, OP_FLOOR },     { LV_MUL, T_OP, "%", N_BINARY, OP_MOD },
    { LV_POW, T_OP, "**", N_BINARY, OP_POW },
};
#define N_OPERATORS (sizeof operators / sizeof *operators)

static struct node *parse_level(struct parser *p, enum level level);

/* a < b <= c: one node, with the following comparisons as its list. */
static struct node *parse_compare(struct parser *p)
{
    struct node *left = parse_level(p, LV_COMPARE + 1), *n = NULL, **tail = NULL;
    for (;;) {
        enum op op = OP_NONE;
        for (size_t i = 0; i < N_OPERATORS; i++)
            if (operators[i].level == LV_COMPARE && parser_is(p, operators[i].kind, operators[i].text))
                op = operators[i].op;
        if (op == OP_NONE && parser_is(p, T_NAME, "not") && p->tok + 1 < p->end && p->tok[1].kind == T_NAME &&
            p->tok[1].n == 2 && !memcmp(p->tok[1].p, "in", 2)) {
            op = OP_NOT_IN;
            parser_next(p);
        }
        if (op == OP_NONE)
            return n ? n : left;
        if (!n) {
            n = parser_node(p, N_COMPARE);
            n->a = left;
            tail = &n->list;
        }
        struct node *part = parser_node(p, N_EXPRESSIONS);
        parser_next(p);
        part->op = op;
        part->a = parse_level(p, LV_COMPARE + 1);
        *tail = part;
        tail = &part->next;
    }
}

static struct node *parse_not(struct parser *p)
{
    struct node *n = parser_node(p, N_NOT);
    parser_next(p);
    if (parser_deeper(p)) {
        n->a = parse_level(p, LV_NOT);
        p->depth--;
    }
    return n;
}

static struct node *parse_level(struct parser *p, enum level level)
{
    if (level == LV_UNARY)
        return parse_unary(p, 1);
    if (level == LV_COMPARE)
        return parse_compare(p);
    if (level == LV_NOT)
        return parser_is(p, T_NAME, "not") ? parse_not(p) : parse_level(p, LV_COMPARE);
    struct node *left = parse_level(p, level + 1);
    for (;;) {
        size_t i = 0;
        while (i < N_OPERATORS &&
               !(operators[i].level == level && parser_is(p, operators[i].kind, operators[i].text)))
            i++;
        if (i == N_OPERATORS)
            return left;
        struct node *n = parser_node(p, operators[i].node);
        parser_next(p);
        n->op = operators[i].op;
        n->a = left;
        n->b = parse_level(p, level + 1);
        left = n;
    }
}

struct node *parse_expression(struct parser *p, int with_condition)
{
    if (!parser_deeper(p))
        return parser_node(p, N_CONST);
    struct node *n = parse_level(p, LV_OR);
    while (with_condition && parser_is(p, T_NAME, "if")) {
        struct node *cond = parser_node(p, N_COND);
        parser_next(p);
        cond->a = n;
        cond->b = parse_level(p, LV_OR);
        cond->c = parser_skip(p, T_NAME, "else") ? parse_expression(p, 1) : NULL;
        n = cond;
    }
    p->depth--;
    return n;
}

/* --- targets of assignments --- */

static struct node *target_name(struct parser *p, int namespaces)
{
    static const char reserved[] = "true false none True False None";
    char shown[64];
    struct node *n = parser_node(p, N_NAME);
    parser_describe(p, shown);
    if (p->tok->kind == T_NAME && word_index(reserved, p->tok->p, p->tok->n))
        parser_fail(p, "%s cannot be set", shown);
    n->name = parser_name(p);
    if (namespaces && parser_skip(p, T_OP, ".")) {
        n->kind = N_NSREF;
        n->a = parser_node(p, N_NAME);
        n->a->name = n->name;
        n->name = parser_name(p);
    }
    return n;
}

struct node *parse_target(struct parser *p, const char *end_word, int namespaces)
{
    int brackets = parser_skip(p, T_OP, "(");
    struct node *first = target_name(p, namespaces), *n = first, **tail = &first->next;
    if (parser_is(p, T_OP, ",")) {
        n = parser_node(p, N_TUPLE);
        n->list = first;
        while (parser_skip(p, T_OP, ",") && p->tok->kind == T_NAME &&
               !(end_word && parser_is(p, T_NAME, end_word))) {
            *tail = target_name(p, namespaces);
            tail = &(*tail)->next;
        }
    }
    if (brackets)
        parser_expect(p, T_OP, ")");
    return n;
}

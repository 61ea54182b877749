/* tpl_parse.c - parses statements, tokens to nodes: a table with one function for each tag. */
#include "text/jinja/tpl.h"

#include <stdio.h>
#include <string.h>

static struct node *parse_body(struct parser *p, const char *ends);

static void end_tag(struct parser *p) { parser_expect(p, T_BLOCK_END, NULL); }

/* Parses the statements behind this tag up to the tag `end`, and goes past the name of that tag. */
static struct node *block(struct parser *p, const char *end)
{
    end_tag(p);
    struct node *list = parse_body(p, end);
    parser_next(p);
    return list;
}

static struct node *parse_if(struct parser *p)
{
    struct node *n = parser_node(p, N_IF), *at = n;
    for (;;) {
        at->a = parse_tuple(p, 0, NULL, 0);
        end_tag(p);
        at->list = parse_body(p, "elif else endif");
        if (!parser_is(p, T_NAME, "elif"))
            break;
        at->next = parser_node(p, N_IF); /* the branches of one if are a list */
        at = at->next;
        parser_next(p);
    }

    if (parser_skip(p, T_NAME, "else")) {
        end_tag(p);
        n->more = parse_body(p, "endif");
    }

    parser_next(p);
    struct node *whole = parser_node(p, N_IF);
    whole->a = n;
    return whole;
}

static struct node *parse_for(struct parser *p)
{
    struct node *n = parser_node(p, N_FOR);
    n->a = parse_target(p, "in", 0);
    parser_expect(p, T_NAME, "in");
    n->b = parse_tuple(p, 0, "recursive", 0);
    if (parser_skip(p, T_NAME, "if"))
        n->c = parse_expression(p, 1);
    if (parser_is(p, T_NAME, "recursive"))
        parser_fail(p, "recursive loops are not supported: use a macro");
    end_tag(p);
    p->loops++;
    n->list = parse_body(p, "else endfor");
    p->loops--;
    if (parser_skip(p, T_NAME, "else")) {
        end_tag(p);
        n->more = parse_body(p, "endfor");
    }

    parser_next(p);
    return n;
}

static struct node *parse_set(struct parser *p)
{
    struct node *n = parser_node(p, N_SET);
    n->a = parse_target(p, NULL, 1);
    if (parser_skip(p, T_OP, "=")) {
        n->b = parse_tuple(p, 1, NULL, 0);
        return n;
    }
    n->kind = N_SET_BLOCK;
    n->b = parse_filters(p, NULL, 0);
    n->list = block(p, "endset");
    return n;
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = parser_node(p, N_MACRO), **tail = &n->more;
    int loops = p->loops, defaults = 0;

    n->name = parser_name(p);
    parser_expect(p, T_OP, "(");
    while (!p->rc && !parser_is(p, T_OP, ")")) {
        if (n->more)
            parser_expect(p, T_OP, ",");
        struct node *param = parser_node(p, N_KWARG);
        param->name = parser_name(p);
        if (parser_skip(p, T_OP, "=")) {
            param->a = parse_expression(p, 1);
            defaults = 1;
        } else if (defaults) {
            parser_fail(p, "a parameter without a default behind one with a default");
        }
        *tail = param;
        tail = &param->next;
    }

    parser_expect(p, T_OP, ")");
    p->loops = 0; /* break in a macro does not leave a loop around the macro */
    n->list = block(p, "endmacro");
    p->loops = loops;
    return n;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *n = parser_node(p, N_FILTER_BLOCK);
    n->b = parse_filters(p, NULL, 1);
    n->list = block(p, "endfilter");
    return n;
}

static struct node *parse_with(struct parser *p)
{
    struct node *n = parser_node(p, N_WITH), **tail = &n->more;
    while (!p->rc && p->tok->kind != T_BLOCK_END) {
        struct node *set = parser_node(p, N_SET);
        if (n->more)
            parser_expect(p, T_OP, ",");
        set->a = parse_target(p, NULL, 0);
        parser_expect(p, T_OP, "=");
        set->b = parse_expression(p, 1);
        *tail = set;
        tail = &set->next;
    }
    n->list = block(p, "endwith");
    return n;
}

/* {% generation %} marks a model's text for training: its bytes have MARK_MODEL. */
static struct node *parse_generation(struct parser *p)
{
    struct node *n = parser_node(p, N_GENERATION);
    p->generations++;
    n->list = block(p, "endgeneration");
    return n;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind, const char *name)
{
    if (!p->loops)
        parser_fail(p, "%s outside of a loop", name);
    return parser_node(p, kind);
}
static struct node *parse_break(struct parser *p) { return parse_jump(p, N_BREAK, "break"); }
static struct node *parse_continue(struct parser *p) { return parse_jump(p, N_CONTINUE, "continue"); }

static const struct {
    const char *name;
    struct node *(*parse)(struct parser *p);
} tags[] = {
    { "if", parse_if },
    { "for", parse_for },
    { "set", parse_set },
    { "macro", parse_macro },
    { "filter", parse_filter_block },
    { "with", parse_with },
    { "generation", parse_generation },
    { "break", parse_break },
    { "continue", parse_continue },
};

static struct node *parse_statement(struct parser *p)
{
    char shown[64];
    struct node *n = NULL;
    for (size_t i = 0; !n && i < sizeof tags / sizeof *tags; i++)
        if (parser_skip(p, T_NAME, tags[i].name))
            n = tags[i].parse(p);
    if (!n) {
        parser_describe(p, shown);
        parser_fail(p, "the tag %s is not known here", shown);
        n = parser_node(p, N_DATA);
    }
    end_tag(p);
    return n;
}

/* Parses text and tags up to a tag whose name is one of `ends`, which stays the current token; ends NULL:
 * up to the end of the template. */
static struct node *parse_body(struct parser *p, const char *ends)
{
    struct node *list = NULL, **tail = &list;
    int line = p->tok->line;

    if (!parser_deeper(p))
        return NULL;
    while (!p->rc && p->tok->kind != T_END) {
        struct node *n;
        if (p->tok->kind == T_DATA) {
            n = parser_node(p, N_DATA);
            if (v_str(p->t, p->tok->p, p->tok->n, NULL, &n->v) < 0 && !p->rc)
                p->rc = p->t->failed;
            parser_next(p);
        } else if (p->tok->kind == T_VAR) {
            parser_next(p);
            n = parser_node(p, N_OUTPUT);
            n->a = parse_tuple(p, 1, NULL, 0);
            parser_expect(p, T_VAR_END, NULL);
        } else {
            parser_expect(p, T_BLOCK, "{%");
            if (ends && p->tok->kind == T_NAME && word_index(ends, p->tok->p, p->tok->n)) {
                p->depth--;
                return list;
            }
            n = parse_statement(p);
        }
        *tail = n;
        tail = &n->next;
    }

    if (ends)
        parser_fail(p, "the block of line %d is not closed: %s is missing", line,
                    strrchr(ends, ' ') ? strrchr(ends, ' ') + 1 : ends);
    p->depth--;
    return list;
}

struct node *tpl_parse(struct tpl *t, const char *s, size_t n, int *generations)
{
    struct tpl_tokens tokens = { 0 };
    t->line = 1;
    if (tpl_lex(t, s, n, &tokens) < 0)
        return NULL;
    struct parser p = { .t = t, .tok = tokens.v, .end = tokens.v + tokens.n - 1 };
    struct node *root = parser_node(&p, N_SCOPE);
    root->list = parse_body(&p, NULL);
    *generations = p.generations;
    if (t->failed && !p.rc)
        p.rc = t->failed;
    return p.rc ? NULL : root;
}

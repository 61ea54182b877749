/* ebnf.c - rules in GBNF, the form of llama.cpp, to nodes of a program.
 *
 *   root  ::= greeting ", " name "!"        # comment
 *   name  ::= [A-Z] [a-z]{1,20} | "you"
 *
 * A rule ends where its line does, unless it stands in parentheses or the next line goes on with "|". Names
 * consist of letters, digits, "-" and "_". "…" and […] have the escapes \n \r \t \\ \" \[ \] \- \^ \xHH
 * \uHHHH \UHHHHHHHH; "." is any character. * + ? {n} {n,} {n,m} repeat. Left recursion is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/grammar/compile.h"
#include "text/tok.h"

#define EBNF_DEPTH 200
#define EBNF_COUNT 1000000
struct ebnf {
    struct program *p;
    struct rule_names *names;
    struct ints defined; /* of rules, by number of their names: 1 */
    const char *s;
    size_t n, at;
    int depth;
};

static int32_t fail(struct ebnf *x, const char *what)
{
    size_t line = 1;
    for (size_t i = 0; i < x->at && i < x->n; i++)
        line += x->s[i] == '\n';
    program_fail(x->p, ERR_CONFIG, "line %zu of the grammar: %s", line, what);
    return 0;
}

static int next_char(const struct ebnf *x) { return x->at < x->n ? (unsigned char)x->s[x->at] : -1; }
static int is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Skips blanks and comments; lines: also ends of lines. */
static void skip(struct ebnf *x, int lines)
{
    for (;; x->at++) {
        int c = next_char(x);
        if (c == '#') {
            while (next_char(x) != '\n' && next_char(x) >= 0)
                x->at++;
            c = next_char(x);
        }
        if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            return;
    }
}

/* The rule of the name that stands here, made when it is new. *number: of the name. */
static int32_t take_rule(struct ebnf *x, int32_t *number)
{
    char name[128] = "";
    size_t n = 0;
    for (; is_name(next_char(x)); x->at++)
        if (n + 1 < sizeof name)
            name[n++] = x->s[x->at];
    if (!n || n + 1 == sizeof name)
        return fail(x, n ? "a name of more than 126 characters" : "a name is expected");
    uint32_t before = x->names->name.n;
    *number = (int32_t)intern_put(&x->names->name, name, n + 1);
    if (x->names->name.n > before) {
        ints_add(&x->names->rule, program_rule(x->p));
        ints_add(&x->defined, 0);
    }
    if (x->names->name.failed || x->names->rule.failed || x->defined.failed)
        program_fail(x->p, ERR_MEMORY, "no memory for a grammar");
    return x->p->failed ? 0 : x->names->rule.v[*number];
}

/* --- characters --- */

static uint32_t take_hex(struct ebnf *x, int n)
{
    uint32_t value = 0;
    for (int i = 0; i < n; i++, x->at++) {
        int c = next_char(x), lower = c | 32;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint32_t)(c - '0');
        else if (c >= 0 && lower >= 'a' && lower <= 'f')
            value = value * 16 + (uint32_t)(lower - 'a' + 10);
        else
            return (uint32_t)fail(x, "an escape without its hex digits");
    }
    if (value > CP_MAX || (value >= 0xD800 && value <= 0xDFFF))
        fail(x, "an escape that is no code point");
    return value;
}

static uint32_t take_cp(struct ebnf *x)
{
    static const char from[] = "nrt\\\"[]-^/", to[] = "\n\r\t\\\"[]-^/";
    uint32_t cp = 0;
    if (next_char(x) != '\\') {
        int len = x->at < x->n ? utf8_next(x->s + x->at, x->n - x->at, &cp) : 0;
        if (len <= 0)
            fail(x, "the grammar ends too early");
        x->at += len > 0 ? (size_t)len : 0;
        return cp;
    }
    x->at++;
    int c = next_char(x);
    const char *known = c > 0 ? strchr(from, c) : NULL;
    x->at += c >= 0;
    if (known)
        return (unsigned char)to[known - from];
    if (c == 'x' || c == 'u' || c == 'U')
        return take_hex(x, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    return (uint32_t)fail(x, "an escape that GBNF does not have");
}

/* --- expressions --- */

/* Nodes from begin to end; end is a NODE_RETURN, until something follows. */
struct fragment {
    int32_t begin, end;
};

static int32_t new_end(struct ebnf *x) { return program_node(x->p, NODE_RETURN, 0, 0, 0); }

/* Goes on at node `to` where the fragment ends. */
static void join(struct ebnf *x, struct fragment f, int32_t to)
{
    struct program *p = x->p;
    ints_add(&p->target, to);
    if (p->target.failed)
        program_fail(p, ERR_MEMORY, "no memory for a grammar");
    if (!p->failed)
        p->node[f.end] = (struct node){ .kind = NODE_ALT, .a = (int32_t)p->target.n - 1, .b = 1 };
}

static struct fragment empty(struct ebnf *x)
{
    int32_t end = new_end(x);
    return (struct fragment){ end, end };
}

static struct fragment terminal(struct ebnf *x, int32_t t)
{
    int32_t end = new_end(x);
    return (struct fragment){ program_node(x->p, NODE_TERM, t, 0, end), end };
}

/* "…", behind its quote. */
static struct fragment take_literal(struct ebnf *x)
{
    struct buf text = { 0 };
    struct fragment f = { 0 };
    while (next_char(x) != '"' && !x->p->failed)
        buf_add_cp(&text, take_cp(x));
    x->at++;
    if (text.failed)
        program_fail(x->p, ERR_MEMORY, "no memory for a grammar");
    if (!x->p->failed && text.n) {
        const char *word = text.p;
        f = terminal(x, program_words(x->p, DECODER_TEXT, &word, &text.n, 1));
    } else if (!x->p->failed) {
        f = empty(x);
    }
    buf_free(&text);
    return f;
}

static void add_escape(struct buf *b, uint32_t cp)
{
    char text[16];
    int n = snprintf(text, sizeof text, "\\u{%x}", cp);
    buf_add(b, text, (size_t)n);
}

/* […], behind its bracket: as a regex. */
static struct fragment take_class(struct ebnf *x)
{
    struct buf text = { 0 };
    int negated = next_char(x) == '^';
    buf_add(&text, "[^", negated ? 2 : 1);
    x->at += (size_t)negated;
    if (next_char(x) == ']')
        fail(x, "an empty class");
    while (next_char(x) != ']' && !x->p->failed) {
        uint32_t lo = take_cp(x), hi = lo;
        if (next_char(x) == '-' && x->at + 1 < x->n && x->s[x->at + 1] != ']') {
            x->at++;
            hi = take_cp(x);
        }
        if (hi < lo)
            fail(x, "a range whose end is below its begin");
        add_escape(&text, lo);
        buf_add(&text, "-", 1);
        add_escape(&text, hi);
    }
    x->at++;
    buf_add(&text, "]", 1);
    if (text.failed)
        program_fail(x->p, ERR_MEMORY, "no memory for a grammar");
    int32_t c = x->p->failed ? 0 : program_regex(x->p, text.p, text.n, REGEX_WHOLE, NULL);
    buf_free(&text);
    return terminal(x, program_simple(x->p, DECODER_TEXT, c));
}

static struct fragment take_alternatives(struct ebnf *x, int in_group);

/* (…), behind its parenthesis. */
static struct fragment take_group(struct ebnf *x)
{
    if (++x->depth > EBNF_DEPTH)
        fail(x, "more groups in groups than 200");
    struct fragment f = x->p->failed ? (struct fragment){ 0 } : take_alternatives(x, 1);
    x->depth--;
    skip(x, 1);
    if (next_char(x) != ')')
        fail(x, "a ( without its )");
    x->at++;
    return f;
}

static struct fragment take_atom(struct ebnf *x)
{
    int32_t number = 0;
    int c = next_char(x);
    if (is_name(c)) {
        int32_t end = new_end(x), rule = take_rule(x, &number);
        return (struct fragment){ program_node(x->p, NODE_CALL, rule, 0, end), end };
    }
    x->at++;
    if (c == '"')
        return take_literal(x);
    if (c == '[')
        return take_class(x);
    if (c == '.')
        return terminal(x, program_pattern(x->p, "[\\s\\S]"));
    if (c == '(')
        return take_group(x);
    x->at--;
    fail(x, "a text, a class, a name or a group is expected");
    return (struct fragment){ 0 };
}

static int64_t take_number(struct ebnf *x)
{
    int64_t value = -1;
    for (; next_char(x) >= '0' && next_char(x) <= '9'; x->at++)
        value = value > EBNF_COUNT ? value : (value < 0 ? 0 : value) * 10 + next_char(x) - '0';
    return value;
}

/* A quantifier: 1, and its counts; 0: there is none. */
static int take_counts(struct ebnf *x, int64_t *min, int64_t *max)
{
    int c = next_char(x);
    *min = c == '+';
    *max = c == '?' ? 1 : -1;
    if (c != '*' && c != '+' && c != '?' && c != '{')
        return 0;
    x->at++;
    if (c != '{')
        return 1;
    *min = *max = take_number(x);
    if (next_char(x) == ',') {
        x->at++;
        *max = take_number(x);
    }
    if (*min < 0 || next_char(x) != '}' || (*max >= 0 && *max < *min) || *min > EBNF_COUNT ||
        *max > EBNF_COUNT)
        fail(x, "a count is {n}, {n,} or {n,m} with n <= m, at most 1000000");
    x->at++;
    return 1;
}

/* The fragment, min to max times. */
static struct fragment repeat(struct ebnf *x, struct fragment f, int64_t min, int64_t max)
{
    int32_t end = new_end(x);
    if (min > 1 || max > 1) {
        int32_t rule = program_rule(x->p);
        if (x->p->failed)
            return f;
        x->p->rule[rule] = f.begin;
        return (struct fragment){ program_repeat(x->p, rule, min, max, end), end };
    }
    int32_t again = program_alt(x->p, (int32_t[]){ f.begin, end }, 2);
    join(x, f, max < 0 ? again : end);
    return (struct fragment){ min ? f.begin : again, end };
}

static struct fragment take_item(struct ebnf *x, int in_group)
{
    struct fragment f = take_atom(x);
    int64_t min, max;
    for (skip(x, in_group); !x->p->failed && take_counts(x, &min, &max); skip(x, in_group))
        f = repeat(x, f, min, max);
    return f;
}

static struct fragment take_sequence(struct ebnf *x, int in_group)
{
    struct fragment all = empty(x);
    for (skip(x, in_group); !x->p->failed; skip(x, in_group)) {
        int c = next_char(x);
        if (c < 0 || c == '|' || c == ')' || c == '\n' || c == '\r')
            break;
        struct fragment one = take_item(x, in_group);
        join(x, all, one.begin);
        all.end = one.end;
    }
    return all;
}

/* Does the next line go on with "|"? Then stands there. */
static int goes_on(struct ebnf *x, int in_group)
{
    size_t at = x->at;
    skip(x, 1);
    if (next_char(x) == '|')
        return 1;
    x->at = in_group ? x->at : at;
    return 0;
}

static struct fragment take_alternatives(struct ebnf *x, int in_group)
{
    struct ints begins = { 0 };
    int32_t end = new_end(x);
    for (int more = 1; more && !x->p->failed;) {
        struct fragment f;
        skip(x, 1);
        f = take_sequence(x, in_group);
        ints_add(&begins, f.begin);
        join(x, f, end);
        more = goes_on(x, in_group);
        x->at += (size_t)more;
    }
    if (begins.failed)
        program_fail(x->p, ERR_MEMORY, "no memory for a grammar");
    struct fragment all = { x->p->failed ? 0 : program_alt(x->p, begins.v, begins.n), end };
    ints_free(&begins);
    return all;
}

/* NAME ::= alternatives */
static void take_definition(struct ebnf *x)
{
    int32_t number = 0, rule = take_rule(x, &number);
    skip(x, 0);
    if (!x->p->failed && (x->at + 3 > x->n || memcmp(x->s + x->at, "::=", 3)))
        fail(x, "::= is expected behind the name of a rule");
    x->at += 3;
    if (!x->p->failed && x->defined.v[number]++)
        fail(x, "a rule is defined twice");
    if (x->p->failed)
        return;
    struct fragment f = take_alternatives(x, 0);
    if (!x->p->failed)
        x->p->rule[rule] = f.begin;
    skip(x, 0);
    if (next_char(x) >= 0 && next_char(x) != '\n' && next_char(x) != '\r')
        fail(x, "the end of a rule is expected");
}

int32_t compile_ebnf(struct program *p, struct rule_names *names, const char *text, size_t n, int32_t next)
{
    struct ebnf x = { .p = p, .names = names, .s = text, .n = n };
    int32_t root = 0;
    /* the names of another grammar in the same spec are not this one's */
    ints_free(&names->rule);
    intern_free(&names->name);
    for (skip(&x, 1); !p->failed && x.at < n; skip(&x, 1))
        take_definition(&x);

    for (size_t i = 0; i < names->rule.n && !p->failed; i++) {
        size_t len;
        const char *name = intern_key(&names->name, (uint32_t)i, &len);
        if (!x.defined.v[i])
            program_fail(p, ERR_CONFIG, "rule %s of the grammar is used and not defined", name);
        root = strcmp(name, "root") ? root : names->rule.v[i];
    }
    if (!p->failed && !root)
        program_fail(p, ERR_CONFIG, "the grammar has no rule root");
    ints_free(&x.defined);
    return program_node(p, NODE_CALL, root, 0, next);
}

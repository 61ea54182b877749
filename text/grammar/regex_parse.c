/* regex_parse.c - the text of a regex to a tree.
 *
 * The syntax is that of ECMA 262, where Python's re and PCRE agree with it; what they read differently (\A,
 * \Z, [[:alpha:]], a class that begins with a bracket) is refused, as is what no finite automaton has:
 * look-around, back references, word boundaries. */
#include "text/grammar/regex_parse.h"

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "text/tok.h"

struct reader {
    const char *s;
    size_t n, at;
    int depth;
    struct regex *r;
    struct regex_tree *t;
    struct err *e;
    int failed; /* *e is set */
};

static int32_t fail(struct reader *p, const char *what)
{
    if (!p->failed)
        err_set(p->e, ERR_CONFIG, "%s at byte %zu of the regex", what, p->at);
    p->failed = 1;
    return 0;
}

static int32_t add(struct reader *p, struct ast node)
{
    struct regex_tree *t = p->t;
    if (t->n == t->cap) {
        struct ast *v = buf_grow(t->v, &t->cap, t->n + 1, sizeof *v);
        if (!v) {
            err_set(p->e, ERR_MEMORY, "no memory for a regex");
            p->failed = 1;
            return 0;
        }
        t->v = v;
    }
    t->v[t->n] = node;
    return (int32_t)t->n++;
}

struct cpset *regex_add_set(struct regex *r)
{
    if (r->n_sets == r->cap_sets) {
        struct cpset *v = buf_grow(r->set, &r->cap_sets, r->n_sets + 1, sizeof *v);
        if (!v)
            return NULL;
        r->set = v;
    }
    memset(&r->set[r->n_sets], 0, sizeof *r->set);
    return &r->set[r->n_sets++];
}

/* A node that is one code point of the set, which is emptied. */
static int32_t add_set(struct reader *p, struct cpset *s)
{
    struct cpset *to = regex_add_set(p->r);
    cpset_normalise(s);
    if (!to || s->failed) {
        cpset_free(s);
        return fail(p, "no memory");
    }
    *to = *s;
    memset(s, 0, sizeof *s);
    return add(p, (struct ast){ AST_SET, .a = (int32_t)p->r->n_sets - 1 });
}

static int more(const struct reader *p) { return p->at < p->n && !p->failed; }
static int next_is(const struct reader *p, const char *word)
{
    size_t n = strlen(word);
    return p->at + n <= p->n && !memcmp(p->s + p->at, word, n);
}
static int take(struct reader *p, const char *word)
{
    if (!next_is(p, word))
        return 0;
    p->at += strlen(word);
    return 1;
}

static uint32_t take_cp(struct reader *p)
{
    uint32_t cp = 0;
    int n = utf8_next(p->s + p->at, p->n - p->at, &cp);
    if (n <= 0) {
        fail(p, "a byte that is not UTF-8");
        return 0;
    }
    p->at += (size_t)n;
    return cp;
}

/* min to max hex digits. */
static uint32_t take_hex(struct reader *p, int min, int max)
{
    uint32_t x = 0;
    int n = 0;
    for (; n < max && p->at < p->n; n++, p->at++) {
        char c = p->s[p->at];
        if (c >= '0' && c <= '9')
            x = x * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            x = x * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else
            break;
    }
    if (n < min)
        fail(p, "an escape without its hex digits");
    return x;
}

static uint32_t take_unicode(struct reader *p)
{
    uint32_t x;
    if (take(p, "{")) {
        x = take_hex(p, 1, 6);
        if (!take(p, "}") || x > CP_MAX)
            fail(p, "a \\u{…} that is no code point");
        return x;
    }
    x = take_hex(p, 4, 4);
    if (x >= 0xD800 && x < 0xDC00 && take(p, "\\u"))
        x = 0x10000 + ((x - 0xD800) << 10) + ((take_hex(p, 4, 4) - 0xDC00) & 0x3FF);
    return x;
}

/* A class as \d or \p{L}; 1: s has it, 0: c begins none. */
static int take_class(struct reader *p, char c, struct cpset *s, int negated)
{
    static const char letters[] = "dws";
    char lower = (char)(c | 32);
    const char *which = strchr(letters, lower);
    int inverse = c != lower;
    struct cpset one = { 0 };

    if (lower == 'p' && take(p, "{")) {
        size_t begin = p->at;
        while (p->at < p->n && p->s[p->at] != '}')
            p->at++;
        if (p->at == p->n || cpset_category(&one, p->s + begin, p->at - begin) < 0)
            fail(p, "a \\p{…} that is no general category");
        p->at++;
    } else if (c && which) {
        cpset_class(&one, (enum cp_class)(which - letters), inverse != negated);
    } else {
        return 0;
    }

    cpset_normalise(&one);
    if (inverse)
        cpset_invert(&one);
    s->failed |= one.failed;
    cpset_join(s, &one);
    cpset_free(&one);
    return 1;
}

/* The character of an escape that is one, behind its backslash. */
static uint32_t take_escaped(struct reader *p, int in_class)
{
    static const char from[] = "tnvfr", to[] = "\t\n\v\f\r";
    if (p->at == p->n) {
        fail(p, "a backslash at the end");
        return 0;
    }
    char c = p->s[p->at];
    const char *control = c ? strchr(from, c) : NULL;
    if ((unsigned char)c >= 0x80)
        return take_cp(p);
    p->at++;
    if (control)
        return (unsigned char)to[control - from];
    if (c == '0' && !(p->at < p->n && p->s[p->at] >= '0' && p->s[p->at] <= '9'))
        return 0;
    if (c == 'x')
        return take_hex(p, 2, 2);
    if (c == 'u')
        return take_unicode(p);
    if (c == 'b' && in_class)
        return 8;
    if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')) {
        p->at--;
        fail(p, (c >= '1' && c <= '9') || c == 'k' ? "a back reference, which is not honoured,"
                : (c | 32) == 'b'                  ? "a word boundary, which is not honoured,"
                                                   : "an escape that is not honoured");
    }
    return (unsigned char)c;
}

/* One end of a range of a class; *is_class: it is a class as \d, which s has. */
static uint32_t class_atom(struct reader *p, struct cpset *s, int negated, int *is_class)
{
    *is_class = 0;
    if (!take(p, "\\"))
        return take_cp(p);
    if (p->at < p->n) {
        p->at++;
        if (take_class(p, p->s[p->at - 1], s, negated)) {
            *is_class = 1;
            return 0;
        }
        p->at--;
    }
    return take_escaped(p, 1);
}

static void class_item(struct reader *p, struct cpset *s, int negated)
{
    int is_class, ends_in_class;
    uint32_t lo, hi;

    if (next_is(p, "[:") || next_is(p, "[.") || next_is(p, "[=")) {
        fail(p, "a class of POSIX, which is not honoured,");
        return;
    }
    lo = hi = class_atom(p, s, negated, &is_class);
    if (next_is(p, "-") && !next_is(p, "-]") && p->at + 1 < p->n) {
        p->at++;
        hi = class_atom(p, s, negated, &ends_in_class);
        if (is_class || ends_in_class || hi < lo)
            fail(p, "a range whose ends are no range");
    }
    if (!is_class)
        cpset_add(s, lo, hi);
}

/* [...], behind its bracket. */
static int32_t parse_class(struct reader *p)
{
    struct cpset s = { 0 };
    int negated = take(p, "^");
    if (next_is(p, "]"))
        return fail(p, "a class that begins with ], which is read in two ways,");
    while (more(p) && !next_is(p, "]"))
        class_item(p, &s, negated);
    if (!take(p, "]"))
        fail(p, "a [ without its ]");
    cpset_normalise(&s);
    if (negated)
        cpset_invert(&s);
    return add_set(p, &s);
}

static int32_t parse_escape(struct reader *p)
{
    struct cpset s = { 0 };
    if (p->at < p->n) {
        char c = p->s[p->at++];
        if (take_class(p, c, &s, 0))
            return add_set(p, &s);
        p->at--;
    }
    uint32_t cp = take_escaped(p, 0);
    cpset_add(&s, cp, cp);
    return add_set(p, &s);
}

static int32_t parse_alternatives(struct reader *p);

/* (...), behind its parenthesis. */
static int32_t parse_group(struct reader *p)
{
    if (take(p, "?")) {
        if (next_is(p, "=") || next_is(p, "!") || next_is(p, "<=") || next_is(p, "<!"))
            return fail(p, "look-around, which is not honoured,");
        take(p, "P");
        if (take(p, "<")) {
            while (p->at < p->n && p->s[p->at] != '>')
                p->at++;
            if (!take(p, ">"))
                return fail(p, "a group's name without its >");
        } else if (!take(p, ":")) {
            return fail(p, "flags or a group that are not honoured");
        }
    }

    if (++p->depth > REGEX_DEPTH)
        return fail(p, "more groups in groups than 200");
    int32_t inner = parse_alternatives(p);
    p->depth--;
    if (!take(p, ")"))
        return fail(p, "a ( without its )");
    return inner;
}

static int32_t parse_dot(struct reader *p)
{
    struct cpset s = { 0 };
    cpset_add(&s, '\n', '\n');
    cpset_add(&s, '\r', '\r');
    cpset_add(&s, 0x2028, 0x2029);
    cpset_invert(&s);
    return add_set(p, &s);
}

static int32_t parse_atom(struct reader *p)
{
    struct cpset s = { 0 };
    if (take(p, "("))
        return parse_group(p);
    if (take(p, "["))
        return parse_class(p);
    if (take(p, "\\"))
        return parse_escape(p);
    if (take(p, "."))
        return parse_dot(p);
    if (take(p, "^"))
        return add(p, (struct ast){ AST_BEGIN });
    if (take(p, "$"))
        return add(p, (struct ast){ AST_END });
    if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?"))
        return fail(p, "a quantifier behind nothing");
    uint32_t cp = take_cp(p);
    cpset_add(&s, cp, cp);
    return add_set(p, &s);
}

/* A number of at most 6 digits; -1: none. */
static int32_t take_count(struct reader *p)
{
    size_t begin = p->at;
    int32_t x = 0;
    for (; p->at < p->n && p->s[p->at] >= '0' && p->s[p->at] <= '9'; p->at++)
        x = p->at - begin < 7 ? x * 10 + (p->s[p->at] - '0') : x;
    return p->at == begin ? -1 : x;
}

/* {n}, {n,}, {n,m}: 1; 0: the brace is a character. */
static int take_counts(struct reader *p, int32_t *min, int32_t *max)
{
    size_t begin = p->at;
    if (!take(p, "{"))
        return 0;
    *min = *max = take_count(p);
    if (*min >= 0 && take(p, ","))
        *max = take_count(p);
    if (*min >= 0 && take(p, "}"))
        return 1;
    p->at = begin;
    return 0;
}

static int32_t parse_repeat(struct reader *p)
{
    int32_t atom = parse_atom(p), min = 0, max = -1;
    int counted = 0;

    if (p->failed)
        return 0;
    if (take(p, "*"))
        counted = 1;
    else if (take(p, "+"))
        counted = min = 1;
    else if (take(p, "?"))
        counted = max = 1;
    else
        counted = take_counts(p, &min, &max);
    if (!counted)
        return atom;

    take(p, "?"); /* a lazy one matches the same texts */
    if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?") || next_is(p, "{"))
        return fail(p, "a quantifier behind a quantifier");
    if (max >= 0 && max < min)
        return fail(p, "a count whose end is below its begin");
    return add(p, (struct ast){ AST_REPEAT, .a = atom, .min = min, .max = max });
}

static int32_t parse_sequence(struct reader *p)
{
    int32_t all = -1;
    while (more(p) && !next_is(p, "|") && !next_is(p, ")")) {
        int32_t one = parse_repeat(p);
        all = all < 0 ? one : add(p, (struct ast){ AST_CAT, .a = all, .b = one });
    }
    return all < 0 ? add(p, (struct ast){ AST_EMPTY }) : all;
}

static int32_t parse_alternatives(struct reader *p)
{
    int32_t all = parse_sequence(p);
    while (!p->failed && take(p, "|")) {
        int32_t one = parse_sequence(p);
        all = add(p, (struct ast){ AST_ALT, .a = all, .b = one });
    }
    return all;
}

int regex_parse(struct regex_tree *t, struct regex *r, const char *text, size_t n, struct err *e)
{
    struct reader p = { .s = text, .n = n, .r = r, .t = t, .e = e };
    memset(t, 0, sizeof *t);
    t->top = parse_alternatives(&p);
    if (!p.failed && p.at < n)
        fail(&p, "a ) without its (");
    return p.failed ? -e->code : 0;
}

/* pattern.c - the patterns of tokenizer.json: literal strings, and regexes run by PCRE2 as machine code.
 *
 * The files are written for Oniguruma with Ruby's syntax. Where PCRE2 differs, the regex is translated or
 * rejected:
 *   \w \W \b \B   PCRE2 excludes marks and circled letters from words: translated to classes
 *   [:alpha:]     PCRE2's POSIX classes are smaller: translated to properties; [:print:] and negated ones
 *                 ([:^alpha:]) are rejected
 *   \uHHHH        translated to \x{HHHH}
 *   \v            translated to U+000B; x{,3} to x{0,3}
 *   ^ $           match at every line (PCRE2_MULTILINE)
 *   \h \V \Q \E, [a[b]], [a&&b], (?m…)    mean something else in PCRE2: rejected
 * Characters newer than PCRE2's tables are matched as older ones of the same category (uni_stand_in).
 * Oniguruma itself is slower: tests/bench/ATTEMPTS.md. */
#define _GNU_SOURCE /* memmem */
#include "text/tok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define WORD_SET \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{" \
    "1F170}-\\x{1F189}"
/* Outside of a class, Oniguruma also counts the superscripts and fractions of Latin-1 as word characters. */
#define WORD_ALONE WORD_SET "\\xB2\\xB3\\xB9\\xBC-\\xBE"
#define WORD "[" WORD_ALONE "]"
#define AT_EDGE(in, out) "(?:(?<=" WORD ")(?" in WORD ")|(?<!" WORD ")(?" out WORD "))"
/* The stack of the machine code, in bytes; it grows only for patterns that nest. */
#define STACK_START ((size_t)32 << 10)
#define STACK_LIMIT ((size_t)64 << 20)

static const struct {
    char name;
    const char *outside, *inside;
} escapes[] = {
    { 'w', WORD, WORD_SET },
    { 'W', "[^" WORD_ALONE "]", NULL },
    { 'b', AT_EDGE("!", "="), "\\x08" },
    { 'B', AT_EDGE("=", "!"), NULL },
    { 'v', "\\x0B", "\\x0B" },
    { 'h', NULL, NULL },
    { 'H', NULL, NULL },
    { 'C', NULL, NULL },
    { 'V', NULL, NULL },
    { 'Q', NULL, NULL },
    { 'E', NULL, NULL },
};

static const struct {
    const char *name, *set;
} posix_classes[] = {
    { "alpha", "\\p{Alphabetic}" }, { "alnum", "\\p{Alphabetic}\\p{Nd}" },
    { "upper", "\\p{Uppercase}" },  { "lower", "\\p{Lowercase}" },
    { "punct", "\\p{P}\\p{S}" },    { "word", WORD_SET },
    { "digit", "\\p{Nd}" },         { "space", "\\s" },
    { "xdigit", "0-9A-Fa-f" },      { "cntrl", "\\p{Cc}" },
    { "blank", "\\t\\p{Zs}" },
};

/* Translates [:alpha:] in a class, from its bracket on. Returns its bytes in the source; 0: not supported. */
static size_t translate_posix(const char *s, size_t n, struct buf *out)
{
    for (size_t k = 0; k < sizeof posix_classes / sizeof *posix_classes; k++) {
        size_t len = strlen(posix_classes[k].name);
        if (n < len + 4 || memcmp(s + 2, posix_classes[k].name, len) || memcmp(s + 2 + len, ":]", 2))
            continue;
        buf_add(out, posix_classes[k].set, strlen(posix_classes[k].set));
        return len + 4;
    }
    return 0;
}

/* Translates \uHHHH. Returns its 6 bytes; 0: not supported. */
static size_t translate_u(const char *s, size_t n, struct buf *out)
{
    if (n < 6 || strspn(s + 2, "0123456789abcdefABCDEF") < 4)
        return 0;
    buf_add(out, "\\x{", 3);
    buf_add(out, s + 2, 4);
    buf_add(out, "}", 1);
    return 6;
}

/* Translates one escape. Returns its bytes in the source; 0: not supported. */
static size_t translate_escape(const char *s, size_t n, int in_class, struct buf *out)
{
    if (n < 2) {
        buf_add(out, s, n);
        return n;
    }

    if (s[1] == 'u')
        return translate_u(s, n, out);
    for (size_t k = 0; k < sizeof escapes / sizeof *escapes; k++) {
        if (escapes[k].name != s[1])
            continue;
        const char *text = in_class ? escapes[k].inside : escapes[k].outside;
        if (!text)
            return 0;
        buf_add(out, text, strlen(text));
        return 2;
    }

    buf_add(out, s, 2);
    return 2;
}

static int refused(const char *part, const char *what, struct err *e)
{
    return err_set(e, ERR_CONFIG, "%s: the regex uses %s, which is not supported", what, part);
}

static int translate(const char *s, size_t n, struct buf *out, const char *what, struct err *e)
{
    int in_class = 0;
    for (size_t i = 0; i < n;) {
        if (s[i] == '\\') {
            size_t used = translate_escape(s + i, n - i, in_class, out);
            if (!used)
                return refused((const char[]){ '\\', s[i + 1], 0 }, what, e);
            i += used;
            continue;
        }
        if (in_class && s[i] == '[' && i + 1 < n && s[i + 1] != ':')
            return refused("a class inside of a class", what, e);
        if (in_class && s[i] == '&' && i + 1 < n && s[i + 1] == '&')
            return refused("an intersection of classes (&&)", what, e);
        if (!in_class && n - i > 2 && s[i] == '(' && s[i + 1] == '?' && s[i + 2] == 'm')
            return refused("(?m", what, e);
        if (!in_class && s[i] == '[') {
            in_class = 1;
            /* a bracket right behind the opening one is a member */
            size_t m = 1 + (i + 1 < n && s[i + 1] == '^');
            m += i + m < n && s[i + m] == ']';
            buf_add(out, s + i, m);
            i += m;
            continue;
        }
        if (in_class && s[i] == '[') {
            size_t used = translate_posix(s + i, n - i, out);
            if (!used)
                return refused("a [:class:] other than alpha, alnum, upper, lower, punct, word, digit, "
                               "space, xdigit, cntrl, blank",
                               what, e);
            i += used;
            continue;
        }
        if (s[i] == ']')
            in_class = 0;
        buf_add(out, s + i++, 1);
        if (!in_class && s[i - 1] == '{' && n - i > 1 && s[i] == ',' && s[i + 1] >= '0' && s[i + 1] <= '9')
            buf_add(out, "0", 1); /* {,3} */
    }
    return out->failed ? text_memory(e) : 0;
}

int pattern_regex(struct pattern *p, const char *regex, size_t n, const char *what, struct err *e)
{
    struct buf source = { 0 };
    int code, rc = 0;
    size_t at;

    TRY(translate(regex, n, &source, what, e));
    p->code = pcre2_compile((PCRE2_SPTR)(source.p ? source.p : ""), source.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at,
                            NULL);
    if (!p->code) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        rc = err_set(e, ERR_CONFIG, "%s: the regex does not compile: %s", what, why);
        goto out;
    }

    /* if it fails (a CPU without JIT support) PCRE2 interprets the pattern: slower, the same matches */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
out:
    buf_free(&source);
    return rc;
}

int pattern_load(struct pattern *p, const json_t *node, const char *what, struct err *e)
{
    const char *s;
    size_t n;
    int rc;
    if ((rc = text_member(node, "Regex", &s, &n, what, e)) != 0)
        return rc < 0 ? rc : pattern_regex(p, s, n, what, e);
    if ((rc = text_member(node, "String", &s, &n, what, e)) < 0)
        return rc;
    if (rc == 0 || n == 0)
        return err_set(e, ERR_CONFIG, "%s: pattern is neither a String nor a Regex", what);
    return text_copy(&p->literal, &p->n, s, n, e);
}

void pattern_free(struct pattern *p)
{
    free(p->literal);
    pcre2_code_free(p->code);
    *p = (struct pattern){ 0 };
}

int finder_open(struct finder *m, const struct pattern *p, struct err *e)
{
    *m = (struct finder){ .pat = p, .last_end = SIZE_MAX };
    if (!p->code)
        return 0;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    return m->data && m->context ? 0 : text_memory(e);
}

void finder_close(struct finder *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    if (m->stack)
        pcre2_jit_stack_free(m->stack);
    buf_free(&m->stand);
    *m = (struct finder){ 0 };
}

/* Returns s, or a copy of the same length with stand-ins for characters that PCRE2 does not know; NULL:
 * out of memory. */
static const char *known_text(struct finder *m, const char *s, size_t n)
{
    m->stand.n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        if ((unsigned char)s[i] < 0xE0) { /* all such characters are above U+07FF */
            i++;
            continue;
        }
        size_t len = (size_t)utf8_next(s + i, n - i, &cp);
        uint32_t old = uni_stand_in(cp);
        i += len;
        if (old == cp)
            continue;
        buf_add(&m->stand, s + m->stand.n, i - len - m->stand.n);
        buf_add_cp(&m->stand, old);
    }

    if (m->stand.n)
        buf_add(&m->stand, s + m->stand.n, n - m->stand.n);
    return m->stand.failed ? NULL : m->stand.n ? m->stand.p : s;
}

void finder_text(struct finder *m, const char *s, size_t n)
{
    m->s = m->pat->code ? known_text(m, s, n) : s;
    m->n = n;
    m->at = 0;
    m->last_end = SIZE_MAX;
}

static int regex_search(struct finder *m, size_t *start, size_t *end, struct err *e)
{
    /* the text is known to be valid UTF-8: a check at every match would take quadratic time */
    int found = pcre2_match(m->pat->code, (PCRE2_SPTR)m->s, m->n, m->at, PCRE2_NO_UTF_CHECK, m->data,
                            m->context);

    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) {
        m->stack = pcre2_jit_stack_create(STACK_START, STACK_LIMIT, NULL);
        if (!m->stack)
            return text_memory(e);
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        found = pcre2_match(m->pat->code, (PCRE2_SPTR)m->s, m->n, m->at, PCRE2_NO_UTF_CHECK, m->data,
                            m->context);
    }

    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0) {
        char why[128];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
        return err_set(e, ERR_CONFIG, "the tokenizer's regex gives up on this text: %s", why);
    }

    const size_t *v = pcre2_get_ovector_pointer(m->data);
    *start = v[0];
    *end = v[1];
    return 1;
}

/* An empty match at the end of the last match does not count, as in Oniguruma's iterator. */
int finder_next(struct finder *m, size_t *start, size_t *end, struct err *e)
{
    if (!m->s)
        return text_memory(e);
    while (m->at <= m->n) {
        if (m->pat->literal) {
            const char *hit = memmem(m->s + m->at, m->n - m->at, m->pat->literal, m->pat->n);
            if (!hit)
                return 0;
            *start = (size_t)(hit - m->s);
            *end = m->at = *start + m->pat->n;
            return 1;
        }
        int found = regex_search(m, start, end, e);
        if (found <= 0)
            return found;
        if (*end < *start) /* \K in a look-ahead */
            *end = *start;
        m->at = *end;
        if (*start == *end && *end == m->last_end) {
            uint32_t cp;
            m->at += m->at < m->n ? (size_t)utf8_next(m->s + m->at, m->n - m->at, &cp) : 1;
            continue;
        }
        m->last_end = *end;
        return 1;
    }
    return 0;
}

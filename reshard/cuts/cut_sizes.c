/* cut_sizes.c - see cut_sizes.h. A recursive descent over the characters of the expression. */
#include "reshard/cuts/cut_sizes.h"

#include <string.h>

#define NUMBER_MAX ((int64_t)1 << 48)
#define DEPTH_MAX 32 /* parentheses, and expressions in place of keys */

struct reader {
    const struct cut_sizes *s;
    const char *whole, *at;
    int depth;
    struct err *e;
};

static int read_sum(struct reader *r, int64_t *out);

static int wrong(const struct reader *r, const char *why)
{
    return err_set(r->e, ERR_CONFIG, "%s: %.80s: %s", r->s->what, r->whole, why);
}

/* ---- keys ---- */

static const json_t *member_of(const json_t *o, const char *path, size_t n)
{
    while (n && json_is_object(o)) {
        const char *dot = memchr(path, '.', n);
        size_t word = dot ? (size_t)(dot - path) : n;
        o = json_object_getn(o, path, word);
        path += dot ? word + 1 : word;
        n -= dot ? word + 1 : word;
    }
    return n || json_is_null(o) ? NULL : o;
}

const json_t *cut_sizes_member(const struct cut_sizes *s, const char *path, size_t n)
{
    const json_t *v = member_of(s->text, path, n);
    return v ? v : member_of(s->root, path, n);
}

/* The expression that stands for a key; NULL: none does. */
static const char *given(const struct cut_sizes *s, const char *key, size_t n)
{
    for (size_t i = 0; i < sizeof s->given / sizeof *s->given; i++)
        for (const char *at = s->given[i]; at && *at;) {
            if (!strncmp(at, key, n) && at[n] == '=')
                return at + n + 1;
            at += strcspn(at, " ");
            at += strspn(at, " ");
        }
    return NULL;
}

static int value_of_key(struct reader *r, const char *key, size_t n, int64_t *out)
{
    const json_t *v = cut_sizes_member(r->s, key, n);
    const char *other = v ? NULL : given(r->s, key, n);
    if (json_is_boolean(v))
        *out = json_is_true(v);
    else if (json_is_integer(v))
        *out = json_integer_value(v);
    else if (v)
        return err_set(r->e, ERR_CONFIG, "%s: %.*s is not a whole number", r->s->what, (int)n, key);
    if (v && (*out < 0 || *out > NUMBER_MAX))
        return err_set(r->e, ERR_CONFIG, "%s: %.*s is %lld: it must be from 0 to 2^48", r->s->what, (int)n,
                       key, (long long)*out);
    if (v)
        return 0;
    if (!other)
        return err_set(r->e, ERR_CONFIG, "%s: has no %.*s, which the cuts of its model_type need: add it",
                       r->s->what, (int)n, key);

    struct reader inner = { r->s, other, other, r->depth + 1, r->e };
    return inner.depth > DEPTH_MAX ? wrong(r, "nested too deep") : read_sum(&inner, out);
}

/* ---- expressions ---- */

static int is_key(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

static int read_value(struct reader *r, int64_t *out)
{
    size_t n = 0;
    int64_t v = 0;
    if (*r->at == '(') {
        r->at++;
        if (++r->depth > DEPTH_MAX)
            return wrong(r, "nested too deep");
        int rc = read_sum(r, out);
        if (rc < 0)
            return rc;
        r->depth--;
        return *r->at == ')' ? (r->at++, 0) : wrong(r, "a ) is missing");
    }

    while (is_key(r->at[n]))
        n++;
    const char *word = r->at;
    r->at += n;
    if (!n)
        return wrong(r, "a number or a key is missing");
    if (*word < '0' || *word > '9')
        return value_of_key(r, word, n, out);
    for (size_t i = 0; i < n; i++) {
        if (word[i] < '0' || word[i] > '9' || v > NUMBER_MAX)
            return wrong(r, "not a number");
        v = v * 10 + (word[i] - '0');
    }
    *out = v;
    return 0;
}

static int apply(struct reader *r, char sign, int64_t *a, int64_t b)
{
    int over = 0;
    switch (sign) {
    case '+': over = __builtin_add_overflow(*a, b, a); break;
    case '-': over = __builtin_sub_overflow(*a, b, a); break;
    case '*': over = __builtin_mul_overflow(*a, b, a); break;
    default:
        if (!b || *a % b)
            return err_set(r->e, ERR_CONFIG, "%s: %.80s: %lld / %lld is not a whole number", r->s->what,
                           r->whole, (long long)*a, (long long)b);
        *a /= b;
    }
    return over || *a < 0 || *a > NUMBER_MAX ? wrong(r, "it is below 0 or over 2^48") : 0;
}

static int read_product(struct reader *r, int64_t *out)
{
    int64_t b;
    int rc = read_value(r, out);
    while (rc >= 0 && (*r->at == '*' || *r->at == '/')) {
        char sign = *r->at++;
        if ((rc = read_value(r, &b)) >= 0)
            rc = apply(r, sign, out, b);
    }
    return rc;
}

static int read_sum(struct reader *r, int64_t *out)
{
    int64_t b;
    int rc = read_product(r, out);
    while (rc >= 0 && (*r->at == '+' || *r->at == '-')) {
        char sign = *r->at++;
        if ((rc = read_product(r, &b)) >= 0)
            rc = apply(r, sign, out, b);
    }
    return rc;
}

int cut_sizes_value(const struct cut_sizes *s, const char *expression, int64_t *out, struct err *e)
{
    struct reader r = { s, expression, expression, 0, e };
    int rc = read_sum(&r, out);
    return rc < 0 ? rc : *r.at ? wrong(&r, "an operator is missing") : 0;
}

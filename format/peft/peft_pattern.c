/* peft_pattern.c - rank_pattern and alpha_pattern of an adapter: regular expressions of Python, as far as
 * POSIX has them too. */
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include "format/peft/peft_priv.h"

#define PATTERN_BYTES 200
#define GROUPS_MAX 16

/* One character behind a backslash, as POSIX writes it. 0: unknown here. */
static const char *escaped(char c, char out[4])
{
    static const char plain[] = ".-_+*?()|^$[]/\\";
    if (c == 'd')
        return "[0-9]";
    if (c == 'w')
        return "[A-Za-z0-9_]";
    if (!c || !strchr(plain, c))
        return NULL;
    snprintf(out, 4, strchr("^\\", c) ? "\\%c" : "[%c]", c);
    return out;
}

/* Where a pattern has been read up to. */
struct reader {
    int in_list, depth;
    int repeats[GROUPS_MAX + 1]; /* of each open group: 1: something in it is repeated */
    int closed;                  /* of the group that ends just here: its `repeats`; 0: none ends here */
    int was_repeat;              /* the character before is * + or ? */
};

/* 1: the plain character fits the pattern so far. Repetitions of repetitions may take any time and memory, in
 * Python too. */
static int take(struct reader *r, char c)
{
    const int is_repeat = !r->in_list && strchr("*+?", c) != NULL, closed = r->closed;
    const int ok = !strchr("{}", c) && !(r->in_list && c == '[') && !(is_repeat && (closed || r->was_repeat));
    r->closed = 0;
    if (r->in_list || c == '[') {
        r->in_list = c != ']';
    } else if (c == '(') {
        if (++r->depth > GROUPS_MAX)
            return 0;
        r->repeats[r->depth] = 0;
    } else if (c == ')') {
        if (r->depth == 0)
            return 0;
        r->closed = r->repeats[r->depth--];
        r->repeats[r->depth] |= r->closed;
    }
    r->repeats[r->depth] |= is_repeat;
    r->was_repeat = is_repeat || (!r->in_list && c == '('); /* "(?" is Python's own */
    return ok;
}

/* Translates a pattern to an extended one of POSIX. 0: it uses what POSIX has not, or what may take any
 * time. */
static int translate(const char *key, char out[8 * PATTERN_BYTES])
{
    size_t n = (size_t)snprintf(out, 32, "^(.*\\.)?(");
    struct reader r = { 0 };
    for (const char *p = key; *p; p++) {
        char one[4] = { *p };
        const char *text = one;
        if (*p == '\\') {
            if (r.in_list || !(text = escaped(*++p, one)))
                return 0;
            r.closed = r.was_repeat = 0;
        } else if (!take(&r, *p)) {
            return 0;
        }
        n += (size_t)snprintf(out + n, 16, "%s", text);
    }
    snprintf(out + n, 8, ")$");
    return r.depth == 0;
}

/* 1: it matches, 0: it does not. */
static int matches(const char *key, const char *name, struct err *e)
{
    char text[8 * PATTERN_BYTES + 64];
    regex_t re;
    if (strlen(key) >= PATTERN_BYTES || !translate(key, text) || regcomp(&re, text, REG_EXTENDED | REG_NOSUB))
        return err_set(e, ERR_FORMAT,
                       PEFT_CONFIG
                       ": the pattern \"%.100s\" is not understood: write it with names, \\., \\d, "
                       "lists, * and |",
                       key);
    int yes = regexec(&re, name, 0, NULL, 0) == 0;
    regfree(&re);
    return yes;
}

int peft_pattern(const json_t *o, const char *name, const json_t **v, struct err *e)
{
    const char *key;
    json_t *x;
    *v = NULL;
    json_object_foreach((json_t *)o, key, x) {
        int rc = matches(key, name, e);
        if (rc < 0)
            return rc;
        if (rc > 0) {
            *v = x;
            return 0;
        }
    }
    return 0;
}

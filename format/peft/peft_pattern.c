/* peft_pattern.c - rank_pattern and alpha_pattern of an adapter: regular expressions of Python, as far as
 * POSIX has them too. */
#include <regex.h>
#include <stdio.h>
#include <string.h>
#include "format/peft/peft_priv.h"

#define PATTERN_BYTES 200

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

/* Translates a pattern to an extended one of POSIX. 0: it uses what POSIX has not, or counts repetitions,
 * which may take any memory. */
static int translate(const char *key, char out[8 * PATTERN_BYTES])
{
    size_t n = (size_t)snprintf(out, 32, "^(.*\\.)?(");
    int in_list = 0;
    for (const char *p = key; *p; p++) {
        char one[4] = { *p };
        const char *text = one;
        if (strchr("{}", *p) || (p > key && *p == '?' && strchr("*+?(", p[-1])) ||
            (in_list && strchr("\\[", *p)))
            return 0;
        in_list = *p == '[' ? 1 : *p == ']' ? 0 : in_list;
        if (*p == '\\' && !(text = escaped(*++p, one)))
            return 0;
        n += (size_t)snprintf(out + n, 16, "%s", text);
    }
    snprintf(out + n, 8, ")$");
    return 1;
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

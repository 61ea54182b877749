/* err.c - see err.h. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *hint;
} info[ERR_COUNT] = { { 0, "" },
#define X(name, status, hint) { status, hint },
                      ERR_LIST(X)
#undef X
};

#define SPARE 80 /* bytes of the longest strerror, with ": " */

static int known(int code) { return code > ERR_NONE && code < ERR_COUNT ? code : ERR_INTERNAL; }

/* The text of fmt. One that does not fit loses its middle: what is wrong and what to do stand at the ends of
 * a message, and long paths between them. spare: bytes left free behind it. */
static size_t print_text(struct err *e, size_t spare, const char *fmt, va_list ap)
{
    char all[2 * 4096 + 512]; /* two longest paths */
    const size_t most = sizeof e->text - 1 - spare, half = (most - 5) / 2;
    int n = vsnprintf(all, sizeof all, fmt, ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof all ? (size_t)n : sizeof all - 1;
    all[len] = 0;
    if (len <= most)
        memcpy(e->text, all, len + 1);
    else
        len = (size_t)snprintf(e->text, sizeof e->text, "%.*s ... %s", (int)half, all, all + len - half);
    return len;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;
    e->code = known(code);
    va_start(ap, fmt);
    print_text(e, 0, fmt, ap);
    va_end(ap);
    return -e->code;
}

int err_sys(struct err *e, const char *fmt, ...)
{
    int n = errno;
    va_list ap;
    e->code = n == ENOSPC || n == EDQUOT ? ERR_SPACE : n == ENOMEM ? ERR_MEMORY : ERR_FILE;
    va_start(ap, fmt);
    size_t len = print_text(e, SPARE, fmt, ap);
    va_end(ap);
    snprintf(e->text + len, sizeof e->text - len, ": %s", strerror(n));
    return -e->code;
}

__attribute__((format(printf, 2, 3))) static void replace_text(struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_text(e, 0, fmt, ap);
    va_end(ap);
}

int err_add(struct err *e, const char *fmt, ...)
{
    char before[sizeof e->text], text[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(before, sizeof before, fmt, ap);
    va_end(ap);
    memcpy(text, e->text, sizeof text);
    replace_text(e, "%s: %s", before, text);
    return -known(e->code);
}

int err_exit_status(int code) { return info[known(code < 0 ? -code : code)].status; }

int err_print(const struct err *e, const char *program)
{
    const char *hint = info[known(e->code)].hint;
    int has_advice = strchr(e->text, ':') != NULL || !*hint;
    fprintf(stderr, has_advice ? "%s: %s\n" : "%s: %s: %s\n", program, e->text, hint);
    return err_exit_status(e->code);
}

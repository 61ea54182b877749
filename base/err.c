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

static int known(int code) { return code > ERR_NONE && code < ERR_COUNT ? code : ERR_INTERNAL; }

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;
    e->code = known(code);
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return -e->code;
}

int err_sys(struct err *e, const char *fmt, ...)
{
    int n = errno;
    va_list ap;
    e->code = n == ENOSPC || n == EDQUOT ? ERR_SPACE : n == ENOMEM ? ERR_MEMORY : ERR_FILE;
    va_start(ap, fmt);
    int len = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (len >= 0 && (size_t)len < sizeof e->text)
        snprintf(e->text + len, sizeof e->text - (size_t)len, ": %s", strerror(n));
    return -e->code;
}

int err_add(struct err *e, const char *fmt, ...)
{
    char before[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(before, sizeof before, fmt, ap);
    va_end(ap);
    if (len >= 0 && (size_t)len < sizeof before - 3) {
        snprintf(before + len, sizeof before - (size_t)len, ": %.*s", (int)(sizeof before - 3 - (size_t)len),
                 e->text);
        memcpy(e->text, before, sizeof before);
    }
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

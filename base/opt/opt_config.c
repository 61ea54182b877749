/* opt_config.c - a TOML file of options as arguments (opt_config_words in opt.h).
 *
 * The part of TOML 1.0 that options need: bare and quoted keys; strings of one line, integers, floats,
 * booleans, and arrays of them, which may span lines. Tables, dates, other bases and multi-line strings are
 * refused by name. */
#include "base/opt.h"

#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/opt/opt_help.h"

struct reader {
    const struct opt_program *p;
    const char *s; /* what is left of the text, ended by 0 */
    int line;
    struct buf text;       /* of the value that was read last */
    struct opt_words *out; /* the arguments so far */
    const char *key[256];  /* the keys so far: borrowed from the options */
    int n_keys;
    struct err *e;
};

static int refuse(const struct reader *r, const char *what)
{
    return err_set(r->e, ERR_USAGE, "line %d: %s", r->line, what);
}

/* Skips blanks, and with `lines` ends of lines and comments too. */
static void skip(struct reader *r, int lines)
{
    for (;; r->s++) {
        if (lines && *r->s == '#')
            r->s += strcspn(r->s, "\n");
        if (lines && *r->s == '\n')
            r->line++;
        else if (*r->s != ' ' && *r->s != '\t' && !(*r->s == '\r' && r->s[1] == '\n'))
            return;
    }
}

static void add_char(struct reader *r, uint32_t cp)
{
    char c[4];
    size_t n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char head[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; cp >>= 6)
        c[i] = (char)(0x80 | (cp & 0x3F));
    c[0] = (char)(head[n] | cp);
    buf_add(&r->text, c, n);
}

/* \uXXXX or \UXXXXXXXX, behind the backslash. */
static int read_code(struct reader *r)
{
    char digits[9] = { 0 };
    size_t n = *r->s == 'u' ? 4 : 8;
    memcpy(digits, r->s + 1, strnlen(r->s + 1, n));
    unsigned long cp = strtoul(digits, NULL, 16);
    if (strspn(digits, "0123456789abcdefABCDEF") != n || cp == 0 || cp > 0x10FFFF ||
        (cp >= 0xD800 && cp < 0xE000))
        return refuse(r, "an escape of a string is no character: use \\uXXXX with four hexadecimal digits");
    add_char(r, (uint32_t)cp);
    r->s += n + 1;
    return 0;
}

static int read_escape(struct reader *r)
{
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    const char *at = *r->s ? strchr(from, *r->s) : NULL;
    if (*r->s == 'u' || *r->s == 'U')
        return read_code(r);
    if (!at)
        return refuse(r, "an unknown escape in a string: write a backslash as \\\\, or use '…'");
    add_char(r, (uint32_t)to[at - from]);
    r->s++;
    return 0;
}

static int read_string(struct reader *r)
{
    char quote = *r->s++;
    int rc = 0;
    if (r->s[0] == quote && r->s[1] == quote)
        return refuse(r, "a string of several lines is not supported: write it in one line");
    while (*r->s != quote) {
        if (!*r->s || *r->s == '\n')
            return refuse(r, "a string does not end in its line: add the quotation mark");
        if (quote == '"' && *r->s == '\\') {
            r->s++;
            TRY(read_escape(r));
        } else {
            buf_add(&r->text, r->s++, 1);
        }
    }
    r->s++;
out:
    return rc;
}

/* true, false, 12, -1_000, 3e-4; the options themselves check ranges. */
static int read_plain(struct reader *r)
{
    size_t n = strcspn(r->s, " \t\r\n,]#");
    int truth = (n == 4 && !memcmp(r->s, "true", 4)) || (n == 5 && !memcmp(r->s, "false", 5));
    if (!truth && (n == 0 || strspn(r->s, "+-0123456789._eE") < n))
        return refuse(r, "a value is a string in quotation marks, a number, true, false, or an array of "
                         "them: write 4k as \"4k\"");
    for (size_t i = r->s[0] == '+'; i < n; i++)
        if (r->s[i] != '_')
            buf_add(&r->text, r->s + i, 1);
    r->s += n;
    return 0;
}

/* Adds --key=value with the value at r->s; skip_it: reads over it. */
static int read_value(struct reader *r, const char *key, int skip_it)
{
    char *word = NULL;
    int rc = 0;
    r->text.n = 0;
    TRY(*r->s == '"' || *r->s == '\'' ? read_string(r) : read_plain(r));
    if (skip_it)
        return 0;

    size_t n = strlen(key) + 3;
    char **grown = realloc(r->out->item, sizeof *grown * (size_t)(r->out->n + 2));
    if (grown)
        r->out->item = grown;
    if (!grown || r->text.failed || !(word = malloc(n + r->text.n + 1)))
        return err_set(r->e, ERR_MEMORY, "no memory for options");
    sprintf(word, "--%s=", key);
    if (r->text.n)
        memcpy(word + n, r->text.p, r->text.n);
    word[n + r->text.n] = 0;
    r->out->item[r->out->n++] = word;
out:
    return rc;
}

static int read_array(struct reader *r, const struct opt *o, int skip_it)
{
    int rc = 0;
    if (o->kind != OPT_LIST)
        return err_set(r->e, ERR_USAGE, "line %d: %s takes one value: write it without [ ]", r->line,
                       o->name);
    r->s++;
    for (skip(r, 1); *r->s != ']'; skip(r, 1)) {
        if (!*r->s)
            return refuse(r, "an array does not end: add its ]");
        TRY(read_value(r, o->name, skip_it));
        skip(r, 1);
        if (*r->s == ',')
            r->s++;
        else if (*r->s && *r->s != ']')
            return refuse(r, "values of an array need a comma between them");
    }
    r->s++;
out:
    return rc;
}

/* Reads a key; *o: its option. */
static int read_key(struct reader *r, const struct opt **o)
{
    char name[64];
    int rc = 0;
    size_t n = strspn(r->s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    r->text.n = 0;
    if (*r->s == '"' || *r->s == '\'') {
        TRY(read_string(r));
    } else {
        buf_add(&r->text, r->s, n);
        r->s += n;
    }

    if (*r->s == '[' || *r->s == '.')
        return refuse(r, "tables are not supported: every line is OPTION = VALUE");
    if (r->text.failed || r->text.n == 0 || r->text.n >= sizeof name)
        return refuse(r, "no option: every line is OPTION = VALUE");
    memcpy(name, r->text.p, r->text.n);
    name[r->text.n] = 0;

    for (const struct opt *at = r->p->opts; !opt_is_end(at); at++)
        if (at->kind != OPT_GROUP && !strcmp(at->name, name) && strcmp(name, "config"))
            *o = at;
    if (*o)
        return 0;
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        if (!strcmp(b->name, name) || !strcmp(name, "config"))
            return err_set(r->e, ERR_USAGE, "line %d: %s is for the command line only: leave it out", r->line,
                           name);
    opt_refuse_unknown(r->p, name, r->e);
    return err_add(r->e, "line %d", r->line);
out:
    return rc;
}

static int is_given(const struct reader *r, const struct opt *o, const unsigned char *given)
{
    return given && given[o - r->p->opts];
}

static int read_line(struct reader *r, const unsigned char *given)
{
    const struct opt *o = NULL;
    int rc = 0;
    TRY(read_key(r, &o));
    for (int i = 0; i < r->n_keys; i++)
        if (r->key[i] == o->name)
            return err_set(r->e, ERR_USAGE, "line %d: %s is there twice: leave one out", r->line, o->name);
    if (r->n_keys < (int)(sizeof r->key / sizeof *r->key))
        r->key[r->n_keys++] = o->name;

    skip(r, 0);
    if (*r->s != '=')
        return err_set(r->e, ERR_USAGE, "line %d: no = behind %s: every line is OPTION = VALUE", r->line,
                       o->name);
    r->s++;
    skip(r, 0);
    TRY(*r->s == '[' ? read_array(r, o, is_given(r, o, given))
                     : read_value(r, o->name, is_given(r, o, given)));

    skip(r, 0);
    if (*r->s && *r->s != '\n' && *r->s != '#')
        return refuse(r, "more behind a value: one option a line");
out:
    return rc < 0 ? rc : 0;
}

int opt_config_words(const struct opt_program *p, const char *text, int argc, char **argv,
                     const unsigned char *given, struct opt_words *out, struct err *e)
{
    struct reader r = { .p = p, .s = text, .line = 1, .out = out, .e = e };
    int rc = 0;
    *out = (struct opt_words){ 0 };
    for (skip(&r, 1); *r.s && rc >= 0; skip(&r, 1))
        rc = read_line(&r, given);
    buf_free(&r.text);
    TRY(rc);

    char **all = calloc((size_t)(out->n + argc) + 1, sizeof *all);
    if (!all) {
        rc = err_set(e, ERR_MEMORY, "no memory for options");
        goto out;
    }
    all[0] = argc ? argv[0] : NULL;
    for (int i = 0; i < out->n; i++)
        all[1 + i] = out->item[i];
    for (int i = 1; i < argc; i++)
        all[out->n + i] = argv[i];
    free(out->item);
    out->item = all;
    out->n_own = out->n;
    out->n += argc > 1 ? argc : 1;
out:
    if (rc < 0) {
        for (int i = 0; i < out->n; i++)
            free(out->item[i]);
        free(out->item);
        *out = (struct opt_words){ 0 };
    }
    return rc < 0 ? rc : 0;
}

void opt_words_free(struct opt_words *w)
{
    for (int i = 0; i < w->n_own; i++)
        free(w->item[1 + i]);
    free(w->item);
    *w = (struct opt_words){ 0 };
}

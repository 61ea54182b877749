/* opt.c - see opt.h. */
#include "base/opt.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/machine.h"
#include "base/opt/opt_help.h"
#include "base/opt/opt_near.h"

/* ---- numbers ---- */

static const struct {
    const char *name;
    int64_t factor;
} suffix[] = {
    { "", 1 },
    { "k", 1000 },
    { "K", 1000 },
    { "M", 1000000 },
    { "B", 1000000000 },
    { "G", 1000000000 },
    { "T", 1000000000000 },
    { "kB", 1000 },
    { "KB", 1000 },
    { "MB", 1000000 },
    { "GB", 1000000000 },
    { "TB", 1000000000000 },
    { "Ki", INT64_C(1) << 10 },
    { "Mi", INT64_C(1) << 20 },
    { "Gi", INT64_C(1) << 30 },
    { "Ti", INT64_C(1) << 40 },
    { "KiB", INT64_C(1) << 10 },
    { "MiB", INT64_C(1) << 20 },
    { "GiB", INT64_C(1) << 30 },
    { "TiB", INT64_C(1) << 40 },
};

static int64_t factor_of(const char *name)
{
    for (size_t i = 0; i < sizeof suffix / sizeof *suffix; i++)
        if (!strcmp(name, suffix[i].name))
            return suffix[i].factor;
    return 0;
}

int opt_parse_size(const char *text, int64_t *out)
{
    int negative = *text == '-', n_digits = 0, after_point = 0;
    __int128 digits = 0, divisor = 1;
    const char *c = text + negative;
    for (; (*c >= '0' && *c <= '9') || (*c == '.' && !after_point); c++) {
        if (*c == '.') {
            after_point = 1;
            continue;
        }
        digits = digits * 10 + (*c - '0');
        divisor *= after_point ? 10 : 1;
        if (++n_digits > 20)
            return -1;
    }
    int64_t factor = factor_of(c);
    if (!n_digits || !factor)
        return -1;
    __int128 value = digits * factor;
    if (factor == 1 && value % divisor) /* "1.5" of something that cannot be halved */
        return -1;
    value /= divisor;
    if (value > INT64_MAX)
        return -1;
    *out = negative ? -(int64_t)value : (int64_t)value;
    return 0;
}

/* ---- names that are refused ---- */

/* ERR_USAGE with the reason, where the program names one; 0: it does not. */
static int refuse(const struct opt_program *p, const char *name, const char *value, struct err *e)
{
    for (const struct opt_refusal *r = p->refused; r && r->name; r++) {
        if (strcmp(r->name, name) || !r->value != !value || (value && strcmp(r->value, value)))
            continue;
        if (value)
            return err_set(e, ERR_USAGE, "--%s %s: %s", name, value, r->why);
        return err_set(e, ERR_USAGE, "--%s: %s", name, r->why);
    }
    return 0;
}

int opt_refuse_unknown(const struct opt_program *p, const char *name, struct err *e)
{
    int rc = refuse(p, name, NULL, e);
    return rc < 0 ? rc : opt_unknown_name(p, name, e);
}

/* ---- one value ---- */

static void *member(const struct opt *o, void *target) { return (char *)target + o->offset; }

static int check_range(const struct opt *o, double x, const char *text, struct err *e)
{
    if ((o->min == 0 && o->max == 0) || (x >= o->min && x <= o->max))
        return 0;
    if (x < o->min)
        return err_set(e, ERR_USAGE, "--%s %s is too small: it must be at least %.15g", o->name, text,
                       o->min);
    return err_set(e, ERR_USAGE, "--%s %s is too large: it must be at most %.15g", o->name, text, o->max);
}

static int set_switch(const struct opt *o, const char *text, void *m, struct err *e)
{
    static const char *const word[] = { "0", "1", "off", "on", "no", "yes", "false", "true" };
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (!strcmp(text, word[i])) {
            *(int *)m = (int)(i & 1);
            return 0;
        }
    return err_set(e, ERR_USAGE, "--%s=%s: it is a switch: use --%s or --no-%s", o->name, text, o->name,
                   o->name);
}

static int set_int(const struct opt *o, const char *text, void *m, struct err *e)
{
    int64_t x;
    if (opt_parse_size(text, &x) < 0)
        return err_set(e, ERR_USAGE, "--%s %s is not a whole number: 64, 4k and 64Ki are", o->name, text);
    *(int64_t *)m = x;
    return check_range(o, (double)x, text, e);
}

static int set_size(const struct opt *o, const char *text, void *m, struct err *e)
{
    int64_t x;
    if (opt_parse_size(text, &x) < 0 || x < 0)
        return err_set(e, ERR_USAGE, "--%s %s is not a size: 80GB, 2GiB and 512M are", o->name, text);
    *(int64_t *)m = x;
    return check_range(o, (double)x, text, e);
}

static int set_float(const struct opt *o, const char *text, void *m, struct err *e)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return err_set(e, ERR_USAGE, "--%s %s is not a number: 0.1 and 3e-4 are", o->name, text);
    *(double *)m = x;
    return check_range(o, x, text, e);
}

/* Text that is stored as JSON must be UTF-8. */
static int check_text(const struct opt *o, const char *text, struct err *e)
{
    json_t *j = o->flags & OPT_NOT_STORED ? NULL : json_string(text);
    if (!j && !(o->flags & OPT_NOT_STORED))
        return err_set(e, ERR_USAGE, "--%s is not UTF-8: rename what it names", o->name);
    json_decref(j);
    return 0;
}

static int set_text(const struct opt *o, const char *text, void *m, struct err *e)
{
    *(const char **)m = text;
    return check_text(o, text, e);
}

static int set_choice(const struct opt *o, const char *text, void *m, struct err *e)
{
    size_t n = strlen(text);
    int i = 0;
    for (const char *w = o->unit; w; w = strchr(w, '|') ? strchr(w, '|') + 1 : NULL, i++)
        if (n && n == strcspn(w, "|") && !strncmp(w, text, n)) {
            *(int *)m = i;
            return 0;
        }
    return err_set(e, ERR_USAGE, "--%s %s: it must be one of %s", o->name, text, o->unit);
}

static int set_list(const struct opt *o, const char *text, void *m, struct err *e)
{
    struct opt_list *l = m;
    const char **item = realloc(l->item, sizeof *item * (size_t)(l->n + 1));
    if (!item)
        return err_set(e, ERR_MEMORY, "no memory for the list of --%s", o->name);
    l->item = item;
    item[l->n++] = text;
    return check_text(o, text, e);
}

/* One row a kind: how a value is parsed, how large its member is. */
static const struct {
    int (*set)(const struct opt *o, const char *text, void *member, struct err *e);
    size_t size;
} kind_of[] = {
    [OPT_SWITCH] = { set_switch, sizeof(int) },         [OPT_INT] = { set_int, sizeof(int64_t) },
    [OPT_SIZE] = { set_size, sizeof(int64_t) },         [OPT_FLOAT] = { set_float, sizeof(double) },
    [OPT_TEXT] = { set_text, sizeof(const char *) },    [OPT_CHOICE] = { set_choice, sizeof(int) },
    [OPT_LIST] = { set_list, sizeof(struct opt_list) },
};

/* ---- defaults ---- */

static int set_defaults(const struct opt_program *p, void *target, struct err *e)
{
    int rc = 0;
    for (const struct opt *o = p->opts; !opt_is_end(o); o++) {
        if (o->kind == OPT_GROUP)
            continue;
        memset(member(o, target), 0, kind_of[o->kind].size);
        if (o->value && kind_of[o->kind].set(o, o->value, member(o, target), e) < 0) {
            e->code = ERR_INTERNAL;
            rc = err_add(e, "the default of --%s", o->name);
        }
    }
    return rc;
}

union value {
    int i;
    int64_t n;
    double x;
    const char *text;
    struct opt_list list;
};

/* 1 when the value is the default. */
static int is_neutral(const struct opt *o, const void *m)
{
    union value v;
    struct err ignored;
    memset(&v, 0, sizeof v);
    if (o->kind == OPT_LIST || (o->kind == OPT_TEXT && !o->value))
        return 0;
    if (o->value && kind_of[o->kind].set(o, o->value, &v, &ignored) < 0)
        return 0;
    if (o->kind == OPT_TEXT)
        return !strcmp(v.text, *(const char *const *)m);
    return !memcmp(&v, m, kind_of[o->kind].size);
}

static int check_built(const struct opt *o, const char *text, void *target, struct err *e)
{
    if (!(o->flags & OPT_NEUTRAL_ONLY) || is_neutral(o, member(o, target)))
        return 0;
    if (o->kind == OPT_SWITCH || !o->value)
        return err_set(e, ERR_USAGE, "--%s is not built yet: leave it out", o->name);
    return err_set(e, ERR_USAGE, "--%s %s is not built yet: only --%s %s is", o->name, text, o->name,
                   o->value);
}

/* ---- the command line ---- */

struct cursor {
    const struct opt_program *p;
    int argc, i;
    char **argv;
    void *target;
    unsigned char *given;
};

static int is_option(const char *arg) { return arg[0] == '-' && arg[1] == '-'; }

static const struct opt *find(const struct opt_program *p, const char *name)
{
    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP && !strcmp(o->name, name))
            return o;
    return NULL;
}

static int set_one(struct cursor *c, const struct opt *o, const char *text, struct err *e)
{
    if (c->given)
        c->given[o - c->p->opts] = 1;
    int rc = kind_of[o->kind].set(o, text, member(o, c->target), e);
    if (rc < 0) {
        refuse(c->p, o->name, text, e);
        return rc;
    }
    return check_built(o, text, c->target, e);
}

/* Is the word the value of o? */
static int is_value_of(const struct opt *o, const char *word)
{
    return !is_option(word) && (!(o->flags & OPT_URL_OR_NONE) || strstr(word, "://"));
}

/* Takes the words behind an option: one, or for a list all up to the next option. */
static int take_words(struct cursor *c, const struct opt *o, struct err *e)
{
    int rc = 0, n = 0;
    while (rc == 0 && c->i + 1 < c->argc && is_value_of(o, c->argv[c->i + 1]) &&
           (n == 0 || (o->kind == OPT_LIST && !(o->flags & OPT_ONE_WORD)))) {
        rc = set_one(c, o, c->argv[++c->i], e);
        n++;
    }
    if (rc == 0 && n == 0 && o->flags & OPT_URL_OR_NONE)
        return set_one(c, o, "", e);
    if (rc == 0 && n == 0)
        return err_set(e, ERR_USAGE, "--%s needs a value: --%s %s", o->name, o->name,
                       o->unit ? o->unit : "VALUE");
    return rc;
}

/* Answers --help and the like. Returns 1 when it did. */
static int answer_builtin(const struct opt_program *p, const char *name, const char *value, struct err *e)
{
    if (!strcmp(name, "completion")) {
        if (opt_print_completion(p, value, stdout) < 0)
            return err_set(e, ERR_USAGE, "--completion %s: it must be one of bash|zsh|fish",
                           value ? value : "");
    } else if (!strcmp(name, "help")) {
        opt_print_help(p, stdout);
    } else if (!strcmp(name, "man")) {
        opt_print_man(p, stdout);
    } else if (!strcmp(name, "version")) {
        if (p->print_version)
            p->print_version(stdout);
        else
            printf("%s\n", p->name);
    } else {
        return 0;
    }
    return 1;
}

/* argv[i] is "--name" or "--name=value". */
static int parse_option(struct cursor *c, struct err *e)
{
    const char *text = c->argv[c->i] + 2, *value = strchr(text, '=');
    size_t n = value ? (size_t)(value - text) : strlen(text);
    char name[256];
    if (n >= sizeof name)
        return err_set(e, ERR_USAGE, "unknown option --%.40s...: see --help", text);
    memcpy(name, text, n);
    name[n] = 0;
    value = value ? value + 1 : NULL;
    const struct opt *o = find(c->p, name);
    if (!o) {
        int rc = answer_builtin(c->p, name, value ? value : c->i + 1 < c->argc ? c->argv[c->i + 1] : NULL, e);
        if (rc)
            return rc;
        o = !strncmp(name, "no-", 3) ? find(c->p, name + 3) : NULL;
        return o && o->kind == OPT_SWITCH && !value ? set_one(c, o, "0", e)
                                                    : opt_refuse_unknown(c->p, name, e);
    }
    if (value)
        return set_one(c, o, value, e);
    return o->kind == OPT_SWITCH ? set_one(c, o, "1", e) : take_words(c, o, e);
}

static int check_args(const struct opt_program *p, const struct opt_args *args, struct err *e)
{
    const char *usage = p->usage && *p->usage ? p->usage : "none";
    if (args->n < p->min_args)
        return err_set(e, ERR_USAGE, "%d of %d arguments given: %s %s", args->n, p->min_args, p->name, usage);
    if (p->max_args >= 0 && args->n > p->max_args)
        return err_set(e, ERR_USAGE, "%s is one argument too many (expected: %s): see --help",
                       args->item[p->max_args], usage);
    return 0;
}

int opt_parse(const struct opt_program *p, int argc, char **argv, void *target, struct opt_args *args,
              unsigned char *given, struct err *e)
{
    struct cursor c = { p, argc, 1, argv, target, given };
    int rc = 0, only_args = 0;
    *args = (struct opt_args){ 0, calloc((size_t)argc + 1, sizeof(char *)) };
    for (const struct opt *o = p->opts; given && !opt_is_end(o); o++)
        given[o - p->opts] = 0;
    TRY(set_defaults(p, target, e));
    TRY(machine_check_stack(e)); /* here, because every program begins with its command line */
    if (!args->item)
        TRY(err_set(e, ERR_MEMORY, "no memory for %d arguments", argc));
    for (; c.i < argc && rc == 0; c.i++) {
        char *a = argv[c.i];
        if (!only_args && !strcmp(a, "--"))
            only_args = 1;
        else if (only_args || a[0] != '-' || !a[1])
            args->item[args->n++] = a;
        else if (is_option(a))
            rc = parse_option(&c, e);
        else
            rc = !strcmp(a, "-h") ? answer_builtin(p, "help", NULL, e) : opt_unknown_short(p, a, e);
    }
    if (rc == 0)
        rc = check_args(p, args, e);
out:
    if (rc)
        opt_free(p, target, args);
    return rc;
}

int opt_given(const struct opt_program *p, const unsigned char *given, const char *name)
{
    for (int i = 0; p->opts[i].name; i++)
        if (p->opts[i].kind != OPT_GROUP && !strcmp(p->opts[i].name, name))
            return given[i];
    return 0;
}

void opt_free(const struct opt_program *p, void *target, struct opt_args *args)
{
    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind == OPT_LIST) {
            struct opt_list *l = member(o, target);
            free(l->item);
            *l = (struct opt_list){ 0, NULL };
        }
    if (args) {
        free(args->item);
        *args = (struct opt_args){ 0, NULL };
    }
}

/* ---- JSON ---- */

static json_t *list_json(const struct opt_list *l)
{
    json_t *j = json_array();
    for (int i = 0; i < l->n; i++)
        json_array_append_new(j, json_string(l->item[i]));
    return j;
}

static json_t *choice_json(const struct opt *o, int index)
{
    const char *w = o->unit;
    while (index-- > 0)
        w = strchr(w, '|') + 1;
    return json_stringn(w, strcspn(w, "|"));
}

static json_t *value_json(const struct opt *o, const void *m)
{
    switch (o->kind) {
    case OPT_SWITCH: return json_boolean(*(const int *)m);
    case OPT_INT:
    case OPT_SIZE: return json_integer(*(const int64_t *)m);
    case OPT_FLOAT: return json_real(*(const double *)m);
    case OPT_TEXT: return *(const char *const *)m ? json_string(*(const char *const *)m) : json_null();
    case OPT_CHOICE: return choice_json(o, *(const int *)m);
    case OPT_LIST: return list_json(m);
    case OPT_GROUP: break;
    }
    return NULL;
}

static char *json_without(const struct opt_program *p, const void *target, unsigned flags)
{
    json_t *all = json_object();
    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP && !(o->flags & flags))
            json_object_set_new(all, o->name, value_json(o, (const char *)target + o->offset));
    char *text = json_dumps(all, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(all);
    return text;
}

char *opt_json(const struct opt_program *p, const void *target)
{
    return json_without(p, target, OPT_NOT_STORED);
}

char *opt_json_all(const struct opt_program *p, const void *target) { return json_without(p, target, 0); }

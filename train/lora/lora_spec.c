/* lora_spec.c - see lora_spec.h. */
#include "train/lora/lora_spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANK_MAX 65536
#define EXAMPLE "r=16,alpha=32,targets=q_proj,v_proj"

/* ---- the text ---- */
static int no_memory(struct err *e) { return err_set(e, ERR_MEMORY, "no memory for --lora"); }

static int read_number(const char *key, const char *value, double *out, struct err *e)
{
    char *end;
    *out = strtod(value, &end);
    if (end == value || *end || !isfinite(*out))
        return err_set(e, ERR_USAGE, "--lora: %s=%.40s is no number: give one, as in " EXAMPLE, key, value);
    return 0;
}

static int set_rank(struct lora_spec *s, const char *value, struct err *e)
{
    double r;
    int rc = read_number("r", value, &r, e);
    if (rc < 0)
        return rc;
    if (!(r >= 1 && r <= RANK_MAX) || r != floor(r))
        return err_set(e, ERR_USAGE, "--lora: r=%.40s: a rank is a whole number from 1 to %d", value,
                       RANK_MAX);
    s->rank = (int64_t)r;
    return 0;
}

static int set_alpha(struct lora_spec *s, const char *value, struct err *e)
{
    int rc = read_number("alpha", value, &s->alpha, e);
    if (rc < 0)
        return rc;
    return s->alpha > 0 ? 0 : err_set(e, ERR_USAGE, "--lora: alpha=%.40s: it is more than 0", value);
}

static int set_rslora(struct lora_spec *s, const char *value, struct err *e)
{
    if (strcmp(value, "0") && strcmp(value, "1"))
        return err_set(e, ERR_USAGE, "--lora: rslora=%.40s: it is 0 or 1", value);
    s->rslora = *value == '1';
    return 0;
}

static int set_init(struct lora_spec *s, const char *value, struct err *e)
{
    if (strcmp(value, "kaiming") && strcmp(value, "gaussian"))
        return err_set(e, ERR_USAGE, "--lora: init=%.40s: it is kaiming or gaussian; B begins as zero",
                       value);
    s->gaussian = *value == 'g';
    return 0;
}

static int add_target(struct lora_spec *s, const char *value, struct err *e)
{
    if (!*value)
        return err_set(e, ERR_USAGE, "--lora: a target is empty: give names, as in " EXAMPLE);
    for (int i = 0; i < s->n_targets; i++)
        if (!strcmp(s->target[i], value))
            return err_set(e, ERR_USAGE, "--lora: target %.80s is given twice", value);
    s->target[s->n_targets++] = (char *)(uintptr_t)value;
    return 0;
}

enum { KEY_R, KEY_ALPHA, KEY_TARGETS, KEYS_NEEDED };
static const struct {
    const char *name;
    int (*set)(struct lora_spec *s, const char *value, struct err *e);
} keys[] = {
    [KEY_R] = { "r", set_rank },
    [KEY_ALPHA] = { "alpha", set_alpha },
    [KEY_TARGETS] = { "targets", add_target },
    { "rslora", set_rslora },
    { "init", set_init },
};
#define KEYS ((int)(sizeof keys / sizeof *keys))

/* One word between commas: KEY=VALUE, or one more target. *last: the key before it. */
static int read_word(struct lora_spec *s, char *word, int *last, int seen[KEYS], struct err *e)
{
    char *value = strchr(word, '=');
    if (!value && *last == KEY_TARGETS)
        return add_target(s, word, e);
    if (!value)
        return err_set(e, ERR_USAGE, "--lora: %.80s has no value: give it one, as in " EXAMPLE, word);
    *value++ = 0;
    for (int k = 0; k < KEYS; k++) {
        if (strcmp(keys[k].name, word))
            continue;
        if (seen[k]++)
            return err_set(e, ERR_USAGE, "--lora: %s is given twice", word);
        *last = k;
        return keys[k].set(s, value, e);
    }
    if (strstr(word, "dropout"))
        return err_set(e, ERR_USAGE, "--lora: %.80s: no dropout is applied: leave it out", word);
    return err_set(e, ERR_USAGE, "--lora: unknown %.80s: there are r, alpha, targets, rslora and init", word);
}

double lora_spec_scale(const struct lora_spec *s)
{
    return s->alpha / (s->rslora ? sqrt((double)s->rank) : (double)s->rank);
}

static int check_scale(const struct lora_spec *s, struct err *e)
{
    double scale = lora_spec_scale(s);
    if (isfinite((float)scale) && (float)scale > 0)
        return 0;
    return err_set(e, ERR_USAGE, "--lora: alpha=%g with r=%lld is a factor of %g, which fp32 does not hold",
                   s->alpha, (long long)s->rank, scale);
}

int lora_spec_parse(struct lora_spec *s, const char *text, struct err *e)
{
    int last = -1, seen[KEYS] = { 0 }, rc = 0;
    *s = (struct lora_spec){ .text = strdup(text), .target = calloc(strlen(text) + 1, sizeof *s->target) };
    if (!s->text || !s->target)
        return no_memory(e);
    for (char *word = s->text, *next; word && rc >= 0; word = next) {
        next = strchr(word, ',');
        if (next)
            *next++ = 0;
        rc = read_word(s, word, &last, seen, e);
    }
    for (int k = 0; k < KEYS_NEEDED && rc >= 0; k++)
        if (!seen[k])
            rc = err_set(e, ERR_USAGE, "--lora: %s is missing: give it, as in " EXAMPLE, keys[k].name);
    return rc < 0 ? rc : check_scale(s, e);
}

void lora_spec_free(struct lora_spec *s)
{
    free(s->target);
    free(s->text);
    *s = (struct lora_spec){ 0 };
}

/* ---- the weights ---- */
/* Is the tensor the weight of a module of this name, or of one whose path ends so? */
static int is_named(const char *tensor, const char *target)
{
    static const char end[] = ".weight";
    size_t n = strlen(tensor), k = strlen(target), e = sizeof end - 1;
    if (n < e + k || strcmp(tensor + n - e, end) || strncmp(tensor + n - e - k, target, k))
        return 0;
    return n == e + k || tensor[n - e - k - 1] == '.';
}

/* The last word of a module's name: "q_proj" of "model.layers.0.self_attn.q_proj.weight". */
static void last_word(const char *tensor, char out[64])
{
    const char *end = strrchr(tensor, '.'), *begin = end;
    while (begin && begin > tensor && begin[-1] != '.')
        begin--;
    snprintf(out, 64, "%.*s", end ? (int)(end - begin) : 0, begin ? begin : "");
}

/* "q_proj, k_proj, …": what can be a target. */
static const char *known_targets(const struct param_table *t, char out[400])
{
    size_t n = 0;
    char word[64], mark[70];
    snprintf(out, 400, ", ");
    for (int i = 0; i < t->n; i++) {
        if (!adapter_computed(&t->p[i]))
            continue;
        last_word(t->p[i].name, word);
        snprintf(mark, sizeof mark, ", %s,", word);
        n = strlen(out);
        if (!strstr(out, mark) && n + strlen(word) + 3 < 400)
            snprintf(out + n - (n == 2 ? 0 : 1), 400 - n, "%s%s,", n == 2 ? "" : ", ", word);
        n = strlen(out);
    }
    if (n > 2)
        out[n - 1] = 0;
    return out + 2;
}

static int refuse_unknown(const struct param_table *t, const char *target, struct err *e)
{
    char known[400];
    return err_set(e, ERR_USAGE,
                   "--lora: target %.80s is in no layer of this model: take some of %s, or " LORA_ALL_LINEAR,
                   target, known_targets(t, known));
}

/* Does target k name the parameter? */
static int names(const struct lora_spec *s, int k, const struct param *p)
{
    if (!strcmp(s->target[k], LORA_ALL_LINEAR))
        return p->layer >= 0 && p->expert < 0 && adapter_computed(p);
    return is_named(p->name, s->target[k]);
}

int lora_spec_match(const struct lora_spec *s, const struct param_table *t, struct adapter_matrix **list,
                    int *n, struct err *e)
{
    int *found = calloc((size_t)s->n_targets, sizeof *found), rc = 0;
    *n = 0;
    *list = calloc((size_t)t->n, sizeof **list);
    if (!found || !*list)
        rc = no_memory(e);
    for (int i = 0; i < t->n && rc >= 0; i++) {
        int wanted = 0;
        if (!t->p[i].n_sharing)
            continue;
        for (int k = 0; k < s->n_targets; k++)
            if (names(s, k, &t->p[i]))
                wanted = found[k] = 1;
        if (wanted && !adapter_computed(&t->p[i]))
            rc = err_set(e, ERR_USAGE, "--lora: no adapter is computed of %s: leave it out of targets",
                         t->p[i].name);
        else if (wanted)
            (*list)[(*n)++] = (struct adapter_matrix){ i, s->rank, (float)lora_spec_scale(s) };
    }
    for (int k = 0; k < s->n_targets && rc >= 0; k++)
        if (!found[k])
            rc = refuse_unknown(t, s->target[k], e);
    free(found);
    return rc;
}

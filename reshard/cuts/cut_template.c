/* cut_template.c - see cut_template.h: rows of a family and of a template become the text of a cut table. */
#include "reshard/cuts/cut_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "model/family.h"
#include "reshard/cuts/cut_families.h"
#include "reshard/cuts/cut_sizes.h"
#include "reshard/cuts.h"

#define LINE_BYTES 1024
#define LAYERS_MAX 100000
#define SPACE " "

/* ---- the language model in a config ---- */

static const json_t *inner_of(const json_t *o)
{
    static const char *const keys[] = { "text_config", "language_config", "llm_config", "thinker_config" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(o, keys[i]);
        if (json_is_object(v))
            return v;
    }
    return NULL;
}

static int is_known(const char *type) { return type && (family_find(type) || cut_family_find(type)); }

const json_t *cut_config_text(const json_t *root, const char **type)
{
    const json_t *o = root, *next = inner_of(root);
    for (int depth = 0; next && depth < 4; depth++) {
        o = next;
        next = inner_of(o);
    }
    *type = json_string_value(json_object_get(o, "model_type"));
    if (!is_known(*type))
        *type = json_string_value(json_object_get(root, "model_type"));
    return json_is_object(root) ? o : NULL;
}

/* ---- which tensors there are ---- */

/* Tensors whose names differ in numbers between dots alone are one form. */
struct form {
    const char *name;
    int taken; /* 1: a row has it; 2: rows for some of its layers or shapes */
};

/* The digits of a number between dots; 0: the word is none. */
static size_t number_at(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return !s[n] || s[n] == '.' ? n : 0;
}

static int compare_forms(const void *pa, const void *pb)
{
    const char *a = ((const struct form *)pa)->name, *b = ((const struct form *)pb)->name;
    for (int is_start = 1;; a++, b++) {
        size_t n = is_start ? number_at(a) : 0, m = is_start ? number_at(b) : 0;
        a += n && m ? n : 0;
        b += n && m ? m : 0;
        if (*a != *b || !*a)
            return (unsigned char)*a - (unsigned char)*b;
        is_start = *a == '.';
    }
}

/* ---- one table ---- */

struct builder {
    const struct cut_query *q;
    struct cut_sizes sizes;
    FILE *out;
    struct form *form;
    int n_forms;
    char prefix[64]; /* what @ stands for */
    char layer[96];  /* what ~ stands for */
    char behind[64]; /* words that rows end with */
    int must_fit;    /* rows without a tensor stay, so that the table is refused */
    struct err *e;
};

static int list_forms(struct builder *b)
{
    int n = b->q->n;
    b->form = calloc((size_t)n + 1, sizeof *b->form);
    if (!b->form)
        return err_set(b->e, ERR_MEMORY, "no memory for the names of %d tensors", n);
    for (int i = 0; i < n; i++)
        b->form[i].name = b->q->tensor[i]->name;
    qsort(b->form, (size_t)n, sizeof *b->form, compare_forms);
    for (int i = 0; i < n; i++)
        if (!i || compare_forms(&b->form[i], &b->form[b->n_forms - 1]))
            b->form[b->n_forms++] = b->form[i];
    return 0;
}

/* The prefix of the language model: that with which a layer or the embedding begins. */
static void find_prefix(struct builder *b)
{
    static const char *const known[] = { "model.language_model.",
                                         "language_model.model.",
                                         "model.",
                                         "thinker.model.",
                                         "model.text_model.",
                                         "language_model.",
                                         "llm.model.",
                                         "backbone.",
                                         "" };
    strcpy(b->prefix, "model.");
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        for (int i = 0; i < b->n_forms; i++) {
            size_t n = strlen(known[k]);
            const char *rest = b->form[i].name + n;
            if (!strncmp(b->form[i].name, known[k], n) &&
                (!strncmp(rest, "layers.", 7) || !strcmp(rest, "embed_tokens.weight"))) {
                strcpy(b->prefix, known[k]);
                return;
            }
        }
}

/* 1: the row fits tensors that no other row has. part: it is a row of some layers or shapes. */
static int take_forms(struct builder *b, const char *pattern, int part)
{
    int64_t layer, expert;
    int fits = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < b->n_forms; i++) {
            struct form *f = &b->form[i];
            if (!cuts_match(pattern, f->name, &layer, &expert))
                continue;
            if (f->taken && !(part && f->taken == 2))
                return 0;
            fits = 1;
            if (pass)
                f->taken = part ? 2 : 1;
        }
    return fits;
}

/* ---- words of a row ---- */

/* "$A,B": the values, with commas between them; * stays. */
static int put_numbers(struct builder *b, const char *word, char *out, size_t room)
{
    char one[LINE_BYTES];
    size_t at = 0;
    for (const char *s = word; *s;) {
        size_t n = strcspn(s, ",");
        int64_t v = 0;
        int is_any = n == 1 && *s == '*', rc = 0;
        snprintf(one, sizeof one, "%.*s", (int)n, s);
        if (!is_any && (rc = cut_sizes_value(&b->sizes, one, &v, b->e)) < 0)
            return rc;
        int len = is_any ? snprintf(out + at, room - at, "%s*", at ? "," : "")
                         : snprintf(out + at, room - at, "%s%lld", at ? "," : "", (long long)v);
        if (len < 0 || (size_t)len >= room - at)
            return err_set(b->e, ERR_CONFIG, "%s: %.80s: too long", b->q->what, word);
        at += (size_t)len;
        s += n + (s[n] == ',');
    }
    return 0;
}

/* Whether entry i of the list is the word, or by the rule where there is no list. */
static int layer_is(const json_t *list, int64_t i, const char *word, size_t n, int64_t period)
{
    const char *text = json_string_value(json_array_get(list, (size_t)i));
    if (!json_is_array(list))
        return (i + 1) % period == 0;
    return text && strlen(text) == n && !memcmp(text, word, n);
}

/* "%KEY=WORD/N": the layers as 3,7-9. 0: there are none. */
static int put_layers(struct builder *b, const char *word, char *out, size_t room)
{
    size_t n_key = strcspn(word, "=!"), n_word = strcspn(word + n_key + 1, "/");
    const char *text = word + n_key + 1;
    const json_t *list = cut_sizes_member(&b->sizes, word, n_key);
    int64_t n = 0, period = strtol(text + n_word + 1, NULL, 10);
    int want = word[n_key] == '=', rc = cut_sizes_value(&b->sizes, "num_hidden_layers", &n, b->e);
    size_t at = 0;
    if (rc < 0)
        return rc;
    if (n > LAYERS_MAX)
        return err_set(b->e, ERR_CONFIG, "%s: num_hidden_layers is %lld: at most %d are taken", b->q->what,
                       (long long)n, LAYERS_MAX);

    for (int64_t i = 0; i < n; i++) {
        int64_t end = i;
        if (layer_is(list, i, text, n_word, period) != want)
            continue;
        while (end + 1 < n && layer_is(list, end + 1, text, n_word, period) == want)
            end++;
        int len = snprintf(out + at, room - at, end > i ? "%s%lld-%lld" : "%s%lld", at ? "," : "",
                           (long long)i, (long long)end);
        if (len < 0 || (size_t)len >= room - at)
            return err_set(b->e, ERR_CONFIG,
                           "%s: %.*s changes too often for a cut table: give one with --cuts", b->q->what,
                           (int)n_key, word);
        at += (size_t)len;
        i = end;
    }
    return at > 0;
}

/* "size $A,B" becomes "shape A,B", or nothing where config.json lacks a size. Returns what follows. */
static const char *put_size(struct builder *b, const char *s, char *put, size_t room)
{
    static const char word[] = "shape ";
    char numbers[LINE_BYTES];
    struct err quiet, *e = b->e;
    size_t n = strcspn(s, SPACE);
    snprintf(numbers, sizeof numbers, "%.*s", (int)n - 1, s + 1); /* without the $ */
    strcpy(put, word);
    b->e = &quiet;
    if (put_numbers(b, numbers, put + sizeof word - 1, room - sizeof word + 1) < 0)
        *put = 0;
    b->e = e;
    return s + n;
}

/* The words with numbers for expressions. 0: the row does not stand. */
static int put_words(struct builder *b, const char *words, char out[LINE_BYTES])
{
    size_t at = 0;
    out[0] = 0;
    for (const char *s = words + strspn(words, SPACE); *s; s += strspn(s, SPACE)) {
        char word[LINE_BYTES], put[LINE_BYTES];
        int64_t stands = 1;
        int rc = 1;
        size_t n = strcspn(s, SPACE);
        snprintf(word, sizeof word, "%.*s", (int)n, s);
        s += n;

        snprintf(put, sizeof put, "%s", word);
        if (!strcmp(word, "size"))
            s = put_size(b, s + strspn(s, SPACE), put, sizeof put);
        else if (*word == '$')
            rc = put_numbers(b, word + 1, put, sizeof put) < 0 ? -1 : 1;
        else if (*word == '%')
            rc = put_layers(b, word + 1, put, sizeof put);
        else if (*word == '?')
            rc = cut_sizes_value(&b->sizes, word + 1, &stands, b->e) < 0 ? -1 : 1;
        if (rc < 0)
            return -b->e->code;
        if (!rc || !stands)
            return 0;
        if (*word == '?' || !*put)
            continue;
        int len = snprintf(out + at, LINE_BYTES - at, " %s", put);
        if (len < 0 || (size_t)len >= LINE_BYTES - at)
            return err_set(b->e, ERR_CONFIG, "%s: a row of its cut table is too long: give one with --cuts",
                           b->q->what);
        at += (size_t)len;
    }
    return 1;
}

/* ---- rows ---- */

static int add_row(struct builder *b, const char *pattern, const char *words, const char *behind)
{
    char line[LINE_BYTES];
    int part = strstr(words, "layers %") || strstr(words, "shape $");
    int64_t stands = 1;
    const char *only = strchr(words, '?');
    if (only && cut_sizes_value(&b->sizes, only + 1, &stands, b->e) < 0)
        return -b->e->code;
    if (!stands || (!take_forms(b, pattern, part) && !(b->must_fit && !strstr(words, " last"))))
        return 0;
    int rc = put_words(b, words, line);
    if (rc > 0)
        fprintf(b->out, "%s%s%s%s\n", pattern, line, behind, part ? " optional" : "");
    return rc < 0 ? rc : 0;
}

/* A pattern with its prefix; "NAME.+" is two rows. */
static int add_pattern(struct builder *b, const char *name, const char *words)
{
    static const char *const both[] = { "weight", "bias" };
    const char *before = *name == '~' ? b->layer : *name == '@' ? b->prefix : "";
    const char *behind = *name == '~' ? b->behind : "";
    char pattern[LINE_BYTES];
    int n = snprintf(pattern, sizeof pattern - 8, "%s%s", before, name + (*before || *name == '@'));
    int rc = 0;
    if (n < 0 || n >= (int)sizeof pattern - 8)
        return err_set(b->e, ERR_CONFIG, "%s: %.80s: a pattern is too long", b->q->what, name);
    if (pattern[n - 1] != '+')
        return add_row(b, pattern, words, behind);
    for (int k = 0; k < 2 && rc >= 0; k++) {
        strcpy(pattern + n - 1, both[k]);
        rc = add_row(b, pattern, words, behind);
    }
    return rc;
}

/* "layer PREFIX WORDS" */
static void set_layer(struct builder *b, const char *rest)
{
    size_t n = strcspn(rest, SPACE);
    snprintf(b->layer, sizeof b->layer, "%.*s", (int)n, rest);
    snprintf(b->behind, sizeof b->behind, "%s", rest + n);
}

static int add_text(struct builder *b, const char *text)
{
    int rc = 0;
    for (const char *s = text; s && *s && rc >= 0;) {
        char line[LINE_BYTES];
        size_t n = strcspn(s, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, s);
        s += n + (s[n] == '\n');
        char *words = line + strcspn(line, SPACE);
        if (*words)
            *words++ = 0;
        if (!strcmp(line, "layer"))
            set_layer(b, words);
        else
            rc = add_pattern(b, line, words);
    }
    return rc;
}

/* The rows that a family in model/ prints; "model." in front of a name becomes the prefix. */
static int add_family(struct builder *b, const json_t *text_config)
{
    struct model_config cfg;
    struct param_table table = { 0 };
    char *config = json_dumps(text_config, 0), *rows = NULL;
    size_t bytes = 0;
    int rc = config ? model_config_parse(&cfg, config, b->q->what, b->e)
                    : err_set(b->e, ERR_MEMORY, "no memory for %s", b->q->what);
    free(config);
    TRY(rc);
    if (b->q->grain)
        cfg.grain = b->q->grain;
    TRY(param_table_open(&table, &cfg, b->e));
    FILE *f = open_memstream(&rows, &bytes);
    if (!f)
        TRY(err_set(b->e, ERR_MEMORY, "no memory for a cut table"));
    rc = cuts_print(&table, f, b->e);
    if (fclose(f) != 0 && rc >= 0)
        rc = err_set(b->e, ERR_MEMORY, "no memory for a cut table");
    TRY(rc);

    /* the first two lines are "cuts 1" and the grain */
    const char *s = strchr(rows, '\n') + 1;
    fprintf(b->out, "%.*s\n", (int)strcspn(s, "\n"), s);
    s += strcspn(s, "\n") + 1;
    b->must_fit = 1;
    for (; *s && rc >= 0; s += strcspn(s, "\n") + 1) {
        char line[LINE_BYTES], name[LINE_BYTES];
        size_t n = strcspn(s, "\n"), n_name = strcspn(s, SPACE);
        int own = !strncmp(s, "model.", 6);
        snprintf(line, sizeof line, "%.*s", (int)(n - n_name), s + n_name);
        snprintf(name, sizeof name, "%s%.*s", own ? "@" : "", (int)(n_name - (own ? 6 : 0)),
                 s + (own ? 6 : 0));
        rc = add_pattern(b, name, line);
    }
    b->must_fit = 0;
    if (cfg.tied && rc >= 0) /* where it is stored all the same, rank 0 writes it */
        rc = add_pattern(b, "lm_head.weight", "whole");
out:
    free(rows);
    param_table_close(&table);
    return rc < 0 ? rc : 0;
}

static int add_all(struct builder *b, const json_t *text_config, const char *type)
{
    const struct cut_family *f = cut_family_find(type);
    int rc = 0;
    fprintf(b->out, "cuts 1\n");
    if (family_find(type))
        TRY(add_family(b, text_config));
    else
        fprintf(b->out, "grain %d\n", b->q->grain ? b->q->grain : 8);

    snprintf(b->layer, sizeof b->layer, "%slayers.{layer}.", b->prefix);
    b->sizes.given[0] = f ? f->sizes : NULL;
    b->sizes.given[1] = cut_family_sizes;
    for (int i = 0; f && i < CUT_FAMILY_PARTS && f->part[i]; i++)
        TRY(add_text(b, f->part[i]));
    TRY(add_text(b, cut_family_rows));
out:
    return rc < 0 ? rc : 0;
}

int cut_template(const struct cut_query *q, char **text, struct err *e)
{
    struct builder b = { .q = q, .e = e };
    json_t *root = jx_parse(q->config, strlen(q->config), q->what, e);
    const char *type = NULL;
    size_t bytes = 0;
    int rc = 0;
    *text = NULL;
    if (!root)
        return -e->code;
    const json_t *text_config = cut_config_text(root, &type);
    if (!text_config)
        rc = err_set(e, ERR_CONFIG, "%s: not a JSON object: is it a model's config.json", q->what);
    TRY(rc);
    if (!is_known(type)) {
        err_set(e, ERR_CONFIG, "%s: %s%.60s is not known", q->what, type ? "model_type " : "no model_type",
                type ? type : "");
        goto out;
    }

    b.sizes = (struct cut_sizes){ .text = text_config, .root = root, .what = q->what };
    TRY(list_forms(&b));
    find_prefix(&b);
    b.out = open_memstream(text, &bytes);
    TRY(b.out ? add_all(&b, text_config, type) : err_set(e, ERR_MEMORY, "no memory for a cut table"));
    rc = 1;
out:
    if (b.out && fclose(b.out) != 0 && rc > 0)
        rc = err_set(e, ERR_MEMORY, "no memory for a cut table");
    if (rc <= 0) {
        free(*text);
        *text = NULL;
    }
    free(b.form);
    json_decref(root);
    return rc;
}

/* adapter_cuts.c - how an adapter is cut with its model: the cut table of the base model, row by row, as a
 * table for the tensors of the adapter.
 *
 *     X.weight [out, in], dim 0    X.lora_A [r, in] whole       X.lora_B [out, r] dim 0
 *     X.weight [out, in], dim 1    X.lora_A [r, in] dim 1       X.lora_B [out, r] whole
 * GPT-2's matrices are [in, out]. A weight that the adapter holds whole is cut as the model's. Factors of
 * fused experts have no row: they are carried whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "reshard/cuts/cut_template.h"
#include "reshard/lora/adapter_cuts.h"

#define NAME_BYTES 640

/* A row of the model's table. */
struct row {
    char pattern[640];
    char how[320];   /* the words that say how the dim is cut */
    char where[240]; /* those that say which tensors it is for: `last`, `layers` */
    int dim;         /* -1: whole */
};

/* Appends " word" to text[size]. 0: it is full. */
static int append(char *text, size_t size, const char *word)
{
    size_t n = strlen(text);
    return (size_t)snprintf(text + n, size - n, " %s", word) < size - n;
}

/* Takes the row apart. 0: it is none of a plain matrix or vector. */
static int parse_row(const char *line, struct row *r)
{
    static const char *const others[] = { "companion", "expert-dim", "block", "interleave" };
    char copy[1100], *word, *save = NULL;
    *r = (struct row){ .dim = -1 };
    snprintf(copy, sizeof copy, "%.*s", (int)strcspn(line, "#\n"), line);
    word = strtok_r(copy, " \t", &save);
    if (!word || !strcmp(word, "cuts") || !strcmp(word, "grain") || strlen(word) >= sizeof r->pattern - 64)
        return 0;
    snprintf(r->pattern, sizeof r->pattern, "%s", word);

    while ((word = strtok_r(NULL, " \t", &save))) {
        const int is_layers = !strcmp(word, "layers"), is_where = is_layers || !strcmp(word, "last");
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (!strcmp(word, others[i]))
                return 0;
        if (!strcmp(word, "optional") || !strcmp(word, "whole"))
            continue;
        if (!strcmp(word, "shape")) { /* of the weight */
            strtok_r(NULL, " \t", &save);
            continue;
        }
        if (!strcmp(word, "dim")) {
            word = strtok_r(NULL, " \t", &save);
            r->dim = word ? atoi(word) : 0;
            continue;
        }
        if (!(is_where ? append(r->where, sizeof r->where, word) : append(r->how, sizeof r->how, word)))
            return 0;
        if (is_layers && (!(word = strtok_r(NULL, " \t", &save)) || !append(r->where, sizeof r->where, word)))
            return 0;
    }
    return 1;
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n > k && !strcmp(text + n - k, end);
}

/* One row of the new table; dim -1: whole. */
static void put(FILE *out, const char *end, int dim, const struct row *r)
{
    fprintf(out, PEFT_PREFIX "%s%s ", r->pattern, end);
    if (dim >= 0)
        fprintf(out, "dim %d%s%s optional\n", dim, r->how, r->where);
    else
        fprintf(out, "whole%s optional\n", r->where);
}

static void put_rows(FILE *out, struct row *r)
{
    char *last = strrchr(r->pattern, '.'), end[96];
    put(out, "", r->dim, r);
    if (last && strlen(last) < sizeof end - sizeof ".base_layer") { /* of a module that has factors, too */
        snprintf(end, sizeof end, ".base_layer%s", last);
        *last = 0;
        put(out, end, r->dim, r);
        *last = '.';
    }
    if (!ends_with(r->pattern, ".weight"))
        return;
    r->pattern[strlen(r->pattern) - strlen(".weight")] = 0;
    const int is_turned = ends_with(r->pattern, ".c_attn") || ends_with(r->pattern, ".c_proj") ||
                          ends_with(r->pattern, ".c_fc");
    const int by_out = r->dim == (is_turned ? 1 : 0), by_in = r->dim == (is_turned ? 0 : 1);
    put(out, ".lora_A.weight", by_in ? 1 : -1, r);
    put(out, ".lora_B.weight", by_out ? 0 : -1, r);
    if (strstr(r->pattern, "embed") || strstr(r->pattern, "wte")) {
        put(out, ".lora_embedding_A", by_out ? 1 : -1, r); /* [r, rows] */
        put(out, ".lora_embedding_B", by_in ? 0 : -1, r);
    }
}

static int make_table(const char *base_table, char **text, struct err *e)
{
    size_t n = 0;
    struct row r;
    FILE *out = open_memstream(text, &n);
    if (!out)
        return err_set(e, ERR_MEMORY, "no memory for the cut table of the adapter");
    fputs("cuts 1\n", out);
    for (const char *line = base_table; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (!strncmp(line, "grain ", 6))
            fprintf(out, "%.*s\n", (int)strcspn(line, "#\n"), line);
        else if (parse_row(line, &r))
            put_rows(out, &r);
    }
    return fclose(out) == 0 ? 0 : err_set(e, ERR_MEMORY, "no memory for the cut table of the adapter");
}

/* The tensors of the model that the adapter changes, as far as it tells: names, and shapes of matrices. */
struct changed {
    char *names; /* [n][NAME_BYTES] */
    struct ckpt_tensor *t;
    const struct ckpt_tensor **list;
    int n;
};

static int list_changed(struct changed *l, const struct peft *a, struct err *e)
{
    size_t n = (size_t)(a->n + a->n_saved) + 1;
    l->names = malloc(NAME_BYTES * n);
    l->t = calloc(n, sizeof *l->t);
    l->list = calloc(n, sizeof *l->list);
    if (!l->names || !l->t || !l->list)
        return err_set(e, ERR_MEMORY, "no memory for the cut table of the adapter");
    for (; l->n < a->n + a->n_saved; l->n++) {
        const struct peft_module *m = l->n < a->n ? &a->module[l->n] : NULL;
        const struct peft_saved *s = m ? NULL : &a->saved[l->n - a->n];
        char *name = l->names + NAME_BYTES * (size_t)l->n;
        snprintf(name, NAME_BYTES, "%s%s", m ? m->name : s->name, m && !m->is_param ? ".weight" : "");
        l->t[l->n] = m ? (struct ckpt_tensor){ .n_dims = 2, .shape = { m->out, m->in } }
                       : *ckpt_tensor(a->c, s->tensor);
        l->t[l->n].name = name;
        l->list[l->n] = &l->t[l->n];
    }
    return 0;
}

int adapter_cuts(struct ckpt *c, const char *config, const char *what, char **text, struct err *e)
{
    struct peft a;
    struct changed l = { 0 };
    char *base = NULL;
    int rc = 0;
    TRY(peft_read(&a, c, e));
    TRY(list_changed(&l, &a, e));
    struct cut_query q = { .config = config, .what = what, .tensor = l.list, .n = l.n };
    if ((rc = cut_template(&q, &base, e)) > 0) {
        TRY(make_table(base, text, e));
        rc = 1;
    }
out:
    peft_free(&a);
    free(l.names);
    free(l.t);
    free(l.list);
    free(base);
    return rc;
}

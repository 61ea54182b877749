/* cuts_print.c - see cuts.h: a family's table of parameters as the text of a cut table. */
#include <stdlib.h>
#include <string.h>
#include "reshard/cuts.h"

#define LINE_BYTES 256

/* The name with words for the numbers of layer and expert. A number is a whole word between dots. */
static void pattern_of(const struct param *p, char out[160])
{
    int layer = p->layer, expert = p->stacked ? -1 : p->expert;
    size_t at = 0;
    for (const char *s = p->name; *s && at < 140;) {
        size_t n = strcspn(s, ".");
        char word[sizeof p->name], number[24];
        snprintf(word, sizeof word, "%.*s", (int)n, s);
        snprintf(number, sizeof number, "%d", layer);
        if (layer >= 0 && !strcmp(word, number)) {
            layer = -1;
            strcpy(word, "{layer}");
        } else if (layer < 0 && expert >= 0) {
            snprintf(number, sizeof number, "%d", expert);
            if (!strcmp(word, number)) {
                expert = -1;
                strcpy(word, "{expert}");
            }
        }
        at += (size_t)snprintf(out + at, 160 - at, "%s%s", word, s[n] ? "." : "");
        s += n + (s[n] == '.');
    }
}

/* The values of a kv head or a query head. */
static int64_t unit_of(const struct param *p, const struct model_config *c)
{
    int64_t n = p->size / p->n_alternating;
    return p->split == SPLIT_KV ? c->head_dim : n / c->n_heads;
}

/* The sizes that tp and ep leave alone, of a matrix of a layer: turned round it is refused. */
static int print_shape(const struct param *p, char *out, size_t room)
{
    int at = 0;
    if (p->layer < 0 || p->split == SPLIT_COPY || p->n_dims < 2)
        return 0;
    for (int d = 0; d < p->n_dims; d++) {
        int is_any = d == p->split_dim || (p->stacked && !d);
        const char *before = d ? "," : " shape ";
        at += is_any ? snprintf(out + at, room - (size_t)at, "%s*", before)
                     : snprintf(out + at, room - (size_t)at, "%s%lld", before, (long long)p->shape[d]);
    }
    return at;
}

static void describe(const struct param_table *t, const struct param *p, char out[LINE_BYTES])
{
    char pattern[160];
    int64_t values = 0;
    int at;
    for (int k = 0; k < (p->n_fused > 1 ? p->n_fused : 1); k++)
        values += p[k].size;
    pattern_of(p, pattern);
    if (p->split == SPLIT_COPY)
        at = snprintf(out, LINE_BYTES, "%s whole", pattern);
    else
        at = snprintf(out, LINE_BYTES, "%s dim %d", pattern, p->split_dim);

    if (p->split == SPLIT_BLOCKS)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, " blocks");
    else if (p->split != SPLIT_COPY)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, " unit %lld", (long long)unit_of(p, &t->cfg));
    for (int k = 0; p->split != SPLIT_COPY && p->n_fused > 1 && k < p->n_fused; k++)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, "%s%lld", k ? "," : " parts ",
                       (long long)p[k].size);
    for (int k = 0; k < (p->n_fused > 1 ? p->n_fused : 1); k++)
        if (p[k].split == SPLIT_KV) {
            at += snprintf(out + at, LINE_BYTES - (size_t)at, " copies");
            break;
        }
    if (p->split != SPLIT_COPY && p->n_alternating > 1)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, " interleave %d", p->n_alternating);
    if (p->split != SPLIT_COPY && p->block > 1)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, " block %d values %lld", p->block,
                       (long long)values);
    if (p->stacked)
        at += snprintf(out + at, LINE_BYTES - (size_t)at, " expert-dim 0");
    at += print_shape(p, out + at, LINE_BYTES - (size_t)at);
    if (p->layer < 0 && p->unit > 0)
        snprintf(out + at, LINE_BYTES - (size_t)at, " last");
}

int cuts_print(const struct param_table *t, FILE *out, struct err *e)
{
    char(*line)[LINE_BYTES] = NULL;
    int n = 0, capacity = 0;
    fprintf(out, "cuts 1\ngrain %d\n", t->cfg.grain);
    for (int i = 0; i < t->n; i++) {
        char text[LINE_BYTES];
        int k = 0;
        if (!t->p[i].n_sharing)
            continue;
        describe(t, &t->p[i], text);
        while (k < n && strcmp(line[k], text))
            k++;
        if (k < n)
            continue;
        if (n == capacity) {
            void *grown = realloc(line, sizeof *line * (size_t)(capacity = capacity ? 2 * capacity : 64));
            if (!grown) {
                free(line);
                return err_set(e, ERR_MEMORY, "no memory for a cut table of %d rows", capacity);
            }
            line = grown;
        }
        memcpy(line[n++], text, sizeof text);
        fprintf(out, "%s\n", text);
    }
    free(line);
    return 0;
}

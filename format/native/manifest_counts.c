/* manifest_counts.c - the counts of experts in the state of a run: a list of layers, each a list of integers,
 * one an expert (FORMAT.md, "The state"). */
#include <stdlib.h>
#include "format/native/manifest.h"

/* Limits of a reader: all counts, one of them. */
#define MOST_COUNTS ((size_t)1 << 24)
#define MOST_ROWS ((json_int_t)1 << 48)

json_t *manifest_counts(const struct ckpt_counts *counts)
{
    json_t *list = json_array();
    for (int64_t l = 0; list && l < counts->n_layers; l++) {
        json_t *layer = manifest_ints(counts->count + l * counts->n_experts, (int)counts->n_experts);
        if (json_array_append_new(list, layer) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* 1: a list of n counts, copied to `to`. */
static int read_layer(const json_t *layer, size_t n, int64_t *to)
{
    if (json_array_size(layer) != n)
        return 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(layer, i);
        json_int_t rows = json_integer_value(v);
        if (!json_is_integer(v) || rows < 0 || rows >= MOST_ROWS)
            return 0;
        to[i] = rows;
    }
    return 1;
}

int manifest_read_counts(struct ckpt *c, const json_t *state, const char *path, struct err *e)
{
    const json_t *list = json_object_get(state, MANIFEST_COUNTS);
    size_t layers = json_array_size(list), experts = json_array_size(json_array_get(list, 0));

    free(c->counts);
    c->counts = NULL;
    c->state.counts = (struct ckpt_counts){ 0 };
    if (!list)
        return 0;
    if (!layers || !experts || layers > MOST_COUNTS / experts)
        return err_set(e, ERR_FORMAT, "%s: " MANIFEST_COUNTS " has %zu layers of %zu experts", path, layers,
                       experts);
    c->counts = malloc(sizeof *c->counts * layers * experts);
    if (!c->counts)
        return err_set(e, ERR_MEMORY, "%s: no memory for the counts of experts", path);

    for (size_t l = 0; l < layers; l++)
        if (!read_layer(json_array_get(list, l), experts, c->counts + l * experts))
            return err_set(e, ERR_FORMAT,
                           "%s: " MANIFEST_COUNTS " of layer %zu are not %zu whole numbers below 2^48", path,
                           l, experts);
    c->state.counts = (struct ckpt_counts){ (int64_t)layers, (int64_t)experts, c->counts };
    return 0;
}

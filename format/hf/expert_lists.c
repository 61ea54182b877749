/* expert_lists.c - see quant.h: names of modules in a quantization_config follow the form of the experts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/hf/fused_experts.h"
#include "format/quant.h"

/* The lists of modules, whatever the method calls them. */
static const char *const list_keys[] = { "modules_to_not_convert", "modules_to_convert",
                                         "ignored_layers",         "ignore",
                                         "exclude_modules",        "targets" };

struct follower {
    const struct expert_form *form;
    int64_t n_experts;
    int fused; /* the form that the names get */
};

static int64_t count_experts(const json_t *config)
{
    static const char *const keys[] = { "num_experts", "num_local_experts", "n_routed_experts" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t n = json_integer_value(json_object_get(config, keys[i]));
        if (n > 0 && n <= 1 << 16)
            return n;
    }
    return 0;
}

static int place_of(const struct follower *f, const char *module, struct fused_place *at)
{
    char name[FMT_NAME_MAX + 1];
    struct err ignored;
    int n = snprintf(name, sizeof name, "%s.weight", module);
    if (n >= (int)sizeof name || !strncmp(module, "re:", 3) ||
        fused_experts_place(f->form, name, at, &ignored) < 0)
        return 0;
    n = (int)strlen(at->name);
    if (n > 7 && !strcmp(at->name + n - 7, ".weight"))
        at->name[n - 7] = 0;
    return 1;
}

/* How many entries of the list are experts of each fused tensor: an object name -> number. */
static json_t *count_members(const struct follower *f, const json_t *list)
{
    json_t *counts = json_object();
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        struct fused_place at;
        const char *text = json_string_value(v);
        if (text && place_of(f, text, &at) && at.expert >= 0)
            json_object_set_new(counts, at.name,
                                json_integer(json_integer_value(json_object_get(counts, at.name)) + 1));
    }
    return counts;
}

/* Entries of the list, those of all experts of a layer as the one of their fused tensor. */
static json_t *collapsed(const struct follower *f, const json_t *list)
{
    json_t *out = json_array(), *counts = count_members(f, list);
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        struct fused_place at;
        const char *text = json_string_value(v);
        int known = text && place_of(f, text, &at);
        int whole = known && at.expert >= 0 &&
                    json_integer_value(json_object_get(counts, at.name)) == f->n_experts * at.n_parts;
        if (whole && (at.expert || at.part)) /* one entry for all of them */
            continue;
        if (whole || (known && at.expert < 0))
            json_array_append_new(out, json_string(at.name));
        else
            json_array_append(out, (json_t *)v);
    }
    json_decref(counts);
    return out;
}

static json_t *expanded(const struct follower *f, const json_t *list)
{
    json_t *out = json_array();
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        const char *text = json_string_value(v);
        char name[FMT_NAME_MAX + 1];
        int n = 0;
        for (int64_t x = 0; text && x < f->n_experts; x++)
            for (int k = 0; k < 2 && fused_experts_module(f->form, text, (int)x, k, name); k++, n++)
                json_array_append_new(out, json_string(name));
        if (!n)
            json_array_append(out, (json_t *)v);
    }
    return out;
}

static void follow(const struct follower *f, json_t *o)
{
    const char *key;
    json_t *v;
    for (size_t i = 0; i < sizeof list_keys / sizeof *list_keys; i++) {
        json_t *list = json_object_get(o, list_keys[i]);
        if (json_is_array(list))
            json_object_set_new(o, list_keys[i], f->fused ? collapsed(f, list) : expanded(f, list));
    }
    json_object_foreach(json_object_get(o, "config_groups"), key, v)
        follow(f, v);
}

int quant_names_follow(json_t *config, int fused, struct err *e)
{
    json_t *inner = json_object_get(config, "text_config");
    json_t *places[] = { json_object_get(config, "quantization_config"),
                         json_object_get(inner, "quantization_config") };
    if (!places[0] && !places[1])
        return 0;
    char *text = json_dumps(config, 0);
    if (!text)
        return err_set(e, ERR_MEMORY, "no memory for config.json");
    struct follower f = { expert_form_of(text), count_experts(config), fused };
    free(text);
    for (int i = 0; i < 2 && f.form && f.n_experts; i++)
        if (json_is_object(places[i]))
            follow(&f, places[i]);
    return 0;
}

/* config_window.c - see config.h, config_parse.h. Keys and defaults as in transformers. */
#include <string.h>
#include "base/jx.h"
#include "model/config/config_parse.h"
#include "model/family.h"

#define FULL "full_attention"
#define SLIDING "sliding_attention"

static void set_window(struct model_config *c, int64_t layer)
{
    if (layer < MODEL_LISTED_LAYERS)
        c->windowed[layer / 64] |= (uint64_t)1 << layer % 64;
}

/* The family's rule alone: does this layer have a window? first: max_window_layers. */
static int rule_has_window(const struct model_config *c, int64_t layer, int64_t first)
{
    int64_t period = c->window_period;
    return layer >= first && (!period || (layer + 1) % period);
}

/* layer_types: an entry a layer; none has a window where the other keys say that there is none. */
static int check_types(const struct model_config *c, const json_t *types, int on, const char *what,
                       struct err *e)
{
    if (on && c->n_layers > MODEL_LISTED_LAYERS)
        return err_set(e, ERR_CONFIG,
                       "%s: num_hidden_layers %lld with sliding_window: at most %d layers can have one", what,
                       (long long)c->n_layers, MODEL_LISTED_LAYERS);
    if (!types || json_is_null(types))
        return 0;
    if (!json_is_array(types))
        return err_set(e, ERR_CONFIG, "%s: layer_types: a list with an entry a layer is taken", what);
    if ((int64_t)json_array_size(types) != c->n_layers)
        return err_set(e, ERR_CONFIG, "%s: layer_types has %zu entries for num_hidden_layers %lld", what,
                       json_array_size(types), (long long)c->n_layers);
    for (size_t i = 0; !on && i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && !strcmp(type, SLIDING))
            return err_set(e, ERR_CONFIG,
                           "%s: layer_types has a window in layer %zu, and there is no sliding_window: give "
                           "one",
                           what, i);
    }
    return 0;
}

/* The layers that layer_types names, or those of the rule. */
static void set_layers(struct model_config *c, const json_t *types, int64_t first)
{
    int listed = json_is_array(types);

    for (int64_t i = 0; i < c->n_layers; i++) {
        const char *type = listed ? json_string_value(json_array_get(types, (size_t)i))
                           : rule_has_window(c, i, first) ? SLIDING
                                                          : FULL;
        if (type && !strcmp(type, SLIDING))
            set_window(c, i);
        else if (!type || strcmp(type, FULL))
            config_not_computed(c, "layer_types with %.40s", type ? type : "something else than text");
    }
}

static int any_window(const struct model_config *c)
{
    for (int i = 0; i < MODEL_LISTED_LAYERS / 64; i++)
        if (c->windowed[i])
            return 1;
    return 0;
}

/* Keys of the rule: whether there are windows, from which layer on, in which period. */
static int read_rule(struct model_config *c, const json_t *o, const char *what, int64_t *first, struct err *e)
{
    const struct family *f = c->family;
    int on = f->window != WINDOW_SWITCHED && f->defaults.window > 0, given, rc = 0;

    *first = f->window == WINDOW_SWITCHED ? 28 : 0;
    TRY(jx_bool(o, what, "use_sliding_window", &on, e));
    TRY(jx_int(o, what, "max_window_layers", first, e));
    TRY(given = jx_int(o, what, "sliding_window", &c->window, e));
    if (json_object_get(o, "sliding_window"))
        on = given && (on || f->window != WINDOW_SWITCHED);
    if (f->window_period) {
        TRY(jx_int(o, what, "_sliding_window_pattern", &c->window_period, e));
        TRY(jx_int(o, what, "sliding_window_pattern", &c->window_period, e));
        if (c->window_period < 1)
            return err_set(e, ERR_CONFIG, "%s: sliding_window_pattern is %lld: it must be 1 or more", what,
                           (long long)c->window_period);
    }

    if (on && (c->window < 1 || *first < 0))
        return err_set(e, ERR_CONFIG,
                       "%s: sliding_window %lld from layer %lld: a token sees itself, make it 1 or more",
                       what, (long long)c->window, (long long)*first);
    rc = on;
out:
    return rc;
}

int config_read_windows(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    int64_t first = 0;
    int rc;

    c->window_period = c->family->window_period;
    if (c->family->window == WINDOW_NONE)
        return 0;
    rc = read_rule(c, o, what, &first, e);
    if (rc >= 0 && check_types(c, json_object_get(o, "layer_types"), rc, what, e) < 0)
        return -e->code;
    if (rc > 0)
        set_layers(c, json_object_get(o, "layer_types"), first);
    family_set(c, F_WINDOW, any_window(c));
    if (!any_window(c))
        c->window = 0;
    return rc;
}

/* ---- page groups ---- */
int64_t model_window(const struct model_config *c)
{
    for (int64_t l = 0; l < c->n_layers; l++)
        if (!model_layer_window(c, l))
            return 0;
    return c->window;
}

int model_page_group(const struct model_config *c, int64_t layer)
{
    return model_layer_window(c, layer) > 0 && !model_window(c);
}

int64_t model_group_layers(const struct model_config *c, int group, int64_t layer)
{
    int64_t n = 0;
    for (int64_t l = 0; l < layer; l++)
        n += model_layer_window(c, l) > 0;
    if (model_window(c))
        n = 0;
    return group ? n : layer - n;
}

int64_t model_group_window(const struct model_config *c, int group)
{
    return group ? c->window : model_window(c);
}

/* ---- writing ---- */
/* max_window_layers: the first layer with a window. */
static int64_t first_window(const struct model_config *c)
{
    int64_t l = 0;
    while (l < c->n_layers && !model_layer_window(c, l))
        l++;
    return l;
}

/* Do the rule's keys alone give the same layers? */
static int rule_suffices(const struct model_config *c, int64_t first)
{
    for (int64_t l = 0; l < c->n_layers; l++)
        if ((model_layer_window(c, l) > 0) != rule_has_window(c, l, first))
            return 0;
    return 1;
}

static json_t *layer_types(const struct model_config *c)
{
    json_t *a = json_array();
    for (int64_t l = 0; l < c->n_layers; l++)
        json_array_append_new(a, json_string(model_layer_window(c, l) ? SLIDING : FULL));
    return a;
}

void config_write_windows(json_t *o, const struct model_config *c)
{
    int on = family_has(c, F_WINDOW), switched = c->family->window == WINDOW_SWITCHED;
    int64_t first = switched ? first_window(c) : 0;

    if (c->family->window == WINDOW_NONE)
        return;
    json_object_set_new(o, "sliding_window", on ? json_integer(c->window) : json_null());
    if (switched) {
        json_object_set_new(o, "use_sliding_window", json_boolean(on));
        json_object_set_new(o, "max_window_layers", json_integer(first));
    }
    /* transformers reads the layers of a period from the list alone */
    if (on && (c->window_period || !rule_suffices(c, first)))
        json_object_set_new(o, "layer_types", layer_types(c));
}

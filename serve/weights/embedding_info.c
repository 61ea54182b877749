/* embedding_info.c - see embedding_info.h. */
#include "serve/weights/embedding_info.h"

#include <stdio.h>
#include <string.h>
#include "base/jx.h"

#define MODULES "modules.json"
#define POOLING "1_Pooling/config.json"

static void refuse(struct embedding_habits *h, const char *file, const char *what, const char *name)
{
    if (!h->refused[0])
        snprintf(h->refused, sizeof h->refused, "%s: %s %.60s", file, what, name);
}

/* ---- modules.json ---- */

/* One module; its type is the path of a Python class. */
static int take_module(struct embedding_habits *h, const json_t *module, struct err *e)
{
    const char *type = NULL, *path = "", *name;
    int rc;

    TRY(jx_text(module, MODULES, "type", &type, e));
    TRY(jx_text(module, MODULES, "path", &path, e));
    name = type ? strrchr(type, '.') : NULL;
    name = name ? name + 1 : type ? type : "without a type";
    if (!strcmp(name, "Normalize"))
        h->raw = 0;
    else if (!strcmp(name, "Pooling") && strcmp(path, "1_Pooling"))
        refuse(h, MODULES, "its pooling is not in 1_Pooling, but in", path);
    else if (strcmp(name, "Pooling") && strcmp(name, "Transformer"))
        refuse(h, MODULES, "has a module that is not computed here,", name);
out:
    return rc < 0 ? rc : 0;
}

static int take_modules(struct embedding_habits *h, const json_t *list, struct err *e)
{
    json_t *module;
    size_t i;

    if (!json_is_array(list))
        return err_set(e, ERR_FORMAT, MODULES ": must be a list of modules");
    h->raw = 1;
    json_array_foreach((json_t *)(uintptr_t)list, i, module)
        if (take_module(h, module, e) < 0)
            return -e->code;
    return 0;
}

/* ---- 1_Pooling/config.json ---- */

static void take_mode(struct embedding_habits *h, const char *mode)
{
    if (!strcmp(mode, "mean"))
        h->pooling = POOLING_MEAN;
    else if (!strcmp(mode, "lasttoken"))
        h->pooling = POOLING_LAST;
    else
        refuse(h, POOLING, "the mode of pooling is", mode);
}

/* The mode of newer versions: a text, or a list of those whose vectors are joined. */
static int take_pooling_mode(struct embedding_habits *h, const json_t *v, struct err *e)
{
    const json_t *only = json_is_array(v) && json_array_size(v) == 1 ? json_array_get(v, 0) : v;

    if (json_is_array(only))
        refuse(h, POOLING, "vectors are joined from several modes of", "pooling");
    else if (json_is_string(only))
        take_mode(h, json_string_value(only));
    else
        return err_set(e, ERR_FORMAT, POOLING ": pooling_mode must be a text or a list of texts");
    return 0;
}

/* The switches of older versions; without any it is the mean. */
static int take_switches(struct embedding_habits *h, const json_t *config, struct err *e)
{
    static const char *const switches[][2] = {
        { "pooling_mode_cls_token", "cls" },
        { "pooling_mode_max_tokens", "max" },
        { "pooling_mode_mean_tokens", "mean" },
        { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens" },
        { "pooling_mode_weightedmean_tokens", "weightedmean" },
        { "pooling_mode_lasttoken", "lasttoken" },
    };
    int n = 0, rc, on;

    h->pooling = POOLING_MEAN;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        on = 0;
        TRY(jx_bool(config, POOLING, switches[i][0], &on, e));
        if (on && n++)
            refuse(h, POOLING, "vectors are joined from several modes, the second is", switches[i][1]);
        else if (on)
            take_mode(h, switches[i][1]);
    }
    rc = 0;
out:
    return rc;
}

int embedding_info_parse(struct embedding_habits *h, const char *modules, size_t n_modules,
                         const char *pooling, size_t n_pooling, struct err *e)
{
    json_t *list = NULL, *config = NULL;
    const json_t *mode;
    int rc = 0;

    memset(h, 0, sizeof *h);
    if (modules && !(list = jx_parse(modules, n_modules, MODULES, e)))
        rc = -e->code;
    if (rc >= 0 && pooling && !(config = jx_parse(pooling, n_pooling, POOLING, e)))
        rc = -e->code;
    if (rc >= 0 && list)
        rc = take_modules(h, list, e);
    if (rc >= 0 && config && !json_is_object(config))
        rc = err_set(e, ERR_FORMAT, POOLING ": must be an object");
    if (rc >= 0 && config)
        rc = (mode = json_object_get(config, "pooling_mode")) ? take_pooling_mode(h, mode, e)
                                                              : take_switches(h, config, e);
    json_decref(list);
    json_decref(config);
    return rc;
}

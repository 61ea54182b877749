/* run_state.c - see run_state.h. */
#include "format/torch/run_state.h"

#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/native/manifest.h"

char *run_state_text(const struct ckpt_state *s, struct err *e)
{
    json_t *state = manifest_state(s, e);
    if (!state)
        return NULL;
    json_t *root = json_pack("{s:i, s:o}", "grain", s->grain, "state", state);
    manifest_put_orders(root, s);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    if (!text)
        err_set(e, ERR_MEMORY, "no room for the settings of the run");
    return text;
}

int run_state_read(struct ckpt *c, const struct pk *text, struct err *e)
{
    int64_t step = c->state.step;
    int known = c->state.has_state;
    if (!text || text->kind != PK_TEXT)
        return 0;
    json_t *root = jx_parse(text->text, text->n, RUN_STATE_KEY, e);
    int rc = root ? manifest_read_state(c, root, RUN_STATE_KEY, e) : -e->code;
    json_decref(root);
    if (rc >= 0 && known && c->state.step != step)
        rc = err_set(e, ERR_FORMAT,
                     "%s: " RUN_STATE_KEY
                     " says step %lld, the optimizer's is %lld: are files of two saves mixed",
                     c->path, (long long)c->state.step, (long long)step);
    return rc < 0 ? err_add(e, "%s", c->path) : 0;
}

int run_adamw(const struct ckpt_state *s, struct adamw *a)
{
    struct err e;
    json_t *o = s->has_state && s->run_json
                    ? jx_parse(s->run_json, strlen(s->run_json), "settings of the run", &e)
                    : NULL;
    const struct {
        const char *key;
        double *to;
    } rows[] = { { "lr", &a->lr },
                 { "beta1", &a->beta1 },
                 { "beta2", &a->beta2 },
                 { "eps", &a->eps },
                 { "weight-decay", &a->weight_decay } };
    int known = o != NULL;
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        known &= jx_float(o, "settings of the run", rows[i].key, rows[i].to, &e) == 1;
    jx_float(o, "settings of the run", "clip", &a->clip, &e);
    json_decref(o);
    return known;
}

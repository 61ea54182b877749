/* config_router.c - what a config.json asks of routers in training that no layout-free definition exists for:
 * losses and capacities by micro-batch, noise. Only training refuses it; a server never does any of it. */
#include <stdio.h>
#include "base/jx.h"
#include "model/config/config_parse.h"

#define CAPACITY \
    "which tokens an expert drops would depend on the micro-batch: here none is dropped: leave it out"
#define NOISE "experts are chosen by the token alone, on all layouts and in the server: set it to 0"
#define MICRO_BATCH "its balance loss counts a micro-batch, so the bits would depend on the layout"

static const struct {
    const char *key, *why;
} numbers[] = {
    { "router_jitter_noise", NOISE },
    { "input_jitter_noise", NOISE },
    { "moe_jitter_eps", NOISE },
    { "router_dropout", NOISE },
    { "expert_capacity", CAPACITY },
    { "expert_capacity_factor", CAPACITY },
    { "moe_expert_capacity_factor", CAPACITY },
    { "capacity_factor", CAPACITY },
};

static void refuse(struct model_config *c, const char *what, const char *why)
{
    if (!c->not_trained[0])
        snprintf(c->not_trained, sizeof c->not_trained, "%s: %s", what, why);
}

int config_read_untrained(struct model_config *c, const json_t *o, const char *what, struct err *e)
{
    double x, aux = 0.001, alpha = 0;
    int logits = 0, by_sequence = 1, rc;
    char text[96];

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        x = 0;
        TRY(jx_float(o, what, numbers[i].key, &x, e));
        snprintf(text, sizeof text, "%s %g", numbers[i].key, x);
        if (x > 0)
            refuse(c, text, numbers[i].why);
    }

    TRY(jx_bool(o, what, "output_router_logits", &logits, e));
    TRY(jx_float(o, what, "router_aux_loss_coef", &aux, e));
    if (logits && aux > 0)
        refuse(c, "output_router_logits true",
               MICRO_BATCH ": set it to false, and use --balance sequence or global");
    TRY(jx_bool(o, what, "seq_aux", &by_sequence, e));
    TRY(jx_float(o, what, "aux_loss_alpha", &alpha, e));
    if (!by_sequence && alpha > 0)
        refuse(c, "seq_aux false", MICRO_BATCH ": set aux_loss_alpha to 0, and use --balance global");
    rc = 0;
out:
    return rc < 0 ? rc : 0;
}

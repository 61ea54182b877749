/* sim_move.c - see sim_move.h. */
#include "train/simulate/sim_move.h"

#include <math.h>
#include <string.h>

static double most_of(double a, double b) { return a > b ? a : b; }

void sim_reshard(struct sim_reshard_result *r, const struct sim_reshard *a, const struct cluster *c)
{
    double disks = a->nodes * a->ranks_a_node * c->disk_bytes_per_s;
    double rate = c->store_bytes_per_s > 0 && c->store_bytes_per_s < disks ? c->store_bytes_per_s : disks;
    const struct cluster_level *top = &c->level[c->n_levels - 1];
    memset(r, 0, sizeof *r);
    /* the disks' rate is that of reading and writing together */
    r->read_s = r->write_s = a->bytes / rate;
    r->wire_bytes = c->store_bytes_per_s > 0 ? 0 : a->bytes * (1 - 1 / a->nodes);
    r->wire_s = r->wire_bytes / (a->nodes * a->ranks_a_node) / top->bytes_per_s;
    r->step_s = most_of(r->read_s + r->write_s, r->wire_s);
}

void sim_reshard_print(const struct sim_reshard_result *r, const struct sim_reshard *a, FILE *out)
{
    fprintf(
        out,
        "reshard      %.4g GB over %.0f nodes: %.3g s; read %.3g s, written %.3g s, %.4g GB between nodes "
        "%.3g s\n",
        a->bytes / 1e9, a->nodes, r->step_s, r->read_s, r->write_s, r->wire_bytes / 1e9, r->wire_s);
}

/* Seconds of one pass of `rows` rows through the model, whose sequences have `seq` of them. */
static double pass_s(const struct model_config *cfg, const struct cluster *c, int tp, int64_t rows,
                     int64_t seq)
{
    struct sim_run run = { .cfg = cfg,
                           .tp = tp,
                           .pp = 1,
                           .vpp = 1,
                           .cp = 1,
                           .dp = 1,
                           .ep = 1,
                           .rows = rows / seq,
                           .micro = rows / seq,
                           .seq_len = seq,
                           .dtype = SIM_BF16,
                           .engine = c->engine };
    struct part_times sum = { 0 }, one;
    for (int64_t l = 0; l < cfg->n_layers; l++) {
        op_layer(&one, &run, c, l);
        op_part_add(&sum, &one, 1);
    }
    run.micro = rows / seq;
    run.seq_len = 1; /* logits of last tokens alone */
    op_head(&one, &run, c);
    op_part_add(&sum, &one, 1);
    return op_sum(&sum.forward);
}

static double key_bytes(const struct model_config *cfg, int tp)
{
    double heads = (double)cfg->n_kv / tp;
    return (double)cfg->n_layers * 2 * (heads < 1 ? 1 : heads) * (double)cfg->head_dim * 2;
}

/* A replica of this tp with this batch; 0: it has no room, or is too late. */
static int try_replica(struct sim_serve_result *r, const struct sim_load *l, const struct model_config *cfg,
                       double weights, const struct cluster *c)
{
    double context = l->prompt + l->answer, keys = key_bytes(cfg, r->tp);
    if (weights / r->tp + r->batch * context * keys > 0.9 * c->hbm_bytes)
        return 0;
    double decode = pass_s(cfg, c, r->tp, (int64_t)r->batch, 1) +
                    r->batch * (l->prompt + l->answer / 2) * keys / c->hbm_bytes_per_s;
    double prefill = pass_s(cfg, c, r->tp, (int64_t)l->prompt, (int64_t)l->prompt);
    /* a request's answer takes part in `answer` steps, and its prompt stops them once */
    r->tokens_per_s = r->batch * l->answer / (l->answer * decode + r->batch * prefill);
    r->first_s = prefill + decode;
    r->replicas = ceil(l->tokens_per_s / r->tokens_per_s);
    r->devices = r->replicas * r->tp;
    return l->first_s <= 0 || r->first_s <= l->first_s;
}

/* The same from servers that were measured. */
static int serve_measured(struct sim_serve_result *r, const struct sim_load *l, const struct cluster *c)
{
    int found = 0;
    for (int i = 0; i < c->n_serves; i++) {
        const struct cluster_serve *s = &c->serve[i];
        struct sim_serve_result one = { .tp = (int)s->tp,
                                        .batch = s->batch,
                                        .tokens_per_s = s->tokens_per_s,
                                        .first_s = s->first_s,
                                        .measured = 1 };
        one.replicas = ceil(l->tokens_per_s / s->tokens_per_s);
        one.devices = one.replicas * s->tp;
        if (l->first_s > 0 && s->first_s > l->first_s)
            continue;
        if (!found || one.devices < r->devices || (one.devices == r->devices && one.first_s < r->first_s))
            *r = one;
        found = 1;
    }
    return found ? 0 : -1;
}

int sim_serve(struct sim_serve_result *r, const struct sim_load *l, const struct model_config *cfg,
              double weights, const struct cluster *c)
{
    if (c->n_serves)
        return serve_measured(r, l, c);
    int found = 0, most = c->level[0].ranks >= 1 ? (int)c->level[0].ranks : 8;
    for (int tp = 1; tp <= most && cfg->n_heads % tp == 0; tp *= 2)
        for (double batch = 1; batch <= 1024; batch *= 2) {
            struct sim_serve_result one = { .tp = tp, .batch = batch };
            if (!try_replica(&one, l, cfg, weights, c))
                continue;
            if (!found || one.devices < r->devices || (one.devices == r->devices && one.first_s < r->first_s))
                *r = one;
            found = 1;
        }
    return found ? 0 : -1;
}

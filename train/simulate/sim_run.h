/* sim_run.h - what the clock is asked: a model, a layout, a batch, and how the engine that runs it works.
 * Plain data. The default of every member that is not a degree (0) is this project's engine. */
#ifndef SHARDLINE_TRAIN_SIMULATE_SIM_RUN_H
#define SHARDLINE_TRAIN_SIMULATE_SIM_RUN_H

#include "model/model.h"
#include "train/pipeline/pipeline.h"
#include "train/simulate/network.h"

struct sim_run {
    const struct model_config *cfg; /* borrowed */
    int tp, pp, vpp, cp, dp, ep, zero, sp;
    int shard; /* dp ranks that divide the states; the others have copies (hybrid). 0: all, cp ranks too */
    int64_t rows, micro, seq_len; /* rows: sequences of an update */
    enum pipe_kind schedule;
    enum recompute recompute;
    enum sim_dtype dtype; /* of products; fp8: attention and head stay bf16 */
    int frozen;           /* an adapter is trained: no weight gradients */
    int mtp;              /* layers that predict further tokens, each with the head */
    double imbalance;     /* rows of the fullest rank's experts, times an even load; 0: 1 */
    double threads;       /* of a rank, where ranks share a machine's cores; 0: 1 */
    double slow;          /* of a machine among them that is slower: its share of the speed; 0: none */
    int slow_stages;   /* the last pipeline stages run on devices of slow_speed, with fewer layers; 0: none */
    double end_layers; /* what the head takes of a layer's time, where layers are cut by speed */
    double slow_speed;
    const struct cluster
        *second; /* what the last slow_stages are devices of, borrowed; NULL: the same kind, of
                                   * slow_speed */
    double disk_bytes, disk_fetched,
        host_bytes; /* of a rank: a step, a micro-batch, a step over the host's bus */
    struct sim_engine engine;
};

static inline double sim_ranks(const struct sim_run *r) { return (double)r->tp * r->pp * r->cp * r->dp; }
static inline enum net_way sim_way(const struct sim_run *r)
{
    return r->engine.ring ? NET_RING : r->engine.nested ? NET_NESTED : NET_TREE;
}
static inline int sim_chunks(const struct sim_run *r) { return r->vpp > 1 ? r->vpp : 1; }
/* Micro-batches of a rank in a step. */
static inline int64_t sim_micros(const struct sim_run *r) { return r->rows / r->dp / r->micro; }

#endif

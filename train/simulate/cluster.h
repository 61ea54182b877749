/* cluster.h - a machine to simulate: devices, levels of network, disks, failures, watts and prices. Plain
 * data, read from a TOML file or a preset. Any thread may call these functions.
 *
 *   name = "two machines"
 *   [device]                          # figures that devices reach; peaks: of the data sheet
 *   bf16_flops = 989e12
 *   ...
 *   [[network]]                       # the innermost level first
 *   ranks = 8                         # ranks inside one unit of this level; 0: all that there are
 *   alpha_s = 3e-6
 *   bytes_per_s = 370e9               # of one rank, in one direction
 *   [[product]]                       # measured, in the place of the formula: as many as there are
 *   dtype = "bf16"
 *   m = 512
 *   n = 768
 *   k = 768
 *   flops_per_s = 9e11
 *   [[op]]                            # a kernel of this engine, measured: docs/simulator.md
 *   [[collective]]                    # a sum or a gather of the ranks of one machine, measured
 *   [[wait]]                          # what ranks that compute lose at a sum, measured
 *   [[serve]]                         # a server, measured
 *
 * docs/simulator.md lists every key. */
#ifndef SHARDLINE_TRAIN_SIMULATE_CLUSTER_H
#define SHARDLINE_TRAIN_SIMULATE_CLUSTER_H

#include <stdio.h>
#include "base/err.h"

#define CLUSTER_PRESETS "a100|h100|h800|b200"
enum {
    CLUSTER_LEVELS = 4,
    CLUSTER_PRODUCTS = 512,
    CLUSTER_OPS = 4096,
    CLUSTER_COLLECTIVES = 160,
    CLUSTER_WAITS = 64,
    CLUSTER_SERVES = 64
};
enum sim_dtype { SIM_F32, SIM_BF16, SIM_FP8, SIM_DTYPES };
/* Kernels of a layer, the embedding, the head and the update, by their names in a trace; copy: dev_copy. */
/* clang-format off */
#define SIM_OP_LIST(K) \
    K(linear) K(linear_dx) K(linear_dw) K(linear_pack) K(rms_norm) K(rms_norm_dx) K(rms_norm_dw) \
    K(rope_store) K(rope_dx) K(attn) K(attn_dx) K(swiglu) K(swiglu_dx) K(add_rounded) K(round_to) K(copy) \
    K(embed) K(embed_dw) K(ce_max) K(ce_sum) K(ce_dx) K(adamw) K(sum_squares)
/* clang-format on */
#define K(name) SIM_OP_##name,
enum sim_op { SIM_OP_LIST(K) SIM_OPS };
#undef K
enum sim_collective { SIM_ALL_REDUCE, SIM_REDUCE_SCATTER, SIM_GATHER, SIM_COLLECTIVES };

struct cluster_level {
    double ranks, alpha_s, bytes_per_s;
    double unit_bytes_per_s; /* of a unit of the level below, whose ranks share it; 0: no limit but theirs */
};
struct cluster_product {
    enum sim_dtype dtype;
    double m, n, k, flops_per_s;
};
/* A measured call. rows, cols, other: as a trace has them, other 0: none (linear: outputs, then inputs;
 * linear_dx: inputs, then outputs; linear_pack: outputs, inputs; adamw, sum_squares, round_to: elements). */
struct cluster_op {
    enum sim_op name;
    enum sim_dtype dtype;
    double rows, cols, other, seq_len;
    double seconds; /* of one thread while every other core computes the same */
    double alone_s; /* of one thread while other cores rest; 0: as seconds */
    double all_s;   /* of one thread a core, together; 0: seconds by cores */
    /* threads that took turns on the cores, each with what a rank has in its caches; 0: one a core */
    double at_once;
};
/* bytes: of the whole buffer of a rank. ranks: all on one machine, 1: a sum of one, which goes through its
 * buffer too; seconds: on its clock, whatever the number of its cores. */
struct cluster_collective {
    enum sim_collective kind;
    double ranks, bytes, seconds;
};
/* What a sum of `ranks` ranks costs beyond its own seconds where each of them computes before it: they do not
 * come at a time, and ranks that share a core take turns. at_once: ranks of the machine, all in such groups;
 * seconds: on its clock, a sum. */
struct cluster_wait {
    double ranks, at_once, seconds;
};
/* A server that was measured: tp ranks with so many requests at a time. */
struct cluster_serve {
    double tp, batch, tokens_per_s, first_s;
};
/* How an engine works: facts of the engine, none of a single run. All 0: this project's engine. Switches are
 * 0 or 1, shares from 0 to 1. */
struct sim_engine {
    double ring;       /* sums by rings, else in one order: two all-to-alls */
    double nested;     /* sums in one order, inside a machine first */
    double fp8;        /* products of bf16 runs in 8 bits; attention and head stay bf16 */
    double sum_bytes;  /* of an element in sums of activations; 0: 4, which exact sums need */
    double grad_bytes; /* of an element in sums of gradients; 0: 4 */
    double row_bytes;  /* bytes that kernels of rows move, as a share of kernels that are not fused; 0: 1 */
    double dp_overlap; /* sums of gradients run beside the backward pass of the last micro-batch */
    double gather_overlap; /* new weights are gathered beside the first forward pass (zero 1, 2) */
    double wait_sends;     /* a rank waits until a message to the next stage has arrived */
    double
        unfused; /* scores are written to memory, those above the diagonal too; 2: with dropout and a mask */
    double attention;          /* speed of fused attention, as a share of the cluster's; 0: 1 */
    double recompute_products; /* selective recompute: share of the forward products that run again */
    double cp_contiguous;      /* ranks of cp have neighbouring tokens: the last one has most to do */
    double
        sync_s; /* a pass of a layer with experts stands still until the host knows how many rows there are */
    double tp_hidden, cp_hidden, ep_hidden; /* shares of these messages that products hide */
    double ep_nodes;   /* machines that a row of experts travels to at most, once each; 0: a copy an expert */
    double ep_fp8;     /* rows of experts travel in 8 bits on the way out */
    double ends_count; /* embedding and head count as a layer each where layers are divided over stages */
};

struct cluster {
    char name[64];
    double peak[SIM_DTYPES]; /* flops a second on the data sheet; 0: the device has no such arithmetic */
    double efficiency;       /* of peak that large products reach: the one figure that is calibrated */
    double clock; /* of the clock at which the peaks and the efficiency hold (a cap on the power) */
    double units; /* processors of a device that share the tiles of a product */
    double cores; /* of a machine, shared by its ranks: all other figures are then those of one thread.
                   * 0: every rank has a device of its own */
    double tile_m, tile_n;                /* of a product's result */
    double tile_k;                        /* terms of a sum that take as long as starting and ending a tile */
    double attention, attention_backward; /* of peak (bf16, else fp32) that fused attention reaches */
    double hbm_bytes_per_s;               /* that kernels of rows reach */
    double hbm_bytes;                     /* of a device */
    double kernel_s;                      /* from one kernel to the next */
    double measured;                      /* times that measured calls take inside of a step; fitted */
    double watts, idle_watts;             /* of a device with its share of the machine */
    double price_per_hour;                /* of a device */
    int n_levels;
    struct cluster_level level[CLUSTER_LEVELS];
    double host_bytes_per_s;  /* between a device and its host's memory */
    double disk_bytes_per_s;  /* of one rank's share of its machine's disks, read and written together */
    double store_bytes_per_s; /* of the store of checkpoints, for the whole job; 0: the disks are the store */
    double site_bytes_per_s;  /* of one machine, between sites; 0: one site */
    double failures_a_day;    /* of a thousand devices */
    double restart_s;         /* from a failure to the first step: found, started, loaded */
    double jitter;            /* deviation of a machine's step time, as a share of it */
    struct sim_engine engine;
    int n_products;
    struct cluster_product product[CLUSTER_PRODUCTS];
    int n_ops;
    struct cluster_op op[CLUSTER_OPS];
    int n_collectives;
    struct cluster_collective collective[CLUSTER_COLLECTIVES];
    int n_waits;
    struct cluster_wait wait[CLUSTER_WAITS];
    int n_serves;
    struct cluster_serve serve[CLUSTER_SERVES];
};

/* Reads a cluster from TOML text, ended by 0. what: its name, for messages. ERR_CONFIG: one line that names
 * the line, the key and the value. */
int cluster_parse(struct cluster *c, const char *text, const char *what, struct err *e);
/* A preset, or a file. ERR_USAGE: neither; otherwise the errors of io_read_file() and cluster_parse(). */
int cluster_open(struct cluster *c, const char *name, struct err *e);
/* The text of a preset; NULL: there is none of this name. */
const char *cluster_preset(const char *name);
/* Writes what cluster_parse() reads. */
void cluster_write(const struct cluster *c, FILE *out);
/* The name of a kernel, and the kernel of a name: -1: none. */
const char *cluster_op_name(enum sim_op op);
int cluster_op_of(const char *name, size_t n);

#endif

/* memplan - memory that a model needs on each GPU in a layout, or the layouts that fit. The first line
 * counts states as the ZeRO paper does (Rajbhandari et al. 2020, section 3: 2 + 2 + 12 bytes a parameter);
 * the table is that of ptrain. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "base/log.h"
#include "base/opt.h"
#include "comm/comm.h"
#include "store/sidecar.h"
#include "train/layout_plan.h"
#include "train/lora/lora_spec.h"
#include "tools/memplan_lab.h"
#include "tools/memplan_sim.h"
#include "train/simulate/sim_picture.h"

struct memplan_opts {
    const char *params, *model, *lora;
    int64_t virtual_stages, gpus, threads, tp, pp, cp, cp_grain, dp, ep, zero, micro, seq_len, batch, memory;
    double expert_buffer;
    int64_t disk, calibrate_ranks;
    double tflops;
    int sp, dtype, recompute, pipeline, offload, offload_grads, offload_params;
    struct memplan_sim sim; /* --simulate */
    /* what --lora names: [n_adapted] weights; 0: the model is trained */
    struct adapter_matrix *adapted;
    int n_adapted;
};
enum { ASK_NONE, ASK_CPU, ASK_DISK, ASK_ANY }; /* --offload */
#define AT(member) offsetof(struct memplan_opts, member)
/* clang-format off */
/* kind, name, member, default, unit, help, least, most, flags */
static const struct opt table[] = {
    { OPT_GROUP, "Model", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT,   "params",         AT(params),         NULL,   "7B",
      "number of parameters, when there is no config", 0, 0, 0 },
    { OPT_TEXT,   "model",          AT(model),          NULL,   "PRESET|FILE",
      "one of " MODEL_PRESETS ", or a config.json", 0, 0, 0, MODEL_PRESETS },
    { OPT_TEXT,   "lora",           AT(lora),           NULL,   "SPEC",
      "an adapter is trained, the model is frozen: as of ptrain", 0, 0, 0 },
    { OPT_GROUP, "Machine", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_INT,    "gpus",           AT(gpus),           "1",    "N", "ranks in all", 1, 1e6, 0 },
    { OPT_INT,    "threads",        AT(threads),        "1",    "N",
      "threads of a rank, on a cluster whose ranks share cores", 1, 4096, 0 },
    { OPT_SIZE,   "memory",         AT(memory),         "80GB", "SIZE", "of a GPU", 0, 0, 0 },
    { OPT_GROUP, "Layout (without degrees: a search)", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_INT,    "tp",             AT(tp),             "0",    "N", "tensor parallel degree", 0, 64, 0 },
    { OPT_INT,    "pp",             AT(pp),             "0",    "N", "pipeline stages", 0, 4096, 0 },
    { OPT_INT,    "cp",             AT(cp),             "0",    "N",
      "context parallel degree: ranks that divide every sequence", 0, 64, 0 },
    { OPT_INT,    "dp",             AT(dp),             "0",    "N",
      "data parallel degree (0: what remains)", 0, 1e6, 0 },
    { OPT_INT,    "ep",             AT(ep),             "1",    "N",
      "expert parallel degree: 1, or tp times neighbouring dp ranks", 1, 1e6, 0 },
    { OPT_INT,    "zero",           AT(zero),           "-1",   "0|1|2|3", "ZeRO stage", -1, 3, 0 },
    { OPT_SWITCH, "sp",             AT(sp),             "0",    NULL,
      "sequence parallel; a search then tries tp 2 and more", 0, 0, 0 },
    { OPT_CHOICE, "schedule",       AT(pipeline),       "1f1b", "gpipe|1f1b|interleaved|zero-bubble|naive",
      "pipeline schedule", 0, 0, 0 },
    { OPT_INT,    "virtual-stages", AT(virtual_stages), "1",    "V",
      "parts of the model a pipeline rank holds, with --schedule interleaved", 1, 4096, 0 },
    { OPT_GROUP, "Batch", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_INT,    "micro-batch",    AT(micro),          "0",    "M",
      "sequences a rank computes at once (0: 1; a search tries 1 to 8)", 0, 1e6, 0 },
    { OPT_INT,    "global-batch",   AT(batch),          "0",    "G",
      "sequences an update (0: 8 micro-batches a GPU)", 0, 1e9, 0 },
    { OPT_INT,    "seq-len",        AT(seq_len),        "2048", "T", "tokens a sequence", 1, 1e8, 0 },
    { OPT_INT,    "cp-grain",       AT(cp_grain),       "0",    "C",
      "leaves of a sequence, as of ptrain (0: from --seq-len); --cp divides them", 0, 64, 0 },
    { OPT_FLOAT,  "expert-buffer",  AT(expert_buffer),  "1.5",  "F",
      "with --ep: rows of experts that a rank has memory for, times an even load", 0.01, 1e6, 0 },
    { OPT_CHOICE, "dtype",          AT(dtype),          "bf16", "fp32|bf16", "arithmetic", 0, 0, 0 },
    { OPT_CHOICE, "recompute",      AT(recompute),      "none", "none|selective|full",
      "activations computed again", 0, 0, 0 },
    { OPT_GROUP, "Offload", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_CHOICE, "offload",        AT(offload),        "none", "none|cpu|disk|any",
      "where masters and moments are kept (any: a search uses the disk where memory does not do)", 0, 0, 0 },
    { OPT_SWITCH, "offload-grads",  AT(offload_grads),  "0",    NULL,
      "with disk and --zero 2 or 3: summed gradients too", 0, 0, 0 },
    { OPT_SWITCH, "offload-params", AT(offload_params), "0",    NULL,
      "with disk and --zero 3: weights too", 0, 0, 0 },
    { OPT_SIZE,   "disk",           AT(disk),           "3GB",  "SIZE",
      "bytes a second that a rank's share of the disks reads and writes, together", 0, 0, 0 },
    { OPT_FLOAT,  "tflops",         AT(tflops),         "400",  "F",
      "10^12 flops a second of a rank's products", 1e-6, 1e9, 0 },
    { OPT_GROUP, "Time", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT,   "simulate",       AT(sim.name),       NULL,   "CLUSTER|FILE.toml",
      "predict a step's time on one of " CLUSTER_PRESETS ", or on a cluster in a file; a search ranks by it",
      0, 0, 0, CLUSTER_PRESETS },
    { OPT_TEXT,   "ops",            AT(sim.ops),        NULL,   "TRACE.json",
      "seconds of kernels from a file of ptrain --trace, of one layer or more at these shapes", 0, 0, 0 },
    { OPT_SIZE,   "train-tokens",   AT(sim.tokens),     "0",    "N",
      "of the whole job, for its days, energy and money", 0, 0, 0 },
    { OPT_FLOAT,  "save-every",     AT(sim.save_every_s), "0",  "S",
      "seconds between saves (0: as loses least)", 0, 1e9, 0 },
    { OPT_INT,    "sites",          AT(sim.sites),      "1",    "N",
      "places that dp is divided over, with a slow wire between", 1, 1000, 0 },
    { OPT_INT,    "slow-stages",    AT(sim.slow_stages), "0",   "N",
      "pipeline stages on slower devices: the last ones, with fewer layers", 0, 4096, 0 },
    { OPT_FLOAT,  "slow-speed",     AT(sim.slow_speed), "0.5",  "F", "speed of those devices", 0.01, 1, 0 },
    { OPT_TEXT,   "second",         AT(sim.second_name), NULL,  "CLUSTER|FILE.toml",
      "devices of another kind: the last pipeline stages, with layers by what one takes there", 0, 0, 0,
      CLUSTER_PRESETS },
    { OPT_INT,    "second-gpus",    AT(sim.second_gpus), "0",   "N",
      "how many of --gpus those are", 0, 1e6, 0 },
    { OPT_TEXT,   "trace-out",      AT(sim.trace),      NULL,   "FILE",
      "the step's timeline: a Chrome trace, or FILE.svg", 0, 0, 0 },
    { OPT_TEXT,   "scale-out",      AT(sim.scale),      NULL,   "FILE.svg",
      "step time against ranks: dp grows, the batch stays", 0, 0, 0 },
    { OPT_TEXT,   "memory-out",     AT(sim.memory_out), NULL,   "FILE.svg",
      "memory of a layout, or of those that a search shows", 0, 0, 0 },
    { OPT_INT,    "reshard-nodes",  AT(sim.reshard_nodes), "0", "N",
      "a reshard of the whole state over so many machines: time and bytes", 0, 1e6, 0 },
    { OPT_INT,    "serve-load",     AT(sim.load),       "0",    "N",
      "tokens a second to generate: replicas, tp and batch with the fewest devices", 0, 1e12, 0 },
    { OPT_INT,    "serve-prompt",   AT(sim.prompt),     "1024", "N", "tokens of a prompt", 1, 1e8, 0 },
    { OPT_INT,    "serve-answer",   AT(sim.answer),     "256",  "N", "tokens of an answer", 1, 1e8, 0 },
    { OPT_FLOAT,  "serve-first",    AT(sim.first_s),    "0",    "S",
      "most seconds to the first token (0: any)", 0, 1e6, 0 },
    { OPT_TEXT,   "calibrate",      AT(sim.calibrate),  NULL,   "FILE.toml",
      "measure single operations of --model here, for up to --gpus ranks, and write a cluster", 0, 0, 0 },
    { OPT_INT,    "calibrate-ranks", AT(calibrate_ranks), "0",  "N",
      "print seconds of collectives of N ranks here: what --calibrate does with them", 0, 4096, 0 },
    { OPT_FLOAT,  "fit",            AT(sim.fit_s),      "0",    "S",
      "seconds that this layout's step was measured with: fit the cluster's file to them", 0, 1e6, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
/* clang-format on */

static void print_version(FILE *out) { comm_version(out, "memplan", ""); }
static const struct opt_program program = {
    .name = "memplan",
    .summary = "memory a GPU of a layout, or the layouts that fit",
    .usage = "(--params N | --model M) --gpus N",
    .opts = table,
    .print_version = print_version,
    .examples = "# memory of one layout, and its communication\n"
                "memplan --model 7b --gpus 8 --tp 8 --zero 1\n"
                "# the layouts that fit, best first\n"
                "memplan --model 70b --gpus 64 --memory 80GB --seq-len 4k\n"
                "# on one machine of 8 GPUs, with as much on its disks as it takes\n"
                "memplan --model 70b --gpus 8 --offload any --disk 4.6GB\n"
                "# how long a step takes, and where the time goes\n"
                "memplan --model 70b --gpus 64 --tp 8 --pp 8 --zero 1 --simulate h100\n",
};

/* Parameters: of them those of routed experts; those that compute a token. */
struct counted {
    double all, experts, active;
    double adapted; /* of an adapter, 0: none */
};

/* Bytes of weights, gradients and optimizer on a GPU, as the ZeRO paper counts them: figure 1, equations
 * of section 5. n parameters on a rank, dp ranks that have the same ones. */
static double paper_bytes(double n, int dp, int zero)
{
    return 2 * n / (zero >= 3 ? dp : 1) + 2 * n / (zero >= 2 ? dp : 1) + 12 * n / (zero >= 1 ? dp : 1);
}

struct degrees {
    int tp, pp, cp, dp;
};

/* Frozen weights: two bytes each, and what an adapter of `trained` parameters has. */
static double frozen_states(const struct counted *n, double trained, struct degrees d, int zero)
{
    int slices = d.dp * d.cp;
    return 2 * n->all / d.tp / d.pp / (zero >= 3 ? slices : 1) +
           paper_bytes(trained / d.tp / d.pp, slices, zero);
}

/* Whole experts are divided over ep ranks, all else over tp; slices over dp and cp. */
static double paper_states(const struct counted *n, struct degrees d, int ep, int zero)
{
    int of = ep > 1 ? ep : d.tp, slices = d.dp * d.cp, holders = ep > d.tp ? slices * d.tp / ep : slices;
    return paper_bytes((n->all - n->experts) / d.tp / d.pp, slices, zero) +
           paper_bytes(n->experts / of / d.pp, holders > 1 ? holders : 1, zero);
}

static struct counted count_params(const struct param_table *t)
{
    struct counted n = { 0 };
    for (int i = 0; i < t->n; i++) {
        n.all += (double)param_count(&t->p[i]);
        n.experts += t->p[i].group == GROUP_EXPERT ? (double)param_count(&t->p[i]) : 0;
    }
    n.active = n.all;
    if (t->cfg.n_experts)
        n.active -= n.experts * (1 - (double)t->cfg.experts_per_token / (double)t->cfg.n_experts);
    return n;
}

/* --lora. */
static int read_adapter(struct memplan_opts *o, const struct param_table *t, struct counted *params,
                        struct err *e)
{
    struct lora_spec s = { 0 };
    int rc = lora_spec_parse(&s, o->lora, e);
    if (rc >= 0)
        rc = lora_spec_match(&s, t, &o->adapted, &o->n_adapted, e);
    for (int i = 0; rc >= 0 && i < o->n_adapted; i++) {
        const struct param *p = &t->p[o->adapted[i].param];
        params->adapted += (double)s.rank * (double)(p->shape[0] + p->shape[1]);
    }
    lora_spec_free(&s);
    return rc;
}

static int read_model(struct memplan_opts *o, struct model_config *c, struct counted *params, struct err *e)
{
    struct param_table t;
    void *text = NULL;
    size_t n;
    int64_t given = 0;
    struct sidecars sidecars = { 0 };
    const char *path;
    int rc = 0;
    if (o->params && opt_parse_size(o->params, &given) < 0)
        return err_set(e, ERR_USAGE, "--params %s is not a number: 7B, 110M", o->params);
    if (o->memory < 1000000)
        return err_set(e, ERR_USAGE,
                       "--memory %lld: too few bytes for any model: give a size such as 80GB or 512MiB",
                       (long long)o->memory);

    *params = (struct counted){ .all = (double)given, .active = (double)given };
    if (o->lora && !o->model)
        return err_set(e, ERR_USAGE, "--lora needs the model's matrices: give --model config.json");
    if (!o->model)
        return given > 0 ? 0
                         : err_set(e, ERR_USAGE,
                                   "no model: give its size with --params 7B, or --model config.json");

    if (!(path = sidecar_file(&sidecars, o->model, e)))
        return -e->code;
    if (io_exists(path)) {
        TRY(io_read_file(path, 1 << 20, &text, &n, e));
        TRY(model_config_parse(c, text, o->model, e));
    } else {
        TRY(model_config_preset(c, o->model, e));
    }

    TRY(param_table_open(&t, c, e));
    *params = count_params(&t);
    rc = o->lora ? read_adapter(o, &t, params, e) : 0;
    param_table_close(&t);
out:
    sidecar_close(&sidecars);
    free(text);
    return rc;
}

static int sequence_leaves(const struct memplan_opts *o)
{
    return o->cp_grain ? (int)o->cp_grain : model_cp_grain(o->seq_len);
}

static struct layout_spec ask_of(const struct memplan_opts *o, const struct model_config *c, struct degrees d,
                                 int zero, int recompute)
{
    /* every layout does the same work */
    int64_t micro = o->micro ? o->micro : 1, rows = o->batch ? o->batch : 8 * micro * o->gpus;
    return (struct layout_spec){ .cfg = *c,
                                 .layout = { d.tp, d.pp, d.cp, d.dp, (int)o->ep, zero,
                                             d.pp > 1 ? (int)o->virtual_stages : 1, o->sp },
                                 .rows = rows,
                                 .micro = micro,
                                 .seq_len = o->seq_len,
                                 .dt = o->dtype ? DT_BF16 : DT_F32,
                                 .recompute = (enum recompute)recompute,
                                 .expert_buffer = o->expert_buffer,
                                 .pipeline = (enum pipe_kind)o->pipeline,
                                 .sharers = 1, /* a GPU has memory of its own */
                                 .overlap = d.dp * d.cp > 1,
                                 .threads = (int)o->threads,
                                 .cp_grain = sequence_leaves(o),
                                 .offload = o->offload == ASK_CPU    ? OFFLOAD_HOST
                                            : o->offload == ASK_DISK ? OFFLOAD_FILES
                                                                     : OFFLOAD_NONE,
                                 .offload_grads = o->offload_grads,
                                 .offload_params = o->offload_params,
                                 .adapted = o->adapted,
                                 .n_adapted = o->n_adapted,
                                 .disk_rate = (double)o->disk,
                                 .flops = o->tflops * 1e12 };
}

/* --offload-grads and --offload-params go with the disk, and with slices. */
static int check_offload(const struct memplan_opts *o, struct err *e)
{
    int zero = o->zero < 0 ? 0 : (int)o->zero, least = o->offload_params ? 3 : o->offload_grads ? 2 : 0;
    if (o->disk < 1000000)
        return err_set(e, ERR_USAGE,
                       "--disk %lld: too few bytes a second for any disk: give a size such as 3GB",
                       (long long)o->disk);
    if (o->lora && o->offload_params)
        return err_set(e, ERR_USAGE,
                       "--offload-params with --lora: frozen weights lie in memory: leave it out");
    if (least && (o->offload != ASK_DISK || zero < least))
        return err_set(e, ERR_USAGE, "--offload-%s: give it with --offload disk --zero %d",
                       o->offload_params ? "params" : "grads", least);
    return 0;
}

/* dp is what remains, where it is not given. */
static int degrees_of(const struct memplan_opts *o, struct degrees *d, struct err *e)
{
    *d = (struct degrees){ o->tp ? (int)o->tp : 1, o->pp ? (int)o->pp : 1, o->cp ? (int)o->cp : 1, 0 };
    int64_t inner = (int64_t)d->tp * d->pp * d->cp, dp = o->dp ? o->dp : o->gpus / inner;
    char cp[32] = "";
    d->dp = dp < 1 ? 1 : (int)dp;
    if (d->cp > 1)
        snprintf(cp, sizeof cp, " x cp %d", d->cp);
    if (dp < 1 || inner * dp != o->gpus)
        return err_set(e, ERR_USAGE,
                       "tp %d x pp %d%s x dp %d is not the %lld GPUs: use --gpus %lld, or other degrees",
                       d->tp, d->pp, cp, d->dp, (long long)o->gpus, (long long)inner * d->dp);
    return 0;
}

static const char *const recomputes[] = { "none", "selective", "full" };

/* A layout in a picture of memory. */
static struct sim_bar bar_of(const struct layout_spec *a, const struct layout_plan *p, double step_s)
{
    const struct layout *l = &a->layout;
    struct sim_bar bar = { .step_s = step_s };
    snprintf(bar.name, sizeof bar.name, "tp %d, pp %d, dp %d, zero %d, micro %lld%s%s", l->tp, l->pp, l->dp,
             l->zero, (long long)a->micro, a->recompute ? ", recompute " : "",
             a->recompute ? recomputes[a->recompute] : "");
    memcpy(bar.bytes, p->bytes, sizeof bar.bytes);
    return bar;
}

/* Prints one layout: the paper's line, then the table of ptrain. */
static int show_layout(const struct memplan_opts *o, const struct model_config *c,
                       const struct counted *params, struct err *e)
{
    int zero = o->zero < 0 ? 0 : (int)o->zero;
    struct degrees d;
    struct layout_plan p;
    if (degrees_of(o, &d, e) < 0)
        return -e->code;

    double states = o->n_adapted ? frozen_states(params, params->adapted, d, zero)
                                 : paper_states(params, d, (int)o->ep, zero);
    printf("states: %.4g GB a GPU\n", states / 1e9);
    if (!o->model)
        return 0;
    struct layout_spec a = ask_of(o, c, d, zero, o->recompute);
    struct err why;
    static struct memplan_sim sim; /* too large for a small stack */
    sim = o->sim;
    if (layout_check(&a.layout, c, &why) < 0 || (sim.fit_s > 0 && memplan_sim_fit(&sim, &a, &why) < 0) ||
        (sim.name && memplan_sim_show(&sim, &a, params->all, &why) < 0) ||
        layout_plan_make(&p, &a, stdout, &why) < 0) {
        *e = why;
        return -e->code;
    }
    layout_plan_print(&p, &a, stdout);
    struct sim_bar bar = bar_of(&a, &p, 0);
    double mfu;
    const char *loss;
    if (sim.memory_out && memplan_sim_judge(&sim, &a, &p, &bar.step_s, &mfu, &loss) >= 0 &&
        memplan_sim_memory(&sim, &bar, 1, e) < 0)
        return -e->code;
    printf("fits         %s in %.4g GB\n", p.total_bytes <= (double)o->memory ? "yes" : "no",
           (double)o->memory / 1e9);
    return 0;
}

/* ---- the search ---- */
struct found {
    struct layout_spec a;
    struct layout_plan p;
    double cost, mfu;
    const char *why;
};
/* What a layout keeps on the disk, the least first. */
static const struct shelf {
    int zero, grads, params; /* from this ZeRO stage on */
    const char *name;
} shelves[] = { { 0, 0, 0, "state on disk" },
                { 2, 1, 0, "state and gradients on disk" },
                { 3, 1, 1, "state, gradients and weights on disk" } };
struct search {
    const struct memplan_opts *o;
    const struct model_config *c;
    double params;
    struct found *fit; /* [n_fit] */
    int n_fit;
    int n_large;        /* layouts that need too much memory */
    int n_refused;      /* layouts that do not divide the model or the batch */
    struct found least; /* of n_large, the one that needs least */
};
enum { MOST_FITS = 49152, SHOWN = 10 };
/* The schedules of the search: gpipe and naive keep more, or wait longer, than 1f1b. */
static const struct way {
    enum pipe_kind kind;
    int virtual;
    const char *name;
} ways[] = {
    { PIPE_1F1B, 1, "1f1b" },
    { PIPE_INTERLEAVED, 2, "interleaved 2" },
    { PIPE_INTERLEAVED, 4, "interleaved 4" },
    { PIPE_ZERO_BUBBLE, 1, "zero-bubble" },
};

/* Estimates the seconds of a step, and what it loses most time to. Links: 300 GB/s inside a node of 8, 50
 * GB/s between nodes; a GPU of 2.5 times --tflops, which products reach. The disk
 * hides behind the products. */
static void estimate(struct found *f, double params)
{
    const struct layout_spec *a = &f->a;
    const struct layout_plan *p = &f->p;
    const struct layout *l = &a->layout;
    int in_node = l->tp * l->cp <= 8, one_node = l->cp > 1 && in_node && l->tp * l->cp * l->dp <= 8;
    double tokens = (double)(a->rows * a->seq_len) / l->dp / l->tp / l->cp / l->pp,
           work = (a->n_adapted ? 4 : 6) * params * tokens / a->flops;
    double disk = layout_plan_disk_s(p, a) - work; /* the rest is hidden */
    const struct {
        const char *what;
        double s;
    } lost[] = {
        { "the disk", a->offload == OFFLOAD_FILES && disk > 0 ? disk : 0 },
        { "sums of activations over tp", (p->tp_reduce + p->tp_gather) / (l->tp <= 8 ? 3e11 : 5e10) },
        { "keys and values over cp", (p->cp_gather + p->cp_reduce) / (in_node ? 3e11 : 5e10) },
        { "gradients and weights over dp", (p->dp_reduce + p->dp_gather) / (one_node ? 3e11 : 5e10) },
        { "stages that wait", work * p->bubble / (1 - p->bubble) },
        { "messages between stages", p->pp_send / 5e10 },
        { "forward computed twice", a->recompute == RECOMPUTE_FULL ? work / 3
                                    : a->recompute                 ? work * 0.02
                                                                   : 0 },
    };

    double most = 0;
    f->cost = work;
    f->why = "nothing";
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++) {
        f->cost += lost[i].s;
        if (lost[i].s > most) {
            most = lost[i].s;
            f->why = lost[i].what;
        }
    }
    f->mfu = 0.4 * work / f->cost;
}

/* By time, then by memory. */
static int by_cost(const void *x, const void *y)
{
    const struct found *a = x, *b = y;
    double d = a->cost != b->cost ? a->cost - b->cost : a->p.total_bytes - b->p.total_bytes;
    return d < 0 ? -1 : d > 0;
}

/* Returns whether it fits. */
static int try_layout(struct search *s, struct layout_spec a)
{
    struct found f = { .a = a };
    struct err e;
    if (layout_check(&a.layout, s->c, &e) < 0 || layout_plan_make(&f.p, &a, NULL, &e) < 0) {
        s->n_refused++;
        return 0;
    }
    if (!memplan_sim_fits(&s->o->sim, &a, &f.p)) {
        if (!s->n_large++ || f.p.total_bytes < s->least.p.total_bytes)
            s->least = f;
        return 0;
    }
    if (!s->o->sim.name)
        estimate(&f, s->params);
    else if (memplan_sim_judge(&s->o->sim, &f.a, &f.p, &f.cost, &f.mfu, &f.why) < 0) {
        s->n_refused++;
        return 0;
    }
    if (s->n_fit < MOST_FITS)
        s->fit[s->n_fit++] = f;
    return 1;
}

/* What a layout's state needs where it fits: no further shelf or recomputation can be faster than memory,
 * or what --offload asks for at least. */
enum fit { FITS_NOT, FITS, FITS_BEST };

/* Tries a layout with its state in memory (unless --offload asks otherwise), where that does not fit in the
 * host's memory (with a clock, which knows its bus), then with more and more of it on the disk. */
static enum fit try_shelves(struct search *s, const struct layout_spec *in_memory)
{
    int asked = s->o->offload;
    enum fit fits = FITS_NOT;
    if (asked != ASK_DISK && try_layout(s, *in_memory))
        return FITS_BEST;
    if (asked == ASK_ANY && s->o->sim.name) {
        struct layout_spec a = *in_memory;
        a.offload = OFFLOAD_HOST;
        fits = try_layout(s, a) ? FITS : FITS_NOT;
    }
    for (size_t i = 0; asked >= ASK_DISK && i < sizeof shelves / sizeof *shelves; i++) {
        struct layout_spec a = *in_memory;
        a.offload = OFFLOAD_FILES;
        a.offload_grads = shelves[i].grads;
        a.offload_params = shelves[i].params;
        if (a.layout.zero >= shelves[i].zero && try_layout(s, a))
            return !i && asked == ASK_DISK ? FITS_BEST : FITS;
    }
    return fits;
}

static const char *shelf_name(const struct layout_spec *a)
{
    return a->offload == OFFLOAD_HOST    ? "state in the host's memory"
           : a->offload != OFFLOAD_FILES ? ""
                                         : shelves[a->offload_grads + a->offload_params].name;
}

/* The next value of --ep to try: with --simulate groups of 2, 4, … times tp x cp. 0: no more. */
static int next_ep(const struct search *s, struct degrees d, int ep)
{
    int inner = d.tp * d.cp, next = ep == 1 ? inner : 2 * ep;
    next = next == 1 ? 2 : next;
    return s->o->sim.name && s->c->n_experts && s->o->ep == 1 && next <= inner * d.dp ? next : 0;
}

/* A way to run a layout, as it is and, with --simulate, with sequence parallel and groups of experts. Returns
 * how the worst of them fits. */
static enum fit try_variants(struct search *s, const struct layout_spec *in, struct degrees d)
{
    enum fit worst = FITS_BEST;
    int both = s->o->sim.name && d.tp > 1 && !in->layout.sp;
    for (int ep = (int)s->o->ep; ep; ep = next_ep(s, d, ep))
        for (int sp = in->layout.sp; sp <= in->layout.sp + both; sp++) {
            struct layout_spec a = *in;
            a.layout.sp = sp;
            a.layout.ep = ep;
            enum fit fits = try_shelves(s, &a);
            worst = fits < worst ? fits : worst;
        }
    return worst;
}

/* Tries all ways to run these degrees: ZeRO stages, micro-batches (with cp: of one sequence), schedules.
 * Activations are recomputed only where they do not fit; with a clock, and part of the state elsewhere, all
 * are tried: the disk may cost more than computing again. */
static void try_degrees(struct search *s, struct degrees d)
{
    int n_ways = d.pp > 1 ? (int)(sizeof ways / sizeof ways[0]) : 1;
    int64_t least = s->o->micro ? s->o->micro : 1, most = s->o->micro || d.cp > 1 ? least : 8;
    for (int zero = 0; zero <= (d.dp * d.cp > 1 || s->o->offload >= ASK_DISK ? 3 : 0); zero++)
        for (int64_t micro = least; micro <= most; micro *= 2)
            for (int w = 0; w < n_ways; w++)
                for (int again = 0, done = 0; again < 3 && !done; again++) {
                    struct layout_spec a = ask_of(s->o, s->c, d, zero, again);
                    a.micro = micro;
                    a.pipeline = ways[w].kind;
                    a.layout.vpp = ways[w].virtual;
                    done = try_variants(s, &a, d) >= (s->o->sim.name ? FITS_BEST : FITS);
                }
}

/* Tries tp x pp with every cp that divides the leaves of a sequence. */
static void try_context(struct search *s, int tp, int pp)
{
    int leaves = sequence_leaves(s->o);
    for (int cp = 1; cp <= leaves; cp++)
        if (leaves % cp == 0 && s->o->gpus % ((int64_t)tp * pp * cp) == 0)
            try_degrees(s, (struct degrees){ tp, pp, cp, (int)(s->o->gpus / tp / pp / cp) });
}

static const char *way_name(const struct layout_spec *a)
{
    for (size_t i = 0; a->layout.pp > 1 && i < sizeof ways / sizeof ways[0]; i++)
        if (ways[i].kind == a->pipeline && ways[i].virtual == a->layout.vpp)
            return ways[i].name;
    return "-";
}

static void print_found(const struct found *f, int rank)
{
    const struct layout *l = &f->a.layout;
    const char *shelf = shelf_name(&f->a);
    char cp[16] = "", more[40] = "";
    if (f->a.cp_grain > 1)
        snprintf(cp, sizeof cp, " %4d", l->cp);
    if (l->sp)
        strcat(more, "; sp");
    if (l->ep > 1)
        snprintf(more + strlen(more), sizeof more - strlen(more), "; ep %d", l->ep);
    printf("%-3d %4d %4d%s %5d %5d %6lld %-14s %-10s %7.4g GB %7.1f%% %7.3g s %5.1f%%  %s%s%s%s\n", rank,
           l->tp, l->pp, cp, l->dp, l->zero, (long long)f->a.micro, way_name(&f->a),
           recomputes[f->a.recompute], f->p.total_bytes / 1e9, 100 * f->p.bubble, f->cost, 100 * f->mfu,
           f->why, *shelf ? "; " : "", shelf, more);
}

/* Tries tp x pp, and counts them on a terminal. */
static void try_all(struct search *s)
{
    const struct memplan_opts *o = s->o;
    struct log l;
    log_open(&l, "memplan", 0, isatty(2));
    for (int tp = 1; tp <= 64 && tp <= o->gpus; tp++)
        for (int pp = 1; o->gpus % tp == 0 && (int64_t)tp * pp <= o->gpus && pp <= s->c->n_layers; pp++) {
            if (o->gpus % (tp * pp))
                continue;
            try_context(s, tp, pp);
            if (l.tty)
                log_progress(&l, 0, "tp %d of %lld  pp %d  %d layouts tried  %d fit", tp,
                             (long long)(o->gpus < 64 ? o->gpus : 64), pp,
                             s->n_fit + s->n_large + s->n_refused, s->n_fit);
        }
    log_close(&l);
}

/* The same degrees, batch and schedule: only recomputation and what lies elsewhere differ. */
static int is_variant(const struct layout_spec *a, const struct layout_spec *b)
{
    return !memcmp(&a->layout, &b->layout, sizeof a->layout) && a->micro == b->micro &&
           a->pipeline == b->pipeline;
}

/* The best layouts, each in its fastest variant; --memory-out draws them. */
static int show_best(const struct search *s, struct err *e)
{
    struct sim_bar bar[SHOWN] = { 0 };
    const struct found *shown[SHOWN];
    int n = 0;
    for (int i = 0; i < s->n_fit && n < SHOWN; i++) {
        const struct found *f = &s->fit[i];
        int again = 0;
        for (int k = 0; k < n; k++)
            again |= is_variant(&shown[k]->a, &f->a);
        if (again)
            continue;
        bar[n] = bar_of(&f->a, &f->p, f->cost);
        shown[n++] = f;
        print_found(f, n);
    }
    return n && s->o->sim.memory_out ? memplan_sim_memory(&s->o->sim, bar, n, e) : 0;
}

static int search(const struct memplan_opts *o, const struct model_config *c, double params, struct err *e)
{
    if (o->sim.fit_s > 0 || o->sim.trace || o->sim.scale)
        return err_set(
            e, ERR_USAGE,
            "--fit, --trace-out and --scale-out are of one layout, and this is a search: give --tp, "
            "--pp or --dp");
    struct search s = { .o = o, .c = c, .params = params, .fit = calloc(MOST_FITS, sizeof *s.fit) };
    if (!s.fit)
        return err_set(e, ERR_MEMORY, "no memory for the search");
    int rc = 0;
    try_all(&s);

    qsort(s.fit, (size_t)s.n_fit, sizeof *s.fit, by_cost);
    if (s.n_fit)
        printf("%-3s %4s %4s%s %5s %5s %6s %-14s %-10s %10s %8s %9s %6s  %s\n", "", "tp", "pp",
               sequence_leaves(o) > 1 ? "   cp" : "", "dp", "zero", "micro", "schedule", "recompute",
               "memory", "bubble", "step", "mfu", "loses most to");
    TRY(show_best(&s, e));

    if (s.n_fit)
        printf("%d layouts fit %.4g GB, %d need more, %d cannot be (degrees that do not divide, batches that "
               "do not)\n",
               s.n_fit, (double)o->memory / 1e9, s.n_large, s.n_refused);

    free(s.fit);
    s.fit = NULL;
    if (s.n_fit)
        return 0;
    if (!s.n_large)
        return err_set(e, ERR_USAGE,
                       "no layout of %lld GPUs divides this model and batch: use a power of two of GPUs, or "
                       "another --global-batch",
                       (long long)o->gpus);
    const struct layout *l = &s.least.a.layout;
    return err_set(e, ERR_USAGE,
                   "no layout of %lld GPUs fits %.4g GB, the smallest needs %.4g (tp %d, pp %d, zero %d, "
                   "--recompute %s): more GPUs, a smaller --seq-len%s",
                   (long long)o->gpus, (double)o->memory / 1e9, s.least.p.total_bytes / 1e9, l->tp, l->pp,
                   l->zero, recomputes[s.least.a.recompute],
                   o->offload < ASK_DISK ? ", or --offload any" : "");
out:
    free(s.fit);
    return rc;
}

int main(int argc, char **argv)
{
    static struct memplan_opts o; /* with its clusters too large for a small stack */
    struct opt_args args;
    struct model_config c;
    struct err e = { 0 };
    struct counted params = { 0 };
    io_begin();
    unsigned char given[sizeof table / sizeof *table] = { 0 };
    int rc = opt_parse(&program, argc, argv, &o, &args, given, &e);
    if (rc)
        return io_end(rc, &e, "memplan");

    memset(&c, 0, sizeof c);
    o.adapted = NULL;
    o.n_adapted = 0;
    if (o.calibrate_ranks) {
        rc = lab_rank((int)o.calibrate_ranks, argv, &e);
        goto out;
    }
    TRY(check_offload(&o, &e));
    TRY(memplan_sim_open(&o.sim, o.dtype == DT_F32 ? SIM_F32 : SIM_BF16, o.seq_len, &e));
    int own_memory = o.sim.name && !opt_given(&program, given, "memory");
    if (own_memory)
        o.memory = (int64_t)o.sim.cluster.hbm_bytes;
    o.sim.memory = (double)o.memory;
    o.sim.second_memory = own_memory ? o.sim.second.hbm_bytes : (double)o.memory;
    TRY(read_model(&o, &c, &params, &e));
    if (o.sim.calibrate || o.sim.load) {
        rc = o.model ? 0 : err_set(&e, ERR_USAGE, "--calibrate and --serve-load need a model: give --model");
        struct memplan_calibration how = { &c, o.seq_len,
                                           o.batch   ? o.micro
                                           : o.micro ? o.micro
                                                     : 1,
                                           o.batch, (int)o.gpus };
        if (rc >= 0)
            rc = o.sim.calibrate ? memplan_calibrate(o.sim.calibrate, &how, &e)
                                 : memplan_sim_serve(&o.sim, &c, params.all, &e);
    } else if (!o.tp && !o.pp && !o.cp && !o.dp && o.zero < 0 && o.model)
        rc = search(&o, &c, params.active, &e);
    else
        rc = show_layout(&o, &c, &params, &e);
out:
    free(o.adapted);
    opt_free(&program, &o, &args);
    return io_end(rc, &e, "memplan");
}

/* opt_near.c - see opt_near.h. */
#include "base/opt/opt_near.h"

#include <string.h>
#include <unistd.h>
#include "base/opt/opt_help.h"

/* ---- the words of other tools ---- */

/* Option names of Megatron-LM, DeepSpeed, torchrun, transformers, vLLM, llama.cpp and Slurm (with dashes, not
 * underscores), the option here that does the same, and advice where there is more to say. A name may have
 * several rows: the first row counts whose option the program has. */
static const struct {
    const char *theirs, *option, *advice;
} other_tools[] = {
    /* training: optimizer */
    { "learning-rate", "lr", NULL },
    { "min-learning-rate", "min-lr", NULL },
    { "lr-decay-style", "lr-schedule", NULL },
    { "lr-scheduler-type", "lr-schedule", NULL },
    { "lr-warmup-iters", "warmup", NULL },
    { "warmup-steps", "warmup", NULL },
    { "warmup-iters", "warmup", NULL },
    { "num-warmup-steps", "warmup", NULL },
    { "adam-beta1", "beta1", NULL },
    { "adam-beta2", "beta2", NULL },
    { "adam-eps", "eps", NULL },
    { "adam-epsilon", "eps", NULL },
    { "clip-grad", "clip", NULL },
    { "max-grad-norm", "clip", NULL },
    { "gradient-clipping", "clip", NULL },
    { "wd", "weight-decay", NULL },
    /* training: batch and length of the run */
    { "train-iters", "steps", NULL },
    { "max-steps", "steps", NULL },
    { "num-iterations", "steps", NULL },
    { "exit-interval", "stop-after", NULL },
    { "sequence-length", "seq-len", NULL },
    { "seq-length", "seq-len", NULL },
    { "max-seq-len", "seq-len", NULL },
    { "max-seq-length", "seq-len", NULL },
    { "block-size", "seq-len", NULL },
    { "batch-size", "global-batch", NULL },
    { "train-batch-size", "global-batch", NULL },
    { "global-batch-size", "global-batch", NULL },
    { "micro-batch-size", "micro-batch", NULL },
    { "per-device-train-batch-size", "micro-batch", NULL },
    { "train-micro-batch-size-per-gpu", "micro-batch", NULL },
    { "gradient-accumulation-steps", "micro-batch",
      "give --micro-batch: a rank computes --global-batch / dp sequences in parts of that many" },
    { "eval-interval", "eval-every", NULL },
    { "eval-iters", "eval-batches", NULL },
    { "save-interval", "save-every", NULL },
    { "save-steps", "save-every", NULL },
    { "save-total-limit", "keep", NULL },
    { "save", "out", NULL },
    { "output-dir", "out", NULL },
    { "load", "resume", NULL },
    { "resume-from-checkpoint", "resume", NULL },
    { "data-path", "data", NULL },
    { "train-file", "data", NULL },
    { "dataset", "data", NULL },
    { "tokenizer-model", "tokenizer", NULL },
    { "tokenizer-name", "tokenizer", NULL },
    { "tokenizer-name-or-path", "tokenizer", NULL },
    { "max-restarts", "restarts", NULL },
    { "tensorboard-dir", "log", "give --log FILE: shardline-plot --tensorboard DIR makes event files of it" },
    { "wandb-project", "log", "give --log FILE: a follower in tools/ sends it" },
    /* training: the model */
    { "model-name-or-path", "init", NULL },
    { "num-layers", "model", "give --model PRESET, or a config.json with num_hidden_layers" },
    { "hidden-size", "model", "give --model PRESET, or a config.json with hidden_size" },
    { "num-attention-heads", "model", "give --model PRESET, or a config.json with num_attention_heads" },
    { "ffn-hidden-size", "model", "give --model PRESET, or a config.json with intermediate_size" },
    { "max-position-embeddings", "model", "give --model PRESET, or a config.json that has it" },
    /* layouts */
    { "tensor-parallel-size", "tp", NULL },
    { "tensor-model-parallel-size", "tp", NULL },
    { "tp-size", "tp", NULL },
    { "pipeline-parallel-size", "pp", NULL },
    { "pipeline-model-parallel-size", "pp", NULL },
    { "pp-size", "pp", NULL },
    { "context-parallel-size", "cp", NULL },
    { "prefill-context-parallel-size", "cp", NULL },
    { "expert-model-parallel-size", "ep", NULL },
    { "expert-parallel-size", "ep", NULL },
    { "enable-expert-parallel", "ep", NULL },
    { "data-parallel-size", "replicas", NULL },
    { "data-parallel-size", "dp", NULL },
    { "data-parallel-size", "ranks", "dp is what remains: --ranks / (tp x pp x cp)" },
    { "dp-size", "replicas", NULL },
    { "dp", "ranks", "dp is what remains: --ranks / (tp x pp x cp)" },
    { "zero-stage", "zero", NULL },
    { "use-distributed-optimizer", "zero", NULL },
    { "sequence-parallel", "sp", NULL },
    { "num-layers-per-virtual-pipeline-stage", "virtual-stages", NULL },
    { "nproc-per-node", "ranks", NULL },
    { "num-gpus", "ranks", NULL },
    { "num-gpus", "gpus", NULL },
    { "np", "ranks", NULL },
    { "ntasks", "ranks", NULL },
    { "nnodes", "ranks", "start it under mpirun or srun: examples/ has both" },
    { "hostfile", "ranks", "start it as mpirun --hostfile FILE ptrain" },
    { "cpu-offload", "offload", NULL },
    { "recompute-activations", "recompute", NULL },
    { "recompute-granularity", "recompute", NULL },
    { "gradient-checkpointing", "recompute", NULL },
    { "activation-checkpointing", "recompute", NULL },
    { "bf16", "dtype", "give --dtype bf16" },
    { "fp16", "dtype", "give --dtype bf16: fp16 is not computed" },
    { "torch-dtype", "dtype", NULL },
    { "deterministic-mode", "numerics", "--numerics exact is that, and the default" },
    { "moe-aux-loss-coeff", "balance-rate", NULL },
    { "moe-z-loss-coeff", "z-loss", NULL },
    /* serving */
    { "max-model-len", "ctx", NULL },
    { "ctx-size", "ctx", NULL },
    { "context-length", "ctx", NULL },
    { "n-ctx", "ctx", NULL },
    { "max-num-seqs", "max-batch", NULL },
    { "max-running-requests", "max-batch", NULL },
    { "max-num-batched-tokens", "prefill-chunk", NULL },
    { "chunked-prefill-size", "prefill-chunk", NULL },
    { "ubatch-size", "prefill-chunk", NULL },
    { "gpu-memory-utilization", "kv-memory", NULL },
    { "mem-fraction-static", "kv-memory", NULL },
    { "enable-prefix-caching", "prefix-cache", NULL },
    { "served-model-name", "model-name", NULL },
    { "alias", "model-name", NULL },
    { "api-key", "api-key-file", NULL },
    { "ssl-certfile", "tls-cert", NULL },
    { "ssl-keyfile", "tls-key", NULL },
    { "allowed-origins", "cors-origin", NULL },
    { "kv-cache-dtype", "kv-dtype", NULL },
    { "cache-type-k", "kv-dtype", NULL },
    { "chat-template-file", "chat-template", NULL },
    { "tool-call-parser", "tool-parser", NULL },
    { "speculative-config", "speculate", NULL },
    { "model-draft", "speculate", NULL },
    { "enable-lora", "lora", NULL },
    { "lora-modules", "lora", NULL },
    { "n-predict", "max-tokens", NULL },
    { "max-new-tokens", "max-tokens", NULL },
    { "temp", "temperature", NULL },
    { "prompt", "once", NULL },
    { "model", "model-name", "the checkpoint is an argument: pserve CKPT" },
    { "model-path", "model-name", "the checkpoint is an argument: pserve CKPT" },
    { "n-gpu-layers", "device", "give --device cuda: all layers are on the GPU" },
    /* checkpoints */
    { "target-tensor-parallel-size", "tp", NULL },
    { "target-pipeline-parallel-size", "pp", NULL },
    { "max-shard-size", "shard-size", NULL },
    { "outtype", "dtype", NULL },
    { "num-workers", "threads", NULL },
    { "workers", "threads", NULL },
};

/* The options with one dash of llama.cpp, mpirun and others, as one of the long names above. */
static const struct {
    char letter[5];
    const char *name;
} short_names[] = {
    { "c", "ctx-size" }, { "m", "model" },    { "ngl", "n-gpu-layers" }, { "n", "n-predict" },
    { "n", "ntasks" },   { "np", "np" },      { "t", "threads" },        { "p", "prompt" },
    { "o", "out" },      { "H", "hostfile" },
};

static int has(const struct opt_program *p, const char *name)
{
    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP && !strcmp(o->name, name))
            return 1;
    return 0;
}

/* 1 when a is b with dashes for underscores, and without no- in front. */
static int same_name(const char *a, const char *b)
{
    a += strncmp(a, "no-", 3) ? 0 : 3;
    while (*a && (*a == *b || (*a == '_' && *b == '-'))) {
        a++;
        b++;
    }
    return !*a && !*b;
}

/* The row of another tool's name whose option p has; -1: none. */
static int find_other(const struct opt_program *p, const char *name)
{
    int n = sizeof other_tools / sizeof *other_tools;
    for (int i = 0; i < n; i++)
        if (same_name(name, other_tools[i].theirs) && has(p, other_tools[i].option))
            return i;
    return -1;
}

#define NAME_MAX_CMP 48

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Number of letters to add, drop, change or swap with their neighbour to get from a to b. */
static int distance(const char *a, const char *b)
{
    int d[3][NAME_MAX_CMP + 1], na = (int)strlen(a), nb = (int)strlen(b);
    if (na > NAME_MAX_CMP || nb > NAME_MAX_CMP)
        return NAME_MAX_CMP;
    for (int j = 0; j <= nb; j++)
        d[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *row = d[i % 3], *above = d[(i + 2) % 3], *above2 = d[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < row[j])
                row[j] = above2[j - 2] + 1;
        }
    }
    return d[na % 3][nb];
}

static void closer(const char *name, const char *candidate, int *best, const char **found)
{
    int d = distance(name, candidate);
    size_t n = strlen(name);
    if (n >= 3 && !strncmp(name, candidate, n)) /* --sched for --schedule */
        d = 1;
    if (d < *best) {
        *best = d;
        *found = candidate;
    }
}

static int did_you_mean(const char *dashes, const char *name, const char *found, struct err *e)
{
    return err_set(e, ERR_USAGE, "unknown option %s%s: did you mean --%s", dashes, name, found);
}

int opt_unknown_name(const struct opt_program *p, const char *name, struct err *e)
{
    const char *found = NULL;
    int best = (int)strlen(name) / 3 + 2; /* a name further away is no help */
    int other = find_other(p, name);

    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP && same_name(name, o->name))
            return did_you_mean("--", name, o->name, e);
    if (other >= 0 && other_tools[other].advice)
        return err_set(e, ERR_USAGE, "unknown option --%s: %s", name, other_tools[other].advice);
    if (other >= 0)
        return did_you_mean("--", name, other_tools[other].option, e);

    for (const struct opt *o = p->opts; !opt_is_end(o); o++)
        if (o->kind != OPT_GROUP)
            closer(name, o->name, &best, &found);
    for (const struct opt_builtin *b = opt_builtins; b->name; b++)
        closer(name, b->name, &best, &found);
    if (found)
        return did_you_mean("--", name, found, e);
    return err_set(e, ERR_USAGE, "unknown option --%s: see --help", name);
}

int opt_unknown_short(const struct opt_program *p, const char *arg, struct err *e)
{
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++) {
        const char *name = short_names[i].name;
        int other = strcmp(arg + 1, short_names[i].letter) ? -1 : find_other(p, name);
        if (!strcmp(arg + 1, short_names[i].letter) && has(p, name))
            return did_you_mean("", arg, name, e);
        if (other >= 0 && other_tools[other].advice)
            return err_set(e, ERR_USAGE, "unknown option %s: %s", arg, other_tools[other].advice);
        if (other >= 0)
            return did_you_mean("", arg, other_tools[other].option, e);
    }
    if (strlen(arg) > 2) /* -tp for --tp */
        for (const struct opt *o = p->opts; !opt_is_end(o); o++)
            if (o->kind != OPT_GROUP && same_name(arg + 1, o->name))
                return did_you_mean("", arg, o->name, e);
    return err_set(e, ERR_USAGE, "unknown option %s: options are long, see --help", arg);
}

int opt_check_command(const struct opt_program *p, const char *word, struct err *e)
{
    const char *found = NULL;
    int best = 3;
    if (!word || *word == '-' || strpbrk(word, "/:.") || access(word, F_OK) == 0)
        return 0;
    for (const struct opt_program *const *c = p->commands; c && *c; c++)
        closer(word, opt_command_word(*c), &best, &found);
    if (!found || !strcmp(word, found))
        return 0;
    return err_set(e, ERR_USAGE, "%s is neither a command nor a checkpoint here: did you mean %s %s", word,
                   p->name, found);
}

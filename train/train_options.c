/* train_options.c - ptrain's options, as a table: parsed, printed and stored by base/opt. */
#include "train/train_options.h"

#include <string.h>
#include "comm/comm.h"
#include "kernels/dev.h"
#include "kernels/tree.h"
#include "model/config.h"
#include "train/simulate/cluster.h"

#define AT(member) offsetof(struct train_opts, member)
#define N OPT_NOT_STORED
#define LATER OPT_NEUTRAL_ONLY

/* clang-format off */
#define GROUP(text) { OPT_GROUP, text, 0, NULL, NULL, NULL, 0, 0, 0 }

/* kind, name, member, default, unit, help, least, most, flags */
static const struct opt table[] = {
    GROUP("Run"),
    { OPT_INT,    "ranks",          AT(ranks),          "0",        "N",
      "ranks to start on this machine (0: as many as the launcher started, else 1)", 0, 4096, N },
    { OPT_TEXT,   "out",            AT(out),            NULL,       "DIR",
      "folder for checkpoints (DIR/step-N)", 0, 0, N },
    { OPT_INT,    "steps",          AT(steps),          "100",      "N",
      "length of the schedule, in updates", 1, 1e12, 0 },
    { OPT_INT,    "stop-after",     AT(stop_after),     "0",        "N",
      "stop after this many updates, resumable (0: all)", 0, 1e12, N },
    { OPT_INT,    "save-every",     AT(save_every),     "0",        "N",
      "checkpoint every N updates (0: only at the end)", 0, 1e12, N },
    { OPT_INT,    "keep",           AT(keep),           "0",        "K",
      "keep only the newest K checkpoints (0: all)", 0, 1e6, N },
    { OPT_SWITCH, "save-async",     AT(save_async),     "0",        NULL,
      "copy, then write while training goes on (takes memory for the copy)", 0, 0, N },
    { OPT_TEXT,   "publish",        AT(publish),        NULL,       "HOST:PORT",
      "serve the weights of the run there (pshare): http://HOST:PORT is a CKPT", 0, 0, N },
    { OPT_INT,    "publish-every",  AT(publish_every),  "1",        "N",
      "a new version every N updates", 1, 1e12, N },
    { OPT_SWITCH, "publish-copy",   AT(publish_copy),   "0",        NULL,
      "a version is a copy, which stays until the next one (as every version is)", 0, 0, N },
    { OPT_TEXT,   "publish-key-file", AT(publish_key_file), NULL,   "FILE",
      "keys, one a line, of readers on other machines (a HOST that they reach needs it)", 0, 0, N },
    { OPT_CHOICE, "on-save-error",  AT(on_save_error),  "continue", "continue|stop",
      "what to do when a save before the last one fails", 0, 0, N },
    { OPT_TEXT,   "resume",         AT(resume),         NULL,       "CKPT|auto",
      "continue this checkpoint, in any layout (auto: the newest whole one in --out)", 0, 0, N },
    { OPT_INT,    "restarts",       AT(restarts),       "0",        "N",
      "restart a job that failed, up to N times, with --resume auto", 0, 1e6, N },
    { OPT_INT,    "memory-every",   AT(memory_every),   "0",        "K",
      "keep the state of every K-th update in memory, for a job whose rank dies (0: never)", 0, 1e12, N },
    { OPT_TEXT,   "layout-file",    AT(layout_file),    NULL,       "FILE",
      "TOML with another layout (tp = 2, ranks = 4): taken when FILE changes, or at SIGHUP", 0, 0, N },
    { OPT_SWITCH, "any-bits",       AT(any_bits),       "0",        NULL,
      "--layout-file: take layouts whose bits are their own, too", 0, 0, N },
    { OPT_TEXT,   "config",         AT(config),         NULL,       "FILE",
      "TOML with long options as keys (lr = 3e-4); the command line wins", 0, 0, N },
    { OPT_TEXT,   "log",            AT(log),            NULL,       "FILE",
      "JSON lines: what the run is, then a line a step", 0, 0, N },
    { OPT_TEXT,   "trace",          AT(trace),          NULL,       "FILE",
      "Chrome trace of kernels, waits and collectives, of every rank and thread", 0, 0, N },
    { OPT_TEXT,   "device",         AT(device),         "cpu",      "cpu|cuda",
      "where the arithmetic runs", 0, 0, N },
    { OPT_TEXT,   "transport",      AT(transport),      "auto",     "NAME",
      "auto, self, shm, mpi or nccl", 0, 0, N, "auto|self|shm|mpi|nccl" },
    { OPT_INT,    "rank-timeout",   AT(rank_timeout_s), "600",      "SECONDS",
      "seconds that a step waits for another machine, or NCCL for a rank, before the job ends", 1, 1e6, N },
    { OPT_INT,    "ranks-per-node", AT(ranks_per_node), "0",        "N",
      "treat every N ranks of this machine as a machine of their own (0: off), to try layouts", 0, 4096, N },
    { OPT_INT,    "threads",        AT(threads),        "0",        "N",
      "threads a rank (0: cores / ranks, at least 1)", 0, 4096, N },
    { OPT_SWITCH, "dry-run",        AT(dry_run),        "0",        NULL,
      "print the plan: memory a rank, communication a step; start nothing", 0, 0, N },
    { OPT_TEXT,   "simulate",       AT(simulate),       NULL,       "CLUSTER|FILE.toml",
      "with --dry-run: predict a step's time on one of " CLUSTER_PRESETS ", or on a cluster in a file",
      0, 0, N, CLUSTER_PRESETS },
    { OPT_SWITCH, "force",          AT(force),          "0",        NULL,
      "start although the plan needs more memory than is free", 0, 0, N },
    GROUP("Layout (dp is what remains)"),
    { OPT_INT,    "tp",             AT(tp),             "1",        "N",
      "tensor parallel degree", 1, GRAIN_MAX, N },
    { OPT_INT,    "pp",             AT(pp),             "1",        "N", "pipeline stages", 1, 4096, N },
    { OPT_INT,    "cp",             AT(cp),             "1",        "N",
      "context parallel degree: ranks that share the tokens of every sequence", 1, 4096, N },
    { OPT_INT,    "ep",             AT(ep),             "1",        "N",
      "expert parallel degree: 1, or tp x cp times neighbouring dp ranks", 1, 4096, N },
    { OPT_INT,    "zero",           AT(zero),           "0",        "0|1|2|3",
      "ZeRO stage: shard optimizer (1), gradients (2), weights (3) over dp", 0, 3, N },
    { OPT_SWITCH, "sp",             AT(sp),             "0",        NULL,
      "sequence parallel: tp ranks share a sequence's tokens between products (norms, residuals)", 0, 0, N },
    { OPT_CHOICE, "schedule",       AT(pipeline),       "1f1b", "gpipe|1f1b|interleaved|zero-bubble|naive",
      "pipeline schedule", 0, 0, N },
    { OPT_INT,    "virtual-stages", AT(virtual_stages), "1",        "V",
      "parts of the model a pipeline rank holds, with --schedule interleaved", 1, 4096, N },
    { OPT_CHOICE, "overlap",        AT(overlap),        "on",       "on|off",
      "sum gradients during backward, fetch the next unit's weights (zero 3) ahead, and compute the shared "
      "expert and gradients of experts while rows of experts travel (ep)", 0, 0, N },
    GROUP("Model"),
    { OPT_TEXT,   "model",          AT(model),          NULL,       "PRESET|FILE",
      "one of " MODEL_PRESETS ", or a config.json (default tiny, or --init's)", 0, 0, N, MODEL_PRESETS },
    { OPT_TEXT,   "init",           AT(init),           NULL,       "CKPT",
      "start from these weights", 0, 0, N },
    { OPT_TEXT,   "lora",           AT(lora),           NULL,       "SPEC",
      "train an adapter of --init's weights, which stay as they are: r=16,alpha=32,targets=q_proj,v_proj "
      "(or all-linear), rslora=1, init=gaussian", 0, 0, 0 },
    { OPT_TEXT,   "lora-init",      AT(lora_init),      NULL,       "DIR",
      "start from this adapter (a folder of PEFT, or a checkpoint of --lora); with --eval-only: evaluate "
      "with it", 0, 0, N },
    { OPT_INT,    "vocab-size",     AT(vocab_size),     "0",        "N",
      "tokens that the model knows (0: those of the tokenizer or the token file, else the preset's)",
      0, 1 << 28, N },
    { OPT_INT,    "seed",           AT(seed),           "0",        "N",
      "of initial weights and data order", 0, 9e18, 0 },
    { OPT_INT,    "grain",          AT(grain),          "0",        "N",
      "blocks of every sum over features (0: gcd(8, heads, intermediate))", 0, GRAIN_MAX, N },
    { OPT_INT,    "expert-leaf",    AT(expert_leaf),    "0",        "S",
      "neighbouring sequences that are one leaf of an expert's weight gradients: a power of two (0: 1)", 0,
      1 << 20, N },
    { OPT_INT,    "cp-grain",       AT(cp_grain),       "0",        "C",
      "leaves of a sequence in weight gradients: a power of two (0: 1 below 4096 tokens, 8 from 16384 on)", 0,
      1 << 10, N },
    GROUP("Data"),
    { OPT_LIST,   "data",           AT(data),           NULL,       "FILE",
      "text, .u16/.u32 token ids, files of ptok, .jsonl of chats; paths or URLs", 0, 0, N },
    { OPT_TEXT,   "tokenizer",      AT(tokenizer),      "bytes",    "bytes|DIR",
      "how text becomes tokens", 0, 0, 0 },
    { OPT_TEXT,   "chat-template",  AT(chat_template),  NULL,       "FILE",
      "chats: how they become text (default: the template of --tokenizer)", 0, 0, N },
    { OPT_CHOICE, "chat-turns",     AT(chat_turns),     "all",      "all|last",
      "chats: the loss is on every answer of the assistant, or on the last one alone", 0, 0, 0 },
    { OPT_LIST,   "loss-weights",   AT(loss_weights),   NULL,       "FILE",
      ".f32 files, one for each of --data: a weight for each token, 0: its loss does not count", 0, 0, N },
    { OPT_INT,    "loss-divisor",   AT(loss_divisor),   "0",        "N",
      "what the sum of weight times loss of an update is divided by (0: its targets with a weight)", 0, 1e15,
      0 },
    { OPT_TEXT,   "data-mix",       AT(data_mix),       NULL,       "W,W...",
      "mixture: a weight for each --data file, which is then cut into sequences by itself", 0, 0, 0 },
    { OPT_TEXT,   "data-order",     AT(data_order),     "shuffle",  "ORDER",
      "shuffle, or stride:K (row r of step s is window ((s G + r) K) mod n)", 0, 0, 0, "shuffle|stride:1" },
    { OPT_LIST,   "eval-data",      AT(eval_data),      NULL,       "FILE", "data for evaluation", 0, 0, N },
    { OPT_INT,    "eval-every",     AT(eval_every),     "0",        "N",
      "evaluate every N updates (0: never)", 0, 1e12, N },
    { OPT_INT,    "eval-batches",   AT(eval_batches),   "0",        "N",
      "evaluate on the first N global batches of --eval-data (0: on all of it)", 0, 1e12, N },
    { OPT_INT,    "sample-every",   AT(sample_every),   "0",        "N",
      "print a sample every N updates (0: never)", 0, 1e12, N },
    { OPT_SWITCH, "eval-only",      AT(eval_only),      "0",        NULL,
      "loss and perplexity of --init on --eval-data, no training", 0, 0, N },
    { OPT_TEXT,   "eval-logprobs",  AT(eval_logprobs),  NULL,       "FILE",
      "with --eval-only: ids and log-probs, a JSON line a window", 0, 0, N },
    GROUP("Batch"),
    { OPT_INT,    "seq-len",        AT(seq_len),        "128",      "T", "tokens a sequence", 1, 1e8, 0 },
    { OPT_INT,    "documents",      AT(documents),      "0",        "N",
      "attention and positions restart where a document of ptok's files begins, at most N in a sequence "
      "(0: they go on)", 0, 65536, 0 },
    { OPT_INT,    "global-batch",   AT(global_batch),   "8",        "G", "sequences an update", 1, 1e9, 0 },
    { OPT_INT,    "micro-batch",    AT(micro_batch),    "0",        "M",
      "sequences a rank computes at once (0: G / dp)", 0, 1e9, N },
    GROUP("Optimizer (AdamW)"),
    { OPT_FLOAT,  "lr",             AT(lr),             "0.003",    NULL,
      "highest learning rate", 0, 1e6, 0 },
    { OPT_FLOAT,  "min-lr",         AT(min_lr),         "0",        NULL,
      "learning rate at the end", 0, 1e6, 0 },
    { OPT_INT,    "warmup",         AT(warmup),         "0",        "N",
      "updates of linear warm-up", 0, 1e12, 0 },
    { OPT_CHOICE, "lr-schedule",    AT(schedule),       "cosine",   "cosine|linear|wsd|constant",
      "after warm-up (wsd: the last 20 % decay linearly)", 0, 0, 0 },
    { OPT_CHOICE, "balance",        AT(balance),        "none",     "none|sequence|global|bias",
      "what evens the load of experts: a loss over the counts of each sequence, or of the whole batch of the "
      "step before (not Megatron's global_aux_loss), or a bias on the choice (DeepSeek-V3)", 0, 0, 0 },
    { OPT_FLOAT,  "balance-rate",   AT(balance_rate),   "0.001",    NULL,
      "factor of that loss; bias: what a step adds or takes away", 0, 1e3, 0 },
    { OPT_FLOAT,  "z-loss",         AT(z_loss),         "0",        NULL,
      "factor of the mean of squared log sum exp of router logits", 0, 1e3, 0 },
    { OPT_FLOAT,  "expert-buffer",  AT(expert_buffer),  "1.5",      "F",
      "--ep: memory for rows of experts, times an even load; more rows go in several rounds", 0.01, 1e6, N },
    { OPT_FLOAT,  "beta1",          AT(beta1),          "0.9",      NULL,
      "decay of the first moment", 0, 1, 0 },
    { OPT_FLOAT,  "beta2",          AT(beta2),          "0.95",     NULL,
      "decay of the second moment", 0, 1, 0 },
    { OPT_FLOAT,  "eps",            AT(eps),            "1e-8",     NULL,
      "added to the root of the second moment", 0, 1, 0 },
    { OPT_FLOAT,  "weight-decay",   AT(weight_decay),   "0.1",      NULL,
      "decoupled, on tensors of two or more dimensions", 0, 1e3, 0 },
    { OPT_FLOAT,  "clip",           AT(clip),           "1.0",      NULL,
      "gradient norm above which it is scaled down (0: never)", 0, 1e30, 0 },
    GROUP("Numbers"),
    { OPT_CHOICE, "dtype",          AT(dtype),          "fp32",     "fp32|bf16",
      "arithmetic; bf16 keeps fp32 masters (resume: the checkpoint's)", 0, 0, N },
    { OPT_CHOICE, "numerics",       AT(numerics),       "exact",    "exact|fast",
      "exact: the same bits at every layout", 0, 0, 0 },
    { OPT_CHOICE, "recompute",      AT(recompute),      "none",     "none|selective|full",
      "activations that backward computes again", 0, 0, N },
    { OPT_TEXT,   "offload",        AT(offload),        "none",     "none|cpu|DIR",
      "where fp32 masters and moments are kept: in the host's memory beside a GPU, or in files in a folder "
      "on a fast disk", 0, 0, N },
    { OPT_SWITCH, "offload-grads",  AT(offload_grads),  "0",        NULL,
      "with --offload DIR and --zero 2 or 3: summed gradients in files too", 0, 0, N },
    { OPT_SWITCH, "offload-params", AT(offload_params), "0",        NULL,
      "with --offload DIR and --zero 3: weights in files too", 0, 0, N },
    { OPT_SWITCH, "offload-activations", AT(offload_activations), "0", NULL,
      "with --offload DIR and --recompute full: inputs of layers in files until backward", 0, 0, N },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
/* clang-format on */
_Static_assert(sizeof table / sizeof *table <= GIVEN_MAX, "a mark for every row");

int opts_given(const unsigned char *given, const char *name)
{
    return opt_given(&ptrain_program, given, name);
}

int opts_overlap(const struct train_opts *o, const unsigned char *given, int dp, int sharers)
{
    return o->overlap == OVERLAP_ON && dp > 1 &&
           (sharers == 1 || sharers == dp || opts_given(given, "overlap"));
}

int opts_stored(const char *name)
{
    for (int i = 0; table[i].name; i++)
        if (table[i].kind != OPT_GROUP && !strcmp(table[i].name, name))
            return !(table[i].flags & OPT_NOT_STORED);
    return 0;
}

#define BY_MICRO_BATCH \
    "counts of a micro-batch depend on how the batch is cut, so that each layout would have bits of its " \
    "own: use --balance sequence or global"
#define CAPACITY \
    "which tokens an expert drops depends on the other tokens of its micro-batch, and so on the layout: " \
    "here " \
    "no token is dropped"
#define NOISE \
    "experts are chosen by the token alone, so that all layouts, the trainer and the server choose alike: " \
    "leave it out"
static const struct opt_refusal refused[] = {
    { "balance", "micro-batch", BY_MICRO_BATCH },
    { "balance", "batch", BY_MICRO_BATCH },
    { "balance", "aux_loss", BY_MICRO_BATCH },
    { "balance", "global_aux_loss", BY_MICRO_BATCH },
    { "balance", "seq_aux_loss", "it is called --balance sequence here" },
    { "capacity-factor", NULL, CAPACITY },
    { "expert-capacity", NULL, CAPACITY },
    { "expert-capacity-factor", NULL, CAPACITY },
    { "router-jitter", NULL, NOISE },
    { "router-jitter-noise", NULL, NOISE },
    { "router-dropout", NULL, NOISE },
    { NULL, NULL, NULL },
};

static void print_version(FILE *out) { comm_version(out, "ptrain", ""); }

static const char examples[] =
    "# a model of 1M parameters on text, 2 ranks that share every matrix; stop half-way\n"
    "ptrain --data corpus.txt --model tiny --ranks 2 --tp 2 --steps 60 --stop-after 30 --out run\n"
    "# go on in another layout, with the same bits; a JSON line a step\n"
    "ptrain --data corpus.txt --ranks 2 --zero 1 --resume auto --out run --log run.jsonl\n"
    "# loss and perplexity of a checkpoint on other text\n"
    "ptrain --eval-only --init run/step-60 --eval-data valid.txt\n"
    "# train a model of Hugging Face further, in bf16\n"
    "ptrain --init hf-model --tokenizer hf-model --data corpus.txt --dtype bf16 --steps 5 --out tuned\n"
    "# what a layout would need; starts nothing\n"
    "ptrain --model 7b --ranks 8 --tp 8 --zero 1 --dry-run\n";

const struct opt_program ptrain_program = {
    .name = "ptrain",
    .summary = "trains a language model over MPI ranks, to the same bits at every layout",
    .usage = "--data FILE... --out DIR [--ranks N]",
    .opts = table,
    .min_args = 0,
    .max_args = 0,
    .print_version = print_version,
    .refused = refused,
    .examples = examples,
};

/* serve_options.c - pserve's options: one table, parsed and printed by base/opt, and what they may not say
 * together. */
#include "serve/server.h"

#include "comm/comm.h"
#include "kernels/tree.h"

#define AT(member) offsetof(struct serve_opts, member)

/* kind, name, member, default, unit; help, smallest and largest value */
/* clang-format off */
static const struct opt table[] = {
    { OPT_GROUP, "Server" },
    { OPT_TEXT,   "host",                 AT(host),               "127.0.0.1", "HOST",
      "address to listen on" },
    { OPT_INT,    "port",                 AT(port),               "8000",      "N",
      "port to listen on (0: a free one, which the ready line names)", 0, 65535 },
    { OPT_TEXT,   "model-name",           AT(model_name),         NULL,        "NAME",
      "name that requests may give (default: the last part of CKPT)" },
    { OPT_TEXT,   "chat-template",        AT(chat_template),      NULL,        "FILE",
      "the chat template to use instead of the checkpoint's" },
    { OPT_TEXT,   "tool-parser",          AT(tool_parser),        NULL,        "NAME",
      "how the model writes tool calls, or none (default: what the chat template tells)" },
    { OPT_LIST,   "lora",                 AT(lora),               NULL,        "NAME=DIR",
      "a LoRA adapter of the model (PEFT: a folder or URL), which requests give as their model; may be given "
      "again", 0, 0, OPT_ONE_WORD },
    { OPT_SWITCH, "lenient",              AT(lenient),            "0",         NULL,
      "ignore fields of a request that are unknown or not supported" },
    { OPT_TEXT,   "api-key-file",         AT(api_key_file),       NULL,        "FILE",
      "keys, one a line; every request must give one (health, version and the page are open)" },
    { OPT_TEXT,   "admin-key-file",       AT(admin_key_file),     NULL,        "FILE",
      "keys of the operators, who may POST /admin/reload and load adapters (without it no client may); a "
      "reload holds both weights in memory" },
    { OPT_TEXT,   "follow",               AT(follow),             NULL,        "[URL]",
      "take every newer version of the checkpoint that a trainer (--publish), or pshare, has at URL "
      "(default: CKPT): read beside serving, checked, and swapped in between two steps", 0, 0,
      OPT_URL_OR_NONE },
    { OPT_CHOICE, "follow-mode",          AT(follow_mode),        "keep",      "keep|wait|abort",
      "what runs at the swap: is computed again with the new weights and goes on; ends with the old ones "
      "first, while new requests wait; or ends now, with finish_reason abort" },
    { OPT_TEXT,   "tls-cert",             AT(tls_cert),           NULL,        "FILE",
      "certificate chain (PEM): serve HTTPS instead of HTTP" },
    { OPT_TEXT,   "tls-key",              AT(tls_key),            NULL,        "FILE",
      "its private key (PEM)" },
    { OPT_TEXT,   "cors-origin",          AT(cors_origin),        NULL,        "ORIGIN",
      "origins that browsers may send requests from, separated by commas, or * (default: none)" },
    { OPT_TEXT,   "allow-host",           AT(allow_host),         NULL,        "NAME",
      "names besides loopback's that a Host header may give, separated by commas, or * (default: any, but "
      "none on loopback without keys)" },
    { OPT_TEXT,   "access-log",           AT(access_log),         NULL,        "FILE",
      "a JSON object a line for every request (-: stderr)" },
    { OPT_INT,    "max-requests",         AT(max_requests),       "1024",      "N",
      "requests running and waiting; more are answered with 503 (0: no limit)", 0, 1e9 },
    { OPT_INT,    "max-waiting-tokens",   AT(max_waiting_tokens), "16M",       "N",
      "tokens of their prompts; more are answered with 503 (0: no limit)", 0, 1e15 },
    { OPT_INT,    "max-requests-per-key", AT(max_per_key),        "0",         "N",
      "requests of one key at a time, from their head on; more are answered with 429 (0: no limit)", 0, 1e9 },
    { OPT_INT,    "max-connections",      AT(max_connections),    "4096",      "N",
      "open at a time; one more takes the place of the one that has waited longest for its client; if all "
      "are being answered, it is answered with 503 (but /health)", 1, 1e6 },
    { OPT_INT,    "max-connections-per-address", AT(max_connections_per_address), "1024", "N",
      "the same for one client's address, of IPv6 a /64 (0: no limit)", 0, 1e6 },
    { OPT_SIZE,   "max-body-memory",      AT(max_body_memory),    "256M",      "SIZE",
      "bodies of requests that are arriving, together; half of it for one key or address; beyond it, "
      "bodies over 16 KiB are answered with 503 or 429 (0: no limit)", 0, 1e15 },
    { OPT_SIZE,   "response-memory",      AT(response_memory),    "64MiB",     "SIZE",
      "answers of /v1/responses that are kept for previous_response_id, together; the oldest go first "
      "(0: none)", 0, 1e15 },
    { OPT_FLOAT,  "request-timeout",      AT(request_timeout_s),  "0",         "SECONDS",
      "a request that takes longer ends: 503, or an error in its stream (0: no limit)", 0, 1e9 },
    { OPT_FLOAT,  "receive-timeout",      AT(receive_timeout_s),  "120",       "SECONDS",
      "a request that takes longer to arrive, from its first byte on, is disconnected (0: no "
      "limit)", 0, 1e9 },

    { OPT_GROUP, "Layout and memory" },
    { OPT_INT,    "tp",                   AT(tp),                 "1",         "N",
      "ranks that share every matrix; the answer has the same bits for each", 1, GRAIN_MAX },
    { OPT_INT,    "cp",                   AT(cp),                 "1",         "N",
      "groups of tp ranks that divide the rows of a step, so that a long prompt's first token comes "
      "sooner; each has the weights, those of a machine share the pages. The same bits", 1, 64 },
    { OPT_INT,    "pp",                   AT(pp),                 "1",         "N",
      "stages that divide the layers, each of tp * cp ranks, for models that tp ranks do not hold. The "
      "same bits", 1, 4096 },
    { OPT_INT,    "ep",                   AT(ep),                 "1",         "N",
      "1: tp cuts every expert; tp * a divisor of cp: so many ranks divide whole experts. The same bits",
      1, 64 * GRAIN_MAX },
    { OPT_INT,    "replicas",             AT(replicas),           "1",         "R",
      "groups of tp * cp * pp ranks behind one port, each with the whole model; a request goes where its "
      "beginning is cached", 1, 4096 },
    { OPT_INT,    "ctx",                  AT(ctx),                "0",         "N",
      "tokens of a prompt and its answer together (0: the model's, or what memory allows)", 0, 1e9 },
    { OPT_SIZE,   "kv-memory",            AT(kv_memory),          "0",         "SIZE",
      "keys and values, all ranks and replicas together (0: ctx x max-batch, at most half of "
      "the free memory, four fifths of a GPU's)", 0, 1e18 },
    { OPT_CHOICE, "kv-dtype",             AT(kv_dtype),           "auto",      "auto|bf16|fp8|int8",
      "what keys and values are rounded to when they are stored (auto: the arithmetic's; int8: with a "
      "scale a token and head); 8 bits hold twice as many tokens as bf16 (CPU only)" },
    { OPT_INT,    "max-batch",            AT(max_batch),          "0",         "N",
      "sequences computed at once; more of them wait (0: 32, on a GPU 256)", 0, 65536 },
    { OPT_INT,    "prefill-chunk",        AT(prefill_chunk),      "0",         "N",
      "prompt tokens a step (0: 256, on a GPU 2048)", 0, 1e6 },
    { OPT_CHOICE, "prefix-cache",         AT(prefix_cache),       "on",        "on|off",
      "keep pages of keys and values for prompts with the same beginning (the same bits)" },
    { OPT_TEXT,   "kv-disk",              AT(kv_disk),            NULL,        "DIR:SIZE",
      "keep pages that the prefix cache evicts, and all of them at the end, in files of at most SIZE in "
      "DIR; prompts of this server or another one of the same weights find them there, at any tp (the same "
      "bits)" },
    { OPT_TEXT,   "speculate",            AT(speculate),          NULL,
      "ngram|suffix|mtp|forced|CKPT[:K]",
      "guess up to K tokens ahead and check them in one step, where that saves time: the same answers, "
      "sooner. ngram (6): what followed the last tokens earlier in the same text; suffix (8): or in an "
      "answer given lately; mtp (2): the checkpoint's layer for multi-token prediction; CKPT (3): a "
      "smaller model of the same tokenizer. Where a grammar forces what follows in an answer, each of them "
      "guesses that; forced (8): nothing else" },
    { OPT_INT,    "speculate-tp",         AT(speculate_tp),       "1",         "N",
      "ranks that share every matrix of a draft model; a divisor of tp * cp. The same guesses",
      1, GRAIN_MAX },

    { OPT_TEXT,   "cache",                AT(cache),              NULL,        "DIR",
      "keep the weights in DIR in the form in which products read them: written beside serving, mapped by "
      "later starts of these weights at any layout (the same bits, ready at once, one copy for all ranks)" },
    { OPT_CHOICE, "cache-kind",           AT(cache_kind),         "plain",     "plain|b12",
      "how --cache keeps them; b12: bf16 in 12 bits, lossless, which takes less to read (the same bits)" },
    { OPT_SIZE,   "cache-size",           AT(cache_size),         "0",         "SIZE",
      "bytes that --cache keeps; weights that were used longest ago go first (0: half of the space that the "
      "disk would have without them)" },
    { OPT_CHOICE, "verify",               AT(verify),             "behind",    "first|behind",
      "of a checkpoint in the serve format, check every byte before the first request, or while serving: "
      "a damaged one then ends the server (other formats, --once and reloads: always before)" },

    { OPT_GROUP, "Numbers" },
    { OPT_CHOICE, "dtype",                AT(dtype),              "stored",    "stored|fp32|bf16",
      "arithmetic (stored: the checkpoint's); bf16 weights under fp32 are widened exactly" },
    { OPT_CHOICE, "quantized",            AT(quantized),          "values",    "values|codes",
      "quantised weights: computed as their values; or read as they are stored (bf16 on a CPU), integers by "
      "groups" },
    { OPT_CHOICE, "act",                  AT(act),                "own",       "own|int8",
      "activations at quantised weights: the dtype's own, or rounded to 8 bits, with exact integer sums "
      "(--quantized codes follows)" },
    { OPT_CHOICE, "numerics",             AT(numerics),           "exact",     "exact|fast",
      "exact: the same bits at every tp, in every batch" },
    { OPT_TEXT,   "device",               AT(device),             "cpu",       "cpu|cuda",
      "where the arithmetic runs" },
    { OPT_INT,    "threads",              AT(threads),            "0",         "N",
      "threads a rank (0: cores / ranks, at least 1)", 0, 4096 },
    { OPT_INT,    "ranks-per-node",       AT(ranks_per_node),     "0",         "N",
      "treat every N ranks of this machine as a machine of their own (0: as it is), to try "
      "layouts", 0, 4096 },
    { OPT_TEXT,   "transport",            AT(transport),          "auto",      "NAME",
      "auto, self, shm, mpi or nccl", 0, 0, 0, "auto|self|shm|mpi|nccl" },
    { OPT_INT,    "rank-timeout",         AT(rank_timeout_s),     "600",       "SECONDS",
      "NCCL only: an operation that waits longer for another rank ends the job", 1, 1e6 },

    { OPT_GROUP, "One prompt, no server" },
    { OPT_TEXT,   "once",                 AT(once),               NULL,        "PROMPT",
      "complete this prompt to stdout and exit" },
    { OPT_INT,    "max-tokens",           AT(max_tokens),         "64",        "N",
      "tokens of that completion, at most", 0, 1e9 },
    { OPT_FLOAT,  "temperature",          AT(temperature),        "0",         NULL,
      "of that completion (0: the most likely token each time)", 0, 1e6 },
    { OPT_INT,    "seed",                 AT(seed),               "0",         "N",
      "of that completion", 0, 9e18 },

    { OPT_GROUP, "Log" },
    { OPT_TEXT,   "trace",                AT(trace),              NULL,        "FILE",
      "Chrome trace of kernels, waits and collectives, every rank and thread" },
    { OPT_SWITCH, "verbose",              AT(verbose),            "0",         NULL,
      "memory and bytes read of every rank, steps and rows at the end" },

    { OPT_GROUP, NULL },
};
/* clang-format on */

static void print_version(FILE *out) { comm_version(out, "pserve", ""); }

static const char examples[] = "# complete one prompt, without a server\n"
                               "pserve run/step-60 --once 'The ' --max-tokens 40\n"
                               "# serve on two ranks, for OpenAI clients at http://127.0.0.1:8000/v1\n"
                               "pserve run/step-60 --tp 2 --model-name mine\n"
                               "# serve a model of the Hugging Face hub, in bf16\n"
                               "pserve hf://owner/name --dtype bf16 --port 8001\n"
                               "# two copies of the model, with keys for the clients\n"
                               "pserve run/step-60 --replicas 2 --api-key-file keys.txt --port 8002\n";

const struct opt_program pserve_program = {
    .name = "pserve",
    .summary = "serves a language model over HTTP, with the same bits at every layout",
    .usage = "CKPT [--tp N] [--port N]",
    .opts = table,
    .min_args = 1,
    .max_args = 1,
    .print_version = print_version,
    .examples = examples,
};

/* ---- options that contradict each other ---- */

/* DIR:SIZE of --kv-disk. */
static int read_kv_disk(struct server *s, struct err *e)
{
    const char *text = s->o.kv_disk, *at = text ? strrchr(text, ':') : NULL;
    if (!text)
        return 0;
    if (!at || at == text || opt_parse_size(at + 1, &s->kv_disk_bytes) < 0 || s->kv_disk_bytes < 1)
        return err_set(e, ERR_USAGE,
                       "--kv-disk %.200s is not DIR:SIZE: give a folder and a size, as in kv:20GiB", text);
    if ((size_t)(at - text) >= sizeof s->kv_disk)
        return err_set(e, ERR_USAGE, "--kv-disk: the folder's name has more than %zu bytes",
                       sizeof s->kv_disk - 1);
    snprintf(s->kv_disk, sizeof s->kv_disk, "%.*s", (int)(at - text), text);
    if (s->o.prefix_cache)
        return err_set(e, ERR_USAGE, "--kv-disk keeps pages of the prefix cache: leave --prefix-cache off");
    if (s->o.numerics)
        return err_set(e, ERR_USAGE,
                       "--kv-disk shares pages between layouts: --numerics fast has other bits in each");
    return 0;
}

/* Options of --once without it, and the other way round. */
static int check_once(const struct server *s, const unsigned char *given, struct err *e)
{
    static const char *const own[] = { "max-tokens", "temperature", "seed" };
    for (size_t i = 0; !s->o.once && i < sizeof own / sizeof own[0]; i++)
        if (opt_given(&pserve_program, given, own[i]))
            return err_set(e, ERR_USAGE, "--%s goes with --once: a request to the server has its own",
                           own[i]);
    if (s->o.once && s->o.max_tokens < 1)
        return err_set(e, ERR_USAGE, "--max-tokens 0: nothing would be completed");
    if (s->o.once && s->o.replicas > 1)
        return err_set(e, ERR_USAGE, "--once computes one prompt: --replicas %lld would have nothing to do",
                       (long long)s->o.replicas);
    return 0;
}

int server_check_options(struct server *s, const unsigned char *given, struct err *e)
{
    const char *name = s->o.model_name;
    int rc = check_once(s, given, e);
    if (rc >= 0 && !s->o.cache && opt_given(&pserve_program, given, "cache-size"))
        rc = err_set(e, ERR_USAGE, "--cache-size goes with --cache: name a folder");
    if (rc >= 0 && !s->o.cache && opt_given(&pserve_program, given, "cache-kind"))
        rc = err_set(e, ERR_USAGE, "--cache-kind goes with --cache: name a folder");
    if (rc >= 0)
        rc = read_kv_disk(s, e);
    if (rc < 0)
        return rc;
    if (name && (!*name || strlen(name) >= sizeof s->name))
        return err_set(e, ERR_USAGE, "--model-name has %zu bytes, must have 1 to %zu", strlen(name),
                       sizeof s->name - 1);
    if (s->o.tool_parser && strcmp(s->o.tool_parser, "none") && !tools_find(s->o.tool_parser)) {
        char names[1024];
        tools_names(names, sizeof names);
        return err_set(e, ERR_USAGE, "--tool-parser %.100s is not known: use one of %s, none",
                       s->o.tool_parser, names);
    }
    for (int i = 0; i < s->o.lora.n; i++) {
        const char *word = s->o.lora.item[i], *at = strchr(word, '=');
        if (!at || at == word || !at[1])
            return err_set(e, ERR_USAGE, "--lora %.200s is not NAME=DIR: give the adapter a name", word);
    }
    if (s->o.once && s->o.lora.n > 1)
        return err_set(e, ERR_USAGE, "--once completes one prompt: --lora is there %d times", s->o.lora.n);
    if (s->o.follow && !store_is_url(server_followed(s)))
        return err_set(e, ERR_USAGE,
                       "--follow %.200s: a folder does not say when it changes: give the URL of a trainer's "
                       "--publish, or of pshare",
                       server_followed(s));
    if (s->o.follow && s->o.once)
        return err_set(e, ERR_USAGE, "--once completes one prompt and ends: leave --follow out");
    if (opt_given(&pserve_program, given, "follow-mode") && !s->o.follow)
        return err_set(e, ERR_USAGE, "--follow-mode goes with --follow");
    if (!s->o.tls_cert != !s->o.tls_key)
        return err_set(e, ERR_USAGE, "--tls-cert and --tls-key go together: give both or none");
    if (s->o.speculate && (rc = draft_spec_parse(&s->drafts, s->o.speculate, e)) < 0)
        return rc;
    return draft_check_tp(&s->drafts, s->o.speculate_tp, s->o.tp * s->o.cp, e);
}

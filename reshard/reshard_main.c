/* reshard - converts checkpoints between layouts and formats, and answers questions about them. */
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/env.h"
#include "base/io.h"
#include "base/opt.h"
#include "base/trace.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "format/fetch.h"
#include "store/sidecar.h"
#include "reshard/dest.h"
#include "reshard/gguf/gguf_prepare.h"
#include "reshard/lora/adapters.h"
#include "reshard/report.h"

struct options {
    int64_t tp, pp, dp, ep, zero, threads, ranks, shard_size;
    int format, dtype, experts, quantize, weights_only, device, dequantize, requantize;
    const char *config, *cuts, *compress, *trace;
    struct opt_list merge;
    int json, tensors, quick, stats, print_cuts;
    char **argv;
    int n_args; /* positional ones */
};

#define AT(member) offsetof(struct options, member)

enum { DEVICE_CPU, DEVICE_CUDA };
enum { DEQUANTIZE_NO, DEQUANTIZE_F32, DEQUANTIZE_BF16 };
static const char quantize_names[] = "none|int8-g128|fp8-b128|mxfp4|q8_0|q4_0|q4_k|q5_k|q6_k|b12";
/* What each word is in a GGUF file, and in all others. */
static const struct {
    const char *word, *gguf;
    enum quant_kind kind;
} quantize_kinds[] = { { "none", NULL, QUANT_KIND_NONE },         { "int8-g128", NULL, QUANT_KIND_INT8_G128 },
                       { "fp8-b128", NULL, QUANT_KIND_FP8_B128 }, { "mxfp4", "mxfp4", QUANT_KIND_MXFP4 },
                       { "q8_0", "q8_0", QUANT_KIND_NONE },       { "q4_0", "q4_0", QUANT_KIND_NONE },
                       { "q4_k", "q4_k", QUANT_KIND_NONE },       { "q5_k", "q5_k", QUANT_KIND_NONE },
                       { "q6_k", "q6_k", QUANT_KIND_NONE },       { "b12", NULL, QUANT_KIND_NONE } };
static const char formats[] = "native|hf|dcp|deepspeed-universal|megatron-dist|gguf|serve";

/* clang-format off */
#define GROUP(text) { OPT_GROUP, text, 0, NULL, NULL, NULL, 0, 0, 0 }
#define END { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 }
#define THREADS \
    { OPT_INT, "threads", AT(threads), "0", "N", "threads (0: as many as cores, at most 4)", 0, 256, 0 }
#define JSON { OPT_SWITCH, "json", AT(json), "0", NULL, "one line of JSON instead of a table", 0, 0, 0 }
#define TENSORS { OPT_SWITCH, "tensors", AT(tensors), "0", NULL, "a line for every tensor", 0, 0, 0 }

/* kind, name, member, default, unit, help, least, most, flags */
#define TARGET_OPTIONS \
    GROUP("Layout of the target (what is not given is 1, whatever SRC had)"), \
    { OPT_INT,    "tp",           AT(tp),           "1",      "N", \
      "ranks that share every matrix", 1, 65536, 0 }, \
    { OPT_INT,    "pp",           AT(pp),           "1",      "N", "stages of layers", 1, 65536, 0 }, \
    { OPT_INT,    "dp",           AT(dp),           "0",      "N", \
      "data-parallel ranks (0: 1, or as many as --ep needs)", 0, 65536, 0 }, \
    { OPT_INT,    "zero",         AT(zero),         "0",      "S", \
      "ZeRO stage: 1, 2 cut optimizer state over dp, 3 the weights too", 0, 3, 0 }, \
    { OPT_INT,    "ep",           AT(ep),           "1",      "N", \
      "ranks that divide the experts: 1, or tp times neighbouring dp ranks", 1, 65536, 0 }, \
    GROUP("Contents of the target"), \
    { OPT_CHOICE, "format",       AT(format),       "native", formats, \
      "hf: weights only; dcp: cut by the layout as FSDP2 does; megatron-dist: torch_dist; hf and " \
      "deepspeed-universal hold whole tensors; gguf: one file for llama.cpp, weights only, DST.gguf or " \
      "DST/model.gguf; serve: weights only, as pserve maps them", 0, 0, 0 }, \
    { OPT_CHOICE, "dtype",        AT(dtype),        "keep",   "keep|fp32|bf16", \
      "of the weights; with optimizer state fp32 takes the masters, bf16 keeps fp32 masters", 0, 0, 0 }, \
    { OPT_CHOICE, "dequantize",   AT(dequantize),   "no",     "no|fp32|bf16", \
      "quantised weights as their values; what --requantize needs is kept beside them", 0, 0, 0 }, \
    { OPT_SWITCH, "requantize",   AT(requantize),   "0",      NULL, \
      "what --dequantize made as the codes it was made from, byte for byte", 0, 0, 0 }, \
    { OPT_CHOICE, "quantize",     AT(quantize),     "none",   quantize_names, \
      "codes of the layers' matrices; q8_0 to q6_k, mxfp4: gguf, with llama.cpp's bits; int8-g128, " \
      "fp8-b128, mxfp4: native and hf; b12: serve, lossless", 0, 0, 0 }, \
    { OPT_SWITCH, "weights-only", AT(weights_only), "0",      NULL, "leave optimizer state out", 0, 0, 0 }, \
    { OPT_TEXT,   "config",       AT(config),       NULL,     "FILE", \
      "config.json to use instead of SRC's", 0, 0, 0 }, \
    { OPT_LIST,   "merge",        AT(merge),        NULL,     "ADAPTER", \
      "LoRA adapter (PEFT: a folder or URL) to merge into the weights; may be given again", 0, 0, \
      OPT_ONE_WORD }, \
    { OPT_TEXT,   "cuts",         AT(cuts),         NULL,     "FILE", \
      "cut table: how tensors of a model without a family are cut (default: SRC's cuts.txt)", 0, 0, 0 }, \
    { OPT_SIZE,   "shard-size",   AT(shard_size),   "0",      "SIZE", \
      "hf: most data in one file (0: 5 GB)", 0, 1e18, 0 }, \
    { OPT_CHOICE, "experts",      AT(experts),      "published", "published|each|fused", \
      "hf: as the family is published; a tensor an expert; a layer's experts in one, as transformers 5 " \
      "holds them", 0, 0, 0 }, \
    { OPT_TEXT,   "compress",     AT(compress),     "none",   "zstd[:LEVEL]|zstd-planes[:LEVEL]", \
      "native: zstd, level 1 to 19 (1): `zstd -d` restores the plain files; zstd-planes, 0 to 19 (0): " \
      "smaller and faster for floats", 0, 0, 0, "none|zstd|zstd-planes" }, \
    GROUP("Run"), \
    { OPT_CHOICE, "device",       AT(device),       "cpu",    "cpu|cuda", \
      "cpu: bytes are digested and rounded as they pass; a GPU would wait for them", 0, 0, 0 }, \
    THREADS

static const struct opt convert_opts[] = {
    TARGET_OPTIONS,
    { OPT_INT,  "ranks", AT(ranks), "0",  "N",
      "start N processes here that share the work (under mpirun or srun: not needed)", 0, 65536, 0 },
    { OPT_TEXT, "trace", AT(trace), NULL, "FILE",
      "Chrome trace: which thread worked on which tensor when", 0, 0, 0 },
    END,
};

static const struct opt plan_opts[] = { TARGET_OPTIONS, JSON, END };

static const struct opt inspect_opts[] = {
    GROUP("Output"),
    TENSORS,
    { OPT_SWITCH, "stats", AT(stats), "0", NULL,
      "min, max, mean, NaN and Inf of every tensor (reads all data)", 0, 0, 0 },
    { OPT_SWITCH, "cuts", AT(print_cuts), "0", NULL,
      "the cut table alone: a text that --cuts of a conversion takes", 0, 0, 0 },
    JSON,
    GROUP("Run"),
    THREADS,
    END,
};

static const struct opt digest_opts[] = { GROUP("Output"), TENSORS, JSON, GROUP("Run"), THREADS, END };

static const struct opt diff_opts[] = { GROUP("Output"), JSON, END };

static const struct opt verify_opts[] = {
    GROUP("Run"),
    { OPT_SWITCH, "quick", AT(quick), "0", NULL, "tables only: headers, sizes, cover", 0, 0, 0 },
    END,
};

static const struct opt cache_opts[] = { GROUP("Output"), JSON, END };

static const struct opt fetch_opts[] = {
    GROUP("Run"),
    { OPT_INT, "threads", AT(threads), "4", "N", "parts that are downloaded at once", 1, 64, 0 },
    END,
};
/* clang-format on */

static volatile sig_atomic_t stop; /* the one thing a signal may touch */
static int64_t stop_ns;            /* of the first one; used by the handler only */

/* The first signal asks the work to end, a second one, a second later, ends it: tables of millions of tensors
 * are read without a look at `stop`. */
static void on_signal(int number)
{
    const int64_t now = clock_ns();
    if (stop && now - stop_ns > SECOND_NS)
        _exit(128 + number);
    stop_ns = stop ? stop_ns : now;
    stop = 1;
}

/* For commands that would leave something half done. Other commands just end. */
static void catch_signals(void)
{
    struct sigaction act = { .sa_handler = on_signal };
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

static int threads_of(const struct options *o, int n_ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN) / n_ranks;
    return o->threads ? (int)o->threads : cores > 4 ? 4 : cores < 1 ? 1 : (int)cores;
}

static int parse_compress(const char *text, struct request *r, struct err *e)
{
    static const struct {
        const char *word;
        enum ckpt_codec codec;
        int least, usual;
    } codecs[] = { { "none", CODEC_PLAIN, 0, 0 },
                   { "zstd", CODEC_ZSTD, 1, 1 },
                   { "zstd-planes", CODEC_PLANES, 0, 0 } };

    size_t n = strcspn(text, ":");
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        char end;
        if (strlen(codecs[i].word) != n || memcmp(codecs[i].word, text, n))
            continue;
        r->codec = codecs[i].codec;
        r->level = codecs[i].usual;
        if (!text[n] || (r->codec && sscanf(text + n, ":%d%c", &r->level, &end) == 1 &&
                         r->level >= codecs[i].least && r->level <= 19))
            return 0;
    }
    return err_set(e, ERR_USAGE,
                   "--compress %s: give none, zstd[:LEVEL] with a level from 1 to 19, or zstd-planes[:LEVEL] "
                   "from 0 to 19",
                   text);
}

static const char *const target_words[] = {
    [TARGET_NATIVE] = "native",
    [TARGET_HF] = "hf",
    [TARGET_DCP] = "dcp",
    [TARGET_UNIVERSAL] = "deepspeed-universal",
    [TARGET_MEGATRON] = "megatron-dist",
    [TARGET_GGUF] = "gguf",
    [TARGET_SERVE] = "serve",
};

static int holds_whole(enum target_format f)
{
    return f == TARGET_HF || f == TARGET_UNIVERSAL || f == TARGET_GGUF || f == TARGET_SERVE;
}
static int holds_weights(enum target_format f)
{
    return f == TARGET_HF || f == TARGET_GGUF || f == TARGET_SERVE;
}
static const char *format_name(enum target_format f) { return target_words[f]; }

static int check_quantize(const struct options *o, struct err *e)
{
    const char *word = quantize_kinds[o->quantize].word;
    int in_gguf = quantize_kinds[o->quantize].gguf != NULL, elsewhere = quantize_kinds[o->quantize].kind;
    if (!o->quantize)
        return 0;
    const int narrow = !in_gguf && !elsewhere;
    if (narrow && o->format != TARGET_SERVE)
        return err_set(e, ERR_USAGE, "--quantize %s is for --format serve: bf16 in 12 bits, lossless", word);
    if (o->format == TARGET_SERVE)
        return narrow ? 0
                      : err_set(e, ERR_USAGE, "--quantize %s is not for --format serve: it has b12", word);
    if (o->format == TARGET_GGUF)
        return in_gguf
                   ? 0
                   : err_set(e, ERR_USAGE,
                             "--quantize %s is not for --format gguf: it has q8_0, q4_0, q4_k, q5_k, q6_k "
                             "and mxfp4",
                             word);
    if (!elsewhere)
        return err_set(e, ERR_USAGE, "--quantize %s is for --format gguf", word);
    if (o->format != TARGET_NATIVE && o->format != TARGET_HF)
        return err_set(e, ERR_USAGE, "--quantize %s is for --format native, hf and gguf", word);
    if (o->dtype != TARGET_AS_IS || o->config || o->experts)
        return err_set(
            e, ERR_USAGE,
            "--quantize %s: leave --dtype, --config and --experts out: codes are made of SRC as it "
            "is",
            word);
    return 0;
}

/* Options about quantised weights that do not go together. */
static int check_quant(const struct options *o, struct err *e)
{
    if (o->dequantize && o->requantize)
        return err_set(e, ERR_USAGE, "--dequantize and --requantize: one undoes the other: give one of them");
    if ((o->dequantize || o->requantize) && o->config)
        return err_set(e, ERR_USAGE,
                       "--config with --dequantize or --requantize: config.json describes the codes: put the "
                       "file into SRC");
    if (o->requantize && o->quantize)
        return err_set(e, ERR_USAGE, "--requantize and --quantize: both make codes: give one of them");
    if (o->requantize && o->dtype != TARGET_AS_IS)
        return err_set(e, ERR_USAGE,
                       "--dtype with --requantize: codes have dtypes of their own: leave --dtype out");
    return check_quantize(o, e);
}

/* An expert group is tp ranks times neighbouring dp ranks. */
static int dp_of(const struct options *o)
{
    int64_t fold = o->ep > o->tp && o->ep % o->tp == 0 ? o->ep / o->tp : 1;
    return (int)(o->dp ? o->dp : fold);
}

static int make_request(struct request *r, const struct options *o, const char *src, const char *dst,
                        struct err *e)
{
    const int gguf = o->format == TARGET_GGUF, quantised = !gguf && quantize_kinds[o->quantize].kind;
    *r = (struct request){
        .src = src,
        .dst = dst,
        .layout = { (int)o->tp, (int)o->pp, 1, dp_of(o), (int)o->ep, (int)o->zero },
        .format = (enum target_format)o->format,
        .dtype = (enum target_dtype)o->dtype,
        .weights_only = o->weights_only || holds_weights((enum target_format)o->format),
        .quant = { .dequantize = o->dequantize != DEQUANTIZE_NO,
                   .to = o->dequantize == DEQUANTIZE_F32 ? STORED_F32 : STORED_BF16,
                   .requantize = o->requantize,
                   .quantize = quantised ? quantize_kinds[o->quantize].kind : QUANT_KIND_NONE,
                   .weights_only = o->weights_only || o->format == TARGET_HF },
        .n_threads = threads_of(o, 1),
        .config_path = o->config,
        .cuts_path = o->cuts,
        .n_merge = o->merge.n,
        .merge = o->merge.item,
        .shard_bytes = o->shard_size ? o->shard_size : 5000000000,
        .experts = quantised ? HF_EXPERTS_EACH : (enum hf_experts)o->experts,
        .panels = o->quantize && o->format == TARGET_SERVE ? CKPT_PANELS_B12 : CKPT_PANELS_PLAIN,
        .gguf_type = gguf ? quantize_kinds[o->quantize].gguf : NULL,
        .stop = &stop
    };

    int rc = parse_compress(o->compress, r, e);
    if (rc < 0 || (rc = check_quant(o, e)) < 0)
        return rc;
    if (r->codec && o->format != TARGET_NATIVE)
        return err_set(e, ERR_USAGE, "--compress is for --format native: others could not read the files");
    if (o->shard_size && o->format != TARGET_HF)
        return err_set(e, ERR_USAGE,
                       "--shard-size is for --format hf: the files of others follow the layout");
    if (r->experts == HF_EXPERTS_FUSED && o->format != TARGET_HF)
        return err_set(e, ERR_USAGE,
                       "--experts fused is for --format hf: other formats have a tensor an expert");
    if (o->device == DEVICE_CUDA)
        return err_set(e, ERR_USAGE,
                       "--device cuda: reshard moves bytes between files, and a GPU is further from them "
                       "than the CPU: use --device cpu");

    if (holds_whole(r->format) && (o->tp > 1 || o->pp > 1 || o->dp > 1 || o->ep > 1 || o->zero))
        return err_set(e, ERR_USAGE,
                       "--format %s holds whole tensors: leave --tp, --pp, --dp, --ep and --zero out",
                       format_name(r->format));
    return dest_check(dst, r->format, e);
}

/* ---- commands: o, positional arguments -> status or a negative error ---- */

static int write_trace(struct world *w, const struct trace *t, const char *path, struct err *e)
{
    char *text;
    if (w)
        return world_trace_write(w, t, path, e);
    size_t bytes;
    int rc = trace_json(t, 0, &text, &bytes, e);
    if (rc < 0)
        return rc;
    rc = trace_write(path, text, bytes, e);
    free(text);
    return rc;
}

static int convert(struct request *r, const struct options *o, struct world *w, struct err *e)
{
    struct procs *procs = NULL;
    struct log log;
    int rc = 0, n = w ? world_size(w) : 1;
    log_open(&log, "reshard", w && world_rank(w), w ? launch_stderr_is_tty() : isatty(STDERR_FILENO));
    log.last_s = clock_s(); /* the first plain line comes after ten seconds: most runs have ended by then */
    r->n_threads = threads_of(o, n);
    if (n > 1 && holds_whole(r->format))
        return err_set(e, ERR_USAGE,
                       "--format %s is written by one process: start reshard without mpirun and --ranks",
                       format_name(r->format));

    if (w)
        TRY(procs_open(&procs, w, e));
    r->procs = procs;
    if (o->trace)
        TRY(trace_open(&r->trace, r->n_threads, e));

    TRY(reshard_convert(r, &log, e));
    if (r->trace)
        TRY(write_trace(w, r->trace, o->trace, e));
out:
    trace_close(r->trace);
    procs_close(procs);
    log_close(&log);
    return rc < 0 ? rc : 0;
}

/* Several processes print one error and exit with one status. */
static int run_convert(const struct options *o, char **arg, struct err *e)
{
    static struct mem mem; /* as long as the process lives */
    struct world *w = NULL;
    struct request r;
    int rc = make_request(&r, o, arg[0], arg[1], e);
    if (rc < 0)
        return rc;
    if (o->ranks < 2 && !launch_under_launcher()) {
        catch_signals(); /* with several ranks comm/ handles signals */
        return convert(&r, o, NULL, e);
    }
    if ((rc = launch_ranks((int)o->ranks, o->argv, e)) < 0 ||
        (rc = world_open(&w, "auto", 0, NULL, &mem, e)) < 0)
        return rc;
    rc = convert(&r, o, w, e);
    if (rc < 0)
        rc = world_report(w, e, "reshard");
    world_close(w);
    return rc;
}

static int run_plan(const struct options *o, char **arg, struct err *e)
{
    struct request r;
    struct ckpt *c = NULL;
    int n_narrow = 0;
    struct plan p;
    struct gguf_target *gguf;
    struct report_options v = { .json = o->json };
    struct adapters merged = { 0 };
    int rc = make_request(&r, o, arg[0], "", e);
    if (rc < 0 || (rc = ckpt_open(&c, arg[0], &(struct ckpt_open_opts){ .config_path = o->config }, e)) < 0)
        return rc;
    rc = source_views(&c, &merged, &n_narrow, &r, NULL, e);
    if (rc >= 0 && r.format == TARGET_GGUF)
        rc = gguf_target_prepare(&c, &gguf, &r, NULL, e);
    if (rc >= 0 && (rc = plan_make(&p, c, &r, NULL, e)) >= 0) {
        rc = report_plan(&p, &v, stdout, e);
        plan_free(&p);
    }
    adapters_free(&merged);
    ckpt_close(c);
    return rc;
}

/* Options of a report, with a progress line while data are read. */
static struct report_options begin_view(const struct options *o, struct log *log)
{
    log_open(log, "reshard", 0, isatty(STDERR_FILENO));
    log->last_s = clock_s();
    return (struct report_options){
        .json = o->json, .tensors = o->tensors, .stats = o->stats, .n_threads = threads_of(o, 1), .log = log
    };
}

static int run_inspect(const struct options *o, char **arg, struct err *e)
{
    struct ckpt *c = NULL;
    struct log log;
    struct report_options v = begin_view(o, &log);
    int rc = ckpt_open(&c, arg[0], NULL, e);
    if (rc >= 0)
        rc = o->print_cuts ? report_cuts(c, stdout, e) : report_inspect(c, &v, stdout, e);
    log_close(&log);
    ckpt_close(c);
    return rc;
}

static int run_digest(const struct options *o, char **arg, struct err *e)
{
    struct ckpt *c = NULL;
    struct report_options v = { .json = o->json, .tensors = o->tensors, .n_threads = threads_of(o, 1) };
    int rc = ckpt_open(&c, arg[0], NULL, e);
    if (rc >= 0)
        rc = report_digest(c, &v, stdout, e);
    ckpt_close(c);
    return rc;
}

static const char *const verified[] = {
    [CKPT_READABLE] = "all readable (the files have no checksums)",
    [CKPT_SOME_CRC32] = "all readable, every CRC-32 that the files have is right (some data have none)",
    [CKPT_CRC32] = "every CRC-32 is right",
    [CKPT_DIGESTS] = "every checksum and digest is right",
};

static int run_verify(const struct options *o, char **arg, struct err *e)
{
    struct ckpt *c = NULL;
    char size[32];
    int rc = ckpt_open(&c, arg[0], NULL, e);
    if (rc >= 0)
        rc = ckpt_verify(c, o->quick, e);
    if (rc >= 0)
        rc = adapter_verify(c, e);
    if (rc >= 0) {
        log_bytes(size, (double)ckpt_bytes_read(c));
        printf("%s: %d tensors, %s read: %s\n", arg[0], ckpt_n_tensors(c), size,
               o->quick ? "tables agree (data not read)" : verified[ckpt_proof(c)]);
    }
    enum ckpt_proof proof = rc >= 0 ? ckpt_proof(c) : CKPT_READABLE;
    ckpt_close(c);
    if (rc >= 0 && !o->quick)
        report_rescue(arg[0], proof, stdout);
    return rc;
}

static int run_diff(const struct options *o, char **arg, struct err *e)
{
    struct ckpt *a = NULL, *b = NULL;
    struct log log;
    struct report_options v = begin_view(o, &log);
    int rc;
    if ((rc = ckpt_open(&a, arg[0], NULL, e)) >= 0 && (rc = ckpt_open(&b, arg[1], NULL, e)) >= 0)
        rc = report_diff(a, b, &v, stdout, e);
    log_close(&log);
    ckpt_close(a);
    ckpt_close(b);
    return rc;
}

static int run_fetch(const struct options *o, char **arg, struct err *e)
{
    char size[32];
    struct log log;
    struct ckpt_fetch how = { .n_threads = o->threads ? (int)o->threads : 4, .log = &log, .stop = &stop };
    catch_signals();
    log_open(&log, "reshard", 0, isatty(STDERR_FILENO));
    log.last_s = clock_s();
    int rc = ckpt_fetch(arg[0], arg[1], &how, e);
    if (rc >= 0) {
        log_bytes(size, (double)how.received);
        log_progress(&log, 1, "%s: %s received, verified", arg[1], size);
    }
    log_close(&log);
    return rc;
}

static int run_cache(const struct options *o, char **arg, struct err *e)
{
    struct log log;
    struct report_options v = begin_view(o, &log);
    int rc = report_cache(arg, o->n_args, &v, stdout, e);
    log_close(&log);
    return rc;
}

static void print_version(FILE *out) { comm_version(out, "reshard", "checkpoint format 1, "); }

static const char examples[] = "# for 8 tensor-parallel ranks; equal digests prove it\n"
                               "reshard --tp 8 run/step-60 run-tp8\n"
                               "# weights for Hugging Face transformers, in bf16\n"
                               "reshard --format hf --dtype bf16 run/step-60 hf-out\n"
                               "# a DeepSpeed or Megatron folder, detected: to four ZeRO-1 ranks\n"
                               "reshard --dp 4 --zero 1 zero-ckpt from-zero\n"
                               "# what is inside, is it whole, is it the same\n"
                               "reshard inspect run/step-60\n"
                               "reshard verify run-tp8\n"
                               "reshard diff run/step-60 run-tp8\n"
                               "# download a model; a second try goes on where the first stopped\n"
                               "reshard fetch hf://owner/name name\n"
                               "# to an S3 bucket; a killed run goes on where it stopped\n"
                               "reshard run/step-60 s3://bucket/prefix\n";
static const struct opt_program *const reports[8]; /* below */

/* clang-format off */
static const struct command {
    const char *word; /* of the command line, "" for a conversion */
    struct opt_program p;
    int (*run)(const struct options *o, char **arg, struct err *e);
} commands[] = {
    { "", { "reshard",
            "converts a checkpoint to another layout, format or dtype, and proves it: nothing appears unless "
            "the digests agree",
            "SRC DST", convert_opts, 2, 2, print_version, NULL, examples, NULL, reports }, run_convert },
    { "inspect", { "reshard inspect", "lists what a checkpoint holds",
                   "CKPT", inspect_opts, 1, 1, print_version, NULL,
      "reshard inspect --stats run/step-60\n" }, run_inspect },
    { "verify", { "reshard verify", "reads everything and checks every checksum and digest",
                  "CKPT", verify_opts, 1, 1, print_version, NULL,
      "reshard verify run/step-60\nreshard verify --quick run/step-60\n" }, run_verify },
    { "digest", { "reshard digest", "prints weights_digest and state_digest, which no layout changes",
                  "CKPT", digest_opts, 1, 1, print_version, NULL,
      "reshard digest run/step-60\nreshard digest --tensors --json run/step-60\n" }, run_digest },
    { "diff", { "reshard diff", "names the tensors that differ and by how much; exit 1: different",
                "A B", diff_opts, 2, 2, print_version, NULL,
      "reshard diff run/step-30 run/step-60\n" }, run_diff },
    { "plan", { "reshard plan",
                "what a conversion would read, write and need; takes the options of a conversion",
                "SRC [DST]", plan_opts, 1, 2, print_version, NULL,
      "reshard plan --tp 8 run/step-60\n" }, run_plan },
    { "fetch", { "reshard fetch",
                 "downloads a checkpoint: in parallel, resumed where an earlier try stopped, verified",
                 "URL DIR", fetch_opts, 2, 2, print_version, NULL,
      "reshard fetch hf://owner/name name\nreshard fetch https://host/models/name name\n" }, run_fetch },
    { "cache", { "reshard cache",
                 "lists what the cache of URLs holds, or clears it; what a process uses stays",
                 "list|clear [URL...]", cache_opts, 1, -1, print_version, NULL,
      "reshard cache list\nreshard cache clear hf://owner/name\n", "list|clear" }, run_cache },
};
/* clang-format on */

static const struct opt_program *const reports[8] = { &commands[1].p, &commands[2].p, &commands[3].p,
                                                      &commands[4].p, &commands[5].p, &commands[6].p,
                                                      &commands[7].p };

static const struct command *find_command(const char *word)
{
    for (size_t i = 1; i < sizeof commands / sizeof *commands; i++)
        if (word && !strcmp(word, commands[i].word))
            return &commands[i];
    return &commands[0];
}

/* Refuses several processes for commands that only report. */
static int check_alone(const struct command *c, struct err *e)
{
    const char *n = env_get(ENV_OMPI_COMM_WORLD_SIZE);
    return c != commands && n && atoi(n) > 1
               ? err_set(e, ERR_USAGE,
                         "reshard %s does not share its work over %s ranks: start it without mpirun", c->word,
                         n)
               : 0;
}

int main(int argc, char **argv)
{
    const struct command *c = find_command(argv[1]);
    int shift = c != commands;
    struct options o = { 0 };
    struct opt_args args = { 0, NULL };
    struct sidecars sidecars = { 0 };
    struct err e = { 0 };
    io_begin();
    /* buffers of a MiB come and go: their pages must not be given back each time, those of tables must */
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 16 << 20);

    int rc = opt_check_command(&commands[0].p, shift ? NULL : argv[1], &e);
    if (rc == 0)
        rc = opt_parse(&c->p, argc - shift, argv + shift, &o, &args, NULL, &e);
    if (rc > 0) {
        rc = 0;
    } else if (rc == 0) {
        o.argv = argv;
        o.n_args = args.n;
        rc = check_alone(c, &e);
        if (rc >= 0 && o.config && !(o.config = sidecar_file(&sidecars, o.config, &e)))
            rc = -e.code;
        if (rc >= 0 && o.cuts && !(o.cuts = sidecar_file(&sidecars, o.cuts, &e)))
            rc = -e.code;
        if (rc >= 0)
            rc = c->run(&o, args.item, &e);
        sidecar_close(&sidecars);
        opt_free(&c->p, &o, &args);
    }

    if (rc >= 0 && io_flush_stdout(&e) < 0)
        rc = -e.code;
    if (rc < 0)
        return launch_report(&e, "reshard");
    return rc;
}

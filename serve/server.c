/* server.c - see server.h. The order of a start: options, ranks, tables of the checkpoint, sizes, socket (so
 * that /health answers while weights are read), weights, pages, ready. Every stage that can fail on one rank
 * alone ends with comm_agree(). */
#define _GNU_SOURCE
#include "serve/server.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/machine.h"
#include "comm/launch.h"
#include "serve/api/structured.h"
#include "serve/doors/response_store.h"
#include "serve/weights/mapped_weights.h"
#include "serve/weights/repack.h"
#include "serve/weights/weights.h"
#include "store/live.h"
#include "store/mapped.h"
#include "text/template.h"

#define SYNC_MS 20 /* while weights are read: how soon a rank's failure reaches the others */
#define RESPONSES_KEPT 4096
#define GRACE_S 2.0 /* for sending the last answers, within the 10 s that an end may take */

/* ---- ranks ---- */

/* The model's name: --model-name, else the last part of the checkpoint's path. */
static void name_model(struct server *s)
{
    const char *name = s->path;
    size_t end = strlen(name), begin;
    s->service.model = s->name;
    if (s->o.model_name) {
        snprintf(s->name, sizeof s->name, "%s", s->o.model_name);
        return;
    }

    while (end > 1 && name[end - 1] == '/')
        end--;
    begin = end;
    while (begin > 0 && name[begin - 1] != '/')
        begin--;
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - begin), name + begin);
}

/* CPUs that this process may use. */
static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Defaults of --max-batch and --prefill-chunk. A GPU needs more rows in a step than a CPU until its
 * arithmetic, not its memory, is the limit. */
static void choose_steps(struct server *s)
{
    const int gpu = s->dev->memory != NULL;
    if (!s->o.max_batch)
        s->o.max_batch = gpu ? 256 : 32;
    if (!s->o.prefill_chunk)
        s->o.prefill_chunk = (gpu ? 2048 : 256) * s->o.cp;
}

/* Those that divide experts: the ranks of tp of neighbouring cp ranks. Another degree is refused when the
 * model is known. */
static int open_experts_group(struct server *s, struct err *e)
{
    struct replica_ranks *r = &s->ranks;
    int64_t fold = s->o.ep / s->o.tp;
    if (s->o.ep == 1)
        return 0;
    r->ep = r->tp;
    if (fold < 2 || s->o.ep % s->o.tp || s->o.cp % fold)
        return 0;
    int rc = comm_split(&s->own_ep, r->stage, (int)(s->mesh.at[AXIS_CP] / fold), e);
    r->ep = s->own_ep;
    return rc;
}

/* This rank has a part of a draft model. */
static int runs_drafts(const struct server *s) { return comm_rank(s->ranks.all) < s->o.speculate_tp; }

/* The groups of this rank's replica. */
static int open_groups(struct server *s, struct err *e)
{
    struct replica_ranks *r = &s->ranks;
    struct comm **axis = s->mesh.axis;
    int64_t sum;
    int index, n, uneven, rc = 0;

    *r = (struct replica_ranks){ .all = axis[AXIS_TP], .tp = axis[AXIS_TP], .stage = axis[AXIS_TP] };
    if (s->o.cp * s->o.pp > 1) {
        TRY(comm_split(&s->own_all, s->mesh.all, s->mesh.at[AXIS_DP], e));
        r->all = s->own_all;
    }
    if (s->o.pp > 1) {
        TRY(comm_split(&s->own_stage, r->all, s->mesh.at[AXIS_PP], e));
        r->pp = axis[AXIS_PP];
    }
    r->stage = s->own_stage ? s->own_stage : r->all;
    if (draft_needs_ranks(&s->drafts))
        TRY(comm_split(&s->draft_ranks, s->mesh.all, 2 * s->mesh.at[AXIS_DP] + !runs_drafts(s), e));
    TRY(open_experts_group(s, e));
    if (s->o.cp == 1)
        return 0;
    r->cp = axis[AXIS_CP];
    comm_shared_group(r->cp, &index, &n);
    uneven = comm_rank(r->cp) % n != index || comm_size(r->cp) % n;

    /* stages send each other rows, and divide them by the number of ranks that share memory */
    sum = n;
    TRY(comm_all_reduce_i64(s->mesh.all, &sum, 1, e));
    uneven |= sum != (int64_t)n * comm_size(s->mesh.all);
    rc = uneven ? err_set(e, ERR_USAGE,
                          "--cp %lld: machines divide its groups of %lld ranks unevenly, or not in turn: "
                          "start a multiple of %lld ranks on each, or a divisor",
                          (long long)s->o.cp, (long long)(s->o.tp * s->o.cp), (long long)(s->o.tp * s->o.cp))
                : 0;
    TRY(comm_agree(s->mesh.all, rc, e));
out:
    return rc;
}

static int claim_error_line(void *world) { return world_claim_report(world); }

static int open_ranks(struct server *s, char **argv, struct err *e)
{
    int n = (int)(s->o.tp * s->o.cp * s->o.pp * s->o.replicas), rc;
    int size[AXIS_COUNT] = { [AXIS_TP] = (int)s->o.tp,
                             [AXIS_CP] = (int)s->o.cp,
                             [AXIS_DP] = (int)s->o.replicas,
                             [AXIS_PP] = (int)s->o.pp };
    int threads = (int)s->o.threads;

    if (!threads)
        threads = cores() / n > 1 ? cores() / n : 1;
    launch_ranks_per_node((int)s->o.ranks_per_node);
    TRY(launch_ranks(n, argv, e));
    signal(SIGPIPE, SIG_IGN);
    TRY(dev_open(&s->dev, s->o.device, 1, &s->mem, e));
    choose_steps(s);
    TRY(world_open(&s->world, s->o.transport, s->o.rank_timeout_s, s->dev, &s->mem, e));
    mapped_set_claim(claim_error_line, s->world);
    log_open(&s->log, "pserve", world_rank(s->world) != 0, launch_stderr_is_tty());
    if (world_device_route(s->world))
        log_line(&s->log, "the device's memory goes between ranks %s", world_device_route(s->world));
    TRY(mesh_open(&s->mesh, s->world, size, e));
    TRY(open_groups(s, e));
    if (threads > 1) { /* after MPI has started */
        TRY(dev_threads(s->dev, threads, e));
    }

    if (s->o.trace) {
        TRY(trace_open(&s->trace, threads, e));
        s->dev->trace = s->trace;
        pool_trace(s->dev->pool, s->trace);
        world_trace(s->world, s->trace);
    }
out:
    return rc;
}

/* ---- start ---- */

/* Waits until the background task has ended on all ranks. A rank that fails, or a signal, stops all of
 * them. */
static int wait_background(struct server *s, struct err *e)
{
    int rc;
    do {
        if (world_stop_signal(s->world))
            background_cancel(&s->background);
        background_wait(&s->background, SYNC_MS);
        rc = background_sync(&s->background, s->ranks.tp, s->mesh.all, e);
    } while (rc == 0);
    if (rc < 0) {
        background_abort(&s->background);
        return rc;
    }
    rc = background_finish(&s->background, s->mesh.all, e);
    if (rc < 0 && e->code == ERR_STOPPED && world_stop_signal(s->world))
        return err_set(e, ERR_STOPPED, "stopped by a signal while %s was read", s->path);
    return rc;
}

/* Background task: opens the checkpoint. */
static int open_files(struct background *a, void *arg, struct err *e)
{
    struct server *s = arg;
    int rc = model_info_open(&s->loaded, s->path, server_is_live(s) ? LIVE_SHARED : LIVE_NO, &a->stop, e);
    return rc < 0 ? rc : server_open_adapters(s, &a->stop, e);
}

/* Checks the layout against the model, reads the tokenizer, and sets what requests need to know. */
static int open_tables(struct server *s, struct err *e)
{
    struct layout lay = server_layout(s);
    int rc;

    if (ckpt_remark(s->loaded.ckpt))
        log_line(&s->log, "%s", ckpt_remark(s->loaded.ckpt));
    s->loaded.wish = s->o.act ? CODES_WISH_INT8 : (enum codes_wish)s->o.quantized;
    if (s->o.act && !s->loaded.is_quantised)
        return err_set(e, ERR_USAGE, "--act int8 is for quantised weights, and %s has none: leave it out",
                       ckpt_path(s->loaded.ckpt));
    if (s->loaded.is_quantised && s->loaded.wish && (server_dtype(s) != DT_BF16 || s->dev->memory))
        return err_set(e, ERR_USAGE, "%s computes in bf16 on a CPU: add --dtype bf16, or leave it out",
                       s->o.act ? "--act int8" : "--quantized codes");
    if (s->loaded.is_quantised && !s->loaded.wish)
        log_line(&s->log, "quantised weights (%s) are computed as their values in %s: class deq",
                 s->loaded.quantised, dtype_name(server_dtype(s)));
    TRY(layout_check(&lay, &s->loaded.cfg, e));
    if (server_is_head(s))
        TRY(model_info_read_texts(&s->loaded, &(struct text_choice){ s->o.chat_template, s->o.tool_parser },
                                  &s->service, e));
    if (server_is_first(s) && s->o.tool_parser && !s->service.chat)
        log_line(&s->log, "--tool-parser has no effect: this model has no chat template");
    if (server_is_first(s) && !s->o.once && s->service.chat && !s->service.form.calls)
        log_line(
            &s->log,
            "the chat template writes tool calls in no form that is known here: answers to requests with "
            "tools are plain text (--tool-parser names a form)");
    if (layout_grain(&lay, &s->loaded.cfg) != s->loaded.cfg.grain)
        log_line(
            &s->log,
            "tp %d cuts the tree of grain %d elsewhere: deterministic, but the bits are this layout's own",
            lay.tp, s->loaded.cfg.grain);
    s->service.vocab = s->loaded.cfg.vocab;
    s->service.hidden = s->loaded.cfg.hidden;
    s->service.lenient = s->o.lenient;
    s->service.request_timeout_s = s->o.request_timeout_s;
    s->service.created = (int64_t)time(NULL);
    s->service.metrics = &s->metrics;
    s->service.kv_dtype = kv_kind_name(server_kv_kind(s), server_dtype(s));
    TRY(grammar_cache_open(&s->service.grammars, e));
out:
    return rc < 0 ? rc : 0;
}

/* Engines that plan get their requests through a router; those of other processes through a link to rank
 * 0. */
static int open_replicas(struct server *s, struct err *e)
{
    int n = server_is_first(s) ? (int)s->o.replicas : 1, fd;
    int rc = server_is_head(s) ? router_open(&s->router, n, e) : 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    if (s->o.replicas == 1)
        return 0;
    if (comm_local_size(s->mesh.all) != comm_size(s->mesh.all))
        return err_set(
            e, ERR_USAGE,
            "--replicas %lld needs all ranks on one machine: start a pserve on each, behind a load balancer",
            (long long)s->o.replicas);
    TRY(link_open(&s->front, &fd, s->mesh.all, s->mesh.at[AXIS_DP], server_is_head(s), &s->router, e));
    rc = fd >= 0 ? link_back_open(&s->back, fd, &s->router, &s->service, e) : 0;
out:
    return rc;
}

#define CONNECTIONS_MIN 16 /* a limit on open files that leaves fewer would stop /health too */

/* --max-connections, or as many as the system lets this process open. ERR_USAGE: too few. */
static int max_connections(struct server *s, struct err *e)
{
    int64_t want = s->o.max_connections, files = http_server_files(want);
    int64_t missing = files - io_raise_file_limit(files), n = want - missing;
    if (missing <= 0)
        return (int)want;
    if (n < CONNECTIONS_MIN && n < want)
        return err_set(
            e, ERR_USAGE,
            "ulimit -n leaves files for %lld connections, at least %d are served: raise it to %lld",
            (long long)(n > 0 ? n : 0), CONNECTIONS_MIN, (long long)files);
    log_line(&s->log, "at most %lld connections at a time: --max-connections %lld needs ulimit -n %lld",
             (long long)n, (long long)want, (long long)files);
    return (int)n;
}

/* Rank 0 listens. */
static int open_http(struct server *s, struct err *e)
{
    if (!server_is_first(s))
        return 0;
    struct http_options o = { .host = s->o.host,
                              .port = (int)s->o.port,
                              .cors_origin = s->o.cors_origin,
                              .allow_host = s->o.allow_host,
                              .access_log = s->o.access_log,
                              .max_requests = s->o.max_requests,
                              .max_waiting_tokens = s->o.max_waiting_tokens,
                              .max_per_key = s->o.max_per_key,
                              .receive_timeout_s = s->o.receive_timeout_s,
                              .max_connections_per_address = (int)s->o.max_connections_per_address,
                              .max_body_memory = s->o.max_body_memory,
                              .tls_cert = s->o.tls_cert,
                              .tls_key = s->o.tls_key };
    if (s->o.once)
        return 0;
    if ((o.max_connections = max_connections(s, e)) < 0)
        return o.max_connections;
    if (s->o.api_key_file) {
        int rc = keys_open(&s->keys, s->o.api_key_file, e);
        if (rc < 0)
            return rc;
        o.keys = &s->keys;
    }

    if (s->o.admin_key_file) {
        int rc = keys_open(&s->admin_keys, s->o.admin_key_file, e);
        if (rc < 0)
            return rc;
        o.admin_keys = &s->admin_keys;
    }

    if (s->o.response_memory &&
        !(s->service.responses = response_store_open(RESPONSES_KEPT, s->o.response_memory)))
        return err_set(e, ERR_MEMORY, "no memory for the responses that are kept");
    return http_server_open(&s->http, &s->service, &s->router, &o, e);
}

/* --verbose: prints what every rank holds and has read, a line a rank. Collective. */
static int report(struct server *s, struct err *e)
{
    int64_t mine[3] = { atomic_load(&s->mem.now[MEM_PARAMS]), atomic_load(&s->mem.now[MEM_KV]),
                        ckpt_bytes_read(s->loaded.ckpt) },
            *all;
    size_t *sizes = calloc((size_t)comm_size(s->mesh.all), sizeof *sizes);
    void *blob = NULL;
    int rc = sizes ? comm_gather_blobs(s->mesh.all, mine, sizeof mine, 0, &blob, sizes, e)
                   : err_set(e, ERR_MEMORY, "no memory for a report");
    all = blob;
    for (int r = 0; rc >= 0 && all && s->o.verbose && r < comm_size(s->mesh.all); r++)
        log_line(&s->log, "rank %d: weights %lld bytes, kv %lld bytes, read %lld bytes", r,
                 (long long)all[3 * r], (long long)all[3 * r + 1], (long long)all[3 * r + 2]);
    free(blob);
    free(sizes);
    return rc;
}

/* Background task: reads the weights. */
static int read_weights(struct background *a, void *arg, struct err *e)
{
    struct server *s = arg;
    return weights_read(a, &s->loaded, &s->loaded.m, s->dev->host, &s->service.load, e);
}

static int load_model(struct server *s, struct err *e)
{
    struct layout lay = server_layout(s);
    struct model_info *l = &s->loaded;
    struct step_limits step = engine_step(&s->size);
    struct model_open how = { .layout = lay,
                              .dev = s->dev,
                              .tp = s->ranks.tp,
                              .ep = s->ranks.ep,
                              .tp_rank = comm_rank(s->ranks.tp),
                              .pp_rank = replica_pp_rank(&s->ranks),
                              .dt = server_dtype(s),
                              .kv = server_kv_kind(s),
                              .fast = s->o.numerics,
                              .max_rows = step_model_rows(&s->ranks, &step),
                              .max_pos = s->service.ctx,
                              .adapter_rank = s->adapter_start.rank };
    int rc = model_open(&l->m, &l->cfg, &how, e);

    l->has_model = rc >= 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    atomic_store(&s->service.load.total, weights_bytes(&l->m));

    /* no trace meanwhile: the task's events would be written as this thread's */
    s->dev->trace = NULL;
    pool_trace(s->dev->pool, NULL);
    l->at_once = *s->kv_disk != 0; /* its pages are named by the digest */
    l->counts_dense = server_place(s).dp == 0;
    l->counts_experts = server_place(s).edp == 0;
    l->checks_behind = s->o.verify == SERVE_VERIFY_BEHIND && !s->o.once;
    background_start(&s->background, read_weights, s, NULL);
    rc = wait_background(s, e);
    s->dev->trace = s->trace;
    pool_trace(s->dev->pool, s->trace);
    if (rc >= 0)
        rc = comm_agree(s->mesh.all, weights_identify(l, &l->m, s->ranks.all, e), e);
out:
    return rc;
}

/* Answers name these weights. A digest that is made behind serving is not known yet. The version is the
 * checkpoint's step, or what a live URL calls the weights that were read from it. Collective. */
static int set_served(struct server *s, struct err *e)
{
    const struct ckpt *c = s->loaded.source ? s->loaded.source : s->loaded.ckpt;
    struct live_version v;
    struct err ignored; /* follow.c asks again */
    char digest[33] = "";
    int64_t version = ckpt_state(c)->step;
    if (!s->loaded.late.digest)
        ckpt_digest_hex(s->loaded.identity, digest);
    if (server_is_first(s) && server_is_live(s) && live_version_get(s->path, -1, 0, NULL, &v, &ignored) > 0 &&
        !strcmp(v.digest, digest))
        version = v.version;
    int rc = comm_broadcast(s->mesh.all, &version, sizeof version, 0, e);
    served_set(&s->service.served, version, digest);
    return rc;
}

/* What goes on beside serving where weights are mapped. The first rank of a machine checks the files. */
static int begin_behind(struct server *s, struct err *e)
{
    struct mapped_weights *w = s->loaded.mapped;
    int rank, n;
    if (!w)
        return 0;
    if (mapped_weights_refused(w))
        log_line(&s->log,
                 "panels of %s are not those of %s in %s at this layout: %d packs are made anew, in memory "
                 "that is not shared",
                 s->path, s->dev->isa, dtype_name(server_dtype(s)), mapped_weights_refused(w));
    comm_shared_group(s->mesh.all, &rank, &n);
    return mapped_weights_begin(w, &s->loaded.weights,
                                s->loaded.checks_behind && rank == 0 ? &s->service.verify : NULL, n, e);
}

static void print_ready(const struct server *s)
{
    char kv[32], more[64];
    int v6 = strchr(s->o.host, ':') != NULL;
    log_bytes(kv, (double)s->o.replicas * (double)server_kv_bytes(s));
    int n = snprintf(more, sizeof more, s->o.cp > 1 ? ", cp=%lld" : "", (long long)s->o.cp);
    snprintf(more + n, sizeof more - (size_t)n, s->o.pp > 1 ? ", pp=%lld" : "", (long long)s->o.pp);
    printf("pserve: ready on http%s://%s%s%s:%d (tp=%lld, replicas=%lld, kv=%s%s)\n",
           s->o.tls_cert ? "s" : "", v6 ? "[" : "", s->o.host, v6 ? "]" : "", http_server_port(s->http),
           (long long)s->o.tp, (long long)s->o.replicas, kv, more);
    fflush(stdout);
}

static int open_engine(struct server *s, struct err *e)
{
    struct engine_setup in = { .sv = &s->service,
                               .world = s->world,
                               .ranks = s->ranks,
                               .loaded = &s->loaded,
                               .adapters = s->adapter_start.rank ? &s->adapters : NULL,
                               .n_here = comm_local_size(s->mesh.all),
                               .size = s->size,
                               .drafts = s->drafts,
                               .draft_ranks = runs_drafts(s) ? s->draft_ranks : NULL,
                               .kv_disk = *s->service.fingerprint && *s->kv_disk ? s->kv_disk : NULL,
                               .kv_disk_bytes = s->kv_disk_bytes,
                               .router = server_is_head(s) ? &s->router : NULL,
                               .is_follower = !server_is_first(s),
                               .is_pushed = s->o.follow != NULL,
                               .log = &s->log };
    int rc = engine_open(&s->engine, &in, e);
    return comm_agree(s->mesh.all, rc, e);
}

static void log_loaded(struct server *s, double seconds)
{
    if (*s->dev->note)
        log_line(&s->log, "%s", s->dev->note);
    if (!s->o.verbose)
        return;
    log_line(&s->log, "loaded %s in %.2f s: %s, context %lld, %d pages of %d tokens in %s", s->path, seconds,
             dtype_name(server_dtype(s)), (long long)s->service.ctx, s->size.pool[0].n_pages, KV_PAGE,
             kv_kind_name(server_kv_kind(s), server_dtype(s)));
    if (s->loaded.codes)
        log_line(&s->log, "quantised weights (%s) lie as codes in %d packs of %lld bytes: class %s",
                 s->loaded.quantised, codes_weights_count(s->loaded.codes),
                 (long long)codes_weights_bytes(s->loaded.codes), codes_weights_class(s->loaded.codes));
    if (s->size.pool[1].n_pages)
        log_line(&s->log, "layers with a window of %lld tokens have %d pages of their own",
                 (long long)s->size.pool[1].window, s->size.pool[1].n_pages);
}

/* Ranks that each have a memory node of their own read weights from it alone; fewer ranks read other nodes'
 * memory too. The bits are the same at any tp. */
static void advise_nodes(struct server *s)
{
    const int nodes = cpus_count_nodes(), ranks = world_node_size(s->world);
    const int64_t tp = (int64_t)s->o.tp * nodes / ranks, heads = s->loaded.cfg.n_heads;

    if (s->dev->memory || nodes <= ranks || nodes % ranks || heads % tp || s->loaded.cfg.grain % tp)
        return;
    log_line(
        &s->log,
        "this machine has %d memory nodes and %d rank%s: --tp %lld, a rank a node, would read weights from "
        "near memory only, with the same bits",
        nodes, ranks, ranks > 1 ? "s" : "", (long long)tp);
}

int server_open(struct server *s, int argc, char **argv, struct err *e)
{
    double begin = clock_s();
    unsigned char given[SERVE_OPTIONS_MAX];
    int rc = opt_parse(&pserve_program, argc, argv, &s->o, &s->args, given, e);

    if (rc)
        return rc;
    s->path = s->args.item[0];
    TRY(server_check_options(s, given, e));
    name_model(s);

    TRY(open_ranks(s, argv, e));
    background_start(&s->background, open_files, s, NULL);
    TRY(wait_background(s, e));
    TRY(comm_agree(s->mesh.all, open_tables(s, e), e));
    TRY(server_find_cached(s, e));
    TRY(comm_agree(s->mesh.all, server_name_adapters(s, e), e));
    TRY(server_share_sizes(s, e));

    TRY(comm_agree(s->mesh.all, open_replicas(s, e), e));
    TRY(comm_agree(s->mesh.all, open_http(s, e), e));
    advise_nodes(s);
    world_pin(s->world, s->dev->pool); /* after open_http: its threads may use all CPUs */
    TRY(load_model(s, e));
    TRY(server_load_adapters(s, e));

    /* without a fingerprint where the bits are not the contract's */
    if (!s->loaded.m.fast && s->loaded.m.grain == s->loaded.cfg.grain && !s->loaded.late.digest)
        model_info_fingerprint(&s->loaded, server_dtype(s), server_kv_kind(s), s->service.fingerprint);
    TRY(set_served(s, e));
    TRY(open_engine(s, e));
    TRY(comm_agree(s->mesh.all, begin_behind(s, e), e));
    TRY(comm_agree(s->mesh.all, server_begin_cache(s, e), e));
    TRY(report(s, e));
    ckpt_end_reading(s->loaded.ckpt);
    TRY(repack_open(&s->loaded, comm_rank(s->ranks.all) == 0, e));
    log_loaded(s, clock_s() - begin);
    atomic_store(&s->service.state, SERVICE_READY);
    if (s->http)
        print_ready(s);
    if (s->http && s->o.follow)
        TRY(follow_open(&s->follow, server_followed(s), (enum reload_mode)s->o.follow_mode, &s->service,
                        &s->router, e));
    rc = 0;
out:
    return rc;
}

/* ---- run and end ---- */

int server_run(struct server *s, struct err *e)
{
    int rc = s->o.once ? server_run_once(s, e) : engine_run(&s->engine, 0, e);
    if (s->o.verbose)
        log_line(&s->log, "%lld answers, %lld steps, %lld rows, %lld preempted",
                 (long long)s->engine.n_answered, (long long)s->engine.n_steps, (long long)s->engine.n_rows,
                 (long long)s->engine.sched.n_preempted);
    if (s->trace && rc >= 0)
        rc = world_trace_write(s->world, s->trace, s->o.trace, e);
    return rc;
}

void server_close(struct server *s, int rc)
{
    if (rc < 0)
        atomic_store(&s->service.state, SERVICE_FAILED);
    server_close_cache(s, rc);
    server_end_adapters(s);
    follow_stop(s->follow);
    link_front_close(s->front);
    follow_close(s->follow);
    link_back_close(s->back);
    http_server_close(s->http, GRACE_S);
    engine_close(&s->engine);
    router_close(&s->router);
    server_close_adapters(s);
    model_info_close(&s->loaded);
    response_store_close(s->service.responses);
    grammar_cache_close(s->service.grammars);
    tokenizer_close(s->service.tok);
    free(s->service.chat_template);
    template_close(s->service.chat);
    json_decref(s->service.chat_tokens);
    keys_close(&s->keys);
    keys_close(&s->admin_keys);
    if (s->world) {
        mapped_set_claim(NULL, NULL);
        comm_close(s->draft_ranks);
        comm_close(s->own_ep);
        comm_close(s->own_stage);
        comm_close(s->own_all);
        mesh_close(&s->mesh);
        world_close(s->world);
    }

    if (s->dev)
        dev_close(s->dev);
    trace_close(s->trace);
    log_close(&s->log);
    if (s->path)
        opt_free(&pserve_program, &s->o, &s->args);
}

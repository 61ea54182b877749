/* server.c - see server.h. The order of a start: options, ranks, tables of the checkpoint, sizes, socket (so
 * that /health answers while weights are read), weights, pages, ready. Every stage that can fail on one rank
 * alone ends in an agreement. */
#define _GNU_SOURCE
#include "serve/server.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "comm/launch.h"
#include "serve/api/openai.h"
#include "serve/weights/weights.h"
#include "text/template.h"

#define LOGITS_BYTES ((int64_t)64 << 20) /* of prompt rows that want logits, in one step */
/* while weights are read: how soon a rank's failure reaches the others */
#define REST_MS 20
/* for the last answers to leave, within the 10 s that an end may take */
#define LEAVE_S 2.0

/* ---- options and ranks ---- */

/* What only --once has would change nothing beside it. */
static int check_once(const struct server *s, const unsigned char *given, struct err *e)
{
    static const char *const own[] = { "max-tokens", "temperature", "seed" };
    for (size_t i = 0; !s->o.once && i < sizeof own / sizeof own[0]; i++)
        if (opt_given(&pserve_program, given, own[i]))
            return err_set(e, ERR_USAGE, "--%s goes with --once: to a server every request says its own",
                           own[i]);
    if (s->o.once && s->o.max_tokens < 1)
        return err_set(e, ERR_USAGE, "--max-tokens 0: nothing would be completed");
    if (s->o.once && s->o.replicas > 1)
        return err_set(e, ERR_USAGE, "--once computes one prompt: --replicas %lld would have nothing to do",
                       (long long)s->o.replicas);
    return 0;
}

static int check_options(const struct server *s, const unsigned char *given, struct err *e)
{
    const char *name = s->o.model_name;
    int rc = check_once(s, given, e);
    if (rc < 0)
        return rc;
    if (name && (!*name || strlen(name) >= sizeof s->name))
        return err_set(e, ERR_USAGE, "--model-name has %zu bytes, must have 1 to %zu", strlen(name),
                       sizeof s->name - 1);
    if (!s->o.tls_cert != !s->o.tls_key)
        return err_set(e, ERR_USAGE, "--tls-cert and --tls-key go together: give both or none");
    return 0;
}

/* The last part of the path, unless a name is given. */
static void name_model(struct server *s)
{
    const char *path = s->o.model_name ? s->o.model_name : s->path;
    size_t end = strlen(path), begin;
    while (!s->o.model_name && end > 1 && path[end - 1] == '/')
        end--;
    begin = end;
    while (!s->o.model_name && begin > 0 && path[begin - 1] != '/')
        begin--;
    begin = s->o.model_name ? 0 : begin;
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - begin), path + begin);
    s->service.model = s->name;
}

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* A GPU has read its weights long before it has multiplied as few rows as keep a CPU busy. */
static void choose_steps(struct server *s)
{
    const int gpu = s->dev->memory != NULL;
    s->o.max_batch = s->o.max_batch ? s->o.max_batch : gpu ? 256 : 32;
    s->o.prefill_chunk = s->o.prefill_chunk ? s->o.prefill_chunk : gpu ? 2048 : 256;
}

static int open_ranks(struct server *s, char **argv, struct err *e)
{
    int n = (int)(s->o.tp * s->o.replicas), rc;
    int size[AXIS_COUNT] = {
        [AXIS_TP] = (int)s->o.tp, [AXIS_CP] = 1, [AXIS_DP] = (int)s->o.replicas, [AXIS_PP] = 1
    };
    int threads = s->o.threads ? (int)s->o.threads : cores() / n > 1 ? cores() / n : 1;
    launch_ranks_per_node((int)s->o.ranks_per_node);
    TRY(launch_ranks(n, argv, e));
    signal(SIGPIPE, SIG_IGN);
    TRY(dev_open(&s->dev, s->o.device, 1, &s->mem, e));
    choose_steps(s);
    TRY(world_open(&s->world, s->o.transport, s->o.rank_timeout_s, s->dev, &s->mem, e));
    log_open(&s->log, "pserve", world_rank(s->world) != 0, launch_stderr_is_tty());
    if (world_device_says(s->world))
        log_line(&s->log, "the device's memory goes between ranks %s", world_device_says(s->world));
    TRY(mesh_open(&s->mesh, s->world, size, e));
    s->tp = s->mesh.axis[AXIS_TP];
    if (threads > 1) { /* the threads come after MPI has started */
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

/* Rank 0 speaks HTTP; the first rank of every group has an engine that plans. */
static int is_first(const struct server *s) { return world_rank(s->world) == 0; }
static int is_head(const struct server *s) { return comm_rank(s->tp) == 0; }

/* ---- sizes ---- */

static int64_t weight_bytes(const struct model_config *c, enum dtype dt, struct err *e)
{
    struct param_table t;
    int64_t n = 0;
    int rc = param_table_open(&t, c, e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < t.n; i++)
        n += param_count(&t.p[i]);
    param_table_close(&t);
    return n * (int64_t)dtype_size(dt);
}

static enum dtype arithmetic(const struct server *s)
{
    return s->o.dtype == SERVE_DTYPE_STORED ? s->loaded.stored
           : s->o.dtype == SERVE_DTYPE_BF16 ? DT_BF16
                                            : DT_F32;
}

/* One page on all ranks; fewer kv heads than ranks are held more than once. */
static int64_t page_bytes_all_ranks(const struct server *s)
{
    const struct model_config *c = &s->loaded.cfg;
    int64_t heads = c->n_kv < s->o.tp ? s->o.tp : c->n_kv;
    return (int64_t)attn_page_bytes((int)heads, (int)c->head_dim, arithmetic(s)) * c->n_layers;
}

/* Free memory of all ranks together, where they are at home: half of the machine's, once its weights are
 * there; of GPUs, which nobody else is to have, four fifths. Ranks that have one GPU together share it, and
 * the least share counts for all: pages are cut alike. Collective. */
struct home {
    char gpu[64];
    int64_t room;
};
static int share_free_memory(struct server *s, int64_t weights, int64_t *room, struct err *e)
{
    const int n = comm_size(s->mesh.all);
    const struct dev_memory *m = s->dev->memory;
    struct home mine = { "", m ? (int64_t)m->room(s->dev) : mem_machine_room() },
                *all = calloc((size_t)n, sizeof *all);
    int64_t least = INT64_MAX;
    int rc = all ? 0 : err_set(e, ERR_MEMORY, "no memory for the ranks' sizes");
    if (m)
        snprintf(mine.gpu, sizeof mine.gpu, "%s", m->identity(s->dev));
    TRY(comm_agree(s->mesh.all, rc, e));
    TRY(comm_all_gather(s->mesh.all, all, &mine, sizeof mine, e));
    for (int r = 0; r < n; r++) {
        int together = 0;
        for (int q = 0; q < n; q++)
            together += !strcmp(all[q].gpu, all[r].gpu);
        least = all[r].room / together < least ? all[r].room / together : least;
    }
    *room = m ? (least * n - weights) / 5 * 4 : (all[0].room - weights) / 2;
out:
    free(all);
    return rc;
}

/* How long, how many, how much: rank 0 decides (free memory may look different elsewhere). */
static int decide_sizes(struct server *s, int64_t room, struct err *e)
{
    const struct model_config *c = &s->loaded.cfg;
    struct kv_sizing w = { .max_seqs = s->o.max_batch,
                           .bytes = s->o.kv_memory,
                           .page_bytes = page_bytes_all_ranks(s) };
    int64_t limit, extra = LOGITS_BYTES / (c->vocab * (int64_t)sizeof(float));
    w.bytes = (w.bytes + s->o.replicas - 1) / s->o.replicas; /* 0 stays: not said */
    w.room = room / s->o.replicas;
    limit = (w.bytes ? w.bytes : w.room) / w.page_bytes * KV_PAGE;
    /* where a layer sees all, every page stays */
    s->size.window = w.window = c->window_first ? 0 : c->window;
    w.chunk = s->o.prefill_chunk;
    if (limit >= kv_pages_most(c->max_pos, w.window, w.chunk) * KV_PAGE)
        limit = c->max_pos;
    if (s->o.ctx > c->max_pos)
        return err_set(e, ERR_USAGE,
                       "--ctx %lld is longer than the model's %lld positions (max_position_embeddings)",
                       (long long)s->o.ctx, (long long)c->max_pos);
    w.ctx = s->o.ctx ? s->o.ctx : c->max_pos < limit || limit < KV_PAGE ? c->max_pos : limit;
    if (!s->o.ctx && w.ctx < c->max_pos)
        log_line(&s->log,
                 "the context is %lld of the model's %lld tokens: more does not fit into the memory for keys "
                 "and values",
                 (long long)w.ctx, (long long)c->max_pos);
    s->service.ctx = w.ctx;
    s->size.max_seqs = (int)s->o.max_batch;
    s->size.chunk = s->o.prefill_chunk;
    s->size.prefix_cache = !s->o.prefix_cache; /* the words are on, off */
    extra = extra < 1 ? 1 : extra;
    s->size.max_wants = s->size.max_seqs + (extra < s->size.chunk ? extra : s->size.chunk);
    int rc = kv_count_pages(&w, &s->size.n_pages, e);
    return rc < 0 && s->o.replicas > 1 ? err_add(e, "each of %lld replicas", (long long)s->o.replicas) : rc;
}

static int share_sizes(struct server *s, struct err *e)
{
    int64_t ctx[1], room, weights = weight_bytes(&s->loaded.cfg, arithmetic(s), e);
    int rc;
    TRY(comm_agree(s->mesh.all, weights < 0 ? (int)weights : 0, e));
    TRY(share_free_memory(s, weights * s->o.replicas, &room, e));
    rc = is_first(s) ? decide_sizes(s, room, e) : 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    TRY(comm_broadcast(s->mesh.all, &s->size, sizeof s->size, 0, e));
    ctx[0] = s->service.ctx;
    TRY(comm_broadcast(s->mesh.all, ctx, sizeof ctx, 0, e));
    s->service.ctx = ctx[0];
    s->service.prefix_cache = s->size.prefix_cache;
out:
    return rc;
}

/* ---- start ---- */

/* Until what was begun beside has ended on all ranks: one that fails, or a signal, stops the others'
 * reading. */
static int wait_background(struct server *s, struct err *e)
{
    int rc;
    do {
        if (world_stop_signal(s->world))
            background_cancel(&s->background);
        background_wait(&s->background, REST_MS);
        rc = background_sync(&s->background, s->tp, s->mesh.all, e);
    } while (rc == 0);
    if (rc < 0) {
        background_abort(&s->background);
        return rc;
    }
    rc = background_finish(&s->background, s->mesh.all, e);
    if (rc < 0 && e->code == ERR_STOPPED && world_stop_signal(s->world))
        return err_set(e, ERR_STOPPED, "stopped by a signal while %s was read",
                       s->path); /* where exactly is chance */
    return rc;
}

static int open_files(struct background *a, void *arg, struct err *e)
{
    struct server *s = arg;
    return model_info_open(&s->loaded, s->path, &a->stop, e);
}

static int open_tables(struct server *s, struct err *e)
{
    struct layout lay = { .tp = (int)s->o.tp, .pp = 1, .cp = 1, .dp = 1, .ep = 1, .zero = 0 };
    int rc;
    if (ckpt_remark(s->loaded.ckpt))
        log_line(&s->log, "%s", ckpt_remark(s->loaded.ckpt));
    TRY(layout_check(&lay, &s->loaded.cfg, e));
    if (is_head(s))
        TRY(model_info_read_texts(&s->loaded, &s->service, e));
    if (layout_grain(&lay, &s->loaded.cfg) != s->loaded.cfg.grain)
        log_line(
            &s->log,
            "tp %d cuts the tree of grain %d elsewhere: deterministic, but the bits are this layout's own",
            lay.tp, s->loaded.cfg.grain);
    s->service.vocab = s->loaded.cfg.vocab;
    s->service.lenient = s->o.lenient;
    s->service.request_timeout_s = s->o.request_timeout_s;
    s->service.created = (int64_t)time(NULL);
    s->service.metrics = &s->metrics;
out:
    return rc < 0 ? rc : 0;
}

/* Engines that plan get their requests through a router; those of other processes through a link to rank
 * 0's. */
static int open_replicas(struct server *s, struct err *e)
{
    int rc = is_head(s) ? router_open(&s->router, is_first(s) ? (int)s->o.replicas : 1, e) : 0, fd;
    TRY(comm_agree(s->mesh.all, rc, e));
    if (s->o.replicas == 1)
        return 0;
    if (comm_here(s->mesh.all) != comm_size(s->mesh.all))
        return err_set(
            e, ERR_USAGE,
            "--replicas %lld needs all ranks on one machine: start a pserve on each, behind a load balancer",
            (long long)s->o.replicas);
    TRY(link_open(&s->front, &fd, s->mesh.all, s->mesh.at[AXIS_DP], is_head(s), &s->router, &s->service, e));
    rc = fd >= 0 ? link_back_open(&s->back, fd, &s->router, &s->service, e) : 0;
out:
    return rc;
}

static int open_http(struct server *s, struct err *e)
{
    if (!is_first(s))
        return 0;
    struct http_options o = { .host = s->o.host,
                              .port = (int)s->o.port,
                              .cors_origin = s->o.cors_origin,
                              .access_log = s->o.access_log,
                              .max_requests = s->o.max_requests,
                              .max_waiting_tokens = s->o.max_waiting_tokens,
                              .max_per_key = s->o.max_per_key,
                              .receive_timeout_s = s->o.receive_timeout_s,
                              .tls_cert = s->o.tls_cert,
                              .tls_key = s->o.tls_key };
    if (s->o.once)
        return 0;
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
    return http_server_open(&s->http, &s->service, &s->router, &o, e);
}

/* What every rank holds and has read, one line a rank. */
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

static int read_weights(struct background *a, void *arg, struct err *e)
{
    struct server *s = arg;
    return weights_read(a, &s->loaded, &s->loaded.m, s->dev->host, &s->service.load, e);
}

static int load_model(struct server *s, struct err *e)
{
    struct layout lay = { .tp = comm_size(s->tp), .pp = 1, .cp = 1, .dp = 1, .ep = 1, .zero = 0 };
    struct model_info *l = &s->loaded;
    int rc = model_open(&l->m, &l->cfg, &lay, s->dev, s->tp, comm_rank(s->tp), 0, arithmetic(s),
                        s->o.numerics, engine_max_rows(&s->size), s->service.ctx, e);
    l->has_model = rc >= 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    atomic_store(&s->service.load.total, weights_bytes(&l->m));
    s->dev->trace = NULL; /* two threads would write as one */
    pool_trace(s->dev->pool, NULL);
    background_start(&s->background, read_weights, s, NULL);
    rc = wait_background(s, e);
    s->dev->trace = s->trace;
    pool_trace(s->dev->pool, s->trace);
out:
    return rc;
}

static void print_ready(const struct server *s)
{
    char kv[32];
    int v6 = strchr(s->o.host, ':') != NULL;
    log_bytes(kv, (double)s->o.replicas * (double)s->size.n_pages * (double)page_bytes_all_ranks(s));
    printf("pserve: ready on http%s://%s%s%s:%d (tp=%lld, replicas=%lld, kv=%s)\n", s->o.tls_cert ? "s" : "",
           v6 ? "[" : "", s->o.host, v6 ? "]" : "", http_server_port(s->http), (long long)s->o.tp,
           (long long)s->o.replicas, kv);
    fflush(stdout);
}

int server_open(struct server *s, int argc, char **argv, struct err *e)
{
    struct opt_args args = { 0 };
    double begin = clock_s();
    unsigned char given[SERVE_OPTIONS_MAX];
    int rc = opt_parse(&pserve_program, argc, argv, &s->o, &args, given, e);
    if (rc)
        return rc;
    s->path = args.item[0];
    TRY(check_options(s, given, e));
    name_model(s);
    TRY(open_ranks(s, argv, e));
    background_start(&s->background, open_files, s, NULL);
    TRY(wait_background(s, e));
    TRY(comm_agree(s->mesh.all, open_tables(s, e), e));
    TRY(share_sizes(s, e));
    TRY(comm_agree(s->mesh.all, open_replicas(s, e), e));
    TRY(comm_agree(s->mesh.all, open_http(s, e), e));
    world_pin(s->world, s->dev->pool); /* behind the doors: threads of HTTP keep all CPUs */
    TRY(load_model(s, e));
    /* else the bits are the layout's own */
    if (!s->loaded.m.fast && s->loaded.m.grain == s->loaded.cfg.grain)
        model_info_fingerprint(&s->loaded, arithmetic(s), s->service.fingerprint);
    rc = engine_open(&s->engine, &s->service, s->world, s->tp, &s->loaded.m, &s->loaded.weights.w, &s->size,
                     is_head(s) ? &s->router : NULL, e);
    TRY(comm_agree(s->mesh.all, rc, e));
    s->engine.loaded = &s->loaded;
    s->engine.n_here = comm_here(s->mesh.all);
    s->engine.is_follower = !is_first(s);
    s->engine.log = &s->log;
    TRY(report(s, e));
    ckpt_done(s->loaded.ckpt);
    if (*s->dev->note)
        log_line(&s->log, "%s", s->dev->note);
    if (s->o.verbose)
        log_line(&s->log, "loaded %s in %.2f s: %s, context %lld, %d pages of %d tokens", s->path,
                 clock_s() - begin, dtype_name(arithmetic(s)), (long long)s->service.ctx, s->size.n_pages,
                 KV_PAGE);
    atomic_store(&s->service.state, SERVICE_READY);
    if (s->http)
        print_ready(s);
    rc = 0;
out:
    opt_free(&pserve_program, NULL, &args);
    return rc;
}

/* ---- one prompt ---- */

static int once_request(struct server *s, struct request **out, struct err *e)
{
    struct json_out body = { 0 };
    struct fault f;
    json_out_text(&body, "{\"prompt\":");
    json_out_string(&body, s->o.once);
    json_out_fmt(&body, ",\"max_tokens\":%lld,\"temperature\":%.17g,\"seed\":%lld}",
                 (long long)s->o.max_tokens, s->o.temperature, (long long)s->o.seed);
    int rc = body.failed ? err_set(e, ERR_MEMORY, "no memory for the prompt") : 0;
    if (rc >= 0 && openai_parse(&s->service, 0, body.p, body.n, out, &f) < 0)
        rc = err_set(e, ERR_USAGE, "--once: %s", f.text);
    json_out_free(&body);
    return rc;
}

static int run_once(struct server *s, struct err *e)
{
    struct request *rq = NULL;
    int rc = is_first(s) ? once_request(s, &rq, e) : 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    if (rq) {
        atomic_fetch_add(&rq->refs, 1);
        inbox_put(&s->router.replica->inbox, rq);
    }
    TRY(engine_run(&s->engine, 1, e));
    if (rq && rq->fault.status)
        rc = err_set(e, world_stop_signal(s->world) ? ERR_STOPPED : ERR_INTERNAL, "--once: %s",
                     rq->fault.text);
    else if (rq) {
        fwrite(rq->choice[0].text.p ? rq->choice[0].text.p : "", 1, rq->choice[0].text.n, stdout);
        putchar('\n');
        if (fflush(stdout) != 0 || ferror(stdout))
            rc = err_sys(e, "writing the completion");
    }
out:
    request_release(rq);
    return rc;
}

/* ---- run and end ---- */

int server_run(struct server *s, struct err *e)
{
    int rc = s->o.once ? run_once(s, e) : engine_run(&s->engine, 0, e);
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
    link_front_close(s->front);
    link_back_close(s->back);
    http_server_close(s->http, LEAVE_S);
    engine_close(&s->engine);
    router_close(&s->router);
    model_info_close(&s->loaded);
    tokenizer_close(s->service.tok);
    free(s->service.chat_template);
    template_close(s->service.chat);
    json_decref(s->service.chat_tokens);
    keys_close(&s->keys);
    keys_close(&s->admin_keys);
    if (s->world) {
        mesh_close(&s->mesh);
        world_close(s->world);
    }
    if (s->dev)
        dev_close(s->dev);
    trace_close(s->trace);
    log_close(&s->log);
}

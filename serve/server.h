/* server.h - one rank of pserve: from a command line to a loop that serves, and down again. Everything here
 * is called by the main thread, on every rank. */
#ifndef SHARDLINE_SERVE_SERVER_H
#define SHARDLINE_SERVE_SERVER_H

#include <string.h>
#include "base/log.h"
#include "base/opt.h"
#include "base/trace.h"
#include "serve/adapters/adapter_commands.h"
#include "serve/adapters/adapter_set.h"
#include "serve/cache/pack_writer.h"
#include "serve/engine/engine.h"
#include "serve/follow.h"
#include "serve/http/http_server.h"
#include "serve/replicas/link.h"
#include "serve/weights/model_info.h"
#include "serve/service.h"
#include "store/store.h"

/* The command line (serve_options.c). */
struct serve_opts {
    int64_t max_requests, max_waiting_tokens, max_per_key, max_connections, max_connections_per_address,
        max_body_memory, response_memory;
    int64_t ranks_per_node, rank_timeout_s, tp, cp, pp, ep, speculate_tp, replicas, port, ctx, kv_memory,
        max_batch, prefill_chunk, threads, max_tokens, seed, cache_size;
    const char *host, *api_key_file, *cors_origin, *allow_host, *access_log, *admin_key_file, *tls_cert,
        *tls_key, *model_name, *kv_disk, *cache, *speculate, *chat_template, *tool_parser, *device,
        *transport, *once, *trace, *follow;
    struct opt_list lora;
    double temperature, request_timeout_s, receive_timeout_s;
    int dtype, quantized, act, kv_dtype, numerics, prefix_cache, lenient, verbose, verify, follow_mode,
        cache_kind;
};
enum { SERVE_VERIFY_FIRST, SERVE_VERIFY_BEHIND };
enum { SERVE_DTYPE_STORED, SERVE_DTYPE_FP32, SERVE_DTYPE_BF16 };
enum { SERVE_KV_AUTO, SERVE_KV_BF16, SERVE_KV_FP8, SERVE_KV_INT8 };
enum { SERVE_OPTIONS_MAX = 80 }; /* rows of the table, at most */
extern const struct opt_program pserve_program;

/* The adapters of --lora until they are read (server_adapters.c). */
struct adapter_start {
    int n;
    struct adapter_file *file;     /* [n] */
    struct adapter_name **name;    /* [n] on rank 0 */
    struct param_table table;      /* of the model */
    int64_t rank;                  /* the largest that the server has room for; 0: it has no adapters */
    struct adapter_reaper *reaper; /* rank 0, where operators may load adapters */
};

struct server {
    struct serve_opts o;
    struct opt_args args;
    const char *path; /* of the checkpoint */
    char name[256];   /* of the model */
    struct log log;
    struct trace *trace; /* --trace, else NULL */
    struct mem mem;
    struct dev *dev;
    struct world *world;
    struct mesh mesh;
    struct replica_ranks ranks;                /* of this rank's replica: groups of mesh, and … */
    struct comm *own_all, *own_stage, *own_ep; /* … groups of its own, where tp is not all of it; else NULL */
    struct comm
        *draft_ranks; /* the first ranks of the replica, which run a draft model, or the others; else NULL */
    struct model_info loaded;
    struct background background; /* reads tables, then weights, during the start */
    struct adapter_set adapters;
    struct adapter_start adapter_start;
    struct service service;
    struct metrics metrics;
    struct keys keys, admin_keys;
    struct engine_size size;
    char kv_disk[3000]; /* of --kv-disk: the folder, and its size */
    int64_t kv_disk_bytes;
    /* of --cache (server_cache.c) */
    struct cache cache;
    struct cache_mark cache_mark; /* of path */
    int uses_cache;
    char cached[CACHE_NAME];         /* the checkpoint that weights come from; "": none of its folder */
    struct cache_write *cache_write; /* NULL: nothing is written */
    struct draft_spec drafts;        /* of --speculate */
    struct router router;            /* on ranks that plan */
    struct link_front *front;        /* rank 0, with replicas */
    struct link_back *back;          /* the first rank of every other replica */
    struct engine engine;
    struct http_server *http; /* rank 0, not with --once */
    struct follow *follow;    /* rank 0, with --follow */
};

/* 0: loaded and ready (the ready line is printed); 1: --help or the like was answered; or an error, after
 * which server_close() is needed too. Collective. */
int server_open(struct server *s, int argc, char **argv, struct err *e);
/* Serves until it is told to stop, or completes the prompt of --once. Collective. */
int server_run(struct server *s, struct err *e);
/* Frees everything. rc: what server_open() or server_run() returned. Safe on zeroes. */
void server_close(struct server *s, int rc);

/* ---- parts of it, each in a file of its own ---- */

/* serve_options.c: options that contradict each other; reads s->drafts. given: from opt_parse(). Not
 * collective. */
int server_check_options(struct server *s, const unsigned char *given, struct err *e);
/* server_sizes.c: decides context, pages and rows of a step on rank 0, from options and free memory; s->size
 * and s->service.ctx are then the same everywhere. Collective. */
int server_share_sizes(struct server *s, struct err *e);
/* The same: bytes of keys and values on all ranks of a replica together. */
int64_t server_kv_bytes(const struct server *s);
/* How weights are divided in a replica. The ranks of cp have the same ones but for whole experts, as those of
 * dp have in training: dp is cp here. And a rank's place in that layout. */
struct layout server_layout(const struct server *s);
struct rank_at server_place(const struct server *s);
/* server_adapters.c: opens the adapters of --lora; the checkpoint is open. Any thread, not collective. */
int server_open_adapters(struct server *s, const volatile sig_atomic_t *stop, struct err *e);
/* Gives them their names on rank 0, and says how large they may be. Not collective. */
int server_name_adapters(struct server *s, struct err *e);
/* Bytes of this rank's parts of them, or an error. m: from model_shape(). Not collective. */
int64_t server_measure_adapters(const struct server *s, const struct model *m, struct err *e);
/* Reads them, when the model is open. Collective. */
int server_load_adapters(struct server *s, struct err *e);
/* Ends the thread that frees adapters; and then, when no request is left, frees everything. */
void server_end_adapters(struct server *s);
void server_close_adapters(struct server *s);
/* server_cache.c: takes the weights from the folder of --cache, where they are there and whole. After the
 * texts are read. Collective. */
int server_find_cached(struct server *s, struct err *e);
/* Puts them there, where they are not, beside serving. Not collective. */
int server_begin_cache(struct server *s, struct err *e);
/* rc: as server_close(). Weights that were found damaged are removed from the folder. */
void server_close_cache(struct server *s, int rc);
/* server_once.c: completes the prompt of --once to stdout. Collective. */
int server_run_once(struct server *s, struct err *e);

/* Rank 0 speaks HTTP. */
static inline int server_is_first(const struct server *s) { return world_rank(s->world) == 0; }
/* The first rank of every replica has an engine that plans. */
static inline int server_is_head(const struct server *s) { return comm_rank(s->ranks.all) == 0; }
/* The dtype that the model computes in. */
static inline enum dtype server_dtype(const struct server *s)
{
    return s->o.dtype == SERVE_DTYPE_STORED ? s->loaded.stored
           : s->o.dtype == SERVE_DTYPE_BF16 ? DT_BF16
                                            : DT_F32;
}
/* What --follow follows: its URL, or the checkpoint; and is that the checkpoint? */
static inline const char *server_followed(const struct server *s)
{
    return s->o.follow && *s->o.follow ? s->o.follow : s->path;
}
static inline int server_is_live(const struct server *s)
{
    return s->o.follow && !strcmp(server_followed(s), s->path) && store_is_url(s->path);
}
/* What pages of keys and values store. */
static inline enum kv_kind server_kv_kind(const struct server *s)
{
    switch (s->o.kv_dtype) {
    case SERVE_KV_BF16: return server_dtype(s) == DT_BF16 ? KV_OWN : KV_BF16;
    case SERVE_KV_FP8: return KV_FP8;
    case SERVE_KV_INT8: return KV_INT8;
    default: return KV_OWN;
    }
}

#endif

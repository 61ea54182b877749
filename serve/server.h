/* server.h - one rank of pserve: from a command line to a loop that serves, and down again. */
#ifndef SHARDLINE_SERVE_SERVER_H
#define SHARDLINE_SERVE_SERVER_H

#include "base/log.h"
#include "base/opt.h"
#include "base/trace.h"
#include "serve/engine/engine.h"
#include "serve/http/http_server.h"
#include "serve/replicas/link.h"
#include "serve/weights/model_info.h"
#include "serve/service.h"

struct serve_opts {
    int64_t max_requests, max_waiting_tokens, max_per_key;
    int64_t ranks_per_node, rank_timeout_s, tp, replicas, port, ctx, kv_memory, max_batch, prefill_chunk,
        threads, max_tokens, seed;
    const char *host, *api_key_file, *cors_origin, *access_log, *admin_key_file, *tls_cert, *tls_key,
        *model_name, *device, *transport, *once, *trace;
    double temperature, request_timeout_s, receive_timeout_s;
    int dtype, numerics, prefix_cache, lenient, verbose;
};
enum { SERVE_DTYPE_STORED, SERVE_DTYPE_FP32, SERVE_DTYPE_BF16 };
extern const struct opt_program pserve_program;
/* rows of its table */
enum { SERVE_OPTIONS_MAX = 64 };

struct server {
    struct serve_opts o;
    const char *path; /* of the checkpoint */
    char name[256];   /* of the model */
    struct log log;
    struct trace *trace; /* --trace, else NULL */
    struct mem mem;
    struct dev *dev;
    struct world *world;
    struct mesh mesh;
    struct comm *tp;
    struct model_info loaded;
    struct background background; /* of the start */
    struct service service;
    struct metrics metrics;
    struct keys keys, admin_keys;
    struct engine_size size;
    struct router router;     /* of ranks that plan */
    struct link_front *front; /* rank 0, with replicas */
    struct link_back *back;   /* the first rank of every other replica */
    struct engine engine;
    struct http_server *http; /* rank 0, not with --once */
};

/* 0: loaded and ready (the ready line is printed); 1: --help or the like was answered. Collective. */
int server_open(struct server *s, int argc, char **argv, struct err *e);
/* Serves until it is told to stop. Collective. */
int server_run(struct server *s, struct err *e);
void server_close(struct server *s, int rc);

#endif

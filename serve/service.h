/* service.h - what every request needs to know about the server: constant once it is ready, and its state. */
#ifndef SHARDLINE_SERVE_SERVICE_H
#define SHARDLINE_SERVE_SERVICE_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>
#include "text/text.h"

struct metrics;
struct template;

enum service_state { SERVICE_LOADING, SERVICE_READY, SERVICE_DRAINING, SERVICE_FAILED };

/* bytes of weights, of this rank */
struct load_progress {
    _Atomic int64_t done, total;
};

#define SERVICE_EOS_MAX 64
struct service {
    _Atomic int state; /* enum service_state */
    struct load_progress load;
    const char *model;     /* the name that requests may give */
    struct tokenizer *tok; /* NULL: this model takes token ids only */
    /* ids are below vocab; prompt and answer together at most ctx tokens */
    int64_t vocab, ctx;
    int n_eos;
    int32_t eos[SERVICE_EOS_MAX]; /* generation stops at each of them */
    int64_t created;              /* seconds since 1970 */
    /* of new answers: contract version, dtype and weights_digest, or ""; the engine's thread only */
    char fingerprint[64];
    struct metrics *metrics;  /* NULL: nothing is counted */
    struct template *chat;    /* NULL: this model has no chat template */
    char *chat_template;      /* its text */
    json_t *chat_tokens;      /* bos_token and the like, for it */
    int prefix_cache;         /* prompts may be found in pages that are there */
    double request_timeout_s; /* from the request to its last token; 0: no limit */
    int lenient;              /* unknown and unsupported fields are ignored */
};

/* Why a request cannot be served: what the client is told. */
struct fault {
    int status;     /* of HTTP; 0: no fault */
    char param[64]; /* the field it is about, "" for none */
    char text[1024];
};
/* -1 */
int fault_set(struct fault *f, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif

/* service.h - what every request needs to know about the server: its state, and what is constant once it is
 * ready. */
#ifndef SHARDLINE_SERVE_SERVICE_H
#define SHARDLINE_SERVE_SERVICE_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include "text/text.h"
#include "text/tools.h"

struct grammar_cache;
struct adapter_names;
struct metrics;
struct response_store;
struct template;

enum service_state { SERVICE_LOADING, SERVICE_READY, SERVICE_DRAINING, SERVICE_FAILED };

/* Bytes of weights of this rank: read so far, and in all. */
struct load_progress {
    _Atomic int64_t done, total;
};

/* What /v1/embeddings does where a request does not say it, as the checkpoint says. */
enum pooling { POOLING_LAST, POOLING_MEAN };
struct embedding_habits {
    enum pooling pooling;
    int raw;           /* vectors keep their length */
    char refused[256]; /* what the checkpoint asks for and is not done here; or "" */
};

/* Which weights are served: the version's number, a step where a trainer made them, and their weights_digest,
 * "" where that is not known (yet). The engine's thread writes both; it may read version without the lock. */
struct served_weights {
    pthread_mutex_t lock;
    int64_t version;
    char digest[33];
};
/* Sets both. The engine's thread, or the main one before it runs. */
void served_set(struct served_weights *w, int64_t version, const char *digest);
/* Any thread. digest may be NULL. */
int64_t served_get(const struct served_weights *w, char digest[33]);

#define SERVICE_EOS_MAX 64
struct service {
    _Atomic int state;            /* enum service_state */
    struct served_weights served; /* a zeroed one is open: version 0 */
    _Atomic int paused;           /* operators stopped all steps */
    struct load_progress load;
    struct load_progress
        verify;        /* blocks of the mapped checkpoint's files with good checksums; total 0: none */
    const char *model; /* the name that requests may give */
    struct adapter_names *adapters; /* what else they may give; NULL: nothing */
    struct tokenizer *tok;          /* NULL: this model takes token ids only */
    int64_t vocab;                  /* token ids are below it */
    int64_t hidden;                 /* elements of a hidden state */
    int64_t ctx;                    /* tokens of a prompt and its answer together, at most */
    int n_eos;                      /* generation stops at each of eos[] */
    int32_t eos[SERVICE_EOS_MAX];
    int64_t created; /* seconds since 1970 */
    /* of new answers: contract version, dtype and weights_digest, or ""; used by the engine's thread only */
    char fingerprint[64];
    struct metrics *metrics;   /* NULL: nothing is counted */
    struct template *chat;     /* NULL: this model has no chat template */
    char *chat_template;       /* its text */
    json_t *chat_tokens;       /* its variables bos_token and the like */
    struct tool_form form;     /* how its models write tool calls and reasoning */
    struct tool_habits habits; /* what it expects of the calls in a conversation's history */
    int prefix_cache;          /* prompts may be found in cached pages */
    int drafts;                /* tokens that are guessed ahead of an answer, at most */
    /* the last ones of /v1/responses; NULL: none is kept */
    struct response_store *responses;
    const char *kv_dtype;           /* of keys and values; NULL: not known yet */
    double request_timeout_s;       /* from the request to its last token; 0: no limit */
    struct grammar_cache *grammars; /* of constrained answers; NULL: there are none */
    int lenient;                    /* unknown and unsupported fields are ignored */
    struct embedding_habits embeddings;
    int headless; /* the model makes hidden states and no tokens: /v1/embeddings only */
};

/* Why a request cannot be served, as the client reads it. */
struct fault {
    int status;     /* of HTTP; 0: no fault */
    char param[64]; /* the field that it is about, "" for none */
    char code[32];  /* OpenAI's name of the fault, or "": its code is the status */
    char text[1024];
};
/* Sets *f, without a name; param NULL: "". Returns -1. */
int fault_set(struct fault *f, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Sets *f to the 503 of a request that has taken limit_s, the time of --request-timeout. Returns -1. */
int fault_set_late(struct fault *f, double limit_s);
/* Sets *f to a 400 about a request that the context of ctx tokens cannot hold. Clients recognise this fault
 * by its code, context_length_exceeded, or by the words "maximum context length", and then shorten their
 * prompt. fmt: what the request has, after "…, but". Returns -1. */
int fault_set_context(struct fault *f, int64_t ctx, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif

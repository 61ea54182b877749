/* request.h - a completion request from the parser to the last byte of its answer, and the choices it is
 * made of.
 *
 * Made by the HTTP thread (openai.c), handed to the engine, which alone touches its choices until `done`;
 * what both sides touch is behind `lock`. Two references: HTTP's and the engine's. */
#ifndef SHARDLINE_SERVE_API_REQUEST_H
#define SHARDLINE_SERVE_API_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>
#include "serve/api/json_out.h"
#include "serve/engine/sampler.h"
#include "serve/engine/scheduler.h"
#include "serve/service.h"

#define LOGPROBS_MAX 20
#define REQUEST_NAME_MAX 64

struct prompt {
    int32_t *ids;
    int64_t n;
    char *text; /* as the client wrote it; NULL: it gave ids */
    size_t n_text;
};
struct top_entry {
    int32_t id;
    float logprob;
};

enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH };
struct choice {     /* one answer to one prompt */
    struct seq seq; /* the scheduler's */
    struct request *rq;
    double step_s, first_s, last_s; /* its first step, first and last token; 0: not yet */
    int index, k;                   /* place in the answer; which of the n answers to this prompt */
    const struct prompt *prompt;
    int32_t *ids; /* prompt and what was generated */
    int64_t n_ids, cap;
    float *logprob;        /* [cap] of ids[i] given those before; only with logprobs */
    struct top_entry *top; /* [cap][rq->tops] */
    int32_t *rank;         /* [cap] with prompt_logprobs: of ids[i] among all, from 1 */
    size_t no_stop;        /* bytes of text in which no stop string is looked for: min_tokens */
    struct tokenizer_stream *stream;
    struct json_out text;     /* of the generated tokens; cut at a stop string */
    size_t sent;              /* bytes of text that streamed chunks have carried */
    int64_t sent_ids, offset; /* tokens they have described, code points up to there */
    int role_sent;            /* a chat's first event is out */
    int end_sent;             /* the chunk with its end is out */
    enum finish finish;
    int queued;            /* the scheduler has it */
    const char *stop_text; /* the stop string that ended it, or NULL */
    int32_t stop_id;       /* the token that ended it, or -1 */
};

#define ANSWER_DEFAULT 16 /* tokens of a completion, as OpenAI has it */

struct request {
    /* what was asked for */
    char name[REQUEST_NAME_MAX + 1]; /* the client's, or made up */
    char id[REQUEST_NAME_MAX + 16];  /* the answer's: "cmpl-NAME" */
    int64_t created;
    double begin_s;     /* clock_s when it came */
    int64_t max_tokens; /* ANSWER_DEFAULT when nobody says */
    int64_t n, best_of; /* best_of 0: not said */
    int64_t priority;   /* lower: earlier */
    /* tokens that are kept of a longer prompt, its last ones; 0: all, -1: as many as the context has */
    int64_t truncate;
    int64_t logprobs, prompt_logprobs;           /* -1: none */
    int64_t tops;                                /* the larger of both: what is kept of every row */
    int64_t max_completion_tokens, top_logprobs; /* of a chat; -1: not said */
    int chat, want_logprobs, add_generation, continue_final;
    int max_tokens_given, seed_given;
    int echo, stream, include_usage, usage_in_every_chunk;
    int ignore_eos, add_special, skip_special, tokens_as_ids, return_ids;
    struct sampling sampling;
    int n_stop, n_stop_ids, n_prompts, n_choices;
    char **stop, *salt; /* salt: of the prefix cache, or NULL */
    int32_t *stop_ids;
    struct prompt *prompt;
    struct choice *choice; /* [n_prompts * n] */
    const struct service *sv;
    /* of the weights that answered; FIRST+LAST when they were swapped meanwhile */
    char fingerprint[128];

    /* the engine's */
    int n_open;          /* choices that go on */
    int64_t n_generated; /* tokens, when it is done */
    int cancel_sent;     /* the replica knows that nobody waits */
    struct request *next;

    /* shared */
    pthread_mutex_t lock;
    struct json_out events;                  /* events of a stream, not yet sent */
    struct json_out answer;                  /* the answer, when a replica in another process wrote it */
    int started, done;                       /* the first token is there; nothing more will come */
    struct fault fault;                      /* status not 0: it failed */
    void (*wake)(struct request *rq);        /* called with the lock held after a change; may be NULL */
    int (*disconnected)(struct request *rq); /* has the client hung up? may be NULL */
    void *http;                              /* the HTTP side's own */
    _Atomic int cancelled;                   /* nobody waits for it any more */
    _Atomic int refs;
};

int request_name_valid(const char *name);                    /* it can stand in a log and a header */
void request_set_name(struct request *rq, const char *name); /* one that may be; sets its id, too */
struct request *request_new(const struct service *sv);       /* one reference; NULL: no memory */
void request_release(struct request *rq);                    /* gives a reference back */
/* The choices, once parameters and prompts are set. Those that need no computation at all are finished. -1:
 * no memory. */
int request_open_choices(struct request *rq);
int choice_scores_prompt(const struct choice *c); /* log-probs of the prompt are wanted too */

/* The engine found the log-prob and rank of ids[i] of the prompt, and the most likely ones there. */
void choice_score(struct choice *c, int64_t i, float logprob, const struct top_entry *top, int64_t rank);
/* A token was sampled: appends it, decides whether the choice ends. fault_set on an error. top: rq->tops
 * entries. */
int choice_accept(struct choice *c, int32_t id, float logprob, const struct top_entry *top, struct fault *f);
/* Bytes of text that no stop string can take back any more. */
size_t choice_safe_text(const struct choice *c);

/* State changes, with a wake. */
/* the first token is there: a stream may answer 200 */
void request_begin(struct request *rq);
void request_finish(struct request *rq);
void request_fail(struct request *rq, const struct fault *f);

#endif

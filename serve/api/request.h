/* request.h - a completion request from the parser to the last byte of its answer, and the choices it
 * consists of.
 *
 * An HTTP or worker thread makes it (openai.c) and hands it to the engine's thread, which alone uses its
 * choices until `done`; what both threads use is guarded by `lock`. Two references: HTTP's and the
 * engine's. */
#ifndef SHARDLINE_SERVE_API_REQUEST_H
#define SHARDLINE_SERVE_API_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>
#include "serve/adapters/adapter_limits.h"
#include "serve/api/json_out.h"
#include "serve/api/structured.h"
#include "serve/engine/draft.h"
#include "serve/engine/pooling.h"
#include "serve/engine/sampler.h"
#include "serve/engine/scheduler.h"
#include "serve/service.h"

#define LOGPROBS_MAX 20
#define WATCH_MAX 128 /* ids of logprob_token_ids */
#define REQUEST_NAME_MAX 64
#define FINGERPRINT_MAX \
    128 /* "contract1-fp32-DIGEST", of an adapter's answers "-lora-" and its digest behind it */
#define ANSWER_DEFAULT 16 /* tokens of a completion, as OpenAI has it */

struct prompt {
    int32_t *ids; /* [n] */
    int64_t n;
    char *text; /* as the client wrote it; NULL: it gave ids */
    size_t n_text;
    int64_t n_added; /* first tokens that the tokenizer adds to every text: an echo leaves them out */
};
struct top_entry {
    int32_t id;
    float logprob;
};

/* What a chat's text is divided into, and what the events of its stream have described. */
struct answer_parts {
    struct tool_parser *parser; /* NULL: the text is the content */
    size_t fed;                 /* bytes of the choice's text that it has */
    int finished;
    size_t content, reasoning, calls,
        arguments; /* sent: bytes, calls that were begun, bytes of the last one */
};

/* Output items of /v1/responses, content blocks of /v1/messages (answer_items.h), and what the events of
 * their stream have described. */
enum item_kind { ITEM_REASONING, ITEM_TEXT, ITEM_CALL };
struct answer_item {
    enum item_kind kind;
    size_t from; /* byte of the reasoning or the content; or the number of the call */
    size_t skip; /* bytes from there that only separate it from the text before */
    size_t raw;  /* its first token reaches this many bytes of the choice's text */
};
struct answer_items {
    struct answer_item *item; /* [n] */
    size_t n, cap;
    size_t reasoning, content, calls, arguments; /* seen: bytes, calls, bytes of the last one */
    size_t grown; /* bytes of the choice's text when the last item last got longer */
    int begun;    /* the stream's first events were written */
    size_t at;    /* items whose end was written */
    int open;     /* the beginning of item `at` was written, */
    size_t sent;  /* and so many bytes of it */
};

/* Where a request came in. */
enum endpoint {
    ENDPOINT_COMPLETION, /* /v1/completions */
    ENDPOINT_CHAT,       /* /v1/chat/completions */
    ENDPOINT_GENERATE,   /* /inference/v1/generate */
    ENDPOINT_RESPONSES,  /* /v1/responses */
    ENDPOINT_MESSAGES,   /* /v1/messages */
    ENDPOINT_COUNT,      /* /v1/messages/count_tokens */
    ENDPOINT_EMBEDDINGS, /* /v1/embeddings */
    ENDPOINTS
};

enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };

/* FINISH_ABORT: operators ended it. */
enum finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT };
static inline int finish_is_cut(enum finish f) { return f == FINISH_LENGTH || f == FINISH_ABORT; }
/* From generated token `first` on a choice's tokens are of this version of the weights. */
struct version_run {
    int64_t first, version;
};

struct choice {     /* one answer to one prompt */
    struct seq seq; /* the scheduler's */
    struct draft_state draft;
    struct request *rq;
    double step_s, first_s, last_s; /* clock_s() of its first step, its first and last token; 0: not yet */
    int index;                      /* in the answer */
    int k;                          /* which of the n answers to this prompt */
    const struct prompt *prompt;

    /* prompt and generated tokens: */
    int64_t n_ids, cap;
    int32_t *ids;          /* [cap]; behind the n_ids tokens may be drafts */
    float *logprob;        /* [cap] of ids[i] given those before it; only with logprobs */
    struct top_entry *top; /* [cap][rq->tops] */
    int32_t *rank;         /* [cap] with prompt_logprobs: of ids[i] among all, from 1 */

    /* the text of the generated tokens: */
    struct tokenizer_stream *stream;
    int64_t begins;       /* the first token, prompt included, that has a text */
    struct json_out text; /* cut at a stop string */
    size_t no_stop;       /* bytes of text in which no stop string is searched: min_tokens */

    /* what the events of a stream have described: */
    size_t sent;      /* bytes of text */
    int64_t sent_ids; /* tokens */
    int64_t offset;   /* code points of the text up to there */
    int role_sent;    /* a chat's first event */
    int end_sent;     /* the event with its end */
    struct answer_parts parts;
    struct answer_items items;
    struct pooled pooled;    /* of /v1/embeddings */
    size_t *ends;            /* [cap] bytes of text with token i; only where items_are_noted() */
    struct matcher *matcher; /* keeps the tokens within the request's grammar; NULL: it has none */

    struct version_run *run; /* [n_runs] */
    int n_runs;

    enum finish finish;
    int queued;            /* the scheduler has it */
    const char *stop_text; /* the stop string that ended it, or NULL */
    int32_t stop_id;       /* the token that ended it, or -1 */
};

struct request {
    /* What was asked for. request_wire.c sends the members from name to n_choices as they are. */
    char name[REQUEST_NAME_MAX + 1]; /* the client's, or made up */
    char id[REQUEST_NAME_MAX + 16];  /* the answer's: "cmpl-NAME"; with tokens_only NAME alone */
    int64_t created;                 /* seconds since 1970 */
    double begin_s;                  /* clock_s() when it came */
    int64_t max_tokens;              /* ANSWER_DEFAULT when not given */
    int64_t n, best_of;              /* best_of 0: not given */
    int64_t priority;                /* lower: earlier */
    int64_t truncate; /* tokens kept of a longer prompt, its last ones; 0: all, -1: what the context has */
    int64_t logprobs, prompt_logprobs; /* -1: none */
    int64_t tops; /* top entries for which every row has a place: the most of choice_tops(); -1: none */
    int64_t max_completion_tokens, top_logprobs; /* of a chat; -1: not given */
    enum endpoint endpoint;
    int64_t dimensions; /* of /v1/embeddings: elements of a vector; 0: all */
    enum pooling pooling;
    int pooling_given, normalize, as_base64;
    int in_items; /* its answer is a list of items or blocks: /v1/responses, /v1/messages */
    int store;    /* the answer is kept for previous_response_id */
    int key;      /* of the client, by which kept answers are told apart; -1: none */
    int chat, want_logprobs, add_generation, continue_final;
    int tokens_only; /* ids in and ids out: the answer has no text (/inference/v1/generate) */
    int max_tokens_given, seed_given;
    int echo, stream, include_usage, usage_in_every_chunk;
    int echo_message;   /* of a chat: the last message stands before the answer; prompt->text is its text */
    int truncate_right; /* truncate keeps the prompt's first tokens */
    int ignore_eos, add_special, skip_special, tokens_as_ids, return_ids, include_stop;
    struct sampling sampling;
    /* of a chat: is its text divided into parts, is that where a call may be, did the prompt open the
     * reasoning? */
    int divided, calls, in_reasoning;
    int32_t adapter;                         /* the slot of its adapter; 0: the model itself */
    char adapter_digest[ADAPTER_DIGEST_MAX]; /* "": none */
    char model[ADAPTER_NAME_MAX + 1];        /* the adapter's name; "": the model's own */
    int separate_reasoning, parallel_tools;
    enum tool_choice tool_choice;
    int n_stop, n_stop_ids, n_watch, n_prompts, n_choices;

    char **stop, *salt; /* owned; salt: the client's, or NULL */
    char *cache_key;    /* owned: what pages are shared under, salt and adapter; NULL: neither */
    struct adapter_name *adapter_name; /* a reference, in the process that speaks HTTP; else NULL */
    int32_t *stop_ids;
    int32_t *watch; /* [n_watch] logprob_token_ids: the top entries of generated tokens are theirs */
    char *about;    /* /v1/responses: members of the answer that the request decides, as JSON; or NULL */
    char *history;  /* the same, to be kept: the list of all input items, as JSON; or NULL */
    json_t *tools;  /* of a chat, or NULL */
    struct tool_set *tool_set; /* the same */
    struct structured structured;
    struct grammar *grammar; /* of the answers, shared; NULL: any text */
    struct prompt *prompt;
    struct choice *choice; /* [n_prompts * n] */
    const struct service *sv;
    /* of the weights that answer, an adapter's too; FIRST+LAST when they were swapped meanwhile */
    char fingerprint[2 * FINGERPRINT_MAX];

    /* the engine's (or the link's, where the engine is in another process): */
    int n_open;          /* choices that are not finished */
    int64_t n_generated; /* tokens, when it is done */
    int64_t version;     /* of the weights at its last event, or its end: that of an answer without tokens */
    int held;            /* it begins with the next weights, or when the pause is over */
    int cancel_sent;     /* the replica knows that it is cancelled */
    int prompt_ids_sent; /* an event of a chat had them */
    int64_t n_events;    /* that are numbered: written so far */
    struct request *next;

    /* guarded by lock: */
    pthread_mutex_t lock;
    struct json_out events; /* of a stream, not yet sent */
    struct json_out answer; /* the whole answer, when a replica in another process wrote it */
    int kept;               /* the answer was kept, or need not be */
    int started, done;      /* the first token is there; nothing more will come */
    struct fault fault;     /* status not 0: it failed */
    void *http;             /* the HTTP side's own */
    /* Called with the lock held after a change; may be NULL. */
    void (*wake)(struct request *rq);

    /* Has the client disconnected? Takes the lock; may be NULL. Set before the engine gets the request. */
    int (*disconnected)(struct request *rq);
    _Atomic int cancelled; /* no client waits for it any more */
    _Atomic int refs;
};

/* Can the name stand in a log and in a header? */
int request_name_valid(const char *name);
/* Sets a valid name, and the id. */
void request_set_name(struct request *rq, const char *name);
/* A request with all defaults, one reference; NULL: no memory. */
struct request *request_new(const struct service *sv);
/* The name of the model that answers it. */
const char *request_model(const struct request *rq);
/* Releases a reference; the last one frees rq. NULL is fine. Any thread. */
void request_release(struct request *rq);
/* Makes the choices, once parameters and prompts are set. Those that need no computation at all are finished.
 * 0, or -1: no memory. */
int request_open_choices(struct request *rq);

/* Makes the lists of a choice large enough for n tokens. 0, or -1: no memory. The engine's thread. */
int choice_reserve(struct choice *c, int64_t n);
/* Tokens of a choice; the engine's thread. choice_scores_prompt: log-probs of the prompt are wanted, too.
 * choice_score: log-prob and rank of ids[i] of the prompt, and the most likely ids there. choice_accept: a
 * token was sampled; appends it and decides whether the choice is finished; 0, or -1 with *f. top:
 * [choice_tops()]. */
int choice_scores_prompt(const struct choice *c);
/* Top entries of a row that is sampled, or that scores a token of the prompt; -1: no log-prob at all. */
int64_t choice_tops(const struct request *rq, int sampled);
void choice_score(struct choice *c, int64_t i, float logprob, const struct top_entry *top, int64_t rank);
int choice_accept(struct choice *c, int32_t id, float logprob, const struct top_entry *top, struct fault *f);
/* Ends a choice: FINISH_ABORT, with the bytes that its text still lacks. The engine's thread. */
void choice_abort(struct choice *c);
/* The version of the weights that made generated token i, from 0. */
int64_t choice_version(const struct choice *c, int64_t i);
/* Bytes of text that no stop string can remove any more. */
size_t choice_safe_text(const struct choice *c);

/* Change the state, unless it is done already, and call wake: the first token is there, so a stream may
 * answer 200; the answer is complete; the same, with the last bytes of a stream's events; the request has
 * failed. Any thread, without the lock. */
void request_begin(struct request *rq);
void request_finish(struct request *rq);
void request_finish_stream(struct request *rq, const struct json_out *tail);
void request_fail(struct request *rq, const struct fault *f);

#endif

/* openai.c - reading a completion request: see openai.h. Single fields are in openai_fields.c; here are
 * prompts, messages and what fields mean together. */
#include "serve/api/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "base/jx.h"
#include "serve/api/chat.h"
#include "serve/api/openai_fields.h"
#include "serve/api/prompt_text.h"
#include "serve/api/chat_tools.h"
#include "serve/doors/door_words.h"
#include "serve/doors/messages.h"
#include "serve/doors/responses.h"

#define BAD 400
#define TOO_LONG "%s has %lld tokens: shorten it"

/* ---- prompts ---- */

/* The field that the prompts are in. */
static const char *prompt_field(const struct request *rq)
{
    return rq->endpoint == ENDPOINT_EMBEDDINGS ? "input" : "prompt";
}

/* Encodes a text. what: the prompt's name in messages. */
static int encode_prompt(struct request *rq, const json_t *v, const char *what, struct prompt *p,
                         struct fault *f)
{
    const struct service *sv = rq->sv;
    const char *name = prompt_field(rq);

    if (!sv->tok)
        return fault_set(f, BAD, name,
                         "%s is a text, but this model has no tokenizer: send a list of token ids", what);
    p->n_text = json_string_length(v);
    p->text = malloc(p->n_text + 1);
    if (!p->text)
        return fault_set(f, 500, name, "no memory for a prompt of %zu bytes", p->n_text);
    memcpy(p->text, json_string_value(v), p->n_text + 1);
    const struct work_limit limit = prompt_work_limit(sv, rq->begin_s);
    const struct prompt_text text = { .text = p->text,
                                      .n = p->n_text,
                                      .param = name,
                                      .what = what,
                                      .add_special = rq->add_special,
                                      .within_context = !rq->truncate,
                                      .limit = &limit };
    if (prompt_encode(sv, &text, &p->ids, &p->n, f) < 0)
        return -1;
    for (int64_t i = 0; i < p->n; i++)
        if (p->ids[i] < 0 || p->ids[i] >= sv->vocab)
            return fault_set(
                f, BAD, name,
                "%s: the tokenizer gives id %d, the model's vocabulary has %lld: they do not belong together",
                what, p->ids[i], (long long)sv->vocab);
    return 0;
}

/* A list of ids; one that is too long is refused unread. param: the field. */
static int read_prompt_ids(struct request *rq, const json_t *v, const char *param, const char *what,
                           struct prompt *p, struct fault *f)
{
    if (json_array_size(v) > (size_t)rq->sv->ctx && !rq->truncate)
        return fault_set_context(f, rq->sv->ctx, param, TOO_LONG, what, (long long)json_array_size(v));
    return openai_read_ids(rq->sv, v, what, &p->ids, &p->n, f);
}

/* Tokens that a prompt may have beside its answer. An answer without max_tokens gets the default length. */
static int64_t prompt_capacity(const struct request *rq)
{
    int64_t answer = rq->max_tokens_given || rq->max_tokens < ANSWER_DEFAULT ? rq->max_tokens
                                                                             : ANSWER_DEFAULT;
    return answer < rq->sv->ctx ? rq->sv->ctx - answer : 1;
}

/* truncate_prompt_tokens: keeps the end of a longer prompt, or its beginning. echo then returns what was
 * kept. */
static void truncate_prompt(const struct request *rq, struct prompt *p)
{
    int64_t keep = rq->truncate < 0 ? prompt_capacity(rq) : rq->truncate;
    if (!rq->truncate || p->n <= keep)
        return;
    if (!rq->truncate_right)
        memmove(p->ids, p->ids + p->n - keep, sizeof *p->ids * (size_t)keep);
    p->n = keep;
    free(p->text);
    p->text = NULL;
    p->n_text = 0;
}

/* How many tokens the prompt begins with that the tokenizer adds to every text: they are in no echo. */
static int64_t count_added(const struct request *rq, const struct prompt *p)
{
    int32_t *with = NULL, *without = NULL;
    size_t n_with = 0, n_without = 0, n = 0;
    struct err e;

    if (!rq->echo || !rq->sv->tok || (p->text && !rq->add_special))
        return 0;
    if (tokenizer_encode(rq->sv->tok, "a", 1, 1, &with, &n_with, &e) == 0 &&
        tokenizer_encode(rq->sv->tok, "a", 1, 0, &without, &n_without, &e) == 0) {
        while (n_without && n + n_without < n_with && with[n] != without[0])
            n++;
        if ((size_t)p->n < n || memcmp(p->ids, with, sizeof *with * n))
            n = 0;
    }

    free(with);
    free(without);
    return (int64_t)n;
}

/* As Anthropic words it: its clients read the numbers. */
static int check_message_length(const struct request *rq, const struct prompt *p, struct fault *f)
{
    int64_t ctx = rq->sv->ctx;
    if (rq->endpoint == ENDPOINT_COUNT || p->n + rq->max_tokens <= ctx)
        return 0;
    if (p->n >= ctx)
        return fault_set_context(f, ctx, "messages", "prompt is too long: %lld tokens > %lld maximum",
                                 (long long)p->n, (long long)ctx - 1);
    return fault_set_context(
        f, ctx, "max_tokens",
        "input length and `max_tokens` exceed context limit: %lld + %lld > %lld, decrease "
        "input length or `max_tokens` and try again",
        (long long)p->n, (long long)rq->max_tokens, (long long)ctx);
}

/* Does the prompt fit into the context, with its answer? what: its name in messages. */
static int check_length(const struct request *rq, const struct prompt *p, const char *param, const char *what,
                        struct fault *f)
{
    int64_t ctx = rq->sv->ctx;
    if (!p->n)
        return fault_set(f, BAD, param,
                         "%s is empty: give at least one token (this model's tokenizer adds none of its own)",
                         what);
    if (rq->endpoint == ENDPOINT_MESSAGES || rq->endpoint == ENDPOINT_COUNT)
        return check_message_length(rq, p, f);
    if (p->n > ctx || (p->n == ctx && rq->max_tokens > 0 && !rq->max_tokens_given))
        return fault_set_context(f, ctx, param,
                                 p->n > ctx ? TOO_LONG
                                            : "%s has %lld tokens, which leaves none for an answer: "
                                              "shorten it",
                                 what, (long long)p->n);
    const char *field = rq->endpoint == ENDPOINT_RESPONSES ? "max_output_tokens" : "max_tokens";
    if (p->n + rq->max_tokens > ctx && rq->max_tokens_given)
        return fault_set_context(f, ctx, field,
                                 "%s %lld and %lld tokens of %s are %lld together: ask for at most %lld",
                                 field, (long long)rq->max_tokens, (long long)p->n, what,
                                 (long long)(p->n + rq->max_tokens), (long long)(ctx - p->n));
    return 0;
}

static int read_prompt(struct request *rq, const json_t *v, const char *what, struct fault *f)
{
    struct prompt *p = &rq->prompt[rq->n_prompts++];
    if (json_is_string(v) ? encode_prompt(rq, v, what, p, f) < 0
                          : read_prompt_ids(rq, v, prompt_field(rq), what, p, f) < 0) {
        snprintf(f->param, sizeof f->param, "%s", prompt_field(rq));
        return -1;
    }
    truncate_prompt(rq, p);
    p->n_added = count_added(rq, p);
    return check_length(rq, p, prompt_field(rq), what, f);
}

/* Reads string | [string] | [int] | [[int]]; a list may mix texts and lists of ids. */
static int read_prompts(struct request *rq, const json_t *v, struct fault *f)
{
    int many = json_is_array(v) && json_array_size(v) && !json_is_integer(json_array_get(v, 0));
    size_t n = many ? json_array_size(v) : 1;
    const char *name = prompt_field(rq);

    if (!v || json_is_null(v))
        return fault_set(f, BAD, name, "%s is missing: a text, a list of token ids, or a list of those",
                         name);
    if (!json_is_string(v) && !json_is_array(v))
        return fault_set(f, BAD, name, "%s must be a text, a list of token ids, or a list of those", name);
    if (n * (size_t)rq->n > CHOICES_MAX)
        return fault_set(f, BAD, name, "%zu prompts with n %lld are %zu answers, at most %d in one request",
                         n, (long long)rq->n, n * (size_t)rq->n, CHOICES_MAX);
    rq->prompt = calloc(n, sizeof *rq->prompt);
    if (!rq->prompt)
        return fault_set(f, 500, name, "no memory for %zu prompts", n);

    for (size_t i = 0; i < n; i++) {
        const json_t *x = many ? json_array_get(v, i) : v;
        char what[32];
        if (many)
            snprintf(what, sizeof what, "%s[%zu]", name, i);
        else
            snprintf(what, sizeof what, "%s", name);
        if (!json_is_string(x) && !json_is_array(x))
            return fault_set(f, BAD, name, "%s must be a text or a list of token ids", what);
        if (read_prompt(rq, x, what, f) < 0)
            return -1;
    }

    return 0;
}

/* Reads the messages as the only prompt. */
static int read_chat(struct request *rq, const json_t *body, struct fault *f)
{
    struct chat_options o = { rq->add_generation,     rq->continue_final,
                              rq->add_special,        .within_context = !rq->truncate,
                              .begin_s = rq->begin_s, .in_reasoning = &rq->in_reasoning };

    rq->prompt = calloc(1, sizeof *rq->prompt);
    if (!rq->prompt)
        return fault_set(f, 500, "messages", "no memory for the messages");
    rq->n_prompts = 1;
    if (rq->max_completion_tokens >= 0) {
        rq->max_tokens = rq->max_completion_tokens;
        rq->max_tokens_given = 1;
    }

    if (tools_read(rq, body, f) < 0)
        return -1;
    o.tools = rq->tool_choice == TOOLS_NONE ? NULL : rq->tools;
    if (chat_encode(rq->sv, body, &o, &rq->prompt->ids, &rq->prompt->n, f) < 0)
        return -1;
    for (int64_t i = 0; i < rq->prompt->n; i++)
        if (rq->prompt->ids[i] < 0 || rq->prompt->ids[i] >= rq->sv->vocab)
            return fault_set(
                f, BAD, "messages",
                "the tokenizer gives id %d, the model's vocabulary has %lld: they do not belong together",
                rq->prompt->ids[i], (long long)rq->sv->vocab);

    if (rq->top_logprobs > 0 && !rq->want_logprobs)
        return fault_set(f, BAD, "top_logprobs", "top_logprobs go with logprobs true only");
    if (rq->want_logprobs)
        rq->logprobs = rq->top_logprobs < 0 ? 0 : rq->top_logprobs;
    truncate_prompt(rq, rq->prompt);
    if (rq->echo_message && chat_last_text(body, &rq->prompt->text, &rq->prompt->n_text, f) < 0)
        return -1;
    return check_length(rq, rq->prompt, "messages", "the text of the messages", f);
}

/* Reads token_ids as the only prompt, and sampling_params. */
static int read_generate(struct request *rq, const json_t *body, struct fault *f)
{
    const json_t *ids = json_object_get(body, "token_ids");

    if (!json_is_array(ids))
        return fault_set(f, BAD, "token_ids", "token_ids must be a list of token ids: the prompt");
    if (openai_read_sampling(rq, json_object_get(body, "sampling_params"), f) < 0)
        return -1;

    rq->prompt = calloc(1, sizeof *rq->prompt);
    if (!rq->prompt)
        return fault_set(f, 500, "token_ids", "no memory for token_ids");
    rq->n_prompts = 1;
    if (read_prompt_ids(rq, ids, "token_ids", "token_ids", rq->prompt, f) < 0)
        return -1;
    truncate_prompt(rq, rq->prompt);
    return check_length(rq, rq->prompt, "token_ids", "token_ids", f);
}

/* Reads a request of another form as the chat that it says. A fault names the field of its own form. */
static int read_door(struct request *rq, const json_t *body, struct fault *f)
{
    json_t *chat = rq->endpoint == ENDPOINT_RESPONSES ? responses_chat(rq, body, f)
                                                      : messages_chat(rq, body, f);
    int rc = chat ? read_chat(rq, chat, f) : -1;

    json_decref(chat);
    if (rc < 0)
        door_own_words(rq->endpoint, f);
    return rc;
}

/* Reads what the answers begin with. */
static int read_input(struct request *rq, const json_t *body, struct fault *f)
{
    if (rq->in_items)
        return read_door(rq, body, f);
    if (rq->tokens_only)
        return read_generate(rq, body, f);
    return rq->chat ? read_chat(rq, body, f) : read_prompts(rq, json_object_get(body, prompt_field(rq)), f);
}

/* Lowers max_tokens to what fits beside the longest prompt, unless the client has set it. */
static void fit_max_tokens(struct request *rq)
{
    for (int i = 0; i < rq->n_prompts && !rq->max_tokens_given; i++)
        if (rq->prompt[i].n + rq->max_tokens > rq->sv->ctx)
            rq->max_tokens = rq->sv->ctx - rq->prompt[i].n;
}

/* Gives the request its name, seed (where the client gave none) and time. */
static void name_request(struct request *rq)
{
    uint64_t r[3] = { 0 };
    char made_up[40];
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r) { /* names must only differ */
        r[0] = (uint64_t)time(NULL);
        r[1] = r[2] = (uint64_t)(uintptr_t)rq;
    }
    snprintf(made_up, sizeof made_up, "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
    request_set_name(rq, rq->name[0] ? rq->name : made_up);
    if (!rq->seed_given)
        rq->sampling.seed = r[2];
    rq->created = (int64_t)time(NULL);
}

/* Until there are min_tokens, no end token may come: is there any other token? */
static int check_ends(const struct request *rq, struct fault *f)
{
    const struct service *sv = rq->sv;
    int64_t n = (int64_t)rq->n_stop_ids + sv->n_eos, different = 0;

    if (!rq->sampling.min_tokens || n < sv->vocab)
        return 0;
    char *seen = calloc(1, (size_t)sv->vocab);
    if (!seen)
        return fault_set(f, 500, "min_tokens", "no memory for min_tokens");
    for (int64_t i = 0; i < n; i++) {
        int32_t id = i < rq->n_stop_ids ? rq->stop_ids[i] : sv->eos[i - rq->n_stop_ids];
        if (id < 0 || id >= sv->vocab || seen[id])
            continue;
        seen[id] = 1;
        different++;
    }

    free(seen);
    return different < sv->vocab ? 0
                                 : fault_set(f, BAD, "stop_token_ids",
                                             "stop_token_ids has every token of the vocabulary, and with "
                                             "min_tokens none of them may come");
}

/* Fields that contradict each other. */
static int check_together(const struct request *rq, struct fault *f)
{
    const struct service *sv = rq->sv;

    if (rq->logprobs > sv->vocab)
        return fault_set(f, BAD, "logprobs", "logprobs is %lld, the vocabulary has %lld",
                         (long long)rq->logprobs, (long long)sv->vocab);
    if (rq->prompt_logprobs > sv->vocab)
        return fault_set(f, BAD, "prompt_logprobs", "prompt_logprobs is %lld, the vocabulary has %lld",
                         (long long)rq->prompt_logprobs, (long long)sv->vocab);
    if (rq->prompt_logprobs >= 0 && rq->stream)
        return fault_set(f, BAD, "prompt_logprobs",
                         "prompt_logprobs do not go with stream true: leave one of them out");
    if (rq->n_watch && rq->logprobs < 0)
        return fault_set(f, BAD, "logprob_token_ids",
                         "logprob_token_ids go with logprobs only: set logprobs%s", rq->chat ? " true" : "");
    if (rq->n_watch && rq->max_tokens == 0)
        return fault_set(f, BAD, "logprob_token_ids",
                         "logprob_token_ids are about generated tokens, and max_tokens is 0");
    if (rq->dimensions > sv->hidden)
        return fault_set(f, BAD, "dimensions", "dimensions is %lld, this model's vectors have %lld elements",
                         (long long)rq->dimensions, (long long)sv->hidden);
    if (sv->headless && rq->endpoint != ENDPOINT_EMBEDDINGS && rq->endpoint != ENDPOINT_COUNT)
        return fault_set(f, BAD, "model",
                         "this model has no head, so it makes no text: ask /v1/embeddings for vectors");
    if (rq->endpoint == ENDPOINT_EMBEDDINGS && !rq->pooling_given && sv->embeddings.refused[0])
        return fault_set(f, BAD, "pooling",
                         "%s: set pooling to \"last\" or \"mean\" for a vector of that kind",
                         sv->embeddings.refused);
    if (rq->best_of && rq->best_of != rq->n && !sv->lenient)
        return fault_set(f, BAD, "best_of",
                         "best_of is %lld, n is %lld: choosing among more answers is not supported here, "
                         "leave best_of out",
                         (long long)rq->best_of, (long long)rq->n);
    if (rq->sampling.min_tokens > rq->max_tokens)
        return fault_set(f, BAD, "min_tokens", "min_tokens is %lld, max_tokens %lld",
                         (long long)rq->sampling.min_tokens, (long long)rq->max_tokens);
    return check_ends(rq, f);
}

static int read_body(struct request *rq, json_t *body, struct fault *f)
{
    const char *key;
    json_t *v;

    if (!json_is_object(body))
        return fault_set(f, BAD, NULL, "the body must be a JSON object");
    json_object_foreach(body, key, v)
        if (openai_read_field(rq, key, v, f) < 0)
            return -1;

    if (!rq->stream && json_is_object(json_object_get(body, "stream_options")))
        return fault_set(f, BAD, "stream_options", "stream_options go with stream true only");
    /* as in vLLM: without include_usage no event has a usage */
    rq->usage_in_every_chunk &= rq->include_usage;
    if (read_input(rq, body, f) < 0)
        return -1;

    fit_max_tokens(rq);
    if (check_together(rq, f) < 0)
        return -1;
    name_request(rq);
    if (structured_open(rq, f) < 0) {
        door_own_words(rq->endpoint, f);
        return -1;
    }
    return request_open_choices(rq) < 0 ? fault_set(f, 500, NULL, "no memory for this request") : 0;
}

/* Defaults. A chat: the template writes the special tokens. A chat and token ids: the answer may fill the
 * context. */
static void begin_request(struct request *rq, enum endpoint endpoint)
{
    rq->endpoint = endpoint;
    rq->in_items = endpoint >= ENDPOINT_RESPONSES && endpoint <= ENDPOINT_COUNT;
    rq->chat = endpoint == ENDPOINT_CHAT || rq->in_items;
    rq->store = endpoint == ENDPOINT_RESPONSES;
    rq->tokens_only = rq->tokens_as_ids = endpoint == ENDPOINT_GENERATE;
    rq->add_special = endpoint == ENDPOINT_COMPLETION || endpoint == ENDPOINT_EMBEDDINGS;
    rq->pooling = rq->sv->embeddings.pooling;
    rq->normalize = !rq->sv->embeddings.raw;
    if (endpoint == ENDPOINT_EMBEDDINGS)
        rq->max_tokens = 0;
    else if (endpoint != ENDPOINT_COMPLETION)
        rq->max_tokens = rq->sv->ctx;
}

json_t *openai_body(const char *body, size_t n, struct fault *f)
{
    static const struct jx_limits limits = { BODY_LISTS_MAX, BODY_VALUES_MAX };
    struct err e;
    json_t *j = jx_parse_within(body, n, &limits, "the body", &e);
    if (!j)
        fault_set(f, BAD, NULL, "%s", e.text);
    return j;
}

int openai_parse_of(const struct service *sv, enum endpoint endpoint, int key, const char *body, size_t n,
                    struct request **out, struct fault *f)
{
    memset(f, 0, sizeof *f);
    json_t *j = openai_body(body, n, f);

    if (!j)
        return -1;
    struct request *rq = request_new(sv);
    if (rq) {
        begin_request(rq, endpoint);
        rq->key = key;
    }
    int rc = rq ? read_body(rq, j, f) : fault_set(f, 500, NULL, "no memory for this request");
    json_decref(j);
    if (rc < 0) {
        request_release(rq);
        rq = NULL;
    }

    *out = rq;
    return rc;
}

int openai_parse(const struct service *sv, enum endpoint endpoint, const char *body, size_t n,
                 struct request **out, struct fault *f)
{
    return openai_parse_of(sv, endpoint, -1, body, n, out, f);
}

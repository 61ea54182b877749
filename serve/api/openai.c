/* openai.c - reading a completion request: see openai.h. The fields are a table; what needs more than a
 * range has a function. */
#include "serve/api/openai.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include "base/jx.h"
#include "serve/api/chat.h"
#include "serve/api/prompt_limit.h"

#define BAD 400
#define STOPS_MAX 64
#define BIAS_MAX 1024

/* ---- fields that are more than a number ---- */

static int read_model(struct request *rq, const json_t *v, struct fault *f)
{
    if (!json_is_string(v))
        return fault_set(f, BAD, "model", "model must be a text");
    if (strcmp(json_string_value(v), rq->sv->model))
        return fault_set(f, 404, "model", "model '%.100s' is not served here: use '%s'", json_string_value(v),
                         rq->sv->model);
    return 0;
}

static int add_stop(struct request *rq, const json_t *v, struct fault *f)
{
    if (!json_is_string(v) || !json_string_length(v))
        return fault_set(f, BAD, "stop", "stop must be a text that is not empty, or a list of such");
    rq->stop[rq->n_stop] = strdup(json_string_value(v));
    return rq->stop[rq->n_stop++] ? 0 : fault_set(f, 500, "stop", "no memory for the stop strings");
}

static int read_stop(struct request *rq, const json_t *v, struct fault *f)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > STOPS_MAX)
        return fault_set(f, BAD, "stop", "stop has %zu strings, at most %d are taken", n, STOPS_MAX);
    rq->stop = calloc(n + 1, sizeof *rq->stop);
    if (!rq->stop)
        return fault_set(f, 500, "stop", "no memory for the stop strings");
    for (size_t i = 0; i < n; i++)
        if (add_stop(rq, json_is_array(v) ? json_array_get(v, i) : v, f) < 0)
            return -1;
    if (n && !rq->sv->tok)
        return fault_set(f, BAD, "stop",
                         "this model has no tokenizer, so its answers have no text that could be searched: "
                         "use stop_token_ids");
    return 0;
}

/* A list of token ids. what: the field, with an index for messages. */
static int read_ids(const struct service *sv, const json_t *v, const char *what, int32_t **ids, int64_t *n,
                    struct fault *f)
{
    size_t count = json_array_size(v);
    *ids = malloc(sizeof **ids * (count + 1));
    if (!*ids)
        return fault_set(f, 500, what, "no memory for %zu token ids", count);
    for (size_t i = 0; i < count; i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_integer(x))
            return fault_set(f, BAD, what,
                             "%s[%zu] is not a token id: a list of token ids holds integers only", what, i);
        if (json_integer_value(x) < 0 || json_integer_value(x) >= sv->vocab)
            return fault_set(f, BAD, what, "%s[%zu] is %lld, the vocabulary has ids 0 to %lld", what, i,
                             (long long)json_integer_value(x), (long long)sv->vocab - 1);
        (*ids)[i] = (int32_t)json_integer_value(x);
    }
    *n = (int64_t)count;
    return 0;
}

static int read_stop_ids(struct request *rq, const json_t *v, struct fault *f)
{
    int64_t n;
    if (!json_is_array(v) || json_array_size(v) > 1024)
        return fault_set(f, BAD, "stop_token_ids", "stop_token_ids must be a list of at most 1024 token ids");
    if (read_ids(rq->sv, v, "stop_token_ids", &rq->stop_ids, &n, f) < 0)
        return -1;
    rq->n_stop_ids = (int)n;
    return 0;
}

static int read_stream_options(struct request *rq, const json_t *v, struct fault *f)
{
    const char *key;
    json_t *x;
    if (!json_is_object(v))
        return fault_set(f, BAD, "stream_options", "stream_options must be an object");
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        int *to = !strcmp(key, "include_usage")            ? &rq->include_usage
                  : !strcmp(key, "continuous_usage_stats") ? &rq->usage_in_every_chunk
                                                           : NULL;
        if (json_is_null(x) || (!to && rq->sv->lenient))
            continue;
        if (!to)
            return fault_set(
                f, BAD, "stream_options",
                "stream_options.%.60s is not known here: it takes include_usage and continuous_usage_stats",
                key);
        if (!json_is_boolean(x))
            return fault_set(f, BAD, "stream_options", "stream_options.%s must be true or false", key);
        *to = json_is_true(x);
    }
    return 0;
}

static int read_seed(struct request *rq, const json_t *v, struct fault *f)
{
    if (!json_is_integer(v))
        return fault_set(f, BAD, "seed", "seed must be an integer");
    rq->sampling.seed = (uint64_t)json_integer_value(v);
    rq->seed_given = 1;
    return 0;
}

static int add_bias(struct request *rq, const char *key, const json_t *v, struct fault *f)
{
    char *end;
    long long id = strtoll(key, &end, 10);
    double x = json_number_value(v);
    if (!*key || *end || id < 0 || id >= rq->sv->vocab)
        return fault_set(f, BAD, "logit_bias",
                         "logit_bias has the key '%.40s': keys are token ids, 0 to %lld", key,
                         (long long)rq->sv->vocab - 1);
    if (!json_is_number(v) || !(x >= -100 && x <= 100))
        return fault_set(f, BAD, "logit_bias", "logit_bias of token %lld must be a number, -100 to 100", id);
    for (int i = 0; i < rq->sampling.n_bias; i++)
        if (rq->sampling.bias[i].id == id) /* "7" and "07" */
            return fault_set(f, BAD, "logit_bias", "logit_bias names token %lld twice", id);
    rq->sampling.bias[rq->sampling.n_bias++] = (struct logit_bias){ (int32_t)id, (float)x };
    return 0;
}

static int read_logit_bias(struct request *rq, const json_t *v, struct fault *f)
{
    const char *key;
    json_t *x;
    if (!json_is_object(v) || json_object_size(v) > BIAS_MAX)
        return fault_set(f, BAD, "logit_bias",
                         "logit_bias must be an object of token ids and numbers, at most %d of them",
                         BIAS_MAX);
    rq->sampling.bias = calloc(json_object_size(v) + 1, sizeof *rq->sampling.bias);
    if (!rq->sampling.bias)
        return fault_set(f, 500, "logit_bias", "no memory for logit_bias");
    json_object_foreach((json_t *)(uintptr_t)v, key, x)
        if (add_bias(rq, key, x, f) < 0)
            return -1;
    return 0;
}

static int read_top_k(struct request *rq, const json_t *v, struct fault *f)
{
    if (!json_is_integer(v) || json_integer_value(v) < -1)
        return fault_set(f, BAD, "top_k", "top_k must be an integer, 1 or more (0 or -1: off)");
    rq->sampling.top_k = json_integer_value(v) < 1 ? 0 : json_integer_value(v);
    return 0;
}

static int read_truncate(struct request *rq, const json_t *v, struct fault *f)
{
    rq->truncate = json_is_integer(v) ? json_integer_value(v) : 0;
    if (!rq->truncate || rq->truncate < -1)
        return fault_set(f, BAD, "truncate_prompt_tokens",
                         "truncate_prompt_tokens must be an integer, 1 or more (-1: what the context has "
                         "beside the answer)");
    return 0;
}

static int read_salt(struct request *rq, const json_t *v, struct fault *f)
{
    if (!json_is_string(v) || !json_string_length(v) || json_string_length(v) > 256)
        return fault_set(f, BAD, "cache_salt", "cache_salt must be a text of 1 to 256 bytes");
    rq->salt = strdup(json_string_value(v));
    return rq->salt ? 0 : fault_set(f, 500, "cache_salt", "no memory for cache_salt");
}

/* The client's name of the request, as vLLM takes it: the answer's id has it behind "cmpl-". */
static int read_request_id(struct request *rq, const json_t *v, struct fault *f)
{
    const char *id = json_string_value(v);
    if (!id || strlen(id) != json_string_length(v) || !request_name_valid(id))
        return fault_set(f, BAD, "request_id",
                         "request_id must be a text of 1 to %d letters, digits and -_.:", REQUEST_NAME_MAX);
    strcpy(rq->name, id);
    return 0;
}

static int read_response_format(struct request *rq, const json_t *v, struct fault *f)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type && !strcmp(type, "text"))
        return 0;
    return rq->sv->lenient ? 0
                           : fault_set(f, BAD, "response_format",
                                       "response_format is not supported here, only {\"type\":\"text\"}");
}

/* Without tools both of these say nothing. */
static int read_tool_choice(struct request *rq, const json_t *v, struct fault *f)
{
    const char *word = json_string_value(v);
    if (rq->sv->lenient || (word && (!strcmp(word, "none") || !strcmp(word, "auto"))))
        return 0;
    return fault_set(f, BAD, "tool_choice", "tool_choice is not supported here, only \"none\" and \"auto\"");
}

/* ---- the table ---- */

enum field_kind { F_INT, F_FLOAT, F_BOOL, F_SPECIAL, F_IGNORED, F_NEUTRAL };
struct field {
    const char *name;
    enum field_kind kind;
    size_t offset; /* of int64_t, double or int in struct request */
    /* F_NEUTRAL: min is the number that changes nothing, max 1: so does true */
    double min, max;
    int (*read)(struct request *rq, const json_t *v, struct fault *f);
    /* which request has it */
    enum where { BOTH, COMPLETION, CHAT } where;
};
#define AT(member) offsetof(struct request, member)

static const struct field fields[] = {
    { "model", F_SPECIAL, 0, 0, 0, read_model, BOTH },
    /* read at the end: it needs the other fields */
    { "prompt", F_IGNORED, 0, 0, 0, NULL, COMPLETION },
    { "messages", F_IGNORED, 0, 0, 0, NULL, CHAT }, /* likewise */
    { "chat_template_kwargs", F_IGNORED, 0, 0, 0, NULL, CHAT },
    { "max_completion_tokens", F_INT, AT(max_completion_tokens), 0, 1e9, NULL, CHAT },
    { "max_tokens", F_INT, AT(max_tokens), 0, 1e9, NULL, BOTH },
    { "temperature", F_FLOAT, AT(sampling.temperature), 0, 1e6, NULL, BOTH },
    { "top_p", F_FLOAT, AT(sampling.top_p), 1e-9, 1, NULL, BOTH },
    { "min_p", F_FLOAT, AT(sampling.min_p), 0, 1, NULL, BOTH },
    { "top_k", F_SPECIAL, 0, 0, 0, read_top_k, BOTH },
    { "n", F_INT, AT(n), 1, 128, NULL, BOTH },
    { "best_of", F_INT, AT(best_of), 1, 128, NULL, COMPLETION },
    { "seed", F_SPECIAL, 0, 0, 0, read_seed, BOTH },
    { "presence_penalty", F_FLOAT, AT(sampling.presence), -2, 2, NULL, BOTH },
    { "frequency_penalty", F_FLOAT, AT(sampling.frequency), -2, 2, NULL, BOTH },
    { "repetition_penalty", F_FLOAT, AT(sampling.repetition), 1e-3, 1e3, NULL, BOTH },
    { "logit_bias", F_SPECIAL, 0, 0, 0, read_logit_bias, BOTH },
    { "min_tokens", F_INT, AT(sampling.min_tokens), 0, 1e9, NULL, BOTH },
    { "prompt_logprobs", F_INT, AT(prompt_logprobs), 0, LOGPROBS_MAX, NULL, COMPLETION },
    { "logprobs", F_INT, AT(logprobs), 0, LOGPROBS_MAX, NULL, COMPLETION },
    { "logprobs", F_BOOL, AT(want_logprobs), 0, 0, NULL, CHAT },
    { "top_logprobs", F_INT, AT(top_logprobs), 0, LOGPROBS_MAX, NULL, CHAT },
    { "add_generation_prompt", F_BOOL, AT(add_generation), 0, 0, NULL, CHAT },
    { "continue_final_message", F_BOOL, AT(continue_final), 0, 0, NULL, CHAT },
    { "tool_choice", F_SPECIAL, 0, 0, 0, read_tool_choice, CHAT },
    { "echo", F_BOOL, AT(echo), 0, 0, NULL, COMPLETION },
    { "stream", F_BOOL, AT(stream), 0, 0, NULL, BOTH },
    { "stream_options", F_SPECIAL, 0, 0, 0, read_stream_options, BOTH },
    { "stop", F_SPECIAL, 0, 0, 0, read_stop, BOTH },
    { "stop_token_ids", F_SPECIAL, 0, 0, 0, read_stop_ids, BOTH },
    { "ignore_eos", F_BOOL, AT(ignore_eos), 0, 0, NULL, BOTH },
    { "add_special_tokens", F_BOOL, AT(add_special), 0, 0, NULL, BOTH },
    { "skip_special_tokens", F_BOOL, AT(skip_special), 0, 0, NULL, BOTH },
    { "return_tokens_as_token_ids", F_BOOL, AT(tokens_as_ids), 0, 0, NULL, BOTH },
    { "return_token_ids", F_BOOL, AT(return_ids), 0, 0, NULL, BOTH },
    { "priority", F_INT, AT(priority), -1e9, 1e9, NULL, BOTH },
    { "truncate_prompt_tokens", F_SPECIAL, 0, 0, 0, read_truncate, BOTH },
    { "cache_salt", F_SPECIAL, 0, 0, 0, read_salt, BOTH },
    { "response_format", F_SPECIAL, 0, 0, 0, read_response_format, BOTH },
    /* about the caller, not about the answer */
    { "user", F_IGNORED, 0, 0, 0, NULL, BOTH },
    { "metadata", F_IGNORED, 0, 0, 0, NULL, BOTH },
    { "store", F_IGNORED, 0, 0, 0, NULL, BOTH },
    { "request_id", F_SPECIAL, 0, 0, 0, read_request_id, BOTH },
    { "service_tier", F_IGNORED, 0, 0, 0, NULL, BOTH },
    { "safety_identifier", F_IGNORED, 0, 0, 0, NULL, BOTH },
    { "prompt_cache_key", F_IGNORED, 0, 0, 0, NULL, BOTH },
    /* known to clients, not built: only the value that changes nothing */
    { "tools", F_NEUTRAL, 0, NAN, 0, NULL, CHAT },
    { "functions", F_NEUTRAL, 0, NAN, 0, NULL, CHAT },
    { "parallel_tool_calls", F_IGNORED, 0, 0, 0, NULL, CHAT }, /* without tools it says nothing */
    { "suffix", F_NEUTRAL, 0, NAN, 0, NULL, COMPLETION },
    { "length_penalty", F_NEUTRAL, 0, 1, 0, NULL, BOTH },
    { "use_beam_search", F_NEUTRAL, 0, NAN, 0, NULL, COMPLETION },
    { "include_stop_str_in_output", F_NEUTRAL, 0, NAN, 0, NULL, BOTH },
    { "spaces_between_special_tokens", F_NEUTRAL, 0, NAN, 1, NULL, BOTH },
};

static const struct field *find_field(const char *name, enum where where)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (!strcmp(fields[i].name, name) && (fields[i].where == BOTH || fields[i].where == where))
            return &fields[i];
    return NULL;
}

static int is_neutral(const json_t *v, const struct field *d)
{
    if (json_is_number(v))
        return json_number_value(v) == d->min;
    if (json_is_boolean(v))
        return json_is_true(v) == (d->max == 1);
    return (json_is_string(v) && !json_string_length(v)) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

static int read_number(struct request *rq, const struct field *d, const json_t *v, struct fault *f)
{
    void *to = (char *)rq + d->offset;
    int whole = d->kind == F_INT;
    if (whole ? !json_is_integer(v) : !json_is_number(v))
        return fault_set(f, BAD, d->name, "%s must be %s", d->name, whole ? "an integer" : "a number");
    double x = json_number_value(v);
    if (!(x >= d->min && x <= d->max))
        return fault_set(f, BAD, d->name, "%s is %g, must be %g to %g", d->name, x, d->min, d->max);
    if (whole)
        *(int64_t *)to = json_integer_value(v);
    else
        *(double *)to = x;
    return 0;
}

static int read_field(struct request *rq, const char *name, const json_t *v, struct fault *f)
{
    const struct field *d = find_field(name, rq->chat ? CHAT : COMPLETION);
    if (json_is_null(v))
        return 0;
    if (!d)
        return rq->sv->lenient
                   ? 0
                   : fault_set(
                         f, BAD, name,
                         "field '%.60s' is not known here: leave it out, or start the server with --lenient",
                         name);
    switch (d->kind) {
    case F_INT:
    case F_FLOAT: rq->max_tokens_given |= !strcmp(name, "max_tokens"); return read_number(rq, d, v, f);
    case F_BOOL:
        if (!json_is_boolean(v))
            return fault_set(f, BAD, name, "%s must be true or false", name);
        *(int *)(void *)((char *)rq + d->offset) = json_is_true(v);
        return 0;
    case F_SPECIAL: return d->read(rq, v, f);
    case F_NEUTRAL:
        if (!is_neutral(v, d) && !rq->sv->lenient)
            return fault_set(f, BAD, name,
                             "%s is not supported here: leave it out, or start the server with --lenient",
                             name);
        return 0;
    case F_IGNORED: break;
    }
    return 0;
}

/* ---- prompts ---- */

static int encode_prompt(struct request *rq, const json_t *v, const char *what, struct prompt *p,
                         struct fault *f)
{
    const struct service *sv = rq->sv;
    struct err e;
    size_t n = 0;
    if (!sv->tok)
        return fault_set(f, BAD, "prompt",
                         "%s is a text, but this model has no tokenizer: send a list of token ids", what);
    p->n_text = json_string_length(v);
    p->text = malloc(p->n_text + 1);
    if (!p->text)
        return fault_set(f, 500, "prompt", "no memory for a prompt of %zu bytes", p->n_text);
    memcpy(p->text, json_string_value(v), p->n_text + 1);
    if (!rq->truncate && prompt_limit_check(sv, p->text, p->n_text, "prompt", what, f) < 0)
        return -1;
    if (tokenizer_encode(sv->tok, p->text, p->n_text, rq->add_special, &p->ids, &n, &e) < 0)
        return fault_set(f, BAD, "prompt", "%s: %s", what, e.text);
    p->n = (int64_t)n;
    for (size_t i = 0; i < n; i++)
        if (p->ids[i] < 0 || p->ids[i] >= sv->vocab)
            return fault_set(
                f, BAD, "prompt",
                "%s: the tokenizer gives id %d, the model's vocabulary has %lld: they do not belong together",
                what, p->ids[i], (long long)sv->vocab);
    return 0;
}

/* A list of ids that is too long anyhow is not read. */
static int read_prompt_ids(struct request *rq, const json_t *v, const char *what, struct prompt *p,
                           struct fault *f)
{
    if (json_array_size(v) > (size_t)rq->sv->ctx && !rq->truncate)
        return fault_set(f, BAD, "prompt", "%s has %zu tokens, the context is %lld", what, json_array_size(v),
                         (long long)rq->sv->ctx);
    return read_ids(rq->sv, v, what, &p->ids, &p->n, f);
}

/* What a prompt may have beside its answer; one whose length nobody said is left the tokens that completions
 * have by default. */
static int64_t prompt_capacity(const struct request *rq)
{
    int64_t answer = rq->max_tokens_given || rq->max_tokens < ANSWER_DEFAULT ? rq->max_tokens
                                                                             : ANSWER_DEFAULT;
    return answer < rq->sv->ctx ? rq->sv->ctx - answer : 1;
}

/* truncate_prompt_tokens: the end of a prompt that is longer. What is echoed is then what was kept. */
static void truncate_prompt(const struct request *rq, struct prompt *p)
{
    int64_t keep = rq->truncate < 0 ? prompt_capacity(rq) : rq->truncate;
    if (!rq->truncate || p->n <= keep)
        return;
    memmove(p->ids, p->ids + p->n - keep, sizeof *p->ids * (size_t)keep);
    p->n = keep;
    free(p->text);
    p->text = NULL;
    p->n_text = 0;
}

/* Does the prompt fit, with its answer? what: how messages name it. */
static int check_length(const struct request *rq, const struct prompt *p, const char *param, const char *what,
                        struct fault *f)
{
    int64_t ctx = rq->sv->ctx;
    if (!p->n)
        return fault_set(f, BAD, param,
                         "%s is empty: give at least one token (this model's tokenizer adds none of its own)",
                         what);
    if (p->n > ctx || (p->n == ctx && rq->max_tokens > 0 && !rq->max_tokens_given))
        return fault_set(f, BAD, param, "%s has %lld tokens, the context is %lld%s", what, (long long)p->n,
                         (long long)ctx, p->n == ctx ? ": no room for an answer" : "");
    if (p->n + rq->max_tokens > ctx && rq->max_tokens_given)
        return fault_set(f, BAD, "max_tokens",
                         "max_tokens %lld and %lld tokens of %s are %lld together, the context is %lld: ask "
                         "for at most %lld",
                         (long long)rq->max_tokens, (long long)p->n, what, (long long)(p->n + rq->max_tokens),
                         (long long)ctx, (long long)(ctx - p->n));
    return 0;
}

static int read_prompt(struct request *rq, const json_t *v, const char *what, struct fault *f)
{
    struct prompt *p = &rq->prompt[rq->n_prompts++];
    if (json_is_string(v) ? encode_prompt(rq, v, what, p, f) < 0 : read_prompt_ids(rq, v, what, p, f) < 0) {
        snprintf(f->param, sizeof f->param, "prompt");
        return -1;
    }
    truncate_prompt(rq, p);
    return check_length(rq, p, "prompt", what, f);
}

/* string | [string] | [int] | [[int]]; a list may mix texts and lists of ids. */
static int read_prompts(struct request *rq, const json_t *v, struct fault *f)
{
    int many = json_is_array(v) && json_array_size(v) && !json_is_integer(json_array_get(v, 0));
    size_t n = many ? json_array_size(v) : 1;
    if (!v || json_is_null(v))
        return fault_set(f, BAD, "prompt",
                         "prompt is missing: a text, a list of token ids, or a list of those");
    if (!json_is_string(v) && !json_is_array(v))
        return fault_set(f, BAD, "prompt", "prompt must be a text, a list of token ids, or a list of those");
    if (n * (size_t)rq->n > CHOICES_MAX)
        return fault_set(f, BAD, "prompt",
                         "%zu prompts with n %lld are %zu answers, at most %d in one request", n,
                         (long long)rq->n, n * (size_t)rq->n, CHOICES_MAX);
    rq->prompt = calloc(n, sizeof *rq->prompt);
    if (!rq->prompt)
        return fault_set(f, 500, "prompt", "no memory for %zu prompts", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = many ? json_array_get(v, i) : v;
        char what[32] = "prompt";
        if (many)
            snprintf(what, sizeof what, "prompt[%zu]", i);
        if (!json_is_string(x) && !json_is_array(x))
            return fault_set(f, BAD, "prompt", "%s must be a text or a list of token ids", what);
        if (read_prompt(rq, x, what, f) < 0)
            return -1;
    }
    return 0;
}

/* The messages as the only prompt. */
static int read_chat(struct request *rq, const json_t *body, struct fault *f)
{
    struct chat_options o = { rq->add_generation, rq->continue_final, rq->add_special,
                              .within_context = !rq->truncate };
    rq->prompt = calloc(1, sizeof *rq->prompt);
    if (!rq->prompt)
        return fault_set(f, 500, "messages", "no memory for the messages");
    rq->n_prompts = 1;
    if (rq->max_completion_tokens >= 0) {
        rq->max_tokens = rq->max_completion_tokens;
        rq->max_tokens_given = 1;
    }
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
    return check_length(rq, rq->prompt, "messages", "the text of the messages", f);
}

/* A default that does not fit beside the longest prompt is cut; one that was asked for is not. */
static void fit_max_tokens(struct request *rq)
{
    for (int i = 0; i < rq->n_prompts && !rq->max_tokens_given; i++)
        if (rq->prompt[i].n + rq->max_tokens > rq->sv->ctx)
            rq->max_tokens = rq->sv->ctx - rq->prompt[i].n;
}

static void name_request(struct request *rq)
{
    uint64_t r[3] = { 0 };
    if (getrandom(r, sizeof r, 0) != (ssize_t)sizeof r)
        r[0] = (uint64_t)time(NULL), r[1] = r[2] = (uint64_t)(uintptr_t)rq; /* a name need only differ */
    char made_up[40];
    snprintf(made_up, sizeof made_up, "%016llx%016llx", (unsigned long long)r[0], (unsigned long long)r[1]);
    request_set_name(rq, rq->name[0] ? rq->name : made_up);
    if (!rq->seed_given)
        rq->sampling.seed = r[2];
    rq->created = (int64_t)time(NULL);
}

/* Until min_tokens are there no end may come: is anything left to choose then? */
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

/* What is wrong only beside another field. */
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
        if (read_field(rq, key, v, f) < 0)
            return -1;
    if (!rq->stream && json_is_object(json_object_get(body, "stream_options")))
        return fault_set(f, BAD, "stream_options", "stream_options go with stream true only");
    if (rq->usage_in_every_chunk && !rq->include_usage)
        return fault_set(f, BAD, "stream_options",
                         "stream_options.continuous_usage_stats goes with include_usage true only");
    if ((rq->chat ? read_chat(rq, body, f) : read_prompts(rq, json_object_get(body, "prompt"), f)) < 0)
        return -1;
    fit_max_tokens(rq);
    if (check_together(rq, f) < 0)
        return -1;
    name_request(rq);
    return request_open_choices(rq) < 0 ? fault_set(f, 500, NULL, "no memory for this request") : 0;
}

/* What a chat has other defaults for: the template writes the special tokens, the answer may fill the
 * context. */
static void begin_chat(struct request *rq)
{
    rq->chat = 1;
    rq->add_special = 0;
    rq->max_tokens = rq->sv->ctx;
}

int openai_parse(const struct service *sv, int chat, const char *body, size_t n, struct request **out,
                 struct fault *f)
{
    struct err e;
    json_t *j = jx_parse(body, n, "the body", &e);
    memset(f, 0, sizeof *f);
    if (!j)
        return fault_set(f, BAD, NULL, "%s", e.text);
    struct request *rq = request_new(sv);
    if (rq && chat)
        begin_chat(rq);
    int rc = rq ? read_body(rq, j, f) : fault_set(f, 500, NULL, "no memory for this request");
    json_decref(j);
    if (rc < 0) {
        request_release(rq);
        rq = NULL;
    }
    *out = rq;
    return rc;
}

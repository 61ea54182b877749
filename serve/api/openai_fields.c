/* openai_fields.c - see openai_fields.h: a table of fields; a field that needs more than a range has a
 * function. */
#include "serve/api/openai_fields.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "serve/api/structured.h"
#include "serve/adapters/adapter_names.h"
#include "serve/doors/embeddings.h"

#define BAD 400
#define STOPS_MAX 64
#define STOP_BYTES_MAX 1024 /* the search for the beginning of a stop string is quadratic in its bytes */
#define BIAS_MAX 1024
#define WORDS_MAX 1024
#define WORD_MAX 256 /* bytes */

/* ---- fields with a function ---- */

static int read_model(struct request *rq, const json_t *v, struct fault *f)
{
    if (!json_is_string(v))
        return fault_set(f, BAD, "model", "model must be a text");
    const char *name = json_string_value(v);
    if (!strcmp(name, rq->sv->model))
        return 0;
    struct adapter_name *a = adapter_names_find(rq->sv->adapters, name);
    if (!a)
        return adapter_names_unknown(rq->sv, name, f);
    rq->adapter_name = a;
    rq->adapter = a->slot;
    snprintf(rq->adapter_digest, sizeof rq->adapter_digest, "%s", a->digest);
    snprintf(rq->model, sizeof rq->model, "%s", a->name);
    return 0;
}

/* name: of the field. */
static int add_stop(struct request *rq, const json_t *v, const char *name, struct fault *f)
{
    if (!json_is_string(v) || !json_string_length(v))
        return fault_set(f, BAD, name, "%s must be a text that is not empty, or a list of such", name);
    if (json_string_length(v) > STOP_BYTES_MAX)
        return fault_set(f, BAD, name, "%s has a string of %zu bytes, at most %d are taken", name,
                         json_string_length(v), STOP_BYTES_MAX);
    rq->stop[rq->n_stop] = strdup(json_string_value(v));
    return rq->stop[rq->n_stop++] ? 0 : fault_set(f, 500, name, "no memory for the stop strings");
}

static int read_stops(struct request *rq, const json_t *v, const char *name, struct fault *f)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > STOPS_MAX)
        return fault_set(f, BAD, name, "%s has %zu strings, at most %d are taken", name, n, STOPS_MAX);
    rq->stop = calloc(n + 1, sizeof *rq->stop);
    if (!rq->stop)
        return fault_set(f, 500, name, "no memory for the stop strings");
    for (size_t i = 0; i < n; i++)
        if (add_stop(rq, json_is_array(v) ? json_array_get(v, i) : v, name, f) < 0)
            return -1;
    if (n && !rq->sv->tok)
        return fault_set(f, BAD, name,
                         "this model has no tokenizer, so its answers have no text that could be searched: "
                         "use stop_token_ids");
    return 0;
}

int openai_read_ids(const struct service *sv, const json_t *v, const char *what, int32_t **ids, int64_t *n,
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

static int read_stop(struct request *rq, const json_t *v, struct fault *f)
{
    return read_stops(rq, v, "stop", f);
}

/* Anthropic's name of it. */
static int read_stop_sequences(struct request *rq, const json_t *v, struct fault *f)
{
    return json_is_array(v) ? read_stops(rq, v, "stop_sequences", f)
                            : fault_set(f, BAD, "stop_sequences", "stop_sequences must be a list of texts");
}

static int read_stop_ids(struct request *rq, const json_t *v, struct fault *f)
{
    int64_t n;
    if (!json_is_array(v) || json_array_size(v) > 1024)
        return fault_set(f, BAD, "stop_token_ids", "stop_token_ids must be a list of at most 1024 token ids");
    if (openai_read_ids(rq->sv, v, "stop_token_ids", &rq->stop_ids, &n, f) < 0)
        return -1;
    rq->n_stop_ids = (int)n;
    return 0;
}

static int read_stream_options(struct request *rq, const json_t *v, struct fault *f)
{
    int ignored; /* include_obfuscation: no padding is added, and clients skip it where it is */
    const struct {
        const char *name;
        int *to;
    } known[] = { { "include_usage", &rq->include_usage },
                  { "continuous_usage_stats", &rq->usage_in_every_chunk },
                  { "include_obfuscation", &ignored } };
    const char *key;
    json_t *x;

    if (!json_is_object(v))
        return fault_set(f, BAD, "stream_options", "stream_options must be an object");
    json_object_foreach((json_t *)(uintptr_t)v, key, x) {
        size_t i = 0, n = sizeof known / sizeof known[0];
        while (i < n && strcmp(key, known[i].name))
            i++;
        if (json_is_null(x) || (i == n && rq->sv->lenient))
            continue;
        if (i == n)
            return fault_set(f, BAD, "stream_options",
                             "stream_options.%.60s is not known here: it takes include_usage, "
                             "continuous_usage_stats and include_obfuscation",
                             key);
        if (!json_is_boolean(x))
            return fault_set(f, BAD, "stream_options", "stream_options.%s must be true or false", key);
        *known[i].to = json_is_true(x);
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

static int read_allowed(struct request *rq, const json_t *v, struct fault *f)
{
    int64_t n;
    if (!json_is_array(v) || !json_array_size(v) || json_array_size(v) > (size_t)rq->sv->vocab)
        return fault_set(f, BAD, "allowed_token_ids",
                         "allowed_token_ids must be a list of 1 to %lld token ids (the vocabulary)",
                         (long long)rq->sv->vocab);
    if (openai_read_ids(rq->sv, v, "allowed_token_ids", &rq->sampling.allowed, &n, f) < 0)
        return -1;
    rq->sampling.n_allowed = (int)n;
    return 0;
}

/* logprob_token_ids: an id that stands twice is kept once. */
static int read_watch(struct request *rq, const json_t *v, struct fault *f)
{
    int64_t n;
    if (!json_is_array(v) || !json_array_size(v) || json_array_size(v) > WATCH_MAX)
        return fault_set(f, BAD, "logprob_token_ids", "logprob_token_ids must be a list of 1 to %d token ids",
                         WATCH_MAX);
    if (openai_read_ids(rq->sv, v, "logprob_token_ids", &rq->watch, &n, f) < 0)
        return -1;
    for (int64_t i = 0; i < n; i++) {
        int seen = 0;
        for (int k = 0; k < rq->n_watch && !seen; k++)
            seen = rq->watch[k] == rq->watch[i];
        if (!seen)
            rq->watch[rq->n_watch++] = rq->watch[i];
    }
    return 0;
}

/* Appends the tokens of a text, and a -1 behind them. 0, or -1 with *f. */
static int add_bad_sequence(struct request *rq, const char *text, size_t n, struct fault *f)
{
    struct sampling *s = &rq->sampling;
    struct err e;
    size_t count = 0;
    int32_t *ids = NULL;

    if (tokenizer_encode(rq->sv->tok, text, n, 0, &ids, &count, &e) < 0)
        return fault_set(f, BAD, "bad_words", "bad_words: %s", e.text);
    int32_t *all = realloc(s->bad, sizeof *all * ((size_t)s->n_bad + count + 1));
    if (!all) {
        free(ids);
        return fault_set(f, 500, "bad_words", "no memory for bad_words");
    }
    memcpy(all + s->n_bad, ids, sizeof *all * count);
    free(ids);
    s->bad = all;
    s->n_bad += (int)count;
    s->bad[s->n_bad++] = -1;
    return 0;
}

/* A word is forbidden as it stands at the beginning of a text and after a space. */
static int add_bad_word(struct request *rq, const json_t *v, struct fault *f)
{
    char text[WORD_MAX + 2] = " ";
    const char *word = json_is_string(v) ? json_string_value(v) : "";
    word += strspn(word, " ");
    size_t n = strlen(word);

    if (!n || n > WORD_MAX)
        return fault_set(f, BAD, "bad_words",
                         "bad_words must be a list of texts of 1 to %d bytes that are not blank", WORD_MAX);
    memcpy(text + 1, word, n + 1);
    return add_bad_sequence(rq, word, n, f) < 0 ? -1 : add_bad_sequence(rq, text, n + 1, f);
}

static int read_bad_words(struct request *rq, const json_t *v, struct fault *f)
{
    size_t i;
    json_t *word;

    if (!json_is_array(v) || json_array_size(v) > WORDS_MAX)
        return fault_set(f, BAD, "bad_words", "bad_words must be a list of at most %d texts", WORDS_MAX);
    if (json_array_size(v) && !rq->sv->tok)
        return fault_set(f, BAD, "bad_words",
                         "this model has no tokenizer, so bad_words are no tokens of it: leave them out");
    json_array_foreach((json_t *)(uintptr_t)v, i, word)
        if (add_bad_word(rq, word, f) < 0)
            return -1;
    return 0;
}

static int read_truncation_side(struct request *rq, const json_t *v, struct fault *f)
{
    const char *side = json_is_string(v) ? json_string_value(v) : "";
    rq->truncate_right = !strcmp(side, "right");
    return rq->truncate_right || !strcmp(side, "left")
               ? 0
               : fault_set(f, BAD, "truncation_side",
                           "truncation_side must be \"left\" (the prompt's last tokens are kept) or "
                           "\"right\" (its first)");
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

/* The client's name of the request, as in vLLM: the answer's id is "cmpl-" and the name. */
static int read_request_id(struct request *rq, const json_t *v, struct fault *f)
{
    const char *id = json_string_value(v);
    if (!id || strlen(id) != json_string_length(v) || !request_name_valid(id))
        return fault_set(f, BAD, "request_id",
                         "request_id must be a text of 1 to %d letters, digits and -_.:", REQUEST_NAME_MAX);
    strcpy(rq->name, id);
    return 0;
}

/* Fields by which vLLM asked for constrained answers before. It ignores them now: better refused. */
#define READ_OLD(field) \
    static int read_##field(struct request *rq, const json_t *v, struct fault *f) \
    { \
        (void)v; \
        return rq->sv->lenient ? 0 : structured_refuse_old(#field, f); \
    }
READ_OLD(guided_json)
READ_OLD(guided_regex)
READ_OLD(guided_choice)
READ_OLD(guided_grammar)
READ_OLD(guided_decoding_backend)
READ_OLD(guided_whitespace_pattern)

/* Is the text v one of the words, which end with NULL? */
static int read_word(const json_t *v, const char *name, const char *const *words, struct fault *f)
{
    const char *word = json_string_value(v);
    char list[128] = "";

    for (int i = 0; words[i]; i++) {
        if (word && !strcmp(word, words[i]))
            return 0;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", words[i]);
    }
    return fault_set(f, BAD, name, "%s must be one of %s", name, list);
}

/* How long a model of OpenAI thinks: a variable of the chat template here (chat.c). */
static int read_effort(struct request *rq, const json_t *v, struct fault *f)
{
    static const char *const words[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max", NULL };
    return rq->sv->lenient ? 0 : read_word(v, "reasoning_effort", words, f);
}

/* How long OpenAI's models answer; no model here has such a control. */
static int read_verbosity(struct request *rq, const json_t *v, struct fault *f)
{
    static const char *const words[] = { "low", "medium", "high", NULL };
    return rq->sv->lenient ? 0 : read_word(v, "verbosity", words, f);
}

static int read_modalities(struct request *rq, const json_t *v, struct fault *f)
{
    const char *first = json_string_value(json_array_get(v, 0));
    if (rq->sv->lenient || (json_array_size(v) == 1 && first && !strcmp(first, "text")))
        return 0;
    return fault_set(f, BAD, "modalities",
                     "modalities must be [\"text\"]: this model answers with text only");
}

static int read_output_mode(struct request *rq, const json_t *v, struct fault *f)
{
    static const char *const words[] = { "tokens", NULL };
    return rq->sv->lenient ? 0 : read_word(v, "output_mode", words, f);
}

/* ---- the table ---- */

enum field_kind {
    F_INT,
    F_FLOAT,
    F_BOOL,
    F_SPECIAL, /* has a function */
    F_IGNORED, /* accepted, changes nothing, or read elsewhere */
    F_NEUTRAL  /* not built: accepted with a value that changes nothing */
};
enum where { /* TOKENS: /inference/v1/generate; SAMPLING: its sampling_params */
             COMPLETION = 1,
             CHAT = 2,
             TOKENS = 4,
             SAMPLING = 8,
             RESPONSES = 16,
             MESSAGES = 32,
             EMBEDDINGS = 64,
             BOTH = COMPLETION | CHAT,
             EVERY = BOTH | TOKENS | RESPONSES | MESSAGES,
             SAMPLES = BOTH | SAMPLING,
             DRAWS = SAMPLES | RESPONSES | MESSAGES
};
struct field {
    const char *name;
    enum field_kind kind;
    unsigned where;  /* which requests have it: */
    size_t offset;   /* of int64_t, double or int in struct request */
    double min, max; /* F_NEUTRAL: min is the number that changes nothing; max 1: so does true */
    int (*read)(struct request *rq, const json_t *v, struct fault *f);
};
#define AT(member) offsetof(struct request, member)

/* name, kind, which request; member, smallest and largest value, or a function */
/* clang-format off */
static const struct field fields[] = {
    { "model",                          F_SPECIAL, EVERY | EMBEDDINGS, .read = read_model },
    /* read by openai.c at the end: they need the other fields */
    { "prompt",                         F_IGNORED, COMPLETION },
    { "messages",                       F_IGNORED, CHAT },
    { "chat_template_kwargs",           F_IGNORED, CHAT | RESPONSES | MESSAGES },
    { "token_ids",                      F_IGNORED, TOKENS },
    { "sampling_params",                F_IGNORED, TOKENS },
    /* read by doors/responses.c and doors/messages.c */
    { "input",                          F_IGNORED, RESPONSES | EMBEDDINGS },
    { "instructions",                   F_IGNORED, RESPONSES },
    { "previous_response_id",           F_IGNORED, RESPONSES },
    { "include",                        F_IGNORED, RESPONSES },
    { "reasoning",                      F_IGNORED, RESPONSES },
    { "text",                           F_IGNORED, RESPONSES },
    { "truncation",                     F_IGNORED, RESPONSES },
    { "messages",                       F_IGNORED, MESSAGES },
    { "system",                         F_IGNORED, MESSAGES },
    { "thinking",                       F_IGNORED, MESSAGES },
    { "output_config",                  F_IGNORED, MESSAGES },
    { "metadata",                       F_IGNORED, MESSAGES },
    { "max_output_tokens",              F_INT,     RESPONSES,  AT(max_completion_tokens), 1, 1e9 },
    { "max_tokens",                     F_INT,     MESSAGES,   AT(max_tokens), 1, 1e9 },
    { "pooling",                        F_SPECIAL, EMBEDDINGS, .read = embeddings_read_pooling },
    { "encoding_format",                F_SPECIAL, EMBEDDINGS, .read = embeddings_read_encoding },
    { "dimensions",                     F_INT,     EMBEDDINGS, AT(dimensions), 1, 1e6 },
    { "normalize",                      F_BOOL,    EMBEDDINGS, AT(normalize) },
    { "store",                          F_BOOL,    RESPONSES,  AT(store) },
    { "stop_sequences",                 F_SPECIAL, MESSAGES,   .read = read_stop_sequences },
    { "max_completion_tokens",          F_INT,     CHAT,       AT(max_completion_tokens), 0, 1e9 },
    { "max_tokens",                     F_INT,     SAMPLES,    AT(max_tokens), 0, 1e9 },
    { "temperature",                    F_FLOAT,   DRAWS,      AT(sampling.temperature), 0, 1e6 },
    { "top_p",                          F_FLOAT,   DRAWS,      AT(sampling.top_p), 1e-9, 1 },
    { "min_p",                          F_FLOAT,   DRAWS,      AT(sampling.min_p), 0, 1 },
    { "top_k",                          F_SPECIAL, DRAWS,      .read = read_top_k },
    { "n",                              F_INT,     SAMPLES,    AT(n), 1, 128 },
    { "best_of",                        F_INT,     COMPLETION, AT(best_of), 1, 128 },
    { "seed",                           F_SPECIAL, DRAWS,      .read = read_seed },
    { "presence_penalty",               F_FLOAT,   DRAWS,      AT(sampling.presence), -2, 2 },
    { "frequency_penalty",              F_FLOAT,   DRAWS,      AT(sampling.frequency), -2, 2 },
    { "repetition_penalty",             F_FLOAT,   DRAWS,      AT(sampling.repetition), 1e-3, 1e3 },
    { "logit_bias",                     F_SPECIAL, DRAWS,      .read = read_logit_bias },
    { "min_tokens",                     F_INT,     DRAWS,      AT(sampling.min_tokens), 0, 1e9 },
    { "allowed_token_ids",              F_SPECIAL, DRAWS,      .read = read_allowed },
    { "bad_words",                      F_SPECIAL, DRAWS,      .read = read_bad_words },
    { "logprob_token_ids",              F_SPECIAL, SAMPLES,    .read = read_watch },
    { "prompt_logprobs",                F_INT,     SAMPLES,    AT(prompt_logprobs), 0, LOGPROBS_MAX },
    { "logprobs",                       F_INT,     COMPLETION | SAMPLING, AT(logprobs), 0, LOGPROBS_MAX },
    { "logprobs",                       F_BOOL,    CHAT,       AT(want_logprobs) },
    { "top_logprobs",                   F_INT,     CHAT | RESPONSES, AT(top_logprobs), 0, LOGPROBS_MAX },
    { "add_generation_prompt",          F_BOOL,    CHAT,       AT(add_generation) },
    { "continue_final_message",         F_BOOL,    CHAT,       AT(continue_final) },
    /* chat_tools.c */
    { "tools",                          F_IGNORED, CHAT | RESPONSES | MESSAGES },
    { "tool_choice",                    F_IGNORED, CHAT | RESPONSES | MESSAGES },
    { "parallel_tool_calls",            F_BOOL,    CHAT | RESPONSES, AT(parallel_tools) },
    { "separate_reasoning",             F_BOOL,    CHAT,       AT(separate_reasoning) },
    { "echo",                           F_BOOL,    COMPLETION, AT(echo) },
    { "echo",                           F_BOOL,    CHAT,       AT(echo_message) },
    { "stream",                         F_BOOL,    EVERY,      AT(stream) },
    { "stream_options",                 F_SPECIAL, BOTH | TOKENS | RESPONSES, .read = read_stream_options },
    { "stop",                           F_SPECIAL, SAMPLES | RESPONSES, .read = read_stop },
    { "stop_token_ids",                 F_SPECIAL, DRAWS,      .read = read_stop_ids },
    { "include_stop_str_in_output",     F_BOOL,    BOTH,       AT(include_stop) },
    { "ignore_eos",                     F_BOOL,    DRAWS,      AT(ignore_eos) },
    { "add_special_tokens",             F_BOOL,    BOTH | EMBEDDINGS,       AT(add_special) },
    { "skip_special_tokens",            F_BOOL,    SAMPLES,    AT(skip_special) },
    { "return_tokens_as_token_ids",     F_BOOL,    BOTH,       AT(tokens_as_ids) },
    { "return_token_ids",               F_BOOL,    BOTH,       AT(return_ids) },
    { "priority",                       F_INT,     EVERY | EMBEDDINGS,      AT(priority), -1e9, 1e9 },
    { "truncate_prompt_tokens",         F_SPECIAL, SAMPLES | EMBEDDINGS,    .read = read_truncate },
    { "truncation_side",                F_SPECIAL, BOTH | EMBEDDINGS,       .read = read_truncation_side },
    { "cache_salt",                     F_SPECIAL, EVERY | EMBEDDINGS,      .read = read_salt },
    { "response_format",                F_SPECIAL, BOTH,       .read = structured_read_format },
    { "structured_outputs",             F_SPECIAL, SAMPLES,    .read = structured_read_outputs },
    { "guided_json",                    F_SPECIAL, SAMPLES,    .read = read_guided_json },
    { "guided_regex",                   F_SPECIAL, SAMPLES,    .read = read_guided_regex },
    { "guided_choice",                  F_SPECIAL, SAMPLES,    .read = read_guided_choice },
    { "guided_grammar",                 F_SPECIAL, SAMPLES,    .read = read_guided_grammar },
    { "guided_decoding_backend",        F_SPECIAL, SAMPLES,    .read = read_guided_decoding_backend },
    { "guided_whitespace_pattern",      F_SPECIAL, SAMPLES,    .read = read_guided_whitespace_pattern },
    /* about the caller, not about the answer */
    { "user",                           F_IGNORED, BOTH | RESPONSES | EMBEDDINGS },
    { "metadata",                       F_IGNORED, BOTH | RESPONSES },
    { "store",                          F_IGNORED, BOTH },
    { "request_id",                     F_SPECIAL, EVERY | EMBEDDINGS,      .read = read_request_id },
    { "service_tier",                   F_IGNORED, BOTH | RESPONSES | MESSAGES },
    { "safety_identifier",              F_IGNORED, BOTH | RESPONSES },
    { "prompt_cache_key",               F_IGNORED, BOTH | RESPONSES },
    { "prompt_cache_retention",         F_IGNORED, BOTH | RESPONSES },
    { "client_metadata",                F_IGNORED, RESPONSES },
    /* beginnings are cached without being asked; there are no tools that the server calls */
    { "cache_control",                  F_IGNORED, MESSAGES },
    { "max_tool_calls",                 F_IGNORED, RESPONSES },
    /* official, and harmless where they have no effect */
    { "reasoning_effort",               F_SPECIAL, CHAT,       .read = read_effort },
    { "verbosity",                      F_SPECIAL, CHAT,       .read = read_verbosity },
    { "modalities",                     F_SPECIAL, CHAT,       .read = read_modalities },
    /* known to clients, not built: only with the value that changes nothing */
    { "functions",                      F_NEUTRAL, CHAT,       .min = NAN },
    { "background",                     F_NEUTRAL, RESPONSES,  .min = NAN },
    { "conversation",                   F_NEUTRAL, RESPONSES,  .min = NAN },
    { "prompt",                         F_NEUTRAL, RESPONSES,  .min = NAN },
    { "context_management",             F_NEUTRAL, RESPONSES | MESSAGES, .min = NAN },
    { "moderation",                     F_NEUTRAL, RESPONSES,  .min = NAN },
    { "container",                      F_NEUTRAL, MESSAGES,   .min = NAN },
    { "mcp_servers",                    F_NEUTRAL, MESSAGES,   .min = NAN },
    { "suffix",                         F_NEUTRAL, COMPLETION, .min = NAN },
    { "length_penalty",                 F_NEUTRAL, BOTH,       .min = 1 },
    { "use_beam_search",                F_NEUTRAL, COMPLETION, .min = NAN },
    { "spaces_between_special_tokens",  F_NEUTRAL, BOTH,       .min = NAN, .max = 1 },
    { "features",                       F_NEUTRAL, TOKENS,     .min = NAN },
    { "kv_transfer_params",             F_NEUTRAL, TOKENS,     .min = NAN },
    { "extra_args",                     F_NEUTRAL, SAMPLING,   .min = NAN },
    { "flat_logprobs",                  F_NEUTRAL, SAMPLING,   .min = NAN },
    { "skip_reading_prefix_cache",      F_NEUTRAL, SAMPLING,   .min = NAN },
    /* about the text or its delivery, which an answer of token ids does not have */
    { "output_mode",                    F_SPECIAL, TOKENS,     .read = read_output_mode },
    { "detokenize",                     F_IGNORED, SAMPLING },
    { "include_stop_str_in_output",     F_IGNORED, SAMPLING },
    { "spaces_between_special_tokens",  F_IGNORED, SAMPLING },
    { "output_kind",                    F_IGNORED, SAMPLING },
};
/* clang-format on */

static const struct field *find_field(const char *name, unsigned where)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (!strcmp(fields[i].name, name) && fields[i].where & where)
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

/* where: the one of enum where that v stands in. */
static int read_field(struct request *rq, unsigned where, const char *name, const json_t *v, struct fault *f)
{
    const struct field *d = find_field(name, where);

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

int openai_read_field(struct request *rq, const char *name, const json_t *v, struct fault *f)
{
    static const unsigned where[ENDPOINTS] = {
        [ENDPOINT_COMPLETION] = COMPLETION, [ENDPOINT_CHAT] = CHAT,         [ENDPOINT_GENERATE] = TOKENS,
        [ENDPOINT_RESPONSES] = RESPONSES,   [ENDPOINT_MESSAGES] = MESSAGES, [ENDPOINT_COUNT] = MESSAGES,
        [ENDPOINT_EMBEDDINGS] = EMBEDDINGS
    };
    return read_field(rq, where[rq->endpoint], name, v, f);
}

int openai_read_chat_field(struct request *rq, const char *name, const json_t *v, struct fault *f)
{
    return read_field(rq, CHAT, name, v, f);
}

int openai_read_sampling(struct request *rq, const json_t *params, struct fault *f)
{
    const char *key;
    json_t *v;

    if (params && !json_is_null(params) && !json_is_object(params))
        return fault_set(f, BAD, "sampling_params", "sampling_params must be an object");
    json_object_foreach((json_t *)(uintptr_t)params, key, v) {
        if (read_field(rq, SAMPLING, key, v, f) < 0) {
            snprintf(f->param, sizeof f->param, "sampling_params.%.47s", key);
            return -1;
        }
    }
    return 0;
}

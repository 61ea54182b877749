/* request.c - see request.h. */
#define _GNU_SOURCE /* memmem */
#include "serve/api/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/adapters/adapter_names.h"
#include "serve/api/answer_items.h"
#include "serve/api/chat_tools.h"

/* Last tokens of the prompt that the text of an answer depends on: more than a run of byte tokens. */
#define TEXT_BEFORE 64

int fault_set(struct fault *f, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    f->status = status;
    f->code[0] = 0;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    return -1;
}

int fault_set_context(struct fault *f, int64_t ctx, const char *param, const char *fmt, ...)
{
    char has[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(has, sizeof has, fmt, ap);
    va_end(ap);
    fault_set(f, 400, param, "this model's maximum context length is %lld tokens, but %s", (long long)ctx,
              has);
    snprintf(f->code, sizeof f->code, "context_length_exceeded");
    return -1;
}

int fault_set_late(struct fault *f, double limit_s)
{
    return fault_set(f, 503, NULL,
                     "this request has taken the %g s that requests may take here (--request-timeout): ask "
                     "for fewer tokens, or try again later",
                     limit_s);
}

/* ---- names ---- */

int request_name_valid(const char *name)
{
    size_t n = strlen(name);
    return n && n <= REQUEST_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:") == n;
}

void request_set_name(struct request *rq, const char *name)
{
    if (name != rq->name)
        snprintf(rq->name, sizeof rq->name, "%s", name);
    static const char *const prefix[] = {
        [ENDPOINT_COMPLETION] = "cmpl-", [ENDPOINT_CHAT] = "chatcmpl-", [ENDPOINT_GENERATE] = "",
        [ENDPOINT_RESPONSES] = "resp_",  [ENDPOINT_MESSAGES] = "msg_",  [ENDPOINT_COUNT] = "",
        [ENDPOINT_EMBEDDINGS] = "embd-"
    };
    snprintf(rq->id, sizeof rq->id, "%s%s", prefix[rq->endpoint], rq->name);
}

const char *request_model(const struct request *rq) { return rq->model[0] ? rq->model : rq->sv->model; }

/* ---- open and close ---- */

struct request *request_new(const struct service *sv)
{
    struct request *rq = calloc(1, sizeof *rq);
    if (!rq)
        return NULL;
    pthread_mutex_init(&rq->lock, NULL);
    rq->sv = sv;
    rq->version = served_get(&sv->served, NULL);
    rq->begin_s = clock_s();
    rq->max_tokens = ANSWER_DEFAULT;
    rq->key = -1;
    rq->n = 1;
    rq->max_completion_tokens = rq->top_logprobs = -1;
    rq->add_generation = 1;
    rq->logprobs = rq->prompt_logprobs = rq->tops = -1;
    rq->add_special = rq->skip_special = 1;
    rq->separate_reasoning = rq->parallel_tools = 1;
    rq->sampling = (struct sampling){ .temperature = 1, .top_p = 1, .repetition = 1 };
    rq->refs = 1;
    return rq;
}

static void choice_free(struct choice *c)
{
    free(c->ids);
    free(c->logprob);
    free(c->top);
    free(c->rank);
    free(c->ends);
    free(c->run);
    free(c->items.item);
    pooled_free(&c->pooled);
    tokenizer_stream_close(c->stream);
    json_out_free(&c->text);
    tool_parser_close(c->parts.parser);
    matcher_close(c->matcher);
}

void request_release(struct request *rq)
{
    if (!rq || atomic_fetch_sub(&rq->refs, 1) != 1)
        return;
    for (int i = 0; rq->choice && i < rq->n_choices; i++)
        choice_free(&rq->choice[i]);
    for (int i = 0; rq->prompt && i < rq->n_prompts; i++) {
        free(rq->prompt[i].ids);
        free(rq->prompt[i].text);
    }

    for (int i = 0; rq->stop && i < rq->n_stop; i++)
        free(rq->stop[i]);
    free(rq->stop);
    free(rq->salt);
    free(rq->cache_key);
    adapter_name_release(rq->adapter_name);
    free(rq->about);
    free(rq->history);
    free(rq->stop_ids);
    free(rq->watch);
    free(rq->sampling.bias);
    free(rq->sampling.allowed);
    free(rq->sampling.bad);
    free(rq->prompt);
    free(rq->choice);
    tool_set_close(rq->tool_set);
    grammar_close(rq->grammar);
    structured_free(&rq->structured);
    json_decref(rq->tools);
    json_out_free(&rq->events);
    json_out_free(&rq->answer);
    pthread_mutex_destroy(&rq->lock);
    free(rq);
}

int choice_scores_prompt(const struct choice *c)
{
    return (c->rq->echo && c->rq->logprobs >= 0) || c->rq->prompt_logprobs >= 0;
}

int64_t choice_tops(const struct request *rq, int sampled)
{
    if (sampled && rq->n_watch)
        return rq->n_watch;
    return rq->logprobs > rq->prompt_logprobs ? rq->logprobs : rq->prompt_logprobs;
}

/* realloc of the array at the pointer `array` to n elements. */
static int grow(void *array, int64_t n, size_t each)
{
    void **p = array, *q = realloc(*p, (size_t)n * each);
    if (!q)
        return -1;
    *p = q;
    return 0;
}

int choice_reserve(struct choice *c, int64_t n)
{
    int64_t tops = c->rq->tops;
    if (n <= c->cap)
        return 0;
    int64_t cap = n + n / 2 + 16;
    if (grow(&c->ids, cap, sizeof *c->ids) < 0 ||
        (tops >= 0 && grow(&c->logprob, cap, sizeof *c->logprob) < 0) ||
        (tops > 0 && grow(&c->top, cap * tops, sizeof *c->top) < 0) ||
        (c->rq->prompt_logprobs >= 0 && grow(&c->rank, cap, sizeof *c->rank) < 0) ||
        (items_are_noted(c->rq) && grow(&c->ends, cap, sizeof *c->ends) < 0))
        return -1;
    c->cap = cap;
    return 0;
}

/* Sets what the scheduler has to run. With max_tokens 0 the last token is not run: no one asked for its
 * prediction. */
static void choice_open_seq(struct choice *c)
{
    int scores = choice_scores_prompt(c);
    c->seq.owner = c;
    c->seq.salt = c->rq->cache_key;
    c->seq.adapter = c->rq->adapter;
    c->seq.priority = c->rq->priority;
    if (c->rq->endpoint == ENDPOINT_EMBEDDINGS) {
        c->seq.n_ids = c->n_ids;
        c->seq.first_want = c->rq->pooling == POOLING_LAST ? c->n_ids - 1 : 0;
        c->seq.wants_rows = 1;
    } else if (c->rq->max_tokens > 0) {
        c->seq.n_ids = c->n_ids;
        c->seq.first_want = scores ? 0 : c->n_ids - 1;
    } else {
        c->seq.n_ids = scores ? c->n_ids - 1 : 0;
        c->seq.first_want = 0;
    }
    c->finish = c->seq.n_ids ? FINISH_NONE : FINISH_LENGTH;
}

/* Has token i of the prompt a text? In an echo special tokens have one, except those that the tokenizer
 * adds. */
static int prompt_token_shows(const struct choice *c, int64_t i)
{
    const struct request *rq = c->rq;
    if (rq->echo)
        return i >= c->prompt->n_added;
    return !rq->skip_special || !tokenizer_is_special(rq->sv->tok, c->prompt->ids[i]);
}

/* Opens the stream of text behind the prompt. It gets the prompt's last tokens only: a token's text depends
 * on whether it is the first, and on the bytes of a character that it continues. */
static int choice_open_text(struct choice *c)
{
    const struct request *rq = c->rq;
    const struct prompt *p = c->prompt;
    const char *text;
    size_t n;
    struct err e;
    int64_t from = p->n, shown = 0;

    if (!rq->sv->tok || (rq->tokens_only && !rq->n_stop))
        return 0;
    while (from > 0 && shown < TEXT_BEFORE)
        shown += prompt_token_shows(c, --from);
    for (c->begins = 0; c->begins < p->n && !prompt_token_shows(c, c->begins);)
        c->begins++;

    int skip = !rq->echo && rq->skip_special;
    from = from > c->begins ? from : c->begins;
    return tokenizer_stream_open(&c->stream, rq->sv->tok, rq->skip_special && !rq->divided, &e) < 0 ||
                   tokenizer_stream_begin(c->stream, p->ids + from, (size_t)(p->n - from), skip, &text, &n,
                                          &e) < 0
               ? -1
               : 0;
}

/* Opens the matcher of a choice whose answer is constrained. */
static int choice_open_matcher(struct choice *c)
{
    const struct request *rq = c->rq;
    struct err e;
    if (!rq->grammar)
        return 0;
    const struct token_trie *t = grammar_cache_trie(rq->sv->grammars, rq->sv, &e);
    return t ? matcher_open(&c->matcher, rq->grammar, t, &e) : -1;
}

/* What the pages of its prompts are shared under. The first letter tells whether there is an adapter, so that
 * no salt of a client stands for one. */
static int make_cache_key(struct request *rq)
{
    const char *digest = rq->adapter_digest, *salt = rq->salt ? rq->salt : "";
    size_t n = strlen(digest) + strlen(salt) + 3;
    if (!rq->adapter && !rq->salt)
        return 0;
    rq->cache_key = malloc(n);
    if (!rq->cache_key)
        return -1;
    snprintf(rq->cache_key, n, "%c%s%s%s", rq->adapter ? 'a' : 's', digest, rq->salt ? " " : "", salt);
    return 0;
}

int request_open_choices(struct request *rq)
{
    int n = rq->n_prompts * (int)rq->n;

    rq->tops = choice_tops(rq, 0) > choice_tops(rq, 1) ? choice_tops(rq, 0) : choice_tops(rq, 1);
    rq->choice = calloc((size_t)n, sizeof *rq->choice);
    if (!rq->choice || make_cache_key(rq) < 0)
        return -1;
    rq->n_choices = n;
    for (int i = 0; i < n; i++) {
        struct choice *c = &rq->choice[i];
        c->rq = rq;
        c->index = i;
        c->k = i % (int)rq->n;
        c->prompt = &rq->prompt[i / (int)rq->n];
        c->stop_id = -1;
        if (choice_reserve(c, c->prompt->n + (rq->max_tokens < 64 ? rq->max_tokens : 64)) < 0)
            return -1;
        memcpy(c->ids, c->prompt->ids, sizeof *c->ids * (size_t)c->prompt->n);
        c->n_ids = c->prompt->n;
        if (choice_open_text(c) < 0 || parts_open(c) < 0 || choice_open_matcher(c) < 0)
            return -1;
        if (!rq->echo)
            c->sent_ids = c->n_ids;
        choice_open_seq(c);
        rq->n_open += c->finish == FINISH_NONE;
    }

    return 0;
}

/* ---- tokens ---- */

/* n: entries of top. */
static void set_logprob(struct choice *c, int64_t i, float logprob, const struct top_entry *top, int64_t n)
{
    if (n < 0)
        return;
    c->logprob[i] = logprob;
    if (n)
        memcpy(c->top + i * c->rq->tops, top, sizeof *top * (size_t)n);
}

void choice_score(struct choice *c, int64_t i, float logprob, const struct top_entry *top, int64_t rank)
{
    set_logprob(c, i, logprob, top, choice_tops(c->rq, 0));
    if (c->rank)
        c->rank[i] = (int32_t)rank;
}

/* Does this token end the answer? */
static int is_end(const struct choice *c, int32_t id)
{
    const struct request *rq = c->rq;
    for (int i = 0; !rq->ignore_eos && i < rq->sv->n_eos; i++)
        if (rq->sv->eos[i] == id)
            return 1;
    for (int i = 0; i < rq->n_stop_ids; i++)
        if (rq->stop_ids[i] == id)
            return 1;
    return 0;
}

/* Cuts the text off at the first stop string, or behind it where the answer includes it. Searches what may
 * have become complete since the text was `old` bytes long. 1: there was one. */
static int cut_at_stop(struct choice *c, size_t old)
{
    const struct request *rq = c->rq;
    size_t best = SIZE_MAX, end = 0;

    for (int i = 0; i < rq->n_stop; i++) {
        size_t len = strlen(rq->stop[i]), from = old > len - 1 ? old - (len - 1) : 0;
        from = from < c->no_stop ? c->no_stop : from;
        const char *at = c->text.n > from ? memmem(c->text.p + from, c->text.n - from, rq->stop[i], len)
                                          : NULL;
        if (at && (size_t)(at - c->text.p) < best) {
            best = (size_t)(at - c->text.p);
            end = rq->include_stop ? best + len : best;
            c->stop_text = rq->stop[i];
        }
    }

    if (best == SIZE_MAX)
        return 0;
    c->text.n = end;
    c->text.p[end] = 0;
    return 1;
}

/* Is a special token left out of the text? Not where calls and reasoning are written with it. */
static int is_skipped(const struct choice *c, int32_t id)
{
    const struct request *rq = c->rq;
    size_t n;

    if (!rq->divided || !rq->skip_special || !tokenizer_is_special(rq->sv->tok, id))
        return 0;
    const char *text = tokenizer_token_text(rq->sv->tok, id, &n);
    return !text || !tools_reads_token(&rq->sv->form, text, n);
}

/* Adds the text of token id (negative: none) as far as it is certain; with last, also what an incomplete
 * character leaves. 1: a stop string ended it; 0: not; -1 with *f. */
static int add_text(struct choice *c, int32_t id, int last, struct fault *f)
{
    const char *piece;
    size_t n, old = c->text.n;
    struct err e;

    if (!c->stream)
        return 0;
    if (id >= 0 && !is_skipped(c, id)) {
        if (tokenizer_stream_feed(c->stream, id, &piece, &n, &e) < 0)
            return fault_set(f, 500, NULL, "%s", e.text);
        json_out_bytes(&c->text, piece, n);
    }

    if (last) {
        if (tokenizer_stream_finish(c->stream, &piece, &n, &e) < 0)
            return fault_set(f, 500, NULL, "%s", e.text);
        json_out_bytes(&c->text, piece, n);
    }

    if (c->text.failed)
        return fault_set(f, 500, NULL, "no memory for the text");
    if (c->n_ids - c->prompt->n >= c->rq->sampling.min_tokens)
        return cut_at_stop(c, old);
    c->no_stop = c->text.n;
    return 0;
}

/* Takes a token within the grammar, if there is one. 1: the answer is complete, no token can follow; 0: not;
 * -1 with *f. */
static int follow_grammar(struct choice *c, int32_t id, struct fault *f)
{
    struct err e;
    if (!c->matcher)
        return 0;
    int rc = matcher_take(c->matcher, id, &e);
    if (rc < 0)
        return fault_set(f, rc == -ERR_MEMORY ? 500 : 400, "structured_outputs", "%s", e.text);
    if (!rc)
        return fault_set(f, 500, NULL, "token %d is outside the grammar", id);
    return matcher_at_end(c->matcher) == 2;
}

/* Notes the version of the weights that make the next token. */
static int note_version(struct choice *c)
{
    const int64_t now = c->rq->sv->served.version;
    if (c->n_runs && c->run[c->n_runs - 1].version == now)
        return 0;
    if (grow(&c->run, c->n_runs + 1, sizeof *c->run) < 0)
        return -1;
    c->run[c->n_runs++] = (struct version_run){ c->n_ids - c->prompt->n, now };
    return 0;
}

int64_t choice_version(const struct choice *c, int64_t i)
{
    int k = c->n_runs - 1;
    while (k > 0 && c->run[k].first > i)
        k--;
    return k < 0 ? c->rq->version : c->run[k].version;
}

void choice_abort(struct choice *c)
{
    const char *piece;
    size_t n;
    struct err e;
    if (c->stream && tokenizer_stream_finish(c->stream, &piece, &n, &e) == 0)
        json_out_bytes(&c->text, piece, n);
    c->finish = FINISH_ABORT;
}

int choice_accept(struct choice *c, int32_t id, float logprob, const struct top_entry *top, struct fault *f)
{
    int complete = follow_grammar(c, id, f), end = is_end(c, id), stopped;
    if (complete < 0)
        return -1;
    if (choice_reserve(c, c->n_ids + 1) < 0 || note_version(c) < 0)
        return fault_set(f, 500, NULL, "no memory for %lld tokens", (long long)c->n_ids + 1);
    c->ids[c->n_ids] = id;
    set_logprob(c, c->n_ids, logprob, top, choice_tops(c->rq, 1));
    c->n_ids++;
    c->seq.n_ids = c->n_ids;
    int full = c->n_ids - c->prompt->n >= c->rq->max_tokens;
    stopped = add_text(c, end && !c->rq->include_stop ? -1 : id, end || full || complete, f);
    if (stopped < 0)
        return -1;
    if (c->ends)
        c->ends[c->n_ids - 1] = c->text.n;
    c->finish = end || stopped || complete ? FINISH_STOP : full ? FINISH_LENGTH : FINISH_NONE;
    if (end && !stopped)
        c->stop_id = id;
    return 0;
}

size_t choice_safe_text(const struct choice *c)
{
    const struct request *rq = c->rq;
    size_t held = 0;
    if (c->finish != FINISH_NONE || rq->include_stop)
        return c->text.n;
    for (int i = 0; i < rq->n_stop; i++) {
        size_t len = strlen(rq->stop[i]), k = len - 1 < c->text.n ? len - 1 : c->text.n;
        while (k > held && memcmp(c->text.p + c->text.n - k, rq->stop[i], k))
            k--;
        held = k > held ? k : held;
    }
    return c->text.n - held;
}

/* ---- state ---- */

/* f NULL: no fault, so the first token is there. tail: the last bytes of the events, or NULL. */
static void change(struct request *rq, const struct fault *f, int done, const struct json_out *tail)
{
    pthread_mutex_lock(&rq->lock);
    if (!rq->done) {
        if (tail && tail->n)
            json_out_bytes(&rq->events, tail->p, tail->n);
        if (f)
            rq->fault = *f;
        rq->started |= !f;
        rq->done |= done;
        if (rq->wake)
            rq->wake(rq);
    }
    pthread_mutex_unlock(&rq->lock);
}

void request_begin(struct request *rq) { change(rq, NULL, 0, NULL); }
void request_finish(struct request *rq) { change(rq, NULL, 1, NULL); }
void request_finish_stream(struct request *rq, const struct json_out *tail) { change(rq, NULL, 1, tail); }
void request_fail(struct request *rq, const struct fault *f) { change(rq, f, 1, NULL); }

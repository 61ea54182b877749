/* answer.c - what goes back to the client: answers, events of a stream, errors. See openai.h. */
#include <stdlib.h>
#include <string.h>
#include "serve/adapters/adapter_names.h"
#include "serve/api/answer.h"
#include "serve/api/answer_items.h"
#include "serve/api/chat_tools.h"

/* ---- log-probs ---- */

int answer_tops(const struct choice *c, int64_t i)
{
    return i >= c->prompt->n && c->rq->n_watch ? c->rq->n_watch : (int)c->rq->logprobs;
}

/* The most likely tokens at i, or those of logprob_token_ids, and the one that is there. */
static void write_top(struct json_out *o, const struct choice *c, int64_t i)
{
    const struct request *rq = c->rq;
    struct top_entry row[WATCH_MAX + 1];
    int n = answer_tops(c, i);
    const char *comma = "";

    if (n)
        memcpy(row, c->top + i * rq->tops, sizeof *row * (size_t)n);
    row[n++] = (struct top_entry){ c->ids[i], c->logprob[i] };
    json_out_text(o, "{");
    for (int a = 0; a < n; a++) {
        int seen = 0;
        for (int b = 0; b < a && !seen; b++)
            seen = answer_same_key(c, i, row[a].id, row[b].id);
        if (seen)
            continue;
        json_out_text(o, comma);
        answer_write_token(o, c, i, row[a].id);
        json_out_text(o, ":");
        json_out_logprob(o, row[a].logprob);
        comma = ",";
    }

    json_out_text(o, "}");
}

static void write_ranked(struct json_out *o, const struct choice *c, int64_t i, struct top_entry t,
                         int64_t rank)
{
    size_t n;
    const char *p = answer_token(c, i, t.id, &n);
    json_out_fmt(o, "\"%d\":{\"logprob\":", t.id);
    json_out_logprob(o, t.logprob);
    json_out_fmt(o, ",\"rank\":%lld,\"decoded_token\":", (long long)rank);
    if (p)
        json_out_string_n(o, p, n);
    else
        json_out_text(o, "null");
    json_out_text(o, "}");
}

/* The four lists over tokens [first, last). offset: code points before the first. The first token of a prompt
 * follows nothing: it has no log-prob. */
static void write_logprobs(struct json_out *o, const struct choice *c, int64_t first, int64_t last,
                           int64_t offset)
{
    json_out_text(o, "{\"tokens\":[");
    for (int64_t i = first; i < last; i++) {
        json_out_text(o, i > first ? "," : "");
        answer_write_token(o, c, i, c->ids[i]);
    }

    json_out_text(o, "],\"token_logprobs\":[");
    for (int64_t i = first; i < last; i++) {
        json_out_text(o, i > first ? "," : "");
        if (i)
            json_out_logprob(o, c->logprob[i]);
        else
            json_out_text(o, "null");
    }

    json_out_text(o, "],\"top_logprobs\":[");
    for (int64_t i = first; i < last; i++) {
        json_out_text(o, i > first ? "," : "");
        if (i)
            write_top(o, c, i);
        else
            json_out_text(o, "null");
    }

    json_out_text(o, "],\"text_offset\":[");
    for (int64_t i = first; i < last; i++) {
        json_out_fmt(o, "%s%lld", i > first ? "," : "", (long long)offset);
        offset += answer_token_length(c, i);
    }

    json_out_text(o, "]}");
}

/* ---- choices ---- */

void answer_write_ids(struct json_out *o, const int32_t *ids, int64_t n)
{
    json_out_text(o, "[");
    for (int64_t i = 0; i < n; i++)
        json_out_fmt(o, "%s%d", i ? "," : "", ids[i]);
    json_out_text(o, "]");
}

/* Decodes the ids of a prompt. A character that its last tokens begin belongs to the answer, which goes on
 * with it. */
static void echo_ids(struct json_out *o, const struct choice *c)
{
    const struct prompt *p = c->prompt;
    struct tokenizer_stream *s = NULL;
    const char *text;
    size_t n;
    struct err e;

    if (tokenizer_stream_open(&s, c->rq->sv->tok, 0, &e) < 0)
        return;
    if (tokenizer_stream_begin(s, p->ids + p->n_added, (size_t)(p->n - p->n_added), 0, &text, &n, &e) == 0)
        json_out_bytes(o, text, n);
    if (c->rq->max_tokens == 0 && tokenizer_stream_finish(s, &text, &n, &e) == 0)
        json_out_bytes(o, text, n);
    tokenizer_stream_close(s);
}

/* Appends the prompt's text: as it was sent, or decoded from its ids; or a chat's last message. */
static void echo_text(struct json_out *o, const struct choice *c)
{
    const struct prompt *p = c->prompt;
    if (p->text)
        json_out_bytes(o, p->text, p->n_text);
    else if (c->rq->sv->tok)
        echo_ids(o, c);
}

void answer_write_prompt_logprobs(struct json_out *o, const struct choice *c)
{
    const struct request *rq = c->rq;
    if (rq->prompt_logprobs < 0)
        return;
    json_out_text(o, ",\"prompt_logprobs\":[null");
    for (int64_t i = 1; i < c->prompt->n; i++) {
        const struct top_entry *top = rq->tops ? c->top + i * rq->tops : NULL;
        json_out_text(o, ",{");
        write_ranked(o, c, i, (struct top_entry){ c->ids[i], c->logprob[i] }, c->rank[i]);
        for (int64_t j = 0; j < rq->prompt_logprobs; j++) {
            if (top[j].id == c->ids[i])
                continue;
            json_out_text(o, ",");
            write_ranked(o, c, i, top[j], j + 1);
        }
        json_out_text(o, "}");
    }
    json_out_text(o, "]");
}

void answer_write_prompt_ids(struct json_out *o, const struct choice *c)
{
    if (!c->rq->return_ids)
        return;
    json_out_text(o, ",\"prompt_token_ids\":");
    answer_write_ids(o, c->prompt->ids, c->prompt->n);
}

/* The newest version of the weights that made a token of the answer; before the first one the
 * request's. */
static int64_t answer_version(const struct request *rq)
{
    int64_t newest = -1;
    for (int i = 0; i < rq->n_choices; i++) {
        const struct choice *c = &rq->choice[i];
        if (c->n_runs && c->run[c->n_runs - 1].version > newest)
            newest = c->run[c->n_runs - 1].version;
    }
    return newest < 0 ? rq->version : newest;
}

void answer_write_weights(struct json_out *o, const struct request *rq)
{
    json_out_text(o, ",\"system_fingerprint\":");
    json_out_string(o, rq->fingerprint[0] ? rq->fingerprint : NULL);
    json_out_fmt(o, ",\"weight_version\":%lld", (long long)answer_version(rq));
}

void answer_write_versions(struct json_out *o, const struct choice *c, int64_t first)
{
    json_out_text(o, ",\"token_versions\":[");
    for (int64_t i = first; i < c->n_ids; i++)
        json_out_fmt(o, i > first ? ",%lld" : "%lld", (long long)choice_version(c, i - c->prompt->n));
    json_out_text(o, "]");
}

void answer_write_finish(struct json_out *o, const struct choice *c)
{
    static const char *const reason[] = {
        [FINISH_NONE] = "null",
        [FINISH_STOP] = "\"stop\"",
        [FINISH_LENGTH] = "\"length\"",
        [FINISH_ABORT] = "\"abort\"",
    };
    int called = c->finish == FINISH_STOP && parts_have_calls(c);
    json_out_fmt(o, ",\"finish_reason\":%s,\"stop_reason\":", called ? "\"tool_calls\"" : reason[c->finish]);
    if (c->finish == FINISH_STOP && c->stop_id >= 0)
        json_out_fmt(o, "%d", c->stop_id);
    else
        json_out_string(o, c->finish == FINISH_STOP ? c->stop_text : NULL);
}

/* Appends a choice with the tokens [first, c->n_ids) and the text that belongs to them. */
static void write_choice(struct json_out *o, const struct choice *c, const struct json_out *text,
                         int64_t first, int64_t offset, int with_prompt_ids)
{
    const struct request *rq = c->rq;
    int64_t gen = first > c->prompt->n ? first : c->prompt->n;

    json_out_fmt(o, "{\"index\":%d,\"text\":", c->index);
    json_out_string_n(o, text->p, text->n);
    json_out_text(o, ",\"logprobs\":");
    if (rq->logprobs >= 0)
        write_logprobs(o, c, first, c->n_ids, offset);
    else
        json_out_text(o, "null");
    answer_write_finish(o, c);
    answer_write_prompt_logprobs(o, c);
    if (with_prompt_ids)
        answer_write_prompt_ids(o, c);
    if (rq->return_ids) {
        json_out_text(o, ",\"token_ids\":");
        answer_write_ids(o, c->ids + gen, c->n_ids - gen);
        answer_write_versions(o, c, gen);
    }

    json_out_text(o, "}");
}

static void write_head(struct json_out *o, const struct request *rq)
{
    if (rq->tokens_only) {
        generate_write_head(o, rq);
        return;
    }

    const char *object = !rq->chat    ? "text_completion"
                         : rq->stream ? "chat.completion.chunk"
                                      : "chat.completion";
    json_out_fmt(o, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", rq->id, object,
                 (long long)rq->created);
    json_out_string(o, request_model(rq));
    answer_write_weights(o, rq);
    json_out_text(o, ",\"choices\":[");
}

/* Tokens generated, of all choices together. */
static int64_t count_generated(const struct request *rq)
{
    int64_t n = 0;
    for (int i = 0; i < rq->n_choices; i++)
        n += rq->choice[i].n_ids - rq->choice[i].prompt->n;
    return n;
}

/* Generated tokens that the events of a stream have described so far. */
static int64_t count_sent(const struct request *rq)
{
    int64_t n = 0;
    for (int i = 0; i < rq->n_choices; i++) {
        const struct choice *c = &rq->choice[i];
        n += c->sent_ids > c->prompt->n ? c->sent_ids - c->prompt->n : 0;
    }
    return n;
}

/* Those of them that are reasoning, as /v1/responses counts them. */
static int64_t count_reasoning(const struct request *rq)
{
    int64_t n = 0;
    for (int i = 0; i < rq->n_choices; i++)
        n += items_count_tokens(&rq->choice[i], ITEM_REASONING);
    return n;
}

static void write_usage(struct json_out *o, const struct request *rq, int64_t generated)
{
    int64_t prompt = 0, cached = 0;

    for (int i = 0; i < rq->n_prompts; i++)
        prompt += rq->prompt[i].n;
    for (int i = 0; i < rq->n_choices; i += (int)rq->n)
        cached += rq->choice[i].seq.n_cached;
    json_out_fmt(
        o,
        "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,\"prompt_"
        "tokens_details\":",
        (long long)prompt, (long long)generated, (long long)(prompt + generated));
    if (rq->sv->prefix_cache)
        json_out_fmt(o, "{\"cached_tokens\":%lld}", (long long)cached);
    else
        json_out_text(o, "null");
    if (items_are_noted(rq))
        json_out_fmt(o, ",\"completion_tokens_details\":{\"reasoning_tokens\":%lld}",
                     (long long)count_reasoning(rq));
    json_out_text(o, "}");
}

void openai_answer(struct json_out *o, const struct request *rq)
{
    write_head(o, rq);
    for (int i = 0; i < rq->n_choices; i++) {
        struct choice *c = &rq->choice[i];
        struct json_out text = { 0 };
        parts_feed(c, c->text.n, o);
        if (rq->echo || rq->echo_message)
            echo_text(&text, c);
        if (!c->parts.parser)
            json_out_bytes(&text, c->text.p, c->text.n);
        o->failed |= text.failed;
        json_out_text(o, i ? "," : "");
        if (rq->tokens_only)
            generate_write_choice(o, c, c->prompt->n);
        else if (rq->chat)
            chat_write_choice(o, c, &text);
        else
            write_choice(o, c, &text, rq->echo ? 0 : c->prompt->n, 0, 1);
        json_out_free(&text);
    }

    json_out_text(o, "],");
    write_usage(o, rq, count_generated(rq));
    if (rq->tokens_only) {
        generate_write_tail(o, rq);
    } else if (rq->chat) {
        answer_write_prompt_logprobs(o, rq->choice);
        answer_write_prompt_ids(o, rq->choice);
    }
    json_out_text(o, "}");
}

static void begin_event(struct json_out *o, const struct request *rq)
{
    json_out_text(o, "data: ");
    write_head(o, rq);
}

static void end_event(struct json_out *o, struct request *rq)
{
    json_out_text(o, "]");
    if (rq->chat && !rq->prompt_ids_sent)
        answer_write_prompt_ids(o, rq->choice);
    rq->prompt_ids_sent = 1;
    if (rq->usage_in_every_chunk) {
        json_out_text(o, ",");
        write_usage(o, rq, count_sent(rq));
    } else if (rq->include_usage) {
        json_out_text(o, ",\"usage\":null");
    }
    json_out_text(o, "}\n\n");
}

void openai_event(struct json_out *o, struct choice *c, size_t text_end)
{
    struct request *rq = c->rq;
    struct json_out text = { 0 };
    int first = rq->echo ? c->sent_ids == 0 : c->sent_ids == c->prompt->n;

    if ((rq->echo || rq->echo_message) && first)
        echo_text(&text, c);
    parts_feed(c, text_end, o);
    if (!c->parts.parser)
        json_out_bytes(&text, c->text.p + c->sent, text_end - c->sent);
    o->failed |= text.failed;
    if (rq->chat && !c->role_sent) {
        begin_event(o, rq);
        chat_write_role(o, c);
        end_event(o, rq);
        c->role_sent = 1;
    }

    begin_event(o, rq);
    if (rq->tokens_only)
        generate_write_choice(o, c, c->sent_ids);
    else if (rq->chat)
        chat_write_delta(o, c, &text);
    else
        write_choice(o, c, &text, c->sent_ids, c->offset, first);
    for (; c->sent_ids < c->n_ids; c->sent_ids++)
        c->offset += answer_token_length(c, c->sent_ids);
    end_event(o, rq); /* its usage counts the tokens of this event */

    c->sent = text_end;
    c->end_sent = c->finish != FINISH_NONE;
    json_out_free(&text);
}

void openai_end(struct json_out *o, struct request *rq)
{
    if (rq->include_usage) {
        begin_event(o, rq);
        json_out_text(o, "],");
        write_usage(o, rq, count_generated(rq));
        json_out_text(o, "}\n\n");
    }
    json_out_text(o, "data: [DONE]\n\n");
}

void openai_stream_error(struct json_out *o, const struct request *rq, const struct fault *f)
{
    (void)rq;
    json_out_text(o, "data: ");
    openai_error(o, f);
    json_out_text(o, "\n\ndata: [DONE]\n\n");
}

void openai_error(struct json_out *o, const struct fault *f)
{
    static const struct {
        int status;
        const char *type;
    } type[] = {
        { 401, "authentication_error" }, { 403, "permission_error" },    { 404, "not_found_error" },
        { 429, "rate_limit_error" },     { 501, "not_supported_error" }, { 503, "unavailable_error" },
    };
    const char *name = f->status >= 500 ? "server_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof type / sizeof type[0]; i++)
        name = type[i].status == f->status ? type[i].type : name;
    json_out_text(o, "{\"error\":{\"message\":");
    json_out_string(o, f->text);
    json_out_fmt(o, ",\"type\":\"%s\",\"param\":", name);
    json_out_string(o, f->param[0] ? f->param : NULL);
    json_out_text(o, ",\"code\":");
    if (f->code[0])
        json_out_string(o, f->code);
    else
        json_out_fmt(o, "%d", f->status);
    json_out_text(o, "}}");
}

/* root: where it comes from; parent: the model of an adapter, else NULL. */
static void write_model(struct json_out *o, const struct service *sv, const char *name, int64_t created,
                        const char *root, const char *parent)
{
    json_out_text(o, "{\"id\":");
    json_out_string(o, name);
    json_out_fmt(o, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"shardline\",\"root\":",
                 (long long)created);
    json_out_string(o, root);
    json_out_text(o, ",\"parent\":");
    json_out_string(o, parent);
    json_out_fmt(o, ",\"max_model_len\":%lld", (long long)sv->ctx);
    if (!parent) {
        char digest[33];
        json_out_fmt(o, ",\"weight_version\":%lld,\"weights_digest\":",
                     (long long)served_get(&sv->served, digest));
        json_out_string(o, *digest ? digest : NULL);
    }
    json_out_text(o, "}");
}

int openai_model(struct json_out *o, const struct service *sv, const char *name)
{
    if (!strcmp(name, sv->model)) {
        write_model(o, sv, sv->model, sv->created, sv->model, NULL);
        return 0;
    }
    struct adapter_name *a = adapter_names_find(sv->adapters, name);
    if (a)
        write_model(o, sv, a->name, a->created, a->path, sv->model);
    adapter_name_release(a);
    return a ? 0 : -1;
}

struct model_list {
    struct json_out *o;
    const struct service *sv;
};

static void add_adapter(void *arg, const struct adapter_name *a)
{
    const struct model_list *l = arg;
    json_out_text(l->o, ",");
    write_model(l->o, l->sv, a->name, a->created, a->path, l->sv->model);
}

void openai_models(struct json_out *o, const struct service *sv)
{
    json_out_text(o, "{\"object\":\"list\",\"data\":[");
    struct model_list l = { o, sv };
    openai_model(o, sv, sv->model);
    adapter_names_each(sv->adapters, add_adapter, &l);
    json_out_text(o, "]}");
}

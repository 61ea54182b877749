/* routes.c - the table of paths, and what each of them answers. See exchange.h. */
#include <stdlib.h>
#include <string.h>
#include "base/version.h"
#include "serve/adapters/adapter_names.h"
#include "serve/http/admin.h"
#include "serve/http/admin_adapters.h"
#include "serve/http/assets.h"
#include "serve/http/exchange.h"
#include "serve/api/tokens.h"
#include "serve/doors/messages.h"
#include "serve/doors/responses.h"
#include "serve/kv/kv.h"

/* ---- answers at once ---- */

static enum MHD_Result answer_health(struct exchange *x)
{
    static const char *const why[] = { [SERVICE_DRAINING] = "draining", [SERVICE_FAILED] = "failed" };
    int state = atomic_load(&x->h->sv->state);
    struct json_out o = { 0 };
    struct fault f;

    if (state == SERVICE_READY) {
        const struct load_progress *v = &x->h->sv->verify;
        const int64_t blocks = atomic_load(&v->total);
        if (blocks)
            json_out_fmt(&o, "{\"verified\":%.4f}", (double)atomic_load(&v->done) / (double)blocks);
        return queue_body(x, 200, &o, NULL, NULL);
    }
    if (state != SERVICE_LOADING) {
        fault_set(&f, 503, NULL, "the server is not ready: %s", why[state]);
        return queue_fault(x, &f, NULL);
    }

    struct load_progress *p = &x->h->sv->load;
    double part = atomic_load(&p->total) ? (double)atomic_load(&p->done) / (double)atomic_load(&p->total) : 0;
    fault_set(&f, 503, NULL, "the server is not ready: loading, %d %% of the weights are read",
              (int)(part * 100));
    openai_error(&o, &f);
    if (o.n)
        o.n--; /* without the last brace: one more member */
    json_out_fmt(&o, ",\"progress\":%.4f}", part);
    return queue_body(x, 503, &o, NULL, NULL);
}

static enum MHD_Result answer_version(struct exchange *x)
{
    struct json_out o = { 0 };
    json_out_fmt(&o, "{\"version\":\"%s\"}", SHARDLINE_VERSION);
    return queue_body(x, 200, &o, NULL, NULL);
}

static enum MHD_Result answer_models(struct exchange *x)
{
    struct json_out o = { 0 };
    openai_models(&o, x->h->sv);
    return queue_body(x, 200, &o, NULL, NULL);
}

static enum MHD_Result answer_model(struct exchange *x)
{
    const char *name = strstr(x->path, "/models/") + strlen("/models/"); /* with /v1 before it, or without */
    struct json_out o = { 0 };
    struct fault f;
    if (openai_model(&o, x->h->sv, name) < 0) {
        adapter_names_unknown(x->h->sv, name, &f);
        return queue_fault(x, &f, NULL);
    }
    return queue_body(x, 200, &o, NULL, NULL);
}

/* GET and DELETE of a response that is kept. */
static enum MHD_Result answer_response(struct exchange *x)
{
    const char *id = strstr(x->path, "/responses/") + strlen("/responses/");
    struct json_out o = { 0 };
    struct fault f;
    int deletes = !strcmp(x->method, "DELETE"), rc = deletes ? responses_delete(x->h->sv, x->key, id, &o, &f)
                                                             : responses_read(x->h->sv, x->key, id, &o, &f);
    return rc < 0 ? queue_fault(x, &f, NULL) : queue_body(x, 200, &o, NULL, NULL);
}

static enum MHD_Result answer_metrics(struct exchange *x)
{
    static const struct metrics none;
    const struct router *rt = x->h->router;
    const struct metrics **all = calloc((size_t)rt->n, sizeof *all);
    const struct service *sv = x->h->sv;
    const struct metrics_labels labels = { sv->model,        sv->kv_dtype, KV_PAGE,
                                           sv->prefix_cache, sv->drafts,   sv->adapters };
    struct json_out o = { .failed = !all };
    for (int i = 0; all && i < rt->n; i++)
        all[i] = i ? &rt->replica[i].metrics : sv->metrics ? sv->metrics : &none;
    if (all)
        metrics_write(&o, all, rt->n, &labels);
    metrics_write_process(&o);
    free(all);
    return queue_body(x, 200, &o, "text/plain; version=0.0.4; charset=utf-8", NULL);
}

static enum MHD_Result answer_tokenizer(struct exchange *x)
{
    struct json_out o = { 0 };
    struct fault f;
    if (tokens_info(x->h->sv, &o, &f) < 0)
        return queue_fault(x, &f, NULL);
    return queue_body(x, 200, &o, NULL, NULL);
}

static enum MHD_Result answer_is_paused(struct exchange *x)
{
    struct json_out o = { 0 };
    json_out_fmt(&o, "{\"is_paused\":%s}", atomic_load(&x->h->sv->paused) ? "true" : "false");
    return queue_body(x, 200, &o, NULL, NULL);
}

/* As SGLang has it: a text. */
static enum MHD_Result answer_weight_version(struct exchange *x)
{
    struct json_out o = { 0 };
    json_out_fmt(&o, "{\"weight_version\":\"%lld\"}", (long long)served_get(&x->h->sv->served, NULL));
    return queue_body(x, 200, &o, NULL, NULL);
}

/* A route of another server that is not here, with the reason. */
static enum MHD_Result answer_refusal(struct exchange *x)
{
    struct fault f;
    fault_set(&f, 501, NULL, "%s: %s", x->path, admin_refusal(x->path));
    return queue_fault(x, &f, NULL);
}

static enum MHD_Result answer_page(struct exchange *x)
{
    struct asset a = asset_page();
    return queue_static(x, a.p, a.n, "text/html; charset=utf-8");
}

static enum MHD_Result answer_openapi(struct exchange *x)
{
    struct asset a = asset_openapi();
    return queue_static(x, a.p, a.n, "application/json");
}

/* ---- work on a body ---- */

static const char *body_of(const struct exchange *x) { return x->body.p ? x->body.p : ""; }

static void complete(struct exchange *x, enum endpoint endpoint)
{
    struct request *rq;
    if (openai_parse_of(x->h->sv, endpoint, x->key, body_of(x), x->body.n, &rq, &x->fault) < 0)
        return;
    if (x->id[0]) /* the header takes precedence over the field, as in vLLM */
        request_set_name(rq, x->id);
    submit_request(x, rq, &x->fault);
}

static void work_completion(struct exchange *x) { complete(x, ENDPOINT_COMPLETION); }
static void work_chat(struct exchange *x) { complete(x, ENDPOINT_CHAT); }
static void work_generate(struct exchange *x) { complete(x, ENDPOINT_GENERATE); }
static void work_responses(struct exchange *x) { complete(x, ENDPOINT_RESPONSES); }
static void work_messages(struct exchange *x) { complete(x, ENDPOINT_MESSAGES); }
static void work_embeddings(struct exchange *x) { complete(x, ENDPOINT_EMBEDDINGS); }
static void work_count(struct exchange *x)
{
    messages_count(x->h->sv, body_of(x), x->body.n, &x->answer, &x->fault);
}
static void work_tokenize(struct exchange *x)
{
    tokens_encode(x->h->sv, body_of(x), x->body.n, &x->answer, &x->fault);
}
static void work_detokenize(struct exchange *x)
{
    tokens_decode(x->h->sv, body_of(x), x->body.n, &x->answer, &x->fault);
}

static void work_reload(struct exchange *x)
{
    admin_reload(x->h->sv, x->h->router, body_of(x), x->body.n, &x->answer, &x->fault);
}

static void work_update_from_disk(struct exchange *x)
{
    admin_update_from_disk(x->h->sv, x->h->router, body_of(x), x->body.n, &x->answer, &x->fault);
}

static void work_pause(struct exchange *x) { admin_pause(x->h->router, x->mode, &x->answer, &x->fault); }
static void work_resume(struct exchange *x) { admin_resume(x->h->router, &x->answer, &x->fault); }
static void work_pause_generation(struct exchange *x)
{
    admin_pause_generation(x->h->router, body_of(x), x->body.n, &x->answer, &x->fault);
}
static void work_continue_generation(struct exchange *x)
{
    admin_continue_generation(x->h->router, &x->answer, &x->fault);
}

static void work_load_adapter(struct exchange *x)
{
    x->answer_type = "text/plain; charset=utf-8";
    admin_load_adapter(x->h->sv, x->h->router, body_of(x), x->body.n, &x->answer, &x->fault);
}

static void work_unload_adapter(struct exchange *x)
{
    x->answer_type = "text/plain; charset=utf-8";
    admin_unload_adapter(x->h->sv, body_of(x), x->body.n, &x->answer, &x->fault);
}

/* ---- the table ---- */

#define READ "GET, HEAD"
static const struct route routes[] = {
    { "/", READ, ROUTE_WHILE_LOADING | ROUTE_OPEN, answer_page, NULL },
    { "/openapi.json", READ, ROUTE_WHILE_LOADING | ROUTE_OPEN, answer_openapi, NULL },
    { "/health", READ, ROUTE_WHILE_LOADING | ROUTE_OPEN, answer_health, NULL },
    { "/version", READ, ROUTE_WHILE_LOADING | ROUTE_OPEN, answer_version, NULL },
    { "/metrics", READ, ROUTE_WHILE_LOADING, answer_metrics, NULL },
    { "/v1/models", READ, 0, answer_models, NULL },
    { "/v1/models/", READ, ROUTE_PREFIX, answer_model, NULL },
    { "/v1/completions", "POST", ROUTE_WHILE_LOADING, NULL, work_completion },
    { "/v1/chat/completions", "POST", ROUTE_WHILE_LOADING | ROUTE_ALWAYS_WORKER, NULL, work_chat },
    { "/v1/responses", "POST", ROUTE_WHILE_LOADING | ROUTE_ALWAYS_WORKER, NULL, work_responses },
    { "/v1/responses/", READ ", DELETE", ROUTE_PREFIX, answer_response, NULL },
    { "/v1/messages", "POST", ROUTE_WHILE_LOADING | ROUTE_ALWAYS_WORKER, NULL, work_messages,
      ENDPOINT_MESSAGES },
    { "/v1/messages/count_tokens", "POST", ROUTE_WHILE_LOADING | ROUTE_ALWAYS_WORKER, NULL, work_count,
      ENDPOINT_COUNT },
    { "/v1/embeddings", "POST", ROUTE_WHILE_LOADING, NULL, work_embeddings },
    { "/inference/v1/generate", "POST", ROUTE_WHILE_LOADING, NULL, work_generate },
    { "/tokenize", "POST", ROUTE_WHILE_LOADING | ROUTE_ALWAYS_WORKER, NULL, work_tokenize },
    { "/detokenize", "POST", ROUTE_WHILE_LOADING, NULL, work_detokenize },
    { "/admin/reload", "POST", ROUTE_WHILE_LOADING | ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_reload },
    { "/v1/load_lora_adapter", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_load_adapter },
    { "/v1/unload_lora_adapter", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_unload_adapter },
    { "/tokenizer_info", READ, 0, answer_tokenizer, NULL },

    /* vLLM's and SGLang's, for trainers */
    { "/pause", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_pause },
    { "/resume", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_resume },
    { "/is_paused", READ, 0, answer_is_paused, NULL },
    { "/pause_generation", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_pause_generation },
    { "/continue_generation", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_continue_generation },
    { "/update_weights_from_disk", "POST", ROUTE_ALWAYS_WORKER | ROUTE_ADMIN, NULL, work_update_from_disk },
    { "/weight_version", READ, 0, answer_weight_version, NULL },
    { "/get_weight_version", READ, 0, answer_weight_version, NULL },
};
/* What admin_refusal() has a reason for. */
static const struct route refusal = { "", "GET, HEAD, POST", ROUTE_ADMIN, answer_refusal, NULL };

#define OPENAI_ROOT "/v1"
static int matches(const struct route *r, const char *have, const char *path)
{
    return r->flags & ROUTE_PREFIX ? !strncmp(path, have, strlen(have)) : !strcmp(path, have);
}

/* A client whose base URL has no /v1 asks for /completions: every route below /v1 is there, too. */
const struct route *route_find(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const struct route *r = &routes[i];
        size_t version = strncmp(r->path, OPENAI_ROOT "/", strlen(OPENAI_ROOT "/")) ? 0 : strlen(OPENAI_ROOT);
        if (matches(r, r->path, path) || matches(r, r->path + version, path))
            return r;
    }
    return admin_refusal(path) ? &refusal : NULL;
}

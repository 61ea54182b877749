/* access_log.c - the access log: a JSON object a line, written in one piece when an exchange is over. See
 * exchange.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/http/exchange.h"

static void write_usage(struct out *o, struct request *rq)
{
    int64_t prompt = 0;
    pthread_mutex_lock(&rq->lock);
    int done = rq->done, failed = rq->fault.status;
    pthread_mutex_unlock(&rq->lock);
    if (!done) { /* its choices are still the engine's */
        out_text(o, ",\"ended\":\"client left\"");
        return;
    }
    for (int i = 0; i < rq->n_prompts; i++)
        prompt += rq->prompt[i].n;
    out_fmt(o, ",\"ended\":\"%s\",\"prompt_tokens\":%lld,\"completion_tokens\":%lld",
            failed ? "failed" : "done", (long long)prompt, (long long)rq->n_generated);
}

void access_write(const struct exchange *x)
{
    struct out o = { 0 };
    struct timespec t;
    struct tm tm;
    char when[32];
    if (x->h->access_fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    out_fmt(&o, "{\"time\":\"%s.%03ldZ\",\"id\":", when, t.tv_nsec / 1000000);
    out_json_text(&o, x->rq && !x->id[0] ? x->rq->id : x->id);
    out_text(&o, ",\"method\":");
    out_json_text(&o, x->method);
    out_text(&o, ",\"path\":");
    out_json_text(&o, x->path);
    out_fmt(&o, ",\"status\":%d,\"ms\":%.3f", x->status, (clock_s() - x->begin_s) * 1e3);
    if (x->key >= 0)
        out_fmt(&o, ",\"key\":%d", x->key);
    if (x->rq)
        write_usage(&o, x->rq);
    out_text(&o, "}\n");
    if (!o.failed && write(x->h->access_fd, o.p, o.n) < 0)
        o.failed = 1; /* a full disk must not stop the server */
    out_free(&o);
}

/* access_log.c - the access log: a JSON object a line, written in one piece when an exchange is over. See
 * exchange.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "serve/http/exchange.h"

/* How the request ended, and its tokens. */
static void write_usage(struct json_out *o, struct request *rq)
{
    int64_t prompt = 0;
    pthread_mutex_lock(&rq->lock);
    int done = rq->done, failed = rq->fault.status;
    pthread_mutex_unlock(&rq->lock);
    if (!done) { /* the engine still uses its choices */
        json_out_text(o, ",\"ended\":\"client left\"");
        return;
    }
    for (int i = 0; i < rq->n_prompts; i++)
        prompt += rq->prompt[i].n;
    json_out_fmt(o, ",\"ended\":\"%s\",\"prompt_tokens\":%lld,\"completion_tokens\":%lld",
                 failed ? "failed" : "done", (long long)prompt, (long long)rq->n_generated);
}

void access_write(const struct exchange *x)
{
    struct json_out o = { 0 };
    struct timespec t;
    struct tm tm;
    char when[32];

    if (x->h->access_fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    json_out_fmt(&o, "{\"time\":\"%s.%03ldZ\",\"id\":", when, t.tv_nsec / 1000000);
    json_out_string(&o, x->rq && !x->id[0] ? x->rq->id : x->id);

    json_out_text(&o, ",\"method\":");
    json_out_string(&o, x->method);
    json_out_text(&o, ",\"path\":");
    json_out_string(&o, x->path);
    json_out_fmt(&o, ",\"status\":%d,\"ms\":%.3f", x->status, (clock_s() - x->begin_s) * 1e3);
    if (x->key >= 0)
        json_out_fmt(&o, ",\"key\":%d", x->key);
    if (x->rq)
        write_usage(&o, x->rq);

    json_out_text(&o, "}\n");
    if (!o.failed && write(x->h->access_fd, o.p, o.n) < 0)
        o.failed = 1; /* ignored: a full disk must not stop the server */
    json_out_free(&o);
}

/* server_once.c - --once: one prompt, completed to stdout, without HTTP. See server.h. */
#include "serve/server.h"

#include <stdio.h>
#include <string.h>
#include "serve/api/openai.h"

/* The options of --once as a completion request. */
static int make_request(struct server *s, struct request **out, struct err *e)
{
    struct json_out body = { 0 };
    struct fault f;
    json_out_text(&body, "{\"prompt\":");
    json_out_string(&body, s->o.once);
    if (s->o.lora.n) { /* with its adapter */
        char name[ADAPTER_NAME_MAX + 2];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(s->o.lora.item[0], "="), s->o.lora.item[0]);
        json_out_text(&body, ",\"model\":");
        json_out_string(&body, name);
    }
    json_out_fmt(&body, ",\"max_tokens\":%lld,\"temperature\":%.17g,\"seed\":%lld}",
                 (long long)s->o.max_tokens, s->o.temperature, (long long)s->o.seed);
    int rc = body.failed ? err_set(e, ERR_MEMORY, "no memory for the prompt") : 0;
    if (rc >= 0 && openai_parse(&s->service, ENDPOINT_COMPLETION, body.p, body.n, out, &f) < 0)
        rc = err_set(e, ERR_USAGE, "--once: %s", f.text);
    json_out_free(&body);
    return rc;
}

static int print_completion(const struct json_out *text, struct err *e)
{
    fwrite(text->p ? text->p : "", 1, text->n, stdout);
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout))
        return err_sys(e, "writing the completion");
    return 0;
}

int server_run_once(struct server *s, struct err *e)
{
    struct request *rq = NULL;
    int rc = server_is_first(s) ? make_request(s, &rq, e) : 0;

    TRY(comm_agree(s->mesh.all, rc, e));
    if (rq) {
        atomic_fetch_add(&rq->refs, 1);
        inbox_put(&s->router.replica->inbox, rq);
    }

    TRY(engine_run(&s->engine, 1, e));
    if (rq && rq->fault.status)
        rc = err_set(e, world_stop_signal(s->world) ? ERR_STOPPED : ERR_INTERNAL, "--once: %s",
                     rq->fault.text);
    else if (rq)
        rc = print_completion(&rq->choice[0].text, e);
out:
    request_release(rq);
    return rc;
}

/* request_wire.c - see request_wire.h. Plain members are copied as they are in memory: both ends are one
 * program on one machine. */
#include "serve/replicas/request_wire.h"

#include <stdlib.h>
#include <string.h>

#define PLAIN_BEGIN offsetof(struct request, name)
#define PLAIN_END offsetof(struct request, stop) /* the members after it are pointers */

/* Appends the length of a text, -1 for NULL, and its bytes. */
static void write_text(struct json_out *o, const char *p, size_t n)
{
    int64_t len = p ? (int64_t)n : -1;
    json_out_bytes(o, (const char *)&len, sizeof len);
    if (p)
        json_out_bytes(o, p, n);
}

void request_wire_write(struct json_out *o, const struct request *rq)
{
    json_out_bytes(o, (const char *)rq + PLAIN_BEGIN, PLAIN_END - PLAIN_BEGIN);
    write_text(o, (const char *)rq->sampling.bias, sizeof *rq->sampling.bias * (size_t)rq->sampling.n_bias);
    write_text(o, (const char *)rq->stop_ids, sizeof *rq->stop_ids * (size_t)rq->n_stop_ids);
    write_text(o, (const char *)rq->watch, sizeof *rq->watch * (size_t)rq->n_watch);
    write_text(o, (const char *)rq->sampling.allowed,
               sizeof *rq->sampling.allowed * (size_t)rq->sampling.n_allowed);
    write_text(o, (const char *)rq->sampling.bad, sizeof *rq->sampling.bad * (size_t)rq->sampling.n_bad);
    write_text(o, rq->salt, rq->salt ? strlen(rq->salt) : 0);
    write_text(o, rq->about, rq->about ? strlen(rq->about) : 0);
    char *tools = rq->tools ? json_dumps(rq->tools, JSON_COMPACT) : NULL;
    write_text(o, tools, tools ? strlen(tools) : 0);
    free(tools);
    json_out_bytes(o, (const char *)&rq->structured, sizeof rq->structured);
    write_text(o, rq->structured.text, rq->structured.n);
    write_text(o, rq->structured.tools, rq->structured.n_tools);
    for (int i = 0; i < rq->n_stop; i++)
        write_text(o, rq->stop[i], strlen(rq->stop[i]));
    for (int i = 0; i < rq->n_prompts; i++) {
        write_text(o, (const char *)rq->prompt[i].ids, sizeof *rq->prompt[i].ids * (size_t)rq->prompt[i].n);
        write_text(o, rq->prompt[i].text, rq->prompt[i].n_text);
        json_out_bytes(o, (const char *)&rq->prompt[i].n_added, sizeof rq->prompt[i].n_added);
    }
}

/* Bytes that are still to be read; bad: there were too few, or no memory. */
struct bytes {
    const char *p;
    size_t n;
    int bad;
};

static void take(struct bytes *b, void *to, size_t n)
{
    b->bad |= n > b->n;
    if (b->bad)
        return;
    memcpy(to, b->p, n);
    b->p += n;
    b->n -= n;
}

/* A text of *n bytes, malloc'd, with a NUL after it; NULL where there was none, or on an error (b->bad). */
static void *take_text(struct bytes *b, size_t *n)
{
    int64_t len = -1;
    char *p;

    take(b, &len, sizeof len);
    *n = 0;
    if (b->bad || len < 0 || (size_t)len > b->n) {
        b->bad |= !b->bad && len >= 0;
        return NULL;
    }

    p = malloc((size_t)len + 1);
    b->bad |= !p;
    if (!p)
        return NULL;
    take(b, p, (size_t)len);
    p[len] = 0;
    *n = (size_t)len;
    return p;
}

/* A list of n elements, malloc'd, or NULL as it was written. */
static void *take_list(struct bytes *b, size_t each, int n)
{
    size_t bytes;
    void *p = take_text(b, &bytes);
    b->bad |= bytes != each * (size_t)n;
    return p;
}

static void take_lists(struct bytes *b, struct request *rq)
{
    size_t n;

    rq->sampling.bias = take_list(b, sizeof *rq->sampling.bias, rq->sampling.n_bias);
    rq->stop_ids = take_list(b, sizeof *rq->stop_ids, rq->n_stop_ids);
    rq->watch = take_list(b, sizeof *rq->watch, rq->n_watch);
    rq->sampling.allowed = take_list(b, sizeof *rq->sampling.allowed, rq->sampling.n_allowed);
    rq->sampling.bad = take_list(b, sizeof *rq->sampling.bad, rq->sampling.n_bad);
    rq->salt = take_text(b, &n);
    rq->about = take_text(b, &n);
    char *tools = take_text(b, &n);
    rq->tools = tools ? json_loadb(tools, n, 0, NULL) : NULL;
    b->bad |= tools && !rq->tools;
    free(tools);
    take(b, &rq->structured, sizeof rq->structured);
    rq->structured.text = take_text(b, &rq->structured.n);
    rq->structured.tools = take_text(b, &rq->structured.n_tools);
    b->bad |= rq->structured.kind && !rq->structured.text;
    rq->stop = calloc((size_t)rq->n_stop + 1, sizeof *rq->stop);
    rq->prompt = calloc((size_t)rq->n_prompts + 1, sizeof *rq->prompt);
    b->bad |= !rq->stop || !rq->prompt;
    for (int i = 0; !b->bad && i < rq->n_stop; i++)
        b->bad |= !(rq->stop[i] = take_text(b, &n));
    for (int i = 0; !b->bad && i < rq->n_prompts; i++) {
        struct prompt *p = &rq->prompt[i];
        p->ids = take_text(b, &n);
        p->n = (int64_t)(n / sizeof *p->ids);
        p->text = take_text(b, &p->n_text);
        take(b, &p->n_added, sizeof p->n_added);
    }
}

struct request *request_wire_read(const struct service *sv, const char *p, size_t n, struct fault *f)
{
    struct bytes b = { p, n, 0 };
    struct request *rq = request_new(sv);
    fault_set(f, 503, NULL, "no memory for this request");
    if (!rq)
        return NULL;
    take(&b, (char *)rq + PLAIN_BEGIN, PLAIN_END - PLAIN_BEGIN);
    rq->sampling.bias = NULL;
    rq->sampling.allowed = rq->sampling.bad = NULL;
    if (b.bad)
        rq->n_stop = rq->n_prompts = 0;
    rq->n_choices = 0;
    if (!b.bad)
        take_lists(&b, rq);
    if (b.bad || b.n || structured_open(rq, f) < 0 || request_open_choices(rq) < 0) {
        request_release(rq);
        return NULL;
    }
    return rq;
}

/* prompt_text.c - see prompt_text.h.
 *
 * Encoded alone, the beginning of a text has about as many tokens as it has in the whole text: they can
 * differ where it was cut, and where a normaliser or a merge looks far ahead. So a text is refused only when
 * its beginning has PROMPT_FAR_TOO_LONG times the tokens of the context. */
#include "serve/api/prompt_text.h"

#include <stdint.h>
#include <stdlib.h>
#include "base/clock.h"
#include "serve/metrics.h"

#define HEAD_BYTES 64   /* bytes of the beginning for each token of the context */
#define WORK_MOST_S 60. /* without --request-timeout: 64 MB take about 30 s */

struct work_limit prompt_work_limit(const struct service *sv, double begin_s)
{
    double s = sv->request_timeout_s;
    s = s > 0 && s < WORK_MOST_S ? s : WORK_MOST_S;
    return (struct work_limit){ begin_s + s, &sv->state, SERVICE_DRAINING };
}

int prompt_fault(const struct service *sv, int rc, const struct err *e, const char *param, struct fault *f)
{
    if (rc != -ERR_STOPPED)
        return fault_set(f, rc == -ERR_MEMORY ? 500 : 400, param, "%s", e->text);
    if (atomic_load(&sv->state) >= SERVICE_DRAINING)
        return fault_set(f, 503, NULL, "the server is stopping");
    metric_add(sv->metrics, COUNT_TIMED_OUT, 1);
    if (sv->request_timeout_s > 0)
        return fault_set_late(f, sv->request_timeout_s);
    return fault_set(f, 503, param, "reading %s has taken %g s: send a shorter text, or try again later",
                     param, WORK_MOST_S);
}

/* Encodes n bytes of p's text, all of it or its beginning. */
static int encode(const struct service *sv, const struct prompt_text *p, size_t n, int32_t **ids,
                  size_t *count, struct fault *f)
{
    struct marked_text text = { .text = p->text, .n = n, .limit = p->limit };
    struct err e;

    if (n == p->n) {
        text.user = p->user;
        text.n_user = p->n_user;
        text.max_ids = p->within_context ? (size_t)sv->ctx * 2 * HEAD_BYTES : 0;
    }
    int rc = tokenizer_encode_marked(sv->tok, &text, n == p->n && p->add_special, ids, count, &e);
    if (rc == -ERR_CONFIG)
        err_add(&e, "%s", p->what);
    return rc < 0 ? prompt_fault(sv, rc, &e, p->param, f) : 0;
}

/* Refuses a text far too long for the context by its beginning, before 60 MB have become tokens. */
static int check_length(const struct service *sv, const struct prompt_text *p, struct fault *f)
{
    size_t head = (size_t)sv->ctx * HEAD_BYTES, count = 0;
    int32_t *ids = NULL;

    if (p->n / 2 < head)
        return 0;
    while (head && ((unsigned char)p->text[head] & 0xC0) == 0x80) /* not inside a character */
        head--;
    if (encode(sv, p, head, &ids, &count, f) < 0)
        return -1;
    free(ids);
    if (count / PROMPT_FAR_TOO_LONG < (size_t)sv->ctx)
        return 0;
    return fault_set_context(
        f, sv->ctx, p->param,
        "%s is a text of %zu bytes, of which the first %zu are %zu tokens already: shorten it", p->what, p->n,
        head, count);
}

int prompt_encode(const struct service *sv, const struct prompt_text *p, int32_t **ids, int64_t *n,
                  struct fault *f)
{
    size_t count = 0;

    *ids = NULL;
    *n = 0;
    if (p->within_context && check_length(sv, p, f) < 0)
        return -1;
    if (encode(sv, p, p->n, ids, &count, f) < 0)
        return -1;
    *n = (int64_t)count;
    return 0;
}

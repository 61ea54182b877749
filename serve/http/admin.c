/* admin.c - see admin.h. */
#include "serve/http/admin.h"

#include <string.h>
#include "base/clock.h"
#include "base/jx.h"
#include "base/log.h"

static int read_path(const char *body, size_t n, char path[ORDER_TEXT], struct fault *f)
{
    struct err e;
    json_t *j = jx_parse(body, n, "the body", &e), *v;
    const char *key, *text = json_string_value(json_object_get(j, "checkpoint"));
    int rc = 0;
    if (!j)
        return fault_set(f, 400, NULL, "%s", e.text);
    if (!json_is_object(j))
        rc = fault_set(f, 400, NULL, "the body must be a JSON object");
    else if (!text || !*text || strlen(text) != json_string_length(json_object_get(j, "checkpoint")) ||
             strlen(text) >= ORDER_TEXT)
        rc = fault_set(f, 400, "checkpoint", "checkpoint must be a path or URL of 1 to %d bytes",
                       ORDER_TEXT - 1);
    json_object_foreach(j, key, v)
        if (rc == 0 && strcmp(key, "checkpoint"))
            rc = fault_set(f, 400, key, "field '%.60s' is not known here: leave it out", key);
    if (rc == 0)
        strcpy(path, text);
    json_decref(j);
    return rc;
}

/* The same order to all; the first refusal is the answer, when all have spoken. */
static int tell_all(struct router *rt, enum order_what what, const char *text, char fingerprint[64],
                    struct fault *f)
{
    struct fault one;
    int rc = 0;
    for (int i = 0; i < rt->n; i++)
        order_give(&rt->lane[i].order, what, text);
    for (int i = 0; i < rt->n; i++)
        if (order_wait(&rt->lane[i].order, fingerprint, &one) < 0 && rc == 0) {
            *f = one;
            rc = -1;
        }
    return rc;
}

static int swap_all(struct router *rt, const char *path, char fingerprint[64], struct fault *f)
{
    struct fault ignored;
    int rc = tell_all(rt, ORDER_LOAD, path, fingerprint, f);
    if (rc == 0)
        return tell_all(rt, ORDER_SWAP, path, fingerprint, f);
    tell_all(rt, ORDER_DROP, path, fingerprint, &ignored);
    return rc;
}

int admin_reload(struct router *rt, const char *body, size_t n, struct out *o, struct fault *f)
{
    char path[ORDER_TEXT], fingerprint[64] = "";
    double begin = clock_s();
    if (read_path(body, n, path, f) < 0)
        return -1;
    if (atomic_exchange(&rt->busy, 1))
        return fault_set(f, 409, NULL, "another reload is being worked on: try again when it is done");
    int rc = swap_all(rt, path, fingerprint, f);
    atomic_store(&rt->busy, 0);
    if (rc < 0)
        return rc;
    out_text(o, "{\"checkpoint\":");
    out_json_text(o, path);
    out_text(o, ",\"system_fingerprint\":");
    out_json_text(o, fingerprint[0] ? fingerprint : NULL);
    out_fmt(o, ",\"seconds\":%.3f}", clock_s() - begin);
    return 0;
}

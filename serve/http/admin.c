/* admin.c - see admin.h: POST /admin/reload. */
#include "serve/http/admin.h"

#include <string.h>
#include "base/clock.h"
#include "base/jx.h"
#include "serve/replicas/reload_all.h"
#include "store/store.h"

/* ---- the members ---- */

/* A path or URL. name: of the member. */
static int read_path(struct reload_order *o, const char *name, const json_t *v, struct fault *f)
{
    const char *text = json_string_value(v);
    if (*o->path)
        return fault_set(f, 400, name, "checkpoint and path are the same member: give one of them");
    if (!text || !*text || strlen(text) != json_string_length(v) || strlen(text) >= sizeof o->path)
        return fault_set(f, 400, name, "%s must be a path or URL of 1 to %d bytes", name,
                         RELOAD_ORDER_PATH - 1);
    strcpy(o->path, text);
    return 0;
}

static int read_digest(struct reload_order *o, const char *name, const json_t *v, struct fault *f)
{
    const char *text = json_string_value(v);
    if (!text || json_string_length(v) != 32 || strspn(text, "0123456789abcdef") != 32)
        return fault_set(f, 400, name, "%s must be a weights_digest: 32 hex digits in lower case", name);
    strcpy(o->digest, text);
    return 0;
}

static int read_version(struct reload_order *o, const char *name, const json_t *v, struct fault *f)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > RELOAD_VERSION_MAX)
        return fault_set(f, 400, name, "%s must be a whole number from 0 to %lld", name,
                         (long long)RELOAD_VERSION_MAX);
    o->version = json_integer_value(v);
    return 0;
}

static int read_mode(struct reload_order *o, const char *name, const json_t *v, struct fault *f)
{
    int mode = reload_mode_find(json_string_value(v));
    if (mode < 0)
        return fault_set(f, 400, name, "%s must be keep, wait or abort", name);
    o->mode = (enum reload_mode)mode;
    return 0;
}

static const struct {
    const char *name;
    int (*read)(struct reload_order *o, const char *name, const json_t *v, struct fault *f);
} members[] = {
    { "checkpoint", read_path }, { "path", read_path }, { "expect_digest", read_digest },
    { "version", read_version }, { "mode", read_mode },
};

static int read_member(struct reload_order *o, const char *key, const json_t *v, struct fault *f)
{
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (!strcmp(key, members[i].name))
            return members[i].read(o, key, v, f);
    return fault_set(f, 400, key, "field '%.60s' is not known here: leave it out", key);
}

static int read_order(struct reload_order *o, const char *body, size_t n, struct fault *f)
{
    struct err e;
    json_t *j = jx_parse(body, n, "the body", &e), *v;
    const char *key;
    int rc = 0;

    memset(o, 0, sizeof *o);
    o->version = -1;
    if (!j)
        return fault_set(f, 400, NULL, "%s", e.text);
    if (!json_is_object(j))
        rc = fault_set(f, 400, NULL, "the body must be a JSON object");
    json_object_foreach(j, key, v)
        if (rc == 0 && !json_is_null(v))
            rc = read_member(o, key, v, f);
    if (rc == 0 && !*o->path)
        rc = fault_set(f, 400, "checkpoint", "checkpoint must be a path or URL of 1 to %d bytes",
                       RELOAD_ORDER_PATH - 1);
    json_decref(j);

    /* who names a version or a digest says that the URL has others at other times */
    o->live = store_is_url(o->path) && (o->version >= 0 || *o->digest);
    return rc;
}

/* ---- the answer ---- */

int admin_reload(struct service *sv, struct router *rt, const char *body, size_t n, struct json_out *o,
                 struct fault *f)
{
    struct reload_order order;
    struct reload_times t = { 0 };
    char fingerprint[64] = "", digest[33];
    double begin = clock_s();

    if (read_order(&order, body, n, f) < 0 || reload_all(rt, &order, fingerprint, &t, f) < 0)
        return -1;
    json_out_text(o, "{\"checkpoint\":");
    json_out_string(o, order.path);
    json_out_text(o, ",\"system_fingerprint\":");
    json_out_string(o, fingerprint[0] ? fingerprint : NULL);
    json_out_fmt(o, ",\"version\":%lld", (long long)served_get(&sv->served, digest));
    json_out_fmt(o, ",\"weights_digest\":\"%s\",\"mode\":\"%s\"", digest, reload_mode_name(order.mode));
    json_out_fmt(o, ",\"seconds\":%.3f,\"swap_seconds\":%.3f}", clock_s() - begin, t.swap_s);
    return 0;
}

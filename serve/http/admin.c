/* admin.c - see admin.h. */
#include "serve/http/admin.h"

#include <string.h>
#include "base/clock.h"
#include "base/jx.h"
#include "base/log.h"

/* The checkpoint that the body names. */
static int read_path(const char *body, size_t n, char path[RELOAD_PATH_MAX], struct fault *f)
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
             strlen(text) >= RELOAD_PATH_MAX)
        rc = fault_set(f, 400, "checkpoint", "checkpoint must be a path or URL of 1 to %d bytes",
                       RELOAD_PATH_MAX - 1);
    json_object_foreach(j, key, v)
        if (rc == 0 && strcmp(key, "checkpoint") && !json_is_null(v))
            rc = fault_set(f, 400, key, "field '%.60s' is not known here: leave it out", key);
    if (rc == 0)
        strcpy(path, text);
    json_decref(j);
    return rc;
}

/* All replicas load; when all have, all swap, else all drop. */
static int swap_all(struct router *rt, const char *path, char fingerprint[64], struct fault *f)
{
    struct fault ignored;
    int rc = router_command(rt, RELOAD_LOAD, path, fingerprint, f);
    if (rc == 0)
        return router_command(rt, RELOAD_SWAP, path, fingerprint, f);
    router_command(rt, RELOAD_DROP, path, fingerprint, &ignored);
    return rc;
}

int admin_reload(struct router *rt, const char *body, size_t n, struct json_out *o, struct fault *f)
{
    char path[RELOAD_PATH_MAX], fingerprint[64] = "";
    double begin = clock_s();

    if (read_path(body, n, path, f) < 0)
        return -1;
    if (atomic_exchange(&rt->reloading, 1))
        return fault_set(f, 409, NULL, "another reload is being worked on: try again when it is done");
    int rc = swap_all(rt, path, fingerprint, f);
    atomic_store(&rt->reloading, 0);
    if (rc < 0)
        return rc;
    json_out_text(o, "{\"checkpoint\":");
    json_out_string(o, path);
    json_out_text(o, ",\"system_fingerprint\":");
    json_out_string(o, fingerprint[0] ? fingerprint : NULL);
    json_out_fmt(o, ",\"seconds\":%.3f}", clock_s() - begin);
    return 0;
}

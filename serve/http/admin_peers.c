/* admin_peers.c - vLLM's and SGLang's routes about weights and pauses, where they mean what this server does;
 * and why the others are not here. See admin.h. */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "serve/http/admin.h"
#include "serve/replicas/reload_all.h"

/* ---- pauses ---- */

static int pause_in(struct router *rt, enum reload_mode mode, struct fault *f)
{
    char ignored[64];
    return router_command(rt, RELOAD_PAUSE, reload_mode_name(mode), ignored, f);
}

static int resume(struct router *rt, struct fault *f)
{
    char ignored[64];
    return router_command(rt, RELOAD_RESUME, "", ignored, f);
}

int admin_pause(struct router *rt, const char *mode, struct json_out *o, struct fault *f)
{
    int m = *mode ? reload_mode_find(mode) : RELOAD_ABORT;
    if (m < 0)
        return fault_set(f, 400, "mode", "mode must be abort, wait or keep");
    if (pause_in(rt, (enum reload_mode)m, f) < 0)
        return -1;
    json_out_text(o, "{\"status\":\"paused\"}");
    return 0;
}

int admin_resume(struct router *rt, struct json_out *o, struct fault *f)
{
    if (resume(rt, f) < 0)
        return -1;
    json_out_text(o, "{\"status\":\"resumed\"}");
    return 0;
}

/* The object of a body; an empty body is an empty one. NULL with *f. */
static json_t *read_object(const char *body, size_t n, struct fault *f)
{
    struct err e;
    json_t *j = n ? jx_parse(body, n, "the body", &e) : json_object();
    if (j && json_is_object(j))
        return j;
    fault_set(f, 400, NULL, "%s", j ? "the body must be a JSON object" : e.text);
    json_decref(j);
    return NULL;
}

/* retract: pages go and come back by computing, as here after a swap; in_place: they stay until a swap. */
static const struct {
    const char *name;
    enum reload_mode mode;
} pauses[] = { { "abort", RELOAD_ABORT }, { "retract", RELOAD_KEEP }, { "in_place", RELOAD_KEEP } };

int admin_pause_generation(struct router *rt, const char *body, size_t n, struct json_out *o, struct fault *f)
{
    json_t *j = read_object(body, n, f), *v = json_object_get(j, "mode");
    const char *word = v && !json_is_null(v) ? json_string_value(v) : "abort";
    int found = -1;
    if (!j)
        return -1;
    for (int i = 0; word && i < (int)(sizeof pauses / sizeof pauses[0]); i++)
        if (!strcmp(word, pauses[i].name))
            found = i;
    json_decref(j);
    if (found < 0)
        return fault_set(f, 400, "mode", "mode must be abort, retract or in_place");
    if (pause_in(rt, pauses[found].mode, f) < 0)
        return -1;
    json_out_text(o, "{\"message\":\"Generation paused successfully.\",\"status\":\"ok\"}");
    return 0;
}

int admin_continue_generation(struct router *rt, struct json_out *o, struct fault *f)
{
    if (resume(rt, f) < 0)
        return -1;
    json_out_text(o, "{\"message\":\"Generation continued successfully.\",\"status\":\"ok\"}");
    return 0;
}

/* ---- /update_weights_from_disk ---- */

/* SGLang's members besides model_path that ask for nothing here: pages and the prefix cache always end with
 * the weights that made them, and there is no graph or allocator to tend. */
static const char *const without_effect[] = { "load_format",          "flush_cache", "is_async",
                                              "torch_empty_cache",    "keep_pause",  "token_step",
                                              "recapture_cuda_graph", "manifest",    "files" };

static int is_known(const char *key)
{
    static const char *const known[] = { "model_path", "abort_all_requests", "weight_version" };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(key, known[i]))
            return 1;
    for (size_t i = 0; i < sizeof without_effect / sizeof without_effect[0]; i++)
        if (!strcmp(key, without_effect[i]))
            return 1;
    return 0;
}

/* Their version is a text; here it is a number. */
static int read_version(const json_t *v, int64_t *version, struct fault *f)
{
    const char *text = json_string_value(v);
    char *end = NULL;
    *version = -1;
    if (!v || json_is_null(v))
        return 0;
    if (text && *text >= '0' && *text <= '9')
        *version = strtoll(text, &end, 10);
    if (!end || *end || *version < 0 || *version > RELOAD_VERSION_MAX) /* strtoll ends at its own most */
        return fault_set(f, 400, "weight_version",
                         "weight_version must be a whole number up to %lld, as a text: \"12\"",
                         (long long)RELOAD_VERSION_MAX);
    return 0;
}

static int read_update(const json_t *j, int paused, struct reload_order *o, struct fault *f)
{
    const char *key, *path = json_string_value(json_object_get(j, "model_path"));
    const json_t *aborts = json_object_get(j, "abort_all_requests");
    json_t *v;
    memset(o, 0, sizeof *o);
    json_object_foreach((json_t *)(uintptr_t)j, key, v)
        if (!json_is_null(v) && !is_known(key))
            return fault_set(f, 400, key, "field '%.60s' is not known here: leave it out", key);
    if (!path || !*path || strlen(path) >= sizeof o->path)
        return fault_set(f, 400, "model_path", "model_path must be a path or URL of 1 to %d bytes",
                         RELOAD_ORDER_PATH - 1);
    if (aborts && !json_is_boolean(aborts) && !json_is_null(aborts))
        return fault_set(f, 400, "abort_all_requests", "abort_all_requests must be true or false");
    strcpy(o->path, path);

    /* SGLang waits for what runs, unless it is paused or told to abort */
    o->mode = json_is_true(aborts) ? RELOAD_ABORT : paused ? RELOAD_KEEP : RELOAD_WAIT;
    return read_version(json_object_get(j, "weight_version"), &o->version, f);
}

int admin_update_from_disk(struct service *sv, struct router *rt, const char *body, size_t n,
                           struct json_out *o, struct fault *f)
{
    struct reload_order order;
    struct reload_times t = { 0 };
    char fingerprint[64];
    json_t *j = read_object(body, n, f);
    int rc = j ? read_update(j, atomic_load(&sv->paused), &order, f) : -1;
    json_decref(j);
    if (rc < 0 || reload_all(rt, &order, fingerprint, &t, f) < 0)
        return -1;
    json_out_text(o, "{\"success\":true,\"message\":\"Succeeded to update model weights.\","
                     "\"num_paused_requests\":0}");
    return 0;
}

/* ---- what is not here ---- */

#define PULL \
    "weights are pulled here, not sent: POST /admin/reload names a folder or URL, --follow a trainer's"
static const struct {
    const char *path, *why;
} refused[] = {
    { "/init_weight_transfer_engine", PULL },
    { "/start_weight_update", PULL },
    { "/update_weights", PULL },
    { "/finish_weight_update", PULL },
    { "/update_weights_from_tensor", PULL },
    { "/update_weights_from_distributed", PULL },
    { "/update_weights_from_ipc", PULL },
    { "/init_weights_update_group", PULL },
    { "/destroy_weights_update_group", PULL },
    { "/update_weight_version", "a version names the weights that were loaded with it: give it to a reload" },
    { "/collective_rpc", "no method of another program's workers is here" },
    { "/sleep", "weights stay in memory while the server runs: end it, or POST /pause" },
    { "/wake_up", "weights stay in memory while the server runs: POST /resume ends a pause" },
    { "/release_memory_occupation", "weights stay in memory while the server runs: end it, or POST /pause" },
    { "/resume_memory_occupation",
      "weights stay in memory while the server runs: POST /resume ends a pause" },
};

const char *admin_refusal(const char *path)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (!strcmp(path, refused[i].path))
            return refused[i].why;
    return NULL;
}

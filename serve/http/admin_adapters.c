/* admin_adapters.c - see admin_adapters.h. */
#include "serve/http/admin_adapters.h"

#include <stdio.h>
#include <string.h>
#include "base/jx.h"
#include "serve/adapters/adapter_commands.h"

#define SLOT_TEXT 8 /* bytes of a command besides the path */

/* A text of 1 to max bytes, or "" where there is none. */
static int read_text(const json_t *body, const char *key, size_t max, char *out, struct fault *f)
{
    const json_t *v = json_object_get(body, key);
    const char *text = json_string_value(v);
    out[0] = 0;
    if (!v || json_is_null(v))
        return 0;
    if (!text || strlen(text) != json_string_length(v) || strlen(text) > max)
        return fault_set(f, 400, key, "%s must be a text of 1 to %zu bytes", key, max);
    strcpy(out, text);
    return 0;
}

/* The members of an adapter's command; path NULL: to unload. */
static int read_members(const struct service *sv, const json_t *body, char name[RELOAD_PATH_MAX], char *path,
                        int *replaces, struct fault *f)
{
    static const char *const known[] = { "lora_name", "lora_path", "load_inplace" };
    const size_t n_known = path ? 3 : 1;
    const char *key;
    struct err e;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        size_t i = 0;
        while (i < n_known && strcmp(known[i], key))
            i++;
        if (i == n_known && !json_is_null(v) && !sv->lenient)
            return fault_set(f, 400, key, "field '%.60s' is not known here: leave it out", key);
    }

    if (read_text(body, "lora_name", RELOAD_PATH_MAX - 1, name, f) < 0 ||
        (path && read_text(body, "lora_path", RELOAD_PATH_MAX - 1 - SLOT_TEXT, path, f) < 0))
        return -1;
    if (path && jx_bool(body, "the body", "load_inplace", replaces, &e) < 0)
        return fault_set(f, 400, "load_inplace", "load_inplace must be true or false");
    if (path && (!*name || !*path))
        return fault_set(f, 400, *name ? "lora_path" : "lora_name",
                         "Both 'lora_name' and 'lora_path' must be provided.");
    return *name
               ? 0
               : fault_set(f, 400, "lora_name", "'lora_name' needs to be provided to unload a LoRA adapter.");
}

static int read_body(const struct service *sv, const char *body, size_t n, char name[RELOAD_PATH_MAX],
                     char *path, int *replaces, struct fault *f)
{
    struct err e;
    json_t *j = jx_parse(body, n, "the body", &e);
    if (!j)
        return fault_set(f, 400, NULL, "%s", e.text);
    int rc = json_is_object(j) ? read_members(sv, j, name, path, replaces, f)
                               : fault_set(f, 400, NULL, "the body must be a JSON object");
    json_decref(j);
    return rc;
}

int admin_load_adapter(struct service *sv, struct router *rt, const char *body, size_t n, struct json_out *o,
                       struct fault *f)
{
    char name[RELOAD_PATH_MAX], path[RELOAD_PATH_MAX];
    int replaces = 0;
    if (read_body(sv, body, n, name, path, &replaces, f) < 0 ||
        adapter_load(sv->adapters, rt, name, path, replaces, f) < 0)
        return -1;
    json_out_fmt(o, "Success: LoRA adapter '%s' added successfully.", name);
    return 0;
}

int admin_unload_adapter(struct service *sv, const char *body, size_t n, struct json_out *o, struct fault *f)
{
    char name[RELOAD_PATH_MAX];
    if (read_body(sv, body, n, name, NULL, NULL, f) < 0 || adapter_names_withdraw(sv->adapters, name, f) < 0)
        return -1;
    json_out_fmt(o, "Success: LoRA adapter '%s' removed successfully.", name);
    return 0;
}

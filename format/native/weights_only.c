/* weights_only.c - the manifest of a checkpoint without its optimizer's files: the same weights as a
 * checkpoint of their own, with no byte of the data files changed. */
#include <stdlib.h>
#include <string.h>
#include "format/ckpt_write.h"
#include "format/fmt.h"
#include "format/native/manifest.h"

/* Keeps the entries of role weight, which are the first ones, and returns how many there are. */
static size_t keep_weights(json_t *root)
{
    json_t *list = json_object_get(root, MANIFEST_TENSORS);
    size_t n = 0;
    while (n < json_array_size(list)) {
        const char *role = json_string_value(json_object_get(json_array_get(list, n), "role"));
        if (!role || strcmp(role, manifest_role[ROLE_WEIGHT]))
            break;
        n++;
    }
    while (json_array_size(list) > n)
        json_array_remove(list, json_array_size(list) - 1);
    return n;
}

/* 1: the file holds pieces of the first n_weights tensors only; -1: of both kinds. */
static int holds_weights(const json_t *file, size_t n_weights)
{
    const json_t *p;
    size_t i;
    int has[2] = { 0 };
    json_array_foreach(json_object_get(file, MANIFEST_PIECES), i, p)
        has[(size_t)json_integer_value(json_object_get(p, "tensor")) < n_weights] = 1;
    return has[0] && has[1] ? -1 : has[1];
}

static int keep_files(json_t *root, size_t n_weights, struct err *e)
{
    json_t *list = json_object_get(root, MANIFEST_FILES);
    for (size_t i = json_array_size(list); i-- > 0;) {
        int holds = holds_weights(json_array_get(list, i), n_weights);
        if (holds < 0)
            return err_set(e, ERR_FORMAT, "%s holds weights and states: reshard --weights-only parts them",
                           json_string_value(json_object_get(json_array_get(list, i), "name")));
        if (!holds)
            json_array_remove(list, i);
    }
    return 0;
}

/* Takes a feature out of the list. */
static void forget_feature(json_t *root, const char *name)
{
    json_t *list = json_object_get(root, "must_understand");
    for (size_t i = json_array_size(list); i-- > 0;)
        if (!strcmp(json_string_value(json_array_get(list, i)), name))
            json_array_remove(list, i);
}

int ckpt_weights_manifest(const struct ckpt *c, const void *text, size_t n, char **out, size_t *n_out,
                          struct err *e)
{
    const char *hex;
    struct ckpt_digests d = { 0 };
    json_t *root = NULL;
    int rc = 0;
    *out = NULL;
    TRY(manifest_check(text, n, ckpt_path(c), e));
    if (!(root = jx_parse(text, n, ckpt_path(c), e))) {
        rc = -e->code;
        goto out;
    }
    TRY(keep_files(root, keep_weights(root), e));
    TRY(manifest_need_text(root, ckpt_path(c), "weights_digest", &hex, e));
    if (strlen(hex) != 32 || fmt_parse_hex(hex, 16, &d.weights.hi) ||
        fmt_parse_hex(hex + 16, 16, &d.weights.lo)) {
        rc = err_set(e, ERR_FORMAT, "%s: weights_digest is not 32 hex digits", ckpt_path(c));
        goto out;
    }
    forget_feature(root, MANIFEST_COUNTS);
    json_object_del(root, "orders");
    json_object_del(root, "manifest_checksum");
    json_object_set_new(root, "state", json_null());
    json_object_set_new(root, "state_digest", json_null());
    json_object_set_new(root, "save_id", manifest_sum128(manifest_save_id(&d, ckpt_layout(c))));
    if (!(*out = manifest_text(root, NULL, 0, n_out, e)))
        rc = -e->code;
out:
    json_decref(root);
    return rc < 0 ? rc : 0;
}

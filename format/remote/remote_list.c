/* remote_list.c - see remote_list.h. A server lists no folder: the first of the known names that is there
 * says which kind of checkpoint it is, and its table names the other files. */
#include "format/remote/remote_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/fmt.h"
#include "format/peft.h"
#include "format/quant_view.h"
#include "format/hf/small_files.h"
#include "store/sidecar.h"
#include "store/store.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define HEADER_MAX ((uint64_t)1 << 27) /* of a safetensors file: its reader refuses more */

static int ends_with(const char *name, size_t n_name, const char *ending)
{
    size_t n = strlen(ending);
    return n_name > n && !strncmp(name + n_name - n, ending, n);
}

/* ---- files that a table names ---- */

int remote_large(struct url_cache *c, const char *name, struct err *e)
{
    int rc = url_cache_large(c, name, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    return err_set(e, ERR_FILE, "%s is not there, the checkpoint's table names it: is it whole", name);
}

/* Directly in the folder: only folders of other frameworks have folders. */
static int large_of(struct url_cache *c, const char *name, struct err *e)
{
    int rc = fmt_file_name_check(name, "the checkpoint's table", e);
    return rc < 0 ? rc : remote_large(c, name, e);
}

static int small_of(struct url_cache *c, const json_t *o, struct err *e)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    if (!name)
        return 0; /* the reader of the manifest reports what is wrong */
    int rc = fmt_file_name_check(name, FMT_MANIFEST, e);
    return rc < 0 ? rc : url_cache_small(c, name, e);
}

static json_t *load(struct url_cache *c, const char *name, struct err *e)
{
    char *path = io_join(url_cache_dir(c), name);
    json_t *o = path ? jx_load(path, FMT_MANIFEST_MAX, e) : NULL;
    if (!path)
        err_set(e, ERR_MEMORY, "no memory for a path");
    free(path);
    return o;
}

static int list_manifest(struct url_cache *c, struct err *e)
{
    json_t *root = load(c, FMT_MANIFEST, e), *o;
    size_t i;
    int rc = root ? 0 : -e->code;
    json_array_foreach(json_object_get(root, "files"), i, o)
        if (rc >= 0 && json_string_value(json_object_get(o, "name")))
            rc = large_of(c, json_string_value(json_object_get(o, "name")), e);
    if (rc >= 0)
        rc = small_of(c, json_object_get(root, "config"), e);
    json_array_foreach(json_object_get(root, "extra"), i, o)
        if (rc >= 0)
            rc = small_of(c, o, e);
    json_decref(root);
    return rc;
}

static int list_index(struct url_cache *c, const char *index, struct err *e)
{
    json_t *root = load(c, index, e), *v;
    const char *tensor;
    int rc = root ? 0 : -e->code;
    json_object_foreach(json_object_get(root, "weight_map"), tensor, v)
        if (rc >= 0 && json_string_value(v))
            rc = large_of(c, json_string_value(v), e);
    json_decref(root);
    return rc;
}

/* ---- which kind it is ---- */

/* Training code keeps config.json beside the folder of its checkpoint. Nothing depends on it, so a server
 * that refuses it is no error. */
static int config_above(struct url_cache *c, struct err *e)
{
    char *path = io_join(url_cache_dir(c), FMT_CONFIG);
    struct err ignored;
    if (!path)
        return err_set(e, ERR_MEMORY, "no memory for a path");
    if (!io_exists(path))
        url_cache_small_as(c, "../" FMT_CONFIG, FMT_CONFIG, &ignored);
    free(path);
    return 0;
}

/* The code of a model: config.json's auto_map names it as "file.Class", or "owner/name--file.Class" of
 * another repository. */
static int list_code(struct url_cache *c, struct err *e)
{
    struct err ignored;
    json_t *root = load(c, FMT_CONFIG, &ignored), *v;
    const char *key;
    int rc = 0;
    json_object_foreach(json_object_get(root, "auto_map"), key, v) {
        const char *text = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v);
        char name[256];
        if (!text || strstr(text, "--"))
            continue;
        snprintf(name, sizeof name, "%.*s.py", (int)(strcspn(text, ".") < 200 ? strcspn(text, ".") : 200),
                 text);
        if (fmt_file_name_check(name, "auto_map", &ignored) >= 0 && (rc = url_cache_small(c, name, e)) < 0)
            break;
    }
    json_decref(root);
    return rc < 0 ? rc : 0;
}

static int list_cards(struct url_cache *c, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < CARD_FILES && rc >= 0; i++)
        rc = url_cache_small(c, card_file_names[i], e);
    return rc < 0 ? rc : list_code(c, e);
}

static int list_folder(struct url_cache *c, int with_cards, struct err *e)
{
    static const char *const indexes[] = { "model.safetensors.index.json", "pytorch_model.bin.index.json" };
    static const char *const single[] = { "model.safetensors", "pytorch_model.bin" };
    static const char *const adapters[] = { PEFT_TENSORS, PEFT_BIN };
    int is_foreign = 0, is_adapter = 0, rc = url_cache_small(c, FMT_MANIFEST, e);
    if (rc)
        return rc < 0 ? rc : list_manifest(c, e);

    for (size_t i = 0; i < COUNT(single) && !url_cache_n_large(c); i++)
        TRY(url_cache_large(c, single[i], e));
    for (size_t i = 0; i < COUNT(indexes) && !url_cache_n_large(c); i++) {
        TRY(url_cache_small(c, indexes[i], e));
        if (rc)
            TRY(list_index(c, indexes[i], e));
    }
    for (size_t i = 0; i < COUNT(adapters) && !url_cache_n_large(c); i++)
        TRY(is_adapter = url_cache_large(c, adapters[i], e));
    if (is_adapter)
        TRY(url_cache_small(c, PEFT_CONFIG, e));
    if (!url_cache_n_large(c))
        TRY(is_foreign = remote_foreign(c, e));
    if (!url_cache_n_large(c))
        return err_set(e, ERR_FILE,
                       "has no manifest.json, model.safetensors, index, or what DCP, DeepSpeed and Megatron "
                       "begin with: is it the URL of a checkpoint's folder, or of a .gguf file");

    TRY(url_cache_small(c, FMT_CONFIG, e));
    for (int i = 0; i < TOKENIZER_FILES; i++)
        TRY(url_cache_small(c, tokenizer_file_names[i], e));
    for (int i = 0; i < SMALL_FILES; i++) {
        if (!strcmp(small_file_names[i], PEFT_CONFIG)) /* a model needs none */
            continue;
        TRY(url_cache_small(c,
                            strcmp(small_file_names[i], CKPT_POOLING) ? small_file_names[i] : POOLING_PLACE,
                            e));
        if (rc > 0 && !strcmp(small_file_names[i], QUANT_KEPT_FILE))
            TRY(url_cache_large(c, QUANT_KEPT_TENSORS, e));
    }
    if (with_cards && !is_foreign)
        TRY(list_cards(c, e));
    if (is_foreign && url_cache_has_parent(c))
        TRY(config_above(c, e));
out:
    return rc < 0 ? rc : 0;
}

static int list_files(struct url_cache *c, const char *file, const void *with_cards, struct err *e)
{
    if (!file)
        return list_folder(c, with_cards != NULL, e);
    if (ends_with(file, strlen(file), ".gguf"))
        return gguf_list(c, file, e);
    int rc = large_of(c, file, e);
    if (rc >= 0)
        rc = url_cache_small(c, FMT_CONFIG, e);
    if (rc >= 0 && !strncmp(file, "adapter_model", strlen("adapter_model")))
        rc = url_cache_small(c, PEFT_CONFIG, e);
    return rc < 0 ? rc : 0;
}

/* ---- what is read at once ---- */

/* Readers read the header of a safetensors file first. Archives have their tables at the end: they are needed
 * whole. Of compressed files nothing is read before it is asked for. */
static int prepare(struct url_cache *c, const char *name, int64_t bytes, struct err *e)
{
    uint64_t n = 0;
    size_t n_name = strlen(name);
    char *path = NULL;
    int fd = -1, rc = 0;
    if (ends_with(name, n_name, FMT_ZSTD))
        return 0;
    if (ends_with(name, n_name, ".gguf"))
        return gguf_prepare(c, name, bytes, e);
    if (!ends_with(name, n_name, ".safetensors"))
        return url_cache_need(c, name, 0, bytes, 1, e);
    TRY(url_cache_need(c, name, 0, bytes < 8 ? bytes : 8, 1, e));
    if (bytes < 8)
        return 0; /* the reader reports what is wrong */

    if (!(path = io_join(url_cache_dir(c), name))) {
        rc = err_set(e, ERR_MEMORY, "no memory for a path");
        goto out;
    }
    TRY(fd = io_open_read(path, e));
    TRY(io_pread(fd, path, &n, 8, 0, e));
    if (n < HEADER_MAX && (int64_t)n + 8 <= bytes)
        TRY(url_cache_need(c, name, 0, (int64_t)n + 8, 1, e));
out:
    io_close(fd);
    free(path);
    return rc < 0 ? rc : 0;
}

/* ---- opening ---- */

/* The path of the URL ends in a name that checkpoints of one file have. */
static int is_file_url(const char *url)
{
    static const char *const endings[] = { ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt" };
    char folder[2048], name[256];
    int known = 0;
    for (size_t i = 0; i < COUNT(endings); i++)
        known |= ends_with(url, strcspn(url, "?"), endings[i]);
    return known && url_split(url, folder, name);
}

int remote_open(struct url_cache **out, const char *url, const char *dir, const struct ckpt_open_opts *opts,
                struct err *e)
{
    struct url_cache_opts how = { .dir = dir,
                                  .unpublished = opts->unpublished,
                                  .stop = opts->stop,
                                  .arg = opts->with_cards ? opts : NULL,
                                  .is_file = is_file_url(url),
                                  .in_memory = opts->in_memory,
                                  .list = list_files,
                                  .prepare = prepare };
    return url_cache_open(out, url, &how, e);
}

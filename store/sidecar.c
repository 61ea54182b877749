/* sidecar.c - see sidecar.h. */
#include "store/sidecar.h"

#include <stdlib.h>
#include <string.h>
#include "store/store.h"
#include "store/url_cache.h"

const char *const tokenizer_file_names[TOKENIZER_FILES] = {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
};

static int list_file(struct url_cache *c, const char *file, const void *unused, struct err *e)
{
    (void)unused;
    int rc = url_cache_large(c, file, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    return err_set(e, ERR_FILE, "there is no such file: check the URL");
}

static int list_tokenizer(struct url_cache *c, const char *file, const void *unused, struct err *e)
{
    (void)file;
    (void)unused;
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        int rc = url_cache_small(c, tokenizer_file_names[i], e);
        if (rc < 0)
            return rc;
        if (rc == 0 && !strcmp(tokenizer_file_names[i], "tokenizer.json"))
            return err_set(e, ERR_FILE, "has no tokenizer.json: is it the URL of the right folder");
    }
    return 0;
}

/* Keeps a copy of the path for the caller. */
static const char *keep_path(struct sidecars *all, const char *path, struct err *e)
{
    char **grown = realloc(all->path, sizeof(*grown) * (size_t)(all->n_paths + 1));
    if (grown)
        all->path = grown;
    if (!grown || !(grown[all->n_paths] = strdup(path))) {
        err_set(e, ERR_MEMORY, "%s: no memory to open it", path);
        return NULL;
    }
    return grown[all->n_paths++];
}

static const char *open_sidecar(struct sidecars *all, const char *where, const struct url_cache_opts *how,
                                struct err *e)
{
    char local[URL_LOCAL_BYTES];
    if (url_local_path(where, local))
        return keep_path(all, local, e);
    if (!strstr(where, "://"))
        return where;
    if (!store_is_url(where)) {
        err_set(e, ERR_USAGE,
                "%s: give a path, https://, http://, file://, s3://bucket/key or hf://owner/name", where);
        return NULL;
    }
    struct url_cache **grown = realloc(all->item, sizeof(*grown) * (size_t)(all->n + 1));
    if (!grown) {
        err_set(e, ERR_MEMORY, "%s: no memory to open it", where);
        return NULL;
    }
    all->item = grown;
    if (url_cache_open(&all->item[all->n], where, how, e) < 0)
        return NULL;
    return url_cache_path(all->item[all->n++]);
}

const char *sidecar_file(struct sidecars *all, const char *where, struct err *e)
{
    static const struct url_cache_opts how = { .is_file = 1, .whole = 1, .list = list_file };
    return open_sidecar(all, where, &how, e);
}

const char *sidecar_tokenizer(struct sidecars *all, const char *where, struct err *e)
{
    static const struct url_cache_opts how = { .whole = 1, .list = list_tokenizer };
    return open_sidecar(all, where, &how, e);
}

void sidecar_close(struct sidecars *all)
{
    for (int i = 0; i < all->n; i++)
        url_cache_close(all->item[i]);
    for (int i = 0; i < all->n_paths; i++)
        free(all->path[i]);
    free(all->item);
    free(all->path);
    *all = (struct sidecars){ 0 };
}

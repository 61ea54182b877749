/* server_cache.c - --cache: weights that an earlier start has packed, and those of this one. See server.h. */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>
#include "format/panels_file.h"

/* Why the folder is of no use to this server; NULL: it is. */
static const char *why_not(const struct server *s)
{
    const struct model_info *l = &s->loaded;
    if (s->dev->memory)
        return "weights lie in the device's memory";
    if (!dev_file_panels(s->dev))
        return "the products of this CPU class read other panels";
    if (s->o.numerics)
        return "--numerics fast packs weights in its own way";
    if (l->is_quantised && l->wish != CODES_WISH_VALUES)
        return "quantised weights lie as codes";
    if (server_dtype(s) != l->stored)
        return "--dtype is not that of the weights";
    const int is_here = !ckpt_cache(l->ckpt) && !*ckpt_version(l->ckpt);
    return is_here ? NULL : "the checkpoint is at a URL: fetch it first";
}

static int64_t bytes_of(const struct ckpt *c)
{
    int64_t sum = 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        const struct box whole = box_whole(t->n_dims, t->shape);
        sum += t->role == ROLE_WEIGHT ? stored_bytes(t->dtype, box_count(&whole)) : 0;
    }
    return sum;
}

/* Opens DIR/name in the place of the checkpoint that the user named. */
static int take(struct server *s, const char *name, struct err *e)
{
    struct model_info *l = &s->loaded, fresh;
    char path[CACHE_PATH];
    if (!cache_path(&s->cache, name, path))
        return err_set(e, ERR_FILE, "%s: its name is too long", s->cache.dir);
    int rc = model_info_open(&fresh, path, LIVE_NO, &s->background.stop, e);
    if (rc < 0)
        return rc;
    rc = model_config_same(&fresh.cfg, &l->cfg, s->path, e);
    if (rc >= 0 && (!cache_is_named(name, fresh.ckpt) || ckpt_n_packs(fresh.ckpt) < 1))
        rc = err_set(e, ERR_INTEGRITY, "%s does not hold the weights that its name says", path);
    if (rc >= 0)
        model_info_take_copy(l, &fresh);
    model_info_close(&fresh);
    return rc;
}

int server_find_cached(struct server *s, struct err *e)
{
    char name[CACHE_NAME] = "";
    int rc = 0;
    if (!s->o.cache || ckpt_n_packs(s->loaded.ckpt) > 0)
        return 0;
    TRY(comm_agree(s->mesh.all,
                   cache_open(&s->cache, s->o.cache, (enum cache_kind)s->o.cache_kind, s->o.cache_size, e),
                   e));
    if (s->o.cache_kind == CACHE_B12 && s->loaded.stored != DT_BF16)
        return err_set(e, ERR_USAGE, "--cache-kind b12 holds bf16, and these weights are %s: leave it out",
                       dtype_name(s->loaded.stored));
    s->uses_cache = !why_not(s);
    if (!s->uses_cache)
        log_line(&s->log, "--cache has no effect: %s", why_not(s));
    if (s->uses_cache && (rc = cache_mark(&s->cache_mark, s->path, e)) < 0)
        s->uses_cache = 0;
    if (s->uses_cache && server_is_first(s) &&
        !cache_find(&s->cache, &s->cache_mark, s->loaded.is_quantised ? NULL : s->loaded.ckpt, name))
        *name = 0;
    TRY(comm_agree(s->mesh.all, rc, e));
    TRY(comm_broadcast(s->mesh.all, name, sizeof name, 0, e));
    if (!*name)
        return 0;

    struct err why = { 0 };
    rc = comm_agree(s->mesh.all, take(s, name, &why), &why);
    if (rc < 0) {
        log_line(&s->log, "--cache: %s: packed again", why.text);
        model_info_drop_copy(&s->loaded);
        cache_drop(&s->cache, name);
        return 0;
    }
    snprintf(s->cached, sizeof s->cached, "%s", name);
    cache_use(&s->cache, name);
    if (s->o.verbose)
        log_line(&s->log, "weights were packed before: %s/%s", s->cache.dir, name);
    rc = 0;
out:
    return rc;
}

int server_begin_cache(struct server *s, struct err *e)
{
    const struct model_info *l = &s->loaded;
    int rank, n;
    comm_shared_group(s->mesh.all, &rank, &n);
    if (!s->uses_cache || *s->cached || rank || s->o.once)
        return 0;
    const struct cache_order o = { .cache = &s->cache,
                                   .source = s->path,
                                   .mark = s->cache_mark,
                                   .dequantize = l->is_quantised ? dtype_name(l->stored) : NULL,
                                   .bytes = bytes_of(l->ckpt) };
    return cache_write_open(&s->cache_write, &o, &s->log, s->dev->pool, e);
}

void server_close_cache(struct server *s, int rc)
{
    cache_write_close(s->cache_write);
    s->cache_write = NULL;
    if (*s->cached && (rc == -ERR_INTEGRITY || rc == -ERR_FORMAT))
        cache_drop(&s->cache, s->cached);
}

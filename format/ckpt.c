/* ckpt.c - a checkpoint opened by the first driver that knows it, and what is known about it. */
#include "format/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/io.h"
#include "base/rnd.h"
#include "base/tmp_folder.h"
#include "format/fmt.h"
#include "format/remote/remote_list.h"
#include "format/hf/fused_experts.h"
#include "format/hf/small_files.h"
#include "format/native/panels_table.h"
#include "store/memory.h"
#include "store/store.h"

static int is_url(const char *path)
{
    const char *at = strstr(path, "://");
    return at && at > path && strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789") == (size_t)(at - path);
}

/* The folder part of a file's path; malloc'd. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

/* The first driver whose probe answers 1 opens the path. The last one takes every path, and reports what is
 * missing. */
static const struct fmt_driver drivers[] = {
    { "native", native_probe, native_open },          { "megatron", megatron_probe, megatron_open },
    { "deepspeed", deepspeed_probe, deepspeed_open }, { "dcp", dcp_probe, dcp_open_ckpt },
    { "dcp-hf", dcp_hf_probe, dcp_hf_open },          { "gguf", gguf_probe, gguf_open },
    { "torch", torch_probe, torch_open_ckpt },        { "hf", hf_probe, hf_open },
};

static int open_driver(struct ckpt *c, struct err *e)
{
    struct stat st = { .st_mode = S_IFDIR };
    if (!c->memory && stat(c->path, &st) < 0)
        return err_sys(e, "cannot open %s", c->path);
    int folder = S_ISDIR(st.st_mode);
    c->dir = folder ? strdup(c->path) : folder_of(c->path);
    if (!c->dir)
        return err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    c->hold = c->memory ? -1 : tmp_folder_hold(c->dir);
    const struct fmt_driver *d = drivers;
    while (!d->probe(c, folder))
        d++;
    c->driver = d->name;
    return d->open(c, folder, e);
}

static int open_remote(struct ckpt *c, const char *url, const struct ckpt_open_opts *how, struct err *e)
{
    char *dir = how->unpublished ? io_join(how->unpublished, CKPT_PROOF) : NULL;
    if (how->unpublished && !dir)
        return err_set(e, ERR_MEMORY, "%s: no memory for a path", url);
    c->read_once = dir != NULL;
    int rc = live_open(c, url, how, e);
    if (rc == 0)
        rc = remote_open(&c->remote, url, dir, how, e);
    free(dir);
    return rc;
}

int ckpt_open(struct ckpt **out, const char *path, const struct ckpt_open_opts *how, struct err *e)
{
    static const struct ckpt_open_opts none = { 0 };
    char local[URL_LOCAL_BYTES];
    if (!how)
        how = &none;

    if (url_local_path(path, local))
        path = local;
    if (is_url(path) && !store_is_url(path))
        return err_set(e, ERR_USAGE,
                       "%s: give https://, http://, file://, s3://bucket/prefix or hf://owner/name", path);
    struct ckpt *c = calloc(1, sizeof *c);
    if (!c) {
        memory_close(how->files);
        return err_set(e, ERR_MEMORY, "%s: no memory to open a checkpoint", path);
    }
    pthread_mutex_init(&c->lock, NULL);
    c->hold = -1;
    c->layout = (struct ckpt_layout){ 1, 1, 1, 1, 1, 0 };
    c->config_path = how->config_path;
    c->memory = how->files;
    int rc = c->memory            ? 0
             : store_is_url(path) ? open_remote(c, path, how, e)
             : memory_is(path)    ? memory_open(&c->memory, path, e)
                                  : 0;
    const char *found = c->remote ? url_cache_path(c->remote) : c->memory ? memory_path(c->memory) : path;
    if (rc >= 0 && !(c->path = strdup(found)))
        rc = err_set(e, ERR_MEMORY, "%s: no memory to open a checkpoint", path);
    if (rc >= 0)
        rc = open_driver(c, e);
    if (rc >= 0 && strcmp(c->driver, "native"))
        rc = fmt_base_names(c, e);
    if (rc >= 0 && strcmp(c->driver, "native"))
        rc = fused_experts_split(c, e);
    if (rc >= 0 && strcmp(c->driver, "native"))
        rc = small_files_find(c, strcmp(c->path, c->dir) == 0, e);
    if (rc >= 0)
        rc = fmt_find_gaps(c, e);
    if (rc >= 0)
        rc = gguf_present(&c, e);
    if (rc < 0) {
        ckpt_close(c);
        return rc;
    }
    fmt_bottom(c)->config_path = NULL; /* the caller's */
    *out = c;
    return 0;
}

void ckpt_end_reading(struct ckpt *c)
{
    c = fmt_bottom(c);
    c->received = ckpt_received(c);
    c->is_done = c->remote != NULL || c->live != NULL || c->is_shared;
    for (int i = 0; c->is_shared && i < c->n_files; i++) { /* the server may have dropped them long ago */
        io_close(c->file[i].fd);
        c->file[i].fd = -1;
        memory_take_out(c->memory, c->file[i].name);
    }
    store_close(c->live);
    c->live = NULL;
    url_cache_close(c->remote);
    c->remote = NULL;
}

void ckpt_close(struct ckpt *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_files; i++) {
        io_close(c->file[i].fd);
        free(c->file[i].name);
        free(c->file[i].path);
        free(c->file[i].real);
        free(c->file[i].block);
        free((void *)c->file[i].seen);
        free((void *)c->file[i].proven);
        for (int64_t r = 0; r < c->file[i].n_records; r++)
            free(c->file[i].record[r].gap);
        free(c->file[i].record);
        free(c->file[i].frame);
        free(c->file[i].width);
    }
    for (int i = 0; c->tensor && i < c->n_tensors; i++)
        free((char *)c->tensor[i].name);
    for (int i = 0; i < c->n_tails; i++)
        free(c->tail[i]);
    free(c->tail);
    for (int i = 0; i < c->n_extra; i++)
        free(c->extra[i].name);
    for (int i = 0; i < FMT_CACHE; i++)
        free(c->cache[i].data);
    for (int i = 0; i < c->n_owned; i++)
        free(c->owned[i]);
    free(c->owned);
    free(c->file);
    free(c->tensor);
    free(c->piece);
    free(c->first_piece);
    free(c->extra);
    free(c->run_json);
    free(c->counts);
    free(c->note);
    free(c->writer);
    free(c->config);
    url_cache_close(c->remote);
    memory_close(c->memory);
    store_close(c->live);
    fmt_view_free(c->view);
    gguf_model_free(c->gguf);
    panels_free(c->panels);
    io_close(c->hold);
    free(c->opened);
    free(c->path);
    free(c->dir);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- what is known; of a view what is known of the checkpoint at the bottom ---- */

const char *ckpt_remark(const struct ckpt *c)
{
    const struct ckpt *f = fmt_bottom(c);
    return f->remote ? url_cache_remark(f->remote) : NULL;
}

uint64_t ckpt_cache(const struct ckpt *c)
{
    const struct ckpt *f = fmt_bottom(c);
    return f->remote ? url_cache_id(f->remote) : 0;
}

int64_t ckpt_received(const struct ckpt *c)
{
    const struct ckpt *f = fmt_bottom(c);
    return f->remote ? url_cache_bytes(f->remote) : f->live ? store_bytes(f->live) : f->received;
}

const char *ckpt_path(const struct ckpt *c) { return fmt_bottom(c)->path; }
const char *ckpt_opened(const struct ckpt *c)
{
    const struct ckpt *f = fmt_bottom(c);
    return f->opened ? f->opened : f->path;
}
const char *ckpt_driver(const struct ckpt *c) { return fmt_bottom(c)->driver; }
const struct ckpt_state *ckpt_state(const struct ckpt *c) { return &fmt_bottom(c)->state; }
const struct ckpt_layout *ckpt_layout(const struct ckpt *c) { return &fmt_bottom(c)->layout; }
const char *ckpt_version(const struct ckpt *c) { return fmt_bottom(c)->live_version; }
const char *ckpt_note(const struct ckpt *c) { return fmt_bottom(c)->note; }
const char *ckpt_writer(const struct ckpt *c) { return fmt_bottom(c)->writer; }
int ckpt_writer_ranks(const struct ckpt *c) { return fmt_bottom(c)->n_ranks; }
int ckpt_is_shared(const struct ckpt *c) { return fmt_bottom(c)->is_shared; }
int ckpt_is_read_once(const struct ckpt *c) { return fmt_bottom(c)->read_once; }
int ckpt_n_extra(const struct ckpt *c) { return c->view ? fmt_view_n_extra(c->view) : c->n_extra; }

const char *ckpt_extra_name(const struct ckpt *c, int i)
{
    return c->view ? fmt_view_extra_name(c->view, i) : c->extra[i].name;
}

const char *ckpt_config_json(const struct ckpt *c)
{
    while (!c->config && c->view)
        c = ckpt_below(c);
    return c->config;
}

/* ---- tensors ---- */

int ckpt_n_tensors(const struct ckpt *c) { return c->n_tensors; }
const struct ckpt_tensor *ckpt_tensor(const struct ckpt *c, int i) { return &c->tensor[i]; }

int ckpt_find(const struct ckpt *c, enum ckpt_role role, const char *name)
{
    const struct ckpt_tensor *t = fmt_find_tensor(c->tensor, c->n_tensors, role, name);
    return t ? (int)(t - c->tensor) : -1;
}

uint64_t ckpt_list_hash(const struct ckpt *c)
{
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t h = (uint64_t)c->n_tensors;
    for (int i = 0; i < c->n_tensors; i++) {
        const struct ckpt_tensor *t = &c->tensor[i];
        h = (h ^ rnd_stream(t->name)) * odd;
        h = (h ^ (uint64_t)(t->role * 1024 + (int)t->dtype * 4 + (t->has_digest != 0))) * odd;
        for (int d = 0; d < t->n_dims; d++)
            h = (h ^ (uint64_t)t->shape[d]) * odd;
        h ^= h >> 32;
    }
    return h;
}

int ckpt_extra_read(const struct ckpt *c, int i, void **data, size_t *bytes, struct err *e)
{
    if (c->view)
        return fmt_view_extra_read(c->view, i, data, bytes, e);
    const struct fmt_extra *x = &c->extra[i];
    if (x->make)
        return x->make((struct ckpt *)c, x->name, data, bytes, e);
    char *path = fmt_place(c, x->name);
    int rc = path ? io_read_file(path, FMT_EXTRA_MAX, data, bytes, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    if (rc >= 0 && x->has_sum) {
        struct sum128 s = fmt_sum128(*data, *bytes);
        if (s.lo != x->sum.lo || s.hi != x->sum.hi) {
            rc = err_set(e, ERR_INTEGRITY,
                         "%s: does not have the checksum in %s: restore it from a good copy", path,
                         FMT_MANIFEST);
            free(*data);
            *data = NULL;
        }
    }
    free(path);
    return rc < 0 ? rc : 0;
}

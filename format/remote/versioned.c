/* versioned.c - a checkpoint whose versions follow each other at one URL (pshare): opened at one version,
 * which every request names (If-Match), so that no read mixes two.
 *
 * The small files come whole into memory. Of the others only what is read is transferred, and nothing is
 * kept on this machine: a version is out of date after the next update. For ranks that read a version at the
 * same time (in_memory) the server's own files are opened, where it is on this machine; where it is not, they
 * share the folder in memory of store/url_cache.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/jx.h"
#include "format/fmt.h"
#include "format/remote/remote_list.h"
#include "store/live.h"
#include "store/memory.h"
#include "store/store.h"

/* http://HOST:PORT, without a path: what pshare prints. Other URLs are spared the question. */
static int may_be_live(const char *url)
{
    const char *host = !strncmp(url, "http://", 7) ? url + 7 : !strncmp(url, "https://", 8) ? url + 8 : NULL;
    size_t n = host ? strcspn(host, "/?#") : 0;
    return n && (!host[n] || !strcmp(host + n, "/"));
}

/* Keeps the file in memory; *data, where not NULL, is its bytes. */
static int take_small(struct ckpt *c, const char *name, char **data, struct err *e)
{
    struct store_info info;
    char *text = NULL;
    int rc = fmt_file_name_check(name, "the manifest", e);
    if (rc < 0)
        return rc;
    TRY(store_stat(c->live, name, &info, e));
    if (rc == 0 || info.bytes > (int64_t)FMT_MANIFEST_MAX) {
        rc = err_set(e, ERR_FILE, "%s is not there, or has too many bytes: is the server a pshare", name);
        goto out;
    }
    if (!(text = malloc((size_t)info.bytes + 1))) {
        rc = err_set(e, ERR_MEMORY, "no memory for %s", name);
        goto out;
    }
    TRY(store_read(c->live, name, &info, 0, info.bytes, text, e));
    text[info.bytes] = 0;
    TRY(memory_add(c->memory, name, text, info.bytes, info.bytes, e));
out:
    if (rc < 0 || !data)
        free(text);
    else
        *data = text;
    return rc < 0 ? rc : 0;
}

/* Finds out the size of a file of weights. opens: opens the file itself where the server names it; *n_distant
 * counts the files for which it does not. */
static int take_large(struct ckpt *c, const char *name, int opens, int *n_distant, struct err *e)
{
    struct store_info info;
    int rc = fmt_file_name_check(name, "the manifest", e);
    if (rc < 0)
        return rc;
    TRY(store_stat(c->live, name, &info, e));
    if (rc == 0 || !info.ranges) {
        rc = err_set(e, ERR_FILE, "%s is not there, or not by ranges: is the server a pshare", name);
        goto out;
    }
    int fd = opens ? same_machine_open(info.same_machine, info.bytes) : -1;
    *n_distant += fd < 0;
    rc = fd < 0 ? memory_add(c->memory, name, NULL, 0, info.bytes, e)
                : memory_add_open(c->memory, name, fd, e);
out:
    return rc < 0 ? rc : 0;
}

static int take_files(struct ckpt *c, int opens, int *n_distant, struct err *e)
{
    char *text = NULL;
    json_t *root = NULL, *o;
    const char *name;
    size_t i;
    int rc = take_small(c, FMT_MANIFEST, &text, e);
    if (rc < 0)
        return rc;
    if (!(root = jx_parse(text, strlen(text), FMT_MANIFEST, e))) {
        rc = -e->code;
        goto out;
    }
    if ((name = json_string_value(json_object_get(json_object_get(root, "config"), "name"))))
        TRY(take_small(c, name, NULL, e));
    json_array_foreach(json_object_get(root, "extra"), i, o)
        if ((name = json_string_value(json_object_get(o, "name"))))
            TRY(take_small(c, name, NULL, e));
    json_array_foreach(json_object_get(root, "files"), i, o)
        if ((name = json_string_value(json_object_get(o, "name"))))
            TRY(take_large(c, name, opens, n_distant, e));
out:
    json_decref(root);
    free(text);
    return rc < 0 ? rc : 0;
}

/* Forgets what was opened: the URL is read in another way. */
static void drop_live(struct ckpt *c)
{
    store_close(c->live);
    memory_close(c->memory);
    free(c->opened);
    c->opened = NULL;
    c->live = NULL;
    c->memory = NULL;
    *c->live_version = 0;
}

int live_open(struct ckpt *c, const char *url, const struct ckpt_open_opts *how, struct err *e)
{
    struct store_info info;
    struct live_version v;
    struct err ignored;
    char shown[4200];
    int rc, n_distant = 0;
    if (!may_be_live(url) || how->unpublished || how->with_cards)
        return 0;
    TRY(store_open(&c->live, url, e));
    store_stop_on(c->live, how->stop);
    /* what is wrong with another server is found again, and told, by those who ask for more */
    if (store_stat(c->live, FMT_MANIFEST, &info, &ignored) <= 0 || !store_is_version(info.etag)) {
        if (store_is_late(c->live) && live_version_get(url, -1, 0, how->stop, &v, &ignored) == 0) {
            rc = err_set(e, ERR_FILE,
                         "there is no version yet: try again when the trainer has published one");
            goto out;
        }
        drop_live(c);
        return 0;
    }
    snprintf(c->live_version, sizeof c->live_version, "%.*s", (int)strlen(info.etag) - 2, info.etag + 1);
    TRY(memory_private(&c->memory, url_shown(url, shown, sizeof shown), e));
    if (!(c->opened = strdup(url))) {
        rc = err_set(e, ERR_MEMORY, "no memory for a URL");
        goto out;
    }
    TRY(take_files(c, how->in_memory, &n_distant, e));
    if (how->in_memory && n_distant && !how->alone) {
        drop_live(c);
        return 0;
    }
    if (how->in_memory && !n_distant) {
        store_close(c->live);
        c->live = NULL;
        c->is_shared = 1;
    }
out:
    return rc < 0 ? err_add(e, "%.*s", (int)strcspn(url_shown(url, shown, sizeof shown), "?"), shown) : 1;
}

int live_read(struct ckpt *c, const char *name, void *dst, int64_t n, int64_t off, struct err *e)
{
    struct store_info info = { .ranges = 1 };
    char *path = fmt_place(c, name);
    int fd = path ? io_open_read(path, e) : err_set(e, ERR_MEMORY, "no memory for a path");
    info.bytes = fd < 0 ? fd : io_size(fd, name, e);
    io_close(fd);
    free(path);
    if (info.bytes < 0)
        return (int)info.bytes;
    snprintf(info.etag, sizeof info.etag, "\"%s\"", c->live_version);
    int rc = store_read(c->live, name, &info, off, n, dst, e);
    return rc < 0 ? rc : 0;
}

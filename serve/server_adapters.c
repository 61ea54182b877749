/* server_adapters.c - the adapters of --lora, from the command line to the ranks' memory. See server.h. */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"

/* Ranks (r) of adapters that a server has room for where operators may load some. */
#define RANK_ROOM 64
#define SYNC_MS 20 /* while one is read: how soon a rank's failure reaches the others */

/* The word NAME=PATH of --lora: where its path begins; NULL: it is none. */
static const char *path_of(const char *word)
{
    const char *at = strchr(word, '=');
    return at && at > word && at[1] ? at + 1 : NULL;
}

int server_open_adapters(struct server *s, const volatile sig_atomic_t *stop, struct err *e)
{
    struct adapter_start *a = &s->adapter_start;
    const struct opt_list *words = &s->o.lora;
    const struct adapter_base base = { s->loaded.ckpt, &a->table, stop };
    int rc = 0;

    a->rank = s->o.admin_key_file ? RANK_ROOM : 0;
    if (!words->n)
        return 0;
    TRY(param_table_open(&a->table, &s->loaded.cfg, e));
    a->file = calloc((size_t)words->n, sizeof *a->file);
    a->name = calloc((size_t)words->n, sizeof(*a->name));
    TRY(a->file && a->name ? 0 : err_set(e, ERR_MEMORY, "no memory for %d adapters", words->n));
    for (int i = 0; i < words->n; i++) {
        struct adapter_file *f = &a->file[a->n++];
        TRY(adapter_file_open(f, path_of(words->item[i]), &base, e));
        a->rank = f->rank > a->rank ? f->rank : a->rank;
    }
out:
    return rc < 0 ? err_add(e, "--lora") : 0;
}

int server_name_adapters(struct server *s, struct err *e)
{
    struct adapter_start *a = &s->adapter_start;
    const struct opt_list *words = &s->o.lora;
    char name[ADAPTER_NAME_MAX + 2];
    struct fault f;
    if (!server_is_first(s))
        return 0;
    int rc = adapter_names_open(&s->service.adapters, s->service.model, e);
    for (int i = 0; rc >= 0 && i < words->n; i++) {
        const char *path = path_of(words->item[i]);
        snprintf(name, sizeof name, "%.*s", (int)(path - 1 - words->item[i]), words->item[i]);
        if (adapter_names_reserve(s->service.adapters, name, path, 0, &a->name[i], &f) < 0)
            rc = err_set(e, ERR_USAGE, "--lora %s: %s", words->item[i], f.text);
    }
    return rc;
}

int64_t server_measure_adapters(const struct server *s, const struct model *m, struct err *e)
{
    const struct adapter_start *a = &s->adapter_start;
    int64_t bytes = 0, own = 0;
    for (int i = 0; own >= 0 && i < a->n; i++) {
        own = adapter_measure(&a->file[i], m, e);
        bytes += own;
    }
    return own < 0 ? own : bytes;
}

/* Waits until all ranks of the replica have read the adapter. */
static int wait_read(struct server *s, char digest[ADAPTER_DIGEST_MAX], struct err *e)
{
    struct adapter_set *set = &s->adapters;
    int rc;
    do {
        if (world_stop_signal(s->world))
            background_cancel(&set->background);
        background_wait(&set->background, SYNC_MS);
        rc = adapter_sync(set, e);
    } while (rc == 0);
    return rc < 0 ? rc : adapter_end(set, digest, e);
}

/* Adds up what the ranks of all replicas hold of it, and says so. */
static int log_adapter(struct server *s, int i, const char *digest, struct err *e)
{
    const struct adapter_slot *x = s->adapters.slot[i + 1];
    int64_t bytes = x->bytes;
    char size[32];
    int rc = comm_all_reduce_i64(s->mesh.all, &bytes, 1, e);
    log_bytes(size, (double)bytes);
    if (rc >= 0)
        log_line(&s->log, "adapter %s: %d matrices of rank %lld at most, %s on all ranks, digest %s",
                 s->o.lora.item[i], x->n_matrices, (long long)x->rank, size, digest);
    return rc;
}

int server_load_adapters(struct server *s, struct err *e)
{
    struct adapter_start *a = &s->adapter_start;
    char digest[ADAPTER_DIGEST_MAX] = "";
    int rc = 0;
    adapter_set_open(&s->adapters, &s->loaded, s->ranks.all, comm_local_size(s->mesh.all));
    for (int i = 0; i < a->n; i++) {
        adapter_begin(&s->adapters, i + 1, path_of(s->o.lora.item[i]), &a->file[i]);
        TRY(comm_agree(s->mesh.all, wait_read(s, digest, e), e));
        TRY(log_adapter(s, i, digest, e));
        if (a->name[i])
            adapter_names_publish(a->name[i], digest);
    }
    if (s->http && s->o.admin_key_file)
        rc = adapter_reaper_open(&a->reaper, s->service.adapters, &s->router, e);
    rc = comm_agree(s->mesh.all, rc, e);
out:
    return rc < 0 ? err_add(e, "--lora") : 0;
}

void server_end_adapters(struct server *s)
{
    adapter_reaper_close(s->adapter_start.reaper);
    s->adapter_start.reaper = NULL;
}

void server_close_adapters(struct server *s)
{
    struct adapter_start *a = &s->adapter_start;
    for (int i = 0; i < a->n; i++)
        adapter_file_close(&a->file[i]);
    free(a->file);
    free(a->name);
    if (a->table.p)
        param_table_close(&a->table);
    adapter_names_close(s->service.adapters);
    adapter_set_close(&s->adapters);
}

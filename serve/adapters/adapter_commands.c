/* adapter_commands.c - see adapter_commands.h. */
#include "serve/adapters/adapter_commands.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct adapter_reaper {
    struct adapter_names *names;
    struct router *rt;
    pthread_t thread;
};

/* Has all replicas free the slot. */
static void drop(struct router *rt, int32_t slot)
{
    char text[16], answer[64];
    struct fault ignored;
    snprintf(text, sizeof text, "%d", slot);
    router_command(rt, RELOAD_ADAPTER_DROP, text, answer, &ignored);
}

static void *reap(void *arg)
{
    struct adapter_reaper *r = arg;
    struct adapter_name *a;
    while ((a = adapter_names_wait_unused(r->names))) {
        drop(r->rt, a->slot);
        adapter_names_forget(a);
    }
    return NULL;
}

int adapter_reaper_open(struct adapter_reaper **out, struct adapter_names *names, struct router *rt,
                        struct err *e)
{
    struct adapter_reaper *r = calloc(1, sizeof *r);
    if (r) {
        r->names = names;
        r->rt = rt;
    }
    if (!r || pthread_create(&r->thread, NULL, reap, r) != 0) {
        free(r);
        return err_set(e, ERR_MEMORY, "no thread for adapters: raise the limit of processes");
    }
    *out = r;
    return 0;
}

void adapter_reaper_close(struct adapter_reaper *r)
{
    if (!r)
        return;
    adapter_names_end(r->names);
    pthread_join(r->thread, NULL);
    free(r);
}

int adapter_load(struct adapter_names *names, struct router *rt, const char *name, const char *path,
                 int replaces, struct fault *f)
{
    struct adapter_name *a;
    char text[RELOAD_PATH_MAX], digest[64];
    if (adapter_names_reserve(names, name, path, replaces, &a, f) < 0)
        return -1;
    snprintf(text, sizeof text, "%d %s", a->slot, path);
    if (router_command(rt, RELOAD_ADAPTER, text, digest, f) < 0) {
        drop(rt, a->slot);
        adapter_names_forget(a);
        return -1;
    }
    adapter_names_publish(a, digest);
    return 0;
}

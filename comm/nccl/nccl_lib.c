/* nccl_lib.c - the library: opened at run time, its calls declared in nccl.h, so that the build does not need
 * it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "comm/nccl/nccl.h"

int nccl_check(const struct nccl *n, int rc, const char *what, struct err *e)
{
    return rc == 0 || rc == NCCL_IN_PROGRESS ? 0 : err_set(e, ERR_DEVICE, "NCCL: %s: %s", what, n->text(rc));
}

static int find_calls(struct nccl *n)
{
    int all = 1;
#define X(name, args) all &= (*(void **)&n->name = dlsym(n->library, "nccl" #name)) != NULL;
    NCCL_LIST(X)
#undef X
    return all & ((*(void **)&n->text = dlsym(n->library, "ncclGetErrorString")) != NULL);
}

/* SHARDLINE_NCCL names another file. The fake device needs it: NCCL itself would take its addresses for a
 * GPU's. */
static const char *file_name(const struct dev *d)
{
    const char *name = env_get(ENV_SHARDLINE_NCCL);
    if (name)
        return name;
    return d && !strcmp(d->kind, "fake") ? NULL : "libnccl.so.2";
}

int nccl_load(struct nccl *n, const struct dev *d, struct err *e)
{
    const char *name = file_name(d);
    if (!name)
        return err_set(e, ERR_DEVICE,
                       "the fake device has no NCCL: name one in SHARDLINE_NCCL, or use --transport auto");
    if (!(n->library = dlopen(name, RTLD_NOW | RTLD_LOCAL)))
        return err_set(e, ERR_DEVICE,
                       "%s is not here: install NCCL, put it on LD_LIBRARY_PATH, or use --transport auto",
                       name);
    if (!find_calls(n))
        return err_set(e, ERR_DEVICE, "%s is too old: NCCL 2.14 or later is needed, or use --transport auto",
                       name);
    return 0;
}

const char *comm_transports(void)
{
    static char text[64];
    struct nccl n = { 0 };
    struct err e;
    int version = 0, rc = nccl_load(&n, NULL, &e);
    if (rc >= 0 && n.GetVersion(&version) == 0)
        snprintf(text, sizeof text, "self shm mpi nccl (%d.%d.%d)", version / 10000, version / 100 % 100,
                 version % 100);
    else
        snprintf(text, sizeof text, "self shm mpi nccl (not here)");
    return text;
}

/* reload_all.c - see reload_all.h. */
#include "serve/replicas/reload_all.h"

#include "base/clock.h"

/* All replicas load; when all have, all swap, else all drop. */
static int swap_all(struct router *rt, const struct reload_order *o, char fingerprint[64],
                    struct reload_times *t, struct fault *f)
{
    char text[RELOAD_PATH_MAX];
    struct fault ignored;
    double begin = clock_s();
    reload_order_write(o, text);
    int rc = router_command(rt, RELOAD_LOAD, text, fingerprint, f);
    t->read_s = clock_s() - begin;
    if (rc == 0)
        rc = router_command(rt, RELOAD_SWAP, reload_mode_name(o->mode), fingerprint, f);
    t->swap_s = clock_s() - begin - t->read_s;
    if (rc < 0)
        router_command(rt, RELOAD_DROP, "", fingerprint, &ignored);
    return rc;
}

int reload_all(struct router *rt, const struct reload_order *o, char fingerprint[64], struct reload_times *t,
               struct fault *f)
{
    if (atomic_exchange(&rt->reloading, 1))
        return fault_set(f, 409, NULL, "another reload is being worked on: try again when it is done");
    int rc = swap_all(rt, o, fingerprint, t, f);
    atomic_store(&rt->reloading, 0);
    return rc;
}

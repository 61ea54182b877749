/* procs.c - see procs.h. */
#include "reshard/procs.h"

#include <stdlib.h>
#include <string.h>
#include "comm/comm.h"
#include "comm/memory_place.h"

struct procs {
    struct world *world;
    struct mesh mesh;
};

int procs_open(struct procs **out, struct world *w, struct err *e)
{
    const int size[AXIS_COUNT] = { [AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_DP] = world_size(w), [AXIS_PP] = 1 };
    struct procs *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_MEMORY, "no memory for a group of processes");
    s->world = w;
    int rc = mesh_open(&s->mesh, w, size, e);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void procs_close(struct procs *s)
{
    if (s)
        mesh_close(&s->mesh);
    free(s);
}

int procs_rank(const struct procs *s) { return s ? world_rank(s->world) : 0; }
int procs_size(const struct procs *s) { return s ? world_size(s->world) : 1; }
int procs_stopped(const struct procs *s) { return s && world_stop_signal(s->world); }

int procs_agree(const struct procs *s, int rc, struct err *e)
{
    return s ? comm_agree(s->mesh.all, rc, e) : rc;
}

int procs_check_memory(const struct procs *s, int64_t bytes, const char *advice, struct err *e)
{
    int64_t need[MEM_CATS] = { [MEM_WORK] = bytes };
    struct memory_place *place = NULL;
    char text[MEMORY_PLACE_TEXT];
    int n = 0, rc = memory_places(s ? s->mesh.all : NULL, NULL, need, &place, &n, e);
    if (rc >= 0 && memory_place_is_full(place)) {
        memory_place_text(place, text);
        rc = err_set(e, ERR_USAGE, "%s: %s", text, advice);
    }
    free(place);
    return rc;
}

int procs_sum(const struct procs *s, int64_t *v, int64_t n, struct err *e)
{
    return s ? comm_all_reduce_i64(s->mesh.all, v, n, e) : 0;
}

int procs_broadcast(const struct procs *s, char *text, size_t n, struct err *e)
{
    return s ? comm_broadcast(s->mesh.all, text, n, 0, e) : 0;
}

int procs_gather(const struct procs *s, const void *blob, size_t bytes, void **out, size_t *n, struct err *e)
{
    *out = NULL;
    *n = bytes;
    if (!s) {
        if (!(*out = malloc(bytes + 1)))
            return err_set(e, ERR_MEMORY, "no memory for tables of %zu bytes", bytes);
        if (bytes) /* a Hugging Face target has no tables */
            memcpy(*out, blob, bytes);
        return 0;
    }
    size_t *size = calloc((size_t)procs_size(s), sizeof *size);
    int rc = size ? 0 : err_set(e, ERR_MEMORY, "no memory for the tables of %d processes", procs_size(s));
    rc = comm_agree(s->mesh.all, rc, e);
    if (rc >= 0)
        rc = comm_gather_blobs(s->mesh.all, blob, bytes, 0, out, size, e);
    *n = 0;
    for (int r = 0; rc >= 0 && !procs_rank(s) && r < procs_size(s); r++)
        *n += size[r];
    free(size);
    return rc < 0 ? rc : 0;
}

/* share.c - see share.h. */
#include "reshard/share.h"

#include <stdlib.h>
#include <string.h>
#include "comm/comm.h"

struct share {
    struct world *world;
    struct mesh mesh;
};

int share_open(struct share **out, struct world *w, struct err *e)
{
    const int size[AXIS_COUNT] = { [AXIS_TP] = 1, [AXIS_CP] = 1, [AXIS_DP] = world_size(w), [AXIS_PP] = 1 };
    struct share *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_MEMORY, "no room for a group of processes");
    s->world = w;
    int rc = mesh_open(&s->mesh, w, size, e);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void share_close(struct share *s)
{
    if (s)
        mesh_close(&s->mesh);
    free(s);
}

int share_rank(const struct share *s) { return s ? world_rank(s->world) : 0; }
int share_size(const struct share *s) { return s ? world_size(s->world) : 1; }
int share_stopped(const struct share *s) { return s && world_stop_signal(s->world); }

int share_agree(const struct share *s, int rc, struct err *e)
{
    return s ? comm_agree(s->mesh.all, rc, e) : rc;
}

int share_sum(const struct share *s, int64_t *v, int64_t n, struct err *e)
{
    return s ? comm_all_reduce_i64(s->mesh.all, v, n, e) : 0;
}

int share_tell(const struct share *s, char *text, size_t n, struct err *e)
{
    return s ? comm_broadcast(s->mesh.all, text, n, 0, e) : 0;
}

int share_gather(const struct share *s, const void *blob, size_t bytes, void **out, size_t *n, struct err *e)
{
    *out = NULL;
    *n = bytes;
    if (!s) {
        if (!(*out = malloc(bytes + 1)))
            return err_set(e, ERR_MEMORY, "no room for tables of %zu bytes", bytes);
        if (bytes) /* a Hugging Face target has no tables */
            memcpy(*out, blob, bytes);
        return 0;
    }
    size_t *size = calloc((size_t)share_size(s), sizeof *size);
    int rc = size ? 0 : err_set(e, ERR_MEMORY, "no room for the tables of %d processes", share_size(s));
    rc = comm_agree(s->mesh.all, rc, e);
    if (rc >= 0)
        rc = comm_gather_blobs(s->mesh.all, blob, bytes, 0, out, size, e);
    *n = 0;
    for (int r = 0; rc >= 0 && !share_rank(s) && r < share_size(s); r++)
        *n += size[r];
    free(size);
    return rc < 0 ? rc : 0;
}

/* save.c - a checkpoint: every rank writes its own pieces, rank 0 publishes what all have sealed. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "train/trainer.h"

static const enum ckpt_role roles[ZERO_STATES] = { ROLE_WEIGHT, ROLE_MASTER, ROLE_EXP_AVG, ROLE_EXP_AVG_SQ };

struct source { enum zero_state state; struct param_piece at; };
struct shard { int n; struct ckpt_piece *piece; struct source *source; };

static int add_pieces(struct trainer *t, struct shard *s, enum zero_state state, int sliced, struct param_piece *buf)
{
    int n = params_pieces(&t->model.local, t->mesh.at[AXIS_DP], sliced, buf);
    for (int i = 0; i < n; i++) {
        const struct param *p = &t->model.table.p[t->model.local.part[buf[i].part].param];
        struct ckpt_piece *x = &s->piece[s->n];
        *x = (struct ckpt_piece){ .t = { .name = p->name, .role = roles[state], .n_dims = p->n_dims, .shape = { p->shape[0], p->shape[1] } },
                                  .box = buf[i].box, .lo = buf[i].lo, .hi = buf[i].hi };
        x->t.dtype = state == ZERO_WEIGHT && t->dt == DT_BF16 ? CK_BF16 : CK_F32;
        s->source[s->n++] = (struct source){ state, buf[i] };
    }
    return n;
}

/* This rank's pieces, in the order weights, masters, moments. */
static int shard_open(struct trainer *t, struct shard *s, struct err *e)
{
    int most = t->model.local.n_parts;
    struct param_piece *buf = calloc((size_t)most + 1, sizeof *buf);
    s->piece = calloc((size_t)most * ZERO_STATES + 1, sizeof *s->piece);
    s->source = calloc((size_t)most * ZERO_STATES + 1, sizeof *s->source);
    if (!buf || !s->piece || !s->source) {
        free(buf);
        return err_set(e, ERR_MEMORY, "no memory for the list of pieces");
    }
    add_pieces(t, s, ZERO_WEIGHT, t->layout.zero == 3, buf);
    for (enum zero_state k = ZERO_MASTER; k < ZERO_STATES; k++)
        if (k != ZERO_MASTER || t->dt != DT_F32)
            add_pieces(t, s, k, t->layout.zero >= 1, buf);
    free(buf);
    return 0;
}

/* A tensor that several parameters share: its rows are theirs, side by side. */
static int put_joined(struct trainer *t, struct ckpt_shard *f, int i, const struct source *from, struct err *e)
{
    const struct param *q = &t->model.table.p[t->model.local.part[from->at.part].param];
    size_t el = from->state == ZERO_WEIGHT ? dtype_size(t->dt) : sizeof(float), width = el * (size_t)(q->n_dims == 2 ? q->shape[1] : q->shape[0]);
    int64_t rows = q->n_dims == 2 && q->split_dim == 1 ? q->shape[0] : 1, room = 1 + (int64_t)(((size_t)1 << 20) / width);
    const char *data[PARTS_MAX];
    size_t bytes[PARTS_MAX];         /* of a row of each part; all of it where parts lie one behind the other */
    int n = from->at.n_parts, rc = 0;
    char *buf = malloc((size_t)room * width);
    if (!buf)
        return err_set(e, ERR_MEMORY, "no memory to save %s", q->name);
    for (int k = 0; k < n; k++) {
        const struct part *p = &t->model.local.part[from->at.part + k];
        struct param_piece one = { from->at.part + k, 1, p->box, 0, p->count, p->offset };
        data[k] = zero_piece(t->zero, from->state, &one);
        bytes[k] = el * (size_t)(p->count / rows);
    }
    for (int k = 0; k < n && rows == 1; k++)
        TRY(ckpt_shard_put(f, i, data[k], (int64_t)(bytes[k] / el), e));
    for (int64_t r = 0; r < rows && rows > 1; r += room) {
        int64_t here = rows - r < room ? rows - r : room;
        char *at = buf;
        for (int64_t j = r; j < r + here; j++)
            for (int k = 0; k < n; at += bytes[k++])
                memcpy(at, data[k] + (size_t)j * bytes[k], bytes[k]);
        TRY(ckpt_shard_put(f, i, buf, (int64_t)((size_t)(at - buf) / el), e));
    }
out:
    free(buf);
    return rc;
}

static int write_shard(struct trainer *t, const char *tmp, void **table, size_t *bytes, struct err *e)
{
    struct shard s = { 0 };
    struct ckpt_shard *f = NULL;
    int rc;
    TRY(shard_open(t, &s, e));
    if (s.n) {
        TRY(ckpt_shard_open(&f, tmp, world_rank(t->world), s.n, s.piece, e));
        for (int i = 0; i < s.n; i++)
            TRY(s.source[i].at.n_parts > 1 ? put_joined(t, f, i, &s.source[i], e)
                                           : ckpt_shard_put(f, i, zero_piece(t->zero, s.source[i].state, &s.source[i].at), s.piece[i].hi - s.piece[i].lo, e));
        struct ckpt_shard *closing = f;
        f = NULL;
        TRY(ckpt_shard_close(closing, table, bytes, e));
    }
out:
    ckpt_shard_abort(f);
    free(s.piece);
    free(s.source);
    return rc;
}

static int publish(struct trainer *t, const char *tmp, const char *dst, void *blobs, const size_t *sizes, struct err *e)
{
    int n = world_size(t->world), used = 0, rc;
    int64_t sample = t->first_sample + (t->step - t->first_step) * t->plan.rows;
    void **table = calloc((size_t)n, sizeof *table);
    size_t *bytes = calloc((size_t)n, sizeof *bytes);
    char *config = model_config_json(&t->cfg, t->dt == DT_BF16 ? "bfloat16" : "float32"), *at = blobs;
    struct ckpt_meta meta = {
        .layout = { t->layout.tp, t->layout.pp, t->layout.cp, t->layout.dp, t->layout.ep, t->layout.zero, t->layout.vpp },
        .state = { .has_state = 1, .step = t->step, .seed = (uint64_t)t->o.seed, .epoch = sample / data_windows(t->data),
                   .sample = sample % data_windows(t->data), .grain = t->cfg.grain, .run_json = t->run_json },
        .config_json = config, .n_extra = t->n_extra, .extra_name = t->extra_name, .extra_data = t->extra_data, .extra_bytes = t->extra_bytes,
    };
    if (!table || !bytes || !config) {
        rc = err_set(e, ERR_MEMORY, "no memory for the manifest");
        goto out;
    }
    for (int r = 0; r < n; at += sizes[r++]) {
        if (!sizes[r])
            continue;
        table[used] = at;
        bytes[used++] = sizes[r];
    }
    rc = ckpt_publish(tmp, dst, used, table, bytes, &meta, &t->digests, e);
out:
    free(config);
    free(table);
    free(bytes);
    return rc;
}

/* Removes all but the newest K checkpoints of OUT. */
static void drop_old(struct trainer *t)
{
    for (;;) {
        DIR *d = opendir(t->o.out);
        struct dirent *x;
        int64_t oldest = INT64_MAX, n = 0;
        char path[4200];
        struct err e;
        while (d && (x = readdir(d))) {
            int64_t s = trainer_step_of(x->d_name);
            if (s < 0)
                continue;
            n++;
            oldest = s < oldest ? s : oldest;
        }
        if (d)
            closedir(d);
        if (n <= t->o.keep || oldest == t->step)
            return;
        snprintf(path, sizeof path, "%s/step-%lld", t->o.out, (long long)oldest);
        if (ckpt_remove(path, &e) < 0) {
            log_line(&t->log, "cannot remove %s: %s", path, e.text);
            return;
        }
    }
}

int trainer_save(struct trainer *t, struct err *e)
{
    char tmp[4096] = "", *dst = t->last_checkpoint;
    void *table = NULL, *blobs = NULL;
    size_t bytes = 0, *sizes = calloc((size_t)world_size(t->world), sizeof *sizes);
    int first = world_rank(t->world) == 0, rc = 0;
    snprintf(dst, sizeof t->last_checkpoint, "%s/step-%lld", t->o.out, (long long)t->step);
    if (!sizes)
        rc = err_set(e, ERR_MEMORY, "no memory for a save");
    else if (first)
        rc = ckpt_begin(dst, tmp, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    TRY(comm_broadcast(t->mesh.all, tmp, sizeof tmp, 0, e));
    rc = write_shard(t, tmp, &table, &bytes, e);
    TRY(comm_agree(t->mesh.all, rc, e));
    TRY(comm_gather_blobs(t->mesh.all, table, bytes, 0, &blobs, sizes, e));
    rc = first ? publish(t, tmp, dst, blobs, sizes, e) : 0;
    TRY(comm_agree(t->mesh.all, rc, e));
    TRY(comm_broadcast(t->mesh.all, &t->digests, sizeof t->digests, 0, e));
    if (first && t->o.keep)
        drop_old(t);
    char *name = runlog_quote(dst);
    runlog_event(t, "save", "\"checkpoint\":%s", name ? name : "null");
    free(name);
out:
    if (rc < 0 && first && tmp[0])
        ckpt_abandon(tmp);
    if (rc < 0) {                        /* nobody leaves before the folder is gone: a launcher may stop the others at the first end */
        struct err late;
        comm_barrier(t->mesh.all, &late);
    }
    free(table);
    free(blobs);
    free(sizes);
    return rc < 0 ? err_add(e, "saving %s", dst) : 0;
}

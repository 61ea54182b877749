/* deepspeed_zero.c - reads DeepSpeed ZeRO-1, 2 and 3: flat fp32 buffers cut over the data-parallel ranks.
 *
 *     stage 1, 2:  a group is one buffer [p0 | p1 | p2 … | pad], cut in W equal slices; a parameter may be on
 *                  several ranks. The last rank's fp32 slice has no padding, its moments have it.
 *     stage 3:     every parameter is cut by itself, ceil(n / W) elements a rank; a rank's buffer has its
 *                  parts one after another, over all groups and sub-groups. Elements behind the end of a
 *                  parameter are undefined.
 * param_shapes has the order. param_slice_mappings is not used: with round_robin_gradients it is wrong.
 * Source: Rajbhandari et al. 2020; the layout as found in files of DeepSpeed 0.19. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/deepspeed/deepspeed.h"

/* n fp32 elements at byte `offset` of a file; file -1: none */
struct extent {
    int file;
    int64_t offset, n;
    uint32_t crc;
};
struct zero {
    struct build *b;
    const char *path;             /* of the folder, for messages */
    int stage, n_ranks, n_groups; /* n_groups: in the optimizer's files; stage 3: sub-groups */
    int narrow, has_moments;
    struct extent *x[FLATS]; /* [rank][group] */
    struct ds_model model;
    struct ds_params params;
    int n_models; /* stage 3: model files, one for each rank */
    struct ds_experts experts;
    /* Ranks that share a group: [n_groups]. 0: their numbers are neighbours, else ep apart. */
    int64_t *count;
    int is_before;
    /* Stage 3 with experts: the place of each rank among those of a group, [rank][group]; NULL: the rank. */
    int64_t *place, *ep_rank;
};
static const char *const flat_name[FLATS] = { "fp32", "exp_avg", "exp_avg_sq" };

static struct extent *extent_at(const struct zero *z, int flat, int rank, int group)
{
    return &z->x[flat][(size_t)rank * (size_t)z->n_groups + (size_t)group];
}

/* ---- files by name ---- */

enum { OPTIM, MODEL, MODEL_3 };
static const char *const file_kind[] = { "optim_states.pt", "model_states.pt", "model_states.pt" };

/* 1: the name is of this kind; sets its data-parallel rank (MODEL has none) and its model-parallel rank. */
static int is_file(const char *name, int kind, int *rank, int *mp)
{
    char tail[40];
    int used = 0;
    const char *at = kind == MODEL ? (!strncmp(name, "mp_rank_", 8) ? name : NULL)
                                   : strstr(name, "zero_pp_rank_");
    *rank = 0;
    if (!at || (at != name && at[-1] != '_'))
        return 0;
    int n = kind == MODEL ? sscanf(at, "mp_rank_%d_%39s%n", mp, tail, &used)
                          : sscanf(at, "zero_pp_rank_%d_mp_rank_%d_%39s%n", rank, mp, tail, &used);
    return n == (kind == MODEL ? 2 : 3) && !at[used] && *rank >= 0 && !strcmp(tail, file_kind[kind]);
}

/* The *n file names of one kind, by rank; *out is malloc'd. Ranks must be 0 … n - 1, model-parallel rank
 * 0. */
static int by_rank(const struct zero *z, const struct names *files, int kind, const char ***out, int *n,
                   struct err *e)
{
    const char **list = calloc((size_t)files->n + 1, sizeof *list);
    int rank, mp, rc = 0;

    *n = 0;
    *out = list;
    if (!list)
        return err_set(e, ERR_MEMORY, "%s: no memory for its files", z->path);
    for (int i = 0; i < files->n && rc >= 0; i++) {
        if (!is_file(files->name[i], kind, &rank, &mp))
            continue;
        if (mp > 0)
            rc = err_set(e, ERR_FORMAT,
                         "%s: %s is of model-parallel rank %d, and how its tensors were cut is not in the "
                         "files: convert with ds_to_universal",
                         z->path, files->name[i], mp);
        else if (rank >= files->n || list[rank])
            rc = err_set(e, ERR_FORMAT,
                         "%s: %s: there are %d files, a rank is missing or there twice: is a file of another "
                         "run in the folder",
                         z->path, files->name[i], files->n);
        else {
            list[rank] = files->name[i];
            (*n)++;
        }
    }

    for (int r = 0; r < *n && rc >= 0; r++)
        if (!list[r])
            rc = err_set(e, ERR_FORMAT, "%s: the %s of rank %d is missing, there are %d others: restore it",
                         z->path, file_kind[kind], r, *n);
    return rc;
}

static int refuse_others(const struct zero *z, const struct names *files, struct err *e)
{
    int layer, expert, mp;
    for (int i = 0; i < files->n; i++)
        if (!strncmp(files->name[i], "layer_", 6) && !ds_expert_file(files->name[i], &layer, &expert, &mp))
            return err_set(
                e, ERR_FORMAT,
                "%s: %s: layers are in files of their own (pipeline), which cannot be read yet: convert "
                "with ds_to_universal",
                z->path, files->name[i]);
    return 0;
}

/* ---- one rank's optimizer file ---- */

static int stage_of(const struct pk *o)
{
    const struct pk *p = pk_get(o, "zero_stage");
    int64_t stage = 1; /* BF16_Optimizer has no stage and cuts as stage 1 does */
    if (p && p->kind == PK_CALL)
        p = pk_at(p->args, 0);
    pk_int(p, &stage);
    return (int)stage;
}

/* Ranks that share group g, as the file says; all of them where it does not. */
static int64_t count_in(const struct zero *z, const struct pk *o, int g)
{
    const struct pk *p = pk_get(o, "partition_count"),
                    *own = pk_get(pk_at(pk_get(o, "ds_zero_partition_groups"), (uint32_t)g),
                                  "partition_count");
    int64_t n = z->n_ranks;
    pk_int(own ? own : p && p->kind == PK_LIST ? pk_at(p, (uint32_t)g) : p, &n);
    return n;
}

/* Checks the counts of a rank's groups: those of the first rank, and all ranks in at least one group. */
static int check_count(struct zero *z, const struct pk *o, int rank, const char *file, struct err *e)
{
    int64_t place, most = 0;
    if (rank == 0 && !(z->count = calloc((size_t)z->n_groups + 1, sizeof *z->count)))
        return err_set(e, ERR_MEMORY, "%s: no memory for %d groups", file, z->n_groups);
    for (int g = 0; g < z->n_groups; g++) {
        int64_t n = count_in(z, o, g);
        const struct pk *own = pk_at(pk_get(o, "ds_zero_partition_groups"), (uint32_t)g);
        if (rank == 0)
            z->count[g] = n;
        if (n < 1 || n > z->n_ranks || z->n_ranks % n)
            return err_set(e, ERR_FORMAT,
                           "%s: says that %lld ranks share the state, there are %d optimizer files: is one "
                           "missing, or of another run",
                           file, (long long)n, z->n_ranks);
        if (n != z->count[g])
            return err_set(
                e, ERR_FORMAT,
                "%s: says that %lld ranks share group %d, the file of rank 0 says %lld: is it of a run "
                "with another expert parallel degree",
                file, (long long)n, g, (long long)z->count[g]);
        most = n > most ? n : most;
        if (z->place && (!pk_int(pk_get(own, "partition_rank"), &place) || place < 0 || place >= n))
            return err_set(e, ERR_FORMAT,
                           "%s: ds_zero_partition_groups has no place of rank %d in group %d: is the "
                           "file damaged",
                           file, rank, g);
        if (z->place)
            z->place[(size_t)rank * (size_t)z->n_groups + (size_t)g] = place;
    }
    return most == z->n_ranks || !z->n_groups
               ? 0
               : err_set(e, ERR_FORMAT,
                         "%s: says that %lld ranks share the state, there are %d optimizer files: is one "
                         "missing, or of another run",
                         file, (long long)most, z->n_ranks);
}

static int read_extent(struct zero *z, struct torch_file *t, const struct pk *p, int flat, int rank,
                       int group, struct err *e)
{
    struct torch_tensor x;
    struct extent *out = extent_at(z, flat, rank, group);
    int rc = torch_tensor(t, p, flat_name[flat], &x, e);
    if (rc < 0)
        return rc;
    if (x.n_dims != 1 || !x.contiguous || x.dtype != TORCH_F32)
        return err_set(e, ERR_FORMAT,
                       "%s: the %s of group %d is %s with %d dims, a flat float32 buffer is expected",
                       t->c->file[t->file].path, flat_name[flat], group, torch_dtype_name(x.dtype), x.n_dims);
    *out = (struct extent){ t->file, x.offset, x.n, x.record ? x.record->crc : 0 };
    return 0;
}

/* Reads the step of a group: a tensor or number in its state, or (fused Adam) in its options. */
static int read_step(struct zero *z, struct torch_file *t, const struct pk *base, const struct pk *state,
                     int rank, int group, struct err *e)
{
    const struct pk *groups = pk_get(base, "param_groups"), *p = pk_get(state, "step");
    char name[64];
    double step;
    snprintf(name, sizeof name, "group %d of rank %d", group, rank);
    int rc = torch_number(t, p ? p : pk_get(pk_at(groups, (uint32_t)group), "step"), name, &step, e);
    return rc <= 0 ? rc : build_step(z->b, step, name, e);
}

static int read_groups(struct zero *z, struct torch_file *t, const struct pk *o, int rank, struct err *e)
{
    const char *key = z->stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const struct pk *flats = pk_get(o, key),
                    *base = pk_get(o, z->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    int rc = 0;

    if (!base)
        base = pk_get(o, "optimizer_state_dict");
    if (!flats || (flats->kind != PK_LIST && flats->kind != PK_TUPLE) ||
        (rank && (int)flats->n != z->n_groups))
        return err_set(e, ERR_FORMAT, "%s: has %u buffers in %s, rank 0 has %d: are files of two saves mixed",
                       t->c->file[t->file].path, flats ? flats->n : 0, key, z->n_groups);
    if (rank == 0) {
        z->n_groups = (int)flats->n;
        for (int f = 0; f < FLATS; f++)
            if (!(z->x[f] = calloc((size_t)z->n_ranks * flats->n + 1, sizeof *z->x[f])))
                return err_set(e, ERR_MEMORY, "%s: no memory for %d ranks", z->path, z->n_ranks);
        if (pk_get(o, "ds_zero_partition_groups") && pk_get(o, "ds_zero_partition_groups")->kind != PK_NONE &&
            !(z->place = calloc((size_t)z->n_ranks * flats->n + 1, sizeof *z->place)))
            return err_set(e, ERR_MEMORY, "%s: no memory for %d ranks", z->path, z->n_ranks);
        z->has_moments = pk_get(pk_get_int(pk_get(base, "state"), 0), "exp_avg") != NULL;
    }

    rc = check_count(z, o, rank, t->c->file[t->file].path, e);
    for (int g = 0; g < z->n_groups && rc >= 0; g++) {
        const struct pk *state = pk_get_int(pk_get(base, "state"), g);
        rc = read_extent(z, t, flats->item[g], FLAT_PARAM, rank, g, e);
        for (int f = FLAT_AVG; f < FLATS && z->has_moments && rc >= 0; f++)
            rc = read_extent(z, t, pk_get(state, flat_name[f]), f, rank, g, e);
        if (z->has_moments && rc >= 0)
            rc = read_step(z, t, base, state, rank, g, e);
    }
    return rc;
}

/* Reads the unused elements behind every parameter of stages 1 and 2 (0 in all versions seen). */
static int read_skips(struct zero *z, const struct pk *o, const char *file, struct err *e)
{
    const struct pk *all = pk_get(o, "param_alignment_paddings");
    int at = 0;
    for (int g = 0; all && z->stage != 3 && g < z->params.n_groups; g++) {
        const struct pk *list = pk_at(all, (uint32_t)g);
        for (int k = 0; at < z->params.n && z->params.p[at].group == g; k++, at++) {
            struct ds_param *p = &z->params.p[at];
            if (!pk_int(pk_at(list, (uint32_t)k), &p->skip) || p->skip < 0 || p->skip > (int64_t)1 << 40)
                return err_set(
                    e, ERR_FORMAT,
                    "%s: param_alignment_paddings does not fit param_shapes at %.*s: is the file damaged",
                    file, p->n_name, p->name);
        }
    }
    return 0;
}

static void read_run(struct zero *z, struct torch_file *t, const struct pk *o)
{
    const struct pk *base = pk_get(o, z->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state"),
                    *group;
    const struct pk *config = pk_get(z->model.t.root, "ds_config");
    for (uint32_t i = 0;
         (group = pk_at(pk_get(base ? base : pk_get(o, "optimizer_state_dict"), "param_groups"), i)); i++)
        run_group(&z->b->run, t, group);
    run_deepspeed(&z->b->run, config ? &z->model.t : t, config ? config : pk_get(t->root, "ds_config"),
                  pk_get(z->model.t.root, "lr_scheduler"));
}

static int read_rank(struct zero *z, const char *sub, const char *name, int rank, struct err *e)
{
    struct ckpt *c = z->b->c;
    struct torch_file t = { 0 };
    char *full = build_text("%s%s", sub, name);
    int file, rc = full ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a path", z->path);
    const struct pk *o;

    if (rc < 0)
        return rc;
    TRY(file = build_file(c, full, e));
    TRY(torch_open(&t, c, file, 0, c->file[file].bytes, e));
    if (!(o = pk_get(t.root, "optimizer_state_dict"))) {
        rc = err_set(e, ERR_FORMAT, "%s: has no optimizer_state_dict: was it written by DeepSpeed's ZeRO",
                     c->file[file].path);
        goto out;
    }

    if (rank == 0)
        z->stage = stage_of(o);
    if (stage_of(o) != z->stage || z->stage < 1 || z->stage > 3) {
        rc = err_set(e, ERR_FORMAT, "%s: is of ZeRO stage %d, rank 0 of %d: are files of two runs mixed",
                     c->file[file].path, stage_of(o), z->stage);
        goto out;
    }

    if (rank == 0)
        TRY(read_skips(z, o, c->file[file].path, e));
    TRY(read_groups(z, &t, o, rank, e));
    if (rank == 0)
        read_run(z, &t, o);
out:
    torch_close(&t);
    free(full);
    return rc < 0 ? rc : 0;
}

/* ---- buffers to tensors ---- */

/* A place in a flat buffer of a rank: element `at` of one group, or (group -1) of all groups one after
 * another. */
struct flat_place {
    int flat, rank, group;
    int64_t at;
};

/* A parameter of rank r of its expert-parallel ranks (0: none): it starts at element `at` of its group's
 * buffer (stage 3: of the rank's); size: elements of a slice (stage 3: of a rank's part). */
struct owned {
    const struct ds_param *p;
    int64_t r, at, size;
};

/* The rank with part i of what rank r of the expert-parallel ranks has in group g; -1: none says so. */
static int rank_at(const struct zero *z, int g, int64_t r, int64_t i)
{
    int64_t n = z->count[g], ep = z->n_ranks / n, at = z->is_before ? r * n + i : r + i * ep;
    for (int k = 0; z->place && k < z->n_ranks; k++) {
        int rank = (int)((at + k) % z->n_ranks);
        if (z->place[(size_t)rank * (size_t)z->n_groups + (size_t)g] == i &&
            (ep == 1 || z->ep_rank[rank] == r))
            return rank;
    }
    return z->place ? -1 : (int)at;
}

/* Adds elements [lo, hi) of a box of a tensor, which are stored from place p on. */
static int add_range(struct zero *z, int tensor, const struct box *box, struct flat_place p, int64_t lo,
                     int64_t hi, struct err *e)
{
    int first = p.group < 0 ? 0 : p.group, last = p.group < 0 ? z->n_groups - 1 : p.group, rc = 0;
    int64_t at = p.at;

    for (int g = first; g <= last && lo < hi && rc >= 0; g++) {
        const struct extent *x = extent_at(z, p.flat, p.rank, g);
        if (at >= x->n) {
            at -= x->n;
            continue;
        }
        int64_t n = x->n - at < hi - lo ? x->n - at : hi - lo;
        rc = build_piece(z->b, tensor, x->file, x->offset + at * 4, box, lo, lo + n, e);
        lo += n;
        at = 0;
    }
    return rc;
}

/* Stages 1 and 2: the group's buffer is cut in slices of equal length. */
static int add_joined(struct zero *z, int flat, int tensor, const struct owned *o, const struct ds_part *part,
                      struct err *e)
{
    int rc = 0;
    for (int64_t lo = part->lo; lo < part->hi && rc >= 0;) {
        int64_t in = (o->at + lo) % o->size, n = o->size - in < part->hi - lo ? o->size - in : part->hi - lo;
        int rank = rank_at(z, o->p->group, o->r, (o->at + lo) / o->size);
        rc = add_range(z, tensor, &part->box, (struct flat_place){ flat, rank, o->p->group, in },
                       lo - part->lo, lo - part->lo + n, e);
        lo += n;
    }
    return rc;
}

/* Stage 3: rank i of those that share a parameter has its elements [i·size, (i + 1)·size). */
static int add_parts(struct zero *z, int flat, int tensor, const struct owned *o, const struct ds_part *part,
                     struct err *e)
{
    int g = z->place ? o->p->group : -1, rc = 0;
    for (int64_t i = 0; i < (z->place ? z->count[g] : z->n_ranks) && rc >= 0; i++) {
        int64_t first = i * o->size, lo = first > part->lo ? first : part->lo,
                hi = first + o->size < part->hi ? first + o->size : part->hi;
        int rank = z->place ? rank_at(z, g, o->r, i) : (int)i;
        if (rank < 0)
            return err_set(e, ERR_FORMAT,
                           "%s: no rank has part %lld of %s on expert-parallel rank %lld: is one missing",
                           z->path, (long long)i, part->name, (long long)o->r);
        if (lo < hi)
            rc = add_range(z, tensor, &part->box, (struct flat_place){ flat, rank, g, o->at + lo - first },
                           lo - part->lo, hi - part->lo, e);
    }
    return rc;
}

static enum ckpt_role role_of(const struct zero *z, int flat)
{
    static const enum ckpt_role role[FLATS] = { ROLE_WEIGHT, ROLE_EXP_AVG, ROLE_EXP_AVG_SQ };
    return flat == FLAT_PARAM && z->narrow ? ROLE_MASTER : role[flat];
}

/* Compares the first element of part k of an expert's parameter with the expert's file. */
static int compare(const struct zero *z, const struct owned *o, int64_t k, int64_t lo, struct err *e)
{
    int rank = rank_at(z, o->p->group, o->r, (o->at + lo) / o->size);
    const struct extent *x = extent_at(z, FLAT_PARAM, rank, o->p->group);
    int64_t in = (o->at + lo) % o->size, place[2] = { o->r, k };
    return o->p->layer < 0 || in >= x->n
               ? 0
               : ds_experts_compare(&z->experts, z->b->c, o->p, place, x->file, x->offset + in * 4, e);
}

/* Adds one parameter, in the parts that it has of tensors, under its name and its aliases. */
static int add_param(struct zero *z, const struct owned *o, struct err *e)
{
    struct ds_part part;
    uint32_t next = 0;
    const struct pk *alias = NULL;
    int rc = 0;
    do {
        for (int64_t k = 0; k < ds_experts_parts(&z->experts, o->p) && rc >= 0; k++) {
            rc = ds_experts_part(&z->experts, o->p, o->r, k, &part, z->path, e);
            for (int f = 0; f < (z->has_moments ? FLATS : 1) && rc >= 0; f++) {
                int t = rc = build_tensor(z->b, role_of(z, f), alias ? alias->text : part.name,
                                          alias ? (int)alias->n : (int)strlen(part.name), STORED_F32,
                                          part.n_dims, part.shape, e);
                if (rc >= 0)
                    rc = (z->stage == 3 ? add_parts : add_joined)(z, f, t, o, &part, e);
                if (rc >= 0 && f == FLAT_PARAM && z->stage != 3)
                    rc = compare(z, o, k, part.lo, e);
            }
        }
    } while (rc >= 0 && (alias = ds_alias(z->b->c, &z->model, o->p, &next)));
    return rc;
}

/* Checks the slices that rank r of the expert-parallel ranks has of a group: all have the length of the
 * first, but the fp32 slice of the last rank may lack the padding. */
static int check_slices(const struct zero *z, int g, int64_t r, int64_t need, int64_t *slice, struct err *e)
{
    int64_t count = z->count[g],
            n = extent_at(z, z->has_moments ? FLAT_AVG : FLAT_PARAM, rank_at(z, g, r, 0), g)->n,
            slack = n * count - need;
    *slice = n;
    if (slack < 0 || slack > 2 * count)
        return err_set(e, ERR_FORMAT,
                       "%s: group %d has %lld slices of %lld elements, its parameters need %lld: are "
                       "param_shapes of another model",
                       z->path, g, (long long)count, (long long)n, (long long)need);
    for (int f = 0; f < (z->has_moments ? FLATS : 1); f++)
        for (int64_t i = 0; i < count; i++) {
            int rank = rank_at(z, g, r, i);
            int64_t have = extent_at(z, f, rank, g)->n;
            if (have > n || (have < n && (i < count - 1 || f != FLAT_PARAM || n - have > slack)))
                return err_set(e, ERR_FORMAT,
                               "%s: the %s slice of rank %d in group %d has %lld elements, the others %lld: "
                               "is a file damaged",
                               z->path, flat_name[f], rank, g, (long long)have, (long long)n);
        }
    return 0;
}

/* Adds the parameters [from, to), those of group g, of every expert-parallel rank. */
static int add_group(struct zero *z, int g, int from, int to, struct err *e)
{
    int64_t ep = z->n_ranks / z->count[g], need = 0, slice = 0;
    int rc = 0;
    for (int i = from; i < to; i++)
        if (__builtin_add_overflow(need, z->params.p[i].n + z->params.p[i].skip, &need))
            return err_set(e, ERR_FORMAT,
                           "%s: param_shapes needs more than 2^63 elements: is the file damaged", z->path);

    for (int64_t r = 0; r < ep && rc >= 0; r++) {
        int64_t at = 0;
        rc = check_slices(z, g, r, need, &slice, e);
        for (int i = from; i < to && rc >= 0; i++) {
            const struct owned o = { &z->params.p[i], r, at, slice };
            rc = slice ? add_param(z, &o, e) : 0;
            at += z->params.p[i].n + z->params.p[i].skip;
        }
    }
    return rc;
}

static int add_stage_1_2(struct zero *z, struct err *e)
{
    int rc = 0;
    for (int g = 0, from = 0, to = 0; g < z->n_groups && rc >= 0; g++, from = to) {
        while (to < z->params.n && z->params.p[to].group == g)
            to++;
        rc = add_group(z, g, from, to, e);
    }
    return rc;
}

/* Compares the lengths of all buffers with the parameters: of group g, or (-1) of all groups together. */
static int check_parts(const struct zero *z, int g, struct err *e)
{
    int64_t need = 0, ranks = g < 0 ? z->n_ranks : z->count[g];
    for (int i = 0; i < z->params.n; i++)
        if ((g < 0 || z->params.p[i].group == g) &&
            __builtin_add_overflow(need, (z->params.p[i].n + ranks - 1) / ranks, &need))
            return err_set(e, ERR_FORMAT,
                           "%s: param_shapes needs more than 2^63 elements: is the file damaged", z->path);
    for (int f = 0; f < (z->has_moments ? FLATS : 1); f++)
        for (int r = 0; r < z->n_ranks; r++) {
            int64_t have = 0;
            for (int k = 0; k < z->n_groups; k++)
                have += g < 0 || k == g ? extent_at(z, f, r, k)->n : 0;
            if (have != need)
                return err_set(e, ERR_FORMAT,
                               "%s: the %s buffers of rank %d have %lld elements, param_shapes needs %lld of "
                               "each of %lld ranks: is a file damaged",
                               z->path, flat_name[f], r, (long long)have, (long long)need, (long long)ranks);
        }
    return 0;
}

static int add_stage_3(struct zero *z, struct err *e)
{
    int64_t at = 0;
    int rc = 0;

    for (int g = z->place ? 0 : -1; g < (z->place ? z->n_groups : 0) && rc >= 0; g++)
        rc = check_parts(z, g, e);
    for (int i = 0; i < z->params.n && rc >= 0; i++) {
        const struct ds_param *p = &z->params.p[i];
        int64_t count = z->place ? z->count[p->group] : z->n_ranks, part = (p->n + count - 1) / count;
        at = z->place && i && p[-1].group != p->group ? 0 : at;
        for (int64_t r = 0; r < z->n_ranks / count && rc >= 0; r++)
            rc = add_param(z, &(struct owned){ p, r, at, part }, e);
        at += part;
    }
    return rc;
}

/* Rejects two ranks with the same bytes in all buffers: one file is a copy of the other. No other check
 * would find it, since the lengths are right. */
static int check_copies(const struct zero *z, struct err *e)
{
    for (int r = 1; r < z->n_ranks; r++)
        for (int q = 0; q < r; q++) {
            int same = z->n_groups > 0;
            int64_t n = 0;
            for (int g = 0; g < z->n_groups && same; g++)
                for (int f = 0; f < (z->has_moments ? FLATS : 1); f++) {
                    const struct extent *a = extent_at(z, f, r, g), *b = extent_at(z, f, q, g);
                    same &= a->crc && a->crc == b->crc && a->n == b->n;
                    n += a->n;
                }
            if (same && n >= 64)
                return err_set(e, ERR_FORMAT,
                               "%s: the optimizer files of ranks %d and %d hold the same bytes: is one a "
                               "copy of the other",
                               z->path, q, r);
        }
    return 0;
}

/* ---- frozen parameters: no master, no moments ---- */

static int add_frozen_1_2(struct zero *z, struct err *e)
{
    const struct pk *pieces = pk_get(z->model.t.root, "frozen_param_fragments");
    int rc = 0;

    for (uint32_t i = 0; pieces && pieces->kind == PK_DICT && i < pieces->n && rc >= 0; i++) {
        const struct pk *key = pieces->item[2 * i];
        struct torch_tensor x;
        struct chunk k;
        int64_t shape[BOX_DIMS] = { 0 }, n;
        int n_dims, t;
        char name[FMT_NAME_MAX + 1];
        if (key->kind != PK_TEXT)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)key->n, key->text);
        if ((rc = ds_shape(pk_get(z->model.frozen, name), z->path, name, (int)strlen(name), shape, &n_dims,
                           &n, e)) < 0 ||
            (rc = torch_tensor(&z->model.t, pieces->item[2 * i + 1], name, &x, e)) < 0 ||
            (rc = build_chunk(&k, &z->model.t, &x, x.n_dims ? x.n_dims : 1, NULL, name, e)) < 0)
            break;
        if (x.n != n || !x.contiguous)
            return err_set(e, ERR_FORMAT,
                           "%s: the frozen %s has %lld elements, its shape %lld: is the file damaged",
                           z->path, name, (long long)x.n, (long long)n);
        t = rc = build_tensor(z->b, ROLE_WEIGHT, key->text, (int)key->n, k.dtype, n_dims, shape, e);
        if (rc >= 0) {
            struct box whole = box_whole(z->b->c->tensor[t].n_dims, z->b->c->tensor[t].shape);
            rc = build_piece(z->b, t, k.file, k.offset, &whole, 0, n, e);
        }
    }
    return rc < 0 ? rc : 0;
}

/* Stage 3: rank `rank` has elements [rank·part, (rank + 1)·part) of every frozen parameter. */
static int add_frozen_3(struct zero *z, struct ds_model *m, int rank, struct err *e)
{
    const struct pk *pieces = pk_get(m->t.root, "frozen_param_fragments");
    int rc = 0;

    for (uint32_t i = 0; pieces && pieces->kind == PK_DICT && i < pieces->n && rc >= 0; i++) {
        const struct pk *key = pieces->item[2 * i];
        struct torch_tensor x;
        int64_t shape[BOX_DIMS] = { 0 }, n;
        int n_dims, t, known;
        char name[FMT_NAME_MAX + 1];
        if (key->kind != PK_TEXT)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)key->n, key->text);
        if ((rc = ds_shape(pk_get(m->frozen, name), z->path, name, (int)strlen(name), shape, &n_dims, &n,
                           e)) < 0 ||
            (rc = torch_tensor(&m->t, pieces->item[2 * i + 1], name, &x, e)) < 0)
            break;
        int64_t part = (n + z->n_models - 1) / z->n_models, lo = rank * part < n ? rank * part : n,
                hi = lo + part < n ? lo + part : n;
        if ((known = torch_dtype_known(x.dtype)) < 0 || !x.contiguous || x.n < hi - lo)
            return err_set(e, ERR_FORMAT,
                           "%s: the part of rank %d of the frozen %s has %lld elements, %lld are needed: is "
                           "a file damaged",
                           z->path, rank, name, (long long)x.n, (long long)(hi - lo));
        t = rc = build_tensor(z->b, ROLE_WEIGHT, key->text, (int)key->n, (enum stored_dtype)known, n_dims,
                              shape, e);
        if (rc >= 0) {
            struct box whole = box_whole(z->b->c->tensor[t].n_dims, z->b->c->tensor[t].shape);
            rc = build_piece(z->b, t, m->t.file, x.offset, &whole, lo, hi, e);
        }
    }
    return rc < 0 ? rc : 0;
}

/* ---- the folder ---- */

/* Stage 3: checks that every rank's model file is of the same step, and adds its part of the frozen
 * parameters. */
static int read_models_3(struct zero *z, const char *sub, const char **name, struct err *e)
{
    int64_t step = -1, other = -1;
    int rc = 0;

    if (!(z->ep_rank = calloc((size_t)z->n_models + 1, sizeof *z->ep_rank)))
        return err_set(e, ERR_MEMORY, "%s: no memory for %d ranks", z->path, z->n_models);
    pk_int(pk_get(z->model.t.root, "global_steps"), &step);
    for (int r = 0; r < z->n_models && rc >= 0; r++) {
        struct ds_model m = { 0 };
        char *full = build_text("%s%s", sub, name[r]);
        rc = full ? r ? ds_model_open(&m, z->b->c, full, e) : 0
                  : err_set(e, ERR_MEMORY, "%s: no memory for a path", z->path);
        free(full);
        if (rc < 0)
            break;
        if (r && pk_int(pk_get(m.t.root, "global_steps"), &other) && other != step)
            rc = err_set(e, ERR_FORMAT,
                         "%s: rank %d is at step %lld, rank 0 at %lld: are files of two saves mixed", z->path,
                         r, (long long)other, (long long)step);
        pk_int(pk_get(pk_at(pk_get(r ? m.t.root : z->model.t.root, "ds_autoep_layers"), 0), "ep_rank"),
               &z->ep_rank[r]);
        if (rc >= 0)
            rc = add_frozen_3(z, r ? &m : &z->model, r, e);
        if (r)
            torch_close(&m.t);
    }
    return rc;
}

static int read_model(struct zero *z, const char *sub, const char *name, struct err *e)
{
    char *full = build_text("%s%s", sub, name);
    int rc = full ? ds_model_open(&z->model, z->b->c, full, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for a path", z->path);
    free(full);
    if (rc < 0)
        return rc;
    const char *path = z->b->c->file[z->model.t.file].path;
    if ((rc = ds_params_read(&z->params, z->model.t.root, path, e)) < 0 ||
        (rc = ds_aliases_check(z->b->c, &z->model, &z->params, e)) < 0 ||
        (rc = ds_experts_find(&z->experts, &z->params, pk_get(z->model.t.root, "ds_autoep_layers"), path,
                              e)) < 0)
        return rc;
    const struct pk *before = pk_get(pk_get(z->model.t.root, "ds_config"),
                                     "use_data_before_expert_parallelism");
    z->is_before = before && before->kind == PK_BOOL && before->i;
    return z->params.n ? 0 : err_set(e, ERR_FORMAT, "%s: param_shapes is empty: is the file whole", path);
}

static int read_all(struct zero *z, const char *sub, const struct names *files, const char **optim,
                    const char **model, struct err *e)
{
    int rc = 0;
    TRY(read_model(z, sub, model[0], e));
    for (int r = 0; r < z->n_ranks; r++)
        TRY(read_rank(z, sub, optim[r], r, e));
    if ((z->stage == 3) != (z->n_models > 0)) {
        rc = err_set(
            e, ERR_FORMAT,
            "%s: the optimizer is of ZeRO stage %d, the model files are not: are files of two runs mixed",
            z->path, z->stage);
        goto out;
    }

    if (z->n_groups != z->params.n_groups && (z->stage != 3 || z->place)) {
        rc = err_set(e, ERR_FORMAT,
                     "%s: param_shapes has %d groups, the optimizer %d: are files of two saves mixed",
                     z->path, z->params.n_groups, z->n_groups);
        goto out;
    }
    TRY(check_copies(z, e));
    TRY(ds_model_add(z->b, &z->model, &z->params, &z->narrow, e));
    for (int i = 0; i < z->params.n && (z->stage != 3 || z->place); i++)
        TRY(ds_experts_degree(&z->experts, &z->params.p[i], z->n_ranks / z->count[z->params.p[i].group],
                              z->path, e));
    TRY(ds_experts_read(&z->experts, z->b, sub, files, z->narrow, e));
    TRY(z->stage == 3 ? read_models_3(z, sub, model, e) : add_frozen_1_2(z, e));
    TRY(z->stage == 3 ? add_stage_3(z, e) : add_stage_1_2(z, e));
    if (z->stage != 3)
        TRY(ds_model_add_rest(z->b, &z->model, &z->params, e));
    TRY(ds_router_names(z->b->c, e));
    TRY(build_writer(z->b->c, "DeepSpeed", pk_get(z->model.t.root, "ds_version"), z->n_ranks, e));
    z->b->c->layout = (struct ckpt_layout){ 1, 1, 1, z->n_ranks, 1, z->stage };
out:
    return rc < 0 ? rc : 0;
}

int ds_zero_open(struct build *b, const char *sub, const struct names *files, struct err *e)
{
    struct zero z = { .b = b, .path = b->c->path };
    const char **optim = NULL, **model = NULL, **model_3 = NULL;
    int n_model = 0, rc = 0;

    TRY(refuse_others(&z, files, e));
    TRY(by_rank(&z, files, OPTIM, &optim, &z.n_ranks, e));
    TRY(by_rank(&z, files, MODEL, &model, &n_model, e));
    TRY(by_rank(&z, files, MODEL_3, &model_3, &z.n_models, e));
    if (!z.n_ranks || !(n_model + z.n_models)) {
        rc = err_set(e, ERR_FORMAT,
                     "%s/%s: has %d optimizer files and %d model files of ZeRO: is the save whole",
                     b->c->path, sub, z.n_ranks, n_model + z.n_models);
        goto out;
    }

    if (z.n_models && z.n_models != z.n_ranks) {
        rc = err_set(e, ERR_FORMAT, "%s/%s: has %d optimizer files and %d model files: is one missing",
                     b->c->path, sub, z.n_ranks, z.n_models);
        goto out;
    }

    TRY(read_all(&z, sub, files, optim, z.n_models ? model_3 : model, e));
out:
    torch_close(&z.model.t);
    ds_params_free(&z.params);
    for (int f = 0; f < FLATS; f++)
        free(z.x[f]);
    ds_experts_free(&z.experts);
    free(z.count);
    free(z.place);
    free(z.ep_rank);
    free(optim);
    free(model);
    free(model_3);
    return rc < 0 ? rc : 0;
}

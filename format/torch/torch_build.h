/* torch_build.h - private to the room: how the drivers for other frameworks fill the tables of a checkpoint.
 *
 * Tensors are found or made by role and name, pieces may come in any order; build_finish sorts, and checks
 * that the pieces cover every tensor exactly once. A part of a stored array that becomes a part of a logical
 * tensor is a box here and a box there. */
#ifndef SHARDLINE_FORMAT_TORCH_TORCH_BUILD_H
#define SHARDLINE_FORMAT_TORCH_TORCH_BUILD_H

#include "format/torch/torch_file.h"

/* What a source says about the run that wrote it, beside its tensors (torch_run.c). */
enum run_value { RUN_LR, RUN_FIRST_LR, RUN_BETA1, RUN_BETA2, RUN_EPS, RUN_DECAY, RUN_CLIP, RUN_VALUES };
struct run {
    /* over the optimizer's groups */
    struct {
        int has, mixed;
        double least, most;
    } value[RUN_VALUES];
    const char *schedule; /* as ptrain calls it; NULL: none, or not known */
    double min_lr;
    int64_t warmup, steps;
    int near;         /* the warm-up is ptrain's but for an update or two */
    char unknown[80]; /* a schedule that ptrain does not have; or "" */
};

struct build {
    struct ckpt *c;
    struct run run;
    int n_room;
    int64_t piece_room;
    int *slot; /* hash table: index of a tensor + 1 */
    int n_slots;
    int has_step;
    double step; /* of the first parameter seen */
    char step_of[80];
};

/* A stored array, or one part of it: where its elements are. */
struct chunk {
    int file;
    int64_t offset; /* of its first element: byte of the file */
    enum stored_dtype dtype;
    struct box box;           /* its place in the whole array */
    int64_t stride[BOX_DIMS]; /* elements */
};

/* Frees what is not c's. */
void build_free(struct build *b);
/* Index of the tensor; name need not end with NUL. Dims 0 becomes [1]. ERR_FORMAT: there is one of another
 * shape or dtype. */
int build_tensor(struct build *b, enum ckpt_role role, const char *name, int n_name, enum stored_dtype dtype,
                 int n_dims, const int64_t *shape, struct err *e);
/* Elements [lo, hi) of a box of the tensor lie at byte `offset` of the file. Empty ones are left out. */
int build_piece(struct build *b, int tensor, int file, int64_t offset, const struct box *box, int64_t lo,
                int64_t hi, struct err *e);
/* What chunk k holds of box src of its array goes to the tensor: index src.start + i to start + i. The array
 * may have more dims than the tensor; those come first and src has extent 1 in them. */
int build_map(struct build *b, int tensor, const struct chunk *k, const struct box *src, const int64_t *start,
              struct err *e);
/* A chunk of a tensor in a torch file that stands at `start` of an array of n_dims dims (n_dims may exceed
 * its own: leading ones of extent 1). ERR_FORMAT: a dtype that is not known, too many dims. */
int build_chunk(struct chunk *k, struct torch_file *t, const struct torch_tensor *x, int n_dims,
                const int64_t *start, const char *name, struct err *e);
/* A whole tensor of a torch file as a tensor of its own. Returns its index. */
int build_whole(struct build *b, enum ckpt_role role, const char *name, int n_name, struct torch_file *t,
                const struct torch_tensor *x, struct err *e);
/* The optimizer's step, as said for this parameter; all must agree. */
int build_step(struct build *b, double step, const char *name, struct err *e);
int build_finish(struct build *b, struct err *e);

/* ---- the run's settings ---- */

void run_value(struct run *r, enum run_value which, double v);
/* a dict of an optimizer's param_groups */
void run_group(struct run *r, struct torch_file *t, const struct pk *group);
/* lr: the highest. warmup and steps count updates; kind as ptrain calls it. */
void run_schedule(struct run *r, const char *kind, double lr, double min_lr, int64_t warmup, int64_t steps);
void run_unknown(struct run *r, const char *what, int n);
void run_deepspeed(struct run *r, struct torch_file *t, const struct pk *config, const struct pk *scheduler);
void run_megatron(struct run *r, struct torch_file *t, const struct pk *args, const struct pk *scheduler,
                  int64_t iteration);
/* Settings that resume takes over become c->run_json; what cannot be carried is said in c->note. Only for a
 * state with a step. */
int run_finish(struct run *r, struct ckpt *c, struct err *e);
/* Sets c->writer, once: what comes later is dropped. version may be NULL. */
int build_writer(struct ckpt *c, const char *what, const struct pk *version, int n_ranks, struct err *e);
/* Adds a remark to c->note. */
int build_note(struct ckpt *c, struct err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- files and folders ---- */

/* Adds a file of the folder c->dir with its size. Returns its index. ERR_FILE: missing. */
int build_file(struct ckpt *c, const char *name, struct err *e);
int build_exists(const struct ckpt *c, const char *name); /* in c->dir */
/* Names in folder c->dir/sub (sub "" : c->dir), sorted so that 2 comes before 10; malloc'd. */
struct names {
    char **name;
    int n;
};
int names_read(struct names *l, const struct ckpt *c, const char *sub, struct err *e);
void names_free(struct names *l);
/* config.json: the one given, or beside the files, or one folder up (of a single file model.pt:
 * model.config.json, then beside it). Fills c->config when there is one. */
int build_config(struct ckpt *c, struct err *e);
/* First line of a small text file, without blanks at the end; malloc'd. */
int build_line(const struct ckpt *c, const char *name, char **out, struct err *e);
char *build_text(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* malloc'd */

#endif

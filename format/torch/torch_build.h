/* torch_build.h - private to room format: the drivers for other frameworks build the tables of a checkpoint
 * with it.
 *
 * Tensors are found or added by role and name; pieces are added in any order. build_finish sorts them and
 * checks that they cover every tensor exactly once. build_map maps a box of a stored array to a box of a
 * logical tensor. All functions are called by one thread, on the checkpoint that is being opened. Unless
 * noted they return 0 or a negative code: ERR_FORMAT, ERR_FILE or ERR_MEMORY. */
#ifndef SHARDLINE_FORMAT_TORCH_TORCH_BUILD_H
#define SHARDLINE_FORMAT_TORCH_TORCH_BUILD_H

#include "format/torch/torch_file.h"

/* The settings of the run that wrote a checkpoint, as far as the source has them (torch_run.c). */
enum run_value { RUN_LR, RUN_FIRST_LR, RUN_BETA1, RUN_BETA2, RUN_EPS, RUN_DECAY, RUN_CLIP, RUN_VALUES };
struct run {
    /* over the optimizer's groups; mixed: they differ */
    struct {
        int has, mixed;
        double least, most;
    } value[RUN_VALUES];
    const char *schedule; /* ptrain's name; NULL: none, or not known */
    double min_lr;
    int64_t warmup, steps;
    int warmup_differs; /* the warm-up differs from ptrain's by an update or two */
    char unknown[80];   /* a schedule that ptrain does not have; or "" */
};

struct build {
    struct ckpt *c;
    struct run run;
    int tensor_capacity;
    int64_t piece_capacity;
    int *slot; /* hash table: index of a tensor + 1 */
    int n_slots;
    int has_step;
    double step;      /* of the first parameter that has one */
    char step_of[80]; /* its name */
};

/* Where the elements of a stored array, or of a part of it, are. */
struct chunk {
    int file;
    int64_t offset; /* the byte of the file at which its first element is */
    enum stored_dtype dtype;
    struct box box;           /* its place in the whole array */
    int64_t stride[BOX_DIMS]; /* elements */
};

/* Frees b's own memory; the tables belong to b->c. */
void build_free(struct build *b);
/* Finds or adds a tensor. Returns its index. name has n_name bytes and no NUL; a tensor of 0 dims becomes
 * [1]. ERR_FORMAT: there is one of this name with another shape or dtype. */
int build_tensor(struct build *b, enum ckpt_role role, const char *name, int n_name, enum stored_dtype dtype,
                 int n_dims, const int64_t *shape, struct err *e);
/* Adds a piece: elements [lo, hi) of a box of the tensor are at byte `offset` of the file. Ignores an
 * empty one. */
int build_piece(struct build *b, int tensor, int file, int64_t offset, const struct box *box, int64_t lo,
                int64_t hi, struct err *e);
/* Adds the part of box src that chunk k has of its array: index src.start + i of the array is index start
 * + i of the tensor. The array may have more dims than the tensor: those come first, and src has extent 1
 * in them. */
int build_map(struct build *b, int tensor, const struct chunk *k, const struct box *src, const int64_t *start,
              struct err *e);
/* Fills k for a tensor x of a torch file that is at `start` (NULL: the origin) of an array of n_dims dims.
 * n_dims may exceed x's: the leading dims have extent 1. ERR_FORMAT: an unsupported dtype, too many dims. */
int build_chunk(struct chunk *k, struct torch_file *t, const struct torch_tensor *x, int n_dims,
                const int64_t *start, const char *name, struct err *e);
/* Adds a whole tensor of a torch file under a name. Returns its index. */
int build_whole(struct build *b, enum ckpt_role role, const char *name, int n_name, struct torch_file *t,
                const struct torch_tensor *x, struct err *e);
/* Notes the optimizer's step of one parameter. ERR_FORMAT: it differs from that of another one. */
int build_step(struct build *b, double step, const char *name, struct err *e);
/* Sorts and checks the tables and sets the state of the run. Call it last. */
int build_finish(struct build *b, struct err *e);

/* ---- the run's settings ---- */

/* Notes a value of one group; values that are no settings (negative, NaN, 1e9 and more) are ignored. */
void run_value(struct run *r, enum run_value which, double v);
/* Notes the values of a dict of an optimizer's param_groups. */
void run_group(struct run *r, struct torch_file *t, const struct pk *group);
/* Notes a schedule: kind is ptrain's name, lr the highest rate; warmup and steps count updates. */
void run_schedule(struct run *r, const char *kind, double lr, double min_lr, int64_t warmup, int64_t steps);
/* Notes a schedule that ptrain does not have; what: its name, n bytes. */
void run_unknown(struct run *r, const char *what, int n);
/* Note the settings of DeepSpeed (ds_config) and of Megatron (args, opt_param_scheduler). */
void run_deepspeed(struct run *r, struct torch_file *t, const struct pk *config, const struct pk *scheduler);
void run_megatron(struct run *r, struct torch_file *t, const struct pk *args, const struct pk *scheduler,
                  int64_t iteration);
/* Writes the settings for --resume to c->run_json, and what cannot be taken over to c->note. Does nothing
 * without an optimizer state with a step. */
int run_finish(struct run *r, struct ckpt *c, struct err *e);
/* Sets c->writer, once: later calls do not change it. version may be NULL. */
int build_writer(struct ckpt *c, const char *what, const struct pk *version, int n_ranks, struct err *e);
/* Adds a remark to c->note. */
int build_note(struct ckpt *c, struct err *e, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- files and folders ---- */

/* Adds a file of folder c->dir with its size. Returns its index. ERR_FILE: it is missing. */
int build_file(struct ckpt *c, const char *name, struct err *e);
int build_exists(const struct ckpt *c, const char *name); /* in c->dir */

struct names {
    char **name;
    int n;
};
/* Reads the names of the files in folder c->dir/sub (sub "": c->dir), sorted so that 2 comes before 10.
 * Free with names_free. */
int names_read(struct names *l, const struct ckpt *c, const char *sub, struct err *e);
void names_free(struct names *l);
/* Fills c->config, if there is one, from config.json: the one that the user gave, else beside the files,
 * else one folder up. For a single file model.pt: model.config.json, then config.json beside it. */
int build_config(struct ckpt *c, struct err *e);
/* The first line of a small text file, without blanks at its end; malloc'd. */
int build_line(const struct ckpt *c, const char *name, char **out, struct err *e);
char *build_text(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* malloc'd */

#endif

/* run.h - what this run is: the options, and what follows from them and from the checkpoint it starts from.
 * Every rank makes the same struct run; nothing changes it after ptrain_open(). */
#ifndef SHARDLINE_TRAIN_RUN_H
#define SHARDLINE_TRAIN_RUN_H

#include "base/log.h"
#include "format/ckpt_proof.h"
#include "store/sidecar.h"
#include "text/carry.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/params.h"
#include "train/lora/lora.h"
#include "train/ranks.h"
#include "train/train_options.h"

struct run {
    struct train_opts o;
    unsigned char given[GIVEN_MAX]; /* which options the command line named (opts_given) */
    struct opt_words words;         /* the command line, with --config's options in it */
    char **inherited;         /* [n_inherited], from 1 on: options of the resumed run as arguments; o's ... */
    int n_inherited;          /* ... texts point into them */
    char *stored_json;        /* the options that a checkpoint keeps */
    struct sidecars sidecars; /* local copies of what the command line named by URL */
    struct model_config cfg;
    int expert_leaf;      /* S of the contract; 1 where no flag and no resumed run says otherwise */
    int cp_grain;         /* C of the contract */
    int is_preset;        /* cfg is a preset, whose vocabulary follows tokenizer and data */
    enum dtype dt;        /* of the arithmetic */
    struct ckpt *source;  /* --resume or --init; NULL: initial values */
    struct lora lora;     /* --lora and its like */
    int resumes_newest;   /* --resume auto found a checkpoint, or it is state in memory */
    int lock;             /* of OUT (run_lock.h); -1: none */
    struct carried files; /* written into every checkpoint */
};

/* Parses the command line, and the file of --config, into r->o and r->given. argv must outlive r. 1: --help
 * or --version was printed. */
int run_parse(struct run *r, int argc, char **argv, struct err *e);
/* Everything else but files: the model's config, the source, inherited options, dtype; checks that --out
 * can take this run's checkpoints, and makes the folder on rank 0. Collective, but a rank that fails
 * returns at once: comm_agree comes after it. */
int run_open(struct run *r, const struct ranks *ranks, struct log *term, struct err *e);
/* Reads r->files: those of the tokenizer, else of the source; the template of --chat-template among them. */
int run_open_files(struct run *r, struct err *e);
void run_close(struct run *r);

/* The step at which this process ends: --stop-after or --steps. */
int64_t run_end_step(const struct run *r);

/* ---- vocabulary.c ---- */
/* Takes the tokenizer that token files carry, where --tokenizer is left out, and sets the vocabulary of a
 * preset to the tokenizer's or the token file's. ERR_USAGE: token files with different tokenizers, or a
 * --vocab-size that the source does not have. */
int run_set_vocabulary(struct run *r, struct err *e);

/* ---- check_options.c: what a command line may not ask for. ERR_USAGE says what to change ---- */
/* Options that need or contradict each other, before any rank is started. */
int run_check_options(const struct run *r, struct err *e);
/* That OUT can take this run's checkpoints. */
int run_check_target(const struct run *r, struct err *e);
/* Rank 0: makes OUT, and checks that OUT and the file of --trace can be written. */
int run_make_target(const struct run *r, struct err *e);

#endif

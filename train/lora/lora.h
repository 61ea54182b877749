/* lora.h - a run that trains an adapter: what it adapts, what it begins with, and the model under it.
 *
 *     --init BASE --lora SPEC             new matrices: A random, B zero
 *     --init BASE --lora-init DIR         those of a PEFT folder; also with --eval-only
 *     --resume OUT/step-N [--init BASE]   those of a checkpoint, whose adapter_config.json names BASE
 *
 * The model's weights are frozen: a ZeRO store of their own has them (zero_options.frozen), without gradients
 * and states. Everything that training keeps and saves is the adapter's (struct adapter.m). A checkpoint has
 * the digest of the model's weights, and a run goes on with no others. */
#ifndef SHARDLINE_TRAIN_LORA_LORA_H
#define SHARDLINE_TRAIN_LORA_LORA_H

#include "base/log.h"
#include "format/ckpt.h"
#include "format/peft.h"
#include "text/carry.h"
#include "train/lora/lora_spec.h"

struct run;
struct ranks;
struct lora {
    struct lora_spec spec;
    struct adapter_matrix
        *list; /* [n]: the weights that the adapter changes; n 0: the run trains the model */
    int n;
    int64_t rank;      /* the largest one */
    struct ckpt *base; /* the frozen weights; NULL: the model's initial values, for a plan */
    int owns_base;     /* else it is the run's source */
    struct ckpt *init; /* of --lora-init, or NULL */
    struct peft peft;  /* of `init` or of the resumed checkpoint; c NULL: new matrices */
    char *config;      /* adapter_config.json of its checkpoints */
    char digest[33];   /* of the weights of base; "": not computed */
};

/* 1: the run trains, or evaluates, with an adapter. */
int lora_asked(const struct run *r);
/* Sets r->lora. After r->source, r->cfg and the options are there. ERR_USAGE: options that contradict each
 * other or the folder of the adapter. */
int lora_open(struct run *r, struct err *e);
void lora_close(struct lora *l);
/* What checkpoints carry besides: adapter_config.json, into r->files. */
int lora_carry(struct run *r, struct err *e);
/* Computes the digest of base, or compares it with the one that the resumed run has; puts it into
 * r->stored_json. Collective. ERR_USAGE: base is another model. */
int lora_check_base(struct run *r, const struct ranks *ranks, struct err *e);
/* Sets how the new matrices of an adapter begin. */
void lora_set_init(const struct lora *l, struct adapter *a);
/* The tensor with the weights of this parameter of the adapter, in the checkpoint of l->peft; -1: none. */
int lora_tensor(const struct lora *l, const struct param *p);
/* "r 16, alpha 32, targets q_proj, v_proj" for people. */
void lora_text(const struct run *r, char out[300]);
/* `,"lora":{…}` for the first line of the log; trained: parameters of the adapter. */
void lora_write(const struct run *r, double trained, FILE *out);
/* The ZeRO stage of the frozen weights: sliced and packed when they are used (3), so that a parameter takes
 * no more than 4 bytes, or whole and packed once (1): in bf16, and where slices would come from other
 * machines.
 * sharers: ranks of dp and cp that share a machine's memory. */
int lora_base_stage(const struct layout *l, enum dtype dt, int sharers);
/* Parameters of the adapter of this run, of all ranks. */
double lora_count(const struct run *r);

#endif

/* lora_spec.h - --lora: which weights get an adapter, of which rank.
 *
 *     r=16,alpha=32,targets=q_proj,v_proj[,rslora=1][,init=gaussian]
 *
 * A target is the name of a module of the model as PEFT takes it: "q_proj", or more of its path
 * ("layers.0.self_attn.q_proj"). all-linear: every matrix of the layers but routers and
 * routed experts. */
#ifndef SHARDLINE_TRAIN_LORA_LORA_SPEC_H
#define SHARDLINE_TRAIN_LORA_LORA_SPEC_H

#include "model/adapter.h"

#define LORA_ALL_LINEAR "all-linear"

struct lora_spec {
    int64_t rank; /* 0: no --lora */
    double alpha;
    int rslora;   /* scale alpha / sqrt(r), else alpha / r */
    int gaussian; /* A is drawn from a normal distribution of deviation 1 / r, else as PEFT does by default */
    int n_targets;
    char **target; /* in the order of the text */
    char *text;    /* what the words of target lie in */
};
/* ERR_USAGE: a key that is missing, unknown or given twice, or a number that no adapter has.
 * lora_spec_free() frees it, after an error too. */
int lora_spec_parse(struct lora_spec *s, const char *text, struct err *e);
void lora_spec_free(struct lora_spec *s); /* a zeroed one is fine */
double lora_spec_scale(const struct lora_spec *s);

/* The weights of `table` that the targets name: *n of them at *list, which the caller frees. ERR_USAGE: a
 * target that names none, or one for which no adapter is computed. */
int lora_spec_match(const struct lora_spec *s, const struct param_table *table, struct adapter_matrix **list,
                    int *n, struct err *e);

#endif

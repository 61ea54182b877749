/* model_info.h - what a server knows of a checkpoint: its config, its texts, its name; weights.h reads the
 * rest. */
#ifndef SHARDLINE_SERVE_WEIGHTS_MODEL_INFO_H
#define SHARDLINE_SERVE_WEIGHTS_MODEL_INFO_H

#include "format/ckpt.h"
#include "model/model.h"
#include "serve/service.h"

struct model_info {
    struct ckpt *ckpt;
    struct model_config cfg;
    enum dtype stored; /* of the weights in the files (the embedding's) */
    struct model m;
    struct resident weights;
    int has_model, has_weights;
    struct ckpt_digest identity; /* weights_digest of what was loaded */
};

/* Tables and config only: cheap, before any rank takes memory. Requests to a server end when *stop is not 0,
 * now and while weights are read. */
int model_info_open(struct model_info *l, const char *path, const volatile sig_atomic_t *stop, struct err *e);
/* The tokenizer and the end tokens that lie beside the weights. */
int model_info_read_texts(const struct model_info *l, struct service *sv, struct err *e);
void model_info_close(struct model_info *l);
/* What decides an answer's bits beside the request: "contract1-fp32-" and the weights_digest that reshard
 * digest prints (without tensors that the model does not use, where the files store no digests). The same at
 * every tp. */
void model_info_fingerprint(const struct model_info *l, enum dtype dt, char out[64]);
/* generation_config.json's eos_token_id (a number or a list) from its text; 0 when it names none. */
int model_info_parse_eos(const char *text, size_t n, const char *what, int32_t *eos, int max, struct err *e);

#endif

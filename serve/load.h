/* load.h - a checkpoint becomes a model in memory: every rank reads the boxes of its own slices, whatever layout the files have. */
#ifndef SHARDLINE_SERVE_LOAD_H
#define SHARDLINE_SERVE_LOAD_H

#include "format/ckpt.h"
#include "model/model.h"
#include "serve/service.h"

struct loaded {
    struct ckpt *ckpt;
    struct model_config cfg;
    enum dtype stored;               /* of the weights in the files (the embedding's) */
    struct model m;
    struct resident weights;
    int has_model, has_weights;
    struct ckpt_digest identity;     /* weights_digest of what was loaded */
};

/* Tables and config only: cheap, before any rank takes memory. */
int load_open(struct loaded *l, const char *path, struct err *e);
/* The tokenizer and the end tokens that lie beside the weights. */
int load_texts(const struct loaded *l, struct service *sv, struct err *e);
/* Opens the model for max_rows rows a step and ctx positions in arithmetic dt, and reads this rank's weights; progress (may be NULL) is kept
 * meanwhile. Collective over tp. */
int load_weights(struct loaded *l, struct dev *dev, struct comm *tp, enum dtype dt, int fast, int64_t max_rows, int64_t ctx,
                 struct load_progress *progress, struct err *e);
/* Another checkpoint of the same model (ERR_CONFIG names what differs): its weights are read beside l's, for l's model; l stays as it is. On an
 * error fresh is closed. Collective over tp, all ranks get the same answer. */
int load_beside(struct loaded *fresh, struct loaded *l, const char *path, struct err *e);
/* l gets the weights of fresh, which is closed with the old ones. fingerprint: of the new ones, left alone where the bits are not the
 * contract's. */
void load_swap(struct loaded *l, struct loaded *fresh, char fingerprint[64]);
void load_close(struct loaded *l);
/* What decides an answer's bits beside the request: "contract1-fp32-" and the weights_digest that reshard digest prints (without tensors that
 * the model does not use, where the files store no digests). The same at every tp. */
void load_fingerprint(const struct loaded *l, enum dtype dt, char out[64]);
/* generation_config.json's eos_token_id (a number or a list) from its text; 0 when it names none. */
int load_parse_eos(const char *text, size_t n, const char *what, int32_t *eos, int max, struct err *e);

#endif

/* model_info.h - what the server knows of a checkpoint: config, tokenizer, end tokens, template, digest.
 * weights.h reads the weights. */
#ifndef SHARDLINE_SERVE_WEIGHTS_MODEL_INFO_H
#define SHARDLINE_SERVE_WEIGHTS_MODEL_INFO_H

#include "format/ckpt_proof.h"
#include "model/model.h"
#include "serve/service.h"
#include "serve/weights/codes_weights.h"

struct repack;
struct row_source;
struct mapped_weights;
struct model_info {
    struct ckpt *ckpt;
    /* Where weights come from a copy of the checkpoint (model_info_take_copy): what was opened first, for its
     * tables and state; else NULL. And whether it was quantised. */
    struct ckpt *source;
    int source_is_quantised;
    int of_model_only; /* identity counts the tensors of the model, though the files store all digests */
    struct model_config cfg;
    int headless;                /* the checkpoint makes hidden states only; cfg.tied is set, then */
    enum dtype stored;           /* of the weights in the files (of the first parameter) */
    int is_quantised;            /* ckpt shows the values of quantised weights (class deq) … */
    char quantised[64];          /* … which the checkpoint calls this */
    enum codes_wish wish;        /* how quantised weights are computed: set by the owner before reading */
    struct codes_weights *codes; /* those that lie as codes; NULL: none */
    struct model m;              /* when has_model */
    struct resident weights;     /* when has_weights */
    /* set by the owner before the weights are read: they are read and packed, not mapped; or what may be
     * late is done at once */
    int copied, at_once;
    struct resident_memory *reuse; /* the same: memory for the weights (borrowed); or NULL */
    /* the same: the digests of what is read are made and compared, also where the files store them */
    int counts_all;
    struct row_source *rows; /* files that the weights point into; NULL: none */
    struct repack *repack;   /* what is done behind serving; NULL: nothing is */
    /* what weights_read left to repack.h: the digest of all weights; the check of a part of the files */
    struct {
        int digest, check, check_part, check_parts;
    } late;
    int has_model, has_weights; /* set by their owners: server.c, weights.c */
    /* What `weights` points into, where the file is mapped (mapped_weights.h); else NULL. Its checksums are
     * checked before weights_read() returns, or with checks_behind by the caller, afterwards. */
    struct mapped_weights *mapped;
    int checks_behind;
    /* Whether this rank adds the dense parameters and the whole experts that it reads to the digest. Several
     * ranks may read the same ones: only the first of them adds them. server.c sets both before reading. */
    int counts_dense, counts_experts;
    struct ckpt_digest *seen;    /* [tensors] from weights_read() to weights_identify(), else NULL */
    struct ckpt_digest identity; /* weights_digest of what was loaded */
};

enum live_reading {
    LIVE_NO,     /* the checkpoint does not change */
    LIVE_SHARED, /* it is not kept on disk, and ranks of this machine read it together; … */
    LIVE_ALONE   /* … and only this one reads it */
};
/* Opens the checkpoint at path (folder or URL) and parses its config; reads no weights. Requests to a server
 * end when *stop is not 0, now and while weights are read. ERR_CONFIG: no config.json, or one that is not
 * served. Any thread, not collective. model_info_close() frees *l; after an error there is nothing to
 * close. */
int model_info_open(struct model_info *l, const char *path, enum live_reading live,
                    const volatile sig_atomic_t *stop, struct err *e);
/* What takes the place of the checkpoint's own; NULL: nothing does. */
struct text_choice {
    const char *chat_template; /* a file */
    const char *tool_parser;   /* name of a family of tools.h, or "none" */
};
/* Fills sv->tok, sv->eos, sv->n_eos, sv->chat*, sv->form, sv->habits, sv->embeddings and sv->headless from
 * the files beside the weights; sv owns them, also after an error. A checkpoint may have no tokenizer and no
 * template. Not collective. */
int model_info_read_texts(const struct model_info *l, const struct text_choice *choice, struct service *sv,
                          struct err *e);
/* A digest of the tokens that the checkpoint's tokenizer.json has, however the file is written; "bytes" where
 * there is none. ERR_CONFIG, ERR_MEMORY. */
int model_info_tokenizer_digest(const struct model_info *l, char out[33], struct err *e);
/* Before weights are read: they come from the files of `copy`, an opened checkpoint of the same weights in
 * another form, of which l takes the files; texts and fingerprint stay those of l. And back again, where l
 * has a copy. */
void model_info_take_copy(struct model_info *l, struct model_info *copy);
void model_info_drop_copy(struct model_info *l);
/* Frees weights, model and checkpoint, as far as they are there. Safe on zeroes. */
void model_info_close(struct model_info *l);
/* What decides an answer's bits besides the request: "contract1-fp32-" and the weights_digest that `reshard
 * digest` prints (without tensors that the model does not use, where the files store no digests); "-kv-fp8"
 * where keys and values are stored so, "-grp" or "-int" where integer codes are computed as they lie. The
 * same at every tp. */
void model_info_fingerprint(const struct model_info *l, enum dtype dt, enum kv_kind kv, char out[64]);
/* Reads eos_token_id (a number or a list) from text, generation_config.json of n bytes, into eos[max].
 * Returns the number of ids, 0 when it names none; ERR_CONFIG. what: the file's name in messages. */
int model_info_parse_eos(const char *text, size_t n, const char *what, int32_t *eos, int max, struct err *e);

#endif

/* reshard.h - private to the room: the request, the plan made from it, and the walk plan -> stream -> prove
 * -> publish.
 *
 * Processes can share a conversion (share.h): each writes the files of its units, rank 0 publishes. */
#ifndef SHARDLINE_RESHARD_RESHARD_H
#define SHARDLINE_RESHARD_RESHARD_H

#include <signal.h>
#include <stdio.h>
#include "base/log.h"
#include "format/ckpt_write.h"
#include "model/params.h"
#include "reshard/share.h"

/* as --format lists them */
enum target_format { TARGET_NATIVE, TARGET_HF, TARGET_DCP, TARGET_UNIVERSAL, TARGET_MEGATRON };
enum target_dtype { TARGET_AS_IS, TARGET_F32, TARGET_BF16 };

struct request {
    const char *src, *dst;
    struct layout layout; /* cp 1, ep 1 */
    enum target_format format;
    enum target_dtype dtype;
    int weights_only, n_threads;
    enum ckpt_codec codec;             /* native */
    int level;                         /* of the codec */
    const char *config_path;           /* instead of SRC's config.json; or NULL */
    int64_t shard_bytes;               /* Hugging Face: most data in one file */
    const volatile sig_atomic_t *stop; /* set by a signal; or NULL */
    struct trace *trace;               /* what every thread does, tensor by tensor; or NULL */
    const struct share *share;         /* the processes that share the work; NULL: this one alone */
};
/* 1: somebody asked for an orderly end. */
int request_stopped(const struct request *r);

/* A unit is one file of the target: the weights of a rank, or its optimizer state. */
/* of rank r: r * UNITS + these */
enum { UNIT_WEIGHTS, UNIT_OPTIM, UNITS };
/* owner: the process that writes it */
struct unit {
    int n_pieces, owner;
    int64_t bytes;
};

/* One tensor of the target: where it comes from, what it becomes, which file holds which part. */
/* index: in the unit's list of pieces */
struct target_piece {
    int unit, index;
    struct box box;
    int64_t lo, hi;
};
struct target {
    struct ckpt_tensor t; /* name borrowed from the source */
    /* index of the source's tensor (its role may differ: masters become weights) */
    int src;
    int n_pieces;
    struct target_piece *piece;
};
struct plan {
    const struct request *req;
    struct ckpt *src;
    int has_model; /* config.json was understood: cfg and table say how tensors are cut */
    struct model_config cfg;
    struct param_table table;
    char *config; /* text for the target, or NULL */
    int grain;
    int n, n_ranks;
    struct target *target;                   /* by role and name */
    struct unit *unit;                       /* [n_ranks * UNITS] */
    int64_t bytes_out, n_pieces, most_bytes; /* most_bytes: of one rank */
    int64_t bytes_here;                      /* of bytes_out: what this process writes */
};
int plan_make(struct plan *p, struct ckpt *src, const struct request *req, struct log *log, struct err *e);
void plan_free(struct plan *p);

/* Reads every tensor once in order, converts, digests, writes; digest[i]: of target i as it streamed by.
 * Collective over the processes that share the work, as is prove_run. */
int stream_run(const struct plan *p, const char *tmp, struct ckpt_digest *digest, struct log *log,
               struct err *e);
/* Opens the folder tmp again: every tensor of the plan must be there with the digest that streamed by
 * (native: as its files were read back,
 * others: read now). */
int prove_run(const struct plan *p, const char *tmp, const struct ckpt_digest *digest, struct log *log,
              struct err *e);
/* Digest of every tensor of c by reading it; compares with what c itself claims. out: room for all. share:
 * as in a request. */
int prove_digests(struct ckpt *c, int n_threads, const struct share *share, struct ckpt_digest *out,
                  struct err *e);
/* The whole walk. Nothing appears at req->dst unless all of it went well. */
int reshard_convert(const struct request *req, struct log *log, struct err *e);

/* What a byte model needs so that transformers loads it: malloc'd texts. */
char *byte_tokenizer_json(void);
char *byte_tokenizer_config_json(int64_t max_len);
char *byte_generation_config_json(const struct model_config *c);

#endif

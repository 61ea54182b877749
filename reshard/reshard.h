/* reshard.h - private to reshard/: the request, the plan made from it, and the walk plan -> stream -> prove
 * -> publish.
 *
 * Processes can share a conversion (procs.h): each writes the files of its units, rank 0 publishes. */
#ifndef SHARDLINE_RESHARD_RESHARD_H
#define SHARDLINE_RESHARD_RESHARD_H

#include <signal.h>
#include <stdio.h>
#include "base/log.h"
#include "format/ckpt_write.h"
#include "format/hf_write.h"
#include "format/quant_view.h"
#include "model/params.h"
#include "reshard/cuts.h"
#include "reshard/procs.h"

/* as --format lists them */
enum target_format {
    TARGET_NATIVE,
    TARGET_HF,
    TARGET_DCP,
    TARGET_UNIVERSAL,
    TARGET_MEGATRON,
    TARGET_GGUF,
    TARGET_SERVE
};
enum target_dtype { TARGET_AS_IS, TARGET_F32, TARGET_BF16 };

/* All pointers are borrowed. */
struct request {
    const char *src, *dst;
    struct layout layout; /* cp 1, ep 1 */
    enum target_format format;
    enum target_dtype dtype;
    int weights_only, n_threads;
    struct quant_wish quant;
    enum ckpt_codec codec;   /* native */
    int level;               /* of the codec */
    const char *config_path; /* instead of SRC's config.json; or NULL */
    int n_merge;             /* adapters (PEFT) to merge into the weights, in order */
    const char *const *merge;
    const char *cuts_path;             /* a cut table (cuts.h) for SRC's tensors; or NULL */
    int64_t shard_bytes;               /* Hugging Face: most data in one file */
    enum hf_experts experts;           /* Hugging Face */
    enum ckpt_panel_kind panels;       /* the serve format: of matrices that can be so; others are plain */
    const char *gguf_type;             /* GGUF: of matrices ("q8_0"); NULL: as they are */
    const volatile sig_atomic_t *stop; /* set by a signal; or NULL */
    struct trace *trace;               /* of every thread, tensor by tensor; or NULL */
    const struct procs *procs;         /* the processes that share the work; NULL: this one alone */
};
/* Whether a signal asked for an orderly end. */
int request_stopped(const struct request *r);

/* A unit is one file of the target: the weights of a rank, or its optimizer state. Those of rank r have
 * the numbers r * UNITS + UNIT_WEIGHTS and r * UNITS + UNIT_OPTIM. */
enum { UNIT_WEIGHTS, UNIT_OPTIM, UNITS };
struct unit {
    int n_pieces;
    int owner; /* the process that writes it */
    int64_t bytes;
};

struct target_piece {
    int unit;
    int index; /* in the unit's list of pieces */
    struct box box;
    int64_t lo, hi; /* of the box's row-major elements */
};
/* One tensor of the target: its source, its form in the target, and which file holds which part. */
struct target {
    struct ckpt_tensor t; /* name borrowed from the source */
    int src;              /* index of the source's tensor; its role may differ: masters become weights */
    int n_pieces;
    struct target_piece *piece;
};

struct plan {
    const struct request *req;
    struct ckpt *src;
    int has_model; /* config.json was understood: cfg and table say how tensors are cut */
    struct model_config cfg;
    struct param_table table;
    struct quant_list quant; /* the source's quantised weights */
    int carries_quant;       /* they are not understood, and no tensor is cut */
    int has_cuts;            /* a cut table says it */
    struct cut_model cut;
    char *cuts;               /* its text, for the target; NULL: none, the tensors are cut by element only */
    char *config;             /* text for the target, or NULL */
    struct serve_plan *serve; /* of a serve target (serve_plan.h) */
    struct gguf_target *gguf; /* of a GGUF target, which src is a view for (gguf_prepare.h); borrowed */
    int grain;
    int n, n_ranks;
    struct target *target; /* [n], sorted by role and name */
    struct unit *unit;     /* [n_ranks * UNITS] */
    int64_t n_pieces;
    int64_t bytes_out;  /* of all files */
    int64_t most_bytes; /* of one rank */
    int64_t bytes_here; /* what this process writes */
};
/* Plans the conversion; nothing is read but tables and config.json. Borrows src and req. On an error *p
 * needs no plan_free(). log: remarks, or NULL. */
int plan_make(struct plan *p, struct ckpt *src, const struct request *req, struct log *log, struct err *e);
/* Adds to target t the elements [lo, hi) of a box, which a rank writes. */
int plan_add_piece(struct plan *p, struct target *t, int rank, const struct box *b, int64_t lo, int64_t hi,
                   struct err *e);
/* The target of that role and name, or -1. */
int plan_find(const struct plan *p, enum ckpt_role role, const char *name);
/* The cuts of a plan whose tensors are picked, from --cuts FILE or the source's cuts.txt. why: what is wrong
 * with config.json, may be e->text, NULL: nothing. Without a table tensors are cut by element only, and a
 * layout that asks for more is refused. */
int plan_cuts(struct plan *p, const char *why, struct log *log, struct err *e);
/* 1: tp, pp and ep are 1, so that the plan needs no cut table. */
int plan_needs_no_table(const struct plan *p);
/* Bytes of memory that a process takes for the plan: buffers of every thread, tables. */
int64_t plan_memory_bytes(const struct plan *p);
void plan_free(struct plan *p); /* a zeroed plan is fine */

/* Reads every tensor once in order, converts, digests and writes it into the folder d->tmp. digest[p->n]: of
 * every target, as it was read and converted. Collective over the processes that share the work. */
struct dest;
int stream_run(const struct plan *p, const struct dest *d, struct ckpt_digest *digest, struct log *log,
               struct err *e);
/* Opens the folder d->tmp again, or what was sent to the URL: every tensor of the plan must be there with its
 * digest (native files of this machine: as stream_run() read them back; others are read now). Collective, as
 * stream_run(). */
int prove_run(const struct plan *p, const struct dest *d, const struct ckpt_digest *digest, struct log *log,
              struct err *e);
/* Computes the computed tensors of the source once more, in parts of another size: their digests must be
 * those of the stream. Collective. */
int prove_computed(const struct plan *p, const struct ckpt_digest *digest, struct log *log, struct err *e);
/* out[ckpt_n_tensors(c)]: digests of all tensors, by reading them; ERR_INTEGRITY where the checkpoint
 * claims another. Collective over procs. */
int prove_digests(struct ckpt *c, int n_threads, const struct procs *procs, struct ckpt_digest *out,
                  struct err *e);
/* Compares a tied head that is stored all the same with the embedding, by the digests of the targets; a
 * difference is logged. */
void prove_tied(const struct plan *p, const struct ckpt_digest *digest, struct log *log);
/* The whole walk. Nothing appears at req->dst unless all of it succeeded. Collective over req->procs. */
int reshard_convert(const struct request *req, struct log *log, struct err *e);

/* Files that transformers needs to load a byte model: malloc'd texts; NULL: no memory. */
char *byte_tokenizer_json(void);
char *byte_tokenizer_config_json(int64_t max_len);
char *byte_generation_config_json(const struct model_config *c);

#endif

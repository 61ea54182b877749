/* report.h - private to reshard/: what is said about checkpoints on stdout, as tables for people or as one
 * line of JSON. */
#ifndef SHARDLINE_RESHARD_REPORT_H
#define SHARDLINE_RESHARD_REPORT_H

#include <jansson.h>
#include <stdio.h>
#include "base/log.h"
#include "format/ckpt.h"
#include "format/ckpt_proof.h"

struct plan;
struct report_options {
    int json, tensors, stats;
    int n_threads;
    struct log *log; /* of the progress; or NULL */
};

/* One for each command of reshard. They return 0, 1 (report_diff: the checkpoints differ) or an error. */
int report_inspect(struct ckpt *c, const struct report_options *o, FILE *out, struct err *e);
/* Its cut table: that of its family, its cuts.txt, or that of its model_type. ERR_CONFIG: it has none. */
int report_cuts(struct ckpt *c, FILE *out, struct err *e);
int report_digest(struct ckpt *c, const struct report_options *o, FILE *out, struct err *e);
int report_diff(struct ckpt *a, struct ckpt *b, const struct report_options *o, FILE *out, struct err *e);
/* reshard cache list, clear or clear URL...: arg[n_args], at least one. Remarks go to o->log. */
int report_cache(char *const *arg, int n_args, const struct report_options *o, FILE *out, struct err *e);
int report_plan(const struct plan *p, const struct report_options *o, FILE *out, struct err *e);

/* What inspect says of an adapter, and of adapters that were merged into a model: nothing for other
 * checkpoints. */
void report_adapter(struct ckpt *c, FILE *out);
void report_adapter_json(struct ckpt *c, json_t *root);
/* Of an adapter: its files must fit together. One of another kind than LoRA is not looked at. */
int adapter_verify(struct ckpt *c, struct err *e);

/* ---- what they share ---- */
/* Of the finite values; 0 where there are none. */
struct tensor_stats {
    int64_t n_finite, n_nan, n_inf;
    double min, max, mean;
};
/* Reads all data of c. out[ckpt_n_tensors(c)]; log: of the progress, or NULL. */
int stats_of_all(struct ckpt *c, int n_threads, struct log *log, struct tensor_stats *out, struct err *e);

extern const char *const report_role[ROLE_COUNT]; /* "weight", "master", ... */
/* Bytes of a tensor's data. */
int64_t tensor_bytes(const struct ckpt_tensor *t);
/* The shape as text, "[3,4]"; returns out. */
const char *report_shape(const struct ckpt_tensor *t, char out[96]);
/* Prints o as one line, and releases it. */
void report_json(json_t *o, FILE *out);
/* The checkpoint's path; bytes that are not UTF-8 become "?". */
json_t *report_path(const struct ckpt *c);
/* Element number `at` as an index: the list [1,2], and the text "[1,2]". */
json_t *report_index(const struct ckpt_tensor *t, int64_t at);
void report_index_text(const struct ckpt_tensor *t, int64_t at, char out[96]);
/* v; JSON has no NaN and Inf, so these become the texts "nan", "inf", "-inf". */
json_t *report_number(double v);

/* For a whole checkpoint in the folder of a save (dst.tmp-save): how to publish it, as commands for a shell;
 * nothing for other paths. proof: what verifying showed. The checkpoint is closed. */
void report_rescue(const char *path, enum ckpt_proof proof, FILE *out);

#endif

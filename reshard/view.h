/* view.h - private to the room: answers about checkpoints on stdout, as tables for people or one line of
 * JSON. */
#ifndef SHARDLINE_RESHARD_VIEW_H
#define SHARDLINE_RESHARD_VIEW_H

#include <jansson.h>
#include <stdio.h>
#include "base/log.h"
#include "format/ckpt.h"

struct plan;
/* log: of the progress; or NULL */
struct view_options {
    int json, tensors, stats;
    int n_threads;
    struct log *log;
};

/* 0, 1 (diff: different) or an error. */
int view_inspect(struct ckpt *c, const struct view_options *o, FILE *out, struct err *e);
int view_digest(struct ckpt *c, const struct view_options *o, FILE *out, struct err *e);
int view_diff(struct ckpt *a, struct ckpt *b, const struct view_options *o, FILE *out, struct err *e);
int view_plan(const struct plan *p, const struct view_options *o, FILE *out, struct err *e);

/* ---- for them ---- */
/* of the finite ones; none: 0 */
struct tensor_stats {
    int64_t n_finite, n_nan, n_inf;
    double min, max, mean;
};
int stats_of_all(struct ckpt *c, int n_threads, struct log *log, struct tensor_stats *out, struct err *e);

extern const char *const view_role[ROLE_COUNT];
int64_t tensor_bytes(const struct ckpt_tensor *t);
const char *view_shape(const struct ckpt_tensor *t, char out[96]); /* "[3,4]" */
void view_json(json_t *o, FILE *out);                              /* one line; o is given away */
/* a path that is no UTF-8 has ? in place of such bytes */
json_t *view_path(const struct ckpt *c);
/* element number as an index: [1,2] */
json_t *view_index(const struct ckpt_tensor *t, int64_t at);
/* A list of the index's text: "[1,2]". */
void view_index_text(const struct ckpt_tensor *t, int64_t at, char out[96]);
/* JSON has no NaN and Inf: texts "nan", "inf", "-inf" */
json_t *view_number(double v);

#endif

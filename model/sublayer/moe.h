/* moe.h - inside sublayer/: what the files of a mixture of experts share.
 *
 *     moe.c          shape, forward, backward
 *     moe_rows.c     rows to the ranks of their experts, results back and together
 *     moe_memory.c   buffers, and what plans need to know
 *     moe_bias.c     biases of experts (units.h) */
#ifndef SHARDLINE_MODEL_SUBLAYER_MOE_H
#define SHARDLINE_MODEL_SUBLAYER_MOE_H

#include "model/units.h"

/* Slots of the kind, and packs of one mixture. */
enum {
    ROUTER,
    GATE,
    UP,
    DOWN,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
    NO_BIAS_1,
    NO_BIAS_2,
    NO_BIAS_3,
    SHARED_SCALE,
    ROUTER_BIAS,
    SLOTS
};
enum { PACK_ROUTER, PACK_UP, PACK_DOWN, PACK_SHARED, PACK_SHARED_DOWN, PACK_SHARED_SCALE, PACKS };

/* Rows travel to the ranks of their experts and back (ep > 1). */
static inline int has_dispatch(const struct model *m) { return m->local.layout.ep > 1; }
static inline int has_shared(const struct sublayer *s) { return s->part[SHARED_DOWN] >= 0; }
/* The shared expert's output is scaled by a gate of its own. */
static inline int has_scale(const struct sublayer *s) { return s->part[SHARED_SCALE] >= 0; }
/* A buffer of grouped rows, those of this call. */
static inline struct mat grouped(const struct experts_buf *b, const void *p, enum dtype dt, int64_t cols)
{
    return rows_of(p, dt, b->n, cols);
}

/* ---- moe_rows.c ---- */
/* Rows of every sequence whose results this rank makes: its own rows with sp; with ep its share over tp; else
 * all. */
struct share {
    int64_t first, n;
};
/* Of this rank. */
struct share experts_share(const struct pass *p);
/* Of one sequence: all rows [from, from + n) are rows [to, to + n) of the results. */
struct own_rows {
    int64_t from, to, n;
};
/* seq: a sequence of the call. */
struct own_rows experts_own_rows(const struct pass *p, int seq);
/* What the ops of this rank's experts work on: rows of `all`, or of what arrived. */
struct side {
    struct expert_rows groups;
    struct listed in;
    const float *weight;
    const int32_t *weight_list;
};
/* all: all rows of a matrix; arrived: with ep > 1 the rows of it that came (experts_send). */
struct side experts_side(const struct pass *p, const struct experts_buf *b, struct mat all,
                         const void *arrived);

/* With ep > 1, after routing_fill: how many rows go where, and in how many rounds. Collective over ep. */
int experts_find_rows(const struct pass *p, struct experts_buf *b, struct err *e);
/* Rounds of the call: 1 with ep 1. */
int experts_rounds(const struct experts_buf *b);
/* Rows travel in two steps: one of the next four functions starts them, experts_arrive waits for all that is
 * started. What does not need them is computed in between. With m->waits the start waits. All are collective
 * over ep; with ep 1 nothing travels.
 *
 * Selects a round: the lists of its rows. Starts the weights of those that come to this rank. */
int experts_begin_round(const struct pass *p, struct experts_buf *b, int round, struct err *e);
/* Starts home rows of `all` to the ranks of their experts. `all` may change at once. */
int experts_send(const struct pass *p, struct experts_buf *b, struct mat all, void *arrived, struct err *e);
/* The same of the numbers of the rows' adapters (struct adapter); 0: none. */
int experts_send_adapters(const struct pass *p, struct experts_buf *b, struct err *e);
/* Starts b->row back to the home ranks: *results, in the order of the home lists. b->row may change at once.
 * unrounded: an altered order, b->sum instead. */
int experts_return(const struct pass *p, struct experts_buf *b, int unrounded, struct mat *results,
                   struct err *e);
/* Starts the gradients of the router's weights, from those of grouped rows (b->d_row), to the home ranks. */
int experts_return_weight_gradients(const struct pass *p, struct experts_buf *b, struct err *e);
/* Waits for what is started. rc: 0, or the caller's error, which is returned and leaves *e as it is. */
int experts_arrive(struct experts_buf *b, int rc, struct err *e);
/* b->d_slot of the round's sequences, from what arrived, with ep 1 from b->d_row. */
void experts_place_weight_gradients(const struct pass *p, struct experts_buf *b);

/* Where results go first, and from there to all rows of `to`. The second is collective over tp. */
float *experts_results_in(const struct pass *p, struct experts_buf *b, float *to);
int experts_gather_results(const struct pass *p, struct experts_buf *b, float *to, struct err *e);

/* b->d_slot of all rows, when all rounds are through: every rank has its share's. Collective over tp. */
int experts_gather_weight_gradients(const struct pass *p, struct experts_buf *b, struct err *e);

/* What a record of x needs later: other layers or rounds may overwrite it. */
struct mat experts_record_input(const struct pass *p, const struct experts_buf *b, struct mat x);

/* ---- moe_adapter.c: adapters of routed experts. k: the pack ---- */
/* Buffers for adapters up to this rank; 0: none. */
void adapters_carve_experts(const struct sublayer *s, int64_t rank, const struct carver *from,
                            struct experts_buf *b);
/* With ep > 1, of a server's rows: the numbers of their adapters to the ranks of their experts; after
 * experts_arrive they are there. The first is collective over ep. */
int adapters_experts_send(const struct pass *p, const struct sublayer *s, struct experts_buf *b,
                          struct err *e);
void adapters_experts_arrived(const struct pass *p, const struct sublayer *s, struct experts_buf *b);
/* The pack made y (grouped) from x (struct side): adds what adapters add. */
void adapters_experts_add(const struct pass *p, const struct sublayer *s, int k,
                          const struct branch_buf *branch, struct listed x, struct mat y);
/* In training: z of a pack that the forward pass of another round overwrote. x: grouped, all inputs. */
void adapters_experts_again(const struct pass *p, const struct sublayer *s, int k,
                            const struct branch_buf *branch, struct mat x);
/* The same where x is grouped and y, in b->sum, is summed over tp. Before the sum: leaves the parts of z
 * behind it; returns their floats. */
int64_t adapters_experts_begin(const struct pass *p, const struct sublayer *s, int k,
                               const struct branch_buf *branch, struct mat x);
void adapters_experts_end(const struct pass *p, const struct sublayer *s, int k,
                          const struct branch_buf *branch, struct mat y);
/* Going back through down; side: the gradient of the outputs, before it is multiplied by the weights of the
 * experts. Adds to d_act; afterwards the records: scaled is that gradient times the weights, act as records
 * take it. */
void adapters_experts_down(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                           const struct side *side, struct mat d_act);
int adapters_experts_down_records(const struct pass *p, const struct sublayer *s, int k,
                                  struct branch_buf *branch, const struct side *side, struct mat scaled,
                                  struct mat act, struct err *e);
/* Going back through gate and up; dy, leaves: by slot. Leaves the parts of dz behind b->sum; returns their
 * floats. After the sum over tp: emits the records, adds to b->sum. h: the input, as records take it. */
int64_t adapters_experts_up(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                            const struct listed *dy, const struct leaves *leaves);
int adapters_experts_up_end(const struct pass *p, const struct sublayer *s, int k, struct branch_buf *branch,
                            const struct listed *dy, struct mat h, struct err *e);

/* ---- moe_memory.c: rows of struct sublayer_kind ---- */
void experts_carve(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                   const struct carver *from, struct branch_buf *branch);
size_t experts_deferred_bytes(const struct sublayer *s, const struct model *m, const struct call_shape *c,
                              enum recompute recompute);
int experts_deferred_records(const struct sublayer *s, const struct model *m, const struct call_shape *c);
void experts_traffic(const struct sublayer *s, const struct model *m, struct unit_traffic *t);
/* The most rows of a call that come to this rank's experts, in at most so many rounds. */
int64_t experts_rows(const struct sublayer *s, const struct model *m, const struct call_shape *c);
int experts_most_rounds(const struct sublayer *s, const struct model *m, const struct call_shape *c);
double experts_flops(const struct sublayer *s, const struct model *m, double keys);

#endif

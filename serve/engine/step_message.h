/* step_message.h - one step as rank 0 tells it to the others: which rows of which sequences, their pages,
 * which rows want logits.
 *
 * A plan says everything: a rank keeps nothing from step to step but the bytes in its pages, so no two ranks
 * can ever disagree about a sequence. One broadcast of STEP_MESSAGE_INLINE words, which holds a step of decoding; a
 * second one for what is longer.
 *
 *     [ op | words | n_seq | n_rows | n_want | n_pages | 0 0 ] [ n_seq x (pos, rows, pages) ] [ pages ] [
 *     ids ] [ want ]       */
#ifndef SHARDLINE_SERVE_ENGINE_STEP_MESSAGE_H
#define SHARDLINE_SERVE_ENGINE_STEP_MESSAGE_H

#include <stdint.h>
#include "comm/comm.h"
#include "kernels/kernels.h"
#include "serve/engine/kv.h"
#include "serve/engine/scheduler.h"

#define STEP_MESSAGE_INLINE 1024
enum step_op { STEP_IDLE, STEP_RUN, STEP_STOP, STEP_LOAD, STEP_SYNC, STEP_SWAP, STEP_DROP };

struct step_message {
    int32_t *word; /* the message */
    /* words that have room, pages; they grow: sequences with a common beginning name a page each */
    int64_t cap, cap_pages;
    int max_seqs;
    char **page;          /* [all pages in the plan]: where they are on this rank */
    struct attn_seq *seq; /* [max_seqs] */
    /* of the plan that was made or received: */
    enum step_op op;
    int n_seq;
    int64_t n_rows, n_want;
    const int32_t *ids, *want;
};

int step_message_open(struct step_message *p, int max_seqs, struct err *e);
void step_message_close(struct step_message *p);
/* Rank 0: the scheduler's items as a message. ids_of gives the tokens of a sequence. ERR_MEMORY: no room for
 * it. */
int step_message_make(struct step_message *p, enum step_op op, const struct sched *s,
                      const int32_t *(*ids_of)(const struct seq *q), struct err *e);
/* An order (order.h) in the place of a step; text, with its NUL, has room in one broadcast. */
void step_message_command(struct step_message *p, enum step_op op, const char *text);
static inline const char *step_message_text(const struct step_message *p) { return (const char *)p->ids; }
/* Rank 0 sends, the others receive. Collective. */
int step_message_broadcast(struct step_message *p, struct comm *c, struct err *e);
/* Pages as memory: fills p->seq and clears pages that begin in this step. A page behind the window is NULL.
 * */
int step_message_map_pages(struct step_message *p, const struct kv *kv, struct err *e);

#endif

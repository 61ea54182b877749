/* pipeline.c - see pipeline.h. A generator decides the order of the work; which messages surround it
 * follows from the virtual stage. */
#include "train/pipeline/pipeline.h"

#include <stdlib.h>
#include <string.h>

struct maker {
    const struct pipe_shape *s;
    struct pipe_list *l;
    int rank;
};

static void add(struct maker *m, enum pipe_op op, int chunk, int64_t micro)
{
    m->l->act[m->l->n++] = (struct pipe_act){ op, chunk, micro };
}

static int is_first(const struct maker *m, int chunk) { return m->rank == 0 && chunk == 0; }
static int is_last(const struct maker *m, int chunk)
{
    return m->rank == m->s->ranks - 1 && chunk == m->s->chunks - 1;
}

static void forward(struct maker *m, int chunk, int64_t i)
{
    if (!is_first(m, chunk))
        add(m, PIPE_RECV_X, chunk, i);
    add(m, PIPE_FORWARD, chunk, i);
    if (!is_last(m, chunk))
        add(m, PIPE_SEND_X, chunk, i);
}

static void backward(struct maker *m, enum pipe_op op, int chunk, int64_t i)
{
    if (!is_last(m, chunk))
        add(m, PIPE_RECV_DX, chunk, i);
    add(m, op, chunk, i);
    if (!is_first(m, chunk))
        add(m, PIPE_SEND_DX, chunk, i);
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* gpipe and 1f1b differ by how many forwards come before the first backward. */
static void make_flat(struct maker *m)
{
    int64_t M = m->s->micros, ahead = min64(m->s->kind == PIPE_GPIPE ? M : m->s->ranks - m->rank, M);
    for (int64_t i = 0; i < ahead; i++)
        forward(m, 0, i);
    for (int64_t i = 0; i < M; i++) {
        backward(m, PIPE_BACKWARD, 0, i);
        if (i + ahead < M)
            forward(m, 0, i + ahead);
    }
}

static void make_naive(struct maker *m)
{
    for (int64_t i = 0; i < m->s->micros; i++) {
        for (int c = 0; c < m->s->chunks; c++)
            forward(m, c, i);
        for (int c = m->s->chunks - 1; c >= 0; c--)
            backward(m, PIPE_BACKWARD, c, i);
    }
}

/* Returns the micro-batch, and *chunk, of number k of all pairs: `ranks` micro-batches go through one
 * chunk, then through the next. */
static int64_t pair(const struct pipe_shape *s, int64_t k, int *chunk)
{
    int64_t round = (int64_t)s->ranks * s->chunks, in = k % round;
    *chunk = (int)(in / s->ranks);
    return k / round * s->ranks + in % s->ranks;
}

static void make_interleaved(struct maker *m)
{
    const struct pipe_shape *s = m->s;
    int64_t all = s->micros * s->chunks,
            ahead = min64((int64_t)(s->ranks - m->rank - 1) * 2 + (int64_t)(s->chunks - 1) * s->ranks + 1,
                          all);
    for (int64_t k = 0; k < all + ahead; k++) {
        int chunk;
        int64_t micro;
        if (k >= ahead) {
            micro = pair(s, k - ahead, &chunk);
            backward(m, PIPE_BACKWARD, s->chunks - 1 - chunk, micro);
        }
        if (k < all) {
            micro = pair(s, k, &chunk);
            forward(m, chunk, micro);
        }
    }
}

/* 1f1b whose weight gradients are deferred by `rank` micro-batches: the last rank sends gradients on sooner,
 * and fills its idle end with weight gradients. */
static void make_zero_bubble(struct maker *m)
{
    int64_t M = m->s->micros, ahead = min64(m->s->ranks - m->rank, M), deferred = m->rank;
    for (int64_t i = 0; i < ahead; i++)
        forward(m, 0, i);
    for (int64_t i = 0; i < M + deferred; i++) {
        if (i < M)
            backward(m, PIPE_BACKWARD_INPUT, 0, i);
        if (i >= deferred)
            add(m, PIPE_BACKWARD_WEIGHT, 0, i - deferred);
        if (i + ahead < M)
            forward(m, 0, i + ahead);
    }
}

static void (*const generators[])(struct maker *) = {
    [PIPE_GPIPE] = make_flat,
    [PIPE_1F1B] = make_flat,
    [PIPE_INTERLEAVED] = make_interleaved,
    [PIPE_ZERO_BUBBLE] = make_zero_bubble,
    [PIPE_NAIVE] = make_naive,
};

/* The most micro-batches of a chunk between action `from` and the end of their backward. */
static int64_t most_between(const struct pipe_list *l, int chunk, enum pipe_op from)
{
    int64_t now = 0, most = 0;
    for (int64_t i = 0; i < l->n; i++) {
        enum pipe_op op = l->act[i].op;
        if (l->act[i].chunk != chunk)
            continue;
        now += (op == from) - (op == PIPE_BACKWARD_WEIGHT || (op == PIPE_BACKWARD && from == PIPE_FORWARD));
        most = now > most ? now : most;
    }
    return most;
}

int pipe_check(const struct pipe_shape *s, struct err *e)
{
    if (s->chunks > 1 && s->kind != PIPE_INTERLEAVED && s->kind != PIPE_NAIVE)
        return err_set(e, ERR_USAGE, "--virtual-stages %d needs --schedule interleaved", s->chunks);
    if (s->chunks > 1 && s->ranks < 2)
        return err_set(e, ERR_USAGE, "--virtual-stages %d needs --pp 2 or more", s->chunks);
    if (s->kind == PIPE_INTERLEAVED && s->micros % s->ranks)
        return err_set(e, ERR_USAGE,
                       "--schedule interleaved runs groups of --pp micro-batches, %lld are not a multiple of "
                       "%d: change --global-batch or --micro-batch",
                       (long long)s->micros, s->ranks);
    return 0;
}

int pipe_make(struct pipe_list *l, const struct pipe_shape *s, int rank, struct err *e)
{
    struct maker m = { s, l, rank };
    *l = (struct pipe_list){ .act = malloc(sizeof *l->act * (size_t)(7 * s->micros * s->chunks + 1)),
                             .in_flight = calloc((size_t)s->chunks, sizeof(int64_t)),
                             .deferred = calloc((size_t)s->chunks, sizeof(int64_t)) };
    if (!l->act || !l->in_flight || !l->deferred) {
        pipe_free(l);
        return err_set(e, ERR_MEMORY, "no memory for a schedule of %lld micro-batches", (long long)s->micros);
    }
    generators[s->kind](&m);
    for (int c = 0; c < s->chunks; c++) {
        l->in_flight[c] = most_between(l, c, PIPE_FORWARD);
        l->deferred[c] = most_between(l, c, PIPE_BACKWARD_INPUT);
    }
    return 0;
}

void pipe_free(struct pipe_list *l)
{
    free(l->act);
    free(l->in_flight);
    free(l->deferred);
    memset(l, 0, sizeof *l);
}

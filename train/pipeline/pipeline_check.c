/* pipeline_check.c - the verifier of schedules (pipeline.h): a clock for each rank, a queue for each
 * neighbour and direction. */
#include "train/pipeline/pipeline.h"

#include <stdlib.h>
#include <string.h>

struct message {
    int chunk;
    int64_t micro;
    double at;
};
struct queue {
    struct message *m;
    int64_t n_sent, n_taken;
};
/* Micro-batches that a chunk of a rank has done. */
struct progress {
    int64_t forwards, inputs, weights;
};

struct check {
    const struct pipe_shape *s;
    const struct pipe_list *list;
    int64_t *next;         /* [ranks]: the next action */
    struct progress *done; /* [ranks][chunks] */
    double *clock, *busy;  /* [ranks] */
    struct queue *x, *dx;  /* [ranks]: messages to a rank */
    FILE *draw;
    char **line; /* [ranks]: drawn so far, when draw is set */
};

#define LINE_BYTES 400

static int wrong(struct err *e, int r, const struct pipe_act *a, const char *what)
{
    return err_set(e, ERR_INTERNAL, "schedule: rank %d, chunk %d, micro-batch %lld: %s", r, a->chunk,
                   (long long)a->micro, what);
}

static void draw_text(struct check *c, int r, const char *text)
{
    if (c->draw && strlen(c->line[r]) + strlen(text) + 5 < LINE_BYTES)
        strcat(c->line[r], text);
    else if (c->draw && !strstr(c->line[r], " ..."))
        strcat(c->line[r], " ...");
}

static void draw_act(struct check *c, int r, const struct pipe_act *a)
{
    static const char letter[] = {
        [PIPE_FORWARD] = 'F', [PIPE_BACKWARD] = 'B', [PIPE_BACKWARD_INPUT] = 'B', [PIPE_BACKWARD_WEIGHT] = 'W'
    };
    char text[64];
    if (c->s->chunks > 1)
        snprintf(text, sizeof text, " %c%lld.%d", letter[a->op], (long long)a->micro, a->chunk);
    else
        snprintf(text, sizeof text, " %c%lld", letter[a->op], (long long)a->micro);
    draw_text(c, r, text);
}

/* Sends to the rank's neighbour; behind the last rank follows the next chunk of the first. 0: the queue is
 * full. */
static int put(struct check *c, int r, const struct pipe_act *a, struct err *e)
{
    int up = a->op == PIPE_SEND_X, n = c->s->ranks, to = up ? (r + 1) % n : (r + n - 1) % n;
    struct queue *q = up ? &c->x[to] : &c->dx[to];
    if (q->n_sent - q->n_taken >= PIPE_MESSAGES)
        return 0;
    if (q->n_sent == c->s->micros * c->s->chunks)
        return wrong(e, r, a, "it is sent more than once");
    int wraps = up ? r == n - 1 : r == 0;
    q->m[q->n_sent++] = (struct message){ a->chunk + (wraps ? (up ? 1 : -1) : 0), a->micro, c->clock[r] };
    return 1;
}

static int take(struct check *c, int r, const struct pipe_act *a, struct err *e)
{
    struct queue *q = a->op == PIPE_RECV_X ? &c->x[r] : &c->dx[r];
    if (q->n_taken == q->n_sent)
        return 0;
    struct message m = q->m[q->n_taken++];
    if (m.chunk != a->chunk || m.micro != a->micro)
        return wrong(e, r, a, "another message comes before this one");
    for (double w = c->clock[r]; w + 1e-9 < m.at; w += 1)
        draw_text(c, r, " .");
    c->clock[r] = m.at > c->clock[r] ? m.at : c->clock[r];
    return 1;
}

static int compute(struct check *c, int r, const struct pipe_act *a, struct err *e)
{
    struct progress *p = &c->done[r * c->s->chunks + a->chunk];
    double takes = (a->op == PIPE_BACKWARD ? 2.0 : 1.0) / c->s->chunks;
    if (a->op == PIPE_FORWARD && a->micro != p->forwards++)
        return wrong(e, r, a, "its forward is out of order");
    if ((a->op == PIPE_BACKWARD || a->op == PIPE_BACKWARD_INPUT) &&
        (a->micro != p->inputs++ || p->inputs > p->forwards))
        return wrong(e, r, a, "its backward is out of order");
    if ((a->op == PIPE_BACKWARD || a->op == PIPE_BACKWARD_WEIGHT) &&
        (a->micro != p->weights++ || p->weights > p->inputs))
        return wrong(e, r, a, "its weight gradient is out of order");
    if (p->forwards - p->weights > c->list[r].in_flight[a->chunk])
        return wrong(e, r, a, "more micro-batches are kept than the list says");
    if (p->inputs - p->weights > c->list[r].deferred[a->chunk])
        return wrong(e, r, a, "more weight gradients are deferred than the list says");
    c->clock[r] += takes;
    c->busy[r] += takes;
    draw_act(c, r, a);
    return 1;
}

/* 1: the action ran; 0: it has to wait; negative: it may not stand here. */
static int run_action(struct check *c, int r, const struct pipe_act *a, struct err *e)
{
    if (a->chunk < 0 || a->chunk >= c->s->chunks || a->micro < 0 || a->micro >= c->s->micros)
        return wrong(e, r, a, "there is none such");
    switch (a->op) {
    case PIPE_RECV_X:
    case PIPE_RECV_DX: return take(c, r, a, e);
    case PIPE_SEND_X:
    case PIPE_SEND_DX: return put(c, r, a, e);
    default: return compute(c, r, a, e);
    }
}

static int run_all(struct check *c, struct err *e)
{
    for (int left = c->s->ranks, moved = 1; left > 0;) {
        if (!moved)
            return err_set(e, ERR_INTERNAL, "schedule: every rank waits for another");
        moved = left = 0;
        for (int r = 0; r < c->s->ranks; r++) {
            int rc = 1;
            while (c->next[r] < c->list[r].n && (rc = run_action(c, r, &c->list[r].act[c->next[r]], e)) > 0) {
                c->next[r]++;
                moved = 1;
            }
            if (rc < 0)
                return rc;
            left += c->next[r] < c->list[r].n;
        }
    }

    for (int i = 0; i < c->s->ranks * c->s->chunks; i++)
        if (c->done[i].forwards != c->s->micros || c->done[i].weights != c->s->micros)
            return err_set(e, ERR_INTERNAL, "schedule: rank %d does not run all %lld micro-batches",
                           i / c->s->chunks, (long long)c->s->micros);
    return 0;
}

static int open_check(struct check *c, struct err *e)
{
    size_t n = (size_t)c->s->ranks, messages = (size_t)(c->s->micros * c->s->chunks);
    int ok;
    c->next = calloc(n, sizeof *c->next);
    c->done = calloc(n * (size_t)c->s->chunks, sizeof *c->done);
    c->clock = calloc(n, sizeof *c->clock);
    c->busy = calloc(n, sizeof *c->busy);
    c->x = calloc(n, sizeof *c->x);
    c->dx = calloc(n, sizeof *c->dx);
    c->line = calloc(n, sizeof *c->line);
    ok = c->next && c->done && c->clock && c->busy && c->x && c->dx && c->line;
    for (size_t r = 0; ok && r < n; r++) {
        c->x[r].m = calloc(messages, sizeof *c->x[r].m);
        c->dx[r].m = calloc(messages, sizeof *c->dx[r].m);
        c->line[r] = calloc(1, LINE_BYTES);
        ok = c->x[r].m && c->dx[r].m && c->line[r];
    }
    return ok ? 0 : err_set(e, ERR_MEMORY, "no memory to check a schedule of %d ranks", c->s->ranks);
}

static void close_check(struct check *c)
{
    for (int r = 0; c->x && c->dx && c->line && r < c->s->ranks; r++) {
        free(c->x[r].m);
        free(c->dx[r].m);
        free(c->line[r]);
    }
    free(c->next);
    free(c->done);
    free(c->clock);
    free(c->busy);
    free(c->x);
    free(c->dx);
    free(c->line);
}

int pipe_verify(const struct pipe_list *list, const struct pipe_shape *s, struct pipe_report *r, FILE *draw,
                struct err *e)
{
    struct check c = { .s = s, .list = list, .draw = draw };
    double end = 0;
    int rc;
    TRY(open_check(&c, e));
    TRY(run_all(&c, e));
    *r = (struct pipe_report){ 0 };
    for (int i = 0; i < s->ranks; i++) {
        int64_t kept = 0;
        for (int k = 0; k < s->chunks; k++)
            kept += list[i].in_flight[k];
        end = c.clock[i] > end ? c.clock[i] : end;
        r->in_flight = kept > r->in_flight ? kept : r->in_flight;
        if (draw)
            fprintf(draw, "rank %-3d%s\n", i, c.line[i]);
    }
    r->bubble = 1 - c.busy[0] / end;
out:
    close_check(&c);
    return rc;
}

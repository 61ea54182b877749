/* pipeline.c - see pipeline.h. */
#include "train/pipeline.h"

#include <stdlib.h>
#include <string.h>

struct maker { struct pipe_list *l; int first, last; };

static void add(struct maker *m, enum pipe_op op, int64_t micro) { m->l->act[m->l->n++] = (struct pipe_act){ op, micro }; }

static void forward(struct maker *m, int64_t i)
{
    if (!m->first)
        add(m, PIPE_RECV_X, i);
    add(m, PIPE_FORWARD, i);
    if (!m->last)
        add(m, PIPE_SEND_X, i);
}

static void backward(struct maker *m, int64_t i)
{
    if (!m->last)
        add(m, PIPE_RECV_DX, i);
    add(m, PIPE_BACKWARD, i);
    if (!m->first)
        add(m, PIPE_SEND_DX, i);
}

int pipe_make(struct pipe_list *l, enum pipe_kind kind, int stages, int stage, int64_t micros, struct err *e)
{
    struct maker m = { l, stage == 0, stage == stages - 1 };
    int64_t ahead = kind == PIPE_GPIPE ? micros : stages - stage;     /* forwards before the first backward */
    ahead = ahead > micros ? micros : ahead;
    l->n = 0;
    l->in_flight = ahead;
    l->act = malloc(sizeof *l->act * (size_t)(6 * micros + 1));
    if (!l->act)
        return err_set(e, ERR_MEMORY, "no memory for a schedule of %lld micro-batches", (long long)micros);
    for (int64_t i = 0; i < ahead; i++)
        forward(&m, i);
    for (int64_t i = 0; i < micros; i++) {
        backward(&m, i);
        if (i + ahead < micros)
            forward(&m, i + ahead);
    }
    return 0;
}

void pipe_free(struct pipe_list *l)
{
    free(l->act);
    memset(l, 0, sizeof *l);
}

/* ---- the verifier: a clock a stage, a time of arrival a message ---- */
struct check {
    const struct pipe_list *stage;
    int stages;
    int64_t micros, *next;               /* [stages]: next action */
    int64_t *forwards, *backwards;       /* [stages]: done so far */
    double *clock, *busy;                /* [stages] */
    double *x_at, *dx_at;                /* [stages][micros]: when a stage's message arrives; < 0: not yet */
};

static int wrong(struct err *e, int s, const struct pipe_act *a, const char *what)
{
    return err_set(e, ERR_INTERNAL, "schedule: stage %d, micro-batch %lld: %s", s, (long long)a->micro, what);
}

/* 1: the action ran; 0: it has to wait; negative: it may not stand here. */
static int run_action(struct check *c, int s, const struct pipe_act *a, struct err *e)
{
    double *at = a->op == PIPE_RECV_X ? &c->x_at[s * c->micros + a->micro] : &c->dx_at[s * c->micros + a->micro];
    switch (a->op) {
    case PIPE_RECV_X:
    case PIPE_RECV_DX:
        if (*at < 0)
            return 0;
        c->clock[s] = c->clock[s] > *at ? c->clock[s] : *at;
        return 1;
    case PIPE_SEND_X: c->x_at[(s + 1) * c->micros + a->micro] = c->clock[s]; return 1;
    case PIPE_SEND_DX: c->dx_at[(s - 1) * c->micros + a->micro] = c->clock[s]; return 1;
    case PIPE_FORWARD:
        if (a->micro != c->forwards[s]++)
            return wrong(e, s, a, "its forward is out of order");
        if (c->forwards[s] - c->backwards[s] > c->stage[s].in_flight)
            return wrong(e, s, a, "more micro-batches are kept than the list says");
        c->clock[s] += 1;
        c->busy[s] += 1;
        return 1;
    case PIPE_BACKWARD:
        if (a->micro != c->backwards[s]++ || c->backwards[s] > c->forwards[s])
            return wrong(e, s, a, "its backward is out of order");
        c->clock[s] += 2;
        c->busy[s] += 2;
        return 1;
    }
    return wrong(e, s, a, "an unknown action");
}

static void draw_stage(FILE *f, int s, const struct pipe_list *l)
{
    fprintf(f, "stage %-3d ", s);
    for (int64_t i = 0; i < l->n && i < 160; i++)
        if (l->act[i].op == PIPE_FORWARD || l->act[i].op == PIPE_BACKWARD)
            fprintf(f, " %c%lld", l->act[i].op == PIPE_FORWARD ? 'F' : 'B', (long long)l->act[i].micro);
    fprintf(f, "%s\n", l->n > 160 ? " ..." : "");
}

static int run_all(struct check *c, struct err *e)
{
    for (int left = c->stages, moved = 1; left > 0;) {
        if (!moved)
            return err_set(e, ERR_INTERNAL, "schedule: every stage waits for another");
        moved = 0;
        left = 0;
        for (int s = 0; s < c->stages; s++) {
            int rc = 1;
            while (c->next[s] < c->stage[s].n && (rc = run_action(c, s, &c->stage[s].act[c->next[s]], e)) > 0) {
                c->next[s]++;
                moved = 1;
            }
            if (rc < 0)
                return rc;
            left += c->next[s] < c->stage[s].n;
        }
    }
    for (int s = 0; s < c->stages; s++)
        if (c->forwards[s] != c->micros || c->backwards[s] != c->micros)
            return err_set(e, ERR_INTERNAL, "schedule: stage %d does not run all %lld micro-batches", s, (long long)c->micros);
    return 0;
}

int pipe_verify(const struct pipe_list *stage, int stages, int64_t micros, struct pipe_report *r, FILE *draw, struct err *e)
{
    size_t n = (size_t)stages, cells = n * (size_t)micros;
    struct check c = { stage, stages, micros, calloc(n, 8), calloc(n, 8), calloc(n, 8), calloc(n, 8), calloc(n, 8), malloc(cells * 8), malloc(cells * 8) };
    double end = 0;
    int rc = 0;
    if (!c.next || !c.forwards || !c.backwards || !c.clock || !c.busy || !c.x_at || !c.dx_at) {
        rc = err_set(e, ERR_MEMORY, "no memory to check a schedule of %d stages", stages);
        goto out;
    }
    for (size_t i = 0; i < cells; i++)
        c.x_at[i] = c.dx_at[i] = -1;
    TRY(run_all(&c, e));
    *r = (struct pipe_report){ 0 };
    for (int s = 0; s < stages; s++) {
        end = c.clock[s] > end ? c.clock[s] : end;
        r->in_flight = stage[s].in_flight > r->in_flight ? stage[s].in_flight : r->in_flight;
        if (draw)
            draw_stage(draw, s, &stage[s]);
    }
    r->bubble = 1 - c.busy[0] / end;
out:
    free(c.next);
    free(c.forwards);
    free(c.backwards);
    free(c.clock);
    free(c.busy);
    free(c.x_at);
    free(c.dx_at);
    return rc;
}

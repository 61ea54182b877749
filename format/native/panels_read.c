/* panels_read.c - boxes of tensors out of panels. A request is cut into rectangles of full rows; of each
 * panel that a rectangle meets the lines of its part of the contraction are read at once. */
#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "format/native/panel_bytes.h"
#include "format/native/panels_table.h"

/* The request in terms of the two dims of a run: element (o, i) of the tensor goes to number
 * base + o * step[0] + i * step[1] of the request's box. */
struct place {
    int64_t base, step[2]; /* of outputs, of the contraction */
    int64_t begin[2], end[2];
};

/* 0: the run has nothing of the box. */
static int place_run(const struct ckpt_run *r, const struct box *b, struct place *p)
{
    int64_t step = 1;
    struct box common;
    if (box_intersect(b, &r->box, &common) == 0)
        return 0;
    p->base = 0;
    for (int d = b->n_dims - 1; d >= 0; d--) {
        int k = d == r->out_dim ? 0 : d == r->in_dim ? 1 : -1;
        p->base += ((k < 0 ? common.start[d] : 0) - b->start[d]) * step;
        if (k >= 0) {
            p->step[k] = step;
            p->begin[k] = common.start[d];
            p->end[k] = common.start[d] + common.extent[d];
        }
        step *= b->extent[d];
    }
    return 1;
}

/* Reads the rectangle of p, of which every element is asked for, panel by panel. */
static int read_rectangle(struct ckpt *c, const struct ckpt_run *r, const struct place *p,
                          const struct panels_request *q, char *buf, int64_t *got, struct err *e)
{
    const struct ckpt_pack *k = &c->panels->pack[r->pack];
    const int64_t first = r->box.start[r->out_dim], i0 = p->begin[1] - r->box.start[r->in_dim],
                  i1 = p->end[1] - r->box.start[r->in_dim];
    const struct panel_span span = panel_span_of(k, i0, i1);
    for (int64_t o = p->begin[0] - first, next; o < p->end[0] - first; o = next) {
        int64_t panel = o / PANEL_OUTPUTS, in = o % PANEL_OUTPUTS;
        next = (panel + 1) * PANEL_OUTPUTS < p->end[0] - first ? (panel + 1) * PANEL_OUTPUTS
                                                               : p->end[0] - first;
        int rc = fmt_read_bytes(c, k->file, buf, r->offset + panel * k->stride + span.begin,
                                span.end - span.begin, e);
        if (rc < 0)
            return rc;
        int64_t at = p->base + (first + o) * p->step[0] + p->begin[1] * p->step[1] - q->lo;
        int64_t size = stored_bytes(k->dtype, 1);
        panel_decode(k, buf, i0, i1, (int)in, (int)(next - o),
                     (struct panel_view){ q->dst + at * size, p->step[0] * size, p->step[1] * size });
        *got += (next - o) * (i1 - i0);
    }
    return 0;
}

static int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : 0; }

/* Narrows row `row` of the slow dim to what lies in [lo, hi). */
static void clip_row(struct place *p, int slow, int64_t row, int64_t lo, int64_t hi)
{
    int fast = !slow;
    int64_t base = p->base + row * p->step[slow], begin = ceil_div(lo - base, p->step[fast]),
            end = ceil_div(hi - base, p->step[fast]);
    p->begin[slow] = row;
    p->end[slow] = row + 1;
    p->begin[fast] = begin > p->begin[fast] ? begin : p->begin[fast];
    p->end[fast] = end < p->end[fast] ? end : p->end[fast];
}

/* Rows that the range cuts are rectangles of their own: the first, those between, the last. */
static int cut_rectangles(struct place p, const struct panels_request *q, struct place out[3])
{
    int slow = p.step[0] < p.step[1], fast = !slow, n = 0;
    int64_t first = p.base + p.begin[fast] * p.step[fast], last = p.base + (p.end[fast] - 1) * p.step[fast];
    int64_t begin = ceil_div(q->lo - last, p.step[slow]), end = ceil_div(q->hi - first, p.step[slow]);
    p.begin[slow] = begin > p.begin[slow] ? begin : p.begin[slow];
    p.end[slow] = end < p.end[slow] ? end : p.end[slow];
    if (p.begin[slow] >= p.end[slow])
        return 0;

    struct place head = p, middle = p, tail = p;
    clip_row(&head, slow, p.begin[slow], q->lo, q->hi);
    clip_row(&tail, slow, p.end[slow] - 1, q->lo, q->hi);
    int cut_head = head.begin[fast] > p.begin[fast] || head.end[fast] < p.end[fast];
    int cut_tail = p.end[slow] - p.begin[slow] > 1 && tail.end[fast] < p.end[fast];
    middle.begin[slow] += cut_head;
    middle.end[slow] -= cut_tail;
    if (cut_head && head.begin[fast] < head.end[fast])
        out[n++] = head;
    if (middle.begin[slow] < middle.end[slow])
        out[n++] = middle;
    if (cut_tail && tail.begin[fast] < tail.end[fast])
        out[n++] = tail;
    return n;
}

int panels_read(struct ckpt *c, const struct ckpt_run *run, const struct panels_request *q, int64_t *got,
                struct err *e)
{
    struct place p, part[3];
    int n = place_run(run, q->box, &p) ? cut_rectangles(p, q, part) : 0, rc = 0;
    if (!n)
        return 0;
    char *buf = malloc((size_t)c->panels->pack[run->pack].stride);
    if (!buf)
        return err_set(e, ERR_MEMORY, "%s: no memory for a panel of %lld bytes", c->path,
                       (long long)c->panels->pack[run->pack].stride);
    for (int i = 0; i < n && rc >= 0; i++)
        rc = read_rectangle(c, run, &part[i], q, buf, got, e);
    free(buf);
    return rc < 0 ? rc : 0;
}

/* ---- copies ---- */

/* Adds the digest of what a run holds. */
static int digest_run(struct ckpt *c, const struct ckpt_run *r, struct ckpt_digest *d, char *data,
                      struct err *e)
{
    const struct ckpt_tensor *t = &c->tensor[r->tensor];
    int64_t n = box_count(&r->box), step = stored_elements(t->dtype, FMT_BLOCK);
    for (int64_t lo = 0, hi, got = 0; lo < n; lo = hi) {
        struct panels_request q = { &r->box, lo, hi = n - lo < step ? n : lo + step, data };
        int rc = panels_read(c, r, &q, &got, e);
        if (rc < 0)
            return rc;
        ckpt_digest_add(d, t->dtype, t->n_dims, t->shape, &r->box, lo, hi, data);
    }
    return 0;
}

int ckpt_check_copies(struct ckpt *c, struct err *e)
{
    c = fmt_bottom(c);
    char *data = malloc((size_t)FMT_BLOCK);
    int rc = data ? 0 : err_set(e, ERR_MEMORY, "%s: no memory to verify", c->path);
    for (int t = 0; c->panels && t < c->n_tensors && rc >= 0; t++) {
        struct ckpt_digest d = { 0, 0 };
        int n = 0;
        for (int64_t i = c->panels->first_of[t]; i < c->panels->first_of[t + 1] && rc >= 0; i++)
            if (c->panels->of[i]->is_copy && ++n)
                rc = digest_run(c, c->panels->of[i], &d, data, e);
        if (rc >= 0 && n && (d.lo != c->tensor[t].digest.lo || d.hi != c->tensor[t].digest.hi))
            rc =
                err_set(e, ERR_INTEGRITY,
                        "%s: the panels of %s hold another tensor than its rows: restore it from a good copy",
                        c->path, c->tensor[t].name);
    }
    free(data);
    return rc < 0 ? rc : 0;
}

/* ---- for programs that map the file ---- */

int ckpt_n_packs(const struct ckpt *c) { return c->view || !c->panels ? 0 : c->panels->n_packs; }

const struct ckpt_pack *ckpt_pack(const struct ckpt *c, int i) { return &c->panels->pack[i]; }

int ckpt_runs_of(const struct ckpt *c, int tensor, const struct ckpt_run *const **out)
{
    *out = NULL;
    if (!ckpt_n_packs(c))
        return 0;
    *out = c->panels->of + c->panels->first_of[tensor];
    return (int)(c->panels->first_of[tensor + 1] - c->panels->first_of[tensor]);
}

const char *ckpt_file_path(const struct ckpt *c, int file) { return fmt_real(&fmt_bottom(c)->file[file]); }
int64_t ckpt_file_bytes(const struct ckpt *c, int file) { return fmt_bottom(c)->file[file].bytes; }
int64_t ckpt_n_blocks(const struct ckpt *c) { return ckpt_proven_count(c); }

int ckpt_check_block(struct ckpt *c, int64_t block, struct err *e)
{
    c = fmt_bottom(c);
    int f = 0;
    for (;; f++) {
        int64_t n = c->file[f].block ? (c->file[f].bytes + FMT_BLOCK - 1) / FMT_BLOCK : 0;
        if (block < n)
            break;
        block -= n;
    }
    char *data = malloc((size_t)FMT_BLOCK);
    int rc = data ? fmt_read_block(c, f, block, data, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for a block", c->file[f].path);
    free(data);
    return rc < 0 ? rc : 0;
}

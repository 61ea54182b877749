/* layout_plan.c - see layout_plan.h. Volumes are those of a ring, as Rajbhandari et al. 2020 section 7 and
 * Shoeybi et al. 2019 section 3 count them: all-reduce 2 (N-1)/N elements a rank, reduce-scatter and
 * all-gather (N-1)/N. The tree-ordered sums send as much. */
#include "train/layout_plan.h"

#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "train/checkpoint/pieces.h"
#include "train/eval.h"
#include "train/lora/lora.h"
#include "train/lora/lora_save.h"
#include "train/log/runlog.h"

/* A rank of a pipeline stage: its model, and what of it is trained. */
struct shaped {
    struct model m;
    struct adapter adapter; /* zeroed where the model is trained */
    const struct model *trained;
};

static int shape_stage(struct shaped *x, const struct layout_spec *a, int stage, struct err *e)
{
    *x = (struct shaped){ .trained = a->n_adapted ? &x->adapter.m : &x->m };
    int rc = model_shape(&x->m, &a->cfg, &a->layout, (struct rank_at){ .pp = stage }, a->dt, 0, e);
    if (rc < 0)
        return rc;
    x->m.expert_leaf = a->expert_leaf;
    x->m.cp_grain = a->cp_grain;
    return a->n_adapted ? adapter_open(&x->adapter, &x->m, a->adapted, a->n_adapted, e) : 0;
}

static void unshape(struct shaped *x)
{
    adapter_close(&x->adapter);
    model_close(&x->m);
}

struct pipe_shape layout_plan_schedule(const struct batch_plan *b, const struct layout *l,
                                       enum pipe_kind kind)
{
    return (struct pipe_shape){ kind, l->pp, layout_chunks(l), b->supers * (b->local / b->micro) };
}

int layout_plan_pipeline(struct pipe_report *r, const struct pipe_shape *s, FILE *draw, struct err *e)
{
    struct pipe_list *l = calloc((size_t)s->ranks, sizeof *l);
    int rc = l ? pipe_check(s, e) : err_set(e, ERR_MEMORY, "no memory for %d stages", s->ranks);
    for (int i = 0; rc >= 0 && i < s->ranks; i++)
        rc = pipe_make(&l[i], s, i, e);
    if (rc >= 0)
        rc = pipe_verify(l, s, r, s->ranks > 1 ? draw : NULL, e);
    for (int i = 0; l && i < s->ranks; i++)
        pipe_free(&l[i]);
    free(l);
    return rc;
}

int layout_plan_sharers(const struct layout *l, int ranks_a_machine)
{
    int all = layout_slices(l), n = ranks_a_machine / l->tp, machines = n ? all / n : 1;
    if (!ranks_a_machine || n >= all)
        return all;
    return n < 2 || ranks_a_machine % l->tp || all % n || (machines & (machines - 1)) ? 1 : n;
}

static double ring_share(int n) { return (double)(n - 1) / n; }

/* Sums of activations over tp, again where forward is recomputed. With sp they are reduce-scatters, and as
 * many rows are gathered for products and weight gradients; the gradients of norms are summed too. */
static void plan_tp(struct layout_plan *p, const struct layout_spec *a, const struct model *m, double rows)
{
    double ring = ring_share(a->layout.tp), el = (double)dtype_size(a->dt);
    double hidden = ring * rows * (double)m->hidden;
    double sums = 0, whole = 0, gathers = 0, norms = 0;
    double leaves = m->cp_grain > 1 ? m->cp_grain : 1;

    for (int u = 0; u < m->table.n_units; u++) {
        struct unit_traffic t = model_traffic(m, u);
        int is_layer = u > 0 && u <= m->n_layers;
        double forwards = is_layer && a->recompute == RECOMPUTE_FULL ? 2 : 1;
        if ((u == 0 && !m->has_embed) || (u > m->n_layers && !m->has_head))
            continue;
        sums += forwards * t.sums_forward + t.sums_backward;
        whole += forwards * t.whole_forward + t.whole_backward;
        whole += (double)t.row_floats / (double)m->hidden;
        gathers += forwards * t.gathers_forward + t.gathers_backward;
        gathers += a->pipeline == PIPE_ZERO_BUBBLE ? t.gathers_deferred : 0;
        norms += ring * rows / (double)a->seq_len * leaves * (double)t.norm_floats;
    }
    if (m->shares == 1) {
        p->tp_reduce = 4 * 2 * hidden * (sums + whole);
        p->tp_gather = 0;
        return;
    }
    p->tp_reduce = 4 * (hidden * (sums + 2 * whole) + 2 * norms);
    p->tp_gather = el * hidden * gathers;
}

/* Rows of experts: there and back, with their weights, forward and backward. */
static double plan_dispatch(const struct layout_spec *a, const struct model *m, double rows)
{
    int ep = a->layout.ep;
    double row = 2 * (double)m->hidden * (double)dtype_size(a->dt) + sizeof(float), sum = 0;

    for (int u = 1; u <= m->n_layers; u++) {
        struct unit_traffic t = model_traffic(m, u);
        double passes = a->recompute == RECOMPUTE_FULL ? 3 : 2;
        sum += m->local.unit[u].n ? passes * t.dispatched * rows / a->layout.tp * row : 0;
    }
    return ep > 1 ? sum * (ep - 1) / ep : 0;
}

/* Keys and values of every layer come together, again where forward is recomputed; their gradients in fp32
 * are summed. */
static void plan_context(struct layout_plan *p, const struct layout_spec *a, const struct model *m,
                         double rows)
{
    double page = (double)model_page_bytes(m), others = a->layout.cp - 1;
    double forwards = a->recompute == RECOMPUTE_FULL ? 2 : 1;

    for (int u = 1; u <= m->n_layers; u++) {
        if (!m->local.unit[u].n)
            continue;
        p->cp_gather += forwards * others * rows / ATTN_PAGE * page;
        p->cp_reduce += 4 * others * rows * (double)model_traffic(m, u).key_floats;
    }
}

/* Elements of the trained vectors that a ring passes on. */
static double ring_elements(const struct model *m)
{
    double flat = 0;
    for (int v = 0; v < m->local.n_trained; v++)
        flat += (double)m->local.unit[v].flat * ring_share(m->local.unit[v].n_slices);
    return flat;
}

static void plan_traffic(struct layout_plan *p, const struct layout_spec *a, const struct shaped *x)
{
    const struct batch_plan *b = &p->batch;
    const struct model *m = &x->m;
    double el = (double)dtype_size(a->dt), flat = ring_elements(x->trained);
    double rows = (double)(b->supers * b->local * a->seq_len / a->layout.cp);
    double micros = (double)(b->supers * (b->local / b->micro));
    int stage = a->layout.zero, by_step = stage >= 2 || b->supers > 1;

    p->dp_reduce = (stage == 0 ? 2 : 1) * 4 * flat * (by_step ? (double)b->supers : 1);
    p->dp_gather = stage == 0 ? 0 : stage < 3 ? el * flat : 2 * el * flat * micros;
    if (a->n_adapted && lora_base_stage(&a->layout, a->dt, a->sharers) == 3)
        p->dp_gather += 2 * el * ring_elements(m) * micros;
    plan_tp(p, a, m, rows);
    p->ep_exchange = plan_dispatch(a, m, rows);
    plan_context(p, a, m, rows);
    p->pp_send = a->layout.pp > 1 ? 2 * el * rows * (double)m->hidden / m->shares * m->n_chunks : 0;
}

/* Copies of messages on their way to the neighbours: two at a time, in each direction. */
static double messages(const struct layout_spec *a, int stage, double bytes)
{
    int ring = layout_chunks(&a->layout) > 1, up = ring || stage < a->layout.pp - 1, down = ring || stage > 0;
    return a->layout.pp > 1 ? 2 * bytes * (up + down) : 0;
}

int layout_plan_page_sharers(const struct layout_spec *a)
{
    return a->sharers < a->layout.cp ? a->sharers : a->layout.cp;
}

static struct work_shape work_of(const struct layout_spec *a, const struct batch_plan *b,
                                 const struct shaped *x)
{
    return (struct work_shape){ .n_seq = (int)b->micro,
                                .seq_len = a->seq_len,
                                .documents = a->documents,
                                .recompute = a->recompute,
                                .expert_buffer = a->expert_buffer,
                                .leaves = b->local,
                                .sharers = layout_plan_page_sharers(a),
                                .spills = a->offload_activations,
                                .adapter = a->n_adapted ? (struct adapter *)(uintptr_t)&x->adapter : NULL };
}

/* Activations, and what deferred weight gradients keep, for a rank's schedule. files: of
 * --offload-activations. */
static int plan_activations(const struct batch_plan *b, const struct layout_spec *a, const struct shaped *x,
                            int stage, double *bytes, double *files, struct err *e)
{
    const struct model *m = &x->m;
    int64_t own = b->micro * a->seq_len / a->layout.cp / m->shares;
    struct inputs_shape inputs = { .units = (int)m->n_layers + 2,
                                   .bytes = (size_t)(own * m->hidden) * dtype_size(m->dt) };
    struct work_shape work = work_of(a, b, x);
    struct pipe_shape shape = layout_plan_schedule(b, &a->layout, a->pipeline);
    struct pipe_list list;
    int rc;
    TRY(train_work_check(m, &work, e));
    TRY(pipe_make(&list, &shape, stage, e));
    for (int c = 0; c < shape.chunks; c++) {
        work.deferred_weights = list.deferred[c] > 0;
        inputs.works += (int)list.in_flight[c];
        *bytes += (double)list.in_flight[c] * (double)train_work_measure(m, c, &work) +
                  (double)list.deferred[c] * (double)deferred_grads_measure(m, c, &work);
    }
    pipe_free(&list);
    *files = a->offload_activations ? inputs_file_bytes(&inputs) : 0;
    *bytes += a->offload_activations ? inputs_buffer_bytes(&inputs) : 0;
out:
    return rc;
}

/* With cp: what activations have of keys and values of whole sequences. */
static int plan_keys(struct layout_plan *p, const struct layout_spec *a, const struct shaped *x, int stage,
                     struct err *e)
{
    struct work_shape work = work_of(a, &p->batch, x);
    struct pipe_shape shape = layout_plan_schedule(&p->batch, &a->layout, a->pipeline);
    struct pipe_list list;
    int rc = pipe_make(&list, &shape, stage, e);
    if (rc < 0)
        return rc;
    p->keys = 0;
    for (int c = 0; c < shape.chunks; c++)
        p->keys += (double)list.in_flight[c] * (double)train_pages_measure(&x->m, c, &work);
    pipe_free(&list);
    return 0;
}

/* The groups of the mesh that the first rank of all opens. */
static double group_bytes(const struct layout *l)
{
    const int fold = layout_fold(l), size[] = {
        l->tp, l->dp, l->pp, l->ep, l->ep > 1 ? l->dp / fold : 1, l->cp, l->cp > 1 ? layout_slices(l) : 1
    };
    double sum = 0;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        sum += (double)comm_group_bytes(size[i]);
    return sum;
}

static double comm_bytes(const struct layout_spec *a, const struct model *m, int stage, int64_t rows)
{
    double el = (double)dtype_size(a->dt);
    double bytes = 4.0 * (double)(rows > 64 ? rows : 64) * (double)(m->hidden + 4);
    bytes += messages(a, stage, (double)(rows * m->hidden) / m->shares * el);
    if (m->shares > 1) /* gathered rows, once a machine */
        bytes += el * (double)rows * (double)m->hidden / m->shares;
    bytes += group_bytes(&a->layout);
    return bytes + (layout_ranks(&a->layout) > 1 ? (double)COMM_STAGE : 0);
}

static double work_bytes(const struct layout_spec *a, const struct shaped *x, const struct batch_plan *b)
{
    const struct model *m = &x->m;
    struct work_shape work = work_of(a, b, x);
    double cos_sin = 4.0 * (double)(sample_positions(a->seq_len, &a->cfg) * m->table.cfg.head_dim);
    return (m->learned_positions ? 0 : cos_sin) + (double)train_scratch_measure(m, &work, a->threads) +
           (double)runlog_peak_bytes(a->dt);
}

static struct offload_what offload_of(const struct layout_spec *a, const struct batch_plan *b)
{
    return (struct offload_what){ .kind = a->offload,
                                  .grad_levels = a->offload_grads ? zero_shard_levels(b, a->layout.zero) : 0,
                                  .supers = b->supers,
                                  .weights = a->offload_params };
}

/* Bytes of a rank of a stage, by category; *files: of --offload-activations. m: shaped for the stage. */
static int stage_bytes(const struct batch_plan *b, const struct layout_spec *a, const struct shaped *x,
                       int stage, double bytes[MEM_CATS], double *files, struct err *e)
{
    const struct model *m = &x->m;
    int64_t rows = b->micro * a->seq_len / a->layout.cp;
    struct zero_options zero = { .stage = a->layout.zero,
                                 .overlap = a->overlap,
                                 .elsewhere = a->offload != OFFLOAD_NONE,
                                 .no_grads = a->offload_grads,
                                 .no_weights = a->offload_params };
    struct offload_what what = offload_of(a, b);
    struct offload_bytes offload;
    int rc;
    memset(bytes, 0, sizeof(double) * MEM_CATS);
    TRY(plan_activations(b, a, x, stage, &bytes[MEM_ACTS], files, e));
    zero_measure(x->trained, a->sharers, zero, b, bytes);
    offload_measure(x->trained, a->layout.zero, &what, &offload);
    bytes[MEM_OPTIM] += offload.buffers;
    bytes[MEM_GRADS] += offload.grads;
    bytes[MEM_COMM] = comm_bytes(a, m, stage, rows);
    bytes[MEM_WORK] = work_bytes(a, x, b);
    bytes[MEM_SAVE] = a->save_async ? pieces_measure(x->trained, 0, a->layout.zero) : 0;
    if (a->publish)
        bytes[MEM_SAVE] += 2 * pieces_measure_weights(x->trained, a->rank, a->layout.zero);
    if (a->n_adapted) {
        bytes[MEM_SAVE] += lora_save_measure(x->trained);
        zero = (struct zero_options){ .stage = lora_base_stage(&a->layout, a->dt, a->sharers),
                                      .overlap = a->overlap,
                                      .frozen = 1 };
        zero_measure(m, a->sharers, zero, b, bytes);
        bytes[MEM_WORK] += (double)adapter_room_measure(m, rows > 64 ? rows : 64, x->adapter.rank);
    }
out:
    return rc;
}

static double sum_of(const double bytes[MEM_CATS])
{
    double total = 0;
    for (int c = 0; c < MEM_CATS; c++)
        total += bytes[c];
    return total;
}

static int plan_stage(struct layout_plan *p, const struct layout_spec *a, int stage, struct err *e)
{
    struct shaped x;
    double bytes[MEM_CATS], total, files;
    int rc;
    TRY(shape_stage(&x, a, stage, e));
    TRY(stage_bytes(&p->batch, a, &x, stage, bytes, &files, e));

    total = sum_of(bytes);
    if (total > p->total_bytes) {
        memcpy(p->bytes, bytes, sizeof bytes);
        p->total_bytes = total;
        TRY(plan_keys(p, a, &x, stage, e));
    }
    struct offload_what what = offload_of(a, &p->batch);
    struct offload_bytes offload;
    offload_measure(x.trained, a->layout.zero, &what, &offload);
    offload.files += files;
    if (offload.files + offload.host > p->offload.files + p->offload.host)
        p->offload = offload, p->offload_elements = (double)x.trained->local.flat_total;
    if (stage == 0)
        plan_traffic(p, a, &x);
    struct work_shape work = work_of(a, &p->batch, &x);
    experts_plan_add(&p->experts, &x.m, &work);
out:
    unshape(&x);
    return rc;
}

static int plan_batch(struct batch_plan *b, const struct layout_spec *a, struct err *e)
{
    int rc = layout_check_leaves(&a->layout, a->cp_grain, e);
    if (rc >= 0)
        rc = batch_plan_layout(b, a->rows, a->micro, &a->layout, e);
    return rc < 0 ? rc : batch_check_leaf(b, &a->layout, a->expert_leaf, e);
}

int layout_plan_stage(const struct layout_spec *a, int stage, double bytes[MEM_CATS], struct err *e)
{
    struct batch_plan b;
    struct shaped x = { 0 };
    struct pipe_shape shape;
    double files;
    int rc;
    TRY(plan_batch(&b, a, e));
    shape = layout_plan_schedule(&b, &a->layout, a->pipeline);
    TRY(pipe_check(&shape, e));
    TRY(shape_stage(&x, a, stage, e));
    rc = stage_bytes(&b, a, &x, stage, bytes, &files, e);
out:
    unshape(&x);
    return rc;
}

int layout_plan_machine(const struct layout_spec *a, int ranks_a_machine, double rank_bytes, double *bytes,
                        struct err *e)
{
    const int ranks = layout_ranks(&a->layout), ranks_a_stage = ranks / a->layout.pp;
    double here = 0, one[MEM_CATS], total = 0;
    int rc = 0;
    *bytes = 0;
    for (int r = 0; r < ranks; r++) {
        if (r % ranks_a_stage == 0) {
            TRY(layout_plan_stage(a, r / ranks_a_stage, one, e));
            total = sum_of(one) + rank_bytes;
        }
        here = (r % ranks_a_machine ? here : 0) + total;
        *bytes = here > *bytes ? here : *bytes;
    }
out:
    return rc;
}

int layout_plan_make(struct layout_plan *p, const struct layout_spec *a, FILE *draw, struct err *e)
{
    int rc;
    memset(p, 0, sizeof *p);
    TRY(plan_batch(&p->batch, a, e));
    struct pipe_shape shape = layout_plan_schedule(&p->batch, &a->layout, a->pipeline);
    struct pipe_report pipe;
    TRY(layout_plan_pipeline(&pipe, &shape, draw, e));
    p->bubble = pipe.bubble;
    p->in_flight = pipe.in_flight;
    for (int s = 0; s < a->layout.pp; s++)
        TRY(plan_stage(p, a, s, e));
out:
    return rc;
}

#define LEAF_ROWS 64    /* fewer rows a leaf: weight gradients of experts take over 7 % longer (RESULTS.md) */
#define LEAF_MOST 8     /* sequences a leaf that are worth it */
#define EXPERT_ROWS 128 /* fewer rows a call: packing the experts' weights takes as long as the products */

/* Rows an expert gets where tokens are even, and what raises them where they are few. */
static void print_expert_rows(const struct layout_plan *p, const struct layout_spec *a, FILE *out)
{
    const struct model_config *c = &a->cfg;
    int leaf = a->expert_leaf > 1 ? a->expert_leaf : 1, better = leaf;
    int cuts = a->cp_grain > 1 ? a->cp_grain : 1;
    if (!c->n_experts)
        return;
    int64_t seqs = p->batch.micro * layout_fold(&a->layout);
    double of_sequence = (double)(a->seq_len * c->experts_per_token) / (double)c->n_experts;
    while (cuts == 1 && better < LEAF_MOST && better * of_sequence < LEAF_ROWS)
        better *= 2;

    fprintf(out, "expert rows  %.4g a micro-step, %.4g a leaf of weight gradients\n",
            (double)seqs * of_sequence, leaf * of_sequence / cuts);
    if (better > leaf)
        fprintf(out, "%-12s few rows a leaf: a new run is faster with --expert-leaf %d%s\n", "hint", better,
                seqs % better ? " and a larger --micro-batch" : "");
    if ((double)seqs * of_sequence < EXPERT_ROWS)
        fprintf(
            out,
            "%-12s fewer than %d rows a micro-step: use a larger --micro-batch, or more dp ranks in --ep\n",
            "hint", EXPERT_ROWS);
}

static double disk_rate(const struct layout_spec *a) { return a->disk_rate > 0 ? a->disk_rate : 1e9; }

double layout_plan_disk_s(const struct layout_plan *p, const struct layout_spec *a)
{
    double micros = (double)(p->batch.supers * (p->batch.local / p->batch.micro));
    return (p->offload.moved + micros * p->offload.fetched) / disk_rate(a);
}

/* The disk's time, and from how many tokens on the products of a micro-batch take as long: 6 flops a
 * token and element (Rajbhandari et al. 2021, section 4). A rank that has all of a state moves 24 bytes
 * an element: 4 F / BW. */
static void print_disk_time(const struct layout_plan *p, const struct layout_spec *a, FILE *out)
{
    double seconds = layout_plan_disk_s(p, a);
    char rate[32];
    log_bytes(rate, disk_rate(a));
    fprintf(out, "%-12s %.3g s a rank and step, at %s a second", "disk time", seconds, rate);
    if (a->flops > 0 && p->offload_elements > 0)
        fprintf(out, "; hidden from %.0f tokens a micro-batch on",
                seconds * a->flops / 6 / p->offload_elements);
    fputc('\n', out);
}

/* States outside the device's memory. */
static void print_offload(const struct layout_plan *p, const struct layout_spec *a, FILE *out)
{
    const struct offload_bytes *b = &p->offload;
    const struct {
        const char *name, *what;
        double bytes;
    } line[] = { { "host memory", "a rank, pinned", b->host },
                 { "files", "a rank, in the folder of --offload", b->files },
                 { "disk", "a rank and step, read and written", b->moved },
                 { "weights", "a rank and micro-batch, read", b->fetched } };
    char text[32];
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        log_bytes(text, line[i].bytes);
        if (line[i].bytes > 0)
            fprintf(out, "%-12s %s %s\n", line[i].name, text, line[i].what);
    }
    if (b->files > 0)
        print_disk_time(p, a, out);
}

void layout_plan_print(const struct layout_plan *p, const struct layout_spec *a, FILE *out)
{
    static const enum mem_cat shown[] = { MEM_PARAMS, MEM_GRADS, MEM_OPTIM, MEM_ACTS,
                                          MEM_COMM,   MEM_WORK,  MEM_SAVE };
    const struct {
        const char *name;
        double bytes;
    } sent[] = { { "dp sums", p->dp_reduce },    { "dp gathers", p->dp_gather },
                 { "tp sums", p->tp_reduce },    { "tp gathers", p->tp_gather },
                 { "pp messages", p->pp_send },  { "ep exchange", p->ep_exchange },
                 { "cp gathers", p->cp_gather }, { "cp sums", p->cp_reduce } };
    char text[32], ep[24] = "", cp[24] = "";
    if (a->layout.ep > 1)
        snprintf(ep, sizeof ep, ", ep %d", a->layout.ep);
    if (a->layout.cp > 1)
        snprintf(cp, sizeof cp, ", cp %d", a->layout.cp);
    fprintf(out, "layout       tp %d%s, pp %d%s, dp %d%s, zero %d: %d ranks\n", a->layout.tp,
            a->layout.sp ? " with sp" : "", a->layout.pp, cp, a->layout.dp, ep, a->layout.zero,
            layout_ranks(&a->layout));
    fprintf(
        out,
        "batch        %lld sequences of %lld tokens; a rank: %lld micro-batches of %lld, %lld kept at once\n",
        (long long)p->batch.rows, (long long)a->seq_len,
        (long long)(p->batch.supers * (p->batch.local / p->batch.micro)), (long long)p->batch.micro,
        (long long)p->in_flight);
    print_expert_rows(p, a, out);

    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        if (shown[i] == MEM_SAVE && !a->save_async && !a->publish)
            continue;
        log_bytes(text, p->bytes[shown[i]]);
        fprintf(out, "%-12s %s a rank\n", mem_cat_name(shown[i]), text);
    }
    log_bytes(text, p->keys);
    if (a->layout.cp > 1)
        fprintf(out, "%-12s %s of acts: of all ranks of cp, %s\n", "keys, values", text,
                layout_plan_page_sharers(a) > 1 ? "its share of the machine's" : "its own copy");

    log_bytes(text, p->total_bytes);
    fprintf(out, "%-12s %s a rank\n", "memory", text);

    for (size_t i = 0; i < sizeof sent / sizeof sent[0]; i++) {
        if ((!strcmp(sent[i].name, "tp gathers") && !a->layout.sp) ||
            (!strcmp(sent[i].name, "ep exchange") && a->layout.ep == 1) ||
            (!strncmp(sent[i].name, "cp ", 3) && a->layout.cp == 1))
            continue;
        log_bytes(text, sent[i].bytes);
        fprintf(out, "%-12s %s a rank and step\n", sent[i].name, text);
    }
    print_offload(p, a, out);
    experts_plan_print(&p->experts, out);
    fprintf(out, "bubble       %.4g\n", p->bubble);
    if (!p->batch.in_tree)
        fprintf(out, "bits         this layout's own: dp %d cuts the tree of %lld sequences elsewhere\n",
                a->layout.dp, (long long)p->batch.rows);
}

/* work.c - see work.h. */
#include "train/work.h"

#include <stdlib.h>
#include <string.h>
#include "base/alter.h"
#include "train/checkpoint/restore.h"
#include "train/eval.h"
#include "train/layout_plan.h"

/* ---- data ---- */
static struct data_chats work_chats(const struct train_opts *o)
{
    return (struct data_chats){ .template = o->chat_template, .turns = (enum chat_turns)o->chat_turns };
}

int work_open_data(struct work *w, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    struct data_options training = {
        .files = &o->data,
        .tokenizer = o->tokenizer,
        .order = o->data_order,
        .mix = o->data_mix,
        .seq_len = o->seq_len,
        .vocab = w->run->cfg.vocab,
        .seed = (uint64_t)o->seed,
        .weights = &o->loss_weights,
        .chats = work_chats(o),
        .documents = (int)o->documents,
    };
    struct data_options held_out = {
        .files = &o->eval_data,
        .tokenizer = o->tokenizer,
        .order = "stride:1",
        .seq_len = o->seq_len,
        .vocab = w->run->cfg.vocab,
        .chats = work_chats(o),
    };

    int rc = 0;
    if (!o->eval_only && o->data.n)
        TRY(data_open(&w->data, &training, e));
    if (w->data && o->documents && !data_knows_documents(w->data)) {
        rc = err_set(e, ERR_USAGE,
                     "--documents: no --data file says where documents end: make one with ptok prepare");
        goto out;
    }
    if (o->eval_data.n)
        TRY(data_open(&w->eval, &held_out, e));
out:
    return rc;
}

int work_open_tokenizer(struct work *w, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    if (!o->sample_every || !ranks_is_first(w->ranks))
        return 0;
    return tokenizer_open_named(&w->tokenizer, o->tokenizer, e);
}

/* ---- model, schedule and activations ---- */
/* --offload-activations. */
static int open_inputs(struct work *w, int n_chunks, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    const struct model *m = &w->model;
    int64_t own = w->slot_seqs * work_rows(w) / m->shares;
    struct inputs_shape s = { .units = (int)m->n_layers + 2,
                              .bytes = (size_t)(own * m->hidden) * dtype_size(m->dt) };
    if (!o->offload_activations || o->eval_only)
        return 0;
    for (int c = 0; c < n_chunks; c++)
        s.works += (int)w->schedule.in_flight[c];
    return inputs_open(&w->inputs, m->dev, &s, o->offload, o->out, world_rank(w->ranks->world), e);
}

/* As many slots as the schedule keeps micro-batches at once. */
static int open_slots(struct work *w, int n_chunks, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    struct work_shape shape = {
        .n_seq = (int)w->slot_seqs,
        .seq_len = o->seq_len,
        .documents = o->eval_only ? 1 : (int)o->documents,
        .recompute = (enum recompute)o->recompute,
        .expert_buffer = o->expert_buffer,
        .leaves = w->plan.local,
        .adapter = w->run->lora.n ? &w->adapter : NULL,
    };
    int rc;

    TRY(train_work_check(&w->model, &shape, e));
    TRY(open_inputs(w, n_chunks, e));
    shape.spills = w->inputs != NULL;
    shape.inputs = w->inputs ? inputs_store(w->inputs) : NULL;
    for (int c = 0; c < n_chunks; c++) {
        w->first_slot[c] = w->n_slots;
        shape.deferred_weights = w->schedule.deferred[c] > 0;
        for (int64_t i = 0; i < w->schedule.in_flight[c]; i++, w->n_slots++) {
            shape.number = (int)w->n_slots;
            TRY(train_work_open(&w->slot[w->n_slots], &w->model, c, &shape, e));
        }
        w->first_deferred[c] = w->n_deferred;
        for (int64_t i = 0; i < w->schedule.deferred[c]; i++, w->n_deferred++)
            TRY(deferred_grads_open(&w->deferred[w->n_deferred], &w->model, c, &shape, e));
    }
out:
    return rc;
}

static int open_buffers(struct work *w, int n_chunks, struct err *e)
{
    int64_t T = w->run->o.seq_len, seqs = w->slot_seqs, slots = 0;
    for (int c = 0; c < n_chunks; c++)
        slots += w->schedule.in_flight[c];
    size_t n = (size_t)slots, chunks = (size_t)n_chunks, tokens = (size_t)(seqs * T);

    w->first_slot = calloc(chunks, sizeof *w->first_slot);
    w->slot = calloc(n, sizeof *w->slot);
    w->first_deferred = calloc(chunks, sizeof *w->first_deferred);
    w->deferred = calloc(n, sizeof *w->deferred); /* never more deferred than in flight */
    w->ids = malloc(sizeof *w->ids * n * tokens);
    w->targets = malloc(sizeof *w->targets * n * tokens);
    w->logprobs = malloc(sizeof *w->logprobs * tokens);
    w->scale = malloc(sizeof *w->scale * tokens);
    w->n_documents = malloc(sizeof *w->n_documents * (size_t)seqs);
    w->document_begin = malloc(sizeof *w->document_begin * (size_t)(seqs * (w->run->o.documents + 1)));
    if ((w->data && data_weighted(w->data)) || (w->eval && data_weighted(w->eval))) {
        w->weight = malloc(sizeof *w->weight * n * tokens);
        w->window_weight = malloc(sizeof *w->window_weight * (size_t)T);
        if (!w->weight || !w->window_weight)
            return err_set(e, ERR_MEMORY, "no memory for the weights of a batch");
    }
    if (w->run->cp_grain > 1) {
        w->window = malloc(sizeof *w->window * 2 * (size_t)T);
        w->by_token = malloc(sizeof *w->by_token * (size_t)T);
    }
    int ok = ((w->window && w->by_token) || w->run->cp_grain == 1) && w->first_slot && w->slot &&
             w->first_deferred && w->deferred && w->ids && w->targets && w->logprobs && w->scale &&
             w->n_documents && w->document_begin;
    return ok ? 0 : err_set(e, ERR_MEMORY, "no memory for a batch");
}

static int open_schedule(struct work *w, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    const struct mesh *mesh = &w->ranks->mesh;
    enum pipe_kind kind = o->eval_only ? PIPE_NAIVE : (enum pipe_kind)o->pipeline;
    struct pipe_shape s = layout_plan_schedule(&w->plan, &w->ranks->layout, kind);
    int rc;
    TRY(pipe_check(&s, e));
    TRY(pipe_make(&w->schedule, &s, mesh->at[AXIS_PP], e));
    TRY(comm_split(&w->pp_back, mesh->axis[AXIS_PP], 0, e));
    TRY(open_buffers(w, s.chunks, e));
    rc = open_slots(w, s.chunks, e);
out:
    return rc;
}

/* Where ranks share experts: what the log says of a step. */
static int open_rounds(struct work *w, struct err *e)
{
    if (w->ranks->layout.ep == 1 || w->run->o.eval_only)
        return 0;
    w->rounds = calloc((size_t)w->model.n_layers, sizeof *w->rounds);
    return w->rounds ? 0 : err_set(e, ERR_MEMORY, "no memory for the log");
}

static int open_model(struct work *w, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    const struct model_config *cfg = &w->run->cfg;
    const struct ranks *r = w->ranks;
    int64_t rows = w->slot_seqs * work_rows(w);
    struct model_open how = { .layout = r->layout,
                              .dev = r->dev,
                              .ep = r->ep,
                              .cp = r->layout.cp > 1 ? r->mesh.axis[AXIS_CP] : NULL,
                              .tp = r->mesh.axis[AXIS_TP],
                              .tp_rank = r->mesh.at[AXIS_TP],
                              .pp_rank = r->mesh.at[AXIS_PP],
                              .dt = w->run->dt,
                              .fast = o->numerics == NUMERICS_FAST,
                              .max_rows = rows > 64 ? rows : 64,
                              .max_pos = sample_positions(o->seq_len, cfg),
                              .adapter_rank = w->run->lora.rank };
    int rc = model_open(&w->model, cfg, &how, e);

    w->model.waits = o->overlap == OVERLAP_OFF;
    return rc;
}

/* How conversations lie in sequences. */
static void show_packed(const struct work *w, const struct data *d, struct log *term)
{
    struct data_packed x = d ? data_packed(d) : (struct data_packed){ 0 };
    int64_t T = w->run->o.seq_len;
    if (x.plain_lines)
        log_line(term,
                 "%s: its lines are no conversations, so it is read as text, with its JSON: ptok prepare "
                 "reads texts "
                 "in JSON lines",
                 x.plain_lines);
    if (!x.conversations)
        return;
    log_line(term,
             "conversations: %lld, in sequences: %lld, %.0f %% of them filled%s; tokens with a loss: %lld",
             (long long)x.conversations, (long long)x.rows,
             100.0 * (double)x.tokens / (double)(x.rows * (T + 1)),
             w->run->o.documents < 2 && d == w->data ? " (--documents N packs several into one)" : "",
             (long long)x.weighted);
    if (!x.weighted)
        log_line(
            term,
            "no token has a loss: it is on what messages of the role assistant say, times their weights");
    if (x.n_cut)
        log_line(term, "conversations longer than --seq-len %lld: %lld, their ends are left out",
                 (long long)T, (long long)x.n_cut);
}

int work_open(struct work *w, struct log *term, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    const struct model_config *cfg = &w->run->cfg;
    const struct layout *layout = &w->ranks->layout;
    int rc;
    if (o->eval_only)
        TRY(batch_plan_eval(&w->plan, o->micro_batch, layout, e));
    else
        TRY(batch_plan_layout(&w->plan, o->global_batch, o->micro_batch, layout, e));
    if (!o->eval_only)
        TRY(batch_check_leaf(&w->plan, layout, w->run->expert_leaf, e));
    if (!o->eval_only && !w->plan.in_tree)
        log_line(term,
                 "global batch %lld over dp %d is not a part of its tree: deterministic, but the bits are "
                 "this layout's own",
                 (long long)w->plan.rows, layout->dp);
    w->slot_seqs = w->plan.micro;
    show_packed(w, w->data, term);
    show_packed(w, w->eval, term);

    if (o->seq_len > cfg->max_pos)
        return err_set(e, ERR_USAGE,
                       "--seq-len %lld is longer than the model's %lld positions (max_position_embeddings): "
                       "use a smaller --seq-len",
                       (long long)o->seq_len, (long long)cfg->max_pos);
    TRY(open_model(w, e));
    w->model.expert_leaf = w->run->expert_leaf;
    w->model.cp_grain = w->run->cp_grain;
    if (w->run->lora.n)
        TRY(adapter_open(&w->adapter, &w->model, w->run->lora.list, w->run->lora.n, e));
    lora_set_init(&w->run->lora, &w->adapter);
    TRY(balance_open(w, e));
    TRY(open_rounds(w, e));
    if (cfg->dropout > 0 && !o->eval_only)
        log_line(term, "config.json asks for dropout of up to %g: none is applied", cfg->dropout);
    if (*w->ranks->dev->note)
        log_line(term, "%s", w->ranks->dev->note);
    rc = open_schedule(w, e);
out:
    return rc;
}

/* ---- state ---- */
static int open_resident(struct work *w, struct err *e)
{
    struct world *world = w->ranks->world;
    int rc;
    const struct lora *l = &w->run->lora;
    TRY(resident_open(&w->resident, &w->model, restore_read_param, w, e));
    w->weights = &w->resident.w;
    if (l->n) {
        TRY(resident_open(&w->adapter_weights, &w->adapter.m, restore_read_adapter, w, e));
        w->adapter.w = &w->adapter_weights.w;
        TRY(ckpt_check_rest(l->peft.c, world_rank(world), world_size(world), e));
    }
    rc = ckpt_check_rest(w->run->source, world_rank(world), world_size(world), e);
out:
    return rc;
}

static struct model *work_model(struct work *w) { return w->run->lora.n ? &w->adapter.m : &w->model; }

/* --offload. Collective. */
static int open_offload(struct work *w, struct log *term, struct err *e)
{
    const struct train_opts *o = &w->run->o;
    struct ranks *r = w->ranks;
    struct offload_what what = { .kind = offload_kind(o->offload, o->device),
                                 .grad_levels = o->offload_grads ? zero_shard_levels(&w->plan, r->layout.zero)
                                                                 : 0,
                                 .weights = o->offload_params };
    struct offload_spec spec = {
        .what = what, .dir = o->offload, .out = o->out, .rank = world_rank(r->world), .all = r->mesh.all
    };
    struct offload_bytes bytes;
    char how[80], size[32];
    int rc = 0;
    if (what.kind == OFFLOAD_NONE && strcmp(o->offload, "none"))
        log_line(
            term,
            "--offload %s: masters and moments are in the memory of a CPU device already: nothing changes",
            o->offload);
    if (what.kind == OFFLOAD_NONE)
        return 0;
    TRY(offload_open(&w->offload, work_model(w), r->layout.zero, &spec, e));
    offload_measure(work_model(w), r->layout.zero, &what, &bytes);
    offload_text(w->offload, how);
    log_bytes(size, bytes.files + bytes.host);
    log_line(term, "offload: masters and moments %s%s, %s a rank, %s",
             what.kind == OFFLOAD_FILES ? "in " : "", what.kind == OFFLOAD_FILES ? o->offload : "on the host",
             size, how);
out:
    return rc;
}

int work_open_state(struct work *w, struct log *term, struct err *e)
{
    const struct mesh *mesh = &w->ranks->mesh;
    const struct layout *layout = &w->ranks->layout;
    struct zero_options how = { .stage = layout->zero };
    int rc = 0, rank, sharers;
    if (w->run->o.eval_only)
        return open_resident(w, e);

    int here = comm_local_size(mesh->axis[AXIS_TP]);
    if (here < layout->tp)
        log_line(term,
                 "tp %d spans machines (%d ranks of a group on this one): its sums, two a layer, go over the "
                 "network: use --tp %d or less",
                 layout->tp, here, here);

    comm_shared_group(ranks_zero(w->ranks), &rank, &sharers);
    how.overlap = opts_overlap(&w->run->o, w->run->given, layout_slices(layout), sharers);
    struct zero_groups groups = {
        .dp = ranks_zero(w->ranks), .pp = mesh->axis[AXIS_PP], .edp = w->ranks->edp, .all = mesh->all
    };
    TRY(open_offload(w, term, e));
    how.store = w->offload ? offload_store(w->offload) : NULL;
    TRY(zero_open(&w->zero, work_model(w), &groups, how, &w->plan, e));
    w->weights = zero_weights(w->zero);
    if (w->run->lora.n) {
        w->adapter.w = w->weights;
        how = (struct zero_options){ .stage = lora_base_stage(layout, w->run->dt, sharers),
                                     .overlap = how.overlap,
                                     .frozen = 1 };
        TRY(zero_open(&w->frozen, &w->model, &groups, how, &w->plan, e));
        w->weights = zero_weights(w->frozen);
    }
out:
    return rc;
}

void work_close(struct work *w)
{
    offload_close(w->offload);
    zero_close(w->zero);
    zero_close(w->frozen);
    if (w->adapter_weights.m)
        resident_close(&w->adapter_weights);
    if (w->resident.m)
        resident_close(&w->resident);
    for (int64_t i = 0; i < w->n_slots; i++)
        train_work_close(w->slot[i]);
    for (int64_t i = 0; i < w->n_deferred; i++)
        deferred_grads_close(w->deferred[i]);
    inputs_close(w->inputs);
    free(w->slot);
    free(w->first_slot);
    free(w->deferred);
    free(w->first_deferred);

    comm_close(w->pp_back);
    pipe_free(&w->schedule);
    balance_close(w);
    adapter_close(&w->adapter);
    model_close(&w->model);

    data_close(w->data);
    data_close(w->eval);
    tokenizer_close(w->tokenizer);
    free(w->window);
    free(w->by_token);
    free(w->ids);
    free(w->targets);
    free(w->weight);
    free(w->scale);
    free(w->window_weight);
    free(w->logprobs);
    free(w->n_documents);
    free(w->document_begin);
    free(w->rounds);
}

int64_t work_rows(const struct work *w) { return w->run->o.seq_len / w->ranks->layout.cp; }

static int read_weights(struct work *w, const struct data *d, int64_t window, int64_t at, struct err *e)
{
    int rc = data_weights(d, window, w->window_weight, e);
    int by_leaf = w->window && !ALTERED("loss_rows");
    for (int64_t row = 0; rc >= 0 && row < work_rows(w); row++)
        w->weight[at + row] =
            w->window_weight[by_leaf ? model_row_token(&w->model, w->run->o.seq_len, row) : row];
    return rc;
}

int work_read(struct work *w, const struct data *d, int64_t window, int64_t at, struct err *e)
{
    int64_t T = w->run->o.seq_len;
    int rc = w->weight ? read_weights(w, d, window, at, e) : 0;
    if (rc < 0)
        return rc;
    if (!w->window)
        return data_read(d, window, w->ids + at, w->targets + at, e);

    rc = data_read(d, window, w->window, w->window + T, e);
    for (int64_t row = 0; rc >= 0 && row < work_rows(w); row++) {
        int64_t t = model_row_token(&w->model, T, row);
        w->ids[at + row] = w->window[t];
        w->targets[at + row] = w->window[T + t];
    }
    return rc;
}

int64_t work_sample(const struct work *w)
{
    return w->at.first_sample + (w->at.step - w->at.first_step) * w->plan.rows;
}

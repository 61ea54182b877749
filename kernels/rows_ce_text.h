/* rows_ce_text.h - cross entropy over a vocabulary that ranks may share (part of rows_text.h). Logits are fp32.
 *
 * max over everything first (exact in any order), then one sum of exp(l - max): 32 lanes in a block of the vocabulary, Tree over
 * blocks. Altered ce_blocks: blocks added in order; ce_max_first: every block with its own maximum, scaled then. */
struct ce_job {
    struct mat logits, dl;
    const struct leaves *leaves;
    const int32_t *target;
    int64_t first;
    const float *max, *sum;
    float scale, *out;
};

ROW_TASK ce_max_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct ce_job *a = arg;
    for (int64_t row = begin; row < end; row++) {
        const float *l = mat_row(a->logits, row);
        struct lanes s;
        for (EACH_LANE(j, LANES))
            s.x[j] = -FN_INF;
        CHUNKS(a->logits.cols, i, m, {
            for (EACH_LANE(j, m))
                s.x[j] = l[i + j] > s.x[j] ? l[i + j] : s.x[j];
        });
        a->out[row] = lanes_max(&s);
    }
}

static void op_ce_max(struct dev *d, float *max, struct mat logits)
{
    struct ce_job a = { .logits = logits, .out = max };
    rows_spread(d, logits.rows, rows_per_task(logits.cols), ce_max_task, &a);
}

FN float ce_block(const float *l, int64_t n, float max)
{
    struct lanes s = { { 0 } };
    SUM_CHUNKS(n, i, m, {
        for (EACH_LANE(j, m))
            s.x[j] = s.x[j] + fn_exp(l[i + j] - max);
    });
    return lanes_fold(&s);
}

FN float ce_block_own_max(const float *l, int64_t n, float max)
{
    float own = -FN_INF;
    for (int64_t i = 0; i < n; i++)
        own = l[i] > own ? l[i] : own;
    return n ? ce_block(l, n, own) * fn_exp(own - max) : 0.0f;
}

ROW_TASK ce_sum_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct ce_job *a = arg;
    const struct leaves *v = a->leaves;
    for (int64_t row = begin; row < end; row++) {
        const float *l = mat_row(a->logits, row);
        float part[GRAIN_MAX];
        int64_t from = 0;
        for (int g = 0; g < v->n; from = v->end[g++])
            part[g] = ALTERED("ce_max_first") ? ce_block_own_max(l + from, v->end[g] - from, a->max[row])
                                              : ce_block(l + from, v->end[g] - from, a->max[row]);
        if (ALTERED("ce_blocks"))
            for (int g = 1; g < v->n; part[0] += part[g++])
                ;
        a->out[row] = ALTERED("ce_blocks") ? part[0] : tree_sum(v->n, part, 1);
    }
}

static void op_ce_sum(struct dev *d, float *sum, struct mat logits, const struct leaves *l, const float *max)
{
    struct ce_job a = { .logits = logits, .leaves = LEND(d, l, sizeof *l), .max = max, .out = sum };
    rows_spread(d, logits.rows, rows_per_task(logits.cols), ce_sum_task, &a);
}

ROW_TASK ce_pick_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct ce_job *a = arg;
    for (int64_t row = begin; row < end; row++) {
        const float *l = mat_row(a->logits, row);
        int64_t c = a->target[row] - a->first;
        a->out[row] = a->target[row] >= 0 && c >= 0 && c < a->logits.cols ? l[c] : -0.0f;
    }
}

static void op_ce_pick(struct dev *d, float *out, struct mat logits, const int32_t *target, int64_t first)
{
    struct ce_job a = { .logits = logits, .target = LEND_IDS(d, target, logits.rows), .first = first, .out = out };
    rows_spread(d, logits.rows, FLAT_PIECE(16384), ce_pick_task, &a);
}

/* Columns as negative floats, of which the largest is the lowest. */
struct first_job { int32_t *id; struct mat logits; const float *max; };
FN void first_look(struct lanes *best, const float *l, int64_t i, int m, float max)
{
    for (EACH_LANE(j, m)) {
        const float at = fn_select(l[i + j] == max, -(float)(i + j), -FN_INF);
        best->x[j] = fn_select(at > best->x[j], at, best->x[j]);
    }
}
FN int32_t first_found(float best) { return best < -0x1p24f ? -1 : (int32_t)-best; }

ROW_TASK ce_first_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct first_job *a = arg;
    for (int64_t row = begin; row < end; row++) {
        const float *l = mat_row(a->logits, row);
        struct lanes best;
        for (EACH_LANE(j, LANES))
            best.x[j] = -FN_INF;
        CHUNKS(a->logits.cols, i, m, { first_look(&best, l, i, m, a->max[row]); });
        a->id[row] = first_found(lanes_max(&best));
    }
}

static void op_ce_first(struct dev *d, int32_t *id, struct mat logits, const float *max)
{
    struct first_job a = { id, logits, max };
    rows_spread(d, logits.rows, rows_per_task(logits.cols), ce_first_task, &a);
}

/* dl = round((exp(l - max) / sum - [target]) scale) */
FN void ce_dx_row(const struct ce_job *a, int64_t row, const enum dtype dt)
{
    const float *l = mat_row(a->logits, row);
    void *dl = mat_row(a->dl, row);
    int64_t t = a->target[row] - a->first;
    float max = a->max[row], sum = a->sum[row], scale = a->scale;
    if (a->target[row] < 0) {
        OWN_CHUNKS(a->logits.cols, i, m, {
            struct lanes zero = { { 0 } };
            put(dl, dt, i, m, &zero);
        });
        return;
    }
    OWN_CHUNKS(a->logits.cols, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = fn_exp(l[i + j] - max) / sum * scale;
        if (t >= i && t < i + m)
            for (EACH_LANE(j, m))
                o.x[j] = i + j == t ? (fn_exp(l[t] - max) / sum - 1.0f) * scale : o.x[j];
        put(dl, dt, i, m, &o);
    });
}

ROW_TASK ce_dx_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct ce_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->dl.dt, ce_dx_row(a, row, DT));
}

static void op_ce_dx(struct dev *d, struct mat dl, struct mat logits, const int32_t *target, int64_t first, const float *max,
                     const float *sum, float scale)
{
    struct ce_job a = { .logits = logits, .dl = dl, .target = LEND_IDS(d, target, logits.rows), .first = first, .max = max, .sum = sum, .scale = scale };
    rows_share(d, logits.rows, rows_per_task(logits.cols), SHARES(logits.cols), ce_dx_task, &a);
}

struct logprob_job { float *out; const float *pick, *max, *sum; };

ROW_TASK ce_logprob_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct logprob_job *a = arg;
    for (int64_t i = begin; i < end; i++)
        a->out[i] = ALTERED("ce_logprob") ? a->pick[i] - (a->max[i] + fn_log(a->sum[i])) : a->pick[i] - a->max[i] - fn_log(a->sum[i]);
}

static void op_ce_logprob(struct dev *d, float *out, const float *pick, const float *max, const float *sum, int64_t n)
{
    struct logprob_job a = { out, pick, max, sum };
    rows_spread(d, n, FLAT_PIECE(16384), ce_logprob_task, &a);
}

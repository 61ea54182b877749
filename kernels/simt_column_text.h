/* simt_column_text.h - sums down the columns: gradients of vectors and of embedding tables, sums over ranks; a column a lane, in the CPU's
 * order (rows_norm_text.h, rows_head_text.h, rows_tree_text.h; part of simt_text.h). Tiles have one row here. */
enum column_of { COLUMN_RMS, COLUMN_LAYER, COLUMN_BIAS };
struct column_job {
    struct tree_acc acc;
    struct mat dy, x;
    const float *mean, *rstd;
    enum column_of of;
    enum dtype dt;                       /* dy is rounded to it */
    int n_seq, grain;
    int64_t seq_len;
};

/* Chain over the tokens [t0, t1), from +0. */
FN void column_chain(const struct column_job *a, int64_t t0, int64_t t1, int64_t c0, int cols, struct lanes *sum)
{
    for (EACH_LANE(j, LANES))
        sum->x[j] = 0.0f;
    for (int64_t t = t0; t < t1; t++) {
        const void *dy = mat_row(a->dy, t), *x = mat_row(a->x, a->of == COLUMN_BIAS ? 0 : t);
        const float r = a->of == COLUMN_BIAS ? 0.0f : a->rstd[t], mean = a->of == COLUMN_LAYER ? a->mean[t] : 0.0f;
        for (EACH_LANE(j, cols)) {
            const float g = round_as(a->dt, get(dy, a->dy.dt, c0 + j));
            if (a->of == COLUMN_BIAS)
                sum->x[j] = sum->x[j] + g;
            else if (a->of == COLUMN_LAYER)
                sum->x[j] = fmaf(g, (get(x, a->x.dt, c0 + j) - mean) * r, sum->x[j]);
            else
                sum->x[j] = fmaf(g, get(x, a->x.dt, c0 + j) * r, sum->x[j]);
        }
    }
}

FN void lanes_join(struct lanes *stack, int *depth, int merges)
{
    for (; merges > 0; merges--, --*depth)
        for (EACH_LANE(j, LANES))
            stack[*depth - 1].x[j] = stack[*depth - 1].x[j] + stack[*depth].x[j];
    ++*depth;
}

/* One sequence: Tree(grain) over its blocks. */
FN struct lanes column_leaf(const struct column_job *a, int64_t t0, int64_t c0, int cols)
{
    struct lanes stack[LEAF_DEPTH];
    int depth = 0;
    for (int g = 0; g < a->grain; g++) {
        column_chain(a, t0 + block_begin(a->seq_len, a->grain, g), t0 + block_begin(a->seq_len, a->grain, g + 1), c0, cols, &stack[depth]);
        lanes_join(stack, &depth, tree_merges(a->grain, g));
    }
    return stack[0];
}

ROW_TASK column_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct column_job *a = arg;
    for (int64_t t = begin; t < end; t++) {
        const struct place p = place_of(t, 1, a->dy.cols);
        const struct heap_at at = { &a->acc, p.c0, 0, 1, p.cols };
        struct heap h;
        struct tile leaf;
        tile_zero(&leaf);
        heap_begin(&h, &at);
        for (int s = 0; s < a->n_seq; s++) {
            leaf.row[0] = column_leaf(a, s * a->seq_len, p.c0, p.cols);
            heap_push(&h, &at, &leaf);
        }
        heap_end(&h, &at);
    }
}

static void op_rms_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *rstd, int n_seq,
                           int64_t seq_len, int grain)
{
    struct column_job a = { *acc, dy, x, NULL, rstd, COLUMN_RMS, x.dt, n_seq, grain, seq_len };
    rows_spread(d, places(1, dy.cols), 1, column_task, &a);
}

static void op_layer_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *mean, const float *rstd,
                             int n_seq, int64_t seq_len, int grain)
{
    struct column_job a = { *acc, dy, x, mean, rstd, COLUMN_LAYER, x.dt, n_seq, grain, seq_len };
    rows_spread(d, places(1, dy.cols), 1, column_task, &a);
}

static void op_bias_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, enum dtype dt, int n_seq, int64_t seq_len, int grain)
{
    struct column_job a = { *acc, dy, dy, NULL, NULL, COLUMN_BIAS, dt, n_seq, grain, seq_len };
    rows_spread(d, places(1, dy.cols), 1, column_task, &a);
}

/* ---- leaves that were made elsewhere ---- */
struct leaves_job { struct tree_acc acc; const float *leaf; int64_t ld, n; int n_seq; };

ROW_TASK leaves_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct leaves_job *a = arg;
    for (int64_t t = begin; t < end; t++) {
        const struct place p = place_of(t, 1, a->n);
        const struct heap_at at = { &a->acc, p.c0, 0, 1, p.cols };
        struct heap h;
        struct tile leaf;
        tile_zero(&leaf);
        heap_begin(&h, &at);
        for (int s = 0; s < a->n_seq; s++) {
            for (EACH_LANE(j, p.cols))
                leaf.row[0].x[j] = a->leaf[s * a->ld + p.c0 + j];
            heap_push(&h, &at, &leaf);
        }
        heap_end(&h, &at);
    }
}

static void op_add_leaves(struct dev *d, const struct tree_acc *acc, const float *leaf, int64_t ld, int64_t n, int n_seq)
{
    struct leaves_job a = { *acc, leaf, ld, n, n_seq };
    rows_spread(d, places(1, n), 1, leaves_task, &a);
}

/* ---- embedding tables: a row's tokens of a sequence, in position order; zeros change no such sum ---- */
struct table_job { struct tree_acc acc; struct mat dx; const int32_t *begin, *order, *ids; int64_t ld, rows, seq_len, first; int n_seq; };

/* The tokens of a sequence that have this row: from the index, place *k on, or (no memory for one) by looking at all. -1: no more. */
FN int64_t token_of_row(const struct table_job *a, int64_t row, int64_t end, int64_t *k)
{
    if (a->begin) {
        const int here = *k < a->begin[row + 1] && a->order[*k] < end;
        return here ? a->order[(*k)++] : -1;
    }
    for (; *k < end; ++*k)
        if (a->ids[*k] - a->first == row)
            return (*k)++;
    return -1;
}

ROW_TASK table_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct table_job *a = arg;
    const int64_t pieces = (a->dx.cols + LANES - 1) / LANES;
    for (int64_t t = begin; t < end; t++) {
        const int64_t row = t / pieces, c0 = t % pieces * LANES;
        const int cols = (int)(a->dx.cols - c0 < LANES ? a->dx.cols - c0 : LANES);
        const struct heap_at at = { &a->acc, row * a->ld + c0, 0, 1, cols };
        int64_t k = a->begin ? a->begin[row] : 0;
        struct heap h;
        heap_begin(&h, &at);
        for (int s = 0; s < a->n_seq; s++) {
            struct tile leaf;
            tile_zero(&leaf);
            for (int64_t token; (token = token_of_row(a, row, (s + 1) * a->seq_len, &k)) >= 0;) {
                const void *x = mat_row(a->dx, token);
                for (EACH_LANE(j, cols))
                    leaf.row[0].x[j] = leaf.row[0].x[j] + get(x, a->dx.dt, c0 + j);
            }
            heap_push(&h, &at, &leaf);
        }
        heap_end(&h, &at);
    }
}

static void op_embed_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, int64_t first, int64_t rows, struct mat dx, const int32_t *ids,
                        int n_seq, int64_t seq_len)
{
    struct token_index x;
    rows_index_tokens(d->host, &x, first, rows, ids, n_seq * seq_len);
    struct table_job a = { .acc = *acc, .dx = dx, .ld = ld, .rows = rows, .seq_len = seq_len, .first = first, .n_seq = n_seq };
    if (x.begin) {
        a.begin = LEND_IDS(d, x.begin, rows + 1);
        a.order = LEND_IDS(d, x.order, n_seq * seq_len);
    } else {
        a.ids = LEND_IDS(d, ids, n_seq * seq_len);
    }
    rows_spread(d, rows * ((dx.cols + LANES - 1) / LANES), 1, table_task, &a);
}

/* ---- the weight of heads' norms: a task is 32 components of one sequence ---- */
struct heads_job { struct mat dy, x; int n_heads; float eps; float *out; int64_t ld, seq_len; int n_seq, grain; };

/* One head: Tree(grain) over the blocks of its tokens. */
FN struct lanes heads_leaf(const struct heads_job *a, int64_t t0, int head, int64_t hd, int64_t c0, int cols)
{
    struct lanes stack[LEAF_DEPTH];
    int depth = 0;
    for (int g = 0; g < a->grain; g++) {
        for (EACH_LANE(j, LANES))
            stack[depth].x[j] = 0.0f;
        for (int64_t t = t0 + block_begin(a->seq_len, a->grain, g); t < t0 + block_begin(a->seq_len, a->grain, g + 1); t++) {
            const float *x = (const float *)mat_row(a->x, t) + head * hd, *dy = (const float *)mat_row(a->dy, t) + head * hd;
            const float r = head_rstd(x, hd, a->eps);
            for (EACH_LANE(j, cols))
                stack[depth].x[j] = fmaf(dy[c0 + j], x[c0 + j] * r, stack[depth].x[j]);
        }
        lanes_join(stack, &depth, tree_merges(a->grain, g));
    }
    return stack[0];
}

ROW_TASK heads_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    enum { HEADS_DEPTH = 24 };           /* of Tree(heads) */
    const struct heads_job *a = arg;
    const int64_t hd = a->x.cols / a->n_heads, pieces = (hd + LANES - 1) / LANES;
    for (int64_t t = begin; t < end; t++) {
        const int64_t s = t / pieces, c0 = t % pieces * LANES;
        const int cols = (int)(hd - c0 < LANES ? hd - c0 : LANES);
        struct lanes stack[HEADS_DEPTH];
        int depth = 0;
        for (int h = 0; h < a->n_heads; h++) {
            stack[depth] = heads_leaf(a, s * a->seq_len, h, hd, c0, cols);
            lanes_join(stack, &depth, tree_merges(a->n_heads, h));
        }
        put(a->out + s * a->ld, DT_F32, c0, cols, &stack[0]);
    }
}

static void op_head_norm_dw(struct dev *d, float *out, int64_t ld, struct mat dy, struct mat x, int n_heads, float eps, int n_seq,
                            int64_t seq_len, int grain)
{
    struct heads_job a = { dy, x, n_heads, eps, out, ld, seq_len, n_seq, grain };
    rows_spread(d, n_seq * ((x.cols / n_heads + LANES - 1) / LANES), 1, heads_task, &a);
}

/* ---- sums over ranks ---- */
#define SIMT_INPUTS 64
struct add_up_job { float *out; const float *in[SIMT_INPUTS]; int n_in; };

ROW_TASK add_up_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct add_up_job *a = arg;
    CHUNKS(end - begin, i, m, {
        struct lanes stack[LEAF_DEPTH];
        int depth = 0;
        for (int k = 0; k < a->n_in; k++) {
            for (EACH_LANE(j, m))
                stack[depth].x[j] = a->in[k][begin + i + j];
            lanes_join(stack, &depth, tree_merges(a->n_in, k));
        }
        put(a->out, DT_F32, begin + i, m, &stack[0]);
    });
}

static void op_tree_add(struct dev *d, float *out, const float *const *in, int n_in, int64_t n)
{
    struct add_up_job a = { .out = out, .n_in = n_in };
    if (n_in == 0) {
        dev_fill(d, out, 0, sizeof(float) * (size_t)n);
        return;
    }
    for (int i = 0; i < n_in && i < SIMT_INPUTS; i++)
        a.in[i] = in[i];
    if (SIMT_FITS(d, n_in <= SIMT_INPUTS))
        rows_spread(d, n, FLAT_PIECE(16384), add_up_task, &a);
}

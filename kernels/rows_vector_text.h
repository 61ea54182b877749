/* rows_vector_text.h - gradients of vectors, of weights of both norms and of biases: a task is a piece of the columns, for all sequences of the
 * call (part of rows_text.h). The order is in rows_norm_text.h. */
enum vector_of { RMS_WEIGHT, LAYER_WEIGHT, BIAS };
struct vector_dw_job {
    const struct tree_acc *acc;
    struct mat dy, x;
    const float *mean, *rstd;
    enum vector_of of;
    enum dtype dt;                 /* dy is rounded to it where it comes in fp32 */
    int n_seq, grain;
    int64_t seq_len;
};

/* Chain over the tokens [t0, t1), from +0, for the columns [at, at + width). */
FN void vector_dw_chain(const struct vector_dw_job *a, int64_t t0, int64_t t1, int64_t at, int64_t width, float *sum, const enum dtype dt,
                        const enum dtype dy_dt, const enum vector_of of)
{
    memset(sum, 0, sizeof(float) * (size_t)width);
    for (int64_t t = t0; t < t1; t++) {
        const void *x = of == BIAS ? NULL : mat_row(a->x, t), *dy = mat_row(a->dy, t);
        float r = of == BIAS ? 0.0f : a->rstd[t], mean = of == LAYER_WEIGHT ? a->mean[t] : 0.0f;
        CHUNKS(width, i, m, {
            struct lanes o;
            for (EACH_LANE(j, m)) {
                float g = round_as(dt, get(dy, dy_dt, at + i + j));
                if (of == BIAS)
                    o.x[j] = sum[i + j] + g;
                else if (of == LAYER_WEIGHT)
                    o.x[j] = fmaf(g, (get(x, dt, at + i + j) - mean) * r, sum[i + j]);
                else
                    o.x[j] = fmaf(g, get(x, dt, at + i + j) * r, sum[i + j]);
            }
            put(sum, DT_F32, i, m, &o);
        });
    }
}

/* stack[depth] joins the entries below it. */
FN void stack_merge(float stack[][PILE_WIDTH], int *depth, int merges, int64_t width)
{
    for (; merges > 0; merges--, --*depth)
        for (int64_t j = 0; j < width; j++)
            stack[*depth - 1][j] = stack[*depth - 1][j] + stack[*depth][j];
    ++*depth;
}

/* One sequence: Tree(grain) over its blocks. Altered rms_dw_blocks: one chain; rms_dw_tree: blocks added in order. */
FN const float *vector_dw_leaf(const struct vector_dw_job *a, int64_t t0, int64_t at, int64_t width, float stack[][PILE_WIDTH],
                               const enum dtype dt, const enum dtype dy_dt, const enum vector_of of)
{
    int grain = ALTERED("rms_dw_blocks") ? 1 : a->grain, depth = 0;
    for (int g = 0; g < grain; g++) {
        vector_dw_chain(a, t0 + block_begin(a->seq_len, grain, g), t0 + block_begin(a->seq_len, grain, g + 1), at, width,
                        stack[depth], dt, dy_dt, of);
        stack_merge(stack, &depth, ALTERED("rms_dw_tree") ? g > 0 : tree_merges(grain, g), width);
    }
    return stack[0];
}

FN void vector_dw_piece(const struct vector_dw_job *a, int64_t at, int64_t width, const enum dtype dt, const enum dtype dy_dt,
                        const enum vector_of of)
{
    float stack[TREE_DEPTH_MAX][PILE_WIDTH];
    struct pile p;
    pile_begin(&p, a->acc, at, width);
    for (int s = 0; s < a->n_seq; s++)
        pile_push(&p, vector_dw_leaf(a, s * a->seq_len, at, width, stack, dt, dy_dt, of));
    pile_end(&p);
}

ROW_TASK vector_dw_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct vector_dw_job *a = arg;
    const enum dtype dy_dt = a->dy.dt;
    for (int64_t at = begin * PILE_WIDTH; at < end * PILE_WIDTH && at < a->dy.cols; at += PILE_WIDTH) {
        int64_t width = a->dy.cols - at < PILE_WIDTH ? a->dy.cols - at : PILE_WIDTH;
#define PIECE(of)                                                                                                        \
    do {                                                                                                                 \
        if (dy_dt == DT_BF16)                                                                                            \
            vector_dw_piece(a, at, width, DT_BF16, DT_BF16, of);                                                         \
        else                                                                                                             \
            BY_DTYPE(a->dt, vector_dw_piece(a, at, width, DT, DT_F32, of));                                              \
    } while (0)
        if (a->of == BIAS)
            PIECE(BIAS);
        else if (a->of == LAYER_WEIGHT)
            PIECE(LAYER_WEIGHT);
        else
            PIECE(RMS_WEIGHT);
#undef PIECE
    }
}

static void vector_dw_run(struct dev *d, struct vector_dw_job *a)
{
    rows_spread(d, (a->dy.cols + PILE_WIDTH - 1) / PILE_WIDTH, 1, vector_dw_task, a);
}

static void op_rms_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *rstd, int n_seq,
                           int64_t seq_len, int grain)
{
    struct vector_dw_job a = { .acc = acc, .dy = dy, .x = x, .rstd = rstd, .of = RMS_WEIGHT, .dt = x.dt, .n_seq = n_seq, .grain = grain,
                               .seq_len = seq_len };
    vector_dw_run(d, &a);
}

static void op_layer_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x, const float *mean, const float *rstd,
                             int n_seq, int64_t seq_len, int grain)
{
    struct vector_dw_job a = { .acc = acc, .dy = dy, .x = x, .mean = mean, .rstd = rstd, .of = LAYER_WEIGHT, .dt = x.dt, .n_seq = n_seq,
                               .grain = grain, .seq_len = seq_len };
    vector_dw_run(d, &a);
}

static void op_bias_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, enum dtype dt, int n_seq, int64_t seq_len, int grain)
{
    struct vector_dw_job a = { .acc = acc, .dy = dy, .of = BIAS, .dt = dt, .n_seq = n_seq, .grain = grain, .seq_len = seq_len };
    vector_dw_run(d, &a);
}

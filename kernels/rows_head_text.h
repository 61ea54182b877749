/* rows_head_text.h - RMS norm of every head of q and k: its gradients (part of rows_text.h; forward is in rows_rope_text.h).
 *
 * A head of hd components, fp32, the orders of rows_norm_text.h: r = 1 / sqrt(lanes of fma(x, x, .) / hd + eps),
 *   g = dy w;  c = lanes of fma(g, x r, .) / hd;  dx = r (g - (x r) c)
 * The weight's gradient: per head chains over the tokens of a block, Tree(grain) over the blocks of a sequence, then Tree(heads). */
FN float head_rstd(const float *x, int64_t hd, float eps)
{
    struct lanes s = { { 0 } };
    SUM_CHUNKS(hd, i, m, {
        for (int j = 0; j < m; j++)
            s.x[j] = fmaf(x[i + j], x[i + j], s.x[j]);
    });
    return 1.0f / sqrtf(lanes_fold(&s) / (float)hd + eps);
}

struct head_job { struct mat dy, x; int n_heads; const void *w; enum dtype dt; float eps; float *out; int64_t ld, seq_len; int n_seq, grain; };

FN void head_dx(float *dy, const float *x, int64_t hd, const void *w, float eps, const enum dtype dt)
{
    float r = head_rstd(x, hd, eps);
    struct lanes s = { { 0 } };
    SUM_CHUNKS(hd, i, m, {
        for (int j = 0; j < m; j++) {
            float g = dy[i + j] * get(w, dt, i + j);
            s.x[j] = fmaf(g, x[i + j] * r, s.x[j]);
        }
    });
    float c = lanes_fold(&s) / (float)hd;
    CHUNKS(hd, i, m, {
        struct lanes o;
        for (int j = 0; j < m; j++) {
            float g = dy[i + j] * get(w, dt, i + j);
            o.x[j] = r * (g - x[i + j] * r * c);
        }
        put(dy, DT_F32, i, m, &o);
    });
}

static void head_dx_task(void *arg, int64_t begin, int64_t end)
{
    const struct head_job *a = arg;
    int64_t hd = a->x.cols / a->n_heads;
    for (int64_t row = begin; row < end; row++)
        for (int h = 0; h < a->n_heads; h++)
            BY_DTYPE(a->dt, head_dx((float *)mat_row(a->dy, row) + h * hd, (const float *)mat_row(a->x, row) + h * hd, hd, a->w, a->eps, DT));
}

static void op_head_norm_dx(struct dev *d, struct mat dy, struct mat x, int n_heads, const void *w, enum dtype dt, float eps)
{
    struct head_job a = { .dy = dy, .x = x, .n_heads = n_heads, .w = w, .dt = dt, .eps = eps };
    rows_spread(d, x.rows, rows_per_task(x.cols), head_dx_task, &a);
}

/* Columns [at, at + width) of one head of a sequence whose first row is t0. Altered head_norm_blocks: one chain. */
static const float *head_dw_leaf(const struct head_job *a, int64_t t0, int h, int64_t at, int64_t width, float stack[][PILE_WIDTH])
{
    int64_t hd = a->x.cols / a->n_heads;
    int grain = ALTERED("head_norm_blocks") ? 1 : a->grain, depth = 0;
    for (int g = 0; g < grain; g++) {
        float *sum = stack[depth];
        memset(sum, 0, sizeof(float) * (size_t)width);
        for (int64_t t = t0 + block_begin(a->seq_len, grain, g); t < t0 + block_begin(a->seq_len, grain, g + 1); t++) {
            const float *x = (const float *)mat_row(a->x, t) + h * hd, *dy = (const float *)mat_row(a->dy, t) + h * hd + at;
            float r = head_rstd(x, hd, a->eps);
            CHUNKS(width, i, m, {
                struct lanes o;
                for (int j = 0; j < m; j++)
                    o.x[j] = fmaf(dy[i + j], x[at + i + j] * r, sum[i + j]);
                put(sum, DT_F32, i, m, &o);
            });
        }
        stack_merge(stack, &depth, tree_merges(grain, g), width);
    }
    return stack[0];
}

/* A task is a sequence. Altered head_norm_tree: heads added in order. */
static void head_dw_task(void *arg, int64_t begin, int64_t end)
{
    const struct head_job *a = arg;
    int64_t hd = a->x.cols / a->n_heads;
    float stack[TREE_DEPTH_MAX][PILE_WIDTH], heads[TREE_DEPTH_MAX][PILE_WIDTH];
    for (int64_t s = begin; s < end; s++) {
        for (int64_t at = 0; at < hd; at += PILE_WIDTH) {
            int64_t width = hd - at < PILE_WIDTH ? hd - at : PILE_WIDTH;
            int depth = 0;
            for (int h = 0; h < a->n_heads; h++) {
                memcpy(heads[depth], head_dw_leaf(a, s * a->seq_len, h, at, width, stack), sizeof(float) * (size_t)width);
                stack_merge(heads, &depth, ALTERED("head_norm_tree") ? h > 0 : tree_merges(a->n_heads, h), width);
            }
            memcpy(a->out + s * a->ld + at, heads[0], sizeof(float) * (size_t)width);
        }
    }
}

static void op_head_norm_dw(struct dev *d, float *out, int64_t ld, struct mat dy, struct mat x, int n_heads, float eps, int n_seq,
                            int64_t seq_len, int grain)
{
    struct head_job a = { .dy = dy, .x = x, .n_heads = n_heads, .eps = eps, .out = out, .ld = ld, .seq_len = seq_len, .n_seq = n_seq,
                          .grain = grain };
    rows_spread(d, n_seq, 1, head_dw_task, &a);
}

/* Leaves that were made elsewhere join a sum. */
static void op_add_leaves(struct dev *d, const struct tree_acc *acc, const float *leaf, int64_t ld, int64_t n, int n_seq)
{
    struct pile p;
    (void)d;
    for (int64_t at = 0; at < n; at += PILE_WIDTH) {
        pile_begin(&p, acc, at, n - at < PILE_WIDTH ? n - at : PILE_WIDTH);
        for (int s = 0; s < n_seq; s++)
            pile_push(&p, leaf + s * ld + at);
        pile_end(&p);
    }
}

/* rows_head_dw_text.h - the gradient of the weight of heads' norms, and leaves that were made elsewhere (part of rows_text.h). The order is
 * in rows_head_text.h. */
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
                for (EACH_LANE(j, m))
                    o.x[j] = fmaf(dy[i + j], x[at + i + j] * r, sum[i + j]);
                put(sum, DT_F32, i, m, &o);
            });
        }
        stack_merge(stack, &depth, tree_merges(grain, g), width);
    }
    return stack[0];
}

/* A task is a sequence. Altered head_norm_tree: heads added in order. */
ROW_TASK head_dw_task(ROW_ARG arg, int64_t begin, int64_t end)
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

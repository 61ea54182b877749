/* rows.cuh - ops of rows and columns whose sums are too long for one warp: the same sums, and so
 * the same bits, with more threads at the loads. For batches that decode, where few rows would leave the GPU
 * to wait for memory, and for sums over all tokens (part of ops.cu). */
/* NORM_MOST: the most columns that fit into shared memory */
enum { ROW_THREADS = 256, ROW_WARPS = ROW_THREADS / LANES, NORM_MOST = 11 * 1024 };

/* ---- RMS norm: a block has a row; all threads load it and store it, one warp adds its squares ---- */
template <enum dtype dt> static __global__ void norm_kernel(const struct norm_job a)
{
    SHARED(memory);
    const int64_t row = blockIdx.x, n = a.x.cols;
    float *x = (float *)memory, *r = x + n;
    const void *from = mat_row(a.x, row);
    void *to = mat_row(a.y, row);
    for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
        x[i] = get(from, dt, i);
    __syncthreads();
    if (threadIdx.x < LANES) {
        struct lanes s = { 0.0f };
        CHUNKS(n, i, m, {
            for (EACH_LANE(j, m))
                s.x[j] = fmaf(x[i + j], x[i + j], s.x[j]);
        });
        const float f = norm_factor(&s, n, a.eps);
        if (threadIdx.x == 0) {
            *r = f;
            if (a.rstd)
                a.rstd[row] = f;
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS) {
        const float y = x[i] * *r * norm_weight(a.w, dt, i, a.base);
        if (dt == DT_BF16)
            ((uint16_t *)to)[i] = fn_to_bf16(y);
        else
            ((float *)to)[i] = y;
    }
}

static void wide_rms_norm(struct dev *d, struct mat y, float *rstd, struct mat x, const void *w, int plus_one,
                          float eps)
{
    const struct norm_job a = { y, x, w, norm_base(plus_one), rstd, eps };
    if (x.cols > NORM_MOST || x.rows > INT32_MAX)
        op_rms_norm(d, y, rstd, x, w, plus_one, eps);
    else if (x.rows > 0)
        cuda_launch(d, x.dt == DT_BF16 ? norm_kernel<DT_BF16> : norm_kernel<DT_F32>, (unsigned)x.rows,
                    ROW_THREADS, (size_t)(x.cols + 1) * sizeof(float), a);
}

/* ---- cross entropy: a block has a row; a maximum has no order, a block of the vocabulary is one warp's
 * ---- */
/* The maximum of all threads' numbers; all of them get it. */
FN float block_max(const struct lanes *s)
{
    __shared__ float best[ROW_WARPS];
    const float own = lanes_max(s);
    if (threadIdx.x % LANES == 0)
        best[threadIdx.x / LANES] = own;
    __syncthreads();
    const struct lanes all = { best[threadIdx.x % ROW_WARPS] };
    return lanes_max(&all);
}

static __global__ void ce_max_kernel(const struct ce_job a)
{
    const float *l = mat_row(a.logits, blockIdx.x);
    struct lanes s = { -FN_INF };
    for (int64_t i = threadIdx.x; i < a.logits.cols; i += ROW_THREADS)
        s.x.v = l[i] > s.x.v ? l[i] : s.x.v;
    const float max = block_max(&s);
    if (threadIdx.x == 0)
        a.out[blockIdx.x] = max;
}

static __global__ void ce_first_kernel(const struct first_job a)
{
    const float *l = mat_row(a.logits, blockIdx.x);
    struct lanes s = { -FN_INF };
    for (int64_t i = threadIdx.x / LANES * LANES; i < a.logits.cols; i += ROW_THREADS)
        first_look(&s, l, i, (int)(a.logits.cols - i < LANES ? a.logits.cols - i : LANES), a.max[blockIdx.x]);
    const float first = block_max(&s);
    if (threadIdx.x == 0)
        a.id[blockIdx.x] = first_found(first);
}

static __global__ void ce_sum_kernel(const struct ce_job a)
{
    __shared__ float part[GRAIN_MAX];
    const float *l = mat_row(a.logits, blockIdx.x);
    for (int g = (int)(threadIdx.x / LANES); g < a.leaves->n; g += ROW_WARPS) {
        const int64_t from = g > 0 ? a.leaves->end[g - 1] : 0;
        const float sum = ce_block(l + from, a.leaves->end[g] - from, a.max[blockIdx.x]);
        if (threadIdx.x % LANES == 0)
            part[g] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        a.out[blockIdx.x] = tree_sum(a.leaves->n, part, 1);
}

static void wide_ce_max(struct dev *d, float *max, struct mat logits)
{
    const struct ce_job a = { .logits = logits, .out = max };
    if (logits.rows > 0)
        cuda_launch(d, ce_max_kernel, (unsigned)logits.rows, ROW_THREADS, 0, a);
}

static void wide_ce_first(struct dev *d, int32_t *id, struct mat logits, const float *max)
{
    const struct first_job a = { id, logits, max };
    if (logits.rows > 0)
        cuda_launch(d, ce_first_kernel, (unsigned)logits.rows, ROW_THREADS, 0, a);
}

static void wide_ce_sum(struct dev *d, float *sum, struct mat logits, const struct leaves *l,
                        const float *max)
{
    const struct ce_job a = { .logits = logits, .leaves = UPLOAD(d, l, sizeof *l), .max = max, .out = sum };
    if (logits.rows > 0)
        cuda_launch(d, ce_sum_kernel, (unsigned)logits.rows, ROW_THREADS, 0, a);
}

/* ---- gradients of vectors: a warp has a block of a sequence's tokens for 32 columns, then the blocks are
 * joined ---- */
/* part: [sequence][block][columns] */
struct chain_job {
    struct column_job c;
    float *part;
};

ROW_TASK chain_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct chain_job *a = arg;
    const struct column_job *c = &a->c;
    const int64_t n = places(1, c->dy.cols);
    for (int64_t t = begin; t < end; t++) {
        const struct place p = place_of(t % n, 1, c->dy.cols);
        const int64_t s = t / n / c->s.grain, t0 = s * c->s.len;
        const int g = (int)(t / n % c->s.grain);
        struct lanes sum;
        column_chain(c, t0 + block_begin(c->s.len, c->s.grain, g),
                     t0 + block_begin(c->s.len, c->s.grain, g + 1), p.c0, p.cols, &sum);
        put(a->part, DT_F32, t / n * c->dy.cols + p.c0, p.cols, &sum);
    }
}

ROW_TASK join_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct chain_job *a = arg;
    const struct column_job *c = &a->c;
    for (int64_t t = begin; t < end; t++) {
        const struct place p = place_of(t, 1, c->dy.cols);
        const struct heap_at at = { &c->acc, p.c0, 0, 1, p.cols };
        struct heap h;
        struct tile leaf;
        tile_zero(&leaf);
        heap_begin(&h, &at);
        for (int s = 0; s < c->s.n; s++) {
            struct lanes stack[LEAF_DEPTH];
            int depth = 0;
            for (int g = 0; g < c->s.grain; g++) {
                for (EACH_LANE(j, p.cols))
                    stack[depth].x[j] = a->part[((int64_t)s * c->s.grain + g) * c->dy.cols + p.c0 + j];
                lanes_join(stack, &depth, tree_merges(c->s.grain, g));
            }
            leaf.row[0] = stack[0];
            heap_push(&h, &at, &leaf);
        }
        heap_end(&h, &at);
    }
}

static void wide_columns(struct dev *d, const struct column_job *c)
{
    const int64_t parts = (int64_t)c->s.n * c->s.grain, n = places(1, c->dy.cols);
    const struct chain_job a = { *c,
                                 (float *)dev_scratch(d, 1, sizeof(float) * (size_t)(parts * c->dy.cols)) };
    if (!a.part)
        return;
    rows_spread(d, parts * n, 1, chain_task, &a);
    rows_spread(d, n, 1, join_task, &a);
}

static void wide_rms_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x,
                             const float *rstd, struct seqs s)
{
    const struct column_job c = { *acc, dy, x, NULL, rstd, COLUMN_RMS, x.dt, s };
    wide_columns(d, &c);
}

static void wide_layer_norm_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, struct mat x,
                               const float *mean, const float *rstd, struct seqs s)
{
    const struct column_job c = { *acc, dy, x, mean, rstd, COLUMN_LAYER, x.dt, s };
    wide_columns(d, &c);
}

static void wide_bias_dw(struct dev *d, const struct tree_acc *acc, struct mat dy, enum dtype dt,
                         struct seqs s)
{
    const struct column_job c = { *acc, dy, dy, NULL, NULL, COLUMN_BIAS, dt, s };
    wide_columns(d, &c);
}

extern "C" void cuda_choose_rows(struct kernel_ops *ops)
{
    const char *wanted = env_get(ENV_SHARDLINE_CUDA);
    if (wanted && !strcmp(wanted, "simt"))
        return;
    ops->rms_norm = wide_rms_norm;
    ops->rms_norm_dw = wide_rms_norm_dw;
    ops->layer_norm_dw = wide_layer_norm_dw;
    ops->bias_dw = wide_bias_dw;
    ops->ce_max = wide_ce_max;
    ops->ce_first = wide_ce_first;
    ops->ce_sum = wide_ce_sum;
}

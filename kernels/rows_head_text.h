/* rows_head_text.h - RMS norm of every head of q and k: its gradients (part of rows_text.h; forward is in rows_rope_text.h).
 *
 * A head of hd components, fp32, the orders of rows_norm_text.h: r = 1 / sqrt(lanes of fma(x, x, .) / hd + eps),
 *   g = dy w;  c = lanes of fma(g, x r, .) / hd;  dx = r (g - (x r) c)
 * The weight's gradient: per head chains over the tokens of a block, Tree(grain) over the blocks of a sequence, then Tree(heads). */
FN float head_rstd(const float *x, int64_t hd, float eps)
{
    struct lanes s = { { 0 } };
    SUM_CHUNKS(hd, i, m, {
        for (EACH_LANE(j, m))
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
        for (EACH_LANE(j, m)) {
            float g = dy[i + j] * get(w, dt, i + j);
            s.x[j] = fmaf(g, x[i + j] * r, s.x[j]);
        }
    });
    float c = lanes_fold(&s) / (float)hd;
    CHUNKS(hd, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m)) {
            float g = dy[i + j] * get(w, dt, i + j);
            o.x[j] = r * (g - x[i + j] * r * c);
        }
        put(dy, DT_F32, i, m, &o);
    });
}

ROW_TASK head_dx_task(ROW_ARG arg, int64_t begin, int64_t end)
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

/* rows_norm_text.h - RMS norm, forward and backward (part of rows_text.h).
 *
 * Zhang and Sennrich 2019. With n columns, per row:
 *   s = lanes of fma(x, x, .);  r = 1 / sqrt(s / n + eps);  y = (x r) w
 *   g = dy w;  c = lanes of fma(g, x r, .) / n;  dx = r (g - (x r) c);  dw = chain over tokens of fma(dy, x r, .)
 * Every product and sum not written as fma is rounded on its own. */
struct norm_job { struct mat y, x; const void *w; float *rstd; float eps; };

FN float norm_factor(struct lanes *squares, int64_t n, float eps) { return 1.0f / sqrtf(lanes_fold(squares) / (float)n + eps); }

FN void norm_row(const struct norm_job *a, int64_t row, const enum dtype dt)
{
    const void *x = mat_row(a->x, row), *w = a->w;
    void *y = mat_row(a->y, row);
    int64_t n = a->x.cols;
    struct lanes s = { { 0 } };
    SUM_CHUNKS(n, i, m, {
        for (EACH_LANE(j, m))
            s.x[j] = fmaf(get(x, dt, i + j), get(x, dt, i + j), s.x[j]);
    });
    float r = norm_factor(&s, n, a->eps);
    if (a->rstd)
        a->rstd[row] = r;
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = get(x, dt, i + j) * r * get(w, dt, i + j);
        put(y, dt, i, m, &o);
    });
}

ROW_TASK norm_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct norm_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->x.dt, norm_row(a, row, DT));
}

static void op_rms_norm(struct dev *d, struct mat y, float *rstd, struct mat x, const void *w, float eps)
{
    struct norm_job a = { y, x, w, rstd, eps };
    rows_spread(d, x.rows, rows_per_task(x.cols), norm_task, &a);
}

struct norm_dx_job { struct mat dres, dy, x; const void *w; const float *rstd; };

/* dy is rounded to dt where it comes in fp32. */
FN void norm_dx_row(const struct norm_dx_job *a, int64_t row, const enum dtype dt, const enum dtype dy_dt)
{
    const void *x = mat_row(a->x, row), *dy = mat_row(a->dy, row), *w = a->w;
    void *dres = mat_row(a->dres, row);
    int64_t n = a->x.cols;
    float r = a->rstd[row];
    struct lanes s = { { 0 } };
    SUM_CHUNKS(n, i, m, {
        for (EACH_LANE(j, m)) {
            float g = round_as(dt, get(dy, dy_dt, i + j)) * get(w, dt, i + j);
            s.x[j] = fmaf(g, get(x, dt, i + j) * r, s.x[j]);
        }
    });
    float c = lanes_fold(&s) / (float)n;
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m)) {
            float g = round_as(dt, get(dy, dy_dt, i + j)) * get(w, dt, i + j);
            float dx = r * (g - get(x, dt, i + j) * r * c);
            o.x[j] = get(dres, dt, i + j) + dx;
        }
        put(dres, dt, i, m, &o);
    });
}

ROW_TASK norm_dx_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct norm_dx_job *a = arg;
    for (int64_t row = begin; row < end; row++) {
        if (a->dy.dt == DT_BF16)
            norm_dx_row(a, row, DT_BF16, DT_BF16);
        else
            BY_DTYPE(a->x.dt, norm_dx_row(a, row, DT, DT_F32));
    }
}

static void op_rms_norm_dx(struct dev *d, struct mat dres, struct mat dy, struct mat x, const void *w, const float *rstd)
{
    struct norm_dx_job a = { dres, dy, x, w, rstd };
    rows_spread(d, x.rows, rows_per_task(x.cols), norm_dx_task, &a);
}

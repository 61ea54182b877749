/* rows_layer_text.h - layer norm, forward and backward, and the addition of biases (part of rows_text.h).
 *
 * Ba, Kiros and Hinton 2016. With n columns, per row:
 *   mean = lanes of x / n;  s = lanes of fma(x - mean, x - mean, .);  r = 1 / sqrt(s / n + eps);  xh = (x - mean) r;  y = xh w + b
 *   g = dy w;  a = lanes of g / n;  c = lanes of fma(g, xh, .) / n;  dx = r ((g - a) - xh c)
 * Every product and sum not written as fma is rounded on its own. The weight's gradient is in rows_norm_text.h. */
struct layer_job { struct mat y, x; const void *w, *b; float *mean, *rstd; float eps; };

FN void layer_row(const struct layer_job *a, int64_t row, const enum dtype dt)
{
    const void *x = mat_row(a->x, row), *w = a->w, *b = a->b;
    void *y = mat_row(a->y, row);
    int64_t n = a->x.cols;
    struct lanes sum = { { 0 } };
    struct lanes s = { { 0 } };
    SUM_CHUNKS(n, i, m, {
        for (EACH_LANE(j, m))
            sum.x[j] = sum.x[j] + get(x, dt, i + j);
    });
    float mean = lanes_fold(&sum) / (float)n;
    SUM_CHUNKS(n, i, m, {
        for (EACH_LANE(j, m)) {
            float c = get(x, dt, i + j) - mean;
            s.x[j] = fmaf(c, c, s.x[j]);
        }
    });
    float r = 1.0f / sqrtf(lanes_fold(&s) / (float)n + a->eps);
    if (a->rstd) {
        a->mean[row] = mean;
        a->rstd[row] = r;
    }
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = (get(x, dt, i + j) - mean) * r * get(w, dt, i + j) + get(b, dt, i + j);
        put(y, dt, i, m, &o);
    });
}

ROW_TASK layer_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct layer_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->x.dt, layer_row(a, row, DT));
}

static void op_layer_norm(struct dev *d, struct mat y, float *mean, float *rstd, struct mat x, const void *w, const void *b, float eps)
{
    struct layer_job a = { y, x, w, b, mean, rstd, eps };
    rows_spread(d, x.rows, rows_per_task(x.cols), layer_task, &a);
}

struct layer_dx_job { struct mat dres, dy, x; const void *w; const float *mean, *rstd; };

/* dy (fp32) is rounded to dt first. */
FN void layer_dx_row(const struct layer_dx_job *a, int64_t row, const enum dtype dt)
{
    const void *x = mat_row(a->x, row), *w = a->w;
    const float *dy = mat_row(a->dy, row);
    void *dres = mat_row(a->dres, row);
    int64_t n = a->x.cols;
    float r = a->rstd[row], mean = a->mean[row];
    struct lanes sum = { { 0 } };
    struct lanes s = { { 0 } };
    SUM_CHUNKS(n, i, m, {
        for (EACH_LANE(j, m)) {
            float g = round_as(dt, dy[i + j]) * get(w, dt, i + j);
            sum.x[j] = sum.x[j] + g;
            s.x[j] = fmaf(g, (get(x, dt, i + j) - mean) * r, s.x[j]);
        }
    });
    float mean_g = lanes_fold(&sum) / (float)n;
    float c = lanes_fold(&s) / (float)n;
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m)) {
            float g = round_as(dt, dy[i + j]) * get(w, dt, i + j);
            float xh = (get(x, dt, i + j) - mean) * r;
            float dx = r * (g - mean_g - xh * c);
            o.x[j] = get(dres, dt, i + j) + dx;
        }
        put(dres, dt, i, m, &o);
    });
}

ROW_TASK layer_dx_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct layer_dx_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->x.dt, layer_dx_row(a, row, DT));
}

static void op_layer_norm_dx(struct dev *d, struct mat dres, struct mat dy, struct mat x, const void *w, const float *mean, const float *rstd)
{
    struct layer_dx_job a = { dres, dy, x, w, mean, rstd };
    rows_spread(d, x.rows, rows_per_task(x.cols), layer_dx_task, &a);
}

/* add_bias: y = y + bias in fp32, not rounded further: the op that stores y does that. */
struct bias_job { struct mat y; const void *bias; enum dtype dt; };

FN void bias_row(const struct bias_job *a, int64_t row, const enum dtype dt)
{
    float *y = mat_row(a->y, row);
    OWN_CHUNKS(a->y.cols, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = y[i + j] + get(a->bias, dt, i + j);
        put(y, DT_F32, i, m, &o);
    });
}

ROW_TASK bias_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct bias_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->dt, bias_row(a, row, DT));
}

static void op_add_bias(struct dev *d, struct mat y, const void *bias, enum dtype dt)
{
    struct bias_job a = { y, bias, dt };
    rows_share(d, y.rows, rows_per_task(y.cols), SHARES(y.cols), bias_task, &a);
}

/* rows_act_text.h - activations, the residual's addition and conversions (part of rows_text.h). */

/* swiglu: act = round(silu(gate) up), gate and up as the product gave them (fp32). Shazeer 2020. */
struct swiglu_job { struct mat act, gu, dgu, dact; };

FN void swiglu_row(const struct swiglu_job *a, int64_t row, const enum dtype dt)
{
    int64_t n = a->act.cols;
    const float *gate = mat_row(a->gu, row), *up = gate + n;
    void *act = mat_row(a->act, row);
    CHUNKS(n, i, m, {
        struct lanes o;
        for (int j = 0; j < m; j++)
            o.x[j] = fn_silu(gate[i + j]) * up[i + j];
        put(act, dt, i, m, &o);
    });
}

static void swiglu_task(void *arg, int64_t begin, int64_t end)
{
    const struct swiglu_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->act.dt, swiglu_row(a, row, DT));
}

static void op_swiglu(struct dev *d, struct mat act, struct mat gu)
{
    struct swiglu_job a = { .act = act, .gu = gu };
    rows_spread(d, gu.rows, rows_per_task(gu.cols), swiglu_task, &a);
}

/* With e = exp(-gate), s = 1 / (1 + e), da = round(dact):
 *   dgate = (da up) (s (1 + gate (1 - s))),  dup = da (gate / (1 + e)) */
FN void swiglu_dx_row(const struct swiglu_job *a, int64_t row, const enum dtype dt)
{
    int64_t n = a->dact.cols;
    const float *gate = mat_row(a->gu, row), *up = gate + n, *dact = mat_row(a->dact, row);
    void *dgu = mat_row(a->dgu, row);
    CHUNKS(n, i, m, {
        struct lanes dg;
        struct lanes du;
        for (int j = 0; j < m; j++) {
            float g = gate[i + j];
            float da = round_as(dt, dact[i + j]);
            float e1 = 1.0f + fn_exp(-g);
            float s = 1.0f / e1;
            dg.x[j] = da * up[i + j] * (s * (1.0f + g * (1.0f - s)));
            du.x[j] = da * (g / e1);
        }
        put(dgu, dt, i, m, &dg);
        put(dgu, dt, n + i, m, &du);
    });
}

static void swiglu_dx_task(void *arg, int64_t begin, int64_t end)
{
    const struct swiglu_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->dgu.dt, swiglu_dx_row(a, row, DT));
}

static void op_swiglu_dx(struct dev *d, struct mat dgu, struct mat gu, struct mat dact)
{
    struct swiglu_job a = { .dgu = dgu, .gu = gu, .dact = dact };
    rows_spread(d, gu.rows, rows_per_task(gu.cols), swiglu_dx_task, &a);
}

/* add_rounded: x = round(x + round(o)) */
struct add_job { struct mat x, o; };

FN void add_row(const struct add_job *a, int64_t row, const enum dtype dt)
{
    void *x = mat_row(a->x, row);
    const float *o = mat_row(a->o, row);
    CHUNKS(a->x.cols, i, m, {
        struct lanes v;
        for (int j = 0; j < m; j++)
            v.x[j] = get(x, dt, i + j) + round_as(dt, o[i + j]);
        put(x, dt, i, m, &v);
    });
}

static void add_task(void *arg, int64_t begin, int64_t end)
{
    const struct add_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->x.dt, add_row(a, row, DT));
}

static void op_add_rounded(struct dev *d, struct mat x, struct mat o)
{
    struct add_job a = { x, o };
    rows_spread(d, x.rows, rows_per_task(x.cols), add_task, &a);
}

/* round_to, widen: flat arrays of any dtype, in pieces. */
struct convert_job { void *dst; const void *src; enum dtype dt; };

static void round_task(void *arg, int64_t begin, int64_t end)
{
    const struct convert_job *a = arg;
    const float *src = (const float *)a->src + begin;
    if (a->dt != DT_BF16) {
        memmove((float *)a->dst + begin, src, sizeof(float) * (size_t)(end - begin));
        return;
    }
    uint16_t *dst = (uint16_t *)a->dst + begin;
    CHUNKS(end - begin, i, m, {
        for (int j = 0; j < m; j++)
            dst[i + j] = fn_to_bf16(src[i + j]);
    });
}

static void op_round_to(struct dev *d, void *dst, enum dtype dt, const float *src, int64_t n)
{
    struct convert_job a = { dst, src, dt };
    rows_spread(d, n, 65536, round_task, &a);
}

static void widen_task(void *arg, int64_t begin, int64_t end)
{
    const struct convert_job *a = arg;
    float *dst = (float *)a->dst + begin;
    const uint16_t *src = (const uint16_t *)a->src + begin;
    if (a->dt == DT_F32)
        memmove(dst, (const float *)a->src + begin, sizeof(float) * (size_t)(end - begin));
    else if (a->dt == DT_BF16)
        for (int64_t i = 0; i < end - begin; i++)
            dst[i] = fn_from_bf16(src[i]);
    else
        for (int64_t i = 0; i < end - begin; i++)
            dst[i] = fn_from_fp16(src[i]);
}

static void op_widen(struct dev *d, float *dst, const void *src, enum dtype dt, int64_t n)
{
    struct convert_job a = { dst, src, dt };
    rows_spread(d, n, 65536, widen_task, &a);
}

/* rows_act_text.h - activations, the residual's addition and conversions (part of rows_text.h). */

/* swiglu: act = round(silu(gate) up), gate and up as the product gave them (fp32). Shazeer 2020. */
struct swiglu_job { struct mat act, gu, dgu, dact; };

FN void swiglu_row(const struct swiglu_job *a, int64_t row, const enum dtype dt)
{
    int64_t n = a->act.cols;
    const float *gate = mat_row(a->gu, row), *up = gate + n;
    void *act = mat_row(a->act, row);
    OWN_CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = fn_silu(gate[i + j]) * up[i + j];
        put(act, dt, i, m, &o);
    });
}

ROW_TASK swiglu_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct swiglu_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->act.dt, swiglu_row(a, row, DT));
}

static void op_swiglu(struct dev *d, struct mat act, struct mat gu)
{
    struct swiglu_job a = { .act = act, .gu = gu };
    rows_share(d, gu.rows, rows_per_task(gu.cols), SHARES(gu.cols), swiglu_task, &a);
}

/* With e = exp(-gate), s = 1 / (1 + e), da = round(dact):
 *   dgate = (da up) (s (1 + gate (1 - s))),  dup = da (gate / (1 + e)) */
FN void swiglu_dx_row(const struct swiglu_job *a, int64_t row, const enum dtype dt)
{
    int64_t n = a->dact.cols;
    const float *gate = mat_row(a->gu, row), *up = gate + n, *dact = mat_row(a->dact, row);
    void *dgu = mat_row(a->dgu, row);
    OWN_CHUNKS(n, i, m, {
        struct lanes dg;
        struct lanes du;
        for (EACH_LANE(j, m)) {
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

ROW_TASK swiglu_dx_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct swiglu_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->dgu.dt, swiglu_dx_row(a, row, DT));
}

static void op_swiglu_dx(struct dev *d, struct mat dgu, struct mat gu, struct mat dact)
{
    struct swiglu_job a = { .gu = gu, .dgu = dgu, .dact = dact };
    rows_share(d, gu.rows, rows_per_task(gu.cols), SHARES(gu.cols), swiglu_dx_task, &a);
}

/* gelu in its tanh form (Hendrycks and Gimpel 2016): with t = tanh(C (h + 0.044715 ((h h) h))), C = sqrt(2 / pi),
 *   act = (0.5 h) (1 + t);  dh = da (0.5 (1 + t) + ((0.5 h) (1 - t t)) (C (1 + 0.134145 (h h)))), da = round(dact) */
struct gelu_job { struct mat out, h, dact; };
#define GELU_C 0x1.988454p-1f
#define GELU_3 0.044715f

FN float gelu_tanh(float h) { return fn_tanh(GELU_C * (h + GELU_3 * (h * h * h))); }

FN void gelu_row(const struct gelu_job *a, int64_t row, const enum dtype dt, const int backward)
{
    const float *h = mat_row(a->h, row), *dact = mat_row(a->dact, backward ? row : 0);
    void *out = mat_row(a->out, row);
    OWN_CHUNKS(a->h.cols, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m)) {
            float x = h[i + j];
            float t = gelu_tanh(x);
            float half = 0.5f * x;
            if (backward)
                o.x[j] = round_as(dt, dact[i + j]) * (0.5f * (1.0f + t) + half * (1.0f - t * t) * (GELU_C * (1.0f + 3.0f * GELU_3 * (x * x))));
            else
                o.x[j] = half * (1.0f + t);
        }
        put(out, dt, i, m, &o);
    });
}

ROW_TASK gelu_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct gelu_job *a = arg;
    for (int64_t row = begin; row < end; row++) {
        if (a->dact.p)
            BY_DTYPE(a->out.dt, gelu_row(a, row, DT, 1));
        else
            BY_DTYPE(a->out.dt, gelu_row(a, row, DT, 0));
    }
}

static void op_gelu(struct dev *d, struct mat act, struct mat h)
{
    struct gelu_job a = { .out = act, .h = h };
    rows_share(d, h.rows, rows_per_task(h.cols), SHARES(h.cols), gelu_task, &a);
}

static void op_gelu_dx(struct dev *d, struct mat dh, struct mat h, struct mat dact)
{
    struct gelu_job a = { .out = dh, .h = h, .dact = dact };
    rows_share(d, h.rows, rows_per_task(h.cols), SHARES(h.cols), gelu_task, &a);
}

/* transpose: tiles of 32 x 32, so that both sides are read and written by cache lines. */
struct transpose_job { struct mat dst, src; };

FN void transpose_tile(const struct transpose_job *a, int64_t i0, int64_t j0, const enum dtype dt)
{
    int64_t i1 = i0 + LANES < a->src.rows ? i0 + LANES : a->src.rows, j1 = j0 + LANES < a->src.cols ? j0 + LANES : a->src.cols;
    for (int64_t j = j0; j < j1; j++) {
        for (EACH_LANE(i, (int)(i1 - i0))) {
            if (dt == DT_BF16)
                ((uint16_t *)a->dst.p)[j * a->dst.ld + i0 + i] = ((const uint16_t *)a->src.p)[(i0 + i) * a->src.ld + j];
            else
                ((float *)a->dst.p)[j * a->dst.ld + i0 + i] = ((const float *)a->src.p)[(i0 + i) * a->src.ld + j];
        }
    }
}

ROW_TASK transpose_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct transpose_job *a = arg;
    for (int64_t t = begin; t < end; t++)
        for (int64_t j = 0; j < a->src.cols; j += LANES)
            BY_DTYPE(a->src.dt, transpose_tile(a, t * LANES, j, DT));
}

static void op_transpose(struct dev *d, struct mat dst, struct mat src)
{
    struct transpose_job a = { dst, src };
    rows_spread(d, (src.rows + LANES - 1) / LANES, rows_per_task(LANES * src.cols), transpose_task, &a);
}

/* add_rounded: x = round(x + round(o)) */
struct add_job { struct mat x, o; };

FN void add_row(const struct add_job *a, int64_t row, const enum dtype dt)
{
    void *x = mat_row(a->x, row);
    const float *o = mat_row(a->o, row);
    OWN_CHUNKS(a->x.cols, i, m, {
        struct lanes v;
        for (EACH_LANE(j, m))
            v.x[j] = get(x, dt, i + j) + round_as(dt, o[i + j]);
        put(x, dt, i, m, &v);
    });
}

ROW_TASK add_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct add_job *a = arg;
    for (int64_t row = begin; row < end; row++)
        BY_DTYPE(a->x.dt, add_row(a, row, DT));
}

static void op_add_rounded(struct dev *d, struct mat x, struct mat o)
{
    struct add_job a = { x, o };
    rows_share(d, x.rows, rows_per_task(x.cols), SHARES(x.cols), add_task, &a);
}

/* round_to, widen: flat arrays of any dtype, in pieces. */
struct convert_job { void *dst; const void *src; enum dtype dt; };

FN void copy_floats(float *dst, const float *src, int64_t n)
{
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = src[i + j];
        put(dst, DT_F32, i, m, &o);
    });
}

ROW_TASK round_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct convert_job *a = arg;
    const float *src = (const float *)a->src + begin;
    if (a->dt != DT_BF16) {
        copy_floats((float *)a->dst + begin, src, end - begin);
        return;
    }
    uint16_t *dst = (uint16_t *)a->dst + begin;
    CHUNKS(end - begin, i, m, {
        for (EACH_LANE(j, m))
            dst[i + j] = fn_to_bf16(src[i + j]);
    });
}

static void op_round_to(struct dev *d, void *dst, enum dtype dt, const float *src, int64_t n)
{
    struct convert_job a = { dst, src, dt };
    rows_spread(d, n, FLAT_PIECE(65536), round_task, &a);
}

ROW_TASK widen_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct convert_job *a = arg;
    float *dst = (float *)a->dst + begin;
    const uint16_t *src = (const uint16_t *)a->src + begin;
    if (a->dt == DT_F32) {
        copy_floats(dst, (const float *)a->src + begin, end - begin);
        return;
    }
    CHUNKS(end - begin, i, m, {
        for (EACH_LANE(j, m))
            dst[i + j] = a->dt == DT_BF16 ? fn_from_bf16(src[i + j]) : fn_from_fp16(src[i + j]);
    });
}

static void op_widen(struct dev *d, float *dst, const void *src, enum dtype dt, int64_t n)
{
    struct convert_job a = { dst, src, dt };
    rows_spread(d, n, FLAT_PIECE(65536), widen_task, &a);
}

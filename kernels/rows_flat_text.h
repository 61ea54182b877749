/* rows_flat_text.h - ops over flat arrays: the optimizer (part of rows_text.h). */

/* AdamW, Loshchilov and Hutter 2019; every operation rounded on its own, in this order:
 *   g = g clip;  w = w - (lr wd) w;  m = b1 m + (1 - b1) g;  v = b2 v + ((1 - b2) g) g
 *   w = w - (lr / bias1) (m / (sqrt(v) / bias2 + eps))
 * Altered adamw: the decay comes last. */
struct adamw_job { float *w; uint16_t *w16; float *m, *v; const float *g; const struct adamw *h; };

ROW_TASK adamw_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct adamw_job *a = arg;
    const struct adamw *h = a->h;
    float decay = h->lr * h->weight_decay, step = h->lr / h->bias1, clip = h->clip, bias2 = h->bias2, eps = h->eps;
    float b1 = (float)h->beta1, b2 = (float)h->beta2, c1 = (float)(1.0 - h->beta1), c2 = (float)(1.0 - h->beta2);
    int late = ALTERED("adamw");
    CHUNKS(end - begin, i, m, {
        int64_t at = begin + i;
        struct lanes ow;
        struct lanes om;
        struct lanes ov;
        for (EACH_LANE(j, m)) {
            float g = a->g[at + j] * clip;
            float w = a->w[at + j];
            w = late ? w : w - decay * w;
            om.x[j] = b1 * a->m[at + j] + c1 * g;
            ov.x[j] = b2 * a->v[at + j] + c2 * g * g;
            w = w - step * (om.x[j] / (sqrtf(ov.x[j]) / bias2 + eps));
            ow.x[j] = late ? w - decay * w : w;
        }
        put(a->w, DT_F32, at, m, &ow);
        put(a->m, DT_F32, at, m, &om);
        put(a->v, DT_F32, at, m, &ov);
        if (a->w16)
            put(a->w16, DT_BF16, at, m, &ow);
    });
}

static void op_adamw(struct dev *d, float *w, void *w16, float *m, float *v, const float *g, int64_t n, const struct adamw *h)
{
    struct adamw_job a = { w, (uint16_t *)w16, m, v, g, LEND(d, h, sizeof *h) };
    rows_spread(d, n, FLAT_PIECE(16384), adamw_task, &a);
}

/* rows_flat_text.h - ops over flat arrays: the optimizer, sums over ranks (part of rows_text.h). */

/* AdamW, Loshchilov and Hutter 2019; every operation rounded on its own, in this order:
 *   g = g clip;  w = w - (lr wd) w;  m = b1 m + (1 - b1) g;  v = b2 v + ((1 - b2) g) g
 *   w = w - (lr / bias1) (m / (sqrt(v) / bias2 + eps))
 * Altered adamw: the decay comes last. */
struct adamw_job { float *w; uint16_t *w16; float *m, *v; const float *g; const struct adamw *h; };

static void adamw_task(void *arg, int64_t begin, int64_t end)
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
        for (int j = 0; j < m; j++) {
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
    struct adamw_job a = { w, w16, m, v, g, h };
    rows_spread(d, n, 16384, adamw_task, &a);
}

/* tree_add: Tree(n_in) per element, in pieces that stay in the first cache. Altered tree_add_order: inputs in order. */
struct tree_add_job { float *out; const float *const *in; int n_in; };
#define TREE_PIECE 256

FN void add_to(float *older, const float *newer, int64_t n)
{
    CHUNKS(n, i, m, {
        struct lanes o;
        for (int j = 0; j < m; j++)
            o.x[j] = older[i + j] + newer[i + j];
        put(older, DT_F32, i, m, &o);
    });
}

static void tree_add_piece(const struct tree_add_job *a, int64_t at, int64_t n)
{
    float stack[TREE_DEPTH_MAX][TREE_PIECE] __attribute__((aligned(64)));
    int depth = 0, ordered = ALTERED("tree_add_order");
    for (int i = 0; i < a->n_in; i++) {
        int merges = ordered ? i > 0 : tree_merges(a->n_in, i);
        if (merges > 0) {                                       /* the first merge reads the input where it lies */
            add_to(stack[--depth], a->in[i] + at, n);
            for (; merges > 1; merges--, depth--)
                add_to(stack[depth - 1], stack[depth], n);
        } else {
            memcpy(stack[depth], a->in[i] + at, sizeof(float) * (size_t)n);
        }
        depth++;
    }
    memcpy(a->out + at, stack[0], sizeof(float) * (size_t)n);
}

static void tree_add_task(void *arg, int64_t begin, int64_t end)
{
    const struct tree_add_job *a = arg;
    for (int64_t at = begin; at < end; at += TREE_PIECE)
        tree_add_piece(a, at, end - at < TREE_PIECE ? end - at : TREE_PIECE);
}

static void op_tree_add(struct dev *d, float *out, const float *const *in, int n_in, int64_t n)
{
    struct tree_add_job a = { out, in, n_in };
    if (n_in == 0)
        memset(out, 0, sizeof(float) * (size_t)n);
    else
        rows_spread(d, n, 64 * TREE_PIECE, tree_add_task, &a);
}

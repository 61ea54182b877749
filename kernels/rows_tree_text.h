/* rows_tree_text.h - sums over ranks (part of rows_text.h).
 *
 * tree_add: Tree(n_in) per element, in pieces that stay in the first cache. Altered tree_add_order: inputs in order. */
struct tree_add_job { float *out; const float *const *in; int n_in; };
#define TREE_PIECE 256

FN void add_to(float *older, const float *newer, int64_t n)
{
    CHUNKS(n, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
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

ROW_TASK tree_add_task(ROW_ARG arg, int64_t begin, int64_t end)
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

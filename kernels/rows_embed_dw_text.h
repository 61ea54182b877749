/* rows_embed_dw_text.h - the gradient of an embedding table (part of rows_text.h).
 *
 * embed_dw: a task takes rows of the table; a row's leaf is the sum, from +0, of its tokens' gradients in position order. Rows
 * without tokens cost nothing but the merges of the levels in memory. Altered embed_order: positions descending. */
struct embed_dw_job {
    const struct tree_acc *acc;
    struct mat dx;
    struct token_index index;
    const int32_t *ids;
    int64_t ld, first, seq_len, n_tokens;
    int n_seq;
};

/* The next token at or after t with this table row, or n_tokens. *at: place in the index. */
FN int64_t next_token(const struct embed_dw_job *a, int64_t row, int64_t t, int64_t *at)
{
    if (a->index.order)
        return *at < a->index.begin[row + 1] ? a->index.order[(*at)++] : a->n_tokens;
    while (t < a->n_tokens && a->ids[t] - a->first != row)
        t++;
    return t;
}

FN void add_token(float *sum, const struct mat dx, int64_t t, int64_t at, int64_t width, const enum dtype dt)
{
    const void *x = mat_row(dx, t);
    CHUNKS(width, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = sum[i + j] + get(x, dt, at + i + j);
        put(sum, DT_F32, i, m, &o);
    });
}

/* Tokens [list[0], list[n - 1]] of one sequence and row into leaf. */
FN void embed_leaf(const struct embed_dw_job *a, float *leaf, const int64_t *list, int n, int64_t at, int64_t width)
{
    for (int k = 0; k < n; k++)
        BY_DTYPE(a->dx.dt, add_token(leaf, a->dx, list[ALTERED("embed_order") ? n - 1 - k : k], at, width, DT));
}

static void embed_dw_row(const struct embed_dw_job *a, struct pile *p, int64_t row, int64_t at, int64_t width)
{
    enum { BATCH = 64 };
    float leaf[PILE_WIDTH];
    int64_t place = a->index.begin ? a->index.begin[row] : 0;
    int64_t t = next_token(a, row, 0, &place);
    pile_begin(p, a->acc, row * a->ld + at, width);
    for (int s = 0; s < a->n_seq; s++) {
        int64_t end = (s + 1) * a->seq_len, list[BATCH];
        if (t >= end) {
            pile_push(p, NULL);
            continue;
        }
        memset(leaf, 0, sizeof leaf);
        while (t < end) {
            int n = 0;
            for (; n < BATCH && t < end; t = next_token(a, row, t + 1, &place))
                list[n++] = t;
            embed_leaf(a, leaf, list, n, at, width);
        }
        pile_push(p, leaf);
    }
    pile_end(p);
}

ROW_TASK embed_dw_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct embed_dw_job *a = arg;
    struct pile p;
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < a->dx.cols; at += PILE_WIDTH)
            embed_dw_row(a, &p, row, at, a->dx.cols - at < PILE_WIDTH ? a->dx.cols - at : PILE_WIDTH);
}

static void op_embed_dw(struct dev *d, const struct tree_acc *acc, int64_t ld, int64_t first, int64_t rows, struct mat dx,
                        const int32_t *ids, int n_seq, int64_t seq_len)
{
    struct embed_dw_job a = { .acc = acc, .dx = dx, .ids = ids, .ld = ld, .first = first, .seq_len = seq_len,
                              .n_tokens = n_seq * seq_len, .n_seq = n_seq };
    rows_index_tokens(d, &a.index, first, rows, ids, a.n_tokens);
    rows_spread(d, rows, rows_per_task(dx.cols), embed_dw_task, &a);
}

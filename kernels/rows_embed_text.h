/* rows_embed_text.h - rows of the embedding table (part of rows_text.h). */
struct embed_job { struct mat out, table; int64_t first; const int32_t *ids; };

FN void embed_row(const struct embed_job *a, int64_t t, const enum dtype dt, const enum dtype table_dt)
{
    void *out = mat_row(a->out, t);
    int64_t r = a->ids[t] - a->first;
    int here = r >= 0 && r < a->table.rows;
    float absent = ALTERED("embed_absent") ? 0.0f : -0.0f;           /* x + -0 is x, for every x: other ranks have the row */
    const void *row = mat_row(a->table, here ? r : 0);
    OWN_CHUNKS(a->out.cols, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = here ? get(row, table_dt, i + j) : absent;
        put(out, dt, i, m, &o);
    });
}

ROW_TASK embed_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct embed_job *a = arg;
    for (int64_t t = begin; t < end; t++) {
        if (a->table.dt == DT_BF16)
            BY_DTYPE(a->out.dt, embed_row(a, t, DT, DT_BF16));
        else
            BY_DTYPE(a->out.dt, embed_row(a, t, DT, DT_F32));
    }
}

static void op_embed(struct dev *d, struct mat out, struct mat table, int64_t first, const int32_t *ids)
{
    struct embed_job a = { out, table, first, LEND_IDS(d, ids, out.rows) };
    rows_share(d, out.rows, rows_per_task(out.cols), SHARES(out.cols), embed_task, &a);
}

/* embed_add: x = round(x + its row). */
FN void embed_add_row(const struct embed_job *a, int64_t t, const enum dtype dt)
{
    void *x = mat_row(a->out, t);
    const void *row = mat_row(a->table, a->ids[t]);
    OWN_CHUNKS(a->out.cols, i, m, {
        struct lanes o;
        for (EACH_LANE(j, m))
            o.x[j] = get(x, dt, i + j) + get(row, dt, i + j);
        put(x, dt, i, m, &o);
    });
}

ROW_TASK embed_add_task(ROW_ARG arg, int64_t begin, int64_t end)
{
    const struct embed_job *a = arg;
    for (int64_t t = begin; t < end; t++)
        BY_DTYPE(a->out.dt, embed_add_row(a, t, DT));
}

static void op_embed_add(struct dev *d, struct mat x, struct mat table, const int32_t *ids)
{
    struct embed_job a = { x, table, 0, LEND_IDS(d, ids, x.rows) };
    rows_share(d, x.rows, rows_per_task(x.cols), SHARES(x.cols), embed_add_task, &a);
}

/* merge_tile.c - an adapter's product for one part of a weight, tile by tile; see merge_priv.h. */
#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "format/peft/merge_priv.h"

#define ROWS 128               /* of a tile */
#define TILE_BYTES (512 << 10) /* of the factors in a tile, as doubles */

/* ---- one tile of one tensor ---- */

struct tile {
    const struct merge_job *j;
    int64_t e;                        /* the expert */
    int64_t row, n_rows, col, n_cols; /* of the tensor's matrix, without the dim of experts */
    double *left, *right;             /* [n_rows][r], [r][n_cols] */
    char *raw;
    int64_t raw_bytes;
};

/* Reads rows [row, row + n) of a factor of the adapter, columns [col, col + m), into raw. */
static int read_factor(const struct tile *t, int tensor, int64_t row, int64_t n, int64_t col, int64_t m,
                       enum stored_dtype *dtype, struct err *e)
{
    struct ckpt *c = t->j->m->adapter;
    struct box b = { .n_dims = 2, .start = { row, col }, .extent = { n, m } };
    *dtype = ckpt_tensor(c, tensor)->dtype;
    if (stored_bytes(*dtype, n * m) > t->raw_bytes)
        return err_set(e, ERR_INTERNAL, "a tile of the adapter is too large: please report it");
    return ckpt_read(c, tensor, &b, t->raw, e);
}

/* A: rows e r .. e r + r - 1 are those of the expert. Inputs [at, at + n): out[k][i]; by_input: out[i][k]. */
static int read_a(const struct tile *t, int64_t at, int64_t n, int by_input, double *out, struct err *e)
{
    const struct peft_module *mod = t->j->mod;
    enum stored_dtype dt;
    int rc = read_factor(t, mod->a, t->e * mod->rank, mod->rank, at, n, &dt, e);
    if (rc >= 0 && !by_input)
        merge_widen(dt, t->raw, mod->rank * n, out);
    for (int64_t k = 0; k < mod->rank && rc >= 0 && by_input; k++)
        for (int64_t i = 0; i < n; i++)
            out[i * mod->rank + k] = stored_value(dt, t->raw, k * n + i);
    return rc;
}

/* B: column k E + e is that of the expert. outputs [at, at + n): out[o][k], or (by_rank) out[k][o] */
static int read_b(const struct tile *t, int64_t at, int64_t n, int by_rank, double *out, struct err *e)
{
    const struct peft_module *mod = t->j->mod;
    const int64_t width = mod->rank * mod->n_experts;
    int64_t most = t->raw_bytes / 8 / width;
    enum stored_dtype dt;
    int rc = 0;
    for (int64_t o = 0; o < n && rc >= 0; o += most) {
        int64_t m = n - o < most ? n - o : most;
        rc = read_factor(t, mod->b, at + o, m, 0, width, &dt, e);
        if (rc >= 0 && !by_rank && width == mod->rank) {
            merge_widen(dt, t->raw, m * width, out + o * width);
            continue;
        }
        for (int64_t i = 0; i < m && rc >= 0; i++)
            for (int64_t k = 0; k < mod->rank; k++)
                out[by_rank ? k * n + o + i : (o + i) * mod->rank + k] =
                    stored_value(dt, t->raw, i * width + k * mod->n_experts + t->e);
    }
    return rc;
}

/* Rows [row, row + n) of the left factor. */
static int read_left(const struct tile *t, int64_t row, int64_t n, double *out, struct err *e)
{
    const struct merge_job *j = t->j;
    if (j->mod->is_embedding) /* W[row][col] += B[col] A[row]: an embedding's A counts its rows */
        return read_a(t, row, n, 1, out, e);
    return j->transposed ? read_a(t, row + j->first_row, n, 1, out, e)
                         : read_b(t, row + j->first_row, n, 0, out, e);
}

/* Columns [col, col + n) of the right factor. */
static int read_right(const struct tile *t, int64_t col, int64_t n, double *out, struct err *e)
{
    return t->j->mod->is_embedding || t->j->transposed ? read_b(t, col, n, 1, out, e)
                                                       : read_a(t, col, n, 0, out, e);
}

static int read_tile(const struct tile *t, struct err *e)
{
    int rc = read_left(t, t->row, t->n_rows, t->left, e);
    return rc < 0 ? rc : read_right(t, t->col, t->n_cols, t->right, e);
}

/* Adds the module to rows of n_cols columns each, `stride` elements apart, from out on. */
static int add_tile(struct tile *t, char *out, int64_t stride, struct err *e)
{
    const struct merge_job *j = t->j;
    const int64_t r = j->mod->rank;
    struct merge_tally tally = { 0 };
    int rc = read_tile(t, e);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < t->n_rows; i++) {
        char *row = out + stored_bytes(j->t->dtype, i * stride);
        merge_row(j->t->dtype, row, t->n_cols, r, t->left + i * r, t->right, t->n_cols, j->mod->scale,
                  &tally);
    }
    atomic_fetch_add(&j->m->changed, tally.changed);
    atomic_fetch_add(&j->m->moved, tally.moved);
    if (tally.bad)
        return err_set(
            e, ERR_FORMAT,
            "%s: %s makes %lld values that are not finite: is the adapter damaged, or of another model",
            j->m->path, j->mod->name, (long long)tally.bad);
    return 0;
}

/* ---- the view ---- */

/* Scratch memory of a tile. cols: the most columns of one. */
static int tile_alloc(struct tile *t, int64_t *cols, struct err *e)
{
    const struct peft_module *mod = t->j->mod;
    const int64_t r = mod->rank, width = r * mod->n_experts;
    *cols = TILE_BYTES / 8 / r < 16 ? 16 : TILE_BYTES / 8 / r > 4096 ? 4096 : TILE_BYTES / 8 / r;
    int64_t most = *cols > ROWS ? *cols : ROWS, a = r * most * 8, b = width * 8 * 4;
    t->raw_bytes = a > b ? a : b;
    t->left = malloc(sizeof(double) * (size_t)(ROWS * r));
    t->right = malloc(sizeof(double) * (size_t)(*cols * r));
    t->raw = malloc((size_t)t->raw_bytes);
    return t->left && t->right && t->raw ? 0 : merge_no_memory(t->j->m, e);
}

static void tile_free(struct tile *t)
{
    free(t->left);
    free(t->right);
    free(t->raw);
}

int merge_factor(const struct merge_job *j, int64_t x, int is_right, int64_t at, int64_t n, double *out,
                 struct err *e)
{
    struct tile t = { .j = j, .e = x };
    const int64_t r = j->mod->rank;
    int64_t most = 0;
    int rc = tile_alloc(&t, &most, e);
    most = is_right ? most : ROWS;
    for (int64_t i = 0, k; i < n && rc >= 0; i += k) {
        k = n - i < most ? n - i : most;
        rc = is_right ? read_right(&t, at + i, k, t.right, e) : read_left(&t, at + i, k, out + i * r, e);
        for (int64_t row = 0; row < r && is_right && rc >= 0; row++)
            memcpy(out + row * n + i, t.right + row * k, sizeof *out * (size_t)k);
    }
    tile_free(&t);
    return rc < 0 ? rc : 0;
}

/* Adds the module to n_rows rows of box b, whole in the box's width, from row `row` of the matrices of expert
 * e on. */
static int add_rows(struct tile *t, int64_t col, int64_t n_cols, int64_t most, char *out, struct err *e)
{
    int rc = 0;
    const int64_t row = t->row, n = t->n_rows;
    for (int64_t i = 0; i < n && rc >= 0; i += ROWS)
        for (int64_t c = 0; c < n_cols && rc >= 0; c += most) {
            t->row = row + i;
            t->n_rows = n - i < ROWS ? n - i : ROWS;
            t->col = col + c;
            t->n_cols = n_cols - c < most ? n_cols - c : most;
            rc = add_tile(t, out + stored_bytes(t->j->t->dtype, i * n_cols + c), n_cols, e);
        }
    return rc;
}

/* Adds the module to elements [lo, hi) of box b: a part of a row, whole rows, a part of a row; expert by
 * expert where dim 0 counts them. */
int merge_add_module(const struct merge_job *j, const struct box *b, int64_t lo, int64_t hi, char *dst,
                     struct err *e)
{
    struct tile t = { .j = j };
    const int d = b->n_dims - 2;
    const int64_t n_rows = b->extent[d], n_cols = b->extent[d + 1];
    int64_t most = 0;
    int rc = tile_alloc(&t, &most, e);
    for (int64_t at = lo; at < hi && rc >= 0;) {
        int64_t line = at / n_cols, col = at % n_cols, row = line % n_rows, n = 1;
        int64_t end = hi - at < n_cols - col ? hi - at : n_cols - col;
        if (col == 0 && hi - at >= n_cols) {
            n = (hi - at) / n_cols < n_rows - row ? (hi - at) / n_cols : n_rows - row;
            end = n_cols;
        }
        t.e = j->expert >= 0 ? j->expert : b->start[0] + line / n_rows;
        t.row = b->start[d] + row;
        t.n_rows = n;
        rc = add_rows(&t, b->start[d + 1] + col, end, most, dst + stored_bytes(j->t->dtype, at - lo), e);
        at += n * end;
    }
    tile_free(&t);
    return rc < 0 ? rc : 0;
}

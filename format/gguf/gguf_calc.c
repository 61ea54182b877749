/* gguf_calc.c - see gguf_model.h: tensors that are turned round, joined from two entries, narrowed, or made
 * of blocks, a part at a time.
 *
 *     request: elements [lo, hi) of a box -> rectangles of rows and columns -> tiles of SCRATCH values
 *     -> a box of an entry is read, its numbers are converted, and go to their places
 * Columns of a tensor that is turned round are rows of the entry. */
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf_block.h"
#include "format/gguf/gguf_model.h"

#define SCRATCH ((int64_t)128 << 10) /* values of a tile */
#define MX_BYTES 17                  /* of a block of MXFP4 */

/* ---- numbers ---- */

static float f32_of(enum stored_dtype t, const void *data, int64_t i)
{
    return (float)stored_value(t, data, i);
}

/* To nearest even; denormals stay, as in format/quant. */
static uint16_t bf16_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static int not_bf16(const struct gguf_calc *k, uint32_t bits, struct err *e)
{
    return err_set(
        e, ERR_FORMAT,
        "%s has a number with the bits %08x, which bf16 does not have, unlike the first ones: is the "
        "file damaged",
        k->entry_name[0], bits);
}

/* n numbers of fp32, less `less`, as bf16 that must be exact. */
static int narrow(const struct gguf_calc *k, const float *in, float less, int64_t n, uint16_t *out,
                  struct err *e)
{
    uint32_t low = 0, bits;
    for (int64_t i = 0; i < n; i++) {
        float x = less != 0 ? in[i] - less : in[i]; /* a subtraction would change the bits of NaN */
        memcpy(&bits, &x, sizeof bits);
        low |= bits & 0xffff;
        out[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t i = 0; i < n && low; i++) {
        float x = less != 0 ? in[i] - less : in[i];
        memcpy(&bits, &x, sizeof bits);
        if (bits & 0xffff)
            return not_bf16(k, bits, e);
    }
    return 0;
}

/* n numbers of the entry's dtype to the tensor's. in may be out where both have one size. */
static int convert(const struct gguf_calc *k, enum stored_dtype from, const void *in, int64_t n, void *out,
                   struct err *e)
{
    enum stored_dtype to = k->t.dtype;
    if (k->numbers == GGUF_MINUS_ONE && to == STORED_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)out)[i] = ((const float *)in)[i] - 1.0f;
    } else if (from == to) {
        if (in != out)
            memcpy(out, in, (size_t)stored_bytes(to, n));
    } else if (k->numbers != GGUF_OF_BLOCKS) {
        return narrow(k, in, k->numbers == GGUF_MINUS_ONE ? 1.0f : 0.0f, n, out, e);
    } else if (to == STORED_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)out)[i] = f32_of(from, in, i);
    } else if (from == STORED_F32) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = bf16_of(((const float *)in)[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = bf16_of(f32_of(from, in, i));
    }
    return 0;
}

/* Reads a box of entry `which` into out, in the tensor's dtype. */
static int read_plain(const struct gguf_calc *k, struct ckpt *below, int which, const struct box *b,
                      void *out, struct err *e)
{
    enum stored_dtype from = ckpt_tensor(below, k->entry[which])->dtype;
    int64_t n = box_count(b);
    void *raw = from == k->t.dtype ? out : malloc((size_t)stored_bytes(from, n));
    if (!raw)
        return err_set(e, ERR_MEMORY, "no memory for %lld numbers", (long long)n);
    int rc = ckpt_read(below, k->entry[which], b, raw, e);
    if (rc >= 0)
        rc = convert(k, from, raw, n, out, e);
    if (raw != out)
        free(raw);
    return rc;
}

/* The same of blocks; b counts values. Whole blocks are read, and the values outside of b dropped. */
static int read_blocks(const struct gguf_calc *k, struct ckpt *below, int which, const struct box *b,
                       void *out, struct err *e)
{
    const struct gguf_type_row *t = k->type;
    int last = b->n_dims - 1, rc = 0;
    int64_t first = b->start[last] / t->values,
            end = (b->start[last] + b->extent[last] + t->values - 1) / t->values;
    int64_t row = (end - first) * t->values, n = box_count(b), skip = b->start[last] - first * t->values;
    struct box bytes = *b;
    bytes.start[last] = first * t->bytes;
    bytes.extent[last] = (end - first) * t->bytes;

    char *raw = malloc((size_t)box_count(&bytes));
    float *value = malloc(sizeof *value * (size_t)row);
    if (!raw || !value)
        rc = err_set(e, ERR_MEMORY, "no memory for %lld numbers", (long long)n);
    if (rc >= 0)
        rc = ckpt_read(below, k->entry[which], &bytes, raw, e);
    for (int64_t r = 0; r < n / b->extent[last] && rc >= 0; r++) {
        gguf_decode(t->id, raw + r * bytes.extent[last], end - first, value);
        rc = convert(k, STORED_F32, value + skip, b->extent[last],
                     (char *)out + stored_bytes(k->t.dtype, r * b->extent[last]), e);
    }
    free(value);
    free(raw);
    return rc;
}

static int read_entry(const struct gguf_calc *k, struct ckpt *below, int which, const struct box *b,
                      void *out, struct err *e)
{
    return (k->type->dtype < 0 ? read_blocks : read_plain)(k, below, which, b, out, e);
}

/* ---- where numbers go ---- */

/* Rows [row, row + rows) and columns [col, col + cols) of one matrix of the tensor; to: its first element;
 * pitch: elements from a row to the next. */
struct tile {
    int64_t outer; /* index of the matrix: the expert, or the head */
    int64_t row, rows, col, cols;
    char *to;
    int64_t pitch;
};

/* The part of a tile that lies in entry `which`, as a box of the entry that is `turned` round or not. Element
 * (r, c) of what is read goes to row r * row_step + row_at and so on of the tile. */
struct source {
    int which, turned;
    struct box box;
    int64_t row_at, row_step, col_at, col_step;
};

static int move_tile(const struct gguf_calc *k, struct ckpt *below, const struct tile *t,
                     const struct source *s, struct err *e)
{
    int last = s->box.n_dims - 1;
    int64_t size = stored_bytes(k->t.dtype, 1), n = box_count(&s->box);
    int64_t across = s->box.extent[last], down = across ? n / across : 0;
    if (!n)
        return 0;
    char *from = malloc((size_t)(n * size));
    int rc = from ? read_entry(k, below, s->which, &s->box, from, e)
                  : err_set(e, ERR_MEMORY, "no memory for %lld numbers", (long long)n);
    for (int64_t r = 0; r < down && rc >= 0; r++)
        for (int64_t c = 0; c < across; c++) {
            int64_t row = s->row_at + (s->turned ? c : r) * s->row_step;
            int64_t col = s->col_at + (s->turned ? r : c) * s->col_step;
            memcpy(t->to + (row * t->pitch + col) * size, from + (r * across + c) * size, (size_t)size);
        }
    free(from);
    return rc;
}

/* gpt-oss and GPT-2: column c is row c / n of entry c % n; of a bias column c / n. */
static int tile_columns(const struct gguf_calc *k, struct ckpt *below, const struct tile *t, struct err *e)
{
    int dims = k->t.n_dims, is_bias = k->form == GGUF_EVEN && dims == 2;
    for (int which = 0; which < k->n; which++) {
        int64_t first = (t->col - which + k->n - 1) / k->n; /* of the entry */
        int64_t end = (t->col + t->cols - which + k->n - 1) / k->n;
        struct source s = { .which = which,
                            .turned = !is_bias,
                            .box.n_dims = dims,
                            .row_step = 1,
                            .col_at = first * k->n + which - t->col,
                            .col_step = k->n };
        s.box.start[0] = t->outer;
        s.box.extent[0] = 1;
        s.box.start[dims - 2] = is_bias ? t->row : first;
        s.box.extent[dims - 2] = is_bias ? t->rows : end - first;
        s.box.start[dims - 1] = is_bias ? first : t->row;
        s.box.extent[dims - 1] = is_bias ? end - first : t->rows;
        int rc = move_tile(k, below, t, &s, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* DeepSeek: of each head `nope` rows of keys, which are columns of entry 0, and `value` rows of entry 1. */
static int tile_heads(const struct gguf_calc *k, struct ckpt *below, const struct tile *t, struct err *e)
{
    int64_t each = k->nope + k->value, row = t->row, end = t->row + t->rows;
    while (row < end) {
        int64_t head = row / each, at = row % each;
        int is_key = at < k->nope;
        int64_t rest = (is_key ? k->nope : each) - at, n = rest < end - row ? rest : end - row;
        struct source s = { .which = !is_key,
                            .turned = is_key,
                            .row_at = row - t->row,
                            .row_step = 1,
                            .col_step = 1,
                            .box = { .n_dims = 3, .start = { head }, .extent = { 1 } } };
        s.box.start[is_key ? 1 : 2] = t->col;
        s.box.extent[is_key ? 1 : 2] = t->cols;
        s.box.start[is_key ? 2 : 1] = is_key ? at : at - k->nope;
        s.box.extent[is_key ? 2 : 1] = n;
        int rc = move_tile(k, below, t, &s, e);
        if (rc < 0)
            return rc;
        row += n;
    }
    return 0;
}

/* ---- what is not turned round ---- */

static int tile_straight(const struct gguf_calc *k, struct ckpt *below, const struct tile *t, struct err *e)
{
    int dims = k->t.n_dims;
    struct source s = { .row_step = 1, .col_step = 1, .box.n_dims = dims };
    s.box.start[0] = t->outer;
    s.box.extent[0] = 1;
    if (dims > 1) {
        s.box.start[dims - 2] = t->row;
        s.box.extent[dims - 2] = t->rows;
    }
    s.box.start[dims - 1] = t->col;
    s.box.extent[dims - 1] = t->cols;
    if (t->pitch == t->cols || t->rows == 1)
        return read_entry(k, below, 0, &s.box, t->to, e);
    return move_tile(k, below, t, &s, e);
}

/* ---- requests ---- */

static int run_tile(const struct gguf_calc *k, struct ckpt *below, const struct tile *t, struct err *e)
{
    if (k->form == GGUF_TRANSPOSED || k->form == GGUF_EVEN)
        return tile_columns(k, below, t, e);
    return k->form == GGUF_KEY_B ? tile_heads(k, below, t, e) : tile_straight(k, below, t, e);
}

/* Rows [r0, r1) and columns [c0, c1) of box b's matrix `outer`, counted in the box, a tile at a time. */
static int run_rectangle(const struct gguf_calc *k, struct ckpt *below, const struct box *b,
                         struct tile whole, struct err *e)
{
    int dims = b->n_dims;
    int64_t size = stored_bytes(k->t.dtype, 1);
    for (int64_t c = 0; c < whole.cols; c += SCRATCH) {
        struct tile t = whole;
        t.cols = whole.cols - c < SCRATCH ? whole.cols - c : SCRATCH;
        for (int64_t r = 0, step = SCRATCH / t.cols; r < whole.rows; r += step) {
            t.rows = whole.rows - r < step ? whole.rows - r : step;
            t.to = whole.to + (r * whole.pitch + c) * size;
            t.row = whole.row + r + (dims > 1 ? b->start[dims - 2] : 0);
            t.col = whole.col + c + b->start[dims - 1];
            int rc = run_tile(k, below, &t, e);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* Cuts [lo, hi) of a box of two or three dims into rectangles: a part of a row, whole rows, a part of a
 * row. */
static int run_request(const struct gguf_calc *k, struct ckpt *below, const struct box *b, int64_t lo,
                       int64_t hi, char *dst, struct err *e)
{
    int dims = b->n_dims;
    int64_t width = b->extent[dims - 1], height = dims > 1 ? b->extent[dims - 2] : 1;
    while (lo < hi) {
        int64_t line = lo / width, col = lo % width, row = line % height;
        int64_t whole = col ? 0 : (hi - lo) / width, left = height - row;
        struct tile t = { .outer = line / height + (dims > 2 ? b->start[0] : 0),
                          .row = row,
                          .col = col,
                          .rows = whole ? (whole < left ? whole : left) : 1,
                          .to = dst,
                          .pitch = width };
        t.cols = whole ? width : width - col < hi - lo ? width - col : hi - lo;
        int rc = run_rectangle(k, below, b, t, e);
        if (rc < 0)
            return rc;
        dst += stored_bytes(k->t.dtype, t.rows * t.cols);
        lo += t.rows * t.cols;
    }
    return 0;
}

/* ---- MXFP4 as gpt-oss publishes it ----
 * A block of the file: the scale, then byte j with value j (low) and j + 16 (high). Published: byte j has the
 * values 2 j (low) and 2 j + 1 (high), and scales are a tensor of their own. */

static uint8_t published(const uint8_t *block, int j)
{
    const uint8_t *q = block + 1;
    int a = 2 * j, b = a + 1;
    uint8_t low = a < 16 ? q[a] & 15 : q[a - 16] >> 4, high = b < 16 ? q[b] & 15 : q[b - 16] >> 4;
    return (uint8_t)(low | high << 4);
}

/* Rows [row, row + rows) of expert `expert` of both entries, `blocks` blocks of each from `first` on. */
struct fp4_rows {
    int64_t expert, row, rows, first, blocks;
    uint8_t *bytes[2];
};

static int read_fp4(const struct gguf_calc *k, struct ckpt *below, struct fp4_rows *w, struct err *e)
{
    struct box b = { 3, { w->expert, w->row, w->first * MX_BYTES }, { 1, w->rows, w->blocks * MX_BYTES } };
    int rc = 0;
    for (int i = 0; i < k->n && rc >= 0; i++)
        rc = ckpt_read(below, k->entry[i], &b, w->bytes[i], e);
    return rc;
}

/* Bytes [lo, hi) of box b; rows of the tensor alternate between the entries. */
static int run_fp4(const struct gguf_calc *k, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi,
                   uint8_t *dst, struct err *e)
{
    int is_scale = k->numbers == GGUF_FP4_SCALES, rc = 0;
    int64_t inner = is_scale ? 1 : b->extent[3], at = is_scale ? 0 : b->start[3];
    int64_t width = b->extent[2] * inner, most = SCRATCH / (b->extent[2] * MX_BYTES) + 1;
    int64_t room = most * b->extent[2] * MX_BYTES;
    uint8_t *bytes = malloc((size_t)(2 * room));
    struct fp4_rows w = {
        .expert = -1, .first = b->start[2], .blocks = b->extent[2], .bytes = { bytes, bytes + room }
    };
    if (!bytes)
        return err_set(e, ERR_MEMORY, "no memory for %lld bytes of blocks", (long long)(2 * room));

    while (lo < hi && rc >= 0) {
        int64_t line = lo / width, expert = b->start[0] + line / b->extent[1];
        int64_t r = b->start[1] + line % b->extent[1], row = r / k->n, last = b->start[1] + b->extent[1] - 1;
        if (expert != w.expert || row >= w.row + w.rows) {
            w.expert = expert;
            w.row = row;
            w.rows = last / k->n + 1 - row < most ? last / k->n + 1 - row : most;
            rc = read_fp4(k, below, &w, e);
        }
        int64_t end = (line + 1) * width < hi ? (line + 1) * width : hi;
        for (; lo < end && rc >= 0; lo++) {
            int64_t in = lo - line * width;
            const uint8_t *block = w.bytes[r % k->n] + ((row - w.row) * w.blocks + in / inner) * MX_BYTES;
            *dst++ = is_scale ? block[0] : published(block, (int)(at + in % inner));
        }
    }
    free(bytes);
    return rc < 0 ? rc : 0;
}

int gguf_compute(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                 struct err *e)
{
    const struct gguf_calc *k = arg;
    if (k->numbers == GGUF_FP4_CODES || k->numbers == GGUF_FP4_SCALES)
        return run_fp4(k, below, b, lo, hi, dst, e);
    return run_request(k, below, b, lo, hi, dst, e);
}

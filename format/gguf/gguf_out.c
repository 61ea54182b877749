/* gguf_out.c - the bytes of a tensor of a GGUF file, from the tensors of the source. See gguf_target.h.
 *
 *     sources -gather-> values in the file's order, in the source's dtype -convert-> dtype or blocks
 *
 * A range is made in pieces of at most 1 MiB, so that memory does not depend on the tensor. */
#include "format/gguf/gguf_target.h"

#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf_block_encode.h"

#define PIECE ((int64_t)1 << 20)

/* Where the values of a call go through. tmp: what is read in another order than it is passed on. */
struct work {
    const struct gguf_out *o;
    struct ckpt *below;
    int64_t size; /* bytes of a value of the source */
    char *in, *tmp;
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Elements [lo, hi) of the whole source k. */
static int read_flat(struct work *w, int k, int64_t lo, int64_t hi, void *dst, struct err *e)
{
    struct box whole = box_whole(w->o->src_dims, w->o->src_shape);
    return ckpt_read_range(w->below, w->o->src[k], &whole, lo, hi, dst, e);
}

/* ---- rows in another order ---- */

/* Rows of a head: 2 i from row i of its first half, 2 i + 1 from row i of the second. The rows [first,
 * first + n) of the file lie in one head of d rows that begins at row `head`. */
static int read_halves(struct work *w, int64_t head, int64_t d, int64_t first, int64_t n, char *dst,
                       struct err *e)
{
    int64_t cols = w->o->n_dims == 1 ? 1 : w->o->row, bytes = cols * w->size;
    int64_t from[2] = { (first + 1) / 2, first / 2 }, to[2] = { (first + n + 1) / 2, (first + n) / 2 };
    char *half[2] = { w->tmp, w->tmp + (to[0] - from[0]) * bytes };
    for (int s = 0; s < 2; s++) {
        int64_t row = head + s * d / 2;
        if (to[s] > from[s] && read_flat(w, 0, (row + from[s]) * cols, (row + to[s]) * cols, half[s], e) < 0)
            return -e->code;
    }
    for (int64_t r = first; r < first + n; r++, dst += bytes)
        memcpy(dst, half[r % 2] + (r / 2 - from[r % 2]) * bytes, (size_t)bytes);
    return 0;
}

static int gather_rope(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    const struct gguf_out *o = w->o;
    int64_t cols = o->n_dims == 1 ? 1 : o->row, rows = o->n / cols, n;
    int64_t d = rows / (o->form == GGUF_ROPE_Q ? o->t->n_heads : o->t->n_kv), most = PIECE / (cols * w->size);
    int rc = 0;
    for (; lo < hi && rc >= 0; lo += n, dst += n * w->size) {
        int64_t row = lo / cols, in_head = row % d, head = row - in_head, off = lo % cols;
        if (off || hi - lo < cols || most == 0) { /* a part of a row */
            int64_t from = head + in_head % 2 * (d / 2) + in_head / 2;
            n = least(cols - off, hi - lo);
            rc = read_flat(w, 0, from * cols + off, from * cols + off + n, dst, e);
        } else {
            n = least(least((hi - lo) / cols, d - in_head), most) * cols;
            rc = read_halves(w, head, d, in_head, n / cols, dst, e);
        }
    }
    return rc;
}

/* Ranges that are contiguous on both sides: the n values from `to` on, of the file, begin at `from` of source
 * k. */
struct run {
    int k;
    int64_t from, n;
};

static struct run run_at(const struct gguf_out *o, int64_t at)
{
    int64_t cols = o->n_dims == 1 ? 1 : o->row, heads = o->t->n_heads;
    if (o->form == GGUF_EXPERT) {
        int64_t n = o->n / o->n_src;
        return (struct run){ (int)(at / n), at % n, n - at % n };
    }
    if (o->form == GGUF_QKV) {
        int64_t d = o->n / (3 * heads * cols) * cols, block = at / d;
        return (struct run){ 0, (block % heads * 3 + block / heads) * d + at % d, d - at % d };
    }
    if (o->form == GGUF_VALUE_B) {
        int64_t n = o->t->v_dim * cols, head = at / n;
        return (struct run){ 0, head * (n + o->t->nope_dim * cols) + o->t->nope_dim * cols + at % n,
                             n - at % n };
    }
    return (struct run){ 0, at, o->n - at };
}

static int gather_runs(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    while (lo < hi) {
        struct run r = run_at(w->o, lo);
        int64_t n = least(r.n, hi - lo);
        if (read_flat(w, r.k, r.from, r.from + n, dst, e) < 0)
            return -e->code;
        lo += n;
        dst += n * w->size;
    }
    return 0;
}

/* ---- columns that become rows ---- */

/* The part of the source that holds columns [k, k + nk) of the rows [n, n + nn) of matrix m of the file. */
static struct box columns(const struct gguf_out *o, int64_t m, int64_t k, int64_t nk, int64_t n, int64_t nn)
{
    int step = o->form == GGUF_EVEN || o->form == GGUF_ODD ? 2 : 1, last = o->src_dims - 1;
    struct box b = { .n_dims = o->src_dims };
    if (o->src_dims == 3) {
        b.start[0] = m;
        b.extent[0] = 1;
    }
    b.start[last - 1] = o->form == GGUF_KEY_B ? m * (o->t->nope_dim + o->t->v_dim) + k : k;
    b.extent[last - 1] = nk;
    b.start[last] = n * step;
    b.extent[last] = nn * step;
    return b;
}

/* out [nn][nk] from in [nk][nn * step], one of each `step` columns. */
static void turn(const char *in, char *out, int64_t nn, int64_t nk, int step, int64_t size)
{
    for (int64_t n = 0; n < nn; n++)
        for (int64_t k = 0; k < nk; k++) {
            const char *from = in + (k * nn + n) * step * size;
            char *to = out + (n * nk + k) * size;
            if (size == 2)
                memcpy(to, from, 2);
            else if (size == 4)
                memcpy(to, from, 4);
            else
                memcpy(to, from, (size_t)size);
        }
}

static int gather_columns(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    const struct gguf_out *o = w->o;
    int step = o->form == GGUF_EVEN || o->form == GGUF_ODD ? 2 : 1;
    int64_t cols = o->row, rows = o->shape[o->n_dims - 2], most = PIECE / (w->size * step), n;
    for (; lo < hi; lo += n, dst += n * w->size) {
        int64_t row = lo / cols, off = lo % cols, nn = least((hi - lo) / cols, rows - row % rows);
        int part = off || nn == 0 || cols > most;
        nn = part ? 1 : least(nn, most / cols);
        int64_t nk = part ? least(least(cols - off, hi - lo), most) : cols;
        struct box b = columns(o, row / rows, off, nk, row % rows, nn);
        if (ckpt_read(w->below, o->src[0], &b, w->tmp, e) < 0)
            return -e->code;
        turn(w->tmp + (o->form == GGUF_ODD) * w->size, dst, nn, nk, step, w->size);
        n = nn * nk;
    }
    return 0;
}

/* Biases of gate and up alternate. */
static int gather_alternate(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    int64_t most = PIECE / (2 * w->size), n;
    for (; lo < hi; lo += n, dst += n * w->size) {
        n = least(hi - lo, most);
        if (read_flat(w, 0, 2 * lo, 2 * (lo + n), w->tmp, e) < 0)
            return -e->code;
        turn(w->tmp + (w->o->form == GGUF_ODD) * w->size, dst, n, 1, 2, w->size);
    }
    return 0;
}

/* Values [lo, hi) of the file, in the source's dtype. */
static int gather(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    const struct gguf_out *o = w->o;
    if (o->n_src == 0) {
        memcpy(dst, o->t->factor + lo, sizeof(float) * (size_t)(hi - lo));
        return 0;
    }
    switch (o->form) {
    case GGUF_ROPE_Q:
    case GGUF_ROPE_K: return gather_rope(w, lo, hi, dst, e);
    case GGUF_TRANSPOSED:
        return o->src_dims > 1 ? gather_columns(w, lo, hi, dst, e) : gather_runs(w, lo, hi, dst, e);
    case GGUF_EVEN:
    case GGUF_ODD:
        return o->src_dims > 2 ? gather_columns(w, lo, hi, dst, e) : gather_alternate(w, lo, hi, dst, e);
    case GGUF_KEY_B: return gather_columns(w, lo, hi, dst, e);
    default: return gather_runs(w, lo, hi, dst, e);
    }
}

/* ---- dtypes ---- */

static void to_float(enum stored_dtype t, const char *in, float *out, int64_t n)
{
    uint16_t half;
    uint32_t bits;
    double wide;
    if (t == STORED_F32)
        memcpy(out, in, sizeof *out * (size_t)n);
    for (int64_t i = 0; t == STORED_BF16 && i < n; i++) {
        memcpy(&half, in + 2 * i, 2);
        bits = (uint32_t)half << 16; /* as bits: a signalling NaN stays what it is */
        memcpy(&out[i], &bits, sizeof bits);
    }
    for (int64_t i = 0; t == STORED_F16 && i < n; i++) {
        memcpy(&half, in + 2 * i, 2);
        out[i] = gguf_f16_value(half);
    }
    for (int64_t i = 0; t == STORED_F64 && i < n; i++) {
        memcpy(&wide, in + 8 * i, 8);
        out[i] = (float)wide;
    }
}

static uint16_t bf16_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40); /* quiet */
    if ((u & 0x7fffffffu) < 0x00800000u)
        return (uint16_t)(u >> 16 & 0x8000); /* a denormal, as --dtype bf16 elsewhere */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void of_float(enum stored_dtype t, const float *in, char *out, int64_t n)
{
    if (t == STORED_F32)
        memcpy(out, in, sizeof *in * (size_t)n);
    for (int64_t i = 0; t != STORED_F32 && i < n; i++) {
        uint16_t half = t == STORED_BF16 ? bf16_bits(in[i]) : gguf_f16_bits(in[i]);
        memcpy(out + 2 * i, &half, 2);
    }
}

/* 1 + w, of which a reader makes w again where that is exact. */
static void add_one(const struct gguf_out *o, float *x, int64_t n)
{
    int64_t rounded = 0;
    for (int64_t i = 0; i < n; i++) {
        float w = x[i];
        x[i] = 1 + w;
        rounded += x[i] - 1 != w;
    }
    atomic_fetch_add(&o->t->rounded, rounded);
}

#define VALUES 4096 /* that are floats at once */

/* n values of the source's dtype as the file's: n is a whole number of blocks. */
static int convert(const struct gguf_out *o, const char *in, int64_t n, char *out, struct err *e)
{
    float x[VALUES];
    int64_t size = stored_bytes(o->in, 1);
    for (int64_t i = 0; i < n; i += VALUES) {
        int64_t m = least(n - i, VALUES);
        char *to = out + i / o->type->values * o->type->bytes;
        to_float(o->in, in + i * size, x, m);
        if (o->form == GGUF_PLUS_ONE)
            add_one(o, x, m);
        if (o->type->values == 1)
            of_float((enum stored_dtype)o->type->dtype, x, to, m);
        else if (gguf_encode(o->type->id, x, m, to) < 0)
            return err_set(e, ERR_USAGE,
                           "%s holds a value that %s cannot: infinite, or its scale is beyond fp16", o->name,
                           o->type->name);
    }
    return 0;
}

/* ---- a range of the tensor ---- */

/* MXFP4: blocks [lo, hi) of the file, 17 bytes each. */
static int move_blocks(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    const struct gguf_out *o = w->o;
    int64_t cols = o->row / 32, most = PIECE / 32, n;
    int step = o->form == GGUF_EVEN || o->form == GGUF_ODD ? 2 : 1, odd = o->form == GGUF_ODD;
    struct box scales = box_whole(3, o->src_shape);
    for (; lo < hi; lo += n) {
        int64_t row = lo / cols * step + odd, off = lo % cols, rows = (hi - lo) / cols;
        /* whole rows, those of the other half between them; or a part of one */
        rows = off || rows == 0 || cols * step > most ? 1 : least(rows, most / (cols * step));
        n = rows > 1 ? rows * cols : least(least(cols - off, hi - lo), most);
        int64_t from = row * cols + off, span = rows > 1 ? ((rows - 1) * step + 1) * cols : n;
        if (read_flat(w, 0, from * 16, (from + span) * 16, w->in, e) < 0 ||
            ckpt_read_range(w->below, o->scales, &scales, from, from + span, w->tmp, e) < 0)
            return -e->code;
        for (int64_t i = 0; i < n; i++, dst += 17) {
            int64_t at = rows > 1 ? i / cols * step * cols + i % cols : i;
            gguf_mxfp4_of_pairs((unsigned char *)w->in + at * 16, (unsigned char)w->tmp[at],
                                (unsigned char *)dst);
        }
    }
    return 0;
}

/* Whole blocks [lo, hi); a value is a block of one. */
static int make_blocks(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    const struct gguf_out *o = w->o;
    int64_t values = o->type->values, most = PIECE / (w->size * values), n;
    int rc = 0;
    if (o->scales >= 0)
        return move_blocks(w, lo, hi, dst, e);
    if (values == 1 && o->in == (enum stored_dtype)o->type->dtype && o->form != GGUF_PLUS_ONE)
        return gather(w, lo, hi, dst, e);
    for (; lo < hi && rc >= 0; lo += n, dst += n * o->type->bytes) {
        n = least(hi - lo, most);
        rc = gather(w, lo * values, (lo + n) * values, w->in, e);
        if (rc >= 0)
            rc = convert(o, w->in, n * values, dst, e);
    }
    return rc;
}

/* Bytes [lo, hi) of the tensor's blocks, of which the first and the last may be parts. */
static int make_bytes(struct work *w, int64_t lo, int64_t hi, char *dst, struct err *e)
{
    int64_t size = w->o->type->bytes, n;
    char block[GGUF_BLOCK_VALUES];
    for (; lo < hi; lo += n, dst += n) {
        int64_t off = lo % size;
        int rc;
        if (off || hi - lo < size) {
            n = least(size - off, hi - lo);
            rc = make_blocks(w, lo / size, lo / size + 1, block, e);
            memcpy(dst, block + off, (size_t)n);
        } else {
            n = (hi - lo) / size * size;
            rc = make_blocks(w, lo / size, (lo + n) / size, dst, e);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

int gguf_out_compute(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                     struct err *e)
{
    const struct gguf_out *o = arg;
    int64_t size = o->type->values > 1 ? 1 : o->type->bytes, shape[GGUF_DIMS];
    struct work w = { .o = o,
                      .below = below,
                      .size = stored_bytes(o->in, 1),
                      .in = malloc((size_t)PIECE),
                      .tmp = malloc((size_t)PIECE) };
    memcpy(shape, o->shape, sizeof shape);
    if (o->type->values > 1)
        shape[o->n_dims - 1] = o->row / o->type->values * o->type->bytes;
    struct box whole = box_whole(o->n_dims, shape);
    struct box_walk walk = { 0 };
    struct box_run run;
    int rc = w.in && w.tmp ? 0 : err_set(e, ERR_MEMORY, "no memory for the buffers of a thread");

    /* runs that are contiguous in the box and in the tensor; one, where the box is the tensor */
    while (rc >= 0 && box_next_run(b, lo, hi, &whole, &walk, &run)) {
        char *to = (char *)dst + (run.of_off - lo) * size;
        rc = o->type->values > 1 ? make_bytes(&w, run.part_off, run.part_off + run.count, to, e)
                                 : make_blocks(&w, run.part_off, run.part_off + run.count, to, e);
    }
    free(w.in);
    free(w.tmp);
    return rc < 0 ? rc : 0;
}

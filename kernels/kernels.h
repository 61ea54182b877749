/* kernels.h - the op table: every piece of arithmetic that a device does, one row an op.
 *
 * Matrices are row-major; rows are tokens. dt is the dtype of the arithmetic (DT_F32 or DT_BF16). Products
 * give fp32; the op that stores an activation rounds it to its dt, once. An op gives the same bits for any
 * number of threads and rows, on every CPU class, and on a GPU but for bf16 on tensor cores
 * (kernels/cuda/README.md).
 *
 * An op goes into the queue in use of the device and may run after the call returned (dev.h); its host
 * arguments (structs, lists, token ids) have been read by then. On a CPU the op is complete, and d->pool
 * has shared the work. One thread at a time calls into a device. Ops return nothing: dev_check() reports
 * errors. Numerics contract: kernels/NUMERICS.md. */
#ifndef SHARDLINE_KERNELS_KERNELS_H
#define SHARDLINE_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/dev.h"
#include "kernels/kv_codes.h"
#include "kernels/panels.h"
#include "kernels/tree.h"

/* A small function for the host and for code that runs on a GPU. */
#ifdef __CUDACC__
#define SMALL_FN static __host__ __device__ __forceinline__
#else
#define SMALL_FN static inline __attribute__((unused))
#endif

/* The dtypes of arithmetic, and fp16, which is read from files and widened but never computed in. */
enum dtype { DT_F32, DT_BF16, DT_F16, DT_COUNT };
/* Bytes of an element. */
SMALL_FN size_t dtype_size(enum dtype t) { return t == DT_F32 ? 4 : 2; }
/* "fp32" "bf16" "fp16" */
const char *dtype_name(enum dtype t);

/* A matrix in device memory, borrowed. ld: elements from row to row. */
struct mat {
    void *p;
    int64_t rows, cols, ld;
    enum dtype dt;
};
static inline struct mat mat_of(void *p, enum dtype dt, int64_t rows, int64_t cols, int64_t ld)
{
    struct mat m = { p, rows, cols, ld, dt };
    return m;
}

/* Columns [c0, c0 + n) of m. */
static inline struct mat mat_cols(struct mat m, int64_t c0, int64_t n)
{
    m.p = (char *)m.p + c0 * (int64_t)dtype_size(m.dt);
    m.cols = n;
    return m;
}

/* Rows [r0, r0 + n) of m. */
static inline struct mat mat_rows(struct mat m, int64_t r0, int64_t n)
{
    m.p = (char *)m.p + r0 * m.ld * (int64_t)dtype_size(m.dt);
    m.rows = n;
    return m;
}

/* Weights as the forward product reads them (panels.h). */
struct panels {
    void *p;      /* PANEL_PLAIN: panels_bytes() bytes, 64-byte aligned, owned by the caller */
    int64_t n, k; /* outputs (all matrices together), contraction */
    enum dtype dt;
    struct leaves leaves; /* of k */
    enum panel_kind kind;
    /* Bytes from a panel to the next one (PANEL_ROWS: from a row to the next one); 0: there is no gap. */
    int64_t stride;
    /* Where outputs lie in several places: their runs in order, p is not used. 0: one run of n outputs at
     * p. */
    int n_runs;
    const struct panel_run *run;     /* borrowed */
    const struct panel_codes *codes; /* PANEL_CODES; borrowed */
};
/* Bytes of plain panels of n outputs over a contraction of k with these leaves. */
size_t panels_bytes(int64_t n, int64_t k, enum dtype dt, const struct leaves *l);
/* The same for any kind: from n, k, dt, leaves, kind, stride and codes of w; all outputs in one run. */
size_t panels_size(const struct panels *w);
/* Bytes from a panel to the next one: w->stride, or what its 0 stands for. */
int64_t panels_stride(const struct panels *w);
/* Bytes from a panel's first leaf to leaf g: where a rank's leaves begin. w has all leaves. Plain panels:
 * those of 32 columns side by side. */
int64_t panels_leaf_at(const struct panels *w, int g);
/* Elements of w[0..n_w), as linear_pack of a CPU takes them for p, that PANEL_B12 keeps as escapes. -1: the
 * matrix does not fit that kind. */
int64_t panels_escapes(struct dev *d, const struct panels *p, int n_w, const struct mat *w);
/* For memory plans: raises bytes[0] and bytes[1] to what a product of the CPU takes of dev_scratch 0 and
 * 1. y is [m][n] of a contraction over k; linear has its weights packed (PRODUCT_UNPACKED: as panels that
 * are not plain), linear_dw packs both operands by columns. An estimate, not exact to the byte. Products of
 * experts: m, or for linear_dw k, is the number of routed rows. */
enum product_op { PRODUCT_LINEAR, PRODUCT_UNPACKED, PRODUCT_DX, PRODUCT_DW };
void linear_scratch(enum product_op op, enum dtype dt, int64_t m, int64_t n, int64_t k, int threads,
                    size_t bytes[2]);

/* One sequence of a batch, as attention sees it. Keys lie in pages of 64 positions, counted from the
 * sequence's first token. A page (of one layer, one rank) holds, for every local kv head h, K as
 * [head_dim][64] and V as [64][head_dim], elements of dt or codes (kv_codes.h), at page[b] + page_off + h *
 * attn_head_bytes(); with KV_INT8 the scales of 64 keys and of 64 values follow, fp32. Rows behind the last
 * key are zero: 0 * NaN must not happen. */
struct attn_seq {
    int64_t row, n_rows; /* its rows in the batch */
    int64_t pos;         /* position of its first row; keys 0 .. pos + n_rows - 1 exist after rope_store */
    char *const *page;   /* [ceil((pos + n_rows) / 64)] */
};
#define ATTN_PAGE 64
#define ATTN_SEGMENT 1024
/* Sequences of `len` tokens whose rows lie by leaves: a sequence is 2 n_leaves chunks of equal length, leaf g
 * is chunk g, then chunk 2 n_leaves - 1 - g. Queries (q, out, dout, dq) are the rows of leaves
 * [first, first + count) of every sequence; keys (dk, dv) have the rows of all leaves (attn_cut.h). */
struct attn_cut {
    int n_leaves, first, count; /* count 0: sequences are not cut */
    int n_docs;
    int64_t len;
    int one; /* > 0: dk and dv of the queries of leaf first + one - 1 alone; dq of others is not defined */
    /* [n_docs]: where attention starts anew: documents whole, ascending; row: the first token, counted over
     * all sequences; pos 0 */
    const struct attn_seq *doc;
};
struct attn {
    int n_heads, n_kv, head_dim; /* local: query head q uses kv head q / (n_heads / n_kv) */
    enum dtype dt;
    float scale;     /* on the scores, after the dot product */
    size_t page_off; /* bytes: where this layer begins inside a page */
    int n_seq;
    const struct attn_seq *seq;
    /* Sliding window. > 0: position p sees keys p - window + 1 .. p, and pages wholly before the first row's
     * window are not read; 0: all keys up to p. */
    int64_t window;
    /* dt [n_heads] of the device: a score of every query head that takes part in the softmax and has no
     * value; NULL: none. */
    const void *sink;
    float softcap; /* > 0: a score s becomes softcap * tanh(s / softcap); 0: it stays */
    /* For the ops of RoPE. rope_dim: components [0, rope_dim) of a head are rotated; 0: all. by_head: a row
     * of qkv is head by head, each its q, k and v (n_kv is n_heads); else all q, all k, all v. */
    int rope_dim, by_head;
    /* Latent attention. > 0: a value is the first v_dim components of its key, and a page holds, for every
     * kv head, K alone, attn_head_bytes() from the next one; 0: V lies behind K, as wide as K. */
    int v_dim;
    enum kv_kind kv; /* of the pages, forward; backward they are of dt */
    /* For attn_dx. Where sequences are cut, seq lists the runs of neighbouring positions among the rows. */
    struct attn_cut cut;
};
/* Components of a value. */
SMALL_FN int64_t attn_value_dim(const struct attn *a) { return a->v_dim > 0 ? a->v_dim : a->head_dim; }
/* "fp8"; of KV_OWN the dtype's name. */
const char *kv_kind_name(enum kv_kind kv, enum dtype dt);
/* Bytes of an element in a page. */
SMALL_FN size_t kv_code_size(enum kv_kind kv, enum dtype dt)
{
    return kv == KV_OWN ? dtype_size(dt) : kv == KV_BF16 ? 2 : 1;
}
SMALL_FN size_t attn_code_size(const struct attn *a) { return kv_code_size(a->kv, a->dt); }
/* Bytes of K of one kv head in a page; V, or what is behind it, begins there. */
SMALL_FN size_t attn_key_bytes(const struct attn *a)
{
    return ATTN_PAGE * (size_t)a->head_dim * attn_code_size(a);
}
/* Bytes of one kv head in a page. */
SMALL_FN size_t attn_head_bytes(const struct attn *a)
{
    const size_t parts = a->v_dim > 0 ? 1 : 2, scales = a->kv == KV_INT8 ? ATTN_PAGE * sizeof(float) : 0;
    return parts * (attn_key_bytes(a) + scales);
}
/* KV_INT8: where the scales of the keys of a kv head at p begin, and of its values. A value of latent
 * attention is part of its key. */
SMALL_FN size_t attn_key_scales(const struct attn *a)
{
    return (size_t)(a->v_dim > 0 ? 1 : 2) * attn_key_bytes(a);
}
SMALL_FN size_t attn_value_scales(const struct attn *a)
{
    return attn_key_scales(a) + (a->v_dim > 0 ? 0 : ATTN_PAGE * sizeof(float));
}
/* What the forward pass kept for attn_dx. */
struct attn_kept {
    struct mat out, q; /* dt: attention's output, rotated queries */
    const float *lse;  /* [rows][n_heads] */
};
/* RMS norm of every head of q and k before RoPE: weights [head_dim] in the dtype of the arithmetic. */
struct head_norm {
    const void *q, *k;
    float eps;
    int plus_one; /* as of rms_norm */
};
/* Bytes of a page of one layer, elements of dt. */
static inline size_t attn_page_bytes(int n_kv, int head_dim, enum dtype dt)
{
    return (size_t)n_kv * 2 * ATTN_PAGE * (size_t)head_dim * dtype_size(dt);
}

/* How gate and up are clamped (swiglu_clamped), and the factor inside of the sigmoid. */
struct clamp {
    float limit, alpha;
};

/* Sequences of equal length: rows [i * len, (i + 1) * len) are sequence i. */
struct seqs {
    int n;
    int64_t len;
    int grain; /* blocks of a sequence in sums over its tokens (block_begin in tree.h) */
};
static inline struct seqs seqs_of(int n, int64_t len, int grain)
{
    struct seqs s = { n, len, grain };
    return s;
}

/* One optimizer step: decoupled weight decay; bias corrections are computed in double by the caller. */
struct adamw {
    float lr, eps, weight_decay; /* weight_decay 0 for vectors */
    double beta1, beta2;         /* double, so that 1 - beta is rounded to float once, as other trainers do */
    float bias1, bias2;          /* 1 - beta1^(s+1), sqrt(1 - beta2^(s+1)) */
    float clip;                  /* gradients are multiplied by this first */
};

/* An exact sum of doubles or of squares of floats: integer limbs of 32 bits, limb i has weight 2^(32 i -
 * XSUM_BIAS). Adding limb by limb adds the sums, over threads and ranks; xsum_carry() first where up to 2^20
 * parts are added. */
#define XSUM_LIMBS 40
#define XSUM_BIAS 640
struct xsum {
    int64_t limb[XSUM_LIMBS];
    int64_t n_nan, n_inf;
};
/* Carries, so that every limb but the last is below 2^32. */
void xsum_carry(struct xsum *s);
/* The nearest double of the exact sum; NaN when a NaN or Inf was added. */
double xsum_double(const struct xsum *s);
/* Adds x exactly. |x| is in the range of squares of floats. */
void xsum_add(struct xsum *s, double x);

/* ---- mixtures of experts ----
 * A routed row is one (token, chosen expert) pair. Routed rows are grouped: all rows of expert 0 first, then
 * those of expert 1, …; inside an expert in the order of the call's rows. begin, leaf ends and lists are host
 * memory, read when the call returns. */

/* How a router chooses and weighs. Scores are the logits; ROUTER_SIGMOID: sigmoid(logit) + bias. */
enum router_weights {
    ROUTER_CHOSEN, /* softmax over the chosen logits */
    ROUTER_ALL,    /* softmax over all logits */
    ROUTER_SIGMOID /* sigmoid(logit), divided by the sum of the chosen ones where norm is set, times factor */
};
#define ROUTER_EXPERTS_MAX 1024
#define ROUTER_CHOSEN_MAX 64
#define ROUTER_GROUPS_MAX 64
struct expert_router {
    int n_experts, k; /* 1 <= k <= n_experts; at most ROUTER_EXPERTS_MAX, ROUTER_CHOSEN_MAX */
    enum router_weights weights;
    int norm; /* ROUTER_SIGMOID only, as factor and bias */
    /* n_groups divides n_experts, at most ROUTER_GROUPS_MAX; 1, 1: no groups. A group's score is the sum of
     * its two best scores, or the score of its only expert. Experts of groups that are not kept have the
     * score -inf. */
    int n_groups, groups_kept;
    float factor;
    const float *bias; /* device, [n_experts]: added to the scores, not to the weights; NULL: none */
};

/* What route_dx adds to the gradient of the logits; 0: this part is left out. */
struct balance {
    float sequence;       /* dL/dp_e = sequence * count_e */
    float z;              /* 2 beta / N: dL/dlse = z * lse */
    const int32_t *count; /* device, [s.n][n_experts]; s.n == 0: [n_experts], for every row */
    struct seqs s;        /* row r belongs to sequence r / s.len; s.grain is not used */
};

/* Rows [begin[e], begin[e + 1]) of grouped matrices belong to expert e of this rank. */
struct expert_rows {
    int n;                /* experts */
    const int64_t *begin; /* [n + 1] */
    int n_leaves;         /* sequences: leaves of weight gradients */
    /* [n][n_leaves]: the grouped row behind the last row of leaf s of expert e. Equal to the one before it:
     * the leaf has no rows. Only linear_dw_experts reads it. */
    const int64_t *leaf_end;
};

/* An operand whose row i is row list[i] of m; list NULL: row i. list: host memory. */
struct listed {
    struct mat m;
    const int32_t *list;
};
static inline struct listed listed_of(struct mat m, const int32_t *list)
{
    struct listed x = { m, list };
    return x;
}

/* K(name, parameters after struct dev *d). Shapes are [rows][columns]; round(x) is to dt, once. Tree,
 * leaves and blocks: tree.h; orders that the contract leaves open: kernels/README.md.
 *
 * Products
 *   linear_pack    p->p = w[0..n_w), each [n_i][k], stacked over their rows. The caller sets p's n, k, dt,
 *                  leaves.
 *   linear         y [m][n] fp32 = x [m][k] . W^T; Tree over w->leaves. x.dt is w->dt.
 *   linear_dx      dx [m][k] fp32 = sum over s < n_w of dy[s] [m][n_s] . w[s] [n_s][k]. Leaf g of the sum
 *                  is a chain through leaf g of l[0], l[1], …; Tree over leaves. All l[s].n are equal.
 *   linear_dw      leaf acc->next + i is sequence i (rows i * seq_len …): the chain of dy[t][n] * x[t][k]
 *                  over its tokens. Levels are fp32 [n][k] with row stride ld.
 *
 * Embeddings
 *   embed          out[t] (out.dt) = table[ids[t] - first] where the table has this row, else -0.
 *   embed_dw       a leaf is a sequence: its rows of dx (dt) added in position order to row ids[t] - first.
 *                  Levels are [rows][dx.cols] with row stride ld. s.grain is not used.
 *
 * Norms. Gradients of weights take a sequence as a leaf: Tree(s.grain) over its blocks of chains over tokens.
 *   rms_norm       y = x * r * w, r = 1 / sqrt(mean(x^2) + eps); rstd[rows] = r. rstd may be NULL.
 *                  plus_one: w is 1 + w, formed in fp32, in all ops of norms that have it.
 *   rms_norm_dx    dres = round(dres + dx), dx the gradient at x given dy (fp32, rounded to dt first);
 *                  dres, x: dt.
 *   rms_norm_dw    chains of fma(dy, x * r, .).
 *   layer_norm     y = (x - mean) * r * w + b; mean, rstd: [rows], both or neither NULL.
 *   layer_norm_dx, layer_norm_dw: as those of rms_norm.
 *   bias_dw        chains of plain additions of dy, rounded to dt.
 *   add_bias       y fp32 = y + bias (dt), by columns.
 *
 * RoPE. cos, sin: fp32 [position][rope_dim / 2]; component i pairs with i + rope_dim / 2; NULL: no rotation.
 *   rope_store     qkv fp32 [rows][(n_heads + 2 n_kv) head_dim] -> q (dt) rotated; k rotated and v into
 *                  the pages; all rounded. norm (may be NULL): every head of q and k is normed first.
 *                  With codes the keys in qkv are used up.
 *   rope_back      dq, dk fp32 rotated back in place: what lies between RoPE and the rounding.
 *   head_norm_dx   dy fp32 = gradient of every head's RMS norm, in place; x: the heads before the norm.
 *   head_norm_dw   out[sequence][head_dim], row stride ld: Tree(heads) of a head's Tree(s.grain) of chains of
 *                  fma(dy, x * r, .).
 *   add_leaves     leaf[sequence][n], row stride ld: n_seq leaves of *acc that exist already.
 *
 *   embed_add      x (dt) = round(x + table[ids[t]]); the table has all rows.
 *   transpose      dst[j][i] = src[i][j], the same dt.
 *   gelu           act (dt) = 0.5 h (1 + tanh(sqrt(2/pi) (h + 0.044715 h^3))), h fp32.
 *   gelu_dx        dh (dt) from h and dact (fp32, rounded to dt first).
 *   gelu_erf       act (dt) = 0.5 h (1 + erf(h / sqrt(2))), h fp32; gelu_erf_dx as gelu_dx.
 *   geglu          gu fp32 [rows][2 n] (gate, then up) -> act (dt) = gelu(gate) * up; geglu_dx as swiglu_dx.
 *   rope_dx        dq [rows][n_heads head_dim], dk, dv [rows][n_kv head_dim], fp32 -> dqkv (dt), rotated
 *                  back and rounded.
 *
 * Latent attention (struct attn: v_dim > 0, n_kv 1). v = v_dim, r = head_dim - v: the rotated components of
 * a head, turned by neighbours, (2 i, 2 i + 1) with cos, sin [position][r / 2].
 *   latent_q       q (dt) [rows][n_heads (v + r)]: head h is round(absorbed [h v, + v)), then the last r of
 *                  the head's raw components (raw.cols / n_heads a head), turned. absorbed, raw: fp32.
 *   latent_k       a page's key: c (dt) [rows][v], then raw fp32 [rows][r], turned; rounded. With codes
 *                  raw is used up.
 *   latent_q_dx    the last r of every head of draw (dt) = round(the last r of dq's head, turned back);
 *                  other columns are left alone.
 *   latent_k_dx    dc fp32 [rows][v] = dk + dv; draw (dt) [rows][r] = round(the last r of dk, turned back).
 *
 * Attention
 *   attn           out (dt) [rows][n_heads v], v components of a value: head_dim, or v_dim; lse fp32
 *                  [rows][n_heads] or NULL.
 *                  A sink is a last segment of one key whose value is +0.
 *   attn_dx        dq, dk, dv fp32 of whole sequences (pos 0; of any length, at any row). dk, dv of a kv
 *                  head are Tree over its query heads. dv [rows][n_kv v] is not added to dk. Where sequences
 *                  are cut: Tree(count) over these leaves of that; a leaf without a query at or behind a
 *                  block of 64 keys is -0 there.
 *
 *   sink_dw        out[sequence][n_heads]: Tree(s.grain) over blocks of chains over tokens of fma(-p, D, .),
 *                  p = exp(sink - lse), D = lanes of fma(dout, out, .). sink: dt of out.
 *
 * Elements
 *   swiglu         gu fp32 [rows][2 n] (gate, then up) -> act (dt) = silu(gate) * up.
 *   swiglu_dx      dgu (dt) [rows][2 n] from gu and dact (fp32, rounded to dt first).
 *   swiglu_clamped gu fp32 [rows][2 n], gate and up alternating, clamped first: g = min(gate, limit), u =
 *                  max(min(up, limit), -limit); act (dt) = (u + 1) * (g * sigmoid(alpha * g)).
 *   swiglu_clamped_dx  dgu (dt) [rows][2 n] from gu and dact (fp32, rounded to dt first); +0 where clamped.
 *   add_rounded    x (dt) = round(x + round(o)), o fp32 or dt.
 *   add_both       x (dt) = round((x + a) + round(o)), a dt, o fp32.
 *   scale          x (dt) = round(x * factor).
 *   softcap        x fp32 = cap * tanh(x / cap).
 *   softcap_dx     dx (dt) = round(dx * (1 - t t)), t = y / cap, y fp32 what softcap gave.
 *   round_to       dst (dt) = round(src), n elements.
 *   widen          dst fp32 = src (dt: bf16 or fp16), n elements.
 *
 * Cross entropy. logits fp32, the local columns of the vocabulary from `first` on; fewer than 2^24 columns.
 *   ce_max         max[row] over the columns.
 *   ce_sum         sum[row] of exp(l - max), Tree over leaves (blocks of the vocabulary).
 *   ce_pick        out[row] = l[target - first]; -0 where the target is not local.
 *   ce_first       id[row] = the lowest column whose logit is max[row], -1: none. id, max: device memory.
 *   ce_dx          dl (dt) = round((exp(l - max) / sum - [target]) * scale[row]), scale of the host.
 *                  target < 0 or scale 0: the row is +0.
 *   ce_logprob     out[row] = (pick - max) - log(sum).
 *
 *   adamw          an element, in this order: g * clip; w -= lr * wd * w; m, v;
 *                  w -= lr / bias1 * m / (sqrt(v) / bias2 + eps). w16: the bf16 copy, or NULL.
 *   tree_add       out[i] = Tree(n_in) of in[0][i], in[1][i], …; out may be one of them.
 *   sum_squares    adds the squares of x[0..n) to *s, exactly.
 *
 * Mixtures of experts. "By id": the chosen of a token in the order of `expert`, which is ascending.
 *   route          logits fp32 [rows][E] -> expert, weight: device, [rows][k], the chosen ascending.
 *                  Larger score first, equal scores (zeros of both signs too) to the lower id, NaN after
 *                  every number, then by id; groups likewise. Weights, fp32:
 *                    chosen   exp(l - max) / chain by id of exp(l - max), max over the chosen
 *                    all      exp(l - max) / lanes over E of exp(l - max), max over E
 *                    sigmoid  s * factor, or s / (chain by id of s + 1e-20) * factor
 *   route_dx       dlogits (dt) = round((gate + balance) + z). weight is route's, dweight [rows][k].
 *                  max, p, s, sum over E as in route; lse = max + log(sum); dw by expert. Where not chosen:
 *                  all: dw = 0, else gate_e = +0.
 *                    chosen   gate_e = w_e (dw_e - c), c = chain by id of fma(dw, w, .)
 *                    all      gate_e = p_e (dw_e - c), the same c
 *                    sigmoid  gate_e = ds_e (s_e (1 - s_e)), g = dw factor, ds = g, or with norm
 *                             (g - c) / T, T = chain of s + 1e-20, c = chain of fma(g, s / T, .)
 *                    balance  q_e = sequence * count_e; p_e (q_e - b), b = lanes of fma(q, p, .).
 *                             Sigmoid: (q_e - b) / P (s_e (1 - s_e)), P = lanes of s, p = s / P.
 *                    z        (z * lse) * p_e, p the softmax for every router
 *   linear_experts     y fp32 [begin[n]][w->n]: rows of expert e = rows of x . w[e]^T, with the bits of
 *                      linear. All w[e] have one shape.
 *   linear_dx_experts  dx fp32 grouped; w[e * n_w + s]: matrix s of expert e, dy[s] its operand. The bits
 *                      of linear_dx.
 *   linear_dw_experts  leaf acc[e].next + s is the chain of dy * x over the rows of leaf s of expert e, in
 *                      grouped order. A leaf without rows is -0, which changes no sum. Levels: as
 *                      linear_dw's; acc[e].level[0] NULL: nothing is computed for e.
 *   expert_dot     out[i] = Tree over leaves of the columns of lanes of fma(dact, act, .), dact fp32.
 *   scale_rows     y fp32 [i] = y[i] * w[list[i]]; list NULL: w[i].
 *   gather_scaled  y (dt) [i] = round(w[w_list[i]] * row i of x); w NULL: a copy; w_list NULL: w[i].
 *   combine        out fp32 [rows][n]: acc = +0; by id acc = fma(weight[r k + j], row place[r k + j] of y,
 *                  acc); then acc + shared, or acc = fma(sigmoid(shared_gate[r]), shared, acc). shared.p
 *                  NULL: none.
 *   combine_dx     dh fp32 [rows][n] = +0, then by id + row place[r k + j] of dx (dt).
 *   add_bias_experts   y fp32, grouped: rows of expert e + bias[e] (device, dt).
 *   dot_bias_experts   out[i] = out[i] + lanes of fma(row i of x, bias[e], .).
 *   bias_dw_experts    out[e][leaf][dy.cols] fp32: Tree(grain) over blocks of chains of dy, rounded to dt.
 *                      g->leaf_end: [n][n_leaves * grain], the ends of blocks of positions; a block without
 *                      rows is +0.
 *   add_to         y = y + x, fp32.
 *   add_scaled     y = fma(factor, x, y), fp32.
 *   gate_dx        dshared (dt) = round(g dout), dgate (dt) [rows][1] = round((g (1 - g)) c), g =
 *                  sigmoid(gate[r]), c = lanes of fma(dout, shared, .).
 */
#define KERNEL_LIST(K) \
    K(linear_pack, struct panels *p, int n_w, const struct mat *w) \
    K(linear, struct mat y, struct mat x, const struct panels *w) \
    K(linear_dx, struct mat dx, int n_w, const struct mat *dy, const struct mat *w, const struct leaves *l) \
    K(linear_dw, const struct tree_acc *acc, int64_t ld, struct mat dy, struct mat x, int n_seq, \
      int64_t seq_len) \
    K(embed, struct mat out, struct mat table, int64_t first, const int32_t *ids) \
    K(embed_dw, const struct tree_acc *acc, int64_t ld, int64_t first, int64_t rows, struct mat dx, \
      const int32_t *ids, struct seqs s) \
    K(rms_norm, struct mat y, float *rstd, struct mat x, const void *w, int plus_one, float eps) \
    K(rms_norm_dx, struct mat dres, struct mat dy, struct mat x, const void *w, int plus_one, \
      const float *rstd) \
    K(rms_norm_dw, const struct tree_acc *acc, struct mat dy, struct mat x, const float *rstd, \
      struct seqs s) \
    K(layer_norm, struct mat y, float *mean, float *rstd, struct mat x, const void *w, const void *b, \
      float eps) \
    K(layer_norm_dx, struct mat dres, struct mat dy, struct mat x, const void *w, const float *mean, \
      const float *rstd) \
    K(layer_norm_dw, const struct tree_acc *acc, struct mat dy, struct mat x, const float *mean, \
      const float *rstd, struct seqs s) \
    K(bias_dw, const struct tree_acc *acc, struct mat dy, enum dtype dt, struct seqs s) \
    K(add_bias, struct mat y, const void *bias, enum dtype dt) \
    K(rope_store, const struct attn *a, struct mat q, struct mat qkv, const struct head_norm *norm, \
      const float *cos, const float *sin) \
    K(rope_back, const struct attn *a, struct mat dq, struct mat dk, const float *cos, const float *sin) \
    K(head_norm_dx, struct mat dy, struct mat x, int n_heads, const void *w, enum dtype dt, int plus_one, \
      float eps) \
    K(head_norm_dw, float *out, int64_t ld, struct mat dy, struct mat x, int n_heads, float eps, \
      struct seqs s) \
    K(add_leaves, const struct tree_acc *acc, const float *leaf, int64_t ld, int64_t n, int n_seq) \
    K(embed_add, struct mat x, struct mat table, const int32_t *ids) \
    K(transpose, struct mat dst, struct mat src) \
    K(gelu, struct mat act, struct mat h) \
    K(gelu_dx, struct mat dh, struct mat h, struct mat dact) \
    K(gelu_erf, struct mat act, struct mat h) \
    K(gelu_erf_dx, struct mat dh, struct mat h, struct mat dact) \
    K(geglu, struct mat act, struct mat gu) \
    K(geglu_dx, struct mat dgu, struct mat gu, struct mat dact) \
    K(add_both, struct mat x, struct mat a, struct mat o) \
    K(scale, struct mat x, float factor) \
    K(softcap, struct mat x, float cap) \
    K(softcap_dx, struct mat dx, struct mat y, float cap) \
    K(rope_dx, const struct attn *a, struct mat dqkv, struct mat dq, struct mat dk, struct mat dv, \
      const float *cos, const float *sin) \
    K(attn, const struct attn *a, struct mat out, float *lse, struct mat q) \
    K(attn_dx, const struct attn *a, struct mat dq, struct mat dk, struct mat dv, struct mat dout, \
      struct attn_kept kept) \
    K(sink_dw, float *out, const struct attn *a, struct mat dout, struct attn_kept kept, struct seqs s) \
    K(swiglu_clamped, struct mat act, struct mat gu, const struct clamp *c) \
    K(swiglu_clamped_dx, struct mat dgu, struct mat gu, struct mat dact, const struct clamp *c) \
    K(swiglu, struct mat act, struct mat gu) \
    K(swiglu_dx, struct mat dgu, struct mat gu, struct mat dact) \
    K(add_rounded, struct mat x, struct mat o) \
    K(round_to, void *dst, enum dtype dt, const float *src, int64_t n) \
    K(widen, float *dst, const void *src, enum dtype dt, int64_t n) \
    K(ce_max, float *max, struct mat logits) \
    K(ce_sum, float *sum, struct mat logits, const struct leaves *l, const float *max) \
    K(ce_pick, float *out, struct mat logits, const int32_t *target, int64_t first) \
    K(ce_first, int32_t *id, struct mat logits, const float *max) \
    K(ce_dx, struct mat dl, struct mat logits, const int32_t *target, int64_t first, const float *max, \
      const float *sum, const float *scale) \
    K(ce_logprob, float *out, const float *pick, const float *max, const float *sum, int64_t n) \
    K(adamw, float *w, void *w16, float *m, float *v, const float *g, int64_t n, const struct adamw *h) \
    K(tree_add, float *out, const float *const *in, int n_in, int64_t n) \
    K(sum_squares, struct xsum *s, const float *x, int64_t n) \
    K(route, const struct expert_router *r, int32_t *expert, float *weight, struct mat logits) \
    K(route_dx, const struct expert_router *r, struct mat dlogits, struct mat logits, const int32_t *expert, \
      const float *weight, const float *dweight, const struct balance *b) \
    K(linear_experts, struct mat y, struct listed x, const struct expert_rows *g, const struct panels *w) \
    K(linear_dx_experts, struct mat dx, int n_w, const struct listed *dy, const struct mat *w, \
      const struct leaves *l, const struct expert_rows *g) \
    K(linear_dw_experts, const struct tree_acc *acc, int64_t ld, struct listed dy, struct listed x, \
      const struct expert_rows *g) \
    K(expert_dot, float *out, struct mat dact, struct mat act, const struct leaves *l) \
    K(scale_rows, struct mat y, const float *w, const int32_t *list) \
    K(gather_scaled, struct mat y, struct listed x, const float *w, const int32_t *w_list) \
    K(combine, struct mat out, struct mat y, const int32_t *place, const float *weight, int k, \
      struct mat shared, const float *shared_gate) \
    K(combine_dx, struct mat dh, struct mat dx, const int32_t *place, int k) \
    K(add_bias_experts, struct mat y, const void *const *bias, enum dtype dt, const struct expert_rows *g) \
    K(dot_bias_experts, float *out, struct listed x, const void *const *bias, const struct expert_rows *g) \
    K(bias_dw_experts, float *out, struct mat dy, enum dtype dt, const struct expert_rows *g, int grain) \
    K(add_to, struct mat y, struct mat x) \
    K(add_scaled, struct mat y, struct mat x, float factor) \
    K(gate_dx, struct mat dgate, struct mat dshared, struct mat dout, struct mat shared, const float *gate) \
    K(latent_q, const struct attn *a, struct mat q, struct mat absorbed, struct mat raw, const float *cos, \
      const float *sin) \
    K(latent_k, const struct attn *a, struct mat c, struct mat raw, const float *cos, const float *sin) \
    K(latent_q_dx, const struct attn *a, struct mat draw, struct mat dq, const float *cos, const float *sin) \
    K(latent_k_dx, const struct attn *a, struct mat dc, struct mat draw, struct mat dk, struct mat dv, \
      const float *cos, const float *sin)

struct kernel_ops {
#define K(name, ...) void (*name)(struct dev * d, __VA_ARGS__);
    KERNEL_LIST(K)
#undef K
};

/* Calls an op: KERNEL(d, linear, …). A trace gets its name and shape: rows and columns of the first matrix
 * among the first six arguments and the columns of the next one, or the number of elements. */
#define KERNEL_MAT(a) _Generic((a), struct mat : (a), default : (struct mat){ 0 })
#define KERNEL_INT(a) _Generic((a), int64_t : (a), default : (int64_t)0)
#define KERNEL_INTS(a, b, c, d, f, g) \
    (int64_t[6]) { KERNEL_INT(a), KERNEL_INT(b), KERNEL_INT(c), KERNEL_INT(d), KERNEL_INT(f), KERNEL_INT(g) }
#define KERNEL_ARGS(a, b, c, d, f, g, ...) \
    (struct mat[6]){ \
        KERNEL_MAT(a), KERNEL_MAT(b), KERNEL_MAT(c), KERNEL_MAT(d), KERNEL_MAT(f), KERNEL_MAT(g) \
    }, \
        KERNEL_INTS(a, b, c, d, f, g)
#define KERNEL(device, name, ...) \
    do { \
        struct dev *kernel_dev_ = (device); \
        int64_t kernel_begin_ = kernel_dev_->trace ? kernel_trace_begin(kernel_dev_, #name) : 0; \
        kernel_dev_->ops->name(kernel_dev_, __VA_ARGS__); \
        if (kernel_dev_->trace) \
            kernel_trace_end(kernel_dev_, #name, kernel_begin_, \
                             KERNEL_ARGS(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)); \
    } while (0)
/* For KERNEL: begins and ends an op in the device's trace. */
int64_t kernel_trace_begin(struct dev *d, const char *name);
void kernel_trace_end(struct dev *d, const char *name, int64_t begin_ns, const struct mat m[6],
                      const int64_t n[6]);

#endif

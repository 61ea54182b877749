/* attn.cu - attention on tensor cores as ops: what kernels run over which pieces of the work. bf16, head_dim
 * a multiple of 8 up to 128, no sinks; all else is simt_attn.inc's. Which one it is depends on the model
 * alone, so that decode, prefill and training run the same one. */
#include "kernels/cuda/cxx.h"

#include "kernels/cuda/attn/attn_bwd.cuh"
#include "kernels/cuda/attn/attn_few.cuh"
#include "kernels/cuda/cuda_ops.h"

static int for_tensor_cores(const struct attn *a)
{
    return a->dt == DT_BF16 && a->head_dim % 8 == 0 && a->head_dim <= 128 && !a->sink && !a->v_dim;
}

static int64_t pages_of(const struct attn_seq *s) { return (s->pos + s->n_rows + ATTN_PAGE - 1) / ATTN_PAGE; }
static int64_t first_of_host(const struct attn *a, int64_t pos)
{
    return a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Pages that are read lie at multiples of 16 bytes: so does all that dev_alloc gives. */
static int pages_fit(struct dev *d, const struct attn *a)
{
    uintptr_t all = a->page_off;
    for (int i = 0; i < a->n_seq; i++)
        for (int64_t b = first_of_host(a, a->seq[i].pos) / ATTN_PAGE; b < pages_of(&a->seq[i]); b++)
            all |= (uintptr_t)a->seq[i].page[b];
    return cuda_well(d, all % 16 ? cudaErrorInvalidValue : cudaSuccess,
                     "pages of keys that lie at no multiple of 16 bytes");
}

static int aligned(struct mat m) { return (uintptr_t)m.p % 16 == 0 && m.ld % 8 == 0; }

/* ---- pieces of the work ---- */
struct work {
    struct attn_item *tile, *few, *merge;
    int n_tiles, n_few, n_merges, n_parts, part_rows;
};

static int is_few(const struct attn *a, const struct attn_seq *s)
{
    return s->n_rows * (a->n_heads / a->n_kv) <= ROWS_OF_WARP;
}

/* Tiles of a sequence, the last ones, which see most, first. */
static void add_tiles(struct work *w, int i, int64_t rows)
{
    for (int64_t t = (rows + TILE_ROWS - 1) / TILE_ROWS - 1; t >= 0; t--) {
        if (w->tile)
            w->tile[w->n_tiles] = (struct attn_item){ i, (int32_t)(t * TILE_ROWS), 0, 0 };
        w->n_tiles++;
    }
}

static void add_few(struct work *w, const struct attn *a, int i)
{
    const struct attn_seq *s = &a->seq[i];
    const int group = a->n_heads / a->n_kv, first = (int)(first_of_host(a, s->pos) / ATTN_SEGMENT),
              n = (int)((s->pos + s->n_rows - 1) / ATTN_SEGMENT) - first + 1;
    for (int g = 0; g < n; g++) {
        if (w->few)
            w->few[w->n_few] = (struct attn_item){ i, 0, first + g, n == 1 ? -1 : w->n_parts + g };
        w->n_few++;
    }
    if (n == 1)
        return;
    if (w->merge)
        w->merge[w->n_merges] = (struct attn_item){ i, 0, n, w->n_parts };
    w->n_merges++;
    w->n_parts += n;
    w->part_rows = w->part_rows > s->n_rows * group ? w->part_rows : (int)s->n_rows * group;
}

static void add_work(struct work *w, const struct attn *a)
{
    for (int i = 0; i < a->n_seq; i++)
        if (a->seq[i].n_rows > 0 && is_few(a, &a->seq[i]))
            add_few(w, a, i);
        else
            add_tiles(w, i, a->seq[i].n_rows * (a->n_heads / a->n_kv));
}

/* Counted, then written into one piece of memory, which is uploaded; the caller frees *host. NULL: no
 * memory. */
static struct attn_item *upload_work(struct dev *d, struct work *w, const struct attn *a,
                                     struct attn_item **host)
{
    struct work n = { NULL, NULL, NULL, 0, 0, 0, 0, 0 };
    add_work(&n, a);
    const size_t items = (size_t)(n.n_tiles + n.n_few + n.n_merges);
    *host = (struct attn_item *)malloc(sizeof(struct attn_item) * (items + 1));
    if (!*host) {
        cuda_well(d, cudaErrorMemoryAllocation, "the list of attention's work");
        return NULL;
    }
    *w = (struct work){ *host, *host + n.n_tiles, *host + n.n_tiles + n.n_few, 0, 0, 0, 0, 0 };
    add_work(w, a);
    return (struct attn_item *)cuda_upload(d, *host, sizeof(struct attn_item) * items);
}

/* ---- forward ---- */
template <int DIM>
static void forward(struct dev *d, struct attn_args f, const struct work *w, const struct attn *a,
                    const struct attn_item *item)
{
    int64_t longest = 0;
    for (int i = 0; i < a->n_seq; i++)
        longest = a->seq[i].pos + a->seq[i].n_rows > longest ? a->seq[i].pos + a->seq[i].n_rows : longest;
    const unsigned kv = (unsigned)a->n_kv;
    f.item = item;
    if (w->n_tiles)
        cuda_launch(d, attn_tile_kernel<DIM>, dim3((unsigned)w->n_tiles, kv), TILE_ROWS * 2,
                    tile_shared_bytes<DIM>(longest > ATTN_SEGMENT ? 2 : 1), f);
    f.item += w->n_tiles;
    if (w->n_few)
        cuda_launch(d, attn_few_kernel<DIM>, dim3((unsigned)w->n_few, kv), few_warps<DIM> * LANES,
                    sizeof(struct few_shared<DIM>), f);
    f.item += w->n_few;
    if (w->n_merges)
        cuda_launch(d, attn_merge_kernel, dim3((unsigned)w->n_merges, kv), 4 * LANES, 0, f);
}

static void op_attn(struct dev *d, const struct attn *a, struct mat out, float *lse, struct mat q)
{
    struct attn_args f = { .a = *a, .item = NULL, .q = q, .out = out, .lse = lse, .aligned = aligned(q) };
    struct attn_item *host = NULL;
    struct work w;
    if (!for_tensor_cores(a)) {
        cuda_kernels()->attn(d, a, out, lse, q);
        return;
    }
    const struct attn_item *item = pages_fit(d, a) ? upload_work(d, &w, a, &host) : NULL;
    if (item) {
        f.a = UPLOAD_ATTN(d, a);
        f.part_rows = w.part_rows;
        f.part = w.n_parts ? (float *)dev_scratch(d, 3,
                                                  sizeof(float) * (size_t)w.n_parts *
                                                      (size_t)(w.part_rows * a->n_kv * (a->head_dim + 2)))
                           : NULL;
        if (f.part || !w.n_parts)
            (a->head_dim <= 64 ? forward<64> : forward<128>)(d, f, &w, a, item);
    }
    free(host);
}

/* ---- backward ---- */
template <int DIM>
static void backward(struct dev *d, struct attn_args f, const struct attn *a, const struct attn_item *tile,
                     int n_tiles, const struct attn_item *key, int n_keys)
{
    const unsigned kv = (unsigned)a->n_kv;
    f.item = tile;
    cuda_launch(d, attn_dq_kernel<DIM>, dim3((unsigned)n_tiles, kv), TILE_ROWS * 2,
                sizeof(struct dq_shared<DIM>), f);
    f.item = key;
    cuda_launch(d, attn_dkv_kernel<DIM>, dim3((unsigned)n_keys, kv), TILE_ROWS * 2,
                sizeof(struct dkv_shared<DIM>), f);
}

/* Blocks of 64 keys of all documents; the first ones, which most queries see, first. */
static int add_keys(struct attn_item *to, const struct attn *a)
{
    int n = 0;
    for (int i = 0; i < attn_docs(a); i++)
        for (int64_t key = 0; key < attn_doc(a)[i].n_rows; key += ATTN_PAGE) {
            if (to)
                to[n] = (struct attn_item){ i, (int32_t)key, 0, 0 };
            n++;
        }
    return n;
}

static int add_all_tiles(struct attn_item *to, const struct attn *a)
{
    struct work w = { to, NULL, NULL, 0, 0, 0, 0, 0 };
    for (int i = 0; i < a->n_seq; i++)
        add_tiles(&w, i, a->seq[i].n_rows * (a->n_heads / a->n_kv));
    return w.n_tiles;
}

/* D of all rows of the matrices, then the stack of Tree(group) and the tree over leaves. */
static float *grad_scratch(struct dev *d, const struct attn *a, int64_t rows, int n_keys, float **stack)
{
    const int group = a->n_heads / a->n_kv, leaves = attn_leaves(a);
    const int depth = (group > 1 ? tree_depth(group) : 0) + (leaves > 1 ? tree_depth(leaves) : 0);
    const size_t dots = ((size_t)(rows * a->n_heads) + 63) / 64 * 64,
                 entry = 2 * (size_t)n_keys * (size_t)a->n_kv *
                         (a->head_dim <= 64 ? dkv_entry<64> : dkv_entry<128>);
    float *p = (float *)dev_scratch(d, 3, sizeof(float) * (dots + entry * (size_t)depth));
    *stack = p ? p + dots : NULL;
    return p;
}

static void run_backward(struct dev *d, const struct attn *a, struct attn_args *f)
{
    const int n_tiles = add_all_tiles(NULL, a), n_keys = add_keys(NULL, a);
    struct attn_item *host = (struct attn_item *)malloc(sizeof(struct attn_item) *
                                                        (size_t)(n_tiles + n_keys + 1));
    cuda_well(d, host ? cudaSuccess : cudaErrorMemoryAllocation, "the list of attention's work");
    if (!host)
        return;
    add_all_tiles(host, a);
    add_keys(host + n_tiles, a);
    const struct attn_item *item = (const struct attn_item *)cuda_upload(d, host,
                                                                         sizeof(struct attn_item) *
                                                                             (size_t)(n_tiles + n_keys));
    f->a = UPLOAD_ATTN(d, a);
    f->d = grad_scratch(d, a, f->q.rows, n_keys, &f->part);
    if (item && f->d && n_tiles) {
        const int64_t rows = f->q.rows * a->n_heads;
        cuda_launch(d, attn_row_dots_kernel, dim3((unsigned)((rows + ROW_DOTS_WARPS - 1) / ROW_DOTS_WARPS)),
                    ROW_DOTS_WARPS * LANES, 0, *f, rows);
        (a->head_dim <= 64 ? backward<64> : backward<128>)(d, *f, a, item, n_tiles, item + n_tiles, n_keys);
    }
    free(host);
}

static void op_attn_dx(struct dev *d, const struct attn *a, struct mat dq, struct mat dk, struct mat dv,
                       struct mat dout, struct attn_kept kept)
{
    struct attn_args f = { .a = *a,
                           .q = kept.q,
                           .out = kept.out,
                           .dout = dout,
                           .dq = dq,
                           .dk = dk,
                           .dv = dv,
                           .lse = (float *)(uintptr_t)kept.lse,
                           .aligned = aligned(kept.q) && aligned(dout) };
    if (!for_tensor_cores(a))
        cuda_kernels()->attn_dx(d, a, dq, dk, dv, dout, kept);
    else if (pages_fit(d, a))
        run_backward(d, a, &f);
}

extern "C" void cuda_choose_attn(struct kernel_ops *ops)
{
    const char *wanted = env_get(ENV_SHARDLINE_CUDA);
    if (wanted && !strcmp(wanted, "simt"))
        return;
    ops->attn = op_attn;
    ops->attn_dx = op_attn_dx;
}

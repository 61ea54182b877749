/* onednn.h - oneDNN as a peer of gemm_bench: matrix products by the library, loaded at run time.
 *
 * It needs the headers of oneDNN 2 (libdnnl-dev). Without them, or without libdnnl.so.2, onednn_open
 * returns 0 and the bench runs without this peer. Only the bench uses it. */
#ifndef SHARDLINE_TESTS_BENCH_ONEDNN_H
#define SHARDLINE_TESTS_BENCH_ONEDNN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/kernels.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>
#endif

#define ONEDNN_RING 128 /* weights that one product may take turns through */

/* W in the library's order | W plain | A plain, transposed */
enum onednn_form { ONEDNN_LINEAR, ONEDNN_DX, ONEDNN_DW };

#if defined(DNNL_VERSION_MAJOR) && DNNL_VERSION_MAJOR == 2
/* clang-format off */
#define ONEDNN_CALLS(X) \
    X(engine_create) X(stream_create) X(memory_desc_init_by_strides) X(memory_desc_init_by_tag) \
    X(matmul_desc_init) X(primitive_desc_create) X(primitive_desc_query_md) X(memory_desc_get_size) \
    X(memory_create) X(primitive_create) X(primitive_execute) X(stream_wait) X(memory_destroy) \
    X(primitive_destroy) X(primitive_desc_destroy)
/* clang-format on */

struct onednn {
#define X(name) __typeof__(&dnnl_##name) name;
    ONEDNN_CALLS(X)
#undef X
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

struct onednn_product { /* C[m][n] fp32 = A . B */
    const struct onednn *lib;
    struct dev *d;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b[ONEDNN_RING], c;
    void *a_p, *b_p[ONEDNN_RING], *c_p;
    int n_ring, next;
};

static int onednn_open(struct onednn *o, int threads)
{
    char text[16];
    snprintf(text, sizeof text, "%d", threads);
    setenv("OMP_NUM_THREADS", text, 1);
    /* its waiting threads would take the CPU from the other contestant */
    setenv("OMP_WAIT_POLICY", "passive", 1);
    void *so = dlopen("libdnnl.so.2", RTLD_NOW);
    if (!so)
        return 0;
#define X(name) \
    *(void **)&o->name = dlsym(so, "dnnl_" #name); \
    if (!o->name) \
        return 0;
    ONEDNN_CALLS(X)
#undef X
    return o->engine_create(&o->engine, dnnl_cpu, 0) == dnnl_success &&
           o->stream_create(&o->stream, o->engine, dnnl_stream_in_order) == dnnl_success;
}

/* Memory of ours, on 2 MB pages as that of the other contestant, filled with numbers about 1. */
static dnnl_memory_t onednn_memory(struct onednn_product *p, const dnnl_memory_desc_t *md, int is_bf16,
                                   void **at)
{
    size_t bytes = p->lib->memory_desc_get_size(md);
    dnnl_memory_t m = NULL;
    *at = mem_alloc(p->d->mem, MEM_WORK, bytes + ((size_t)2 << 20));
    for (size_t i = 0; i < bytes / 4; i++) {
        float v = (float)(i * 2654435761u >> 7 & 1023) / 1024 - 0.5f;
        uint32_t w;
        memcpy(&w, &v, 4);
        ((uint32_t *)*at)[i] = is_bf16 ? (w & 0xffff0000u) | w >> 16 : w;
    }
    return p->lib->memory_create(&m, md, p->lib->engine, *at) == dnnl_success ? m : NULL;
}

/* 0: the library does not do this product. */
static int onednn_product_open(struct onednn_product *p, const struct onednn *o, struct dev *d,
                               enum onednn_form form, enum dtype dt, int64_t m, int64_t n, int64_t k,
                               int n_ring)
{
    dnnl_dims_t a_dims = { m, k }, b_dims = { k, n }, c_dims = { m, n }, turned = { 1, m };
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t op;
    dnnl_primitive_desc_t pd;
    dnnl_data_type_t type = dt == DT_BF16 ? dnnl_bf16 : dnnl_f32;
    *p = (struct onednn_product){ .lib = o, .d = d, .n_ring = n_ring < ONEDNN_RING ? n_ring : ONEDNN_RING };
    if (form == ONEDNN_DW)
        o->memory_desc_init_by_strides(&a, 2, a_dims, type, turned);
    else
        o->memory_desc_init_by_tag(&a, 2, a_dims, type, dnnl_ab);
    o->memory_desc_init_by_tag(&b, 2, b_dims, type, form == ONEDNN_LINEAR ? dnnl_format_tag_any : dnnl_ab);
    o->memory_desc_init_by_tag(&c, 2, c_dims, dnnl_f32, dnnl_ab);
    if (o->matmul_desc_init(&op, &a, &b, NULL, &c) != dnnl_success ||
        o->primitive_desc_create(&pd, &op, NULL, o->engine, NULL) != dnnl_success)
        return 0;
    int ok = o->primitive_create(&p->primitive, pd) == dnnl_success;
    p->a = onednn_memory(p, o->primitive_desc_query_md(pd, dnnl_query_src_md, 0), dt == DT_BF16, &p->a_p);
    p->c = onednn_memory(p, o->primitive_desc_query_md(pd, dnnl_query_dst_md, 0), 0, &p->c_p);
    for (int i = 0; i < p->n_ring; i++)
        p->b[i] = onednn_memory(p, o->primitive_desc_query_md(pd, dnnl_query_weights_md, 0), dt == DT_BF16,
                                &p->b_p[i]);
    o->primitive_desc_destroy(pd);
    return ok;
}

static void onednn_run(void *arg)
{
    struct onednn_product *p = arg;
    p->next = (p->next + 1) % p->n_ring;
    dnnl_exec_arg_t args[3] = { { DNNL_ARG_SRC, p->a },
                                { DNNL_ARG_WEIGHTS, p->b[p->next] },
                                { DNNL_ARG_DST, p->c } };
    p->lib->primitive_execute(p->primitive, p->lib->stream, 3, args);
    p->lib->stream_wait(p->lib->stream);
}

static void onednn_product_close(struct onednn_product *p)
{
    const struct onednn *o = p->lib;
    for (int i = 0; i < p->n_ring; i++) {
        o->memory_destroy(p->b[i]);
        mem_free(p->d->mem, p->b_p[i]);
    }
    o->memory_destroy(p->a), o->memory_destroy(p->c), o->primitive_destroy(p->primitive);
    mem_free(p->d->mem, p->a_p), mem_free(p->d->mem, p->c_p);
}

#else
struct onednn {
    int none;
};
struct onednn_product {
    int none;
};
static int onednn_open(struct onednn *o, int threads) { return o->none = threads * 0; }
static int onednn_product_open(struct onednn_product *p, const struct onednn *o, struct dev *d,
                               enum onednn_form form, enum dtype dt, int64_t m, int64_t n, int64_t k,
                               int n_ring)
{
    (void)d, (void)form, (void)dt, (void)m, (void)n, (void)k, (void)n_ring;
    return p->none = o->none;
}
static void onednn_run(void *arg) { (void)arg; }
static void onednn_product_close(struct onednn_product *p) { p->none = 0; }
#endif

#endif

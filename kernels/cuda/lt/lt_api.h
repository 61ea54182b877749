/* lt_api.h - the calls of cuBLASLt that lt.c makes: the library is opened at run time and not needed to
 * build. Numbers and shapes as NVIDIA's cublasLt.h documents them; lt_check.c compares them with that header
 * where it is. */
#ifndef SHARDLINE_KERNELS_CUDA_LT_LT_API_H
#define SHARDLINE_KERNELS_CUDA_LT_LT_API_H

#include <stddef.h>
#include <stdint.h>

/* cudaDataType */
enum { LT_F32 = 0, LT_BF16 = 14 };
/* cublasComputeType_t; pedantic: no TF32, whatever the environment sets */
enum { LT_COMPUTE_F32 = 68, LT_COMPUTE_F32_PEDANTIC = 69 };
enum { LT_OP_N, LT_OP_T };
enum { LT_DESC_TRANS_A = 3, LT_DESC_TRANS_B = 4 };
enum { LT_LAYOUT_BATCH = 5, LT_LAYOUT_STEP = 6 };
enum {
    LT_PREF_WORKSPACE = 1,
    LT_PREF_REDUCTION = 3,
    LT_PREF_ALIGN_A = 5,
    LT_PREF_ALIGN_B,
    LT_PREF_ALIGN_C,
    LT_PREF_ALIGN_D
};
enum lt_config {
    LT_ALGO_ID,
    LT_ALGO_TILE,
    LT_ALGO_SPLIT_K,
    LT_ALGO_REDUCTION,
    LT_ALGO_SWIZZLE,
    LT_ALGO_OPTION,
    LT_ALGO_STAGES,
    LT_ALGO_INNER,
    LT_ALGO_CLUSTER,
    LT_ALGO_CONFIGS
};

struct lt_algo {
    uint64_t data[8];
};
struct lt_found {
    struct lt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

#define LT_LIST(X) \
    X(Create, (void **handle)) \
    X(Destroy, (void *handle)) \
    X(MatmulDescCreate, (void **desc, int compute, int scale)) \
    X(MatmulDescDestroy, (void *desc)) \
    X(MatmulDescSetAttribute, (void *desc, int what, const void *value, size_t bytes)) \
    X(MatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld)) \
    X(MatrixLayoutDestroy, (void *layout)) \
    X(MatrixLayoutSetAttribute, (void *layout, int what, const void *value, size_t bytes)) \
    X(MatmulPreferenceCreate, (void **pref)) \
    X(MatmulPreferenceDestroy, (void *pref)) \
    X(MatmulPreferenceSetAttribute, (void *pref, int what, const void *value, size_t bytes)) \
    X(MatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, \
                               int wanted, struct lt_found *found, int *n_found)) \
    X(MatmulAlgoConfigGetAttribute, \
      (const struct lt_algo *algo, int what, void *value, size_t bytes, size_t *written)) \
    X(Matmul, (void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, \
               void *lb, const void *beta, const void *c, void *lc, void *d, void *ld, \
               const struct lt_algo *algo, void *workspace, size_t bytes, void *stream))

#endif

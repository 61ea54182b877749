/* random_model.h - for tests of reshard: random models, their checkpoints, and what is the same about two of
 * them. */
#ifndef SHARDLINE_TESTS_RANDOM_MODEL_H
#define SHARDLINE_TESTS_RANDOM_MODEL_H

#include <sys/stat.h>
#include <unistd.h>
#include "reshard/reshard.h"
#include "reshard/report.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

#define MOST_FILES 512

/* Folders in memory where that is possible: a chain waits for some hundred fsyncs. */
static inline const char *work_dir(void)
{
    static char dir[64];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "/dev/shm/shardline-chain-XXXXXX");
        if (!mkdtemp(dir))
            snprintf(dir, sizeof dir, "%.63s", test_tmp_dir());
    }
    return dir;
}

__attribute__((destructor)) static inline void remove_work_dir(void)
{
    struct err e;
    if (!strncmp(work_dir(), "/dev/shm/", 9))
        io_remove_tree(work_dir(), &e);
}

static inline const char *named(const char *name, char out[512])
{
    struct err e;
    in_tmp(work_dir(), name, out);
    CHECK_INT(io_remove_tree(out, &e), 0);
    return out;
}

static inline int n_chains(void)
{
    const char *text = getenv("SHARDLINE_CHAINS");
    return text && atoi(text) > 0 ? atoi(text) : 100;
}

static inline int draw(uint64_t *s, int n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (int)(*s >> 33) % n;
}

/* ---- a random model ---- */

struct random_model {
    char config[700];
    struct model_config cfg;
    struct param_table table;
    int n;
    struct ckpt_tensor tensor[800];
};

/* Sizes that divide by nothing in particular, except what a model asks for. */
static inline void random_config(uint64_t *s, char *text, size_t room)
{
    static const int heads[] = { 2, 3, 4, 6, 8, 8, 12 };
    static const char *const family[] = { "llama", "llama", "qwen2", "qwen3", "mistral", "mixtral" };
    int h = heads[draw(s, 7)], kv = 1 + draw(s, h);
    while (h % kv)
        kv--;
    if (draw(s, 6) == 0) {
        snprintf(text, room,
                 "{\"model_type\":\"gpt2\",\"n_embd\":%d,\"n_layer\":%d,\"n_head\":%d,\"n_inner\":%d,\"vocab_"
                 "size\":%d,\"n_positions\":%d}",
                 h * 2, 1 + draw(s, 3), h, 12 + draw(s, 30), 12 + draw(s, 40), 3 + draw(s, 9));
        return;
    }
    snprintf(text, room,
             "{\"model_type\":\"%s\",\"hidden_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
             "\"num_key_value_heads\":%d,"
             "\"head_dim\":%d,\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":64,"
             "\"num_local_experts\":3,\"num_experts_per_tok\":2,"
             "\"tie_word_embeddings\":%s}",
             family[draw(s, 6)], 8 + draw(s, 30), 1 + draw(s, 4), h, kv, 2 + 2 * draw(s, 3), 12 + draw(s, 40),
             12 + draw(s, 60), draw(s, 2) ? "true" : "false");
}

static inline void random_model(uint64_t *s, struct random_model *m)
{
    enum { WEIGHTS, FP32, BF16, WEIGHTS_BF16 } kind = (unsigned)draw(s, 4);
    struct err e = { 0 };
    do
        random_config(s, m->config, sizeof m->config);
    /* a family that is not known (yet) */
    while (model_config_parse(&m->cfg, m->config, "config.json", &e) < 0);
    CHECK_INT(param_table_open(&m->table, &m->cfg, &e), 0);
    m->n = 0;
    for (int role = 0; role < ROLE_COUNT; role++)
        for (int i = 0; i < m->table.n; i++) {
            const struct param *p = &m->table.p[i];
            if (!p->n_sharing || (role == ROLE_MASTER && kind != BF16) ||
                (role > ROLE_MASTER && kind != BF16 && kind != FP32) || m->n == 800)
                continue;
            m->tensor[m->n++] = (struct ckpt_tensor){ .name = p->name,
                                                      .role = (enum ckpt_role)role,
                                                      .n_dims = p->n_dims,
                                                      .shape = { p->shape[0], p->shape[1] },
                                                      .dtype = !role && (kind == BF16 || kind == WEIGHTS_BF16)
                                                                   ? STORED_BF16
                                                                   : STORED_F32 };
        }
}

static inline int has_state(const struct random_model *m) { return m->tensor[m->n - 1].role != ROLE_WEIGHT; }

static inline struct layout random_layout(uint64_t *s, const struct random_model *m)
{
    static const int tp[] = { 1, 2, 3, 4, 6, 8, 12 };
    struct err e;
    for (;;) {
        struct layout l = { tp[draw(s, 7)], 1 + draw(s, 4), 1, 1 + draw(s, 5), 1, draw(s, 4) };
        if (layout_check(&l, &m->cfg, &e) == 0)
            return l;
    }
}

/* ---- mutations: where a value comes from instead ---- */

enum mutation { NOTHING, TWO_TENSORS, TWO_HEADS, ROWS_SHIFTED };
/* of tensor a (and b) */
struct change {
    enum mutation kind;
    int a, b;
    int64_t rows, first, second;
};

static inline uint64_t value_at(const struct random_model *m, int tensor, int64_t i, const struct change *c)
{
    const struct ckpt_tensor *t = &m->tensor[tensor];
    int64_t width = t->n_dims > 1 ? t->shape[1] : 1, row = i / width, block = c->rows ? row / c->rows : 0;
    if (c->kind == TWO_TENSORS && (tensor == c->a || tensor == c->b))
        t = &m->tensor[tensor == c->a ? c->b : c->a];
    if (c->kind == TWO_HEADS && tensor == c->a && (block == c->first || block == c->second))
        i += (block == c->first ? c->second - c->first : c->first - c->second) * c->rows * width;
    if (c->kind == ROWS_SHIFTED && tensor == c->a)
        i = (row + 1) % t->shape[0] * width + i % width;
    return value_of(t, i);
}

static inline int make(const char *dst, const struct random_model *m, const struct change *c, struct err *e)
{
    struct ckpt_piece *p = calloc((size_t)m->n, sizeof *p);
    struct ckpt_meta meta = {
        .layout = { 1, 1, 1, 1, 1, 0 },
        .config_json = m->config,
        .state = { .has_state = has_state(m), .step = 3, .seed = 5, .sample = 12, .run_json = "{\"lr\":0.1}" }
    };
    struct ckpt_shard *shard = NULL;
    void *table = NULL;
    size_t bytes = 0;
    char tmp[4096];
    int rc = 0;
    for (int i = 0; i < m->n; i++) {
        p[i].t = m->tensor[i];
        p[i].box = box_whole(p[i].t.n_dims, p[i].t.shape);
        p[i].hi = box_count(&p[i].box);
    }
    TRY(ckpt_begin(dst, tmp, NULL, NULL, e));
    TRY(ckpt_shard_open(&shard, tmp, 0, m->n, p, e));
    for (int i = 0; i < m->n; i++) {
        size_t size = (size_t)stored_bytes(p[i].t.dtype, 1);
        char *data = malloc((size_t)p[i].hi * size + 8);
        for (int64_t k = 0; k < p[i].hi; k++) {
            uint64_t v = value_at(m, i, k, c);
            memcpy(data + size * (size_t)k, &v, size);
        }
        rc = ckpt_shard_put(shard, i, data, p[i].hi, e);
        free(data);
        TRY(rc);
    }
    TRY(ckpt_shard_close(shard, &table, &bytes, e));
    TRY(ckpt_publish(tmp, dst, 1, &table, &bytes, &meta, NULL, e));
out:
    free(table);
    free(p);
    return rc;
}

/* ---- chains ---- */

static inline int convert_as(const struct request *r, struct err *e)
{
    struct log log;
    log_open(&log, "test", 1, 0);
    return reshard_convert(r, &log, e);
}

static inline int convert(const char *src, const char *dst, struct layout l, enum ckpt_codec codec,
                          int n_threads, struct err *e)
{
    struct request r = { .src = src,
                         .dst = dst,
                         .layout = l,
                         .codec = codec,
                         .level = codec == CODEC_ZSTD,
                         .n_threads = n_threads };
    return convert_as(&r, e);
}

/* Both digests as they are computed from the data, not as the manifest claims. */
static inline struct ckpt_digests digests_of(const char *path)
{
    struct ckpt_digest d[800];
    struct ckpt_tensor t[800];
    struct ckpt *c = NULL;
    struct err e = { 0 };
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    CHECK_INT(prove_digests(c, 1, NULL, d, &e), 0);
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), 0);
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        t[i] = *ckpt_tensor(c, i);
        t[i].digest = d[i];
    }
    struct ckpt_digests all = ckpt_digest_all(ckpt_n_tensors(c), t, ckpt_state(c));
    ckpt_close(c);
    return all;
}

static inline int same_digests(struct ckpt_digests a, struct ckpt_digests b)
{
    return a.weights.lo == b.weights.lo && a.weights.hi == b.weights.hi && a.state.lo == b.state.lo &&
           a.state.hi == b.state.hi;
}

static inline int same_bytes(const char *a, const char *b)
{
    static char file[MOST_FILES][64], other[MOST_FILES][64];
    int n = list_dir(a, file, MOST_FILES), same = n == list_dir(b, other, MOST_FILES);
    for (int i = 0; i < n && same; i++) {
        char pa[512], pb[512];
        void *x = NULL, *y = NULL;
        size_t nx = 0, ny = 0;
        struct err e;
        same = io_read_file(in_tmp(a, file[i], pa), 1 << 26, &x, &nx, &e) >= 0 &&
               io_read_file(in_tmp(b, file[i], pb), 1 << 26, &y, &ny, &e) >= 0 && nx == ny &&
               !memcmp(x, y, nx);
        free(x);
        free(y);
    }
    return same;
}

static inline int verifies(const char *path)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    int rc = ckpt_open(&c, path, NULL, &e);
    if (rc >= 0)
        rc = ckpt_verify(c, 0, &e);
    ckpt_close(c);
    return rc >= 0;
}

#endif

/* reshard, random models through random chains of layouts: digests stay, and back in the first layout the
 * files have the same bytes. Random mutations (heads, gate and up, rows, experts): always found.
 * SHARDLINE_CHAINS=N: how many of each (100). */
#include <sys/stat.h>
#include <unistd.h>
#include "reshard/reshard.h"
#include "reshard/report.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

#define MOST_FILES 512

/* Folders in memory where that is possible: a chain waits for some hundred fsyncs. */
static const char *work_dir(void)
{
    static char dir[64];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "/dev/shm/shardline-chain-XXXXXX");
        if (!mkdtemp(dir))
            snprintf(dir, sizeof dir, "%.63s", test_tmp_dir());
    }
    return dir;
}

__attribute__((destructor)) static void remove_work_dir(void)
{
    struct err e;
    if (!strncmp(work_dir(), "/dev/shm/", 9))
        io_remove_tree(work_dir(), &e);
}

static const char *named(const char *name, char out[512])
{
    struct err e;
    in_tmp(work_dir(), name, out);
    CHECK_INT(io_remove_tree(out, &e), 0);
    return out;
}

static int n_chains(void)
{
    const char *text = getenv("SHARDLINE_CHAINS");
    return text && atoi(text) > 0 ? atoi(text) : 100;
}

static int draw(uint64_t *s, int n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (int)(*s >> 33) % n;
}

/* ---- a random model ---- */

struct model {
    char config[700];
    struct model_config cfg;
    struct param_table table;
    int n;
    struct ckpt_tensor tensor[800];
};

/* Sizes that divide by nothing in particular, except what a model asks for. */
static void random_config(uint64_t *s, char *text, size_t room)
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

static void random_model(uint64_t *s, struct model *m)
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

static int has_state(const struct model *m) { return m->tensor[m->n - 1].role != ROLE_WEIGHT; }

static struct layout random_layout(uint64_t *s, const struct model *m)
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

static uint64_t value_at(const struct model *m, int tensor, int64_t i, const struct change *c)
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

static int make(const char *dst, const struct model *m, const struct change *c, struct err *e)
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

static int convert(const char *src, const char *dst, struct layout l, enum ckpt_codec codec, int n_threads,
                   struct err *e)
{
    struct request r = { .src = src,
                         .dst = dst,
                         .layout = l,
                         .codec = codec,
                         .level = codec == CODEC_ZSTD,
                         .n_threads = n_threads };
    struct log log;
    log_open(&log, "test", 1, 0);
    return reshard_convert(&r, &log, e);
}

/* Both digests as they are computed from the data, not as the manifest claims. */
static struct ckpt_digests digests_of(const char *path)
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

static int same_digests(struct ckpt_digests a, struct ckpt_digests b)
{
    return a.weights.lo == b.weights.lo && a.weights.hi == b.weights.hi && a.state.lo == b.state.lo &&
           a.state.hi == b.state.hi;
}

static int same_bytes(const char *a, const char *b)
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

static void one_chain(uint64_t *s, const struct model *m)
{
    char first[512], at[512], next[512], last[512], whole[512];
    struct err e = { 0 };
    struct layout home = random_layout(s, m);
    CHECK_INT(make(named("whole", whole), m, &(struct change){ NOTHING, 0, 0, 0, 0, 0 }, &e), 0);
    CHECK_INT(convert(whole, named("first", first), home, CODEC_PLAIN, 1, &e), 0);
    struct ckpt_digests want = digests_of(whole);
    CHECK(same_digests(digests_of(first), want));
    snprintf(at, sizeof at, "%s", first);
    for (int hop = 0, n = 1 + draw(s, 4); hop < n; hop++) {
        enum ckpt_codec codec = draw(s, 3) ? CODEC_PLAIN : draw(s, 2) ? CODEC_ZSTD : CODEC_PLANES;
        struct layout l = random_layout(s, m);
        named(hop % 2 ? "odd" : "even", next);
        if (convert(at, next, l, codec, 1 + draw(s, 3), &e) < 0)
            test_fail(__FILE__, __LINE__, "%s: to tp %d pp %d dp %d zero %d: %s", m->config, l.tp, l.pp, l.dp,
                      l.zero, e.text);
        snprintf(at, sizeof at, "%s", next);
        if (!same_digests(digests_of(at), want))
            test_fail(__FILE__, __LINE__, "%s: another digest at tp %d pp %d dp %d zero %d", m->config, l.tp,
                      l.pp, l.dp, l.zero);
    }
    CHECK_INT(convert(at, named("last", last), home, CODEC_PLAIN, 2, &e), 0);
    if (!same_bytes(first, last))
        test_fail(__FILE__, __LINE__, "%s: back at tp %d pp %d dp %d zero %d with other bytes", m->config,
                  home.tp, home.pp, home.dp, home.zero);
}

TEST(random_chains_of_layouts_keep_the_digests_and_come_back_to_the_same_bytes)
{
    static struct model m;
    uint64_t s = 11;
    for (int i = 0; i < n_chains(); i++) {
        random_model(&s, &m);
        one_chain(&s, &m);
        param_table_close(&m.table);
    }
}

/* ---- mutations ---- */

static int tensor_like(const struct model *m, const char *part, int from)
{
    for (int i = from; i < m->n; i++)
        if (strstr(m->tensor[i].name, part))
            return i;
    return -1;
}

/* A mutation of the kind that this model can have: 1, or 0. */
static int random_change(uint64_t *s, const struct model *m, int kind, struct change *c)
{
    *c = (struct change){ TWO_TENSORS, -1, -1, 0, 0, 0 };
    if (kind == 0) { /* gate and up */
        c->a = tensor_like(m, "gate_proj.weight", draw(s, m->n));
        c->b = c->a < 0 ? -1 : tensor_like(m, "up_proj.weight", c->a);
        return c->b >= 0 && m->tensor[c->a].role == m->tensor[c->b].role;
    }
    if (kind == 1) { /* an expert and the next */
        c->a = tensor_like(m, "experts.0.w1", draw(s, m->n));
        c->b = c->a < 0 ? -1 : tensor_like(m, "experts.1.w1", c->a);
        return c->b >= 0 && m->tensor[c->a].role == m->tensor[c->b].role;
    }
    if (kind == 2) { /* two heads */
        c->kind = TWO_HEADS;
        c->a = tensor_like(m, "q_proj.weight", draw(s, m->n));
        c->rows = m->cfg.head_dim;
        c->first = draw(s, (int)m->cfg.n_heads);
        c->second = (c->first + 1) % m->cfg.n_heads;
        return c->a >= 0;
    }
    c->kind = ROWS_SHIFTED; /* one row */
    c->a = draw(s, m->n);
    return m->tensor[c->a].shape[0] > 1;
}

/* A random model that can have a random mutation of this kind: 1, or 0 after a while (no family with experts
 * is known). */
static int random_mutant(uint64_t *s, struct model *m, int kind, struct change *c)
{
    for (int i = 0; i < 40; i++) {
        random_model(s, m);
        if (random_change(s, m, kind, c))
            return 1;
        param_table_close(&m->table);
    }
    return 0;
}

static int diff_says(const char *a, const char *b, const char *name)
{
    struct ckpt *x = NULL, *y = NULL;
    struct report_options o = { 0 };
    struct err e = { 0 };
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    CHECK(ckpt_open(&x, a, NULL, &e) >= 0 && ckpt_open(&y, b, NULL, &e) >= 0);
    int rc = report_diff(x, y, &o, f, &e), found;
    fclose(f);
    found = rc == 1 && strstr(text, name);
    free(text);
    ckpt_close(x);
    ckpt_close(y);
    return found;
}

/* The mutant's bytes under the first one's manifest, as a converter that moved them would leave them. */
static void put_bytes_of(const char *mutant, const char *base, enum ckpt_role role)
{
    char from[512], to[512];
    void *data = NULL;
    size_t n = 0;
    struct err e = { 0 };
    const char *file = role == ROLE_WEIGHT ? "weights-00000.safetensors" : "optim-00000.safetensors";
    CHECK_INT(io_read_file(in_tmp(mutant, file, from), 1 << 26, &data, &n, &e), 0);
    unlink(in_tmp(base, file, to));
    CHECK_INT(io_write_file(to, data, n, &e), 0);
    free(data);
}

static int verifies(const char *path)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    int rc = ckpt_open(&c, path, NULL, &e);
    if (rc >= 0)
        rc = ckpt_verify(c, 0, &e);
    ckpt_close(c);
    return rc >= 0;
}

TEST(random_mutations_are_found_by_digest_diff_verify_and_the_next_reshard)
{
    static struct model m;
    uint64_t s = 5;
    char base[512], mutant[512], x[512];
    int n_seen[4] = { 0 };
    for (int i = 0; i < n_chains(); i++) {
        struct change c;
        struct err e = { 0 };
        int kind = i % 4;
        if (!random_mutant(&s, &m, kind, &c))
            continue;
        n_seen[kind]++;
        CHECK_INT(make(named("base", base), &m, &(struct change){ NOTHING, 0, 0, 0, 0, 0 }, &e), 0);
        CHECK_INT(make(named("mutant", mutant), &m, &c, &e), 0);
        /* each is whole: only the other one says that it is wrong */
        CHECK(verifies(base) && verifies(mutant));
        CHECK(!same_digests(digests_of(base), digests_of(mutant)));
        CHECK(diff_says(base, mutant, m.tensor[c.a].name));
        put_bytes_of(mutant, base, m.tensor[c.a].role);
        CHECK(!verifies(base));
        CHECK(convert(base, named("x", x), random_layout(&s, &m), CODEC_PLAIN, 1, &e) < 0 &&
              e.code == ERR_INTEGRITY && !io_exists(x));
        param_table_close(&m.table);
    }
    struct err e;
    int experts = model_config_parse(&m.cfg, "{\"model_type\":\"mixtral\",\"num_local_experts\":3}",
                                     "config.json", &e) >= 0;
    CHECK(n_seen[0] && n_seen[2] && n_seen[3] && (n_seen[1] || !experts));
}

/* reshard --format serve: random models into panels and back, what a rank of a server finds in the file,
 * manifests that do not fit, panels that changed places. */
#include "base/jx.h"
#include "format/native/manifest.h"
#include "format/native/panel_b12.h"
#include "format/native/panels_table.h"
#include "format/panels_file.h"
#include "kernels/kernels.h"
#include "model/packs.h"
#include "tests/unit/reshard/random_model.h"

#define COLS 32

static const struct layout one = { 1, 1, 1, 1, 1, 0 };

/* ---- chains ---- */

static int serve_as(const char *src, const char *dst, enum target_dtype dtype, enum ckpt_panel_kind kind,
                    struct err *e)
{
    struct request r = { .src = src,
                         .dst = dst,
                         .layout = one,
                         .format = TARGET_SERVE,
                         .dtype = dtype,
                         .panels = kind,
                         .weights_only = 1,
                         .n_threads = 2 };
    return convert_as(&r, e);
}

static int serve(const char *src, const char *dst, enum target_dtype dtype, struct err *e)
{
    return serve_as(src, dst, dtype, CKPT_PANELS_PLAIN, e);
}

/* A random model's weights, as a random layout has them, and the same whole. */
static void make_source(uint64_t *s, struct random_model *m, char src[512], char whole[512])
{
    struct err e = { 0 };
    struct request r = { .layout = random_layout(s, m), .weights_only = 1, .n_threads = 1 };
    char all[512];
    CHECK_INT(make(named("all", all), m, &(struct change){ NOTHING, 0, 0, 0, 0, 0 }, &e), 0);
    r.src = all;
    r.dst = named("src", src);
    CHECK_INT(convert_as(&r, &e), 0);
    r.dst = named("whole", whole);
    r.layout = one;
    CHECK_INT(convert_as(&r, &e), 0);
}

TEST(random_models_go_into_panels_and_come_back_to_the_same_bytes)
{
    static struct random_model m;
    uint64_t s = 23;
    char src[512], whole[512], out[512], back[512];
    struct err e = { 0 };
    for (int i = 0; i < n_chains() / 2; i++) {
        random_model(&s, &m);
        make_source(&s, &m, src, whole);
        if (serve(src, named("serve", out), TARGET_AS_IS, &e) < 0)
            test_fail(__FILE__, __LINE__, "%s: %s", m.config, e.text);
        CHECK(verifies(out));
        struct ckpt_digests a = digests_of(whole), b = digests_of(out);
        if (a.weights.lo != b.weights.lo || a.weights.hi != b.weights.hi)
            test_fail(__FILE__, __LINE__, "%s: another digest", m.config);
        CHECK_INT(convert(out, named("back", back), one, CODEC_PLAIN, 1 + draw(&s, 3), &e), 0);
        if (!same_bytes(whole, back))
            test_fail(__FILE__, __LINE__, "%s: back with other bytes", m.config);
        CHECK_INT(convert(out, named("back", back), random_layout(&s, &m), CODEC_PLAIN, 2, &e), 0);
        b = digests_of(back);
        CHECK(a.weights.lo == b.weights.lo && a.weights.hi == b.weights.hi);
        param_table_close(&m.table);
    }
}

/* ---- bf16 in 12 bits ---- */

/* Values as weights have them, and now and then one of another size. */
static void fill_as_weights(uint64_t *s, uint16_t *v, int64_t n, int strange)
{
    for (int64_t i = 0; i < n; i++) {
        int exponent = 108 + draw(s, 14) - (strange && draw(s, strange) == 0 ? 90 : 0);
        v[i] = (uint16_t)((draw(s, 2) << 15) | exponent << 7 | draw(s, 128));
    }
}

TEST(leaves_in_12_bits_come_back_to_the_same_bits)
{
    static uint16_t in[COLS * 301], out[COLS * 301];
    static char leaf[1 << 16];
    static const int64_t lengths[] = { 1, 2, 3, 4, 5, 31, 127, 128, 129, 301 };
    uint64_t s = 3;
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int n_out = 1; n_out <= COLS; n_out += 31)
            for (int turned = 0; turned < 2; turned++) {
                int64_t n = lengths[k];
                struct panel_view from = { (char *)in, turned ? 2 : 2 * n, turned ? 2 * n_out : 2 },
                                  to = from;
                fill_as_weights(&s, in, n * n_out, 400);
                memset(out, 0x55, sizeof out);
                to.p = (char *)out;
                CHECK(b12_escapes(from, n_out, n) <= b12_room(n));
                CHECK(b12_leaf_bytes(n) <= (int64_t)sizeof leaf && b12_leaf_bytes(n) % 64 == 0);
                CHECK_INT(b12_encode(leaf, from, n_out, n), 0);
                b12_decode(leaf, n, 0, n, 0, n_out, to);
                CHECK_SAME(in, out, 2 * (size_t)(n * n_out));
                if (n_out < COLS || n < 5)
                    continue;
                uint16_t two[2];
                b12_decode(leaf, n, n - 2, n, 7, 1, (struct panel_view){ (char *)two, 4, 2 });
                for (int i = 0; i < 2; i++)
                    CHECK_INT(two[i], in[turned ? (n - 2 + i) * n_out + 7 : 7 * n + n - 2 + i]);
            }
    fill_as_weights(&s, in, COLS * 301, 2);
    CHECK_INT(b12_encode(leaf, (struct panel_view){ (char *)in, 602, 2 }, COLS, 301), -1);
}

/* All weights of a folder of bf16, with the values that weights have; strange: one in so many is not. */
static void make_weights(struct random_model *m, uint64_t *s, int strange, const char *path)
{
    struct ckpt_piece *p = calloc((size_t)m->n, sizeof *p);
    struct ckpt_meta meta = { .layout = { 1, 1, 1, 1, 1, 0 }, .config_json = m->config };
    struct ckpt_shard *shard = NULL;
    void *table = NULL;
    size_t bytes = 0;
    char tmp[4096];
    struct err e = { 0 };
    for (int i = 0; i < m->n; i++)
        p[i] = (struct ckpt_piece){ m->tensor[i], box_whole(m->tensor[i].n_dims, m->tensor[i].shape), 0, 0 };
    for (int i = 0; i < m->n; i++)
        p[i].hi = box_count(&p[i].box);
    CHECK_INT(ckpt_begin(path, tmp, NULL, NULL, &e), 0);
    CHECK_INT(ckpt_shard_open(&shard, tmp, 0, m->n, p, &e), 0);
    for (int i = 0; i < m->n; i++) {
        uint16_t *data = malloc((size_t)p[i].hi * 2);
        fill_as_weights(s, data, p[i].hi, strange);
        CHECK_INT(ckpt_shard_put(shard, i, data, p[i].hi, &e), 0);
        free(data);
    }
    CHECK_INT(ckpt_shard_close(shard, &table, &bytes, &e), 0);
    CHECK_INT(ckpt_publish(tmp, path, 1, &table, &bytes, &meta, NULL, &e), 0);
    free(table);
    free(p);
}

TEST(random_models_of_bf16_go_into_12_bits_and_come_back_to_the_same_bytes)
{
    static struct random_model m;
    uint64_t s = 29;
    char src[512], whole[512], out[512], back[512];
    struct err e = { 0 };
    int n_narrow = 0, n_plain = 0;
    for (int i = 0; i < 80; i++) {
        random_model(&s, &m);
        if (m.tensor[m.n - 1].role != ROLE_WEIGHT || m.tensor[0].dtype != STORED_BF16) {
            param_table_close(&m.table);
            continue;
        }
        make_weights(&m, &s, i % 4 ? 300 : 20, named("src", src));
        CHECK_INT(convert(src, named("whole", whole), one, CODEC_PLAIN, 1, &e), 0);
        CHECK_INT(serve_as(src, named("serve", out), TARGET_AS_IS, CKPT_PANELS_B12, &e), 0);
        CHECK(verifies(out));
        struct ckpt *c = NULL;
        CHECK_INT(ckpt_open(&c, out, NULL, &e), 0);
        for (int k = 0; k < ckpt_n_packs(c); k++)
            ckpt_pack(c, k)->kind == CKPT_PANELS_B12 ? n_narrow++ : n_plain++;
        ckpt_close(c);
        CHECK_INT(convert(out, named("back", back), one, CODEC_PLAIN, 2, &e), 0);
        if (!same_bytes(whole, back))
            test_fail(__FILE__, __LINE__, "%s: back with other bytes", m.config);
        param_table_close(&m.table);
    }
    CHECK(n_narrow > 20 && n_plain > 5);
}

/* ---- one model, looked at ---- */

static const char small[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":52,\"num_hidden_layers\":2,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":2,\"head_dim\":12,\"intermediate_size\":136,\"vocab_size\":90,"
    "\"max_position_embeddings\":64,\"tie_word_embeddings\":true}";

/* The names are those of m->table, which the caller closes. */
static void small_model(struct random_model *m, enum stored_dtype dtype)
{
    struct err e = { 0 };
    memset(m, 0, sizeof *m);
    snprintf(m->config, sizeof m->config, "%s", small);
    CHECK_INT(model_config_parse(&m->cfg, m->config, "config.json", &e), 0);
    CHECK_INT(param_table_open(&m->table, &m->cfg, &e), 0);
    for (int i = 0; i < m->table.n; i++) {
        const struct param *p = &m->table.p[i];
        m->tensor[m->n++] = (struct ckpt_tensor){
            .name = p->name, .n_dims = p->n_dims, .shape = { p->shape[0], p->shape[1] }, .dtype = dtype
        };
    }
}

/* A serve folder of it; m: its source. */
static void make_small(struct random_model *m, enum stored_dtype dtype, const char *name, char out[512])
{
    struct err e = { 0 };
    char src[512];
    small_model(m, dtype);
    CHECK_INT(make(named("small", src), m, &(struct change){ NOTHING, 0, 0, 0, 0, 0 }, &e), 0);
    CHECK_INT(serve(src, named(name, out), TARGET_AS_IS, &e), 0);
    param_table_close(&m->table);
}

/* The same in 12 bits, with values that fit. */
static void make_small_narrow(struct random_model *m, const char *name, char out[512])
{
    struct err e = { 0 };
    uint64_t s = 31;
    char src[512];
    small_model(m, STORED_BF16);
    make_weights(m, &s, 1000, named("small", src));
    CHECK_INT(serve_as(src, named(name, out), TARGET_AS_IS, CKPT_PANELS_B12, &e), 0);
    param_table_close(&m->table);
}

/* Output `at` of a tensor's matrix, in index of its dim, begins a panel of the run or ends it. */
static int is_edge(const struct ckpt_run *r, int64_t at)
{
    int64_t in = at - r->box.start[r->out_dim];
    return in >= 0 && in <= r->n && (in % COLS == 0 || in == r->n);
}

/* The rank's part of a matrix is whole panels, and its leaves are leaves of the pack. */
static void check_matrix(struct ckpt *c, const struct model *m, const struct pack_info *info,
                         const struct pack_matrix *x)
{
    const struct ckpt_run *const *run;
    int t = ckpt_find(c, ROLE_WEIGHT, m->table.p[x->param].name), n = ckpt_runs_of(c, t, &run);
    int64_t begin = x->box.start[x->out_dim], end = begin + x->box.extent[x->out_dim], found = 0;
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
        const struct ckpt_run *r = run[i];
        const struct ckpt_pack *k = ckpt_pack(c, r->pack);
        int64_t lo = r->box.start[r->out_dim], hi = lo + r->n;
        CHECK(r->out_dim == x->out_dim && r->in_dim == x->in_dim);
        if (hi <= begin || lo >= end)
            continue;
        CHECK(is_edge(r, begin > lo ? begin : lo) && is_edge(r, end < hi ? end : hi));
        found += (end < hi ? end : hi) - (begin > lo ? begin : lo);
        int64_t first = x->box.start[x->in_dim] - r->box.start[r->in_dim];
        for (int g = 0, f = 0; g < info->leaves.n; g++) {
            while (f < k->n_leaves && k->leaf_end[f] < first + info->leaves.end[g])
                f++;
            CHECK(f < k->n_leaves && k->leaf_end[f] == first + info->leaves.end[g]);
        }
    }
    CHECK_INT(found, end - begin);
}

TEST(every_rank_of_every_tp_finds_its_packs_as_whole_panels_and_leaves)
{
    static struct random_model from;
    char path[512];
    struct ckpt *c = NULL;
    struct err e = { 0 };
    make_small(&from, STORED_F32, "serve", path);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int rank = 0; rank < tp; rank++) {
            struct model m;
            struct pack_info info;
            CHECK_INT(model_shape(&m, &from.cfg, &(struct layout){ tp, 1, 1, 1, 1, 0 },
                                  (struct rank_at){ .tp = rank }, DT_F32, 0, &e),
                      0);
            for (int u = 0; u < m.table.n_units; u++)
                for (int k = 0; k < model_n_packs(&m, u); k++) {
                    model_pack_info(&m, u, k, &info);
                    for (int i = 0; i < info.n; i++)
                        check_matrix(c, &m, &info, &info.matrix[i]);
                }
            model_close(&m);
        }
    ckpt_close(c);
}

/* The rows of a run, read as any reader does. */
static char *rows_of(struct ckpt *c, const struct ckpt_run *r, const struct ckpt_pack *k)
{
    struct err e = { 0 };
    char *data = malloc((size_t)(r->n * k->k) * 4);
    CHECK_INT(ckpt_read(c, r->tensor, &r->box, data, &e), 0);
    return data;
}

static void check_panels(struct dev *d, struct ckpt *c, const struct ckpt_run *r)
{
    const struct ckpt_pack *k = ckpt_pack(c, r->pack);
    enum dtype dt = k->dtype == STORED_F32 ? DT_F32 : DT_BF16;
    struct panels p = { .n = r->n, .k = k->k, .dt = dt, .leaves = { .n = k->n_leaves } };
    p.kind = k->kind == CKPT_PANELS_B12 ? PANEL_B12 : PANEL_PLAIN;
    struct err e = { 0 };
    memcpy(p.leaves.end, k->leaf_end, sizeof(int64_t) * (size_t)k->n_leaves);
    size_t bytes = panels_size(&p);
    char *rows = rows_of(c, r, k), *have = malloc(bytes);
    p.p = dev_alloc(d, MEM_WORK, bytes);
    struct mat w = mat_of(rows, dt, r->n, k->k, k->k);
    KERNEL(d, linear_pack, &p, 1, &w);
    int fd = io_open_read(ckpt_file_path(c, k->file), &e);
    CHECK_INT(io_pread(fd, "file", have, bytes, r->offset, &e), 0);
    io_close(fd);
    CHECK(!memcmp(have, p.p, bytes));
    dev_free(d, p.p);
    free(rows);
    free(have);
}

TEST(panels_in_the_file_are_those_that_products_pack)
{
    static struct random_model from;
    char path[512];
    struct dev *d = NULL;
    struct err e = { 0 };
    static struct mem mem;
    CHECK_INT(dev_open(&d, "cpu", 1, &mem, &e), 0);
    if (strncmp(d->isa, "avx512", 6)) {
        dev_close(d);
        return; /* this class packs narrower panels */
    }
    for (int form = 0; form < 3; form++) {
        struct ckpt *c = NULL;
        if (form == 2)
            make_small_narrow(&from, "serve", path);
        else
            make_small(&from, form ? STORED_BF16 : STORED_F32, "serve", path);
        CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
        CHECK(ckpt_n_packs(c) == 2 * 4 + 1);
        for (int i = 0; form == 2 && i < ckpt_n_packs(c); i++)
            CHECK_INT(ckpt_pack(c, i)->kind, CKPT_PANELS_B12);
        for (int i = 0; i < ckpt_n_packs(c); i++)
            for (int r = 0; r < ckpt_pack(c, i)->n_runs; r++)
                check_panels(d, c, &ckpt_pack(c, i)->run[r]);
        ckpt_close(c);
    }
    dev_close(d);
}

/* ---- what does not fit ---- */

static json_t *load_manifest(const char *dir)
{
    char path[512];
    struct err e = { 0 };
    json_t *root = jx_load(in_tmp(dir, "manifest.json", path), 1 << 24, &e);
    CHECK(root != NULL);
    json_object_del(root, "manifest_checksum");
    return root;
}

static void save_manifest(const char *dir, json_t *root)
{
    char path[512];
    struct err e = { 0 };
    size_t n = 0;
    char *text = manifest_text(root, NULL, 0, &n, &e);
    unlink(in_tmp(dir, "manifest.json", path));
    CHECK_INT(io_write_file(path, text, n, &e), 0);
    free(text);
    json_decref(root);
}

static json_t *file_of(json_t *root) { return json_array_get(json_object_get(root, "files"), 0); }
static json_t *pack_of(json_t *root, size_t i)
{
    return json_array_get(json_object_get(file_of(root), "packs"), i);
}

/* The i-th piece that is a run, or that is none. */
static json_t *piece_of_kind(json_t *root, int run, int i)
{
    json_t *o;
    size_t at;
    json_array_foreach(json_object_get(file_of(root), "pieces"), at, o) {
        if (!json_object_get(o, "pack") == !run && i-- == 0)
            return o;
    }
    return NULL;
}

static void add_to(json_t *o, const char *key, int64_t n)
{
    json_object_set_new(o, key, json_integer(json_integer_value(json_object_get(o, key)) + n));
}

static void pack_behind_the_end(json_t *root) { add_to(pack_of(root, 0), "offset", (int64_t)1 << 40); }
static void pack_unaligned(json_t *root) { add_to(pack_of(root, 0), "offset", 4); }
static void pack_over_another(json_t *root)
{
    json_object_set(pack_of(root, 1), "offset", json_object_get(pack_of(root, 0), "offset"));
}
static void another_stride(json_t *root) { add_to(pack_of(root, 0), "stride", 128); }
static void half_a_panel(json_t *root) { add_to(pack_of(root, 0), "bytes", -64); }
static void another_leaf(json_t *root)
{
    json_t *list = json_object_get(pack_of(root, 0), "leaves");
    json_array_set_new(list, 0, json_integer(1 << 20));
}
static void no_leaves(json_t *root) { json_array_clear(json_object_get(pack_of(root, 0), "leaves")); }
static void unknown_kind(json_t *root) { json_object_set_new(pack_of(root, 0), "kind", json_string("b99")); }
static void run_off_its_place(json_t *root) { add_to(piece_of_kind(root, 1, 0), "offset", 64); }
static void run_of_no_pack(json_t *root) { add_to(piece_of_kind(root, 1, 0), "pack", 1 << 20); }
static void run_turned(json_t *root)
{
    json_t *o = piece_of_kind(root, 1, 0);
    json_object_set_new(o, "outputs", json_integer(1));
    json_object_set_new(o, "inputs", json_integer(0));
}
static void tensor_over_a_pack(json_t *root)
{
    json_object_set(piece_of_kind(root, 0, 0), "offset", json_object_get(pack_of(root, 0), "offset"));
}
static void feature_left_out(json_t *root) { json_object_set_new(root, "must_understand", json_array()); }
static void copy_left_out(json_t *root)
{
    json_t *o;
    size_t at;
    json_array_foreach(json_object_get(file_of(root), "pieces"), at, o)
        json_object_del(o, "copy");
}

TEST(manifests_whose_packs_do_not_fit_are_refused_with_one_line)
{
    static const struct {
        void (*change)(json_t *root);
        const char *says;
    } bad[] = {
        { pack_behind_the_end, "passes the end of" },
        { pack_unaligned, "multiple of 64" },
        { pack_over_another, "offset" },
        { another_stride, "the stride is" },
        { half_a_panel, "whole panels" },
        { another_leaf, "the end of a leaf" },
        { no_leaves, "the number of leaves" },
        { unknown_kind, "kind \"b99\"" },
        { run_off_its_place, "the offset of a run" },
        { run_of_no_pack, "is in pack" },
        { run_turned, "the contraction of a run" },
        { tensor_over_a_pack, "belong to two parts" },
        { feature_left_out, "does not name the feature" },
        { copy_left_out, "two pieces overlap" },
    };
    static struct random_model from;
    char path[512];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt *c = NULL;
        struct err e = { 0 };
        make_small(&from, STORED_BF16, "serve", path);
        json_t *root = load_manifest(path);
        bad[i].change(root);
        save_manifest(path, root);
        int rc = ckpt_open(&c, path, NULL, &e);
        if (rc != -ERR_FORMAT || !strstr(e.text, bad[i].says) || strchr(e.text, '\n'))
            test_fail(__FILE__, __LINE__, "case %zu: %d %s", i, rc, e.text);
        ckpt_close(c);
    }
}

/* Exchanges n bytes of the file, and makes all checksums fit. */
static void exchange(const char *dir, int64_t a, int64_t b, int64_t n)
{
    char path[512];
    struct err e = { 0 };
    void *data = NULL;
    size_t bytes = 0;
    char *x = malloc((size_t)n);
    CHECK_INT(io_read_file(in_tmp(dir, "weights-00000.safetensors", path), 1 << 26, &data, &bytes, &e), 0);
    memcpy(x, (char *)data + a, (size_t)n);
    memcpy((char *)data + a, (char *)data + b, (size_t)n);
    memcpy((char *)data + b, x, (size_t)n);
    unlink(path);
    CHECK_INT(io_write_file(path, data, bytes, &e), 0);
    int64_t blocks = ((int64_t)bytes + FMT_BLOCK - 1) / FMT_BLOCK;
    uint64_t *sum = calloc((size_t)blocks, sizeof *sum);
    for (int64_t i = 0; i < blocks; i++) {
        size_t left = bytes - (size_t)(i * FMT_BLOCK);
        sum[i] = fmt_sum64((char *)data + i * FMT_BLOCK, left < FMT_BLOCK ? left : FMT_BLOCK);
    }
    json_t *root = load_manifest(dir), *f = file_of(root);
    json_object_set_new(f, "blocks", manifest_blocks(sum, blocks));
    json_object_set_new(f, "checksum", manifest_sum128(fmt_sum_blocks(sum, blocks)));
    save_manifest(dir, root);
    free(sum);
    free(data);
    free(x);
}

static int fails_to_verify(const char *path, const char *says)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    int rc = ckpt_open(&c, path, NULL, &e);
    if (rc >= 0)
        rc = ckpt_verify(c, 0, &e);
    ckpt_close(c);
    return rc == -ERR_INTEGRITY && strstr(e.text, says);
}

TEST(panels_that_changed_places_are_found_by_digests)
{
    static struct random_model from;
    char path[512];
    struct ckpt *c = NULL;
    struct err e = { 0 };
    make_small(&from, STORED_BF16, "serve", path);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    const struct ckpt_pack qkv = *ckpt_pack(c, 0), head = *ckpt_pack(c, ckpt_n_packs(c) - 1);
    const int64_t k_run = qkv.run[qkv.n_runs - 2].offset, q_run = qkv.run[0].offset;
    CHECK(head.run[0].is_copy && qkv.n_runs > 3);
    ckpt_close(c);

    exchange(path, qkv.offset, qkv.offset + qkv.stride, qkv.stride);
    CHECK(fails_to_verify(path, "q_proj.weight has digest"));
    make_small(&from, STORED_BF16, "serve", path);
    exchange(path, q_run, k_run, qkv.stride);
    CHECK(fails_to_verify(path, "has digest"));
    make_small(&from, STORED_BF16, "serve", path);
    exchange(path, head.offset, head.offset + head.stride, head.stride);
    CHECK(fails_to_verify(path, "embed_tokens.weight hold another tensor than its rows"));
}

/* reshard: every layout and back gives the same bytes, digests never change, dtypes are converted as the
 * contract says, and whatever goes wrong, nothing appears. */
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/jx.h"
#include "reshard/cast.h"
#include "reshard/dest.h"
#include "reshard/report.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_"
    "key_value_heads\":2,"
    "\"intermediate_size\":40,\"vocab_size\":50,\"max_position_embeddings\":64,\"tie_word_embeddings\":false,"
    "\"torch_dtype\":\"bfloat16\"}\n";
static char base[512], one[512], two[512], three[512];

static const char *named(const char *name, char out[512])
{
    struct err e;
    in_tmp(test_tmp_dir(), name, out);
    CHECK_INT(io_remove_tree(out, &e), 0);
    return out;
}

/* A whole training state, every tensor on rank 0; values are floats so that they can be converted. */
static void fill_floats(const struct ckpt_tensor *t, int64_t n, char *out)
{
    for (int64_t i = 0; i < n; i++) {
        /* 2^-27 to 2^22, both signs */
        uint32_t v = (uint32_t)value_of(t, i), bits = (v & 0x807fffffu) | (100 + v % 50) << 23;
        if (t->dtype == STORED_BF16) {
            uint16_t h = (uint16_t)(bits >> 16);
            memcpy(out + 2 * i, &h, 2);
        } else {
            memcpy(out + 4 * i, &bits, 4);
        }
    }
}

enum { WITH_MASTERS = 1, WITH_MOMENTS = 2, BF16 = 4, NO_STATE = 8 };
static int make_base(const char *dst, int how, const char *config_text, struct err *e)
{
    struct model_config cfg;
    struct param_table table;
    struct ckpt_piece *p;
    struct ckpt_shard *s = NULL;
    void *table_text = NULL;
    size_t bytes = 0;
    char tmp[4096];
    int n = 0, rc = 0;
    static const int64_t counts[4] = { 3, 0, 1, 2 };
    struct ckpt_meta meta = { .layout = { 1, 1, 1, 1, 1, 0 },
                              .config_json = config_text,
                              .state = { .has_state = !(how & NO_STATE),
                                         .step = 3,
                                         .seed = 5,
                                         .sample = 12,
                                         .grain = 8,
                                         .run_json = "{\"lr\":0.25}",
                                         .counts = { 2, 2, counts } } };
    TRY(model_config_parse(&cfg, config, "config.json", e));
    TRY(param_table_open(&table, &cfg, e));
    p = calloc((size_t)table.n * ROLE_COUNT, sizeof *p);
    for (int role = 0; role < ROLE_COUNT; role++)
        for (int i = 0; i < table.n; i++) {
            if ((role == ROLE_MASTER && !(how & WITH_MASTERS)) ||
                (role > ROLE_MASTER && !(how & WITH_MOMENTS)))
                continue;
            p[n].t = (struct ckpt_tensor){ .name = table.p[i].name,
                                           .role = (enum ckpt_role)role,
                                           .n_dims = table.p[i].n_dims,
                                           .dtype = role == ROLE_WEIGHT && how & BF16 ? STORED_BF16
                                                                                      : STORED_F32,
                                           .shape = { table.p[i].shape[0], table.p[i].shape[1] } };
            p[n].box = box_whole(p[n].t.n_dims, p[n].t.shape);
            p[n].hi = box_count(&p[n].box);
            n++;
        }
    TRY(ckpt_begin(dst, tmp, NULL, NULL, e));
    TRY(ckpt_shard_open(&s, tmp, 0, n, p, e));
    for (int i = 0; i < n; i++) {
        char *data = malloc((size_t)p[i].hi * 4);
        fill_floats(&p[i].t, p[i].hi, data);
        TRY(ckpt_shard_put(s, i, data, p[i].hi, e));
        free(data);
    }
    TRY(ckpt_shard_close(s, &table_text, &bytes, e));
    TRY(ckpt_publish(tmp, dst, 1, &table_text, &bytes, &meta, NULL, e));
    free(table_text);
    free(p);
    param_table_close(&table);
out:
    return rc;
}

static int convert(const char *src, const char *dst, struct layout l, enum target_format f,
                   enum target_dtype d, int weights_only, struct err *e)
{
    struct request r = { .src = src,
                         .dst = dst,
                         .layout = l,
                         .format = f,
                         .dtype = d,
                         .weights_only = weights_only || f == TARGET_HF,
                         .n_threads = 2,
                         .shard_bytes = 4000 };
    struct log log;
    log_open(&log, "test", 1, 0);
    return reshard_convert(&r, &log, e);
}

static const struct layout whole = { 1, 1, 1, 1, 1, 0 };

static void digests_of(const char *path, char weights[33], char state[33])
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    FILE *f = tmpfile();
    struct report_options o = { .n_threads = 1 };
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    CHECK_INT(report_digest(c, &o, f, &e), 0);
    rewind(f);
    CHECK_INT(fscanf(f, "weights_digest %32s\nstate_digest %32s", weights, state), 2);
    fclose(f);
    ckpt_close(c);
}

static int same_folders(const char *a, const char *b)
{
    char cmd[1200];
    snprintf(cmd, sizeof cmd, "diff -r '%s' '%s' >/dev/null", a, b);
    return system(cmd) == 0;
}

static int verifies(const char *path)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    int rc = ckpt_open(&c, path, NULL, &e);
    if (rc == 0)
        rc = ckpt_verify(c, 0, &e);
    ckpt_close(c);
    return rc == 0;
}

TEST(every_layout_verifies_keeps_the_digests_and_gives_the_first_bytes_back)
{
    static const struct layout layouts[] = {
        { 2, 1, 1, 1, 1, 0 }, { 4, 1, 1, 1, 1, 0 }, { 8, 1, 1, 1, 1, 0 }, { 1, 3, 1, 1, 1, 0 },
        { 2, 2, 1, 2, 1, 0 }, { 1, 1, 1, 2, 1, 1 }, { 1, 1, 1, 3, 1, 2 }, { 1, 1, 1, 4, 1, 3 },
        { 2, 1, 1, 2, 1, 3 }, { 4, 3, 1, 2, 1, 1 }, { 8, 2, 1, 5, 1, 3 }, { 1, 1, 1, 12, 1, 3 },
    };
    struct err e = { 0 };
    char w[33], s[33], w2[33], s2[33];
    CHECK_INT(make_base(named("base", base), WITH_MASTERS | WITH_MOMENTS | BF16, config, &e), 0);
    digests_of(base, w, s);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct layout next = layouts[(i + 5) % (sizeof layouts / sizeof *layouts)];
        CHECK_INT(convert(base, named("one", one), layouts[i], TARGET_NATIVE, TARGET_AS_IS, 0, &e), 0);
        CHECK(verifies(one));
        digests_of(one, w2, s2);
        CHECK_STR(w2, w);
        CHECK_STR(s2, s);
        CHECK_INT(convert(one, named("two", two), next, TARGET_NATIVE, TARGET_AS_IS, 0, &e), 0);
        CHECK_INT(convert(two, named("three", three), whole, TARGET_NATIVE, TARGET_AS_IS, 0, &e), 0);
        CHECK(same_folders(base, three));
    }
}

static void read_tensor(const char *path, enum ckpt_role role, const char *name, enum stored_dtype want,
                        void **data, int64_t *n)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    int i = ckpt_find(c, role, name);
    CHECK(i >= 0 && ckpt_tensor(c, i)->dtype == want);
    struct box b = box_whole(ckpt_tensor(c, i)->n_dims, ckpt_tensor(c, i)->shape);
    *n = box_count(&b);
    *data = malloc((size_t)*n * 8);
    CHECK_INT(ckpt_read(c, i, &b, *data, &e), 0);
    ckpt_close(c);
}

static int has_role(const char *path, enum ckpt_role role)
{
    struct ckpt *c = NULL;
    struct err e;
    int n = 0;
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    for (int i = 0; i < ckpt_n_tensors(c); i++)
        n += ckpt_tensor(c, i)->role == role;
    ckpt_close(c);
    return n;
}

TEST(a_training_state_in_fp32_goes_to_bf16_with_masters_and_comes_back_bit_for_bit)
{
    struct err e = { 0 };
    void *x = NULL, *y = NULL;
    int64_t n = 0;
    CHECK_INT(make_base(named("base", base), WITH_MOMENTS, config, &e), 0);
    CHECK_INT(convert(base, named("one", one), (struct layout){ 2, 1, 1, 2, 1, 1 }, TARGET_NATIVE,
                      TARGET_BF16, 0, &e),
              0);
    CHECK(has_role(one, ROLE_MASTER) == has_role(base, ROLE_WEIGHT));
    CHECK_INT(convert(one, named("two", two), whole, TARGET_NATIVE, TARGET_F32, 0, &e), 0);
    CHECK_INT(has_role(two, ROLE_MASTER), 0);
    char w[33], s[33], w2[33], s2[33];
    digests_of(base, w, s);
    digests_of(two, w2, s2);
    CHECK_STR(w2, w);
    CHECK_STR(s2, s);
    read_tensor(base, ROLE_WEIGHT, "model.norm.weight", STORED_F32, &x, &n);
    read_tensor(one, ROLE_WEIGHT, "model.norm.weight", STORED_BF16, &y, &n);
    uint16_t *want = malloc((size_t)n * 2);
    cast_run(STORED_F32, STORED_BF16, x, want, n);
    CHECK_SAME(y, want, n * 2);
    free(x), free(y), free(want);
}

TEST(without_state_bf16_is_widened_exactly_and_the_config_says_the_dtype)
{
    struct err e = { 0 };
    void *x = NULL, *y = NULL;
    int64_t n = 0;
    struct ckpt *c = NULL;
    CHECK_INT(make_base(named("base", base), WITH_MASTERS | WITH_MOMENTS | BF16, config, &e), 0);
    CHECK_INT(convert(base, named("one", one), (struct layout){ 4, 1, 1, 1, 1, 0 }, TARGET_NATIVE, TARGET_F32,
                      1, &e),
              0);
    read_tensor(base, ROLE_WEIGHT, "lm_head.weight", STORED_BF16, &x, &n);
    read_tensor(one, ROLE_WEIGHT, "lm_head.weight", STORED_F32, &y, &n);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)((uint16_t *)x)[i] << 16;
        CHECK_SAME((uint32_t *)y + i, &bits, 4);
    }
    free(x), free(y);
    CHECK_INT(ckpt_open(&c, one, NULL, &e), 0);
    CHECK_HAS(ckpt_config_json(c), "\"torch_dtype\": \"float32\"");
    CHECK(!ckpt_state(c)->has_state && ckpt_state(c)->grain == 8);
    ckpt_close(c);
    CHECK_INT(has_role(one, ROLE_EXP_AVG), 0);
}

TEST(to_hugging_face_and_back_keeps_the_weights_and_the_config)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    char w[33], s[33], w2[33], path[512];
    CHECK_INT(make_base(named("base", base), WITH_MASTERS | WITH_MOMENTS | BF16, config, &e), 0);
    CHECK_INT(convert(base, named("one", one), whole, TARGET_HF, TARGET_AS_IS, 0, &e), 0);
    CHECK(io_exists(in_tmp(one, "model.safetensors.index.json", path)) &&
          !io_exists(in_tmp(one, "manifest.json", path)));
    CHECK_INT(ckpt_open(&c, one, NULL, &e), 0);
    CHECK_STR(ckpt_driver(c), "hf");
    CHECK_STR(ckpt_config_json(c), config);
    ckpt_close(c);
    digests_of(base, w, s);
    digests_of(one, w2, s);
    CHECK_STR(w2, w);
    CHECK_STR(s, "-");
    CHECK_INT(convert(one, named("two", two), (struct layout){ 8, 1, 1, 1, 1, 0 }, TARGET_NATIVE,
                      TARGET_AS_IS, 0, &e),
              0);
    digests_of(two, w2, s);
    CHECK_STR(w2, w);
}

static char *with(const char *find, const char *put)
{
    char *text = calloc(1, sizeof config + 64);
    const char *at = strstr(config, find);
    snprintf(text, sizeof config + 64, "%.*s%s%s", (int)(at - config), config, put, at + strlen(find));
    return text;
}

TEST(a_grain_of_its_own_stands_in_the_config_of_the_export_and_nowhere_else)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    char *text = with("\"vocab_size\"", "\"shardline_grain\":4,\"vocab_size\"");
    /* the manifest says 8, which is the formula */
    CHECK_INT(make_base(named("base", base), BF16 | NO_STATE, text, &e), 0);
    CHECK_INT(convert(base, named("one", one), whole, TARGET_HF, TARGET_AS_IS, 0, &e), 0);
    CHECK_INT(ckpt_open(&c, one, NULL, &e), 0);
    CHECK(!strstr(ckpt_config_json(c), "shardline_grain"));
    ckpt_close(c);
    free(text);
}

TEST(a_config_that_does_not_fit_and_layouts_that_do_not_are_refused_and_nothing_appears)
{
    static const struct {
        const char *find, *put, *says;
    } cases[] = {
        { "\"hidden_size\":32", "\"hidden_size\":64", "config.json says" },
        { "\"num_hidden_layers\":3", "\"num_hidden_layers\":4", "has no model.layers.3" },
        { "\"num_hidden_layers\":3", "\"num_hidden_layers\":2", "is not a tensor of" },
        { "embeddings\":false", "embeddings\":true", NULL },
    };
    struct err e = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = with(cases[i].find, cases[i].put);
        CHECK_INT(make_base(named("base", base), BF16 | NO_STATE, text, &e), 0);
        int rc = convert(base, named("one", one), (struct layout){ 2, 1, 1, 1, 1, 0 }, TARGET_NATIVE,
                         TARGET_AS_IS, 0, &e);
        /* tied and with a head all the same: the head is neither added nor lost */
        CHECK_INT(rc < 0, cases[i].says != NULL);
        if (cases[i].says)
            CHECK_HAS(e.text, cases[i].says);
        CHECK_INT(io_exists(one), cases[i].says == NULL);
        free(text);
    }
    CHECK_INT(make_base(named("base", base), BF16 | NO_STATE, config, &e), 0);
    CHECK_INT(convert(base, named("one", one), (struct layout){ 3, 1, 1, 1, 1, 0 }, TARGET_NATIVE,
                      TARGET_AS_IS, 0, &e),
              -ERR_USAGE);
    CHECK_INT(convert(base, named("one", one), (struct layout){ 1, 9, 1, 1, 1, 0 }, TARGET_NATIVE,
                      TARGET_AS_IS, 0, &e),
              -ERR_USAGE);
    CHECK_INT(convert(base, base, whole, TARGET_NATIVE, TARGET_AS_IS, 0, &e), -ERR_FILE);
    CHECK(verifies(base) && !io_exists(one));
}

static void flip(const char *folder, const char *name, long at)
{
    char path[512];
    FILE *f = fopen(in_tmp(folder, name, path), "r+b");
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 16, f);
    fclose(f);
}

TEST(one_changed_byte_in_the_source_stops_the_conversion_even_where_nothing_is_taken_from)
{
    static const struct {
        const char *file;
        long at;
    } spots[] = {
        { "weights-00000.safetensors", 5000 },
        { "weights-00000.safetensors", 20 },
        { "optim-00000.safetensors", 9000 },
        { "config.json", 3 },
        { "manifest.json", 1000 },
    };
    struct err e = { 0 };
    char tmp[600];
    for (size_t i = 0; i < sizeof spots / sizeof *spots; i++) {
        CHECK_INT(make_base(named("base", base), WITH_MASTERS | WITH_MOMENTS | BF16, config, &e), 0);
        flip(base, spots[i].file, spots[i].at);
        CHECK(convert(base, named("one", one), (struct layout){ 2, 1, 1, 1, 1, 0 }, TARGET_NATIVE,
                      TARGET_AS_IS, 1, &e) < 0);
        CHECK_INT(e.code, ERR_INTEGRITY);
        CHECK(!io_exists(one));
        snprintf(tmp, sizeof tmp, "%s.tmp-save", one);
        CHECK(!io_exists(tmp));
    }
}

TEST(the_proof_finds_a_target_that_is_not_what_streamed_by)
{
    struct err e = { 0 };
    struct ckpt *src = NULL;
    struct plan p;
    struct ckpt_digest d[200] = { { 0, 0 } };
    struct dest to = { .lock = -1 };
    struct request r = { .src = base, .dst = one, .layout = { 2, 1, 1, 1, 1, 0 }, .n_threads = 1 };
    CHECK_INT(make_base(named("base", base), WITH_MOMENTS, config, &e), 0);
    named("one", one);
    CHECK_INT(ckpt_open(&src, base, NULL, &e), 0);
    CHECK_INT(plan_make(&p, src, &r, NULL, &e), 0);
    CHECK_INT(ckpt_begin(one, to.tmp, NULL, NULL, &e), 0);
    CHECK_INT(stream_run(&p, &to, d, NULL, &e), 0);
    CHECK_INT(prove_run(&p, &to, d, NULL, &e), 0);
    d[7].lo ^= 1;
    CHECK_INT(prove_run(&p, &to, d, NULL, &e), -ERR_INTEGRITY);
    d[7].lo ^= 1;
    flip(to.tmp, "optim-00001.safetensors", 20); /* its header */
    CHECK(prove_run(&p, &to, d, NULL, &e) < 0);
    CHECK_HAS(e.text, "optim-00001.safetensors");
    flip(to.tmp, "optim-00001.safetensors", 20);
    CHECK_INT(prove_run(&p, &to, d, NULL, &e), 0);
    p.n--;
    CHECK_INT(prove_run(&p, &to, d, NULL, &e), -ERR_INTEGRITY);
    p.n++;
    ckpt_abandon(to.tmp, -1);
    plan_free(&p);
    ckpt_close(src);
}

static void write_and_check(int damage)
{
    struct err e = { 0 };
    struct ckpt_piece p = {
        .t = { .name = "w", .role = ROLE_WEIGHT, .dtype = STORED_F32, .n_dims = 2, .shape = { 300, 1000 } }
    };
    struct ckpt_shard *s = NULL;
    struct ckpt_digest want = { 0, 0 }, got;
    char dir[512];
    float *x = malloc(4 * 300000);
    void *table;
    size_t bytes;
    p.box = box_whole(2, p.t.shape);
    p.hi = 300000;
    for (int i = 0; i < 300000; i++)
        x[i] = (float)i;
    ckpt_digest_add(&want, STORED_F32, 2, p.t.shape, &p.box, 0, p.hi, x);
    CHECK_INT(io_mkdir(named("shard", dir), &e), 0);
    CHECK_INT(ckpt_shard_open(&s, dir, 0, 1, &p, &e), 0);
    ckpt_shard_defer(s);
    CHECK_INT(ckpt_shard_put(s, 0, x, 100000, &e), 0);
    CHECK_INT(ckpt_shard_check(s, 0, &got, &e), 0);
    CHECK_INT(ckpt_shard_put(s, 0, x + 100000, 200000, &e), 0);
    if (damage)
        flip(dir, "weights-00000.safetensors", 700000);
    CHECK_INT(ckpt_shard_check(s, 0, &got, &e), 0);
    CHECK_INT(got.lo == want.lo && got.hi == want.hi, !damage);
    CHECK_INT(ckpt_shard_close(s, &table, &bytes, &e), 0);
    free(table);
    free(x);
}

TEST(what_was_written_is_read_back_so_a_byte_lost_on_its_way_is_found)
{
    write_and_check(0);
    write_and_check(1);
}

static int convert_with_fault(const char *op, int n, enum target_format f)
{
    pid_t child = fork();
    if (child == 0) {
        char fault[64];
        struct err e = { 0 };
        snprintf(fault, sizeof fault, "%s:%d:EIO", op, n);
        setenv("SHARDLINE_IO_FAULT", fault, 1);
        _exit(convert(base, one, f == TARGET_HF ? whole : (struct layout){ 2, 1, 1, 2, 1, 3 }, f,
                      TARGET_AS_IS, 0, &e) < 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(whichever_call_fails_a_conversion_leaves_nothing)
{
    static const char *const ops[] = { "open", "read", "write", "fsync", "close", "rename" };
    struct err e = { 0 };
    char tmp[600];
    CHECK_INT(make_base(named("base", base), WITH_MOMENTS, config, &e), 0);
    for (int f = TARGET_NATIVE; f <= TARGET_HF; f++)
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
            int status = 1, n = 1;
            for (; status == 1 && n < 3000; n += n < 8 ? 1 : 17) {
                named("one", one);
                snprintf(tmp, sizeof tmp, "%s.tmp-save", one);
                status = convert_with_fault(ops[k], n, (enum target_format)f);
                if (status == 1 && (io_exists(one) || io_exists(tmp)))
                    test_fail(__FILE__, __LINE__, "%s %d failed and something is left", ops[k], n);
            }
            CHECK_INT(status, 0);
            CHECK(n > 2 && verifies(one));
        }
}

TEST(a_signal_ends_a_conversion_and_leaves_nothing)
{
    struct err e = { 0 };
    volatile sig_atomic_t stop = 1;
    struct request r = { .src = base, .dst = one, .layout = whole, .n_threads = 1, .stop = &stop };
    CHECK_INT(make_base(named("base", base), NO_STATE, config, &e), 0);
    named("one", one);
    CHECK_INT(reshard_convert(&r, NULL, &e), -ERR_STOPPED);
    CHECK(!io_exists(one));
}

/* ---- differences ---- */

TEST(diff_names_the_tensor_its_first_element_and_the_largest_difference)
{
    struct err e = { 0 };
    struct ckpt *a = NULL, *b = NULL;
    struct report_options o = { 0 };
    char text[4096] = "";
    char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"v\":{\"dtype\":"
                    "\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}}";
    float x[7] = { 1, 2, 3, 4, 5, 6, 7 };
    for (int k = 0; k < 2; k++) {
        uint64_t n = sizeof header - 1;
        FILE *f = fopen(named(k ? "b.safetensors" : "a.safetensors", k ? two : one), "wb");
        x[4] = k ? 5.5f : 5;
        x[5] = k ? -2 : 6;
        fwrite(&n, 8, 1, f);
        fwrite(header, 1, n, f);
        fwrite(x, 4, 7, f);
        fclose(f);
    }
    CHECK_INT(ckpt_open(&a, one, NULL, &e), 0);
    CHECK_INT(ckpt_open(&b, two, NULL, &e), 0);
    FILE *f = fmemopen(text, sizeof text, "w");
    CHECK_INT(report_diff(a, b, &o, f, &e), 1);
    CHECK_INT(report_diff(a, a, &o, f, &e), 0);
    fclose(f);
    CHECK_STR(text, "w: 2 of 6 elements differ, first [1,1]: 5 and 5.5, largest difference 8 at [1,2]\n1 of "
                    "2 tensors differ\n");
    memset(text, 0, sizeof text);
    o.json = 1;
    f = fmemopen(text, sizeof text, "w");
    CHECK_INT(report_diff(a, b, &o, f, &e), 1);
    fclose(f);
    CHECK_HAS(text, "\"equal\":false,");
    CHECK_HAS(
        text,
        "\"tensors\":[{\"name\":\"w\",\"role\":\"weight\",\"elements\":6,\"different\":2,"
        "\"first\":{\"index\":[1,1],\"a\":5.0,\"b\":5.5},\"largest\":{\"index\":[1,2],\"difference\":8.0}}]");
    ckpt_close(a);
    ckpt_close(b);
}

TEST(statistics_count_the_finite_values_and_the_others_apart_in_every_dtype)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    struct tensor_stats s[4];
    char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]},\"b\":{\"dtype\":"
                    "\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]},"
                    "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[30,34]},\"d\":{\"dtype\":"
                    "\"I8\",\"shape\":[2],\"data_offsets\":[34,36]}}";
    const float x[6] = { 1, NAN, -3, INFINITY, 2.5f, -INFINITY }, nan = NAN;
    const uint16_t h[3] = { 0x3f80, 0xc000, 0x4000 }; /* 1, -2, 2 */
    const int8_t i8[2] = { -7, 100 };
    uint64_t n = sizeof header - 1;
    FILE *f = fopen(named("a.safetensors", one), "wb");
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    fwrite(x, 4, 6, f);
    fwrite(h, 2, 3, f);
    fwrite(&nan, 4, 1, f);
    fwrite(i8, 1, 2, f);
    fclose(f);
    CHECK_INT(ckpt_open(&c, one, NULL, &e), 0);
    CHECK_INT(stats_of_all(c, 2, NULL, s, &e), 0);
    const struct tensor_stats want[4] = { { 3, 1, 2, -3, 2.5, 0.5 / 3 },
                                          { 3, 0, 0, -2, 2, 1.0 / 3 },
                                          { 0, 1, 0, 0, 0, 0 },
                                          { 2, 0, 0, -7, 100, 46.5 } };
    for (int i = 0; i < 4; i++) {
        CHECK(s[i].n_finite == want[i].n_finite && s[i].n_nan == want[i].n_nan &&
              s[i].n_inf == want[i].n_inf);
        CHECK(s[i].min == want[i].min && s[i].max == want[i].max && s[i].mean == want[i].mean);
    }
    ckpt_close(c);
}

/* ---- conversions ---- */

TEST(bf16_rounds_to_nearest_even_flushes_denormals_and_keeps_nan_quiet)
{
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {
        { 0x3f800000, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f808001, 0x3f81 }, { 0x3f818000, 0x3f82 },
        { 0x3f817fff, 0x3f81 }, { 0xbf808000, 0xbf80 }, { 0x7f7fffff, 0x7f80 }, { 0x7f800000, 0x7f80 },
        { 0xff800000, 0xff80 }, { 0x7f800001, 0x7fc0 }, { 0xffc00000, 0xffc0 }, { 0x7fffffff, 0x7fff },
        { 0x00000000, 0x0000 }, { 0x80000000, 0x8000 }, { 0x00000001, 0x0000 }, { 0x807fffff, 0x8000 },
        { 0x007fffff, 0x0000 }, { 0x00800000, 0x0080 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint16_t out = 0;
        cast_run(STORED_F32, STORED_BF16, &cases[i].in, &out, 1);
        CHECK_INT(out, cases[i].out);
    }
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h, back = 0;
        uint32_t wide = 0;
        cast_run(STORED_BF16, STORED_F32, &in, &wide, 1);
        CHECK_INT(wide, h << 16);
        cast_run(STORED_F32, STORED_BF16, &wide, &back, 1);
        int exp = h >> 7 & 255, frac = h & 127;
        CHECK_INT(back, exp == 0 ? h & 0x8000 : exp == 255 && frac ? h | 0x40 : h);
    }
}

TEST(fp16_is_widened_exactly)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h;
        float got = 0;
        int exp = h >> 10 & 31, frac = h & 1023;
        cast_run(STORED_F16, STORED_F32, &in, &got, 1);
        if (exp == 31 && frac) {
            CHECK(got != got);
            continue;
        }
        double want = exp == 31 ? (double)INFINITY
                      : exp     ? (1 + frac / 1024.0) *
                                  (exp >= 15 ? (double)(1 << (exp - 15)) : 1.0 / (1 << (15 - exp)))
                            : frac / 1024.0 / 16384.0;
        CHECK_BITS(got, (float)(h & 0x8000 ? -want : want));
    }
}

TEST(the_byte_tokenizer_gives_every_byte_its_value)
{
    struct err e = { 0 };
    char *text = byte_tokenizer_json();
    json_t *o = jx_parse(text, strlen(text), "tokenizer.json", &e),
           *vocab = json_object_get(json_object_get(o, "model"), "vocab"), *v;
    const char *key;
    int seen[256] = { 0 };
    CHECK_INT(json_object_size(vocab), 256);
    json_object_foreach(vocab, key, v)
        seen[json_integer_value(v) & 255]++;
    for (int i = 0; i < 256; i++)
        CHECK_INT(seen[i], 1);
    CHECK_INT(json_integer_value(json_object_get(vocab, "A")), 65);
    CHECK_INT(json_integer_value(json_object_get(vocab, "\u0120")), 32);
    CHECK_INT(json_integer_value(json_object_get(vocab, "\u0100")), 0);
    CHECK_INT(json_integer_value(json_object_get(vocab, "\u010a")), 10);
    CHECK_INT(json_integer_value(json_object_get(vocab, "\u0143")), 173);
    json_decref(o);
    free(text);
}

/* ---- properties ---- */

static uint64_t random_next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

TEST(a_random_flipped_bit_is_found_a_thousand_times_and_named)
{
    struct err e = { 0 };
    uint64_t seed = 7;
    char file[64][64], path[512];
    CHECK_INT(make_base(named("base", base), WITH_MASTERS | WITH_MOMENTS | BF16, config, &e), 0);
    CHECK_INT(convert(base, named("one", one), (struct layout){ 2, 1, 1, 2, 1, 1 }, TARGET_NATIVE,
                      TARGET_AS_IS, 0, &e),
              0);
    int n = list_dir(one, file, 64);
    for (int i = 0; i < 1000; i++) {
        const char *name = file[random_next(&seed) % (uint64_t)n];
        struct stat st;
        struct ckpt *c = NULL;
        CHECK_INT(stat(in_tmp(one, name, path), &st), 0);
        long at = (long)(random_next(&seed) % (uint64_t)st.st_size);
        flip(one, name, at);
        if (ckpt_open(&c, one, NULL, &e) >= 0 && ckpt_verify(c, 0, &e) >= 0)
            test_fail(__FILE__, __LINE__, "byte %ld of %s changed and nobody noticed", at, name);
        CHECK_HAS(e.text, name);
        ckpt_close(c);
        flip(one, name, at);
    }
    CHECK(verifies(one));
}

static struct ckpt_digest digest_of(int64_t rows, int64_t columns, const float *x)
{
    int64_t shape[2] = { rows, columns };
    struct box b = box_whole(2, shape);
    struct ckpt_digest d = { 0, 0 };
    ckpt_digest_add(&d, STORED_F32, 2, shape, &b, 0, rows * columns, x);
    return d;
}

TEST(swapped_heads_shifted_rows_and_exchanged_tensors_change_the_digest)
{
    enum { ROWS = 32, COLUMNS = 24 };
    float x[ROWS * COLUMNS], y[ROWS * COLUMNS];
    uint64_t seed = 3;
    for (int trial = 0; trial < 200; trial++) {
        for (int i = 0; i < ROWS * COLUMNS; i++)
            x[i] = (float)random_next(&seed);
        struct ckpt_digest was = digest_of(ROWS, COLUMNS, x), now;
        /* two heads of four rows change places */
        size_t head = 4 * COLUMNS;
        memcpy(y, x, sizeof x);
        memcpy(y, x + head, 4 * head);
        memcpy(y + head, x, 4 * head);
        now = digest_of(ROWS, COLUMNS, y);
        CHECK(now.lo != was.lo && now.hi != was.hi);
        memcpy(y, x + COLUMNS, sizeof x - 4 * COLUMNS); /* every row one up */
        memcpy(y + (ROWS - 1) * COLUMNS, x, 4 * COLUMNS);
        now = digest_of(ROWS, COLUMNS, y);
        CHECK(now.lo != was.lo && now.hi != was.hi);
        struct ckpt_tensor t[2] = {
            { .name = "gate", .dtype = STORED_F32, .n_dims = 2, .shape = { ROWS, COLUMNS }, .digest = was },
            { .name = "up", .dtype = STORED_F32, .n_dims = 2, .shape = { ROWS, COLUMNS }, .digest = now },
        };
        struct ckpt_digests a = ckpt_digest_all(2, t, NULL);
        t[0].digest = now;
        t[1].digest = was;
        struct ckpt_digests b = ckpt_digest_all(2, t, NULL);
        CHECK(a.weights.lo != b.weights.lo && a.weights.hi != b.weights.hi);
    }
}

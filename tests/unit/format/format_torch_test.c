/* format_torch_test.c - files of torch.save: every dtype, view and container has PyTorch's own values; broken
 * files are refused. */
#include <glob.h>
#include <sys/resource.h>
#include <time.h>
#include "format/torch/torch_build.h"
#include "tests/unit/format/foreign_help.h"

/* ---- torch/torch_file.h: any tensor, any dtype ---- */

struct opened {
    struct ckpt *c;
    struct torch_file t;
};

static int open_file(struct opened *o, const char *path, struct err *e)
{
    memset(o, 0, sizeof *o);
    memset(e, 0, sizeof *e);
    const char *slash = strrchr(path, '/');
    o->c = calloc(1, sizeof *o->c);
    pthread_mutex_init(&o->c->lock, NULL);
    o->c->path = strdup(path);
    o->c->dir = strndup(path, (size_t)(slash - path));
    struct stat st;
    CHECK(stat(path, &st) == 0 && fmt_add_file(o->c, slash + 1, st.st_size, e));
    return torch_open(&o->t, o->c, 0, 0, st.st_size, e);
}

static void close_file(struct opened *o)
{
    torch_close(&o->t);
    ckpt_close(o->c);
}

/* Values of a tensor, row-major, one element after the other by its strides. */
static char *values(struct opened *o, const struct torch_tensor *x)
{
    size_t size = (size_t)torch_dtype_size(x->dtype);
    char *out = malloc((size_t)x->n * size + 1);
    struct err e;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t rest = i, off = 0;
        for (int d = x->n_dims - 1; d >= 0; d--) {
            off += rest % x->shape[d] * x->stride[d];
            rest /= x->shape[d];
        }
        CHECK(fmt_pread(o->c, 0, out + (size_t)i * size, (int64_t)size, x->offset + off * (int64_t)size,
                        &e) >= 0);
    }
    return out;
}

/* "model.w" in nested dicts and lists: names may have dots themselves, so every split is tried. */
static const struct pk *find(const struct pk *p, const char *name)
{
    if (!p || !*name)
        return p;
    for (uint32_t i = 0; p->kind == PK_DICT && i < p->n; i++) {
        const struct pk *k = p->item[2 * i];
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)k->i);
        const char *key = k->kind == PK_TEXT ? k->text : number;
        size_t n = k->kind == PK_TEXT ? k->n : strlen(number);
        if ((k->kind != PK_TEXT && k->kind != PK_INT) || strncmp(name, key, n) || (name[n] && name[n] != '.'))
            continue;
        const struct pk *found = find(p->item[2 * i + 1], name[n] ? name + n + 1 : "");
        if (found)
            return found;
    }
    if (p->kind == PK_LIST || p->kind == PK_TUPLE) {
        char *end;
        unsigned long i = strtoul(name, &end, 10);
        return end != name ? find(pk_at(p, (uint32_t)i), *end ? end + 1 : "") : NULL;
    }
    return NULL;
}

static void check_one(struct opened *o, const char *file, const char *name, const json_t *want)
{
    struct torch_tensor x;
    struct err e = { 0 };
    char hex[65];
    const struct pk *p = find(o->t.root, name);
    if (!p || torch_tensor(&o->t, p, name, &x, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s: %s: %s", file, name, p ? e.text : "not found");
        return;
    }
    char *v = values(o, &x);
    sha256_text(v, (size_t)(x.n * torch_dtype_size(x.dtype)), hex);
    if (strcmp(hex, json_string_value(json_object_get(want, "sha256"))))
        test_fail(__FILE__, __LINE__, "%s: %s has other values", file, name);
    CHECK_INT((size_t)x.n_dims, json_array_size(json_object_get(want, "shape")));
    for (int d = 0; d < x.n_dims; d++) {
        CHECK_INT(x.shape[d], json_integer_value(json_array_get(json_object_get(want, "shape"), (size_t)d)));
        CHECK_INT(x.stride[d],
                  json_integer_value(json_array_get(json_object_get(want, "stride"), (size_t)d)));
    }
    free(v);
}

static json_t *expected(char dir[1024])
{
    char path[1200];
    json_error_t je;
    if (!foreign_path("plain", dir))
        return NULL;
    snprintf(path, sizeof path, "%s/expect.json", dir);
    json_t *o = json_load_file(path, 0, &je);
    CHECK(o != NULL);
    return o;
}

TEST(every_tensor_of_every_file_has_pytorchs_values)
{
    char dir[1024], path[1400];
    json_t *o = expected(dir), *file, *want;
    const char *name, *tensor;
    int n = 0;
    json_object_foreach(o, name, file) {
        struct opened f;
        struct err e;
        size_t len = strlen(name);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        if (len < 4 || (strcmp(name + len - 3, ".pt") && strcmp(name + len - 4, ".bin")))
            continue;
        if (open_file(&f, path, &e) < 0)
            test_fail(__FILE__, __LINE__, "%s", e.text);
        else
            json_object_foreach(json_object_get(file, "tensors"), tensor, want) {
                check_one(&f, name, tensor, want);
                n++;
            }
        close_file(&f);
    }
    CHECK(!o || n > 300);
    json_decref(o);
}

/* Through ckpt.h: whole and by box, strided tensors too. */
TEST(state_dicts_are_checkpoints)
{
    static const char *const files[] = { "llama2l_fp32.pt", "llama2l_bf16_tied.pt", "llama2l_fp32_legacy.bin",
                                         "nested_proto5.pt" };
    char dir[1024], path[1400], hex[65];
    json_t *o = expected(dir), *want;
    for (size_t f = 0; o && f < sizeof files / sizeof *files; f++) {
        struct err e = { 0 };
        struct ckpt *c = NULL;
        const char *tensor;
        int n = 0;
        snprintf(path, sizeof path, "%s/%s", dir, files[f]);
        if (ckpt_open(&c, path, NULL, &e) < 0) {
            test_fail(__FILE__, __LINE__, "%s", e.text);
            continue;
        }
        json_object_foreach(json_object_get(json_object_get(o, files[f]), "tensors"), tensor, want) {
            int i = ckpt_find(c, ROLE_WEIGHT, f == 3 && !strncmp(tensor, "model.", 6) ? tensor + 6 : tensor);
            if (i < 0)
                continue;
            struct box b = box_whole(ckpt_tensor(c, i)->n_dims, ckpt_tensor(c, i)->shape);
            size_t bytes = (size_t)stored_bytes(ckpt_tensor(c, i)->dtype, box_count(&b));
            char *v = malloc(bytes + 1);
            CHECK(ckpt_read(c, i, &b, v, &e) >= 0);
            sha256_text(v, bytes, hex);
            CHECK_STR(hex, json_string_value(json_object_get(want, "sha256")));
            free(v);
            n++;
        }
        CHECK_INT(n, ckpt_n_tensors(c));
        ckpt_close(c);
    }
    json_decref(o);
}

/* Views that are not row-major: boxes and ranges give the same values as single elements. */
TEST(strided_views_are_read_by_box)
{
    static const char *const views[] = { "contig",     "transposed_view_of_contig",
                                         "slice_cols", "row_of_contig",
                                         "flat_b",     "overlap_with_flat_a",
                                         "expanded",   "scalar",
                                         "empty",      "every_2nd",
                                         "bf16",       "i64",
                                         "u8",         "bool" };
    char path[1400];
    struct opened f;
    struct err e;
    if (!foreign_path("plain/zoo.pt", path))
        return;
    CHECK(open_file(&f, path, &e) >= 0);
    struct build b = { .c = f.c };
    char *want[14];
    struct torch_tensor x[14];
    for (size_t i = 0; i < 14; i++) {
        CHECK(torch_tensor(&f.t, find(f.t.root, views[i]), views[i], &x[i], &e) >= 0);
        want[i] = values(&f, &x[i]);
        CHECK(build_whole(&b, ROLE_WEIGHT, views[i], (int)strlen(views[i]), &f.t, &x[i], &e) >= 0);
    }
    CHECK(build_finish(&b, &e) >= 0);
    for (size_t i = 0; i < 14; i++) {
        int t = ckpt_find(f.c, ROLE_WEIGHT, views[i]);
        const struct ckpt_tensor *ct = ckpt_tensor(f.c, t);
        size_t size = (size_t)stored_bytes(ct->dtype, 1);
        struct box whole = box_whole(ct->n_dims, ct->shape), part = whole;
        char *got = malloc((size_t)x[i].n * size + 1);
        CHECK(ckpt_read(f.c, t, &whole, got, &e) >= 0);
        CHECK_SAME(got, want[i], (size_t)x[i].n * size);
        if (x[i].n > 3) {
            CHECK(ckpt_read_range(f.c, t, &whole, 1, x[i].n - 1, got, &e) >= 0);
            CHECK_SAME(got, want[i] + size, (size_t)(x[i].n - 2) * size);
        }
        if (ct->n_dims == 2 && x[i].n > 3) {
            part.start[1] = 1;
            part.extent[1] = ct->shape[1] - 2;
            CHECK(ckpt_read(f.c, t, &part, got, &e) >= 0);
            for (int64_t r = 0; r < ct->shape[0]; r++)
                CHECK_SAME(got + (size_t)(r * part.extent[1]) * size,
                           want[i] + (size_t)(r * ct->shape[1] + 1) * size, (size_t)part.extent[1] * size);
        }
        free(got);
        free(want[i]);
    }
    build_free(&b);
    close_file(&f);
}

TEST(folders_of_bin_files_equal_those_of_safetensors)
{
    static const char *const pairs[][2] = { { "hf_fp32_bin", "hf_fp32_safetensors" },
                                            { "hf_bf16_tied_bin", "hf_bf16_tied_safetensors" } };
    char dir[1024], a[1400], b[1400];
    if (!foreign_path("plain", dir))
        return;
    for (int k = 0; k < 2; k++) {
        struct ckpt *x = NULL, *y = NULL;
        struct err e = { 0 };
        snprintf(a, sizeof a, "%s/%s", dir, pairs[k][0]);
        snprintf(b, sizeof b, "%s/%s", dir, pairs[k][1]);
        if (ckpt_open(&x, a, NULL, &e) < 0 || ckpt_open(&y, b, NULL, &e) < 0) {
            test_fail(__FILE__, __LINE__, "%s", e.text);
            continue;
        }
        CHECK_INT(ckpt_n_tensors(x), ckpt_n_tensors(y));
        for (int i = 0; i < ckpt_n_tensors(x); i++) {
            int j = ckpt_find(y, ROLE_WEIGHT, ckpt_tensor(x, i)->name);
            CHECK(j >= 0 && same_tensor(x, i, y, j));
        }
        ckpt_close(x);
        ckpt_close(y);
    }
}

/* ---- the broken files ---- */

static const struct {
    const char *name, *says;
} bad[] = {
    { "exec_system.pt", "posix.system" },
    { "exec_eval.pt", "eval" },
    { "exec_first.pt", "posix.system" },
    { "exec_in_persid.pt", "posix.system" },
    { "exec_dictitem.pt", "posix.system" },
    { "exec_build.pt", "getattr" },
    { "exec_legacy.pt", "posix.system" },
    { "nested_load.pt", "_load_from_bytes" },
    { "empty.pt", "is empty" },
    { "trunc_60pct.pt", "end record" },
    { "trunc_eocd.pt", "end record" },
    { "trunc_head.pt", "zip" },
    { "crc_flip.pt", "CRC-32" },
    { "garbage_tail.pt", "end record" },
    { "zip64_bomb_size.pt", "is the file whole" },
    { "deflated.pt", "compressed" },
    { "deflate_bomb.pt", "compressed" },
    { "dup_record.pt", "twice" },
    { "dup_pkl.pt", "twice" },
    { "traversal_key.pt", "plain key" },
    { "missing_record.pt", "data/7" },
    { "bigendian.pt", "big-endian" },
    { "short_storage.pt", "should have 4000 bytes" },
    { "numel_lie.pt", "should have 256 bytes" },
    { "view_oob.pt", "reaches element 23" },
    { "stride_oob.pt", "reaches element" },
    { "stride_neg.pt", "negative" },
    { "offset_neg.pt", "reaches element -1" },
    { "size_neg.pt", "negative" },
    { "huge_shape.pt", "overflows" },
    { "huge_zero_stride.pt", "stride 0" },
    { "ndim_100k.pt", "100000 dimensions" },
    { "huge_numel_bigint.pt", "makes no sense" },
    { "stride_len.pt", "sizes than strides" },
    { "pkl_nest_deep.pt", "no tensors" },
    { "pkl_laughs.pt", "no tensors" },
    { "pkl_memo_4g.pt", "4294967295" },
    { "pkl_unicode_len.pt", "wants" },
    { "pkl_long4.pt", "wants" },
    { "pkl_binbytes8.pt", "wants" },
    { "pkl_frame.pt", "frame" },
    { "pkl_no_stop.pt", "no end" },
    { "pkl_stack_underflow.pt", "mark" },
    { "pkl_bad_memo.pt", "never put" },
    { "pkl_unknown_op.pt", "0xff" },
    { "pkl_ext.pt", "opcode 0x82" },
    { "pkl_self_ref.pt", "no tensors" },
    { "pkl_proto9.pt", "protocol 9" },
};

TEST(every_broken_file_is_refused_quickly_and_nothing_is_run)
{
    char dir[1024], path[1400];
    glob_t found;
    struct rusage before, after;
    if (!foreign_path("bad", dir))
        return;
    getrusage(RUSAGE_SELF, &before);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = { 0 };
        struct ckpt *c = NULL;
        struct timespec a, b;
        snprintf(path, sizeof path, "%s/%s", dir, bad[i].name);
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (ckpt_open(&c, path, NULL, &e) >= 0)
            test_fail(__FILE__, __LINE__, "%s was read", bad[i].name);
        else if (!strstr(e.text, bad[i].says))
            test_fail(__FILE__, __LINE__, "%s: \"%s\" does not contain \"%s\"", bad[i].name, e.text,
                      bad[i].says);
        clock_gettime(CLOCK_MONOTONIC, &b);
        CHECK(b.tv_sec - a.tv_sec < 2);
        ckpt_close(c);
    }
    getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_maxrss - before.ru_maxrss < 256 << 10);
    CHECK(glob("/tmp/FX_PWNED_*", 0, NULL, &found) == GLOB_NOMATCH);
}

TEST(what_is_left_out_is_said)
{
    char path[1400];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (!foreign_path("plain/llama2l_fp32_trainer.pt", path))
        return;
    CHECK(ckpt_open(&c, path, NULL, &e) >= 0);
    CHECK(c && ckpt_n_tensors(c) == 21 && !ckpt_state(c)->has_state);
    CHECK_HAS(c && ckpt_note(c) ? ckpt_note(c) : "", "optimizer is left out");
    ckpt_close(c);
}

TEST(a_record_that_no_tensor_uses_makes_no_file)
{
    char path[1400];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (!foreign_path("bad/traversal_record.pt", path))
        return;
    CHECK(ckpt_open(&c, path, NULL, &e) >= 0);
    CHECK(c && ckpt_n_tensors(c) == 1 && ckpt_verify(c, 0, &e) >= 0);
    ckpt_close(c);
}

/* One changed byte of data is noticed when it is read, and by verify when it is not. */
TEST(one_changed_byte_is_noticed)
{
    char from[1024], to[1024];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (!foreign_path("plain/hf_fp32_bin", from))
        return;
    snprintf(to, sizeof to, "%s/flip", test_tmp_dir());
    shell("rm -rf '%s' && cp -rL '%s' '%s' && chmod -R u+w '%s'", to, from, to, to);
    CHECK(ckpt_open(&c, to, NULL, &e) >= 0);
    int i = c ? ckpt_find(c, ROLE_WEIGHT, "lm_head.weight") : -1;
    CHECK(i >= 0);
    if (i >= 0) {
        const struct fmt_piece *p = &c->piece[c->first_piece[i]];
        shell("printf '\\377' | dd of='%s' bs=1 seek=%lld conv=notrunc status=none", c->file[p->file].path,
              (long long)p->offset + 5);
        struct box b = box_whole(2, ckpt_tensor(c, i)->shape);
        float *v = malloc((size_t)box_count(&b) * 4);
        CHECK_INT(ckpt_read(c, i, &b, v, &e), -ERR_INTEGRITY);
        CHECK_HAS(e.text, "CRC-32");
        CHECK_INT(ckpt_verify(c, 0, &e), -ERR_INTEGRITY);
        CHECK_INT(ckpt_check_rest(c, 0, 1, &e), -ERR_INTEGRITY);
        free(v);
    }
    ckpt_close(c);
}

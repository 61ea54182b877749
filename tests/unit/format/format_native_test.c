/* format_native_test.c - native checkpoints: reading gives what was written, at any cut; the same state gives
 * the same bytes; one changed byte anywhere is found. Writing that fails: format_native_write_test.c. */
#include <sys/stat.h>
#include <unistd.h>
#include "base/jx.h"
#include "base/rnd.h"
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

static char dst[512];

static const char *fresh(const char *name)
{
    struct err e;
    in_tmp(test_tmp_dir(), name, dst);
    CHECK_INT(io_remove_tree(dst, &e), 0);
    return dst;
}

/* Rows of a box that lie as they are in one piece: the bytes of the file are those that are read. Returns how
 * many of them there are. */
static int64_t check_places(struct ckpt *c, int i, struct box b)
{
    const enum stored_dtype dtype = ckpt_tensor(c, i)->dtype;
    int64_t located = 0, rows = b.n_dims > 1 ? b.extent[b.n_dims - 2] : 1;
    for (int d = 0; d < b.n_dims - 2; d++)
        b.extent[d] = 1;
    const int64_t columns = b.extent[b.n_dims - 1], bytes = stored_bytes(dtype, columns);
    for (int64_t r = 0; r < rows; r++) {
        struct ckpt_place p;
        struct err e;
        char got[4096], want[4096];
        if (bytes > 4096 || !ckpt_locate(c, i, &b, r, &p))
            continue;
        located++;
        CHECK(p.rows >= 1 && r + p.rows <= rows);
        FILE *f = fopen(p.path, "rb");
        for (int64_t n = 0; n < p.rows; n++) {
            CHECK(p.offset + n * p.row_bytes + bytes <= p.file_bytes);
            CHECK_INT(fseek(f, p.offset + n * p.row_bytes, SEEK_SET), 0);
            CHECK_INT(fread(got, 1, (size_t)bytes, f), bytes);
            CHECK_INT(ckpt_read_range(c, i, &b, (r + n) * columns, (r + n + 1) * columns, want, &e), 0);
            CHECK_SAME(got, want, (size_t)bytes);
        }
        fclose(f);
    }
    return located;
}

static int64_t check_all(const char *path, const struct spec *s, int n)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    uint64_t draw = 0;
    int64_t located = 0;
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    if (!c) {
        CHECK_STR(e.text, "");
        return 0;
    }
    CHECK_INT(ckpt_n_tensors(c), n);
    CHECK_STR(ckpt_driver(c), "native");
    for (int i = 0; i < n; i++) {
        int at = ckpt_find(c, s[i].t.role, s[i].t.name);
        CHECK(at >= 0);
        for (int round = 0; round < 20; round++) {
            struct box b = box_whole(s[i].t.n_dims, s[i].t.shape);
            for (int d = 0; d < b.n_dims && round; d++) {
                b.start[d] = (int64_t)(rnd_u64(3, 1, ++draw) % (uint64_t)b.extent[d]);
                b.extent[d] = 1 + (int64_t)(rnd_u64(3, 1, ++draw) % (uint64_t)(b.extent[d] - b.start[d]));
            }
            int64_t count = box_count(&b),
                    lo = round % 3 ? (int64_t)(rnd_u64(3, 1, ++draw) % (uint64_t)count) : 0;
            char *got = calloc((size_t)count, 8), *want = calloc((size_t)count, 8);
            fill_range(&s[i].t, &b, lo, count, want);
            CHECK_INT(ckpt_read_range(c, at, &b, lo, count, got, &e), 0);
            CHECK_SAME(got, want, (size_t)stored_bytes(s[i].t.dtype, count - lo));
            located += check_places(c, at, b);
            free(got);
            free(want);
        }
    }
    CHECK_INT(ckpt_verify(c, 1, &e), 0);
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    ckpt_close(c);
    return located;
}

TEST(what_is_written_by_any_number_of_ranks_reads_back_by_any_box)
{
    for (int n = 1; n <= 8; n *= 2) {
        struct err e = { 0 };
        CHECK_INT(make_ckpt(fresh("any"), small_specs(), N_SPECS, n, 11, n & 2, NULL, &e), 0);
        CHECK(check_all(dst, small_specs(), N_SPECS) > 100); /* rows that ckpt_locate finds */
    }
}

TEST(state_config_extras_and_layout_come_back)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    struct ckpt_digests got;
    void *data = NULL;
    size_t n = 0;
    CHECK_INT(make_ckpt(fresh("state"), small_specs(), N_SPECS, 2, 1000, 0, &got, &e), 0);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    const struct ckpt_state *s = ckpt_state(c);
    CHECK(s->has_state && s->step == 7 && s->seed == 0xfedcba9876543210u && s->epoch == 1 &&
          s->sample == 40 && s->grain == 8 && s->expert_leaf == 2 && s->cp_grain == 4);
    json_t *run = jx_parse(s->run_json, strlen(s->run_json), "run", &e);
    CHECK(json_real_value(json_object_get(run, "lr")) == 0.1);
    CHECK_STR(json_string_value(json_object_get(run, "schedule")), "cosine");
    CHECK(json_array_size(json_object_get(run, "nested")) == 4 &&
          json_real_value(json_array_get(json_object_get(run, "nested"), 1)) == 2.5);
    json_decref(run);
    CHECK_INT(ckpt_layout(c)->tp, 2);
    CHECK_STR(ckpt_config_json(c), "{\"model_type\":\"llama\"}\n");
    CHECK_INT(ckpt_n_extra(c), 2);
    CHECK_STR(ckpt_extra_name(c, 1), "tokenizer.json");
    CHECK_INT(ckpt_extra_read(c, 1, &data, &n, &e), 0);
    CHECK(n == 17 && !memcmp(data, "{\"version\":\"1.0\"}", 17));
    free(data);
    struct ckpt_tensor all[N_SPECS];
    for (int i = 0; i < N_SPECS; i++)
        all[i] = *ckpt_tensor(c, i);
    struct ckpt_digests again = ckpt_digest_all(N_SPECS, all, s);
    CHECK_SAME(&again.state, &got.state, sizeof got.state);
    CHECK_SAME(&again.weights, &got.weights, sizeof got.weights);
    ckpt_close(c);
}

static int same_folders(const char *a, const char *b)
{
    char name[64][64], pa[512], pb[512];
    int n = list_dir(a, name, 64), same = n == list_dir(b, name, 64);
    for (int i = 0; i < n && same; i++) {
        void *x = NULL, *y = NULL;
        size_t nx = 0, ny = 1;
        struct err e;
        same = io_read_file(in_tmp(a, name[i], pa), 1 << 24, &x, &nx, &e) == 0 &&
               io_read_file(in_tmp(b, name[i], pb), 1 << 24, &y, &ny, &e) == 0 && nx == ny &&
               !memcmp(x, y, nx);
        free(x);
        free(y);
    }
    return same;
}

TEST(the_same_state_and_layout_give_the_same_bytes_whatever_the_order_and_size_of_writes)
{
    char other[512];
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("one"), small_specs(), N_SPECS, 4, 1000, 0, NULL, &e), 0);
    strcpy(other, dst);
    CHECK_INT(make_ckpt(fresh("two"), small_specs(), N_SPECS, 4, 3, 1, NULL, &e), 0);
    CHECK(same_folders(other, dst));
    struct spec turned[N_SPECS];
    for (int i = 0; i < N_SPECS; i++)
        turned[i] = small_specs()[N_SPECS - 1 - i];
    CHECK_INT(make_ckpt(fresh("two"), turned, N_SPECS, 4, 50, 0, NULL, &e), 0);
    CHECK(same_folders(other, dst));
}

TEST(digests_do_not_depend_on_the_layout)
{
    struct ckpt_digests a, b;
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("l1"), small_specs(), N_SPECS, 1, 1000, 0, &a, &e), 0);
    CHECK_INT(make_ckpt(fresh("l8"), small_specs(), N_SPECS, 8, 1000, 0, &b, &e), 0);
    CHECK_SAME(&a.weights, &b.weights, sizeof a.weights);
    CHECK_SAME(&a.state, &b.state, sizeof a.state);
}

/* Tensors over several checksum blocks, with boundaries inside of them. */
static const struct spec *large_specs(void)
{
    static struct spec s[3];
    s[0] = spec(ROLE_WEIGHT, "a", STORED_F32, 2, 1500, 701, CUT_COLUMNS);
    s[1] = spec(ROLE_WEIGHT, "b", STORED_BF16, 2, 1000, 1025, CUT_ROWS);
    s[2] = spec(ROLE_WEIGHT, "c", STORED_U8, 1, 3000001, 0, CUT_RANGES);
    return s;
}

TEST(tensors_over_many_blocks_read_back_and_only_the_blocks_that_are_needed_are_read)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    for (int n = 1; n <= 3; n += 2) {
        CHECK_INT(make_ckpt(fresh("large"), large_specs(), 3, n, 90001, n > 1, NULL, &e), 0);
        check_all(dst, large_specs(), 3);
    }
    CHECK_INT(make_ckpt(fresh("large"), large_specs(), 3, 1, 90001, 0, NULL, &e), 0);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    struct box b = { 1, { 2000000 }, { 10 } };
    uint8_t got[10], want[10];
    fill_range(&large_specs()[2].t, &b, 0, 10, (char *)want);
    int at = ckpt_find(c, ROLE_WEIGHT, "c");
    CHECK_INT(ckpt_read(c, at, &b, got, &e), 0);
    CHECK_SAME(got, want, 10);
    CHECK(ckpt_bytes_read(c) <= 2 << 20); /* the block of the header and that of the element */
    int64_t before = ckpt_bytes_read(c);
    CHECK_INT(ckpt_read(c, at, &b, got, &e), 0);
    CHECK_INT(ckpt_bytes_read(c), before); /* from the cache */
    ckpt_close(c);
}

/* ---- one changed byte ---- */

static void flip(const char *path, size_t at, int how)
{
    FILE *f = fopen(path, "r+b");
    int b;
    fseek(f, (long)at, SEEK_SET);
    b = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(b ^ how, f);
    fclose(f);
}

TEST(one_changed_byte_in_any_file_is_found)
{
    char name[64][64], path[512];
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("flip"), small_specs(), N_SPECS, 2, 1000, 0, NULL, &e), 0);
    int n = list_dir(dst, name, 64);
    CHECK_INT(n, 8); /* manifest, config, two extras, four shards */
    for (int i = 0; i < n; i++) {
        struct stat st;
        stat(in_tmp(dst, name[i], path), &st);
        int64_t step = strstr(name[i], ".safetensors") ? 13 : 1; /* the manifest: every byte */
        for (int64_t at = 0; at<st.st_size; at += at> st.st_size - 300 ? 1 : step) {
            int how = at % 3 == 0 ? 1 : at % 3 == 1 ? 0x20 : 0x80;
            flip(path, (size_t)at, how);
            if (opens_and_verifies(dst, &e) >= 0)
                test_fail(__FILE__, __LINE__, "byte %lld of %s changed unnoticed", (long long)at, name[i]);
            flip(path, (size_t)at, how);
        }
    }
    CHECK_INT(opens_and_verifies(dst, &e), 0);
}

TEST(a_changed_header_byte_is_found_by_a_plain_read_and_a_changed_block_by_check_rest)
{
    char path[512], data[8192];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    CHECK_INT(make_ckpt(fresh("head"), small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    flip(in_tmp(dst, "weights-00000.safetensors", path), 100, 4);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    int at = ckpt_find(c, ROLE_WEIGHT, "model.norm.weight");
    struct box b = box_whole(1, (int64_t[]){ 13 });
    CHECK_INT(ckpt_read(c, at, &b, data, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "weights-00000.safetensors");
    CHECK_HAS(e.text, "model.norm.weight");
    ckpt_close(c);
    flip(path, 100, 4);
    flip(in_tmp(dst, "optim-00000.safetensors", path), 5000, 1);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    at = ckpt_find(c, ROLE_WEIGHT, "model.norm.weight");
    CHECK_INT(ckpt_read(c, at, &b, data, &e), 0);
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "optim-00000.safetensors");
    CHECK(ckpt_check_rest(c, 0, 2, &e) < 0 || ckpt_check_rest(c, 1, 2, &e) < 0);
    ckpt_close(c);
}

TEST(a_missing_longer_or_shorter_file_is_found_when_opening_and_named)
{
    char name[64][64], path[512], aside[512];
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("missing"), small_specs(), N_SPECS, 2, 1000, 0, NULL, &e), 0);
    int n = list_dir(dst, name, 64);
    for (int i = 0; i < n; i++) {
        struct stat st;
        in_tmp(dst, name[i], path);
        in_tmp(test_tmp_dir(), "aside", aside);
        rename(path, aside);
        CHECK(opens_and_verifies(dst, &e) < 0);
        CHECK_HAS(e.text, name[i]);
        rename(aside, path);
        stat(path, &st);
        CHECK_INT(truncate(path, st.st_size + 1), 0);
        CHECK(opens_and_verifies(dst, &e) < 0);
        CHECK_HAS(e.text, name[i]);
        CHECK_INT(truncate(path, 0), 0);
        CHECK_INT(truncate(path, st.st_size), 0); /* zeros in its place */
        CHECK(opens_and_verifies(dst, &e) < 0);
        CHECK_HAS(e.text, name[i]);
        in_tmp(test_tmp_dir(), "missing2", aside);
        CHECK_INT(io_remove_tree(aside, &e), 0);
        CHECK_INT(make_ckpt(aside, small_specs(), N_SPECS, 2, 1000, 0, NULL, &e), 0);
        char from[512];
        rename(in_tmp(aside, name[i], from), path);
    }
    io_write_file(in_tmp(dst, "a-file-of-somebody-else", path), "x", 1, &e);
    CHECK_INT(opens_and_verifies(dst, &e), 0);
}

/* ---- manifests that are wrong, with a right checksum ---- */

static json_t *load_manifest(const char *folder)
{
    char path[512];
    struct err e = { 0 };
    json_t *m = jx_load(in_tmp(folder, "manifest.json", path), 1 << 24, &e);
    json_object_del(m, "manifest_checksum");
    return m;
}

static void save_manifest(const char *folder, json_t *m)
{
    char path[512], *text;
    struct err e = { 0 };
    size_t n = 0;
    text = manifest_text(m, NULL, 0, &n, &e);
    unlink(in_tmp(folder, "manifest.json", path));
    CHECK_INT(io_write_file(path, text, n, &e), 0);
    free(text);
    json_decref(m);
}

static json_t *item(json_t *m, const char *list, size_t i)
{
    return json_array_get(json_object_get(m, list), i);
}
static json_t *piece(json_t *m, size_t file, size_t i)
{
    return json_array_get(json_object_get(item(m, "files", file), "pieces"), i);
}

static void set_version(json_t *m) { json_object_set_new(m, "version", json_integer(2)); }
static void set_must(json_t *m) { json_object_set_new(m, "must_understand", json_pack("[s]", "other")); }
static void set_format(json_t *m) { json_object_set_new(m, "format", json_string("other")); }
static void set_traversal(json_t *m)
{
    json_object_set_new(item(m, "files", 0), "name", json_string("../optim-00000.safetensors"));
}
static void drop_piece(json_t *m) { json_array_remove(json_object_get(item(m, "files", 0), "pieces"), 1); }
static void twice_piece(json_t *m)
{
    json_array_append(json_object_get(item(m, "files", 0), "pieces"), piece(m, 0, 1));
}
static void shift_range(json_t *m) { json_object_set_new(piece(m, 0, 0), "range", json_pack("[i,i]", 1, 2)); }
static void outside(json_t *m) { json_object_set_new(piece(m, 0, 0), "start", json_pack("[i,i]", 1, 2)); }
static void huge_offset(json_t *m) { json_object_set_new(piece(m, 0, 0), "offset", json_integer(INT64_MAX)); }
static void huge_shape(json_t *m)
{
    json_object_set_new(item(m, "tensors", 0), "shape",
                        json_pack("[I,I]", (json_int_t)1 << 47, (json_int_t)1 << 47));
}
static void zero_and_huge(json_t *m)
{
    json_object_set_new(item(m, "tensors", 0), "shape",
                        json_pack("[i,I,I]", 0, (json_int_t)1 << 47, (json_int_t)1 << 47));
}
static void negative_dim(json_t *m)
{
    json_object_set_new(item(m, "tensors", 0), "shape", json_pack("[i,i]", -1, -1));
}
static void unknown_dtype(json_t *m)
{
    json_object_set_new(item(m, "tensors", 0), "dtype", json_string("F9_E4M4"));
}
static void other_digest(json_t *m)
{
    json_object_set_new(item(m, "tensors", 0), "digest", json_string("00000000000000000000000000000000"));
}
static void float_dim(json_t *m)
{
    json_object_set_new(item(m, "tensors", 0), "shape", json_pack("[f,f]", 24.0, 10.0));
}
static void tensor_number(json_t *m) { json_object_set_new(piece(m, 0, 0), "tensor", json_integer(1 << 30)); }
static void short_blocks(json_t *m) { json_object_set_new(item(m, "files", 0), "blocks", json_string("00")); }
static void no_digest(json_t *m) { json_object_del(m, "weights_digest"); }
static void another_id(json_t *m)
{
    json_object_set_new(m, "save_id", json_string("00000000000000000000000000000000"));
}
static void other_blocks(json_t *m) { json_object_set_new(m, "block_bytes", json_integer(4096)); }
static void known_and_unknown(json_t *m)
{
    json_object_set_new(m, "must_understand", json_pack("[s,s,s]", "planes", "zstd", "delta"));
}
static void not_a_text(json_t *m) { json_object_set_new(m, "must_understand", json_pack("[i]", 1)); }
static void not_a_list(json_t *m) { json_object_set_new(m, "must_understand", json_string("zstd")); }
static void huge_degree(json_t *m)
{
    json_object_set_new(json_object_get(m, "layout"), "tp", json_integer((1 << 24) + 1));
}
static void short_seed(json_t *m)
{
    json_object_set_new(json_object_get(m, "state"), "seed", json_string("2a"));
}
static void negative_step(json_t *m)
{
    json_object_set_new(json_object_get(m, "state"), "step", json_integer(-1));
}
static void other_order(json_t *m)
{
    json_object_set_new(m, "orders", json_pack("{s:i,s:i}", "expert_leaf", 2, "cp", 2));
}
static void odd_leaf(json_t *m) { json_object_set_new(m, "orders", json_pack("{s:i}", "expert_leaf", 6)); }
static void odd_cut(json_t *m) { json_object_set_new(m, "orders", json_pack("{s:i}", "cp_grain", 3)); }
static void vast_cut(json_t *m) { json_object_set_new(m, "orders", json_pack("{s:i}", "cp_grain", 1 << 30)); }
static void hidden_file(json_t *m)
{
    json_object_set_new(item(m, "files", 0), "name", json_string(".optim-00000.safetensors"));
}
static void unsorted(json_t *m)
{
    json_t *list = json_object_get(m, "tensors"), *first = json_incref(json_array_get(list, 0));
    json_array_remove(list, 0);
    json_array_append_new(list, first);
}
static void config_elsewhere(json_t *m)
{
    json_object_set_new(json_object_get(m, "config"), "name", json_string("/etc/passwd"));
}

static void in_the_header(json_t *m) { json_object_set_new(piece(m, 0, 0), "offset", json_integer(8)); }
static void endless_run(json_t *m)
{
    json_object_set_new(json_object_get(m, "state"), "run", json_pack("{s:s}", "lr", "0x1p+9999"));
}
static void step_before_0(json_t *m)
{
    json_object_set_new(json_object_get(m, "state"), "step", json_integer(-1));
}
static void no_pieces(json_t *m) { json_object_set_new(item(m, "files", 0), "pieces", json_object()); }
static void wrong_tail(json_t *m) { json_object_set_new(item(m, "tensors", 0), "tail", json_string("2,3")); }
static void no_tail(json_t *m) { json_object_set_new(item(m, "tensors", 0), "tail", json_string("2,,3")); }
static void length_beyond(json_t *m)
{
    json_object_set_new(item(m, "files", 0), "length", json_integer(INT64_MAX));
}

static const struct {
    void (*change)(json_t *m);
    const char *says[2];
} wrong[] = {
    { endless_run, { "settings of the run", "" } },
    { step_before_0, { "step", "" } },
    { no_pieces, { "pieces", "list" } },
    { wrong_tail, { "tail", "6 elements" } },
    { no_tail, { "dimensions", "2,,3" } },
    { length_beyond, { "optim-00000", "" } },
    { set_version, { "version 2", "version 1" } },
    { set_must, { "other", "" } },
    { set_format, { "other", MANIFEST_FORMAT } },
    { set_traversal, { "../optim", "folder" } },
    { drop_piece, { "elements", "stored" } },
    { twice_piece, { "", "twice" } },
    { shift_range, { "nowhere", "" } },
    { outside, { "outside", "" } },
    { huge_offset, { "passes the end", "" } },
    { huge_shape, { "limit", "" } },
    { zero_and_huge, { "limit", "" } },
    { negative_dim, { "limit", "" } },
    { unknown_dtype, { "F9_E4M4", "" } },
    { other_digest, { "digest", "" } },
    { float_dim, { "shape", "whole number" } },
    { tensor_number, { "piece of tensor", "" } },
    { short_blocks, { "block checksums", "" } },
    { no_digest, { "weights_digest", "missing" } },
    { another_id, { "save_id", "" } },
    { config_elsewhere, { "/etc/passwd", "folder" } },
    { other_blocks, { "4096", "1048576" } },
    { known_and_unknown, { "delta", "newer program" } },
    { not_a_text, { "feature", "" } },
    { not_a_list, { "must_understand", "list" } },
    { huge_degree, { "layout says tp", "" } },
    { short_seed, { "seed", "16 hex digits" } },
    { negative_step, { "step", "" } },
    { other_order, { "\"cp\"", "newer program" } },
    { odd_leaf, { "expert_leaf is 6", "power of two" } },
    { odd_cut, { "cp_grain is 3", "power of two" } },
    { vast_cut, { "cp_grain is 1073741824", "up to 1048576" } },
    { hidden_file, { ".optim", "folder" } },
    { unsorted, { "not in order", "" } },
};

TEST(wrong_manifests_are_refused_with_a_message_that_names_what_is_wrong)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err e = { 0 };
        struct ckpt *c = NULL;
        CHECK_INT(make_ckpt(fresh("wrong"), small_specs(), N_SPECS, 2, 1000, 0, NULL, &e), 0);
        json_t *m = load_manifest(dst);
        wrong[i].change(m);
        save_manifest(dst, m);
        if (ckpt_open(&c, dst, NULL, &e) >= 0)
            test_fail(__FILE__, __LINE__, "wrong manifest %zu was taken", i);
        ckpt_close(c);
        CHECK_HAS(e.text, wrong[i].says[0]);
        CHECK_HAS(e.text, wrong[i].says[1]);
    }
}

TEST(a_piece_that_begins_in_the_header_of_its_file_is_found_by_verify)
{
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("header"), small_specs(), N_SPECS, 2, 1000, 0, NULL, &e), 0);
    json_t *m = load_manifest(dst);
    in_the_header(m);
    save_manifest(dst, m);
    CHECK(opens_and_verifies(dst, &e) < 0);
    CHECK_HAS(e.text, "optim-00000.safetensors");
}

TEST(unknown_members_of_a_manifest_are_ignored)
{
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("unknown"), small_specs(), N_SPECS, 2, 1000, 0, NULL, &e), 0);
    json_t *m = load_manifest(dst);
    json_object_set_new(m, "a_later_idea", json_integer(1));
    json_object_set_new(item(m, "tensors", 0), "colour", json_string("blue"));
    json_object_set_new(item(m, "files", 0), "owner", json_integer(3));
    json_object_set_new(piece(m, 0, 0), "weight", json_null());
    json_object_set_new(json_object_get(m, "layout"), "sp", json_integer(2));
    json_object_set_new(json_object_get(m, "state"), "moon", json_string("full"));
    save_manifest(dst, m);
    CHECK_INT(opens_and_verifies(dst, &e), 0);
}

/* ---- compressed ---- */

/* Two MiB and more of fp32, then bf16: blocks of both widths. */
static int make_packed(const char *path, enum ckpt_codec codec, int level, struct err *e)
{
    const struct ckpt_piece p[2] = {
        { { .name = "a", .dtype = STORED_F32, .n_dims = 2, .shape = { 600, 1000 } },
          { 2, { 0 }, { 600, 1000 } },
          0,
          600000 },
        { { .name = "b", .dtype = STORED_BF16, .n_dims = 1, .shape = { 700001 } },
          { 1, { 0 }, { 700001 } },
          0,
          700001 },
    };
    struct ckpt_meta meta = { .layout = { 1, 1, 1, 1, 1, 0 } };
    struct ckpt_shard *shard = NULL;
    void *table = NULL;
    size_t bytes = 0;
    char tmp[4096], *data = malloc((size_t)4 * 700001);
    int rc = 0;
    TRY(ckpt_begin(path, tmp, NULL, NULL, e));
    TRY(ckpt_shard_open(&shard, tmp, 0, 2, p, e));
    ckpt_shard_compress(shard, codec, level);
    for (int i = 0; i < 2; i++) {
        fill_range(&p[i].t, &p[i].box, 0, p[i].hi, data);
        TRY(ckpt_shard_put(shard, i, data, p[i].hi, e));
    }
    TRY(ckpt_shard_close(shard, &table, &bytes, e));
    TRY(ckpt_publish(tmp, path, 1, &table, &bytes, &meta, NULL, e));
out:
    free(table);
    free(data);
    return rc;
}

static void check_packed(const char *path)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    char *have = malloc((size_t)4 * 700001), *want = malloc((size_t)4 * 700001);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    for (int i = 0; i < 2; i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        struct box b = box_whole(t->n_dims, t->shape);
        CHECK_INT(ckpt_read_range(c, i, &b, 5, box_count(&b) - 3, have, &e), 0);
        fill_range(t, &b, 5, box_count(&b) - 3, want);
        CHECK_SAME(have, want, (size_t)stored_bytes(t->dtype, box_count(&b) - 8));
    }
    ckpt_close(c);
    free(have);
    free(want);
}

TEST(compressed_files_read_back_in_both_codecs_and_every_level)
{
    static const struct {
        enum ckpt_codec codec;
        int level;
        const char *features, *planes, *name;
    } cases[] = {
        { CODEC_ZSTD, 1, "[\"zstd\"]", NULL, "weights-00000.safetensors.zst" },
        { CODEC_ZSTD, 5, "[\"zstd\"]", NULL, "weights-00000.safetensors.zst" },
        { CODEC_PLANES, 0, "[\"planes\",\"zstd\"]", "4422", "weights-00000.safetensors.planes.zst" },
        { CODEC_PLANES, 3, "[\"planes\",\"zstd\"]", "4422", "weights-00000.safetensors.planes.zst" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        CHECK_INT(make_packed(fresh("packed"), cases[i].codec, cases[i].level, &e), 0);
        check_packed(dst);
        json_t *m = load_manifest(dst);
        char *features = json_dumps(json_object_get(m, "must_understand"), JSON_COMPACT);
        const char *planes = json_string_value(json_object_get(item(m, "files", 0), "planes"));
        CHECK_STR(features, cases[i].features);
        CHECK_STR(planes ? planes : "", cases[i].planes ? cases[i].planes : "");
        CHECK_STR(json_string_value(json_object_get(item(m, "files", 0), "name")), cases[i].name);
        free(features);
        json_decref(m);
    }
}

static void set_planes(json_t *m, const char *digits)
{
    json_object_set_new(item(m, "files", 0), "planes", json_string(digits));
}
static void three(json_t *m) { set_planes(m, "4432"); }
static void too_few(json_t *m) { set_planes(m, "442"); }
static void wrong_width(json_t *m) { set_planes(m, "4424"); }
static void no_number(json_t *m) { json_object_set_new(item(m, "files", 0), "planes", json_integer(4422)); }
static void drop_frame(json_t *m) { json_array_remove(json_object_get(item(m, "files", 0), "frames"), 0); }
static void empty_frame(json_t *m)
{
    json_array_set_new(json_object_get(item(m, "files", 0), "frames"), 0, json_integer(0));
}
static void far_plain(json_t *m)
{
    json_object_set_new(item(m, "files", 0), "plain", json_integer((json_int_t)1 << 50));
}
static void huge_plain(json_t *m)
{
    json_object_set_new(item(m, "files", 0), "plain", json_integer((json_int_t)1 << 60));
}

TEST(wrong_frames_and_planes_are_refused_or_found_by_the_digest)
{
    static const struct {
        void (*change)(json_t *m);
        const char *says;
    } cases[] = {
        { three, "digits 1, 2, 4, 8" },     { too_few, "4 blocks" },      { no_number, "digits 1, 2, 4, 8" },
        { wrong_width, "digest" },          { drop_frame, "frames" },     { empty_frame, "frame 0" },
        { huge_plain, "beyond the limit" }, { far_plain, "cannot hold" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        CHECK_INT(make_packed(fresh("packed"), CODEC_PLANES, 0, &e), 0);
        json_t *m = load_manifest(dst);
        cases[i].change(m);
        save_manifest(dst, m);
        CHECK(opens_and_verifies(dst, &e) < 0);
        CHECK_HAS(e.text, cases[i].says);
    }
}

TEST(files_of_two_saves_mixed_are_found)
{
    char other[512], from[512], to[512];
    struct err e = { 0 };
    struct spec s[N_SPECS];
    memcpy(s, small_specs(), sizeof s);
    CHECK_INT(make_ckpt(fresh("save1"), s, N_SPECS, 2, 1000, 0, NULL, &e), 0);
    strcpy(other, dst);
    s[0].t.role = ROLE_MASTER; /* other values at the same places */
    s[0].t.role = ROLE_WEIGHT;
    s[1].t.name = "model.embeX.weight";
    CHECK_INT(make_ckpt(fresh("save2"), s, N_SPECS, 2, 1000, 0, NULL, &e), 0);
    rename(in_tmp(other, "weights-00001.safetensors", from), in_tmp(dst, "weights-00001.safetensors", to));
    CHECK(opens_and_verifies(dst, &e) < 0);
    CHECK_HAS(e.text, "weights-00001.safetensors");
}

TEST(a_tensor_without_elements_and_one_of_four_dims_are_kept)
{
    struct err e = { 0 };
    struct spec s[2] = { spec(ROLE_WEIGHT, "empty", STORED_F32, 2, 0, 5, CUT_NONE),
                         spec(ROLE_WEIGHT, "four", STORED_I64, 2, 3, 2, CUT_ROWS) };
    s[1].t.n_dims = 4;
    memcpy(s[1].t.shape, (int64_t[]){ 4, 3, 2, 5 }, 32);
    CHECK_INT(make_ckpt(fresh("four"), s, 2, 2, 7, 0, NULL, &e), 0);
    CHECK_INT(opens_and_verifies(dst, &e), 0);
    struct ckpt *c = NULL;
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    CHECK_INT(ckpt_n_tensors(c), 2);
    CHECK_INT(ckpt_tensor(c, 0)->shape[1], 5);
    ckpt_close(c);
}

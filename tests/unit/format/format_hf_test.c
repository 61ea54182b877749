/* format_hf_test.c - Hugging Face checkpoints and the safetensors container: good files are read, bad ones
 * are refused with a message that gives the reason. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/jx.h"
#include "format/ckpt_proof.h"
#include "format/fmt.h"
#include "format/hf/safetensors.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

static char path[512];

/* Writes a .safetensors file of a header and n bytes of data; returns its path. */
static const char *put_st(const char *name, const char *header, size_t data_bytes)
{
    uint64_t n = strlen(header);
    FILE *f = fopen(in_tmp(test_tmp_dir(), name, path), "wb");
    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)i, f);
    fclose(f);
    return path;
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
static const struct {
    const char *header;
    size_t data;
    const char *says;
} bad[] = {
    { "", 0, "{" },
    { "[1]", 0, "{" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") "}\n\001", 8, "" },
    { " {\"w\":" T("F32", "[2]", "[0,8]") "}", 8, "{" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") ",\"w\":" T("F32", "[2]", "[0,8]") "}", 8, "w" },
    { "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") ",\"v\":" T("F32", "[1]", "[12,16]") "}", 16, "hole" },
    { "{\"w\":" T("F32", "[2]", "[4,12]") "}", 12, "hole" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") ",\"v\":" T("F32", "[1]", "[4,8]") "}", 8, "overlap" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") ",\"v\":" T("F32", "[2]", "[0,8]") "}", 8, "overlap" },
    { "{\"w\":" T("F32", "[2]", "[8,0]") "}", 8, "from 8 to 0" },
    { "{\"w\":" T("F32", "[2]", "[-8,0]") "}", 8, "from -8 to 0" },
    { "{\"w\":" T("F32", "[2]", "[0.0,8.0]") "}", 8, "whole numbers" },
    { "{\"w\":" T("F32", "[2]", "[0,8e0]") "}", 8, "whole numbers" },
    { "{\"w\":" T("F32", "[2]", "[0,18446744073709551616]") "}", 8, "" },
    { "{\"w\":" T("F32", "[2]", "[0,8,8]") "}", 8, "two" },
    { "{\"w\":" T("F32", "[9223372036854775807,4,0]", "[0,0]") "}", 0, "limit" },
    { "{\"w\":" T("F32", "[-2]", "[0,8]") "}", 8, "dimension 0" },
    { "{\"w\":" T("F32", "[2.0]", "[0,8]") "}", 8, "dimension 0" },
    { "{\"w\":" T("F32", "[3]", "[0,8]") "}", 8, "12 bytes" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") "}", 9, "9" },
    { "{\"w\":" T("F32", "[2]", "[0,8]") "}", 7, "8 bytes of data" },
    { "{\"w\":" T("F9", "[2]", "[0,1]") "}", 1, "F9" },
    { "{\"\":" T("F32", "[2]", "[0,8]") "}", 8, "empty name" },
    { "{\"w\\u0000x\":" T("F32", "[2]", "[0,8]") "}", 8, "" },
    { "{\"w\\nx\":" T("F32", "[2]", "[0,8]") "}", 8, "control character" },
    { "{\"w\\ud800\":" T("F32", "[2]", "[0,8]") "}", 8, "" },
    { "{\"w\xff\":" T("F32", "[2]", "[0,8]") "}", 8, "" },
    { "{\"w\":" T("F32", "[1,1,1,1,1,1,1,2,-1]", "[0,8]") "}", 8, "dimension 8" },
    { "{\"w\":" T("F32", "[1,1,1,1,1,1,1,2,2]", "[0,8]") "}", 8, "16 bytes" },
    { "{\"w\":" T("F32", "[1,1,1,1,1,1,1,99999999999999,99999999999999]", "[0,8]") "}", 8, "from 7 on" },
    { "{\"__metadata__\":{\"a\":1},\"w\":" T("F32", "[2]", "[0,8]") "}", 8, "__metadata__" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"extra\":1}}", 8, "besides" },
    /* a byte order mark */
    { "\xef\xbb\xbf{\"w\":" T("F32", "[2]", "[0,8]") "}", 8, "{" },
    /* an overlong form */
    { "{\"w\xc0\xaf\":" T("F32", "[2]", "[0,8]") "}", 8, "" },
    { "{\"__metadata__\":{},\"__metadata__\":{},\"w\":" T("F32", "[2]", "[0,8]") "}", 8, "duplicate" },
    { "{\"w\":1}", 0, "dtype" },
    { "{\"w\":" T("F32", "[2]", "[0,8]"), 8, "" },
};

static int opens(const char *what, struct err *e)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, what, NULL, e);
    if (rc == 0)
        rc = ckpt_verify(c, 0, e);
    ckpt_close(c);
    return rc;
}

TEST(bad_safetensors_files_are_refused_with_a_reason)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = { 0 };
        if (opens(put_st("bad.safetensors", bad[i].header, bad[i].data), &e) >= 0)
            test_fail(__FILE__, __LINE__, "taken: %s", bad[i].header);
        CHECK_HAS(e.text, bad[i].says);
        CHECK_HAS(e.text, "bad.safetensors");
        CHECK(!strchr(e.text, '\n'));
    }
}

static const struct {
    const char *bytes;
    size_t n;
    const char *says;
} not_st[] = {
    { "", 0, "0 bytes" },
    { "1234567", 7, "7 bytes" },
    { "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "allows" },
    { "\0\0\0\1\0\0\0\0{}", 10, "passes the end" },
    { "\0\0\0\0\0\0\0\200{}", 10, "allows" },
    { "\3\0\0\0\0\0\0\0{}", 10, "passes the end" },
    { "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", 61, "git-lfs" },
    { "<!DOCTYPE html><html></html>", 28, "HTML" },
    { "{\"error\":\"Repository not found\"}", 32, "JSON error" },
    { "PK\3\4aaaaaaaaaaaaaa", 18, "zip" },
};

TEST(files_that_are_something_else_are_named)
{
    for (size_t i = 0; i < sizeof not_st / sizeof *not_st; i++) {
        struct err e = { 0 };
        unlink(in_tmp(test_tmp_dir(), "other.safetensors", path));
        CHECK_INT(io_write_file(path, not_st[i].bytes, not_st[i].n, &e), 0);
        CHECK(opens(path, &e) < 0);
        CHECK_HAS(e.text, not_st[i].says);
    }
}

TEST(odd_but_legal_files_are_read)
{
    static const struct {
        const char *header;
        size_t data;
        int n;
    } good[] = {
        { "{}", 0, 0 },
        { "{}      ", 0, 0 },
        { "{\"__metadata__\":{\"format\":\"pt\"},\"w\":" T("U8", "[3]", "[0,3]") "}", 3, 1 },
        { "{\"w\":" T("F32", "[]", "[0,4]") "}", 4, 1 },
        { "{\"e\":" T("F32", "[0,7]", "[4,4]") ",\"w\":" T("F32", "[1]", "[0,4]") "}", 4, 2 },
        { "{\"b\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("F32", "[1,1,2]", "[1,9]") "}", 9, 2 },
        { "{\"../../x\":" T("BOOL", "[2]", "[0,2]") "}", 2, 1 },
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct ckpt *c = NULL;
        struct err e = { 0 };
        CHECK_INT(ckpt_open(&c, put_st("good.safetensors", good[i].header, good[i].data), NULL, &e), 0);
        CHECK(c && ckpt_n_tensors(c) == good[i].n);
        if (c)
            CHECK_INT(ckpt_verify(c, 0, &e), 0);
        ckpt_close(c);
    }
}

TEST(a_box_out_of_a_file_at_an_odd_byte_is_right)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    uint8_t got[6];
    put_st("odd.safetensors", "{\"a\":" T("U8", "[1]", "[0,1]") ",\"b\":" T("I16", "[3,4]", "[1,25]") "}",
           25);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    struct box b = { 2, { 1, 1 }, { 2, 1 } };
    CHECK_INT(ckpt_read(c, ckpt_find(c, ROLE_WEIGHT, "b"), &b, got, &e), 0);
    CHECK_SAME(got, ((uint8_t[]){ 11, 12, 19, 20 }), 4);
    ckpt_close(c);
}

/* Bytes are read by pread and not through a map: a file that shrinks is an error that names it. */
TEST(a_file_that_shrinks_while_it_is_open_is_an_error)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    uint8_t got[8];
    put_st("shrinks.safetensors", "{\"w\":" T("F32", "[2]", "[0,8]") "}", 8);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    CHECK_INT(truncate(path, 40), 0);
    struct box b = { 1, { 0 }, { 2 } };
    CHECK(ckpt_read(c, 0, &b, got, &e) < 0);
    CHECK_HAS(e.text, "shrinks.safetensors");
    ckpt_close(c);
}

/* Writes at the end of the file until the file system's clock shows it, and sets mtime back. */
static void change_behind(const char *file)
{
    struct stat before, now;
    CHECK(stat(file, &before) == 0);
    int fd = open(file, O_WRONLY);
    do {
        CHECK(pwrite(fd, "?", 1, before.st_size - 1) == 1);
        CHECK(futimens(fd, (struct timespec[2]){ before.st_atim, before.st_mtim }) == 0);
        CHECK(fstat(fd, &now) == 0);
    } while (now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
    close(fd);
}

/* Nothing in a safetensors file would show that its tensors are of two versions. */
TEST(a_file_that_changes_while_it_is_read_is_an_error)
{
    for (int how = 0; how < 3; how++) {
        struct ckpt *c = NULL;
        struct err e = { 0 };
        char other[600];
        put_st("other.safetensors", "{\"w\":" T("F32", "[2]", "[0,8]") "}", 8);
        snprintf(other, sizeof other, "%s", path);
        put_st("changes.safetensors", "{\"w\":" T("F32", "[2]", "[0,8]") "}", 8);
        CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
        if (how == 1)
            change_behind(path);
        if (how == 2)
            CHECK(rename(other, path) == 0);
        CHECK_INT(ckpt_check_rest(c, 0, 1, &e), how ? -ERR_INTEGRITY : 0);
        if (how)
            CHECK_HAS(e.text, "changes.safetensors: changed while it was read");
        ckpt_close(c);
    }
}

TEST(a_hundred_thousand_tensors_are_read_quickly)
{
    enum { N = 100000 };
    char *text = malloc(N * 80), *p = text;
    p += sprintf(p, "{");
    for (int i = 0; i < N; i++)
        p += sprintf(p, "%s\"t.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? "," : "",
                     (i * 7919) % N, i, i + 1);
    sprintf(p, "}");
    struct ckpt *c = NULL;
    struct err e = { 0 };
    CHECK_INT(ckpt_open(&c, put_st("many.safetensors", text, N), NULL, &e), 0);
    CHECK(c && ckpt_n_tensors(c) == N && ckpt_find(c, ROLE_WEIGHT, "t.77777") >= 0);
    ckpt_close(c);
    free(text);
}

/* ---- folders ---- */

static void put_text(const char *dir, const char *name, const char *text)
{
    struct err e;
    char p[512];
    unlink(in_tmp(dir, name, p));
    CHECK_INT(io_write_file(p, text, strlen(text), &e), 0);
}

TEST(folders_are_read_by_their_index_and_wrong_ones_are_refused)
{
    static const struct {
        const char *index, *says;
    } cases[] = {
        { "{\"weight_map\":{\"w\":\"s1.safetensors\",\"v\":\"s2.safetensors\"}}", NULL },
        { "{\"metadata\":{\"total_size\":3},\"weight_map\":{\"w\":\"s1.safetensors\"}}", NULL },
        { "{\"weight_map\":{\"w\":\"s2.safetensors\",\"v\":\"s1.safetensors\"}}", "it is in s1" },
        { "{\"weight_map\":{\"w\":\"s1.safetensors\",\"x\":\"s2.safetensors\"}}", "no such tensor" },
        { "{\"weight_map\":{\"w\":\"s1.safetensors\",\"v\":\"s3.safetensors\"}}", "s3.safetensors" },
        { "{\"weight_map\":{\"w\":\"s1.safetensors\",\"v\":\"copy.safetensors\"}}", "w is in" },
        { "{\"weight_map\":{\"w\":\"../shards/s1.safetensors\"}}", "folder" },
        { "{\"weight_map\":{\"w\":\"/etc/passwd\"}}", "folder" },
        { "{\"weight_map\":{\"w\":\"config.json\"}}", ".safetensors" },
        { "{\"weight_map\":{\"w\":7}}", "no file for w" },
        { "{\"weight_map\":{}}", "weight_map" },
        { "{\"weight_map\":{\"w\":\"s1.safetensors\",\"w\":\"s2.safetensors\"}}", "w" },
        { "[]", "weight_map" },
    };
    char dir[512];
    struct err e = { 0 };
    io_remove_tree(in_tmp(test_tmp_dir(), "shards", dir), &e);
    CHECK_INT(io_mkdir(dir, &e), 0);
    put_st("shards/s1.safetensors", "{\"w\":" T("F32", "[2]", "[0,8]") "}", 8);
    put_st("shards/s2.safetensors", "{\"v\":" T("F32", "[2]", "[0,8]") "}", 8);
    put_st("shards/copy.safetensors", "{\"w\":" T("F32", "[2]", "[0,8]") "}", 8);
    put_text(dir, "config.json", "{}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(dir, "model.safetensors.index.json", cases[i].index);
        int rc = opens(dir, &e);
        CHECK_INT(rc < 0, cases[i].says != NULL);
        if (cases[i].says)
            CHECK_HAS(e.text, cases[i].says);
    }
}

TEST(what_is_no_checkpoint_is_refused_by_what_it_lacks)
{
    static const struct {
        const char *file, *says;
    } cases[] = {
        { "pytorch_model.bin", "zip" },
        { "latest", "which is not there" },
        { ".metadata", "pickle" },
        { "latest_checkpointed_iteration.txt", "an iteration" },
        { "zero_pp_rank_0_mp_rank_00_optim_states.pt", "0 model files" },
        { "weights-00000.safetensors", "manifest.json is missing" },
        { "readme", "checkpoint" },
    };
    char dir[512];
    struct err e = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        io_remove_tree(in_tmp(test_tmp_dir(), "foreign", dir), &e);
        CHECK_INT(io_mkdir(dir, &e), 0);
        put_text(dir, cases[i].file, "x");
        CHECK(opens(dir, &e) < 0);
        CHECK_HAS(e.text, cases[i].says);
    }
    /* URLs that are read: tests/cli/reshard/reshard_url.sh */
    CHECK(opens("ftp://127.0.0.1/model", &e) < 0);
    CHECK(opens("/nonexistent/ckpt", &e) < 0);
}

/* ---- fixtures ---- */

TEST(the_bad_safetensors_fixtures_are_refused_and_the_good_ones_read)
{
    const char *fx = test_fixture_dir(), *name, *answer;
    char file[512];
    struct err e = { 0 };
    if (!fx) {
        test_skip("FIXTURES is not set");
        return;
    }
    snprintf(file, sizeof file, "%s/foreign/bad/bad.json", fx);
    json_t *all = jx_load(file, 1 << 20, &e), *v;
    CHECK(all != NULL);
    int n = 0;
    json_object_foreach(all, name, v) {
        answer = json_string_value(v);
        if (strncmp(name, "st_", 3))
            continue;
        snprintf(file, sizeof file, "%s/foreign/bad/%s", fx, name);
        int rc = opens(file, &e);
        if (!strncmp(answer, "refuse:", 7) && rc >= 0)
            test_fail(__FILE__, __LINE__, "%s was read: %s", name, answer);
        if (!strncmp(answer, "accept", 6) && rc < 0)
            test_fail(__FILE__, __LINE__, "%s: %s: %s", name, answer, e.text);
        n++;
    }
    CHECK(n > 20);
    json_decref(all);
}

static void run(const char *fmt, const char *a, const char *b, const char *c)
{
    char cmd[2048];
    snprintf(cmd, sizeof cmd, "%s '%s%s%s'", fmt, a, b, c);
    CHECK_INT(system(cmd), 0);
}

/* Makes the folder of a recipe: the base folder without `delete`, with copies, truncations and the
 * overlay. */
static void cook(const char *fx, const char *name, const char *dir)
{
    char file[512], cmd[2048];
    struct err e = { 0 };
    const char *to;
    json_t *v;
    size_t i;
    snprintf(file, sizeof file, "%s/foreign/bad/%s/recipe.json", fx, name);
    json_t *r = jx_load(file, 1 << 20, &e);
    run("rm -rf", dir, "", "");
    snprintf(cmd, sizeof cmd, "cp -r '%s/foreign/%s' '%s' && chmod -R u+w '%s'", fx,
             json_string_value(json_object_get(r, "base")), dir, dir);
    CHECK_INT(system(cmd), 0);
    json_array_foreach(json_object_get(r, "delete"), i, v)
        run("rm", dir, "/", json_string_value(v));
    json_object_foreach(json_object_get(r, "copy"), to, v) {
        snprintf(cmd, sizeof cmd, "cp '%s/%s' '%s/%s'", dir, json_string_value(v), dir, to);
        CHECK_INT(system(cmd), 0);
    }
    if (json_is_string(json_object_get(r, "overlay"))) {
        snprintf(cmd, sizeof cmd, "cp -r '%s/foreign/bad/%s/files/.' '%s'", fx, name, dir);
        CHECK_INT(system(cmd), 0);
    }
    json_decref(r);
}

TEST(the_bad_hugging_face_folders_are_refused)
{
    static const struct {
        const char *name, *says;
    } cases[] = {
        { "hf_missing_shard", "model-00002-of-00003.safetensors" },
        { "hf_index_traversal", "folder" },
        { "hf_index_abs", "folder" },
        { "hf_index_wrong_shard", "it is in" },
        { "hf_index_extra_key", "no such tensor" },
        { "hf_dup_across_shards", "is in" },
    };
    const char *fx = test_fixture_dir();
    char dir[512];
    if (!fx) {
        test_skip("FIXTURES is not set");
        return;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        cook(fx, cases[i].name, in_tmp(test_tmp_dir(), "cooked", dir));
        CHECK(opens(dir, &e) < 0);
        CHECK_HAS(e.text, cases[i].says);
    }
}

TEST(every_checkpoint_of_the_fixtures_opens_with_its_config_and_tokenizer)
{
    static const char *const names[] = { "llama3-gqa-f32", "llama3-tied-bf16-sharded", "mixtral-f32-sharded",
                                         "gpt2-f32", "qwen3-qknorm-bf16" };
    const char *fx = test_fixture_dir();
    char dir[512];
    if (!fx) {
        test_skip("FIXTURES is not set");
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct ckpt *c = NULL;
        struct err e = { 0 };
        snprintf(dir, sizeof dir, "%s/hf/hf/%s/model", fx, names[i]);
        CHECK_INT(ckpt_open(&c, dir, NULL, &e), 0);
        CHECK(c && ckpt_n_tensors(c) > 10 && ckpt_config_json(c) && ckpt_n_extra(c) == 4);
        CHECK_INT(ckpt_verify(c, 0, &e), 0);
        ckpt_close(c);
    }
}

/* text_tokfile_test.c - token files: what is written comes back, every changed byte and every cut is seen;
 * ptok prepare's documents. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* asprintf */
#endif
#include <unistd.h>
#include <zstd.h>
#include "base/io.h"
#include "tests/unit/text/text_help.h"
#include "text/prepare.h"
#include "text/source.h"
#include "text/tokfile.h"

static const char *at_tmp(const char *name)
{
    static char path[4][512];
    static int k;
    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", test_tmp_dir(), name);
    return path[k];
}

static void put(const char *path, const void *data, size_t n)
{
    struct err e = { 0 };
    unlink(path);
    if (io_write_file(path, data, n, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
}

/* n ids, all different from their neighbours, cut into documents of 1, 2, 3, … ids */
static int32_t id_of(int64_t i, int64_t vocab)
{
    return (int32_t)((uint64_t)(i * 2654435761) % (uint64_t)vocab);
}

static void write_carrying(const char *path, int64_t vocab, int64_t n, int n_parts)
{
    static const char *const name[2] = { "tokenizer.json", "chat_template.jinja" };
    static const char *const text[2] = { "{\"model\":1}", "" };
    struct tokfile_writer *w = NULL;
    struct err e = { 0 };
    unlink(path);
    CHECK_INT(tokfile_create(&w, path, vocab, &e), 0);
    for (int i = 0; i < n_parts; i++)
        CHECK_INT(tokfile_carry(w, name[i], text[i], strlen(text[i]), &e), 0);
    int64_t end = 0;
    for (int64_t i = 0, doc = 1; w && i < n; i++) {
        int32_t id = id_of(i, vocab);
        CHECK_INT(tokfile_add(w, &id, 1, &e), 0);
        if (i == end || i == n - 1) {
            CHECK_INT(tokfile_end_document(w, &e), 0);
            end += ++doc;
        }
    }
    CHECK_INT(tokfile_finish(w, &e), 0);
}

static void write_file(const char *path, int64_t vocab, int64_t n) { write_carrying(path, vocab, n, 0); }

TEST(ids_and_ends_come_back_at_both_widths)
{
    static const struct {
        int64_t vocab, n;
        int width;
    } sizes[] = { { 256, 1, 2 },       { 65536, 131072, 2 },   { 65536, 131073, 2 },
                  { 65537, 65537, 4 }, { 1 << 20, 200001, 4 }, { 7, 3, 2 } };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct tokfile *f = NULL;
        struct err e = { 0 };
        int64_t n = sizes[k].n;
        int32_t *ids = malloc((size_t)n * sizeof *ids);
        const char *path = at_tmp("ids");
        write_file(path, sizes[k].vocab, n);
        CHECK_INT(tokfile_open(&f, path, &e), 0);
        CHECK_INT(tokfile_width(f), sizes[k].width);
        CHECK_INT(tokfile_count(f), n);
        CHECK_INT(tokfile_vocab(f), sizes[k].vocab);
        CHECK_INT(tokfile_document_end(f, tokfile_documents(f) - 1), n);
        CHECK_INT(tokfile_document_end(f, 0), 1);
        CHECK_INT(tokfile_read(f, 0, n, ids, &e), 0);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; i++)
            wrong += ids[i] != id_of(i, sizes[k].vocab);
        CHECK_INT(wrong, 0);
        CHECK_INT(tokfile_read(f, n - 1, 1, ids, &e), 0);
        CHECK_INT(ids[0], id_of(n - 1, sizes[k].vocab));
        CHECK_INT(tokfile_read(f, n, 0, ids, &e), 0);
        CHECK(tokfile_read(f, n, 1, ids, &e) < 0 && tokfile_read(f, -1, 1, ids, &e) < 0);
        tokfile_close(f);
        free(ids);
    }
}

/* Opens and reads all of it: 0 or a code. */
static int read_all(const char *path, struct err *e)
{
    struct tokfile *f = NULL;
    int rc = tokfile_open(&f, path, e);
    if (rc == 0)
        rc = tokfile_verify(f, e);
    tokfile_close(f);
    return rc;
}

static void change_and_cut(int n_parts)
{
    const char *path = at_tmp("whole"), *other = at_tmp("other");
    struct err e = { 0 };
    void *data = NULL;
    size_t n;
    write_carrying(path, 5, 37, n_parts);
    CHECK_INT(read_all(path, &e), 0);
    CHECK_INT(io_read_file(path, 1 << 20, &data, &n, &e), 0);
    unsigned char *p = data;
    /* the zeros up to 8 bytes are nothing's value, and are not checked */
    size_t pad = 64 + 37 * 2, pad_end = (pad + 7) / 8 * 8;
    for (size_t i = 0; i < n; i++) {
        if (i >= pad && i < pad_end)
            continue;
        p[i] ^= 1u << i % 8;
        put(other, data, n);
        if (read_all(other, &e) == 0)
            test_fail(__FILE__, __LINE__, "byte %zu changed and nobody saw it", i);
        CHECK(e.code == ERR_FORMAT || e.code == ERR_INTEGRITY);
        p[i] ^= 1u << i % 8;
    }
    for (size_t i = 0; i < n; i++) {
        put(other, data, i);
        if (read_all(other, &e) == 0)
            test_fail(__FILE__, __LINE__, "cut at %zu and nobody saw it", i);
    }
    p = realloc(data, n + 1);
    p[n] = 0;
    put(other, p, n + 1);
    CHECK(read_all(other, &e) == (n_parts ? -ERR_INTEGRITY : -ERR_FORMAT));
    if (!n_parts)
        CHECK_HAS(e.text, "is it cut off");
    free(p);
}

TEST(every_changed_byte_and_every_cut_is_an_error) { change_and_cut(0); }
TEST(every_changed_byte_and_every_cut_of_carried_files_is_an_error) { change_and_cut(2); }

TEST(carried_files_come_back_by_name)
{
    const char *path = at_tmp("carrying");
    struct tokfile *f = NULL;
    struct err e = { 0 };
    size_t n;
    write_carrying(path, 5, 37, 2);
    CHECK_INT(tokfile_is_path(path), 1);
    CHECK_INT(tokfile_open(&f, path, &e), 0);
    const char *json = tokfile_part(f, "tokenizer.json", &n);
    CHECK(json && n == 11 && !memcmp(json, "{\"model\":1}", n));
    CHECK(tokfile_part(f, "chat_template.jinja", &n) && n == 0);
    CHECK(!tokfile_part(f, "tokenizer", &n));
    CHECK_INT(tokfile_count(f), 37);
    tokfile_close(f);
}

TEST(a_block_is_checked_only_when_it_is_read)
{
    const char *path = at_tmp("blocks");
    struct tokfile *f = NULL;
    struct err e = { 0 };
    void *data = NULL;
    size_t n;
    int32_t id[2];
    write_file(path, 65536, 3 * 131072);
    CHECK_INT(io_read_file(path, 1 << 24, &data, &n, &e), 0);
    ((unsigned char *)data)[64 + 262144 + 9] ^= 4;
    put(path, data, n);
    CHECK_INT(tokfile_open(&f, path, &e), 0);
    CHECK_INT(tokfile_read(f, 131071, 1, id, &e), 0);
    CHECK_INT(tokfile_read(f, 262144, 1, id, &e), 0);
    CHECK_INT(tokfile_read(f, 131071, 2, id, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "bytes 262208 to 524352 are not what was written");
    tokfile_close(f);
    free(data);
}

TEST(a_file_that_exists_is_not_written_over_and_a_failed_one_leaves_nothing)
{
    const char *path = at_tmp("exists");
    struct tokfile_writer *w = NULL;
    struct err e = { 0 };
    int32_t id = 9;
    put(path, "x", 1);
    CHECK_INT(tokfile_create(&w, path, 10, &e), -ERR_FILE);
    unlink(path);
    CHECK_INT(tokfile_create(&w, path, 9, &e), 0);
    CHECK(tokfile_add(w, &id, 1, &e) < 0);
    tokfile_abandon(w);
    CHECK(!io_exists(path) && !io_exists(at_tmp("exists.part")));
}

/* --- documents of files --- */

static char *documents(const char *path, const char *field)
{
    struct source *s = NULL;
    struct err e = { 0 };
    char *out = strdup(""), *text, *next;
    size_t n;
    int more, rc = source_open(&s, path, field, &e);
    while (rc == 0 && (rc = source_next(s, 0, &text, &n, &more, &e)) == 1) {
        if (asprintf(&next, "%s[%lld,%lld:%s]", out, (long long)source_line(s), (long long)source_byte(s),
                     text) < 0)
            break;
        free(text);
        free(out);
        out = next;
        rc = 0;
    }
    if (rc < 0) {
        free(out);
        const char *name = strstr(e.text, "doc.");
        out = strdup(name ? name : e.text);
    }
    source_close(s);
    return out;
}

static void check_documents(const char *name, const char *data, size_t n, const char *field, const char *want)
{
    const char *path = at_tmp(name);
    put(path, data, n);
    char *got = documents(path, field);
    CHECK_STR(got, want);
    free(got);
}

TEST(lines_of_jsonl_are_documents_and_errors_name_line_and_byte)
{
    static const struct {
        const char *data, *want;
    } files[] = {
        { "{\"text\":\"a\"}\n{\"text\":\"b\\n\"}\n", "[1,0:a][2,13:b\n]" },
        { "{\"text\":\"a\"}\r\n\n \t\n{\"x\":[123456789012345678901],\"text\":\"\"}", "[1,0:a][4,18:]" },
        { "{\"text\":\"a\"}\n{\"x\":1}",
          "doc.jsonl: line 2, byte 13: the object has no text \"text\": name the field with --jsonl-field" },
        { "{\"text\":\"a\"}\n{\"text\":5}",
          "doc.jsonl: line 2, byte 13: the object has no text \"text\": name the field with --jsonl-field" },
        { "[1]", "doc.jsonl: line 1, byte 0: no JSON object" },
        { "\n{\"text\":\"a\"", "doc.jsonl: line 2, byte 12: no JSON: '}' expected near end of file" },
        { "", "" },
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check_documents("doc.jsonl", files[i].data, strlen(files[i].data), "text", files[i].want);
    check_documents("doc.ndjson", "{\"y\":\"q\"}", 9, "y", "[1,0:q]");
    check_documents("doc.jsonl", "{\"text\":\"\xFF\"}", 12, "text",
                    "doc.jsonl: line 1, byte 9: no JSON: unable to decode byte 0xff near '\"'");
}

TEST(a_file_of_text_is_one_document_and_an_empty_one_an_error)
{
    check_documents("doc.txt", "a\nb\n", 4, "text", "[1,0:a\nb\n]");
    check_documents("doc.txt", "", 0, "text", "doc.txt: the file is empty: give a file with text");
}

TEST(compressed_files_are_read_and_every_cut_is_seen)
{
    enum { N = 300000 };
    char *text = malloc(N + 1), *packed = malloc(ZSTD_compressBound(N) * 2);
    for (int i = 0; i < N; i++)
        text[i] = (char)('a' + (i * 2654435761u >> 20) % 26);
    text[N] = 0;
    /* two frames, one behind the other */
    size_t n = ZSTD_compress(packed, ZSTD_compressBound(N), text, N / 3, 3);
    n += ZSTD_compress(packed + n, ZSTD_compressBound(N), text + N / 3, N - N / 3, 1);
    char *want = NULL;
    CHECK(asprintf(&want, "[1,0:%s]", text) > 0);
    check_documents("doc.zst", packed, n, "text", want);
    for (size_t cut = 1; cut < n; cut += cut < 40 || cut + 40 > n ? 1 : n / 37) {
        const char *path = at_tmp("doc.zst");
        put(path, packed, cut);
        char *got = documents(path, "text");
        if (!strstr(got, "is it cut off") && !(cut == ZSTD_findFrameCompressedSize(packed, n) && *got == '['))
            test_fail(__FILE__, __LINE__, "cut at %zu: %.80s", cut, got);
        free(got);
    }
    packed[n / 2] ^= 16;
    const char *path = at_tmp("doc.zst");
    put(path, packed, n);
    char *got = documents(path, "text");
    CHECK(strcmp(got, want));
    free(got);
    free(want);
    free(text);
    free(packed);
}

/* --- all together --- */

static int prepare(const char *tokenizer, int n_files, const char *const *files, const char *out, int threads,
                   struct prepared *done, struct err *e)
{
    struct tokenizer *t = NULL;
    struct prepare p = {
        .files = files, .n_files = n_files, .out = out, .field = "text", .n_threads = threads
    };
    int rc = tokenizer_open_named(&t, tokenizer, e);
    unlink(out);
    if (rc == 0)
        rc = prepare_tokens(t, &p, done, e);
    tokenizer_close(t);
    return rc;
}

TEST(any_number_of_threads_writes_the_same_bytes)
{
    struct buf lines = { 0 };
    char line[200];
    for (int i = 0; i < 9000; i++) /* more than two batches */
        buf_add(&lines, line,
                (size_t)snprintf(line, sizeof line, "{\"text\":\"document %d %.*s\"}\n", i, i * 7 % 50,
                                 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"));
    const char *files[3] = { at_tmp("m.jsonl"), at_tmp("m.txt"), at_tmp("m.jsonl") };
    put(files[0], lines.p, lines.n);
    put(files[1], "text\xFF", 5);
    files[2] = files[0];
    void *first = NULL, *data = NULL;
    size_t n_first = 0, n;
    for (int threads = 1; threads <= 4; threads++) {
        struct prepared done;
        struct err e = { 0 };
        char out[512];
        snprintf(out, sizeof out, "%s/many", test_tmp_dir());
        CHECK_INT(prepare("bytes", 3, files, out, threads, &done, &e), 0);
        CHECK_INT(done.documents, 18001);
        CHECK_INT(done.tokens, done.bytes);
        CHECK_INT(read_all(out, &e), 0);
        CHECK_INT(io_read_file(out, 1 << 26, threads == 1 ? &first : &data, threads == 1 ? &n_first : &n, &e),
                  0);
        if (threads > 1) {
            CHECK(n == n_first && !memcmp(first, data, n));
            free(data);
        }
    }
    free(first);
    buf_free(&lines);
}

TEST(a_large_text_of_bytes_is_cut_to_be_read_and_stays_one_document)
{
    /* more than two parts */
    enum { N = (9 << 20) + 5 };
    struct err e = { 0 };
    struct prepared done;
    struct tokfile *f = NULL;
    const char *files[1] = { at_tmp("large.txt") }, *out = at_tmp("large.bin");
    char *text = malloc(N);
    int32_t *ids = malloc(N * sizeof *ids);
    int64_t wrong = 0;
    for (int i = 0; i < N; i++)
        text[i] = (char)(i * 2654435761u >> 13);
    put(files[0], text, N);
    CHECK_INT(prepare("bytes", 1, files, out, 2, &done, &e), 0);
    CHECK_INT(done.documents, 1);
    CHECK_INT(tokfile_open(&f, out, &e), 0);
    CHECK_INT(tokfile_documents(f), 1);
    CHECK_INT(tokfile_document_end(f, 0), N);
    CHECK_INT(tokfile_read(f, 0, N, ids, &e), 0);
    for (int i = 0; i < N; i++)
        wrong += ids[i] != (unsigned char)text[i];
    CHECK_INT(wrong, 0);
    tokfile_close(f);
    free(ids);
    free(text);
}

TEST(every_failing_write_is_an_error_and_leaves_nothing)
{
    struct err e = { 0 };
    struct prepared done;
    static const char *const ops[] = { "open", "read", "write", "fsync", "close", "rename" };
    const char *files[1] = { at_tmp("f.txt") };
    char out[512], part[520], fault[64];
    put(files[0], "some text", 9);
    snprintf(out, sizeof out, "%s/faulty", test_tmp_dir());
    snprintf(part, sizeof part, "%s.part", out);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        /* the n-th call of the operation fails, n = 1, 2, … until all pass; the counter goes on from run to
         * run */
        int rc = -1, before = 0, n = 1;
        for (; rc < 0 && n < 100; n++) {
            snprintf(fault, sizeof fault, "%s:%d:EIO", ops[i], before + n);
            setenv("SHARDLINE_IO_FAULT", fault, 1);
            rc = prepare("bytes", 1, files, out, 1, &done, &e);
            before += n;
            CHECK(rc == 0 || (!io_exists(out) && !io_exists(part)));
        }
        CHECK(n > 2);
        unsetenv("SHARDLINE_IO_FAULT");
        CHECK_INT(rc, 0);
        CHECK_INT(read_all(out, &e), 0);
    }
}

TEST(text_that_is_not_utf8_is_named_or_replaced)
{
    struct err e = { 0 };
    struct prepared done;
    struct tokenizer *t = must_open("{'model':{'type':'BPE','vocab':{'a':0,'b':1},'merges':[]}}");
    const char *files[1] = { at_tmp("bad.txt") }, *out = at_tmp("bad.bin");
    put(files[0], "ab\na\xC3", 5);
    struct prepare p = { .files = files, .n_files = 1, .out = out, .field = "text", .n_threads = 2 };
    CHECK_INT(prepare_tokens(t, &p, &done, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "bad.txt: line 2, byte 4: not UTF-8");
    CHECK(!io_exists(out));
    p.replace_invalid = 1;
    CHECK_INT(prepare_tokens(t, &p, &done, &e), 0);
    CHECK_INT(done.tokens, 3);
    unlink(out);
    p.append_eos = 1;
    CHECK_INT(prepare_tokens(t, &p, &done, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "no eos_token");
    tokenizer_close(t);
}

/* ---- weights ---- */
static float weight_of(int64_t i) { return (float)(i / 3 % 5 - 2) * 0.25f; }

static void write_weights(const char *path, int64_t n, int n_parts)
{
    struct tokfile_writer *w = NULL;
    struct err e = { 0 };
    unlink(path);
    CHECK_INT(tokfile_create(&w, path, 300, &e), 0);
    for (int64_t i = 0; i < n; i++) {
        int32_t id = id_of(i, 300);
        float weight = weight_of(i);
        CHECK_INT(tokfile_add(w, &id, 1, &e), 0);
        CHECK_INT(tokfile_weigh(w, &weight, 1, &e), 0);
        if (i % 10 == 9 || i == n - 1)
            CHECK_INT(tokfile_end_document(w, &e), 0);
    }
    if (n_parts)
        CHECK_INT(tokfile_carry(w, "tokenizer.json", "{}", 2, &e), 0);
    CHECK_INT(tokfile_finish(w, &e), 0);
}

TEST(weights_come_back_and_every_changed_byte_of_them_is_seen)
{
    const char *path = at_tmp("weights"), *other = at_tmp("changed");
    struct err e = { 0 };
    for (int parts = 0; parts < 2; parts++) {
        struct tokfile *f = NULL;
        float got[101];
        size_t n, n_part;
        void *data;
        write_weights(path, 101, parts);
        CHECK_INT(tokfile_open(&f, path, &e), 0);
        CHECK(tokfile_is_chats(f) && tokfile_has_weights(f));
        CHECK((tokfile_part(f, "tokenizer.json", &n_part) != NULL) == parts);
        for (int64_t first = 0; first < 101; first += 7) {
            tokfile_weights(f, first, 101 - first, got);
            for (int64_t i = first; i < 101; i++)
                CHECK(got[i - first] == weight_of(i));
        }
        tokfile_close(f);

        CHECK_INT(io_read_file(path, 1 << 20, &data, &n, &e), 0);
        unsigned char *p = data;
        for (size_t i = 64 + 208; i < n; i++) {
            p[i] ^= 1u << i % 8;
            put(other, p, n);
            CHECK(read_all(other, &e) < 0 && (e.code == ERR_FORMAT || e.code == ERR_INTEGRITY));
            p[i] ^= 1u << i % 8;
        }
        for (size_t i = 0; i < n; i++) {
            put(other, p, i);
            CHECK(read_all(other, &e) < 0);
        }
        free(data);
    }
}

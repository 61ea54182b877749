/* train_data_test.c - which window is which row of which step, windows over the borders of files, ids that
 * do not fit. */
#include "tests/test.h"
#include <math.h>
#include <unistd.h>
#include "text/tokfile.h"
#include "train/data/data.h"
#include "train/data/pack.h"

static struct err e;

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int k;
    char *p = path[k = (k + 1) % 4];
    snprintf(p, sizeof *path, "%s/%s", test_tmp_dir(), name);
    return p;
}

static const char *write_file(const char *name, const void *data, size_t n)
{
    const char *p = path_of(name);
    FILE *f = fopen(p, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
    return p;
}

static int open_files(struct data **d, int n, const char **files, const char *order, int64_t T, int64_t vocab,
                      uint64_t seed)
{
    struct opt_list list = { n, files };
    *d = NULL;
    memset(&e, 0, sizeof e);
    return data_open(d, &(struct data_options){ &list, "bytes", order, NULL, T, vocab, seed }, &e);
}

static struct data *open_u16(const uint16_t *ids, size_t n, const char *order, int64_t T, uint64_t seed)
{
    const char *p = write_file("ids.u16", ids, 2 * n);
    struct data *d;
    CHECK_INT(open_files(&d, 1, &p, order, T, 1 << 16, seed), 0);
    return d;
}

TEST(shuffle_is_a_permutation_of_every_epoch_and_another_one_in_each)
{
    uint16_t ids[1000] = { 0 };
    for (int64_t T = 3; T <= 100; T += 31) {
        struct data *d = open_u16(ids, 1000, "shuffle", T, 7), *same = open_u16(ids, 1000, "shuffle", T, 7),
                    *other = open_u16(ids, 1000, "shuffle", T, 8);
        int64_t n = data_windows(d), as_before = 0, as_other = 0;
        CHECK_INT(n, 999 / T);
        CHECK_INT(data_tokens(d), 1000);
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            int seen[400] = { 0 };
            for (int64_t i = 0; i < n; i++) {
                int64_t w = data_window(d, epoch * n + i);
                CHECK(w >= 0 && w < n && !seen[w]++);
                CHECK_INT(data_window(same, epoch * n + i), w);
                as_before += epoch && data_window(d, (epoch - 1) * n + i) == w;
                as_other += data_window(other, epoch * n + i) == w;
            }
        }
        CHECK(as_before < n && as_other < 2 * n);
        data_close(d);
        data_close(same);
        data_close(other);
    }
}

TEST(stride_k_reads_window_sample_times_k_modulo_the_windows)
{
    uint16_t ids[512];
    for (int i = 0; i < 512; i++)
        ids[i] = (uint16_t)i;
    struct data *d = open_u16(ids, 512, "stride:7", 10, 0);
    int32_t in[10], out[10];
    CHECK_INT(data_windows(d), 51);
    for (int64_t k = 0; k < 200; k++) {
        int64_t w = data_window(d, k);
        CHECK_INT(w, k * 7 % 51);
        CHECK_INT(data_read(d, w, in, out, &e), 0);
        for (int i = 0; i < 10; i++)
            CHECK(in[i] == w * 10 + i && out[i] == w * 10 + i + 1);
    }
    /* no overflow */
    CHECK_INT(data_window(d, (int64_t)1 << 61), (int64_t)((unsigned __int128)7 * ((uint64_t)1 << 61) % 51));
    data_close(d);
}

TEST(windows_go_over_the_borders_of_files)
{
    uint16_t a[5] = { 0, 1, 2, 3, 4 }, b[1] = { 5 };
    uint32_t c[9] = { 6, 7, 8, 9, 10, 11, 12, 13, 14 };
    const char text[] = { 15, 16, 17, 18, 19, 20, 21 };
    char name[4][512];
    snprintf(name[0], 512, "%s", write_file("a.u16", a, sizeof a));
    snprintf(name[1], 512, "%s", write_file("b.u16", b, sizeof b));
    snprintf(name[2], 512, "%s", write_file("c.u32", c, sizeof c));
    snprintf(name[3], 512, "%s", write_file("d.txt", text, sizeof text));
    const char *files[4] = { name[0], name[1], name[2], name[3] };
    for (int64_t T = 1; T <= 21; T++) {
        struct data *d;
        int32_t in[21], out[21];
        CHECK_INT(open_files(&d, 4, files, "stride:1", T, 256, 0), 0);
        CHECK_INT(data_tokens(d), 22);
        CHECK_INT(data_windows(d), 21 / T);
        for (int64_t w = 0; w < data_windows(d); w++) {
            CHECK_INT(data_read(d, w, in, out, &e), 0);
            for (int64_t i = 0; i < T; i++)
                CHECK(in[i] == w * T + i && out[i] == w * T + i + 1);
        }
        data_close(d);
    }
}

TEST(data_that_does_not_fit_is_refused_by_name)
{
    uint16_t ids[6] = { 1, 2, 3, 300, 5, 6 };
    struct data *d;
    int32_t in[5], out[5];
    const char *p = write_file("bad.u16", ids, sizeof ids);
    CHECK_INT(open_files(&d, 1, &p, "stride:1", 5, 300, 0), 0);
    CHECK_INT(data_read(d, 0, in, out, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "bad.u16: token 300 at position 3 is outside the vocabulary of 300");
    data_close(d);
    CHECK_INT(open_files(&d, 1, &p, "stride:1", 6, 301, 0), -ERR_USAGE);
    CHECK_HAS(e.text, "the data have 6 tokens, one sequence needs 7");
    CHECK_INT(open_files(&d, 1, &p, "stride:0", 5, 301, 0), -ERR_USAGE);
    CHECK_HAS(e.text, "--data-order stride:0");
    CHECK_INT(open_files(&d, 1, &p, "random", 5, 301, 0), -ERR_USAGE);
    CHECK_HAS(e.text, "--data-order random");
    p = write_file("odd.u32", ids, 6);
    CHECK_INT(open_files(&d, 1, &p, "stride:1", 1, 301, 0), -ERR_FORMAT);
    CHECK_HAS(e.text, "odd.u32: 6 bytes are no whole number of 4-byte token ids");
    p = write_file("empty.u16", ids, 0);
    CHECK_INT(open_files(&d, 1, &p, "stride:1", 1, 301, 0), -ERR_FORMAT);
    CHECK_HAS(e.text, "empty.u16: the file is empty");
    p = write_file("text.txt", "hello", 5);
    CHECK_INT(open_files(&d, 1, &p, "stride:1", 2, 100, 0), -ERR_USAGE);
    CHECK_HAS(e.text, "text as bytes needs a vocabulary of 256");
    p = path_of("nowhere.u16");
    CHECK_INT(open_files(&d, 1, &p, "stride:1", 2, 100, 0), -ERR_FILE);
    CHECK_HAS(e.text, "nowhere.u16");
}

/* ---- mixtures ---- */
static int open_mix(struct data **d, const char *weights, int64_t T)
{
    static uint16_t ids[3][6000];
    const char *name[3] = { "a.u16", "b.u16", "c.u16" }, *p[3];
    static const size_t n[3] = { 6000, 901, 77 };
    for (int f = 0; f < 3; f++) {
        for (size_t i = 0; i < n[f]; i++)
            ids[f][i] = (uint16_t)(f * 20000 + (int)i);
        p[f] = write_file(name[f], ids[f], 2 * n[f]);
    }
    struct opt_list list = { 3, p };
    *d = NULL;
    memset(&e, 0, sizeof e);
    return data_open(d, &(struct data_options){ &list, "bytes", "shuffle", weights, T, 1 << 16, 3 }, &e);
}

TEST(every_4096_samples_hold_each_file_s_share_and_each_file_goes_through_its_own_epochs)
{
    enum { T = 10, BLOCK = 4096 };
    struct data *d;
    int32_t x[T], y[T];
    /* 7 : 2 : 1 of 4096, to the nearest */
    int64_t seen[3] = { 0 }, share[3] = { 2867, 819, 410 }, windows[3] = { 599, 90, 7 };
    static int times[3][600];
    memset(times, 0, sizeof times);
    CHECK_INT(open_mix(&d, "7,2,1", T), 0);
    CHECK_INT(data_windows(d), 599 + 90 + 7);
    for (int64_t k = 0; k < 2 * BLOCK; k++) {
        CHECK_INT(data_read(d, data_window(d, k), x, y, &e), 0);
        int f = x[0] / 20000;
        CHECK_INT(x[0] % 20000 % T, 0);
        CHECK_INT(y[T - 1], x[0] + T); /* no window reaches into the next file */
        int64_t w = x[0] % 20000 / T;
        times[f][w]++;
        seen[f]++;
        for (int i = 0; (k + 1) % BLOCK == 0 && i < 3; i++) {
            CHECK_INT(seen[i], share[i] * (k + 1) / BLOCK);
            for (w = 0; w < windows[i]; w++) /* as often as every other one */
                CHECK(times[i][w] == seen[i] / windows[i] || times[i][w] == seen[i] / windows[i] + 1);
        }
    }
    data_close(d);
}

/* Both are mapped: without the check a byte that is gone is a SIGBUS. */
TEST(a_file_that_is_cut_while_it_is_read_is_an_error)
{
    static uint16_t ids[60000];
    const char *file[] = { write_file("cut.u16", ids, sizeof ids), path_of("cut.tok") };
    int32_t row[16], targets[16];
    struct tokfile_writer *w;
    CHECK_INT(tokfile_create(&w, file[1], 1000, &e), 0);
    for (int i = 0; i < 60000; i++)
        CHECK_INT(tokfile_add(w, &(int32_t){ 0 }, 1, &e), 0);
    CHECK_INT(tokfile_finish(w, &e), 0);
    for (int i = 0; i < 2; i++) {
        struct data *d;
        CHECK_INT(open_files(&d, 1, &file[i], "stride:1", 16, 1000, 0), 0);
        CHECK_INT(data_read(d, 0, row, targets, &e), 0);
        CHECK(truncate(file[i], 4096) == 0);
        CHECK_INT(data_read(d, data_windows(d) - 1, row, targets, &e), -ERR_INTEGRITY);
        CHECK_HAS(e.text, "was cut from");
        data_close(d);
    }
}

TEST(weights_that_are_none_are_refused)
{
    static const struct {
        const char *mix, *say;
    } bad[] = {
        { "7,2", "for each of the 3 files" },
        { "7,2,1,1", "for each of the 3 files" },
        { "7,2,0", "above 0" },
        { "7,2,-1", "above 0" },
        { "7,2,x", "above 0" },
        { "", "above 0" },
        { "7,nan,1", "above 0" },
        { "1e6,1,1", "less than one sample" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct data *d;
        CHECK_INT(open_mix(&d, bad[i].mix, 10), -ERR_USAGE);
        CHECK_HAS(e.text, bad[i].say);
    }
    struct data *d;
    CHECK_INT(open_mix(&d, "1,1,1", 100), -ERR_USAGE);
    CHECK_HAS(e.text, "c.u16: its 77 tokens are less than one sequence");
}

/* ---- documents ---- */
TEST(where_documents_begin_is_where_the_one_before_ended_and_at_the_borders_of_files)
{
    enum { N = 400, T = 37, MOST = 40 };
    static const int length[] = { 5, 70, 1, 1, 1, 0, 37, 36, 38, 100, 3, 60 };
    char first[N + 200] = { 0 }; /* 1: a document begins here, seen naively */
    const char *path = path_of("docs.tok"), *more = path_of("more.u16"), *both[2] = { path, more };
    struct tokfile_writer *w;
    uint16_t ids[180] = { 0 };
    int64_t n = 0, begin[MOST];
    unlink(path);
    CHECK_INT(tokfile_create(&w, path, 1000, &e), 0);
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        first[n] = 1;
        for (int k = 0; k < length[i]; k++, n++)
            CHECK_INT(tokfile_add(w, &(int32_t){ (int32_t)n }, 1, &e), 0);
        CHECK_INT(tokfile_end_document(w, &e), 0);
    }
    CHECK_INT(tokfile_finish(w, &e), 0);
    first[n] = 1;
    write_file("more.u16", ids, sizeof ids);
    struct data *d;
    CHECK_INT(open_files(&d, 2, both, "stride:1", T, 1000, 0), 0);
    CHECK_INT(data_knows_documents(d), 1);
    for (int64_t k = 0; k < data_windows(d); k++) {
        int want = 0, got = data_documents(d, k, begin, MOST, &e);
        for (int64_t i = 0; i < T; i++)
            if (i == 0 || (k * T + i <= n && first[k * T + i]))
                CHECK(want < got && begin[want++] == i);
        CHECK_INT(got, want);
    }
    CHECK_INT(data_documents(d, 2, begin, 3, &e), -ERR_USAGE); /* tokens 74 .. 110: four */
    CHECK_HAS(e.text, "docs.tok has more than 3 documents: raise --documents");
    data_close(d);
    struct data *raw = open_u16(ids, 180, "stride:1", T, 0);
    CHECK_INT(data_knows_documents(raw), 0);
    CHECK_INT(data_documents(raw, 1, begin, 1, &e), 1);
    data_close(raw);
}

/* NAME.bin and NAME.idx with ids 0 .. 11 as int32, in documents of 5 and 7. */
static const char *write_pair(void)
{
    static const int32_t length[2] = { 5, 7 };
    static const int64_t head[] = { 2, 3 }, first[] = { 0, 20 }, document[] = { 0, 1, 2 };
    const struct {
        const void *p;
        size_t n;
    } parts[] = { { "MMIDIDX\0", 9 },        { "\1\0\0\0\0\0\0\0\4", 9 }, { head, sizeof head },
                  { length, sizeof length }, { first, sizeof first },     { document, sizeof document } };
    int32_t ids[12];
    char index[128];
    size_t n = 0;
    for (int i = 0; i < 12; i++)
        ids[i] = i;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        memcpy(index + n, parts[i].p, parts[i].n);
        n += parts[i].n;
    }
    write_file("pair.idx", index, n);
    return write_file("pair.bin", ids, sizeof ids);
}

TEST(a_pair_of_megatron_gives_its_ids_and_documents)
{
    const char *path = write_pair();
    struct data *d;
    int32_t ids[4], targets[4];
    int64_t begin[4];
    CHECK_INT(open_files(&d, 1, &path, "stride:1", 4, 12, 0), 0);
    CHECK_INT(data_tokens(d), 12);
    CHECK_INT(data_knows_documents(d), 1);
    CHECK_INT(data_read(d, 1, ids, targets, &e), 0);
    for (int i = 0; i < 4; i++)
        CHECK(ids[i] == 4 + i && targets[i] == 5 + i);
    CHECK_INT(data_documents(d, 1, begin, 4, &e), 2);
    CHECK(begin[0] == 0 && begin[1] == 1);
    data_close(d);
    CHECK_INT(open_files(&d, 1, &path, "stride:1", 4, 7, 0), 0);
    CHECK_INT(data_read(d, 1, ids, targets, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "token 7 at position 7 is outside the vocabulary of 7");
    data_close(d);
}

/* ---- weights, conversations ---- */
TEST(weights_lie_beside_the_targets)
{
    uint16_t ids[33];
    float weights[33], got[8];
    for (int i = 0; i < 33; i++) {
        ids[i] = (uint16_t)i;
        weights[i] = i % 5 ? (float)(i - 16) : 0;
    }
    struct data *d = NULL;
    const char *file = write_file("w.u16", ids, sizeof ids),
               *path = write_file("w.f32", weights, sizeof weights);
    struct opt_list list = { 1, &file }, with = { 1, &path };
    struct data_options o = {
        .files = &list, .tokenizer = "bytes", .order = "stride:1", .seq_len = 8, .vocab = 99, .weights = &with
    };
    CHECK_INT(data_open(&d, &o, &e), 0);
    CHECK_INT(data_weighted(d), 1);
    for (int64_t w = 0; w < 4; w++) {
        CHECK_INT(data_targets(d, w), 8);
        CHECK_INT(data_weights(d, w, got, &e), 0);
        for (int i = 0; i < 8; i++)
            CHECK(got[i] == weights[w * 8 + i + 1]);
    }
    data_close(d);
    weights[20] = INFINITY;
    path = write_file("w.f32", weights, sizeof weights);
    CHECK_INT(data_open(&d, &o, &e), 0);
    CHECK_INT(data_weights(d, 1, got, &e), 0);
    CHECK_INT(data_weights(d, 2, got, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "the weight of token 20 is inf");
    data_close(d);
}

/* Conversations of 1 to 23 tokens, whose tokens are all different from their neighbours'; weights
 * likewise. */
enum { TALKS = 70 };
static int talk_length(int i) { return 1 + i * 7 % 23; }
static int talk_id(int i, int k) { return 1 + (i * 31 + k * 5) % 250; }
static float talk_weight(int i, int k) { return k ? (float)((i * 23 + k) % 17 - 8) : 0; }

static const char *write_talks(void)
{
    static char text[1 << 16];
    size_t at = 0;
    for (int i = 0; i < TALKS; i++) {
        at += (size_t)sprintf(text + at, "{\"ids\":[");
        for (int k = 0; k < talk_length(i); k++)
            at += (size_t)sprintf(text + at, k ? ",%d" : "%d", talk_id(i, k));
        at += (size_t)sprintf(text + at, "],\"weights\":[");
        for (int k = 0; k < talk_length(i); k++)
            at += (size_t)sprintf(text + at, k ? ",%g" : "%g", (double)talk_weight(i, k));
        at += (size_t)sprintf(text + at, "]}\n");
    }
    return write_file("talks.jsonl", text, at);
}

/* Which conversation begins with these tokens at its first: -1: none that is not seen yet. */
static int talk_at(const int32_t *x, int64_t left, const int *seen)
{
    for (int i = 0; i < TALKS; i++) {
        int k = 0, n = talk_length(i) < left ? talk_length(i) : (int)left;
        while (k < n && x[k] == talk_id(i, k))
            k++;
        if (k == n && !seen[i] && (n == talk_length(i) || n == left))
            return i;
    }
    return -1;
}

TEST(windows_of_conversations_hold_whole_ones_with_their_weights)
{
    const char *file = write_talks();
    struct opt_list list = { 1, &file };
    for (int most = 0; most <= 5; most++)
        for (int64_t T = 9; T <= 40; T += 10) {
            struct data *d = NULL;
            int seen[TALKS] = { 0 }, last_first = -1;
            CHECK_INT(data_open(&d,
                                &(struct data_options){ .files = &list,
                                                        .tokenizer = "bytes",
                                                        .order = "stride:1",
                                                        .seq_len = T,
                                                        .vocab = 256,
                                                        .documents = most },
                                &e),
                      0);
            for (int64_t w = 0; w < data_windows(d); w++) {
                int32_t ids[41], targets[40];
                float weights[40];
                int64_t begin[8] = { 0 }, n = data_targets(d, w);
                CHECK_INT(data_read(d, w, ids, targets, &e), 0);
                CHECK_INT(data_weights(d, w, weights, &e), 0);
                int docs = data_documents(d, w, begin, most > 1 ? most : 1, &e);
                ids[T] = targets[T - 1];
                for (int64_t i = 0; i < T; i++)
                    CHECK_INT(targets[i], ids[i + 1]);
                for (int64_t i = n; i < T; i++)
                    CHECK(targets[i] == 0 && weights[i] == 0);
                int64_t at = 0;
                int found = 0;
                while (at <= n) {
                    int i = talk_at(ids + at, T + 1 - at, seen);
                    CHECK(i >= 0);
                    if (i < 0)
                        break;
                    seen[i] = 1;
                    if (!found)
                        CHECK(i > last_first);
                    last_first = found ? last_first : i;
                    if (at < T)
                        CHECK_INT(begin[found], at);
                    found += at < T;
                    for (int k = 0; k < talk_length(i) && at <= T; k++, at++)
                        if (at)
                            CHECK(weights[at - 1] == talk_weight(i, k));
                }
                CHECK_INT(found, docs);
            }
            for (int i = 0; i < TALKS; i++)
                CHECK(seen[i]);
            if (most < 2)
                CHECK_INT(data_windows(d), TALKS);
            data_close(d);
        }
}

TEST(what_conversations_are_is_counted_and_other_lines_are_named)
{
    const char *file = write_talks(), *other = write_file("texts.jsonl", "{\"text\":\"abcdefgh\"}\n", 20);
    struct data *d;
    int64_t weighted = 0, n = 0;
    for (int i = 0; i < TALKS; i++)
        for (int k = 0; k < talk_length(i); k++, n++)
            weighted += k && talk_weight(i, k) != 0;
    CHECK_INT(open_files(&d, 1, &file, "stride:1", 100, 256, 0), 0);
    struct data_packed x = data_packed(d);
    CHECK_INT(x.conversations, TALKS);
    CHECK_INT(x.tokens, n);
    CHECK_INT(x.weighted, weighted);
    CHECK(!x.plain_lines);
    data_close(d);

    CHECK_INT(open_files(&d, 1, &other, "stride:1", 4, 256, 0), 0);
    x = data_packed(d);
    CHECK_INT(x.conversations, 0);
    CHECK_STR(x.plain_lines, other);
    data_close(d);
}

TEST(packing_is_close_to_the_fewest_rows)
{
    enum { N = 4000, ROOM = 1025 };
    static int64_t end[N];
    int64_t at = 0, tokens = 0;
    for (int i = 0; i < N; i++) {
        int64_t n = i % 200 ? 1 + (int64_t)i * 7919 % 600 : 1400;
        end[i] = at += n;
        tokens += n < ROOM ? n : ROOM;
    }
    struct pack p;
    CHECK_INT(pack_make(&p, end, N, ROOM, 64, &e), 0);
    CHECK(p.n_rows >= (tokens + ROOM - 1) / ROOM && p.n_rows < tokens / ROOM * 101 / 100 + 2);
    int64_t cut = 0, docs = 0;
    for (int64_t r = 0; r < p.n_rows; r++) {
        int64_t sum = 0;
        for (int64_t k = p.first[r]; k < p.first[r + 1]; k++, docs++) {
            int64_t i = p.doc[k], n = end[i] - (i ? end[i - 1] : 0);
            sum += n < ROOM ? n : ROOM;
            cut += n > ROOM;
            CHECK(k == p.first[r] || i > p.doc[k - 1]);
        }
        CHECK(sum <= ROOM && p.first[r + 1] > p.first[r]);
        CHECK(!r || p.doc[p.first[r]] > p.doc[p.first[r - 1]]);
    }
    CHECK_INT(docs, N);
    CHECK_INT(cut, p.n_cut);
    pack_free(&p);
}

/* format_fuzz_test.c - mutations of good files, the same in every run: the readers of files of other
 * frameworks must end, without a bad read (run it under the sanitizer), whatever a file holds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/unit/format/foreign_fuzz.h"
#include "tests/unit/format/foreign_help.h"

static uint64_t state;
static uint64_t next(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* One to four changes: a bit, a byte, a number with a meaning, a part repeated or removed. */
static size_t mutate(uint8_t *p, size_t n, size_t room)
{
    static const uint64_t numbers[] = { 0,         1,          0x7f,       0x80,       0xff,
                                        0x7fff,    0xffff,     0x7fffffff, 0x80000000, 0xffffffff,
                                        INT64_MAX, 1ull << 63, UINT64_MAX };
    int changes = 1 + (int)(next() % 4);
    while (changes-- && n > 16) {
        size_t at = next() % n, len = 1 + next() % 16, width = (size_t)1 << next() % 4;
        uint64_t v = numbers[next() % 13];
        switch (next() % 6) {
        case 0: p[at] ^= (uint8_t)(1u << next() % 8); break;
        case 1: p[at] = (uint8_t)next(); break;
        case 2: memcpy(p + at, &v, at + width <= n ? width : n - at); break;
        case 3:
            len = at + len <= n ? len : n - at;
            memmove(p + at, p + at + len, n - at - len);
            n -= len;
            break;
        case 4:
            if (n + len <= room && at + len <= n) {
                memmove(p + at + len, p + at, n - at);
                n += len;
            }
            break;
        default: n = at + 1; break;
        }
    }
    return n;
}

static void loop(const uint8_t *good, size_t n, int times, void (*run)(const uint8_t *, size_t))
{
    uint8_t *p = malloc(n + 64);
    state = 42;
    run(good, n);
    for (int i = 0; i < times; i++) {
        memcpy(p, good, n);
        run(p, mutate(p, n, n + 64));
    }
    free(p);
}

/* A state_dict as torch pickles it. */
static const uint8_t sample[] = "\x80\x02"
                                "ccollections\nOrderedDict\nq\x00)Rq\x01(X\x01\x00\x00\x00wq\x02"
                                "ctorch._utils\n_rebuild_tensor_v2\nq\x03((X\x07\x00\x00\x00storageq\x04"
                                "ctorch\nFloatStorage\nq\x05X\x01\x00\x00\x00"
                                "0q\x06X\x03\x00\x00\x00"
                                "cpuq\x07K\x10tq\x08QK\x00K\x04K\x04\x86q\tK\x04K\x01\x86q\n\x89h\x00)"
                                "Rq\x0btq\x0cRq\rX\x01\x00\x00\x00nq\x0e"
                                "}q\x0f(K\x01]q\x10(K\x02\x8a\x03\x01\x02\x03"
                                "eX\x01\x00\x00\x00sc__builtin__\nset\n]q\x11K\x05"
                                "a\x85Rq\x12uu.";

TEST(mutated_pickles_end) { loop(sample, sizeof sample - 1, 60000, fuzz_pickle); }

static void over_file(const char *name, int times, void (*run)(const uint8_t *, size_t))
{
    char path[1400];
    void *data;
    size_t n;
    struct err e;
    if (!foreign_path(name, path))
        return;
    if (io_read_file(path, (size_t)1 << 26, &data, &n, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return;
    }
    loop(data, n, times, run);
    free(data);
}

TEST(mutated_torch_files_end) { over_file("plain/zoo.pt", 4000, fuzz_torch); }
TEST(mutated_nested_files_end) { over_file("plain/nested_proto5.pt", 6000, fuzz_torch); }
TEST(mutated_streams_end) { over_file("plain/zoo_legacy.pt", 3000, fuzz_torch); }
TEST(mutated_dcp_metadata_as_pickles_end) { over_file("dcp_fsdp2_w2_fp32/ckpt/.metadata", 300, fuzz_pickle); }

/* Opens a folder with one mutated file and reads all of it. */
static struct {
    char dir[1024], file[1200];
} folder;

static void open_folder(const uint8_t *data, size_t n)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    FILE *f = fopen(folder.file, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n);
    fclose(f);
    if (ckpt_open(&c, folder.dir, NULL, &e) >= 0)
        ckpt_verify(c, 0, &e);
    ckpt_close(c);
}

static void over_folder(const char *name, const char *file, int times)
{
    char from[1024], original[400];
    if (!foreign_path(name, from))
        return;
    snprintf(folder.dir, sizeof folder.dir, "%s/fuzz", test_tmp_dir());
    snprintf(folder.file, sizeof folder.file, "%s/fuzz/%s", test_tmp_dir(), file);
    snprintf(original, sizeof original, "%s/%s", name, file);
    shell("rm -rf '%s' && cp -rL '%s' '%s' && chmod -R u+w '%s'", folder.dir, from, folder.dir, folder.dir);
    over_file(original, times, open_folder);
}

TEST(mutated_dcp_metadata_end) { over_folder("dcp_tp2_fsdp2_fp32/ckpt", ".metadata", 120); }
TEST(mutated_model_states_end)
{
    over_folder("ds_zero3_w2_bf16/ckpt/global_step4", "zero_pp_rank_0_mp_rank_00_model_states.pt", 400);
}
TEST(mutated_optimizer_states_end)
{
    over_folder("ds_zero3_w2_bf16/ckpt/global_step4", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 200);
}
TEST(mutated_megatron_metadata_end)
{
    over_folder("mcore_dist_tp2_dp2_bf16_dpresh/ckpt/iter_0000010", ".metadata", 150);
}
TEST(mutated_megatron_options_end)
{
    over_folder("mcore_dist_tp2_dp2_bf16_dpresh/ckpt/iter_0000010", "common.pt", 400);
}
TEST(mutated_sharding_info_ends)
{
    over_folder("dcp_hf_sharded_fsdp2_w2/hf_sharded", "shard-00001-model-00001-of-00001.safetensors", 300);
}

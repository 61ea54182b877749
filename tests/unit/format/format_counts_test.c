/* format_counts_test.c - counts of experts in the state of a native checkpoint: they come back, the state's
 * digest covers them, and a checkpoint without them keeps its bytes. */
#include "base/jx.h"
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

#define LAYERS 3
#define EXPERTS 4
static const int64_t counts[LAYERS * EXPERTS] = { 0, 0, 0, 0, 12, 7, 1, 281474976710655, 5, 5, 5, 5 };

static const char *place(const char *name, char out[512])
{
    struct err e;
    in_tmp(test_tmp_dir(), name, out);
    CHECK_INT(io_remove_tree(out, &e), 0);
    return out;
}

static struct ckpt_digests make(const char *dst, const int64_t *count)
{
    struct ckpt_meta meta = make_meta(1);
    const struct make how = { small_specs(), N_SPECS, 1, 1000, 0 };
    struct ckpt_digests got = { 0 };
    struct err e = { 0 };
    meta.state.counts = (struct ckpt_counts){ LAYERS, EXPERTS, count };
    CHECK_INT(make_ckpt_of(dst, &how, &meta, &got, &e), 0);
    return got;
}

static json_t *manifest_of(const char *dst)
{
    char path[600];
    struct err e = { 0 };
    void *text = NULL;
    size_t n = 0;
    json_t *m = NULL;
    snprintf(path, sizeof path, "%s/manifest.json", dst);
    if (io_read_file(path, 1 << 24, &text, &n, &e) == 0 && manifest_check(text, n, path, &e) == 0)
        m = jx_parse(text, n, path, &e);
    CHECK(m != NULL);
    free(text);
    return m;
}

static void write_manifest(const char *dst, json_t *m)
{
    char path[600];
    struct err e = { 0 };
    size_t n = 0;
    json_object_del(m, "manifest_checksum");
    char *text = manifest_text(m, NULL, 0, &n, &e);
    snprintf(path, sizeof path, "%s/manifest.json", dst);
    CHECK_INT(io_unlink(path, &e), 0);
    CHECK_INT(io_write_file(path, text, n, &e), 0);
    free(text);
}

TEST(counts_of_experts_come_back)
{
    struct ckpt *c = NULL;
    struct err e = { 0 };
    char dst[512];
    make(place("counts", dst), counts);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    const struct ckpt_counts want = { LAYERS, EXPERTS, counts };
    CHECK(ckpt_counts_same(&ckpt_state(c)->counts, &want));
    CHECK_INT(ckpt_verify(c, 0, &e), 0);
    ckpt_close(c);
}

TEST(the_digest_of_the_state_covers_every_count_and_that_of_the_weights_none)
{
    char dst[512];
    struct ckpt_digests none = make(place("none", dst), NULL), all = make(place("all", dst), counts);
    CHECK(memcmp(&none.state, &all.state, sizeof none.state) != 0);
    CHECK_SAME(&none.weights, &all.weights, sizeof none.weights);

    for (int i = 0; i < LAYERS * EXPERTS; i++) {
        int64_t other[LAYERS * EXPERTS];
        memcpy(other, counts, sizeof counts);
        other[i] = other[i] ? other[i] - 1 : 1;
        struct ckpt_digests d = make(place("other", dst), other);
        CHECK(memcmp(&d.state, &all.state, sizeof d.state) != 0);
    }
}

TEST(a_checkpoint_without_counts_names_no_feature_and_has_no_member)
{
    char dst[512];
    make(place("without", dst), NULL);
    json_t *m = manifest_of(dst);
    CHECK_INT((int)json_array_size(json_object_get(m, "must_understand")), 0);
    CHECK(!json_object_get(json_object_get(m, "state"), MANIFEST_COUNTS));
    json_decref(m);

    make(place("with", dst), counts);
    m = manifest_of(dst);
    CHECK_STR(json_string_value(json_array_get(json_object_get(m, "must_understand"), 0)), MANIFEST_COUNTS);
    json_decref(m);
}

TEST(counts_that_are_none_are_refused)
{
    static const struct {
        const char *list, *says;
    } wrong[] = {
        { "[]", "0 layers" },
        { "{}", "0 layers" },
        { "[[],[]]", "2 layers of 0 experts" },
        { "[[1,2],[3]]", "layer 1" },
        { "[[1,2],[3,4,5]]", "layer 1" },
        { "[[1,2],7]", "layer 1" },
        { "[[1,-2]]", "layer 0" },
        { "[[1,2.5]]", "layer 0" },
        { "[[1,\"2\"]]", "layer 0" },
        { "[[1,281474976710656]]", "2^48" },
        { "[[1,2]]", "state_digest" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char dst[512];
        struct err e = { 0 };
        struct ckpt *c = NULL;
        make(place("wrong", dst), counts);
        json_t *m = manifest_of(dst);
        json_object_set_new(json_object_get(m, "state"), MANIFEST_COUNTS, json_loads(wrong[i].list, 0, NULL));
        write_manifest(dst, m);
        json_decref(m);
        if (ckpt_open(&c, dst, NULL, &e) >= 0)
            test_fail(__FILE__, __LINE__, "%s was taken", wrong[i].list);
        ckpt_close(c);
        CHECK_HAS(e.text, wrong[i].says);
    }
}

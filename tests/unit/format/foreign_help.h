/* foreign_help.h - checkpoints of other frameworks compared with the full state that the program that wrote
 * them kept: bit for bit, whole and by box. */
#ifndef SHARDLINE_TESTS_UNIT_FORMAT_FOREIGN_HELP_H
#define SHARDLINE_TESTS_UNIT_FORMAT_FOREIGN_HELP_H

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/io.h"
#include "format/ckpt.h"
#include "format/ckpt_proof.h"
#include "store/sha256.h"
#include "tests/test.h"

/* FIXTURES/foreign/name, or NULL after a skip. */
static inline const char *foreign_path(const char *name, char out[1024])
{
    const char *dir = test_fixture_dir();
    if (!dir) {
        test_skip("FIXTURES is not set");
        return NULL;
    }
    if (snprintf(out, 1024, "%s/foreign/%s", dir, name) >= 1024 || !io_exists(out)) {
        test_skip("%s is not there", out);
        return NULL;
    }
    return out;
}

/* exp_avg.NAME -> role and NAME */
static inline enum ckpt_role split_role(const char **name)
{
    for (int r = ROLE_COUNT - 1; r > 0; r--)
        if (!strncmp(*name, ckpt_role_prefix[r], strlen(ckpt_role_prefix[r]))) {
            *name += strlen(ckpt_role_prefix[r]);
            return (enum ckpt_role)r;
        }
    return ROLE_WEIGHT;
}

static inline float bf16_to_float(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Box b of tensor i as floats. */
static inline int read_floats(struct ckpt *c, int i, const struct box *b, float *out)
{
    struct err e = { 0 };
    int64_t n = box_count(b);
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    uint16_t *narrow = malloc((size_t)n * 2 + 2);
    int rc = t->dtype == STORED_F32    ? ckpt_read(c, i, b, out, &e)
             : t->dtype == STORED_BF16 ? ckpt_read(c, i, b, narrow, &e)
                                       : -1;
    for (int64_t k = 0; t->dtype == STORED_BF16 && rc >= 0 && k < n; k++)
        out[k] = bf16_to_float(narrow[k]);
    free(narrow);
    if (rc < 0)
        test_fail(__FILE__, __LINE__, "%s: %s", t->name, e.text);
    return rc;
}

/* The same box of both, bit for bit. */
static inline int same_box(struct ckpt *a, int i, struct ckpt *b, int j, const struct box *box)
{
    size_t n = (size_t)box_count(box);
    float *x = malloc(n * 4 + 4), *y = malloc(n * 4 + 4);
    int same = read_floats(a, i, box, x) >= 0 && read_floats(b, j, box, y) >= 0 && !memcmp(x, y, n * 4);
    if (!same)
        test_fail(__FILE__, __LINE__, "%s: box from [%lld,%lld] of [%lld,%lld] differs",
                  ckpt_tensor(a, i)->name, (long long)box->start[0], (long long)box->start[1],
                  (long long)box->extent[0], (long long)box->extent[1]);
    free(x);
    free(y);
    return same;
}

/* Whole, and cut as tp 2, 3 and 8 cut it, along every dim. */
static inline int same_tensor(struct ckpt *a, int i, struct ckpt *b, int j)
{
    const struct ckpt_tensor *t = ckpt_tensor(a, i), *u = ckpt_tensor(b, j);
    struct box whole = box_whole(t->n_dims, t->shape);
    if (t->n_dims != u->n_dims || memcmp(t->shape, u->shape, sizeof *t->shape * (size_t)t->n_dims)) {
        test_fail(__FILE__, __LINE__, "%s: shapes differ", t->name);
        return 0;
    }
    if (!same_box(a, i, b, j, &whole))
        return 0;
    for (int d = 0; d < t->n_dims; d++)
        for (int tp = 2; tp <= 8; tp += tp == 2 ? 1 : 5)
            for (int r = 0; r < tp; r++) {
                struct box part = whole;
                part.start[d] = t->shape[d] * r / tp;
                part.extent[d] = t->shape[d] * (r + 1) / tp - part.start[d];
                if (!same_box(a, i, b, j, &part))
                    return 0;
            }
    return 1;
}

/* Every tensor of the reference is there with its bits (masters where the weights are narrower), nothing
 * else is, and the step. */
static inline void same_as_reference(const char *path, const char *ref_path, int64_t step, int has_moments)
{
    struct err e = { 0 };
    struct ckpt *c = NULL, *ref = NULL;
    int n = 0, masters = 0;
    if (ckpt_open(&c, path, NULL, &e) < 0 || ckpt_open(&ref, ref_path, NULL, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        ckpt_close(c);
        return;
    }
    for (int j = 0; j < ckpt_n_tensors(ref); j++) {
        const char *name = ckpt_tensor(ref, j)->name;
        if (!strncmp(name, "step.", 5) || !strncmp(name, "vocab_pad.", 10))
            continue;
        enum ckpt_role role = split_role(&name);
        if (role != ROLE_WEIGHT && !has_moments)
            continue;
        int i = ckpt_find(c, role, name), master = role == ROLE_WEIGHT ? ckpt_find(c, ROLE_MASTER, name) : -1;
        masters += master >= 0;
        i = master >= 0 ? master : i;
        n++;
        if (i < 0)
            test_fail(__FILE__, __LINE__, "%s: %s%s is missing", path, ckpt_role_prefix[role], name);
        else if (!same_tensor(c, i, ref, j))
            break;
    }
    /* besides the reference: the narrow weights of masters, and the tied head, which the reference has
     * once */
    int head = ckpt_find(c, ROLE_WEIGHT, "lm_head.weight") >= 0 &&
               ckpt_find(ref, ROLE_WEIGHT, "lm_head.weight") < 0;
    CHECK_INT(ckpt_n_tensors(c), n + masters + head);
    CHECK_INT(ckpt_state(c)->has_state, has_moments);
    CHECK_INT(ckpt_state(c)->step, has_moments ? step : 0);
    ckpt_close(c);
    ckpt_close(ref);
}

/* bf16 weights beside masters are the masters, rounded to nearest even. */
static inline void weights_are_rounded_masters(const char *path)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (ckpt_open(&c, path, NULL, &e) < 0) {
        test_fail(__FILE__, __LINE__, "%s", e.text);
        return;
    }
    int n = 0;
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        int m = t->role == ROLE_WEIGHT ? ckpt_find(c, ROLE_MASTER, t->name) : -1;
        if (m < 0)
            continue;
        struct box b = box_whole(t->n_dims, t->shape);
        int64_t count = box_count(&b), bad = 0;
        uint16_t *w = malloc((size_t)count * 2);
        uint32_t *v = malloc((size_t)count * 4);
        CHECK_INT(t->dtype, STORED_BF16);
        CHECK(ckpt_read(c, i, &b, w, &e) >= 0 && ckpt_read(c, m, &b, v, &e) >= 0);
        for (int64_t k = 0; k < count; k++)
            bad += w[k] != (uint16_t)((v[k] + 0x7fff + (v[k] >> 16 & 1)) >> 16);
        CHECK_INT(bad, 0);
        n++;
        free(w);
        free(v);
    }
    CHECK(n > 30);
    ckpt_close(c);
}

/* ---- folders with an error: a base with files removed, copied, cut, replaced ---- */

__attribute__((format(printf, 1, 2))) static inline void shell(const char *fmt, ...)
{
    char cmd[8192];
    va_list a;
    va_start(a, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, a);
    va_end(a);
    if (system(cmd) != 0)
        test_fail(__FILE__, __LINE__, "%s failed", cmd);
}

static inline void make_bad(const char *name, const char *to)
{
    char path[1024], a[2048], b[2048];
    json_error_t je;
    size_t i;
    json_t *v, *r;
    const char *key;
    snprintf(path, sizeof path, "%s/foreign/bad/%s/recipe.json", test_fixture_dir(), name);
    if (!(r = json_load_file(path, 0, &je))) {
        test_fail(__FILE__, __LINE__, "%s: %s", path, je.text);
        return;
    }
    snprintf(a, sizeof a, "%s/foreign/%s", test_fixture_dir(), json_string_value(json_object_get(r, "base")));
    shell("rm -rf '%s' && cp -rL '%s' '%s' && chmod -R u+w '%s'", to, a, to, to);
    json_array_foreach(json_object_get(r, "delete"), i, v) {
        snprintf(a, sizeof a, "%s/%s", to, json_string_value(v));
        CHECK(unlink(a) == 0);
    }
    json_object_foreach(json_object_get(r, "copy"), key, v) {
        snprintf(a, sizeof a, "%s/%s", to, json_string_value(v));
        snprintf(b, sizeof b, "%s/%s", to, key);
        shell("cp -f '%s' '%s'", a, b);
    }
    json_object_foreach(json_object_get(r, "truncate"), key, v) {
        snprintf(a, sizeof a, "%s/%s", to, key);
        CHECK(truncate(a, (off_t)json_integer_value(v)) == 0);
    }
    if (json_is_string(json_object_get(r, "overlay"))) {
        snprintf(a, sizeof a, "%s/foreign/bad/%s/%s", test_fixture_dir(), name,
                 json_string_value(json_object_get(r, "overlay")));
        shell("cp -rf '%s/.' '%s'", a, to);
    }
    json_decref(r);
}

/* Opening or reading all of it fails with a message that contains `part`. sub: folder inside that is
 * opened. */
static inline void is_refused(const char *name, const char *sub, const char *part)
{
    char to[1024], path[2048];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    snprintf(to, sizeof to, "%s/bad", test_tmp_dir());
    make_bad(name, to);
    snprintf(path, sizeof path, "%s/%s", to, sub);
    int rc = ckpt_open(&c, path, NULL, &e);
    if (rc >= 0)
        rc = ckpt_verify(c, 0, &e);
    if (rc >= 0)
        test_fail(__FILE__, __LINE__, "%s was read", name);
    else if (!strstr(e.text, part))
        test_fail(__FILE__, __LINE__, "%s: \"%s\" does not contain \"%s\"", name, e.text, part);
    ckpt_close(c);
}

/* a folder of FIXTURES/foreign/bad, and a part of the message that refuses it */
struct bad_folder {
    const char *name, *part;
};

static inline void are_refused(const struct bad_folder *bad, size_t n)
{
    char dir[1024];
    if (!foreign_path("bad", dir))
        return;
    for (size_t i = 0; i < n; i++)
        is_refused(bad[i].name, "ckpt", bad[i].part);
}

/* A copy of FIXTURES/foreign/name without what `lost` names in it does not open, and says `part`. */
static inline void loss_is_noticed(const char *name, const char *lost, const char *part)
{
    char dir[1024], to[1024];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (!foreign_path(name, dir))
        return;
    snprintf(to, sizeof to, "%s/gap", test_tmp_dir());
    shell("rm -rf '%s' && cp -rL '%s' '%s' && chmod -R u+w '%s' && rm -r '%s'/%s", to, dir, to, to, to, lost);
    CHECK(ckpt_open(&c, to, NULL, &e) < 0);
    CHECK_HAS(e.text, part);
    ckpt_close(c);
}

/* For references that are hashes only. */
static inline void sha256_text(const void *data, size_t n, char out[65])
{
    unsigned char sum[32];
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, data, n);
    sha256_end(&h, sum);
    sha256_hex(sum, out);
}

#endif

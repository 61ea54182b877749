/* format_damage_test.c - one random bit flipped or a file cut at a random place, a thousand times:
 * ckpt_verify names the file, and the tensor where the damage lies in one; the reads of a program that loads
 * a part (ptrain, pserve) or converts (reshard) fail too. The programs themselves:
 * tests/cli/reshard/reshard_damage.sh, bad_flips.sh. */
#include <sys/stat.h>
#include <unistd.h>
#include "base/rnd.h"
#include "format/fmt.h"
#include "format/hf/safetensors.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

#define ROUNDS 1000

static char dir[512];
static uint64_t draw(void)
{
    static uint64_t n;
    return rnd_u64(11, 2, ++n);
}

/* As make_ckpt, with files compressed. */
static int make_compressed(const char *dst, int n_ranks, int planes, struct err *e)
{
    void *table[8] = { 0 };
    size_t bytes[8] = { 0 };
    char tmp[4096];
    struct ckpt_meta meta = make_meta(n_ranks);
    int rc = ckpt_begin(dst, tmp, NULL, NULL, e);
    for (int r = 0; r < n_ranks && rc >= 0; r++) {
        struct ckpt_piece p[N_SPECS];
        struct ckpt_shard *s = NULL;
        for (int i = 0; i < N_SPECS; i++)
            p[i] = piece_of(&small_specs()[i], r, n_ranks);
        if ((rc = ckpt_shard_open(&s, tmp, r, N_SPECS, p, e)) < 0)
            break;
        for (int i = 0; i < N_SPECS && rc >= 0; i++) {
            char data[8192];
            fill_range(&p[i].t, &p[i].box, p[i].lo, p[i].hi, data);
            rc = ckpt_shard_put(s, i, data, p[i].hi - p[i].lo, e);
        }
        ckpt_shard_compress(s, planes ? CODEC_PLANES : CODEC_ZSTD, 3);
        rc = ckpt_shard_close(s, &table[r], &bytes[r], e);
    }
    if (rc >= 0)
        rc = ckpt_publish(tmp, dst, n_ranks, table, bytes, &meta, NULL, e);
    for (int r = 0; r < n_ranks; r++)
        free(table[r]);
    return rc;
}

/* ---- readers ---- */

static int verify(struct err *e)
{
    struct ckpt *c = NULL;
    int rc = ckpt_open(&c, dir, NULL, e);
    if (rc >= 0)
        rc = ckpt_verify(c, 0, e);
    ckpt_close(c);
    return rc;
}

/* As ptrain and pserve do: rank `rank` of 2 reads its rows of every tensor, then its share of the rest.
 * Damage must be found by one of the ranks. */
static int load_parts(struct err *e)
{
    int failed = 0;
    for (int rank = 0; rank < 2; rank++) {
        struct ckpt *c = NULL;
        char data[8192];
        int rc = ckpt_open(&c, dir, NULL, e);
        for (int i = 0; rc >= 0 && i < ckpt_n_tensors(c); i++) {
            const struct ckpt_tensor *t = ckpt_tensor(c, i);
            struct box b = box_whole(t->n_dims, t->shape);
            b.start[0] = t->shape[0] * rank / 2;
            b.extent[0] = t->shape[0] * (rank + 1) / 2 - b.start[0];
            rc = ckpt_read(c, i, &b, data, e);
        }
        for (int i = 0; rc >= 0 && i < ckpt_n_extra(c); i++) {
            void *text;
            size_t n;
            if ((rc = ckpt_extra_read(c, i, &text, &n, e)) >= 0)
                free(text);
        }
        if (rc >= 0)
            rc = ckpt_check_rest(c, rank, 2, e);
        ckpt_close(c);
        failed |= rc < 0;
    }
    return failed ? -1 : 0;
}

/* ---- damage ---- */

/* bit -1: the file is cut there */
struct damage {
    char path[512];
    int64_t at;
    int bit;
    void *content;
    size_t n;
};

static void damage(struct damage *d, const char *name)
{
    struct err e = { 0 };
    CHECK_INT(io_read_file(in_tmp(dir, name, d->path), 1 << 24, &d->content, &d->n, &e), 0);
    d->at = (int64_t)(draw() % d->n);
    d->bit = draw() % 4 ? (int)(draw() % 8) : -1;
    if (d->bit < 0) {
        CHECK_INT(truncate(d->path, d->at), 0);
        return;
    }
    FILE *f = fopen(d->path, "r+b");
    fseek(f, (long)d->at, SEEK_SET);
    fputc(((unsigned char *)d->content)[d->at] ^ 1 << d->bit, f);
    fclose(f);
}

static void mend(struct damage *d)
{
    FILE *f = fopen(d->path, "wb");
    CHECK(fwrite(d->content, 1, d->n, f) == d->n);
    fclose(f);
    free(d->content);
}

static int names_a_tensor(const char *text)
{
    for (int i = 0; i < N_SPECS; i++)
        if (strstr(text, small_specs()[i].t.name))
            return 1;
    return 0;
}

static void damage_all(void)
{
    char name[64][64];
    struct err e = { 0 };
    int n = list_dir(dir, name, 64);
    CHECK_INT(verify(&e), 0);
    CHECK_INT(load_parts(&e), 0);
    for (int round = 0; round < ROUNDS; round++) {
        const char *file = name[draw() % (uint64_t)n];
        struct damage d;
        damage(&d, file);
        memset(&e, 0, sizeof e);
        if (verify(&e) >= 0)
            test_fail(__FILE__, __LINE__, "%s, byte %lld, bit %d: verify finds nothing", file,
                      (long long)d.at, d.bit);
        else if (!strstr(e.text, file))
            test_fail(__FILE__, __LINE__, "%s, byte %lld, bit %d: \"%s\" does not name it", file,
                      (long long)d.at, d.bit, e.text);
        if (d.bit >= 0 && d.at >= ST_ALIGN && strstr(file, ".safetensors") && !strstr(file, FMT_ZSTD) &&
            !names_a_tensor(e.text))
            test_fail(__FILE__, __LINE__, "%s, byte %lld, bit %d: \"%s\" names no tensor", file,
                      (long long)d.at, d.bit, e.text);
        if (load_parts(&e) >= 0)
            test_fail(__FILE__, __LINE__, "%s, byte %lld, bit %d: is loaded by ranks", file, (long long)d.at,
                      d.bit);
        mend(&d);
    }
    CHECK_INT(verify(&e), 0);
}

TEST(a_thousand_flips_and_cuts_of_a_plain_checkpoint_are_found_and_named)
{
    struct err e = { 0 };
    CHECK_INT(make_ckpt(in_tmp(test_tmp_dir(), "plain", dir), small_specs(), N_SPECS, 2, 1000, 0, NULL, &e),
              0);
    damage_all();
}

TEST(a_thousand_flips_and_cuts_of_a_compressed_checkpoint_are_found_and_named)
{
    struct err e = { 0 };
    if (make_compressed(in_tmp(test_tmp_dir(), "compressed", dir), 2, 0, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    damage_all();
}

TEST(a_thousand_flips_and_cuts_of_one_in_byte_planes_are_found_and_named)
{
    struct err e = { 0 };
    if (make_compressed(in_tmp(test_tmp_dir(), "planes", dir), 2, 1, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    damage_all();
}

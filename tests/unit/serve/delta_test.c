/* delta_test.c - serve/share/delta: a delta applied to the older files gives the newer files, byte for byte.
 * A damaged delta is an error. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/io.h"
#include "serve/share/delta.h"
#include "serve/share/delta_maker.h"
#include "tests/test.h"

#define BIG ((int64_t)9 << 20) /* three blocks, the last one shorter */
#define N_FILES 3

static uint16_t *weights; /* [BIG / 2] */

/* Files of a version: a text, weights of which some have changed, one that only the newer version has. */
static void open_version(struct version *v, struct share_file *f, const char *text, int n, int changed)
{
    struct err e = { 0 };
    *v = (struct version){ .n = n, .file = f };
    for (int i = 0; i < n; i++)
        f[i] = (struct share_file){ .fd = -1 };
    snprintf(f[0].name, sizeof f[0].name, "manifest.json");
    f[0].text = strdup(text);
    f[0].bytes = (int64_t)strlen(text);
    for (int i = 1; i < n; i++) {
        snprintf(f[i].name, sizeof f[i].name, "weights-%d", i);
        f[i].width = 2;
        f[i].bytes = i == 1 ? BIG + 1 : 5;
        CHECK((f[i].fd = memfd_create("test", MFD_CLOEXEC)) >= 0);
        CHECK_INT(io_pwrite(f[i].fd, "a file", weights, (size_t)f[i].bytes, 0, &e), 0);
    }
    for (int i = 0; i < changed; i++) /* in the first block */
        CHECK_INT(io_pwrite(f[1].fd, "a file", &(char){ (char)(i * 7 + 1) }, 1, 2 * (i * 911 % 100000), &e),
                  0);
}

static void close_version(struct version *v)
{
    for (int i = 0; i < v->n; i++) {
        free(v->file[i].text);
        io_close(v->file[i].fd);
    }
}

struct made {
    int n, fd[8];
    char name[8][256];
};

static int create(void *arg, const char *name, struct err *e)
{
    (void)arg, (void)name, (void)e;
    return memfd_create("test", MFD_CLOEXEC);
}

static int done(void *arg, int fd, const char *name, struct err *e)
{
    struct made *m = arg;
    (void)e;
    snprintf(m->name[m->n], sizeof m->name[0], "%s", name);
    m->fd[m->n++] = fd;
    return 0;
}

static void drop(struct made *m)
{
    while (m->n)
        io_close(m->fd[--m->n]);
}

static void *bytes_of(const struct share_file *f)
{
    struct err e = { 0 };
    char *b = malloc((size_t)f->bytes + 1);
    CHECK(b != NULL);
    if (f->text)
        memcpy(b, f->text, (size_t)f->bytes);
    else
        CHECK_INT(io_pread(f->fd, f->name, b, (size_t)f->bytes, 0, &e), 0);
    return b;
}

static struct share_file old_files[N_FILES], new_files[N_FILES];
static struct version from, to;
static char *delta;
static int64_t n_delta;

static void begin(void)
{
    struct err e = { 0 };
    weights = malloc((size_t)BIG + 2);
    for (int64_t i = 0; i < BIG / 2 + 1; i++)
        weights[i] = (uint16_t)(i * 40503 + (i >> 7)); /* zstd finds nothing in it */
    open_version(&from, old_files, "{\"step\":1}", 2, 0);
    open_version(&to, new_files, "{\"step\":2,\"more\":1}", 3, 900);
    int fd = delta_make(&from, &to, BIG, NULL, &n_delta, &e);
    CHECK(fd >= 0);
    delta = malloc((size_t)n_delta);
    CHECK_INT(io_pread(fd, "a delta", delta, (size_t)n_delta, 0, &e), 0);
    io_close(fd);
}

static void end(void)
{
    close_version(&from);
    close_version(&to);
    free(weights);
    free(delta);
}

TEST(what_a_delta_makes_of_the_older_files_are_the_newer_ones_and_it_has_what_changed_only)
{
    struct made m = { 0 };
    struct err e = { 0 };
    begin();
    CHECK(n_delta < 20000); /* of 9 MiB: 900 elements of the first block, and 5 new bytes */
    CHECK_INT(delta_apply(&from, delta, n_delta, &(struct delta_out){ create, done, &m }, &e), 0);
    CHECK_INT(m.n, N_FILES);
    for (int i = 0; i < m.n && i < N_FILES; i++) {
        struct share_file f = { .fd = m.fd[i], .bytes = io_size(m.fd[i], "a file", &e) };
        char *want = bytes_of(&to.file[i]), *got = bytes_of(&f);
        CHECK_STR(m.name[i], to.file[i].name);
        CHECK_INT(f.bytes, to.file[i].bytes);
        CHECK_SAME(got, want, (size_t)to.file[i].bytes);
        free(got);
        free(want);
    }
    drop(&m);
    end();
}

TEST(a_delta_that_would_not_be_smaller_is_not_made)
{
    struct err e = { 0 };
    int64_t n;
    begin();
    CHECK_INT(delta_make(&from, &to, n_delta, NULL, &n, &e), -1);
    CHECK_INT(e.code, 0);
    int fd = delta_make(&from, &to, n_delta + 1, NULL, &n, &e);
    CHECK(fd >= 0);
    CHECK_INT(n, n_delta);
    io_close(fd);
    end();
}

TEST(a_few_bytes_do_not_make_a_file_that_fills_the_memory)
{
    static unsigned char few[8192]; /* blocks without a change: 4 bytes each */
    struct made m = { 0 };
    const struct delta_out out = { create, done, &m };
    struct err e = { 0 };
    const uint64_t bytes = (uint64_t)6 << 30;
    begin();
    memcpy(few, delta, 8);
    few[8] = 1; /* file */
    for (int i = 0; i < 8; i++)
        few[12 + i] = (unsigned char)(bytes >> 8 * i);
    few[20] = few[22] = 1; /* bytes of its name; of an element */
    few[24] = 'x';
    CHECK_INT(delta_apply(&from, few, sizeof few, &out, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "more than twice the bytes");
    CHECK_INT(m.n, 0);
    few[24] = '\n';
    CHECK_INT(delta_apply(&from, few, sizeof few, &out, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "without a good name");
    drop(&m);
    end();
}
TEST(a_damaged_delta_and_one_of_other_files_are_errors)
{
    struct made m = { 0 };
    const struct delta_out out = { create, done, &m };
    struct err e = { 0 };
    begin();
    for (int64_t n = 0; n < n_delta; n += n < 60 ? 1 : 1999) { /* cut */
        CHECK_INT(delta_apply(&from, delta, n, &out, &e), -ERR_FORMAT);
        drop(&m);
    }
    for (int64_t at = 0; at < 120; at++) /* every byte of heads and of the first frames */
        for (int bit = 0; bit < 8; bit += 7) {
            delta[at] = (char)(delta[at] ^ 1 << bit);
            delta_apply(&from, delta, n_delta, &out,
                        &e); /* an error, or other bytes, which are verified later */
            drop(&m);
            delta[at] = (char)(delta[at] ^ 1 << bit);
        }
    struct version none = { 0 };
    CHECK_INT(delta_apply(&none, delta, n_delta, &out, &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "which the version before does not have");
    drop(&m);
    end();
}

/* Asks until the delta has been made, or there is none. */
static enum delta_answer ask(struct delta_maker *m, struct version *older, struct version *newer,
                             struct share_file *f)
{
    enum delta_answer got;
    while ((got = delta_maker_get(m, older->step, older, newer, 0.01, f)) == DELTA_LATER)
        ;
    return got;
}

TEST(a_delta_is_made_beside_requests_which_are_told_to_come_again)
{
    struct err e = { 0 };
    struct delta_maker *m = NULL;
    struct share_file f = { .fd = -1 };
    begin();
    from.step = 1;
    to.step = 2;
    atomic_store(&from.users, 5); /* files of the test, which version_free is not to free */
    atomic_store(&to.users, 5);
    snprintf(to.etag, sizeof to.etag, "2-x");
    snprintf(from.etag, sizeof from.etag, "1-x");
    CHECK_INT(delta_maker_open(&m, &e), 0);
    CHECK_INT(delta_maker_get(m, 1, NULL, &to, 0, &f), DELTA_NONE);
    CHECK_INT(delta_maker_get(m, 1, &from, &to, 0, &f), DELTA_LATER);
    CHECK_INT(delta_maker_get(m, 2, &to, &from, 0, &f), DELTA_LATER); /* one at a time */
    CHECK_INT(ask(m, &from, &to, &f), DELTA_READY);
    char *got = malloc((size_t)f.bytes);
    CHECK_INT(f.bytes, n_delta);
    CHECK_INT(io_pread(f.fd, "a delta", got, (size_t)f.bytes, 0, &e), 0);
    CHECK_SAME(got, delta, (size_t)n_delta);
    io_close(f.fd);
    free(got);
    CHECK_INT(delta_maker_get(m, 1, NULL, &to, 0, &f), DELTA_READY); /* it is kept */
    io_close(f.fd);
    CHECK_INT(ask(m, &to, &from, &f), DELTA_READY); /* until another one is asked for */
    io_close(f.fd);
    CHECK_INT(delta_maker_get(m, 1, NULL, &to, 0, &f), DELTA_NONE);
    CHECK_INT(delta_maker_get(m, 1, &from, &to, 0, &f), DELTA_LATER);
    delta_maker_close(m); /* in the middle */
    CHECK_INT(atomic_load(&from.users), 5);
    CHECK_INT(atomic_load(&to.users), 5);
    end();
}

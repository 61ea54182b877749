/* memory_ckpt_test.c - native checkpoints in memory (mem:PID/SET): written and read by the code that writes
 * and reads folders, with the same bytes. */
#include <sys/wait.h>
#include <unistd.h>

#include "format/ckpt.h"
#include "store/memory.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

static struct keeper *keeper;

static void begin(char path[MEMORY_PATH_BYTES], const char *name)
{
    struct err e = { 0 };
    CHECK_INT(keeper_open(&keeper, NULL, &e), 0);
    snprintf(path, MEMORY_PATH_BYTES, "mem:%ld/%s", (long)getpid(), name);
}

static int write_to(const char *dst, int n_ranks, int n_tables, struct err *e)
{
    struct make m = { small_specs(), N_SPECS, n_ranks, 100, 0 };
    struct ckpt_meta meta = make_meta(n_ranks);
    void *table[4] = { 0 };
    size_t bytes[4] = { 0 };
    char tmp[4096];
    int lock, rc = ckpt_begin(dst, tmp, &lock, NULL, e);
    for (int r = 0; r < n_ranks && rc >= 0; r++)
        rc = write_rank(tmp, &m, r, &table[r], &bytes[r], e);
    if (rc >= 0)
        rc = ckpt_publish(tmp, dst, n_tables, table, bytes, &meta, NULL, e);
    for (int r = 0; r < n_ranks; r++)
        free(table[r]);
    io_close(lock);
    return rc;
}

TEST(a_checkpoint_in_memory_has_the_bytes_of_one_in_a_folder)
{
    static const char *const names[] = {
        "manifest.json",           "config.json",   "weights-00000.safetensors", "weights-00001.safetensors",
        "optim-00000.safetensors", "tokenizer.json"
    };
    char path[MEMORY_PATH_BYTES], dst[512], file[600];
    struct err e = { 0 };
    struct memory_set *m = NULL;
    struct ckpt *c = NULL;
    begin(path, "same");
    in_tmp(test_tmp_dir(), "same", dst);
    CHECK_INT(write_to(dst, 2, 2, &e), 0);
    CHECK_INT(write_to(path, 2, 2, &e), 0);

    CHECK_INT(memory_open(&m, path, &e), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *a = NULL, *b = NULL;
        size_t n_a = 0, n_b = 1;
        CHECK_INT(io_read_file(in_tmp(dst, names[i], file), 1 << 20, &a, &n_a, &e), 0);
        CHECK_INT(io_read_file(memory_file(m, names[i]), 1 << 20, &b, &n_b, &e), 0);
        CHECK_INT(n_a, n_b);
        CHECK_SAME(a, b, n_a);
        free(a);
        free(b);
    }
    memory_close(m);

    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    CHECK_STR(ckpt_driver(c), "native");
    CHECK_STR(ckpt_path(c), path);
    CHECK_INT(ckpt_n_extra(c), 2);
    CHECK_INT(memory_drop(path, &e), 0); /* an open checkpoint reads on */
    for (int i = 0; i < ckpt_n_tensors(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor(c, i);
        struct box all = box_whole(t->n_dims, t->shape);
        int64_t n = box_count(&all);
        char *got = calloc((size_t)n, 8), *want = calloc((size_t)n, 8);
        CHECK_INT(ckpt_read(c, i, &all, got, &e), 0);
        fill_range(t, &all, 0, n, want);
        CHECK_SAME(got, want, (size_t)stored_bytes(t->dtype, n));
        free(got);
        free(want);
    }
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), 0);
    ckpt_close(c);
    keeper_close(keeper);
}

TEST(a_save_that_fails_leaves_nothing_in_memory_and_a_taken_name_is_refused)
{
    char path[MEMORY_PATH_BYTES];
    struct err e = { 0 };
    struct ckpt *c = NULL;
    begin(path, "part");
    CHECK(write_to(path, 2, 1, &e) < 0); /* a rank's table is missing */
    CHECK(memory_bytes(path, "weights-00000.safetensors", &e) < 0);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), -ERR_FILE);

    CHECK_INT(write_to(path, 1, 1, &e), 0);
    CHECK_INT(write_to(path, 1, 1, &e), -ERR_FILE);
    CHECK_HAS(e.text, "is there already");
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0); /* the refused writer has not harmed it */
    ckpt_close(c);
    CHECK_INT(ckpt_remove(path, &e), 0);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), -ERR_FILE);
    keeper_close(keeper);
}

TEST(ranks_write_from_processes_of_their_own)
{
    char path[MEMORY_PATH_BYTES], tmp[4096];
    struct make m = { small_specs(), N_SPECS, 2, 100, 0 };
    struct ckpt_meta meta = make_meta(2);
    struct err e = { 0 };
    struct ckpt *c = NULL;
    void *table[2] = { 0 };
    size_t bytes[2] = { 0 };
    int fd[2], lock, status;
    begin(path, "two");
    CHECK_INT(ckpt_begin(path, tmp, &lock, NULL, &e), 0);
    CHECK_INT(pipe(fd), 0);
    pid_t p = fork();
    if (p == 0) {
        int rc = write_rank(tmp, &m, 1, &table[1], &bytes[1], &e);
        ssize_t n = rc < 0 ? -1 : write(fd[1], table[1], bytes[1]);
        /* stays until the set is whole: the keeper drops what the dead have begun */
        pause();
        _exit(n > 0);
    }
    CHECK_INT(write_rank(tmp, &m, 0, &table[0], &bytes[0], &e), 0);
    table[1] = malloc(65536);
    ssize_t n = read(fd[0], table[1], 65536);
    CHECK(n > 0);
    bytes[1] = (size_t)n;
    CHECK_INT(ckpt_publish(tmp, path, 2, table, bytes, &meta, NULL, &e), 0);
    kill(p, SIGKILL);
    CHECK_INT(waitpid(p, &status, 0), p);
    CHECK_INT(ckpt_open(&c, path, NULL, &e), 0);
    CHECK_INT(ckpt_check_rest(c, 0, 1, &e), 0);
    ckpt_close(c);
    free(table[0]);
    free(table[1]);
    keeper_close(keeper);
}

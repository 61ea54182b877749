/* format_native_write_test.c - writing native checkpoints: one failed call anywhere, one missing or wrong
 * piece, one name in use is an error, and nothing appears. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/tmp_folder.h"
#include "format/fmt.h"
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
static int nothing_begins_with(const char *a)
{
    char name[64][64];
    int n = list_dir(test_tmp_dir(), name, 64);
    for (int i = 0; i < n; i++)
        if (strncmp(name[i], a, strlen(a)) == 0)
            return 0;
    return 1;
}

TEST(publishing_with_a_piece_missing_twice_or_different_fails_and_leaves_nothing)
{
    for (int how = 0; how < 4; how++) {
        struct spec s[2] = { spec(ROLE_WEIGHT, "w", STORED_F32, 2, 8, 6, CUT_ROWS),
                             spec(ROLE_WEIGHT, "v", STORED_F32, 2, 8, 6, CUT_COLUMNS) },
                    other[2];
        /* rank 1 of 3 overlaps rank 0 of 2 */
        struct make second = { other, 2, how == 1 ? 3 : 2, 100, 0 };
        struct ckpt_meta meta = make_meta(2);
        void *table[3] = { 0 };
        size_t bytes[3] = { 0 };
        char tmp[4096], path[512];
        struct err e = { 0 };
        memcpy(other, s, sizeof s);
        if (how == 2)
            other[0].t.dtype = STORED_I32;
        CHECK_INT(ckpt_begin(fresh("partial"), tmp, NULL, NULL, &e), 0);
        CHECK_INT(write_rank(tmp, &(struct make){ s, 2, 2, 100, 0 }, 0, &table[0], &bytes[0], &e), 0);
        CHECK_INT(write_rank(tmp, &second, 1, &table[1], &bytes[1], &e), 0);
        if (how == 3)
            CHECK_INT(truncate(in_tmp(tmp, "weights-00001.safetensors", path), 100), 0);
        CHECK(ckpt_publish(tmp, dst, how == 0 ? 1 : 2, table, bytes, &meta, NULL, &e) < 0);
        CHECK_HAS(e.text, how == 0   ? "stored"
                          : how == 1 ? "over"
                          : how == 2 ? "one shape or dtype"
                                     : "bytes");
        CHECK(nothing_begins_with("partial"));
        free(table[0]);
        free(table[1]);
    }
}

TEST(a_piece_that_got_too_little_or_too_much_is_an_error)
{
    struct err e = { 0 };
    struct ckpt_shard *s = NULL;
    struct spec one = spec(ROLE_WEIGHT, "w", STORED_F32, 1, 5, 0, CUT_NONE);
    struct ckpt_piece p = piece_of(&one, 0, 1);
    float x[6] = { 0 };
    void *table;
    size_t n;
    CHECK_INT(io_mkdir(fresh("short"), &e), 0);
    CHECK_INT(ckpt_shard_open(&s, dst, 0, 1, &p, &e), 0);
    CHECK_INT(ckpt_shard_put(s, 0, x, 6, &e), -ERR_INTERNAL);
    CHECK_INT(ckpt_shard_put(s, 0, x, 4, &e), 0);
    CHECK_INT(ckpt_shard_close(s, &table, &n, &e), -ERR_INTERNAL);
    char name[4][64];
    CHECK_INT(list_dir(dst, name, 4), 0);
}

TEST(an_existing_name_is_never_written_over_and_an_earlier_failed_try_is_removed)
{
    char tmp[4096], path[512];
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("taken"), small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    CHECK_INT(make_ckpt(dst, small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), -ERR_FILE);
    CHECK_HAS(e.text, "exists");
    CHECK_INT(opens_and_verifies(dst, &e), 0);
    CHECK_INT(ckpt_begin(fresh("retry"), tmp, NULL, NULL, &e), 0);
    CHECK_INT(io_write_file(in_tmp(tmp, "weights-00000.safetensors", path), "half", 4, &e), 0);
    CHECK_INT(make_ckpt(dst, small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    CHECK_INT(opens_and_verifies(dst, &e), 0);
}

/* Calls ckpt_begin in a process of its own, which exits with 0: the name is free, 1: another process is
 * writing it, 2: another error. hold: it keeps the lock and waits. */
static pid_t begin_elsewhere(int hold)
{
    char tmp[4096];
    int lock = -1, to[2] = { -1, -1 };
    struct err e = { 0 };
    CHECK_INT(pipe(to), 0);
    pid_t child = fork();
    if (child == 0) {
        int rc = ckpt_begin(dst, tmp, &lock, NULL, &e);
        if (rc == 0 && hold && write(to[1], "x", 1) == 1)
            pause();
        _exit(rc == 0 ? 0 : strstr(e.text, "another process is writing") && !*tmp ? 1 : 2);
    }
    close(to[1]);
    CHECK(!hold || read(to[0], tmp, 1) == 1);
    close(to[0]);
    return child;
}

static int status_of(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(a_name_that_is_being_written_is_refused_until_its_writer_ends)
{
    char tmp[4096], path[512];
    int lock = -1;
    struct err e = { 0 };
    CHECK_INT(ckpt_begin(fresh("busy"), tmp, &lock, NULL, &e), 0);
    CHECK_INT(io_write_file(in_tmp(tmp, "half", path), "x", 1, &e), 0);
    CHECK_INT(status_of(begin_elsewhere(0)), 1);
    CHECK(io_exists(path));
    /* as an error inside ckpt_seal does; the lock is still open */
    ckpt_abandon(tmp, -1);
    pid_t other = begin_elsewhere(1);
    ckpt_abandon(tmp, lock); /* the name belongs to the other process now */
    CHECK(io_exists(tmp));
    CHECK_INT(ckpt_begin(dst, tmp, &lock, NULL, &e), -ERR_FILE);
    CHECK_STR(tmp, "");
    kill(other, SIGKILL);
    CHECK_INT(status_of(other), 99);
    CHECK_INT(make_ckpt(dst, small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    CHECK_INT(opens_and_verifies(dst, &e), 0);
    snprintf(tmp, sizeof tmp, "%s.tmp-save", dst);
    CHECK(!io_exists(tmp));
}

TEST(a_checkpoint_removed_while_it_is_read_gives_its_values_or_an_error_that_names_the_file)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    char data[1 << 16], again[1 << 16];
    CHECK_INT(make_ckpt(fresh("read"), small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), 0);
    const struct ckpt_tensor *t = ckpt_tensor(c, 0);
    struct box whole = box_whole(t->n_dims, t->shape);
    int64_t n = box_count(&whole);
    CHECK(stored_bytes(t->dtype, n) <= (int64_t)sizeof data);
    CHECK_INT(ckpt_read_range(c, 0, &whole, 0, n, data, &e), 0);
    CHECK_INT(ckpt_remove(dst, &e), 0); /* as --keep does */
    CHECK_INT(ckpt_read_range(c, 0, &whole, 0, n, again, &e), 0);
    CHECK_SAME(again, data, (size_t)stored_bytes(t->dtype, n));
    for (int i = 1, rc = 0; i < ckpt_n_tensors(c) && rc >= 0; i++) {
        t = ckpt_tensor(c, i);
        whole = box_whole(t->n_dims, t->shape);
        rc = ckpt_read_range(c, i, &whole, 0, box_count(&whole), again, &e);
        CHECK(rc == 0 || (rc == -ERR_FILE && strstr(e.text, dst)));
    }
    ckpt_close(c);
    CHECK_INT(ckpt_open(&c, dst, NULL, &e), -ERR_FILE);
}

/* A child makes a checkpoint while its n-th call of an operation fails. Returns its exit status: 0 made, 1
 * an error. */
static int make_with_fault(const char *op, int n)
{
    pid_t child = fork();
    if (child == 0) {
        char fault[64];
        struct err e = { 0 };
        snprintf(fault, sizeof fault, "%s:%d:ENOSPC", op, n);
        setenv("SHARDLINE_IO_FAULT", fault, 1);
        int rc = make_ckpt(dst, small_specs(), N_SPECS, 2, 1000, 0, NULL, &e);
        _exit(rc < 0 ? (strlen(e.text) > 10 ? 1 : 2) : 0);
    }
    return status_of(child);
}

TEST(whichever_call_fails_nothing_appears_and_nothing_is_left)
{
    static const char *const ops[] = { "open", "write", "fsync", "close", "rename", "read" };
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        int n = 1, status = 1;
        for (; status == 1 && n < 200; n++) {
            fresh("fault");
            status = make_with_fault(ops[k], n);
            if (status == 1 && !nothing_begins_with("fault"))
                test_fail(__FILE__, __LINE__, "%s %d failed and something is left", ops[k], n);
        }
        struct err e = { 0 };
        CHECK_INT(status, 0);
        CHECK(n > 2 || !strcmp(ops[k], "rename"));
        CHECK_INT(opens_and_verifies(dst, &e), 0);
    }
}

/* ---- what is not ours, or is still needed, stays ---- */

/* Makes dst.tmp-save with one file in it; tmp: its name. */
static void make_left(const char *name, int marked, char tmp[600])
{
    char path[700];
    struct err e = { 0 };
    snprintf(tmp, 600, "%s.tmp-save", dst);
    CHECK_INT(io_remove_tree(tmp, &e), 0);
    CHECK_INT(io_mkdir(tmp, &e), 0);
    CHECK_INT(io_write_file(in_tmp(tmp, name, path), "x", 1, &e), 0);
    if (marked)
        CHECK_INT(io_write_file(in_tmp(tmp, TMP_MARKER, path), "", 0, &e), 0);
}

/* Makes a checkpoint at dst; 1: the file `name` of dst.tmp-save is still there afterwards. */
static int stays_beside_a_save(const char *name, int marked)
{
    char tmp[600], path[700];
    struct err e = { 0 };
    fresh("others");
    make_left(name, marked, tmp);
    CHECK_INT(make_ckpt(dst, small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    CHECK_INT(opens_and_verifies(dst, &e), 0);
    return io_exists(in_tmp(tmp, name, path));
}

TEST(a_save_removes_only_what_a_save_left)
{
    CHECK_INT(stays_beside_a_save("notes.txt", 0), 1);
    CHECK_INT(stays_beside_a_save("weights-00000.safetensors", 0), 1);
    CHECK_INT(stays_beside_a_save("notes.txt", 1), 1);
    CHECK_INT(stays_beside_a_save("weights-00000.safetensors", 1), 0);
    CHECK_INT(stays_beside_a_save("manifest.json", 1), 0); /* published since */
}

TEST(a_whole_checkpoint_that_was_not_published_stays_until_its_name_is_taken)
{
    char tmp[4096], left[600], path[700];
    int lock = -1;
    struct err e = { 0 };
    fresh("whole");
    make_left("manifest.json", 1, left);
    CHECK_INT(ckpt_begin(dst, tmp, &lock, NULL, &e), 0);
    CHECK(strcmp(tmp, left) && io_exists(in_tmp(left, "manifest.json", path)));
    ckpt_abandon(tmp, lock);
    CHECK(!io_exists(tmp) && io_exists(path));
    CHECK_INT(ckpt_drop_left(left, NULL), 0);
    CHECK_INT(io_mkdir(dst, &e), 0);
    CHECK_INT(ckpt_drop_left(left, NULL), 1);
    CHECK(!io_exists(left));
    CHECK_INT(io_remove_tree(dst, &e), 0);
}

TEST(a_folder_of_a_save_that_is_read_stays)
{
    char tmp[4096], left[600];
    int lock = -1;
    struct err e = { 0 };
    fresh("read");
    make_left("weights-00000.safetensors", 1, left);
    int hold = tmp_folder_hold(left);
    CHECK(hold >= 0);
    CHECK_INT(ckpt_begin(dst, tmp, &lock, NULL, &e), 0);
    CHECK(strcmp(tmp, left) && io_exists(left));
    ckpt_abandon(tmp, lock);
    io_close(hold);
    CHECK_INT(ckpt_begin(dst, tmp, &lock, NULL, &e), 0);
    CHECK_STR(tmp, left);
    CHECK_INT(tmp_folder_hold(tmp), -1); /* a writer has it */
    ckpt_abandon(tmp, lock);
}

TEST(a_checkpoint_with_another_file_in_it_is_not_removed)
{
    char path[700];
    struct err e = { 0 };
    CHECK_INT(make_ckpt(fresh("notes"), small_specs(), N_SPECS, 1, 1000, 0, NULL, &e), 0);
    CHECK_INT(io_write_file(in_tmp(dst, "notes.txt", path), "x", 1, &e), 0);
    CHECK_INT(ckpt_remove(dst, &e), -ERR_FILE);
    CHECK_HAS(e.text, "notes.txt");
    CHECK_INT(opens_and_verifies(dst, &e), 0);
    CHECK_INT(io_unlink(path, &e), 0);
    CHECK_INT(ckpt_remove(dst, &e), 0);
    CHECK(!io_exists(dst));
    CHECK_INT(io_mkdir(dst, &e), 0);
    CHECK_INT(io_write_file(path, "x", 1, &e), 0);
    CHECK(ckpt_remove(dst, &e) < 0 && io_exists(path)); /* a folder of the user's that is called like one */
}

/* serve_kv_files_test.c - the folder of --kv-disk: what is written is found by others and after a restart,
 * what is damaged, cut or deleted is not, and the folder keeps its size. */
#include "tests/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"
#include "serve/kv/kv_files.h"
#include "serve/kv/kv_name.h"

enum { BYTES = 5000 };

static char *new_dir(void)
{
    static char dir[] = "/tmp/shardline-kv-XXXXXX";
    memcpy(dir + sizeof dir - 7, "XXXXXX", 6);
    CHECK(mkdtemp(dir) != NULL);
    return dir;
}

static struct kv_files *open_files(const char *dir, int64_t limit)
{
    struct kv_files *f;
    struct err e;
    CHECK_INT(kv_files_open(&f, dir, limit, BYTES, NULL, &e), 0);
    return f;
}

static struct kv_key key_of(int i) { return (struct kv_key){ { (uint64_t)i * 0x9e3779b97f4a7c15u + 1, 7 } }; }

static const char *payload_of(int i)
{
    static char x[BYTES];
    for (int k = 0; k < BYTES; k++)
        x[k] = (char)(i * 31 + k * 7 + k / 256);
    return x;
}

static int has_it(struct kv_files *f, int i)
{
    const char *got = kv_files_read(f, key_of(i), BYTES);
    return got && !memcmp(got, payload_of(i), BYTES);
}

static int n_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void write_some(struct kv_files *f, int from, int to)
{
    for (int i = from; i < to; i++)
        kv_files_write(f, key_of(i), payload_of(i), BYTES);
}

/* The only segment, or the n-th; its size. */
static int64_t segment_path(const char *dir, int n, char path[600])
{
    DIR *d = opendir(dir);
    struct dirent *x;
    struct stat st = { 0 };
    while ((x = readdir(d)))
        if (strstr(x->d_name, ".seg") && n-- == 0) {
            snprintf(path, 600, "%s/%s", dir, x->d_name);
            stat(path, &st);
        }
    closedir(d);
    return st.st_size;
}

static void wait_for_look(void) { nanosleep(&(struct timespec){ 0, 600000000 }, NULL); }

static void remove_dir(const char *dir)
{
    struct err e;
    io_remove_tree(dir, &e);
}

TEST(pages_are_found_by_others_and_after_a_restart)
{
    const char *dir = new_dir();
    struct kv_files *a = open_files(dir, 1 << 30), *b = open_files(dir, 1 << 30);
    write_some(a, 0, 20);
    for (int i = 0; i < 20; i++)
        CHECK(has_it(a, i));
    wait_for_look();
    for (int i = 0; i < 20; i++)
        CHECK(has_it(b, i));
    CHECK(!has_it(b, 20));
    CHECK(!kv_files_read(b, key_of(3), BYTES - 1)); /* of another length */
    kv_files_close(a);
    kv_files_close(b);
    a = open_files(dir, 1 << 30);
    CHECK_INT(kv_files_records(a), 20);
    for (int i = 0; i < 20; i++)
        CHECK(has_it(a, i));
    CHECK_INT(kv_files_counts(a).n_damaged, 0);
    kv_files_close(a);
    remove_dir(dir);
}

TEST(segments_that_were_looked_through_keep_no_descriptor)
{
    const char *dir = new_dir();
    for (int i = 0; i < 40; i++) { /* each start writes a segment of its own */
        struct kv_files *f = open_files(dir, 1 << 30);
        write_some(f, i, i + 1);
        kv_files_close(f);
    }
    const int before = n_descriptors();
    struct kv_files *f = open_files(dir, 1 << 30);
    CHECK_INT(kv_files_records(f), 40);
    CHECK_INT(n_descriptors(), before);
    for (int i = 0; i < 40; i++)
        CHECK(has_it(f, i));
    kv_files_close(f);
    remove_dir(dir);
}

TEST(records_of_other_models_in_between_are_passed_over)
{
    const char *dir = new_dir();
    struct kv_files *large = open_files(dir, 1 << 30), *small;
    struct err e;
    write_some(large, 0, 3);
    CHECK_INT(kv_files_open(&small, dir, 1 << 30, 10, NULL, &e), 0);
    kv_files_write(small, key_of(9), "0123456789", 10);
    kv_files_close(small);
    CHECK_INT(kv_files_open(&small, dir, 1 << 30, 10, NULL, &e), 0);
    CHECK_INT(kv_files_records(small), 4);
    CHECK(kv_files_read(small, key_of(9), 10) != NULL);
    CHECK(!kv_files_read(small, key_of(1), BYTES));
    wait_for_look();
    CHECK(has_it(large, 2) && kv_files_has(large, key_of(9)));
    kv_files_close(small);
    kv_files_close(large);
    remove_dir(dir);
}

TEST(any_changed_byte_is_noticed)
{
    const char *dir = new_dir();
    char path[600];
    struct kv_files *f = open_files(dir, 1 << 30);
    write_some(f, 0, 2);
    kv_files_close(f);
    const int64_t size = segment_path(dir, 0, path);
    CHECK_INT(size, 2 * (BYTES + 64));
    for (int64_t at = 0; at < size; at += at < 64 ? 1 : 97) {
        unsigned char byte, other;
        FILE *x = fopen(path, "r+b");
        fseek(x, (long)at, SEEK_SET);
        CHECK_INT((int64_t)fread(&byte, 1, 1, x), 1);
        other = byte ^ 0x10;
        fseek(x, (long)at, SEEK_SET);
        fwrite(&other, 1, 1, x);
        fclose(x);
        f = open_files(dir, 1 << 30);
        const int hit = at / (BYTES + 64);
        const int padding = at % (BYTES + 64) >= 56 && at % (BYTES + 64) < 64; /* of no meaning */
        CHECK(has_it(f, hit) == padding);
        if (hit == 1)
            CHECK(has_it(f, 0));
        kv_files_close(f);
        x = fopen(path, "r+b");
        fseek(x, (long)at, SEEK_SET);
        fwrite(&byte, 1, 1, x);
        fclose(x);
    }
    remove_dir(dir);
}

TEST(a_segment_cut_anywhere_is_known_up_to_there)
{
    const char *dir = new_dir();
    char path[600];
    struct kv_files *f = open_files(dir, 1 << 30), *g;
    write_some(f, 0, 3);
    kv_files_close(f);
    for (int64_t left = segment_path(dir, 0, path); left > 0; left -= 701) {
        CHECK(truncate(path, left) == 0);
        f = open_files(dir, 1 << 30);
        CHECK_INT(kv_files_records(f), left / (BYTES + 64));
        for (int i = 0; i < 3; i++)
            CHECK(has_it(f, i) == (i < left / (BYTES + 64)));
        kv_files_close(f);
    }
    /* cut while it is known, then appended to by its writer */
    f = open_files(dir, 1 << 30);
    write_some(f, 10, 13);
    g = open_files(dir, 1 << 30);
    CHECK(has_it(g, 12));
    for (int n = 0; segment_path(dir, n, path) > 0; n++)
        CHECK(truncate(path, 100) == 0);
    CHECK(!has_it(g, 12) && !has_it(g, 11));
    CHECK_INT(kv_files_counts(g).n_damaged, 2);
    kv_files_close(f);
    kv_files_close(g);
    remove_dir(dir);
}

TEST(the_segment_used_longest_ago_makes_room)
{
    enum { RECORDS = 400, LIMIT = 100 * (BYTES + 64) };
    const char *dir = new_dir();
    char path[600];
    struct kv_files *f = open_files(dir, LIMIT);
    int64_t total = 0;
    int n_there = 0;
    for (int i = 0; i < RECORDS; i++) {
        write_some(f, i, i + 1);
        CHECK(has_it(f, i));
    }
    for (int n = 0; n < 1000; n++) {
        int64_t size = segment_path(dir, n, path);
        total += size;
        if (!size)
            break;
    }
    CHECK(total <= LIMIT);
    for (int i = 0; i < RECORDS; i++) {
        int there = has_it(f, i);
        n_there += there;
        CHECK(there || i < RECORDS - 80);
    }
    CHECK(n_there >= 80 && n_there <= 100);
    CHECK_INT(kv_files_counts(f).n_damaged, 0);
    kv_files_close(f);
    remove_dir(dir);
}

TEST(a_folder_that_goes_away_is_no_error)
{
    const char *dir = new_dir();
    struct kv_files *f = open_files(dir, 1 << 30);
    struct err e;
    write_some(f, 0, 3);
    remove_dir(dir);
    wait_for_look();
    CHECK(!kv_files_has(f, key_of(50)));
    write_some(f, 3, 6);
    CHECK(!has_it(f, 4));
    kv_files_close(f);
    CHECK_INT(kv_files_open(&f, "/dev/null/x", 1 << 30, BYTES, NULL, &e) < 0, 1);
    CHECK_INT(kv_files_open(&f, "/tmp", 1000, BYTES, NULL, &e), -ERR_USAGE);
}

TEST(a_name_depends_on_everything_before_its_end)
{
    int32_t ids[64] = { 1, 2, 3 };
    const struct kv_key root = key_of(1), first = kv_name_first(root, NULL), name = kv_name_next(first, ids);
    const struct kv_key salted = kv_name_next(kv_name_first(root, "salt"), ids);
    CHECK(memcmp(&name, &salted, sizeof name) != 0);
    const struct kv_key other = kv_name_next(kv_name_first(key_of(2), NULL), ids);
    CHECK(memcmp(&name, &other, sizeof name) != 0);
    for (int i = 0; i < 64; i++) {
        ids[i]++;
        const struct kv_key changed = kv_name_next(first, ids);
        CHECK(memcmp(&name, &changed, sizeof name) != 0);
        ids[i]--;
    }
    const struct kv_key again = kv_name_next(first, ids);
    CHECK(memcmp(&name, &again, sizeof name) == 0);
}

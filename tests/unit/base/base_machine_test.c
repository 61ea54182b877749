/* base_machine_test.c - the machine's free memory, from trees of files that stand for /proc and /sys: control
 * groups of both versions, nested limits, page cache, shared memory. */
#include "base/machine.h"
#include "tests/test.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define GB 1000000000LL
#define V1 "/sys/fs/cgroup/memory"
#define V2 "/sys/fs/cgroup"

static char root[64];

/* Writes a file below root, with the folders that lead to it. */
__attribute__((format(printf, 2, 3))) static void put(const char *name, const char *fmt, ...)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0777);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    va_list args;
    va_start(args, fmt);
    vfprintf(f, fmt, args);
    va_end(args);
    fclose(f);
}

/* A machine with 10 GB free of 16, whose process is in `groups` (/proc/self/cgroup), mounted as `mounts`
 * says. */
static void begin(const char *groups, const char *mounts)
{
    strcpy(root, "/tmp/shardline-machine-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    put("/proc/meminfo", "MemTotal: %lld kB\nMemFree: 5 kB\nMemAvailable: %lld kB\n", 16 * GB >> 10,
        10 * GB >> 10);
    put("/proc/self/cgroup", "%s", groups);
    put("/proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n%s", mounts);
}

static struct machine_memory end(void)
{
    struct machine_memory m;
    char command[128];
    machine_memory_below(&m, root);
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_INT(system(command), 0);
    return m;
}

static const char v1_mount[] = "35 31 0:32 / " V1 " rw,relatime shared:3 - cgroup cgroup rw,memory\n";
static const char v2_mount[] = "31 23 0:28 / " V2 " rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

/* A group of version 1 or 2 in folder: its limit as text, its use, and its parts cache and shared memory. */
static void v1_group(const char *folder, const char *limit, long long used, long long cache, long long shm)
{
    char name[256];
    snprintf(name, sizeof name, "%s/memory.limit_in_bytes", folder);
    put(name, "%s\n", limit);
    snprintf(name, sizeof name, "%s/memory.usage_in_bytes", folder);
    put(name, "%lld\n", used);
    snprintf(name, sizeof name, "%s/memory.stat", folder);
    put(name,
        "cache %lld\nshmem %lld\ninactive_file 1\ntotal_shmem %lld\ntotal_inactive_file %lld\n"
        "total_active_file %lld\n",
        cache + shm, shm, shm, cache / 2, cache - cache / 2);
}
static void v2_group(const char *folder, const char *limit, long long used, long long cache, long long shm)
{
    char name[256];
    snprintf(name, sizeof name, "%s/memory.max", folder);
    put(name, "%s\n", limit);
    snprintf(name, sizeof name, "%s/memory.current", folder);
    put(name, "%lld\n", used);
    snprintf(name, sizeof name, "%s/memory.stat", folder);
    put(name, "anon 5\nfile %lld\nshmem %lld\ninactive_anon %lld\ninactive_file %lld\nactive_file %lld\n",
        cache + shm, shm, shm, cache / 2, cache - cache / 2);
}

TEST(without_a_limit_the_kernels_estimate_decides)
{
    begin("4:memory:/a\n0::/\n", v1_mount);
    v1_group(V1 "/a", "9223372036854771712", 3 * GB, 0, 0);
    v1_group(V1, "9223372036854771712", 5 * GB, 0, 0);
    struct machine_memory m = end();
    CHECK_INT(m.free_bytes, 10 * GB >> 10 << 10);
    CHECK_INT(m.total_bytes, 16 * GB);
    CHECK_INT(m.limit_bytes, -1);

    begin("0::/a\n", v2_mount);
    v2_group(V2 "/a", "max", 3 * GB, 0, 0);
    m = end();
    CHECK_INT(m.free_bytes, 10 * GB >> 10 << 10);
    CHECK_INT(m.limit_bytes, -1);
}

TEST(a_limit_leaves_what_is_not_used)
{
    begin("5:cpu:/x\n4:cpuset,memory:/a\n0::/\n", v1_mount);
    v1_group(V1 "/a", "4000000000", GB, 0, 0);
    struct machine_memory m = end();
    CHECK_INT(m.free_bytes, 3 * GB);
    CHECK_INT(m.total_bytes, 4 * GB);
    CHECK_INT(m.limit_bytes, 4 * GB);

    begin("0::/a\n", v2_mount);
    v2_group(V2 "/a", "4000000000", GB, 0, 0);
    m = end();
    CHECK_INT(m.free_bytes, 3 * GB);
    CHECK_INT(m.limit_bytes, 4 * GB);
}

TEST(every_group_above_counts_too)
{
    begin("4:memory:/job/step/task\n", v1_mount);
    v1_group(V1 "/job/step/task", "9223372036854771712", GB, 0, 0);
    v1_group(V1 "/job/step", "6000000000", GB, 0, 0);
    v1_group(V1 "/job", "8000000000", 6 * GB, 0, 0); /* other steps use the rest */
    struct machine_memory m = end();
    CHECK_INT(m.free_bytes, 2 * GB);
    CHECK_INT(m.limit_bytes, 8 * GB);
    CHECK_INT(m.total_bytes, 6 * GB);

    begin("0::/a.slice/b.scope\n", v2_mount);
    v2_group(V2 "/a.slice/b.scope", "max", GB, 0, 0);
    v2_group(V2 "/a.slice", "5000000000", 2 * GB, 0, 0);
    CHECK_INT(end().free_bytes, 3 * GB);
}

TEST(pages_of_files_are_no_use_and_shared_memory_is)
{
    begin("4:memory:/a\n", v1_mount);
    v1_group(V1 "/a", "4000000000", 3 * GB + GB / 2, 2 * GB, GB);
    CHECK_INT(end().free_bytes, 2 * GB + GB / 2);

    begin("0::/a\n", v2_mount);
    v2_group(V2 "/a", "4000000000", 3 * GB + GB / 2, 2 * GB, GB);
    CHECK_INT(end().free_bytes, 2 * GB + GB / 2);
}

TEST(memory_high_is_a_limit)
{
    begin("0::/a\n", v2_mount);
    v2_group(V2 "/a", "max", GB, 0, 0);
    put(V2 "/a/memory.high", "2000000000\n");
    CHECK_INT(end().free_bytes, GB);
}

TEST(more_use_than_limit_leaves_nothing)
{
    begin("0::/a\n", v2_mount);
    v2_group(V2 "/a", "1000000000", 2 * GB, 0, 0);
    CHECK_INT(end().free_bytes, 0);
}

/* Docker without a name space of groups: the mount shows only the container's own group. */
TEST(the_mount_of_a_container_begins_at_its_own_group)
{
    begin("4:memory:/docker/abc/in\n",
          "35 31 0:32 /docker/abc " V1 " ro,relatime - cgroup cgroup rw,memory\n");
    v1_group(V1, "4000000000", GB, 0, 0);
    v1_group(V1 "/in", "3000000000", GB, 0, 0);
    CHECK_INT(end().free_bytes, 2 * GB);

    /* a path that leads out of the name space: the mount point is all that can be seen */
    begin("0::/../../other\n", v2_mount);
    v2_group(V2, "4000000000", GB, 0, 0);
    CHECK_INT(end().free_bytes, 3 * GB);
}

/* Hybrid: version 2 is mounted without the memory controller. */
TEST(both_versions_at_once)
{
    begin("4:memory:/a\n0::/a\n", "35 31 0:32 / " V1 " rw - cgroup cgroup rw,memory\n"
                                  "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                                  "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    v1_group(V1 "/a", "4000000000", GB, 0, 0);
    put("/sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n"); /* no file of this controller */
    put("/sys/fs/cgroup/unified/a/cgroup.procs", "1\n");
    CHECK_INT(end().free_bytes, 3 * GB);
}

TEST(nothing_readable_is_no_limit)
{
    strcpy(root, "/tmp/shardline-machine-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    struct machine_memory m = end();
    CHECK(m.free_bytes > 1LL << 50);
    CHECK_INT(m.limit_bytes, -1);
}

TEST(this_machine_has_memory)
{
    struct machine_memory m;
    machine_memory_below(&m, "");
    CHECK(m.free_bytes > 0);
    CHECK(m.free_bytes <= m.total_bytes);
}

TEST(words_tell_what_decides)
{
    char text[MACHINE_TEXT];
    machine_memory_text(&(struct machine_memory){ 24 * GB, 32 * GB, -1 }, text);
    CHECK_STR(text, "24.00 GB are free on this machine");
    machine_memory_text(&(struct machine_memory){ GB, 4 * GB, 4 * GB }, text);
    CHECK_STR(text, "1.00 GB are left of the control group's 4.00 GB");
}

/* base_cpus_test.c - threads are spread over memory nodes, caches and cores, as a made-up /sys tells. */
#define _GNU_SOURCE /* CPU sets */
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/machine.h"
#include "base/memory/cpus.h"

/* Writes root/sys/devices/system/NAME, with its folders. */
static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/sys/devices/system/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdir(path, 0755);
    }
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

/* 16 CPUs: 2 nodes, each with 2 caches of 2 cores of 2 threads; CPU i + 8 is the second thread of CPU i, and
 * the nodes take turns: CPU i is in node i % 2. */
static void make_machine(const char *root)
{
    char name[128], text[64];
    put(root, "node/node0/cpulist", "0,2,4,6,8,10,12,14\n");
    put(root, "node/node1/cpulist", "1,3,5,7,9,11,13,15\n");
    for (int i = 0; i < 16; i++) {
        const int core = i % 8, group = core % 2 + core / 4 * 4;
        snprintf(name, sizeof name, "cpu/cpu%d/cache/index3/shared_cpu_list", i);
        snprintf(text, sizeof text, "%d,%d,%d,%d\n", group, group + 2, group + 8, group + 10);
        put(root, name, text);
        snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, "%d,%d\n", core, core + 8);
        put(root, name, text);
    }
}

/* CPUs of the threads one after the other: "0 8 | 2 10 | …". */
static const char *shares(const struct cpu_place *place, int n, int n_parts)
{
    static char text[512];
    size_t at = 0;
    for (int part = 0; part < n_parts; part++) {
        cpu_set_t set;
        cpus_part(place, n, part, n_parts, &set);
        at += (size_t)snprintf(text + at, sizeof text - at, "%s", part ? "|" : "");
        for (int i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                at += (size_t)snprintf(text + at, sizeof text - at, " %d", i);
    }
    return text;
}

TEST(threads_are_spread_over_nodes_caches_and_cores)
{
    static struct cpu_place place[CPU_SETSIZE];
    char root[64] = "/tmp/shardline-cpus-XXXXXX", command[128];
    cpu_set_t all, some;
    CHECK(mkdtemp(root) != NULL);
    make_machine(root);
    setenv("SHARDLINE_MACHINE_ROOT", root, 1);
    CPU_ZERO(&all);
    for (int i = 0; i < 16; i++)
        CPU_SET(i, &all);
    CHECK_INT(cpus_in_order(&all, place), 16);
    /* a core each, then a cache each, then a node each */
    CHECK_STR(shares(place, 16, 8), " 0 8| 2 10| 4 12| 6 14| 1 9| 3 11| 5 13| 7 15");
    CHECK_STR(shares(place, 16, 4), " 0 2 8 10| 4 6 12 14| 1 3 9 11| 5 7 13 15");
    CHECK_STR(shares(place, 16, 2), " 0 2 4 6 8 10 12 14| 1 3 5 7 9 11 13 15");
    /* 3 threads: no node has all */
    CHECK_STR(shares(place, 16, 3), " 0 2 4 8 10| 1 6 9 12 14| 3 5 7 11 13 15");
    /* the affinity given is kept: one CPU of each core of three */
    CPU_ZERO(&some);
    CPU_SET(0, &some), CPU_SET(1, &some), CPU_SET(5, &some);
    CHECK_INT(cpus_in_order(&some, place), 3);
    CHECK_STR(shares(place, 3, 3), " 0| 1| 5");
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK_INT(system(command), 0);
    unsetenv("SHARDLINE_MACHINE_ROOT");
}

TEST(without_sys_cpus_are_taken_by_number)
{
    static struct cpu_place place[CPU_SETSIZE];
    cpu_set_t all;
    setenv("SHARDLINE_MACHINE_ROOT", "/nowhere", 1);
    CPU_ZERO(&all);
    for (int i = 3; i < 7; i++)
        CPU_SET(i, &all);
    CHECK_INT(cpus_in_order(&all, place), 4);
    CHECK_STR(shares(place, 4, 2), " 3 4| 5 6");
    CHECK_INT(cpus_count_nodes(), 1);
    unsetenv("SHARDLINE_MACHINE_ROOT");
}

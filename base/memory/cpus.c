/* cpus.c - see cpus.h. */
#define _GNU_SOURCE /* CPU sets */
#include "base/memory/cpus.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/machine.h"
#include "base/test_hooks.h"

#define NODES_MOST 256

/* Opens a file below sys/devices/system; NULL: there is none. */
static FILE *open_sys(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/sys/devices/system/%s", hook_machine_root(), name);
    return fopen(path, "re");
}

/* The CPUs of a list like "0-7,64-71". 0: the file is missing. */
static int read_list(const char *name, cpu_set_t *out)
{
    FILE *f = open_sys(name);
    int first, last, read;
    CPU_ZERO(out);
    if (!f)
        return 0;
    while ((read = fscanf(f, "%d-%d", &first, &last)) >= 1) {
        if (read == 1)
            last = first;
        for (int i = first; i >= 0 && i <= last && i < CPU_SETSIZE; i++)
            CPU_SET(i, out);
        if (fgetc(f) != ',')
            break;
    }
    fclose(f);
    return CPU_COUNT(out) > 0;
}

/* The first CPU of the list in cpu/cpuN/NAME; `missing` where there is none. */
static int first_of(int cpu, const char *name, int missing)
{
    char path[128];
    cpu_set_t set;
    snprintf(path, sizeof path, "cpu/cpu%d/%s", cpu, name);
    if (!read_list(path, &set))
        return missing;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            return i;
    return missing;
}

static int by_place(const void *a, const void *b)
{
    const struct cpu_place *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->core != y->core)
        return x->core < y->core ? -1 : 1;
    return x->cpu < y->cpu ? -1 : x->cpu > y->cpu;
}

int cpus_in_order(const cpu_set_t *allowed, struct cpu_place *out)
{
    int n = 0;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, allowed))
            out[n++] = (struct cpu_place){ i, 0, first_of(i, "cache/index3/shared_cpu_list", 0),
                                           first_of(i, "topology/thread_siblings_list", i) };
    for (int node = 0; node < NODES_MOST; node++) {
        char name[64];
        cpu_set_t set;
        snprintf(name, sizeof name, "node/node%d/cpulist", node);
        if (read_list(name, &set))
            for (int i = 0; i < n; i++)
                if (CPU_ISSET(out[i].cpu, &set))
                    out[i].node = node;
    }
    qsort(out, (size_t)n, sizeof *out, by_place);
    return n;
}

void cpus_part(const struct cpu_place *cpu, int n, int part, int n_parts, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (int i = (int)((long)n * part / n_parts); i < (int)((long)n * (part + 1) / n_parts); i++)
        CPU_SET(cpu[i].cpu, out);
}

int cpus_count_nodes(void)
{
    struct cpu_place place[CPU_SETSIZE];
    cpu_set_t all;
    int nodes = 1;
    if (sched_getaffinity(0, sizeof all, &all) < 0)
        return 1;
    const int n = cpus_in_order(&all, place);
    for (int i = 1; i < n; i++)
        nodes += place[i].node != place[i - 1].node;
    return nodes;
}

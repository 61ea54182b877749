/* cpus.h - which CPUs share a memory node, a cache and a core, as Linux' /sys tells, and shares of them for
 * threads. Any thread may call these. Includers define _GNU_SOURCE. */
#ifndef SHARDLINE_BASE_MEMORY_CPUS_H
#define SHARDLINE_BASE_MEMORY_CPUS_H

#include <sched.h>

/* A CPU; node: its memory node, group: the first CPU that shares its last cache, core: the first of its core.
 * What /sys does not tell is 0, and the CPU itself for core. */
struct cpu_place {
    int cpu, node, group, core;
};

/* The CPUs of `allowed` in out[CPU_SETSIZE], ordered by node, group, core and number, so that neighbours
 * share most. Returns how many there are. SHARDLINE_MACHINE_ROOT tells where sys is (base/test_hooks.h). */
int cpus_in_order(const cpu_set_t *allowed, struct cpu_place *out);

/* Part `part` of n_parts nearly equal ones of the n CPUs: every node and every group gets its share of the
 * parts, to within one. n_parts <= n. */
void cpus_part(const struct cpu_place *cpu, int n, int part, int n_parts, cpu_set_t *out);

#endif

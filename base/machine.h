/* machine.h - the memory of this machine that a program can still take: what the kernel can give, and what
 * the limits of the control groups (v1 and v2) leave; and its limit on the stack. Nothing else reads them. */
#ifndef SHARDLINE_BASE_MACHINE_H
#define SHARDLINE_BASE_MACHINE_H

#include <stdint.h>
#include "base/err.h"

struct machine_memory {
    int64_t free_bytes;  /* that can still be taken without swapping and without a kill */
    int64_t total_bytes; /* that could be taken if nothing else ran */
    int64_t limit_bytes; /* of the control group that leaves free_bytes; -1: no group leaves less than the
                            machine has free */
};

/* Reads the memory of this machine. Files that cannot be read set no limit. Tests change the answer
 * (SHARDLINE_MEMORY_ROOM, SHARDLINE_MACHINE_ROOT in base/test_hooks.h). Any thread may call it. */
void machine_memory(struct machine_memory *m);

/* free_bytes of machine_memory(). */
int64_t machine_memory_free(void);

/* As machine_memory(), with the files /proc and /sys below the folder root ("": the real ones).
 *
 * free_bytes is the least of MemAvailable and, for the control group of this process and each group above it,
 * its limit (the lower of memory.max and memory.high; v1: memory.limit_in_bytes) less its use. Pages of files
 * that the kernel can drop (active_file, inactive_file, slab_reclaimable) are not use; tmpfs and shared
 * memory are. */
void machine_memory_below(struct machine_memory *m, const char *root);

enum { MACHINE_TEXT = 96 };
/* Writes what is free in words: "24.1 GB are free on this machine", or "1.2 GB are left of the control
 * group's 4.29 GB". */
void machine_memory_text(const struct machine_memory *m, char out[MACHINE_TEXT]);

/* ERR_USAGE when the stack of this process is limited to less than a program needs (`ulimit -s`): threads get
 * as much, and kernels keep tiles of up to 130 KB there. Without the check such a program dies of a
 * segmentation fault and prints nothing. */
int machine_check_stack(struct err *e);

/* Memory nodes that the CPUs of this process lie in; at least 1. Any thread may call it. */
int cpus_count_nodes(void);

#endif

/* cpu.h - the CPU as a device: its classes, and the op table of one. Inside kernels/ only. */
#ifndef SHARDLINE_KERNELS_CPU_H
#define SHARDLINE_KERNELS_CPU_H

#include "base/err.h"
#include "kernels/kernels.h"

/* Fills *ops with the table of the best class this machine has, or of the one SHARDLINE_ISA names; *isa: its
 * name. Then runs the self-tests. ERR_DEVICE: the class is unknown or not available, or a self-test failed.
 * d: its pool and scratch are there. */
int cpu_choose(struct dev *d, struct kernel_ops *ops, const char **isa, struct err *e);

#endif

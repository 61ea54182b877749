/* cpu.h - the CPU as a device: its classes, and the op table of one. Private to kernels/. */
#ifndef SHARDLINE_KERNELS_CPU_H
#define SHARDLINE_KERNELS_CPU_H

#include "base/err.h"
#include "kernels/kernels.h"

/* Runs the self-tests and fills *ops with the table of the best class of this machine, or of the class
 * that SHARDLINE_ISA names; *isa: its name. d has its pool and scratch already. ERR_DEVICE: the class is
 * unknown or not available, or a self-test failed. */
int cpu_choose(struct dev *d, struct kernel_ops *ops, const char **isa, struct err *e);

#endif

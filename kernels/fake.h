/* fake.h - a device for tests: the CPU's ops over memory that the host cannot touch, see fake.c. */
#ifndef SHARDLINE_KERNELS_FAKE_H
#define SHARDLINE_KERNELS_FAKE_H

#include "kernels/dev.h"

int fake_open(struct dev *d, struct err *e);

#endif

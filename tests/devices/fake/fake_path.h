/* fake_path.h - where a test program finds the fake device's library. */
#ifndef SHARDLINE_TESTS_DEVICES_FAKE_PATH_H
#define SHARDLINE_TESTS_DEVICES_FAKE_PATH_H

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The file for SHARDLINE_DEVICE: from the program's folder, as make lays it out or as tools/gpu-check
 * packs it. */
static inline const char *fake_device(void)
{
    static char path[PATH_MAX + 64];
    char program[PATH_MAX] = "";
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0)
        *strrchr(program, '/') = 0;

    snprintf(path, sizeof path, "%s/../../devices/fake_device.so", program);
    if (access(path, R_OK) < 0)
        snprintf(path, sizeof path, "%s/../tests/devices/fake_device.so", program);
    return path;
}

#endif

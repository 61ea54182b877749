/* share_source.c - see share_source.h. */
#include "serve/share/share_source.h"

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/io.h"
#include "store/memory.h"

/* N of a name that ends in "step-N"; -1: another name. */
static int64_t step_of(const char *name)
{
    const char *at = strrchr(name, '-');
    char *end;
    if (!at || at - name < 4 || strncmp(at - 4, "step", 4) || at[1] < '0' || at[1] > '9')
        return -1;
    long long n = strtoll(at + 1, &end, 10);
    return *end ? -1 : n;
}

static int has_manifest(const char *folder)
{
    char *path = io_join(folder, "manifest.json");
    int yes = path && io_exists(path);
    free(path);
    return yes;
}

int source_follows(const char *source)
{
    size_t n = strlen(source);
    return memory_is(source) ? !strchr(source, '/') || source[n - 1] == '-' : !has_manifest(source);
}

int source_watch(const char *source)
{
    return memory_is(source) ? (int)syscall(SYS_pidfd_open, (pid_t)strtol(source + 4, NULL, 10), 0) : -1;
}

/* The set with the highest step that process PID of mem:PID or mem:PID/PREFIX- keeps. */
static int newest_in_memory(const char *source, int64_t after, char *path, size_t room, int64_t *step)
{
    char(*name)[MEMORY_NAME_BYTES] = NULL;
    struct err ignored;
    int n = 0, found = 0;
    char *rest;
    long pid = strtol(source + 4, &rest, 10);
    const char *prefix = *rest == '/' ? rest + 1 : "";
    if (memory_list((pid_t)pid, &name, &n, &ignored) < 0)
        return 0;
    for (int i = 0; i < n; i++) {
        int64_t s = step_of(name[i]);
        if (s <= after || (found && s <= *step) || strncmp(name[i], prefix, strlen(prefix)))
            continue;
        found = 1;
        *step = s;
        snprintf(path, room, "mem:%ld/%s", pid, name[i]);
    }
    free(name);
    return found;
}

static int newest_in_folder(const char *source, int64_t after, char *path, size_t room, int64_t *step)
{
    DIR *d = opendir(source);
    struct dirent *x;
    int found = 0;
    while (d && (x = readdir(d))) {
        char one[4096];
        int64_t s = step_of(x->d_name);
        snprintf(one, sizeof one, "%s/%s", source, x->d_name);
        if (s <= after || (found && s <= *step) || strncmp(x->d_name, "step-", 5) || !has_manifest(one))
            continue;
        found = 1;
        *step = s;
        snprintf(path, room, "%s", one);
    }
    if (d)
        closedir(d);
    return found;
}

int source_newest(const char *source, int64_t after, char *path, size_t room, int64_t *step)
{
    if (!source_follows(source)) {
        snprintf(path, room, "%s", source);
        *step = step_of(source);
        return after < 0;
    }
    return memory_is(source) ? newest_in_memory(source, after, path, room, step)
                             : newest_in_folder(source, after, path, room, step);
}

/* machine.c - see base/machine.h.
 *
 *   /proc/self/cgroup      4:memory:/job/step     v1: the group of this process
 *                          0::/job/step           v2
 *   /proc/self/mountinfo   … /job /sys/fs/cgroup/memory … - cgroup cgroup rw,memory
 *
 * The folder of the group is the mount point and what follows the mount's root (/job) in the group's path:
 * here /sys/fs/cgroup/memory/step. The walk goes from there up to the mount point, because every group above
 * has a limit too. */
#include "base/machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include "base/log.h"
#include "base/test_hooks.h"

enum { PATH_BYTES = 1024, LINE_BYTES = 2048 }; /* small: a rank may have little stack */

/* The files of a control group, by version. */
struct group_files {
    const char *fs;           /* the file system's type in mountinfo */
    const char *limits[2];    /* files that hold one number, or "max" */
    const char *used;         /* file with the bytes in use */
    const char *droppable[3]; /* lines of memory.stat: pages that the kernel drops when it needs them */
};
static const struct group_files versions[] = {
    { "cgroup",
      { "memory.limit_in_bytes", NULL },
      "memory.usage_in_bytes",
      { "total_inactive_file ", "total_active_file ", NULL } },
    { "cgroup2",
      { "memory.max", "memory.high" },
      "memory.current",
      { "inactive_file ", "active_file ", "slab_reclaimable " } },
};
enum { V1, V2 };

/* The number that follows `word` at the beginning of a line of folder/name; word "": the file is one number.
 * -1: none. */
static int64_t number_in(const char *folder, const char *name, const char *word)
{
    char path[PATH_BYTES + 64], line[256];
    long long n = -1;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");

    while (f && n < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, word, strlen(word)) && sscanf(line + strlen(word), "%lld", &n) != 1)
            n = -1;
    if (f)
        fclose(f);
    return n;
}

/* Lowers *m to what the limit of one group leaves. */
static void apply_group(struct machine_memory *m, const struct group_files *g, const char *folder)
{
    int64_t limit = -1, used = number_in(folder, g->used, "");
    for (int i = 0; i < 2 && g->limits[i]; i++) {
        int64_t n = number_in(folder, g->limits[i], "");
        limit = n >= 0 && (limit < 0 || n < limit) ? n : limit;
    }
    if (limit < 0 || used < 0)
        return;

    for (int i = 0; i < 3 && g->droppable[i]; i++) {
        int64_t n = number_in(folder, "memory.stat", g->droppable[i]);
        used -= n > 0 ? n : 0;
    }
    used = used < 0 ? 0 : used;

    int64_t left = limit > used ? limit - used : 0;
    m->total_bytes = limit < m->total_bytes ? limit : m->total_bytes;
    if (left < m->free_bytes) {
        m->free_bytes = left;
        m->limit_bytes = limit;
    }
}

/* Applies the group in folder and every group above it, up to the mount point, which has `top` bytes. */
static void apply_path(struct machine_memory *m, const struct group_files *g, char *folder, size_t top)
{
    for (;;) {
        apply_group(m, g, folder);
        char *slash = strrchr(folder, '/');
        if (!slash || slash <= folder + top - 1 || strlen(folder) <= top)
            return;
        *slash = 0;
    }
}

/* The path of this process's group: of the memory controller (v1), or of the one hierarchy (v2). 0: none. */
static int group_path(const char *root, int version, char path[PATH_BYTES])
{
    char name[PATH_BYTES], line[LINE_BYTES];
    int found = 0;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "re");

    while (f && !found && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!at)
            continue;
        *at = 0;
        line[strcspn(line, "\n")] = 0;
        at[1 + strcspn(at + 1, "\n")] = 0;
        char list[LINE_BYTES + 2];
        snprintf(list, sizeof list, ",%s,", controllers + 1);
        found = version == V2 ? controllers[1] == 0 : strstr(list, ",memory,") != NULL;
        if (found)
            snprintf(path, PATH_BYTES, "%s", at + 1);
    }
    if (f)
        fclose(f);
    return found;
}

/* What follows the mount's root in the path of a group: "" where the path lies outside of the mount, as it
 * can in a container; the mount point is then the nearest group that can be seen. */
static const char *below_mount(const char *path, const char *mount_root)
{
    size_t n = strcmp(mount_root, "/") ? strlen(mount_root) : 0;
    if (strncmp(path, mount_root, n) || (path[n] && path[n] != '/') || strstr(path, "/.."))
        return "";
    return strcmp(path + n, "/") ? path + n : "";
}

/* Applies the groups of one line of mountinfo, when it mounts groups that limit memory. */
static void apply_mount(struct machine_memory *m, const char *root, char *line)
{
    char mount_root[PATH_BYTES], point[PATH_BYTES], fs[32], options[LINE_BYTES], path[PATH_BYTES];
    const char *end = strstr(line, " - ");
    if (sscanf(line, "%*s %*s %*s %1023s %1023s", mount_root, point) != 2 || !end ||
        sscanf(end, " - %31s %*s %2047s", fs, options) != 2)
        return;

    for (int v = V1; v <= V2; v++) {
        char list[LINE_BYTES + 2], folder[3 * PATH_BYTES];
        snprintf(list, sizeof list, ",%s,", options);
        if (strcmp(fs, versions[v].fs) || (v == V1 && !strstr(list, ",memory,")) ||
            !group_path(root, v, path))
            continue;
        int top = snprintf(folder, sizeof folder, "%s%s", root, point);
        snprintf(folder + top, sizeof folder - (size_t)top, "%s", below_mount(path, mount_root));
        apply_path(m, &versions[v], folder, (size_t)top);
    }
}

void machine_memory_below(struct machine_memory *m, const char *root)
{
    char name[PATH_BYTES], line[LINE_BYTES];
    snprintf(name, sizeof name, "%s/proc", root);
    int64_t available = number_in(name, "meminfo", "MemAvailable:");
    int64_t total = number_in(name, "meminfo", "MemTotal:");
    int64_t unknown_kib = (int64_t)1 << 50; /* without /proc there is nothing to compare with */
    *m = (struct machine_memory){ .free_bytes = (available < 0 ? unknown_kib : available) << 10,
                                  .total_bytes = (total < 0 ? unknown_kib : total) << 10,
                                  .limit_bytes = -1 };

    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(name, "re");
    while (f && fgets(line, sizeof line, f))
        apply_mount(m, root, line);
    if (f)
        fclose(f);
}

void machine_memory(struct machine_memory *m)
{
    int64_t chosen = hook_free_memory();
    machine_memory_below(m, hook_machine_root());
    if (chosen < 0)
        return;
    m->free_bytes = chosen;
    m->limit_bytes = -1;
}

int64_t machine_memory_free(void)
{
    struct machine_memory m;
    machine_memory(&m);
    return m.free_bytes;
}

void machine_memory_text(const struct machine_memory *m, char out[MACHINE_TEXT])
{
    char left[32], limit[32];
    log_bytes(left, (double)m->free_bytes);
    log_bytes(limit, (double)m->limit_bytes);
    if (m->limit_bytes < 0)
        snprintf(out, MACHINE_TEXT, "%s are free on this machine", left);
    else
        snprintf(out, MACHINE_TEXT, "%s are left of the control group's %s", left, limit);
}

/* ---- stack ---- */
enum { STACK_BYTES = 1 << 20 };

int machine_check_stack(struct err *e)
{
    struct rlimit stack;
    /* no limit is the largest number */
    if (getrlimit(RLIMIT_STACK, &stack) < 0 || stack.rlim_cur >= STACK_BYTES)
        return 0;
    return err_set(e, ERR_USAGE,
                   "the stack is limited to %lld KiB, %d are needed: start this after `ulimit -s 8192`",
                   (long long)(stack.rlim_cur >> 10), STACK_BYTES >> 10);
}

/* metrics_process.c - what the kernel says about this process. See metrics.h.
 * Source: proc(5); the names: prometheus.io/docs/instrumenting/writing_clientlibs, "Process metrics". */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "serve/metrics.h"

/* Fields 14 to 24 of /proc/self/stat: clock ticks, but for the last two: bytes and pages. */
struct process_stat {
    unsigned long long user, system, start, virtual_bytes;
    long long resident_pages;
};

/* 0, or -1: it cannot be read. */
static int read_stat(struct process_stat *s)
{
    char line[2048];
    FILE *f = fopen("/proc/self/stat", "re");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        fclose(f);
    line[n] = 0;

    /* the second field is the program's name in parentheses, which may have spaces and parentheses, too */
    const char *p = strrchr(line, ')');
    return p && sscanf(p + 1,
                       " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu "
                       "%llu %lld",
                       &s->user, &s->system, &s->start, &s->virtual_bytes, &s->resident_pages) == 5
               ? 0
               : -1;
}

/* Seconds since 1970 at which the machine started; -1: not known. */
static long long boot_time(void)
{
    char line[256];
    long long t = -1;
    FILE *f = fopen("/proc/stat", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "btime %lld", &t) == 1)
            break;
    if (f)
        fclose(f);
    return t;
}

/* Open files of this process, without the one that counts them; -1: not known. */
static long long count_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    long long n = -1;
    if (!d)
        return -1;
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* x below 0: not known, nothing is written. */
static void write_value(struct json_out *o, const char *name, const char *type, const char *help, double x)
{
    if (x < 0)
        return;
    metrics_write_head(o, name, type, help);
    json_out_fmt(o, "%s %.15g\n", name, x);
}

void metrics_write_process(struct json_out *o)
{
    double ticks = (double)sysconf(_SC_CLK_TCK);
    long long boot = boot_time();
    struct process_stat s;
    struct rlimit files;

    if (read_stat(&s) == 0) {
        write_value(o, "process_cpu_seconds_total", "counter",
                    "processor time of the process that speaks HTTP", (double)(s.user + s.system) / ticks);
        write_value(o, "process_virtual_memory_bytes", "gauge", "its address space", (double)s.virtual_bytes);
        write_value(o, "process_resident_memory_bytes", "gauge", "its memory",
                    (double)s.resident_pages * (double)sysconf(_SC_PAGESIZE));
        if (boot >= 0)
            write_value(o, "process_start_time_seconds", "gauge", "when it started, in seconds since 1970",
                        (double)boot + (double)s.start / ticks);
    }

    write_value(o, "process_open_fds", "gauge", "its open files and connections", (double)count_files());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        write_value(o, "process_max_fds", "gauge", "open files that it may have", (double)files.rlim_cur);
}

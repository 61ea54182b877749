/* leash.c - see leash.h. */
#define _GNU_SOURCE
#include "comm/leash.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"

#define LOOK_MS 100 /* between looks into /proc, where the kernel has no pidfds */
#define STACK_BYTES (256 << 10)

/* A process. started: in clock ticks after the boot, because numbers of processes are used again. boot: names
 * the boot, because a launcher may pass the variable on to other machines. */
struct process {
    long pid;
    unsigned long long started;
    char boot[40];
};

/* The first process of the job: a state of this process, as its parent is. 0: none on this machine. */
static long launcher;

/* When a process started; 0: it has ended. */
static unsigned long long start_of(long pid)
{
    char path[64], text[1024];
    unsigned long long started = 0;
    char state = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* the name in front may hold anything */
    if (!end ||
        sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &state, &started) != 2)
        return 0;
    return state == 'Z' ? 0 : started;
}

/* The number that the kernel gave this boot of this machine; "-": unknown. */
static void read_boot(char boot[40])
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || fscanf(f, "%39s", boot) != 1)
        snprintf(boot, 40, "-");
    if (f)
        fclose(f);
}

void leash_offer(int turn)
{
    char text[128], boot[40];
    read_boot(boot);
    snprintf(text, sizeof text, "%ld %llu %s %d", (long)getpid(), start_of(getpid()), boot, turn);
    setenv(env_table[ENV_SHARDLINE_LAUNCHER].name, text, 1);
}

int leash_turn(void)
{
    const char *text = env_get(ENV_SHARDLINE_LAUNCHER);
    int turn = 0;
    return text && sscanf(text, "%*d %*u %*s %d", &turn) == 1 ? turn : 0;
}

static void *wait_for_end(void *arg)
{
    static const struct timespec nap = { 0, LOOK_MS * 1000000L };
    const struct process p = *(struct process *)arg;
    free(arg);
    struct pollfd f = { .fd = (int)syscall(SYS_pidfd_open, p.pid, 0), .events = POLLIN };
    while (start_of(p.pid) == p.started)
        if (f.fd < 0)
            nanosleep(&nap, NULL);
        else
            poll(&f, 1, -1);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* The first process, as it announced itself, on this machine. 0: there is none. */
static int read_offer(struct process *p)
{
    const char *text = env_get(ENV_SHARDLINE_LAUNCHER);
    char boot[40];
    if (!text || sscanf(text, "%ld %llu %39s", &p->pid, &p->started, p->boot) != 3 || !p->started)
        return 0;
    read_boot(boot);
    return !strcmp(boot, p->boot);
}

long leash_holder(void)
{
    struct process p;
    return read_offer(&p) && start_of(p.pid) == p.started ? p.pid : 0;
}

int leash_hold(struct err *e)
{
    struct process p, *arg;
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    if (!read_offer(&p))
        return 0;
    if (!(arg = malloc(sizeof *arg)))
        return err_set(e, ERR_MEMORY, "no memory for a thread");
    *arg = p;
    launcher = p.pid;

    /* other threads take the signals of this process */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int rc = pthread_create(&thread, &attr, wait_for_end, arg);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc)
        return 0;
    free(arg);
    return err_set(e, ERR_MEMORY, "cannot start a thread: %s", strerror(rc));
}

void leash_tell(void)
{
    if (launcher)
        kill((pid_t)launcher, LEASH_TOLD);
}

void leash_ask(void)
{
    if (launcher)
        kill((pid_t)launcher, LEASH_ASKED);
}

/* pack_writer.c - see pack_writer.h. */
#define _GNU_SOURCE /* environ */
#include "serve/cache/pack_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/io.h"

#define NICE 5    /* steps go first where CPUs are few */
#define NAP_MS 50 /* how soon an end of the server is noticed */

struct cache_write {
    struct cache_order o;
    struct log log; /* of the thread: lines only */
    const struct pool *pool;
    pthread_t thread;
    volatile sig_atomic_t stop;
};

/* ---- the program that converts ---- */

/* reshard lies beside this program. 0: it does not. */
static int find_reshard(char path[CACHE_PATH])
{
    static const char name[] = "reshard";
    const ssize_t n = readlink("/proc/self/exe", path, CACHE_PATH - sizeof name);
    if (n <= 0)
        return 0;
    path[n] = 0;
    char *end = strrchr(path, '/');
    if (!end)
        return 0;
    memcpy(end + 1, name, sizeof name);
    return io_is_file(path);
}

/* The environment without what makes a program a rank of a job. The caller frees the list. */
static char **own_environment(void)
{
    static const char *const of_launchers[] = {
        "OMPI_", "PMIX_", "PMI_", "SLURM_", "SHARDLINE_LAUNCHER=", "SHARDLINE_STDERR_TTY="
    };
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **out = calloc(n + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++) {
        int drop = 0;
        for (size_t k = 0; k < sizeof of_launchers / sizeof *of_launchers; k++)
            drop |= !strncmp(environ[i], of_launchers[k], strlen(of_launchers[k]));
        if (!drop)
            out[kept++] = environ[i];
    }
    return out;
}

/* Starts it with stderr at fd, in a process group of its own: signals of the terminal are the server's. */
static int spawn(pid_t *pid, char *const *args, int fd, struct err *e)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    char **env = own_environment();
    int why = ENOMEM;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, fd, 2);
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    if (env)
        why = posix_spawn(pid, args[0], &files, &how, args, env);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    free(env);
    return why ? err_set(e, ERR_FILE, "%s cannot be started: %s", args[0], strerror(why)) : 0;
}

/* Reads the output of reshard until it exits, and keeps the last line. Ends reshard when the server ends. */
static void read_lines(struct cache_write *w, pid_t pid, int fd, char *last, size_t size)
{
    char buf[1024];
    size_t n = 0;
    int told = 0;
    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (w->stop && !told)
            told = kill(pid, SIGTERM) == 0;
        if (poll(&p, 1, NAP_MS) <= 0)
            continue;
        const ssize_t got = read(fd, buf, sizeof buf);
        if (got <= 0)
            return;
        for (ssize_t i = 0; i < got; i++) {
            if (n && last[n - 1] == '\n')
                n = 0;
            if (n + 1 < size)
                last[n++] = buf[i];
            last[n] = 0;
        }
    }
}

static int convert(struct cache_write *w, const char *to, struct err *e)
{
    char program[CACHE_PATH], last[900] = "";
    const char *args[16] = { program, "--format", "serve", "--weights-only", "--threads", "1" };
    int pipe_of[2], status = 0, n = 6;
    pid_t pid;
    if (!find_reshard(program))
        return err_set(e, ERR_FILE,
                       "there is no reshard beside this program, which makes the files: install it there");
    if (w->o.dequantize) {
        args[n++] = "--dequantize";
        args[n++] = w->o.dequantize;
    }
    if (w->o.cache->kind == CACHE_B12) {
        args[n++] = "--quantize";
        args[n++] = "b12";
    }
    args[n++] = w->o.source;
    args[n++] = to;
    if (pipe2(pipe_of, O_CLOEXEC) < 0)
        return err_sys(e, "no pipe");
    int rc = spawn(&pid, (char *const *)args, pipe_of[1], e);
    close(pipe_of[1]);
    if (rc >= 0) {
        setpriority(PRIO_PROCESS, (id_t)pid, NICE);
        read_lines(w, pid, pipe_of[0], last, sizeof last);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        last[strcspn(last, "\n")] = 0;
        rc = status ? err_set(e, ERR_FILE, "%s", *last ? last : "reshard ended without a line") : 0;
    }
    close(pipe_of[0]);
    return rc;
}

/* ---- the thread ---- */

/* Waits until the source has been left alone for a while. 0: the server ends. */
static int wait_quiet(const struct cache_write *w)
{
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        const int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
        if (w->stop || ns - w->o.mark.newest_ns >= CACHE_QUIET_NS)
            return !w->stop;
        nanosleep(&(struct timespec){ .tv_nsec = NAP_MS * 1000000L }, NULL);
    }
}

/* 1: the files of the source are unchanged since the server opened them. */
static int is_same(const struct cache_write *w)
{
    struct cache_mark now;
    struct err ignored;
    return cache_mark(&now, w->o.source, &ignored) >= 0 && !strcmp(now.hex, w->o.mark.hex);
}

static int make(struct cache_write *w, struct err *e)
{
    char made[CACHE_NAME], to[CACHE_PATH], name[CACHE_NAME];
    const struct cache *c = w->o.cache;
    cache_packing(c, &w->o.mark, made);
    if (!cache_path(c, made, to))
        return err_set(e, ERR_FILE, "%s: its name is too long", c->dir);
    if (!io_is_dir(to)) {
        if (!cache_make_room(c, w->o.bytes))
            return err_set(e, ERR_SPACE, "there is no space for %lld MiB: raise --cache-size, or free some",
                           (long long)(w->o.bytes >> 20));
        int rc = convert(w, to, e);
        if (rc < 0)
            return rc;
    }
    if (!is_same(w)) {
        struct err ignored;
        io_remove_tree(to, &ignored);
        return err_set(e, ERR_FILE, "%s has changed meanwhile", w->o.source);
    }
    return cache_take_in(c, &w->o.mark, name, e);
}

static void *run(void *arg)
{
    struct cache_write *w = arg;
    struct err e = { 0 };
    pool_unpin_self(w->pool);
    if (wait_quiet(w) && make(w, &e) < 0 && !w->stop)
        log_line(&w->log, "--cache %s: these weights are not kept: %s", w->o.cache->dir, e.text);
    return NULL;
}

int cache_write_open(struct cache_write **out, const struct cache_order *o, const struct log *log,
                     const struct pool *pool, struct err *e)
{
    struct cache_write *w = *out = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory for --cache");
    *w = (struct cache_write){ .o = *o, .log = *log, .pool = pool };
    w->log.quiet = 0;
    if (pthread_create(&w->thread, NULL, run, w) == 0)
        return 0;
    free(w);
    *out = NULL;
    return err_set(e, ERR_MEMORY, "no thread for --cache: raise the limit of processes");
}

void cache_write_close(struct cache_write *w)
{
    if (!w)
        return;
    w->stop = 1;
    pthread_join(w->thread, NULL);
    free(w);
}

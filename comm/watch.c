/* watch.c - see watch.h.
 *
 * Death: a pidfd per rank becomes readable at once, and a process id that is used again does not deceive it.
 * Silence: every BEAT_MS each thread writes the time on the board and reads the times of the others. A rank
 * that computes for minutes still beats; a stopped one (SIGSTOP) does not. After a gap in its own beats (the
 * machine or the job was suspended) a thread first gives the others time. The first thread that detects a
 * failure prints the line; it kills a stopped rank, which could not exit otherwise. */
#define _GNU_SOURCE
#include "comm/watch.h"
#include "base/clock.h"
#include "base/env.h"
#include "comm/launch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BEAT_MS 200
#define STOPPED_NS (5 * SECOND_NS) /* silence after which a process in state T is lost */
#define SILENT_NS (30 * SECOND_NS) /* in any other state: its thread may only be starved of time */
#define GAP_NS SECOND_NS           /* a gap in this thread's own beats: the process was suspended */
#define GRACE_NS (4 * SECOND_NS)   /* from a failure to the end of this process, if main does not end it */
#define AGAIN_NS SECOND_NS         /* a second signal within this time is the same request, sent twice */

enum { FD_STOP, FD_SIGNAL, FD_PEERS };

struct watch {
    struct failure_board *board;
    int rank, n_fds;
    pthread_t thread;
    struct pollfd *fd; /* FD_PEERS + r: pidfd of rank r, or -1 */
    char *exited;      /* [n_ranks] 1: its exit was noticed */
    int64_t last_ns, resumed_ns, failed_ns, signal_ns;
    _Atomic(const char *) end_line; /* see watch_end_on_stop */
    _Atomic(const char *) answer;   /* see watch_answer_stop */
    int quiet;                      /* SHARDLINE_HEARTBEAT=off: silence is no failure (under a debugger) */
};

static void wanted_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR1);
}

void watch_block_signals(void)
{
    sigset_t set;
    wanted_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

char watch_process_state(int pid)
{
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* the name in front may hold anything */
    return end && end[1] == ' ' ? end[2] : 0;
}

/* Writes a failure on the board, and on stderr when no rank has printed one. Returns 1 when this thread was
 * first. */
static int fail(struct watch *w, const char *text)
{
    int first = failure_board_fail(w->board, text);
    if (first && failure_board_claim_report(w->board))
        dprintf(2, "%s: %s\n", program_invocation_short_name, text);
    return first;
}

static void see_death(struct watch *w, int r)
{
    struct failure_board_rank *p = &w->board->rank[r];
    char text[128];
    w->exited[r] = 1;
    if (w->fd[FD_PEERS + r].fd >= 0)
        close(w->fd[FD_PEERS + r].fd);
    w->fd[FD_PEERS + r].fd = -1; /* poll skips it */
    if (atomic_load(&p->state) == BOARD_CLOSED)
        return;
    snprintf(text, sizeof text, "rank %d died (process %d)", p->world_rank, p->pid);
    fail(w, text);
}

/* Looks for a pidfd that became readable; without pidfds (an old kernel) looks into /proc. */
static void look_for_deaths(struct watch *w)
{
    for (int r = 0; r < w->board->n_ranks; r++) {
        struct pollfd *f = &w->fd[FD_PEERS + r];
        if (r == w->rank || w->exited[r])
            continue;
        char state = f->fd == -1 ? watch_process_state(w->board->rank[r].pid) : 'S';
        if ((f->fd >= 0 && f->revents) || state == 0 || state == 'Z')
            see_death(w, r);
    }
}

static void see_silence(struct watch *w, int r, int64_t now)
{
    struct failure_board_rank *p = &w->board->rank[r];
    int64_t last = atomic_load(&p->beat_ns), since = now - (last > w->resumed_ns ? last : w->resumed_ns);
    if (r == w->rank || w->exited[r] || since < STOPPED_NS || atomic_load(&p->state) == BOARD_CLOSED)
        return;
    char state = watch_process_state(p->pid), text[160];
    if (state == 't' || (state != 'T' && since < SILENT_NS)) /* t: under a debugger */
        return;
    snprintf(text, sizeof text, "rank %d does not answer for %d s (process %d, state %c); stopping all ranks",
             p->world_rank, (int)(since / SECOND_NS), p->pid, state ? state : '?');
    if (!fail(w, text))
        return;
    if (w->fd[FD_PEERS + r].fd >= 0)
        syscall(SYS_pidfd_send_signal, w->fd[FD_PEERS + r].fd, SIGKILL, NULL, 0);
    else if (state)
        kill(p->pid, SIGKILL);
}

static void beat(struct watch *w, int64_t now)
{
    if (now - w->last_ns > GAP_NS)
        w->resumed_ns = now;
    w->last_ns = now;
    atomic_store(&w->board->rank[w->rank].beat_ns, now);
    if (w->quiet || w->resumed_ns == now)
        return;
    for (int r = 0; r < w->board->n_ranks; r++)
        see_silence(w, r, now);
}

/* The main threads act on the request later: after a step that may take minutes. */
static void answer_stop(struct watch *w)
{
    const char *line = atomic_load(&w->answer), *clear = launch_stderr_is_tty() ? "\r\033[K" : "";
    if (line && !atomic_load(&w->end_line) && w->board->rank[0].world_rank == 0)
        dprintf(2, "%s%s: %s\n", clear, program_invocation_short_name, line);
}

/* Takes a signal. A launcher that stops the job because a rank died sends SIGTERM too; then the death is on
 * the board already. */
static void take_signal(struct watch *w, int64_t now)
{
    struct signalfd_siginfo info;
    if (read(w->fd[FD_SIGNAL].fd, &info, sizeof info) != sizeof info || atomic_load(&w->board->failed))
        return;
    int sig = info.ssi_signo == SIGUSR1 ? SIGTERM : (int)info.ssi_signo, none = 0;
    int by_hand = info.ssi_code == SI_KERNEL; /* the terminal sent it (Ctrl-C), no process */
    if (w->signal_ns && (by_hand || now - w->signal_ns > AGAIN_NS))
        _exit(128 + sig); /* the second request: end at once */
    if (!w->signal_ns)
        w->signal_ns = now;
    if (atomic_compare_exchange_strong(&w->board->stop_signal, &none, sig))
        answer_stop(w);
}

/* A stop request that came to any rank of this machine, while there is nothing to save. */
static void end_on_stop(struct watch *w)
{
    const char *line = atomic_load(&w->end_line);
    if (!line || !atomic_load(&w->board->stop_signal))
        return;
    fail(w, line);
    _exit(err_exit_status(ERR_STOPPED));
}

static void enforce_end(struct watch *w, int64_t now)
{
    struct err e;
    if (!atomic_load(&w->board->failed) || w->board->n_ranks == 1)
        return;
    if (!w->failed_ns)
        w->failed_ns = now;
    if (now - w->failed_ns <= GRACE_NS)
        return;

    /* main computes, or hangs in a library */
    if (failure_board_claim_report(w->board)) {
        failure_board_check(w->board, &e);
        dprintf(2, "%s: %s\n", program_invocation_short_name, e.text);
    }
    _exit(err_exit_status(ERR_PEER));
}

static void *run(void *arg)
{
    struct watch *w = arg;
    while (!w->fd[FD_STOP].revents) {
        for (int i = 0; i < w->n_fds; i++)
            w->fd[i].revents = 0;
        poll(w->fd, (nfds_t)w->n_fds, BEAT_MS);
        int64_t now = clock_ns();
        look_for_deaths(w);
        if (w->fd[FD_SIGNAL].revents)
            take_signal(w, now);
        end_on_stop(w);
        beat(w, now);
        enforce_end(w, now);
    }
    return NULL;
}

static int open_fds(struct watch *w, struct err *e)
{
    sigset_t set;
    wanted_signals(&set);
    w->n_fds = FD_PEERS + w->board->n_ranks;
    w->fd = calloc((size_t)w->n_fds, sizeof *w->fd);
    w->exited = calloc((size_t)w->board->n_ranks, 1);
    for (int i = 0; w->fd && i < w->n_fds; i++)
        w->fd[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
    if (!w->fd || !w->exited)
        return err_set(e, ERR_MEMORY, "no memory for watching %d ranks", w->board->n_ranks);
    w->fd[FD_STOP].fd = eventfd(0, EFD_CLOEXEC);
    w->fd[FD_SIGNAL].fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (w->fd[FD_STOP].fd < 0 || w->fd[FD_SIGNAL].fd < 0)
        return err_sys(e, "cannot watch signals");
    for (int r = 0; r < w->board->n_ranks; r++)
        if (r != w->rank)
            w->fd[FD_PEERS + r].fd = (int)syscall(SYS_pidfd_open, w->board->rank[r].pid, 0);
    return 0;
}

static void close_fds(struct watch *w)
{
    for (int i = 0; w->fd && i < w->n_fds; i++)
        if (w->fd[i].fd >= 0)
            close(w->fd[i].fd);
    free(w->fd);
    free(w->exited);
}

int watch_open(struct watch **out, struct failure_board *b, int rank, struct err *e)
{
    const char *mode = env_get(ENV_SHARDLINE_HEARTBEAT);
    struct watch *w = calloc(1, sizeof *w);
    int rc = 0, n = 0;
    *out = NULL;
    if (!w)
        return err_set(e, ERR_MEMORY, "no memory for the watch thread");
    w->board = b;
    w->rank = rank;
    w->quiet = mode && !strcmp(mode, "off");
    w->last_ns = w->resumed_ns = clock_ns();
    atomic_store(&b->rank[rank].beat_ns, w->last_ns);
    TRY(open_fds(w, e));
    if ((n = pthread_create(&w->thread, NULL, run, w)) != 0) {
        errno = n;
        rc = err_sys(e, "cannot start the watch thread");
        goto out;
    }
    *out = w;
    return 0;
out:
    close_fds(w);
    free(w);
    return rc;
}

void watch_end_on_stop(struct watch *w, const char *line) { atomic_store(&w->end_line, line); }

void watch_answer_stop(struct watch *w, const char *line) { atomic_store(&w->answer, line); }

void watch_close(struct watch *w)
{
    uint64_t one = 1;
    if (!w)
        return;
    while (write(w->fd[FD_STOP].fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(w->thread, NULL);
    close_fds(w);
    free(w);
}

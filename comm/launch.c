/* launch.c - see launch.h.
 *
 *   ptrain --ranks 4           this process stays as the parent, in the user's terminal
 *     mpirun -q -n 4 ptrain    in a process group of its own: signals reach it only through the parent
 *       ptrain x 4             end with mpirun (PR_SET_PDEATHSIG) and with the parent (leash.c)
 *
 * Why a parent and not exec alone: mpirun answers SIGTERM by killing the ranks after a fixed time, and always
 * waits that time. The parent sends SIGUSR1 instead, once all ranks can take it, and mpirun passes it on:
 * ranks treat it as a request to stop, save as long as it takes, and exit. mpirun's own time can then be
 * short, so that a rank that died ends the job at once. */
#define _GNU_SOURCE
#include "comm/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "comm/bootstrap.h"
#include "comm/comm.h"
#include "comm/leash.h"
#include "comm/watch.h"

#define FIXED_ARGS 10
#define LOST_S 8   /* seconds that mpirun may take to notice that its ranks have exited */
#define UNSEEN_S 5 /* seconds that a stop request waits for ranks that are not visible */
#define SLOW_S 20  /* seconds that it waits for visible ranks, on a busy machine */

int launch_under_launcher(void)
{
    return env_get(ENV_PMIX_RANK) || env_get(ENV_OMPI_COMM_WORLD_SIZE) || env_get(ENV_PMI_RANK);
}

long launch_parent(void)
{
    const char *text = env_get(ENV_SHARDLINE_LAUNCHER);
    return launch_under_launcher() && text ? atol(text) : 0;
}

int launch_turn(void) { return launch_under_launcher() ? leash_turn() : 0; }

int launch_is_ours(void) { return !launch_under_launcher() || env_get(ENV_SHARDLINE_STDERR_TTY); }

/* This process among those of the launcher; 0: or there is none. */
static int rank_here(void)
{
    const char *rank = env_get(ENV_OMPI_COMM_WORLD_RANK);
    if (!rank)
        rank = env_get(ENV_PMIX_RANK);
    return rank ? atoi(rank) : 0;
}

int launch_report(const struct err *e, const char *program)
{
    const int rank = rank_here(), is_own = e->code == ERR_MEMORY || e->code == ERR_INTERNAL;
    struct err line = *e;

    if (rank && (!is_own || bootstrap_has_agreed()))
        return err_exit_status(e->code);
    if (rank)
        comm_name_rank(&line, rank);
    leash_tell();
    return err_print(&line, program);
}

int launch_stderr_is_tty(void)
{
    const char *v = env_get(ENV_SHARDLINE_STDERR_TTY);
    return v ? *v == '1' : isatty(2);
}

/* Keeps what the user has set. pml and btl: on one machine the search for networks costs 0.2 s.
 * exit_without_sync: mpirun of Open MPI 4.1 sometimes misses that a rank has called MPI_Finalize (its issue
 * 7833), and would end with status 1 and, as it is quiet, no message. A rank that exits too early is seen by
 * the others (watch.h). */
static void set_environment(void)
{
    static const char *const set[][2] = {
        { "OMPI_ALLOW_RUN_AS_ROOT", "1" },
        { "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1" },
        { "OMPI_MCA_pml", "ob1" },
        { "OMPI_MCA_btl", "self,vader,tcp" },
        { "OMPI_MCA_btl_vader_single_copy_mechanism", "none" },
        { "OMPI_MCA_osc", "^ucx" },
        { "OMPI_MCA_odls_base_sigkill_timeout", "1" },
        { "OMPI_MCA_orte_allowed_exit_without_sync", "1" },
    };
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        setenv(set[i][0], set[i][1], 0);
    setenv(env_table[ENV_SHARDLINE_STDERR_TTY].name, isatty(2) ? "1" : "0", 1);
}

/* The child: a process group of its own, default signals, no terminal to read from. Writes errno into fd when
 * exec fails. */
static void run_mpirun(char **argv, const sigset_t *before, pid_t parent, int fd)
{
    sigprocmask(SIG_SETMASK, before, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* killed before the line above */
        _exit(128 + SIGTERM);
    if (isatty(0)) {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0)
            dup2(null, 0);
    }
    execvp(argv[0], argv);
    int why = errno;
    if (write(fd, &why, sizeof why) < 0)
        _exit(126);
    _exit(127);
}

/* The ranks that mpirun has started: how many, how many of them have exited, how many block SIGUSR1 (watch.h)
 * and so can take it. status: of one that has exited and failed; 0: none has. */
struct started {
    int all, ended, ready, status;
    int same; /* of this process's session */
};

/* An exit status as a shell has it, of what waitpid() says. */
static int exit_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* That of a process that has exited and that its parent has not waited for: the last number of its line in
 * /proc. */
static int status_of_ended(long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *last = strrchr(text, ' ');
    return last ? exit_status(atoi(last + 1)) : 0;
}

static void look_at(struct started *s, long pid)
{
    char path[64], text[4096] = { 0 };
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    const char *state = n > 0 ? strstr(text, "\nState:\t") : NULL,
               *held = n > 0 ? strstr(text, "\nSigBlk:\t") : NULL;
    int ended = state && state[8] == 'Z';
    s->all++;
    s->ended += ended;
    if (ended && !s->status)
        s->status = status_of_ended(pid);
    s->same += getsid((pid_t)pid) == getsid(0);
    s->ready += !ended && held && (strtoull(held + 9, NULL, 16) >> (SIGUSR1 - 1) & 1);
}

/* Adds the ranks that one thread of mpirun started. */
static void look_at_children(struct started *s, const char *path)
{
    long pid;
    FILE *f = fopen(path, "re");
    while (f && fscanf(f, "%ld", &pid) == 1)
        look_at(s, pid);
    if (f)
        fclose(f);
}

static struct started started_by(pid_t mpirun)
{
    char path[300];
    struct started s = { 0 };
    struct dirent *t;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)mpirun);
    DIR *d = opendir(path);
    while (d && (t = readdir(d))) {
        if (t->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%ld/task/%.20s/children", (long)mpirun, t->d_name);
        look_at_children(&s, path);
    }
    if (d)
        closedir(d);
    return s;
}

/* 1 when all ranks of mpirun have exited. mpirun of Open MPI 4.1 can hang when a rank dies while it connects,
 * and ignores SIGTERM then. */
static int all_exited(const struct started *s, int *had)
{
    *had |= s->all > 0;
    return *had && s->ended == s->all;
}

/* 1 when stdout or stderr, which mpirun shares, is full: its reader, a pager or a stopped terminal, has not
 * read all output of the ranks, so mpirun has a reason to stay. */
static int output_waits(void)
{
    struct pollfd out[] = { { 1, POLLOUT, 0 }, { 2, POLLOUT, 0 } };
    return poll(out, 2, 0) < 2;
}

/* A set of ranks. */
struct job {
    pid_t pid; /* of mpirun; 0: none */
    int ranks, turn;
    int had;           /* 1: ranks were seen */
    int told;          /* why it fails is known: the line is printed, or the user wants it */
    int64_t lost_ns;   /* since when mpirun has not noticed that the ranks have exited; 0: it has */
    int lost;          /* 1: it never did, and `status` is that of the ranks */
    int ended, status; /* 1: mpirun has exited, with this status */
};

/* What signals have said: the user's request to stop the job. */
struct heard {
    int64_t since_ns; /* of the first request; 0: none */
    int due;          /* the ranks do not have it yet */
    int forced;       /* a second request has ended mpirun */
    int had_terminal; /* at the start */
};

/* Handles a signal. The first request is for the ranks; a second one, a second later or typed by hand, for
 * mpirun. An mpirun whose ranks have exited gets no SIGTERM: it is ending, and Open MPI 4.1 crashes of it.
 * exited: all ranks have; mpirun is ended then where it stays only for a reader of its output. */
static void take_signal(struct heard *q, const siginfo_t *sig, struct job *job, int64_t now, int exited)
{
    const int by_hand = sig->si_code == SI_KERNEL; /* the terminal sent it (Ctrl-C), no process */
    if (!q->since_ns || sig->si_signo == SIGUSR1)
        q->due = 1;
    else if ((by_hand || now - q->since_ns > SECOND_NS) && (!exited || output_waits())) {
        if (!job->ended)
            kill(job->pid, exited ? SIGKILL : SIGTERM);
        job->told = q->forced = 1;
    }
    q->since_ns = q->since_ns ? q->since_ns : now;
}

/* Sends a due request once all ranks can take it: before, SIGUSR1 would end an mpirun that is not ready to
 * pass it on, or a rank that does not block it yet, or get lost between the two. The wait has a limit,
 * because mpirun may start ranks where this process does not see them. */
static void send_request(struct heard *q, const struct started *s, int ranks, pid_t mpirun, int64_t now)
{
    const int64_t limit_s = s->all < ranks ? UNSEEN_S : SLOW_S;
    if (!q->due || (s->ready < ranks && now - q->since_ns < limit_s * SECOND_NS))
        return;
    q->due = 0;
    kill(mpirun, SIGUSR1);
}

/* 1: there is a terminal that controls this process. */
static int has_terminal(void)
{
    const int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    const int has = fd >= 0 || errno != ENXIO;
    if (fd >= 0)
        close(fd);
    return has;
}

/* 1: SIGHUP says that the terminal is gone, which asks to stop. The kernel sends it to the foreground job, a
 * shell to the others, by kill(). */
static int is_from_terminal(const siginfo_t *info, const struct heard *q)
{
    return info->si_code == SI_KERNEL || (q->had_terminal && !has_terminal());
}

struct launcher {
    const struct launch_keeper *k; /* or NULL */
    char **argv;                   /* of the user */
    char self[4096];               /* this program */
    sigset_t set, before;          /* signals that are waited for; blocked before */
    struct heard heard;
    struct job job, early; /* early: waits for its turn */
};

/* The arguments of mpirun, malloc'd; those of l, and count, are borrowed. */
static char **make_args(struct launcher *l, const struct launch_next *next, char *count)
{
    static char fixed[][16] = { "mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-n" };
    size_t n = 0, m = 0, i = 0;
    while (l->argv[n])
        n++;
    while (next->more && next->more[m])
        m++;

    char **a = calloc(FIXED_ARGS + n + m, sizeof *a);
    if (!a)
        return NULL;

    for (; i < sizeof fixed / sizeof *fixed; i++)
        a[i] = fixed[i];
    sprintf(count, "%d", next->ranks);
    a[i++] = count;
    a[i++] = l->self;
    for (size_t k = 1; k < n; k++)
        a[i++] = l->argv[k];
    for (size_t k = 0; k < m; k++)
        a[i++] = next->more[k];
    return a;
}

/* Starts mpirun. -1, with errno set: it could not be started. */
static int start_job(struct launcher *l, const struct launch_next *next, struct job *job)
{
    int failed[2], why = 0;
    char count[16], **args = make_args(l, next, count);
    if (!args || pipe2(failed, O_CLOEXEC) < 0) {
        free(args);
        return -1;
    }

    leash_offer(next->turn);
    const pid_t self = getpid();
    pid_t pid = fork();
    if (pid == 0)
        run_mpirun(args, &l->before, self, failed[1]);
    why = errno;
    close(failed[1]);
    free(args);

    /* the pipe ends without a byte when exec succeeded */
    const int is_there = pid > 0 && read(failed[0], &why, sizeof why) == 0;
    close(failed[0]);
    *job = (struct job){ .pid = pid, .ranks = next->ranks, .turn = next->turn };
    if (is_there)
        return 0;
    if (pid > 0)
        waitpid(pid, NULL, 0);
    *job = (struct job){ 0 };
    errno = why;
    return -1;
}

/* ---- a job's end ---- */

/* Takes the children that have ended. */
static void reap(struct launcher *l)
{
    int status;
    pid_t p;
    while ((p = waitpid(-1, &status, WNOHANG)) > 0) {
        struct job *j = p == l->job.pid ? &l->job : p == l->early.pid ? &l->early : NULL;
        if (j) {
            j->ended = 1;
            j->status = j->lost ? j->status : exit_status(status);
        } else if (l->k && l->k->ended) {
            l->k->ended(l->k->ctx, (long)p);
        }
    }
}

/* Waits for children that mpirun left behind (ranks it killed and did not wait for): this process is their
 * new parent, and the last of them exit within moments. Children that left this session stay, and so do early
 * ranks. */
static void reap_left_over(struct launcher *l)
{
    static const struct timespec nap = { 0, 10000000 };
    for (int i = 0; i < 200; i++) {
        reap(l);
        if (started_by(getpid()).same <= (l->early.pid && !l->early.ended))
            return;
        nanosleep(&nap, NULL);
    }
}

/* Early ranks that have no turn any more are told so, and end; they get some time for it. Their mpirun may
 * miss that they have ended, and ignores SIGTERM then. */
static void see_early_off(struct launcher *l)
{
    static const struct timespec nap = { 0, 10000000 };
    for (int i = 0; l->early.pid && !l->early.ended && i < 300; i++) {
        reap(l);
        nanosleep(&nap, NULL);
    }
    if (l->early.pid && !l->early.ended)
        kill(l->early.pid, SIGKILL);
}

static void start_early(struct launcher *l)
{
    struct launch_next n = { 0 };
    if (l->job.ended || (l->early.pid && !l->early.ended) || !l->k || !l->k->early ||
        !l->k->early(l->k->ctx, &n))
        return;
    start_job(l, &n, &l->early); /* where it fails, they are started at their turn */
}

/* mpirun may miss that its ranks have exited: after LOST_S seconds it is ended, and their status counts. */
static void look_for_lost(struct job *j, const struct started *s, int is_lost, int64_t now)
{
    if (!is_lost)
        j->lost_ns = 0;
    else if (!j->lost_ns)
        j->lost_ns = now;
    if (!j->lost_ns || now - j->lost_ns <= LOST_S * SECOND_NS)
        return;
    kill(j->pid, SIGKILL);
    j->lost_ns = 0;
    j->lost = s->all == j->ranks; /* else it has waited for some, and their status is not known */
    j->status = s->status;
    if (!j->lost || j->status) {
        fprintf(stderr, "the ranks are dead and mpirun does not notice: it is ended\n");
        j->told = 1;
    }
}

/* Looks at the ranks of a job. 1: all have exited. */
static int look_at_job(struct job *j, struct started *s, int64_t now)
{
    *s = started_by(j->pid);
    const int exited = all_exited(s, &j->had);
    look_for_lost(j, s, exited && !output_waits(), now);
    return exited;
}

/* Handles a signal that was taken; also one that came when the job had ended: it is for the next one. */
static void handle(struct launcher *l, int sig, const siginfo_t *info, int64_t now, int exited)
{
    const struct launch_keeper *k = l->k;
    if (sig == LEASH_TOLD) /* a rank of either job */
        l->job.told = l->early.told = 1;
    else if (sig == SIGHUP && k && k->hangup && !is_from_terminal(info, &l->heard))
        k->hangup(k->ctx);
    else if (sig == LEASH_ASKED)
        start_early(l);
    else if (sig > 0 && sig != SIGCHLD)
        take_signal(&l->heard, info, &l->job, now, exited);
}

/* Waits until the job's mpirun exits; returns its exit status. */
static int wait_for(struct launcher *l)
{
    static const struct timespec second = { 1, 0 }, soon = { 0, 20000000 }, now_or_never = { 0, 0 };
    const struct launch_keeper *k = l->k;
    struct started s = { 0 }, early;
    for (;;) {
        siginfo_t info = { 0 };
        reap(l);
        if (k && k->tick)
            k->tick(k->ctx);
        const struct timespec *most = l->heard.due ? &soon : &second;
        const int sig = sigtimedwait(&l->set, &info, l->job.ended ? &now_or_never : most);
        reap(l);

        const int64_t now = clock_ns();
        const int exited = l->job.ended || look_at_job(&l->job, &s, now);
        if (l->early.pid && !l->early.ended)
            look_at_job(&l->early, &early, now);
        handle(l, sig, &info, now, exited);
        if (l->job.ended && sig <= 0) /* no signal waits any more */
            return l->job.status;
        if (!l->job.ended)
            send_request(&l->heard, &s, l->job.ranks, l->job.pid, now);
    }
}

int launch_is_failure(int status) { return status != 0 && status != 2; }

/* Signals wait until they are asked for; the processes that a dead child leaves become this one's. */
static void take_signals(sigset_t *set, sigset_t *before)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGCHLD);
    sigaddset(set, LEASH_TOLD);
    sigaddset(set, LEASH_ASKED);
    sigprocmask(SIG_BLOCK, set, before);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* Prints a line where a job failed and no rank has said why; not where a job that was asked to stop was ended
 * by a signal. */
static void report_silence(const struct heard *q, struct job *job)
{
    static const struct timespec now = { 0 };
    const char *name = program_invocation_short_name;
    const int status = job->status;
    sigset_t told;

    sigemptyset(&told);
    sigaddset(&told, LEASH_TOLD);
    job->told |= sigtimedwait(&told, NULL, &now) == LEASH_TOLD;
    if (!launch_is_failure(status) || job->told || (q->since_ns && status > 128))
        return;
    if (status > 128)
        fprintf(stderr, "%s: a rank was ended by signal %d (%s) before it could say why\n", name,
                status - 128, strsignal(status - 128));
    else
        fprintf(
            stderr,
            "%s: mpirun ended with status %d and no rank has said why: start `mpirun -n %d %s …` to see its "
            "messages\n",
            name, status, job->ranks, name);
}

/* The job that follows: the early one, or one that is started now. */
static int start_next(struct launcher *l, const struct launch_next *next)
{
    if (!next->turn || next->turn != l->early.turn)
        return start_job(l, &(struct launch_next){ next->ranks, next->more, 0 }, &l->job);
    l->job = l->early;
    l->early = (struct job){ 0 };
    return 0;
}

/* Returns only when mpirun could not be started. */
static int start(int ranks, char **argv, const struct launch_keeper *k, struct err *e)
{
    static struct launcher l;
    struct launch_next next = { ranks, NULL, 0 };
    struct heard *q = &l.heard;
    l.k = k;
    l.argv = argv;
    q->had_terminal = has_terminal();
    if (readlink("/proc/self/exe", l.self, sizeof l.self - 1) < 0)
        return err_sys(e, "cannot start ranks");
    set_environment();
    take_signals(&l.set, &l.before);

    while (start_next(&l, &next) == 0) {
        const int status = wait_for(&l);
        reap_left_over(&l);
        report_silence(q, &l.job);
        if (!k || !k->next(k->ctx, status, (q->since_ns != 0) + q->forced, &next)) {
            see_early_off(&l);
            fflush(NULL);
            _exit(status); /* as if this process had become mpirun */
        }
        next.ranks = next.ranks ? next.ranks : ranks;
        if (q->since_ns) { /* the request is for these ranks, too */
            q->since_ns = clock_ns();
            q->due = 1;
        }
    }
    err_sys(e, "cannot start %d ranks with mpirun (is openmpi-bin installed)", next.ranks);
    see_early_off(&l);
    signal(LEASH_ASKED, SIG_IGN); /* one that is pending would end this process without the line */
    sigprocmask(SIG_SETMASK, &l.before, NULL);
    return -e->code;
}

/* What launch_ranks does in a rank. */
static int under_launcher(int ranks, struct err *e)
{
    int have = bootstrap_expected_ranks();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ranks > 0 && have > 0 && have != ranks)
        return err_set(e, ERR_USAGE,
                       "--ranks %d, but the launcher started %d: leave --ranks out, or make them the same",
                       ranks, have);
    watch_block_signals();
    return leash_hold(e);
}

int launch_ranks(int ranks, char **argv, struct err *e) { return launch_ranks_kept(ranks, argv, NULL, e); }

int launch_ranks_kept(int ranks, char **argv, const struct launch_keeper *k, struct err *e)
{
    const char *slurm = env_get(ENV_SLURM_NTASKS);
    if (launch_under_launcher())
        return under_launcher(ranks, e);
    if (slurm && atoi(slurm) > 1)
        return err_set(e, ERR_USAGE,
                       "Slurm gives %s tasks, but they cannot find each other: start with `srun --mpi=pmix`",
                       slurm);
    if (ranks > 1 || k)
        return start(ranks > 1 ? ranks : 1, argv, k, e);
    watch_block_signals();
    return 0;
}

void launch_ranks_per_node(int n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    if (n > 0)
        setenv(env_table[ENV_SHARDLINE_RANKS_PER_NODE].name, text, 1);
}

/* comm_launch_test.c - the first process of a job beside a stand-in for mpirun: jobs that end, that fail to
 * start and that start early. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/launch.h"
#include "comm/leash.h"
#include "comm/watch.h"
#include "tests/test.h"

enum { RETURNED = 42 }; /* status of a first process whose launch_ranks_kept() returned */

/* What the first process, a child of the test, does and has seen: shared memory. */
static struct seen {
    char dir[200];    /* of the stand-in */
    int stopped[4];   /* of the questions for the next job … */
    int status[4], n; /* … and how many they were */
    int turn[4];      /* answers: 0: no more job; -1: one that starts now */
    int ticks;
    void (*at_end)(void); /* called before an answer; or NULL */
    char why[1024];
} * seen;

static void nap(void)
{
    static const struct timespec t = { 0, 5000000 };
    nanosleep(&t, NULL);
}

/* Waits up to a minute for a file of the stand-in. Its number is the first line. 0: it did not come. */
static int number_in(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", seen->dir, name);
    for (int i = 0, n = 0; i < 12000; i++, nap()) {
        FILE *f = fopen(path, "r");
        int got = f && fscanf(f, "%d\n", &n) == 1;
        if (f)
            fclose(f);
        if (got)
            return n;
    }
    return 0;
}

/* Waits up to a minute until a process has exited. 1: it has. */
static int has_exited(int pid)
{
    for (int i = 0; i < 12000; i++, nap()) {
        char state = watch_process_state(pid);
        if (!state || state == 'Z')
            return 1;
    }
    return 0;
}

static int next(void *ctx, int status, int stopped, struct launch_next *n)
{
    (void)ctx;
    int i = seen->n++;
    seen->stopped[i] = stopped;
    seen->status[i] = status;
    if (seen->at_end)
        seen->at_end();
    *n = (struct launch_next){ 1, NULL, seen->turn[i] > 0 ? seen->turn[i] : 0 };
    return seen->turn[i] != 0;
}

static int early(void *ctx, struct launch_next *n)
{
    (void)ctx;
    *n = (struct launch_next){ 1, NULL, 1 };
    return 1;
}

/* Makes the folder of a stand-in for mpirun. It runs the shell commands `job`, or `early_job` when it is
 * started early and waits for its turn. */
static void stand_in(const char *job, const char *early_job)
{
    static int n;
    char path[300];
    if (!seen)
        seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(seen, 0, sizeof *seen);
    snprintf(seen->dir, sizeof seen->dir, "%s/%d", test_tmp_dir(), n++);
    mkdir(seen->dir, 0700);
    snprintf(path, sizeof path, "%s/mpirun", seen->dir);
    FILE *f = fopen(path, "w");
    fprintf(f,
            "#!/bin/bash\ncd '%s'\necho start >>starts\ncase $SHARDLINE_LAUNCHER in\n*' 0') %s ;;\n*) %s "
            ";;\nesac\n",
            seen->dir, job, early_job);
    fclose(f);
    chmod(path, 0700);
}

/* Runs a first process until it ends; returns what waitpid() says. */
static int first_process(const struct launch_keeper *k)
{
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[] = { (char[]){ "launch_test" }, NULL }, path[400];
        struct err e = { 0 };
        snprintf(path, sizeof path, "%s:%s", seen->dir, getenv("PATH"));
        setenv("PATH", path, 1);
        launch_ranks_kept(1, argv, k, &e);
        snprintf(seen->why, sizeof seen->why, "%s", e.text);
        _exit(RETURNED);
    }
    waitpid(pid, &status, 0);
    return status;
}

/* How often the stand-in was started. */
static int starts(void)
{
    struct stat st;
    char path[300];
    snprintf(path, sizeof path, "%s/starts", seen->dir);
    return stat(path, &st) == 0 ? (int)st.st_size / 6 : 0;
}

/* The job has ended, and this process does not know it yet. */
static void stop_at_the_end(void *ctx)
{
    (void)ctx;
    if (seen->ticks++ == 0 && has_exited(number_in("pid")))
        kill(getpid(), SIGTERM);
}

TEST(a_stop_that_comes_as_a_job_ends_is_not_lost)
{
    const struct launch_keeper k = { .next = next, .tick = stop_at_the_end };
    stand_in("echo $$ >pid; exit 0", "exit 9");
    int status = first_process(&k);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_INT(seen->n, 1);
    CHECK_INT(seen->stopped[0], 1);
}

static void remove_mpirun(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s/mpirun", seen->dir);
    unlink(path);
    setenv("PATH", seen->dir, 1);
    kill(getpid(), LEASH_ASKED);
}

TEST(a_job_that_cannot_be_started_is_an_error_also_while_a_rank_asks_for_an_early_one)
{
    const struct launch_keeper k = { .next = next, .early = early };
    stand_in("exit 0", "exit 9");
    seen->turn[0] = -1;
    seen->at_end = remove_mpirun;
    int status = first_process(&k);
    CHECK(WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), RETURNED);
    CHECK_HAS(seen->why, "cannot start 1 ranks with mpirun");
}

/* A job that asks for an early one and ends when that has begun. */
#define ASKS "kill -USR2 $PPID; until [ -s early ]; do sleep 0.01; done; exit 0"

TEST(early_ranks_are_the_next_job_when_they_have_their_turn)
{
    const struct launch_keeper k = { .next = next, .early = early };
    stand_in(ASKS, "echo $$ >early; until [ -e turn ]; do sleep 0.01; done; exit 5");
    seen->turn[0] = 1;
    char path[300];
    snprintf(path, sizeof path, "%s/turn", seen->dir);
    close(creat(path, 0600));
    int status = first_process(&k);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    CHECK_INT(seen->n, 2);
    CHECK_INT(seen->status[0], 0);
    CHECK_INT(seen->status[1], 5);
    CHECK_INT(starts(), 2);
}

TEST(an_early_mpirun_that_hangs_is_not_left_behind)
{
    const struct launch_keeper k = { .next = next, .early = early };
    stand_in(ASKS, "trap '' TERM; mkfifo never; echo $$ >early; read <>never");
    int status = first_process(&k);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int pid = number_in("early");
    CHECK(pid > 0);
    if (!has_exited(pid)) {
        test_fail(__FILE__, __LINE__, "mpirun %d is left behind", pid);
        kill(pid, SIGKILL);
    }
}

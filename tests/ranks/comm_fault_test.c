/* ranks: 1 2 4 */
/* comm_fault_test.c - a small program whose ranks fail in a chosen way, for tests/cli/train/faults_comm.sh.
 * FAULT names what happens at step 20 on rank FAULT_RANK; without it nothing does. RANKS: how many ranks the
 * program starts itself. */
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "tests/test.h"

struct stage {
    struct world *w;
    struct comm *c;
    struct err e;
    int step;
};

static int number(const char *name, int otherwise)
{
    const char *v = getenv(name);
    return v ? atoi(v) : otherwise;
}

static void compute(double seconds)
{
    for (double end = clock_s() + seconds; clock_s() < end;)
        ;
}

static int nothing(struct stage *s)
{
    (void)s;
    return 0;
}
static int die(struct stage *s)
{
    (void)s;
    return raise(SIGKILL);
}
static int crash(struct stage *s)
{
    (void)s;
    signal(SIGSEGV, SIG_DFL);
    return raise(SIGSEGV);
}
static int stop(struct stage *s)
{
    (void)s;
    return raise(SIGSTOP);
}
static int work_long(struct stage *s)
{
    (void)s;
    compute(8);
    return 0;
}
static int error(struct stage *s) { return err_set(&s->e, ERR_FILE, "data.bin: no such file"); }
static int agree(struct stage *s) { return err_set(&s->e, ERR_FILE, "data.bin: no such file"); }

static int leave(struct stage *s)
{
    (void)s;
    fprintf(stderr, "left without a word\n");
    _exit(3);
}

static int other_call(struct stage *s)
{
    double x[4] = { 0 };
    return comm_broadcast(s->c, x, sizeof x, 0, &s->e);
}

/* Sends so many rows to every rank, and expects one. */
static int exchange(struct stage *s, int64_t n_rows)
{
    int64_t to[4], from[4];
    float in[4 * 4], out[4];
    for (int r = 0; r < comm_size(s->c); r++) {
        to[r] = n_rows;
        from[r] = 1;
    }
    return comm_all_to_all_v(s->c, out, from, in, to, sizeof *in, &s->e);
}
static int one_row(struct stage *s) { return exchange(s, 1); }
static int other_counts(struct stage *s) { return exchange(s, 3); }

/* The named rank does `mine`, the others `theirs`. */
static const struct fault {
    const char *name;
    int (*mine)(struct stage *), (*theirs)(struct stage *);
    int agreed;
} faults[] = {
    { "none", nothing, nothing, 0 },
    { "kill", die, nothing, 0 },
    { "crash", crash, nothing, 0 },
    { "stop", stop, nothing, 0 },
    { "kill-while-others-compute", die, work_long, 0 },
    { "long", work_long, nothing, 0 },
    { "error", error, nothing, 0 },
    { "agreed", agree, nothing, 1 },
    { "leave", leave, nothing, 0 },
    { "other-call", other_call, nothing, 0 },
    { "other-counts", other_counts, one_row, 0 },
};

static const struct fault *fault(void)
{
    const char *name = getenv("FAULT");
    for (size_t i = 0; name && i < sizeof faults / sizeof *faults; i++)
        if (!strcmp(name, faults[i].name))
            return &faults[i];
    return &faults[0];
}

/* Rank r gets r rows of every rank, while the fault happens. */
static int one_step(struct stage *s)
{
    const struct fault *f = fault();
    static float x[1000] = { 1 }, in[4 * 4 * 100], out[4 * 4 * 100];
    struct comm_request *q = NULL;
    int64_t to[4], from[4];
    struct err e;
    int rc, wrong;

    for (int r = 0; r < comm_size(s->c); r++) {
        to[r] = r;
        from[r] = comm_rank(s->c);
    }
    TRY(comm_start_all_to_all_v(&q, s->c, out, from, in, to, 100 * sizeof *in, &s->e));
    wrong = s->step == 20 ? (world_rank(s->w) == number("FAULT_RANK", 0) ? f->mine : f->theirs)(s) : 0;
    e = s->e;
    if (!f->agreed)
        TRY(wrong);
    TRY(comm_finish(&q, &s->e));
    s->e = e;
    if (f->agreed)
        return comm_agree(s->c, wrong, &s->e);
    rc = comm_all_reduce(s->c, x, s->step % 2 ? 1000 : 10, &s->e);
out:
    return rc;
}

/* Steps until STEPS, or until a signal asked for the end and all agree on the step. */
static int run(struct stage *s)
{
    int64_t signal_seen = 0;
    int rc = 0, steps = number("STEPS", 40);
    for (s->step = 0; s->step < steps && !signal_seen; s->step++) {
        TRY(one_step(s));
        if (steps > 1000)
            compute(0.02);
        signal_seen = world_stop_signal(s->w);
        TRY(comm_all_reduce_i64(s->c, &signal_seen, 1, &s->e));
    }
    if (signal_seen) {
        compute(number("SAVE_S", 0));
        fprintf(stderr, "rank %d saved at step %d after signal %d\n", world_rank(s->w), s->step,
                world_stop_signal(s->w));
    }
out:
    return rc;
}

TEST(a_world_goes_wrong_as_it_is_told)
{
    static char name[] = "comm_fault_test";
    char *argv[] = { name, NULL };
    struct stage s = { 0 };
    struct mem mem = { 0 };
    struct mesh m = { 0 };
    int status = 0, size[AXIS_COUNT] = { 1, 1, 1, 1 };
    if (launch_ranks(number("RANKS", 0), argv, &s.e) < 0)
        exit(err_print(&s.e, name));
    if (world_open(&s.w, "auto", 0, NULL, &mem, &s.e) < 0)
        exit(err_print(&s.e, name));
    size[AXIS_TP] = world_size(s.w);
    CHECK_INT(mesh_open(&m, s.w, size, &s.e), 0);
    s.c = m.axis[AXIS_TP];
    if (run(&s) < 0)
        status = world_report(s.w, &s.e, name);
    mesh_close(&m);
    world_close(s.w);
    if (status)
        exit(status);
}

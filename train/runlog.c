/* runlog.c - the run's log: a JSON line a step (cli.md), a live line on the terminal. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/jx.h"
#include "train/trainer.h"

static int64_t rss_bytes(void)
{
    long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lld %lld", &pages, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

#define PEAK_TRIES 12
enum { PEAK_M = 448, PEAK_N = 1024, PEAK_K = 1024 };

size_t runlog_peak_bytes(enum dtype dt)
{
    return (sizeof(float) * PEAK_N + dtype_size(dt) * PEAK_K) * PEAK_M +
           panels_bytes(PEAK_N, PEAK_K, dt, &(struct leaves){ 1, { PEAK_K } });
}

/* The speed of this rank's products in the dtype of the run, measured behind the first step, while every
 * rank measures: what MFU is a share of. A few ms each; the best of a handful, for the machine may be busy.
 * */
static double measure_peak(struct dev *d, enum dtype dt)
{
    enum { M = PEAK_M, N = PEAK_N, K = PEAK_K, LEAST = 3, MOST = 24 };
    struct panels p = { .n = N, .k = K, .dt = dt, .leaves = { 1, { K } } };
    char *memory = dev_alloc(d, MEM_WORK, runlog_peak_bytes(dt)), *y = memory, *x = y + sizeof(float) * M * N;
    double best = 1e9, begin = clock_s();
    p.p = x + dtype_size(dt) * M * K;
    for (int i = 0; memory && i < MOST && (i < LEAST || clock_s() - begin < 0.03); i++) {
        double t = clock_s();
        KERNEL(d, linear, mat_of(y, DT_F32, M, N, N), mat_of(x, dt, M, K, K), &p);
        dev_sync(d);
        t = clock_s() - t;
        best = t < best ? t : best;
    }
    dev_free(d, memory);
    return 2.0 * M * N * K / best;
}

/* The first n bytes of the log take its place, whole or not at all: aside, then renamed. The place is where
 * a link leads. */
static int replace_log(const char *path, const char *text, size_t n, struct err *e)
{
    char *real = realpath(path, NULL), aside[4200];
    int rc = 0;
    if (!real)
        return err_sys(e, "%s: cannot find the log", path);
    snprintf(aside, sizeof aside, "%s.tmp-cut", real);
    TRY(io_unlink(aside, e)); /* of a run that died here */
    TRY(io_write_file(aside, text, n, e));
    TRY(io_replace(aside, real, e));
out:
    free(real);
    return rc < 0 ? err_add(e, "%s: cutting the log", path) : 0;
}

/* Lines of finished steps stay; those past the step we resume at are cut. */
static int cut_log(const char *path, int64_t step, struct err *e)
{
    char *text, *line, *next, *keep;
    struct stat st;
    size_t n;
    int rc;
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode)) /* not there, or a device */
        return 0;
    TRY(io_read_file(path, (size_t)1 << 32, (void **)&text, &n, e));
    for (line = keep = text; line < text + n; line = next) {
        char *end = memchr(line, '\n', (size_t)(text + n - line)), *at;
        if (!end)
            break;
        next = end + 1;
        at = strstr(line, "\"step\":");
        if (at && at < end && strtoll(at + 7, NULL, 10) > step)
            continue;
        memmove(keep, line, (size_t)(next - line));
        keep += next - line;
    }
    if (keep < text + n) /* nothing to cut: not touched */
        rc = replace_log(path, text, (size_t)(keep - text), e);
    free(text);
out:
    return rc < 0 ? rc : 0;
}

/* The groups of a run: the axes, all, and the pipeline's way back. */
static struct comm *group_of(const struct trainer *t, int a)
{
    return a < AXIS_COUNT ? t->mesh.axis[a] : a == AXIS_COUNT ? t->mesh.all : t->pipe_back;
}

/* What a collective of a group took since the step began. */
static struct comm_count counted(const struct trainer *t, int a, enum comm_op op)
{
    struct comm_count c[COMM_OPS];
    const struct comm_count *before = &t->comm_seen[a][op];
    comm_counts(group_of(t, a), c);
    return (struct comm_count){ c[op].calls - before->calls, c[op].bytes - before->bytes,
                                c[op].across - before->across, c[op].seconds - before->seconds };
}

static double comm_seconds(const struct trainer *t)
{
    double sum = 0;
    for (int a = 0; a < RUN_GROUPS; a++)
        for (enum comm_op k = 0; k < COMM_OPS; k++)
            sum += counted(t, a, k).seconds;
    return sum;
}

/* What the disk refuses is lost, which is said once: the run is worth more than its log. */
static void end_line(struct trainer *t)
{
    if (fflush(t->log_file) == 0 && !ferror(t->log_file))
        return;
    if (!t->log_lost++)
        log_line(&t->log, "%s: cannot write the log: %s: the run goes on, lines are lost", t->o.log,
                 strerror(errno));
    clearerr(t->log_file);
}

/* {"event":"communication","step":1,"dp":{"all_reduce":[calls,bytes,of them to other machines],…},…}: the
 * first step of rank 0, as comm/ counts it (bytes that a ring would send). */
static void write_communication(const struct trainer *t)
{
    FILE *f = t->log_file;
    fprintf(f, "{\"event\":\"communication\",\"step\":%lld", (long long)t->step);
    for (int a = 0; a < RUN_GROUPS; a++) {
        fprintf(f, ",\"%s\":{", a <= AXIS_COUNT ? comm_name(group_of(t, a)) : "pp_back");
        for (enum comm_op k = 0; k < COMM_OPS; k++) {
            struct comm_count c = counted(t, a, k);
            fprintf(f, "%s\"%s\":[%lld,%lld,%lld]", k ? "," : "", comm_op_name(k), (long long)c.calls,
                    (long long)c.bytes, (long long)c.across);
        }
        fputc('}', f);
    }
    fputs("}\n", f);
}

int runlog_open(struct trainer *t, struct err *e)
{
    int rc = 0;
    if (world_rank(t->world) || !t->o.log)
        return 0;
    if (t->o.resume)
        TRY(cut_log(t->o.log, t->step, e));
    t->log_file = fopen(t->o.log, t->o.resume ? "a" : "w");
    if (!t->log_file)
        rc = err_sys(e, "%s: cannot open the log", t->o.log);
out:
    return rc;
}

/* Flops of one token forward and backward: 6 per weight of a product, and attention over half the sequence.
 * */
static double flops_per_token(const struct trainer *t)
{
    double weights = 0;
    for (int i = 0; i < t->model.table.n; i++) {
        const struct param *p = &t->model.table.p[i];
        if (p->n_dims == 2 && p->kind != P_POS && (p->kind != P_EMBED || t->cfg.tied))
            weights += (double)param_count(p);
    }
    return 6 * weights +
           6.0 * (double)(t->cfg.n_layers * t->cfg.n_heads * t->cfg.head_dim) * (double)t->o.seq_len;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

void runlog_begin_step(struct trainer *t)
{
    for (int a = 0; a < RUN_GROUPS; a++)
        comm_counts(group_of(t, a), t->comm_seen[a]);
}

/* "52 s", "12:05", "3:07:20" */
static const char *clock_text(char out[32], double seconds)
{
    int64_t s = seconds < 1e9 ? (int64_t)seconds : (int64_t)1e9;
    if (s < 100)
        snprintf(out, 32, "%lld s", (long long)s);
    else if (s < 3600)
        snprintf(out, 32, "%lld:%02lld", (long long)s / 60, (long long)s % 60);
    else
        snprintf(out, 32, "%lld:%02lld:%02lld", (long long)s / 3600, (long long)s / 60 % 60,
                 (long long)s % 60);
    return out;
}

/* A share of 0.95 and more says that the peak was measured in a bad moment: measured again, the best one
 * counts. */
static double mfu_of(struct trainer *t, double speed)
{
    double flops = speed * flops_per_token(t) / layout_ranks(&t->layout), peak;
    for (; t->n_peaks < PEAK_TRIES && (!t->n_peaks || flops > 0.95 * t->peak_flops); t->n_peaks++) {
        peak = measure_peak(t->dev, t->model.dt);
        t->peak_flops = peak > t->peak_flops ? peak : t->peak_flops;
    }
    return flops / t->peak_flops;
}

/* tokens/s, and shares of 1 */
struct figures {
    double speed, mfu, comm;
};

static void write_step(struct trainer *t, const struct step_result *r, struct figures g)
{
    char loss[32], norm[32];
    fprintf(t->log_file,
            "{\"step\":%lld,\"loss\":%s,\"loss_bits\":\"%08x\",\"grad_norm\":%s,\"grad_norm_bits\":\"%08x\","
            "\"lr\":%.17g,\"tokens\":%lld,"
            "\"tokens_per_s\":%.6g,\"mfu\":%.4g,\"comm_fraction\":%.4g,\"bubble_fraction\":%.4g,\"rss_"
            "bytes\":%lld}\n",
            (long long)t->step, jx_float32(r->loss, loss), bits_of(r->loss), jx_float32(r->norm, norm),
            bits_of(r->norm), r->lr, (long long)(t->step * t->plan.rows * t->o.seq_len), g.speed, g.mfu,
            g.comm, r->bubble, (long long)rss_bytes());
    if (t->step == t->first_step + 1)
        write_communication(t);
    end_line(t);
}

/* What a narrow terminal may lose stands last. */
static void show_step(struct trainer *t, const struct step_result *r, struct figures g)
{
    char memory[32], left[32];
    int64_t end = trainer_end(t);
    log_bytes(memory, (double)rss_bytes());
    clock_text(left, (double)(end - t->step) * t->step_s);
    log_progress(&t->log, t->step == end,
                 "step %lld/%lld  loss %.4f  %.0f tokens/s  left %s  mfu %.0f%%  comm %.0f%%  mem %s  norm "
                 "%.3f  lr %.2e",
                 (long long)t->step, (long long)t->o.steps, (double)r->loss, g.speed, left, 100 * g.mfu,
                 100 * g.comm, memory, (double)r->norm, r->lr);
}

void runlog_step(struct trainer *t, const struct step_result *r)
{
    double tokens = (double)(t->plan.rows * t->o.seq_len),
           share = r->seconds > 0 ? comm_seconds(t) / r->seconds : 0;
    struct figures g = { .speed = tokens / r->seconds, .comm = share < 0 ? 0 : share > 1 ? 1 : share };
    g.mfu = mfu_of(t, g.speed);
    /* the first step is slower than any */
    t->step_s = t->step <= t->first_step + 2 ? r->seconds : 0.9 * t->step_s + 0.1 * r->seconds;
    if (world_rank(t->world))
        return;
    if (t->log_file)
        write_step(t, r, g);
    show_step(t, r, g);
}

/* {"event":"memory","step":N,"when":"…","ranks":[{"rank":0,"bytes_read":N,"total":[now,peak],
 * "params":[now,peak],…},…]} */
enum { MEM_TOTAL = 2 * MEM_CATS, MEM_READ = MEM_TOTAL + 2, MEM_NUMBERS };

static void write_memory(FILE *f, const int64_t *rank, int r)
{
    fprintf(f, "%s{\"rank\":%d,\"bytes_read\":%lld,\"total\":[%lld,%lld]", r ? "," : "", r,
            (long long)rank[MEM_READ], (long long)rank[MEM_TOTAL], (long long)rank[MEM_TOTAL + 1]);
    for (enum mem_cat c = 0; c < MEM_CATS; c++)
        fprintf(f, ",\"%s\":[%lld,%lld]", mem_cat_name(c), (long long)rank[2 * c],
                (long long)rank[2 * c + 1]);
    fputc('}', f);
}

int runlog_memory(struct trainer *t, const char *when, struct err *e)
{
    int n = world_size(t->world), rc;
    int64_t mine[MEM_NUMBERS];
    size_t *sizes = calloc((size_t)n, sizeof *sizes);
    void *all = NULL;
    for (enum mem_cat c = 0; c < MEM_CATS; c++) {
        mine[2 * c] = atomic_load(&t->mem.now[c]);
        mine[2 * c + 1] = atomic_load(&t->mem.peak[c]);
    }
    mine[MEM_TOTAL] = atomic_load(&t->mem.total_now);
    mine[MEM_TOTAL + 1] = atomic_load(&t->mem.total_peak);
    mine[MEM_READ] = t->source ? ckpt_bytes_read(t->source) : 0;
    rc = sizes ? comm_gather_blobs(t->mesh.all, mine, sizeof mine, 0, &all, sizes, e)
               : err_set(e, ERR_MEMORY, "no memory for a report");
    if (rc >= 0 && t->log_file) {
        fprintf(t->log_file, "{\"event\":\"memory\",\"step\":%lld,\"when\":\"%s\",\"ranks\":[",
                (long long)t->step, when);
        for (int r = 0; r < n; r++)
            write_memory(t->log_file, (int64_t *)all + r * MEM_NUMBERS, r);
        fputs("]}\n", t->log_file);
        end_line(t);
    }
    free(all);
    free(sizes);
    return rc;
}

char *runlog_quote(const char *text)
{
    json_t *j = json_string(text);
    char *out = j ? json_dumps(j, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    json_decref(j);
    return out;
}

static void write_event(struct trainer *t, int64_t step, const char *event, const char *fmt, va_list ap)
{
    if (!t->log_file)
        return;
    fprintf(t->log_file, "{\"event\":\"%s\",\"step\":%lld,", event, (long long)step);
    vfprintf(t->log_file, fmt, ap);
    fprintf(t->log_file, "}\n");
    end_line(t);
}

void runlog_event(struct trainer *t, const char *event, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_event(t, t->step, event, fmt, ap);
    va_end(ap);
}

void runlog_event_at(struct trainer *t, int64_t step, const char *event, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    write_event(t, step, event, fmt, ap);
    va_end(ap);
}

/* runlog.c - see runlog.h. */
#include "train/log/runlog.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/jx.h"

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

/* The speed of this rank's products in the dtype of the run, in flops a second: MFU is a share of it.
 * Measured after the first step, while every rank measures. A try takes a few ms; the best of a few
 * counts, because the machine may be busy. */
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

/* Replaces the log by its first n bytes, whole or not at all: written beside it, then renamed. A symbolic
 * link stays; the file it leads to is replaced. */
static int replace_log(const char *path, const char *text, size_t n, struct err *e)
{
    char *real = realpath(path, NULL), tmp[4200];
    int rc = 0;
    if (!real)
        return err_sys(e, "%s: cannot find the log", path);
    snprintf(tmp, sizeof tmp, "%s.tmp-cut", real);
    TRY(io_unlink(tmp, e)); /* of a run that died here */
    TRY(io_write_file(tmp, text, n, e));
    TRY(io_replace(tmp, real, e));
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

/* ---- collectives ---- */
/* Calls, bytes and seconds of one collective of group g since the step began. */
static struct comm_count counted(const struct runlog *l, int g, enum comm_op op)
{
    struct comm_count c[COMM_OPS];
    const struct comm_count *before = &l->seen[g][op];
    comm_counts(l->group[g], c);
    return (struct comm_count){ c[op].calls - before->calls, c[op].bytes - before->bytes,
                                c[op].across - before->across, c[op].seconds - before->seconds };
}

static double comm_seconds(const struct runlog *l)
{
    double sum = 0;
    for (int g = 0; g < RUN_GROUPS; g++)
        for (enum comm_op k = 0; l->group[g] && k < COMM_OPS; k++)
            sum += counted(l, g, k).seconds;
    return sum;
}

void runlog_begin_step(struct runlog *l)
{
    for (int g = 0; g < RUN_GROUPS; g++)
        if (l->group[g])
            comm_counts(l->group[g], l->seen[g]);
}

/* ---- the file ---- */
/* Every line ends with the time at which it was written. */
static void write_time(FILE *f) { fprintf(f, ",\"time\":%.3f}\n", clock_wall_s()); }

/* Ends a line. What the disk refuses is lost, which is reported once: the run is worth more than its log. */
static void end_line(struct runlog *l)
{
    if (fflush(l->file) == 0 && !ferror(l->file))
        return;
    if (!l->n_lost++)
        log_line(&l->term, "%s: cannot write the log: %s: the run goes on, lines are lost", l->run->o.log,
                 strerror(errno));
    clearerr(l->file);
}

/* {"event":"communication","step":1,"dp":{"all_reduce":[calls,bytes,of them to other machines],...},...}:
 * the first step of rank 0, as comm/ counts it (bytes that a ring would send). */
static void write_communication(const struct runlog *l, int64_t step)
{
    FILE *f = l->file;
    fprintf(f, "{\"event\":\"communication\",\"step\":%lld", (long long)step);
    for (int g = 0; g < RUN_GROUPS; g++) {
        static const char *const further[] = { "pp_back", "ep", "edp" };
        if (!l->group[g])
            continue;
        fprintf(f, ",\"%s\":{", g <= AXIS_COUNT ? comm_name(l->group[g]) : further[g - AXIS_COUNT - 1]);
        for (enum comm_op k = 0; k < COMM_OPS; k++) {
            struct comm_count c = counted(l, g, k);
            fprintf(f, "%s\"%s\":[%lld,%lld,%lld]", k ? "," : "", comm_op_name(k), (long long)c.calls,
                    (long long)c.bytes, (long long)c.across);
        }
        fputc('}', f);
    }
    write_time(f);
}

/* Orders of the run that its model does not fix, where they are not neutral. */
static void write_orders(struct runlog *l, int64_t step)
{
    const struct run *run = l->run;
    if (run->expert_leaf > 1 || run->cp_grain > 1)
        runlog_event(l, step, "orders", "\"grain\":%d,\"expert_leaf\":%d,\"cp_grain\":%d", run->cfg.grain,
                     run->expert_leaf, run->cp_grain);
}

int runlog_open(struct runlog *l, const struct work *w, const struct facts *f, struct err *e)
{
    const struct train_opts *o = &l->run->o;
    const struct mesh *mesh = &l->ranks->mesh;
    int rc = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        l->group[a] = mesh->axis[a];
    l->group[AXIS_COUNT] = mesh->all;
    l->group[AXIS_COUNT + 1] = w->pp_back;
    l->group[AXIS_COUNT + 2] = l->ranks->ep;
    l->group[AXIS_COUNT + 3] = l->ranks->edp;
    TRY(model_flops(&w->model.table.cfg, (double)o->seq_len / 2, &l->flops_per_token, e));
    l->flops_per_token *= 3; /* backward takes twice as many */
    l->tokens_per_step = (double)(w->plan.rows * o->seq_len);
    l->first_step = w->at.first_step;

    if (!ranks_is_first(l->ranks) || !o->log)
        return 0;
    if (o->resume)
        TRY(cut_log(o->log, w->at.step, e));
    l->file = io_write_text(o->log, !!o->resume, e);
    if (!l->file)
        return err_add(e, "--log");
    facts_write(f, l->file);
    write_time(l->file);
    end_line(l);
    write_orders(l, w->at.step);
out:
    return rc < 0 ? rc : 0;
}

void runlog_close(struct runlog *l)
{
    if (l->file)
        fclose(l->file);
}

/* ---- a step ---- */
static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
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

/* A share above 0.95 means that the peak was measured in a bad moment: it is measured again, and the best one
 * counts. */
static double mfu_of(struct runlog *l, double tokens_per_s)
{
    struct dev *dev = l->ranks->dev;
    double flops = tokens_per_s * l->flops_per_token / layout_ranks(&l->ranks->layout), peak;
    for (; l->n_peaks < PEAK_TRIES && (!l->n_peaks || flops > 0.95 * l->peak_flops); l->n_peaks++) {
        peak = measure_peak(dev, l->run->dt);
        l->peak_flops = peak > l->peak_flops ? peak : l->peak_flops;
    }
    return flops / l->peak_flops;
}

/* speed: tokens a second; the others are shares of 1. */
struct figures {
    double speed, mfu, comm;
};

/* How the rows of a layer are spread: those of its busiest expert as a multiple of their mean, and experts
 * without rows. rows 0: the layer has no experts. */
struct spread {
    int64_t rows, most;
    int idle;
};
static struct spread spread_of(const struct model_config *c, const int64_t *load)
{
    struct spread s = { 0 };
    for (int64_t x = 0; x < c->n_experts; x++) {
        s.most = load[x] > s.most ? load[x] : s.most;
        s.rows += load[x];
        s.idle += !load[x];
    }
    return s;
}

/* Two lists with an item for every layer with experts. */
static void write_loads(const struct runlog *l, const int64_t *loads)
{
    const struct model_config *c = &l->run->cfg;
    for (int figure = 0; figure < 2; figure++) {
        const char *comma = "";
        fprintf(l->file, ",\"%s\":[", figure ? "expert_load" : "expert_idle");
        for (int64_t layer = 0; layer < c->n_layers; layer++) {
            struct spread s = spread_of(c, loads + layer * c->n_experts);
            if (!s.rows)
                continue;
            if (figure)
                fprintf(l->file, "%s%.4g", comma, (double)(s.most * c->n_experts) / (double)s.rows);
            else
                fprintf(l->file, "%s%d", comma, s.idle);
            comma = ",";
        }
        fputc(']', l->file);
    }
}

/* Of every layer with experts. */
static void write_rounds(const struct runlog *l, const float *rounds)
{
    const char *comma = "";

    fputs(",\"expert_rounds\":[", l->file);
    for (int64_t layer = 0; layer < l->run->cfg.n_layers; layer++)
        if (rounds[layer] > 0) {
            fprintf(l->file, "%s%.0f", comma, (double)rounds[layer]);
            comma = ",";
        }
    fputc(']', l->file);
}

/* Of rank 0: the disk's traffic of the last update that is complete; since the line before, the seconds
 * in which the disk worked and in which training waited for it. */
static void write_offload(struct runlog *l, const struct offload_count *c)
{
    fprintf(l->file,
            ",\"offload_read\":%lld,\"offload_written\":%lld,\"offload_s\":%.4g,\"offload_waited_s\":%.4g",
            (long long)c->read_bytes, (long long)c->written_bytes, c->disk_s - l->offload.disk_s,
            c->waited_s - l->offload.waited_s);
    l->offload = *c;
}

static void write_step(struct runlog *l, int64_t step, const struct step_result *r, struct figures g)
{
    char loss[32], norm[32];
    fprintf(l->file,
            "{\"step\":%lld,\"loss\":%s,\"loss_bits\":\"%08x\",\"grad_norm\":%s,\"grad_norm_bits\":\"%08x\","
            "\"lr\":%.17g,\"tokens\":%lld,\"tokens_per_s\":%.6g,\"mfu\":%.4g,\"comm_fraction\":%.4g,"
            "\"bubble_fraction\":%.4g,\"rss_bytes\":%lld",
            (long long)step, jx_float32(r->loss, loss), bits_of(r->loss), jx_float32(r->norm, norm),
            bits_of(r->norm), r->lr, (long long)(step * (int64_t)l->tokens_per_step), g.speed, g.mfu, g.comm,
            r->bubble, (long long)rss_bytes());
    if (r->targets >= 0)
        fprintf(l->file, ",\"targets\":%lld", (long long)r->targets);
    if (r->rounds)
        write_rounds(l, r->rounds);
    if (r->loads)
        write_loads(l, r->loads);
    if (r->offload)
        write_offload(l, r->offload);
    write_time(l->file);
    if (step == l->first_step + 1)
        write_communication(l, step);
    end_line(l);
}

/* Fields that a narrow terminal may lose stand last. */
static void show_step(struct runlog *l, int64_t step, const struct step_result *r, struct figures g)
{
    char memory[32], left[32];
    int64_t end = run_end_step(l->run);
    log_bytes(memory, (double)rss_bytes());
    clock_text(left, (double)(end - step) * l->step_s);
    log_progress(&l->term, step == end,
                 "step %lld/%lld  loss %.4f  %.0f tokens/s  left %s  mfu %.0f%%  comm %.0f%%  mem %s  norm "
                 "%.3f  lr %.2e",
                 (long long)step, (long long)l->run->o.steps, (double)r->loss, g.speed, left, 100 * g.mfu,
                 100 * g.comm, memory, (double)r->norm, r->lr);
}

void runlog_step(struct runlog *l, int64_t step, const struct step_result *r)
{
    double share = r->seconds > 0 ? comm_seconds(l) / r->seconds : 0;
    struct figures g = { .speed = l->tokens_per_step / r->seconds };
    g.comm = share < 0 ? 0 : share > 1 ? 1 : share;
    g.mfu = mfu_of(l, g.speed);
    /* the first step is slower than any other */
    l->step_s = step <= l->first_step + 2 ? r->seconds : 0.9 * l->step_s + 0.1 * r->seconds;
    if (!ranks_is_first(l->ranks))
        return;
    if (l->file)
        write_step(l, step, r, g);
    show_step(l, step, r, g);
}

/* ---- events ---- */
/* {"event":"memory","step":N,"when":"...","ranks":[{"rank":0,"bytes_read":N,"total":[now,peak],
 * "params":[now,peak],...},...]} */
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

static void count_memory(const struct mem *mem, const struct ckpt *source, int64_t n[MEM_NUMBERS])
{
    for (enum mem_cat c = 0; c < MEM_CATS; c++) {
        n[2 * c] = atomic_load(&mem->now[c]);
        n[2 * c + 1] = atomic_load(&mem->peak[c]);
    }
    n[MEM_TOTAL] = atomic_load(&mem->total_now);
    n[MEM_TOTAL + 1] = atomic_load(&mem->total_peak);
    n[MEM_READ] = source ? ckpt_bytes_read(source) : 0;
}

int runlog_memory(struct runlog *l, int64_t step, const char *when, struct err *e)
{
    int n = world_size(l->ranks->world), rc;
    int64_t mine[MEM_NUMBERS];
    size_t *sizes = calloc((size_t)n, sizeof *sizes);
    void *all = NULL;
    count_memory(&l->ranks->mem, l->run->source, mine);
    rc = sizes ? comm_gather_blobs(l->ranks->mesh.all, mine, sizeof mine, 0, &all, sizes, e)
               : err_set(e, ERR_MEMORY, "no memory for a report");
    if (rc >= 0 && l->file) {
        fprintf(l->file, "{\"event\":\"memory\",\"step\":%lld,\"when\":\"%s\",\"ranks\":[", (long long)step,
                when);
        for (int r = 0; r < n; r++)
            write_memory(l->file, (int64_t *)all + r * MEM_NUMBERS, r);
        fputc(']', l->file);
        write_time(l->file);
        end_line(l);
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

void runlog_event(struct runlog *l, int64_t step, const char *event, const char *fmt, ...)
{
    va_list ap;
    if (!l->file)
        return;
    fprintf(l->file, "{\"event\":\"%s\",\"step\":%lld,", event, (long long)step);
    va_start(ap, fmt);
    vfprintf(l->file, fmt, ap);
    va_end(ap);
    write_time(l->file);
    end_line(l);
}

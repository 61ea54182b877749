/* reshard_bench.c - reshard against `cp -r` of the same bytes on the same disk, in turn.
 * usage: reshard_bench [DIR [ROUNDS [GB [cold]]]]
 *
 * A bf16 model with fp32 masters and both moments, written as tp 2 x zero-3 dp 2, becomes tp 8. DIR (/tmp)
 * needs three times the size. The source is in the page cache for every contestant, or with `cold` for none.
 * reshard ends when its bytes are on the disk, cp leaves them to be written later: so cp is timed alone and
 * followed by `sync -f`. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syncfs */
#endif
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "format/ckpt_write.h"
#include "model/params.h"

#define CHUNK ((int64_t)1 << 18) /* elements made at once */
#define MOST_ROUNDS 15
#define MEMORY_LIMIT ((double)(256 << 20))

static const char config_format[] =
    "{\"model_type\":\"llama\",\"hidden_size\":2048,\"num_hidden_layers\":%d,\"num_attention_heads\":16,"
    "\"num_key_value_heads\":8,\"intermediate_size\":5632,\"vocab_size\":8192,\"max_position_embeddings\":"
    "2048,"
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}\n";

/* ---- the checkpoint ---- */

struct maker {
    struct param_table table;
    struct layout layout;
    char tmp[4096];
    void *table_text[16];
    size_t table_bytes[16];
    int64_t bytes;
    uint32_t *data;
};

/* The pieces of one rank, all roles; malloc'd. */
static struct ckpt_piece *pieces_of(struct maker *m, int rank, int *n, struct err *e)
{
    struct rank_at at = layout_at(&m->layout, rank);
    struct params_local l;
    struct param_piece *out = calloc((size_t)m->table.n, sizeof *out);
    struct ckpt_piece *p = calloc((size_t)m->table.n * ROLE_COUNT, sizeof *p);
    *n = 0;
    if (!out || !p || params_local_open(&l, &m->table, &m->layout, at, e) < 0) {
        free(out);
        free(p);
        return NULL;
    }
    for (int role = 0; role < ROLE_COUNT; role++) {
        int k = params_pieces(&l, at.dp, 1, out);
        for (int i = 0; i < k; i++) {
            const struct param *q = &m->table.p[l.part[out[i].part].param];
            p[(*n)++] = (struct ckpt_piece){ { .name = q->name,
                                               .role = (enum ckpt_role)role,
                                               .dtype = role ? STORED_F32 : STORED_BF16,
                                               .n_dims = q->n_dims,
                                               .shape = { q->shape[0], q->shape[1] } },
                                             out[i].box,
                                             out[i].lo,
                                             out[i].hi };
        }
    }
    params_local_close(&l);
    free(out);
    return p;
}

/* Bits that look like weights: a small exponent, everything else from a generator. */
static void fill(uint32_t *data, int64_t n, uint64_t *seed)
{
    for (int64_t i = 0; i < n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(*seed >> 32);
        data[i] = (r & 0x807fffffu) | (116 + (r >> 23 & 7)) << 23;
    }
}

static int write_rank(struct maker *m, int rank, struct err *e)
{
    struct ckpt_shard *s = NULL;
    uint64_t seed = (uint64_t)rank + 1;
    int n, rc = 0;
    struct ckpt_piece *p = pieces_of(m, rank, &n, e);
    if (!p)
        return e->code ? -e->code : err_set(e, ERR_MEMORY, "no room for a table of pieces");
    TRY(ckpt_shard_open(&s, m->tmp, rank, n, p, e));
    for (int i = 0; i < n; i++)
        for (int64_t lo = p[i].lo; lo < p[i].hi; lo += CHUNK) {
            int64_t count = p[i].hi - lo < CHUNK ? p[i].hi - lo : CHUNK;
            fill(m->data, (stored_bytes(p[i].t.dtype, count) + 3) / 4, &seed);
            TRY(ckpt_shard_put(s, i, m->data, count, e));
            m->bytes += stored_bytes(p[i].t.dtype, count);
        }
    rc = ckpt_shard_close(s, &m->table_text[rank], &m->table_bytes[rank], e);
    s = NULL;
out:
    ckpt_shard_abort(s);
    free(p);
    return rc < 0 ? rc : 0;
}

static int make(const char *dst, int n_layers, int64_t *bytes, struct err *e)
{
    struct maker m = { .layout = { 2, 1, 1, 2, 1, 3 }, .data = malloc(4 * (size_t)CHUNK) };
    struct model_config cfg;
    char config[1024];
    int rc = 0;
    snprintf(config, sizeof config, config_format, n_layers);
    struct ckpt_meta meta = { .layout = { 2, 1, 1, 2, 1, 3 },
                              .config_json = config,
                              .state = { .has_state = 1, .step = 10, .sample = 640, .grain = 8 } };
    if (!m.data)
        return err_set(e, ERR_MEMORY, "no room for data");
    TRY(model_config_parse(&cfg, config, "config.json", e));
    TRY(param_table_open(&m.table, &cfg, e));
    TRY(ckpt_begin(dst, m.tmp, NULL, NULL, e));
    for (int r = 0; r < 4; r++)
        TRY(write_rank(&m, r, e));
    TRY(ckpt_publish(m.tmp, dst, 4, m.table_text, m.table_bytes, &meta, NULL, e));
    *bytes = m.bytes;
out:
    for (int r = 0; r < 4; r++)
        free(m.table_text[r]);
    param_table_close(&m.table);
    free(m.data);
    return rc < 0 ? rc : 0;
}

/* ---- programs in turn ---- */

static double median(double *v, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && v[k - 1] > v[k]; k--) {
            double t = v[k];
            v[k] = v[k - 1];
            v[k - 1] = t;
        }
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* The files of a folder leave the memory; they were written long ago. */
static void forget(const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *f;
    while (d && (f = readdir(d))) {
        int fd = openat(dirfd(d), f->d_name, O_RDONLY);
        if (fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
            perror(f->d_name);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

/* Seconds of one program, started when the disk is quiet; its peak memory to *peak. cold: a folder to forget
 * first, or NULL. -1: it failed. */
static double timed(const char *dir, const char *cold, char *const *argv, double *peak)
{
    struct rusage u;
    int status, fd = open(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || syncfs(fd) < 0)
        return -1;
    close(fd);
    if (cold)
        forget(cold);
    double begin = clock_s();
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    if (pid < 0 || wait4(pid, &status, 0, &u) != pid || status)
        return -1;
    *peak = (double)u.ru_maxrss * 1024 > *peak ? (double)u.ru_maxrss * 1024 : *peak;
    return clock_s() - begin;
}

enum { COPY, COPY_SYNC, RESHARD, WAYS };

static int measure(const char *dir, const char *reshard, const char *src, const char *dst, int rounds,
                   int cold, int64_t bytes)
{
    char copy_sync[2000];
    snprintf(copy_sync, sizeof copy_sync, "cp -r '%s' '%s' && sync -f '%s'", src, dst, dst);
    char *const argv[WAYS][6] = { { (char *)"cp", (char *)"-r", (char *)src, (char *)dst, NULL },
                                  { (char *)"sh", (char *)"-c", copy_sync, NULL },
                                  { (char *)reshard, (char *)"--tp=8", (char *)src, (char *)dst, NULL } };
    static const char *const name[WAYS] = { "cp -r", "cp -r, sync", "reshard" };
    double s[WAYS][MOST_ROUNDS], peak[WAYS] = { 0, 0, 0 }, mid[WAYS];
    struct err e;
    printf("%-14s %8s %10s %12s\n", "", "s", "GB/s", "peak MiB");
    for (int i = 0; i < rounds; i++)
        for (int w = 0; w < WAYS; w++) {
            if (io_remove_tree(dst, &e) < 0 ||
                (s[w][i] = timed(dir, cold ? src : NULL, argv[w], &peak[w])) < 0) {
                fprintf(stderr, "reshard_bench: %s failed: is there room in %s\n", name[w], dir);
                return 1;
            }
            printf("%-14s %8.2f %10.2f %12.0f\n", name[w], s[w][i], (double)bytes / s[w][i] / 1e9,
                   peak[w] / (1 << 20));
            fflush(stdout);
        }
    for (int w = 0; w < WAYS; w++)
        mid[w] = (double)bytes / median(s[w], rounds) / 1e9;
    printf("{\"rows\":[{\"name\":\"reshard %.1f GB tp2 zero3 dp2 to tp8, "
           "%s\",\"ours\":%.3f,\"peer\":%.3f,\"peer_name\":\"cp -r\",\"unit\":\"GB/s\",\"ratio\":%.3f},"
           "{\"name\":\"reshard, on the disk\",\"ours\":%.3f,\"peer\":%.3f,\"peer_name\":\"cp -r, "
           "sync\",\"unit\":\"GB/s\",\"ratio\":%.3f},"
           "{\"name\":\"reshard peak "
           "memory\",\"ours\":%.0f,\"peer\":256,\"peer_name\":\"limit\",\"unit\":\"MiB\",\"ratio\":%.2f}]}\n",
           (double)bytes / 1e9, cold ? "cold" : "warm", mid[RESHARD], mid[COPY], mid[RESHARD] / mid[COPY],
           mid[RESHARD], mid[COPY_SYNC], mid[RESHARD] / mid[COPY_SYNC], peak[RESHARD] / (1 << 20),
           MEMORY_LIMIT / peak[RESHARD]);
    return 0;
}

int main(int argc, char **argv)
{
    char dir[512], src[600], dst[600], reshard[600];
    const char *slash = strrchr(argv[0], '/');
    int rounds = argc > 2 ? atoi(argv[2]) : 3, n_layers = (int)((argc > 3 ? atof(argv[3]) : 4.0) * 1.5 + 0.5),
        rc;
    int64_t bytes = 0;
    struct err e = { 0 };
    snprintf(reshard, sizeof reshard, "%.*s/../../bin/reshard", slash ? (int)(slash - argv[0]) : 1,
             slash ? argv[0] : ".");
    snprintf(dir, sizeof dir, "%s/reshard-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    snprintf(src, sizeof src, "%s/src", dir);
    snprintf(dst, sizeof dst, "%s/dst", dir);
    rc = make(src, n_layers > 0 ? n_layers : 1, &bytes, &e);
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    rc = rc < 0 ? err_print(&e, "reshard_bench")
                : measure(dir, reshard, src, dst, rounds, argc > 4 && !strcmp(argv[4], "cold"), bytes);
    io_remove_tree(dir, &e);
    return rc;
}

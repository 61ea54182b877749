/* foreign_fuzz.h - entry points for fuzzers: any bytes as a pickle, as a torch file, as checkpoint metadata. They must end, without a bad
 * read and within bounds; what they answer does not matter. Run as plain tests by tests/unit/format_fuzz_test.c. */
#ifndef SHARDLINE_TESTS_FOREIGN_FUZZ_H
#define SHARDLINE_TESTS_FOREIGN_FUZZ_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE              /* memfd_create */
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "format/torch_file.h"

static inline void fuzz_pickle(const uint8_t *data, size_t n)
{
    struct pk_doc d;
    struct err e;
    char *exact = malloc(n ? n : 1);        /* a read behind the end is seen by the sanitizer */
    memcpy(exact, data, n);
    if (pk_parse(&d, exact, n, "fuzz", &e) >= 0)
        pk_free(&d);
    free(exact);
}

/* Every tensor among the nodes of a dict and the dicts in it. */
static inline void fuzz_tensors(struct torch_file *t, const struct pk *p, int depth)
{
    struct torch_tensor x;
    struct err e;
    double number;
    for (uint32_t i = 0; p && p->kind == PK_DICT && depth < 4 && i < p->n && i < 64; i++) {
        const struct pk *v = p->item[2 * i + 1];
        if (torch_is_tensor(v)) {
            torch_tensor(t, v, "fuzz", &x, &e);
            torch_number(t, v, "fuzz", &number, &e);
        } else {
            fuzz_tensors(t, v, depth + 1);
        }
    }
}

static inline void fuzz_torch(const uint8_t *data, size_t n)
{
    struct torch_file t = { 0 };
    struct err e = { 0 };
    struct ckpt *c = calloc(1, sizeof *c);
    int fd = memfd_create("fuzz", 0);
    pthread_mutex_init(&c->lock, NULL);
    c->path = strdup("fuzz");
    c->dir = strdup(".");
    struct fmt_file *f = fmt_add_file(c, "fuzz", (int64_t)n, &e);
    if (fd >= 0 && f && write(fd, data, n) == (ssize_t)n) {
        f->fd = fd;
        fd = -1;
        if (torch_open(&t, c, 0, 0, (int64_t)n, &e) >= 0)
            fuzz_tensors(&t, t.root, 0);
        torch_close(&t);
        for (int64_t i = 0; i < c->file[0].n_records; i++)
            fmt_check_record(c, 0, c->file[0].record[i].begin, &e);
    }
    if (fd >= 0)
        close(fd);
    ckpt_close(c);
}

#endif

/* fuzz.c - see fuzz.h. */
#include "tests/fuzz/fuzz.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "format/fmt.h"
#include "format/torch/crc32.h"

#define STORAGES_MAX 64

static struct {
    char dir[512], path[1024];
    pid_t owner;
} folder;

void *fuzz_copy(const uint8_t *data, size_t n)
{
    char *p = malloc(n ? n : 1);
    if (!p)
        abort();
    if (n)
        memcpy(p, data, n);
    return p;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    return at->level ? remove(path) : 0;
}

static void remove_folder(void)
{
    if (folder.owner != getpid())
        return;
    nftw(folder.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    rmdir(folder.dir);
}

const char *fuzz_dir(void)
{
    if (folder.owner != getpid()) {
        const char *tmp = getenv("TMPDIR");
        snprintf(folder.dir, sizeof folder.dir, "%.400s/shardline-fuzz-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(folder.dir))
            abort();
        folder.owner = getpid();
        atexit(remove_folder);
    }
    return folder.dir;
}

const char *fuzz_write(const char *name, const void *data, size_t n)
{
    snprintf(folder.path, sizeof folder.path, "%s/%s", fuzz_dir(), name);
    for (char *slash = strchr(folder.path + strlen(folder.dir) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(folder.path, 0777);
        *slash = '/';
    }
    FILE *f = fopen(folder.path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f))
        abort();
    return folder.path;
}

void fuzz_write_parts(const char *const *names, size_t n_names, const uint8_t *data, size_t n)
{
    nftw(fuzz_dir(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
    while (n >= 4) {
        const char *name = names[data[0] % n_names];
        size_t len = (size_t)data[1] | (size_t)data[2] << 8 | (size_t)data[3] << 16, n_name = strlen(name),
               n_zip;
        len = len < n - 4 ? len : n - 4;
        if (n_name > 3 && !strcmp(name + n_name - 3, ".pt")) {
            uint8_t *zip = fuzz_wrap(data + 4, len, &n_zip);
            fuzz_write(name, zip, n_zip);
            free(zip);
        } else {
            fuzz_write(name, data + 4, len);
        }
        data += 4 + len;
        n -= 4 + len;
    }
}

/* ---- a zip ---- */

struct zip_out {
    uint8_t *p;
    size_t n, central_n;
    uint8_t central[8192];
    unsigned count;
};

static void put(uint8_t **p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*p)++ = i < 8 ? (uint8_t)(v >> 8 * i) : 0;
}

/* The fields that local and central headers share, from "version needed" on. */
static void put_common(uint8_t **p, uint32_t crc, size_t n, size_t n_name)
{
    put(p, 20, 2);
    put(p, 0, 8); /* flags, stored, time, date */
    put(p, crc, 4);
    put(p, n, 4);
    put(p, n, 4);
    put(p, n_name, 2);
    put(p, 0, 2);
}

static void zip_add(struct zip_out *z, const char *name, const uint8_t *data, size_t n)
{
    size_t n_name = strlen(name), header = z->n;
    uint32_t crc = fmt_crc32(0, data, n);
    uint8_t *p = z->p + z->n, *c = z->central + z->central_n;
    put(&p, 0x04034b50, 4);
    put_common(&p, crc, n, n_name);
    memcpy(p, name, n_name);
    if (n)
        memcpy(p + n_name, data, n);
    z->n = (size_t)(p - z->p) + n_name + n;
    put(&c, 0x02014b50, 4);
    put(&c, 20, 2);
    put_common(&c, crc, n, n_name);
    put(&c, 0, 10); /* comment, volume, attributes */
    put(&c, header, 4);
    memcpy(c, name, n_name);
    z->central_n = (size_t)(c - z->central) + n_name;
    z->count++;
}

uint8_t *fuzz_wrap(const uint8_t *data, size_t n, size_t *n_zip)
{
    size_t n_storages = n ? data[0] % (STORAGES_MAX + 1) : 0, at = n > 0, bytes[STORAGES_MAX], total = 0;
    char name[64];
    if (at + 2 * n_storages > n)
        n_storages = 0;
    for (size_t i = 0; i < n_storages; i++, at += 2)
        total += bytes[i] = (size_t)data[at] | (size_t)data[at + 1] << 8;
    struct zip_out *z = calloc(1, sizeof *z);
    uint8_t *values = malloc(total + 1);
    if (!z || !values || !(z->p = malloc(n + total + 16384)))
        abort();
    for (size_t i = 0; i < total; i++)
        values[i] = (uint8_t)(i * 37 >> 3);
    zip_add(z, "archive/data.pkl", data + at, n - at);
    zip_add(z, "archive/byteorder", (const uint8_t *)"little", 6);
    for (size_t i = 0, off = 0; i < n_storages; off += bytes[i], i++) {
        snprintf(name, sizeof name, "archive/data/%zu", i);
        zip_add(z, name, values + off, bytes[i]);
    }
    uint8_t *p = z->p + z->n;
    memcpy(p, z->central, z->central_n);
    p += z->central_n;
    put(&p, 0x06054b50, 4);
    put(&p, 0, 4);
    put(&p, z->count, 2);
    put(&p, z->count, 2);
    put(&p, z->central_n, 4);
    put(&p, z->n, 4);
    put(&p, 0, 2);
    *n_zip = (size_t)(p - z->p);
    uint8_t *out = fuzz_copy(z->p, *n_zip);
    free(values);
    free(z->p);
    free(z);
    return out;
}

/* ---- checkpoints ---- */

void fuzz_open_ckpt(const char *path)
{
    struct err e = { 0 };
    struct ckpt *c = NULL;
    if (ckpt_open(&c, path, NULL, &e) < 0)
        return;
    ckpt_verify(c, 0, &e);
    ckpt_close(c);
}

struct ckpt *fuzz_ckpt(const uint8_t *data, size_t n)
{
    struct err e = { 0 };
    struct ckpt *c = calloc(1, sizeof *c);
    int fd = memfd_create("fuzz", 0);
    if (!c || fd < 0)
        abort();
    pthread_mutex_init(&c->lock, NULL);
    c->path = strdup("fuzz");
    c->dir = strdup(".");
    struct fmt_file *f = fmt_add_file(c, "fuzz", (int64_t)n, &e);
    if (!f || write(fd, data, n) != (ssize_t)n)
        abort();
    f->fd = fd;
    return c;
}

/* offload_inputs.c - see offload_inputs.h. */
#include "train/offload/offload_inputs.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/io.h"
#include "train/offload/offload_priv.h"

enum { BUFFERS = 4, FOR_WRITES = 2 }; /* the first FOR_WRITES are written, the others read */
struct input_buffer {
    int work, unit; /* work -1: none */
    int busy;       /* its job is not waited for */
    char *buf;
    struct aio_job job;
};
struct inputs {
    struct input_store store; /* first: its functions cast back */
    struct dev *d;
    struct inputs_shape shape;
    size_t padded;
    char path[4300];
    struct aio_file file;
    struct aio *aio;
    char *memory;
    struct input_buffer buffer[BUFFERS];
    int next_write, next_read;
    uint64_t *sum; /* [works][units] */
};

static size_t padded_bytes(const struct inputs_shape *s)
{
    return (s->bytes + AIO_ALIGN - 1) / AIO_ALIGN * AIO_ALIGN;
}

double inputs_file_bytes(const struct inputs_shape *s)
{
    return (double)s->works * s->units * (double)padded_bytes(s);
}

double inputs_buffer_bytes(const struct inputs_shape *s)
{
    return (double)BUFFERS * (double)padded_bytes(s) + AIO_ALIGN;
}

static uint64_t *sum_of(struct inputs *x, int work, int unit)
{
    return &x->sum[work * x->shape.units + unit];
}

static int finish(struct inputs *x, struct input_buffer *b, struct err *e)
{
    if (!b->busy)
        return 0;
    b->busy = 0;
    return aio_wait(x->aio, &b->job, e);
}

static void start(struct inputs *x, struct input_buffer *b, int work, int unit, int write)
{
    int64_t at = ((int64_t)work * x->shape.units + unit) * (int64_t)x->padded;
    b->work = work;
    b->unit = unit;
    b->busy = 1;
    b->job = (struct aio_job){
        .file = &x->file, .buf = b->buf, .bytes = x->padded, .at = at, .write = write
    };
    aio_start(x->aio, &b->job);
}

static int put(struct input_store *s, int work, int unit, const void *from, size_t bytes, struct err *e)
{
    struct inputs *x = (struct inputs *)(void *)s;
    struct input_buffer *b = &x->buffer[x->next_write];
    int rc = finish(x, b, e);
    if (rc < 0)
        return err_add(e, "offloaded activations");
    x->next_write = (x->next_write + 1) % FOR_WRITES;
    dev_read(x->d, b->buf, from, bytes);
    *sum_of(x, work, unit) = XXH3_64bits(b->buf, bytes);
    start(x, b, work, unit, 1);
    return 0;
}

static int soon(struct input_store *s, int work, int unit, size_t bytes, struct err *e)
{
    struct inputs *x = (struct inputs *)(void *)s;
    struct input_buffer *b = &x->buffer[x->next_read];
    int rc = 0;
    (void)bytes;
    for (int i = 0; rc >= 0 && i < FOR_WRITES; i++) /* it may be on its way to the file */
        if (x->buffer[i].work == work && x->buffer[i].unit == unit)
            rc = finish(x, &x->buffer[i], e);
    if (rc >= 0)
        rc = finish(x, b, e);
    if (rc < 0)
        return err_add(e, "offloaded activations");
    x->next_read = FOR_WRITES + (x->next_read + 1 - FOR_WRITES) % (BUFFERS - FOR_WRITES);
    start(x, b, work, unit, 0);
    return 0;
}

/* The buffer that reads this input; NULL: none does. */
static struct input_buffer *reading(struct inputs *x, int work, int unit)
{
    for (int i = FOR_WRITES; i < BUFFERS; i++)
        if (x->buffer[i].work == work && x->buffer[i].unit == unit)
            return &x->buffer[i];
    return NULL;
}

static int get(struct input_store *s, int work, int unit, void *to, size_t bytes, struct err *e)
{
    struct inputs *x = (struct inputs *)(void *)s;
    struct input_buffer *b = reading(x, work, unit);
    int rc = 0;
    if (!b) {
        TRY(soon(s, work, unit, bytes, e));
        b = reading(x, work, unit);
    }
    TRY(finish(x, b, e));
    b->work = -1;
    if (XXH3_64bits(b->buf, bytes) != *sum_of(x, work, unit))
        return err_set(
            e, ERR_INTEGRITY,
            "%s: unit %d: the activations at bytes %lld to %lld are not those that were written: check "
            "the disk, and continue from the last checkpoint with --resume auto",
            x->path, unit, (long long)b->job.at, (long long)(b->job.at + (int64_t)bytes - 1));
    dev_write(x->d, to, b->buf, bytes);
out:
    return rc;
}

static int open_file(struct inputs *x, const char *dir, const char *run, int rank, struct err *e)
{
    int64_t bytes = (int64_t)x->shape.works * x->shape.units * (int64_t)x->padded;
    int rc = state_folder_make(dir, e);
    if (rc < 0)
        return rc;
    state_file_path(x->path, dir, run, rank, "activations");
    int fd = state_file_open(x->path, bytes, e);
    if (fd < 0)
        return fd;
    x->file = aio_file_of(fd, x->path);
    return 0;
}

int inputs_open(struct inputs **out, struct dev *d, const struct inputs_shape *s, const char *dir,
                const char *run, int rank, struct err *e)
{
    struct inputs *x = *out = calloc(1, sizeof *x);
    int rc;
    if (!x)
        return err_set(e, ERR_MEMORY, "no memory for offloaded activations");
    x->store = (struct input_store){ put, soon, get };
    x->d = d;
    x->shape = *s;
    x->padded = padded_bytes(s);
    x->file.fd = -1;
    x->next_read = FOR_WRITES;
    x->sum = calloc((size_t)s->works * (size_t)s->units + 1, sizeof *x->sum);
    x->memory = mem_alloc(d->mem, MEM_ACTS, (size_t)inputs_buffer_bytes(s));
    if (!x->sum || !x->memory)
        return err_set(e, ERR_MEMORY, "no memory for the buffers of --offload-activations");
    for (int i = 0; i < BUFFERS; i++) {
        size_t skip = (AIO_ALIGN - (uintptr_t)x->memory % AIO_ALIGN) % AIO_ALIGN;
        x->buffer[i] = (struct input_buffer){ .work = -1, .buf = x->memory + skip + x->padded * (size_t)i };
    }
    TRY(open_file(x, dir, run, rank, e));
    rc = aio_open(&x->aio, AIO_BEST, e);
out:
    return rc;
}

void inputs_close(struct inputs *x)
{
    struct err ignored;
    if (!x)
        return;
    aio_close(x->aio);
    if (x->file.fd >= 0)
        io_unlink(x->path, &ignored);
    io_close(x->file.fd);
    mem_free(x->d->mem, x->memory);
    free(x->sum);
    free(x);
}

struct input_store *inputs_store(struct inputs *x) { return &x->store; }

int64_t inputs_moved(const struct inputs *x)
{
    struct aio_count c = aio_count(x->aio);
    return c.read_bytes + c.written_bytes;
}

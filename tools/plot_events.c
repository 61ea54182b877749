/* plot_events.c - see plot_events.h.
 *
 * The file is a row of records (TFRecord): length u64, masked CRC-32C of the length u32, bytes, masked
 * CRC-32C of the bytes u32, all little-endian; masked: the sum rotated by 15 bits, plus 0xa282ead8. A record
 * is a protobuf message Event { double wall_time = 1; int64 step = 2; string file_version = 3;
 * Summary summary = 5 }, with Summary { repeated Value value = 1 } and Value { string tag = 1;
 * float simple_value = 2 }. */
#include "tools/plot_events.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/io.h"
#include "store/sidecar.h"

/* ---- records ---- */
/* CRC-32C (Castagnoli), bit by bit: a log is short. */
static uint32_t crc32c(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82F63B78) : 0);
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t n)
{
    uint32_t crc = crc32c(data, n);
    return (crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8);
}

static void write_record(FILE *f, const struct buf *b)
{
    const uint64_t n = b->n;
    const uint32_t sum[2] = { masked(&n, sizeof n), masked(b->p, b->n) };
    fwrite(&n, sizeof n, 1, f);
    fwrite(&sum[0], sizeof sum[0], 1, f);
    fwrite(b->p, 1, b->n, f);
    fwrite(&sum[1], sizeof sum[1], 1, f);
}

/* ---- protobuf ---- */
enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

static void put_varint(struct buf *b, uint64_t x)
{
    for (; x >= 0x80; x >>= 7)
        buf_add(b, &(unsigned char){ (unsigned char)(x | 0x80) }, 1);
    buf_add(b, &(unsigned char){ (unsigned char)x }, 1);
}

static void put_key(struct buf *b, unsigned field, unsigned wire) { put_varint(b, field << 3 | wire); }

static void put_bytes(struct buf *b, unsigned field, const void *data, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    buf_add(b, data, n);
}

static void put_head(struct buf *event, double time, int64_t step)
{
    put_key(event, 1, WIRE_64);
    buf_add(event, &time, sizeof time);
    put_key(event, 2, WIRE_VARINT);
    put_varint(event, (uint64_t)step);
}

/* ---- a line of the log ---- */
struct writer {
    FILE *f;
    struct buf event, summary, value, tag;
};

static void put_value(struct writer *w, const char *event, const char *key, double x)
{
    const float single = (float)x;
    w->value.n = w->tag.n = 0;
    if (event && strcmp(event, "eval")) {
        buf_add(&w->tag, event, strlen(event));
        buf_add(&w->tag, "/", 1);
    }
    buf_add(&w->tag, key, strlen(key));
    put_bytes(&w->value, 1, w->tag.p, w->tag.n);
    put_key(&w->value, 2, WIRE_32);
    buf_add(&w->value, &single, sizeof single);
    put_bytes(&w->summary, 1, w->value.p, w->value.n);
}

/* A list: KEY/0, KEY/1, … */
static void put_list(struct writer *w, const char *key, const json_t *list)
{
    const json_t *x;
    char number[24];
    size_t i;
    json_array_foreach(list, i, x) {
        snprintf(number, sizeof number, "%zu", i);
        if (json_is_number(x))
            put_value(w, key, number, json_number_value(x));
    }
}

static void write_line(struct writer *w, json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event")), *key;
    const json_t *step = json_object_get(line, "step");
    json_t *x;
    w->event.n = w->summary.n = 0;
    if (!json_is_integer(step) || (event && !strcmp(event, "run")))
        return;
    json_object_foreach(line, key, x) {
        if (json_is_number(x) && strcmp(key, "step") && strcmp(key, "time"))
            put_value(w, event, key, json_number_value(x));
        put_list(w, key, x);
    }
    if (!w->summary.n)
        return;
    put_head(&w->event, json_number_value(json_object_get(line, "time")), json_integer_value(step));
    put_bytes(&w->event, 5, w->summary.p, w->summary.n);
    write_record(w->f, &w->event);
}

static int write_all(struct writer *w, FILE *log, struct err *e)
{
    char *line = NULL;
    size_t line_bytes = 0;
    while (getline(&line, &line_bytes, log) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        write_line(w, o);
        json_decref(o);
    }
    free(line);
    int failed = w->event.failed | w->summary.failed | w->value.failed | w->tag.failed;
    return failed ? err_set(e, ERR_MEMORY, "no memory for an event") : 0;
}

/* ---- the file ---- */
/* The time of the log's first line; 0: a log of an earlier version. The position stays at the start. */
static double first_time(FILE *log)
{
    char *line = NULL;
    size_t line_bytes = 0;
    json_t *o = getline(&line, &line_bytes, log) > 0 ? json_loads(line, 0, NULL) : NULL;
    double time = json_number_value(json_object_get(o, "time"));
    json_decref(o);
    free(line);
    rewind(log);
    return time;
}

static int open_target(struct writer *w, const char *dir, const char *path, double time, struct err *e)
{
    static const char version[] = "brain.Event:2";
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const char *dot = strrchr(name, '.');
    char to[4200];
    int rc, n = dot && dot > name ? (int)(dot - name) : (int)strlen(name);
    snprintf(to, sizeof to, "%s/%.*s", dir, n, name);
    TRY(io_make_dirs(to, e));
    snprintf(to, sizeof to, "%s/%.*s/events.out.tfevents.%.0f.shardline", dir, n, name, time);
    if (!(w->f = io_write_text(to, 0, e)))
        return -e->code;
    put_head(&w->event, time, 0);
    put_bytes(&w->event, 3, version, sizeof version - 1);
    write_record(w->f, &w->event);
out:
    return rc;
}

int plot_events_write(const char *dir, const char *path, struct err *e)
{
    struct sidecars sidecars = { 0 };
    struct writer w = { 0 };
    const char *here = sidecar_file(&sidecars, path, e);
    FILE *log = NULL;
    int rc = 0, fd = here ? io_open_read(here, e) : -1;
    if (fd < 0) {
        rc = -e->code;
        goto out;
    }
    if (!(log = fdopen(fd, "r"))) {
        io_close(fd);
        rc = err_set(e, ERR_MEMORY, "no memory to read %s", path);
        goto out;
    }
    TRY(open_target(&w, dir, path, first_time(log), e));
    rc = write_all(&w, log, e);
    int lost = ferror(w.f);
    if (fclose(w.f) || lost)
        rc = err_sys(e, "--tensorboard %s: cannot write", dir);
out:
    if (log)
        fclose(log);
    sidecar_close(&sidecars);
    buf_free(&w.event);
    buf_free(&w.summary);
    buf_free(&w.value);
    buf_free(&w.tag);
    return rc;
}

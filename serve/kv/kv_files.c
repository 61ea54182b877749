/* kv_files.c - see kv_files.h. */
#include "serve/kv/kv_files.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/clock.h"
#include "base/io.h"

#define MAGIC 0x31304547504b4c53ull /* "SLKPGE01" */
#define LOOK_S 0.5                  /* between two looks at the folder */
#define TOUCH_S 5                   /* between two notes that a segment was read */
#define RETRY_S 60                  /* after a write that failed */
#define SEGMENTS 32                 /* of a full folder */
#define SEGMENT_MAX ((int64_t)256 << 20)

/* In the file, little-endian. */
struct header {
    uint64_t magic, key[2], bytes, sum[2], check; /* check: of what stands before it */
    uint64_t zero;
};
struct segment {
    char name[32];
    int fd;          /* -1: not open */
    int64_t scanned; /* bytes that the index knows */
    int64_t size;
    double touched_s; /* clock_s() */
    struct timespec used;
    int gone, seen;
};
struct slot {
    struct kv_key key;
    int32_t segment; /* -1: forgotten */
    int64_t at, bytes;
};
struct kv_files {
    char dir[3000];
    int64_t limit, segment_bytes;
    size_t payload_max;
    struct log *log;
    int said;
    double looked_s, off_s; /* no write before off_s */
    struct segment *segment;
    int n_segments, cap_segments, mine; /* mine: the one that is appended to, or -1 */
    struct slot *slot;                  /* [n_slots], a power of two; bytes 0: free */
    int64_t n_slots, n_used, total;
    int64_t unseen; /* bytes written since the folder was looked at: others may have written as many */
    char *record;   /* [header and payload] */
    struct kv_files_count count;
};

static void say(struct kv_files *f, const char *what)
{
    if (f->log && !f->said)
        log_line(f->log, "--kv-disk %s: %s", f->dir, what);
    f->said = 1;
}

static void path_of(const struct kv_files *f, const struct segment *s, char out[4096])
{
    snprintf(out, 4096, "%s/%s", f->dir, s->name);
}

/* ---- the index ---- */

static struct slot *slot_of(const struct kv_files *f, struct kv_key key)
{
    int64_t i = (int64_t)(key.w[0] & (uint64_t)(f->n_slots - 1));
    while (f->slot[i].bytes && memcmp(&f->slot[i].key, &key, sizeof key) != 0)
        i = (i + 1) & (f->n_slots - 1);
    return &f->slot[i];
}

static int is_there(const struct kv_files *f, const struct slot *x)
{
    return x->bytes && x->segment >= 0 && !f->segment[x->segment].gone;
}

/* Twice the slots; those that are not there any more are left out. 0: no memory. */
static int grow(struct kv_files *f)
{
    struct kv_files more = *f;
    more.n_slots = f->n_slots * 2;
    more.slot = calloc((size_t)more.n_slots, sizeof *more.slot);
    if (!more.slot)
        return 0;
    more.n_used = 0;
    for (int64_t i = 0; i < f->n_slots; i++)
        if (is_there(f, &f->slot[i])) {
            *slot_of(&more, f->slot[i].key) = f->slot[i];
            more.n_used++;
        }
    free(f->slot);
    *f = more;
    return 1;
}

static void insert(struct kv_files *f, struct kv_key key, int segment, int64_t at, int64_t bytes)
{
    if (2 * f->n_used >= f->n_slots && !grow(f))
        return;
    struct slot *x = slot_of(f, key);
    if (is_there(f, x))
        return;
    f->n_used += !x->bytes;
    *x = (struct slot){ key, segment, at, bytes };
}

/* ---- segments ---- */

static void close_segment(struct segment *s)
{
    if (s->fd >= 0)
        io_close(s->fd);
    s->fd = -1;
}

static void drop_segment(struct kv_files *f, struct segment *s)
{
    close_segment(s);
    s->gone = 1;
    if (f->mine == (int)(s - f->segment))
        f->mine = -1;
}

/* Opens it for reading where it is not open. 0: it cannot be. */
static int open_segment(const struct kv_files *f, struct segment *s)
{
    char path[4096];
    struct err ignored;
    path_of(f, s, path);
    if (s->fd < 0)
        s->fd = io_open_read(path, &ignored);
    return s->fd >= 0;
}

/* The segment of a file name, a new one where it is not known; NULL: no memory. */
static struct segment *find_segment(struct kv_files *f, const char *name)
{
    for (int i = 0; i < f->n_segments; i++)
        if (!strcmp(f->segment[i].name, name))
            return &f->segment[i];
    if (f->n_segments == f->cap_segments) {
        int cap = 2 * f->cap_segments + 16;
        struct segment *more = realloc(f->segment, sizeof *more * (size_t)cap);
        if (!more)
            return NULL;
        f->segment = more;
        f->cap_segments = cap;
    }
    struct segment *s = &f->segment[f->n_segments++];
    *s = (struct segment){ .fd = -1 };
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

static uint64_t check_of(const struct header *h) { return XXH3_64bits(h, offsetof(struct header, check)); }

/* Whether h heads a record that ends within `left`. Other stages and other models have records of other
 * sizes. */
static int is_header(const struct header *h, int64_t left)
{
    const uint64_t bytes = le64toh(h->bytes);
    return le64toh(h->magic) == MAGIC && le64toh(h->check) == check_of(h) && bytes > 0 &&
           bytes <= INT64_MAX / 2 && (int64_t)(bytes + sizeof *h) <= left;
}

/* Adds the records behind what is known. */
static void scan_records(struct kv_files *f, struct segment *s)
{
    struct header h;
    struct err ignored;
    char path[4096];

    path_of(f, s, path);
    while (s->scanned + (int64_t)sizeof h <= s->size && open_segment(f, s)) {
        if (io_pread(s->fd, path, &h, sizeof h, s->scanned, &ignored) < 0 ||
            !is_header(&h, s->size - s->scanned))
            return;
        const struct kv_key key = { { le64toh(h.key[0]), le64toh(h.key[1]) } };
        const int64_t bytes = (int64_t)le64toh(h.bytes);
        insert(f, key, (int)(s - f->segment), s->scanned, bytes);
        s->scanned += (int64_t)sizeof h + bytes;
    }
}

/* A folder may have more segments than a process has descriptors: those that are read are opened again. */
static void scan_segment(struct kv_files *f, struct segment *s)
{
    scan_records(f, s);
    if (f->mine != (int)(s - f->segment))
        close_segment(s);
}

static int is_segment_name(const char *name)
{
    return strlen(name) == 23 && !strncmp(name, "kv-", 3) && !strcmp(name + 19, ".seg");
}

/* Brings index and sizes up to date with the folder. */
static void look(struct kv_files *f)
{
    DIR *d = opendir(f->dir);
    struct dirent *entry;
    f->looked_s = clock_s();
    f->total = f->unseen = 0;
    for (int i = 0; i < f->n_segments; i++)
        f->segment[i].seen = 0;

    while (d && (entry = readdir(d))) {
        struct stat st;
        struct segment *s = is_segment_name(entry->d_name) ? find_segment(f, entry->d_name) : NULL;
        if (!s || s->gone || fstatat(dirfd(d), s->name, &st, 0) < 0)
            continue;
        s->seen = 1;
        s->size = st.st_size;
        s->used = st.st_mtim;
        f->total += s->size;
        scan_segment(f, s);
    }
    if (d)
        closedir(d);
    for (int i = 0; i < f->n_segments; i++)
        if (!f->segment[i].seen && !f->segment[i].gone)
            drop_segment(f, &f->segment[i]);
}

/* Deletes the segments that were used longest ago, until so many more bytes fit. */
static void make_room(struct kv_files *f, int64_t bytes)
{
    char path[4096];
    struct err ignored;
    if (clock_s() - f->looked_s > LOOK_S || f->total + bytes > f->limit || f->unseen > f->limit / SEGMENTS)
        look(f);
    while (f->total + bytes > f->limit) {
        struct segment *oldest = NULL;
        for (struct segment *s = f->segment; s < f->segment + f->n_segments; s++)
            if (!s->gone &&
                (!oldest || s->used.tv_sec < oldest->used.tv_sec ||
                 (s->used.tv_sec == oldest->used.tv_sec && s->used.tv_nsec < oldest->used.tv_nsec)))
                oldest = s;
        if (!oldest)
            return;
        path_of(f, oldest, path);
        io_unlink(path, &ignored);
        f->total -= oldest->size;
        drop_segment(f, oldest);
    }
}

/* ---- reading ---- */

int kv_files_has(struct kv_files *f, struct kv_key key)
{
    if (is_there(f, slot_of(f, key)))
        return 1;
    if (clock_s() - f->looked_s > LOOK_S)
        look(f);
    return is_there(f, slot_of(f, key));
}

/* Notes that a segment was used, for all who share the folder. */
static void touch(struct segment *s)
{
    const double now = clock_s();
    if (now - s->touched_s > TOUCH_S)
        futimens(s->fd, NULL);
    s->touched_s = now;
}

const void *kv_files_read(struct kv_files *f, struct kv_key key, size_t bytes)
{
    char path[4096];
    struct header h;
    struct err e;

    if (bytes > f->payload_max || !kv_files_has(f, key))
        return NULL;
    struct slot *x = slot_of(f, key);
    struct segment *s = &f->segment[x->segment];
    char *payload = f->record + sizeof h;
    path_of(f, s, path);
    if ((size_t)x->bytes == bytes && open_segment(f, s) &&
        io_pread(s->fd, path, f->record, sizeof h + bytes, x->at, &e) >= 0) {
        memcpy(&h, f->record, sizeof h);
        const XXH128_hash_t sum = XXH3_128bits(payload, bytes);
        if (is_header(&h, (int64_t)(sizeof h + bytes)) && le64toh(h.bytes) == bytes &&
            le64toh(h.key[0]) == key.w[0] && le64toh(h.key[1]) == key.w[1] &&
            le64toh(h.sum[0]) == sum.low64 && le64toh(h.sum[1]) == sum.high64) {
            touch(s);
            f->count.read_bytes += (int64_t)bytes;
            return payload;
        }
    }
    x->segment = -1;
    if (access(path, F_OK) < 0) { /* deleted to make room, by another process */
        drop_segment(f, s);
        return NULL;
    }
    f->count.n_damaged++;
    say(f, "a damaged page is computed again; later ones are only counted");
    return NULL;
}

void kv_files_ask_ahead(struct kv_files *f, struct kv_key key)
{
    const struct slot *x = slot_of(f, key);
    if (is_there(f, x) && open_segment(f, &f->segment[x->segment]))
        posix_fadvise(f->segment[x->segment].fd, x->at, x->bytes + (int64_t)sizeof(struct header),
                      POSIX_FADV_WILLNEED);
}

/* ---- writing ---- */

static void give_up(struct kv_files *f, const char *what)
{
    if (f->mine >= 0)
        close_segment(&f->segment[f->mine]); /* it stays in the index as far as it was written */
    f->mine = -1;
    f->off_s = clock_s() + RETRY_S;
    say(f, what);
}

/* A new file to append to. */
static int begin_segment(struct kv_files *f)
{
    char name[32], path[4096], what[4400];
    uint64_t number = 0;
    struct err e;

    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        number = (uint64_t)(clock_s() * 1e9);
    snprintf(name, sizeof name, "kv-%016llx.seg", (unsigned long long)number);
    struct segment *s = find_segment(f, name);
    if (!s)
        return 0;
    path_of(f, s, path);
    s->fd = io_open_write(path, &e);
    if (s->fd < 0) {
        s->gone = 1;
        snprintf(what, sizeof what, "%s: pages are read, and not written for a minute at a time", e.text);
        give_up(f, what);
        return 0;
    }
    clock_gettime(CLOCK_REALTIME, &s->used);
    f->mine = (int)(s - f->segment);
    return 1;
}

/* The segment for so many more bytes; NULL: pages are not written now. */
static struct segment *writable(struct kv_files *f, int64_t bytes)
{
    char path[4096];
    if (clock_s() < f->off_s)
        return NULL;
    make_room(f, bytes);
    if (f->mine >= 0) {
        struct segment *s = &f->segment[f->mine];
        path_of(f, s, path);
        if (s->size + bytes > f->segment_bytes || !io_is_at(s->fd, path)) {
            close_segment(s);
            f->mine = -1;
        }
    }
    return f->mine >= 0 || begin_segment(f) ? &f->segment[f->mine] : NULL;
}

void kv_files_write(struct kv_files *f, struct kv_key key, const void *payload, size_t bytes)
{
    char path[4096], what[1200];
    const XXH128_hash_t sum = XXH3_128bits(payload, bytes);
    struct header h = { htole64(MAGIC),
                        { htole64(key.w[0]), htole64(key.w[1]) },
                        htole64(bytes),
                        { htole64(sum.low64), htole64(sum.high64) },
                        0,
                        0 };
    struct err e, ignored;

    if (bytes > f->payload_max || kv_files_has(f, key))
        return;
    struct segment *s = writable(f, (int64_t)(sizeof h + bytes));
    if (!s)
        return;
    h.check = htole64(check_of(&h));
    memcpy(f->record, &h, sizeof h);
    memcpy(f->record + sizeof h, payload, bytes);
    path_of(f, s, path);
    if (io_pwrite(s->fd, path, f->record, sizeof h + bytes, s->size, &e) < 0) {
        io_truncate(s->fd, path, s->size, &ignored);
        snprintf(what, sizeof what, "%.1000s: pages are read, and not written for a minute at a time",
                 e.text);
        give_up(f, what);
        return;
    }
    insert(f, key, f->mine, s->size, (int64_t)bytes);
    s->size += (int64_t)(sizeof h + bytes);
    s->scanned = s->size;
    f->total += (int64_t)(sizeof h + bytes);
    f->unseen += (int64_t)(sizeof h + bytes);
    f->count.written_bytes += (int64_t)bytes;
}

/* ---- life ---- */

int kv_files_open(struct kv_files **out, const char *dir, int64_t limit, size_t payload_max, struct log *log,
                  struct err *e)
{
    struct kv_files *f = calloc(1, sizeof *f);
    const int64_t record = (int64_t)(payload_max + sizeof(struct header));
    int rc = f ? io_make_dirs(dir, e) : err_set(e, ERR_MEMORY, "no memory for --kv-disk");

    if (rc >= 0 && !io_is_dir(dir))
        rc = err_set(e, ERR_FILE, "--kv-disk %.1000s is not a folder", dir);
    if (rc >= 0 && limit < 2 * record)
        rc = err_set(e, ERR_USAGE, "--kv-disk: %lld bytes hold no two pages of %lld: raise the size",
                     (long long)limit, (long long)record);
    if (rc < 0)
        goto out;
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    f->limit = limit;
    f->segment_bytes = limit / SEGMENTS < SEGMENT_MAX ? limit / SEGMENTS : SEGMENT_MAX;
    f->segment_bytes = f->segment_bytes > record ? f->segment_bytes : record;
    f->payload_max = payload_max;
    f->log = log;
    f->mine = -1;
    f->n_slots = 1 << 12;
    f->slot = calloc((size_t)f->n_slots, sizeof *f->slot);
    f->record = malloc((size_t)record);
    rc = f->slot && f->record ? 0 : err_set(e, ERR_MEMORY, "no memory for the index of --kv-disk");
    if (rc >= 0)
        look(f);
out:
    if (rc < 0) {
        kv_files_close(f);
        f = NULL;
    }
    *out = f;
    return rc;
}

void kv_files_close(struct kv_files *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_segments; i++)
        close_segment(&f->segment[i]);
    free(f->segment);
    free(f->slot);
    free(f->record);
    free(f);
}

int64_t kv_files_records(const struct kv_files *f)
{
    int64_t n = 0;
    for (int64_t i = 0; i < f->n_slots; i++)
        n += is_there(f, &f->slot[i]);
    return n;
}

struct kv_files_count kv_files_counts(const struct kv_files *f) { return f->count; }

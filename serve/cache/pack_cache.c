/* pack_cache.c - see pack_cache.h. */
#include "serve/cache/pack_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <xxhash.h>
#include "base/buf.h"
#include "base/io.h"
#include "format/ckpt_proof.h"
#include "format/ckpt_write.h"

#define HEX 32           /* digits of a digest or mark */
#define SOURCE "source-" /* prefixes in the folder */
#define PACKING "packing-"
#define DROPPED "dropped-"
#define DATA "weights-00000.safetensors"

static const char *const kinds[CACHE_KINDS] = { [CACHE_PLAIN] = "plain", [CACHE_B12] = "b12" };

int cache_open(struct cache *c, const char *dir, enum cache_kind kind, int64_t most, struct err *e)
{
    *c = (struct cache){ .kind = kind, .most = most };
    if (strlen(dir) >= sizeof c->dir)
        return err_set(e, ERR_USAGE, "--cache: the folder's name has more than %zu bytes", sizeof c->dir - 1);
    snprintf(c->dir, sizeof c->dir, "%s", dir);
    int rc = io_make_dirs(dir, e);
    return rc < 0 ? err_add(e, "--cache") : 0;
}

int cache_path(const struct cache *c, const char *name, char path[CACHE_PATH])
{
    return snprintf(path, CACHE_PATH, "%s/%s", c->dir, name) < CACHE_PATH;
}

/* ---- names in a folder ---- */

struct names {
    char **name;
    size_t n, room;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists a folder, sorted, without names that begin with a dot; nothing where it cannot be read. */
static struct names list(const char *dir)
{
    struct names x = { 0 };
    const struct dirent *entry;
    DIR *d = opendir(dir);
    while (d && (entry = readdir(d))) {
        char **grown = *entry->d_name == '.' ? NULL : buf_grow(x.name, &x.room, x.n + 1, sizeof *grown);
        if (!grown)
            continue;
        x.name = grown;
        if ((x.name[x.n] = strdup(entry->d_name)))
            x.n++;
    }
    if (d)
        closedir(d);
    if (x.n)
        qsort(x.name, x.n, sizeof *x.name, compare_names);
    return x;
}

static void free_names(struct names *x)
{
    for (size_t i = 0; i < x->n; i++)
        free(x->name[i]);
    free(x->name);
}

static int is_hex(const char *s, size_t n) { return strspn(s, "0123456789abcdef") >= n; }

/* Is this the name of a checkpoint in the folder? */
static int is_entry(const char *name)
{
    int known = 0;
    for (int i = 0; i < CACHE_KINDS && is_hex(name, HEX) && name[HEX] == '-'; i++)
        known |= !strcmp(name + HEX + 1, kinds[i]);
    return known;
}

static int begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

/* ---- sources ---- */

/* Adds what is known of a file without reading it. */
static void add_file(XXH3_state_t *h, const char *path, const char *name, struct cache_mark *m)
{
    struct io_mark file;
    io_mark_path(path, &file);
    XXH3_128bits_update(h, name, strlen(name) + 1);
    XXH3_128bits_update(h, &file.dev, sizeof file.dev);
    XXH3_128bits_update(h, &file.ino, sizeof file.ino);
    XXH3_128bits_update(h, &file.bytes, sizeof file.bytes);
    XXH3_128bits_update(h, &file.changed_ns, sizeof file.changed_ns);
    m->newest_ns = file.changed_ns > m->newest_ns ? file.changed_ns : m->newest_ns;
}

/* The folder of a source: itself, or the one that the file lies in. Returns the file's name, or "". */
static const char *folder_of(const char *source, char dir[CACHE_PATH])
{
    snprintf(dir, CACHE_PATH, "%s", source);
    if (io_is_dir(source))
        return "";
    char *end = strrchr(dir, '/');
    snprintf(end ? end + 1 : dir, 2, ".");
    return end ? source + (end + 1 - dir) : source;
}

int cache_mark(struct cache_mark *m, const char *source, struct err *e)
{
    char dir[CACHE_PATH], path[CACHE_PATH];
    XXH3_state_t *h = XXH3_createState();
    *m = (struct cache_mark){ .newest_ns = 0 };
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory to mark %s", source);
    const char *file = folder_of(source, dir);
    struct names x = list(dir);
    XXH3_128bits_reset(h);
    XXH3_128bits_update(h, file, strlen(file) + 1);
    for (size_t i = 0; i < x.n; i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, x.name[i]) < (int)sizeof path)
            add_file(h, path, x.name[i], m);
    const XXH128_hash_t d = XXH3_128bits_digest(h);
    snprintf(m->hex, sizeof m->hex, "%016llx%016llx", (unsigned long long)d.high64,
             (unsigned long long)d.low64);
    XXH3_freeState(h);
    const int found = x.n > 0;
    free_names(&x);
    return found ? 0 : err_set(e, ERR_FILE, "%s: its folder has no files any more", source);
}

/* The digest of a checkpoint whose files store it. */
static int digest_of(const struct ckpt *c, char hex[HEX + 1])
{
    const int n = ckpt_n_tensors(c);
    struct ckpt_tensor *t = calloc((size_t)n + 1, sizeof *t);
    int known = t != NULL;
    for (int i = 0; i < n && known; i++) {
        t[i] = *ckpt_tensor(c, i);
        known = t[i].has_digest;
    }
    if (known)
        ckpt_digest_hex(ckpt_digest_all(n, t, NULL).weights, hex);
    free(t);
    return known;
}

int cache_is_named(const char *name, const struct ckpt *opened)
{
    char hex[HEX + 1];
    return digest_of(opened, hex) && !strncmp(hex, name, HEX);
}

static void name_entry(enum cache_kind kind, const char *hex, char name[CACHE_NAME])
{
    snprintf(name, CACHE_NAME, "%.32s-%s", hex, kinds[kind]);
}

/* The note of a source: the digest of its weights. */
static int read_note(const struct cache *c, const struct cache_mark *m, char hex[HEX + 1])
{
    char path[CACHE_PATH], file[CACHE_NAME];
    void *text = NULL;
    size_t n;
    struct err ignored;
    snprintf(file, sizeof file, SOURCE "%s", m->hex);
    if (!cache_path(c, file, path) || !io_exists(path) ||
        io_read_file(path, CACHE_NAME, &text, &n, &ignored) < 0)
        return 0;
    snprintf(hex, HEX + 1, "%s", (const char *)text);
    free(text);
    return strlen(hex) == HEX && is_hex(hex, HEX);
}

/* A reader finds all of the note or none. */
static int note_source(const struct cache *c, const struct cache_mark *m, const char *hex, struct err *e)
{
    char file[CACHE_NAME], path[CACHE_PATH], line[HEX + 2], fresh[CACHE_PATH + 8];
    snprintf(file, sizeof file, SOURCE "%s", m->hex);
    snprintf(line, sizeof line, "%.32s\n", hex);
    if (!cache_path(c, file, path))
        return err_set(e, ERR_FILE, "%s: its name is too long", c->dir);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    int rc = 0;
    TRY(io_unlink(fresh, e));
    TRY(io_write_file(fresh, line, strlen(line), e));
    TRY(io_replace(fresh, path, e));
out:
    return rc < 0 ? rc : 0;
}

static int is_there(const struct cache *c, enum cache_kind kind, const char *hex)
{
    char name[CACHE_NAME], path[CACHE_PATH];
    name_entry(kind, hex, name);
    return cache_path(c, name, path) && io_is_dir(path);
}

int cache_find(const struct cache *c, const struct cache_mark *m, const struct ckpt *opened,
               char name[CACHE_NAME])
{
    char hex[HEX + 1];
    if (!(opened && digest_of(opened, hex)) && !read_note(c, m, hex))
        return 0;
    name_entry(c->kind, hex, name);
    return is_there(c, c->kind, hex);
}

/* ---- room ---- */

struct held {
    char name[CACHE_NAME];
    int64_t bytes;
    struct timespec used;
};

static int compare_held(const void *pa, const void *pb)
{
    const struct held *a = pa, *b = pb;
    if (a->used.tv_sec != b->used.tv_sec)
        return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    return (a->used.tv_nsec > b->used.tv_nsec) - (a->used.tv_nsec < b->used.tv_nsec);
}

static int64_t folder_bytes(const char *dir)
{
    struct names x = list(dir);
    char path[CACHE_PATH];
    struct stat st;
    int64_t sum = 0;
    for (size_t i = 0; i < x.n; i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, x.name[i]) < (int)sizeof path && stat(path, &st) == 0)
            sum += st.st_size;
    free_names(&x);
    return sum;
}

/* Removes what a killed server left: parts of checkpoints, and notes of checkpoints that are gone. */
static void remove_left(const struct cache *c, const char *name)
{
    char path[CACHE_PATH], hex[HEX + 1];
    struct cache_mark m;
    struct err ignored;
    int used = 0;
    if (!cache_path(c, name, path))
        return;
    if (begins(name, DROPPED))
        io_remove_tree(path, &ignored);
    else if (begins(name, PACKING) && strchr(name, '.'))
        ckpt_drop_left(path, NULL);
    else if (begins(name, SOURCE) && strlen(name) == strlen(SOURCE) + HEX) {
        snprintf(m.hex, sizeof m.hex, "%s", name + strlen(SOURCE));
        for (int i = 0; i < CACHE_KINDS && read_note(c, &m, hex); i++)
            used |= is_there(c, (enum cache_kind)i, hex);
        if (!used)
            io_unlink(path, &ignored);
    }
}

/* Lists the checkpoints, those that were used longest ago first. *bytes: of all. The caller frees it. */
static struct held *list_held(const struct cache *c, int *n, int64_t *bytes)
{
    struct names x = list(c->dir);
    struct held *v = calloc(x.n + 1, sizeof *v);
    char path[CACHE_PATH];
    struct stat st;
    *n = 0;
    *bytes = 0;
    for (size_t i = 0; v && i < x.n; i++) {
        remove_left(c, x.name[i]);
        if (!is_entry(x.name[i]) || !cache_path(c, x.name[i], path) || stat(path, &st) < 0)
            continue;
        struct held *h = &v[(*n)++];
        snprintf(h->name, sizeof h->name, "%s", x.name[i]);
        *bytes += h->bytes = folder_bytes(path);
        h->used = st.st_mtim;
    }
    free_names(&x);
    if (v)
        qsort(v, (size_t)*n, sizeof *v, compare_held);
    return v;
}

/* Removes a checkpoint that no process has mapped. 1: it is gone. */
static int remove_unused(const struct cache *c, const char *name)
{
    char path[CACHE_PATH + sizeof DATA], dir[CACHE_PATH];
    struct err ignored;
    if (!cache_path(c, name, dir))
        return 0;
    snprintf(path, sizeof path, "%s/" DATA, dir);
    const int fd = io_exists(path) ? io_open_write(path, &ignored) : -1;
    const int busy = fd >= 0 && io_try_lock(fd, 0) == IO_BUSY;
    if (!busy)
        cache_drop(c, name);
    if (fd >= 0)
        io_close(fd);
    return !busy;
}

int cache_make_room(const struct cache *c, int64_t bytes)
{
    int n;
    int64_t held, most = c->most;
    struct statvfs fs;
    struct held *v = list_held(c, &n, &held);
    if (!most)
        most = statvfs(c->dir, &fs) < 0 ? INT64_MAX : held / 2 + (int64_t)(fs.f_bavail * fs.f_frsize) / 2;
    for (int i = 0; v && bytes <= most && held > most - bytes && i < n; i++)
        held -= remove_unused(c, v[i].name) ? v[i].bytes : 0;
    free(v);
    return bytes <= most && held <= most - bytes;
}

void cache_drop(const struct cache *c, const char *name)
{
    char path[CACHE_PATH], away[CACHE_PATH], other[CACHE_NAME + sizeof DROPPED];
    struct err ignored;
    snprintf(other, sizeof other, DROPPED "%s", name);
    if (!cache_path(c, name, path) || !cache_path(c, other, away))
        return;
    io_remove_tree(away, &ignored);
    io_rename(path, away, &ignored); /* no later start finds a part of it */
    io_remove_tree(away, &ignored);
}

void cache_use(const struct cache *c, const char *name)
{
    char path[CACHE_PATH];
    if (cache_path(c, name, path))
        utimensat(AT_FDCWD, path, NULL, 0);
}

/* ---- what was made ---- */

void cache_packing(const struct cache *c, const struct cache_mark *m, char name[CACHE_NAME])
{
    snprintf(name, CACHE_NAME, PACKING "%s-%s", m->hex, kinds[c->kind]);
}

int cache_take_in(const struct cache *c, const struct cache_mark *m, char name[CACHE_NAME], struct err *e)
{
    char made[CACHE_NAME], hex[HEX + 1], from[CACHE_PATH], to[CACHE_PATH];
    struct ckpt *opened = NULL;
    struct err ignored;
    int rc = 0;
    cache_packing(c, m, made);
    if (!cache_path(c, made, from))
        return err_set(e, ERR_FILE, "%s: its name is too long", c->dir);
    TRY(ckpt_open(&opened, from, NULL, e));
    TRY(digest_of(opened, hex) ? 0 : err_set(e, ERR_FORMAT, "%s stores no digests", from));
    name_entry(c->kind, hex, name);
    TRY(cache_path(c, name, to) ? 0 : err_set(e, ERR_FILE, "%s: its name is too long", c->dir));
    ckpt_close(opened);
    opened = NULL;
    if (io_is_dir(to)) { /* another source of the same weights */
        io_remove_tree(from, &ignored);
        cache_use(c, name);
    } else {
        TRY(io_rename(from, to, e));
    }
    TRY(note_source(c, m, hex, e));
out:
    ckpt_close(opened);
    if (rc < 0)
        io_remove_tree(from, &ignored);
    return rc < 0 ? rc : 0;
}

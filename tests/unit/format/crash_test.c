/* crash_test.c - what a power cut may leave of a save, a conversion or a download: always one of the whole
 * checkpoints, never a mixture.
 *
 * A command runs once with its operations recorded (base/test_hooks.h). For every prefix of that record the
 * test makes, as real folders, what the disk may hold if the machine stops there, and checks it. The model is
 * that of POSIX, weaker than any usual file system: what was fsynced is there; of the rest every write, every
 * sector of 512 bytes of it, and every entry of a folder is there or not, in any order; a rename is there
 * whole or not at all. Checkpoints have the same bytes whenever they are written, so "whole" means the bytes
 * of the undisturbed run. CRASH_STATES=N: N states for each prefix instead of a few
 * (tests/cli/damage/crash_states.sh). */
#include "tests/test.h"

#include <dirent.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/test_hooks.h"
#include "base/io.h"
#include "base/rnd.h"
#include "base/tmp_folder.h"

#define SECTOR 512
enum { ROOM = 4096, LIMIT = 1 << 28 };

/* ---- folders and commands ---- */
struct text {
    char s[ROOM];
};

static struct text text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static struct text text(const char *fmt, ...)
{
    struct text t;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t.s, sizeof t.s, fmt, ap);
    va_end(ap);
    return t;
}

static void remove_all(const char *path)
{
    struct err e;
    if (io_remove_tree(path, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
}

/* Runs a program, "ptrain …"; its output goes to a file, which is printed when the program fails. */
static int command(const char *line)
{
    char self[ROOM] = { 0 };
    struct text log = text("%s/output", test_tmp_dir()), all;
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return -1;
    for (int up = 0; up < 4; up++)
        *strrchr(self, '/') = 0;
    all = text("%s/bin/%s >%s 2>&1 </dev/null", self, line, log.s);
    int status = system(all.s);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void show_output(void)
{
    struct err e;
    void *data = NULL;
    size_t n;
    if (io_read_file(text("%s/output", test_tmp_dir()).s, LIMIT, &data, &n, &e) == 0)
        printf("%.2000s\n", (char *)data);
    free(data);
}

static int same_file(const char *a, const char *b)
{
    struct err e;
    void *x = NULL, *y = NULL;
    size_t n = 0, m = 1;
    int same = io_read_file(a, LIMIT, &x, &n, &e) == 0 && io_read_file(b, LIMIT, &y, &m, &e) == 0 && n == m &&
               !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

static int is_entry(const struct dirent *d) { return strcmp(d->d_name, ".") && strcmp(d->d_name, ".."); }

/* The marker is no content: a crash may leave it in a published folder. */
static int is_content(const struct dirent *d) { return is_entry(d) && strcmp(d->d_name, TMP_MARKER); }

static int count_entries(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *x;
    int n = 0;
    while (d && (x = readdir(d)))
        n += is_content(x);
    if (d)
        closedir(d);
    return n;
}

/* 1: two folders have the same names and bytes. */
static int same_folder(const char *a, const char *b)
{
    DIR *d = opendir(a);
    struct dirent *x;
    int same = d && count_entries(a) == count_entries(b);
    while (same && (x = readdir(d)))
        if (is_content(x)) {
            struct text in_a = text("%s/%s", a, x->d_name), in_b = text("%s/%s", b, x->d_name);
            same = x->d_type == DT_DIR ? same_folder(in_a.s, in_b.s) : same_file(in_a.s, in_b.s);
        }
    if (d)
        closedir(d);
    return same;
}

/* ---- a disk: what was done to every file and folder, and how much of it is safe ---- */
struct change {
    int at;             /* number of the operation */
    int64_t off, bytes; /* of a file: data put, or (data NULL) its length changed */
    const char *data;
    char from[256], to[256]; /* of a folder: the entry `from` is removed, `to` becomes `node` */
    int node;
};
struct node {
    int is_dir, n, n_safe;
    struct change *change;
};
/* node 0: the top folder */
struct disk {
    int n;
    struct node *node;
};

static struct change *add_change(struct disk *d, int node, int at)
{
    struct node *x = &d->node[node];
    x->change = realloc(x->change, sizeof *x->change * (size_t)(x->n + 1));
    x->change[x->n] = (struct change){ .at = at, .node = -1 };
    return &x->change[x->n++];
}

static int new_node(struct disk *d, int is_dir)
{
    d->node = realloc(d->node, sizeof *d->node * (size_t)(d->n + 1));
    d->node[d->n] = (struct node){ .is_dir = is_dir };
    return d->n++;
}

static void free_disk(struct disk *d)
{
    for (int i = 0; i < d->n; i++)
        free(d->node[i].change);
    free(d->node);
    *d = (struct disk){ 0 };
}

static int entry(const struct disk *d, int folder, const char *name)
{
    const struct node *x = &d->node[folder];
    for (int i = x->n - 1; i >= 0; i--) {
        if (!strcmp(x->change[i].to, name))
            return x->change[i].node;
        if (!strcmp(x->change[i].from, name))
            return -1;
    }
    return -1;
}

/* The node at a path below the top; *folder, name: where its entry is (-1: no such folder). */
static int find(const struct disk *d, const char *path, int *folder, char name[256])
{
    int at = 0;
    *folder = -1;
    while (*path == '/')
        path++;
    while (*path) {
        size_t n = strcspn(path, "/");
        *folder = at;
        snprintf(name, 256, "%.*s", (int)n, path);
        path += n;
        while (*path == '/')
            path++;
        if (at < 0)
            return *folder = -1;
        at = entry(d, at, name);
    }
    return at;
}

static void set_entry(struct disk *d, int at, int folder, const char *from, const char *to, int node)
{
    struct change *c = add_change(d, folder, at);
    snprintf(c->from, sizeof c->from, "%s", from);
    snprintf(c->to, sizeof c->to, "%s", to);
    c->node = node;
}

/* What exists before the run: all of it is on the disk. */
static void load(struct disk *d, int folder, const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *x;
    while (dir && (x = readdir(dir))) {
        struct text full = text("%s/%s", path, x->d_name);
        struct stat st;
        if (!is_entry(x) || lstat(full.s, &st) < 0)
            continue;
        int node = new_node(d, S_ISDIR(st.st_mode));
        set_entry(d, -1, folder, "", x->d_name, node);
        if (S_ISDIR(st.st_mode)) {
            load(d, node, full.s);
        } else {
            struct err e;
            void *data;
            size_t n;
            struct change *c = add_change(d, node, -1);
            /* belongs to the start: crash_everywhere frees it */
            if (io_read_file(full.s, LIMIT, &data, &n, &e) == 0)
                c->data = data, c->bytes = (int64_t)n;
        }
        d->node[node].n_safe = d->node[node].n;
    }
    if (dir)
        closedir(dir);
    d->node[folder].n_safe = d->node[folder].n;
}

/* ---- the record ---- */
struct op {
    enum hook_op op;
    char path[ROOM], to[ROOM];
    int64_t off, bytes;
    const char *data;
};
struct ops {
    int n;
    struct op *op;
    void *bytes;
};

static int below(const char *top, const char *path, size_t n, char out[ROOM])
{
    size_t skip = strlen(top);
    if (n < skip || memcmp(path, top, skip))
        return 0;
    snprintf(out, ROOM, "%.*s", (int)(n - skip), path + skip);
    return 1;
}

static struct ops read_record(const char *log, const char *top)
{
    struct ops o = { 0 };
    struct err e;
    size_t n = 0;
    if (io_read_file(log, (size_t)1 << 30, &o.bytes, &n, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    for (size_t at = 0; at + sizeof(struct hook_record) <= n;) {
        struct hook_record r;
        const char *p = (char *)o.bytes + at + sizeof r;
        memcpy(&r, (char *)o.bytes + at, sizeof r);
        o.op = realloc(o.op, sizeof *o.op * (size_t)(o.n + 1));
        struct op *x = &o.op[o.n];
        *x = (struct op){ .op = r.op, .off = r.off, .bytes = r.bytes, .data = p + r.path_bytes + r.to_bytes };
        if (below(top, p, r.path_bytes, x->path) &&
            (!r.to_bytes || below(top, p + r.path_bytes, r.to_bytes, x->to)))
            o.n++;
        at += sizeof r + r.path_bytes + r.to_bytes + (size_t)r.bytes;
    }
    return o;
}

static void apply(struct disk *d, const struct op *o, int at)
{
    char name[256] = "", to[256] = "";
    int folder, to_folder, node = find(d, o->path, &folder, name);
    struct change *c;
    switch (o->op) {
    case HOOK_OPEN:
    case HOOK_MKDIR:
        if (node >= 0 || folder < 0)
            return;
        node = new_node(d, o->op == HOOK_MKDIR);
        set_entry(d, at, folder, "", name, node);
        return;
    case HOOK_WRITE:
    case HOOK_TRUNCATE:
        CHECK(node >= 0);
        c = add_change(d, node, at);
        c->off = o->off, c->bytes = o->bytes, c->data = o->op == HOOK_WRITE ? o->data : NULL;
        return;
    case HOOK_FSYNC:
        CHECK(node >= 0);
        d->node[node].n_safe = d->node[node].n;
        return;
    case HOOK_RENAME:
        find(d, o->to, &to_folder, to);
        CHECK(node >= 0 && folder == to_folder); /* of one folder: one change */
        set_entry(d, at, folder, name, to, node);
        return;
    case HOOK_UNLINK: set_entry(d, at, folder, name, "", -1); return;
    default: return;
    }
}

/* ---- one state that a crash may leave ---- */
enum fate { ALL, NOTHING, NAMES_ONLY, DATA_ONLY, IN_ORDER, ANY, FATES };
/* cut: IN_ORDER, operations from there on are lost */
struct crash {
    enum fate fate;
    int cut;
    uint64_t seed, n;
};

static uint32_t chance(struct crash *c) { return (uint32_t)(rnd_u64(c->seed, 0, c->n++) >> 40); }

static int survives(struct crash *c, const struct node *x, int i)
{
    if (i < x->n_safe)
        return 1;
    switch (c->fate) {
    case ALL: return 1;
    case NAMES_ONLY: return x->is_dir;
    case DATA_ONLY: return !x->is_dir;
    case IN_ORDER: return x->change[i].at < c->cut;
    case ANY: return (int)(chance(c) & 1);
    default: return 0;
    }
}

static void put(char **data, int64_t *size, int64_t off, const char *from, int64_t n)
{
    if (off + n > *size) {
        *data = realloc(*data, (size_t)(off + n) + 1);
        memset(*data + *size, 0, (size_t)(off + n - *size));
        *size = off + n;
    }
    if (from)
        memcpy(*data + off, from, (size_t)n);
}

static void make_file(const struct disk *d, int node, const char *path, struct crash *c)
{
    const struct node *x = &d->node[node];
    char *data = NULL;
    int64_t size = 0;
    struct err e;
    for (int i = 0; i < x->n; i++) {
        const struct change *w = &x->change[i];
        int torn = c->fate == ANY && i >= x->n_safe;
        if (!survives(c, x, i)) {
            if (torn && w->data && chance(c) & 1) /* the new length is on the disk, the data are not */
                put(&data, &size, w->off + w->bytes, NULL, 0);
            continue;
        }
        if (!w->data) {
            put(&data, &size, w->off, NULL, 0);
            size = w->off;
        }
        for (int64_t at = w->off; w->data && at < w->off + w->bytes;) {
            int64_t end = (at / SECTOR + 1) * SECTOR;
            end = end < w->off + w->bytes && torn ? end : w->off + w->bytes;
            put(&data, &size, at, torn && chance(c) % 8 == 0 ? NULL : w->data + (at - w->off), end - at);
            at = end;
        }
    }
    int fd = io_create(path, &e); /* without fsync: the files are checked and removed */
    CHECK(fd >= 0 && (!size || io_pwrite(fd, path, data, (size_t)size, 0, &e) == 0));
    io_close(fd);
    free(data);
}

static void make_folder(const struct disk *d, int node, const char *path, struct crash *c)
{
    const struct node *x = &d->node[node];
    struct {
        char name[256];
        int node;
    } here[64];
    int n = 0;
    CHECK_INT(mkdir(path, 0777), 0);
    for (int i = 0; i < x->n; i++) {
        const struct change *w = &x->change[i];
        if (!survives(c, x, i))
            continue;
        for (int k = 0; k < n; k++)
            if (!strcmp(here[k].name, w->from) || !strcmp(here[k].name, w->to))
                here[k--] = here[--n];
        if (*w->to && n < 64) {
            snprintf(here[n].name, sizeof here[n].name, "%s", w->to);
            here[n++].node = w->node;
        }
    }
    for (int k = 0; k < n; k++) {
        struct text full = text("%s/%s", path, here[k].name);
        if (d->node[here[k].node].is_dir)
            make_folder(d, here[k].node, full.s, c);
        else
            make_file(d, here[k].node, full.s, c);
    }
}

/* ---- the cases ---- */
struct scenario {
    /* %s: the top folder. before: makes what exists before the run; next: must succeed after a crash */
    const char *before, *run, *next;
    /* checkpoints in the top folder: before the run (or NULL), after it, after next */
    const char *old, *new, *newer;
};
static int n_states(void) { return getenv("CRASH_STATES") ? atoi(getenv("CRASH_STATES")) : 2; }

static int run_in(const char *fmt, const char *top)
{
    struct text line;
    size_t n = 0;
    for (const char *p = fmt; *p && n < sizeof line.s - 1;)
        if (p[0] == '%' && p[1] == 's') {
            n += (size_t)snprintf(line.s + n, sizeof line.s - n, "%s", top);
            p += 2;
        } else {
            line.s[n++] = *p++;
        }
    line.s[n < sizeof line.s ? n : sizeof line.s - 1] = 0;
    int rc = command(line.s);
    if (rc)
        show_output();
    return rc;
}

/* Checks the top folder: whole checkpoints, and else temporary folders only. 1: the old one is there, 2: the
 * new one, 3: both. */
static int check_state(const struct scenario *s, const char *top, const char *good, const char *what)
{
    DIR *d = opendir(top);
    struct dirent *x;
    int found = 0;
    while (d && (x = readdir(d))) {
        /* a run's lock is no checkpoint and stays */
        if (!is_entry(x) || strstr(x->d_name, ".tmp-") || !strcmp(x->d_name, ".ptrain.lock"))
            continue;
        int is_new = !strcmp(x->d_name, s->new), known = is_new || (s->old && !strcmp(x->d_name, s->old));
        if (!known || !same_folder(text("%s/%s", top, x->d_name).s, text("%s/%s", good, x->d_name).s))
            test_fail(__FILE__, __LINE__, "%s: %s is there and not whole", what, x->d_name);
        found |= is_new ? 2 : 1;
    }
    if (d)
        closedir(d);
    if (s->old && !found)
        test_fail(__FILE__, __LINE__, "%s: neither %s nor %s is there", what, s->old, s->new);
    return found;
}

static void check_next(const struct scenario *s, const char *top, const char *good, int found,
                       const char *what)
{
    const char *line = s->next ? s->next : s->run, *name = s->newer ? s->newer : s->new;
    if (!s->next && found & 2)
        return;
    if (run_in(line, top) || !same_folder(text("%s/%s", top, name).s, text("%s/%s", good, name).s))
        test_fail(__FILE__, __LINE__, "%s: the next run does not give %s", what, name);
}

/* Runs it undisturbed: `good` gets the whole checkpoints, `log` the record, *start what existed before. */
static void record(const struct scenario *s, const char *top, const char *good, const char *log,
                   struct disk *start)
{
    remove_all(top);
    remove_all(good);
    unlink(log);
    CHECK_INT(mkdir(top, 0777), 0);
    if (s->before)
        CHECK_INT(run_in(s->before, top), 0);
    new_node(start, 1);
    load(start, 0, top);
    CHECK_INT(system(text("cp -r %s %s", top, good).s), 0);
    setenv("SHARDLINE_IO_RECORD", log, 1);
    CHECK_INT(run_in(s->run, top), 0);
    unsetenv("SHARDLINE_IO_RECORD");
    CHECK_INT(system(text("cp -r %s/%s %s", top, s->new, good).s), 0);
    if (s->next) {
        CHECK_INT(run_in(s->next, top), 0);
        CHECK_INT(system(text("cp -r %s/%s %s", top, s->newer, good).s), 0);
    }
}

static struct disk replay(const struct disk *start, const struct ops *o, int n)
{
    struct disk d = { 0 };
    for (int i = 0; i < start->n; i++) {
        new_node(&d, start->node[i].is_dir);
        for (int k = 0; k < start->node[i].n; k++)
            *add_change(&d, i, -1) = start->node[i].change[k];
        d.node[i].n_safe = start->node[i].n_safe;
    }
    for (int i = 0; i < n; i++)
        apply(&d, &o->op[i], i);
    return d;
}

static void crash_everywhere(const struct scenario *s)
{
    static const char *const fate_name[FATES] = { "all of it", "nothing unsynced", "names only",
                                                  "data only", "a part in order",  "anything" };
    struct text top = text("%s/top", test_tmp_dir()), good = text("%s/good", test_tmp_dir()),
                log = text("%s/log", test_tmp_dir());
    struct disk start = { 0 };
    int states = n_states(), n_looked = 0, every = states > 2 ? 61 : 29;
    record(s, top.s, good.s, log.s, &start);
    struct ops o = read_record(log.s, top.s);
    CHECK(o.n > 10);
    for (int p = 0; p <= o.n; p++) {
        struct disk d = replay(&start, &o, p);
        for (int k = 0; k < states; k++, n_looked++) {
            struct crash c = { .fate = k < FATES ? (enum fate)((p + k * 5) % FATES) : ANY,
                               .seed = (uint64_t)(p * 1000 + k) };
            struct text what = text("%s: after %d of %d operations, %s (%d)", s->run, p, o.n,
                                    fate_name[c.fate], k);
            c.cut = p - (int)(chance(&c) % 8);
            remove_all(top.s);
            make_folder(&d, 0, top.s, &c);
            int found = check_state(s, top.s, good.s, what.s);
            if (p == o.n && !(found & 2))
                test_fail(__FILE__, __LINE__, "%s: %s was done and is gone", what.s, s->new);
            if ((p * states + k) % every == 0)
                check_next(s, top.s, good.s, found, what.s);
        }
        free_disk(&d);
    }
    printf("%d operations, %d states: %s\n", o.n, n_looked, s->run);
    for (int i = 0; i < start.n; i++)
        for (int k = 0; k < start.node[i].n; k++)
            free((void *)(uintptr_t)start.node[i].change[k].data);
    free_disk(&start);
    free(o.op);
    free(o.bytes);
}

/* ---- what the cases need: a text, a model, a checkpoint, a server ---- */
static const char *source(void)
{
    static struct text src;
    static const char words[] = "the model rank tree sum of layer head token page shard step bits order\n";
    static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":2,\"num_"
                                 "attention_heads\":4,\"num_key_value_heads\":2,"
                                 "\"head_dim\":6,\"intermediate_size\":40,\"vocab_size\":256,\"max_position_"
                                 "embeddings\":64,\"rms_norm_eps\":1e-5,"
                                 "\"rope_theta\":10000.0,\"tie_word_embeddings\":false}";
    struct err e;
    if (*src.s)
        return src.s;
    struct text dir = text("%s", test_tmp_dir()), all = { "" };
    for (int i = 0; i < 20; i++)
        strcat(all.s, words);
    CHECK_INT(io_write_file(text("%s/text", dir.s).s, all.s, strlen(all.s), &e), 0);
    CHECK_INT(io_write_file(text("%s/model.json", dir.s).s, config, sizeof config - 1, &e), 0);
    setenv("CRASH_DIR", dir.s, 1);
    CHECK_INT(run_in("ptrain --data $CRASH_DIR/text --model $CRASH_DIR/model.json --steps 2 --seq-len 15 "
                     "--global-batch 4 --threads 1 --out %s/src",
                     dir.s),
              0);
    src = text("%s/src/step-2", dir.s);
    setenv("CRASH_SRC", src.s, 1);
    return src.s;
}

/* Answers a GET of a file of the source, whole or a range. */
static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *body, size_t *body_bytes, void **state)
{
    static const char missing[] = "no such file";
    const char *range = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Range");
    struct err e;
    void *data = NULL;
    size_t n = 0, lo = 0, hi = 0;
    (void)method, (void)version, (void)body, (void)body_bytes, (void)state;
    int ok = io_read_file(text("%s%s", (const char *)arg, url).s, LIMIT, &data, &n, &e) == 0, part = 0;
    hi = n - 1;
    if (ok && range)
        part = sscanf(range, "bytes=%zu-%zu", &lo, &hi) >= 1 && lo < n;
    hi = hi < n ? hi : n - 1;
    struct MHD_Response *r = ok ? MHD_create_response_from_buffer(hi - lo + 1, (char *)data + lo,
                                                                  MHD_RESPMEM_MUST_COPY)
                                : MHD_create_response_from_buffer(sizeof missing - 1,
                                                                  (void *)(uintptr_t)missing,
                                                                  MHD_RESPMEM_PERSISTENT);
    MHD_add_response_header(r, "ETag", "\"one\"");
    MHD_add_response_header(r, "Accept-Ranges", "bytes");
    if (part)
        MHD_add_response_header(r, "Content-Range", text("bytes %zu-%zu/%zu", lo, hi, n).s);
    enum MHD_Result rc = MHD_queue_response(c, ok ? part ? 206 : 200 : 404, r);
    MHD_destroy_response(r);
    free(data);
    return rc;
}

#define TRAIN \
    "ptrain --data $CRASH_DIR/text --model $CRASH_DIR/model.json --steps 4 --seq-len 15 --global-batch 4 " \
    "--threads 1 --keep 1 --out %s "

TEST(a_crash_of_a_save_leaves_the_checkpoint_before_or_the_new_one)
{
    static const struct scenario s = { TRAIN "--stop-after 1",
                                       TRAIN "--resume auto --stop-after 2",
                                       TRAIN "--resume auto --stop-after 3",
                                       "step-1",
                                       "step-2",
                                       "step-3" };
    source();
    crash_everywhere(&s);
}

TEST(a_crash_of_a_save_by_several_ranks_behind_training_too)
{
    static const struct scenario s = { TRAIN "--ranks 2 --zero 1 --stop-after 1",
                                       TRAIN "--ranks 2 --zero 1 --save-async --resume auto --stop-after 2",
                                       TRAIN "--ranks 2 --zero 1 --resume auto --stop-after 3",
                                       "step-1",
                                       "step-2",
                                       "step-3" };
    if (n_states() < 3) {
        test_skip("CRASH_STATES is not set: crashes of several ranks are for make test-all");
        return;
    }
    source();
    crash_everywhere(&s);
}

TEST(a_crash_of_a_conversion_leaves_nothing_or_all_of_it)
{
    static const struct scenario s[] = {
        { NULL, "reshard --threads 2 --tp 2 --dp 2 --zero 1 $CRASH_SRC %s/moved", NULL, NULL, "moved", NULL },
        { NULL, "reshard --format serve --threads 2 $CRASH_SRC %s/moved", NULL, NULL, "moved", NULL },
        { NULL, "reshard --compress zstd $CRASH_SRC %s/moved", NULL, NULL, "moved", NULL },
        { NULL, "reshard --format hf --shard-size 20k $CRASH_SRC %s/moved", NULL, NULL, "moved", NULL },
        { NULL, "reshard --format dcp --weights-only $CRASH_SRC %s/moved", NULL, NULL, "moved", NULL },
        { NULL, "reshard --format dcp --tp 2 --threads 2 $CRASH_SRC %s/moved", NULL, NULL, "moved", NULL },
        { NULL, "reshard --format deepspeed-universal --threads 2 $CRASH_SRC %s/moved", NULL, NULL, "moved",
          NULL },
    };
    source();
    for (size_t i = 0; i < sizeof s / sizeof *s; i++)
        if (i + 2 < sizeof s / sizeof *s ||
            n_states() > 2) /* the last cases do hundreds of operations: for make test-all */
            crash_everywhere(&s[i]);
}

TEST(a_crash_of_a_download_leaves_nothing_or_all_of_it)
{
    static const struct scenario s = { NULL,  "reshard fetch --threads 2 $CRASH_URL/ %s/got",
                                       NULL,  NULL,
                                       "got", NULL };
    struct MHD_Daemon *server = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD |
                                                     MHD_USE_THREAD_PER_CONNECTION,
                                                 0, NULL, NULL, answer, (void *)(uintptr_t)source(),
                                                 MHD_OPTION_END);
    CHECK(server != NULL);
    if (!server)
        return;
    setenv("CRASH_URL",
           text("http://127.0.0.1:%d", (int)MHD_get_daemon_info(server, MHD_DAEMON_INFO_BIND_PORT)->port).s,
           1);
    crash_everywhere(&s);
    MHD_stop_daemon(server);
}

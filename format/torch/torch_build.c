/* torch_build.c - see torch_build.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* vasprintf */
#endif
#include "format/torch/torch_build.h"

#include <ctype.h>
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/torch/zip_crc.h"

/* ---- tensors by role and name ---- */

static uint64_t hash_of(enum ckpt_role role, const char *name, int n)
{
    uint64_t h = 0xcbf29ce484222325u + (uint64_t)role;
    for (int i = 0; i < n; i++)
        h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    return h ^ h >> 32;
}

static int *slot_of(const struct build *b, enum ckpt_role role, const char *name, int n)
{
    for (uint64_t h = hash_of(role, name, n);; h++) {
        int *s = &b->slot[h & (uint64_t)(b->n_slots - 1)];
        const struct ckpt_tensor *t = *s ? &b->c->tensor[*s - 1] : NULL;
        if (!t || (t->role == role && !strncmp(t->name, name, (size_t)n) && !t->name[n]))
            return s;
    }
}

static int grow_tensors(struct build *b, struct err *e)
{
    struct ckpt *c = b->c;
    if (c->n_tensors < b->tensor_capacity)
        return 0;
    int capacity = b->tensor_capacity ? b->tensor_capacity * 2 : 256;
    struct ckpt_tensor *grown = realloc(c->tensor, sizeof *grown * (size_t)capacity);
    int *slot = calloc((size_t)capacity * 4, sizeof *slot);
    if (grown)
        c->tensor = grown;
    if (!grown || !slot) {
        free(slot);
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, capacity);
    }

    free(b->slot);
    b->slot = slot;
    b->n_slots = capacity * 4;
    b->tensor_capacity = capacity;
    for (int i = 0; i < c->n_tensors; i++)
        *slot_of(b, c->tensor[i].role, c->tensor[i].name, (int)strlen(c->tensor[i].name)) = i + 1;
    return 0;
}

static int same_tensor(const struct build *b, const struct ckpt_tensor *t, enum stored_dtype dtype,
                       int n_dims, const int64_t *shape, struct err *e)
{
    if (t->dtype == dtype && t->n_dims == n_dims && !memcmp(t->shape, shape, sizeof *shape * (size_t)n_dims))
        return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: %s%s is %s with %d dims in one file and %s with %d in another, or of another shape: "
                   "are files of two saves mixed",
                   b->c->path, ckpt_role_prefix[t->role], t->name, stored_dtype_name(t->dtype), t->n_dims,
                   stored_dtype_name(dtype), n_dims);
}

int build_tensor(struct build *b, enum ckpt_role role, const char *name, int n_name, enum stored_dtype dtype,
                 int n_dims, const int64_t *shape, struct err *e)
{
    static const int64_t one = 1;
    struct ckpt *c = b->c;
    int64_t bytes;
    int rc;

    const int is_scalar = n_dims == 0;
    if (is_scalar)
        n_dims = 1, shape = &one;
    if (memchr(name, 0, (size_t)n_name))
        return err_set(e, ERR_FORMAT, "%s: a tensor's name has a zero byte: is the file damaged", c->path);
    if ((rc = fmt_name_check(name, (size_t)n_name, c->path, e)) < 0 || (rc = grow_tensors(b, e)) < 0)
        return rc;
    if (n_dims > BOX_DIMS)
        return err_set(e, ERR_FORMAT, "%s: %.*s has %d dimensions, this program knows up to %d", c->path,
                       n_name, name, n_dims, BOX_DIMS);
    int *slot = slot_of(b, role, name, n_name);
    if (*slot)
        return (rc = same_tensor(b, &c->tensor[*slot - 1], dtype, n_dims, shape, e)) < 0 ? rc : *slot - 1;
    struct ckpt_tensor *t = &c->tensor[c->n_tensors];
    memset(t, 0, sizeof *t);
    t->role = role;
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->is_scalar = is_scalar;
    memcpy(t->shape, shape, sizeof *shape * (size_t)n_dims);
    if (!(t->name = strndup(name, (size_t)n_name)))
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its tensors", c->path);
    *slot = ++c->n_tensors;
    rc = fmt_shape_check(dtype, n_dims, t->shape, c->path, t->name, &bytes, e);
    return rc < 0 ? rc : c->n_tensors - 1;
}

/* ---- pieces ---- */

static int add_piece(struct build *b, const struct fmt_piece *p, int64_t bytes, struct err *e)
{
    struct ckpt *c = b->c;
    const struct fmt_file *f = &c->file[p->file];

    if (p->offset < 0 || bytes > f->bytes || p->offset > f->bytes - bytes)
        return err_set(e, ERR_FORMAT,
                       "%s: a part of %s%s lies at %lld to %lld, the file ends at %lld: is it whole", f->path,
                       ckpt_role_prefix[c->tensor[p->tensor].role], c->tensor[p->tensor].name,
                       (long long)p->offset, (long long)(p->offset + bytes), (long long)f->bytes);
    if (c->n_pieces == b->piece_capacity) {
        int64_t capacity = b->piece_capacity ? b->piece_capacity * 2 : 256;
        struct fmt_piece *grown = realloc(c->piece, sizeof *grown * (size_t)capacity);
        if (!grown)
            return err_set(e, ERR_MEMORY, "%s: no memory for %lld pieces", c->path, (long long)capacity);
        c->piece = grown;
        b->piece_capacity = capacity;
    }

    c->piece[c->n_pieces++] = *p;
    return 0;
}

int build_piece(struct build *b, int tensor, int file, int64_t offset, const struct box *box, int64_t lo,
                int64_t hi, struct err *e)
{
    struct fmt_piece p = {
        .tensor = tensor, .file = file, .offset = offset, .box = *box, .lo = lo, .hi = hi
    };
    return lo >= hi ? 0 : add_piece(b, &p, stored_bytes(b->c->tensor[tensor].dtype, hi - lo), e);
}

static int own(struct ckpt *c, void *p)
{
    void **grown = realloc(c->owned, sizeof *grown * (size_t)(c->n_owned + 1));
    if (!grown)
        return -1;
    c->owned = grown;
    c->owned[c->n_owned++] = p;
    return 0;
}

static int add_strided(struct build *b, struct fmt_piece *p, const int64_t *stride, struct err *e)
{
    int64_t *kept = malloc(sizeof *kept * BOX_DIMS), last = 0;
    if (!kept || own(b->c, kept) < 0) {
        free(kept);
        return err_set(e, ERR_MEMORY, "%s: no memory for strides", b->c->path);
    }
    memcpy(kept, stride, sizeof *kept * BOX_DIMS);
    for (int d = 0; d < p->box.n_dims; d++)
        last += (p->box.extent[d] - 1) * stride[d];
    p->stride = kept;
    return add_piece(b, p, stored_bytes(b->c->tensor[p->tensor].dtype, last + 1), e);
}

int build_map(struct build *b, int tensor, const struct chunk *k, const struct box *src, const int64_t *start,
              struct err *e)
{
    const struct ckpt_tensor *t = &b->c->tensor[tensor];
    int lead = src->n_dims - t->n_dims, plain = 1;
    int64_t size = stored_bytes(k->dtype, 1), stride[BOX_DIMS] = { 0 }, dense = 1;
    struct fmt_piece p = {
        .tensor = tensor, .file = k->file, .offset = k->offset, .box = { .n_dims = t->n_dims }
    };
    struct box part;

    if (k->dtype != t->dtype || k->box.n_dims != src->n_dims || lead < 0)
        return err_set(
            e, ERR_FORMAT,
            "%s: %s%s is stored as %s with %d dims, elsewhere as %s with %d: are files of two saves mixed",
            b->c->path, ckpt_role_prefix[t->role], t->name, stored_dtype_name(k->dtype), k->box.n_dims,
            stored_dtype_name(t->dtype), src->n_dims);
    if (box_intersect(src, &k->box, &part) == 0)
        return 0;
    for (int d = 0; d < src->n_dims; d++)
        p.offset += (part.start[d] - k->box.start[d]) * k->stride[d] * size;
    for (int d = 0; d < t->n_dims; d++) {
        p.box.start[d] = start[d] + part.start[lead + d] - src->start[lead + d];
        p.box.extent[d] = part.extent[lead + d];
        stride[d] = k->stride[lead + d];
    }

    for (int d = t->n_dims - 1; d >= 0; d--) {
        plain &= p.box.extent[d] == 1 || stride[d] == dense;
        dense *= p.box.extent[d];
    }

    p.hi = box_count(&p.box);
    return plain ? add_piece(b, &p, p.hi * size, e) : add_strided(b, &p, stride, e);
}

int build_chunk(struct chunk *k, struct torch_file *t, const struct torch_tensor *x, int n_dims,
                const int64_t *start, const char *name, struct err *e)
{
    const char *path = t->c->file[t->file].path;
    int lead = n_dims - x->n_dims;

    if (torch_dtype_known(x->dtype) < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: %.200s has dtype %s, which this program does not know: convert it first", path,
                       name, torch_dtype_name(x->dtype));
    if (n_dims > BOX_DIMS || lead < 0)
        return err_set(e, ERR_FORMAT, "%s: %.200s has %d dimensions, this program knows up to %d here", path,
                       name, x->n_dims, lead < 0 ? n_dims : BOX_DIMS);
    memset(k, 0, sizeof *k);
    k->file = t->file;
    k->offset = x->offset;
    k->dtype = (enum stored_dtype)torch_dtype_known(x->dtype);
    k->box.n_dims = n_dims;
    for (int d = 0; d < n_dims; d++) {
        k->box.start[d] = start ? start[d] : 0;
        k->box.extent[d] = d < lead ? 1 : x->shape[d - lead];
        k->stride[d] = d < lead ? 0 : x->stride[d - lead];
    }
    return 0;
}

int build_whole(struct build *b, enum ckpt_role role, const char *name, int n_name, struct torch_file *t,
                const struct torch_tensor *x, struct err *e)
{
    static const int64_t zero[BOX_DIMS];
    struct chunk k;
    char shown[81];
    snprintf(shown, sizeof shown, "%.*s", n_name, name);
    int rc = build_chunk(&k, t, x, x->n_dims ? x->n_dims : 1, NULL, shown, e), i;
    if (rc < 0 || (i = rc = build_tensor(b, role, name, n_name, k.dtype, k.box.n_dims, k.box.extent, e)) < 0)
        return rc;
    rc = build_map(b, i, &k, &k.box, zero, e);
    return rc < 0 ? rc : i;
}

int build_step(struct build *b, double step, const char *name, struct err *e)
{
    if (b->has_step && step != b->step)
        return err_set(
            e, ERR_FORMAT,
            "%s: the optimizer's step is %.17g for %s and %.17g for %.200s: are files of two saves mixed",
            b->c->path, b->step, b->step_of, step, name);
    if (!(step >= 0 && step < 9e15))
        return err_set(e, ERR_FORMAT, "%s: the optimizer's step is %.17g for %.200s: is the file damaged",
                       b->c->path, step, name);
    if (!b->has_step)
        snprintf(b->step_of, sizeof b->step_of, "%.79s", name);
    b->has_step = 1;
    b->step = step;
    return 0;
}

/* ---- the end ---- */

int build_finish(struct build *b, struct err *e)
{
    struct ckpt *c = b->c;
    int rc = 0, moments = 0;

    if (c->n_tensors == 0)
        return err_set(e, ERR_FORMAT, "%s: holds no tensors: is it the right folder", c->path);
    if (!c->piece && !(c->piece = malloc(sizeof *c->piece)))
        return err_set(e, ERR_MEMORY, "%s: no memory for pieces", c->path);
    c->first_piece = calloc((size_t)c->n_tensors + 2, sizeof *c->first_piece);
    if (!c->first_piece)
        return err_set(e, ERR_MEMORY, "%s: no memory for %d tensors", c->path, c->n_tensors);
    TRY(fmt_sort_names(c, e));
    for (int i = 0; i < c->n_tensors; i++) {
        TRY(fmt_cover(&c->tensor[i], c->piece + c->first_piece[i], c->first_piece[i + 1] - c->first_piece[i],
                      c->path, e));
        moments |= c->tensor[i].role == ROLE_EXP_AVG;
    }

    zip_sort_records(c);
    if (moments && !b->has_step)
        TRY(build_note(c, e, "there are moments but no step: training cannot go on from them"));
    if (moments && b->has_step) {
        c->state.has_state = 1;
        c->state.step = (int64_t)b->step;
    }

    TRY(run_finish(&b->run, c, e));
out:
    return rc < 0 ? rc : 0;
}

void build_free(struct build *b)
{
    free(b->slot);
    b->slot = NULL;
}

/* ---- files and folders ---- */

char *build_text(const char *fmt, ...)
{
    va_list a;
    char *p = NULL;
    va_start(a, fmt);
    if (vasprintf(&p, fmt, a) < 0)
        p = NULL;
    va_end(a);
    return p;
}

int build_file(struct ckpt *c, const char *name, struct err *e)
{
    struct fmt_file *f = fmt_add_file(c, name, 0, e);
    int fd;
    if (!f || fmt_acquire(c, c->n_files - 1, &fd, e) < 0)
        return -e->code;
    f->bytes = io_size(fd, f->path, e);
    fmt_release(c, c->n_files - 1);
    return f->bytes < 0 ? (int)f->bytes : c->n_files - 1;
}

int build_exists(const struct ckpt *c, const char *name)
{
    char *path = io_join(c->dir, name);
    int yes = path && io_exists(path);
    free(path);
    return yes;
}

/* Compares runs of digits as numbers: rank 10 comes after rank 2. */
static int natural(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            size_t na, nb;
            while (*a == '0' && isdigit((unsigned char)a[1]))
                a++;
            while (*b == '0' && isdigit((unsigned char)b[1]))
                b++;
            na = strspn(a, "0123456789");
            nb = strspn(b, "0123456789");
            int d = na != nb ? (na > nb) - (na < nb) : memcmp(a, b, na);
            if (d)
                return d;
            a += na;
            b += nb;
        } else if (*a != *b) {
            break;
        } else {
            a++;
            b++;
        }
    }
    return (unsigned char)*a - (unsigned char)*b;
}

static int compare_natural(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    int d = natural(x, y);
    return d ? d : strcmp(x, y);
}

int names_read(struct names *l, const struct ckpt *c, const char *sub, struct err *e)
{
    char *path = *sub ? io_join(c->dir, sub) : strdup(c->dir);
    DIR *d = path ? opendir(path) : NULL;
    struct dirent *x;
    int capacity = 0, rc = 0;
    memset(l, 0, sizeof *l);
    if (!d)
        rc = path ? err_sys(e, "cannot list %s", path)
                  : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    while (rc >= 0 && (x = readdir(d))) {
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, ".."))
            continue;
        if (l->n == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            char **grown = realloc(l->name, sizeof *grown * (size_t)capacity);
            if (!grown) {
                rc = err_set(e, ERR_MEMORY, "%s: no memory for the names in it", path);
                break;
            }
            l->name = grown;
        }
        if (!(l->name[l->n] = strdup(x->d_name)))
            rc = err_set(e, ERR_MEMORY, "%s: no memory for the names in it", path);
        else
            l->n++;
    }

    if (d)
        closedir(d);
    free(path);
    if (rc < 0)
        names_free(l);
    else if (l->n)
        qsort(l->name, (size_t)l->n, sizeof *l->name, compare_natural);
    return rc < 0 ? rc : 0;
}

void names_free(struct names *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->name[i]);
    free(l->name);
    memset(l, 0, sizeof *l);
}

/* Of a single file a/model.pt: "model.config.json"; malloc'd. */
static char *stem_config(const struct ckpt *c)
{
    const char *slash = strrchr(c->path, '/'), *name = slash ? slash + 1 : c->path, *dot = strrchr(name, '.');
    return build_text("%.*s." FMT_CONFIG, dot ? (int)(dot - name) : (int)strlen(name), name);
}

int build_config(struct ckpt *c, struct err *e)
{
    char *path = c->config_path ? strdup(c->config_path) : NULL,
         *stem = strcmp(c->path, c->dir) ? stem_config(c) : NULL;
    const char *places[] = { stem ? stem : FMT_CONFIG, stem ? FMT_CONFIG : "../" FMT_CONFIG };
    void *text = NULL;
    size_t n = 0;
    int rc = 0;

    for (size_t i = 0; !path && i < sizeof places / sizeof *places; i++)
        if (build_exists(c, places[i]))
            path = io_join(c->dir, places[i]);
    free(stem);
    if (!path)
        return 0;
    TRY(io_read_file(path, FMT_EXTRA_MAX, &text, &n, e));
    if (strlen(text) != n)
        rc = err_set(e, ERR_CONFIG, "%s: holds a zero byte: is it a text file", path);
    c->config = text;
out:
    free(path);
    return rc < 0 ? rc : 0;
}

int build_line(const struct ckpt *c, const char *name, char **out, struct err *e)
{
    char *path = io_join(c->dir, name), *text = NULL;
    void *data = NULL;
    size_t n = 0;
    int rc = path ? io_read_file(path, 4096, &data, &n, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    if (rc >= 0) {
        text = data;
        n = strcspn(text, "\n");
        while (n && isspace((unsigned char)text[n - 1]))
            n--;
        text[n] = 0;
        *out = text;
    }
    free(path);
    return rc < 0 ? rc : 0;
}

/* proof.c - see ckpt_proof.h: a checkpoint read again from end to end, and what nobody read. */
#include "format/ckpt_proof.h"

#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "format/hf/safetensors.h"
#include "format/native/panels_table.h"
#include "store/url_cache.h"

#define CHUNK ((int64_t)4 << 20) /* bytes read at once */

enum ckpt_proof ckpt_proof(const struct ckpt *c)
{
    int64_t with = 0, without = 0;
    c = fmt_bottom(c);
    if (!strcmp(c->driver, "native"))
        return CKPT_DIGESTS;
    for (int64_t i = 0; i < c->n_pieces; i++)
        if (c->piece[i].hi > c->piece[i].lo)
            *(fmt_has_record(&c->file[c->piece[i].file], c->piece[i].offset) ? &with : &without) += 1;
    return !with ? CKPT_READABLE : without ? CKPT_SOME_CRC32 : CKPT_CRC32;
}

/* ---- verify ---- */

int ckpt_check_rest(struct ckpt *c, int part, int n_parts, struct err *e)
{
    int64_t number = 0;
    int rc = 0;
    c = fmt_bottom(c);
    char *data = malloc((size_t)FMT_BLOCK);
    if (!data)
        return err_set(e, ERR_MEMORY, "%s: no memory for a block", c->path);
    if (*c->live_version) /* what is read has checksums or digests, the rest is not asked for */
        goto out;
    if (c->remote) { /* the rest is not downloaded for this */
        rc = url_cache_check(c->remote, e);
        goto out;
    }
    for (int f = 0; f < c->n_files; f++)
        for (int64_t b = 0; c->file[f].block && b * FMT_BLOCK < c->file[f].bytes; b++)
            if (number++ % n_parts == part && !atomic_load(&c->file[f].seen[b]))
                TRY(fmt_read_block(c, f, b, data, e));
    for (int f = 0; f < c->n_files; f++)
        if (c->file[f].frame && number++ % n_parts == part)
            TRY(fmt_check_head(c, f, e));
    for (int f = 0; f < c->n_files; f++)
        if (!c->file[f].block && number++ % n_parts == part)
            TRY(io_check_same(fmt_real(&c->file[f]), &c->file[f].mark, e));
    for (int f = 0; f < c->n_files; f++)
        for (int64_t i = 0; i < c->file[f].n_records; i++)
            if (number++ % n_parts == part)
                TRY(fmt_settle_record(c, f, &c->file[f].record[i], e));
out:
    free(data);
    return rc < 0 ? rc : 0;
}

static int64_t n_blocks(const struct fmt_file *f)
{
    return f->block ? (f->bytes + FMT_BLOCK - 1) / FMT_BLOCK : 0;
}

int64_t ckpt_proven_count(const struct ckpt *c)
{
    int64_t n = 0;
    c = fmt_bottom(c);
    for (int f = 0; f < c->n_files; f++)
        n += n_blocks(&c->file[f]);
    return n;
}

void ckpt_proven_get(const struct ckpt *c, int64_t *v)
{
    c = fmt_bottom(c);
    for (int f = 0; f < c->n_files; f++) {
        struct fmt_file *x = &c->file[f];
        for (int64_t b = 0; b < n_blocks(x); b++)
            *v++ = atomic_load(&x->seen[b]) ? fmt_block_bytes(x, b)
                   : x->proven              ? (int64_t)atomic_load(&x->proven[b])
                                            : 0;
    }
}

void ckpt_proven_set(struct ckpt *c, const int64_t *v)
{
    c = fmt_bottom(c);
    for (int f = 0; f < c->n_files; f++)
        for (int64_t b = 0; b < n_blocks(&c->file[f]); b++)
            if (*v++ >= fmt_block_bytes(&c->file[f], b))
                atomic_store(&c->file[f].seen[b], 1);
}

static int compare_place(const void *a, const void *b)
{
    const struct fmt_piece *x = *(struct fmt_piece *const *)a, *y = *(struct fmt_piece *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->hi > x->lo) - (y->hi > y->lo); /* an empty piece has the offset of the next one */
}

static int read_header(struct ckpt *c, int file, struct st_table *t, struct err *e)
{
    const struct fmt_file *f = &c->file[file];
    uint64_t n;
    int fd, rc;
    if (f->frame || c->live) {
        char *text = fmt_read_start(c, file, f->data, e);
        if (!text)
            return -e->code;
        memcpy(&n, text, sizeof n);
        rc = (int64_t)n == f->data - 8
                 ? st_parse(t, text + 8, n, f->bytes - f->data, f->path, e)
                 : err_set(e, ERR_FORMAT, "%s: its header ends at %llu, %s says %lld", f->path,
                           (unsigned long long)n + 8, FMT_MANIFEST, (long long)f->data);
        t->data = f->data;
        free(text);
        return rc;
    }
    if ((rc = fmt_acquire(c, file, &fd, e)) < 0)
        return rc;
    rc = st_read(t, fd, f->path, f->bytes, e);
    fmt_release(c, file);
    return rc;
}

/* The header of a native file must say the same as the manifest, because other programs read these files by
 * their headers alone. */
static int check_header(struct ckpt *c, int file, struct fmt_piece **piece, int n, struct err *e)
{
    const struct fmt_file *f = &c->file[file];
    struct st_table t = { 0 };
    int rc = read_header(c, file, &t, e);
    if (rc < 0)
        return rc;
    if (c->panels) {
        rc = panels_check_header(c, file, &t, piece, n, e);
        st_free(&t);
        return rc;
    }
    if (t.n != n)
        rc = err_set(e, ERR_INTEGRITY, "%s: its header has %d tensors, %s has %d pieces of it", f->path, t.n,
                     FMT_MANIFEST, n);
    for (int i = 0; i < n && rc >= 0; i++) {
        const struct ckpt_tensor *w = &c->tensor[piece[i]->tensor];
        const struct st_entry *s = &t.entry[i];
        size_t prefix = strlen(ckpt_role_prefix[w->role]), name = strlen(w->name);
        int same = t.data + s->begin == piece[i]->offset && s->dtype == w->dtype &&
                   !strncmp(s->name, ckpt_role_prefix[w->role], prefix) &&
                   !strncmp(s->name + prefix, w->name, name) &&
                   (!s->name[prefix + name] || s->name[prefix + name] == '@') &&
                   s->end - s->begin == stored_bytes(w->dtype, piece[i]->hi - piece[i]->lo);
        if (!same)
            rc = err_set(e, ERR_INTEGRITY, "%s: has %s at byte %lld, %s has %s%s at %lld", f->path, s->name,
                         (long long)(t.data + s->begin), FMT_MANIFEST, ckpt_role_prefix[w->role], w->name,
                         (long long)piece[i]->offset);
    }
    st_free(&t);
    return rc < 0 ? rc : 0;
}

/* here: all pieces, in the order of the files. */
static int check_headers(struct ckpt *c, struct fmt_piece **here, struct err *e)
{
    int64_t first = 0;
    int rc = 0;
    for (int f = 0; f < c->n_files && rc >= 0; f++) {
        int64_t n = 0;
        while (first + n < c->n_pieces && here[first + n]->file == f)
            n++;
        rc = check_header(c, f, here + first, (int)n, e);
        first += n;
    }
    return rc < 0 ? rc : 0;
}

static int digest_piece(struct ckpt *c, const struct fmt_piece *p, struct ckpt_digest *d, char *data,
                        struct err *e)
{
    const struct ckpt_tensor *t = &c->tensor[p->tensor];
    int64_t step = stored_elements(t->dtype, CHUNK);
    for (int64_t lo = p->lo; lo < p->hi; lo += step) {
        int64_t hi = lo + step < p->hi ? lo + step : p->hi;
        /* sums of records are settled by verify_data */
        int rc = (t->has_digest ? ckpt_read_range : ckpt_read_unproven)(c, p->tensor, &p->box, lo, hi, data,
                                                                        e);
        if (rc < 0)
            return rc;
        ckpt_digest_add(d, t->dtype, t->n_dims, t->shape, &p->box, lo, hi, data);
    }
    return 0;
}

int ckpt_digest_read(struct ckpt *c, int i, struct ckpt_digest *d, struct err *e)
{
    const struct ckpt_tensor *t = ckpt_tensor(c, i);
    const struct box whole = box_whole(t->n_dims, t->shape);
    int64_t n = box_count(&whole), step = stored_elements(t->dtype, CHUNK);
    char *data = malloc(CHUNK);
    int rc = data ? 0 : err_set(e, ERR_MEMORY, "%s: no memory to read %s", c->path, t->name);
    for (int64_t lo = 0, hi; lo < n && rc >= 0; lo = hi) {
        hi = n - lo < step ? n : lo + step;
        rc = ckpt_read_range(c, i, &whole, lo, hi, data, e);
        if (rc >= 0)
            ckpt_digest_add(d, t->dtype, t->n_dims, t->shape, &whole, lo, hi, data);
    }
    free(data);
    return rc < 0 ? rc : 0;
}

static int compare_digests(const struct ckpt *c, const struct ckpt_digest *d, struct err *e)
{
    char have[33], want[33];
    for (int i = 0; i < c->n_tensors; i++) {
        const struct ckpt_tensor *t = &c->tensor[i];
        if (!t->has_digest || (d[i].lo == t->digest.lo && d[i].hi == t->digest.hi))
            continue;
        ckpt_digest_hex(d[i], have);
        ckpt_digest_hex(t->digest, want);
        return err_set(e, ERR_INTEGRITY, "%s: %s%s has digest %s, %s says %s: restore it from a good copy",
                       c->path, ckpt_role_prefix[t->role], t->name, have, FMT_MANIFEST, want);
    }
    return 0;
}

/* Reads all data once, file by file from front to back. */
static int verify_data(struct ckpt *c, struct fmt_piece **here, struct err *e)
{
    struct ckpt_digest *d = calloc((size_t)c->n_tensors + 1, sizeof *d);
    char *data = malloc((size_t)CHUNK);
    int rc = d && data ? 0 : err_set(e, ERR_MEMORY, "%s: no memory to verify", c->path);
    for (int64_t i = 0; i < c->n_pieces && rc >= 0; i++)
        rc = digest_piece(c, here[i], &d[here[i]->tensor], data, e);
    if (rc >= 0)
        rc = compare_digests(c, d, e);
    if (rc >= 0)
        rc = ckpt_check_copies(c, e);
    free(d);
    free(data);
    return rc < 0 ? rc : ckpt_check_rest(c, 0, 1, e);
}

int ckpt_verify(struct ckpt *c, int quick, struct err *e)
{
    c = fmt_bottom(c);
    struct fmt_piece **here = malloc(sizeof *here * (size_t)(c->n_pieces + 1));
    int rc = 0;
    if (!here)
        return err_set(e, ERR_MEMORY, "%s: no memory to check %lld pieces", c->path, (long long)c->n_pieces);
    for (int64_t i = 0; i < c->n_pieces; i++)
        here[i] = &c->piece[i];
    qsort(here, (size_t)c->n_pieces, sizeof *here, compare_place);
    if (!strcmp(c->driver, "native"))
        TRY(check_headers(c, here, e));
    if (!quick)
        TRY(verify_data(c, here, e));
out:
    free(here);
    return rc < 0 ? rc : 0;
}

int ckpt_check_tied(struct ckpt *c, const char *embed, const char *head, struct err *e)
{
    int i = ckpt_find(c, ROLE_WEIGHT, embed), j = ckpt_find(c, ROLE_WEIGHT, head), rc = 0;
    if (i < 0 || j < 0)
        return 0;
    const struct ckpt_tensor *x = ckpt_tensor(c, i), *y = ckpt_tensor(c, j);
    const int64_t most = stored_elements(x->dtype, CHUNK / 2);
    struct box all = box_whole(x->n_dims, x->shape), other = box_whole(y->n_dims, y->shape);
    int same = x->dtype == y->dtype && box_equal(&all, &other);
    char *a = same ? malloc((size_t)CHUNK) : NULL, *b = a ? a + CHUNK / 2 : NULL;
    if (same && !a)
        return err_set(e, ERR_MEMORY, "no memory to compare %s and %s", embed, head);
    for (int64_t lo = 0, hi, n = box_count(&all); same && lo < n; lo = hi) {
        hi = n - lo < most ? n : lo + most;
        TRY(ckpt_read_range(c, i, &all, lo, hi, a, e));
        TRY(ckpt_read_range(c, j, &all, lo, hi, b, e));
        same = !memcmp(a, b, (size_t)stored_bytes(x->dtype, hi - lo));
    }
    if (!same)
        rc = err_set(e, ERR_FORMAT,
                     "%s: %s is not %s, and config.json ties them: set tie_word_embeddings to false there, "
                     "or leave %s out",
                     ckpt_path(c), head, embed, head);
out:
    free(a);
    return rc < 0 ? rc : 0;
}

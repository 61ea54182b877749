/* panels_header.c - the safetensors header of a file with packs: it must say of every byte what the manifest
 * says, because other programs read the file by its header alone. */
#include <string.h>
#include "format/fmt.h"
#include "format/hf/safetensors.h"
#include "format/native/panels_table.h"

/* What comes next in the file. */
struct next {
    int piece, pack;
};

static void skip_runs(struct fmt_piece *const *piece, int n, struct next *at)
{
    while (at->piece < n && piece[at->piece]->run)
        at->piece++;
}

static int is_piece(const struct ckpt *c, const struct fmt_piece *p, const struct st_entry *s, int64_t data)
{
    const struct ckpt_tensor *t = &c->tensor[p->tensor];
    return p->offset == data + s->begin && s->dtype == t->dtype && !strcmp(s->name, t->name) &&
           s->end - s->begin == stored_bytes(t->dtype, p->hi - p->lo);
}

static int is_pack(const struct ckpt_pack *k, int file, const struct st_entry *s, int64_t data)
{
    return k->file == file && k->offset == data + s->begin && s->end - s->begin == k->bytes &&
           !strncmp(s->name, PANELS_PACK_NAME, strcspn(PANELS_PACK_NAME, "%"));
}

static int is_gap(const struct st_entry *s)
{
    return s->dtype == STORED_U8 && !strncmp(s->name, PANELS_GAP_NAME, strcspn(PANELS_GAP_NAME, "%"));
}

int panels_check_header(const struct ckpt *c, int file, const struct st_table *t,
                        struct fmt_piece *const *piece, int n, struct err *e)
{
    const struct fmt_panels *x = c->panels;
    struct next at = { 0, 0 };
    while (at.pack < x->n_packs && x->pack[at.pack].file < file)
        at.pack++;
    for (int i = 0; i < t->n; i++) {
        const struct st_entry *s = &t->entry[i];
        skip_runs(piece, n, &at);
        if (at.piece < n && is_piece(c, piece[at.piece], s, t->data))
            at.piece++;
        else if (at.pack < x->n_packs && is_pack(&x->pack[at.pack], file, s, t->data))
            at.pack++;
        else if (!is_gap(s))
            return err_set(e, ERR_INTEGRITY, "%s: has %s at byte %lld, %s has nothing like it there",
                           c->file[file].path, s->name, (long long)(t->data + s->begin), FMT_MANIFEST);
    }
    skip_runs(piece, n, &at);
    if (at.piece < n || (at.pack < x->n_packs && x->pack[at.pack].file == file))
        return err_set(e, ERR_INTEGRITY, "%s: its header lacks a tensor or pack that %s has",
                       c->file[file].path, FMT_MANIFEST);
    return 0;
}

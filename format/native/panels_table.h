/* panels_table.h - private to format/: the packs and runs of a checkpoint of the serve format, and boxes read
 * out of them. */
#ifndef SHARDLINE_FORMAT_PANELS_TABLE_H
#define SHARDLINE_FORMAT_PANELS_TABLE_H

#include <jansson.h>
#include "base/jx.h"
#include "format/ckpt_write.h"
#include "format/panels_file.h"

/* Members of a manifest: the feature; of a file; of its pieces. */
#define MANIFEST_PANELS "panels"
#define MANIFEST_PACKS "packs"
#define MANIFEST_PACK "pack" /* of a piece: which of the file's */
#define MANIFEST_OUTPUTS "outputs"
#define MANIFEST_INPUTS "inputs"
#define MANIFEST_COPY "copy"
#define MANIFEST_UNIT "unit" /* of a pack; kind, dtype, offset, bytes and stride besides, and */
#define MANIFEST_LEAVES "leaves"

#define PANELS_ALIGN 64 /* of packs and natural tensors in the file */
#define PANELS_HUGE ((int64_t)2 << 20)
#define PANELS_PAGE ((int64_t)4096)
#define PANELS_PACK_NAME "panels.%d.%d" /* unit, pack of the unit: in the header of the file */
#define PANELS_GAP_NAME "padding.%d"

struct fmt_panels {
    int n_packs;
    int64_t n_runs;
    size_t pack_room, run_room, leaves_room;
    struct ckpt_pack *pack;
    struct ckpt_run *run;       /* in the order of packs */
    const struct ckpt_run **of; /* [n_runs] sorted by tensor */
    int64_t *first_of;          /* [n_tensors + 1] in it */
    int n_leaves;               /* lists of leaves, which packs share */
    int64_t **leaves;
};

/* The members of a piece that make it a run, for a manifest; NULL: it is none. */
json_t *panels_run_json(const json_t *piece);
/* Appends the packs that a manifest lists of the last file; their members are checked, but for their runs. */
int panels_read_packs(struct ckpt *c, struct jx_slice list, const char *path, struct err *e);
/* Appends a run of pack `pack` of the last file, whose packs begin at first. o: the piece. 1: the piece
 * covers a part of the tensor; 0: it is a copy. */
struct fmt_piece;
int panels_read_run(struct ckpt *c, int first, struct fmt_piece *p, const json_t *o, const char *path,
                    struct err *e);
/* When all files are read: runs fill their packs, nothing overlaps, copies cover their tensors. */
int panels_finish(struct ckpt *c, const char *path, struct err *e);
void panels_free(struct fmt_panels *p); /* NULL is allowed */

/* The elements [lo, hi) of a box, to dst. */
struct panels_request {
    const struct box *box;
    int64_t lo, hi;
    char *dst;
};
/* Writes what a run holds of the request; adds to *got how many elements. Blocks are checked. */
int panels_read(struct ckpt *c, const struct ckpt_run *run, const struct panels_request *q, int64_t *got,
                struct err *e);
/* Whether the header of a file says of packs, natural pieces ([n] in the order of the file) and gaps what the
 * manifest says. ERR_INTEGRITY. */
struct st_table;
int panels_check_header(const struct ckpt *c, int file, const struct st_table *t,
                        struct fmt_piece *const *piece, int n, struct err *e);

#endif

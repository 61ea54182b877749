/* mapped_weights.h - weights computed from where their file is mapped: a checkpoint of the serve format on
 * this machine (format/panels_file.h), whose panels are those of the products. All ranks, replicas and later
 * servers of a machine share the file's pages.
 *
 * What lies otherwise than this rank's products read it (another dtype, a CPU class with other panels, a
 * layout that cuts sums elsewhere) is read and packed as from any checkpoint. */
#ifndef SHARDLINE_SERVE_WEIGHTS_MAPPED_WEIGHTS_H
#define SHARDLINE_SERVE_WEIGHTS_MAPPED_WEIGHTS_H

#include "model/model.h"
#include "serve/service.h"

struct ckpt;
struct mapped_weights;

/* c, m: borrowed until mapped_weights_stop(). *out NULL: nothing of c can be mapped for m. ERR_FILE,
 * ERR_FORMAT: a file that cannot be mapped. Any thread, not collective. */
int mapped_weights_open(struct mapped_weights **out, struct ckpt *c, const struct model *m, struct err *e);
/* Unmaps; NULL: nothing. Weights that point here are closed before. */
void mapped_weights_close(struct mapped_weights *w);

/* For struct resident_source; ctx: struct mapped_weights. */
int mapped_weights_pack(void *ctx, int unit, int pack, struct panels *p, struct err *e);
int mapped_weights_part(void *ctx, int part, const void **at, struct err *e);

/* Bytes of the mapped files that weights point at so far; packs of the file that had to be made anew. */
int64_t mapped_weights_bytes(const struct mapped_weights *w);
int mapped_weights_refused(const struct mapped_weights *w);
/* Bytes of m's weights that a server would map from c, without mapping them: for plans. m: from
 * model_shape(), computed by dev. */
int64_t mapped_weights_measure(struct ckpt *c, const struct model *m, const struct dev *dev);

/* What goes on beside serving. r: points here. progress: of the file's checksums, which this rank computes;
 * NULL: it does not. n_here: ranks of this machine that do the same. The file's pages are brought in; where
 * the kernel keeps it in small pages and memory suffices, packs are copied into large ones and switched to.
 * Main thread, not collective. */
int mapped_weights_begin(struct mapped_weights *w, struct resident *r, struct load_progress *progress,
                         int n_here, struct err *e);
/* Between two steps: switches to packs that are ready. ERR_INTEGRITY: a block of the file is bad. */
int mapped_weights_step(struct mapped_weights *w, struct err *e);
/* Ends what goes on beside serving. NULL: nothing. */
void mapped_weights_stop(struct mapped_weights *w);

#endif

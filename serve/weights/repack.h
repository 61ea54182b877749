/* repack.h - what is left to do behind serving for weights that are used where files are mapped.
 *
 * A task of this rank checks the files' checksums where they have any, makes the digest where the files
 * store none (on the rank that answers), and packs one matrix after the other. The main thread puts what is
 * ready in its place between two steps. Rows and panels give the same bits, so no answer changes, and every
 * rank may switch when it likes. When all matrices are packed, the pages of the mapping are given back. */
#ifndef SHARDLINE_SERVE_WEIGHTS_REPACK_H
#define SHARDLINE_SERVE_WEIGHTS_REPACK_H

#include "serve/weights/model_info.h"

struct repack;

/* Begins what weights_read left for later: sets l->repack, NULL where there is nothing to do. answers: this
 * rank needs the digest. l is borrowed until repack_close and must not move; its checkpoint is read.
 * Main thread. ERR_MEMORY. */
int repack_open(struct model_info *l, int answers, struct err *e);
/* Puts what is packed in place. Main thread, between two steps; NULL: nothing. 1: l->identity is known
 * now; 0; or the error of a file (ERR_INTEGRITY, ERR_FILE). A matrix for which there is no memory stays
 * as it is. */
int repack_switch(struct repack *x, struct err *e);
/* Ends the task. Main thread; NULL: nothing. Call it before resident_close. */
void repack_close(struct repack *x);

#endif

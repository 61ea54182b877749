/* ckpt_proof.h - what shows that the bytes of a checkpoint are right: checksums, digests, and a count of what
 * has been checked. */
#ifndef SHARDLINE_FORMAT_CKPT_PROOF_H
#define SHARDLINE_FORMAT_CKPT_PROOF_H

#include "format/ckpt.h"

/* Reads everything and checks every checksum and digest. quick: the tables only. ERR_INTEGRITY names the file
 * or tensor. */
int ckpt_verify(struct ckpt *c, int quick, struct err *e);
/* What ckpt_verify can rely on: nothing but that all can be read; a CRC-32 for some records of zip files, or
 * for all; checksums and digests (native). */
enum ckpt_proof { CKPT_READABLE, CKPT_SOME_CRC32, CKPT_CRC32, CKPT_DIGESTS };
enum ckpt_proof ckpt_proof(const struct ckpt *c);

/* Checks the checksum blocks that have not been read since the checkpoint was opened, so that one changed
 * byte anywhere is noticed also by a caller that reads a part. n_parts processes share the work: this one
 * does part `part` of 0 .. n_parts - 1. A file without checksums must be the one that was opened, unchanged
 * (ERR_INTEGRITY). Of a URL the rest is not transferred for this; the server is asked whether the files are
 * still the same. */
int ckpt_check_rest(struct ckpt *c, int part, int n_parts, struct err *e);

/* Of the serve format: reads what a checkpoint has of a tensor besides its pieces. ERR_INTEGRITY names the
 * tensor whose copy is another one. */
int ckpt_check_copies(struct ckpt *c, struct err *e);

/* For processes that share the reading: ckpt_proven_count numbers, for each checksum block the bytes that
 * this process has checked or read with ckpt_read_unproven. Add them up over all processes and set the sums
 * in each, so that ckpt_check_rest leaves out what the others did. */
int64_t ckpt_proven_count(const struct ckpt *c);
void ckpt_proven_get(const struct ckpt *c, int64_t *v);
void ckpt_proven_set(struct ckpt *c, const int64_t *v);

/* For a model that ties both weights, where the checkpoint has both: ERR_FORMAT when they differ, because
 * readers disagree on which of them counts. */
int ckpt_check_tied(struct ckpt *c, const char *embed, const char *head, struct err *e);

/* ---- digests ---- */

/* Of a whole checkpoint. weights: all tensors of role weight. state: all tensors and the state of the run;
 * valid when has_state. */
struct ckpt_digests {
    struct ckpt_digest weights, state;
    int has_state;
};

/* Adds to *d the digest of a part of a tensor of that dtype and shape: the elements [lo, hi) of the row-major
 * order of box b. data: those elements, contiguous; need not be aligned. Cannot fail. */
void ckpt_digest_add(struct ckpt_digest *d, enum stored_dtype t, int n_dims, const int64_t *shape,
                     const struct box *b, int64_t lo, int64_t hi, const void *data);
/* Reads tensor i and adds its digest to *d. ERR_MEMORY, or as ckpt_read_range(). */
int ckpt_digest_read(struct ckpt *c, int i, struct ckpt_digest *d, struct err *e);
/* Digests of the whole from those of the n tensors, listed in any order. */
struct ckpt_digests ckpt_digest_all(int n, const struct ckpt_tensor *t, const struct ckpt_state *s);
/* 32 hex digits, hi first. */
void ckpt_digest_hex(struct ckpt_digest d, char out[33]);

#endif

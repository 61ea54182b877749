/* kept_digest.h - that ranks hold the state that a checkpoint has. */
#ifndef SHARDLINE_TRAIN_KEPT_DIGEST_H
#define SHARDLINE_TRAIN_KEPT_DIGEST_H

#include "train/work.h"

/* Compares the digest of every tensor that the ranks hold with the one of the checkpoint that they were
 * resumed from. digest: of its whole state. Collective. ERR_INTEGRITY names a tensor. Adapters are not
 * compared: they were read with their checksums. */
int kept_digest_check(const struct work *w, char digest[33], struct err *e);

#endif

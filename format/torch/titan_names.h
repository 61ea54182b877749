/* titan_names.h - private to room format: the names of torchtitan's models as those of Hugging Face. */
#ifndef SHARDLINE_FORMAT_TORCH_TITAN_NAMES_H
#define SHARDLINE_FORMAT_TORCH_TITAN_NAMES_H

#include "format/fmt.h"

/* The family that this text of a config.json names (NULL: none); -1: titan_name has no names of it, or the
 * family stores its tensors in another order there. */
int titan_family(const char *config);
/* Writes the Hugging Face name of a tensor `name` (n bytes) to out. 0: the name is none of torchtitan's. */
int titan_name(int family, const char *name, int n, char out[FMT_NAME_MAX + 1]);

#endif

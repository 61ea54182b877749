/* titan_names.h - private to room format: the names of torchtitan's models as those of Hugging Face. */
#ifndef SHARDLINE_FORMAT_TORCH_TITAN_NAMES_H
#define SHARDLINE_FORMAT_TORCH_TITAN_NAMES_H

#include "format/fmt.h"

/* What a config.json says of a model of torchtitan; family -1: titan_name has no names of it. */
struct titan {
    int family, tied;                /* tied: the head is the embedding */
    int64_t heads, groups, head_dim; /* 0: not there */
};
/* TITAN_PAIRS: rows 2 i and 2 i + 1 of a head are rows i and head_dim / 2 + i of Hugging Face's (RoPE on
 * complex numbers, which Llama has). */
enum titan_order { TITAN_AS_IS, TITAN_PAIRS };
/* n 3: queries, keys and values in one tensor, for each group its query heads, its key and its value head. */
struct titan_name {
    int n;
    char to[3][FMT_NAME_MAX + 1];
    enum titan_order order[3];
};

/* Fills t from the text of a config.json; NULL: there is none. */
void titan_read(const char *config, struct titan *t);
/* Fills out with the Hugging Face names of a tensor `name` (n bytes). 0: the name is none of torchtitan's. */
int titan_name(const struct titan *t, const char *name, int n, struct titan_name *out);

#endif

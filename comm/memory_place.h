/* memory_place.h - places with memory that ranks share: a machine, or a GPU. What the ranks of each place
 * need together, and what the place has free, so that a program can refuse work that does not fit before any
 * rank allocates. */
#ifndef SHARDLINE_COMM_MEMORY_PLACE_H
#define SHARDLINE_COMM_MEMORY_PLACE_H

#include "base/machine.h"
#include "comm/comm.h"

struct memory_place {
    char name[128];               /* of the machine, or of the GPU: no other place has the same */
    int is_gpu, n_ranks;          /* ranks that take memory here */
    struct machine_memory memory; /* of a GPU only free_bytes; the least that any of its ranks sees */
    int64_t bytes[MEM_CATS];      /* what its ranks need together */
    int64_t total_bytes;          /* sum of bytes */
};

/* Bytes that a rank holds besides what struct mem counts: the program, MPI, buffers of libraries. Measured:
 * 20 to 40 MB a rank. */
enum { RANK_OVERHEAD_BYTES = 40 << 20 };

/* Gathers the places of all ranks. bytes: what this rank needs; on a machine the overhead of a rank is added
 * (MEM_OTHER). *out: [*n] malloc'd, owned by the caller, the same on every rank; the place with the least
 * free after the needs comes first. Every rank calls it before any rank allocates what it needs. all NULL:
 * this process alone. Collective. */
int memory_places(struct comm *all, struct dev *dev, const int64_t bytes[MEM_CATS], struct memory_place **out,
                  int *n, struct err *e);

/* 1 when the ranks of the place need more than it has free. */
int memory_place_is_full(const struct memory_place *p);

enum { MEMORY_PLACE_TEXT = 400 };
/* Writes the refusal's first part: "143.14 GB are needed and 24.12 GB are free on this machine (1 rank; optim
 * 53.91 GB, params 53.38 GB, grads 26.95 GB)". */
void memory_place_text(const struct memory_place *p, char out[MEMORY_PLACE_TEXT]);

#endif

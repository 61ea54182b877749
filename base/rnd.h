/* rnd.h - counter-based randomness: a pure function of seed, stream and index (Philox 4x32-10, Salmon et al.
 * 2011). */
#ifndef SHARDLINE_BASE_RND_H
#define SHARDLINE_BASE_RND_H

#include <stdint.h>

/* The generator itself: 10 rounds over counter and key, words in the paper's order. */
void rnd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
uint64_t rnd_u64(uint64_t seed, uint64_t stream, uint64_t index);
double rnd_unit(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1), 53 bits */
/* mean 0, deviation 1 (Box-Muller with fmath) */
double rnd_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* out[i] = rnd_normal(seed, stream, first + i), the same bits, many at a time. */
void rnd_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double *out);
uint64_t rnd_stream(const char *name); /* a stream id from a name */
/* A permutation of [0, n) as a pure function (Feistel network with cycle walking): nobody keeps an index in
 * memory. */
uint64_t rnd_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);

#endif

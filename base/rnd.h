/* rnd.h - counter-based randomness: pure functions of seed, stream and index.
 * Source: Salmon et al. 2011, Philox 4x32-10. */
#ifndef SHARDLINE_BASE_RND_H
#define SHARDLINE_BASE_RND_H

#include <stdint.h>

/* The generator: 10 rounds over counter and key, words in the paper's order. */
void rnd_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* 64 random bits. */
uint64_t rnd_u64(uint64_t seed, uint64_t stream, uint64_t index);

/* Uniform in [0, 1), 53 bits. */
double rnd_unit(uint64_t seed, uint64_t stream, uint64_t index);

/* Normal with mean 0 and deviation 1 (Box-Muller with fmath.h). */
double rnd_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* out[i] = rnd_normal(seed, stream, first + i) for i < n: the same bits, many at a time. */
void rnd_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, double *out);

/* The number of a stream with a name. */
uint64_t rnd_stream(const char *name);

/* Element i of a permutation of [0, n), without a table in memory (Feistel network with cycle walking). */
uint64_t rnd_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);

#endif

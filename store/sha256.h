/* sha256.h - private to the room: SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for files whose sum a hub
 * gives and for signed requests. */
#ifndef SHARDLINE_STORE_SHA256_H
#define SHARDLINE_STORE_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    unsigned char part[64];
};
/* The sum of a message in parts: start, add each part, end. */
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_end(struct sha256 *s, unsigned char out[32]);
/* HMAC of a message under a key. */
void sha256_hmac(const void *key, size_t n_key, const void *data, size_t n, unsigned char out[32]);
/* The sum as text, lower case. */
void sha256_hex(const unsigned char sum[32], char hex[65]);
/* The sum of a whole file, as text. */
int sha256_file(const char *path, char hex[65], struct err *e);

#endif

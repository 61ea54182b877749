/* sha256.h - private to the room: SHA-256 (FIPS 180-4) and its HMAC (RFC 2104), for files that a hub names
 * by it and for signed requests. */
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
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_end(struct sha256 *s, unsigned char out[32]);
void sha256_hmac(const void *key, size_t n_key, const void *data, size_t n, unsigned char out[32]);
void sha256_hex(const unsigned char sum[32], char hex[65]);
/* Of a whole file, as text. */
int sha256_file(const char *path, char hex[65], struct err *e);

#endif

/* md5.h - private to the room: MD5 (RFC 1321), which S3 uses as the ETag of a part and to check what arrives.
 * It finds damage; it proves nothing against an attacker. */
#ifndef SHARDLINE_STORE_MD5_H
#define SHARDLINE_STORE_MD5_H

#include <stddef.h>
#include <stdint.h>

#define MD5_BYTES 16

struct md5 {
    uint32_t h[4];
    uint64_t n_bytes;
    unsigned char part[64];
};
/* The sum of a message in parts: start, add each part, end. */
void md5_start(struct md5 *s);
void md5_add(struct md5 *s, const void *data, size_t n);
void md5_end(struct md5 *s, unsigned char out[MD5_BYTES]);
/* The sum as text: 32 lower-case hex digits, or base64 as Content-MD5 has it. */
void md5_hex(const unsigned char sum[MD5_BYTES], char hex[33]);
void md5_base64(const unsigned char sum[MD5_BYTES], char text[25]);

#endif

/* crc32.h - private to the room: CRC-32 (ISO-HDLC, the one of zip), as fast as the processor has it. */
#ifndef SHARDLINE_FORMAT_TORCH_CRC32_H
#define SHARDLINE_FORMAT_TORCH_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t fmt_crc32(uint32_t crc, const void *data, size_t n); /* goes on from crc; begin with 0 */

/* The same as a sum: of bytes in parts, in any order. fmt_crc32_part is what n bytes with `behind` bytes
 * after them add (xor) to it; fmt_crc32_whole makes the CRC-32 of all `bytes` of the xor of the parts, when
 * every byte was in exactly one. */
uint32_t fmt_crc32_part(const void *data, size_t n, int64_t behind);
/* a part made with 0 behind it, moved */
uint32_t fmt_crc32_moved(uint32_t part, int64_t behind);
uint32_t fmt_crc32_whole(uint32_t parts, int64_t bytes);

/* Ways to the same sum, slowest first, for tests: those from fmt_crc32_ways() on are not there. */
int fmt_crc32_ways(void);
uint32_t fmt_crc32_by(int way, uint32_t crc, const void *data, size_t n);

#endif

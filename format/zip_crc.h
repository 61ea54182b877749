/* zip_crc.h - private to the room: the checksum of zip files. */
#ifndef SHARDLINE_FORMAT_ZIP_CRC_H
#define SHARDLINE_FORMAT_ZIP_CRC_H

#include "format/fmt.h"

uint32_t zip_crc32(uint32_t crc, const void *data, size_t n);       /* goes on from crc; begin with 0 */

#endif

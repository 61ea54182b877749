/* zip_crc.h - private to the room: the checksum of zip files. */
#ifndef SHARDLINE_FORMAT_ZIP_CRC_H
#define SHARDLINE_FORMAT_ZIP_CRC_H

#include "format/zip.h"

uint32_t zip_crc32(uint32_t crc, const void *data, size_t n);       /* goes on from crc; begin with 0 */
/* Notes where the entry lies (zip_locate comes first), so that reads of the file check it. zip_sort_records: after the last one. */
int zip_keep_crc(struct zip *z, struct zip_entry *x, struct err *e);
void zip_sort_records(struct ckpt *c);

#endif

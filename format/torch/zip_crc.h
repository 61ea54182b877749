/* zip_crc.h - private to the room: records of zip files and their checksums. */
#ifndef SHARDLINE_FORMAT_TORCH_ZIP_CRC_H
#define SHARDLINE_FORMAT_TORCH_ZIP_CRC_H

#include "format/torch/zip.h"

/* Notes where the entry lies (zip_locate comes first), so that reads of the file check it. zip_sort_records:
 * after the last one. */
int zip_keep_crc(struct zip *z, struct zip_entry *x, struct err *e);
void zip_sort_records(struct ckpt *c);

#endif

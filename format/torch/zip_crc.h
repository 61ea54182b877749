/* zip_crc.h - private to room format: the checksums of the records of zip files. */
#ifndef SHARDLINE_FORMAT_TORCH_ZIP_CRC_H
#define SHARDLINE_FORMAT_TORCH_ZIP_CRC_H

#include "format/torch/zip.h"

/* Notes the place and CRC-32 of a located entry, so that reads of the file check it. Call zip_sort_records
 * after the last one. */
int zip_note_crc(struct zip *z, struct zip_entry *x, struct err *e);
void zip_sort_records(struct ckpt *c);

#endif

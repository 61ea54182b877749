/* kv_files.h - a folder of pages of keys and values (--kv-disk), shared by the ranks, replicas and servers
 * of a machine, or of a shared file system. Knows keys and bytes; kv_disk.h knows what they are.
 *
 *     DIR/kv-0123456789abcdef.seg    [ header | payload ][ header | payload ] …    appended by one process
 *
 * A header has the key, the length and a checksum of the payload, and a checksum of itself; all numbers are
 * little-endian. The index is in memory: made of the headers at start, and brought up to date with what other
 * processes append. A segment that ends in the middle of a record is known up to there. A payload is checked
 * when it is read: a damaged one is forgotten.
 *
 * All segments together have at most `limit` bytes, for a moment a segment more. The segment that was read or
 * written longest ago is deleted first, whichever process wrote the segment. A process that reads a deleted
 * segment keeps its file open, so the read still works.
 *
 * Nothing here fails after the start: what cannot be read is not there, what cannot be written is not
 * written. The first failure is logged, the later ones are not. One thread at a time. */
#ifndef SHARDLINE_SERVE_KV_KV_FILES_H
#define SHARDLINE_SERVE_KV_KV_FILES_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/log.h"

struct kv_key {
    uint64_t w[2];
};
struct kv_files;
struct kv_files_count {
    int64_t n_damaged, read_bytes, written_bytes;
};
/* Opens the folder, which is made where it is missing, and reads its index. limit: of the folder;
 * payload_max: of a record; log: borrowed, NULL: nothing is logged. ERR_FILE: there is no such folder;
 * ERR_MEMORY; ERR_USAGE: limit holds no record. */
int kv_files_open(struct kv_files **out, const char *dir, int64_t limit, size_t payload_max, struct log *log,
                  struct err *e);
/* Safe on NULL. */
void kv_files_close(struct kv_files *f);
/* Whether a record is there: the index looks at the folder again, at most twice a second. */
int kv_files_has(struct kv_files *f, struct kv_key key);
/* The payload, valid until the next call; NULL: it is not there, has another length, or is damaged. */
const void *kv_files_read(struct kv_files *f, struct kv_key key, size_t bytes);
/* Asks the machine to read a record ahead. */
void kv_files_ask_ahead(struct kv_files *f, struct kv_key key);
/* Appends a record, unless it is there. */
void kv_files_write(struct kv_files *f, struct kv_key key, const void *payload, size_t bytes);
/* Records in the index, and what was done so far. */
int64_t kv_files_records(const struct kv_files *f);
struct kv_files_count kv_files_counts(const struct kv_files *f);

#endif

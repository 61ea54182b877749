/* zip.h - private to the room: zip files as torch.save writes them (stored, never compressed), anywhere
 * inside a file.
 *
 * Sizes come from the central directory at the end (local headers hold zeros); every number is compared with
 * the bytes that exist.
 * Source: PKWARE APPNOTE 6.3, sections 4.3 and 4.5.3. */
#ifndef SHARDLINE_FORMAT_TORCH_ZIP_H
#define SHARDLINE_FORMAT_TORCH_ZIP_H

#include "format/fmt.h"

struct zip_entry {
    const char *name;   /* behind the first '/': "data.pkl", "data/0"; n_name bytes */
    int n_name, n_full; /* n_full: with the root in front */
    uint32_t crc;
    int64_t header, bytes; /* header: from the start of the zip */
    int used_as, kept;     /* the reader's: what its bytes are taken for; its CRC-32 is noted */
    int64_t data;          /* where the bytes are in the file; -1: not looked up yet */
};
struct zip {
    struct ckpt *c;
    int file;
    int64_t base, length;    /* the zip's bytes in the file */
    struct zip_entry *entry; /* by name */
    int n;
    char *directory;
    char *head, *tail; /* first and last bytes: what a small zip is asked for lies there */
    int64_t n_head, n_tail;
};

/* Reads the directory of the zip in bytes [base, base + length) of a file of c. ERR_FORMAT says what is
 * wrong. */
int zip_open(struct zip *z, struct ckpt *c, int file, int64_t base, int64_t length, struct err *e);
void zip_close(struct zip *z);
struct zip_entry *zip_find(const struct zip *z, const char *name, int n_name);
/* Checks the local header; afterwards entry->data is set. */
int zip_locate(struct zip *z, struct zip_entry *entry, struct err *e);
/* The whole of a small entry, CRC checked, one NUL behind; malloc'd. limit: ERR_FORMAT. */
int zip_load(struct zip *z, struct zip_entry *entry, int64_t limit, void **data, struct err *e);

#endif

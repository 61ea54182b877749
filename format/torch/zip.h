/* zip.h - private to room format: reads zip files of torch.save (stored, never compressed), anywhere in a
 * file.
 *
 * Sizes are those of the central directory at the end (local headers have zeros); every number is checked
 * against the length of the file. Source: PKWARE APPNOTE 6.3, sections 4.3 and 4.5.3. */
#ifndef SHARDLINE_FORMAT_TORCH_ZIP_H
#define SHARDLINE_FORMAT_TORCH_ZIP_H

#include "format/fmt.h"

struct zip_entry {
    const char *name;   /* after the first '/': "data.pkl", "data/0"; n_name bytes */
    int n_name, n_full; /* n_full: with the root folder */
    uint32_t crc;
    int64_t header, bytes; /* header: from the start of the zip */
    int used_as;           /* 1 + the dtype that torch_file.c reads it as; 0: not used yet */
    int noted;             /* zip_note_crc was called */
    int64_t data;          /* its first byte in the file; -1: not located yet */
};
struct zip {
    struct ckpt *c;
    int file;
    int64_t base, length;    /* the zip's bytes in the file */
    struct zip_entry *entry; /* by name */
    int n;
    char *directory;
    char *head, *tail; /* the first and last bytes: a small zip needs no other reads */
    int64_t n_head, n_tail;
};

/* Reads the directory of the zip in bytes [base, base + length) of a file of c. Returns 0 or a negative code.
 * ERR_FORMAT: not a zip of torch.save, or damaged. */
int zip_open(struct zip *z, struct ckpt *c, int file, int64_t base, int64_t length, struct err *e);
void zip_close(struct zip *z);
/* NULL: there is no such entry. */
struct zip_entry *zip_find(const struct zip *z, const char *name, int n_name);
/* Checks the local header and sets entry->data. ERR_FORMAT: it does not agree with the directory. */
int zip_locate(struct zip *z, struct zip_entry *entry, struct err *e);
/* Reads a small entry and checks its CRC. *data: malloc'd, its bytes and a NUL. ERR_FORMAT: more than
 * limit bytes. ERR_INTEGRITY: a wrong CRC. */
int zip_load(struct zip *z, struct zip_entry *entry, int64_t limit, void **data, struct err *e);

#endif

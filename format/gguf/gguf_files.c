/* gguf_files.c - see gguf_model.h: headers read from files, names of split sets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf_model.h"

#define SPLIT_DIGITS 5
#define SPLIT_END "-00001-of-00001.gguf"

int gguf_part_read(struct ckpt *c, int file, struct gguf_part *p, struct err *e)
{
    int64_t all = c->file[file].bytes, n = all < GGUF_HEADER_FIRST ? all : GGUF_HEADER_FIRST;
    int rc;
    for (p->file = file;; n = n * 2 < all ? n * 2 : all) {
        free(p->bytes);
        if (!(p->bytes = malloc((size_t)n + 1)))
            return err_set(e, ERR_MEMORY, "%s: no memory for its header", c->file[file].path);
        if ((rc = fmt_pread(c, file, p->bytes, n, 0, e)) < 0)
            return rc;
        rc = gguf_parse(&p->f, p->bytes, n, all, c->file[file].path, e);
        if (rc <= 0)
            return rc;
    }
}

void gguf_part_free(struct gguf_part *p)
{
    gguf_file_free(&p->f);
    free(p->bytes);
    p->bytes = NULL;
}

int gguf_split_count(const char *file_name, int *stem)
{
    size_t n = strlen(file_name), k = sizeof SPLIT_END - 1;
    int no, of, used = 0;
    if (n <= k || sscanf(file_name + n - k, "-%5d-of-%5d.gguf%n", &no, &of, &used) != 2 || used != (int)k ||
        no < 1 || no > of)
        return 0;
    *stem = (int)(n - k);
    return of;
}

void gguf_split_name(const char *file_name, int stem, int i, int n, char out[256])
{
    snprintf(out, 256, "%.*s-%0*d-of-%0*d.gguf", stem, file_name, SPLIT_DIGITS, i + 1, SPLIT_DIGITS, n);
}

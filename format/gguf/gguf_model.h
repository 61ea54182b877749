/* gguf_model.h - private to the folder: a GGUF checkpoint while it is opened, and the tensors of it that are
 * computed. Used by one thread, but for gguf_compute().
 *
 *     files -> entries -> (names, forms) -> pieces of the checkpoint      what moves without arithmetic
 *                                        -> entries as they are, and a view that computes      the rest */
#ifndef SHARDLINE_FORMAT_GGUF_GGUF_MODEL_H
#define SHARDLINE_FORMAT_GGUF_GGUF_MODEL_H

#include "format/gguf/gguf_file.h"
#include "format/torch/torch_build.h"

/* What is done with the numbers of a computed tensor. */
enum gguf_numbers {
    GGUF_AS_IS,
    GGUF_TO_BF16,   /* fp32 with 16 zero bits at the end of each; anything else is an error */
    GGUF_MINUS_ONE, /* x - 1 in fp32; to bf16 as above where the tensor is bf16 */
    GGUF_OF_BLOCKS, /* or of floats: values as fp32, or rounded to bf16 */
    GGUF_FP4_CODES, /* MXFP4 as gpt-oss publishes it: the codes, the scales */
    GGUF_FP4_SCALES
};
/* A tensor that is computed from one or two entries. */
struct gguf_calc {
    struct ckpt_tensor t; /* of the view; its name is owned */
    enum gguf_form form;
    enum gguf_numbers numbers;
    const struct gguf_type_row *type; /* of the entries */
    int n;                            /* entries: 1, or 2 */
    char *entry_name[2];              /* of the tensors below; owned */
    int entry[2];                     /* the same as numbers of tensors below */
    int64_t heads, nope, value;       /* GGUF_KEY_B: heads, rows of each in its two entries */
};

struct gguf_part {
    struct gguf_file f;
    void *bytes; /* of the header */
    int file;    /* of the checkpoint */
};
struct gguf_model {
    struct ckpt *c;
    struct build b;
    int n_parts;
    struct gguf_part *part; /* parts of a split file, the first with the metadata first */
    char arch[64];
    const struct gguf_family *family; /* NULL: the architecture is not known */
    int64_t heads, kv_heads;
    int is_bf16; /* matrices are bf16, so that fp32 vectors were bf16 too */
    int looked;  /* what the last look at an fp32 entry found: 1 it was bf16, -1 it was not; 0: none yet */
    int n_unknown;
    char unknown[GGUF_NAME_MAX]; /* the first tensor that the family does not have */

    /* computed tensors; blocks: of those that gguf_dequantize() alone makes */
    int n_calcs, n_blocks;
    struct gguf_calc *calc, *block;
};

/* ---- files (gguf_files.c) ---- */

/* Reads the header of file `file` of the checkpoint. p->bytes is owned by the caller, as is p->f. */
int gguf_part_read(struct ckpt *c, int file, struct gguf_part *p, struct err *e);
void gguf_part_free(struct gguf_part *p);
/* Number i (from 0) of n files of a split set: "NAME-00001-of-00003.gguf". The number of files that such a
 * name gives, and the length of NAME; 0: it is no such name. */
int gguf_split_count(const char *file_name, int *stem);
void gguf_split_name(const char *file_name, int stem, int i, int n, char out[256]);

/* ---- names to pieces (gguf_names.c) ---- */

/* Adds the tensors of all entries to the checkpoint, and to m->calc and m->block. */
int gguf_add_tensors(struct gguf_model *m, struct err *e);

/* ---- settings and vocabulary (gguf_config.c) ---- */

/* The text of config.json, of a known family; malloc'd. NULL: *e is set. */
char *gguf_config(const struct gguf_model *m, struct err *e);

/* Adds tokenizer.json and its like, which are made when they are read (format/vocab). */
int gguf_add_vocabulary(struct gguf_model *m, struct err *e);

/* ---- computed tensors (gguf_calc.c) ---- */

/* A ckpt_compute: arg is a struct gguf_calc. */
int gguf_compute(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                 struct err *e);

#endif

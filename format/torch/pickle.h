/* pickle.h - private to the room: pickles read as data. Nothing is imported, called or built: every object
 * becomes an inert node.
 *
 * The interpreter knows the opcodes that torch, DeepSpeed and Megatron write (protocols 2 to 5) and refuses
 * all others; classes must stand in the allow-list (pickle_class.c). Depth is on its own stack, sizes are
 * compared with the bytes that exist, memory is bounded.
 * Source: Lib/pickletools.py of Python describes the opcodes. */
#ifndef SHARDLINE_FORMAT_TORCH_PICKLE_H
#define SHARDLINE_FORMAT_TORCH_PICKLE_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

enum pk_kind {
    PK_NONE,
    PK_BOOL,
    PK_INT,
    PK_BIG,
    PK_FLOAT,
    PK_TEXT,
    PK_BYTES,
    PK_TUPLE,
    PK_LIST,
    PK_SET,
    PK_DICT,
    PK_CLASS,
    PK_CALL,
    PK_PERSID
};

/* What a class of the allow-list means to a reader. */
enum pk_class_id {
    PK_INERT, /* may stand in a file, means nothing here */
    PK_TENSOR_V2,
    PK_TENSOR_V3,
    PK_PARAMETER,
    PK_FROM_TYPE,
    PK_STORAGE,
    PK_DTYPE,
    /* calls that are replaced by their value */
    PK_MAKES_TUPLE,
    PK_MAKES_LIST,
    PK_MAKES_SET,
    PK_MAKES_DICT,
    PK_MAKES_BYTES
};
/* value: enum torch_dtype */
struct pk_class {
    const char *module, *name;
    enum pk_class_id id;
    int value;
};

struct pk {
    uint8_t kind;     /* enum pk_kind */
    uint32_t n, room; /* bytes of text; items; pairs of a dict */
    union {
        int64_t i;
        double f;
        const char *text; /* TEXT, BYTES: not terminated; CLASS: its name, n bytes */
        struct pk **item; /* DICT: key, value, key, value, … */
    };
    const struct pk_class *cls; /* CLASS, CALL */
    struct pk *args, *state;    /* CALL: arguments, what BUILD gave; PERSID: args */
};

struct pk_block;
struct pk_doc {
    struct pk *root;
    size_t used;            /* bytes up to and with STOP */
    struct pk *persid;      /* the last persistent id; each leads to the one before it by its state */
    struct pk_block *block; /* memory of the nodes */
};

/* Reads one pickle at the start of data, which must live as long as the nodes. what: the file, for messages.
 * ERR_FORMAT. */
int pk_parse(struct pk_doc *d, const void *data, size_t n, const char *what, struct err *e);
void pk_free(struct pk_doc *d);

/* All of these take NULL and wrong kinds, and answer NULL or 0 then. */
/* the last one with this text as key */
struct pk *pk_get(const struct pk *dict, const char *key);
struct pk *pk_get_int(const struct pk *dict, int64_t key);
struct pk *pk_at(const struct pk *seq, uint32_t i); /* of a tuple, list or set */
/* of what BUILD gave, or the member of a dict */
struct pk *pk_attr(const struct pk *object, const char *name);
int pk_is_text(const struct pk *p, const char *text);
int pk_ends_with(const struct pk *p, const char *suffix); /* TEXT */
/* an object of the class with this last name */
int pk_is_call(const struct pk *p, const char *class_name);
/* 1: a whole number that fits (also a float without fraction) */
int pk_int(const struct pk *p, int64_t *out);
char *pk_strdup(const struct pk *p); /* TEXT without NUL; or NULL */

/* Row of the allow-list for a global, or NULL: refused. */
const struct pk_class *pk_class_find(const char *module, size_t n_module, const char *name, size_t n_name);

#endif

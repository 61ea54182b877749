/* pickle.h - private to room format: reads pickles as data. Nothing is imported, called or constructed: every
 * object becomes an inert node.
 *
 * The interpreter knows the opcodes that torch, DeepSpeed and Megatron write (protocols 2 to 5) and
 * rejects all others; classes must be in the allow-list (pickle_class.c). Nesting uses a stack on the
 * heap, sizes are checked against the bytes of the file, memory is limited. Source: Lib/pickletools.py of
 * Python describes the opcodes. */
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
    PK_INERT, /* allowed in a file, without meaning here */
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
    uint8_t kind;         /* enum pk_kind */
    uint32_t n, capacity; /* bytes of text, items, or pairs of a dict */
    union {
        int64_t i;
        double f;
        const char *text; /* TEXT, BYTES: not terminated; CLASS: its name, n bytes */
        struct pk **item; /* DICT: key, value, key, value, … */
    };
    const struct pk_class *cls; /* CLASS, CALL */
    struct pk *args,
        *state; /* CALL: arguments, state set by BUILD; PERSID: args, the persistent id before it */
};

struct pk_block;
struct pk_doc {
    struct pk *root;
    size_t used;            /* bytes up to STOP, included */
    struct pk *persid;      /* the last persistent id; its state is the one before it */
    struct pk_block *block; /* memory of the nodes */
};

/* Reads one pickle at the start of data, which the nodes borrow. what: the file, for messages. Returns 0 or a
 * negative code. ERR_FORMAT: damaged, an opcode or a class that is not allowed. ERR_MEMORY. */
int pk_parse(struct pk_doc *d, const void *data, size_t n, const char *what, struct err *e);
void pk_free(struct pk_doc *d); /* all nodes */

/* All of these accept NULL and wrong kinds, and return NULL or 0 for them. Nodes are borrowed from the
 * document. */
/* The value of this key; of equal keys the last one. */
struct pk *pk_get(const struct pk *dict, const char *key);
struct pk *pk_get_int(const struct pk *dict, int64_t key);
struct pk *pk_at(const struct pk *seq, uint32_t i); /* of a tuple, list or set */
/* A member of the state that BUILD set, or of a dict. */
struct pk *pk_attr(const struct pk *object, const char *name);
int pk_is_text(const struct pk *p, const char *text);
int pk_ends_with(const struct pk *p, const char *suffix); /* TEXT */
/* 1: a call of the class with this name, without its module. */
int pk_is_call(const struct pk *p, const char *class_name);
/* 1: an integer of 64 bits, also as a float without fraction. */
int pk_int(const struct pk *p, int64_t *out);
char *pk_strdup(const struct pk *p); /* a copy of a TEXT without NUL, malloc'd; or NULL */

/* The row of the allow-list for a global; NULL: not allowed. */
const struct pk_class *pk_class_find(const char *module, size_t n_module, const char *name, size_t n_name);

#endif

/* pickle_write.h - private to room format: writes pickles of protocol 2, which every version of torch reads
 * (also with weights_only).
 *
 * Calls follow the order of the opcodes. pkw_end reports a failed allocation of any call before. Classes
 * and words that occur often are memoized. Source: Lib/pickletools.py of Python describes the opcodes. */
#ifndef SHARDLINE_FORMAT_TORCH_PICKLE_WRITE_H
#define SHARDLINE_FORMAT_TORCH_PICKLE_WRITE_H

#include "base/buf.h"
#include "format/ckpt.h"

/* Opcodes without an argument. */
enum {
    PKW_MARK = '(',
    PKW_TUPLE = 't',
    PKW_EMPTY_TUPLE = ')',
    PKW_DICT = '}',
    PKW_SETITEMS = 'u',
    PKW_LIST = ']',
    PKW_APPENDS = 'e',
    PKW_NONE = 'N',
    PKW_TRUE = 0x88,
    PKW_FALSE = 0x89,
    PKW_NEWOBJ = 0x81,
    PKW_REDUCE = 'R',
    PKW_BUILD = 'b',
    PKW_PERSID = 'Q',
    PKW_STOP = '.'
};
#define PKW_WORDS 64
struct pkw {
    struct buf b;
    /* memoized so far; module NULL: a text */
    struct {
        const char *module, *name;
    } word[PKW_WORDS];
    int n_words;
};

void pkw_begin(struct pkw *w); /* the caller zeroes *w before */
void pkw_free(struct pkw *w);  /* w's memory, not w */
/* An opcode without argument; a class; a text, an integer, a float. */
void pkw_op(struct pkw *w, int op);
void pkw_global(struct pkw *w, const char *module, const char *name);
void pkw_text(struct pkw *w, const char *text);
void pkw_word(struct pkw *w, const char *text); /* a string constant, memoized */
void pkw_int(struct pkw *w, int64_t v);
void pkw_float(struct pkw *w, double v);
void pkw_ints(struct pkw *w, int n, const int64_t *v); /* a tuple */
void pkw_size(struct pkw *w, int n, const int64_t *v); /* torch.Size */
/* An object of a class: starts the dict of its members; pkw_object_end ends it. */
void pkw_object(struct pkw *w, const char *module, const char *name);
void pkw_object_end(struct pkw *w);
/* A row-major tensor: storage `number` of the file that has this pickle. */
void pkw_tensor(struct pkw *w, enum stored_dtype t, int n_dims, const int64_t *shape, int number);
void pkw_dtype(struct pkw *w, enum stored_dtype t); /* torch.float32, … */
/* ERR_USAGE: the pickles written here cannot hold the dtype of t. format: the value of --format. */
int pkw_check_dtype(const struct ckpt_tensor *t, const char *format, struct err *e);
int pkw_end(struct pkw *w, struct err *e); /* STOP; ERR_MEMORY if any allocation failed */

#endif

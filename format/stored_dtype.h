/* stored_dtype.h - the dtypes that tensors have in files: one table, apart from the dtypes of arithmetic
 * (enum dtype in kernels/), which are few.
 *
 * Names and sizes are those of safetensors 0.6 (safetensors/src/tensor.rs, enum Dtype). Every dtype is
 * carried, cut, compared and digested as bits; only a few are computed with.
 *
 * Elements of 4 and 6 bits are packed without gaps: element i of a tensor is the bits [i * bits, (i + 1) *
 * bits) of its data, counted from the least significant bit of the first byte. Shapes count elements. Such a
 * tensor is cut only where elements begin at a byte. */
#ifndef SHARDLINE_FORMAT_STORED_DTYPE_H
#define SHARDLINE_FORMAT_STORED_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum stored_dtype {
    STORED_F32,
    STORED_BF16,
    STORED_F16,
    STORED_F64,
    STORED_I64,
    STORED_I32,
    STORED_I16,
    STORED_I8,
    STORED_U8,
    STORED_BOOL,
    STORED_U64,
    STORED_U32,
    STORED_U16,
    STORED_C64,
    STORED_F8_E4M3,
    STORED_F8_E5M2,
    STORED_F8_E8M0,
    STORED_F8_E4M3FNUZ,
    STORED_F8_E5M2FNUZ,
    STORED_F6_E2M3,
    STORED_F6_E3M2,
    STORED_F4,
    STORED_DTYPES
};

/* As safetensors spells it: "F32", "BF16", … */
const char *stored_dtype_name(enum stored_dtype t);
/* The dtype of that name (case counts), or -1. */
int stored_dtype_find(const char *name);
/* Bits of an element: 4, 6, 8, 16, 32 or 64. */
int stored_dtype_bits(enum stored_dtype t);

/* 1: F32, BF16, F16 or F64: the dtypes that are converted and added to. */
int stored_is_float(enum stored_dtype t);

/* 1: n elements are a whole number of bytes. */
int stored_on_bytes(enum stored_dtype t, int64_t n);
/* Bytes of n elements, which must be a whole number of bytes. n < 2^57. */
int64_t stored_bytes(enum stored_dtype t, int64_t n);
/* How many elements a loop may take at once from a buffer of `bytes` bytes (at least 8): as many as fit, and
 * a whole number of bytes. */
int64_t stored_elements(enum stored_dtype t, int64_t bytes);

/* The bits of element i of data, as an unsigned integer. data need not be aligned. */
uint64_t stored_pattern(enum stored_dtype t, const void *data, int64_t i);
/* Element i of data as a double, to print and to compare; of a complex number its absolute value. */
double stored_value(enum stored_dtype t, const void *data, int64_t i);

/* Byte planes (FORMAT.md, "Compressed files"): the first bytes of all elements, then the second ones, and so
 * on. Puts n bytes, elements of `width` bytes, into planes, and back; the bytes behind the last whole element
 * follow as they are. to and from do not overlap. Any thread. */
void stored_split(char *to, const char *from, size_t n, size_t width);
void stored_join(char *to, const char *from, size_t n, size_t width);

#endif

/* encode.h - private to the room: stored codes computed from values, in the places that each form has for
 * them. */
#ifndef SHARDLINE_FORMAT_QUANT_ENCODE_H
#define SHARDLINE_FORMAT_QUANT_ENCODE_H

#include "format/quant/region.h"

struct encoder {
    struct region_weight w;  /* w.to: the dtype that values were rounded to; numbers of tensors below */
    int values;              /* number of the tensor of values below */
    int64_t shape[BOX_DIMS]; /* of the tensor of codes */
    /* 1: every value must be that of exactly one code. 0: the nearest code. */
    int exact;
    /* Sets scales and zero points of a part; NULL: region_load() reads them. */
    int (*scales)(const struct encoder *c, struct ckpt *below, const struct patch *p, struct region *r,
                  struct err *e);
    void *arg; /* of scales */
};

/* A ckpt_compute (format/ckpt_view.h) of a tensor of codes. arg: a struct encoder. ERR_INTEGRITY: exact, and
 * a value is not that of one code. */
int encode_codes(void *arg, struct ckpt *below, const struct box *b, int64_t lo, int64_t hi, void *dst,
                 struct err *e);
/* 1: the last dim of the codes is not that of the values. */
int encode_is_turned(const struct encoder *c);
/* Reads the values of a part as fp32 in the order of the stored tensors: [n][k], of GPTQ and AWQ [k][n]. out:
 * room for them. */
int encode_values(const struct encoder *c, struct ckpt *below, const struct patch *p, float *out,
                  struct err *e);

#endif

/* fused_experts.h - private to the room: the experts of a layer as two tensors, as transformers 5 holds them,
 * and as tensors of their own, as most checkpoints and the parameter table have them.
 *
 *     mlp.experts.gate_up_proj [E, 2 I, H]     expert e: rows 0 .. I - 1 are its gate, the others its up
 *     mlp.experts.down_proj    [E, H, I]
 *     mlp.experts.w1, .w3 [E, I, H], .w2 [E, H, I]    trainers' gate, up and down (AutoEP, torchtitan)
 *     mlp.experts.3.gate_proj.weight [I, H], …up_proj.weight [I, H], …down_proj.weight [H, I]
 *
 * Scales of FP8 blocks are named as their tensor, with _scale_inv behind it: [E, 2 I / 128, H / 128]. Where I
 * is no multiple of the block, one scale is of gate and up rows, and the layer stays fused.
 * Every checkpoint shows its experts as tensors of their own, so that both forms have one digest. gpt-oss has
 * other tensors under the same names ([in][out], gate and up alternating, with biases); its form is the
 * parameter table's, and nothing here changes it.
 * Source: conversion_mapping of transformers 5. */
#ifndef SHARDLINE_FORMAT_HF_FUSED_EXPERTS_H
#define SHARDLINE_FORMAT_HF_FUSED_EXPERTS_H

#include "format/fmt.h"

/* How a family names the tensors of its experts where each has its own. */
struct expert_form;
/* The form of the family that this text of a config.json names; NULL: the family has no fused form here, or
 * the text is NULL or not JSON. */
const struct expert_form *expert_form_of(const char *config);
/* 1: published checkpoints of the family are fused. f may be NULL. */
int expert_form_is_published(const struct expert_form *f);
/* Rows of an expert's matrix under one FP8 scale, as this text says; 128 where it does not. */
int64_t expert_block_rows(const char *config);

/* Replaces the fused tensors of an open checkpoint by those of each expert, in its tables alone: their pieces
 * lie in the same bytes. Without a config.json, or with one of another family, nothing changes. ERR_FORMAT:
 * shapes that are not those of the form, with the reason. */
int fused_experts_split(struct ckpt *c, struct err *e);

/* The place of a tensor in the fused form. */
struct fused_place {
    char name[FMT_NAME_MAX + 1]; /* of the tensor that holds it */
    int expert;        /* -1: the tensor is none of an expert; it may have another name all the same */
    int part, n_parts; /* part 0 or 1 of each expert's n_parts: gate and up, or down alone */
    int is_scale;      /* it holds the scales of FP8 blocks */
};
/* ERR_FORMAT: the name is too long. */
int fused_experts_place(const struct expert_form *f, const char *name, struct fused_place *out,
                        struct err *e);
/* The module of part k of expert x in a fused tensor, whose name is `fused` (k 0 and 1: gate and up, or 0:
 * down); of the fused form's router, its own name, with x and k 0. 0: there is none, or out is too small. */
int fused_experts_module(const struct expert_form *f, const char *fused, int x, int k,
                         char out[FMT_NAME_MAX + 1]);
/* 1: a tensor of one expert that stores part of a quantised matrix in a form that is never fused. */
int fused_experts_quantised(const struct expert_form *f, const char *name);

#endif

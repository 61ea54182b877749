/* fuzz.h - what fuzz targets share: a temporary folder, inputs that hold several files, torch files around a
 * pickle, checkpoints of one file in memory.
 *
 * A target is NAME_fuzz.c with one LLVMFuzzerTestOneInput; its inputs lie in corpus/NAME/. For every
 * input a target must end, within its limits, without a bad read, a leak or an allocation that the size of
 * the input does not explain. Its result does not matter. */
#ifndef SHARDLINE_TESTS_FUZZ_FUZZ_H
#define SHARDLINE_TESTS_FUZZ_FUZZ_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include <stddef.h>
#include <stdint.h>

struct ckpt;

/* One input of n bytes: each target defines it, libFuzzer or replay.c calls it. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A copy of exactly n bytes, so that a sanitizer sees a read behind them; the caller frees it. */
void *fuzz_copy(const uint8_t *data, size_t n);
/* A folder of this process, removed when it ends; a file of it, written anew ("a/b.pt": a is made); its
 * path, until the next call. */
const char *fuzz_dir(void);
const char *fuzz_write(const char *name, const void *data, size_t n);
/* An input of several files: a byte that says which (an index of names, modulo), three bytes of length, the
 * content; and again. Files that are not in the input do not exist. One whose name ends in .pt is a torch
 * file around its content (fuzz_wrap). */
void fuzz_write_parts(const char *const *names, size_t n_names, const uint8_t *data, size_t n);
/* A zip as torch.save writes it, with checksums that fit: a byte for the number of storages, two for the
 * bytes of each, the pickle. The caller frees it. */
uint8_t *fuzz_wrap(const uint8_t *data, size_t n, size_t *n_zip);
/* Opens the path as a checkpoint and reads all of it. */
void fuzz_open_ckpt(const char *path);
/* A checkpoint without tables whose one file has these bytes; ckpt_close frees it. */
struct ckpt *fuzz_ckpt(const uint8_t *data, size_t n);

#endif

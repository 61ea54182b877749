/* ckpt.h - checkpoints read: logical tensors by box, whatever the files look like.
 *
 * A checkpoint is a set of logical tensors (full shape, Hugging Face name, role) and a little state. A driver
 * hides the layout of the files: ckpt_read() takes any box of any tensor. ckpt_write.h writes checkpoints,
 * ckpt_proof.h verifies and digests them, fetch.h downloads one. FORMAT.md specifies the native files,
 * FOREIGN.md those of other frameworks.
 *
 * Functions that take a const struct ckpt, and ckpt_read*, may be called from several threads at once; the
 * others not while another thread uses the same checkpoint. Strings that are returned live until
 * ckpt_close. */
#ifndef SHARDLINE_FORMAT_CKPT_H
#define SHARDLINE_FORMAT_CKPT_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "format/ckpt_tensor.h"

/* The small file that says how the tensors of a model without a family are cut (reshard/CUTS.md). */
#define CKPT_CUTS "cuts.txt"
/* Of models of embeddings that sentence-transformers wrote: the list of their modules, and the pooling, which
 * folders of other frameworks have as 1_Pooling/config.json. */
#define CKPT_MODULES "modules.json"
#define CKPT_POOLING "1_Pooling.config.json"

#define CKPT_PROOF ".proof"

struct ckpt;
struct memory_set;

struct ckpt_open_opts {
    /* A config.json to use in place of the one beside the files: some formats (Megatron) do not store the
     * number of heads and the vocabulary. NULL: none. Borrowed during ckpt_open. */
    const char *config_path;
    /* A folder with the files that a URL does not have yet, to prove a checkpoint before it is published.
     * What is transferred goes to CKPT_PROOF in that folder and not to the user's cache, and is dropped when
     * it has been read: every byte may be read once, with ckpt_read_unproven. NULL: none. */
    const char *unpublished;
    /* Of a URL also the small files that a published folder has and no reader needs (a license, code). */
    int with_cards;
    /* Of a URL: what is transferred goes to memory and not to the user's cache on disk, and is dropped by the
     * last process of the machine that reads it. For a URL whose checkpoint changes every few seconds. Where
     * its server is a pshare on this machine, of the same user, its files are opened themselves: nothing is
     * transferred or kept. */
    int in_memory;
    /* With in_memory: no other process of this machine reads it now. Nothing is kept, then: what is read goes
     * from the connection to the reader. */
    int alone;
    /* The files are those of this set (store/memory.h, memory_private), which belongs to the checkpoint from
     * then on, also after an error; path is for messages. To verify a set before it is given to a keeper.
     * NULL: none. */
    struct memory_set *files;
    /* Requests to a server end with ERR_STOPPED soon after *stop is not 0. Must outlive ckpt_end_reading.
     * NULL: none. */
    const volatile sig_atomic_t *stop;
};

/* Opens the checkpoint at path: a folder, a single file, a URL (http, https, s3, hf), or one in memory
 * (mem:PID/SET, store/memory.h). how NULL: no options. Picks the driver (native, Hugging Face, and those in
 * FOREIGN.md), reads the tables only, and checks sizes, exact cover and the manifest's checksum. ERR_FILE: it
 * cannot be read. ERR_FORMAT: it is not a checkpoint, or not a valid one. ERR_INTEGRITY: a checksum is wrong.
 * Of a URL only what is read is transferred, into a cache that the processes of a machine share. */
int ckpt_open(struct ckpt **out, const char *path, const struct ckpt_open_opts *how, struct err *e);
/* Frees everything. NULL is allowed. */
void ckpt_close(struct ckpt *c);
/* After this no data can be read; the tables stay. Releases the folder of the cache, so that other processes
 * may find a newer version at its URL. */
void ckpt_end_reading(struct ckpt *c);
/* Closes files that are not in use and frees cached blocks, so that a checkpoint that was removed releases
 * its disk space. Reading goes on to work. */
void ckpt_release_files(struct ckpt *c);
/* Opens the files whose blocks have checksums and keeps them open until ckpt_close(), so that they can be
 * read when their names are gone; of many files the first 64. Files of URLs stay as they are. ERR_FILE. */
int ckpt_hold_files(struct ckpt *c, struct err *e);

/* ---- what it is ---- */

/* The path that was opened, for messages: of a URL the path in the cache, or, where its versions change, the
 * URL without user and key. */
const char *ckpt_path(const struct ckpt *c);
/* What opens it again: ckpt_path, or the URL with its key. Not for messages. */
const char *ckpt_opened(const struct ckpt *c);
/* "native", "hf", "torch", "dcp", "dcp-hf", "deepspeed", "deepspeed-universal", "megatron-dist",
 * "megatron-legacy" or "gguf". */
const char *ckpt_driver(const struct ckpt *c);
/* Of other frameworks: the framework and version that wrote it, as far as the files say, and the number of
 * ranks that did (0: unknown). NULL for native and Hugging Face. */
const char *ckpt_writer(const struct ckpt *c);
int ckpt_writer_ranks(const struct ckpt *c);
/* What was found but cannot be used, and why: one line to print; or NULL. */
const char *ckpt_note(const struct ckpt *c);
const struct ckpt_state *ckpt_state(const struct ckpt *c);
/* "STEP-DIGEST" of a checkpoint that pshare serves, unless it comes through a cache; "" for others. */
const char *ckpt_version(const struct ckpt *c);
/* All degrees 1 where the files do not store a layout. */
const struct ckpt_layout *ckpt_layout(const struct ckpt *c);
/* The text of config.json, or NULL. */
const char *ckpt_config_json(const struct ckpt *c);

/* Small files beside the weights (tokenizer.json, generation_config.json, …): their number, their names, and
 * the bytes of one of them, which the caller frees. */
int ckpt_n_extra(const struct ckpt *c);
const char *ckpt_extra_name(const struct ckpt *c, int i);
int ckpt_extra_read(const struct ckpt *c, int i, void **data, size_t *bytes, struct err *e);

/* ---- tensors ---- */

/* Tensors are numbered from 0, sorted by role and name (bytewise). ckpt_find: the number, or -1. */
int ckpt_n_tensors(const struct ckpt *c);
const struct ckpt_tensor *ckpt_tensor(const struct ckpt *c, int i);
int ckpt_find(const struct ckpt *c, enum ckpt_role role, const char *name);
/* A hash of what is listed: roles, names, dtypes, shapes, and which tensors have a digest. Ranks of several
 * machines compare it: they may have opened folders that differ. */
uint64_t ckpt_list_hash(const struct ckpt *c);
#define CKPT_DIFFERS "its tensors are not those that the first rank has read: is it the same on all machines"

/* Reads box b of tensor i into dst: row-major, contiguous, in the tensor's own dtype. Reads only the bytes
 * that it needs, in whole checksum blocks where the file has them, and checks those. ERR_INTEGRITY names the
 * file and the bytes. ERR_USAGE: elements of 4 or 6 bits, and the box does not begin and end at bytes. */
int ckpt_read(struct ckpt *c, int i, const struct box *b, void *dst, struct err *e);
/* The same for the element range [lo, hi) of the row-major order of box b. */
int ckpt_read_range(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, void *dst,
                    struct err *e);
/* The same without checking checksums first, for a caller that reads every element at most once, and calls
 * ckpt_check_rest (ckpt_proof.h) and, for a native checkpoint, compares the digest of the whole tensor before
 * it uses anything. A CRC-32 of a record is computed from what passes. */
int ckpt_read_unproven(struct ckpt *c, int i, const struct box *b, int64_t lo, int64_t hi, void *dst,
                       struct err *e);
/* Where neighbouring rows of a tensor lie in a file of this machine, as they are used: an element behind the
 * other, in the tensor's own dtype. */
struct ckpt_place {
    const char *path; /* of the file; borrowed */
    int64_t file_bytes;
    int64_t offset;    /* byte of the first row's first element */
    int64_t row_bytes; /* from a row to the next one */
    int64_t rows;
};
/* Finds rows of box b of tensor i from row `first` on: as many of them as lie in one piece of a file. A row
 * is what the box has of the last dim; dims before the last two have the extent 1; a vector is one row. Reads
 * nothing and checks no checksum. Returns 1; 0 when they do not lie so: compressed, at a URL, computed, or a
 * row in several pieces. */
int ckpt_locate(const struct ckpt *c, int i, const struct box *b, int64_t first, struct ckpt_place *p);
/* Bytes read from files so far. */
int64_t ckpt_bytes_read(const struct ckpt *c);

/* ---- checkpoints at a URL ---- */

/* A line to print about how it is read; or NULL. */
const char *ckpt_remark(const struct ckpt *c);
/* The cache folder that the files come through, as a number: processes with the same number share every byte.
 * 0: the checkpoint is on this machine's disks. */
uint64_t ckpt_cache(const struct ckpt *c);
/* 1: opened with ckpt_open_opts.unpublished. */
int ckpt_is_read_once(const struct ckpt *c);
/* 1: it is a pshare's of this machine, whose own files were opened (ckpt_open_opts.in_memory). */
int ckpt_is_shared(const struct ckpt *c);
/* Bytes that this process has received over the network. */
int64_t ckpt_received(const struct ckpt *c);

#endif

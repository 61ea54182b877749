/* offload.h - masters and moments outside the device's memory: in two generations of files a rank
 * (--offload DIR), or in the host's memory beside a GPU (--offload cpu). ZeRO-Infinity: Rajbhandari et
 * al. 2021.
 *
 * An update reads generation A and writes generation B; when all of B is written it becomes A. So A stays
 * whole until then: an update that the norm of the gradients forbids is done again from A.
 *
 *     a file   [ piece | piece | ... ]     in the order of the walk, unit by unit
 *     a piece  [ masters | first moments | second moments ]   up to 1 Mi elements, each padded to 4 KiB
 *
 * On a CPU a thread walks over the pieces through three buffers: one is read, one computed, one written.
 * The update hides behind the backward pass, where the gradients are not expected to be clipped, and
 * behind the forward pass of the next step. On a GPU the thread of the device walks, and nothing is
 * hidden.
 *
 * The files are scratch of a run: a checkpoint never refers to them. They are removed at the end, and by
 * the next run with the same --out. */
#ifndef SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_H
#define SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_H

#include "base/log.h"
#include "comm/comm.h"
#include "train/zero/zero.h"

/* What --offload asks for on this device. */
enum offload_kind { OFFLOAD_NONE, OFFLOAD_HOST, OFFLOAD_FILES };
/* option: none, cpu or a folder. On a CPU device cpu asks for nothing. */
enum offload_kind offload_kind(const char *option, const char *device);

/* What is kept elsewhere. */
struct offload_what {
    enum offload_kind kind;
    int grad_levels;        /* files: partial sums of gradients too (zero_shard_levels); 0: memory has them */
    int64_t supers;         /* super-steps of a step, for offload_measure */
    int weights;            /* files: weights of stage 3 too */
    int64_t piece_elements; /* most of a piece, a multiple of 1024; 0: 1 Mi */
};

/* Bytes of a rank. */
struct offload_bytes {
    double files;   /* both generations */
    double buffers; /* of the host's memory, with files */
    double host;    /* states in the host's memory, without files */
    double grads;   /* likewise, with --offload-grads */
    double moved;   /* read and written in a step */
    double fetched; /* weights read in a step of one micro-batch */
};
/* What a rank of m will take and move; m may be from model_shape. */
void offload_measure(const struct model *m, int stage, const struct offload_what *what,
                     struct offload_bytes *out);

struct offload;
struct offload_spec {
    struct offload_what what;
    const char *dir, *out; /* the folder; --out, which names the run */
    int rank;
    struct comm *all; /* all ranks of the job */
};
/* Opens a store for the state of m, all 0. Borrows m and the spec's comm. ERR_SPACE: the disk is too
 * small, with the bytes needed and free. ERR_FILE: another run uses the files. ERR_MEMORY. Collective
 * over all ranks. */
int offload_open(struct offload **out, const struct model *m, int stage, const struct offload_spec *spec,
                 struct err *e);
/* Ends the thread and removes the files. NULL: nothing. Before zero_close(): the thread and reads under way
 * use its memory. */
void offload_close(struct offload *o);
/* For zero_open(). */
struct state_store *offload_store(struct offload *o);

/* What this rank's store did so far; zeroes in the host's memory. */
struct offload_count {
    int64_t updates;                   /* that are complete */
    int64_t read_bytes, written_bytes; /* in the last of them */
    int64_t side_bytes;                /* gradients and weights that training itself moved, in all */
    int64_t redone;                    /* updates that were begun ahead and undone */
    double disk_s, waited_s;           /* in which the disk worked, and in which training waited for it */
};
/* Only the thread that trains may call it. */
struct offload_count offload_count(struct offload *o);
/* "io_uring, past the page cache": for a line of the log. */
void offload_text(const struct offload *o, char out[80]);

#endif

/* offload_inputs.h - the inputs of layers that are computed again, in a file between forward and backward
 * (--recompute full with --offload-activations). A struct input_store (model/model.h): put copies into one of
 * two buffers and writes behind the computation, soon reads ahead of it. */
#ifndef SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_INPUTS_H
#define SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_INPUTS_H

#include "model/model.h"

/* How many there are: memories of micro-batches, units of the model, bytes of one input. */
struct inputs_shape {
    int works, units;
    size_t bytes;
};
/* Bytes of the file, and of the buffers in the host's memory. */
double inputs_file_bytes(const struct inputs_shape *s);
double inputs_buffer_bytes(const struct inputs_shape *s);

struct inputs;
/* Makes the file of this rank in the folder dir, with all its space; out: --out, which names the run. Borrows
 * d. ERR_SPACE, ERR_FILE, ERR_MEMORY. */
int inputs_open(struct inputs **out, struct dev *d, const struct inputs_shape *s, const char *dir,
                const char *run, int rank, struct err *e);
/* Removes the file. NULL: nothing. */
void inputs_close(struct inputs *x);
struct input_store *inputs_store(struct inputs *x);
int64_t inputs_moved(const struct inputs *x); /* bytes read and written so far */

#endif

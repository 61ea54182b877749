/* reload.h - other weights of the same model, read while the present ones serve, and then taken between two
 * steps, or dropped.
 *
 * Every call on all ranks, in the same order; between begin and end the ranks meet in reload_sync as often
 * as they like. Both weights are in memory from begin to swap or drop. */
#ifndef SHARDLINE_SERVE_WEIGHTS_RELOAD_H
#define SHARDLINE_SERVE_WEIGHTS_RELOAD_H

#include "serve/weights/background.h"
#include "serve/weights/model_info.h"
#include "serve/weights/reload_command.h"

struct reload {
    struct background background;
    int running; /* between begin and end */
    struct model_info *now, fresh;
    struct model beside; /* now's, on a CPU of its own: steps use the other */
    struct dev *host;
    struct err refused; /* before anything was read; code 0: it was not */
    char path[RELOAD_PATH_MAX];
    double begin_s;
};
/* n_here: ranks of this machine that do the same. Where the memory for both is not there it ends with
 * ERR_MEMORY before anything is read. */
void reload_begin(struct reload *r, struct model_info *now, const char *path, int n_here);
/* 1: it is over, 0: not yet, or an error of the transport. Collective over tp, as what follows. */
int reload_sync(struct reload *r, struct err *e);
/* 0: the new weights are there. An error (ERR_CONFIG: another model) is the same on all ranks, and nothing
 * has changed then. */
int reload_end(struct reload *r, struct err *e);
/* now gets the new weights; the old ones are gone. fingerprint: of the new ones, left alone where the bits
 * are not the contract's. */
void reload_swap(struct reload *r, char fingerprint[64]);
void reload_drop(struct reload *r);  /* nothing there: nothing done */
void reload_close(struct reload *r); /* at any time, alone; on zeroes too */

#endif

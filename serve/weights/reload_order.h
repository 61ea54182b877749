/* reload_order.h - what an operator, or a trainer that is followed, asks of a reload; and as the text of a
 * reload command. Plain data, any thread. */
#ifndef SHARDLINE_SERVE_WEIGHTS_RELOAD_ORDER_H
#define SHARDLINE_SERVE_WEIGHTS_RELOAD_ORDER_H

#include <stdint.h>
#include "serve/weights/reload_command.h"

/* What becomes of the sequences that run when new weights are there. */
enum reload_mode {
    RELOAD_KEEP, /* they go on: what they have is computed again with the new weights */
    RELOAD_WAIT, /* they end with the old weights first; requests that come meanwhile wait */
    RELOAD_ABORT /* they end now, with finish_reason "abort" */
};
#define RELOAD_VERSION_MAX ((int64_t)1 << 53)     /* JSON's readers keep whole numbers up to there */
#define RELOAD_ORDER_PATH (RELOAD_PATH_MAX - 128) /* bytes of a path or URL with its NUL */

struct reload_order {
    char path[RELOAD_ORDER_PATH];
    char digest[33]; /* the weights_digest that they must have; "": any */
    int64_t version; /* their name in answers; -1: the checkpoint's step, or, where other weights have that or
                      * a higher one now, one more than now */
    int live;        /* the checkpoint changes at its URL: it is read through memory, not the cache on disk */
    int quiet;       /* the engine logs nothing: the thread that ordered it does */
    enum reload_mode mode;
};

/* The word of a mode, and the mode of a word: -1 where there is none. */
const char *reload_mode_name(enum reload_mode m);
int reload_mode_find(const char *word);
/* The text of RELOAD_LOAD, and back; 0, or -1: text was not made by reload_order_write. The mode is no part
 * of it: it goes with RELOAD_SWAP. */
void reload_order_write(const struct reload_order *o, char text[RELOAD_PATH_MAX]);
int reload_order_read(struct reload_order *o, const char *text);

#endif

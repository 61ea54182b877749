/* delta_maker.h - deltas made by a thread of their own: a request does not wait for more than a moment, but
 * is told to come again. The one that was made last is kept, in memory. */
#ifndef SHARDLINE_SERVE_SHARE_DELTA_MAKER_H
#define SHARDLINE_SERVE_SHARE_DELTA_MAKER_H

#include "serve/share/versions.h"

struct delta_maker;
/* Starts the thread. ERR_MEMORY. */
int delta_maker_open(struct delta_maker **out, struct err *e);
/* Stops the thread, and a delta that it is making. NULL is allowed. */
void delta_maker_close(struct delta_maker *m);

enum delta_answer {
    DELTA_NONE,  /* there is no delta, or it would not be smaller than the files */
    DELTA_LATER, /* it is being made, or the thread is busy with another one */
    DELTA_READY
};
/* Asks for the delta that makes `to` of `from`, the version of step from_step (NULL: it is not there any
 * more, only a delta that was made before is found), and waits for at most wait_s seconds. DELTA_READY:
 * *file is it, open; the caller closes file->fd. Any thread. */
enum delta_answer delta_maker_get(struct delta_maker *m, int64_t from_step, struct version *from,
                                  struct version *to, double wait_s, struct share_file *file);

#endif

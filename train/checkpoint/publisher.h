/* publisher.h - --publish HOST:PORT: the weights after every N-th update as a version that other programs
 * read while training goes on. A version is a native checkpoint of the weights in memory (store/memory.h),
 * kept by the first process of the job, and served by a pshare beside it. */
#ifndef SHARDLINE_TRAIN_CHECKPOINT_PUBLISHER_H
#define SHARDLINE_TRAIN_CHECKPOINT_PUBLISHER_H

#include "train/log/runlog.h"
#include "train/work.h"

struct publish;

/* In the first process of the job, before it starts ranks: keeps versions from now on and starts a pshare for
 * them, which ends with this process. Returns when pshare is ready. ERR_USAGE: --publish is no HOST:PORT.
 * ERR_FILE: there is no pshare beside this program, or it does not start (its own line says why). */
int publish_serve(const struct train_opts *o, struct err *e);

/* ERR_USAGE: text is no HOST:PORT. */
int publish_check_address(const char *text, struct err *e);

/* Finds the process that keeps versions; where no launcher of ours started the job, rank 0 becomes it.
 * Collective. ERR_USAGE: a rank is on another machine. Borrows w and log. */
int publish_open(struct publish **out, const struct work *w, struct runlog *log, struct err *e);
/* Waits for a thread; a version that is not whole is dropped. NULL is allowed. */
void publish_close(struct publish *p);
/* The calls below are collective over the job; those with NULL do nothing.
 *
 * publish_start, between two updates: begins to make the weights as they are now version w->at.step, unless
 * there is a newer one (a restarted job). A thread copies them beside the next step, where they lie in the
 * host's memory and nothing else changes them (no --offload); else the version is there on return.
 * publish_release: before training changes weights: waits for the copy.
 * publish_wait: waits until the version is there.
 * A version that cannot be made is a line in the log, and training goes on. */
int publish_start(struct publish *p, struct err *e);
int publish_release(struct publish *p, struct err *e);
int publish_wait(struct publish *p, struct err *e);

#endif

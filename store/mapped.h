/* mapped.h - a local file as memory: read-only, one copy for all processes that map it (the page cache).
 *
 * The address of byte 0 is a multiple of 2 MiB, so that the kernel can map large folios of the page cache
 * with 2 MB entries. Such a file costs no more to read than anonymous memory; one in small pages costs up to
 * a third more.
 *
 * A byte that is gone (the file was cut, the disk fails) is a SIGBUS. In any open mapping it ends the process
 * with one line that names the file, and the exit status of ERR_FILE. A shared lock of the file is held while
 * it is mapped.
 *
 * Any thread may call these functions. */
#ifndef SHARDLINE_STORE_MAPPED_H
#define SHARDLINE_STORE_MAPPED_H

#include <signal.h>
#include <stdint.h>
#include "base/err.h"

struct mapped;

/* Maps all of a file. want_bytes: what the file must have at least; 0: anything. *out is owned by the caller.
 * ERR_FILE: it cannot be opened or mapped, or another process is writing it. ERR_FORMAT: it is shorter. */
int mapped_open(struct mapped **out, const char *path, int64_t want_bytes, struct err *e);
/* NULL: nothing. Nobody may read the memory any more. */
void mapped_close(struct mapped *m);

/* claim(arg): 1 when this process is to print the job's error line, 0 when another one has printed it. Set it
 * once ranks share an error line, and NULL before arg is freed. Without it every process prints its own line.
 * claim runs inside a signal's handler. */
void mapped_set_claim(int (*claim)(void *arg), void *arg);

/* The first byte of the file, and how many there are. */
const char *mapped_at(const struct mapped *m);
int64_t mapped_bytes(const struct mapped *m);

/* Brings [begin, end) into memory and into this process's page table. *stop (may be NULL) not 0: ends early.
 * ERR_FILE: the file was cut, or a block cannot be read. */
int mapped_populate(struct mapped *m, int64_t begin, int64_t end, const volatile sig_atomic_t *stop,
                    struct err *e);
/* Bytes that are mapped with 2 MB entries now. 0 with SHARDLINE_LARGE_FOLIOS=off. */
int64_t mapped_large_bytes(const struct mapped *m);
/* [begin, end) will not be read soon: takes it out of this process's page table. It can still be read. */
void mapped_drop(struct mapped *m, int64_t begin, int64_t end);

#endif

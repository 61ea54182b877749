/* segment.h - memory that the ranks of one machine share.
 *
 *   [ board | the transport's first block | region of rank 0 | region of rank 1 | … ]     one memfd, mapped
 *   by all
 *
 * A region is as large as the machine's memory: address space costs nothing, pages come at first touch. Only
 * its own rank allocates in a region (lists are private), everybody reads and writes there. Memory is not
 * tied to a name in the file
 * system: nothing stays behind, however the ranks end. Ranks map the segment at different addresses, so what
 * they tell each other are offsets. */
#ifndef SHARDLINE_COMM_SEGMENT_H
#define SHARDLINE_COMM_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "comm/failure_board.h"

#define SEGMENT_NAME 64

/* off: from the base; bytes: as asked for */
struct extent {
    size_t off, size, bytes;
    int used;
    enum mem_cat cat;
};

struct segment {
    char *base;
    size_t bytes;
    size_t region, region_bytes; /* of this rank, offset from the base */
    struct extent *extent;       /* of the region, in order, without gaps */
    int n_extents, capacity;
    struct failure_board *board; /* == base */
    struct mem *mem;
    int fd; /* -1 once everybody has it */
};

/* How large a segment for n_ranks is: head bytes (board and the transport's block), then n_ranks regions (0
 * when !regions). */
size_t segment_size(size_t head_bytes, int n_ranks, int regions);
/* The first rank makes it; the others open it through /proc/PID/fd/FD, or by name where process ids are not
 * shared. */
int segment_create(struct segment *s, size_t bytes, const char *name, struct err *e);
int segment_open_fd(struct segment *s, size_t bytes, int pid, int fd, struct err *e);
int segment_open_name(struct segment *s, size_t bytes, const char *name, struct err *e);
/* Region `rank` of n_ranks is mine from now on. */
int segment_take_region(struct segment *s, size_t head_bytes, int rank, struct mem *mem, struct err *e);
void segment_close_fd(struct segment *s);
void segment_close(struct segment *s);

/* Zeroed, 64-byte aligned (2 MiB and more: 2 MiB aligned). NULL: none left. */
void *segment_alloc(struct segment *s, enum mem_cat cat, size_t bytes);
void segment_free(struct segment *s, void *p);
/* Offset of p, or -1 when bytes at p do not lie in my region. */
int64_t segment_offset(const struct segment *s, const void *p, size_t bytes);

#endif

/* segment.h - memory that the ranks of one machine share.
 *
 *   [ failure board | first block of the transport | region of rank 0 | region of rank 1 | … ]
 *
 * It is one memfd, which all ranks map. A region is as large as the machine's memory: address space costs
 * nothing, pages come at first touch. Only its own rank allocates in a region, every rank reads and writes
 * there. The memory has no name in the file system, so nothing stays behind, however the ranks end. Ranks map
 * the segment at different addresses, so they exchange offsets. One thread of a rank calls these
 * functions. */
#ifndef SHARDLINE_COMM_SEGMENT_H
#define SHARDLINE_COMM_SEGMENT_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/mem.h"
#include "comm/failure_board.h"

#define SEGMENT_NAME 64 /* bytes of a name, with its NUL */

/* A piece of a region, free or used. */
struct extent {
    size_t off;   /* from the base */
    size_t size;  /* of the piece */
    size_t bytes; /* that were asked for */
    int used;
    enum mem_cat cat;
};

struct segment {
    char *base;
    size_t bytes;
    size_t region, region_bytes; /* of this rank; region: offset from the base */
    struct extent *extent;       /* of the region, in order, without gaps */
    int n_extents, capacity;
    struct failure_board *board; /* == base */
    struct mem *mem;
    int fd; /* -1 once all ranks have mapped it */
};

/* Size of a segment: head_bytes (board and the transport's block), then a region for each of n_ranks when
 * regions is 1. */
size_t segment_size(size_t head_bytes, int n_ranks, int regions);

/* Creates a segment, in the first rank of a machine. name NULL: a memfd without a name. */
int segment_create(struct segment *s, size_t bytes, const char *name, struct err *e);

/* Maps the segment of another process through /proc/PID/fd/FD. */
int segment_open_fd(struct segment *s, size_t bytes, int pid, int fd, struct err *e);

/* Maps a segment by name, where ranks do not share process ids. */
int segment_open_name(struct segment *s, size_t bytes, const char *name, struct err *e);

/* Makes region `rank` the one in which this rank allocates. mem (borrowed) counts it. */
int segment_take_region(struct segment *s, size_t head_bytes, int rank, struct mem *mem, struct err *e);

/* Closes the descriptor; the mapping stays. */
void segment_close_fd(struct segment *s);

/* Unmaps the segment. */
void segment_close(struct segment *s);

/* Allocates in this rank's region: zeroed, 64-byte aligned, from 2 MiB up 2 MiB aligned. NULL: out of
 * memory. */
void *segment_alloc(struct segment *s, enum mem_cat cat, size_t bytes);

/* Frees memory of segment_alloc; NULL is allowed. */
void segment_free(struct segment *s, void *p);

/* Offset of p from the base; -1 when the bytes at p do not lie in this rank's region. */
int64_t segment_offset(const struct segment *s, const void *p, size_t bytes);

#endif

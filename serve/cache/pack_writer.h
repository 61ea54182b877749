/* pack_writer.h - puts the weights that are served into the folder of --cache, beside serving. A thread waits
 * until the source's files have been left alone for CACHE_QUIET_NS, and starts `reshard --format serve` at a
 * low priority, which proves what it writes. A failure is one line of the log and nothing else. */
#ifndef SHARDLINE_SERVE_CACHE_PACK_WRITER_H
#define SHARDLINE_SERVE_CACHE_PACK_WRITER_H

#include "base/log.h"
#include "base/pool.h"
#include "serve/cache/pack_cache.h"

struct cache_write;
struct cache_order {
    const struct cache *cache;
    const char *source;     /* as the user named it */
    struct cache_mark mark; /* of source, made before its tables were read */
    const char
        *dequantize; /* the dtype of the values of quantised weights, "bf16"; NULL: they are not quantised */
    int64_t bytes;   /* of the weights */
};
/* Starts the thread. The order's pointers are borrowed until cache_write_close. pool: whose threads may be
 * bound to CPUs, which this one is not. ERR_MEMORY. */
int cache_write_open(struct cache_write **out, const struct cache_order *o, const struct log *log,
                     const struct pool *pool, struct err *e);
/* Ends it: what is not whole is given up. NULL: nothing. */
void cache_write_close(struct cache_write *w);

#endif

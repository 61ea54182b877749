/* remote_list.h - private to the room: a checkpoint at a URL opened through the cache of store/url_cache.h:
 * which files it has, and what of them is read at once. */
#ifndef SHARDLINE_FORMAT_REMOTE_REMOTE_LIST_H
#define SHARDLINE_FORMAT_REMOTE_REMOTE_LIST_H

#include "format/ckpt.h"
#include "store/url_cache.h"

/* Opens the checkpoint at url, a folder or a file (.safetensors, .gguf, .bin, .pt, .pth, .ckpt), and asks
 * for its tables and headers: the folder on this machine (url_cache_path) then has its small files whole,
 * and its large ones with their length. dir: see struct url_cache_opts. how: the caller's, unpublished,
 * in_memory, stop and with_cards are used. */
int remote_open(struct url_cache **out, const char *url, const char *dir, const struct ckpt_open_opts *how,
                struct err *e);

/* versioned.c: opens the newest version at a URL without a path, where a pshare serves it: fills c->live,
 * live_version and memory. 1: done; 0: the URL is of another kind, nothing has been filled. */
int live_open(struct ckpt *c, const char *url, const struct ckpt_open_opts *how, struct err *e);
/* Reads bytes of a file of that version. ERR_INTEGRITY: the server has another version by now. */
int live_read(struct ckpt *c, const char *name, void *dst, int64_t n, int64_t off, struct err *e);

/* Lists the files of a folder of another framework. 1: it is one, 0: it is not. */
int remote_foreign(struct url_cache *c, struct err *e);
/* Adds a large file that a table of the checkpoint names. ERR_FILE: the server does not have it. */
int remote_large(struct url_cache *c, const char *name, struct err *e);

/* Lists a GGUF file, and the others of its split set. */
int gguf_list(struct url_cache *c, const char *name, struct err *e);
/* Makes the header of a GGUF file present. */
int gguf_prepare(struct url_cache *c, const char *name, int64_t bytes, struct err *e);

#endif

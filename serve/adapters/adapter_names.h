/* adapter_names.h - the adapters (LoRA) that requests may name as their model: those of --lora, and those
 * that an operator has loaded. In the process that speaks HTTP.
 *
 *     reserved -> published -> withdrawn -> unused -> forgotten
 *
 * An adapter has a slot, the number under which all ranks know it. While requests use a withdrawn adapter it
 * keeps its slot, and another one may get its name: a request ends with the adapter that it began with. Any
 * thread may call these functions. */
#ifndef SHARDLINE_SERVE_ADAPTERS_ADAPTER_NAMES_H
#define SHARDLINE_SERVE_ADAPTERS_ADAPTER_NAMES_H

#include "serve/adapters/adapter_limits.h"
#include "serve/api/json_out.h"
#include "serve/service.h"

struct adapter_names;
/* What is known of an adapter: constant from its publication until it is forgotten. */
struct adapter_name {
    char name[ADAPTER_NAME_MAX + 1];
    char digest[ADAPTER_DIGEST_MAX]; /* of its tensors and factors */
    char *path;
    int32_t slot;    /* 1 … ADAPTERS_MAX */
    int64_t created; /* seconds since 1970 */

    /* guarded by the table's lock: */
    enum { ADAPTER_RESERVED, ADAPTER_PUBLISHED, ADAPTER_WITHDRAWN, ADAPTER_UNUSED } state;
    int64_t refs; /* requests */
    struct adapter_names *table;
    struct adapter_name *next;
};

/* An empty table beside the model `base` (borrowed); ERR_MEMORY. close: nothing uses it any more; NULL is
 * fine. */
int adapter_names_open(struct adapter_names **t, const char *base, struct err *e);
void adapter_names_close(struct adapter_names *t);

/* The published adapter of that name, with one reference; NULL: there is none, or t is NULL. */
struct adapter_name *adapter_names_find(struct adapter_names *t, const char *name);
/* 1: a request may name it: the model itself, or one of sv's adapters. */
int adapter_names_serve(const struct service *sv, const char *name);
/* The 404 of a request for a name that is none of these: it lists those that there are. Returns -1. */
int adapter_names_unknown(const struct service *sv, const char *name, struct fault *f);
/* One reference less; NULL is fine. */
void adapter_name_release(struct adapter_name *a);

/* A slot for an adapter that will be loaded. replaces: its name may be that of a published one. 0, or -1 with
 * *f: a name that it cannot have (400), no slot (400), no memory (503). */
int adapter_names_reserve(struct adapter_names *t, const char *name, const char *path, int replaces,
                          struct adapter_name **out, struct fault *f);
/* It is loaded: requests may name it; a published one of that name is withdrawn. */
void adapter_names_publish(struct adapter_name *a, const char *digest);
/* Takes a name away. 0, or -1 with *f (404). */
int adapter_names_withdraw(struct adapter_names *t, const char *name, struct fault *f);
/* Waits for a withdrawn adapter that no request uses; NULL: adapter_names_end() was called. */
struct adapter_name *adapter_names_wait_unused(struct adapter_names *t);
void adapter_names_end(struct adapter_names *t);
/* Frees one that is reserved or unused: its slot is free. */
void adapter_names_forget(struct adapter_name *a);

/* Calls fn with every published adapter, sorted by name. */
void adapter_names_each(struct adapter_names *t, void (*fn)(void *arg, const struct adapter_name *a),
                        void *arg);
/* Appends the names of the slots in a set of bits (bit 0: slot 1), with commas between them. */
void adapter_names_write(struct adapter_names *t, const uint64_t bits[ADAPTERS_MAX / 64], struct json_out *o);
/* 1: an adapter was published at some time. */
int adapter_names_were_used(struct adapter_names *t);

#endif

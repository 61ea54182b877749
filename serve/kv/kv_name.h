/* kv_name.h - names of pages, and orders about them. */
#ifndef SHARDLINE_SERVE_KV_KV_NAME_H
#define SHARDLINE_SERVE_KV_KV_NAME_H

#include "model/config.h"
#include "serve/kv/kv_files.h"

/* What a step message carries of pages: KV_ORDER_WORDS words each. */
enum kv_deed { KV_SAVE, KV_LOAD };
struct kv_order {
    int32_t deed, group, page;
    uint32_t name[4];
};
#define KV_ORDER_WORDS 7
struct kv_orders {
    struct kv_order *order;
    int64_t n, cap;
};
/* Appends an order; one that memory does not hold is left out. Returns its place, -1: it was left out. */
int64_t kv_orders_add(struct kv_orders *o, enum kv_deed deed, int group, int32_t page, struct kv_key name);
void kv_orders_free(struct kv_orders *o);
static inline struct kv_key kv_order_name(const struct kv_order *o)
{
    return (struct kv_key){ { o->name[0] | (uint64_t)o->name[1] << 32,
                              o->name[2] | (uint64_t)o->name[3] << 32 } };
}

/* What every name begins with: `what` (the fingerprint, which names weights, arithmetic and kind of storage),
 * the shapes and constants of the model, the device where its bits are not the CPU's. */
struct kv_key kv_name_root(const char *what, const struct model_config *c, const char *device);
/* The name in front of a sequence's first page: the root, and the salt (an adapter's digest, cache_salt;
 * NULL: none). */
struct kv_key kv_name_first(struct kv_key root, const char *salt);
/* The name of a page of KV_PAGE tokens behind the one called `before`. */
struct kv_key kv_name_next(struct kv_key before, const int32_t *ids);

#endif

/* kv_name.c - see kv_name.h. */
#include "serve/kv/kv_name.h"

#include <stdlib.h>
#include <string.h>
#include "model/family.h"
#include "serve/kv/prefix.h"
#include "store/sha256.h"

int64_t kv_orders_add(struct kv_orders *o, enum kv_deed deed, int group, int32_t page, struct kv_key name)
{
    if (o->n == o->cap) {
        int64_t cap = 2 * o->cap + 64;
        struct kv_order *more = realloc(o->order, sizeof *more * (size_t)cap);
        if (!more)
            return -1;
        o->order = more;
        o->cap = cap;
    }
    o->order[o->n] = (struct kv_order){ deed,
                                        group,
                                        page,
                                        { (uint32_t)name.w[0], (uint32_t)(name.w[0] >> 32),
                                          (uint32_t)name.w[1], (uint32_t)(name.w[1] >> 32) } };
    return o->n++;
}

void kv_orders_free(struct kv_orders *o)
{
    free(o->order);
    *o = (struct kv_orders){ 0 };
}

static struct kv_key end(struct sha256 *s)
{
    unsigned char sum[32];
    struct kv_key key;
    sha256_end(s, sum);
    memcpy(&key, sum, sizeof key);
    return key;
}

struct kv_key kv_name_root(const char *what, const struct model_config *c, const char *device)
{
    struct model_config plain = *c; /* zeroed when it was read, so its padding is equal, too */
    struct sha256 s;
    plain.family = NULL;
    memset(plain.not_computed, 0, sizeof plain.not_computed);
    memset(plain.not_trained, 0, sizeof plain.not_trained);
    sha256_start(&s);
    sha256_add(&s, "kv-page-1", 10);
    sha256_add(&s, what, strlen(what) + 1);
    sha256_add(&s, device, strlen(device) + 1);
    sha256_add(&s, c->family->name, strlen(c->family->name) + 1);
    sha256_add(&s, &plain, sizeof plain);
    return end(&s);
}

struct kv_key kv_name_first(struct kv_key root, const char *salt)
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, &root, sizeof root);
    if (salt)
        sha256_add(&s, salt, strlen(salt) + 1);
    return end(&s);
}

struct kv_key kv_name_next(struct kv_key before, const int32_t *ids)
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, &before, sizeof before);
    sha256_add(&s, ids, sizeof *ids * PREFIX_PAGE);
    return end(&s);
}

/* body_budget.h - the memory that bodies of requests may hold until they are parsed: a limit for all of them,
 * and one for each client (a key, an address).
 *
 * Only bytes that have arrived count: a client that declares a long body and sends nothing holds nothing.
 * The first BODY_FREE bytes of every body are taken even where the budget is used up, so that long bodies do
 * not stop short requests; the number of connections limits them. */
#ifndef SHARDLINE_SERVE_HTTP_BODY_BUDGET_H
#define SHARDLINE_SERVE_HTTP_BODY_BUDGET_H

#include <stdatomic.h>
#include "serve/service.h"

#define BODY_FREE ((int64_t)16 << 10)

struct body_share { /* of a client, or of all */
    _Atomic int64_t held;
};
struct body_budget {
    int64_t max; /* bytes of all bodies; 0: no limit. A client may hold half of it */
    struct body_share all;
};
/* The address and the key that a body counts against; NULL: none. */
struct body_owner {
    struct body_share *address, *key;
};

/* Bytes that the bodies of one client may hold. */
int64_t body_budget_share(const struct body_budget *b);
/* May a body that holds `held` bytes have n more? 0, or -1 with *f (503: all bodies together are at the
 * limit; 429: those of this client are). The library's thread. */
int body_budget_check(const struct body_budget *b, struct body_owner who, int64_t held, int64_t n,
                      struct fault *f);
/* Adds n bytes (below 0: takes them away). Any thread. */
void body_budget_add(struct body_budget *b, struct body_owner who, int64_t n);

#endif

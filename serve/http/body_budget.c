/* body_budget.c - see body_budget.h. */
#include "serve/http/body_budget.h"

int64_t body_budget_share(const struct body_budget *b)
{
    if (!b->max)
        return INT64_MAX;
    return b->max / 2 > BODY_FREE ? b->max / 2 : BODY_FREE;
}

/* Does the share hold more than limit bytes when n are added? */
static int is_over(const struct body_share *s, int64_t n, int64_t limit)
{
    return s && atomic_load(&s->held) > limit - n;
}

int body_budget_check(const struct body_budget *b, struct body_owner who, int64_t held, int64_t n,
                      struct fault *f)
{
    int64_t share = body_budget_share(b);

    if (!b->max || held + n <= BODY_FREE)
        return 0;
    if (is_over(&b->all, n, b->max))
        return fault_set(f, 503, NULL,
                         "the requests that are arriving hold %lld of %lld KiB (--max-body-memory), this one "
                         "needs %lld more: try again later",
                         (long long)atomic_load(&b->all.held) >> 10, (long long)b->max >> 10,
                         (long long)(n + 1023) >> 10);
    if (is_over(who.key, n, share) || is_over(who.address, n, share))
        return fault_set(f, 429, NULL,
                         "the requests of this %s that are arriving may hold %lld KiB (half of "
                         "--max-body-memory), this one needs %lld more: send fewer at a time",
                         is_over(who.key, n, share) ? "key" : "address", (long long)share >> 10,
                         (long long)(n + 1023) >> 10);
    return 0;
}

void body_budget_add(struct body_budget *b, struct body_owner who, int64_t n)
{
    struct body_share *share[] = { &b->all, who.address, who.key };
    for (size_t i = 0; i < sizeof share / sizeof share[0]; i++)
        if (share[i])
            atomic_fetch_add(&share[i]->held, n);
}

/* router.c - see router.h. */
#include "serve/replicas/router.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "serve/kv/kv.h"

int router_open(struct router *rt, int n, struct err *e)
{
    memset(rt, 0, sizeof *rt);
    rt->replica = calloc((size_t)n, sizeof *rt->replica);
    rt->page = calloc(ROUTER_PAGES, sizeof *rt->page);
    if (!rt->replica || !rt->page) {
        free(rt->replica);
        free(rt->page);
        memset(rt, 0, sizeof *rt);
        return err_set(e, ERR_MEMORY, "no memory for %d replicas", n);
    }

    rt->n = n;
    pthread_mutex_init(&rt->lock, NULL);
    pthread_mutex_init(&rt->commands, NULL);
    for (int i = 0; i < n; i++) {
        inbox_open(&rt->replica[i].inbox);
        reload_command_open(&rt->replica[i].reload_command);
    }

    return 0;
}

void router_close(struct router *rt)
{
    for (int i = 0; i < rt->n; i++) {
        inbox_close(&rt->replica[i].inbox);
        reload_command_close(&rt->replica[i].reload_command);
    }
    if (rt->n) {
        pthread_mutex_destroy(&rt->lock);
        pthread_mutex_destroy(&rt->commands);
    }
    free(rt->replica);
    free(rt->page);
    memset(rt, 0, sizeof *rt);
}

static int64_t live(const struct replica *l) { return atomic_load(&l->inbox.n_live); }

/* The replica with the fewest live requests; of equal ones another one each time. Under rt->lock. */
static int idlest(struct router *rt)
{
    int best = rt->next++ % rt->n;
    for (int i = 0; i < rt->n; i++) {
        int k = (best + i) % rt->n;
        if (live(&rt->replica[k]) < live(&rt->replica[best]))
            best = k;
    }
    return best;
}

/* Hash of a page: its tokens, those before it, the salt; never 0. */
static uint64_t chain_of(uint64_t before, const int32_t *ids)
{
    return XXH3_64bits_withSeed(ids, sizeof *ids * KV_PAGE, before) | 1;
}

/* The chain before the first page of a request. */
static uint64_t chain_begin(const struct request *rq)
{
    return rq->cache_key ? XXH3_64bits(rq->cache_key, strlen(rq->cache_key)) : 0;
}

int router_choose(struct router *rt, const struct request *rq)
{
    int64_t n = rq->n_prompts ? rq->prompt[0].n / KV_PAGE : 0;
    uint64_t chain = chain_begin(rq);
    int known = -1;

    if (rt->n == 1)
        return 0;

    /* the replica that has the longest beginning */
    pthread_mutex_lock(&rt->lock);
    for (int64_t i = 0; i < n; i++) {
        chain = chain_of(chain, rq->prompt[0].ids + i * KV_PAGE);
        if (rt->page[chain % ROUTER_PAGES].chain != chain)
            break;
        known = rt->page[chain % ROUTER_PAGES].replica;
    }

    int replica = idlest(rt);
    if (known >= 0 && live(&rt->replica[known]) <= live(&rt->replica[replica]) + ROUTER_SLACK)
        replica = known;

    chain = chain_begin(rq);
    for (int64_t i = 0; i < n; i++) {
        chain = chain_of(chain, rq->prompt[0].ids + i * KV_PAGE);
        rt->page[chain % ROUTER_PAGES].chain = chain;
        rt->page[chain % ROUTER_PAGES].replica = replica;
    }

    pthread_mutex_unlock(&rt->lock);
    return replica;
}

int router_put(struct router *rt, struct request *rq)
{
    return inbox_put(&rt->replica[router_choose(rt, rq)].inbox, rq);
}

int router_command(struct router *rt, enum reload_op what, const char *text, char answer[64], struct fault *f)
{
    struct fault one;
    int rc = 0;
    pthread_mutex_lock(&rt->commands);
    if (rt->ends) {
        pthread_mutex_unlock(&rt->commands);
        return fault_set(f, 503, NULL, "the server is stopping");
    }
    for (int i = 0; i < rt->n; i++) {
        reload_command_post(&rt->replica[i].reload_command, what, text);
        inbox_wake(&rt->replica[i].inbox);
    }
    for (int i = 0; i < rt->n; i++)
        if (reload_command_wait(&rt->replica[i].reload_command, answer, &one) < 0 && rc == 0) {
            *f = one;
            rc = -1;
        }
    pthread_mutex_unlock(&rt->commands);
    return rc;
}

int router_resume_others(struct router *rt)
{
    if (pthread_mutex_trylock(&rt->commands) != 0)
        return 0;
    rt->ends = 1;
    for (int i = 1; i < rt->n; i++) {
        reload_command_post(&rt->replica[i].reload_command, RELOAD_RESUME, "");
        inbox_wake(&rt->replica[i].inbox);
    }
    pthread_mutex_unlock(&rt->commands);
    return 1;
}

int64_t router_live(const struct router *rt)
{
    int64_t n = 0;
    for (int i = 0; i < rt->n; i++)
        n += live(&rt->replica[i]);
    return n;
}

int64_t router_live_tokens(const struct router *rt)
{
    int64_t n = 0;
    for (int i = 0; i < rt->n; i++)
        n += atomic_load(&rt->replica[i].inbox.n_live_tokens);
    return n;
}

int router_stop(struct router *rt, int force)
{
    int stop = 1;

    /* all locks at once, so that no request is accepted between looking and closing */
    for (int i = 0; i < rt->n; i++)
        pthread_mutex_lock(&rt->replica[i].inbox.lock);
    for (int i = 0; i < rt->n; i++)
        stop &= force || (!rt->replica[i].inbox.first && !live(&rt->replica[i]));
    for (int i = 0; i < rt->n; i++) {
        rt->replica[i].inbox.closed |= stop;
        pthread_mutex_unlock(&rt->replica[i].inbox.lock);
    }
    return stop;
}

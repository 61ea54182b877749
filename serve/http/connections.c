/* connections.c - see connections.h. */
#include "serve/http/connections.h"

#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"

#define CHECKS 8        /* of the deadlines, in the time of the limit */
#define CHECK_MAX_S 1.0 /* between two of them at most */

/* ---- queues; with the lock held ---- */

static void queue_remove(struct connection *c)
{
    if (!c->queue)
        return;
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    else
        c->queue->end = c->at;
    c->queue = NULL;
}

/* Puts c at the end of q; q NULL: into none. */
static void queue_move(struct connection *c, struct connection_queue *q)
{
    queue_remove(c);
    if (!q)
        return;
    c->queue = q;
    c->next = NULL;
    c->at = q->end;
    *q->end = c;
    q->end = &c->next;
}

/* ---- addresses; with the lock held ---- */

/* The address of a client as 16 bytes; other families than IPv4 and IPv6 are one client. */
static void address_bytes(const struct sockaddr *a, unsigned char bytes[16])
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)a;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)a;

    memset(bytes, 0, 16);
    if (a && a->sa_family == AF_INET6) {
        memcpy(bytes, &v6->sin6_addr, IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? 16 : 8);
    } else if (a && a->sa_family == AF_INET) {
        memset(bytes + 10, 0xff, 2);
        memcpy(bytes + 12, &v4->sin_addr, 4);
    }
}

/* Finds or adds the address, with one reference more; NULL: no memory. */
static struct address *address_get(struct connections *cs, const struct sockaddr *client)
{
    unsigned char bytes[16];
    struct address *a;

    address_bytes(client, bytes);
    for (a = cs->addresses; a && memcmp(a->bytes, bytes, sizeof bytes);)
        a = a->next;
    if (!a) {
        a = calloc(1, sizeof *a);
        if (!a)
            return NULL;
        memcpy(a->bytes, bytes, sizeof bytes);
        a->waiting.end = &a->waiting.first;
        a->next = cs->addresses;
        a->at = &cs->addresses;
        if (a->next)
            a->next->at = &a->next;
        cs->addresses = a;
    }
    a->n_refs++;
    return a;
}

static void address_release(struct address *a)
{
    if (--a->n_refs)
        return;
    *a->at = a->next;
    if (a->next)
        a->next->at = a->at;
    free(a);
}

/* ---- limits; with the lock held ---- */

/* Counts c, n = 1, or no longer, n = -1. */
static void count(struct connections *cs, struct connection *c, int n)
{
    if (c->is_extra) {
        cs->n_extra += n;
        return;
    }
    cs->n_open += n;
    c->address->n_open += n;
}

/* Shuts c down. */
static void cut(struct connections *cs, struct connection *c)
{
    queue_remove(c);
    count(cs, c, -1);
    c->is_cut = 1;
    metric_add(cs->metrics, COUNT_CONNECTIONS_CUT, 1);
    shutdown(c->fd, SHUT_RDWR);
}

/* The address with the most connections, of those with one that waits for its client; or NULL. */
static struct address *busiest(const struct connections *cs)
{
    struct address *most = NULL;
    for (struct address *a = cs->addresses; a; a = a->next)
        if (a->waiting.first && (!most || a->n_open > most->n_open))
            most = a;
    return most;
}

/* Counts a new connection; at a limit, cuts the one that has waited longest, or c is extra. */
static void admit(struct connections *cs, struct connection *c)
{
    const struct connection_limits *l = &cs->limits;
    struct address *from = NULL;
    int is_full = 1;

    if (l->max_per_address && c->address->n_open >= l->max_per_address)
        from = c->address;
    else if (cs->n_open >= l->max)
        from = busiest(cs);
    else
        is_full = 0;

    if (is_full && from && from->waiting.first)
        cut(cs, from->waiting.first);
    else
        c->is_extra = is_full;
    if (c->is_extra && cs->n_extra >= CONNECTIONS_EXTRA)
        cut(cs, cs->extra.first);
    count(cs, c, 1);
}

/* ---- the thread ---- */

/* Bytes that a connection has received; UINT64_MAX where the kernel does not count them. */
static uint64_t bytes_received(int fd)
{
    struct tcp_info t;
    socklen_t n = sizeof t;
    memset(&t, 0, sizeof t);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) < 0 ||
        n < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof t.tcpi_bytes_received)
        return UINT64_MAX;
    return t.tcpi_bytes_received;
}

/* Moves c to a state: its deadline, and its place in a queue. */
static void set(struct connections *cs, struct connection *c, enum connection_state state)
{
    const struct connection_limits *l = &cs->limits;

    c->state = state;
    c->until_s = INFINITY;
    if (state != CONNECTION_WORKING && l->receive_s > 0)
        c->until_s = clock_s() + l->receive_s + (state == CONNECTION_IDLE ? l->idle_s : 0);
    if (c->is_cut)
        return;
    if (c->is_extra)
        queue_move(c, &cs->extra);
    else
        queue_move(c, state == CONNECTION_WORKING ? NULL : &c->address->waiting);
}

/* Cuts connections off at their deadlines; notices requests that have begun. */
static void check(struct connections *cs, struct connection_queue *q, double now_s)
{
    struct connection *next;

    for (struct connection *c = q->first; c; c = next) {
        next = c->next;
        if (c->until_s <= now_s)
            cut(cs, c);
        else if (c->state == CONNECTION_IDLE && bytes_received(c->fd) > c->received)
            set(cs, c, CONNECTION_ARRIVING);
    }
}

static void *watch(void *arg)
{
    struct connections *cs = arg;
    double limit_s = cs->limits.receive_s;
    double each_s = limit_s / CHECKS < CHECK_MAX_S ? limit_s / CHECKS : CHECK_MAX_S;
    struct timespec t;

    pthread_mutex_lock(&cs->lock);
    while (!cs->is_closed) {
        t = clock_in((int64_t)(each_s * 1e9));
        pthread_cond_timedwait(&cs->ends, &cs->lock, &t);
        for (struct address *a = cs->addresses; a; a = a->next)
            check(cs, &a->waiting, clock_s());
        check(cs, &cs->extra, clock_s());
    }
    pthread_mutex_unlock(&cs->lock);
    return NULL;
}

/* ---- open and close ---- */

int connections_open(struct connections *cs, const struct connection_limits *limits, struct metrics *m,
                     struct err *e)
{
    pthread_condattr_t how;

    memset(cs, 0, sizeof *cs);
    cs->limits = *limits;
    cs->metrics = m;
    cs->extra.end = &cs->extra.first;
    pthread_mutex_init(&cs->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&cs->ends, &how);
    pthread_condattr_destroy(&how);
    if (limits->receive_s <= 0 || pthread_create(&cs->thread, NULL, watch, cs) == 0)
        return 0;
    pthread_mutex_destroy(&cs->lock);
    pthread_cond_destroy(&cs->ends);
    return err_set(e, ERR_MEMORY, "no thread for watching connections: raise the limit of processes");
}

void connections_close(struct connections *cs)
{
    pthread_mutex_lock(&cs->lock);
    cs->is_closed = 1;
    pthread_cond_signal(&cs->ends);
    pthread_mutex_unlock(&cs->lock);
    if (cs->limits.receive_s > 0)
        pthread_join(cs->thread, NULL);
    pthread_mutex_destroy(&cs->lock);
    pthread_cond_destroy(&cs->ends);
}

/* ---- a connection ---- */

struct connection *connection_open(struct connections *cs, int fd, const struct sockaddr *client)
{
    struct connection *c = calloc(1, sizeof *c);

    pthread_mutex_lock(&cs->lock);
    if (c)
        c->address = address_get(cs, client);
    if (c && c->address) {
        c->fd = fd;
        admit(cs, c);
        set(cs, c, CONNECTION_IDLE);
    }
    pthread_mutex_unlock(&cs->lock);
    if (c && c->address)
        return c;
    free(c);
    shutdown(fd, SHUT_RDWR);
    return NULL;
}

void connection_begin(struct connections *cs, struct connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    if (c->state != CONNECTION_ARRIVING) /* else the time of its first byte counts */
        set(cs, c, CONNECTION_ARRIVING);
    pthread_mutex_unlock(&cs->lock);
}

void connection_complete(struct connections *cs, struct connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    if (c->state != CONNECTION_WORKING)
        set(cs, c, CONNECTION_WORKING);
    pthread_mutex_unlock(&cs->lock);
}

void connection_answered(struct connections *cs, struct connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    c->received = bytes_received(c->fd);
    set(cs, c, CONNECTION_IDLE);
    pthread_mutex_unlock(&cs->lock);
}

void connection_closed(struct connections *cs, struct connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&cs->lock);
    queue_remove(c);
    if (!c->is_cut)
        count(cs, c, -1);
    address_release(c->address);
    pthread_mutex_unlock(&cs->lock);
    free(c);
}

/* response_store.c - see response_store.h. */
#include "serve/doors/response_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kept {
    struct kept *next; /* used longer ago */
    int key;
    char id[RESPONSE_ID_MAX];
    size_t n_answer, n_history; /* bytes, one behind the other: */
    char text[];
};
struct response_store {
    pthread_mutex_t lock;
    struct kept *first; /* the one used last */
    int64_t n, bytes, most, most_bytes;
    int64_t *held; /* [n_held]: bytes of each key's responses; [0]: of key -1, which is none */
    int n_held;
};

struct response_store *response_store_open(int64_t n, int64_t bytes)
{
    struct response_store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->most = n;
    s->most_bytes = bytes;
    return s;
}

void response_store_close(struct response_store *s)
{
    if (!s)
        return;
    while (s->first) {
        struct kept *next = s->first->next;
        free(s->first);
        s->first = next;
    }
    pthread_mutex_destroy(&s->lock);
    free(s->held);
    free(s);
}

static int64_t size_of(const struct kept *k) { return (int64_t)(sizeof *k + k->n_answer + k->n_history); }

static struct kept **find(struct response_store *s, int key, const char *id)
{
    struct kept **at = &s->first;
    while (*at && ((*at)->key != key || strcmp((*at)->id, id)))
        at = &(*at)->next;
    return at;
}

static struct kept *take_out(struct response_store *s, struct kept **at)
{
    struct kept *k = *at;
    *at = k->next;
    s->n--;
    s->bytes -= size_of(k);
    s->held[k->key + 1] -= size_of(k);
    return k;
}

static void put_first(struct response_store *s, struct kept *k)
{
    k->next = s->first;
    s->first = k;
    s->n++;
    s->bytes += size_of(k);
    s->held[k->key + 1] += size_of(k);
}

/* Makes a place for the key's bytes. -1: no memory. */
static int know_key(struct response_store *s, int key)
{
    int n = key + 2;
    int64_t *held = n > s->n_held ? realloc(s->held, (size_t)n * sizeof *held) : s->held;
    if (!held)
        return -1;
    s->held = held;
    for (; s->n_held < n; s->n_held++)
        held[s->n_held] = 0;
    return 0;
}

/* Frees the oldest response of the key that holds most. */
static void drop_one(struct response_store *s)
{
    struct kept **oldest = NULL;
    int most = 0;

    for (int i = 1; i < s->n_held; i++)
        most = s->held[i] > s->held[most] ? i : most;
    for (struct kept **at = &s->first; *at; at = &(*at)->next)
        if ((*at)->key + 1 == most)
            oldest = at;
    free(take_out(s, oldest));
}

void response_store_put(struct response_store *s, int key, const char *id, const struct json_out *answer,
                        const char *history)
{
    size_t n_history = history ? strlen(history) : 0;
    struct kept *k = s ? malloc(sizeof *k + answer->n + n_history) : NULL;

    if (!k || (int64_t)(sizeof *k + answer->n + n_history) > s->most_bytes) {
        free(k);
        return;
    }
    k->key = key;
    snprintf(k->id, sizeof k->id, "%s", id);
    k->n_answer = answer->n;
    k->n_history = n_history;
    memcpy(k->text, answer->p, answer->n);
    if (n_history)
        memcpy(k->text + answer->n, history, n_history);

    pthread_mutex_lock(&s->lock);
    if (know_key(s, key) < 0) {
        pthread_mutex_unlock(&s->lock);
        free(k);
        return;
    }
    struct kept **old = find(s, key, id);
    if (*old)
        free(take_out(s, old));
    put_first(s, k);
    while (s->n > s->most || s->bytes > s->most_bytes)
        drop_one(s);
    pthread_mutex_unlock(&s->lock);
}

int response_store_get(struct response_store *s, int key, const char *id, struct json_out *answer,
                       struct json_out *history)
{
    if (!s)
        return 0;
    pthread_mutex_lock(&s->lock);
    struct kept **at = find(s, key, id), *k = *at;
    if (k) {
        put_first(s, take_out(s, at));
        json_out_bytes(answer, k->text, k->n_answer);
        if (history)
            json_out_bytes(history, k->text + k->n_answer, k->n_history);
    }
    pthread_mutex_unlock(&s->lock);
    return k != NULL;
}

int response_store_delete(struct response_store *s, int key, const char *id)
{
    if (!s)
        return 0;
    pthread_mutex_lock(&s->lock);
    struct kept **at = find(s, key, id), *k = *at;
    if (k)
        free(take_out(s, at));
    pthread_mutex_unlock(&s->lock);
    return k != NULL;
}

/* service.c - see service.h. */
#include "serve/service.h"

#include <stdio.h>

void served_set(struct served_weights *w, int64_t version, const char *digest)
{
    pthread_mutex_lock(&w->lock);
    w->version = version;
    snprintf(w->digest, sizeof w->digest, "%s", digest);
    pthread_mutex_unlock(&w->lock);
}

int64_t served_get(const struct served_weights *w, char digest[33])
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&w->lock;
    pthread_mutex_lock(lock);
    int64_t version = w->version;
    if (digest)
        snprintf(digest, sizeof w->digest, "%s", w->digest);
    pthread_mutex_unlock(lock);
    return version;
}

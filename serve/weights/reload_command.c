/* reload_command.c - see order.h. */
#include "serve/weights/reload_command.h"

#include <stdio.h>
#include <string.h>

void order_open(struct order *o)
{
    memset(o, 0, sizeof *o);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->answered, NULL);
}

void order_close(struct order *o)
{
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->answered);
}

void order_give(struct order *o, enum order_what what, const char *text)
{
    pthread_mutex_lock(&o->lock);
    o->what = what;
    snprintf(o->text, sizeof o->text, "%s", text);
    o->state = ORDER_GIVEN;
    memset(&o->fault, 0, sizeof o->fault);
    pthread_mutex_unlock(&o->lock);
}

int order_answered(struct order *o)
{
    pthread_mutex_lock(&o->lock);
    int there = o->state == ORDER_ANSWERED || o->closed;
    pthread_mutex_unlock(&o->lock);
    return there;
}

int order_wait(struct order *o, char fingerprint[64], struct fault *f)
{
    pthread_mutex_lock(&o->lock);
    while (o->state != ORDER_ANSWERED && !o->closed)
        pthread_cond_wait(&o->answered, &o->lock);
    if (o->state != ORDER_ANSWERED)
        fault_set(&o->fault, 503, NULL, "the server is stopping");
    o->state = ORDER_IDLE;
    *f = o->fault;
    snprintf(fingerprint, 64, "%s", o->fingerprint);
    pthread_mutex_unlock(&o->lock);
    return f->status ? -1 : 0;
}

enum order_what order_take(struct order *o, char text[ORDER_TEXT])
{
    enum order_what what = ORDER_NONE;
    pthread_mutex_lock(&o->lock);
    if (o->state == ORDER_GIVEN && !o->closed) {
        o->state = ORDER_TAKEN;
        what = o->what;
        memcpy(text, o->text, ORDER_TEXT);
    }
    pthread_mutex_unlock(&o->lock);
    return what;
}

void order_answer(struct order *o, const char *fingerprint, const struct fault *f)
{
    pthread_mutex_lock(&o->lock);
    if (f)
        o->fault = *f;
    snprintf(o->fingerprint, sizeof o->fingerprint, "%s", fingerprint);
    o->state = ORDER_ANSWERED;
    pthread_cond_signal(&o->answered);
    pthread_mutex_unlock(&o->lock);
}

void order_shut(struct order *o)
{
    pthread_mutex_lock(&o->lock);
    o->closed = 1;
    pthread_cond_broadcast(&o->answered);
    pthread_mutex_unlock(&o->lock);
}

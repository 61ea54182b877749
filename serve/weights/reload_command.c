/* reload_command.c - see reload_command.h. */
#include "serve/weights/reload_command.h"

#include <stdio.h>
#include <string.h>

void reload_command_open(struct reload_command *o)
{
    memset(o, 0, sizeof *o);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->answered, NULL);
}

void reload_command_close(struct reload_command *o)
{
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->answered);
}

void reload_command_post(struct reload_command *o, enum reload_op what, const char *text)
{
    pthread_mutex_lock(&o->lock);
    o->what = what;
    snprintf(o->text, sizeof o->text, "%s", text);
    o->state = COMMAND_POSTED;
    memset(&o->fault, 0, sizeof o->fault);
    pthread_mutex_unlock(&o->lock);
}

int reload_command_is_answered(struct reload_command *o)
{
    pthread_mutex_lock(&o->lock);
    int there = o->state == COMMAND_ANSWERED || o->closed;
    pthread_mutex_unlock(&o->lock);
    return there;
}

int reload_command_wait(struct reload_command *o, char fingerprint[64], struct fault *f)
{
    pthread_mutex_lock(&o->lock);
    while (o->state != COMMAND_ANSWERED && !o->closed)
        pthread_cond_wait(&o->answered, &o->lock);
    if (o->state != COMMAND_ANSWERED)
        fault_set(&o->fault, 503, NULL, "the server is stopping");
    o->state = COMMAND_IDLE;
    *f = o->fault;
    snprintf(fingerprint, 64, "%s", o->fingerprint);
    pthread_mutex_unlock(&o->lock);
    return f->status ? -1 : 0;
}

enum reload_op reload_command_take(struct reload_command *o, char text[RELOAD_PATH_MAX])
{
    enum reload_op what = RELOAD_NONE;
    pthread_mutex_lock(&o->lock);
    if (o->state == COMMAND_POSTED && !o->closed) {
        o->state = COMMAND_TAKEN;
        what = o->what;
        memcpy(text, o->text, RELOAD_PATH_MAX);
    }
    pthread_mutex_unlock(&o->lock);
    return what;
}

void reload_command_answer(struct reload_command *o, const char *fingerprint, const struct fault *f)
{
    pthread_mutex_lock(&o->lock);
    if (f)
        o->fault = *f;
    snprintf(o->fingerprint, sizeof o->fingerprint, "%s", fingerprint);
    o->state = COMMAND_ANSWERED;
    pthread_cond_signal(&o->answered);
    pthread_mutex_unlock(&o->lock);
}

void reload_command_disable(struct reload_command *o)
{
    pthread_mutex_lock(&o->lock);
    o->closed = 1;
    pthread_cond_broadcast(&o->answered);
    pthread_mutex_unlock(&o->lock);
}

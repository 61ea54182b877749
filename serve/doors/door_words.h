/* door_words.h - a fault of a chat, in the words of the form in which the request came: names of fields. */
#ifndef SHARDLINE_SERVE_DOORS_DOOR_WORDS_H
#define SHARDLINE_SERVE_DOORS_DOOR_WORDS_H

#include "serve/api/request.h"

/* Changes the param and the text of a fault. Of endpoints whose requests are no chat's it changes nothing. */
void door_own_words(enum endpoint endpoint, struct fault *f);

#endif

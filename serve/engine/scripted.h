/* scripted.h - answers that a test wrote instead of the model. */
#ifndef SHARDLINE_SERVE_ENGINE_SCRIPTED_H
#define SHARDLINE_SERVE_ENGINE_SCRIPTED_H

#include "serve/api/request.h"

/* The token of a choice behind position pos where SHARDLINE_ANSWER names a file (base/test_hooks.h): that of
 * the file's text, then an end token. The file is read anew for every token, so a test may change it between
 * two requests. -1: no file. Any thread. */
int32_t scripted_token(const struct choice *c, int64_t pos);

#endif

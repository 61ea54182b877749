/* peft_priv.h - private to format/peft/. */
#ifndef SHARDLINE_FORMAT_PEFT_PRIV_H
#define SHARDLINE_FORMAT_PEFT_PRIV_H

#include "format/peft.h"

/* The value of the first pattern of o that matches the name as PEFT matches it: re.match("(.*\\.)?(KEY)$").
 * *v NULL: none does. ERR_FORMAT: a pattern that is not understood here. */
int peft_pattern(const json_t *o, const char *name, const json_t **v, struct err *e);

#endif

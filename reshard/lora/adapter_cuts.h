/* adapter_cuts.h - private to reshard/: how an adapter is cut with its model. */
#ifndef SHARDLINE_RESHARD_ADAPTER_CUTS_H
#define SHARDLINE_RESHARD_ADAPTER_CUTS_H

#include "format/peft.h"

/* The cut table (cuts.h) of an adapter c, made from that of its base model, whose config.json this is. 1:
 * *text is the table, which the caller frees. 0: nothing is known of that model; *e says so. what: name of
 * the config, for messages. ERR_FORMAT: the adapter is damaged. */
int adapter_cuts(struct ckpt *c, const char *config, const char *what, char **text, struct err *e);

#endif

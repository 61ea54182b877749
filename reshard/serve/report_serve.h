/* report_serve.h - private to reshard/: what `reshard inspect` says of packs. */
#ifndef SHARDLINE_RESHARD_REPORT_SERVE_H
#define SHARDLINE_RESHARD_REPORT_SERVE_H

#include <jansson.h>
#include <stdio.h>
#include "format/panels_file.h"

/* A line; the member "packs". Nothing where c is not of the serve format. */
void report_packs(const struct ckpt *c, FILE *out);
void report_packs_json(const struct ckpt *c, json_t *root);

#endif

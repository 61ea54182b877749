/* request_wire.h - the wire format of a request, for a replica in another process of the same program. */
#ifndef SHARDLINE_SERVE_REPLICAS_REQUEST_WIRE_H
#define SHARDLINE_SERVE_REPLICAS_REQUEST_WIRE_H

#include "serve/api/request.h"

/* Appends what rq asks for to o. */
void request_wire_write(struct json_out *o, const struct request *rq);
/* The request in the n bytes at p, its choices open, with one reference, which the caller owns. NULL with *f:
 * not the bytes of a request, no memory, or an answer's constraint that does not compile here. */
struct request *request_wire_read(const struct service *sv, const char *p, size_t n, struct fault *f);

#endif

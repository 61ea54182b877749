/* memory_wire.h - private to store/memory: names, and messages between writers and a keeper. A writer
 * connects, sends one request (in REQUEST_PUT with a file's descriptor), reads one answer, and closes. */
#ifndef SHARDLINE_STORE_MEMORY_MEMORY_WIRE_H
#define SHARDLINE_STORE_MEMORY_MEMORY_WIRE_H

#include <stdint.h>
#include <sys/un.h>
#include "store/memory.h"

#define MEMORY_SCHEME "mem:"
#define MEMORY_PREFIX "shardline:" /* of the name of a memfd */

enum memory_request { REQUEST_BEGIN = 1, REQUEST_PUT, REQUEST_DROP };

struct memory_message {
    uint32_t request;
    char set[MEMORY_NAME_BYTES], file[MEMORY_NAME_BYTES];
};
struct memory_answer {
    int32_t code; /* of base/err.h; 0: done */
    char text[256];
};

/* pid and set of mem:PID/SET; set "" for mem:PID. ERR_USAGE. */
int memory_parse(const char *path, pid_t *pid, char set[MEMORY_NAME_BYTES], struct err *e);
/* The address of a keeper's socket; returns its length. */
socklen_t memory_address(pid_t keeper, struct sockaddr_un *a);

#endif

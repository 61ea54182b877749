/* version.c - the line of --version, of every program. */
#include "comm/comm.h"
#include "base/version.h"

void comm_version(FILE *out, const char *program, const char *more)
{
    struct mem mem = { 0 };
    struct dev *d = NULL;
    struct err e;
    int rc = dev_open(&d, "cpu", 1, &mem, &e);
    fprintf(out,
            "%s (Shardline) " SHARDLINE_VERSION
            ", %snumerics contract 1, cpu class %s, devices %s, transports %s\n",
            program, more, rc < 0 ? "unknown" : d->isa, dev_kinds(), comm_transports());
    if (rc >= 0)
        dev_close(d);
}

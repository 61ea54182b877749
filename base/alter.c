/* alter.c - see alter.h. */
#include "base/alter.h"

#ifdef SHARDLINE_ALTER
#include <stdlib.h>
#include <string.h>

int alter_is(const char *name)
{
    const char *v = getenv("SHARDLINE_ALTER");
    return v && !strcmp(v, name);
}
#else
typedef int alter_has_nothing_here;
#endif

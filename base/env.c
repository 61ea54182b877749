/* env.c - see env.h. The only call of getenv in the programs. */
#include "base/env.h"

#include <stdlib.h>

const struct env_row env_table[ENV_COUNT] = {
#define X(kind, name, meaning) { ENV_##kind, #name, meaning },
    ENV_LIST(X)
#undef X
};

const char *env_get(enum env v)
{
    const char *value = getenv(env_table[v].name);
    return value && *value ? value : NULL;
}

/* reload_order.c - see reload_order.h. */
#include "serve/weights/reload_order.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {
    [RELOAD_KEEP] = "keep", [RELOAD_WAIT] = "wait", [RELOAD_ABORT] = "abort"
};

const char *reload_mode_name(enum reload_mode m) { return names[m]; }

int reload_mode_find(const char *word)
{
    for (int i = 0; word && i < (int)(sizeof names / sizeof names[0]); i++)
        if (!strcmp(word, names[i]))
            return i;
    return -1;
}

void reload_order_write(const struct reload_order *o, char text[RELOAD_PATH_MAX])
{
    snprintf(text, RELOAD_PATH_MAX, "%d %d %lld %s %s", o->live, o->quiet, (long long)o->version,
             *o->digest ? o->digest : "-", o->path);
}

int reload_order_read(struct reload_order *o, const char *text)
{
    long long version;
    int n = 0;
    memset(o, 0, sizeof *o);
    if (sscanf(text, "%d %d %lld %32s%n", &o->live, &o->quiet, &version, o->digest, &n) < 4 ||
        text[n] != ' ' || strlen(text + n + 1) >= sizeof o->path)
        return -1;
    if (!strcmp(o->digest, "-"))
        o->digest[0] = 0;
    o->version = version;
    strcpy(o->path, text + n + 1);
    return 0;
}

/* sidecar.c - see near.h. */
#include "format/sidecar.h"

#include <stdlib.h>
#include <string.h>
#include "format/remote.h"
#include "store/store.h"

struct near {
    struct remote *remote;
};

static const char *bring(struct nears *all, const char *where, const struct remote_plain *what, struct err *e)
{
    struct near *grown;
    if (!strncmp(where, "file://", 7))
        return where + 7;
    if (!strstr(where, "://"))
        return where;
    if (!store_is_url(where)) {
        err_set(e, ERR_USAGE,
                "%s: give a path, https://, http://, file://, s3://bucket/key or hf://owner/name", where);
        return NULL;
    }
    grown = realloc(all->item, sizeof *grown * (size_t)(all->n + 1));
    if (!grown) {
        err_set(e, ERR_MEMORY, "%s: no room to open it", where);
        return NULL;
    }
    all->item = grown;
    if (remote_open_plain(&grown[all->n].remote, where, what, e) < 0)
        return NULL;
    return remote_path(grown[all->n++].remote);
}

const char *near_file(struct nears *all, const char *where, struct err *e)
{
    return bring(all, where, NULL, e);
}

const char *near_tokenizer(struct nears *all, const char *where, struct err *e)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                         "generation_config.json", "chat_template.jinja" };
    static const struct remote_plain what = { names, sizeof names / sizeof *names };
    return bring(all, where, &what, e);
}

void near_close(struct nears *all)
{
    for (int i = 0; i < all->n; i++)
        remote_close(all->item[i].remote);
    free(all->item);
    *all = (struct nears){ 0 };
}

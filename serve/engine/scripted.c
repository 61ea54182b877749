/* scripted.c - see scripted.h. */
#include "serve/engine/scripted.h"

#include <stdlib.h>
#include "base/io.h"
#include "base/test_hooks.h"

int32_t scripted_token(const struct choice *c, int64_t pos)
{
    const struct service *sv = c->rq->sv;
    const char *path = hook_answer();
    size_t n_text = 0, n = 0, k = (size_t)(pos + 1 - c->prompt->n);
    int32_t *ids = NULL, id = sv->n_eos ? sv->eos[0] : 0;
    void *text = NULL;
    struct err e;

    if (!path)
        return -1;
    if (sv->tok && io_read_file(path, (size_t)1 << 20, &text, &n_text, &e) == 0 &&
        tokenizer_encode(sv->tok, text, n_text, 0, &ids, &n, &e) == 0 && k < n)
        id = ids[k];
    free(ids);
    free(text);
    return id;
}

/* prompt_limit.c - see prompt_limit.h.
 *
 * Encoded alone, the beginning of a text has about as many tokens as it has in the whole text: they can
 * differ where it was cut, and where a normaliser or a merge looks far ahead. So a text is refused only when
 * its beginning has SURE times the tokens of the context. */
#include "serve/api/prompt_limit.h"

#include <stdint.h>
#include <stdlib.h>

#define HEAD_BYTES 64 /* bytes of the beginning for each token of the context */
#define SURE 4

int prompt_limit_check(const struct service *sv, const char *text, size_t n, const char *param,
                       const char *what, struct fault *f)
{
    size_t head = (size_t)sv->ctx * HEAD_BYTES, count = 0;
    int32_t *ids = NULL;
    struct err e;

    if (n / 2 < head)
        return 0;
    while (head && ((unsigned char)text[head] & 0xC0) == 0x80) /* not inside a character */
        head--;
    if (tokenizer_encode(sv->tok, text, head, 0, &ids, &count, &e) < 0)
        return fault_set(f, 400, param, "%s: %s", what, e.text);
    free(ids);
    if (count / SURE < (size_t)sv->ctx)
        return 0;
    return fault_set_context(
        f, sv->ctx, param,
        "%s is a text of %zu bytes, of which the first %zu are %zu tokens already: shorten it", what, n, head,
        count);
}

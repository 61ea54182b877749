/* template_fuzz.c - a chat template, a zero byte, and the values it is rendered with as JSON
 * (text/jinja). Steps and memory have lower limits here, so that a template that
 * computes for seconds is not a finding. */
#include <stdlib.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "text/template.h"

#define STEPS 20000
#define BYTES ((size_t)8 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    size_t n_text = zero ? (size_t)(zero - data) : n;
    struct template *t;
    struct rendered out = { 0 };
    struct err e;
    char *text = fuzz_copy(data, n_text);
    int rc = template_open(&t, text, n_text, "template", &e);
    free(text);
    if (rc < 0)
        return 0;
    json_t *o = zero ? json_loadb((const char *)zero + 1, n - n_text - 1, 0, NULL) : NULL;
    if (!json_is_object(o)) {
        json_decref(o);
        o = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", "a\xc3\xa9 <s>");
    }
    struct template_request r = {
        .messages = json_object_get(o, "messages"),
        .tools = json_object_get(o, "tools"),
        .documents = json_object_get(o, "documents"),
        .user = json_object_get(o, "extra"),
        .add_generation_prompt = !json_is_false(json_object_get(o, "add_generation_prompt")),
        .now = 1700000000,
        .max_steps = STEPS,
        .max_bytes = BYTES,
        .continue_final = json_is_true(json_object_get(o, "continue_final_message")),
    };
    if (json_is_array(r.messages) && (!r.user || json_is_object(r.user)) &&
        template_render(t, &r, &out, &e) >= 0)
        rendered_free(&out);
    json_decref(o);
    template_close(t);
    return 0;
}

/* config_fuzz.c - any bytes as a config.json (model/config.c), and as an adapter_config.json
 * (format/peft). */
#include <stdlib.h>
#include <string.h>
#include "format/peft.h"
#include "model/config.h"
#include "tests/fuzz/fuzz.h"

static void adapter(const uint8_t *data, size_t n)
{
    static const char *const names[] = { "model.layers.17.self_attn.q_proj", "lm_head", "" };
    struct peft_config c;
    struct err e;
    if (peft_config_parse(&c, (const char *)data, n, &e) >= 0)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            int64_t rank;
            double scale;
            peft_config_scale(&c, names[i], &rank, &scale, &e);
        }
    peft_config_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_config c;
    struct err e;
    char *text = malloc(n + 1);
    memcpy(text, data, n);
    text[n] = 0;
    if (model_config_parse(&c, text, "config.json", &e) >= 0)
        free(model_config_json(&c, "float32"));
    free(text);
    adapter(data, n);
    return 0;
}

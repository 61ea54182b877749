/* config_fuzz.c - any bytes as a config.json (model/config.c). */
#include <stdlib.h>
#include <string.h>
#include "model/config.h"
#include "tests/fuzz/fuzz.h"

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
    return 0;
}

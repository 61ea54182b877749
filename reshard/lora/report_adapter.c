/* report_adapter.c - what `inspect` says of an adapter, and of adapters that were merged into a model. */
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/peft.h"
#include "reshard/lora/adapters.h"
#include "reshard/report.h"

/* {"kind": "LoRA", …} of an adapter; {"error": …} where it is not understood. */
static json_t *describe(struct ckpt *c)
{
    struct peft a;
    struct err e = { 0 };
    json_t *o;
    if (peft_read(&a, c, &e) < 0)
        o = json_pack("{s:s}", "error", e.text);
    else
        o = json_pack("{s:i, s:i, s:I, s:f, s:b, s:s}", "modules", a.n, "tensors", a.n_saved, "r",
                      (json_int_t)a.config.rank, "lora_alpha", a.config.alpha, "use_rslora", a.config.rslora,
                      "base", a.config.base);
    peft_free(&a);
    return o;
}

/* The list of a merged checkpoint; NULL: it has none that can be read. */
static json_t *merged_of(struct ckpt *c)
{
    struct err ignored = { 0 };
    json_t *list = NULL;
    void *text = NULL;
    size_t n = 0;
    for (int i = 0; i < ckpt_n_extra(c) && !text; i++)
        if (!strcmp(ckpt_extra_name(c, i), PEFT_MERGED) && ckpt_extra_read(c, i, &text, &n, &ignored) < 0)
            return NULL;
    json_t *root = text ? jx_parse(text, n, PEFT_MERGED, &ignored) : NULL;
    list = json_incref(json_object_get(root, "adapters"));
    json_decref(root);
    free(text);
    if (list && !json_is_array(list)) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

void report_adapter_json(struct ckpt *c, json_t *root)
{
    json_t *merged = merged_of(c);
    if (peft_is(c))
        json_object_set_new(root, "adapter", describe(c));
    if (merged)
        json_object_set_new(root, "merged_adapters", merged);
}

void report_adapter(struct ckpt *c, FILE *out)
{
    json_t *merged = merged_of(c), *v, *o;
    size_t i;
    if (peft_is(c)) {
        o = describe(c);
        const char *why = json_string_value(json_object_get(o, "error"));
        if (why)
            fprintf(out, "%-12s %s\n", "adapter", why);
        else
            fprintf(out, "%-12s LoRA of rank %lld, alpha %g%s: %lld modules, %lld whole tensors\n", "adapter",
                    (long long)json_integer_value(json_object_get(o, "r")),
                    json_number_value(json_object_get(o, "lora_alpha")),
                    json_is_true(json_object_get(o, "use_rslora")) ? " (rslora)" : "",
                    (long long)json_integer_value(json_object_get(o, "modules")),
                    (long long)json_integer_value(json_object_get(o, "tensors")));
        json_decref(o);
    }
    json_array_foreach(merged, i, v) {
        const char *digest = json_string_value(json_object_get(v, "digest"));
        fprintf(out, "%-12s adapter of weights_digest %.64s\n", "merged", digest ? digest : "?");
    }
    json_decref(merged);
}

int adapter_verify(struct ckpt *c, struct err *e)
{
    struct peft a;
    if (!peft_is(c))
        return 0;
    int rc = peft_read(&a, c, e);
    peft_free(&a);
    return rc == -ERR_CONFIG ? 0 : rc;
}

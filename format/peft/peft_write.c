/* peft_write.c - adapter_config.json as PEFT writes it; see peft.h. */
#include "format/peft.h"

static json_t *texts(int n, char *const *text)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_string(text[i]));
    return list;
}

static char *dump(json_t *o)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    return text;
}

/* 16 as 16, 0.5 as 0.5. */
static json_t *number(double x)
{
    return x == (double)(int64_t)x ? json_integer((json_int_t)x) : json_real(x);
}

char *peft_config_text(const struct peft_new *p)
{
    json_t *init = p->gaussian ? json_string("gaussian") : json_true();
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:o, s:o, s:f, s:s, s:b, s:b, s:o, s:b}", "peft_type", "LORA",
                          "task_type", "CAUSAL_LM", "base_model_name_or_path", p->base, "r",
                          (json_int_t)p->rank, "lora_alpha", number(p->alpha), "target_modules",
                          texts(p->n, p->target), "lora_dropout", 0.0, "bias", "none", "use_rslora",
                          p->rslora, "fan_in_fan_out", p->fan_in_fan_out, "init_lora_weights", init,
                          "inference_mode", 1);
    return dump(o);
}

char *peft_config_on(const struct peft_config *c, const char *base)
{
    json_t *o = json_deep_copy(c->root);
    if (o && (json_object_set_new(o, "base_model_name_or_path", json_string(base)) < 0 ||
              json_object_set_new(o, "inference_mode", json_true()) < 0)) {
        json_decref(o);
        o = NULL;
    }
    return dump(o);
}

/* peft_read.c - the tensors of an adapter, sorted into modules; see peft.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "format/fmt.h"
#include "format/peft/peft_priv.h"

#define PARAMS_MAX 4 /* of one module that have wrappers */

static int no_memory(const struct peft *a, struct err *e)
{
    return err_set(e, ERR_MEMORY, "%s: no memory for the modules of the adapter", ckpt_path(a->c));
}

int peft_is(const struct ckpt *c)
{
    for (int i = 0; i < ckpt_n_extra(c); i++)
        if (!strcmp(ckpt_extra_name(c, i), PEFT_CONFIG))
            return 1;
    return 0;
}

static int read_config(struct peft *a, struct err *e)
{
    void *text = NULL;
    size_t n = 0;
    int rc = 0;
    for (int i = 0; i < ckpt_n_extra(a->c) && !text && rc >= 0; i++)
        if (!strcmp(ckpt_extra_name(a->c, i), PEFT_CONFIG))
            rc = ckpt_extra_read(a->c, i, &text, &n, e);
    if (rc >= 0 && !text)
        rc = err_set(e, ERR_FORMAT, "%s: has no " PEFT_CONFIG ": is it the folder of an adapter",
                     ckpt_path(a->c));
    if (rc >= 0 && (rc = peft_config_parse(&a->config, text, n, e)) < 0)
        err_add(e, "reading %s", ckpt_path(a->c));
    free(text);
    return rc < 0 ? rc : 0;
}

/* ---- names ---- */

enum part { PART_A, PART_B, PART_EMBEDDING_A, PART_EMBEDDING_B };
static const struct {
    const char *end;
    enum part part;
} parts[] = {
    { ".lora_A.weight", PART_A },
    { ".lora_B.weight", PART_B },
    { ".lora_A.default.weight", PART_A },
    { ".lora_B.default.weight", PART_B },
    { ".lora_embedding_A", PART_EMBEDDING_A },
    { ".lora_embedding_B", PART_EMBEDDING_B },
    { ".lora_embedding_A.default", PART_EMBEDDING_A },
    { ".lora_embedding_B.default", PART_EMBEDDING_B },
};

/* Removes every `word` from the text. Returns how many. */
static int cut_out(char *text, const char *word)
{
    size_t n = strlen(word);
    int found = 0;
    for (char *p = text; (p = strstr(p, word));) {
        if (p[n] && p[n] != '.') {
            p += n;
            continue;
        }
        memmove(p, p + n, strlen(p + n) + 1);
        found++;
    }
    return found;
}

/* 1: text ends with the word, which begins the text or follows a dot. */
static int ends_as_name(const char *text, const char *word, size_t n_word)
{
    size_t n = strlen(text);
    return n >= n_word && !strncmp(text + n - n_word, word, n_word) &&
           (n == n_word || text[n - n_word - 1] == '.');
}

/* The parameter of module x that a text of target_parameters names, or NULL. A name without its module (PEFT
 * writes so for target_modules that transformers 5 holds in one tensor) is one of a module of experts. */
static const char *param_of(const char *x, const char *text)
{
    const char *dot = strrchr(text, '.');
    if (dot)
        return ends_as_name(x, text, (size_t)(dot - text)) ? dot + 1 : NULL;
    return ends_as_name(x, "experts", strlen("experts")) ? text : NULL;
}

/* The parameters of module x that target_parameters names, in the order in which PEFT wraps them: that of the
 * module. Returns how many. */
static int wrapped_params(const struct peft *a, const char *x, const char *param[PARAMS_MAX])
{
    const json_t *list = json_object_get(a->config.root, "target_parameters"), *v;
    size_t i;
    int n = 0;
    json_array_foreach((json_t *)list, i, v) {
        const char *mine = json_is_string(v) ? param_of(x, json_string_value(v)) : NULL;
        int known = !mine || n == PARAMS_MAX;
        for (int k = 0; k < n && !known; k++)
            known = !strcmp(param[k], mine);
        if (!known)
            param[n++] = mine;
    }
    if (n == 2 && !strcmp(param[0], "down_proj") && !strcmp(param[1], "gate_up_proj")) {
        const char *first = param[0];
        param[0] = param[1];
        param[1] = first;
    }
    return n;
}

/* Turns the module of a tensor, with its `base_layer` words, into the name of what it adapts. */
static int resolve(const struct peft *a, char *x, struct peft_module *m, struct err *e)
{
    const char *param[PARAMS_MAX];
    int depth = cut_out(x, ".base_layer"), n = wrapped_params(a, x, param);
    if (n == 0 && depth == 0) {
        m->name = strdup(x);
        return m->name ? 0 : no_memory(a, e);
    }
    if (depth >= n)
        return err_set(e, ERR_FORMAT,
                       "%s: %s has %d wrappers, target_parameters in " PEFT_CONFIG
                       " names %d parameters of it: is "
                       "it the config of this adapter",
                       ckpt_path(a->c), x, depth + 1, n);
    int ordered = n == 1 || (n == 2 && !strcmp(param[0], "gate_up_proj") && !strcmp(param[1], "down_proj"));
    if (!ordered)
        return err_set(e, ERR_FORMAT,
                       "%s: target_parameters names %s and %s of %s: their order is only known for "
                       "gate_up_proj and down_proj: merge it with PEFT",
                       ckpt_path(a->c), param[0], param[1], x);
    const char *mine = param[n - 1 - depth];
    size_t room = strlen(x) + strlen(mine) + 2;
    m->is_param = 1;
    m->name = malloc(room);
    if (m->name)
        snprintf(m->name, room, "%s.%s", x, mine);
    return m->name ? 0 : no_memory(a, e);
}

/* ---- tensors ---- */

static struct peft_module *find_module(const struct peft *a, const char *name)
{
    for (int i = a->n - 1; i >= 0 && i >= a->n - 4; i--) /* tensors are sorted: A and B are neighbours */
        if (!strcmp(a->module[i].name, name))
            return &a->module[i];
    return NULL;
}

static int add_part(struct peft *a, char *x, enum part part, int tensor, struct err *e)
{
    struct peft_module m = { .a = -1, .b = -1, .is_embedding = part >= PART_EMBEDDING_A }, *at;
    int rc = resolve(a, x, &m, e);
    if (rc < 0)
        return rc;
    if ((at = find_module(a, m.name))) {
        free(m.name);
    } else {
        at = &a->module[a->n++];
        *at = m;
    }
    int *slot = part == PART_A || part == PART_EMBEDDING_A ? &at->a : &at->b;
    if (*slot >= 0 || at->is_embedding != m.is_embedding)
        return err_set(e, ERR_FORMAT, "%s: %s is there twice: are two adapters in it", ckpt_path(a->c),
                       at->name);
    *slot = tensor;
    return 0;
}

static int add_saved(struct peft *a, char *x, int tensor, struct err *e)
{
    if (strstr(x, "lora_") || strstr(x, "trainable_tokens"))
        return err_set(e, ERR_FORMAT, "%s: %s is no tensor of plain LoRA: merge it with PEFT",
                       ckpt_path(a->c), ckpt_tensor(a->c, tensor)->name);
    cut_out(x, ".base_layer");
    cut_out(x, ".modules_to_save.default");
    cut_out(x, ".modules_to_save");
    a->saved[a->n_saved] = (struct peft_saved){ strdup(x), tensor };
    return a->saved[a->n_saved++].name ? 0 : no_memory(a, e);
}

static int add_tensor(struct peft *a, int tensor, struct err *e)
{
    const char *name = ckpt_tensor(a->c, tensor)->name;
    char x[600];
    size_t n_prefix = strncmp(name, PEFT_PREFIX, strlen(PEFT_PREFIX)) ? 0 : strlen(PEFT_PREFIX);
    snprintf(x, sizeof x, "%s", name + n_prefix);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(x), k = strlen(parts[i].end);
        if (n <= k || strcmp(x + n - k, parts[i].end))
            continue;
        x[n - k] = 0;
        return add_part(a, x, parts[i].part, tensor, e);
    }
    return add_saved(a, x, tensor, e);
}

/* Shapes against the rank of the config. */
static int check_module(const struct peft *a, struct peft_module *m, struct err *e)
{
    if (m->a < 0 || m->b < 0)
        return err_set(e, ERR_FORMAT, "%s: %s has no lora_%c: is the file whole", ckpt_path(a->c), m->name,
                       m->a < 0 ? 'A' : 'B');
    const struct ckpt_tensor *ta = ckpt_tensor(a->c, m->a), *tb = ckpt_tensor(a->c, m->b);
    int rc = peft_config_scale(&a->config, m->name, &m->rank, &m->scale, e);
    if (rc < 0)
        return rc;
    if (ta->n_dims != 2 || tb->n_dims != 2 || ta->shape[0] != tb->shape[1] || ta->shape[0] < 1 ||
        ta->shape[0] % m->rank || (!m->is_param && ta->shape[0] != m->rank))
        return err_set(e, ERR_FORMAT,
                       "%s: %s has A with %d dims [%lld,%lld] and B [%lld,%lld], its rank in " PEFT_CONFIG
                       " is %lld: is it the config of this adapter",
                       ckpt_path(a->c), m->name, ta->n_dims, (long long)ta->shape[0],
                       (long long)(ta->n_dims > 1 ? ta->shape[1] : 0), (long long)tb->shape[0],
                       (long long)(tb->n_dims > 1 ? tb->shape[1] : 0), (long long)m->rank);
    m->n_experts = ta->shape[0] / m->rank;
    m->in = ta->shape[1];
    m->out = tb->shape[0];
    return 0;
}

static int compare_modules(const void *a, const void *b)
{
    return strcmp(((const struct peft_module *)a)->name, ((const struct peft_module *)b)->name);
}

static int compare_saved(const void *a, const void *b)
{
    return strcmp(((const struct peft_saved *)a)->name, ((const struct peft_saved *)b)->name);
}

int peft_read(struct peft *a, struct ckpt *c, struct err *e)
{
    size_t n = (size_t)ckpt_n_tensors(c);
    int rc = 0;
    memset(a, 0, sizeof *a);
    a->c = c;
    TRY(read_config(a, e));
    a->module = calloc(n + 1, sizeof *a->module);
    a->saved = calloc(n + 1, sizeof *a->saved);
    if (!a->module || !a->saved)
        return no_memory(a, e);
    for (int i = 0; i < (int)n; i++) /* a checkpoint of ptrain has moments too */
        TRY(ckpt_tensor(c, i)->role == ROLE_WEIGHT ? add_tensor(a, i, e) : 0);
    for (int i = 0; i < a->n; i++)
        TRY(check_module(a, &a->module[i], e));
    qsort(a->module, (size_t)a->n, sizeof *a->module, compare_modules);
    qsort(a->saved, (size_t)a->n_saved, sizeof *a->saved, compare_saved);
    for (int i = 1; i < a->n; i++)
        if (!compare_modules(&a->module[i - 1], &a->module[i]))
            return err_set(e, ERR_FORMAT, "%s: %s is there twice: are two adapters in it", ckpt_path(c),
                           a->module[i].name);
    for (int i = 1; i < a->n_saved; i++)
        if (!compare_saved(&a->saved[i - 1], &a->saved[i]))
            return err_set(e, ERR_FORMAT, "%s: %s is there twice: are two adapters in it", ckpt_path(c),
                           a->saved[i].name);
    if (!a->n && !a->n_saved)
        return err_set(e, ERR_FORMAT, "%s: holds no tensors: is the file whole", ckpt_path(c));
out:
    return rc < 0 ? rc : 0;
}

void peft_free(struct peft *a)
{
    for (int i = 0; a->module && i < a->n; i++)
        free(a->module[i].name);
    for (int i = 0; a->saved && i < a->n_saved; i++)
        free(a->saved[i].name);
    free(a->module);
    free(a->saved);
    peft_config_free(&a->config);
    memset(a, 0, sizeof *a);
}

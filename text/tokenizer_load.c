/* tokenizer_load.c - fills a tokenizer from tokenizer.json and tokenizer_config.json. A section is loaded
 * after those it depends on. */
#include "text/tok.h"

#include <stdlib.h>
#include <string.h>

json_t *text_json(const char *text, size_t n, const char *what, struct err *e)
{
    json_error_t at;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!j)
        err_set(e, ERR_CONFIG, "%s: line %d, column %d: %s", what, at.line, at.column, at.text);
    return j;
}

int text_member(const json_t *o, const char *key, const char **s, size_t *n, const char *what, struct err *e)
{
    const json_t *j = json_object_get(o, key);
    if (!j || json_is_null(j))
        return 0;
    if (!json_is_string(j))
        return err_set(e, ERR_CONFIG, "%s: %s is not a string", what, key);
    *s = json_string_value(j);
    *n = json_string_length(j);
    return 1;
}

int flag_member(const json_t *o, const char *key, int absent, int *out, const char *what, struct err *e)
{
    const json_t *j = json_object_get(o, key);
    *out = absent;
    if (!j || json_is_null(j))
        return 0;
    if (!json_is_boolean(j))
        return err_set(e, ERR_CONFIG, "%s: %s is neither true nor false", what, key);
    *out = json_is_true(j);
    return 0;
}

int text_copy(char **to, size_t *n_to, const char *s, size_t n, struct err *e)
{
    char *p = malloc(n + 1);
    if (!p)
        return text_memory(e);
    memcpy(p, s, n);
    p[n] = 0;
    *to = p;
    *n_to = n;
    return 0;
}

/* --- a section as a flat list of steps --- */

/* Calls fn for every step of a section. null has no step; a Sequence has the steps of its list, which may
 * hold Sequences. */
typedef int step_fn(void *arg, const json_t *node, const char *type, const char *what, struct err *e);
#define NESTED 8
static int each_step(const json_t *node, const char *list, step_fn *fn, void *arg, const char *what,
                     struct err *e)
{
    struct {
        const json_t *items;
        size_t at;
    } open[NESTED];
    int n_open = 0;
    if (!node || json_is_null(node))
        return 0;
    for (;;) {
        const char *type = NULL;
        size_t n;
        int rc = json_is_object(node) ? text_member(node, "type", &type, &n, what, e) : 0;
        if (rc < 0)
            return rc;
        if (!type)
            return err_set(e, ERR_CONFIG, "%s: an entry without a type", what);
        if (strcmp(type, "Sequence")) {
            if ((rc = fn(arg, node, type, what, e)) < 0)
                return rc;
        } else {
            const json_t *items = json_object_get(node, list);
            if (!json_is_array(items) || n_open == NESTED)
                return err_set(e, ERR_CONFIG,
                               "%s: a Sequence without a list of %s, or more than %d nested ones", what, list,
                               NESTED);
            open[n_open].items = items;
            open[n_open++].at = 0;
        }
        while (n_open && open[n_open - 1].at == json_array_size(open[n_open - 1].items))
            n_open--;
        if (!n_open)
            return 0;
        node = json_array_get(open[n_open - 1].items, open[n_open - 1].at++);
    }
}

struct steps_target {
    struct steps *to;
    const struct step_kind *kinds;
};

static int add_step(void *arg, const json_t *node, const char *type, const char *what, struct err *e)
{
    const struct steps_target *t = arg;
    const struct step_kind *k = t->kinds;
    while (k->type && strcmp(k->type, type))
        k++;
    if (!k->type)
        return err_set(e, ERR_CONFIG, "%s: %s is not supported", what, type);
    if (t->to->n == TOK_STEPS)
        return err_set(e, ERR_CONFIG, "%s: more than %d steps", what, TOK_STEPS);
    struct step *s = &t->to->v[t->to->n++];
    s->kind = k;
    return k->load(s, node, what, e);
}

int steps_load(struct steps *s, const json_t *node, const struct step_kind *kinds, const char *list,
               const char *what, struct err *e)
{
    struct steps_target t = { s, kinds };
    return each_step(node, list, add_step, &t, what, e);
}

void steps_free(struct steps *s)
{
    for (int i = 0; i < s->n; i++) {
        pattern_free(&s->v[i].pat);
        free(s->v[i].content);
    }
    s->n = 0;
}

/* --- the post-processor: the ids to add before and after the text --- */

static int put_around(struct tokenizer *t, const struct ids *front, const struct ids *back, struct err *e)
{
    struct ids before = { 0 };
    for (size_t i = 0; i < front->n; i++)
        ids_add(&before, front->v[i]);
    for (size_t i = 0; i < t->before.n; i++)
        ids_add(&before, t->before.v[i]);
    for (size_t i = 0; i < back->n; i++)
        ids_add(&t->after, back->v[i]);
    free(t->before.v);
    t->before = before;
    return before.failed || t->after.failed || front->failed || back->failed ? text_memory(e) : 0;
}

static int template_ids(const json_t *special_tokens, const json_t *part, struct ids *to, const char *what,
                        struct err *e)
{
    const char *name = "";
    size_t n, i;
    const json_t *id;
    int rc = text_member(part, "id", &name, &n, what, e);
    const json_t *list = json_object_get(json_object_get(special_tokens, name), "ids");

    if (rc < 0)
        return rc;
    if (!json_is_array(list))
        return err_set(e, ERR_CONFIG, "%s: the template's special token \"%.60s\" has no ids", what, name);
    json_array_foreach(list, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOK_ID_LIMIT)
            return err_set(e, ERR_CONFIG, "%s: the template's special token \"%.60s\" has an invalid id",
                           what, name);
        ids_add(to, (int32_t)json_integer_value(id));
    }
    return 0;
}

static int load_template(struct tokenizer *t, const json_t *node, const char *what, struct err *e)
{
    const json_t *single = json_object_get(node, "single"), *part, *sequence = NULL;
    struct ids side[2] = { { 0 }, { 0 } };
    size_t i;
    int rc = 0;

    json_array_foreach(single, i, part) {
        const json_t *special = json_object_get(part, "SpecialToken");
        if (special) {
            TRY(template_ids(json_object_get(node, "special_tokens"), special, &side[sequence != NULL], what,
                             e));
        } else if (!sequence) {
            sequence = json_object_get(part, "Sequence");
        } else {
            sequence = NULL;
            break;
        }
    }

    if (!sequence)
        rc = err_set(e, ERR_CONFIG, "%s: the template for a single text does not hold the text exactly once",
                     what);
    else
        rc = put_around(t, &side[0], &side[1], e);
out:
    free(side[0].v);
    free(side[1].v);
    return rc;
}

/* BertProcessing, RobertaProcessing: cls, the text, sep; each ["token", id] */
static int load_cls_sep(struct tokenizer *t, const json_t *node, const char *what, struct err *e)
{
    static const char *const keys[2] = { "cls", "sep" };
    struct ids side[2] = { { 0 }, { 0 } };
    int rc = 0;
    for (int k = 0; k < 2 && rc == 0; k++) {
        const json_t *id = json_array_get(json_object_get(node, keys[k]), 1);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOK_ID_LIMIT)
            rc = err_set(e, ERR_CONFIG, "%s: %s is not a [token, id]", what, keys[k]);
        else
            ids_add(&side[k], (int32_t)json_integer_value(id));
    }
    if (rc == 0)
        rc = put_around(t, &side[0], &side[1], e);
    free(side[0].v);
    free(side[1].v);
    return rc;
}

static int load_no_ids(struct tokenizer *t, const json_t *node, const char *what, struct err *e)
{
    (void)t, (void)node, (void)what, (void)e; /* ByteLevel moves offsets only */
    return 0;
}

static int add_processor(void *arg, const json_t *node, const char *type, const char *what, struct err *e)
{
    static const struct {
        const char *type;
        int (*load)(struct tokenizer *t, const json_t *node, const char *what, struct err *e);
    } kinds[] = {
        { "TemplateProcessing", load_template },
        { "ByteLevel", load_no_ids },
        { "BertProcessing", load_cls_sep },
        { "RobertaProcessing", load_cls_sep },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(type, kinds[i].type))
            return kinds[i].load(arg, node, what, e);
    return err_set(e, ERR_CONFIG, "%s: %s is not supported", what, type);
}

/* --- added tokens --- */

static int add_token(struct tokenizer *t, const json_t *node, const char *what, struct err *e)
{
    const char *s = NULL;
    size_t n = 0;
    int special, normalized, rc = 0;
    struct added a = { 0 };
    struct buf norm = { 0 };
    const json_t *id = json_object_get(node, "id");

    TRY(text_member(node, "content", &s, &n, what, e));
    if (rc == 0 || !json_is_integer(id))
        return err_set(e, ERR_CONFIG, "%s: an added token without content or id", what);
    TRY(flag_member(node, "special", 0, &special, what, e));
    TRY(flag_member(node, "normalized", !special, &normalized, what, e));
    TRY(flag_member(node, "single_word", 0, &a.single_word, what, e));
    TRY(flag_member(node, "lstrip", 0, &a.lstrip, what, e));
    TRY(flag_member(node, "rstrip", 0, &a.rstrip, what, e));
    if (n == 0)
        return 0;
    TRY(vocab_put(&t->vocab, s, n, json_integer_value(id), TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0), what,
                  e));
    a.id = (int32_t)json_integer_value(id);
    a.special = special;
    if (normalized) {
        TRY(normalize(&t->normalizer, s, n, &norm, e));
        s = norm.p ? norm.p : "";
        n = norm.n;
        TRY(vocab_set_decoded(&t->vocab, a.id, s, n, e));
    }

    TRY(trie_put(normalized ? &t->normal : &t->plain, s, n, &a, e));
out:
    buf_free(&norm);
    return rc < 0 ? rc : 0;
}

static int load_added(struct tokenizer *t, const json_t *list, const char *what, struct err *e)
{
    size_t i;
    const json_t *node;
    if (list && !json_is_null(list) && !json_is_array(list))
        return err_set(e, ERR_CONFIG, "%s: added_tokens is not a list", what);
    json_array_foreach(list, i, node) {
        int rc = add_token(t, node, what, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- the files --- */

/* The ids that the post-processor adds must exist. */
static int check_ids(const struct tokenizer *t, const struct ids *l, const char *what, struct err *e)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i] >= t->vocab.n || !t->vocab.v[l->v[i]].flags)
            return err_set(e, ERR_CONFIG,
                           "%s: the post-processor adds id %d, which the vocabulary does not have", what,
                           l->v[i]);
    return 0;
}

static int load_model(struct tokenizer *t, const json_t *model, const char *what, struct err *e)
{
    const char *type = "BPE"; /* older files do not say it */
    size_t n;
    int rc = text_member(model, "type", &type, &n, what, e);
    if (rc < 0)
        return rc;
    if (!strcmp(type, "Unigram"))
        return unigram_load(&t->unigram, &t->vocab, model, what, e);
    if (strcmp(type, "BPE"))
        return err_set(e, ERR_CONFIG, "%s: the model is %s: only BPE and Unigram are supported", what, type);
    return bpe_load(&t->bpe, &t->vocab, model, what, e);
}

int tokenizer_load(struct tokenizer *t, const json_t *root, const char *what, struct err *e)
{
    char where[256];
    int rc = 0;

#define SECTION(key) (snprintf(where, sizeof where, "%.200s: " key, what), json_object_get(root, key))
    if (!json_is_object(json_object_get(root, "model")))
        return err_set(e, ERR_CONFIG, "%s: it has no model: is it a tokenizer.json", what);
    const json_t *node = SECTION("model");
    TRY(load_model(t, node, where, e));
    node = SECTION("normalizer");
    TRY(steps_load(&t->normalizer, node, normalizer_kinds, "normalizers", where, e));
    node = SECTION("added_tokens");
    TRY(load_added(t, node, where, e));
    node = SECTION("pre_tokenizer");
    TRY(steps_load(&t->splitter, node, split_kinds, "pretokenizers", where, e));
    node = SECTION("decoder");
    TRY(steps_load(&t->decoder, node, decoder_kinds, "decoders", where, e));
    t->joins_with_space = !node || json_is_null(node);
    node = SECTION("post_processor");
    TRY(each_step(node, "processors", add_processor, t, where, e));
    TRY(check_ids(t, &t->before, what, e));
    TRY(check_ids(t, &t->after, what, e));
#undef SECTION
out:
    return rc;
}

/* "<s>", or {"content": "<s>", …} */
static int named_token(const struct tokenizer *t, const json_t *config, const char *key, int32_t *id,
                       const char *what, struct err *e)
{
    const json_t *j = json_object_get(config, key);
    if (json_is_object(j))
        j = json_object_get(j, "content");
    if (!j || json_is_null(j))
        return 0;
    if (!json_is_string(j))
        return err_set(e, ERR_CONFIG, "%s: %s is not a token", what, key);
    *id = vocab_find(&t->vocab, json_string_value(j), json_string_length(j));
    if (*id < 0)
        return err_set(e, ERR_CONFIG, "%s: %s \"%.60s\" is not in tokenizer.json", what, key,
                       json_string_value(j));
    return 0;
}

int tokenizer_load_config(struct tokenizer *t, const json_t *config, const char *what, struct err *e)
{
    int rc = named_token(t, config, "bos_token", &t->bos, what, e);
    return rc < 0 ? rc : named_token(t, config, "eos_token", &t->eos, what, e);
}

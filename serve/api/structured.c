/* structured.c - see structured.h. */
#include "serve/api/structured.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "serve/api/prompt_text.h"
#include "serve/api/request.h"

#define BAD 400
#define KEPT 64                         /* grammars */
#define MEMORY_MOST ((size_t)512 << 20) /* of all grammars, their states and masks */

/* --- the cache --- */

struct kept {
    struct structured of;
    struct grammar *g; /* NULL: an empty place */
    uint64_t used;
};
struct grammar_cache {
    pthread_mutex_t lock;
    struct token_trie *trie;
    struct grammar_memory *memory;
    struct kept kept[KEPT];
    uint64_t clock;
};

int grammar_cache_open(struct grammar_cache **out, struct err *e)
{
    struct grammar_cache *c = calloc(1, sizeof *c);
    *out = c;
    if (!c || pthread_mutex_init(&c->lock, NULL)) {
        free(c);
        *out = NULL;
        return err_set(e, ERR_MEMORY, "no memory for grammars");
    }
    int rc = grammar_memory_open(&c->memory, MEMORY_MOST, e);
    if (rc < 0) {
        grammar_cache_close(c);
        *out = NULL;
    }
    return rc;
}

void structured_free(struct structured *s)
{
    free(s->text);
    free(s->tools);
    s->text = s->tools = NULL;
}

static void drop(struct kept *k)
{
    grammar_close(k->g);
    structured_free(&k->of);
    memset(k, 0, sizeof *k);
}

void grammar_cache_close(struct grammar_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < KEPT; i++)
        drop(&c->kept[i]);
    token_trie_close(c->trie);
    grammar_memory_close(c->memory);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const struct token_trie *grammar_cache_trie(struct grammar_cache *c, const struct service *sv, struct err *e)
{
    pthread_mutex_lock(&c->lock);
    if (!c->trie)
        token_trie_open(&c->trie, sv->tok, sv->vocab, sv->eos, sv->n_eos, e);
    const struct token_trie *t = c->trie;
    pthread_mutex_unlock(&c->lock);
    return t;
}

static int same(const struct structured *a, const struct structured *b)
{
    return a->kind == b->kind && a->flags == b->flags && a->behind == b->behind && a->n == b->n &&
           a->n_tools == b->n_tools && (!a->n || !memcmp(a->text, b->text, a->n)) &&
           (!a->n_tools || !memcmp(a->tools, b->tools, a->n_tools));
}

/* A grammar that is kept, one reference more; NULL: none. */
static struct grammar *find(struct grammar_cache *c, const struct structured *s)
{
    struct grammar *g = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < KEPT && !g; i++) {
        struct kept *k = &c->kept[i];
        if (k->g && same(&k->of, s)) {
            k->used = ++c->clock;
            g = grammar_share(k->g);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return g;
}

/* Keeps a grammar in the place of the one that was not used for the longest time. */
static void keep(struct grammar_cache *c, const struct structured *s, struct grammar *g)
{
    struct structured of = *s;
    of.text = s->text ? strdup(s->text) : NULL;
    of.tools = s->tools ? strdup(s->tools) : NULL;
    if (!of.text != !s->text || !of.tools != !s->tools) {
        structured_free(&of); /* no memory: it is compiled again, then */
        return;
    }
    pthread_mutex_lock(&c->lock);
    struct kept *to = &c->kept[0];
    for (int i = 1; i < KEPT; i++)
        if (c->kept[i].used < to->used)
            to = &c->kept[i];
    drop(to);
    *to = (struct kept){ of, grammar_share(g), ++c->clock };
    pthread_mutex_unlock(&c->lock);
}

/* Forgets the grammar that was not used for the longest time. 0: there is none. */
static int forget_oldest(struct grammar_cache *c)
{
    struct kept *oldest = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < KEPT; i++)
        if (c->kept[i].g && (!oldest || c->kept[i].used < oldest->used))
            oldest = &c->kept[i];
    if (oldest)
        drop(oldest);
    pthread_mutex_unlock(&c->lock);
    return oldest != NULL;
}

/* Counts a grammar in the memory of all; older ones make place for it. */
static int count_in(struct grammar_cache *c, struct grammar *g, struct err *e)
{
    int rc;
    while ((rc = grammar_count_in(g, c->memory, e)) == -ERR_MEMORY && forget_oldest(c))
        ;
    return rc;
}

/* --- fields --- */

/* Notes what a field asks for. text: malloc'd, taken; NULL: no memory. */
static int set(struct request *rq, enum grammar_kind kind, unsigned flags, char *text, const char *field,
               struct fault *f)
{
    if (!text)
        return fault_set(f, 500, field, "no memory for %s", field);
    if (rq->structured.kind) {
        free(text);
        return fault_set(f, BAD, field,
                         "response_format and structured_outputs are two grammars: leave one "
                         "of them out");
    }
    if (!rq->sv->tok || !rq->sv->grammars) {
        free(text);
        return fault_set(f, BAD, field, "%s needs a tokenizer, and this model has none", field);
    }
    rq->structured = (struct structured){
        .kind = (int)kind + 1, .flags = flags, .of_format = field[0] == 'r', .n = strlen(text), .text = text
    };
    return 0;
}

static char *dump(const json_t *v) { return json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY); }

static int read_schema(struct request *rq, const json_t *v, const char *field, unsigned flags,
                       struct fault *f)
{
    if (!json_is_object(v) && !json_is_boolean(v))
        return fault_set(f, BAD, field, "%s must have a schema, which is a JSON object", field);
    return set(rq, GRAMMAR_SCHEMA, flags | GRAMMAR_IN_ORDER, dump(v), field, f);
}

/* Refuses keys that are not in the list, which ends with NULL. */
static int check_keys(const struct request *rq, const json_t *v, const char *field, const char *const *known,
                      struct fault *f)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value) {
        int i = 0;
        while (known[i] && strcmp(known[i], key))
            i++;
        if (!known[i] && !json_is_null(value) && !rq->sv->lenient)
            return fault_set(f, BAD, field, "%s.%.40s is not known here: leave it out", field, key);
    }
    return 0;
}

int structured_read_format(struct request *rq, const json_t *v, struct fault *f)
{
    static const char field[] = "response_format";
    static const char *const outer[] = { "type", "json_schema", NULL };
    static const char *const inner[] = { "name", "description", "schema", "strict", NULL };
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *schema = json_object_get(v, "json_schema");

    if (!type)
        return fault_set(f, BAD, field, "response_format must be an object with a type");
    if (!strcmp(type, "text"))
        return 0;
    if (check_keys(rq, v, field, outer, f) < 0)
        return -1;
    if (!strcmp(type, "json_object"))
        return set(rq, GRAMMAR_JSON_OBJECT, 0, strdup(""), field, f);
    if (strcmp(type, "json_schema"))
        return fault_set(f, BAD, field, "response_format.type must be text, json_object or json_schema");
    if (!json_is_object(schema))
        return fault_set(f, BAD, field, "response_format.json_schema must be an object with a schema");
    if (check_keys(rq, schema, "response_format.json_schema", inner, f) < 0)
        return -1;
    return read_schema(rq, json_object_get(schema, "schema"), field, 0, f);
}

static int read_choice(struct request *rq, const json_t *v, const char *field, struct fault *f)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return fault_set(f, BAD, field, "structured_outputs.choice[%zu] is not a text", i);
    if (!json_array_size(v))
        return fault_set(f, BAD, field, "structured_outputs.choice must be a list of texts");
    return set(rq, GRAMMAR_CHOICE, 0, dump(v), field, f);
}

static int read_text(struct request *rq, const json_t *v, const char *key, enum grammar_kind kind,
                     struct fault *f)
{
    if (!json_is_string(v))
        return fault_set(f, BAD, "structured_outputs", "structured_outputs.%s must be a text", key);
    return set(rq, kind, 0, strdup(json_string_value(v)), "structured_outputs", f);
}

/* A schema may come as a text, too. */
static int read_json(struct request *rq, const json_t *v, unsigned flags, struct fault *f)
{
    if (json_is_string(v))
        return set(rq, GRAMMAR_SCHEMA, flags | GRAMMAR_IN_ORDER, strdup(json_string_value(v)),
                   "structured_outputs", f);
    return read_schema(rq, v, "structured_outputs", flags, f);
}

int structured_read_outputs(struct request *rq, const json_t *v, struct fault *f)
{
    static const char field[] = "structured_outputs";
    static const char *const known[] = { "json",    "regex",       "choice",
                                         "grammar", "json_object", "disable_any_whitespace",
                                         NULL };
    const json_t *json = json_object_get(v, "json"), *regex = json_object_get(v, "regex");
    const json_t *choice = json_object_get(v, "choice"), *rules = json_object_get(v, "grammar");
    const json_t *compact = json_object_get(v, "disable_any_whitespace");
    unsigned flags = json_is_true(compact) ? GRAMMAR_COMPACT : 0;
    int any_object = json_is_true(json_object_get(v, "json_object")), n = any_object;

    if (!json_is_object(v))
        return fault_set(f, BAD, field, "structured_outputs must be an object");
    if (json_object_get(v, "structural_tag") && !json_is_null(json_object_get(v, "structural_tag")))
        return fault_set(
            f, BAD, field,
            "structured_outputs.structural_tag is not supported here: use tools for calls, or json, "
            "regex, choice, grammar");
    if (check_keys(rq, v, field, known, f) < 0)
        return -1;
    n += (json && !json_is_null(json)) + (regex && !json_is_null(regex)) + (choice && !json_is_null(choice)) +
         (rules && !json_is_null(rules));
    if (n != 1)
        return fault_set(
            f, BAD, field,
            "structured_outputs has %d of json, regex, choice, grammar and json_object: give one", n);

    if (any_object)
        return set(rq, GRAMMAR_JSON_OBJECT, flags, strdup(""), field, f);
    if (json && !json_is_null(json))
        return read_json(rq, json, flags, f);
    if (regex && !json_is_null(regex))
        return read_text(rq, regex, "regex", GRAMMAR_REGEX, f);
    if (rules && !json_is_null(rules))
        return read_text(rq, rules, "grammar", GRAMMAR_EBNF, f);
    return read_choice(rq, choice, field, f);
}

int structured_set_tools(struct request *rq, const char *name, int required, struct fault *f)
{
    struct structured *s = &rq->structured;
    json_t *all = json_pack("{s:O, s:b, s:b, s:s*}", "tools", rq->tools, "required", required, "parallel",
                            rq->parallel_tools, "name", name);

    if (!rq->sv->grammars)
        return fault_set(f, BAD, "tools", "calls of tools cannot be held to a form here");
    s->tools = all ? json_dumps(all, JSON_COMPACT) : NULL;
    s->n_tools = s->tools ? strlen(s->tools) : 0;
    json_decref(all);
    return s->tools ? 0 : fault_set(f, 500, "tools", "no memory for the tools");
}

int structured_refuse_old(const char *name, struct fault *f)
{
    static const struct {
        const char *old, *now;
    } names[] = { { "guided_json", "json" },
                  { "guided_regex", "regex" },
                  { "guided_choice", "choice" },
                  { "guided_grammar", "grammar" },
                  { "structural_tag", "structural_tag" } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].old, name))
            return fault_set(f, BAD, name, "%s is now structured_outputs: {\"%s\": …}", name, names[i].now);
    return fault_set(f, BAD, name, "%s has no effect any more: leave it out, and use structured_outputs",
                     name);
}

/* --- grammars --- */

/* The grammar of an answer with calls, or of this spec where it has none; NULL: any text. */
static int open_calls(struct grammar **out, const struct service *sv, const struct structured *s,
                      const struct grammar_spec *spec, const struct work_limit *limit, struct err *e)
{
    json_t *all = json_loadb(s->tools, s->n_tools, 0, NULL);
    const struct tool_constraint how = { .tools = json_object_get(all, "tools"),
                                         .name = json_string_value(json_object_get(all, "name")),
                                         .required = json_is_true(json_object_get(all, "required")),
                                         .parallel = json_is_true(json_object_get(all, "parallel")),
                                         .in_reasoning = s->behind == 2,
                                         .answer = spec };
    int rc = all ? tools_grammar(out, &sv->form, &how, limit, e)
                 : err_set(e, ERR_MEMORY, "no memory for the tools");
    json_decref(all);
    return rc;
}

/* The grammar of the whole answer: of the spec, after reasoning where the model may write some, or with
 * calls of tools as alternatives. */
static int open_spec(struct grammar **out, const struct service *sv, const struct structured *s,
                     const struct grammar_spec *spec, const struct work_limit *limit, struct err *e)
{
    if (s->tools)
        return open_calls(out, sv, s, spec, limit, e);
    return s->behind ? tools_grammar_answer(out, &sv->form, s->behind == 2, spec, limit, e)
                     : grammar_open(out, spec, limit, e);
}

/* Compiles a list of texts. */
static int open_choice(struct grammar **out, const struct service *sv, const struct structured *s,
                       const struct work_limit *limit, struct err *e)
{
    json_t *list = json_loadb(s->text, s->n, 0, NULL);
    size_t n = json_array_size(list);
    struct grammar_spec *part = calloc(n + 1, sizeof *part);
    struct grammar_spec all = { .kind = GRAMMAR_CHOICE, .part = part, .n_parts = n };
    int rc = part ? 0 : err_set(e, ERR_MEMORY, "no memory for a list of texts");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const json_t *v = json_array_get(list, i);
        part[i] = (struct grammar_spec){ .kind = GRAMMAR_LITERAL,
                                         .text = json_string_value(v),
                                         .n = json_string_length(v) };
    }
    if (rc == 0)
        rc = open_spec(out, sv, s, &all, limit, e);
    free(part);
    json_decref(list);
    return rc;
}

static int compile(struct grammar **out, const struct service *sv, const struct structured *s,
                   const struct work_limit *limit, struct err *e)
{
    if (!s->kind)
        return open_spec(out, sv, s, NULL, limit, e);
    const struct grammar_spec spec = {
        .kind = (enum grammar_kind)(s->kind - 1), .flags = s->flags, .text = s->text, .n = s->n
    };
    return spec.kind == GRAMMAR_CHOICE ? open_choice(out, sv, s, limit, e)
                                       : open_spec(out, sv, s, &spec, limit, e);
}

int structured_open(struct request *rq, struct fault *f)
{
    struct structured *s = &rq->structured;
    struct grammar_cache *c = rq->sv->grammars;
    const char *field = !s->kind ? "tools" : s->of_format ? "response_format" : "structured_outputs";
    struct err e = { 0 };
    if (!s->kind && !s->tools)
        return 0;
    if (!c || !rq->sv->tok)
        return fault_set(f, BAD, field, "a constrained answer needs a tokenizer, and this model has none");
    const struct tool_form *form = &rq->sv->form;
    if (rq->chat && (form->reasoning || tools_always(form)))
        s->behind = 1 + rq->in_reasoning;
    if (!(rq->grammar = find(c, s))) {
        const struct work_limit limit = prompt_work_limit(rq->sv, rq->begin_s);
        int rc = compile(&rq->grammar, rq->sv, s, &limit, &e);
        if (rc < 0)
            return prompt_fault(rq->sv, rc, &e, field, f);
        if (count_in(c, rq->grammar, &e) < 0)
            return fault_set(f, 503, field, "%s", e.text);
        keep(c, s, rq->grammar);
    }
    return grammar_cache_trie(c, rq->sv, &e) ? 0 : fault_set(f, 500, field, "%s", e.text);
}

/* constrain.c - grammars of the calls that a family of models writes. See text/tools.h.
 *
 *     a call is asked for:   reasoning, if the form has it; the calls
 *     else:                  reasoning; text without marks; calls; text; …
 *
 * Arguments are JSON of the tool's schema without white space, or parameters whose values are. */
#include <stdlib.h>
#include <string.h>
#include "text/grammar.h"
#include "text/tools/parse.h"

#define PARTS 8           /* of a sequence that is written out in the code */
#define OPTIONAL_FIRST 16 /* parameters that may be the first where none is required */

enum { NO_MEMORY = 1, BAD_SCHEMA };
/* What is built, and its memory, which lives until the grammar is compiled. */
struct builder {
    const struct tool_family *f;
    const struct reasoning_marks *r;
    const struct tool_constraint *how;
    const struct work_limit *limit;
    void **mem;
    size_t n, cap;
    int failed;
};

static void *keep(struct builder *b, size_t bytes)
{
    void *p = calloc(1, bytes + 1);

    if (b->n == b->cap) {
        size_t cap = 2 * b->cap + 64;
        void **q = realloc(b->mem, cap * sizeof *q);
        b->failed = q ? b->failed : NO_MEMORY;
        b->cap = q ? cap : b->cap;
        b->mem = q ? q : b->mem;
    }
    if (!p || b->n == b->cap) {
        b->failed = NO_MEMORY;
        free(p);
        return NULL;
    }
    return b->mem[b->n++] = p;
}

/* ---- parts ---- */

static struct grammar_spec text_of(struct builder *b, enum grammar_kind kind, unsigned flags, const char *s,
                                   size_t n)
{
    char *copy = keep(b, n);
    if (copy)
        memcpy(copy, s, n);
    return (struct grammar_spec){ .kind = kind, .flags = flags, .text = copy, .n = copy ? n : 0 };
}

static struct grammar_spec literal(struct builder *b, const char *s)
{
    return text_of(b, GRAMMAR_LITERAL, GRAMMAR_ADDED_TOKENS, s ? s : "", s ? strlen(s) : 0);
}

/* A list that grows to `max` parts. */
struct parts {
    struct grammar_spec *v;
    size_t n;
};

static struct parts parts_open(struct builder *b, size_t max)
{
    return (struct parts){ keep(b, (max + 1) * sizeof(struct grammar_spec)), 0 };
}

static void add(struct parts *p, struct grammar_spec s)
{
    if (p->v && (s.kind != GRAMMAR_LITERAL || s.n))
        p->v[p->n++] = s;
}

static struct grammar_spec sequence(const struct parts *p)
{
    return (struct grammar_spec){ .kind = GRAMMAR_SEQUENCE, .part = p->v, .n_parts = p->n };
}

static struct grammar_spec any_of(const struct parts *p)
{
    return (struct grammar_spec){ .kind = GRAMMAR_ANY_OF, .part = p->v, .n_parts = p->n };
}

static struct grammar_spec repeat(struct builder *b, struct grammar_spec what, int64_t min, int64_t max)
{
    struct parts one = parts_open(b, 1);
    if (one.v)
        one.v[one.n++] = what;
    return (struct grammar_spec){
        .kind = GRAMMAR_REPEAT, .part = one.v, .n_parts = one.n, .min = min, .max = max
    };
}

/* Text without the marks; NULL entries end the list or are skipped. */
static struct grammar_spec free_text(struct builder *b, const char *const *marks, size_t n)
{
    struct parts p = parts_open(b, n);
    for (size_t i = 0; i < n; i++)
        if (marks[i])
            add(&p, literal(b, marks[i]));
    return (struct grammar_spec){
        .kind = GRAMMAR_FREE, .flags = GRAMMAR_ADDED_TOKENS, .part = p.v, .n_parts = p.n
    };
}

/* ---- arguments ---- */

static struct grammar_spec schema(struct builder *b, const json_t *s)
{
    char *text = json_dumps(s, JSON_COMPACT | JSON_ENCODE_ANY);
    b->failed = text ? b->failed : NO_MEMORY;
    struct grammar_spec spec = text_of(b, GRAMMAR_SCHEMA, GRAMMAR_COMPACT, text ? text : "",
                                       text ? strlen(text) : 0);
    free(text);
    return spec;
}

/* Can the schema be held? */
static int compiles(const struct builder *b, const struct grammar_spec *spec, struct err *e)
{
    struct grammar *g = NULL;
    int rc = grammar_open(&g, spec, b->limit, e);
    grammar_close(g);
    return rc >= 0;
}

/* All arguments of a tool as one object. A schema that cannot be held is an error of a strict tool; else any
 * object will do. */
static struct grammar_spec arguments(struct builder *b, const json_t *fn, struct err *e)
{
    const json_t *parameters = json_object_get(fn, "parameters");
    int strict = json_is_true(json_object_get(fn, "strict"));

    if (!json_is_object(parameters))
        return literal(b, "{}");
    struct grammar_spec s = schema(b, parameters);
    if (!b->failed && !compiles(b, &s, e)) {
        if (!strict && e->code == ERR_CONFIG)
            return (struct grammar_spec){ .kind = GRAMMAR_JSON_OBJECT, .flags = GRAMMAR_COMPACT };
        err_add(e, "tool %s", json_string_value(json_object_get(fn, "name")));
        b->failed = BAD_SCHEMA;
    }
    return s;
}

/* ---- parameters one by one ---- */

/* A parameter's schema with the definitions that it may refer to; a new reference. */
static json_t *own_schema(const json_t *parameters, const json_t *one)
{
    static const char *const keys[] = { "$defs", "definitions" };
    json_t *s = json_is_object(one) ? json_copy((json_t *)(uintptr_t)one) : json_object();
    for (size_t i = 0; i < 2; i++)
        if (json_object_get(parameters, keys[i]))
            json_object_set(s, keys[i], json_object_get(parameters, keys[i]));
    return s;
}

/* Is any text a value? */
static int is_free_text(const json_t *s)
{
    static const char *const narrow[] = { "enum", "const", "pattern", "format", "minLength", "maxLength" };
    const char *type = json_string_value(json_object_get(s, "type"));
    int is = type && !strcmp(type, "string");
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        is = is && !json_object_get(s, narrow[i]);
    return is;
}

/* The texts of an enum of texts as they are written without quotes. n_parts 0: it is none. */
static struct grammar_spec words(struct builder *b, const json_t *s)
{
    const json_t *list = json_object_get(s, "enum"), *v;
    struct parts p = parts_open(b, json_array_size(list));
    size_t i;
    json_array_foreach(list, i, v) {
        if (!json_is_string(v))
            return (struct grammar_spec){ 0 };
        struct grammar_spec one = text_of(b, GRAMMAR_LITERAL, 0, json_string_value(v), json_string_length(v));
        if (p.v)
            p.v[p.n++] = one;
    }
    return (struct grammar_spec){ .kind = GRAMMAR_CHOICE, .part = p.v, .n_parts = p.n };
}

/* A value: a text as it is where the family writes it so, else JSON. end: the mark that no text has. */
static struct grammar_spec value(struct builder *b, const json_t *fn, const json_t *s, const char *end,
                                 struct err *e)
{
    struct grammar_spec w = end ? words(b, s) : (struct grammar_spec){ 0 };
    int any = is_free_text(s), strict = json_is_true(json_object_get(fn, "strict"));
    const char *type = json_string_value(json_object_get(s, "type"));

    if (w.n_parts)
        return w;
    if (end && (any || (type && !strcmp(type, "string") && !strict)))
        return free_text(b, &end, 1);
    json_t *own = own_schema(json_object_get(fn, "parameters"), s);
    struct grammar_spec spec = schema(b, own);
    json_decref(own);
    if (!b->failed && !compiles(b, &spec, e)) {
        if (!strict && e->code == ERR_CONFIG && end)
            return free_text(b, &end, 1);
        err_add(e, "tool %s", json_string_value(json_object_get(fn, "name")));
        b->failed = BAD_SCHEMA;
    }
    return spec;
}

/* One parameter as the family writes it. */
static struct grammar_spec param(struct builder *b, const json_t *fn, const char *key, const json_t *s,
                                 struct err *e)
{
    const struct tool_family *f = b->f;
    int lines = f->flags & CALL_LINES && f->form == FORM_PARAMS,
        text = is_free_text(s) || json_object_get(s, "enum");
    struct parts p = parts_open(b, 12);

    if (f->form == FORM_PYTHON || f->form == FORM_GEMMA) {
        int quoted = f->form == FORM_GEMMA && is_free_text(s);
        add(&p, literal(b, key));
        add(&p, literal(b, f->form == FORM_GEMMA ? ":" : "="));
        add(&p, literal(b, quoted ? f->param[0] : ""));
        add(&p, value(b, fn, s, quoted ? f->param[0] : NULL, e));
        add(&p, literal(b, quoted ? f->param[0] : ""));
        return sequence(&p);
    }
    add(&p, literal(b, f->param[0]));
    add(&p, literal(b, key));
    if (f->flags & CALL_TYPED)
        add(&p, literal(b, text ? "\" string=\"true\"" : "\" string=\"false\""));
    add(&p, literal(b, f->param[1]));
    add(&p, literal(b, f->param[2] ? "\n" : ""));
    add(&p, literal(b, f->param[2]));
    add(&p, literal(b, lines ? "\n" : ""));
    add(&p, value(b, fn, s, f->param[3], e));
    add(&p, literal(b, lines ? "\n" : ""));
    add(&p, literal(b, f->param[3]));
    add(&p, literal(b, "\n"));
    return sequence(&p);
}

static int is_required(const json_t *parameters, const char *key)
{
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(parameters, "required"), i, one)
        if (json_is_string(one) && !strcmp(json_string_value(one), key))
            return 1;
    return 0;
}

/* Parameters from number `first` on, of which those that are not required may be left out. comma: stands
 * between them. */
static struct grammar_spec following(struct builder *b, const struct grammar_spec *v, const char *must,
                                     size_t n, size_t first, const char *comma)
{
    struct parts all = parts_open(b, n);
    for (size_t i = first; i < n; i++) {
        struct parts one = parts_open(b, 2);
        add(&one, literal(b, i > first ? comma : ""));
        add(&one, v[i]);
        struct grammar_spec s = sequence(&one);
        add(&all, must[i] || i == first ? s : repeat(b, s, 0, 1));
    }
    return sequence(&all);
}

/* All parameters of a tool, the required ones first. */
static struct grammar_spec params(struct builder *b, const json_t *fn, struct err *e)
{
    const json_t *parameters = json_object_get(fn, "parameters"),
                 *properties = json_object_get(parameters, "properties"), *s;
    size_t n = 0, count = json_object_size(properties), required = 0;
    const char *key, *comma = b->f->form == FORM_PARAMS ? "" : b->f->form == FORM_GEMMA ? "," : ", ";
    struct grammar_spec *v = keep(b, (count + 1) * sizeof *v);
    char *must = keep(b, count + 1);

    for (int pass = 1; pass >= 0 && v && must; pass--)
        json_object_foreach((json_t *)(uintptr_t)properties, key, s)
            if (is_required(parameters, key) == pass && !b->failed) {
                must[n] = (char)pass;
                required += (size_t)pass;
                v[n++] = param(b, fn, key, s, e);
            }
    if (b->failed || !n)
        return literal(b, "");
    if (required)
        return following(b, v, must, n, 0, comma);
    struct parts ways = parts_open(b, OPTIONAL_FIRST);
    for (size_t i = 0; i < n && i < OPTIONAL_FIRST; i++)
        add(&ways, following(b, v, must, n, i, comma));
    return repeat(b, any_of(&ways), 0, 1);
}

/* ---- calls ---- */

/* A call's name and arguments with the marks of its own. */
static struct grammar_spec one_call(struct builder *b, const json_t *fn, struct err *e)
{
    const struct tool_family *f = b->f;
    const char *name = json_string_value(json_object_get(fn, "name"));
    struct parts p = parts_open(b, 16);

    add(&p, literal(b, f->begin));
    switch (f->form) {
    case FORM_JSON:
        add(&p, literal(b, "{\""));
        if (!(f->flags & CALL_KEYED)) {
            add(&p, literal(b, f->keys[0] ? f->keys[0] : "name"));
            add(&p, literal(b, "\": \""));
        }
        add(&p, literal(b, name));
        if (!(f->flags & CALL_KEYED)) {
            add(&p, literal(b, "\", \""));
            add(&p, literal(b, f->keys[1] ? f->keys[1] : "arguments"));
        }
        add(&p, literal(b, "\": "));
        add(&p, arguments(b, fn, e));
        add(&p, literal(b, "}"));
        return sequence(&p);
    case FORM_PYTHON:
    case FORM_GEMMA:
        add(&p, literal(b, name));
        add(&p, literal(b, f->form == FORM_GEMMA ? "{" : "("));
        add(&p, params(b, fn, e));
        add(&p, literal(b, f->form == FORM_GEMMA ? "}" : ")"));
        return sequence(&p);
    case FORM_CHANNELS:
        add(&p, literal(b, "<|channel|>commentary to=functions."));
        add(&p, literal(b, name));
        add(&p, literal(b, " <|constrain|>json<|message|>"));
        add(&p, arguments(b, fn, e));
        return sequence(&p);
    case FORM_NAMED:
    case FORM_PARAMS: break;
    }

    if (f->flags & CALL_ID) {
        add(&p, text_of(b, GRAMMAR_REGEX, 0, "[a-z0-9]{10}", strlen("[a-z0-9]{10}")));
        add(&p, literal(b, f->id_end));
    }
    add(&p, literal(b, f->flags & CALL_COUNTED ? "functions." : ""));
    add(&p, literal(b, name));
    if (f->flags & CALL_COUNTED)
        add(&p, text_of(b, GRAMMAR_REGEX, 0, ":[0-9]{1,4}", strlen(":[0-9]{1,4}")));
    add(&p, literal(b, f->name_end));
    add(&p, literal(b, f->fence));
    add(&p, literal(b, f->fence || f->form == FORM_PARAMS ? "\n" : ""));
    add(&p, f->form == FORM_PARAMS ? params(b, fn, e) : arguments(b, fn, e));
    add(&p, literal(b, f->fence ? "\n```" : ""));
    add(&p, literal(b, f->end));
    return sequence(&p);
}

/* One call of any of the tools. */
static struct grammar_spec any_call(struct builder *b, struct err *e)
{
    const json_t *tool;
    struct parts p = parts_open(b, json_array_size(b->how->tools));
    size_t i;

    json_array_foreach(b->how->tools, i, tool) {
        const json_t *fn = json_object_get(tool, "function");
        if (b->failed)
            break;
        if (!b->how->name || !strcmp(b->how->name, json_string_value(json_object_get(fn, "name"))))
            add(&p, one_call(b, fn, e));
    }
    return any_of(&p);
}

/* A sequence of what, once or, in parallel, again behind `between`. */
static struct grammar_spec some(struct builder *b, struct grammar_spec what, const char *between)
{
    struct parts again = parts_open(b, 2), all = parts_open(b, 2);

    if (!b->how->parallel)
        return what;
    add(&again, literal(b, between));
    add(&again, what);
    add(&all, what);
    add(&all, repeat(b, sequence(&again), 0, -1));
    return sequence(&all);
}

/* All calls with their marks, as tools_write() writes them. */
static struct grammar_spec all_calls(struct builder *b, struct err *e)
{
    const struct tool_family *f = b->f;
    int list = !!(f->flags & CALL_LIST), line = f->flags & CALL_LINES || (f->form == FORM_PARAMS && f->begin);
    int together = list || (f->begin && f->form == FORM_NAMED),
        bare = f->flags & CALL_BARE && f->form == FORM_JSON;
    struct parts p = parts_open(b, PARTS);
    struct grammar_spec call = any_call(b, e);

    if (f->form == FORM_CHANNELS || (bare && !list))
        return bare ? some(b, call, "; ") : call;
    if (!(f->flags & CALL_TALK) || !b->how->required)
        add(&p, literal(b, f->open[0]));
    add(&p, literal(b, line ? "\n" : ""));
    add(&p, literal(b, list ? "[" : ""));
    add(&p, together ? some(b, call, list ? ", " : "") : call);
    add(&p, literal(b, list ? "]" : ""));
    add(&p, literal(b, line ? "\n" : ""));
    add(&p, literal(b, f->close));
    if (together)
        return sequence(&p);
    if (!(f->flags & CALL_TALK))
        return some(b, sequence(&p), line ? "\n" : "");
    return sequence(&p);
}

/* ---- reasoning and text ---- */

/* The model's reasoning before anything else; n_parts 0: it has none. */
static struct grammar_spec thoughts(struct builder *b)
{
    const struct reasoning_marks *r = b->r;
    struct parts p = parts_open(b, PARTS);

    if (b->f && b->f->form == FORM_CHANNELS) {
        static const char end[] = "<|end|>";
        add(&p, literal(b, "<|channel|>analysis<|message|>"));
        add(&p, free_text(b, &(const char *){ end }, 1));
        add(&p, literal(b, "<|end|><|start|>assistant"));
        return repeat(b, sequence(&p), 0, -1);
    }
    if (!r)
        return (struct grammar_spec){ 0 };
    if (!b->how->in_reasoning)
        add(&p, literal(b, r->begin[0]));
    add(&p, free_text(b, &r->end, 1));
    add(&p, literal(b, r->end));
    add(&p, text_of(b, GRAMMAR_REGEX, 0, "\\n{0,2}", strlen("\\n{0,2}")));
    if (b->f && b->f->flags & CALL_ID) /* this family begins another message behind it */
        add(&p, literal(b, r->drop[0]));
    return b->how->in_reasoning ? sequence(&p) : repeat(b, sequence(&p), 0, 1);
}

/* An answer that holds no calls, or the text between them. */
static struct grammar_spec plain(struct builder *b)
{
    static const char *const ends[] = { "<|end|>", "<|call|>", "<|channel|>", "<|start|>" };
    int channels = b->f->form == FORM_CHANNELS;
    struct parts p = parts_open(b, 2);

    if (channels || b->how->answer) {
        add(&p, literal(b, channels ? "<|channel|>final<|message|>" : ""));
        add(&p, b->how->answer ? *b->how->answer : free_text(b, ends, 4));
        return sequence(&p);
    }
    return free_text(b, b->f->open, MARKS);
}

static struct grammar_spec whole(struct builder *b, struct err *e)
{
    struct parts p = parts_open(b, PARTS), ways = parts_open(b, PARTS), again = parts_open(b, PARTS);
    struct grammar_spec think = thoughts(b), calls = all_calls(b, e);

    if (think.n_parts)
        add(&p, think);
    if (b->how->required) {
        add(&p, calls);
    } else if (b->how->answer || b->f->form == FORM_CHANNELS) {
        add(&ways, calls);
        add(&ways, plain(b));
        add(&p, any_of(&ways));
    } else if (b->f->flags & CALL_BARE) {
        static const char not_a_call[] = "([^{\\[\\s][\\s\\S]*)?";
        add(&ways, calls);
        add(&ways, text_of(b, GRAMMAR_REGEX, 0, not_a_call, strlen(not_a_call)));
        add(&p, any_of(&ways));
    } else {
        add(&p, plain(b));
        add(&again, calls);
        add(&again, plain(b));
        add(&p, repeat(b, sequence(&again), 0, b->how->parallel ? -1 : 1));
    }
    return sequence(&p);
}

/* Compiles what was built, and frees its memory. */
static int finish(struct builder *b, struct grammar **out, const struct grammar_spec *spec, struct err *e)
{
    int rc = b->failed == BAD_SCHEMA ? -e->code
             : b->failed             ? err_set(e, ERR_MEMORY, "no memory for the grammar of the tools")
                                     : 0;

    if (rc == 0)
        rc = grammar_open(out, spec, b->limit, e);
    for (size_t i = 0; i < b->n; i++)
        free(b->mem[i]);
    free(b->mem);
    return rc < 0 ? rc : 0;
}

int tools_grammar_answer(struct grammar **out, const struct tool_form *form, int in_reasoning,
                         const struct grammar_spec *answer, const struct work_limit *limit, struct err *e)
{
    const struct tool_constraint how = { .in_reasoning = in_reasoning };
    struct builder b = { .f = form->calls, .r = form->reasoning, .how = &how, .limit = limit };
    struct parts p = parts_open(&b, PARTS);
    struct grammar_spec think = thoughts(&b);

    if (think.n_parts)
        add(&p, think);
    if (b.f && b.f->form == FORM_CHANNELS)
        add(&p, literal(&b, "<|channel|>final<|message|>"));
    add(&p, *answer);
    struct grammar_spec spec = sequence(&p);
    return finish(&b, out, &spec, e);
}

int tools_grammar(struct grammar **out, const struct tool_form *form, const struct tool_constraint *how,
                  const struct work_limit *limit, struct err *e)
{
    struct builder b = { .f = form->calls, .r = form->reasoning, .how = how, .limit = limit };
    struct grammar_spec spec = whole(&b, e);
    return finish(&b, out, &spec, e);
}

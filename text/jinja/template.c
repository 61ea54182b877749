/* template.c - chat templates: opening one, or those of a folder; rendering within limits. */
#include "text/template.h"

#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "text/tok.h"
#include "text/jinja/tpl.h"

#define SOURCE_LIMIT ((size_t)4 << 20)
#define PARSE_LIMIT ((size_t)256 << 20)
#define PARSE_STEPS ((int64_t)100000000)
#define DEFAULT_STEPS ((int64_t)20000000)
#define DEFAULT_BYTES ((size_t)512 << 20)

struct program {
    char *name, *source;
    size_t n_source;
    struct heap heap;
    struct node *root;
    int generations; /* its blocks {% generation %} */
};
struct template
{
    char *what;
    struct program *prog;
    size_t n_prog;
    json_t *tokens; /* special tokens of the folder (bos_token, …), or NULL */
    int chosen;     /* a name was given: always render prog[0] */
};

void template_close(struct template *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_prog; i++) {
        free(t->prog[i].name);
        free(t->prog[i].source);
        heap_free(&t->prog[i].heap);
    }

    json_decref(t->tokens);
    free(t->prog);
    free(t->what);
    free(t);
}

static struct template *new_template(const char *what)
{
    struct template *t = calloc(1, sizeof *t);
    if (t && !(t->what = strdup(what))) {
        free(t);
        t = NULL;
    }
    return t;
}

static int add_program(struct template *t, const char *name, const char *text, size_t n, struct err *e)
{
    struct program *q = realloc(t->prog, (t->n_prog + 1) * sizeof *q);
    if (!q)
        return text_memory(e);
    t->prog = q;
    q += t->n_prog;
    *q = (struct program){ .name = strdup(name) };
    if (!q->name)
        return text_memory(e);
    t->n_prog++;
    struct tpl parse = {
        .e = e, .what = t->what, .steps = PARSE_STEPS, .line = 1, .heap.limit = PARSE_LIMIT
    };

    if (n > SOURCE_LIMIT)
        return err_set(e, ERR_CONFIG, "%s: a template of %zu bytes, %zu are allowed: is it one", t->what, n,
                       SOURCE_LIMIT);
    if (!(q->source = malloc(n + 1)))
        return text_memory(e);
    memcpy(q->source, text, n);
    q->n_source = n;
    q->root = tpl_parse(&parse, text, n, &q->generations);
    q->heap = parse.heap;
    if (q->root)
        return 0;
    /* a limit reached while parsing is the template's fault, not a request's */
    e->code = e->code == ERR_USAGE ? ERR_CONFIG : e->code;
    return -e->code;
}

int template_open(struct template **out, const char *text, size_t n, const char *what, struct err *e)
{
    struct template *t = new_template(what);
    int rc = t ? add_program(t, "default", text, n, e) : text_memory(e);
    if (rc < 0)
        template_close(t);
    else
        *out = t;
    return rc;
}

int template_add_tools(struct template *t, const char *text, size_t n, struct err *e)
{
    return add_program(t, "tool_use", text, n, e);
}

/* --- a folder --- */

static int read_program(struct template *t, const char *name, const char *dir, const char *file,
                        struct err *e)
{
    char path[4096];
    void *text = NULL;
    size_t n;
    int rc = 0;
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
        return err_set(e, ERR_FILE, "the path of the template's folder is too long");
    if (!io_exists(path))
        return 0;
    TRY(io_read_file(path, SOURCE_LIMIT, &text, &n, e));
    TRY(add_program(t, name, text, n, e));
    rc = 1;
out:
    free(text);
    return rc;
}

static int read_config(const char *dir, const char *file, json_t **out, struct err *e)
{
    char path[4096];
    void *text = NULL;
    size_t n;
    int rc = 0;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
        return err_set(e, ERR_FILE, "the path of the template's folder is too long");
    if (!io_exists(path))
        return 0;
    TRY(io_read_file(path, (size_t)256 << 20, &text, &n, e));
    if (!(*out = text_json(text, n, path, e)))
        rc = -e->code;
out:
    free(text);
    return rc;
}

/* chat_template of tokenizer_config.json: a text, or [{"name", "template"}, …] */
static int config_programs(struct template *t, const json_t *config, struct err *e)
{
    const json_t *j = json_object_get(config, "chat_template"), *one;
    size_t i;

    if (!j || json_is_null(j))
        return 0;
    if (json_is_string(j))
        return add_program(t, "default", json_string_value(j), json_string_length(j), e);
    if (!json_is_array(j))
        return err_set(e, ERR_CONFIG, "%s: chat_template is neither a text nor a list of templates", t->what);
    json_array_foreach(j, i, one) {
        const json_t *name = json_object_get(one, "name"), *text = json_object_get(one, "template");
        if (!json_is_string(name) || !json_is_string(text))
            return err_set(e, ERR_CONFIG, "%s: chat_template[%zu] has no name or no template", t->what, i);
        int rc = add_program(t, json_string_value(name), json_string_value(text), json_string_length(text),
                             e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Adds the special tokens of a config as variables; existing ones are kept. */
static int add_special_tokens(struct template *t, const json_t *config, struct err *e)
{
    static const char *const names[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                         "pad_token", "cls_token", "mask_token" };
    if (!t->tokens && !(t->tokens = json_object()))
        return text_memory(e);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *j = json_object_get(config, names[i]);
        if (json_is_object(j))
            j = json_object_get(j, "content");
        if (json_is_string(j) && !json_object_get(t->tokens, names[i]) &&
            json_object_set(t->tokens, names[i], j) < 0)
            return text_memory(e);
    }
    return 0;
}

static const struct program *find_program(const struct template *t, const char *name)
{
    for (size_t i = 0; i < t->n_prog; i++)
        if (!strcmp(t->prog[i].name, name))
            return &t->prog[i];
    return NULL;
}

/* Selects the template of that name. */
static int choose_program(struct template *t, const char *dir, const char *name, struct err *e)
{
    char file[512];
    const struct program *p;
    if (strchr(name, '/') ||
        snprintf(file, sizeof file, "additional_chat_templates/%s.jinja", name) >= (int)sizeof file)
        return err_set(e, ERR_CONFIG, "%.200s is not the name of a template", name);
    int rc = find_program(t, name) ? 0 : read_program(t, name, dir, file, e);
    if (rc < 0)
        return rc;
    if (!(p = find_program(t, name)))
        return err_set(e, ERR_CONFIG, "%s has no template named %.200s", t->what, name);
    struct program first = t->prog[0];
    t->prog[0] = *p;
    t->prog[p - t->prog] = first;
    t->chosen = 1;
    return 0;
}

/* Adds what the configs have: templates, where there is no file of its own, and special tokens. */
static int add_configs(struct template *t, int in_file, const json_t *config, const json_t *map,
                       struct err *e)
{
    int rc = in_file ? 0 : config_programs(t, config, e);
    if (rc >= 0)
        rc = add_special_tokens(t, config, e);
    return rc < 0 ? rc : add_special_tokens(t, map, e);
}

/* Moves a template that has programs to *out: 1. 0: it has none. */
static int hand_over(struct template **t, struct template **out, struct err *e)
{
    if (!(*t)->n_prog)
        return 0;
    if (!(*t)->chosen && !find_program(*t, "default"))
        return err_set(e, ERR_CONFIG, "%s: none of the templates is named default: choose one by its name",
                       (*t)->what);
    *out = *t;
    *t = NULL;
    return 1;
}

static int parse_part(const struct template_part *p, const char *what, json_t **out, struct err *e)
{
    *out = p->data ? text_json(p->data, p->n, what, e) : NULL;
    return p->data && !*out ? -e->code : 0;
}

int template_open_parts(struct template **out, const struct template_parts *p, struct err *e)
{
    struct template *t = new_template(p->what);
    json_t *config = NULL, *map = NULL;
    int rc = 0;

    *out = NULL;
    if (!t)
        return text_memory(e);
    if (p->jinja.data)
        TRY(add_program(t, "default", p->jinja.data, p->jinja.n, e));
    TRY(parse_part(&p->config, "tokenizer_config.json", &config, e));
    TRY(parse_part(&p->map, "special_tokens_map.json", &map, e));
    TRY(add_configs(t, p->jinja.data != NULL, config, map, e));
    rc = hand_over(&t, out, e);
out:
    json_decref(config);
    json_decref(map);
    template_close(t);
    return rc;
}

int template_open_dir(struct template **out, const char *dir, const char *name, struct err *e)
{
    struct template *t = new_template(dir);
    json_t *config = NULL, *map = NULL;
    int rc = 0;

    *out = NULL;
    if (!t)
        return text_memory(e);
    TRY(read_program(t, "default", dir, "chat_template.jinja", e));
    int in_file = rc;
    TRY(read_config(dir, "tokenizer_config.json", &config, e));
    TRY(read_config(dir, "special_tokens_map.json", &map, e));
    TRY(add_configs(t, in_file, config, map, e));
    if (name)
        TRY(choose_program(t, dir, name, e));
    rc = hand_over(&t, out, e);
out:
    json_decref(config);
    json_decref(map);
    template_close(t);
    return rc;
}

/* --- rendering --- */

static int set_json(struct tpl *t, const char *name, const json_t *j, int user)
{
    struct val v = v_none(), k;
    char *copy = tpl_alloc(t, strlen(name) + 1);
    if (!copy)
        return t->failed;
    memcpy(copy, name, strlen(name));
    if (j)
        RETURN_IF_ERROR(v_from_json(t, j, user, &v));
    RETURN_IF_ERROR(v_str(t, copy, strlen(name), NULL, &k));
    return scope_set(t, t->scope, k.u.s, v);
}

static int set_all(struct tpl *t, const json_t *object, int user)
{
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
        RETURN_IF_ERROR(set_json(t, key, v, user));
    return 0;
}

static int set_variables(struct tpl *t, const struct template *tmpl, const struct template_request *r)
{
    RETURN_IF_ERROR(set_all(t, tmpl->tokens, 0));
    RETURN_IF_ERROR(set_all(t, r->trusted, 0));
    RETURN_IF_ERROR(set_all(t, r->user, 1));
    RETURN_IF_ERROR(set_json(t, "messages", r->messages, 1));
    RETURN_IF_ERROR(set_json(t, "tools", r->tools, 1));
    if (r->documents || !json_object_get(r->user, "documents"))
        RETURN_IF_ERROR(set_json(t, "documents", r->documents, 1));
    return set_json(t, "add_generation_prompt", r->add_generation_prompt ? json_true() : json_false(), 0);
}

/* --- continue_final: the last message is rendered with a marker at its end, and the text is cut there --- */

static const char end_marker[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* The text of the last message: its content, or the last "text" part of its content; NULL: none.
 * *holder[*key] is that text. */
static json_t *final_text(json_t *messages, json_t **holder, const char **key)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1),
           *content = json_object_get(last, "content");
    *holder = last;
    *key = "content";
    for (size_t i = json_array_size(content); i > 0; i--) {
        json_t *part = json_array_get(content, i - 1);
        if (json_object_get(part, "text")) {
            *holder = part;
            *key = "text";
            return json_object_get(part, "text");
        }
    }
    return json_is_string(content) ? content : NULL;
}

static int add_end_marker(const json_t *messages, json_t **out, struct err *e)
{
    const char *key;
    json_t *copy = json_deep_copy(messages), *holder, *text = copy ? final_text(copy, &holder, &key) : NULL;
    struct buf b = { 0 };
    int rc = 0;
    *out = copy;
    if (!copy)
        return text_memory(e);
    if (!json_is_string(text))
        return err_set(e, ERR_USAGE, "the last message has no text to go on with");
    buf_add(&b, json_string_value(text), json_string_length(text));
    buf_add(&b, end_marker, sizeof end_marker - 1);
    if (b.failed || json_object_set_new(holder, key, json_stringn_nocheck(b.p, b.n)) < 0)
        rc = text_memory(e);
    buf_free(&b);
    return rc;
}

static int cut(struct tpl *t, struct sb *b)
{
    size_t n = sizeof end_marker - 2; /* without the blank, which a template may have trimmed */
    for (size_t i = b->n; i >= n; i--) {
        if (memcmp(b->p + i - n, end_marker, n))
            continue;
        int kept = i < b->n && b->p[i] == ' ';
        b->n = i - n;
        struct str s = { b->p, NULL, b->n, 0 };
        if (!kept)
            b->n = strip_right(&s, NULL, 0);
        return 0;
    }
    return tpl_fail(t, ERR_USAGE, "the template does not show the last message: it cannot be continued");
}

/* --- the result --- */

/* The spans of the bytes that have this mark. */
static int spans_of(const struct sb *b, int mark, struct text_span **out, size_t *n, struct err *e)
{
    struct text_span *spans = NULL;
    size_t n_spans = 0, cap = 0;

    for (size_t i = 0; b->m && i < b->n; i++) {
        if (!(b->m[i] & mark))
            continue;
        if (i && b->m[i - 1] & mark) {
            spans[n_spans - 1].end = i + 1;
            continue;
        }
        if (n_spans == cap) {
            struct text_span *q = realloc(spans, (cap = 2 * cap + 16) * sizeof *q);
            if (!q) {
                free(spans);
                return text_memory(e);
            }
            spans = q;
        }
        spans[n_spans++] = (struct text_span){ i, i + 1 };
    }

    *out = spans;
    *n = n_spans;
    return 0;
}

static int copy_result(const struct sb *b, struct rendered *out, struct err *e)
{
    struct rendered r = { .n = b->n };
    int rc;

    TRY(spans_of(b, MARK_USER, &r.user, &r.n_user, e));
    TRY(spans_of(b, MARK_MODEL, &r.model, &r.n_model, e));
    if (!(r.text = malloc(b->n + 1))) {
        rc = text_memory(e);
        goto out;
    }
    if (b->n)
        memcpy(r.text, b->p, b->n);
    r.text[b->n] = 0;
    *out = r;
    return 0;
out:
    rendered_free(&r);
    return rc;
}

static int check_request(const struct template_request *r, struct err *e)
{
    size_t i;
    const json_t *m;
    if (!json_is_array(r->messages))
        return err_set(e, ERR_USAGE, "messages is not a list");
    json_array_foreach(r->messages, i, m)
        if (!json_is_object(m))
            return err_set(e, ERR_USAGE, "messages[%zu] is not an object", i);
    if ((r->user && !json_is_object(r->user)) || (r->trusted && !json_is_object(r->trusted)))
        return err_set(e, ERR_USAGE, "the variables of a template are not an object");
    if (r->continue_final && (r->add_generation_prompt || !json_array_size(r->messages)))
        return err_set(
            e, ERR_USAGE,
            "going on with the last message needs one, and no prompt for a new one: use one of both");
    return 0;
}

static const struct program *program_of(const struct template *tmpl, const struct template_request *r)
{
    int has_tools = r->tools && !json_is_null(r->tools);
    const struct program *for_tools = has_tools ? find_program(tmpl, "tool_use") : NULL;
    if (tmpl->chosen)
        return &tmpl->prog[0];
    return for_tools ? for_tools : find_program(tmpl, "default");
}

const char *template_source(const struct template *t, size_t *n)
{
    const struct program *p = t->chosen ? NULL : find_program(t, "tool_use");
    p = p ? p : t->prog;
    *n = p->n_source;
    return p->source;
}

int template_marks_model(const struct template *t, const struct template_request *r)
{
    return program_of(t, r)->generations > 0;
}

int template_render(const struct template *tmpl, const struct template_request *r, struct rendered *out,
                    struct err *e)
{
    int rc = check_request(r, e);
    if (rc < 0)
        return rc;
    const struct program *p = program_of(tmpl, r);
    struct template_request req = *r;
    struct scope scope = { 0 };
    struct tpl t = { .e = e,
                     .what = "the chat template",
                     .line = 1,
                     .steps = r->max_steps ? r->max_steps : DEFAULT_STEPS,
                     .now = r->now,
                     .limit = r->limit,
                     .scope = &scope };
    struct sb b = { .t = &t };
    json_t *copy = NULL;
    t.heap.limit = r->max_bytes ? r->max_bytes : DEFAULT_BYTES;
    t.max_text = t.heap.limit / 4;
    t.out = &b;
    t.check = t.steps;
    if (r->continue_final) {
        TRY(add_end_marker(r->messages, &copy, e));
        req.messages = copy;
    }

    TRY(set_variables(&t, tmpl, &req));
    TRY(tpl_exec(&t, p->root->list));
    if (r->continue_final)
        TRY(cut(&t, &b));
    TRY(copy_result(&b, out, e));
out:
    json_decref(copy);
    heap_free(&t.heap);
    return rc;
}

/* --- from a JSON text --- */

static int read_trusted(const json_t *in, json_t **out, struct err *e)
{
    static const char *const names[] = { "bos_token", "eos_token" };
    *out = json_object();
    for (size_t i = 0; *out && i < sizeof names / sizeof *names; i++) {
        json_t *j = json_object_get(in, names[i]);
        if (json_is_string(j) && json_object_set(*out, names[i], j) < 0)
            return text_memory(e);
    }
    return *out ? 0 : text_memory(e);
}

int template_render_json(const struct template *t, const char *json, size_t n, struct rendered *out,
                         struct err *e)
{
    json_t *in = text_json(json, n, "the request", e), *trusted = NULL;
    int rc = 0;

    if (!in) {
        e->code = e->code == ERR_CONFIG ? ERR_USAGE : e->code;
        return -e->code;
    }

    const json_t *tools = json_object_get(in, "tools"), *documents = json_object_get(in, "documents"),
                 *extra = json_object_get(in, "extra");
    TRY(read_trusted(in, &trusted, e));
    struct template_request r = {
        .messages = json_object_get(in, "messages"),
        .tools = tools && !json_is_null(tools) ? tools : NULL,
        .documents = documents && !json_is_null(documents) ? documents : NULL,
        .user = extra && !json_is_null(extra) ? extra : NULL,
        .trusted = trusted,
        .add_generation_prompt = json_is_true(json_object_get(in, "add_generation_prompt")),
        .continue_final = json_is_true(json_object_get(in, "continue_final_message")),
    };

    TRY(template_render(t, &r, out, e));
out:
    json_decref(trusted);
    json_decref(in);
    return rc;
}

void rendered_free(struct rendered *r)
{
    free(r->text);
    free(r->user);
    free(r->model);
    *r = (struct rendered){ 0 };
}

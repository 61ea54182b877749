/* line.c - the forms of a line: messages, conversations of ShareGPT, a prompt with its completion, ids. */
#define _GNU_SOURCE /* memmem */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "text/chats/chats_priv.h"
#include "text/source.h"
#include "text/tok.h"
#include "text/tools.h"

#define TEMPLATE_LIMIT ((size_t)4 << 20)

void chat_tokens_free(struct chat_tokens *x)
{
    free(x->ids);
    free(x->weight);
    *x = (struct chat_tokens){ 0 };
}

/* ---- weights ---- */
static int read_weight(const json_t *j, const char *what, float *out, struct err *e)
{
    double w = json_is_number(j) ? json_number_value(j) : NAN;
    *out = (float)w;
    if (!j)
        *out = 1;
    else if (!json_is_number(j))
        return err_set(e, ERR_FORMAT, "%s is no number", what);
    else if (!isfinite(*out))
        return err_set(e, ERR_FORMAT, "%s is %g: a finite fp32 number is needed", what, w);
    return 0;
}

/* ---- messages ---- */
/* A list of text parts as one text, a line each, as the server joins them. NULL: *e says why. */
static json_t *join_parts(const json_t *parts, size_t i, struct err *e)
{
    struct buf text = { 0 };
    json_t *part, *joined = NULL;
    size_t k;
    json_array_foreach((json_t *)(uintptr_t)parts, k, part) {
        const json_t *t = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") || !json_is_string(t)) {
            err_set(e, ERR_FORMAT,
                    "messages[%zu].content[%zu] must be {\"type\":\"text\",\"text\":…}: text only is read", i,
                    k);
            goto out;
        }
        buf_add(&text, "\n", k != 0);
        buf_add(&text, json_string_value(t), json_string_length(t));
    }
    if (text.failed || !(joined = json_stringn(text.p ? text.p : "", text.n)))
        text_memory(e);
out:
    buf_free(&text);
    return joined;
}

/* ShareGPT's names of roles; other names stay. */
static const char *role_of(const char *from)
{
    static const char *const names[][2] = { { "human", "user" },
                                            { "gpt", "assistant" },
                                            { "observation", "tool" } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(from, names[i][0]))
            return names[i][1];
    return from;
}

/* Moves ShareGPT's members "from" and "value" of a message to role and content. */
static int rename_members(json_t *m, size_t i, struct err *e)
{
    const char *from = json_string_value(json_object_get(m, "from"));
    json_t *value = json_object_get(m, "value");
    if (from && !strcmp(from, "function_call"))
        return err_set(
            e, ERR_FORMAT,
            "message %zu is from function_call: write it as an assistant's message with tool_calls", i);
    if (from && json_object_set_new(m, "role", json_string(role_of(from))) < 0)
        return text_memory(e);
    if (value && json_object_set(m, "content", value) < 0)
        return text_memory(e);
    json_object_del(m, "from");
    json_object_del(m, "value");
    return 0;
}

/* Appends a message as templates expect it. An assistant's keeps its weight times the line's, until
 * find_answers() takes it. */
static int add_message(struct conversation *talk, const json_t *given, float line_weight, struct err *e)
{
    size_t i = json_array_size(talk->messages);
    json_t *m = json_is_object(given) ? json_copy((json_t *)(uintptr_t)given) : NULL, *content, *joined;
    char what[64];
    float weight;
    int rc = 0;

    if (!m || json_array_append_new(talk->messages, m) < 0)
        return json_is_object(given) ? text_memory(e) : err_set(e, ERR_FORMAT, "message %zu is no object", i);
    TRY(rename_members(m, i, e));
    const char *role = json_string_value(json_object_get(m, "role"));
    content = json_object_get(m, "content");
    if (!role || (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content)))
        return err_set(e, ERR_FORMAT, "message %zu needs a role and a content that is a text", i);
    if (json_is_object(json_object_get(m, "function_call")))
        return err_set(e, ERR_FORMAT, "message %zu has function_call: write it as tool_calls", i);
    snprintf(what, sizeof what, "the weight of message %zu", i);
    TRY(read_weight(json_object_get(m, "weight"), what, &weight, e));
    json_object_del(m, "weight");
    if (json_is_array(content)) {
        if (!(joined = join_parts(content, i, e)))
            return -e->code;
        if (json_object_set_new(m, "content", joined) < 0)
            return text_memory(e);
    }
    if (!isfinite(weight * line_weight))
        return err_set(e, ERR_FORMAT, "the weight of message %zu times the line's is beyond fp32", i);
    if (!strcmp(role, "assistant") &&
        json_object_set_new(m, "weight", json_real((double)(weight * line_weight))) < 0)
        rc = text_memory(e);
out:
    return rc;
}

static int add_messages(struct conversation *talk, const json_t *list, const char *name, float weight,
                        struct err *e)
{
    size_t i;
    const json_t *m;
    int rc = 0;
    if (!json_is_array(list) || !json_array_size(list))
        return err_set(e, ERR_FORMAT, "%s must be a list of messages", name);
    json_array_foreach((json_t *)(uintptr_t)list, i, m)
        TRY(add_message(talk, m, weight, e));
out:
    return rc;
}

/* The tools and variables of a template that a line has. */
static int read_rest(struct conversation *talk, const json_t *line, struct err *e)
{
    const struct {
        const char *name;
        const json_t **to;
        int is_list;
    } members[] = { { "tools", &talk->tools, 1 },
                    { "documents", &talk->documents, 1 },
                    { "chat_template_kwargs", &talk->kwargs, 0 } };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *j = json_object_get(line, members[i].name);
        if (!j || json_is_null(j))
            continue;
        if (members[i].is_list ? !json_is_array(j) : !json_is_object(j))
            return err_set(e, ERR_FORMAT, "%s must be %s", members[i].name,
                           members[i].is_list ? "a list" : "an object");
        *members[i].to = j;
    }
    return 0;
}

/* The calls and the reasoning of messages as the template expects them: as the server renders them. */
static int follow_habits(const struct chat_coder *c, struct conversation *talk, struct err *e)
{
    const struct chat_style *s = c->style;
    json_t *list = s ? tools_history(&s->habits, &s->form, talk->messages, e) : NULL;
    if (!s)
        return 0;
    if (!list)
        return -e->code;
    json_decref(talk->messages);
    talk->messages = list;
    return 0;
}

/* Takes the weights out of the assistant's messages. */
static int find_answers(struct conversation *talk, struct err *e)
{
    size_t i;
    json_t *m;
    talk->answer = calloc(json_array_size(talk->messages) + 1, sizeof *talk->answer);
    if (!talk->answer)
        return text_memory(e);
    json_array_foreach(talk->messages, i, m) {
        const json_t *weight = json_object_get(m, "weight");
        if (weight)
            talk->answer[talk->n_answers++] = (struct answer){ i, (float)json_real_value(weight) };
        json_object_del(m, "weight");
    }
    return 0;
}

/* Refuses calls that the template leaves out. */
static int check_calls(const struct conversation *talk, const struct rendered *text, struct err *e)
{
    size_t i;
    const json_t *m;
    json_array_foreach(talk->messages, i, m) {
        const json_t *call = json_array_get(json_object_get(m, "tool_calls"), 0);
        const char *name = json_string_value(json_object_get(json_object_get(call, "function"), "name"));
        if (name && !memmem(text->text, text->n, name, strlen(name)))
            return err_set(
                e, ERR_USAGE,
                "the template does not show that message %zu calls %s: use one that shows tool_calls", i,
                name);
    }
    return 0;
}

/* The tokens of a conversation that has its messages. */
static int encode_talk(const struct chat_coder *c, struct conversation *talk, struct chat_tokens *out,
                       struct err *e)
{
    struct rendered text = { 0 };
    struct chat_spans spans = { 0 };
    int rc;
    TRY(follow_habits(c, talk, e));
    TRY(find_answers(talk, e));
    for (size_t k = 0; c->turns == CHAT_TURNS_LAST && k + 1 < talk->n_answers; k++)
        talk->answer[k].weight = 0;
    TRY(chat_render(c, talk, &text, &spans, e));
    TRY(check_calls(talk, &text, e));
    struct marked_text marked = { .text = text.text, .n = text.n, .user = text.user, .n_user = text.n_user };
    rc = chat_tokens_of(c->t, &marked, &spans, 0, out, e);
out:
    rendered_free(&text);
    free(spans.v);
    return rc;
}

/* Encodes the messages of two lists, the first of which has no weight. before: NULL or a list. */
static int encode_lists(const struct chat_coder *c, const json_t *line, const json_t *before,
                        const json_t *list, const char *name, struct chat_tokens *out, struct err *e)
{
    struct conversation talk = { .messages = json_array() };
    float weight;
    int rc;
    if (!talk.messages)
        return text_memory(e);
    TRY(read_weight(json_object_get(line, "weight"), "the weight", &weight, e));
    TRY(read_rest(&talk, line, e));
    if (before)
        TRY(add_messages(&talk, before, "prompt", 0, e));
    TRY(add_messages(&talk, list, name, weight, e));
    rc = encode_talk(c, &talk, out, e);
out:
    json_decref(talk.messages);
    free(talk.answer);
    return rc;
}

static int encode_messages(const struct chat_coder *c, const json_t *line, struct chat_tokens *out,
                           struct err *e)
{
    return encode_lists(c, line, NULL, json_object_get(line, "messages"), "messages", out, e);
}
static int encode_conversations(const struct chat_coder *c, const json_t *line, struct chat_tokens *out,
                                struct err *e)
{
    return encode_lists(c, line, NULL, json_object_get(line, "conversations"), "conversations", out, e);
}

/* ---- a prompt and its completion ---- */
static int encode_completion(const struct chat_coder *c, const json_t *line, struct chat_tokens *out,
                             struct err *e)
{
    const json_t *prompt = json_object_get(line, "prompt"), *completion = json_object_get(line, "completion");
    struct buf text = { 0 };
    float weight;
    int rc;

    if (json_is_array(prompt) && json_is_array(completion))
        return encode_lists(c, line, prompt, completion, "completion", out, e);
    if (!json_is_string(prompt) || !json_is_string(completion))
        return err_set(e, ERR_FORMAT, "prompt and completion must be two texts, or two lists of messages");
    TRY(read_weight(json_object_get(line, "weight"), "the weight", &weight, e));
    buf_add(&text, json_string_value(prompt), json_string_length(prompt));
    size_t begin = text.n;
    buf_add(&text, json_string_value(completion), json_string_length(completion));
    if (text.failed) {
        rc = text_memory(e);
        goto out;
    }
    struct marked_text marked = { .text = text.p ? text.p : "", .n = text.n };
    struct chat_span span = { begin, text.n, weight };
    rc = chat_tokens_of(c->t, &marked, &(struct chat_spans){ &span, begin < text.n && weight != 0 }, 1, out,
                        e);
out:
    buf_free(&text);
    return rc;
}

/* ---- ids ---- */
static int read_id(const json_t *j, size_t i, int64_t vocab, int32_t *out, struct err *e)
{
    json_int_t v = json_is_integer(j) ? json_integer_value(j) : -1;
    if (v < 0 || v >= vocab)
        return err_set(e, ERR_FORMAT, "ids[%zu] is no token id below %lld", i, (long long)vocab);
    *out = (int32_t)v;
    return 0;
}

/* Weights of ids: a list of as many numbers, of which null is 0. */
static int read_weights(const json_t *list, size_t n, float by, float *out, struct err *e)
{
    char what[64];
    int rc = 0;
    if (list && (!json_is_array(list) || json_array_size(list) != n))
        return err_set(e, ERR_FORMAT,
                       "weights must be a list of %zu numbers, one for each of ids: it has %zu", n,
                       json_array_size(list));
    for (size_t i = 0; i < n; i++) {
        const json_t *j = json_array_get(list, i);
        snprintf(what, sizeof what, "weights[%zu]", i);
        out[i] = 0;
        if (!json_is_null(j))
            TRY(read_weight(j, what, &out[i], e));
        out[i] *= by;
    }
out:
    return rc;
}

static int encode_ids(const struct chat_coder *c, const json_t *line, struct chat_tokens *out, struct err *e)
{
    const json_t *list = json_object_get(line, "ids");
    size_t n = json_array_size(list);
    int64_t vocab = c->vocab ? c->vocab : tokenizer_vocab(c->t);
    struct chat_tokens x = { malloc((n + 1) * sizeof *x.ids), malloc((n + 1) * sizeof *x.weight), n };
    float weight;
    int rc = 0;

    if (!x.ids || !x.weight)
        rc = text_memory(e);
    else if (!n)
        rc = err_set(e, ERR_FORMAT, "ids must be a list of token ids");
    TRY(rc);
    for (size_t i = 0; i < n; i++)
        TRY(read_id(json_array_get(list, i), i, vocab, &x.ids[i], e));
    TRY(read_weight(json_object_get(line, "weight"), "the weight", &weight, e));
    TRY(read_weights(json_object_get(line, "weights"), n, weight, x.weight, e));
    *out = x;
    return 0;
out:
    chat_tokens_free(&x);
    return rc;
}

/* ---- the forms ---- */
static const struct form {
    const char *name, *also; /* members of the object that show it; also: NULL or a second one */
    int (*encode)(const struct chat_coder *c, const json_t *line, struct chat_tokens *out, struct err *e);
} forms[] = {
    { "messages", NULL, encode_messages },
    { "conversations", NULL, encode_conversations },
    { "prompt", "completion", encode_completion },
    { "ids", NULL, encode_ids },
};

static const struct form *form_of(const json_t *line)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (json_object_get(line, forms[i].name) && (!forms[i].also || json_object_get(line, forms[i].also)))
            return &forms[i];
    return NULL;
}

/* All weights are finite, and the first token, which nothing predicts, has none. */
static int check_weights(struct chat_tokens *x, struct err *e)
{
    for (size_t i = 0; i < x->n; i++)
        if (!isfinite(x->weight[i]))
            return err_set(e, ERR_FORMAT, "the weight of token %zu is beyond fp32", i);
    if (x->n)
        x->weight[0] = 0;
    return 0;
}

/* A byte order mark may stand before the object. */
static json_t *parse_line(const char *line, size_t n, json_error_t *at)
{
    size_t skip = n >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3) ? 3 : 0;
    return json_loadb(line + skip, n - skip, JSON_ALLOW_NUL, at);
}

int chats_encode(const struct chat_coder *c, const char *line, size_t n, struct chat_tokens *out,
                 struct err *e)
{
    json_error_t at;
    json_t *j = parse_line(line, n, &at);
    const struct form *form = form_of(j);
    int rc = 0;
    if (!j)
        rc = err_set(e, ERR_FORMAT, "no JSON: byte %d: %s", at.position, at.text);
    else if (!form)
        rc =
            err_set(e, ERR_FORMAT,
                    "no conversation: an object with messages, conversations, prompt and completion, or ids");
    else
        rc = form->encode(c, j, out, e);
    if (rc >= 0 && (rc = check_weights(out, e)) < 0)
        chat_tokens_free(out);
    json_decref(j);
    return rc < 0 ? rc : 0;
}

/* ---- files ---- */
int chats_is_lines(const char *path)
{
    static const char *const ends[] = { ".jsonl", ".ndjson", ".jsonl.zst", ".ndjson.zst" };
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && !strcmp(path + n - strlen(ends[i]), ends[i]))
            return 1;
    return 0;
}

int chats_is_path(const char *path, const char *field, struct err *e)
{
    struct source *s = NULL;
    struct err ignored;
    json_error_t at;
    char *line = NULL;
    size_t n;
    int more, is = 0;
    if (!chats_is_lines(path) || source_open(&s, path, NULL, &ignored) < 0)
        return 0;
    if (source_next(s, 0, &line, &n, &more, &ignored) == 1) {
        json_t *j = parse_line(line, n, &at);
        is = form_of(j) && !(field && json_is_string(json_object_get(j, field)));
        if (!j && !field && memchr(line, '{', n < 4 ? n : 4))
            is = err_set(e, ERR_FORMAT, "%s: line %lld: no JSON: byte %d: %s", path,
                         (long long)source_line(s), at.position, at.text);
        json_decref(j);
        free(line);
    }
    source_close(s);
    return is;
}

int chats_carry_template(struct carried *x, const char *file, struct err *e)
{
    struct template *form = NULL;
    void *text = NULL;
    size_t n;
    int rc;
    TRY(io_read_file(file, TEMPLATE_LIMIT, &text, &n, e));
    TRY(template_open(&form, text, n, file, e));
    rc = carried_put(x, "chat_template.jinja", text, n, e);
out:
    template_close(form);
    free(text);
    return rc < 0 ? rc : 0;
}

void chats_find_style(const struct template *t, struct chat_style *out)
{
    size_t n;
    const char *source = template_source(t, &n);
    tools_habits(t, NULL, &out->habits);
    out->form = tools_detect(source, n);
}

int chats_open_template(struct template **out, struct chat_style *style, const char *name,
                        const char *tokenizer, struct err *e)
{
    static const char *const names[] = { "chat_template.jinja", "tokenizer_config.json",
                                         "special_tokens_map.json" };
    struct carried x = { 0 };
    struct template_parts parts = { .what = name ? name : tokenizer };
    int rc;

    *out = NULL;
    TRY(carried_read(&x, tokenizer, names, 3, e));
    if (name)
        TRY(chats_carry_template(&x, name, e));
    for (int i = 0; i < x.n; i++) {
        struct template_part part = { x.data[i], x.bytes[i] };
        *(!strcmp(x.name[i], names[0])   ? &parts.jinja
          : !strcmp(x.name[i], names[1]) ? &parts.config
                                         : &parts.map) = part;
    }
    TRY(template_open_parts(out, &parts, e));
    if (*out)
        chats_find_style(*out, style);
out:
    carried_free(&x);
    return rc < 0 ? rc : 0;
}

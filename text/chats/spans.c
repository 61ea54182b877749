/* spans.c - what the assistant writes in the text of a conversation.
 *
 *     <user> 2+2? </user> <assistant> 4. <end>
 *     |--- P: the messages before, and the prompt for an answer
 *                                    |------| the answer
 *     |------------------- F: with the answer
 *
 * P must be the beginning of F, and F of the whole text. */
#include <stdlib.h>
#include <string.h>
#include "text/chats/chats_priv.h"
#include "text/tok.h"

#define NO_PLACE "use a template with {%% generation %%} around what the assistant writes"

static struct template_request request_of(const struct conversation *talk, const json_t *messages, int prompt)
{
    return (struct template_request){ .messages = messages,
                                      .tools = talk->tools,
                                      .documents = talk->documents,
                                      .user = talk->kwargs,
                                      .add_generation_prompt = prompt };
}

/* Renders the first n messages. */
static int render_first(const struct chat_coder *c, const struct conversation *talk, size_t n, int prompt,
                        struct rendered *out, struct err *e)
{
    json_t *first = json_array();
    int failed = !first, rc;
    for (size_t i = 0; !failed && i < n; i++)
        failed = json_array_append(first, json_array_get(talk->messages, i)) < 0;
    struct template_request r = request_of(talk, first, prompt);
    rc = failed ? text_memory(e) : template_render(c->form, &r, out, e);
    json_decref(first);
    return rc < 0 ? err_add(e, "with the first %zu messages", n) : 0;
}

static size_t common_bytes(const struct rendered *a, const struct rendered *b)
{
    size_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->text[i] == b->text[i])
        i++;
    return i;
}

/* The span of an answer in the whole text. */
static int find_answer(const struct chat_coder *c, const struct conversation *talk,
                       const struct rendered *text, const struct answer *a, struct chat_span *out,
                       struct err *e)
{
    size_t i = a->message;
    int is_last = i + 1 == json_array_size(talk->messages), rc;
    struct rendered before = { 0 }, with = { 0 };
    const struct rendered *f = is_last ? text : &with;
    size_t n;

    TRY(render_first(c, talk, i, 1, &before, e));
    if (!is_last)
        TRY(render_first(c, talk, i + 1, 0, &with, e));
    if ((n = common_bytes(f, text)) < f->n)
        rc = err_set(
            e, ERR_USAGE,
            "the template shows messages 0 to %zu in another way when more follow (from byte %zu on): use "
            "--chat-turns last, or " NO_PLACE,
            i, n);
    else if ((n = common_bytes(&before, f)) < before.n)
        rc = err_set(e, ERR_USAGE,
                     "the template's prompt for an answer is not how it begins message %zu (from byte %zu "
                     "on): " NO_PLACE,
                     i, n);
    *out = (struct chat_span){ before.n, f->n, a->weight };
out:
    rendered_free(&before);
    rendered_free(&with);
    return rc;
}

static int add_span(struct chat_spans *x, struct chat_span s, struct err *e)
{
    struct chat_span *q = realloc(x->v, (x->n + 1) * sizeof *q);
    if (!q)
        return text_memory(e);
    x->v = q;
    x->v[x->n++] = s;
    return 0;
}

static int find_by_prompts(const struct chat_coder *c, const struct conversation *talk,
                           const struct rendered *text, struct chat_spans *x, struct err *e)
{
    struct chat_span s;
    int rc = 0;
    for (size_t k = 0; rc >= 0 && k < talk->n_answers; k++) {
        if (talk->answer[k].weight == 0)
            continue;
        rc = find_answer(c, talk, text, &talk->answer[k], &s, e);
        if (rc >= 0)
            rc = add_span(x, s, e);
    }
    return rc;
}

/* Blocks {% generation %}, one for each answer. Where a template has another number of them, all have one
 * weight. */
static int find_by_blocks(const struct chat_coder *c, const struct conversation *talk,
                          const struct rendered *text, struct chat_spans *x, struct err *e)
{
    int by_answer = talk->n_answers == text->n_model, rc = 0;
    size_t first = !by_answer && c->turns == CHAT_TURNS_LAST && text->n_model ? text->n_model - 1 : 0;
    for (size_t k = 1; !by_answer && !first && k < talk->n_answers; k++)
        if (talk->answer[k].weight != talk->answer[0].weight)
            return err_set(e, ERR_USAGE,
                           "the template marks %zu parts of %zu answers, whose weights differ: give all one",
                           text->n_model, talk->n_answers);

    for (size_t k = first; rc >= 0 && k < text->n_model && talk->n_answers; k++) {
        float weight = talk->answer[by_answer ? k : talk->n_answers - 1].weight;
        if (weight != 0)
            rc = add_span(x, (struct chat_span){ text->model[k].begin, text->model[k].end, weight }, e);
    }
    return rc;
}

int chat_render(const struct chat_coder *c, const struct conversation *talk, struct rendered *text,
                struct chat_spans *x, struct err *e)
{
    struct template_request r = request_of(talk, talk->messages, 0);
    int rc;

    if (!c->form)
        return err_set(e, ERR_USAGE,
                       "a line with messages needs a chat template: name one with --chat-template, or a "
                       "--tokenizer folder that has one");
    TRY(template_render(c->form, &r, text, e));
    TRY((template_marks_model(c->form, &r) ? find_by_blocks : find_by_prompts)(c, talk, text, x, e));
    return 0;
out:
    rendered_free(text);
    free(x->v);
    *x = (struct chat_spans){ 0 };
    return rc;
}

/* step_message.c - see step_message.h. */
#include "serve/engine/step_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { W_OP, W_WORDS, W_SEQ, W_ROWS, W_WANT, W_PAGES, W_STATES, W_FIRST_UNIT, W_LAST_UNIT, W_HEAD = 10 };
/* of a sequence; pages of group g in the message begin behind the S_RELEASED + g released ones */
enum { S_POS, S_ROWS, S_STALE, S_ADAPTER, S_RELEASED, W_EACH = S_RELEASED + PAGE_GROUPS };

/* Makes p->word large enough for that many words; its contents stay. */
static int reserve(struct step_message *p, int64_t words, struct err *e)
{
    int64_t cap = words + words / 2;
    int32_t *more = words > p->cap ? realloc(p->word, sizeof *more * (size_t)cap) : p->word;
    if (!more)
        return err_set(e, ERR_MEMORY, "no memory for a step message of %lld words: lower --max-batch",
                       (long long)words);
    p->cap = words > p->cap ? cap : p->cap;
    p->word = more;
    return 0;
}

int step_message_open(struct step_message *p, int max_seqs, struct err *e)
{
    memset(p, 0, sizeof *p);
    p->max_seqs = max_seqs;
    for (int g = 0; g < PAGE_GROUPS; g++)
        p->seq[g] = calloc((size_t)max_seqs, sizeof *p->seq[g]);
    p->adapter = calloc((size_t)max_seqs, sizeof *p->adapter);
    if (!p->seq[0] || !p->seq[1] || !p->adapter)
        return err_set(e, ERR_MEMORY, "no memory for step messages: lower --max-batch or --kv-memory");
    return reserve(p, STEP_MESSAGE_INLINE, e);
}

void step_message_close(struct step_message *p)
{
    free(p->word);
    free(p->page);
    free(p->adapter);
    for (int g = 0; g < PAGE_GROUPS; g++)
        free(p->seq[g]);
    memset(p, 0, sizeof *p);
}

/* The page numbers of a message. */
static int32_t *pages_of(struct step_message *p)
{
    return p->word + W_HEAD + (int64_t)W_EACH * p->word[W_SEQ];
}

/* Sets the members that describe the message in p->word. */
static void point(struct step_message *p)
{
    p->op = (enum step_op)p->word[W_OP];
    p->n_seq = p->word[W_SEQ];
    p->n_rows = p->word[W_ROWS];
    p->n_want = p->word[W_WANT];
    p->wants_rows = p->word[W_STATES];
    p->first_unit = p->word[W_FIRST_UNIT];
    p->last_unit = p->word[W_LAST_UNIT];
    p->ids = pages_of(p) + p->word[W_PAGES];
    p->want = p->ids + p->n_rows;
}

/* Words of a message with the first n items. */
static int64_t words_of(const struct sched *s, int n)
{
    int64_t words = W_HEAD + (int64_t)W_EACH * n;
    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &s->item[i];
        for (int g = 0; g < s->n_groups; g++)
            words += kv_pages_for(it->pos + it->n_rows) - it->seq->in[g].n_released;
        words += it->n_rows + (it->n_rows - it->skip_want);
    }
    return words;
}

/* The page numbers of a group behind the released ones, to *to. Returns how many. */
static int32_t copy_pages(const struct sched_item *it, int group, int32_t *head, int32_t *to, int exists)
{
    const struct seq_pages *in = &it->seq->in[group];
    int64_t pages = exists ? kv_pages_for(it->pos + it->n_rows) : 0;
    head[S_RELEASED + group] = (int32_t)(exists ? in->n_released : 0);
    pages -= head[S_RELEASED + group];
    if (pages)
        memcpy(to, in->page + in->n_released, sizeof *to * (size_t)pages);
    return (int32_t)pages;
}

int step_message_make(struct step_message *p, enum step_op op, const struct sched *s,
                      const int32_t *(*ids_of)(const struct seq *q), struct err *e)
{
    int n = op == STEP_RUN || op == STEP_GUESS || op == STEP_CARRY ? s->n_items : 0;
    int rc = reserve(p, words_of(s, n), e);

    if (rc < 0)
        return rc;
    int32_t *w = p->word, *page;
    memset(w, 0, sizeof *w * W_HEAD);
    w[W_OP] = (int32_t)op;
    w[W_SEQ] = n;
    page = pages_of(p);

    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &s->item[i];
        int32_t *head = w + W_HEAD + W_EACH * i;
        head[S_POS] = (int32_t)it->pos;
        head[S_ROWS] = (int32_t)it->n_rows;
        head[S_STALE] = (int32_t)it->n_stale;
        head[S_ADAPTER] = it->seq->adapter;
        for (int g = 0; g < PAGE_GROUPS; g++)
            w[W_PAGES] += copy_pages(it, g, head, page + w[W_PAGES], g < s->n_groups);
        w[W_ROWS] += (int32_t)it->n_rows;
        w[W_WANT] += (int32_t)(it->n_rows - it->skip_want);
        w[W_STATES] |= it->seq->wants_rows;
    }

    int32_t *id = page + w[W_PAGES], *want = id + w[W_ROWS], row = 0;
    for (int i = 0; i < n; i++) {
        const struct sched_item *it = &s->item[i];
        memcpy(id + row, ids_of(it->seq) + it->pos, sizeof *id * (size_t)it->n_rows);
        for (int64_t r = it->skip_want; r < it->n_rows; r++)
            *want++ = row + (int32_t)r;
        row += (int32_t)it->n_rows;
    }

    w[W_WORDS] = (int32_t)(want - w);
    point(p);
    return 0;
}

void step_message_set_units(struct step_message *p, int first, int last)
{
    p->word[W_FIRST_UNIT] = first;
    p->word[W_LAST_UNIT] = last;
    point(p);
}

void step_message_command(struct step_message *p, enum step_op op, const char *text)
{
    memset(p->word, 0, sizeof *p->word * STEP_MESSAGE_INLINE);
    p->word[W_OP] = (int32_t)op;
    p->word[W_WORDS] = STEP_MESSAGE_INLINE;
    point(p);
    snprintf((char *)pages_of(p), (STEP_MESSAGE_INLINE - W_HEAD) * sizeof *p->word, "%s", text);
}

int step_message_orders(struct step_message *p, const struct kv_order *o, int64_t n, struct err *e)
{
    int rc = reserve(p, W_HEAD + n * KV_ORDER_WORDS, e);
    if (rc < 0)
        return rc;
    memset(p->word, 0, sizeof *p->word * W_HEAD);
    p->word[W_OP] = STEP_PAGES;
    p->word[W_ROWS] = (int32_t)n;
    p->word[W_WORDS] = (int32_t)(W_HEAD + n * KV_ORDER_WORDS);
    memcpy(p->word + W_HEAD, o, sizeof *o * (size_t)n);
    point(p);
    return 0;
}

const struct kv_order *step_message_get_orders(const struct step_message *p, int64_t *n)
{
    _Static_assert(sizeof(struct kv_order) == KV_ORDER_WORDS * sizeof(int32_t), "orders are words");
    *n = p->n_rows;
    return (const struct kv_order *)(const void *)(p->word + W_HEAD);
}

/* Makes room for the words behind the first STEP_MESSAGE_INLINE. Returns how many. */
static int64_t reserve_rest(struct step_message *p, struct err *e)
{
    int64_t words = p->word[W_WORDS];
    if (words < W_HEAD)
        return err_set(e, ERR_INTERNAL, "a step message of %lld words", (long long)words);
    int rc = reserve(p, words, e);
    return rc < 0 || words <= STEP_MESSAGE_INLINE ? rc : words - STEP_MESSAGE_INLINE;
}

int step_message_broadcast(struct step_message *p, struct comm *c, struct err *e)
{
    int rc = comm_broadcast(c, p->word, STEP_MESSAGE_INLINE * sizeof *p->word, 0, e);
    int64_t rest = rc < 0 ? rc : reserve_rest(p, e);
    if (rest > 0)
        rest = comm_broadcast(c, p->word + STEP_MESSAGE_INLINE, (size_t)rest * sizeof *p->word, 0, e);
    if (rest < 0)
        return err_add(e, "sharing the next step");
    point(p);
    return 0;
}

int step_message_send(const struct step_message *p, struct comm *c, int to, struct err *e)
{
    int64_t rest = p->word[W_WORDS] - STEP_MESSAGE_INLINE;
    int rc = comm_send(c, p->word, STEP_MESSAGE_INLINE * sizeof *p->word, to, e);
    if (rc >= 0 && rest > 0)
        rc = comm_send(c, p->word + STEP_MESSAGE_INLINE, (size_t)rest * sizeof *p->word, to, e);
    return rc < 0 ? err_add(e, "sending the next step") : 0;
}

int step_message_receive(struct step_message *p, struct comm *c, int from, struct err *e)
{
    int rc = comm_recv(c, p->word, STEP_MESSAGE_INLINE * sizeof *p->word, from, e);
    int64_t rest = rc < 0 ? rc : reserve_rest(p, e);
    if (rest > 0)
        rest = comm_recv(c, p->word + STEP_MESSAGE_INLINE, (size_t)rest * sizeof *p->word, from, e);
    if (rest < 0)
        return err_add(e, "receiving the next step");
    point(p);
    return 0;
}

/* Makes p->page large enough for the pages of all sequences in all groups. */
static int reserve_addresses(struct step_message *p, int n_groups, struct err *e)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_seq; i++) {
        const int32_t *head = p->word + W_HEAD + W_EACH * i;
        n += n_groups * kv_pages_for(head[S_POS] + head[S_ROWS]);
    }
    char **at = n > p->cap_pages ? realloc(p->page, sizeof *at * (size_t)(n + n / 2)) : p->page;
    if (n && !at)
        return err_set(e, ERR_MEMORY, "no memory for the %lld pages of a step: lower --max-batch",
                       (long long)n);
    p->cap_pages = n > p->cap_pages ? n + n / 2 : p->cap_pages;
    p->page = at;
    return 0;
}

int step_message_map_pages(struct step_message *p, const struct kv kv[PAGE_GROUPS], struct err *e)
{
    const int32_t *page = pages_of(p);
    int64_t row = 0;
    int n_groups = kv[1].base ? 2 : 1, rc = reserve_addresses(p, n_groups, e);
    char **at = p->page;

    if (rc < 0)
        return rc;
    p->n_adapted = 0;
    for (int i = 0; i < p->n_seq; i++) {
        const int32_t *head = p->word + W_HEAD + W_EACH * i;
        p->adapter[i] = head[S_ADAPTER];
        p->n_adapted += head[S_ADAPTER] != 0;
        int64_t pages = kv_pages_for(head[S_POS] + head[S_ROWS]);
        for (int g = 0; g < n_groups; g++) {
            int64_t released = head[S_RELEASED + g];
            if (p->first_unit == 0)
                kv_clear_new(&kv[g], page, released, head[S_POS], head[S_ROWS]);
            if (head[S_STALE])
                kv_clear_stale(&kv[g], page, released, head[S_POS] + head[S_ROWS], head[S_STALE]);
            for (int64_t j = 0; j < pages; j++)
                at[j] = j < released ? NULL : kv_page(&kv[g], page[j - released]);
            p->seq[g][i] = (struct attn_seq){
                .row = row, .n_rows = head[S_ROWS], .pos = head[S_POS], .page = at
            };
            page += pages - released;
            at += pages;
        }
        row += head[S_ROWS];
    }

    return 0;
}

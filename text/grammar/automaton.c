/* automaton.c - see automaton.h. */
#include "text/grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

int machine_open(struct machine **out, const struct program *p, struct err *e)
{
    struct machine *m = calloc(1, sizeof *m);
    int32_t first = 0;
    *out = NULL;
    if (!m || closure_open(m) < 0) {
        free(m);
        return err_set(e, ERR_MEMORY, "no memory for the states of a grammar");
    }
    m->p = p;
    m->masks_most = MACHINE_BYTES / 8 * 5;
    m->work = MACHINE_WORK;

    /* number 0 of each: no configuration, the empty set of keys, the frame below all others */
    intern_put(&m->configs, "", 0);
    key_set_begin(m);
    intern_put(&m->frames, &first, sizeof first);
    if (m->configs.failed || m->sets.failed || m->frames.failed) {
        machine_close(m);
        return err_set(e, ERR_MEMORY, "no memory for the states of a grammar");
    }
    *out = m;
    return 0;
}

void machine_close(struct machine *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_components; i++)
        if (m->dfa[i]) {
            dfa_close(m->dfa[i]);
            free(m->dfa[i]);
        }
    for (size_t i = 0; i < m->n_terminals; i++)
        free(m->ranges[i].v);
    for (uint32_t i = 1; i < m->term_states.n; i++)
        free(m->term[i].row);
    for (uint32_t i = 1; i < m->configs.n; i++) {
        free(m->config[i].row);
        free(m->config[i].mask);
        free(m->config[i].places);
    }
    free(m->dfa);
    free(m->ranges);
    free(m->vector);
    free(m->term);
    free(m->config);
    intern_free(&m->vectors);
    intern_free(&m->term_states);
    intern_free(&m->sets);
    intern_free(&m->frames);
    intern_free(&m->configs);
    closure_close(m);
    free(m);
}

int machine_error(const struct machine *m, struct err *e)
{
    if (m->failed == ERR_MEMORY)
        return err_set(e, ERR_MEMORY, "no memory for the states of a grammar");
    return err_set(e, ERR_CONFIG,
                   "the grammar has too many states at one place of the text: make it less ambiguous, or its "
                   "counts smaller");
}

size_t machine_size(const struct machine *m)
{
    size_t n = intern_size(&m->vectors) + intern_size(&m->term_states) + intern_size(&m->sets) +
               intern_size(&m->frames) + intern_size(&m->configs) + closure_size(m);
    n += m->cap_vectors * sizeof *m->vector + m->cap_term * sizeof *m->term +
         m->cap_configs * sizeof *m->config + m->row_bytes + m->mask_bytes;
    for (size_t i = 0; i < m->n_components; i++)
        n += m->dfa[i] ? dfa_size(m->dfa[i]) : 0;
    return n;
}

const struct thread *machine_threads(const struct machine *m, uint32_t config, size_t *n)
{
    size_t bytes;
    const void *k = intern_key(&m->configs, config, &bytes);
    *n = bytes / sizeof(struct thread);
    return k;
}

uint32_t machine_begin(struct machine *m)
{
    closure_begin(m);
    closure_node(m, m->p->begin, 0);
    return closure_end(m);
}

/* Goes on with a thread that is in terminal state `at` now. */
static void advance(struct machine *m, struct thread t, uint32_t at)
{
    const struct node *x = &m->p->node[t.node];
    struct term_state s = m->term[at];
    if (x->kind == NODE_KEY) {
        uint32_t set = frame_set(m, t.frame), with = 0;
        int32_t rule;
        if (s.accepts) {
            if ((rule = key_end(m, x->a, set, s.vector, &with)) >= 0)
                closure_key(m, x->a, rule, t.frame, with);
        } else if (key_state_live(m, x->a, set, at)) {
            closure_thread(m, (struct thread){ t.node, at, t.frame });
        }
        return;
    }
    if (s.extends)
        closure_thread(m, (struct thread){ t.node, at, t.frame });
    if (s.accepts)
        closure_node(m, x->next, t.frame);
}

static int same_states(const uint32_t *const *row, size_t n, int a, int b)
{
    size_t i = 0;
    while (i < n && row[i][a] == row[i][b])
        i++;
    return i == n;
}

/* Bytes that lead all threads to the same states lead to one configuration: like[b] is the first such
 * byte. */
static void find_like(const uint32_t *const *row, size_t n, uint8_t like[256])
{
    uint64_t hash[256];
    uint8_t different[256];
    int n_different = 0;
    memset(hash, 0, sizeof hash);
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < 256; b++)
            hash[b] = (hash[b] ^ row[i][b]) * 0x9E3779B97F4A7C15u + (hash[b] >> 29);

    for (int b = 0; b < 256; b++) {
        int j = -1;
        if (b && hash[b] == hash[b - 1] && same_states(row, n, b, b - 1)) { /* most often */
            like[b] = like[b - 1];
            continue;
        }
        while (++j < n_different)
            if (hash[different[j]] == hash[b] && same_states(row, n, b, different[j]))
                break;
        if (j == n_different)
            different[n_different++] = (uint8_t)b;
        like[b] = different[j];
    }
}

#define ROW_BYTES (256 * sizeof(uint32_t) + 256)
const uint32_t *machine_row(struct machine *m, uint32_t config)
{
    size_t n;
    if (m->config[config].row)
        return m->config[config].row;
    const struct thread *t = machine_threads(m, config, &n);
    const uint32_t **rows = malloc((n + 1) * sizeof *rows);
    uint32_t *row = malloc(ROW_BYTES);
    if (!rows || !row)
        m->failed = ERR_MEMORY;
    for (size_t i = 0; i < n && !m->failed; i++)
        rows[i] = term_row(m, t[i].at);
    if (m->failed) {
        free((void *)rows);
        free(row);
        return NULL;
    }

    find_like(rows, n, (uint8_t *)(row + 256));
    for (int b = 0; b < 256; b++) {
        row[b] = 0;
        for (size_t i = 0; i < n && !row[b]; i++)
            row[b] = rows[i][b] ? NOT_KNOWN : 0;
    }
    free((void *)rows);
    m->work -= 32 + (int64_t)n * 16;
    m->row_bytes += ROW_BYTES;
    return m->config[config].row = row;
}

uint32_t machine_resolve(struct machine *m, uint32_t config, unsigned char byte)
{
    const uint32_t *row = machine_row(m, config);
    size_t n;
    if (!row)
        return 0;
    const uint8_t *like = (const uint8_t *)(row + 256);
    unsigned char first = like[byte];
    uint32_t next = row[first];
    if (m->work < 0 ||
        m->row_bytes + m->configs.cap_bytes + m->vectors.cap_bytes + m->frames.cap_bytes > MACHINE_MOST)
        m->failed = m->failed ? m->failed : ERR_CONFIG;
    if (next == NOT_KNOWN && !m->failed) {
        const struct thread *t = machine_threads(m, config, &n);
        closure_begin(m);
        for (size_t i = 0; i < n; i++) {
            uint32_t at = m->term[t[i].at].row[first];
            if (at)
                advance(m, t[i], at);
        }
        next = closure_end(m);
    }
    if (m->failed)
        return 0;
    m->config[config].row[first] = m->config[config].row[byte] = next;
    return next;
}

uint32_t machine_added(struct machine *m, uint32_t config)
{
    size_t n;
    const struct thread *t = machine_threads(m, config, &n);
    closure_begin(m);
    for (size_t i = 0; i < n; i++) {
        const struct node *x = &m->p->node[t[i].node];
        if (x->kind == NODE_TERM && m->p->terminal[x->a].flags & TERMINAL_ADDED)
            closure_thread(m, t[i]);
    }
    return closure_end(m);
}

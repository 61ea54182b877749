/* pack.c - see pack.h. Rows that have room left lie in lists by that room; a document goes to the list of the
 * smallest room that holds it. */
#include "train/data/pack.h"

#include <stdlib.h>
#include <string.h>

#define BITS 64

/* While rows are made. */
struct making {
    const int64_t *end;
    int64_t n, room;
    int64_t *by_length;    /* [n]: documents, the longest first */
    int64_t *row_of;       /* [n]: the row of each */
    int64_t *left, *count; /* [rows]: tokens that still fit, documents in it */
    int64_t *next, *head;  /* lists: [rows]; [room + 1], -1: empty */
    uint64_t *used, *many; /* bits of lists that are not empty; of words of `used` that are not 0 */
    int64_t n_rows;
};

static int64_t length_of(const struct making *m, int64_t i)
{
    int64_t n = m->end[i] - (i ? m->end[i - 1] : 0);
    return n < m->room ? n : m->room;
}

static void push(struct making *m, int64_t row)
{
    int64_t at = m->left[row];
    m->next[row] = m->head[at];
    m->head[at] = row;
    m->used[at / BITS] |= (uint64_t)1 << at % BITS;
    m->many[at / BITS / BITS] |= (uint64_t)1 << at / BITS % BITS;
}

static int64_t pop(struct making *m, int64_t at)
{
    int64_t row = m->head[at];
    m->head[at] = m->next[row];
    if (m->head[at] < 0)
        m->used[at / BITS] &= ~((uint64_t)1 << at % BITS);
    if (!m->used[at / BITS])
        m->many[at / BITS / BITS] &= ~((uint64_t)1 << at / BITS % BITS);
    return row;
}

/* The lowest set bit from `from` on among n words; -1: none. */
static int64_t next_bit(const uint64_t *word, int64_t n, int64_t from)
{
    int64_t w = from / BITS;
    uint64_t bits = w < n ? word[w] & ~(uint64_t)0 << from % BITS : 0;
    while (!bits && ++w < n)
        bits = word[w];
    return bits ? w * BITS + __builtin_ctzll(bits) : -1;
}

/* The smallest room of at least n tokens that a row has; -1: none. */
static int64_t best_room(const struct making *m, int64_t n)
{
    int64_t words = m->room / BITS + 1, w = n / BITS;
    uint64_t here = m->used[w] & ~(uint64_t)0 << n % BITS;
    if (here)
        return w * BITS + __builtin_ctzll(here);
    w = next_bit(m->many, words / BITS + 1, w + 1);
    return w < 0 ? -1 : w * BITS + __builtin_ctzll(m->used[w]);
}

static void place(struct making *m, int64_t doc, int most)
{
    int64_t n = length_of(m, doc), at = best_room(m, n), row = at < 0 ? m->n_rows++ : pop(m, at);
    if (at < 0)
        m->left[row] = m->room;
    m->left[row] -= n;
    m->row_of[doc] = row;
    if (++m->count[row] < most)
        push(m, row);
}

/* Documents by length, the longest first; equal ones in their order. */
static int sort_by_length(struct making *m)
{
    int64_t *at = calloc((size_t)m->room + 2, sizeof *at);
    if (!at)
        return -1;
    for (int64_t i = 0; i < m->n; i++)
        at[m->room - length_of(m, i) + 1]++;
    for (int64_t k = 0; k <= m->room; k++)
        at[k + 1] += at[k];
    for (int64_t i = 0; i < m->n; i++)
        m->by_length[at[m->room - length_of(m, i)]++] = i;
    free(at);
    return 0;
}

/* The rows in the order of their first documents. number[row]: its place, -1 at first. */
static void order_rows(const struct making *m, struct pack *p, int64_t *number)
{
    for (int64_t i = 0; i < m->n; i++)
        if (number[m->row_of[i]] < 0)
            number[m->row_of[i]] = p->n_rows++;
    for (int64_t i = 0; i < m->n; i++)
        p->first[number[m->row_of[i]] + 1]++;
    for (int64_t r = 0; r < p->n_rows; r++)
        p->first[r + 1] += p->first[r];
    int64_t *at = m->by_length; /* done with */
    memcpy(at, p->first, sizeof *at * (size_t)m->n);
    for (int64_t i = 0; i < m->n; i++)
        p->doc[at[number[m->row_of[i]]]++] = i;
}

int pack_make(struct pack *p, const int64_t *end, int64_t n, int64_t room, int most, struct err *e)
{
    struct making m = { .end = end, .n = n, .room = room };
    size_t rows = (size_t)n + 1, lists = (size_t)room + 1;
    int64_t *memory = calloc(rows * 5 + lists, sizeof *memory);
    uint64_t *bits = calloc(lists / BITS + lists / BITS / BITS + 4, sizeof *bits);
    int rc = 0;

    *p = (struct pack){ .first = calloc(rows, sizeof *p->first), .doc = calloc(rows, sizeof *p->doc) };
    if (!memory || !bits || !p->first || !p->doc) {
        rc = err_set(e, ERR_MEMORY, "no memory to pack %lld conversations", (long long)n);
        goto out;
    }
    m.by_length = memory;
    m.row_of = memory + rows;
    m.left = memory + 2 * rows;
    m.count = memory + 3 * rows;
    m.next = memory + 4 * rows;
    m.head = memory + 5 * rows;
    m.used = bits;
    m.many = bits + lists / BITS + 2;
    memset(m.head, 0xff, lists * sizeof *m.head);

    if (sort_by_length(&m) < 0) {
        rc = err_set(e, ERR_MEMORY, "no memory to pack %lld conversations", (long long)n);
        goto out;
    }
    for (int64_t i = 0; i < n; i++) {
        p->n_cut += end[i] - (i ? end[i - 1] : 0) > room;
        place(&m, m.by_length[i], most);
    }
    memset(m.next, 0xff, rows * sizeof *m.next);
    order_rows(&m, p, m.next);
out:
    free(memory);
    free(bits);
    return rc;
}

void pack_free(struct pack *p)
{
    free(p->first);
    free(p->doc);
    *p = (struct pack){ 0 };
}

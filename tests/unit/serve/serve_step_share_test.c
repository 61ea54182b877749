/* serve_step_share_test.c - the rows of a step that each rank of cp computes: every row on one rank, a page
 * written by one rank, wanted rows in the order of the message, work divided evenly. */
#include "base/rnd.h"
#include "serve/engine/step_share.h"
#include "tests/test.h"

enum { SEQS = 12, ROWS = 900, RANKS = 4, WANTS = ROWS };

/* A step of sequences whose token at position p of sequence s is 10000 s + p. */
struct step {
    struct attn_seq seq[SEQS];
    int32_t adapter[SEQS]; /* another one each */
    int32_t ids[ROWS], want[WANTS];
    char *page[SEQS][64];
    struct step_message m;
};

/* Below n; turn: the draws so far. */
static int64_t up_to(uint64_t *turn, int64_t n) { return (int64_t)(rnd_u64(5, 0, (*turn)++) % (uint64_t)n); }

static void add_seq(struct step *s, int64_t pos, int64_t rows, int64_t wants)
{
    int i = s->m.n_seq++;
    s->adapter[i] = i + 1;
    s->seq[i] = (struct attn_seq){ .row = s->m.n_rows, .n_rows = rows, .pos = pos, .page = s->page[i] };
    for (int64_t r = 0; r < rows; r++) {
        if (r >= rows - wants)
            s->want[s->m.n_want++] = (int32_t)s->m.n_rows;
        s->ids[s->m.n_rows++] = (int32_t)(10000 * i + pos + r);
    }
}

static void begin(struct step *s)
{
    s->m = (struct step_message){
        .ids = s->ids, .want = s->want, .seq = { s->seq, s->seq }, .adapter = s->adapter
    };
}

static void open_share(struct step_share *s, int n, int place, int rank)
{
    struct err e;
    struct step_share_open how = { n, rank, place, SEQS, ROWS, WANTS, 64 };
    CHECK_INT(step_share_open(s, &how, &e), 0);
}

/* Is the sequence one piece? Then every place computes it. */
static int is_one_piece(const struct attn_seq *q)
{
    return q->pos / KV_PAGE == (q->pos + q->n_rows - 1) / KV_PAGE;
}

/* The shares of all ranks of a step: rows once, or once a place; runs that say where their tokens are. */
static void check_step(const struct step *x, int n, int place)
{
    struct step_share s[RANKS];
    int owner[ROWS], seen[ROWS] = { 0 }, writer[SEQS][64], last = 0;
    int32_t listed[WANTS];

    for (int i = 0; i < SEQS * 64; i++)
        writer[i / 64][i % 64] = -1;
    for (int r = 0; r < n; r++) {
        open_share(&s[r], n, place, r);
        step_share_deal(&s[r], &x->m);
        CHECK(s[r].rows[r] <= step_share_rows(ROWS, place));
        int64_t rows = 0;
        for (int i = 0; i < s[r].n_seq; i++) {
            const struct attn_seq *q = &s[r].seq[0][i];
            CHECK_INT(q->row, rows);
            int seq = s[r].ids[q->row] / 10000;
            CHECK(q->page == x->seq[seq].page);
            CHECK_INT(s[r].adapter[i], x->adapter[seq]);
            for (int64_t k = 0; k < q->n_rows; k++, rows++) {
                int64_t row = x->seq[seq].row + q->pos + k - x->seq[seq].pos;
                int *w = &writer[seq][(q->pos + k) / KV_PAGE];
                CHECK_INT(s[r].ids[rows], 10000 * seq + q->pos + k);
                int writes = is_one_piece(&x->seq[seq]) ? r % place : r;
                CHECK(*w < 0 || *w == writes);
                *w = writes;
                owner[row] = r;
                seen[row]++;
            }
        }
        CHECK_INT(rows, s[r].rows[r]);
        for (int64_t i = 0; i < s[r].wants[r]; i++) /* as the first rank puts them together */
            listed[last++] = s[r].ids[s[r].want[i]];
    }

    for (int i = 0; i < x->m.n_seq; i++)
        for (int64_t k = x->seq[i].row; k < x->seq[i].row + x->seq[i].n_rows; k++)
            CHECK_INT(seen[k], is_one_piece(&x->seq[i]) ? n / place : 1);
    CHECK_INT(last, x->m.n_want);
    for (int64_t i = 0; i < x->m.n_want; i++)
        CHECK_INT(listed[s[0].order[i]], x->ids[x->m.want[i]]);
    int divided = 0;
    for (int i = 0; i < x->m.n_seq; i++)
        for (int64_t k = 1; k < x->seq[i].n_rows; k++)
            divided |= place < n ? !is_one_piece(&x->seq[i])
                                 : owner[x->seq[i].row + k] != owner[x->seq[i].row];
    for (int r = 0; r < n; r++) {
        CHECK_INT(s[r].divided, divided);
        step_share_close(&s[r]);
    }
}

TEST(every_row_is_on_one_rank_and_wanted_rows_are_in_order)
{
    static struct step s;
    uint64_t r = 0;
    for (int turn = 0; turn < 400; turn++) {
        begin(&s);
        for (int i = 0, n = 1 + (int)up_to(&r, SEQS); i < n; i++) {
            int64_t left = ROWS - s.m.n_rows - (n - i), rows = up_to(&r, 3) ? 1 : 1 + up_to(&r, left);
            add_seq(&s, up_to(&r, 2000), rows, up_to(&r, 2) ? 1 : up_to(&r, rows + 1));
        }
        int n = 1 + (int)up_to(&r, RANKS);
        check_step(&s, n, n);
        check_step(&s, n, 1);
        if (n % 2 == 0)
            check_step(&s, n, 2);
    }
}

TEST(a_long_chunk_is_divided_evenly_with_its_late_pages_on_both_ranks)
{
    static struct step s;
    struct step_share a;
    begin(&s);
    add_seq(&s, 0, 512, 1);
    open_share(&a, 2, 2, 0);
    step_share_deal(&a, &s.m);
    CHECK_INT(a.rows[0], 256);
    CHECK_INT(a.divided, 1);
    int64_t keys[2] = { 0 };
    for (int i = 0; i < a.n_pieces; i++)
        keys[a.piece[i].rank] += a.piece[i].row + 32;
    CHECK_INT(keys[0], keys[1]);
    step_share_close(&a);
}

TEST(decoding_alone_divides_no_sequence)
{
    static struct step s;
    struct step_share a;
    begin(&s);
    for (int i = 0; i < 8; i++)
        add_seq(&s, 100 * i + 63, 1, 1);
    open_share(&a, 4, 4, 1);
    step_share_deal(&a, &s.m);
    CHECK_INT(a.divided, 0);
    for (int r = 0; r < 4; r++)
        CHECK_INT(a.rows[r], 2);
    step_share_close(&a);
}

TEST(a_rank_has_room_for_its_rows_whatever_a_step_has)
{
    CHECK_INT(step_share_rows(1000, 1), 1000);
    CHECK_INT(step_share_rows(1000, 2), 564);
    CHECK_INT(step_share_rows(100, 4), 89);
    CHECK_INT(step_share_rows(20, 4), 20);
}

/* leaf_rows_test.c - which token of a sequence a row is, where sequences are cut into leaves; C by the
 * contract's formula. */
#include "model/model.h"
#include "tests/test.h"

/* The token of every row, rank after rank, against chunks written down by hand. */
static void check_chunks(int cp_grain, int cp, const int *chunk)
{
    enum { CHUNK = 64 };
    int64_t len = (int64_t)2 * cp_grain * CHUNK, rows = len / cp;
    for (int rank = 0; rank < cp; rank++) {
        struct model m = { .cp_grain = cp_grain };
        m.local.layout.cp = cp;
        m.local.at.cp = rank;
        CHECK_INT(model_leaves(&m), cp_grain / cp);
        for (int64_t row = 0; row < rows; row++) {
            int64_t of = (rank * rows + row) / CHUNK;
            CHECK_INT(model_row_token(&m, len, row), chunk[of] * CHUNK + row % CHUNK);
        }
    }
}

TEST(rows_lie_by_leaves_of_two_chunks)
{
    static const int two[] = { 0, 3, 1, 2 }, four[] = { 0, 7, 1, 6, 2, 5, 3, 4 };
    check_chunks(2, 1, two);
    check_chunks(2, 2, two);
    check_chunks(4, 1, four);
    check_chunks(4, 2, four);
    check_chunks(4, 4, four);
}

TEST(rows_of_sequences_that_are_not_cut_are_tokens)
{
    struct model m = { .local.layout.cp = 1 };
    CHECK_INT(model_leaves(&m), 1);
    CHECK_INT(model_row_token(&m, 100, 99), 99);
}

TEST(the_leaves_of_a_new_run_follow_from_the_length)
{
    static const struct {
        int64_t len;
        int leaves;
    } want[] = { { 63, 1 },    { 4095, 1 },  { 4096, 2 },  { 4097, 1 },  { 4224, 1 },  { 4352, 2 },
                 { 8192, 4 },  { 8320, 1 },  { 16384, 8 }, { 16383, 1 }, { 65536, 8 }, { 24576, 8 },
                 { 20480, 8 }, { 18432, 8 }, { 17408, 8 }, { 16640, 2 } };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_INT(model_cp_grain(want[i].len), want[i].leaves);
}

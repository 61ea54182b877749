/* failure_board.c - see failure_board.h. */
#include "comm/failure_board.h"
#include "comm/leash.h"

#include <sched.h>
#include <stdio.h>

size_t failure_board_bytes(int n_ranks)
{
    return sizeof(struct failure_board) + (size_t)n_ranks * sizeof(struct failure_board_rank);
}

int failure_board_fail(struct failure_board *b, const char *text)
{
    int healthy = BOARD_HEALTHY;
    if (!atomic_compare_exchange_strong(&b->failed, &healthy, BOARD_WRITING))
        return 0;
    snprintf(b->text, sizeof b->text, "%s", text);
    atomic_store(&b->failed, BOARD_FAILED);
    return 1;
}

int failure_board_check(struct failure_board *b, struct err *e)
{
    int f = atomic_load_explicit(&b->failed, memory_order_acquire);
    if (f == BOARD_HEALTHY)
        return 0;
    /* the writer may have been killed while writing */
    for (int i = 0; f == BOARD_WRITING && i < 1000; i++) {
        sched_yield();
        f = atomic_load(&b->failed);
    }
    return err_set(e, ERR_PEER, "%s", f == BOARD_FAILED ? b->text : "another rank failed");
}

int failure_board_claim_report(struct failure_board *b)
{
    int first = !atomic_exchange(&b->reported, 1);
    if (first)
        leash_tell();
    return first;
}

/* turn.c - see turn.h. */
#include "train/elastic/turn.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include "comm/launch.h"
#include "comm/leash.h"
#include "comm/relay.h"

int64_t turn_ask(struct note *note, const char args[LAYOUT_ARGS_BYTES], int64_t step)
{
    memcpy(note->asked_args, args, LAYOUT_ARGS_BYTES);
    note->asked_step = step;
    const int64_t turn = atomic_fetch_add(&note->asked, 1) + 1;
    leash_ask();
    return turn;
}

void turn_pass(struct note *note, int64_t turn) { atomic_store(&note->passed, turn); }

void turn_call_off(struct note *note, int64_t turn)
{
    int64_t seen = atomic_load(&note->called_off);
    while (turn > seen && !atomic_compare_exchange_weak(&note->called_off, &seen, turn))
        ;
}

/* Rank 0. */
static int64_t is_off(struct note *note, int64_t turn)
{
    static const struct timespec nap = { 0, 2000000 };
    for (;;) {
        if (!note || atomic_load(&note->called_off) >= turn)
            return 1;
        if (atomic_load(&note->passed) == turn)
            return 0;
        nanosleep(&nap, NULL);
    }
}

int turn_wait(const struct ranks *ranks, struct err *e)
{
    const int64_t turn = launch_turn();
    int64_t off = 0;
    int rc = 0;
    if (!turn)
        return 0;
    if (ranks_is_first(ranks))
        off = is_off(relay_open(sizeof(struct note)), turn);
    TRY(comm_broadcast(ranks->mesh.all, &off, sizeof off, 0, e));
    rc = (int)off;
out:
    return rc;
}

/* ptrain - trains a language model over MPI ranks, to the same bits at every layout. */
#include <signal.h>
#include "comm/launch.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    static struct trainer t; /* large; lives as long as the process */
    struct err e = { 0 };
    /* a limit on the size of files is an error of write, not a death */
    signal(SIGXFSZ, SIG_IGN);
    int rc = trainer_open(&t, argc, argv, &e), status = 0;
    if (rc == 0)
        rc = t.o.dry_run ? trainer_plan(&t, &e) : trainer_run(&t, &e);
    log_close(&t.log);
    if (rc < 0 && t.world)
        status = world_report(t.world, &e, "ptrain"); /* the others stop too; one line for the whole job */
    else if (rc < 0)
        status = launch_is_first() ? err_print(&e, "ptrain") : err_exit_status(e.code);
    trainer_close(&t);
    return status;
}

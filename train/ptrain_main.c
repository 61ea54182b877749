/* ptrain - trains a language model over MPI ranks, to the same bits at every layout. */
#include "comm/launch.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    static struct trainer t;             /* large; lives as long as the process */
    struct err e = { 0 };
    int rc = trainer_open(&t, argc, argv, &e);
    if (rc == 0)
        rc = t.o.dry_run ? trainer_plan(&t, &e) : trainer_run(&t, &e);
    log_close(&t.log);
    int status = rc < 0 ? err_exit_status(e.code) : 0, speak = launch_is_first();
    if (rc < 0 && t.world) {
        world_fail(t.world, &e);         /* the others stop too */
        speak = world_speaks(t.world);   /* one line for the whole job */
    }
    if (rc < 0 && speak)
        err_print(&e, "ptrain");
    trainer_close(&t);
    return status;
}

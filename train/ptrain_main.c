/* ptrain - trains a language model over MPI ranks, to the same bits at every layout. */
#include "base/io.h"
#include "comm/launch.h"
#include "train/ptrain.h"

int main(int argc, char **argv)
{
    static struct ptrain p; /* large; lives as long as the process */
    struct err e = { 0 };
    int status = 0;

    io_begin();
    int rc = ptrain_open(&p, argc, argv, &e);
    if (rc == 0)
        rc = p.run.o.dry_run ? ptrain_plan(&p, &e) : ptrain_run(&p, &e);
    log_close(&p.log.term);
    if (rc >= 0)
        rc = io_flush_stdout(&e);

    if (rc < 0 && p.ranks.world)
        status = world_report(p.ranks.world, &e,
                              "ptrain"); /* stops the other ranks too; one line for the job */
    else if (rc < 0)
        status = launch_report(&e, "ptrain");
    ptrain_close(&p);
    return status;
}

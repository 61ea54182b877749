/* pserve_main.c - pserve: serves a checkpoint over HTTP from any number of tensor parallel ranks. */
#include "base/io.h"
#include "comm/launch.h"
#include "serve/server.h"

int main(int argc, char **argv)
{
    static struct server s; /* large; lives as long as the process */
    struct err e = { 0 };
    io_begin();
    int rc = server_open(&s, argc, argv, &e);
    if (rc == 0)
        rc = server_run(&s, &e);
    if (rc >= 0)
        rc = io_flush_stdout(&e);
    int status = 0;
    if (rc < 0 && s.world)
        status = world_report(s.world, &e, "pserve"); /* the others stop too; one line for the whole job */
    else if (rc < 0)
        status = launch_report(&e, "pserve");
    server_close(&s, rc);
    return status;
}

/* pserve_main.c - pserve: serves a checkpoint over HTTP from any number of tensor parallel ranks. */
#include "comm/launch.h"
#include "serve/server.h"

int main(int argc, char **argv)
{
    static struct server s;              /* large; lives as long as the process */
    struct err e = { 0 };
    int rc = server_open(&s, argc, argv, &e);
    if (rc == 0)
        rc = server_run(&s, &e);
    int status = rc < 0 ? err_exit_status(e.code) : 0, speak = launch_is_first();
    if (rc < 0 && s.world) {
        world_fail(s.world, &e);         /* the others stop too */
        speak = world_speaks(s.world);   /* one line for the whole job */
    }
    if (rc < 0 && speak)
        err_print(&e, "pserve");
    server_close(&s, rc);
    return status;
}

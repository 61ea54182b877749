/* publisher_serve.c - the process that keeps versions, and its pshare. See publisher.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/io.h"
#include "store/memory.h"
#include "train/checkpoint/publisher.h"
#include "train/checkpoint/publisher_names.h"

/* HOST and PORT of HOST:PORT; [::1]:8100 is an address of IPv6. */
static int split(const char *text, char host[256], const char **port, struct err *e)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    long n = colon ? strtol(colon + 1, &end, 10) : -1;
    int inner = colon && colon > text + 1 && *text == '[' && colon[-1] == ']';
    if (!colon || colon == text || end == colon + 1 || *end || n < 0 || n > 65535 || colon - text > 255)
        return err_set(e, ERR_USAGE,
                       "--publish %.200s is not HOST:PORT: give an address, as in 127.0.0.1:8100", text);
    snprintf(host, 256, "%.*s", (int)(colon - text) - 2 * inner, text + inner);
    *port = colon + 1;
    return 0;
}

int publish_check_address(const char *text, struct err *e)
{
    char host[256];
    const char *port;
    return split(text, host, &port, e);
}

/* The program pshare beside this one. */
static int find_pshare(char path[4096], struct err *e)
{
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    if (n < 0)
        return err_sys(e, "cannot find pshare");
    path[n] = 0;
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 16, "pshare");
    return access(path, X_OK) == 0 ? 0 : err_set(e, ERR_FILE, "%s is not there: --publish needs it", path);
}

/* The grandchild: a session of its own, so that Ctrl-C does not end it before the run. */
static void run_pshare(const char *const argv[], int out)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    dup2(out, STDOUT_FILENO);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* Starts pshare as nobody's child: this process waits for its children, the ranks, and pshare ends by itself
 * when this process has. Waits for its first line. */
static int start(const char *const argv[], struct err *e)
{
    int out[2];
    char line[256];
    size_t n = 0;
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_sys(e, "cannot start pshare");
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0)
            run_pshare(argv, out[1]);
        _exit(0);
    }
    close(out[1]);
    if (child > 0)
        waitpid(child, NULL, 0);
    for (ssize_t got = 1; child > 0 && got > 0 && n < sizeof line - 1 && !memchr(line, '\n', n);
         n += (size_t)got)
        if ((got = read(out[0], line + n, sizeof line - 1 - n)) < 0)
            got = 0;
    close(out[0]);
    line[n] = 0;
    const char *url = strstr(line, "http://");
    if (url) /* with --publish HOST:0 there is no other way to know the port */
        fprintf(stderr, "ptrain: the weights of this run are at %.*s\n", (int)strcspn(url, " \n"), url);
    return url ? 0 : err_set(e, ERR_FILE, "--publish: pshare does not start: its own line says why");
}

int publish_serve(const struct train_opts *o, struct err *e)
{
    static struct keeper *keeper; /* as long as the process */
    char path[4096], source[64], host[256];
    const char *port = "";
    int rc = split(o->publish, host, &port, e);
    if (rc < 0 || (rc = find_pshare(path, e)) < 0 || (rc = keeper_open(&keeper, NULL, e)) < 0)
        return rc;
    snprintf(source, sizeof source, "mem:%ld/" PUBLISH_SETS, (long)getpid());
    const char *argv[] = { path,
                           source,
                           "--end-with-source",
                           "--host",
                           host,
                           "--port",
                           port,
                           o->publish_key_file ? "--key-file" : NULL,
                           o->publish_key_file,
                           NULL };
    return start(argv, e);
}

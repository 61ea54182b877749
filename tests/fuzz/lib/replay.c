/* replay.c - the main of a fuzz target as a plain test: every file of the folders and every file named on the
 * command line is one input.
 *
 * Inputs run in a child, so that a crash, a hang or an allocation beyond the limit is reported with the name
 * of its input and the rest still runs. Under the sanitizers their report gives the details. `FUZZ_SECONDS=…
 * make fuzz` looks for new inputs. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* an input of a few kB ends in milliseconds; a loaded machine, a sanitizer */
#define TIME_S 20
#define LIMIT_BYTES ((size_t)16 << 20) /* one allocation, as -malloc_limit_mb of `make fuzz` */

#ifdef __SANITIZE_ADDRESS__
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "max_allocation_size_mb=16"; }
#else
/* glibc's own, under the names behind which the C library keeps them */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
static void check(size_t n)
{
    static const char text[] = "an allocation beyond the limit\n";
    if (n > LIMIT_BYTES) {
        if (write(2, text, sizeof text - 1) < 0)
            _exit(1);
        abort();
    }
}
void *malloc(size_t n)
{
    check(n);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    check(size && n > LIMIT_BYTES / size ? LIMIT_BYTES + 1 : n * size);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    check(n);
    return __libc_realloc(p, n);
}
#endif

struct list {
    char **path;
    int n, room;
};

static void add(struct list *l, const char *path)
{
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        if (!(l->path = realloc(l->path, sizeof *l->path * (size_t)l->room)))
            abort();
    }
    l->path[l->n++] = strdup(path);
}

static void add_all(struct list *l, const char *path)
{
    DIR *d = opendir(path);
    struct dirent *f;
    char file[4096];
    if (!d) {
        add(l, path);
        return;
    }
    while ((f = readdir(d)))
        if (f->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", path, f->d_name);
            add(l, file);
        }
    closedir(d);
}

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) < 0) {
        fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
        return -1;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *data = malloc(n ? n : 1);
    if (!data || fread(data, 1, n, f) != n)
        abort();
    fclose(f);
    alarm(TIME_S);
    LLVMFuzzerTestOneInput(data, n);
    alarm(0);
    free(data);
    return 0;
}

/* Runs inputs from `first` on; *at: the one it is at, which the parent knows also of a child that was killed.
 * Ends the process. */
static void child(const struct list *l, int first, volatile int *at)
{
    for (int i = first; i < l->n; i++) {
        *at = i;
        if (run_file(l->path[i]) < 0)
            abort();
    }
    *at = l->n;
    exit(0); /* a leak is found here */
}

int main(int argc, char **argv)
{
    struct list l = { 0 };
    int failed = 0, status;
    volatile int *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 1; i < argc; i++)
        add_all(&l, argv[i]);
    if (!l.n || at == MAP_FAILED) {
        fprintf(stderr, "usage: %s FILE|FOLDER...: no input there\n", argv[0]);
        return 2;
    }
    qsort(l.path, (size_t)l.n, sizeof *l.path, compare);
    for (int first = 0; first < l.n; first = *at + 1) {
        *at = first;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0)
            child(&l, first, at);
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            abort();
        if (status) {
            failed++;
            printf("FAIL %s: %s %d\n", *at < l.n ? l.path[*at] : "all inputs together",
                   WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        }
    }
    for (int i = 0; i < l.n; i++)
        free(l.path[i]);
    free(l.path);
    printf("%d passed, %d failed, 0 skipped\n", l.n - failed, failed);
    return failed != 0;
}

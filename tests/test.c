/* test.c - see test.h. */
#include "tests/test.h"

#include <stdarg.h>
#include <unistd.h>

static struct test *tests, **tail = &tests;
static int failed_now, skipped_now;
static char tmp[256];

void test_add(struct test *t)
{
    *tail = t;
    tail = &t->next;
}

static int rank(void)
{
    const char *r = getenv("OMPI_COMM_WORLD_RANK");
    return r ? atoi(r) : 0;
}

static void remove_tmp(void)
{
    char cmd[300];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", tmp);
    if (tmp[0] && system(cmd) != 0)
        fprintf(stderr, "cannot remove %s\n", tmp);
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    if (failed_now++ > 20)
        return;
    char text[1024];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    printf("%s:%d: rank %d: %s\n", file, line, rank(), text);
    if (getenv("TEST_STOP")) { /* tests/altered needs one failure only */
        printf("0 passed, 1 failed, 0 skipped\n");
        remove_tmp();
        _exit(1);
    }
}

void test_skip(const char *fmt, ...)
{
    va_list ap;
    skipped_now = 1;
    if (rank())
        return;
    printf("skip: ");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

const char *test_fixture_dir(void)
{
    const char *d = getenv("FIXTURES");
    return d && *d ? d : NULL;
}

const char *test_tmp_dir(void)
{
    if (!tmp[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(tmp, sizeof tmp, "%s/shardline-test-XXXXXX", base ? base : "/tmp");

        if (!mkdtemp(tmp)) {
            perror(tmp);
            exit(1);
        }
        atexit(remove_tmp);
    }
    return tmp;
}

static int wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i]))
            return 1;
    return argc < 2;
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0, skipped = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);

    for (struct test *t = tests; t; t = t->next) {
        if (argc == 2 && !strcmp(argv[1], "-l")) {
            printf("%s\n", t->name);
            continue;
        }
        if (!wanted(t->name, argc, argv))
            continue;

        failed_now = skipped_now = 0;
        t->fn();

        if (failed_now)
            printf("FAIL %s (rank %d)\n", t->name, rank());
        failed += failed_now > 0;
        skipped += !failed_now && skipped_now;
        passed += !failed_now && !skipped_now;
    }

    if (rank() == 0 || failed)
        printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}

/* base_env_test.c - the table of environment variables: asked by row, printed the same in base/README.md. */
#include "base/env.h"
#include "tests/test.h"

#include <unistd.h>

TEST(an_empty_variable_counts_as_unset)
{
    unsetenv("NO_COLOR");
    CHECK(env_get(ENV_NO_COLOR) == NULL);
    setenv("NO_COLOR", "", 1);
    CHECK(env_get(ENV_NO_COLOR) == NULL);
    setenv("NO_COLOR", "1", 1);
    CHECK_STR(env_get(ENV_NO_COLOR), "1");
    unsetenv("NO_COLOR");
}

TEST(every_variable_is_one_row_with_a_meaning)
{
    for (int i = 0; i < ENV_COUNT; i++) {
        CHECK(*env_table[i].meaning);
        for (int k = 0; k < i; k++)
            CHECK(strcmp(env_table[i].name, env_table[k].name));
    }
    CHECK_STR(env_table[ENV_SHARDLINE_ALTER].name, "SHARDLINE_ALTER");
}

/* This program is BUILD/tests/unit/base/base_env_test, and BUILD lies two folders below the source. */
static FILE *open_readme(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    for (int up = 0; up < 6 && n > 0; up++)
        while (n > 0 && path[--n] != '/')
            ;
    strcpy(path + (n > 0 ? n : 0), "/base/README.md");
    return fopen(path, "r");
}

/* The rows of the README's tables of variables are those of env_table, in their order. */
TEST(the_readme_has_the_same_table)
{
    char line[1000], want[1000];
    int inside = 0, i = 0;
    FILE *f = open_readme();
    if (!f) {
        test_skip("no base/README.md beside this build");
        return;
    }
    while (fgets(line, sizeof line, f)) {
        if (!strncmp(line, "## ", 3))
            inside = !strcmp(line, "## Environment variables\n");
        if (!inside || strncmp(line, "| `", 3))
            continue;
        snprintf(want, sizeof want, "| `%s` | %s |\n", i < ENV_COUNT ? env_table[i].name : "no more",
                 i < ENV_COUNT ? env_table[i].meaning : "");
        CHECK_STR(line, want);
        i++;
    }
    fclose(f);
    CHECK_INT(i, ENV_COUNT);
}

/* base_log_test.c - what reaches stderr: lines, a live line on a terminal, silence of other ranks; errors as
 * one line. */
#include "tests/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

/* stderr goes to a file from begin() to end(), which returns what was written. */
struct capture {
    int saved;
    FILE *file;
    char text[2000];
};

static void begin(struct capture *c)
{
    fflush(stderr);
    c->saved = dup(2);
    c->file = tmpfile();
    CHECK(c->saved >= 0 && c->file && dup2(fileno(c->file), 2) == 2);
}

static const char *end(struct capture *c)
{
    fflush(stderr);
    CHECK_INT(dup2(c->saved, 2), 2);
    close(c->saved);
    rewind(c->file);
    c->text[fread(c->text, 1, sizeof c->text - 1, c->file)] = 0;
    fclose(c->file);
    return c->text;
}

TEST(a_message_with_long_paths_keeps_its_beginning_and_its_end)
{
    struct err e;
    static char path[4096];
    memset(path, 'p', sizeof path - 1);
    err_set(&e, ERR_FILE, "begin %s: do this", path);
    CHECK_HAS(e.text, "begin ppp");
    CHECK_HAS(e.text, "p ... p");
    CHECK_HAS(e.text, "ppp: do this");
    errno = ENOENT;
    err_sys(&e, "cannot open %s", path);
    CHECK_HAS(e.text, "cannot open ppp");
    CHECK_HAS(e.text, "ppp: No such file or directory");
    err_add(&e, "opening %s", path);
    CHECK_HAS(e.text, "opening ppp");
    CHECK_HAS(e.text, "ppp: No such file or directory");
}

TEST(lines_name_the_program_and_other_ranks_are_quiet)
{
    struct capture c;
    struct log l, quiet;
    log_open(&l, "ptrain", 0, 0);
    log_open(&quiet, "ptrain", 1, 1);
    begin(&c);
    log_line(&l, "step %d", 3);
    log_line(&quiet, "not seen");
    log_progress(&quiet, 1, "not seen");
    log_close(&quiet);
    log_close(&l);
    CHECK_STR(end(&c), "ptrain: step 3\n");
}

TEST(without_a_terminal_progress_is_a_plain_line_now_and_then)
{
    struct capture c;
    struct log l;
    log_open(&l, "p", 0, 0);
    begin(&c);
    for (int i = 0; i < 1000; i++)
        log_progress(&l, 0, "at %d", i);
    log_progress(&l, 1, "done");
    log_close(&l);
    CHECK_STR(end(&c), "p: at 0\np: done\n");
}

TEST(on_a_terminal_a_line_is_redrawn_and_log_lines_go_above_it)
{
    struct capture c;
    struct log l;
    setenv("TERM", "xterm", 1);
    log_open(&l, "p", 0, 1);
    begin(&c);
    log_progress(&l, 0, "at 0");
    log_progress(&l, 0, "too soon");
    log_line(&l, "news");
    log_progress(&l, 1, "done");
    log_progress(&l, 0, "too soon");
    log_close(&l);
    CHECK_STR(end(&c), "\r\033[Kp: at 0\r\033[Kp: news\n\r\033[Kp: done\n");
    begin(&c);
    l.last_s -= 1;
    log_progress(&l, 0, "cut off");
    log_close(&l);
    log_close(&l);
    CHECK_STR(end(&c), "\r\033[Kp: cut off\n");
}

static const char *fitted(const char *text, int columns)
{
    static char out[100];
    snprintf(out, sizeof out, "%s", text);
    log_fit(out, columns);
    return out;
}

TEST(a_live_line_loses_whole_fields_until_it_fits)
{
    const char *line = "p: step 1/9  loss 2.5  10 tokens/s";
    CHECK_STR(fitted(line, 80), line);
    CHECK_STR(fitted(line, 35), line); /* 34 characters, and one column free */
    CHECK_STR(fitted(line, 34), "p: step 1/9  loss 2.5");
    CHECK_STR(fitted(line, 22), "p: step 1/9  loss 2.5");
    CHECK_STR(fitted(line, 21), "p: step 1/9");
    CHECK_STR(fitted(line, 13), "p: step 1/9");
    CHECK_STR(fitted(line, 27), "p: step 1/9  loss 2.5"); /* not "… 10" */
    CHECK_STR(fitted(line, 6), "p: st");                  /* no field fits */
    CHECK_STR(fitted("\xc3\xa9\xc3\xa9\xc3\xa9", 3), "\xc3\xa9\xc3\xa9");
    CHECK_STR(fitted("", 1), "");
}

TEST(a_dumb_terminal_gets_plain_lines)
{
    struct capture c;
    struct log l;
    setenv("TERM", "dumb", 1);
    log_open(&l, "p", 0, 1);
    begin(&c);
    log_progress(&l, 0, "at 0");
    log_close(&l);
    CHECK_STR(end(&c), "p: at 0\n");
    setenv("TERM", "xterm", 1);
}

TEST(bytes_are_said_in_powers_of_1000)
{
    static const struct {
        double bytes;
        const char *text;
    } row[] = {
        { 0, "0 B" },         { 999, "999 B" },        { 1000, "1.00 kB" },
        { 1.5e9, "1.50 GB" }, { 999994, "999.99 kB" }, { 999996, "1.00 MB" },
        { 2e12, "2.00 TB" },  { 5e18, "5000.00 PB" },  { -1.5e6, "-1.50 MB" },
    };
    char text[32];
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        log_bytes(text, row[i].bytes);
        CHECK_STR(text, row[i].text);
    }
}

TEST(an_error_is_one_line_with_context_in_front_and_advice_behind)
{
    struct capture c;
    struct err e;
    begin(&c);
    CHECK_INT(err_set(&e, ERR_MEMORY, "no room for %d", 5), -ERR_MEMORY);
    CHECK_INT(err_print(&e, "ptrain"), 1);
    CHECK_INT(err_add(&e, "layer %d", 2), -ERR_MEMORY);
    CHECK_INT(err_print(&e, "ptrain"), 1);
    err_set(&e, ERR_USAGE, "bad: do this");
    CHECK_INT(err_print(&e, "ptrain"), 2);
    CHECK_STR(end(&c), "ptrain: no room for 5: use more ranks or smaller batches\nptrain: layer 2: no room "
                       "for 5\nptrain: bad: do this\n");
}

TEST(a_rate_says_how_much_how_fast_and_how_long_it_will_take)
{
    struct capture c;
    struct log l;
    log_open(&l, "p", 0, 0);
    begin(&c);
    log_rate(&l, "written", 1.5e9, 4.5e9, clock_s() - 10);
    log_rate(&l, "written", 3e9, 4.5e9, clock_s() - 11); /* too soon for another line */
    CHECK_STR(end(&c), "p: written 1.50 GB of 4.50 GB, 150.00 MB/s, 20 s left\n");
    log_open(&l, "p", 0, 0);
    begin(&c);
    log_rate(&l, "written", 1e9, 97e9, clock_s() - 10);
    CHECK_HAS(end(&c), ", 16 min left\n");
    log_open(&l, "p", 1, 0);
    begin(&c);
    log_rate(&l, "written", 0, 0, clock_s());
    CHECK_STR(end(&c), "");
}

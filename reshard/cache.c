/* cache.c - reshard cache: what the cache of URLs holds, and its removal. */
#include <string.h>
#include <time.h>
#include "reshard/report.h"
#include "store/url_cache_list.h"

static void print_json(const struct cache_entry *list, int n, FILE *out)
{
    json_t *rows = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:I, s:I, s:b, s:b}", "url", list[i].url, "folder",
                                              list[i].path, "bytes", (json_int_t)list[i].bytes, "last_use",
                                              (json_int_t)list[i].used_s, "in_use", list[i].in_use, "upload",
                                              list[i].is_upload));
    report_json(json_pack("{s:o}", "cache", rows), out);
}

static void print_table(const struct cache_entry *list, int n, FILE *out)
{
    char size[32], when[32];
    double sum = 0;
    if (n)
        fprintf(out, "%10s  %-16s  %-6s  URL\n", "on disk", "last use", "");
    for (int i = 0; i < n; i++) {
        const struct cache_entry *c = &list[i];
        const time_t used = (time_t)c->used_s;
        struct tm t;
        localtime_r(&used, &t);
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &t);
        log_bytes(size, (double)c->bytes);
        fprintf(out, "%10s  %-16s  %-6s  %s%s\n", size, when, c->in_use ? "in use" : "",
                *c->url ? c->url : c->path, c->is_upload ? " (being written)" : "");
        sum += (double)c->bytes;
    }
    log_bytes(size, sum);
    fprintf(out, "%d URLs, %s\n", n, size);
}

/* URLs are compared without queries and slashes at their ends. */
static int same_url(const char *a, const char *b)
{
    size_t na = strcspn(a, "?"), nb = strcspn(b, "?");
    while (na && a[na - 1] == '/')
        na--;
    while (nb && b[nb - 1] == '/')
        nb--;
    return na == nb && !memcmp(a, b, na);
}

/* Removes the folders of one URL, or (url NULL) all. */
static int clear(const struct cache_entry *list, int n, const char *url, struct log *log, struct err *e)
{
    char size[32];
    double sum = 0;
    int rc = 0, found = 0, kept = 0;
    for (int i = 0; i < n; i++) {
        if (url && !same_url(list[i].url, url))
            continue;
        found++;
        if ((rc = url_cache_remove(&list[i], e)) < 0)
            return rc;
        kept += rc == 0;
        sum += rc ? (double)list[i].bytes : 0;
        if (rc == 0)
            log_line(log, "%s stays: a process uses it", *list[i].url ? list[i].url : list[i].path);
    }
    if (url && !found)
        return err_set(e, ERR_USAGE, "%s is not in the cache: see `reshard cache list`", url);
    if (url && kept)
        return err_set(e, ERR_FILE, "%s: a process uses it: clear it when that has ended", url);
    log_bytes(size, sum);
    log_line(log, "%d of %d removed, %s", found - kept, found, size);
    return 0;
}

int report_cache(char *const *arg, int n_args, const struct report_options *o, FILE *out, struct err *e)
{
    struct cache_entry *list = NULL;
    int n = 0, is_list = !strcmp(arg[0], "list"), rc;
    if (!is_list && strcmp(arg[0], "clear"))
        return err_set(e, ERR_USAGE, "reshard cache %s: give list or clear [URL...]", arg[0]);
    if (is_list && n_args > 1)
        return err_set(e, ERR_USAGE, "reshard cache list %s: list takes no URL", arg[1]);
    if ((rc = url_cache_list(&list, &n, e)) < 0)
        return rc;
    if (is_list && o->json)
        print_json(list, n, out);
    else if (is_list)
        print_table(list, n, out);
    else if (n_args == 1)
        rc = clear(list, n, NULL, o->log, e);
    for (int i = 1; i < n_args && rc >= 0; i++)
        rc = clear(list, n, arg[i], o->log, e);
    url_cache_list_free(list, n);
    return rc < 0 ? rc : 0;
}

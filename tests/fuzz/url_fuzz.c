/* url_fuzz.c - URLs of files and folders, the names of files in them, the profiles of S3 (store/url.c,
 * store/sigv4.c). The input: the URL, a zero byte, the name of a file, a zero byte, the profiles. No request
 * is made. */
#include <stdlib.h>
#include <string.h>
#include "store/sigv4.h"
#include "store/store_priv.h"
#include "tests/fuzz/fuzz.h"

/* The text up to the next zero byte, with a NUL; the caller frees it. */
static char *next_text(const uint8_t **p, size_t *n)
{
    const uint8_t *zero = *n ? memchr(*p, 0, *n) : NULL;
    size_t len = zero ? (size_t)(zero - *p) : *n;
    char *text = malloc(len + 1);
    if (!text)
        abort();
    if (len)
        memcpy(text, *p, len);
    text[len] = 0;
    *p += len + (zero != NULL);
    *n -= len + (zero != NULL);
    return text;
}

static void open_url(const char *url, const char *name)
{
    struct store *s;
    struct place p;
    struct sigv4_lines lines;
    struct err e = { 0 };
    if ((!store_is_url(url) && strncmp(url, "file://", 7)) || store_open(&s, url, &e) < 0)
        return;
    if (!s->local && store_place(s, name, &p, &e) >= 0 && s->s3)
        sigv4_sign(&lines, &s->aws, p.url, "bytes=0-0", 1700000000);
    store_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char folder[2048], file[256], path[URL_LOCAL_BYTES];
    char *url = next_text(&data, &n), *name = next_text(&data, &n);
    const char *profiles = fuzz_write("credentials", data, n);
    setenv("AWS_SHARED_CREDENTIALS_FILE", profiles, 1);
    setenv("HF_TOKEN_PATH", profiles, 1);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("HF_TOKEN");
    url_split(url, folder, file);
    url_local_path(url, path);
    open_url(url, name);
    free(url);
    free(name);
    return 0;
}

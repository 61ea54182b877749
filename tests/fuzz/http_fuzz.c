/* http_fuzz.c - answers of a server to the store (store/http_get.c, store.c): statuses, headers, redirects,
 * bodies of any length, in any order.
 *
 * The store is compiled in with a curl whose perform takes its answers from the input: header lines up to an
 * empty one, then the body in pieces. A byte in front of an answer gives the length of its body and how the
 * connection ends. There is no waiting between requests. */
#include "tests/fuzz/fuzz.h"

#include <curl/curl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct {
    const uint8_t *p;
    size_t n;
    void *header_arg, *body_arg;
} wire;

static CURLcode fake_setopt(CURL *h, CURLoption o, ...)
{
    va_list a;
    (void)h;
    va_start(a, o);
    if (o == CURLOPT_HEADERDATA)
        wire.header_arg = va_arg(a, void *);
    if (o == CURLOPT_WRITEDATA)
        wire.body_arg = va_arg(a, void *);
    va_end(a);
    return CURLE_OK;
}
static CURLcode fake_perform(CURL *h);
static int fake_sleep(const struct timespec *t, struct timespec *left)
{
    (void)t;
    (void)left;
    return 0;
}

#undef curl_easy_setopt
#define curl_easy_setopt fake_setopt
#define curl_easy_perform fake_perform
#define nanosleep fake_sleep
#include "store/http_get.c"
#include "store/store.c"

/* One answer; redirects are several blocks of headers, as curl shows them when it follows. */
static CURLcode fake_perform(CURL *h)
{
    (void)h;
    if (wire.n < 2)
        return CURLE_GOT_NOTHING;
    size_t body = wire.p[0], piece = 1 + wire.p[1] % 16;
    int ending = wire.p[1] >> 4;
    wire.p += 2;
    wire.n -= 2;
    while (wire.n) {
        const uint8_t *end = memchr(wire.p, '\n', wire.n);
        size_t n = end ? (size_t)(end - wire.p) + 1 : wire.n;
        char *line = fuzz_copy(wire.p, n);
        int empty = n <= 2 && (line[0] == '\n' || line[0] == '\r');
        size_t took = http_on_header(line, 1, n, wire.header_arg);
        free(line);
        wire.p += n;
        wire.n -= n;
        if (took != n)
            return CURLE_WRITE_ERROR;
        if (empty)
            break;
    }
    for (body = body < wire.n ? body : wire.n; body;) {
        size_t n = piece < body ? piece : body;
        char *data = fuzz_copy(wire.p, n);
        size_t took = on_body(data, 1, n, wire.body_arg);
        free(data);
        wire.p += n;
        wire.n -= n;
        body -= n;
        if (took != n)
            return CURLE_WRITE_ERROR;
    }
    static const CURLcode endings[] = { CURLE_OK,
                                        CURLE_OK,
                                        CURLE_PARTIAL_FILE,
                                        CURLE_RECV_ERROR,
                                        CURLE_OPERATION_TIMEDOUT,
                                        CURLE_TOO_MANY_REDIRECTS,
                                        CURLE_UNSUPPORTED_PROTOCOL,
                                        CURLE_PEER_FAILED_VERIFICATION };
    return endings[ending % 8];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct store *s;
    struct store_info info;
    struct err e = { 0 };
    if (n < 2 || store_open(&s, "http://host/folder", &e) < 0)
        return 0;
    wire.p = data + 2;
    wire.n = n - 2;
    if (store_stat(s, "file", &info, &e) > 0 && info.bytes > 0) {
        int64_t off = data[0] % info.bytes, want = data[1] < info.bytes - off ? data[1] : info.bytes - off;
        if (!info.ranges) {
            off = 0;
            want = info.bytes;
        }
        if (want <= 4096) { /* the caller's buffer: its size is the caller's business */
            char *dst = malloc((size_t)want + 1);
            store_read(s, "file", &info, off, want, dst, &e);
            free(dst);
        }
        int fd = memfd_create("fuzz", 0);
        store_copy(s, "file", &info, fd, "copy", &e);
        close(fd);
    }
    store_close(s);
    return 0;
}

/* serve_http_test.c - the sockets without a model: what is answered in every state, and what a waiting connection gets. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include "serve/http.h"
#include "serve/openai.h"
#include "tests/test.h"

struct site { struct service sv; struct inbox inbox; struct http *h; };

static void site_open(struct site *s, int state)
{
    struct err e = { 0 };
    memset(s, 0, sizeof *s);
    s->sv = (struct service){ .model = "m", .vocab = 256, .ctx = 64 };
    s->sv.state = state;
    CHECK_INT(tokenizer_bytes(&s->sv.tok, &e), 0);
    inbox_open(&s->inbox);
    CHECK_INT(http_open(&s->h, &s->sv, &s->inbox, "127.0.0.1", 0, &e), 0);
}

static void site_close(struct site *s)
{
    http_close(s->h, 1);
    inbox_close(&s->inbox);
    tokenizer_close(s->sv.tok);
}

static int dial(const struct site *s)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(s->h)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_INT(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void send_text(int fd, const char *text) { CHECK_INT(write(fd, text, strlen(text)), (long long)strlen(text)); }

/* Everything until the server closes. */
static void read_all(int fd, char *buf, size_t max)
{
    size_t n = 0;
    ssize_t got;
    while (n + 1 < max && (got = read(fd, buf + n, max - 1 - n)) > 0)
        n += (size_t)got;
    buf[n] = 0;
    close(fd);
}

static void ask(const struct site *s, const char *method, const char *path, const char *body, char *reply, size_t max)
{
    char text[1024];
    int fd = dial(s);
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", method,
             path, strlen(body), body);
    send_text(fd, text);
    read_all(fd, reply, max);
}

TEST(every_state_has_its_answers)
{
    static const struct { int state; const char *health, *models, *completion; } row[] = {
        { SERVICE_LOADING, "HTTP/1.1 503", "HTTP/1.1 503", "loading" },
        { SERVICE_DRAINING, "HTTP/1.1 503", "HTTP/1.1 200", "stopping" },
        { SERVICE_FAILED, "HTTP/1.1 503", "HTTP/1.1 200", "failed" },
    };
    char r[4096];
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct site s;
        site_open(&s, row[i].state);
        ask(&s, "GET", "/health", "", r, sizeof r);
        CHECK_HAS(r, row[i].health);
        CHECK_HAS(r, "Retry-After");
        ask(&s, "GET", "/v1/models", "", r, sizeof r);
        CHECK_HAS(r, row[i].models);
        ask(&s, "POST", "/v1/completions", "{\"prompt\":\"a\"}", r, sizeof r);
        CHECK_HAS(r, "HTTP/1.1 503");
        CHECK_HAS(r, row[i].completion);
        CHECK_HAS(r, "unavailable_error");
        ask(&s, "GET", "/version", "", r, sizeof r);
        CHECK_HAS(r, "HTTP/1.1 200");
        CHECK(!s.inbox.first);
        site_close(&s);
    }
}

/* What the engine would do, by hand: waits for the request. */
static struct request *next_request(struct site *s)
{
    struct request *rq;
    pthread_mutex_lock(&s->inbox.lock);
    while (!s->inbox.first)
        pthread_cond_wait(&s->inbox.filled, &s->inbox.lock);
    rq = s->inbox.first;
    s->inbox.first = NULL;
    s->inbox.end = &s->inbox.first;
    pthread_mutex_unlock(&s->inbox.lock);
    return rq;
}

static void say(struct request *rq, const char *text)
{
    pthread_mutex_lock(&rq->lock);
    out_text(&rq->ready, text);
    pthread_mutex_unlock(&rq->lock);
}

static int post(const struct site *s, const char *body)
{
    char text[1024];
    int fd = dial(s);
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    send_text(fd, text);
    return fd;
}

TEST(a_stream_gets_what_is_said_when_it_is_said)
{
    struct site s;
    char r[4096];
    site_open(&s, SERVICE_READY);
    int fd = post(&s, "{\"prompt\":\"a\",\"stream\":true}");
    struct request *rq = next_request(&s);
    say(rq, "data: one\n\n");
    request_begin(rq);
    usleep(30000);
    say(rq, "data: two\n\n");
    request_begin(rq);
    usleep(30000);
    say(rq, "data: [DONE]\n\n");
    request_finish(rq);
    read_all(fd, r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 200");
    CHECK_HAS(r, "text/event-stream");
    CHECK_HAS(r, "data: one\n\n");
    CHECK(strstr(r, "data: two") > strstr(r, "data: one") && strstr(r, "[DONE]") > strstr(r, "data: two"));
    request_drop(rq);
    site_close(&s);
}

TEST(an_error_before_the_first_token_is_a_status_and_later_an_event)
{
    struct fault f;
    for (int begun = 0; begun < 2; begun++) {
        struct site s;
        char r[4096];
        site_open(&s, SERVICE_READY);
        int fd = post(&s, "{\"prompt\":\"a\",\"stream\":true}");
        struct request *rq = next_request(&s);
        if (begun) {
            say(rq, "data: one\n\n");
            request_begin(rq);
            usleep(30000);
        }
        fault_set(&f, 503, NULL, "rank 3 died");
        request_fail(rq, &f);
        read_all(fd, r, sizeof r);
        CHECK_HAS(r, begun ? "HTTP/1.1 200" : "HTTP/1.1 503");
        CHECK_HAS(r, begun ? "data: {\"error\":{\"message\":\"rank 3 died\"" : "\r\n\r\n{\"error\":{\"message\":\"rank 3 died\"");
        CHECK(!begun == !strstr(r, "data: [DONE]"));
        request_drop(rq);
        site_close(&s);
    }
}

TEST(a_client_that_hangs_up_is_seen_while_it_waits)
{
    struct site s;
    site_open(&s, SERVICE_READY);
    int fd = post(&s, "{\"prompt\":\"a\"}"), seen = 0;
    struct request *rq = next_request(&s);
    usleep(20000);
    CHECK_INT(rq->gone(rq), 0);
    close(fd);
    for (int i = 0; i < 200 && !seen; i++) {
        usleep(5000);
        seen = rq->gone(rq);
    }
    CHECK(seen);
    request_finish(rq);
    request_drop(rq);
    site_close(&s);
}

TEST(a_server_that_ends_takes_nothing_more)
{
    struct site s;
    char r[4096];
    site_open(&s, SERVICE_READY);
    s.inbox.closed = 1;
    ask(&s, "POST", "/v1/completions", "{\"prompt\":\"a\"}", r, sizeof r);
    CHECK_HAS(r, "HTTP/1.1 503");
    site_close(&s);
}

TEST(a_port_that_is_taken_is_an_error_that_names_it)
{
    struct site s;
    struct err e = { 0 };
    struct http *h;
    char port[16];
    site_open(&s, SERVICE_READY);
    snprintf(port, sizeof port, "%d", http_port(s.h));
    CHECK_INT(http_open(&h, &s.sv, &s.inbox, "127.0.0.1", http_port(s.h), &e), -ERR_FILE);
    CHECK_HAS(e.text, port);
    CHECK_INT(http_open(&h, &s.sv, &s.inbox, "no.such.host.invalid", 0, &e), -ERR_USAGE);
    site_close(&s);
}

/* sigv4.c - see sigv4.h. The request in canonical words is hashed; a key made of secret, day and region
 * signs the hash. */
#include "store/sigv4.h"

#include <stdio.h>
#include <string.h>
#include "store/sha256.h"

/* the hash of no body */
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static int encode(char *out, size_t room, const char *text, const char *also_plain)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    size_t n = 0;
    for (; *text; text++) {
        if (n + 4 > room)
            return -1;
        if (strchr(plain, *text) || strchr(also_plain, *text))
            out[n++] = *text;
        else
            n += (size_t)snprintf(out + n, 4, "%%%02X", (unsigned char)*text);
    }
    out[n] = 0;
    return 0;
}

int sigv4_encode(char *out, size_t room, const char *text) { return encode(out, room, text, "/"); }
int sigv4_encode_value(char *out, size_t room, const char *text) { return encode(out, room, text, ""); }

static void hash_text(const char *text, char hex[65])
{
    unsigned char sum[32];
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, text, strlen(text));
    sha256_end(&s, sum);
    sha256_hex(sum, hex);
}

static void chain(unsigned char key[32], const char *word) { sha256_hmac(key, 32, word, strlen(word), key); }

/* The request in canonical form, and the names of its signed headers. 0; -1: too long. */
static int make_canonical(char *out, size_t room, char names[128], const struct sigv4_key *k,
                          const struct sigv4_request *q, const char *when)
{
    const char *host = strstr(q->url, "://"), *path = host ? strchr(host + 3, '/') : NULL,
               *query = path ? strchr(path, '?') : NULL;
    if (!path)
        return -1;
    host += 3;
    int n_path = (int)(query ? (size_t)(query - path) : strlen(path));
    snprintf(names, 128, "%shost%s;x-amz-content-sha256;x-amz-date%s", *q->md5 ? "content-md5;" : "",
             *q->range ? ";range" : "", *k->session ? ";x-amz-security-token" : "");

    int n = snprintf(out, room,
                     "%s\n%.*s\n%s\n%s%s%shost:%.*s\n%s%s%sx-amz-content-sha256:%s\nx-amz-date:%s\n%s%s%s\n"
                     "%s\n%s",
                     q->method, n_path, path, query ? query + 1 : "", *q->md5 ? "content-md5:" : "", q->md5,
                     *q->md5 ? "\n" : "", (int)(path - host), host, *q->range ? "range:" : "", q->range,
                     *q->range ? "\n" : "", q->payload, when, *k->session ? "x-amz-security-token:" : "",
                     k->session, *k->session ? "\n" : "", names, q->payload);
    return n < 0 || n >= (int)room ? -1 : 0;
}

int sigv4_sign_request(struct sigv4_lines *out, const struct sigv4_key *k, const struct sigv4_request *given,
                       time_t now)
{
    char when[24], day[9], canonical[8000], names[128], text[400], hex[65], first[300];
    unsigned char key[32];
    struct tm t;
    struct sigv4_request q = *given;
    q.payload = q.payload ? q.payload : EMPTY;
    gmtime_r(&now, &t);
    strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &t);
    snprintf(day, sizeof day, "%.8s", when);
    if (make_canonical(canonical, sizeof canonical, names, k, &q, when) < 0)
        return -1;

    hash_text(canonical, hex);
    snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", when, day, k->region, hex);
    snprintf(first, sizeof first, "AWS4%s", k->secret);
    sha256_hmac(first, strlen(first), day, 8, key);
    chain(key, k->region);
    chain(key, "s3");
    chain(key, "aws4_request");
    chain(key, text);
    sha256_hex(key, hex);

    snprintf(out->content, sizeof out->content, "x-amz-content-sha256: %s", q.payload);
    snprintf(out->date, sizeof out->date, "x-amz-date: %s", when);
    out->session[0] = 0;
    if (*k->session)
        snprintf(out->session, sizeof out->session, "x-amz-security-token: %s", k->session);
    snprintf(
        out->authorization, sizeof out->authorization,
        "Authorization: AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request,SignedHeaders=%s,Signature=%s",
        k->id, day, k->region, names, hex);
    return 0;
}

int sigv4_sign(struct sigv4_lines *out, const struct sigv4_key *k, const char *url, const char *range,
               time_t now)
{
    return sigv4_sign_request(out, k, &(struct sigv4_request){ "GET", url, "", range, NULL }, now);
}

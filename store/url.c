/* url.c - what a URL means: where its files are, and the token or key that opens them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/env.h"
#include "base/io.h"
#include "store/store_priv.h"

#define SECRETS_MAX ((size_t)1 << 20)

static const char *env_or(enum env v, const char *otherwise)
{
    const char *value = env_get(v);
    return value ? value : otherwise;
}

static void trim_slashes(char *text)
{
    for (size_t n = strlen(text); n && text[n - 1] == '/'; n--)
        text[n - 1] = 0;
}

/* The text of a file that holds a secret; the caller frees it. NULL: there is none, which is no error. */
static char *read_secret(const char *path)
{
    struct err e;
    void *text = NULL;
    size_t n;
    return io_exists(path) && io_read_file(path, SECRETS_MAX, &text, &n, &e) >= 0 ? text : NULL;
}

static int open_http(struct store *s, const char *url, struct err *e)
{
    const char *query = strchr(url, '?');
    size_t n = query ? (size_t)(query - url) : strlen(url);
    if (n + 2 >= sizeof s->base || (query && strlen(query) >= sizeof s->tail))
        return err_set(e, ERR_USAGE, "a URL of %zu bytes: use a shorter one", strlen(url));
    snprintf(s->base, sizeof s->base, "%.*s", (int)n, url);
    trim_slashes(s->base);
    snprintf(s->tail, sizeof s->tail, "%s", query ? query : "");
    return 0;
}

/* ---- Hugging Face ---- */

/* HF_TOKEN, or the file that the hub's own client writes at login. */
static void find_token(struct store *s)
{
    char path[1024];
    const char *home = env_or(ENV_HOME, ""), *token = env_get(ENV_HF_TOKEN);
    char *text = NULL;
    if (env_get(ENV_HF_TOKEN_PATH))
        snprintf(path, sizeof path, "%s", env_get(ENV_HF_TOKEN_PATH));
    else if (env_get(ENV_HF_HOME))
        snprintf(path, sizeof path, "%s/token", env_get(ENV_HF_HOME));
    else if (env_get(ENV_XDG_CACHE_HOME))
        snprintf(path, sizeof path, "%s/huggingface/token", env_get(ENV_XDG_CACHE_HOME));
    else
        snprintf(path, sizeof path, "%s/.cache/huggingface/token", home);
    if (!token)
        token = text = read_secret(path);
    snprintf(s->token, sizeof s->token, "%.*s", token ? (int)strcspn(token, " \t\r\n") : 0,
             token ? token : "");
    free(text);
}

/* hf://owner/name[@revision][/folder] */
static int open_hf(struct store *s, const char *url, struct err *e)
{
    char owner[128], name[160], rest[400] = "", *at;
    int n = 0;
    if (sscanf(url + 5, "%127[^/@?#]/%159[^/?#]%n%399[^?#]", owner, name, &n, rest) < 2 ||
        strlen(rest) != strlen(url + 5 + n))
        return err_set(e, ERR_USAGE, "%s: give hf://owner/name or hf://owner/name@revision", url);
    snprintf(s->wanted, sizeof s->wanted, "main");
    if ((at = strchr(name, '@'))) {
        *at = 0;
        if (!at[1] || strlen(at + 1) >= sizeof s->wanted)
            return err_set(e, ERR_USAGE, "%s: give a branch, a tag or a commit behind @", url);
        snprintf(s->wanted, sizeof s->wanted, "%s", at + 1);
    }
    snprintf(s->base, sizeof s->base, "%s/%s/%s/resolve/", env_or(ENV_HF_ENDPOINT, "https://huggingface.co"),
             owner, name);
    snprintf(s->revision, sizeof s->revision, "%s", s->wanted);
    trim_slashes(rest);
    if (sigv4_encode(s->rest, sizeof s->rest, rest) < 0)
        return err_set(e, ERR_USAGE, "%s: the folder's name is too long", url);
    s->hub = 1;
    find_token(s);
    return 0;
}

/* ---- S3 ---- */

/* The value of the line "key = value" in the section of the profile. */
static void profile_value(const char *text, const char *profile, const char *key, char *out, size_t room)
{
    char section[128] = "", name[128], value[2048], line[2400];
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\r\n"), text);
        if (sscanf(line, " [%127[^]]", section) == 1)
            continue;
        if (!strcmp(section, profile) && sscanf(line, " %127[^ =] = %2047s", name, value) == 2 &&
            !strcmp(name, key))
            snprintf(out, room, "%s", value);
    }
}

static void find_keys(struct sigv4_key *k)
{
    char path[1024];
    const char *profile = env_or(ENV_AWS_PROFILE, "default");
    snprintf(k->region, sizeof k->region, "%s",
             env_or(ENV_AWS_REGION, env_or(ENV_AWS_DEFAULT_REGION, "us-east-1")));
    snprintf(k->id, sizeof k->id, "%s", env_or(ENV_AWS_ACCESS_KEY_ID, ""));
    if (*k->id) {
        snprintf(k->secret, sizeof k->secret, "%s", env_or(ENV_AWS_SECRET_ACCESS_KEY, ""));
        snprintf(k->session, sizeof k->session, "%s", env_or(ENV_AWS_SESSION_TOKEN, ""));
        return;
    }
    snprintf(path, sizeof path, "%s/.aws/credentials", env_or(ENV_HOME, ""));
    char *text = read_secret(env_or(ENV_AWS_SHARED_CREDENTIALS_FILE, path));
    if (text) {
        profile_value(text, profile, "aws_access_key_id", k->id, sizeof k->id);
        profile_value(text, profile, "aws_secret_access_key", k->secret, sizeof k->secret);
        profile_value(text, profile, "aws_session_token", k->session, sizeof k->session);
    }
    free(text);
}

static int open_s3(struct store *s, const char *url, struct err *e)
{
    char bucket[256], key[1024];
    const char *slash = strchr(url + 5, '/'),
               *endpoint = env_or(ENV_AWS_ENDPOINT_URL_S3, env_get(ENV_AWS_ENDPOINT_URL));
    size_t n = slash ? (size_t)(slash - url - 5) : strlen(url + 5);
    if (n == 0 || n >= sizeof bucket)
        return err_set(e, ERR_USAGE, "%s: give s3://bucket/prefix", url);
    snprintf(bucket, sizeof bucket, "%.*s", (int)n, url + 5);
    if (sigv4_encode(key, sizeof key, slash ? slash : "") < 0)
        return err_set(e, ERR_USAGE, "%s: the name is too long", url);
    find_keys(&s->aws);
    if (endpoint)
        snprintf(s->base, sizeof s->base, "%.*s/%s", (int)strcspn(endpoint, " "), endpoint, bucket);
    else if (strchr(bucket, '.')) /* the certificate covers one label before s3 */
        snprintf(s->base, sizeof s->base, "https://s3.%s.amazonaws.com/%s", s->aws.region, bucket);
    else
        snprintf(s->base, sizeof s->base, "https://%s.s3.%s.amazonaws.com", bucket, s->aws.region);
    s->bucket_bytes = (int)strlen(s->base);
    trim_slashes(key);
    snprintf(s->prefix, sizeof s->prefix, "%s", slash ? slash + 1 : "");
    trim_slashes(s->prefix);
    size_t n_base = strlen(s->base);
    if (snprintf(s->base + n_base, sizeof s->base - n_base, "%s", key) >= (int)(sizeof s->base - n_base))
        return err_set(e, ERR_USAGE, "%s: the name is too long", url);
    s->s3 = 1;
    return 0;
}

/* ---- all kinds ---- */

int store_is_url(const char *path)
{
    static const char *const schemes[] = { "http://", "https://", "s3://", "hf://" };
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (!strncmp(path, schemes[i], strlen(schemes[i])))
            return 1;
    return 0;
}

const char *url_shown(const char *url, char *out, size_t room)
{
    const char *end = strstr(url, "://"), *host = end ? end + 3 : url, *rest = host;
    const size_t n = end ? strcspn(host, "/?#") : 0;
    for (size_t i = 0; i < n; i++)
        if (host[i] == '@')
            rest = host + i + 1;
    snprintf(out, room, "%.*s%s", (int)(host - url), url, rest);
    return out;
}

int url_split(const char *url, char folder[2048], char name[256])
{
    size_t end = strcspn(url, "?"), slash = end;
    while (slash && url[slash - 1] != '/')
        slash--;
    if (end == slash || end - slash > 255 || strlen(url) >= 2000)
        return 0;
    snprintf(folder, 2048, "%.*s%s", (int)slash, url, url + end);

    /* %20 is a blank, and so on. */
    for (size_t at = slash; at < end; at++) {
        unsigned c = (unsigned char)url[at];
        if (c == '%' && sscanf(url + at + 1, "%2x", &c) == 1)
            at += 2;
        *name++ = (char)c;
    }
    *name = 0;
    return 1;
}

int store_read_url(struct store *s, const char *url, struct err *e)
{
    static const struct {
        const char *scheme;
        int (*open)(struct store *s, const char *url, struct err *e);
    } kinds[] = {
        { "file://", local_open },
        { "hf://", open_hf },
        { "s3://", open_s3 },
        { "http", open_http },
    };
    size_t k = 0;
    while (strncmp(url, kinds[k].scheme, strlen(kinds[k].scheme)))
        k++;
    return kinds[k].open(s, url, e);
}

int store_place(const struct store *s, const char *name, struct place *p, struct err *e)
{
    char path[1024];
    const char *host = strstr(s->base, "://"), *at;
    int n = sigv4_encode(path, sizeof path, name);
    if (n >= 0)
        n = snprintf(p->url, sizeof p->url, "%s%s%s%s%s%s", s->base, s->revision, s->rest, *name ? "/" : "",
                     path, s->tail);
    if (n < 0 || n >= (int)sizeof p->url)
        return err_set(e, ERR_USAGE, "the URL of %.200s is too long", name);
    host = host ? host + 3 : s->base;
    at = memchr(host, '@', strcspn(host, "/"));
    snprintf(p->shown, sizeof p->shown, "%.*s%.*s%s%s%s%s", (int)(host - s->base), s->base, STORE_URL / 2,
             at ? at + 1 : host, s->revision, s->rest, *name ? "/" : "", path);
    return 0;
}

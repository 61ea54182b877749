/* json_out.h - a text that grows: JSON is written into it, piece by piece.
 *
 * Why not jansson for writing: a log-probability must be printed with 9 digits, the same in every place
 * where it stands. Running out of memory is remembered in `failed` and looked at once at the end, so that
 * writers stay one-liners. */
#ifndef SHARDLINE_SERVE_API_JSON_OUT_H
#define SHARDLINE_SERVE_API_JSON_OUT_H

#include <stddef.h>
#include <stdint.h>

struct json_out {
    char *p; /* malloc'd; NUL behind the n bytes when n > 0 */
    size_t n, cap;
    int failed; /* no memory: everything since is lost */
};
void json_out_free(struct json_out *o);
void json_out_bytes(struct json_out *o, const char *p, size_t n);
void json_out_text(struct json_out *o, const char *text);
void json_out_fmt(struct json_out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "text" as a JSON string. Invalid UTF-8 becomes U+FFFD, one for each byte that does not fit. */
void json_out_string_n(struct json_out *o, const char *p, size_t n);
void json_out_string(struct json_out *o, const char *text); /* NULL: null */
/* A log-probability: binary32 comes back; -inf, which JSON does not have, is -9999. */
void json_out_logprob(struct json_out *o, float x);

/* Bytes of the valid UTF-8 character that begins at p, or 0. */
size_t utf8_char(const char *p, size_t n);
/* Code points of a text; a byte that is not valid counts as one (it is shown as U+FFFD). */
int64_t utf8_count(const char *p, size_t n);

#endif

/* json_out.h - a growing buffer of bytes that JSON is written into, piece by piece.
 *
 * Not jansson, because a log-probability must be printed with 9 digits, the same in every place. Running out
 * of memory is remembered in `failed`, which the caller checks once at the end. */
#ifndef SHARDLINE_SERVE_API_JSON_OUT_H
#define SHARDLINE_SERVE_API_JSON_OUT_H

#include <stddef.h>
#include <stdint.h>

struct json_out {
    char *p; /* malloc'd; a NUL follows the n bytes when n > 0 */
    size_t n, cap;
    int failed; /* no memory: everything since then is missing */
};
/* Frees the bytes; o is empty then. */
void json_out_free(struct json_out *o);

/* Append: n bytes, a text, a formatted text. */
void json_out_bytes(struct json_out *o, const char *p, size_t n);
void json_out_text(struct json_out *o, const char *text);
void json_out_fmt(struct json_out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends a JSON string: n bytes, or a text (NULL: null). Every byte that is not valid UTF-8 becomes
 * U+FFFD. */
void json_out_string_n(struct json_out *o, const char *p, size_t n);
void json_out_string(struct json_out *o, const char *text);
/* Appends a log-probability: read back, it is the same binary32; -inf, which JSON does not have, is -9999. */
void json_out_logprob(struct json_out *o, float x);

/* Bytes of the valid UTF-8 character that begins at p, or 0. */
size_t utf8_char(const char *p, size_t n);
/* Code points of a text; a byte that is not valid counts as one (it is shown as U+FFFD). */
int64_t utf8_count(const char *p, size_t n);

#endif

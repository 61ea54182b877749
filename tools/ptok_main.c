/* ptok - text to token ids and back, chats to text, as JSON lines; texts to a file of tokens. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/io.h"
#include "base/opt.h"
#include "comm/comm.h"
#include "store/sidecar.h"
#include "text/prepare.h"
#include "text/template.h"
#include "text/text.h"
#include "tools/ptok_accepts.h"

#define TEMPLATE_LIMIT ((size_t)4 << 20)

enum { INVALID_ERROR, INVALID_REPLACE };
struct options {
    const char *tokenizer, *template, *out, *field, *text;
    const char *chat_template;
    int64_t threads;
    int chat_turns, spans, append_eos, invalid_utf8, carry;
    struct accepts_options accepts;
};
#define AT(member) offsetof(struct options, member)

static void print_version(FILE *out) { comm_version(out, "ptok", ""); }

/* clang-format off */
/* kind, name, member, default, unit, help, least, most, flags */
static const struct opt opts[] = {
    { OPT_TEXT,   "tokenizer",    AT(tokenizer),    NULL,    "bytes|DIR",
      "bytes, a folder with tokenizer.json, or a token file that carries one", 0, 0, 0 },
    { OPT_TEXT,   "text",         AT(text),         NULL,    "TEXT",
      "encode: this text, not stdin; prints its ids and tokens", 0, 0, 0 },
    { OPT_TEXT,   "template",     AT(template),     NULL,    "FILE",
      "render: the chat template; of a folder, NAME.jinja for lines with \"template\":\"NAME\"", 0, 0, 0 },
    { OPT_SWITCH, "spans",        AT(spans),        NULL,    NULL,
      "render: also the spans of bytes that came from messages", 0, 0, 0 },
    { OPT_GROUP, "accepts", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT,   "schema",       AT(accepts.schema), NULL,  "FILE",
      "texts are JSON of this JSON Schema", 0, 0, 0 },
    { OPT_TEXT,   "regex",        AT(accepts.regex), NULL,   "REGEX",
      "texts match this regex as a whole", 0, 0, 0 },
    { OPT_TEXT,   "grammar",      AT(accepts.grammar), NULL, "FILE",
      "texts are a root of these rules (GBNF)", 0, 0, 0 },
    { OPT_SWITCH, "compact",      AT(accepts.compact), NULL, NULL,
      "schema: no white space between the parts", 0, 0, 0 },
    { OPT_SWITCH, "in-order",     AT(accepts.in_order), NULL, NULL,
      "schema: the keys of an object in its order", 0, 0, 0 },
    { OPT_GROUP, "prepare", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT,   "out",          AT(out),          NULL,    "FILE",
      "the token file to write, for ptrain --data", 0, 0, 0 },
    { OPT_TEXT,   "jsonl-field",  AT(field),        "text",  "NAME",
      "the text of a line in .jsonl and .jsonl.zst files", 0, 0, 0 },
    { OPT_TEXT,   "chat-template", AT(chat_template), NULL,  "FILE",
      "lines are conversations that become text so (default: the folder's, for lines without text)",
      0, 0, 0 },
    { OPT_CHOICE, "chat-turns",   AT(chat_turns),   "all",   "all|last",
      "conversations: the loss is on every answer of the assistant, or on the last one alone", 0, 0, 0 },
    { OPT_INT,    "threads",      AT(threads),      "0",     "N",
      "threads (0: as many as cores); the file is the same with any number", 0, 1024, 0 },
    { OPT_SWITCH, "append-eos",   AT(append_eos),   NULL,    NULL,
      "the tokenizer's eos_token after every document", 0, 0, 0 },
    { OPT_SWITCH, "carry-tokenizer", AT(carry),     "1",     NULL,
      "the token file carries the tokenizer's files, for ptrain and its checkpoints", 0, 0, 0 },
    { OPT_CHOICE, "invalid-utf8", AT(invalid_utf8), "error", "error|replace",
      "text that is not UTF-8: an error, or U+FFFD", 0, 0, 0 },
    { .kind = OPT_GROUP },
};
/* clang-format on */

static const struct opt_program program = {
    .name = "ptok",
    .summary = "prepare: text, .jsonl (texts or chats) and .zst of both to a token file; encode: lines "
               "{\"n\":0,\"text_b64\":…} to ids and what they decode to; "
               "decode: lines {\"n\":0,\"ids\":[…]} to text; render: lines {\"messages\":[…],…} to the text "
               "of a chat; accepts: is the text of each line within a schema, a regex or a grammar",
    .usage =
        "prepare --tokenizer bytes|DIR FILE... --out tokens.bin | encode --tokenizer bytes|DIR --text TEXT | "
        "encode|decode --tokenizer bytes|DIR <IN >OUT | render --template FILE <IN >OUT | "
        "accepts --schema FILE|--regex R|--grammar FILE [--tokenizer DIR] <IN >OUT",
    .opts = opts,
    .min_args = 1,
    .max_args = -1,
    .print_version = print_version,
    .examples = "# text to a file of tokens, for ptrain --data\n"
                "ptok prepare --tokenizer hf-model corpus.txt --out tokens.bin\n"
                "# lines {\"n\":0,\"text_b64\":\"…\"} to token ids\n"
                "ptok encode --tokenizer hf-model <texts.jsonl >ids.jsonl\n"
                "# lines {\"messages\":[…]} to the text that the model sees\n"
                "ptok render --template template.jinja <chats.jsonl\n"
                "# which lines {\"n\":0,\"text_b64\":\"…\"} a server would answer with under this schema\n"
                "ptok accepts --schema schema.json <texts.jsonl\n",
    .first_words = "prepare|encode|decode|render|accepts",
};

/* --- base64 (RFC 4648) --- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char *b64_encode(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    char *out = malloc((n + 2) / 3 * 4 + 1), *q = out;
    for (size_t i = 0; out && i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        *q++ = digits[v >> 18];
        *q++ = digits[v >> 12 & 63];
        *q++ = i + 1 < n ? digits[v >> 6 & 63] : '=';
        *q++ = i + 2 < n ? digits[v & 63] : '=';
    }
    if (out)
        *q = 0;
    return out;
}

/* NULL: not base64 (or no memory) */
static char *b64_decode(const char *s, size_t n, size_t *n_out)
{
    char *out = n % 4 ? NULL : malloc(n / 4 * 3 + 1), *q = out;
    uint32_t v = 0;
    int bits = 0;
    for (int pad = 0; out && pad < 2 && n && s[n - 1] == '='; pad++)
        n--;
    for (size_t i = 0; out && i < n; i++) {
        const char *d = s[i] ? strchr(digits, s[i]) : NULL;
        if (!d) {
            free(out);
            return NULL;
        }
        v = v << 6 | (uint32_t)(d - digits);
        if ((bits += 6) >= 8)
            *q++ = (char)(v >> (bits -= 8));
    }
    *n_out = out ? (size_t)(q - out) : 0;
    return out;
}

/* --- a line --- */

static int no_memory(struct err *e)
{
    return err_set(e, ERR_MEMORY, "no memory for this line: use shorter texts");
}

static int put_ids(json_t *out, const char *key, const int32_t *ids, size_t n, struct err *e)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer(ids[i])) < 0)
            break;
    int whole = list && json_array_size(list) == n;
    return json_object_set_new(out, key, list) < 0 || !whole ? no_memory(e) : 0;
}

static int put_decoded(json_t *out, const char *key, const struct tokenizer *t, const int32_t *ids, size_t n,
                       int skip, struct err *e)
{
    char *text = NULL, *b64 = NULL;
    size_t n_text;
    int rc = 0;
    TRY(tokenizer_decode(t, ids, n, skip, &text, &n_text, e));
    b64 = b64_encode(text, n_text);
    if (!b64 || json_object_set_new(out, key, json_string(b64)) < 0)
        rc = no_memory(e);
out:
    free(text);
    free(b64);
    return rc;
}

static int encode_line(const struct tokenizer *t, const json_t *in, json_t *out, struct err *e)
{
    const json_t *b64 = json_object_get(in, "text_b64");
    int32_t *ids = NULL, *plain = NULL;
    size_t n_text, n_ids, n_plain;
    char *text = json_is_string(b64) ? b64_decode(json_string_value(b64), json_string_length(b64), &n_text)
                                     : NULL;
    int rc = 0;
    if (!text)
        return err_set(e, ERR_FORMAT, "no text_b64 that is base64");
    TRY(tokenizer_encode(t, text, n_text, 1, &ids, &n_ids, e));
    TRY(tokenizer_encode(t, text, n_text, 0, &plain, &n_plain, e));
    TRY(put_ids(out, "ids", ids, n_ids, e));
    TRY(put_ids(out, "ids_plain", plain, n_plain, e));
    TRY(put_decoded(out, "decoded_b64", t, plain, n_plain, 0, e));
    TRY(put_decoded(out, "decoded_skip_b64", t, ids, n_ids, 1, e));
out:
    free(text);
    free(ids);
    free(plain);
    return rc;
}

static int decode_line(const struct tokenizer *t, const json_t *in, json_t *out, struct err *e)
{
    const json_t *list = json_object_get(in, "ids"), *id;
    size_t n = json_array_size(list), i;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    int rc = 0;
    if (!ids)
        return no_memory(e);
    if (!json_is_array(list))
        rc = err_set(e, ERR_FORMAT, "no list of ids");

    json_array_foreach(list, i, id) {
        json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        if (v < 0 || v > INT32_MAX) {
            rc = err_set(e, ERR_FORMAT, "ids[%zu] is no token id", i);
            break;
        }
        ids[i] = (int32_t)v;
    }

    if (rc == 0)
        rc = put_decoded(out, "decoded_b64", t, ids, n, 0, e);
    if (rc == 0)
        rc = put_decoded(out, "decoded_skip_b64", t, ids, n, 1, e);
    free(ids);
    return rc;
}

typedef int line_fn(const struct tokenizer *t, const json_t *in, json_t *out, struct err *e);
struct tokens {
    const struct tokenizer *t;
    line_fn *fn;
};

static int one_line(void *arg, const char *line, size_t n, int64_t index, struct err *e)
{
    const struct tokens *k = arg;
    json_error_t at;
    json_t *in = json_loadb(line, n, 0, &at), *out = json_object();
    const json_t *number = json_object_get(in, "n");
    int rc = 0;
    (void)index;
    if (!json_is_object(in))
        rc = err_set(e, ERR_FORMAT, "not a JSON object");
    else if (!out || (number && json_object_set(out, "n", (json_t *)number) < 0))
        rc = no_memory(e);
    else
        rc = k->fn(k->t, in, out, e);
    if (rc == 0 && (json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII) < 0 || putchar('\n') == EOF))
        rc = err_sys(e, "writing to stdout");
    json_decref(in);
    json_decref(out);
    return rc;
}

/* Calls fn for every line of stdin that is not empty; index counts lines from 0. */
static int all_lines(int (*fn)(void *arg, const char *line, size_t n, int64_t index, struct err *e),
                     void *arg, struct err *e)
{
    char *line = NULL;
    size_t line_bytes = 0;
    ssize_t n;
    int rc = 0;
    for (int64_t index = 0; rc == 0 && (n = getline(&line, &line_bytes, stdin)) >= 0; index++) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (n > 0 && (rc = fn(arg, line, (size_t)n, index, e)) < 0)
            err_add(e, "line %lld of the input", (long long)index + 1);
    }
    free(line);
    if (rc == 0 && !feof(stdin))
        rc = err_sys(e, "reading stdin");
    if (rc == 0 && fflush(stdout) == EOF)
        rc = err_sys(e, "writing to stdout");
    return rc;
}

/* --- chats --- */

struct chat {
    const struct options *o;
    struct template *t; /* the open one */
    char *name;         /* of a folder of templates: the name of t */
    int is_dir;
};

static int open_file(struct template **out, const char *path, struct err *e)
{
    void *text = NULL;
    size_t n;
    int rc = io_read_file(path, TEMPLATE_LIMIT, &text, &n, e);
    if (rc == 0)
        rc = template_open(out, text, n, path, e);
    free(text);
    return rc;
}

static int open_chat(struct chat *c, struct err *e)
{
    struct stat st;
    const char *path = c->o->template;
    c->is_dir = path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (c->is_dir)
        return 0;
    if (path)
        return open_file(&c->t, path, e);
    if (!c->o->tokenizer)
        return err_set(e, ERR_USAGE,
                       "which template: add --template FILE, or --tokenizer with a folder that has one");
    int rc = template_open_dir(&c->t, c->o->tokenizer, NULL, e);
    return rc == 0
               ? err_set(e, ERR_CONFIG, "%s has no chat template: give one with --template", c->o->tokenizer)
           : rc < 0 ? rc
                    : 0;
}

/* Opens the template that the line names, and keeps it open for the following lines. */
static int switch_chat(struct chat *c, const char *name, struct err *e)
{
    char path[4096];
    if (!name || strchr(name, '/') ||
        snprintf(path, sizeof path, "%s/%s.jinja", c->o->template, name) >= (int)sizeof path)
        return err_set(e, ERR_FORMAT, "no \"template\" that names a file of %s", c->o->template);
    if (c->name && !strcmp(c->name, name))
        return 0;
    template_close(c->t);
    free(c->name);
    c->t = NULL;
    c->name = strdup(name);
    return c->name ? open_file(&c->t, path, e) : no_memory(e);
}

/* [[begin, end], …] of the bytes that came from messages */
static json_t *spans_of(const struct rendered *r)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < r->n_user; i++)
        if (json_array_append_new(list, json_pack("[I,I]", (json_int_t)r->user[i].begin,
                                                  (json_int_t)r->user[i].end)) < 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static int render_line(void *arg, const char *line, size_t n, int64_t number, struct err *e)
{
    struct chat *c = arg;
    json_error_t at;
    json_t *in = json_loadb(line, n, JSON_ALLOW_NUL, &at), *out = json_object(),
           *i = json_object_get(in, "i");
    struct rendered r = { 0 };
    struct err refusal = { 0 };
    int rc = 0;
    if (!json_is_object(in))
        rc = err_set(e, ERR_FORMAT, "not a JSON object");
    else if (json_object_set_new(out, "i", json_is_integer(i) ? json_incref(i) : json_integer(number)) < 0)
        rc = no_memory(e);

    if (rc == 0 && c->is_dir)
        rc = switch_chat(c, json_string_value(json_object_get(in, "template")), e);
    if (rc == 0 && template_render_json(c->t, line, n, &r, &refusal) < 0) {
        if (refusal.code != ERR_USAGE) {
            *e = refusal;
            rc = -refusal.code;
        } else if (json_object_set_new(out, "error", json_string(refusal.text)) < 0) {
            rc = no_memory(e);
        }
    } else if (rc == 0 && (json_object_set_new(out, "text", json_stringn_nocheck(r.text, r.n)) < 0 ||
                           (c->o->spans && json_object_set_new(out, "spans", spans_of(&r)) < 0))) {
        rc = no_memory(e);
    }

    if (rc == 0 && (json_dumpf(out, stdout, JSON_COMPACT | JSON_ENSURE_ASCII) < 0 || putchar('\n') == EOF))
        rc = err_sys(e, "writing to stdout");
    rendered_free(&r);
    json_decref(in);
    json_decref(out);
    return rc;
}

/* --- commands --- */

static int run_tokens(const struct options *o, line_fn *fn, struct err *e)
{
    struct tokenizer *t = NULL;
    if (!o->tokenizer)
        return err_set(
            e, ERR_USAGE,
            "which tokenizer: add --tokenizer bytes, or --tokenizer with a folder that holds tokenizer.json");
    int rc = tokenizer_open_named(&t, o->tokenizer, e);
    struct tokens k = { t, fn };
    if (rc == 0)
        rc = all_lines(one_line, &k, e);
    tokenizer_close(t);
    return rc;
}

static int put_tokens(json_t *out, const struct tokenizer *t, struct err *e)
{
    const json_t *ids = json_object_get(out, "ids_plain"), *id;
    json_t *list = json_array();
    size_t i, n;
    json_array_foreach(ids, i, id) {
        const char *text = tokenizer_token_text(t, (int32_t)json_integer_value(id), &n);
        json_array_append_new(list, json_stringn(text ? text : "", n));
    }
    return json_object_set_new(out, "tokens", list) < 0 ? no_memory(e) : 0;
}

/* encode --text: one text of the command line. */
static int encode_text(const struct options *o, struct err *e)
{
    struct tokenizer *t = NULL;
    char *b64 = b64_encode(o->text, strlen(o->text));
    json_t *in = json_object(), *out = json_object();
    int rc = !in || !out || json_object_set_new(in, "text_b64", json_string(b64 ? b64 : "")) < 0 || !b64
                 ? no_memory(e)
                 : 0;
    TRY(rc);
    TRY(tokenizer_open_named(&t, o->tokenizer, e));
    TRY(encode_line(t, in, out, e));
    TRY(put_tokens(out, t, e));
    json_object_del(out, "decoded_b64");
    json_object_del(out, "decoded_skip_b64");
    if (json_dumpf(out, stdout, JSON_COMPACT) < 0 || putchar('\n') == EOF || fflush(stdout) == EOF)
        rc = err_sys(e, "writing to stdout");
out:
    tokenizer_close(t);
    json_decref(in);
    json_decref(out);
    free(b64);
    return rc;
}

static int run_encode(const struct options *o, const struct opt_args *args, struct err *e)
{
    (void)args;
    return o->text && o->tokenizer ? encode_text(o, e) : run_tokens(o, encode_line, e);
}
static int run_decode(const struct options *o, const struct opt_args *args, struct err *e)
{
    (void)args;
    return run_tokens(o, decode_line, e);
}

static int run_render(const struct options *o, const struct opt_args *args, struct err *e)
{
    struct chat c = { .o = o };
    (void)args;
    int rc = open_chat(&c, e);
    if (rc == 0)
        rc = all_lines(render_line, &c, e);
    template_close(c.t);
    free(c.name);
    return rc;
}

static int accepts_line(void *arg, const char *line, size_t n, int64_t index, struct err *e)
{
    struct accepts *a = arg;
    json_error_t at;
    json_t *in = json_loadb(line, n, 0, &at), *out = json_object();
    json_t *number = json_object_get(in, "n"), *b64 = json_object_get(in, "text_b64");
    size_t n_text = 0;
    char *text = json_is_string(b64) ? b64_decode(json_string_value(b64), json_string_length(b64), &n_text)
                                     : NULL;
    int rc = text ? 0 : err_set(e, ERR_FORMAT, "no text_b64 that is base64");
    (void)index;
    TRY(rc);
    if (!out || (number && json_object_set(out, "n", number) < 0))
        rc = no_memory(e);
    TRY(rc);
    TRY(accepts_text(a, text, n_text, out, e));
    if (json_dumpf(out, stdout, JSON_COMPACT) < 0 || putchar('\n') == EOF)
        rc = err_sys(e, "writing to stdout");
out:
    free(text);
    json_decref(in);
    json_decref(out);
    return rc;
}

static int run_accepts(const struct options *o, const struct opt_args *args, struct err *e)
{
    struct tokenizer *t = NULL;
    struct accepts a = { 0 };
    int rc = 0;
    (void)args;
    if (o->tokenizer)
        TRY(tokenizer_open_named(&t, o->tokenizer, e));
    TRY(accepts_open(&a, &o->accepts, t, e));
    TRY(all_lines(accepts_line, &a, e));
out:
    accepts_close(&a);
    tokenizer_close(t);
    return rc;
}

/* Whether the files are conversations: all of them, or none. Returns 1, 0 or a negative code. */
static int are_chats(const struct options *o, const struct prepare *p, struct err *e)
{
    int n = 0, other = 0;
    for (int i = 0; i < p->n_files; i++) {
        int is = chats_is_path(p->files[i], o->chat_template ? NULL : o->field, e);
        if (is < 0)
            return is;
        n += is;
        other = is ? other : i;
    }
    if (n && n < p->n_files)
        return err_set(e, ERR_USAGE,
                       "%s has no conversations as other files have: make a token file of each kind",
                       p->files[other]);
    if (!n && o->chat_template)
        return err_set(e, ERR_USAGE,
                       "--chat-template: the first line of %s is no conversation (an object with messages, "
                       "conversations, prompt and completion, or ids)",
                       p->files[0]);
    if (n && o->append_eos)
        return err_set(e, ERR_USAGE,
                       "--append-eos: the template of a chat writes its end: leave the option out");
    return n > 0;
}

static int run_prepare(const struct options *o, const struct opt_args *args, struct err *e)
{
    struct tokenizer *t = NULL;
    struct prepared done;
    struct carried files = { 0 };
    struct template *form = NULL;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct prepare p = {
        .files = (const char *const *)args->item + 1,
        .n_files = args->n - 1,
        .out = o->out,
        .field = o->field,
        .n_threads = o->threads  ? (int)o->threads
                     : cores < 1 ? 1
                                 : (int)cores,
        .append_eos = o->append_eos,
        .carry = &files,
        .replace_invalid = o->invalid_utf8 == INVALID_REPLACE,
    };
    if (!o->tokenizer || !o->out || !p.n_files)
        return err_set(e, ERR_USAGE,
                       "prepare needs --tokenizer bytes or a folder, one file or more, and --out");

    struct chat_style style;
    struct chat_coder chats = { .turns = (enum chat_turns)o->chat_turns };
    int rc = tokenizer_open_named(&t, o->tokenizer, e), is_chats = rc == 0 ? are_chats(o, &p, e) : 0;
    rc = is_chats < 0 ? is_chats : rc;
    if (is_chats > 0)
        rc = chats_open_template(&form, &style, o->chat_template, o->tokenizer, e);
    chats.t = t;
    chats.form = form;
    chats.style = form ? &style : NULL;
    p.chats = is_chats > 0 ? &chats : NULL;
    if (rc == 0 && o->carry)
        rc = carried_read(&files, o->tokenizer, tokenizer_file_names, TOKENIZER_FILES, e);
    if (rc == 0 && files.n && o->chat_template)
        rc = chats_carry_template(&files, o->chat_template, e);
    if (rc == 0)
        rc = prepare_tokens(t, &p, &done, e);
    carried_free(&files);

    if (rc == 0 && (printf("{\"tokens\":%lld,\"documents\":%lld,\"bytes\":%lld,\"width\":%d,\"vocab\":%d}\n",
                           (long long)done.tokens, (long long)done.documents, (long long)done.bytes,
                           done.width, tokenizer_vocab(t)) < 0 ||
                    fflush(stdout) == EOF))
        rc = err_sys(e, "writing to stdout");
    tokenizer_close(t);
    template_close(form);
    return rc;
}

static const struct command {
    const char *name;
    int takes_files;
    int (*run)(const struct options *o, const struct opt_args *args, struct err *e);
} commands[] = {
    { "prepare", 1, run_prepare }, { "encode", 0, run_encode },   { "decode", 0, run_decode },
    { "render", 0, run_render },   { "accepts", 0, run_accepts },
};

/* Files and folders that are named by a URL become local paths. */
static int localise(struct sidecars *sidecars, struct options *o, const struct opt_args *args, struct err *e)
{
    if (o->tokenizer && !(o->tokenizer = sidecar_tokenizer(sidecars, o->tokenizer, e)))
        return -e->code;
    if (o->template && !(o->template = sidecar_file(sidecars, o->template, e)))
        return -e->code;
    if (o->chat_template && !(o->chat_template = sidecar_file(sidecars, o->chat_template, e)))
        return -e->code;
    for (int i = 1; i < args->n; i++) {
        const char *path = sidecar_file(sidecars, args->item[i], e);
        if (!path)
            return -e->code;
        args->item[i] = (char *)(uintptr_t)path;
    }
    return 0;
}

static int run(struct sidecars *sidecars, struct options *o, const struct opt_args *args, struct err *e)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(args->item[0], commands[i].name))
            continue;
        if (args->n > 1 && !commands[i].takes_files)
            return err_set(e, ERR_USAGE, "%s reads stdin: put < in front of %s", commands[i].name,
                           args->item[1]);
        int rc = localise(sidecars, o, args, e);
        return rc < 0 ? rc : commands[i].run(o, args, e);
    }
    return err_set(e, ERR_USAGE, "unknown command %s: known are prepare, encode, decode, render, accepts",
                   args->item[0]);
}

int main(int argc, char **argv)
{
    struct options o = { 0 };
    struct opt_args args = { 0 };
    struct sidecars sidecars = { 0 };
    struct err e = { 0 };
    io_begin();
    int rc = opt_parse(&program, argc, argv, &o, &args, NULL, &e);
    if (rc == 0)
        rc = run(&sidecars, &o, &args, &e);
    sidecar_close(&sidecars);
    opt_free(&program, &o, &args);
    return io_end(rc, &e, "ptok");
}

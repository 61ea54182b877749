/* parse.h - private to text/tools: the table of families, and the state that the parts of the parser share.
 *
 *   parse.c   text, reasoning, markers; what follows a call
 *   json.c    {"name": …, "arguments": …}, alone or in lists; JSON values
 *   named.c   a name, then JSON, or parameters one by one
 *   literal.c calls and values in the syntax of Python or of Gemma
 *   channel.c the messages of gpt-oss
 *
 * Bytes that are not decided yet are held: [begin, held.n). A state looks at them from `at` on. It returns
 * WAIT only where the bytes that follow decide; so where the text is cut changes nothing. */
#ifndef SHARDLINE_TEXT_TOOLS_PARSE_H
#define SHARDLINE_TEXT_TOOLS_PARSE_H

#include "text/tools.h"

enum call_form {
    FORM_JSON,    /* objects with name and arguments, alone or in a list */
    FORM_NAMED,   /* a name, name_end, JSON */
    FORM_PARAMS,  /* a name, name_end, parameters with raw values, which the schema types */
    FORM_PYTHON,  /* name(a="x", b=[1, None]) */
    FORM_GEMMA,   /* call:name{a:<|"|>x<|"|>,b:[1,null]} */
    FORM_CHANNELS /* messages of gpt-oss */
};
enum {
    CALL_BARE = 1,     /* a text that begins with a call needs no marker; the name must be known */
    CALL_LIST = 2,     /* written as a list */
    CALL_KEYED = 4,    /* {NAME: arguments} */
    CALL_LINES = 8,    /* raw values and objects stand between line ends */
    CALL_TALK = 16,    /* a message to "all" is content, and the prompt has written its opening */
    CALL_TYPED = 32,   /* string="true" behind the name of a parameter */
    CALL_COUNTED = 64, /* functions.NAME:INDEX */
    CALL_ID = 128,     /* begin, an id, id_end, the name */
};

#define MARKS 4
struct tool_family {
    const char *name;
    const char *detect[MARKS]; /* all of them are in the template, or */
    const char *detect_too;    /* this one is */
    enum call_form form;
    unsigned flags;
    const char *open[MARKS]; /* each of them opens calls; the first one is the one to write */
    const char *begin;       /* of each call behind it; NULL: the call follows at once */
    const char *name_end;    /* NULL: the name ends where it has no letter any more */
    const char *end;         /* of each call; NULL: none */
    const char *close;       /* of all of them; NULL: none */
    const char *param[4];    /* before a parameter's name, behind it, before its value or NULL, behind it */
    const char *keys[2];     /* of the name and the arguments in an object */
    const char *fence;       /* may stand before the arguments */
    const char *id_end;      /* between name and id */
    const char *drop[MARKS]; /* marks that are no content */
    const char *stop[MARKS]; /* end a turn */
};
struct reasoning_marks {
    const char *detect[2]; /* both are in the template */
    const char *begin[2];  /* each of them begins it */
    const char *end;
    int anywhere;            /* begins behind content, too: no writer of prose writes this mark */
    const char *drop[MARKS]; /* marks that are no content */
};
extern const struct tool_family tool_families[];
extern const struct reasoning_marks reasoning_table[];

enum progress { WAIT, GO };
enum match { NO, YES, MORE };

/* States; each group is a file's. */
enum parse_state {
    IN_TEXT,
    IN_REASONING,
    IN_SECTION, /* behind an opening or a call: another call, or the end */
    IN_JSON,
    IN_JSON_KEY,
    IN_JSON_COLON,
    IN_JSON_VALUE,
    IN_JSON_NAME,
    IN_JSON_ARGUMENTS,
    IN_JSON_OTHER,
    IN_NAME,
    IN_ARGUMENTS,
    IN_CALL_END,
    IN_PARAMS,
    IN_PARAM_NAME,
    IN_PARAM_VALUE,
    IN_PARAM_TEXT,
    IN_LITERAL_NAME,
    IN_LITERAL,
    IN_CHANNEL_HEAD,
    IN_CHANNEL_BODY,
    PARSE_STATES
};

/* A JSON value that is read byte by byte. */
struct json_value {
    int started, string, escaped, depth; /* string: inside one */
    char kind;                           /* of the whole: '{', '"', or 'x', a scalar */
};
/* A literal of Python or Gemma: an open list or object is a bit of `objects`. */
#define LITERAL_DEPTH 64
struct literal {
    int depth, comma; /* comma: one is to be written before the next value */
    int gemma, call;  /* call: the outermost brackets are those of a call */
    char quote;       /* of the string that is read; 0: none */
    unsigned long long objects;
};

struct tool_parser {
    struct tool_parse how;
    const struct tool_family *f; /* how.form.calls, or NULL */
    struct tool_text text;
    struct buf held;
    struct buf gap, thought_gap; /* white space of content and reasoning that may be followed by text */
    size_t begin, at;            /* of held */
    size_t scan;                 /* bytes behind `at` that were searched already */
    enum parse_state state;
    int final, cut, failed;
    int skip_lines, skip_space;      /* white space is left out up to the next text: line ends, all of it */
    int after_call, bare;            /* bare: the text may begin with a call that has no marker */
    const char *mark[2 * MARKS + 8]; /* that are looked for in content: n_marks */
    char mark_kind[2 * MARKS + 8];   /* enum mark_kind of parse.c */
    int n_marks;
    /* the call that is read */
    int committed; /* its name is known and text.call has it */
    int any;       /* a call was read since the opening */
    int drop_call; /* beyond max_calls */
    struct buf name, early, value, key;
    struct tool_call spare; /* of calls that are left out */
    /* JSON */
    int list, nested, has_arguments;
    int key_kind;
    struct json_value json;
    /* parameters */
    int n_params, streams; /* streams: the value is a text, whose beginning is sent before its end is there */
    unsigned types;
    struct literal lit;
    int target; /* channel.c */
};

/* ---- parse.c ---- */
/* Does `text` stand at p->held[at + off]? MORE: its beginning does, and there are no more bytes yet. */
enum match parser_match(const struct tool_parser *p, size_t off, const char *text);
/* The same at p->at, for a mark that may stand there: YES moves over it. At the end of the text its
 * beginning is enough: a mark that was cut is no content. */
enum match parser_past(struct tool_parser *p, const char *mark);
/* Moves over white space. 0: there is more to come. */
int parser_skip_space(struct tool_parser *p);
/* Adds n bytes to content or reasoning. */
void parser_add_text(struct tool_parser *p, const char *s, size_t n);
void parser_add_reasoning(struct tool_parser *p, const char *s, size_t n);
/* The bytes up to `at` are used. */
void parser_take(struct tool_parser *p);
/* What was read since the opening is no call: it is content. */
enum progress parser_not_a_call(struct tool_parser *p);
/* p->name is the name of a call: it is in the text from here on. 0: it is none. */
int parser_commit(struct tool_parser *p);
/* The call is complete: arguments are an object at least. */
void parser_end_call(struct tool_parser *p);
/* The arguments of the call that is read; p->early before its name is known. */
struct buf *parser_arguments(struct tool_parser *p);
/* Bytes that a state may hold while it looks for the end of a name. */
#define NAME_BYTES 256
enum progress parser_go(struct tool_parser *p, enum parse_state next);
/* Finds the first of the marks, NULL entries are skipped, from p->at + p->scan on. YES: *off, counted from
 * p->at, and *which; MORE: not in the bytes before *off, which are no part of one. */
enum match parser_find(struct tool_parser *p, const char *const *marks, int n, size_t *off, int *which);

/* ---- json.c ---- */
enum progress json_between(struct tool_parser *p);
enum progress json_step(struct tool_parser *p);
/* Reads on in a value and appends it to out: a text without its quotes, anything else as it stands. YES: it
 * is complete; NO: it is no JSON. */
enum match json_value_read(struct tool_parser *p, struct json_value *v, struct buf *out);
/* Adds n bytes as they stand in a JSON string. */
void json_add_escaped(struct buf *b, const char *s, size_t n);

/* ---- named.c ---- */
enum progress named_step(struct tool_parser *p);
enum progress params_step(struct tool_parser *p);
void params_close(struct tool_parser *p);

/* ---- literal.c ---- */
/* Reads on in a literal of n bytes from its first bracket on, or in the arguments of a call from behind it,
 * and appends it as JSON. *used: bytes that were read. YES: its last bracket was. */
enum match literal_read(struct literal *l, const char *s, size_t n, int final, size_t *used, struct buf *out);
void literal_begin_call(struct literal *l, int gemma);
enum progress literal_step(struct tool_parser *p);

/* ---- channel.c ---- */
enum progress channel_step(struct tool_parser *p);
void channel_begin(struct tool_parser *p);

/* ---- types.c ---- */
enum {
    TYPE_STRING = 1,
    TYPE_NUMBER = 2,
    TYPE_INTEGER = 4,
    TYPE_BOOLEAN = 8,
    TYPE_NULL = 16,
    TYPE_OBJECT = 32,
    TYPE_ARRAY = 64
};
struct tool_set {
    json_t *tools;
};
/* Does the set have a tool of this name? */
int tool_set_has(const struct tool_set *s, const char *name, size_t n);
/* Types that the schema allows for a parameter; 0: it does not say. */
unsigned tool_types(const struct tool_set *s, const struct buf *tool, const struct buf *param);
/* Appends a raw value as JSON of one of the types. */
void tool_write_value(unsigned types, const char *s, size_t n, struct buf *out);

#endif

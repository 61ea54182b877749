/* cuts.c - see cuts.h: the text of a cut table, and names against its patterns. */
#include "reshard/cuts.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 4096
#define LINE_MAX_BYTES 1024
#define WILD_MAX 4 /* {layer}, {expert} and * in one pattern: bounds the work of a match */
#define NUMBER_MAX ((int64_t)1 << 48)
#define LAYERS_MAX ((int64_t)1 << 20)
#define SPACE " \t\r"

/* ---- patterns ---- */

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* A number without leading zeros; returns its digits, 0: there is none. */
static int take_number(const char *s, int64_t *out)
{
    int n = 0;
    int64_t v = 0;
    for (; is_digit(s[n]) && v < LAYERS_MAX; n++)
        v = v * 10 + (s[n] - '0');
    if (!n || is_digit(s[n]) || v >= LAYERS_MAX || (n > 1 && s[0] == '0'))
        return 0;
    *out = v;
    return n;
}

static int match(const char *p, const char *s, int64_t *layer, int64_t *expert)
{
    static const char layer_word[] = "{layer}", expert_word[] = "{expert}";
    for (; *p; p++, s++) {
        int is_layer = !strncmp(p, layer_word, sizeof layer_word - 1);
        int is_expert = !strncmp(p, expert_word, sizeof expert_word - 1);
        if (is_layer || is_expert) {
            int n = take_number(s, is_layer ? layer : expert);
            if (!n)
                return 0;
            p += is_layer ? sizeof layer_word - 2 : sizeof expert_word - 2;
            s += n - 1;
            continue;
        }
        if (*p == '*') {
            for (;; s++) {
                if (match(p + 1, s, layer, expert))
                    return 1;
                if (!*s || *s == '.')
                    return 0;
            }
        }
        if (*p != *s)
            return 0;
    }
    return !*s;
}

int cuts_match(const char *pattern, const char *name, int64_t *layer, int64_t *expert)
{
    *layer = *expert = -1;
    return match(pattern, name, layer, expert);
}

/* Takes "A" or "A-B" from the text: 1, or 0 where it is none. */
static int take_range(const char **text, int64_t *from, int64_t *to)
{
    int n = take_number(*text, from);
    *text += n;
    *to = *from;
    if (!n || **text != '-')
        return n > 0;
    n = take_number(*text + 1, to);
    *text += n + 1;
    return n > 0 && *to >= *from;
}

int cuts_row_match(const struct cut_row *r, const char *name, int64_t *layer, int64_t *expert)
{
    int64_t from, to;
    if (!cuts_match(r->pattern, name, layer, expert))
        return 0;
    for (const char *s = r->layers; s && take_range(&s, &from, &to); s++) {
        if (*layer >= from && *layer <= to)
            return 1;
        if (!*s)
            break;
    }
    return !r->layers;
}

/* ---- lines ---- */

struct parser {
    struct cuts *c;
    int line;
    char *rest; /* of the line */
    struct err *e;
};

#define AT "%s: line %d: "
#define WHERE(p) (p)->c->what, (p)->line

static char *next_word(struct parser *p)
{
    char *word = p->rest + strspn(p->rest, SPACE);
    size_t n = strcspn(word, SPACE);
    if (!n)
        return NULL;
    p->rest = word + n;
    if (*p->rest)
        *p->rest++ = 0;
    return word;
}

static int read_number(struct parser *p, const char *word, const char *text, int64_t least, int64_t most,
                       int64_t *out)
{
    char *end = NULL;
    long long v = text && is_digit(*text) ? strtoll(text, &end, 10) : -1;
    if (!end || *end || v < least || v > most)
        return err_set(p->e, ERR_FORMAT, AT "%s %.40s: give a whole number from %lld to %lld", WHERE(p), word,
                       text ? text : "", (long long)least, (long long)most);
    *out = v;
    return 0;
}

/* "4,1,1": numbers from 1, at most PARTS_MAX. */
static int read_numbers(struct parser *p, const char *word, char *text, int64_t *out, int *n)
{
    char *save = NULL;
    *n = 0;
    for (char *one = text ? strtok_r(text, ",", &save) : NULL; one; one = strtok_r(NULL, ",", &save)) {
        if (*n == PARTS_MAX)
            return err_set(p->e, ERR_FORMAT, AT "%s: more than %d sizes: give 2 to %d", WHERE(p), word,
                           PARTS_MAX, PARTS_MAX);
        int rc = read_number(p, word, one, 1, NUMBER_MAX, &out[(*n)++]);
        if (rc < 0)
            return rc;
    }
    return *n ? 0 : read_number(p, word, text, 1, NUMBER_MAX, out);
}

/* The sizes of fused parts, in any scale. */
static int read_parts(struct parser *p, struct cut_row *r, char *text)
{
    int rc = text ? read_numbers(p, "parts", text, r->part, &r->n_parts) : 0;
    if (!text)
        r->n_parts = 0;
    if (rc < 0)
        return rc;
    if (r->n_parts < 2)
        return err_set(p->e, ERR_FORMAT, AT "parts: give the sizes of 2 to %d parts with commas, as 4,1,1",
                       WHERE(p), PARTS_MAX);
    return 0;
}

/* "*,64,*": the size of each dim, * for any. */
static int read_shape(struct parser *p, struct cut_row *r, char *text)
{
    char *save = NULL;
    for (char *one = text ? strtok_r(text, ",", &save) : NULL; one; one = strtok_r(NULL, ",", &save)) {
        if (r->n_shape == BOX_DIMS)
            return err_set(p->e, ERR_FORMAT, AT "shape: more than %d sizes", WHERE(p), BOX_DIMS);
        int64_t *size = &r->shape[r->n_shape++];
        int rc = strcmp(one, "*") ? read_number(p, "shape", one, 1, NUMBER_MAX, size) : 0;
        if (rc < 0)
            return rc;
    }
    return r->n_shape ? 0
                      : err_set(p->e, ERR_FORMAT, AT "shape: give the size of each dim, * for any, as *,64",
                                WHERE(p));
}

/* "3,7-9" */
static int read_layers(struct parser *p, struct cut_row *r, const char *text)
{
    int64_t from, to;
    const char *s = text;
    int ok = text && *text;
    while (ok && (ok = take_range(&s, &from, &to)) && *s)
        ok = *s++ == ',' && *s;
    if (!ok)
        return err_set(p->e, ERR_FORMAT, AT "layers %.40s: give numbers and ranges with commas, as 3,7-9",
                       WHERE(p), text ? text : "");
    r->layers = strdup(text);
    return r->layers ? 0 : err_set(p->e, ERR_MEMORY, "%s: no memory for its rows", p->c->what);
}

static int read_companion(struct parser *p, struct cut_row *r, const char *pattern)
{
    if (!pattern || strchr(pattern, '*'))
        return err_set(p->e, ERR_FORMAT, AT "companion: give the pattern of the weight's row, without *",
                       WHERE(p));
    r->companion = strdup(pattern);
    return r->companion ? 0 : err_set(p->e, ERR_MEMORY, "%s: no memory for its rows", p->c->what);
}

/* A word with a number behind it. */
static const struct number_word {
    const char *word;
    int64_t least, most;
} numbers[] = { { "dim", 0, BOX_DIMS - 1 },
                { "interleave", 2, 16 },
                { "expert-dim", 0, 0 },
                { "block", 2, 4096 },
                { "values", 1, NUMBER_MAX } };
enum { W_DIM, W_INTERLEAVE, W_EXPERT_DIM, W_BLOCK, W_VALUES, W_NUMBERS };

static void set_number(struct cut_row *r, int which, int64_t v)
{
    switch (which) {
    case W_DIM:
        r->dim = (int)v;
        r->rule = r->rule == CUT_WHOLE ? CUT_UNITS : r->rule;
        break;
    case W_INTERLEAVE: r->interleave = (int)v; break;
    case W_EXPERT_DIM: r->stacked = 1; break;
    case W_BLOCK: r->block = (int)v; break;
    default: r->values = v; break;
    }
}

/* Bits of the words that a row has: those of `numbers`, then these. */
enum {
    HAS_WHOLE = 1 << W_NUMBERS,
    HAS_COPIES = HAS_WHOLE << 1,
    HAS_BLOCKS = HAS_WHOLE << 2,
    HAS_PARTS = HAS_WHOLE << 3,
    HAS_LAST = HAS_WHOLE << 4,
    HAS_OPTIONAL = HAS_WHOLE << 5,
    HAS_COMPANION = HAS_WHOLE << 6,
    HAS_UNIT = HAS_WHOLE << 7,
    HAS_LAYERS = HAS_WHOLE << 8,
    HAS_SHAPE = HAS_WHOLE << 9
};

static int read_word(struct parser *p, struct cut_row *r, const char *word, unsigned *has)
{
    static const struct {
        const char *word;
        unsigned bit;
    } plain[] = { { "whole", HAS_WHOLE },         { "copies", HAS_COPIES }, { "blocks", HAS_BLOCKS },
                  { "parts", HAS_PARTS },         { "last", HAS_LAST },     { "optional", HAS_OPTIONAL },
                  { "companion", HAS_COMPANION }, { "unit", HAS_UNIT },     { "layers", HAS_LAYERS },
                  { "shape", HAS_SHAPE } };
    unsigned bit = 0;
    int64_t v = 0;
    int rc = 0;

    for (int i = 0; i < W_NUMBERS; i++) {
        if (strcmp(word, numbers[i].word))
            continue;
        bit = 1u << i;
        rc = read_number(p, word, next_word(p), numbers[i].least, numbers[i].most, &v);
        if (rc >= 0)
            set_number(r, i, v);
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(word, plain[i].word))
            bit = plain[i].bit;
    if (bit == HAS_PARTS)
        rc = read_parts(p, r, next_word(p));
    if (bit == HAS_UNIT)
        rc = read_numbers(p, word, next_word(p), r->unit, &r->n_units);
    if (bit == HAS_SHAPE && !(*has & bit))
        rc = read_shape(p, r, next_word(p));
    if (bit == HAS_LAYERS && !(*has & bit))
        rc = read_layers(p, r, next_word(p));
    if (bit == HAS_COMPANION && !(*has & bit))
        rc = read_companion(p, r, next_word(p));
    if (rc < 0)
        return rc;

    if (!bit)
        return err_set(p->e, ERR_FORMAT,
                       AT "%.40s is not a word of a row: use whole, dim, unit, copies, blocks, parts, "
                          "interleave, layers, shape, expert-dim, block, values, companion, last, optional",
                       WHERE(p), word);
    if (*has & bit)
        return err_set(p->e, ERR_FORMAT, AT "%s stands twice: keep one", WHERE(p), word);
    *has |= bit;
    return 0;
}

/* Words that need or exclude each other. */
static int check_row(struct parser *p, const struct cut_row *r, unsigned has)
{
    const unsigned of_dim = HAS_UNIT | 1u << W_INTERLEAVE | 1u << W_BLOCK | HAS_COPIES | HAS_BLOCKS |
                            HAS_PARTS;
    const struct {
        int wrong;
        const char *text;
    } rules[] = {
        { (has & HAS_COMPANION) && (has & ~(HAS_COMPANION | HAS_OPTIONAL | HAS_LAYERS | 1u << W_BLOCK)),
          "is a companion, which takes its cut from the weight: keep only block, layers and optional" },
        { !(has & (HAS_WHOLE | HAS_COMPANION | 1u << W_DIM)),
          "has neither whole nor dim: write dim N, or whole" },
        { (has & HAS_WHOLE) && (has & 1u << W_DIM), "has whole and dim: keep one" },
        { (has & HAS_WHOLE) && (has & of_dim), "is whole, and how a dim is cut: write dim N for whole" },
        { (has & HAS_BLOCKS) && (has & HAS_UNIT), "has blocks and unit: keep one" },
        { (has & HAS_COPIES) && !(has & HAS_UNIT), "has copies without unit: write unit N copies" },
        { (has & 1u << W_VALUES) && r->block < 2, "has values without block: write block N values V" },
        { r->stacked && !r->dim && !(has & HAS_WHOLE), "cuts dim 0, which counts experts: give another dim" },
        { r->stacked && strstr(r->pattern, "{expert}"), "has expert-dim and {expert}: keep one" },
        { r->n_units > 1 && r->n_units != r->n_parts, "has not as many units as parts: give one, or each" },
        { (has & HAS_LAYERS) && !strstr(r->pattern, "{layer}"), "has layers without {layer}: add it" },
        { (has & HAS_LAST) && strstr(r->pattern, "{layer}"),
          "has last and {layer}: a layer's stage follows from its number" },
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].wrong)
            return err_set(p->e, ERR_FORMAT, AT "%.80s %s", WHERE(p), r->pattern, rules[i].text);
    return 0;
}

static int check_pattern(struct parser *p, const char *pattern)
{
    int wild = 0, layers = 0, experts = 0;
    for (const char *s = pattern; *s; s++) {
        int is_layer = !strncmp(s, "{layer}", 7), is_expert = !strncmp(s, "{expert}", 8);
        if ((*s == '{' && !is_layer && !is_expert))
            return err_set(p->e, ERR_FORMAT, AT "%.80s: {...} is {layer} or {expert}", WHERE(p), pattern);
        layers += is_layer;
        experts += is_expert;
        wild += is_layer || is_expert || *s == '*';
    }
    if (layers > 1 || experts > 1 || wild > WILD_MAX)
        return err_set(p->e, ERR_FORMAT,
                       AT "%.80s: at most one {layer}, one {expert}, and %d of them and * together", WHERE(p),
                       pattern, WILD_MAX);
    return 0;
}

/* One pattern may stand twice for other layers or shapes. */
static int check_twice(struct parser *p, const struct cut_row *r)
{
    for (const struct cut_row *q = p->c->row; q < r; q++)
        if (!strcmp(q->pattern, r->pattern) && !(q->layers && r->layers) && !(q->n_shape && r->n_shape))
            return err_set(p->e, ERR_FORMAT, AT "%.80s is in line %d too: keep one", WHERE(p), r->pattern,
                           q->line);
    return 0;
}

static int add_row(struct parser *p, const char *pattern)
{
    struct cuts *c = p->c;
    unsigned has = 0;
    int rc = check_pattern(p, pattern);
    if (rc < 0)
        return rc;
    if (c->n == ROWS_MAX)
        return err_set(p->e, ERR_FORMAT, AT "more than %d rows: write {layer} for numbers", WHERE(p),
                       ROWS_MAX);

    struct cut_row *grown = realloc(c->row, sizeof *grown * (size_t)(c->n + 1));
    if (!grown)
        return err_set(p->e, ERR_MEMORY, "%s: no memory for its rows", c->what);
    c->row = grown;
    struct cut_row *r = &grown[c->n];
    *r = (struct cut_row){ .pattern = strdup(pattern), .line = p->line, .interleave = 1 };
    r->n_units = 1;
    r->unit[0] = 1;
    r->block = r->n_parts = 1;
    r->part[0] = 1;
    if (!r->pattern)
        return err_set(p->e, ERR_MEMORY, "%s: no memory for its rows", c->what);
    c->n++;

    for (const char *word; (word = next_word(p));)
        if ((rc = read_word(p, r, word, &has)) < 0)
            return rc;
    r->copies = !!(has & HAS_COPIES);
    r->last = !!(has & HAS_LAST);
    r->optional = !!(has & HAS_OPTIONAL);
    r->rule = has & HAS_BLOCKS ? CUT_BLOCKS : r->rule;
    rc = check_row(p, r, has);
    return rc < 0 ? rc : check_twice(p, r);
}

/* "cuts 1", the first line that is not empty. */
static int read_version(struct parser *p, const char *word)
{
    int64_t v = 0;
    if (strcmp(word, "cuts"))
        return err_set(p->e, ERR_FORMAT, AT "a cut table begins with the line \"cuts 1\": add it", WHERE(p));
    return read_number(p, word, next_word(p), 1, 1, &v);
}

static int read_line(struct parser *p, int *has_version)
{
    int64_t grain = 0;
    char *comment = strchr(p->rest, '#');
    if (comment)
        *comment = 0;
    const char *word = next_word(p);
    int rc = 0;
    if (!word)
        return 0;

    if (!*has_version) {
        *has_version = 1;
        rc = read_version(p, word);
    } else if (!strcmp(word, "grain")) {
        rc = read_number(p, word, next_word(p), 1, 64, &grain);
        p->c->grain = (int)grain;
    } else {
        return add_row(p, word);
    }
    const char *more = rc < 0 ? NULL : next_word(p);
    return more ? err_set(p->e, ERR_FORMAT, AT "%.40s behind the number: remove it", WHERE(p), more) : rc;
}

/* Rows with `companion` take the cut of the weight's row. */
static int link_companions(struct cuts *c, struct err *e)
{
    for (int i = 0; i < c->n; i++) {
        struct cut_row *r = &c->row[i];
        const struct cut_row *w = NULL;
        if (!r->companion)
            continue;
        for (int k = 0; k < c->n; k++)
            if (!strcmp(c->row[k].pattern, r->companion) && !c->row[k].companion &&
                !strcmp(c->row[k].layers ? c->row[k].layers : "", r->layers ? r->layers : ""))
                w = &c->row[k];
        if (!w)
            return err_set(e, ERR_FORMAT, AT "companion %.80s: no row cuts this pattern: add one", c->what,
                           r->line, r->companion);

        struct cut_row own = *r;
        *r = *w;
        r->pattern = own.pattern;
        r->companion = own.companion;
        r->layers = own.layers;
        r->line = own.line;
        r->optional = own.optional;
        r->block = own.block;
        r->n_shape = 0;
        r->values = 0;
    }
    return 0;
}

int cuts_parse(struct cuts *c, const char *text, size_t n, const char *what, struct err *e)
{
    struct parser p = { .c = c, .e = e };
    int has_version = 0, rc = 0;
    *c = (struct cuts){ .what = strdup(what), .grain = 8 };
    if (!c->what)
        return err_set(e, ERR_MEMORY, "%s: no memory for its rows", what);

    for (size_t at = 0; at < n && rc >= 0;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t length = end ? (size_t)(end - text) - at : n - at;
        char line[LINE_MAX_BYTES];
        p.line++;
        if (length >= sizeof line)
            return err_set(e, ERR_FORMAT, AT "%zu bytes: a line has at most %d", WHERE(&p), length,
                           LINE_MAX_BYTES - 1);
        if (memchr(text + at, 0, length))
            return err_set(e, ERR_FORMAT, AT "has a byte 0: a cut table is a text", WHERE(&p));
        memcpy(line, text + at, length);
        line[length] = 0;
        p.rest = line;
        rc = read_line(&p, &has_version);
        at += length + 1;
    }
    if (rc >= 0 && !has_version)
        return err_set(e, ERR_FORMAT, "%s: is empty: a cut table begins with the line \"cuts 1\"", c->what);
    if (rc >= 0)
        rc = link_companions(c, e);
    return rc < 0 ? rc : 0;
}

void cuts_free(struct cuts *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->row[i].pattern);
        free(c->row[i].companion);
        free(c->row[i].layers);
    }
    free(c->row);
    free(c->what);
    memset(c, 0, sizeof *c);
}

/* schema_value.c - strings, numbers and words of an alternative. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/schema/schema.h"
#include "text/grammar/compile.h"

/* So few digits that no reader of JSON finds the number too large. */
static const char number_regex[] = "-?(?:0|[1-9]\\d{0,59})(?:\\.\\d{1,59})?(?:[eE][+-]?\\d{1,2})?";
static const char integer_regex[] = "-?(?:0|[1-9]\\d{0,59})";
/* With bounds there is no exponent, and so few digits that a double tells any two numbers apart. */
static const char bounded_regex[] = "-?(?:0|[1-9]\\d{0,14})(?:\\.\\d{1,14})?";
static const char fraction_regex[] = "-?(?:0|[1-9]\\d{0,14})\\.\\d{0,13}[1-9]";

int schema_equal(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b))
        return 0;
    if (json_is_array(a)) {
        for (size_t i = 0; i < json_array_size(a); i++)
            if (i >= json_array_size(b) || !schema_equal(json_array_get(a, i), json_array_get(b, i)))
                return 0;
        return json_array_size(a) == json_array_size(b);
    }
    if (json_is_object(a)) {
        json_object_foreach((json_t *)(uintptr_t)a, key, value) {
            const json_t *other = json_object_get(b, key);
            if (!other || !schema_equal(value, other))
                return 0;
        }
        return json_object_size(a) == json_object_size(b);
    }
    return json_equal(a, b);
}

static int list_has(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (schema_equal(json_array_get(list, i), v))
            return 1;
    return 0;
}

/* Narrows *all to the values of one list. The first list stays as it is: 10,000 values are not compared with
 * each other. */
static void narrow(struct schemas *s, json_t **all, const json_t *list)
{
    json_t *both = json_array();
    for (size_t i = 0; both && i < json_array_size(list) && program_check(s->p) == 0; i++) {
        json_t *v = json_array_get(list, i);
        if (!*all || list_has(*all, v))
            json_array_append(both, v);
    }
    if (!both)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    json_decref(*all);
    *all = both;
}

json_t *schema_enums(struct schemas *s, const struct members *m)
{
    json_t *all = NULL;
    for (size_t i = 0; i < m->n && !s->p->failed; i++) {
        const json_t *list = json_object_get(m->v[i], "enum"), *one = json_object_get(m->v[i], "const");
        if (list && !json_is_array(list))
            schema_fail(s, m->v[i], "enum", "is not a list");
        else if (list)
            narrow(s, &all, list);
        if (one) {
            json_t *single = json_pack("[O]", one);
            narrow(s, &all, single);
            json_decref(single);
        }
    }
    return all;
}

int schema_count(struct schemas *s, const json_t *node, const char *keyword, int64_t *value)
{
    const json_t *v = json_object_get(node, keyword);
    if (!v)
        return 0;
    double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || x != (double)(int64_t)(x < 1e18 ? x : 0)) {
        schema_fail(s, node, keyword, "is not a count");
        return 0;
    }
    *value = x > 1e9 ? 1000000000 : (int64_t)x;
    return 1;
}

/* --- strings --- */

static void add_part(struct schemas *s, struct terminal *t, int32_t component, int negated)
{
    for (int i = 0; i < t->n_parts; i++)
        if (t->part[i].component == component && t->part[i].negated == negated)
            return;
    if (t->n_parts == TERMINAL_PARTS) {
        program_fail(s->p, ERR_CONFIG, "more than %d patterns and bounds hold for one value", TERMINAL_PARTS);
        return;
    }
    t->part[t->n_parts].component = component;
    t->part[t->n_parts++].negated = (uint8_t)negated;
}

static void add_regex(struct schemas *s, struct terminal *t, const char *regex, enum regex_use use,
                      int negated)
{
    add_part(s, t, program_regex(s->p, regex, strlen(regex), use, "a schema"), negated);
}

static void add_pattern(struct schemas *s, struct terminal *t, const json_t *node, const char *keyword,
                        int negated)
{
    const json_t *v = json_object_get(node, keyword);
    if (!v || s->p->failed)
        return;
    if (!json_is_string(v)) {
        schema_fail(s, node, keyword, "is not a text");
        return;
    }
    int32_t c = program_regex(s->p, json_string_value(v), json_string_length(v), REGEX_SEARCH, NULL);
    if (s->p->failed && s->p->e->code == ERR_CONFIG) {
        char what[600];
        snprintf(what, sizeof what, "%.590s", s->p->e->text);
        s->p->failed = 0;
        schema_fail(s, node, keyword[0] == 1 ? keyword + 1 : keyword, what);
        return;
    }
    add_part(s, t, c, negated);
}

static void add_format(struct schemas *s, struct terminal *t, const json_t *node, int64_t *max)
{
    const char *name = json_string_value(json_object_get(node, "format"));
    int refused = 0;
    const struct format *f = name ? schema_format(name, &refused) : NULL;
    if (refused) {
        char what[80];
        snprintf(what, sizeof what, "\"%.40s\" is not honoured", name);
        schema_fail(s, node, "format", what);
    }
    if (!f)
        return;
    char *whole = malloc(strlen(f->regex) + 8);
    if (!whole) {
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
        return;
    }
    sprintf(whole, "(?:%s)", f->regex);
    add_regex(s, t, whole, REGEX_WHOLE, 0);
    free(whole);
    if (f->but_not)
        add_regex(s, t, f->but_not, REGEX_SEARCH, 1);
    if (f->max && (*max < 0 || *max > f->max))
        *max = f->max;
}

/* A component of words; those of a list that are texts. */
static int32_t words_of(struct schemas *s, const json_t *list)
{
    size_t n = json_array_size(list), k = 0;
    const char **word = malloc((n + 1) * sizeof *word);
    size_t *len = malloc((n + 1) * sizeof *len);
    struct component c = { .kind = PART_WORDS };
    if (!word || !len)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    for (size_t i = 0; i < n && !s->p->failed; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_string(v))
            continue;
        word[k] = json_string_value(v);
        len[k++] = json_string_length(v);
    }
    if (!s->p->failed && words_open(&c.words, word, len, (int32_t)k, s->p->e) < 0)
        s->p->failed = 1;
    free(word);
    free(len);
    return s->p->failed ? 0 : program_component(s->p, &c);
}

static void add_length(struct schemas *s, struct terminal *t, int64_t min, int64_t max)
{
    struct component c = { .kind = PART_LENGTH, .min = min, .max = max };
    if (min > 0 || max >= 0)
        add_part(s, t, program_component(s->p, &c), 0);
}

void schema_string_parts(struct schemas *s, const struct members *m, struct terminal *t)
{
    int64_t min = 0, max = -1, x;
    for (size_t i = 0; i < m->n && !s->p->failed; i++) {
        const json_t *node = m->v[i];
        add_pattern(s, t, node, "pattern", 0);
        add_pattern(s, t, node, KEY_NOT_PATTERN, 1);
        add_format(s, t, node, &max);
        if (json_object_get(node, KEY_NOT_WORDS))
            add_part(s, t, words_of(s, json_object_get(node, KEY_NOT_WORDS)), 1);
        if (schema_count(s, node, "minLength", &x) && x > min)
            min = x;
        if (schema_count(s, node, "maxLength", &x) && (max < 0 || x < max))
            max = x;
    }
    add_length(s, t, min, max);
}

/* A terminal of these parts, which is found again; -1: its language is empty. */
static int32_t find_terminal(struct schemas *s, const struct terminal *t)
{
    uint32_t before = s->string_terminals.n, id;
    if (s->p->failed)
        return -1;
    id = intern_put(&s->string_terminals, t, sizeof *t);
    if (s->string_terminals.n > before) {
        int32_t terminal = program_terminal(s->p, t);
        int empty = !s->p->failed && terminal_is_empty(s->m, terminal);
        ints_add(&s->string_terminal, empty ? -1 : terminal);
        if (s->m->failed && !s->p->failed) {
            program_fail(s->p, s->m->failed,
                         "patterns and lengths of one value have too many states together");
        }
    }
    if (s->string_terminals.failed || s->string_terminal.failed)
        program_fail(s->p, ERR_MEMORY, "no memory for a schema");
    return s->p->failed ? -1 : s->string_terminal.v[id];
}

int32_t schema_string(struct schemas *s, const struct members *m, const json_t *enums)
{
    struct terminal t;
    memset(&t, 0, sizeof t);
    t.decoder = DECODER_STRING;
    t.object = -1;
    if (enums) {
        size_t i = 0;
        while (i < json_array_size(enums) && !json_is_string(json_array_get(enums, i)))
            i++;
        if (i == json_array_size(enums))
            return -1;
        add_part(s, &t, words_of(s, enums), 0);
    }
    schema_string_parts(s, m, &t);
    return find_terminal(s, &t);
}

/* --- numbers --- */

/* A bound of a member, or none. below: from above. */
static int add_bound(struct schemas *s, struct terminal *t, const json_t *node, const char *keyword,
                     int below, int exclusive)
{
    const json_t *v = json_object_get(node, keyword);
    struct component c = { .kind = PART_BOUND, .bound = { .below = below, .exclusive = exclusive } };
    if (!v || s->p->failed)
        return 0;
    if (!json_is_number(v)) {
        schema_fail(s, node, keyword, "is not a number");
        return 0;
    }
    if (json_is_integer(v)) {
        char text[32];
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        c.bound.at.negative = text[0] == '-';
        c.bound.at.n_whole = (int)strlen(text) - c.bound.at.negative;
        memcpy(c.bound.at.whole, text + c.bound.at.negative, (size_t)c.bound.at.n_whole);
    } else if (decimal_of(&c.bound.at, json_number_value(v)) < 0) {
        schema_fail(s, node, keyword, "is not a finite number");
        return 0;
    }
    add_part(s, t, program_component(s->p, &c), 0);
    return 1;
}

/* The bounds of a member; draft 4 has a truth value in exclusiveMinimum. Returns 1: it has one. */
static int add_bounds(struct schemas *s, struct terminal *t, const json_t *node)
{
    int excludes_min = json_is_true(json_object_get(node, "exclusiveMinimum"));
    int excludes_max = json_is_true(json_object_get(node, "exclusiveMaximum"));
    int has = add_bound(s, t, node, "minimum", 0, excludes_min) |
              add_bound(s, t, node, "maximum", 1, excludes_max);
    if (!json_is_boolean(json_object_get(node, "exclusiveMinimum")))
        has |= add_bound(s, t, node, "exclusiveMinimum", 0, 1);
    if (!json_is_boolean(json_object_get(node, "exclusiveMaximum")))
        has |= add_bound(s, t, node, "exclusiveMaximum", 1, 1);
    return has;
}

static int add_multiple(struct schemas *s, struct terminal *t, const json_t *node)
{
    const json_t *v = json_object_get(node, "multipleOf");
    struct component c = { .kind = PART_MULTIPLE };
    struct decimal d;
    uint64_t of = 0;
    if (!v || s->p->failed)
        return 0;
    if (!json_is_number(v) || decimal_of(&d, json_number_value(v)) < 0 || !(json_number_value(v) > 0)) {
        schema_fail(s, node, "multipleOf", "is not a number above 0");
        return 0;
    }
    for (int i = 0; i < d.n_whole && of < 1000000; i++)
        of = of * 10 + (uint64_t)(d.whole[i] - '0');
    for (int i = 0; i < d.n_part && of < 1000000; i++)
        of = of * 10 + (uint64_t)(d.part[i] - '0');
    if (of >= 1000000 || d.n_part > 6) {
        schema_fail(s, node, "multipleOf", "has more than 6 digits, which is not honoured");
        return 0;
    }
    c.multiple = (struct multiple){ (uint32_t)of, d.n_part };
    add_part(s, t, program_component(s->p, &c), 0);
    return 1;
}

/* The text of a number, as JSON: integers without a point. */
static void number_text(const json_t *v, char text[64])
{
    struct decimal d;
    if (json_is_integer(v)) {
        snprintf(text, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return;
    }
    double x = json_number_value(v);
    if (decimal_of(&d, x) < 0 || d.n_whole + d.n_part > 40)
        snprintf(text, 64, "%.17g", x);
    else
        snprintf(text, 64, "%s%.*s%s%.*s", d.negative ? "-" : "", d.n_whole, d.whole, d.n_part ? "." : "",
                 d.n_part, d.part);
}

static int has_type(const json_t *v, unsigned types)
{
    double x = json_number_value(v);
    int whole = json_is_integer(v) || (x == (double)(int64_t)(x < 1e18 && x > -1e18 ? x : 0.5));
    return json_is_number(v) && types & (whole ? T_INTEGER : T_FRACTION);
}

/* A component of the numbers of a list; -1: there are none of the types. */
static int32_t numbers_of(struct schemas *s, const json_t *list, unsigned types)
{
    json_t *texts = json_array();
    char text[64];
    for (size_t i = 0; texts && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!has_type(v, types))
            continue;
        number_text(v, text);
        json_array_append_new(texts, json_string(text));
        if (json_is_real(v) && !strpbrk(text, ".e")) {
            strcat(text, ".0");
            json_array_append_new(texts, json_string(text));
        }
    }
    int32_t c = json_array_size(texts) ? words_of(s, texts) : -1;
    json_decref(texts);
    return c;
}

int32_t schema_number(struct schemas *s, const struct members *m, unsigned types, const json_t *enums)
{
    struct terminal t;
    int bounded = 0, fraction = !(types & T_INTEGER);
    memset(&t, 0, sizeof t);
    t.decoder = DECODER_TEXT;
    t.object = -1;
    for (size_t i = 0; i < m->n && !s->p->failed; i++) {
        bounded |= add_bounds(s, &t, m->v[i]);
        bounded |= add_multiple(s, &t, m->v[i]);
        fraction |= json_object_get(m->v[i], KEY_FRACTION) != NULL;
    }
    if (fraction && !(types & T_FRACTION))
        return -1;

    if (enums) {
        int32_t c = numbers_of(s, enums, fraction ? T_FRACTION : types);
        if (c < 0)
            return -1;
        add_part(s, &t, c, 0);
    } else {
        add_regex(s, &t,
                  fraction                ? fraction_regex
                  : !(types & T_FRACTION) ? integer_regex
                  : bounded               ? bounded_regex
                                          : number_regex,
                  REGEX_WHOLE, 0);
    }
    return find_terminal(s, &t);
}

int32_t schema_words(struct schemas *s, unsigned types, const json_t *enums)
{
    static const struct {
        unsigned type;
        const char *text;
        json_type json;
    } words[] = { { T_NULL, "null", JSON_NULL },
                  { T_FALSE, "false", JSON_FALSE },
                  { T_TRUE, "true", JSON_TRUE } };
    const char *word[3];
    size_t len[3];
    int32_t n = 0;
    for (int i = 0; i < 3; i++) {
        int among = !enums;
        for (size_t j = 0; j < json_array_size(enums); j++)
            among |= json_typeof(json_array_get(enums, j)) == words[i].json;
        if (!(types & words[i].type) || !among)
            continue;
        word[n] = words[i].text;
        len[n++] = strlen(words[i].text);
    }
    return n ? program_words(s->p, DECODER_TEXT, word, len, n) : -1;
}

/* text_template_test.c - chat templates: what Jinja makes of them, spans of what came from outside, limits,
 * folders, mutations. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* asprintf */
#endif
#include <sys/stat.h>
#include "base/io.h"
#include "base/rnd.h"
#include "tests/unit/text/text_help.h"
#include "text/template.h"

static const char variables[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"H\\u00e9 <b>'x'</b> \\\"q\\\"\\n ok "
    "\\u00df\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":"
    "[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1,\"b\":[1.5,true,null,\"x\"]}}}]},{\"role\":"
    "\"tool\",\"content\":\"  z  \"}],\"tools\":null,"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</"
    "s>\",\"extra\":{\"n\":3,\"s\":\"aXbXc\",\"f\":2.5,\"d\":{\"b\":2,\"a\":1,"
    "\"items2\":[3,1,2]},\"l\":[3,1,2],\"e\":[],\"z\":\"\"}}";

/* Renders; 0, or a code with the message in *e. */
static int render(const char *text, size_t n, const char *json, struct rendered *out, struct err *e)
{
    struct template *t = NULL;
    *out = (struct rendered){ 0 };
    int rc = template_open(&t, text, n, "t.jinja", e);
    if (rc == 0)
        rc = template_render_json(t, json, strlen(json), out, e);
    template_close(t);
    return rc;
}

static char *shown;

/* The text, or "error: …"; in a buffer that the next call frees. */
static const char *rendered_text(const char *text, const char *json)
{
    struct rendered r;
    struct err e = { 0 };
    free(shown);
    if (render(text, strlen(text), json, &r, &e) < 0 && asprintf(&shown, "error: %s", e.text) > 0)
        return shown;
    shown = r.text;
    r.text = NULL;
    rendered_free(&r);
    return shown;
}

static const struct {
    const char *text, *want;
} cases[] = {
#include "tests/unit/text/text_template_cases.inc"
};

TEST(every_construct_is_rendered_as_jinja_does)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = rendered_text(cases[i].text, variables);
        int is_error = !strncmp(got, "error: ", 7);
        if (cases[i].want ? strcmp(got, cases[i].want) : !is_error)
            test_fail(__FILE__, __LINE__, "%s gives %s, not %s", cases[i].text, got,
                      cases[i].want ? cases[i].want : "an error");
    }
}

TEST(every_vector_of_the_reference_is_equal_and_errors_are_errors)
{
    char path[1100], *line = NULL;
    size_t cap = 0;
    int n = 0;
    const char *root = test_fixture_dir();
    if (!root) {
        test_skip("FIXTURES is not set: the vectors of chat/ were not read");
        return;
    }
    snprintf(path, sizeof path, "%s/hf/chat/vectors.jsonl", root);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    while (f && getline(&line, &cap, f) > 1) {
        struct err e = { 0 };
        struct rendered r = { 0 };
        void *text = NULL;
        size_t n_text = 0;
        json_t *row = text_json(line, strlen(line), path, &e);
        const json_t *want = json_object_get(row, "text");
        snprintf(path, sizeof path, "%s/hf/chat/%s.jinja", root,
                 json_string_value(json_object_get(row, "template")));
        CHECK_INT(io_read_file(path, 1 << 20, &text, &n_text, &e), 0);
        int rc = render(text, n_text, line, &r, &e);
        if (want ? rc < 0 || r.n != json_string_length(want) || memcmp(r.text, json_string_value(want), r.n)
                 : rc != -ERR_USAGE)
            test_fail(__FILE__, __LINE__, "line %d: %s", n, rc < 0 ? e.text : "another text");
        rendered_free(&r);
        json_decref(row);
        free(text);
        n++;
    }
    CHECK_INT(n, 450);
    free(line);
    if (f)
        fclose(f);
}

/* --- what came from outside --- */

/* The text with «» around what came from outside. */
static const char *spans_shown(const char *text, const char *json)
{
    static char out[4096];
    struct rendered r;
    struct err e = { 0 };
    size_t at = 0, k = 0;
    if (render(text, strlen(text), json, &r, &e) < 0) {
        snprintf(out, sizeof out, "error: %s", e.text);
        return out;
    }
    for (size_t i = 0; i <= r.n && at + 8 < sizeof out; i++) {
        if (k < r.n_user && i == r.user[k].end) {
            at += (size_t)sprintf(out + at, "]");
            k++;
        }
        if (k < r.n_user && i == r.user[k].begin)
            at += (size_t)sprintf(out + at, "[");
        if (i < r.n)
            out[at++] = r.text[i];
    }
    out[at] = 0;
    rendered_free(&r);
    return out;
}

#define HI \
    "{\"messages\":[{\"role\":\"user\",\"content\":\" Hi-<s>-Hi " \
    "\"}],\"bos_token\":\"<s>\",\"extra\":{\"x\":\"<s>\"},\"tools\":[{\"k\\\"<s>\":[1,\"<s>\\n\"]}]}"
#define C "messages[0].content"

TEST(documents_are_a_field_or_a_variable_of_the_user)
{
    static const char text[] = "{{ documents is none }}{% for d in documents or [] %}{{ d }}{% endfor %}";
    CHECK_STR(spans_shown(text, "{\"messages\":[]}"), "True");
    CHECK_STR(spans_shown(text, "{\"messages\":[],\"documents\":[\"a\"]}"), "False[a]");
    CHECK_STR(spans_shown(text, "{\"messages\":[],\"extra\":{\"documents\":[\"b\"]}}"), "False[b]");
}

TEST(every_way_of_a_string_keeps_the_marks_of_its_bytes)
{
    static const struct {
        const char *text, *want;
    } ways[] = {
        { "{{ bos_token }}{{ " C " }}</s>", "<s>[ Hi-<s>-Hi ]</s>" },
        { "{{ bos_token + " C "|trim + '.' }}", "<s>[Hi-<s>-Hi]." },
        { "{{ '<' ~ " C ".split('-')[1] ~ '>' }}", "<[<s>]>" },
        { "{{ " C "[4:7] ~ bos_token }}", "[<s>]<s>" },
        { "{{ " C "[::-1]|upper }}", "[ IH->S<-IH ]" },
        { "{{ " C ".replace('Hi', bos_token) }}", "[ ]<s>[-<s>-]<s>[ ]" },
        { "{{ bos_token.replace('s', x) }}", "<[<s>]>" },
        { "{{ " C "|title|lower }}", "[ hi-<s>-hi ]" },
        { "{{ [bos_token, x, bos_token]|join(x) }}", "<s>[<s><s><s>]<s>" },
        { "{{ '%s|%5s' % (bos_token, x) }}", "<s>|  [<s>]" },
        { "{{ '{}{}'.format(x, bos_token) }}", "[<s>]<s>" },
        { "{{ tools }}", "[{'[k\"<s>]': [1, '[<s>\\n]']}]" },
        { "{{ tools|tojson }}", "[{\"[k\\\"<s>]\": [1, \"[<s>\\n]\"]}]" },
        { "{% for k in tools[0] %}{{ k }}{% endfor %}", "[k\"<s>]" },
        { "{% set y %}({{ x }}){% endset %}{{ y }}{% filter upper %}({{ x }}){% endfilter %}",
          "([<s>])([<S>])" },
        { "{% macro m(a) %}({{ a }}){% endmacro %}{{ m(x) }}", "([<s>])" },
        { "{{ x|e }}{{ x|indent(1, true) }}{{ x.center(5) }}", "[&lt;s&gt;] [<s>] [<s>] " },
        { "{{ x * 2 }}{{ x|list }}{{ x|first }}{{ x|reverse }}", "[<s><s>]['[<]', '[s]', '[>]'][<>s<]" },
        { "{{ x|default('a') }}{{ zz|default(x) }}{{ x or 'b' }}", "[<s><s><s>]" },
        { "{{ messages|map(attribute='role')|join }}{{ x.partition('s')|join('-') }}", "[user<]-[s]-[>]" },
        { "{{ x|length }}{{ x == bos_token }}", "3True" },
        { "{{ {x: 1}|items|first|first }}{{ dict([[x, 2]]) }}{{ x|string }}{{ x|truncate(3, true, '', 0) }}",
          "[<s>]{'[<s>]': 2}[<s><s>]" },
        { "{{ ns.x }}{% set ns = namespace(x=x) %}{% set ns.x = ns.x + '!' %}{{ ns.x }}",
          "error: the chat template, line 1: 'ns' is undefined" },
        { "{% set ns = namespace(x=x) %}{% set ns.x = ns.x + '!' %}{{ ns.x }}", "[<s>]!" },
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        CHECK_STR(spans_shown(ways[i].text, HI), ways[i].want);
}

/* --- marked text to ids: 0 a, 1 <, 2 s, 3 >, 4 "<s" "<s>" by merges; 10 <s> special, 11 <t> not special
 * --- */

#define MARKED \
    "{'added_tokens':[{'id':10,'content':'<s>','special':true},{'id':11,'content':'<t>','special':false}," \
    "{'id':12,'content':'<s><s>','special':true}]," \
    "'model':{'type':'BPE','vocab':{'a':0,'<':1,'s':2,'>':3,'t':4,'<s':5},'merges':['< s']}}"

static const char *marked_ids(const char *json, const char *text, size_t n_spans,
                              const struct text_span *spans)
{
    struct err e = { 0 };
    struct tokenizer *t = must_open(json);
    int32_t *ids = NULL;
    size_t n = 0;
    const char *out = "error";
    const struct marked_text marked = { text, strlen(text), spans, n_spans };
    if (t && tokenizer_encode_marked(t, &marked, 0, &ids, &n, &e) == 0)
        out = ids_text(ids, n);
    else
        printf("%s\n", e.text);
    free(ids);
    tokenizer_close(t);
    return out;
}
#define SPANS(...) \
    sizeof((struct text_span[]){ __VA_ARGS__ }) / sizeof(struct text_span), (struct text_span[]) \
    { \
        __VA_ARGS__ \
    }

TEST(special_tokens_are_found_only_outside_of_marked_spans)
{
    CHECK_STR(marked_ids(MARKED, "<s>a<s>", 0, NULL), "10 0 10");
    CHECK_STR(marked_ids(MARKED, "<s>a<s>", SPANS({ 4, 7 })), "10 0 5 3");
    CHECK_STR(marked_ids(MARKED, "<s>a<s>", SPANS({ 0, 3 })), "5 3 0 10");
    for (size_t i = 0; i < 3; i++) /* one byte is enough */
        CHECK_STR(marked_ids(MARKED, "<s>a<s>", SPANS({ i, i + 1 })), "5 3 0 10");
    CHECK_STR(marked_ids(MARKED, "<s>a<s>", SPANS({ 3, 4 })), "10 0 10");
    /* not special: the same ids as anywhere */
    CHECK_STR(marked_ids(MARKED, "<t>", SPANS({ 0, 3 })), "11");
    CHECK_STR(marked_ids(MARKED, "<s><s>", 0, NULL), "12");
    /* the longer one has bytes from outside, the shorter one none */
    CHECK_STR(marked_ids(MARKED, "<s><s>", SPANS({ 3, 6 })), "10 5 3");
    CHECK_STR(marked_ids(MARKED, "<s><s>", SPANS({ 0, 3 })), "5 3 10");
}

TEST(special_tokens_that_are_normalised_obey_the_marks_too)
{
#define NORMALISED \
    "{'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'a'},{'type':'Replace','" \
    "pattern':{'String':'t'},'content':'aa'}]}," \
    "'added_tokens':[{'id':10,'content':'<s>','special':true,'normalized':true}]," \
    "'model':{'type':'BPE','vocab':{'a':0,'<':1,'s':2,'>':3,'<s':5},'merges':['< s']}}"
    /* the token itself is normalised: a<s> */
    CHECK_STR(marked_ids(NORMALISED, "<s>a<s>", 0, NULL), "10 10");
    CHECK_STR(marked_ids(NORMALISED, "<s>a<s>", SPANS({ 4, 7 })), "10 0 5 3");
    CHECK_STR(marked_ids(NORMALISED, "<s>a<s>", SPANS({ 0, 1 })), "0 5 3 10");
    CHECK_STR(marked_ids(NORMALISED, "<s>tta<s>t<s>", SPANS({ 3, 5 }, { 9, 10 })), "10 0 0 0 0 10 0 0 5 3");
}

TEST(merges_cannot_spell_a_special_token_from_outside)
{
#define SPELLED \
    "{'added_tokens':[{'id':6,'content':'<s>','special':true}],'model':{'type':'BPE','vocab':{'a':0,'<':1,'" \
    "s':2,'>':3,'t':4,'<s':5,'<s>':6}," \
    "'merges':['< s','<s >']}}"
    CHECK_STR(marked_ids(SPELLED, "a<s>", 0, NULL), "0 6");
    CHECK_STR(marked_ids(SPELLED, "a<s>a<s>", SPANS({ 1, 4 })), "0 1 2 3 0 6");
    CHECK_STR(marked_ids(SPELLED, "<s><s>a", SPANS({ 3, 7 })), "6 1 2 3 0");
}

TEST(marked_text_is_checked)
{
    struct err e = { 0 };
    struct tokenizer *t = must_open(MARKED);
    int32_t *ids = NULL;
    size_t n;
    static const struct text_span bad[][2] = { { { 2, 1 }, { 2, 2 } },
                                               { { 0, 2 }, { 1, 2 } },
                                               { { 0, 1 }, { 1, 9 } } };
    for (size_t i = 0; i < 3; i++) {
        CHECK_INT(tokenizer_encode_marked(t, &(struct marked_text){ "aaa", 3, bad[i], 2 }, 0, &ids, &n, &e),
                  -ERR_CONFIG);
        CHECK_HAS(e.text, "parts ascend");
    }
    CHECK_INT(tokenizer_encode_marked(t,
                                      &(struct marked_text){ "a\xC3\xA9", 3, &(struct text_span){ 0, 2 }, 1 },
                                      0, &ids, &n, &e),
              -ERR_CONFIG);
    CHECK_HAS(e.text, "a border lies in a character");
    CHECK_INT(tokenizer_encode_marked(t, &(struct marked_text){ "a\xFF", 2, bad[2], 1 }, 0, &ids, &n, &e),
              -ERR_CONFIG);
    CHECK_HAS(e.text, "byte 1");
    tokenizer_close(t);
}

/* --- limits and errors --- */

#define NONE "{\"messages\":[]}"

TEST(errors_name_the_line)
{
    CHECK_STR(rendered_text("a\n{% if x %}\nb", NONE),
              "error: t.jinja, line 3: the block of line 3 is not closed: endif is missing");
    CHECK_STR(rendered_text("a\n\n{{ 1 + }}", NONE), "error: t.jinja, line 3: unexpected '}}'");
    CHECK_STR(rendered_text("a\n{{\n\n'x' + 1 }}", NONE),
              "error: the chat template, line 4: + does not work on a str and a int");
    CHECK_STR(rendered_text("{% macro m() %}\n\n{{ raise_exception('no\nroles') }}{% endmacro %}\n{{ m() }}",
                            NONE),
              "error: the chat template, line 3: no roles");
    CHECK_STR(rendered_text("{% macro m() %}\n\n{% endmacro %}\n{{ m() + 1 }}", NONE),
              "error: the chat template, line 4: + does not work on a str and a int");
    CHECK_STR(rendered_text("\n{% bad %}", NONE), "error: t.jinja, line 2: the tag 'bad' is not known here");
    CHECK_STR(rendered_text("x\n\xFF", NONE), "error: t.jinja, line 1: byte 2 of the template is not UTF-8");
    CHECK_HAS(rendered_text("{{ messages.append(1) }}", NONE), "would change a value");
    CHECK_STR(rendered_text("{{ 1 }}", "{\"messages\":{}}"), "error: messages is not a list");
    CHECK_STR(rendered_text("{{ 1 }}", "{\"messages\":[1]}"), "error: messages[0] is not an object");
    CHECK_HAS(rendered_text("{{ 1 }}", "{"), "the request: line 1");
}

static char *repeated(const char *front, const char *unit, size_t times, const char *behind)
{
    size_t n = strlen(unit);
    char *s = malloc(strlen(front) + n * times + strlen(behind) + 1), *p = s + sprintf(s, "%s", front);
    for (size_t i = 0; i < times; i++, p += n)
        memcpy(p, unit, n);
    strcpy(p, behind);
    return s;
}

TEST(depth_steps_and_memory_have_limits)
{
    static const struct {
        const char *front, *unit, *behind, *want;
        size_t times;
    } deep[] = {
        { "{{ ", "(", "", "nested brackets", 100000 }, { "{{ ", "-", "1 }}", "nested", 100000 },
        { "{{ ", "not ", "1 }}", "nested", 100000 },   { "", "{% if 1 %}", "", "nested", 100000 },
        { "{{ 1", " + 1", " }}", "nested", 100000 },   { "{{ 1", " if 1 else 1", " }}", "nested", 100000 },
        { "{{ x", ".a", " }}", "nested", 100000 },     { "{{ x", "|e", " }}", "nested", 100000 },
        { "{{ ", "[", "", "nested brackets", 100000 }, { "{{ x", " is not y", " }}", "in a row", 1000 },
    };
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        char *s = repeated(deep[i].front, deep[i].unit, deep[i].times, deep[i].behind);
        CHECK_HAS(rendered_text(s, NONE), deep[i].want);
        free(s);
    }
    CHECK_HAS(rendered_text("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NONE),
              "does a macro call itself");
    CHECK_HAS(rendered_text("{% set ns = namespace(x=[]) %}{% for i in range(2000) %}{% set ns.x = [ns.x] "
                            "%}{% endfor %}{{ ns.x }}",
                            NONE),
              "nested");
    CHECK_HAS(rendered_text("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", NONE), "nested");
    CHECK_HAS(rendered_text(
                  "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", NONE),
              "error: the chat template, line 1");
    char *many = repeated("{% for i in range(100000) %}{% if [", "[1,2]*20,", 90,
                          "] %}{% endif %}{% endfor %}");
    CHECK_HAS(rendered_text(many, NONE), "error: the chat template, line 1");
    free(many);
    many = repeated("{% for i in range(100000) %}{% if 1", " and 1", 240, " %}{% endif %}{% endfor %}");
    CHECK_HAS(rendered_text(many, NONE), "too many steps");
    free(many);
    CHECK_HAS(rendered_text("{% for i in range(100001) %}{% endfor %}", NONE), "a range of more than");
    CHECK_HAS(rendered_text("{{ 'x' * 100000000000 }}", NONE), "error: the chat template, line 1");
    CHECK_HAS(rendered_text("{{ 'abcdefgh' * 40000000 }}", NONE), "error: the chat template, line 1");
    CHECK_HAS(rendered_text("{{ [1] * 100000000000 }}", NONE), "error: the chat template, line 1");
    CHECK_HAS(rendered_text("{{ '%999999999s' % 'x' }}{{ 'x'|indent(1000000000) }}", NONE),
              "error: the chat template, line 1");
    CHECK_HAS(rendered_text("{{ 2 ** 64 }}", NONE), "more than 64 bits");
    CHECK_HAS(rendered_text("{{ 9223372036854775807 + 1 }}", NONE), "more than 64 bits");
    char *s = repeated("{\"messages\":[{\"x\":", "[", 101, "");
    char *json = repeated(s, "]", 101, "}]}");
    CHECK_HAS(rendered_text("{{ 1 }}", json), "nested lists and objects");
    free(s);
    free(json);
}

/* {"k0":0,"k1":1,…}: n keys. */
static json_t *many_keys(int n)
{
    json_t *o = json_object();
    char key[32];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "k%d", i);
        json_object_set_new(o, key, json_integer(i));
    }
    return o;
}

static int render_with(const char *text, json_t *user, int64_t max_steps, const struct work_limit *limit,
                       struct err *e)
{
    struct template *t = NULL;
    struct rendered r = { 0 };
    json_t *messages = json_array();
    struct template_request rq = {
        .messages = messages, .user = user, .max_steps = max_steps, .limit = limit
    };
    int rc = template_open(&t, text, strlen(text), "t", e);
    rc = rc < 0 ? rc : template_render(t, &rq, &r, e);
    rendered_free(&r);
    template_close(t);
    json_decref(messages);
    return rc;
}

TEST(eighty_thousand_variables_cost_steps_in_proportion)
{
    static const char text[] = "{{ k0 }}{{ k79999 }}{{ nothing }}{% set ns = namespace(d=all) %}"
                               "{% for k, v in all.items() %}{% if all[k] != v %}{{ raise_exception(k) }}"
                               "{% endif %}{% endfor %}{{ all.k79999 + all.get('k3') }}"
                               "{{ all.keys()|unique|list|length }}";
    struct err e = { 0 };
    json_t *user = many_keys(80000);
    json_object_set_new(user, "all", many_keys(80000));
    if (render_with(text, user, 4000000, NULL, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    CHECK_INT(render_with("{{ 1 }}", user, 20000, NULL, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "too many steps");
    json_decref(user);
}

TEST(work_on_long_strings_and_lists_counts_steps)
{
    static const char *const texts[] = {
        "{{ s|length }}",
        "{{ s == other }}",
        "{{ s in other }}",
        "{{ l == l2 }}",
        "{{ s.startswith(other) }}",
        "{{ s.rfind(other) }}",
        "{{ s.splitlines()|length }}",
        "{{ s|escape }}",
        "{{ l|sum }}",
        "{{ s.center(3) }}",
        "{{ s|truncate(9) }}",
        "{{ ''|indent(100000) }}",
        "{{ '%5s' % s }}",
    };
    char *long_text = repeated("", "a", 100000, "");
    json_t *user = json_object(), *l = json_array();
    for (int i = 0; i < 100000; i++)
        json_array_append_new(l, json_integer(i));
    json_object_set_new(user, "s", json_string(long_text));
    json_object_set_new(user, "other", json_string(long_text));
    json_object_set_new(user, "l", l);
    json_object_set_new(user, "l2", json_deep_copy(l));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err e = { 0 };
        char *text = repeated("{% for i in range(50000) %}", texts[i], 1, "{% endfor %}");
        CHECK_INT(render_with(text, user, 1000000, NULL, &e), -ERR_USAGE);
        CHECK_HAS(e.text, "too many steps");
        free(text);
    }
    json_decref(user);
    free(long_text);
}

TEST(a_rendering_ends_at_its_limit)
{
    static const char text[] = "{% for i in range(100000) %}{% for j in range(90) %}{% endfor %}{% endfor %}";
    _Atomic int state = 1;
    struct err e = { 0 };
    const struct work_limit late = { .end_s = clock_s() }, stops = { .state = &state, .stop_at = 2 };
    CHECK_INT(render_with(text, NULL, 0, &late, &e), -ERR_STOPPED);
    CHECK_INT(render_with("a", NULL, 0, &stops, &e), 0);
    state = 2;
    CHECK_INT(render_with(text, NULL, 0, &stops, &e), -ERR_STOPPED);
}

TEST(a_small_budget_refuses_and_a_clock_can_be_given)
{
    struct err e = { 0 };
    struct template *t = NULL;
    struct rendered r = { 0 };
    json_t *list = json_array();
    struct template_request rq = {
        .messages = list, .now = 86400 * 366, .max_bytes = 1 << 20, .max_steps = 1000
    };
    static const char text[] = "{{ strftime_now('%Y|%z%Z%f%%') }}{% for i in range(90) %}{{ i }}{% endfor %}";
    CHECK_INT(template_open(&t, text, sizeof text - 1, "t", &e), 0);
    CHECK_INT(template_render(t, &rq, &r, &e), 0);
    CHECK(!strncmp(r.text, "1971|000000%012", 15));
    rendered_free(&r);
    rq.max_steps = 100;
    CHECK_INT(template_render(t, &rq, &r, &e), -ERR_USAGE);
    rq.max_steps = 1000;
    rq.max_bytes = 4096;
    CHECK_INT(template_render(t, &rq, &r, &e), -ERR_USAGE);
    CHECK_HAS(e.text, "the values need more than");
    template_close(t);
    json_decref(list);
}

/* --- going on with the last message --- */

#define GO_ON(content) \
    "{\"messages\":[{\"role\":\"u\",\"content\":\"q\"},{\"role\":\"a\",\"content\":" content \
    "}],\"continue_final_message\":true}"

TEST(a_last_message_can_be_continued)
{
    static const char plain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
    static const char trims[] = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</>{% endfor %}";
    static const char parts[] =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}";
    CHECK_STR(spans_shown(plain, GO_ON("\"so \"")), "<[u]>[q]</><[a]>[so ]");
    CHECK_STR(spans_shown(trims, GO_ON("\" so \"")), "<[u]>[q]</><[a]>[so]");
    CHECK_STR(spans_shown("{% for m in messages %}{{ m.role }}{% endfor %}", GO_ON("\"so\"")),
              "error: the chat template, line 1: the template does not show the last message: it cannot be "
              "continued");
    CHECK_STR(rendered_text(plain, GO_ON("null")), "error: the last message has no text to go on with");
    CHECK_STR(spans_shown(parts, GO_ON("[{\"text\":\"a\"},{\"text\":\"b\"},{\"image\":1}]")), ";[a];[b]");
    CHECK_HAS(rendered_text(plain, "{\"messages\":[],\"continue_final_message\":true}"), "needs one");
}

/* --- folders --- */

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    struct err e = { 0 };
    snprintf(path, sizeof path, "%s/%s", dir, name);
    remove(path);
    if (io_write_file(path, text, strlen(text), &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
}

/* What the folder's template gives, "none", or "error: …" */
static const char *from_dir(const char *dir, const char *name, const char *json)
{
    struct err e = { 0 };
    struct template *t = NULL;
    struct rendered r = { 0 };
    int rc = template_open_dir(&t, dir, name, &e);
    free(shown);
    shown = NULL;
    if (rc == 1)
        rc = template_render_json(t, json, strlen(json), &r, &e);
    else if (rc == 0)
        shown = strdup("none");
    if (rc < 0 && asprintf(&shown, "error: %s", e.text) < 0)
        shown = NULL;
    if (!shown)
        shown = r.text, r.text = NULL;
    rendered_free(&r);
    template_close(t);
    return shown;
}

TEST(a_folder_gives_its_template_and_its_special_tokens)
{
    static const char with_tools[] = "{\"messages\":[],\"tools\":[{}]}";
    char dir[300], sub[400];
    snprintf(dir, sizeof dir, "%s/model", test_tmp_dir());
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    mkdir(dir, 0777);
    CHECK_STR(from_dir(dir, NULL, NONE), "none");
    put(dir, "tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<B>\"},\"eos_token\":\"<E>\",\"chat_template\":\"{{ bos_token }}1{{ "
        "eos_token }}{{ unk_token }}\"}");
    put(dir, "special_tokens_map.json", "{\"bos_token\":\"no\",\"unk_token\":\"<U>\"}");
    CHECK_STR(from_dir(dir, NULL, NONE), "<B>1<E><U>");
    CHECK_STR(from_dir(dir, NULL, "{\"messages\":[],\"bos_token\":\"x\"}"), "x1<E><U>");
    put(dir, "chat_template.jinja", "{{ bos_token }}2\n");
    CHECK_STR(from_dir(dir, NULL, NONE), "<B>2");
    mkdir(sub, 0777);
    put(sub, "rag.jinja", "3{{ bos_token }}");
    CHECK_STR(from_dir(dir, "rag", with_tools), "3<B>");
    CHECK_HAS(from_dir(dir, "../x", NONE), "not the name of a template");
    CHECK_HAS(from_dir(dir, "zz", NONE), "no template named zz");
    snprintf(sub, sizeof sub, "%s/chat_template.jinja", dir);
    remove(sub);
    put(dir, "tokenizer_config.json",
        "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"tool_use\",\"template\":"
        "\"T\"}]}");
    CHECK_STR(from_dir(dir, NULL, NONE), "D");
    CHECK_STR(from_dir(dir, NULL, with_tools), "T");
    CHECK_STR(from_dir(dir, "default", with_tools), "D");
    put(dir, "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"odd\",\"template\":\"D\"}]}");
    CHECK_HAS(from_dir(dir, NULL, NONE), "none of the templates is named default");
    put(dir, "tokenizer_config.json", "{\"chat_template\":5}");
    CHECK_HAS(from_dir(dir, NULL, NONE), "neither a text nor a list");
    put(dir, "tokenizer_config.json", "{\"chat_template\":\"{{\"}");
    CHECK_HAS(from_dir(dir, NULL, NONE), "is not closed");
}

/* --- mutations: whatever the text, an end, and valid UTF-8 with spans in order --- */

static void check_result(const struct rendered *r)
{
    size_t done = 0;
    uint32_t cp;
    for (size_t i = 0; i < r->n;) {
        int len = utf8_next(r->text + i, r->n - i, &cp);
        CHECK(len > 0);
        i += len > 0 ? (size_t)len : 1;
    }
    for (size_t i = 0; i < r->n_user; i++) {
        CHECK(r->user[i].begin < r->user[i].end && r->user[i].end <= r->n &&
              (i == 0 || r->user[i].begin > done));
        done = r->user[i].end;
    }
}

static uint64_t draw(uint64_t *at, uint64_t n) { return rnd_u64(7, 1, (*at)++) % n; }

TEST(mutated_templates_render_or_are_refused)
{
    enum { ROUNDS = 20000, PART = 24 };
    static const char joints[] = "{%}{{}}|.([)],:='\"-~+*/<>#\n 0eifor";
    const size_t n_cases = sizeof cases / sizeof *cases;
    uint64_t at = 0;
    int n_ok = 0;
    json_t *vars = json_loads(variables, 0, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        char text[1024];
        struct err e = { 0 };
        struct rendered r = { 0 };
        struct template *t = NULL;
        const char *first = cases[draw(&at, n_cases)].text, *second = cases[draw(&at, n_cases)].text;
        size_t n = (size_t)snprintf(text, sizeof text, "%s%s", first, second);
        n = n < sizeof text ? n : sizeof text - 1;
        for (uint64_t k = draw(&at, 4); k > 0 && n > 2; k--) {
            size_t i = draw(&at, n), len = draw(&at, PART) + 1;
            if (draw(&at, 3) == 0) { /* a byte */
                text[i] = joints[draw(&at, sizeof joints - 1)];
            } else if (draw(&at, 2)) { /* a part away */
                len = len < n - i ? len : n - i;
                memmove(text + i, text + i + len, n - i - len);
                n -= len;
            } else if (n + len < sizeof text && i + len <= n) {
                memmove(text + i + len, text + i, n - i); /* a part twice */
                n += len;
            }
        }
        struct template_request rq = { .messages = json_object_get(vars, "messages"),
                                       .user = json_object_get(vars, "extra"),
                                       .max_steps = 20000,
                                       .max_bytes = 4 << 20 };
        if (template_open(&t, text, n, "mutated", &e) == 0 && template_render(t, &rq, &r, &e) == 0) {
            check_result(&r);
            n_ok++;
        } else {
            CHECK(e.code == ERR_CONFIG || e.code == ERR_USAGE);
            CHECK(strlen(e.text) > 10 && !strchr(e.text, '\n'));
        }
        rendered_free(&r);
        template_close(t);
    }
    CHECK(n_ok > ROUNDS / 20);
    json_decref(vars);
    free(shown);
    shown = NULL;
}

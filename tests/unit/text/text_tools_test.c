/* text_tools_test.c - calls and reasoning in models' texts: every family's way to write them, at every cut;
 * the published templates; history through a template and back. TEMPLATES: a folder of published
 * templates. */
#include <dirent.h>
#include "base/clock.h"
#include "tests/test.h"
#include "text/template.h"
#include "text/tools.h"

static const char tools_json[] = "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                                 "\"parameters\":{\"type\":\"object\",\"properties\":{"
                                 "\"city\":{\"type\":\"string\"},\"zip\":{\"$ref\":\"#/$defs/"
                                 "zip\"},\"days\":{\"type\":\"integer\"},\"opts\":{\"type\":"
                                 "\"object\"},\"ok\":{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"null\"}]}"
                                 "},\"$defs\":{\"zip\":{\"type\":\"string\"}"
                                 "}}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}},{\"type\":"
                                 "\"function\",\"function\":{\"name\":\"f\"}}]";

struct sample {
    const char *family;
    int in_reasoning;
    const char *text, *want;
};
static const struct sample samples[] = {
#include "tests/unit/text/text_tools_cases.inc"
};

/* Marks of reasoning for a family, as a template with these words has them. */
static struct tool_form form_of(const char *family)
{
    static const char *const source[][2] = {
        { "seed_oss", "<seed:think> </seed:think>" },
        { "mistral_args", "[THINK] [/THINK]" },
        { "gemma4", "<|channel> <channel|>" },
        { "command_r7b", "<|START_THINKING|> <|END_THINKING|>" },
        { "apertus", "<|inner_prefix|> <|inner_suffix|>" },
        { "solar", "<|think|> <|tool_call:begin|>" },
        { "apriel", "[BEGIN FINAL RESPONSE] reasoning" },
        { "openai", "" },
    };
    const char *marks = "<think> </think>";
    for (size_t i = 0; i < sizeof source / sizeof *source; i++)
        marks = strcmp(source[i][0], family) ? marks : source[i][1];
    struct tool_form form = tools_detect(marks, strlen(marks));
    form.calls = tools_find(family);
    return form;
}

static void add_part(struct buf *b, const char *open, const struct buf *part, const char *close)
{
    buf_add(b, b->n ? " " : "", b->n ? 1 : 0);
    buf_add(b, open, strlen(open));
    buf_add(b, part->p, part->n);
    buf_add(b, close, strlen(close));
}

/* What a parser has read, as the results of the cases are written; malloc'd. spaced: arguments with the
 * spaces that Python writes. */
static char *say(const struct tool_text *t, int spaced)
{
    struct buf b = { 0 };
    if (t->reasoning.n)
        add_part(&b, "R(", &t->reasoning, ")");
    if (t->content.n)
        add_part(&b, "C(", &t->content, ")");
    for (size_t i = 0; i < t->n_calls; i++) {
        add_part(&b, "", &t->call[i].name, "(");
        json_t *j = spaced ? json_loadb(t->call[i].arguments.p, t->call[i].arguments.n, 0, NULL) : NULL;
        char *same = j ? json_dumps(j, 0) : NULL;
        if (same)
            buf_add(&b, same, strlen(same));
        else
            buf_add(&b, t->call[i].arguments.p, t->call[i].arguments.n);
        free(same);
        json_decref(j);
        buf_add(&b, ")", 1);
    }
    buf_add(&b, "", 1);
    return b.p;
}

/* cut: as in tool_parser_finish; 2: not, and arguments are spaced anew. Parses s[n], cut behind `first`
 * bytes, then every `each` bytes. */
static char *parse(const struct tool_parse *how, const char *s, size_t n, size_t first, size_t each, int cut)
{
    struct tool_parser *p;
    struct err e;
    size_t said = 0;

    CHECK_INT(tool_parser_open(&p, how, &e), 0);
    for (size_t at = 0, k = first; at < n || at == 0; at += k, k = each) {
        k = k < n - at ? k : n - at;
        char *piece = malloc(k + 1); /* of its own, so that a sanitizer sees what is read beyond it */
        memcpy(piece, s + at, k);
        CHECK_INT(tool_parser_feed(p, piece, k, &e), 0);
        free(piece);
        CHECK(tool_parser_text(p)->content.n >= said); /* what was said stays */
        said = tool_parser_text(p)->content.n;
        if (!n)
            break;
    }
    CHECK_INT(tool_parser_finish(p, cut == 1, &e), 0);
    char *out = say(tool_parser_text(p), cut == 2);
    tool_parser_close(p);
    return out;
}

static struct tool_set *open_tools(void)
{
    json_t *j = json_loads(tools_json, 0, NULL);
    struct tool_set *s = tool_set_open(j);
    json_decref(j);
    return s;
}

TEST(every_family_is_read_the_same_at_every_cut)
{
    struct tool_set *tools = open_tools();

    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *c = &samples[i];
        struct tool_parse how = { .form = form_of(c->family),
                                  .tools = tools,
                                  .in_reasoning = c->in_reasoning };
        size_t n = strlen(c->text);
        if (!how.form.calls)
            test_fail(__FILE__, __LINE__, "no family %s", c->family);
        for (size_t first = 1; first <= n; first++) {
            for (size_t each = 1; each <= n; each += n - 1 + (n == 1)) {
                char *got = parse(&how, c->text, n, first, each, 0);
                if (strcmp(got, c->want)) {
                    test_fail(__FILE__, __LINE__, "%s, cut at %zu: %s\ngives %s\nnot   %s", c->family, first,
                              c->text, got, c->want);
                    first = each = n;
                }
                free(got);
            }
        }
    }
    tool_set_close(tools);
}

TEST(a_text_that_ends_anywhere_is_read_the_same_in_one_piece_and_in_bytes)
{
    struct tool_set *tools = open_tools();

    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *c = &samples[i];
        struct tool_parse how = { .form = form_of(c->family),
                                  .tools = tools,
                                  .in_reasoning = c->in_reasoning };
        for (size_t n = 0; n <= strlen(c->text); n++) {
            for (int cut = 0; cut < 2; cut++) {
                char *whole = parse(&how, c->text, n, n, n + 1, cut),
                     *bytes = parse(&how, c->text, n, 1, 1, cut);
                if (strcmp(whole, bytes))
                    test_fail(__FILE__, __LINE__,
                              "%s: the first %zu bytes give %s in one piece and %s in bytes", c->family, n,
                              whole, bytes);
                free(whole);
                free(bytes);
            }
        }
    }
    tool_set_close(tools);
}

/* Marks in a content make a server refuse the conversation from then on. */
TEST(a_call_that_ends_early_leaves_no_mark_in_the_content)
{
    struct tool_set *tools = open_tools();
    struct tool_parse how = { .form = form_of("hermes"), .tools = tools };
    const char *text =
        "Hi <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

    for (size_t n = strlen("Hi <tool_call>"); n <= strlen(text); n++) {
        char *got = parse(&how, text, n, n, n, 1);
        CHECK(!strchr(got, '<') && !strncmp(got, "C(Hi", 4));
        free(got);
    }
    tool_set_close(tools);
}

TEST(later_calls_are_left_out_where_one_is_allowed)
{
    struct tool_set *tools = open_tools();
    struct tool_parse how = { .form = form_of("hermes"), .tools = tools, .max_calls = 1 };
    const char *text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"
                       "<tool_call>{\"name\": \"now\", \"arguments\": {\"b\": 1}}</tool_call>end";
    char *got = parse(&how, text, strlen(text), 1, 1, 0);
    CHECK_STR(got, "C(end) f({\"a\": 1})");
    free(got);
    tool_set_close(tools);
}

/* Text that a state holds is not read again with every piece. */
TEST(long_texts_take_time_in_proportion)
{
    static const char *const texts[][2] = { { "llama3_json", " " },
                                            { "lfm2", "<|tool_call_start|>[f(a=x" },
                                            { "hermes", "<tool_call>{\"arguments\": {\"a\": \"" },
                                            { "qwen3_coder", "<tool_call><function=f><parameter=a>1" } };
    size_t n = 200000;
    char *text = malloc(n);

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct tool_parse how = { .form = form_of(texts[i][0]) };
        memset(text, texts[i][1][strlen(texts[i][1]) - 1], n);
        memcpy(text, texts[i][1], strlen(texts[i][1]));
        double begin = clock_s();
        free(parse(&how, text, n, 1, 1, 0));
        CHECK(clock_s() - begin < 5); /* 0.1 s; quadratic: minutes */
    }
    free(text);
}

/* ---- the published templates ---- */

/* name, family, has reasoning: all files of the folder */
static const struct published {
    const char *file, *family;
    int reasons;
} published[] = {
    { "Apertus-8B-Instruct", "apertus", 1 },
    { "Apriel-1.6-15b-Thinker-fixed", "apriel", 1 },
    { "Bielik-11B-v3.0-Instruct", "hermes", 1 },
    { "ByteDance-Seed-OSS", "seed_oss", 1 },
    { "CohereForAI-c4ai-command-r-plus-tool_use", "command_r", 0 },
    { "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command_r7b", 1 },
    { "GLM-4.6", "glm45", 1 },
    { "GigaChat3-10B-A1.8B", "gigachat3", 0 },
    { "GigaChat3.1-10B-A1.8B", "gigachat31", 0 },
    { "HuggingFaceTB-SmolLM3-3B", NULL, 1 },
    { "Kimi-K2-Instruct", "kimi_k2", 0 },
    { "LFM2-8B-A1B", "lfm2", 0 },
    { "LFM2.5-Instruct", "lfm2", 1 },
    { "MiMo-VL", "hermes", 0 },
    { "NVIDIA-Nemotron-Nano-v2", "nemotron", 1 },
    { "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", 0 },
    { "Qwen-QwQ-32B", "hermes", 1 },
    { "Qwen-Qwen2.5-7B-Instruct", "hermes", 0 },
    { "Qwen-Qwen3-0.6B", "hermes", 1 },
    { "Qwen3-Coder", "qwen3_coder", 0 },
    { "StepFun3.5-Flash", "qwen3_coder", 1 },
    { "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek_v3", 1 },
    { "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3", 1 },
    { "fireworks-ai-llama-3-firefunction-v2", "firefunction", 0 },
    { "google-gemma-2-2b-it", NULL, 0 },
    { "google-gemma-4-31B-it", "gemma4", 1 },
    { "ibm-granite-granite-3.3-2B-Instruct", "granite", 1 },
    { "llama-cpp-deepseek-r1", "deepseek_v3", 1 },
    { "llama-cpp-rwkv-world", NULL, 1 },
    { "meetkai-functionary-medium-v3.1", "functionary_v31", 0 },
    { "meetkai-functionary-medium-v3.2", "functionary_v32", 0 },
    { "meta-llama-Llama-3.1-8B-Instruct", "llama3_json", 0 },
    { "meta-llama-Llama-3.2-3B-Instruct", "llama3_json", 0 },
    { "microsoft-Phi-3.5-mini-instruct", NULL, 0 },
    { "mistralai-Ministral-3-14B-Reasoning-2512", "mistral_args", 1 },
    { "mistralai-Mistral-Nemo-Instruct-2407", "mistral", 0 },
    { "moonshotai-Kimi-K2", "kimi_k2", 0 },
    { "openai-gpt-oss-120b", "openai", 0 },
    { "stepfun-ai-Step-3.5-Flash", "qwen3_coder", 1 },
    { "unsloth-Apriel-1.5", "apriel", 1 },
    { "unsloth-mistral-Devstral-Small-2507", "mistral_args", 0 },
    { "upstage-Solar-Open-100B", "solar", 1 },
};

/* Reads a template of $TEMPLATES; NULL: there is none. */
static char *read_template(const char *name, size_t *n)
{
    char path[4096], *text = malloc(1 << 20);
    snprintf(path, sizeof path, "%s/%s.jinja", getenv("TEMPLATES"), name);
    FILE *f = fopen(path, "r");
    *n = f ? fread(text, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    if (*n)
        return text;
    free(text);
    return NULL;
}

TEST(published_templates_are_of_their_families)
{
    if (!getenv("TEMPLATES")) {
        test_skip("TEMPLATES is not set: the published templates were not read");
        return;
    }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        const struct published *c = &published[i];
        size_t n;
        char *text = read_template(c->file, &n);
        if (!text)
            test_fail(__FILE__, __LINE__, "%s: no such file", c->file);
        struct tool_form form = tools_detect(text ? text : "", n);
        if (strcmp(tools_name(form.calls), c->family ? c->family : "none") || !form.reasoning != !c->reasons)
            test_fail(__FILE__, __LINE__, "%s: %s, reasoning %d", c->file, tools_name(form.calls),
                      !!form.reasoning);
        free(text);
    }

    struct dirent *d;
    DIR *dir = opendir(getenv("TEMPLATES"));
    size_t n = 0;
    while (dir && (d = readdir(dir)))
        n += !!strstr(d->d_name, ".jinja");
    closedir(dir);
    CHECK_INT(n, sizeof published / sizeof *published);
}

/* ---- history ---- */

/* Tools as published templates want them: all of them described. */
static json_t *described_tools(void)
{
    static const char *const params[][2] = { { "city", "string" },
                                             { "days", "integer" },
                                             { "ok", "boolean" },
                                             { "opts", "object" },
                                             { "zip", "string" } };
    json_t *properties = json_object();
    for (size_t i = 0; i < 5; i++)
        json_object_set_new(properties, params[i][0],
                            json_pack("{s:s, s:s, s:{s:s}}", "type", params[i][1], "description", "what",
                                      "additionalProperties", "type", "string"));
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:o, s:[s]}}}, {s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type",
                     "function", "function", "name", "get_weather", "description", "weather", "parameters",
                     "type", "object", "properties", properties, "required", "city", "type", "function",
                     "function", "name", "now", "description", "time", "parameters", "type", "object",
                     "properties");
}

/* A question and n calls, whose arguments are of every kind, as a client sends them. */
static json_t *conversation(int n)
{
    static const char arguments[] =
        "{\"city\": \"A \\\"b\\\" \u00e9\\n'c'\", \"days\": 3, \"ok\": true, \"opts\": "
        "{\"l\": [1, \"x\"]}, \"zip\": \"007\"}";
    json_t *calls = json_pack("[{s:s, s:s, s:{s:s, s:s}}]", "id", "call_1", "type", "function", "function",
                              "name", "get_weather", "arguments", arguments);
    if (n == 2)
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", "call_2", "type", "function",
                                               "function", "name", "now", "arguments", ""));
    return json_pack("[{s:s, s:s}, {s:s, s:n, s:o}]", "role", "user", "content", "Q", "role", "assistant",
                     "content", "tool_calls", calls);
}

static struct rendered render(const struct template *t, const json_t *messages, const json_t *tools, int add)
{
    json_t *trusted = json_pack("{s:s, s:s}", "bos_token", "<bos>", "eos_token", "<eos>"),
           *more = json_pack("{s:s, s:s, s:{}}", "functions", "[]", "datetime", "now", "controls");
    struct template_request r = { .messages = messages,
                                  .tools = tools,
                                  .trusted = trusted,
                                  .user = more,
                                  .add_generation_prompt = add,
                                  .now = 1700000000 };
    struct rendered out = { 0 };
    struct err e = { 0 };
    if (template_render(t, &r, &out, &e) < 0)
        test_fail(__FILE__, __LINE__, "%s", e.text);
    json_decref(trusted);
    json_decref(more);
    return out;
}

/* Where the model's turn ends. */
static size_t turn_end(const char *text)
{
    static const char *const ends[] = { "<|im_end|>",
                                        "<|eot_id|>",
                                        "<|eom_id|>",
                                        "<eos>",
                                        "<｜end▁of▁sentence｜>",
                                        "<|END_OF_TURN_TOKEN|>",
                                        "<|end_of_text|>",
                                        "<SPECIAL_12>",
                                        "<turn|>",
                                        "<|tool_response>",
                                        "\n<|end|>\n",
                                        "<seed:eos>",
                                        "<|assistant_end|>",
                                        "<|START_OF_TURN_TOKEN|>",
                                        "<|message_sep|>\n\nassistant" };
    size_t n = strlen(text);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *at = strstr(text, ends[i]);
        n = at && (size_t)(at - text) < n ? (size_t)(at - text) : n;
    }
    return n;
}

/* Where the model's text begins: both renderings are the same up to there. A mark that begins as the
 * prompt's own does is part of it. */
static size_t model_text(const struct rendered *all, const struct rendered *head)
{
    const char *turn = strstr(all->text, "<|CHATBOT_TOKEN|>\nAction");
    size_t n = 0;

    if (turn) /* this template puts an instruction before every turn of the model */
        return (size_t)(turn - all->text) + strlen("<|CHATBOT_TOKEN|>");
    while (n < head->n && n < all->n && head->text[n] == all->text[n])
        n++;
    for (size_t back = 1; back < 12 && back < n && all->text[n - back] != '>'; back++)
        if (all->text[n - back] == '<')
            return n - back;
    return n;
}

/* Renders a question with its calls. What stands behind the question's own rendering is what the model
 * wrote: the parser finds the calls in it that were rendered. */
static void round_trip(const struct published *c, int n_calls)
{
    static const char first[] =
        "get_weather({\"city\": \"A \\\"b\\\" \u00e9\\n'c'\", \"days\": 3, \"ok\": true, \"opts\": "
        "{\"l\": [1, \"x\"]}, \"zip\": \"007\"})";
    struct template *t;
    struct tool_habits h;
    struct err e = { 0 };
    size_t n;
    char *source = read_template(c->file, &n), want[1024];
    json_t *messages = conversation(n_calls), *tools = described_tools(), *question = json_array();
    struct tool_set *set = tool_set_open(tools);
    struct tool_form form = tools_detect(source, n);

    CHECK_INT(template_open(&t, source, n, c->file, &e), 0);
    json_array_append(question, json_array_get(messages, 0));
    tools_habits(t, NULL, &h);
    json_t *history = tools_history(&h, &form, messages, &e);
    struct rendered all = render(t, history, tools, 0), head = render(t, question, tools, 1);
    if (all.n && head.n) {
        size_t same = model_text(&all, &head);
        struct tool_parse how = { .form = form, .tools = set };
        how.in_reasoning = tools_opens_reasoning(&form, all.text, same, 0);
        const char *text = all.text + same;
        char *got = parse(&how, text, turn_end(text), 7, 3, 2);
        snprintf(want, sizeof want, "%s%s", first,
                 n_calls == 2 && (!h.one_call || strstr(text, "<|channel|>")) ? " now({})" : "");
        if (strcmp(got, want))
            test_fail(__FILE__, __LINE__,
                      "%s (calls %d, object %d, null %d, one %d, short %d, reasoning %s): %s\ngives %s",
                      c->file, h.shows_calls, h.arguments_object, h.null_content, h.one_call, h.short_ids,
                      h.reasoning ? h.reasoning : "none", text, got);
        free(got);
    }

    rendered_free(&all);
    rendered_free(&head);
    json_decref(history);
    json_decref(question);
    json_decref(messages);
    json_decref(tools);
    tool_set_close(set);
    template_close(t);
    free(source);
}

TEST(history_through_published_templates_is_read_back)
{
    if (!getenv("TEMPLATES")) {
        test_skip("TEMPLATES is not set: the published templates were not read");
        return;
    }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].family)
            for (int n = 1; n <= 2; n++)
                round_trip(&published[i], n);
}

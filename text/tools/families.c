/* families.c - how families of models write calls and reasoning: two tables, and finding a row. See parse.h.
 *
 * Sources: the chat templates that the models are published with, and their model cards. Names are those of
 * vLLM's --tool-call-parser where it has the family. A row whose strings include those of another one stands
 * before it. */
#include "text/tools/parse.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
const struct tool_family tool_families[] = {
    { "openai", { "<|channel|>", "<|message|>" }, NULL, FORM_CHANNELS, 0, { NULL },
      .drop = { "<|constrain|>", "<|start|>", "<|end|>", "<|channel|>" },
      .param = { "<|message|>", "<|call|>", "<|return|>" },
      .stop = { "<|call|>", "<|return|>" } },
    { "solar", { "<|tool_call:begin|>" }, NULL, FORM_NAMED, CALL_ID, { "<|tool_calls|>" },
      .begin = "<|tool_call:begin|>", .id_end = "<|tool_call:name|>", .name_end = "<|tool_call:args|>",
      .end = "<|tool_call:end|>", .close = "<|calls|>", .stop = { "<|calls|>" } },
    { "kimi_k2", { "<|tool_calls_section_begin|>" }, NULL, FORM_NAMED, CALL_COUNTED,
      { "<|tool_calls_section_begin|>", "<|tool_call_begin|>" }, .begin = "<|tool_call_begin|>",
      .name_end = "<|tool_call_argument_begin|>", .end = "<|tool_call_end|>",
      .close = "<|tool_calls_section_end|>" },
    { "deepseek_v32", { "｜DSML｜" }, NULL, FORM_PARAMS, CALL_TYPED, { "<｜DSML｜function_calls>" },
      .begin = "<｜DSML｜invoke name=\"", .name_end = "\">",
      .param = { "<｜DSML｜parameter name=\"", ">", NULL, "</｜DSML｜parameter>" },
      .end = "</｜DSML｜invoke>", .close = "</｜DSML｜function_calls>" },
    { "deepseek_v3", { "<｜tool▁calls▁begin｜>", "```json" }, NULL, FORM_NAMED, 0,
      { "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" },
      .begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", .name_end = "\n", .fence = "```json",
      .end = "<｜tool▁call▁end｜>", .close = "<｜tool▁calls▁end｜>" },
    { "deepseek_v31", { "<｜tool▁calls▁begin｜>" }, NULL, FORM_NAMED, 0,
      { "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>" }, .begin = "<｜tool▁call▁begin｜>",
      .name_end = "<｜tool▁sep｜>", .end = "<｜tool▁call▁end｜>", .close = "<｜tool▁calls▁end｜>" },
    { "minimax_m2", { "<minimax:tool_call>" }, NULL, FORM_PARAMS, 0, { "<minimax:tool_call>" },
      .begin = "<invoke name=\"", .name_end = "\">",
      .param = { "<parameter name=\"", "\">", NULL, "</parameter>" }, .end = "</invoke>",
      .close = "</minimax:tool_call>" },
    { "seed_oss", { "<seed:tool_call>" }, NULL, FORM_PARAMS, 0, { "<seed:tool_call>" },
      .begin = "<function=", .name_end = ">", .param = { "<parameter=", ">", NULL, "</parameter>" },
      .end = "</function>", .close = "</seed:tool_call>" },
    { "glm45", { "<arg_key>", "<tool_call>" }, NULL, FORM_PARAMS, 0, { "<tool_call>" },
      .param = { "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>" }, .close = "</tool_call>",
      .stop = { "<|observation|>", "<|user|>" } },
    { "qwen3_coder", { "<function=", "<parameter=", "<tool_call>" }, NULL, FORM_PARAMS, CALL_LINES,
      { "<tool_call>", "<function=" }, .begin = "<function=", .name_end = ">",
      .param = { "<parameter=", ">", NULL, "</parameter>" }, .end = "</function>", .close = "</tool_call>" },
    { "functionary_v31", { "<function=", "</function>", "<|start_header_id|>" }, NULL, FORM_NAMED, 0,
      { "<function=" }, .name_end = ">", .close = "</function>", .stop = { "<|eom_id|>" } },
    { "functionary_v32", { ">>>all" }, NULL, FORM_NAMED, CALL_TALK, { ">>>" }, .name_end = "\n" },
    { "firefunction", { "functools[" }, NULL, FORM_JSON, CALL_LIST, { "functools" }, .begin = NULL },
    { "command_r7b", { "<|START_ACTION|>" }, NULL, FORM_JSON, CALL_LIST, { "<|START_ACTION|>" },
      .close = "<|END_ACTION|>", .keys = { "tool_name", "parameters" } },
    { "command_r", { "Action:", "```json", "\"tool_name\"" }, NULL, FORM_JSON, CALL_LIST,
      { "Action:\n```json\n", "Action: ```json\n" }, .close = "```", .keys = { "tool_name", "parameters" } },
    { "gigachat31", { "<|function_call|>", "<|role_sep|>" }, NULL, FORM_JSON, 0, { "<|function_call|>" },
      .drop = { "<|message_sep|>" } },
    { "gigachat3", { "function call", "<|role_sep|>" }, NULL, FORM_JSON, 0,
      { "<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n" },
      .drop = { "<|message_sep|>" } },
    { "apertus", { "<|tools_prefix|>" }, NULL, FORM_JSON, CALL_LIST | CALL_KEYED, { "<|tools_prefix|>" },
      .close = "<|tools_suffix|>" },
    { "lfm2", { "<|tool_list_start|>" }, "List of tools: [", FORM_PYTHON, CALL_LIST,
      { "<|tool_call_start|>" },
      .close = "<|tool_call_end|>" },
    { "olmo3", { "<function_calls>" }, NULL, FORM_PYTHON, CALL_LINES, { "<function_calls>" },
      .close = "</function_calls>" },
    { "gemma4", { "<|tool_call>call:" }, NULL, FORM_GEMMA, 0, { "<|tool_call>" }, .begin = "call:",
      .close = "<tool_call|>", .param = { "<|\"|>" }, .stop = { "<|tool_response>" } },
    { "nemotron", { "<TOOLCALL>" }, NULL, FORM_JSON, CALL_LIST, { "<TOOLCALL>" }, .close = "</TOOLCALL>" },
    { "apriel", { "<tool_calls>" }, NULL, FORM_JSON, CALL_LIST, { "<tool_calls>" },
      .close = "</tool_calls>" },
    { "longcat", { "<longcat_tool_call>" }, NULL, FORM_JSON, CALL_LINES, { "<longcat_tool_call>" },
      .close = "</longcat_tool_call>" },
    { "internlm", { "<|plugin|>" }, NULL, FORM_JSON, 0, { "<|action_start|><|plugin|>" },
      .close = "<|action_end|>", .keys = { "name", "parameters" } },
    { "phi4_mini_json", { "<|tool|>", "<|/tool|>" }, NULL, FORM_JSON, CALL_LIST, { "<|tool_call|>" },
      .close = "<|/tool_call|>" },
    { "granite", { "<|tool_call|>" }, NULL, FORM_JSON, CALL_LIST, { "<|tool_call|>" }, .begin = NULL },
    { "mistral_args", { "[TOOL_CALLS]", "[ARGS]" }, NULL, FORM_NAMED, 0, { "[TOOL_CALLS]" },
      .name_end = "[ARGS]", .id_end = "[CALL_ID]", .keys = { "name", "arguments" } },
    { "mistral", { "[TOOL_CALLS]" }, NULL, FORM_JSON, CALL_LIST, { "[TOOL_CALLS]" }, .begin = NULL },
    { "hermes", { "<tool_call>" }, NULL, FORM_JSON, CALL_LINES, { "<tool_call>" }, .close = "</tool_call>" },
    { "pythonic", { "<|python_start|>" }, NULL, FORM_PYTHON, CALL_LIST | CALL_BARE, { "<|python_start|>" },
      .close = "<|python_end|>" },
    { "llama3_json", { "\"parameters\": ", "<|start_header_id|>" }, "<|python_tag|>", FORM_JSON, CALL_BARE,
      { "<|python_tag|>" }, .keys = { "name", "parameters" }, .stop = { "<|eom_id|>", "<|eot_id|>" } },
    { .name = NULL }
};

const struct reasoning_marks reasoning_table[] = {
    { { "<|channel>", "<channel|>" }, { "<|channel>thought" }, "<channel|>", 1, { NULL } },
    { { "<seed:think>", "</seed:think>" }, { "<seed:think>" }, "</seed:think>", 0, { NULL } },
    { { "<|START_THINKING|>", "<|END_THINKING|>" }, { "<|START_THINKING|>" }, "<|END_THINKING|>", 1,
      { "<|START_RESPONSE|>", "<|END_RESPONSE|>" } },
    { { "<|inner_prefix|>", "<|inner_suffix|>" }, { "<|inner_prefix|>" }, "<|inner_suffix|>", 1, { NULL } },
    { { "[THINK]", "[/THINK]" }, { "[THINK]" }, "[/THINK]", 1, { NULL } },
    { { "<|think|>", "<|tool_call:begin|>" }, { "<|think|>" }, "<|end|>", 1,
      { "<|begin|>assistant", "<|content|>", "<|end|>" } },
    { { "[BEGIN FINAL RESPONSE]", "reasoning" }, { "Here are my reasoning steps:" },
      "[BEGIN FINAL RESPONSE]", 0, { "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]" } },
    { { "</think>", "<response>" }, { "<think>" }, "</think>", 0, { "<response>", "</response>" } },
    { { "</think>", "</think>" }, { "<think>" }, "</think>", 0, { NULL } },
    { { "<think>", "<think>" }, { "<think>" }, "</think>", 0, { NULL } },
    { .end = NULL }
};
/* clang-format on */

/* ---- finding a row ---- */

static int has(const char *source, size_t n, const char *text)
{
    size_t len = strlen(text);
    for (const char *at = source; (size_t)(source + n - at) >= len; at++) {
        at = memchr(at, *text, (size_t)(source + n - at) - len + 1);
        if (!at)
            return 0;
        if (!memcmp(at, text, len))
            return 1;
    }
    return 0;
}

static int is_family(const struct tool_family *f, const char *source, size_t n)
{
    int all = 1;
    for (int i = 0; i < MARKS && f->detect[i]; i++)
        all &= has(source, n, f->detect[i]);
    return all || (f->detect_too && has(source, n, f->detect_too));
}

struct tool_form tools_detect(const char *source, size_t n)
{
    struct tool_form form = { 0 };

    for (const struct tool_family *f = tool_families; f->name && !form.calls; f++)
        form.calls = is_family(f, source, n) ? f : NULL;
    for (const struct reasoning_marks *r = reasoning_table; r->end && !form.reasoning; r++)
        form.reasoning = has(source, n, r->detect[0]) && has(source, n, r->detect[1]) ? r : NULL;
    return form;
}

const struct tool_family *tools_find(const char *name)
{
    for (const struct tool_family *f = tool_families; f->name; f++)
        if (!strcmp(f->name, name))
            return f;
    return NULL;
}

const char *tools_name(const struct tool_family *f) { return f ? f->name : "none"; }

void tools_names(char *out, size_t n)
{
    size_t at = 0;
    for (const struct tool_family *f = tool_families; f->name && at < n; f++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", at ? ", " : "", f->name);
}

const char *tools_stop(const struct tool_family *f, int i) { return f && i < MARKS ? f->stop[i] : NULL; }

int tools_always(const struct tool_form *form)
{
    return form->calls && (form->calls->form == FORM_CHANNELS || form->calls->flags & CALL_TALK);
}

/* ---- tokens and prompts ---- */

static int overlaps(const char *mark, const char *token, size_t n)
{
    return mark && n && (has(mark, strlen(mark), token) || has(token, n, mark));
}

int tools_reads_token(const struct tool_form *form, const char *token, size_t n)
{
    const struct tool_family *f = form->calls;
    const struct reasoning_marks *r = form->reasoning;
    int found = 0;

    for (int i = 0; f && i < MARKS; i++)
        found |= overlaps(f->open[i], token, n) || overlaps(f->drop[i], token, n) ||
                 overlaps(f->param[i], token, n);
    if (f)
        found |= overlaps(f->begin, token, n) || overlaps(f->name_end, token, n) ||
                 overlaps(f->end, token, n) || overlaps(f->close, token, n) || overlaps(f->id_end, token, n);
    for (int i = 0; r && i < MARKS; i++)
        found |= overlaps(r->drop[i], token, n) || (i < 2 && overlaps(r->begin[i], token, n));
    return found || (r && overlaps(r->end, token, n));
}

/* Where the last `mark` of the text ends; 0: it has none. */
static size_t last_end(const char *s, size_t n, const char *mark)
{
    size_t len = strlen(mark);
    for (size_t i = n; i >= len; i--)
        if (!memcmp(s + i - len, mark, len))
            return i;
    return 0;
}

int tools_opens_reasoning(const struct tool_form *form, const char *prompt, size_t n, int continued)
{
    const struct reasoning_marks *r = form->reasoning;
    size_t open = 0;

    for (int i = 0; r && i < 2 && r->begin[i]; i++) {
        size_t at = last_end(prompt, n, r->begin[i]);
        open = at > open ? at : open;
    }
    if (!open || last_end(prompt, n, r->end) > open)
        return 0;
    for (size_t i = open; i < n && !continued; i++)
        if (!strchr(" \t\r\n", prompt[i]))
            return 0;
    return 1;
}

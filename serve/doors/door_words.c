/* door_words.c - see door_words.h. */
#include "serve/doors/door_words.h"

#include <stdio.h>
#include <string.h>

static const struct {
    enum endpoint endpoint;
    const char *chat, *own;
} params[] = { { ENDPOINT_RESPONSES, "messages", "input" },
               { ENDPOINT_RESPONSES, "response_format", "text.format" },
               { ENDPOINT_RESPONSES, "reasoning_effort", "reasoning.effort" },
               { ENDPOINT_RESPONSES, "verbosity", "text.verbosity" },
               { ENDPOINT_MESSAGES, "response_format", "output_config.format" },
               { ENDPOINT_MESSAGES, "reasoning_effort", "output_config.effort" } };

/* Parts of messages; the longer ones first. */
static const struct {
    enum endpoint endpoint;
    const char *chat, *own;
} parts[] = { { ENDPOINT_RESPONSES, "response_format.json_schema", "text.format" },
              { ENDPOINT_RESPONSES, "response_format", "text.format" },
              { ENDPOINT_RESPONSES, "].function.", "]." },
              { ENDPOINT_RESPONSES, "messages must be a list of", "input must have" },
              { ENDPOINT_RESPONSES, "messages[", "input's messages[" },
              { ENDPOINT_MESSAGES, "response_format.json_schema", "output_config.format" },
              { ENDPOINT_MESSAGES, "response_format", "output_config.format" },
              { ENDPOINT_MESSAGES, "].function.parameters", "].input_schema" },
              { ENDPOINT_MESSAGES, "].function.", "]." } };

/* Puts `own` in the place of `chat`, wherever the text has it. */
static void replace(char *text, size_t size, const char *chat, const char *own)
{
    char rest[sizeof((struct fault *)0)->text];

    for (char *at = strstr(text, chat); at; at = strstr(at + strlen(own), chat)) {
        size_t before = (size_t)(at - text);
        snprintf(rest, sizeof rest, "%s", at + strlen(chat));
        snprintf(at, size - before, "%s%s", own, rest);
        if (before + strlen(own) >= size)
            break;
    }
}

void door_own_words(enum endpoint endpoint, struct fault *f)
{
    if (endpoint == ENDPOINT_COUNT)
        endpoint = ENDPOINT_MESSAGES;
    for (size_t i = 0; i < sizeof params / sizeof *params; i++)
        if (params[i].endpoint == endpoint && !strcmp(f->param, params[i].chat)) {
            snprintf(f->param, sizeof f->param, "%s", params[i].own);
            break;
        }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].endpoint == endpoint)
            replace(f->text, sizeof f->text, parts[i].chat, parts[i].own);
}

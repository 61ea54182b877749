/* answer.h - private to serve/api: what the answers of completions (answer.c), chats (answer_chat.c) and
 * /inference/v1/generate (answer_generate.c) share. */
#ifndef SHARDLINE_SERVE_API_ANSWER_H
#define SHARDLINE_SERVE_API_ANSWER_H

#include "serve/api/openai.h"

/* Tokens in place i of a choice: id is the one that is there, or an alternative to it. The token with which
 * the text begins has the text that it has there. answer_token: its *n bytes, borrowed from the tokenizer;
 * NULL: it has none. answer_write_token: appends it as JSON: its text, or token_id:N where that was asked for
 * or there is no text. answer_token_length: code points of ids[i] in the text; 0: it is not in the text.
 * answer_same_key: are two ids the same key of a JSON object? Different ids may have the same text. */
const char *answer_token(const struct choice *c, int64_t i, int32_t id, size_t *n);
void answer_write_token(struct json_out *o, const struct choice *c, int64_t i, int32_t id);
int64_t answer_token_length(const struct choice *c, int64_t i);
int answer_same_key(const struct choice *c, int64_t i, int32_t a, int32_t b);
/* Top entries that an answer shows of place i. */
int answer_tops(const struct choice *c, int64_t i);
/* Appends a list of n ids. */
void answer_write_ids(struct json_out *o, const int32_t *ids, int64_t n);
/* Append ,"prompt_logprobs":[…] with an entry for each token of the prompt, null for the first; and
 * ,"prompt_token_ids":[…]; each only where the request asks for it. */
void answer_write_prompt_logprobs(struct json_out *o, const struct choice *c);
void answer_write_prompt_ids(struct json_out *o, const struct choice *c);
/* Append ,"system_fingerprint":…,"weight_version":N; and ,"token_versions":[…] with the version of the
 * weights that made each generated token from ids[first] on. */
void answer_write_weights(struct json_out *o, const struct request *rq);
void answer_write_versions(struct json_out *o, const struct choice *c, int64_t first);
/* Appends ,"finish_reason":…,"stop_reason":… */
void answer_write_finish(struct json_out *o, const struct choice *c);

/* Chats: append a whole choice; the first event of a choice in a stream; what is new in a stream, that is
 * text and the tokens from c->sent_ids on. */
void chat_write_choice(struct json_out *o, const struct choice *c, const struct json_out *text);
void chat_write_role(struct json_out *o, const struct choice *c);
void chat_write_delta(struct json_out *o, struct choice *c, const struct json_out *text);
/* Appends the log-probs of tokens [first, last), as chats have them, separated by commas; and ,"logprobs":…
 * with those of the tokens from number first on. */
void answer_write_token_logprobs(struct json_out *o, const struct choice *c, int64_t first, int64_t last);
void chat_write_logprobs(struct json_out *o, const struct choice *c, int64_t first);

/* Answers of token ids: append the beginning of an answer or event; a choice with its tokens from number
 * first on; what a whole answer has behind its usage. */
void generate_write_head(struct json_out *o, const struct request *rq);
void generate_write_choice(struct json_out *o, const struct choice *c, int64_t first);
void generate_write_tail(struct json_out *o, const struct request *rq);

#endif

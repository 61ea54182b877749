/* front.c - see front.h. */
#include "serve/api/front.h"

#include "serve/doors/embeddings.h"
#include "serve/doors/messages.h"
#include "serve/doors/response_store.h"
#include "serve/doors/responses.h"

static void openai_error_of(struct json_out *o, struct request *rq, const struct fault *f)
{
    openai_stream_error(o, rq, f);
}

struct front {
    void (*answer)(struct json_out *o, const struct request *rq);
    void (*event)(struct json_out *o, struct choice *c, size_t text_end);
    void (*end)(struct json_out *o, struct request *rq);
    void (*stream_error)(struct json_out *o, struct request *rq, const struct fault *f);
    void (*error)(struct json_out *o, const struct fault *f);
};
#define OPENAI \
    { \
        openai_answer, openai_event, openai_end, openai_error_of, openai_error \
    }
#define ANTHROPIC \
    { \
        messages_answer, messages_event, messages_end, messages_stream_error, messages_error \
    }
static const struct front fronts[ENDPOINTS] = {
    [ENDPOINT_COMPLETION] = OPENAI,
    [ENDPOINT_CHAT] = OPENAI,
    [ENDPOINT_GENERATE] = OPENAI,
    [ENDPOINT_RESPONSES] = { responses_answer, responses_event, responses_end, responses_stream_error,
                             openai_error },
    [ENDPOINT_MESSAGES] = ANTHROPIC,
    [ENDPOINT_COUNT] = ANTHROPIC,
    [ENDPOINT_EMBEDDINGS] = { embeddings_answer, NULL, NULL, openai_error_of, openai_error },
};

void front_answer(struct json_out *o, const struct request *rq) { fronts[rq->endpoint].answer(o, rq); }
void front_end(struct json_out *o, struct request *rq) { fronts[rq->endpoint].end(o, rq); }
void front_event(struct json_out *o, struct choice *c, size_t text_end)
{
    fronts[c->rq->endpoint].event(o, c, text_end);
}
void front_stream_error(struct json_out *o, struct request *rq, const struct fault *f)
{
    fronts[rq->endpoint].stream_error(o, rq, f);
}
void front_error(struct json_out *o, enum endpoint endpoint, const struct fault *f)
{
    fronts[endpoint].error(o, f);
}

void front_keep(struct request *rq)
{
    if (!rq->store || rq->kept || rq->fault.status)
        return;
    rq->kept = 1;
    if (!rq->answer.n)
        front_answer(&rq->answer, rq);
    if (!rq->answer.failed)
        response_store_put(rq->sv->responses, rq->key, rq->id, &rq->answer, rq->history);
}

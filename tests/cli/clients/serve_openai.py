"""serve_openai.py MODEL TMP - the openai package's own view of the server: answers, streams, refusals,
retries, answers and calls as classes."""
import json
import shutil
import sys
from typing import Literal
import openai
import pydantic
from openai.types.responses import Response, ResponseStreamEvent
from serve_server import Server, claim, finish, together

s = Server(sys.argv[1], "--tp", 2)
c = openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="any", timeout=60)
GREEDY = dict(model="m", temperature=0, max_tokens=12, extra_body={"ignore_eos": True})
claim("the model is listed", [m.id for m in c.models.list()] == ["m"] and c.models.retrieve("m").id == "m")
whole = c.completions.create(prompt="line 1", logprobs=2, **GREEDY)
pieces = list(c.completions.create(prompt="line 1", stream=True, stream_options={"include_usage": True},
                                   **GREEDY))
claim("a completion", whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length"
      and len(whole.choices[0].logprobs.token_logprobs) == 12, whole)
claim("its stream joins to it",
      "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
      and pieces[-1].usage.completion_tokens == 12)
several = c.completions.create(prompt=["line 1", "line 2"], n=2, seed=3, **dict(GREEDY, temperature=1))
claim("two answers to each of two prompts", [x.index for x in several.choices] == [0, 1, 2, 3]
      and len({x.text for x in several.choices}) > 1)
HI = dict(GREEDY, messages=[{"role": "user", "content": "line 1"}])
chat = c.chat.completions.create(logprobs=True, top_logprobs=2, **HI)
claim("a chat", chat.choices[0].message.role == "assistant" and len(chat.choices[0].logprobs.content) == 12
      and len(chat.choices[0].logprobs.content[0].top_logprobs) == 2, chat)
deltas = list(c.chat.completions.create(stream=True, **HI))
claim("its stream joins to it",
      "".join(d.choices[0].delta.content or "" for d in deltas) == chat.choices[0].message.content)
ASK = dict(model="m", temperature=0, max_output_tokens=12, input="line 1", extra_body={"ignore_eos": True})
r = c.responses.create(include=["message.output_text.logprobs"], top_logprobs=2, **ASK)
part = r.output[0].content[0]
claim("a response has the chat's text and log-probs", r.output_text == chat.choices[0].message.content
      and [x.logprob for x in part.logprobs] == [x.logprob for x in chat.choices[0].logprobs.content]
      and r.status == "incomplete" and r.usage.output_tokens == 12, r)
with c.responses.stream(**ASK) as events:
    told = list(events)
kinds, final = [e.type for e in told], told[-1].response
claim("its stream joins to it", final.output_text == r.output_text and kinds[0] == "response.created"
      and kinds[-1] == "response.incomplete", kinds)


def valid(kind, x):
    try:
        return pydantic.TypeAdapter(kind).validate_python(x) and ""
    except pydantic.ValidationError as e:
        return str(e)


BODY = dict({k: v for k, v in ASK.items() if k != "extra_body"}, ignore_eos=True,
            tools=[{"type": "function", "name": "f",
            "parameters": {}}], tool_choice="none", include=["message.output_text.logprobs"], top_logprobs=1)
raw = json.loads(s.request("POST", "/v1/responses", BODY)[1])
claim("a response is what the package's types say", not valid(Response, raw), valid(Response, raw))
lines = s.request("POST", "/v1/responses", dict(BODY, stream=True))[1].decode().split("\n")
wrong = [w for w in (valid(ResponseStreamEvent,
                           json.loads(x[6:])) for x in lines if x.startswith("data: ")) if w]
claim("and so are its events", len(lines) > 20 and not wrong, wrong[:1])
e = c.embeddings.create(model="m", input=["line 1", "line 2"], dimensions=8)
one = c.embeddings.create(model="m", input="line 2", dimensions=8, encoding_format="float")
claim("embeddings come as the package asks", len(e.data) == 2 and len(e.data[0].embedding) == 8
      and all(abs(a - b) < 1e-7 for a, b in zip(e.data[1].embedding, one.data[0].embedding)), e)
claim("it is kept", c.responses.retrieve(r.id).output_text == r.output_text)
claim("and gone on with",
      c.responses.create(previous_response_id=r.id, **ASK).usage.input_tokens > r.usage.input_tokens)
c.responses.delete(r.id)
with c.chat.completions.create(stream=True, **dict(HI, max_tokens=400)) as left:
    next(iter(left))
claim("a stream may be left", True)


def refused(kind, what, ask):
    try:
        ask()
        claim(f"{what} is refused", False)
    except kind as e:
        claim(f"{what} is refused with a body of OpenAI's form", isinstance(e.body, dict)
              and e.body.get("message") and e.body.get("type"), e.body)
    except openai.OpenAIError as e:
        claim(f"{what}: {kind.__name__}", False, repr(e))


refused(openai.BadRequestError, "a wrong temperature",
        lambda: c.completions.create(prompt="a", **dict(GREEDY, temperature=-1)))
refused(openai.NotFoundError, "another model",
        lambda: c.completions.create(prompt="a", **dict(GREEDY, model="other")))
refused(openai.BadRequestError, "an unknown field",
        lambda: c.completions.create(prompt="a", **dict(GREEDY, extra_body={"no_such": 1})))
refused(openai.NotFoundError, "a response that is gone", lambda: c.responses.retrieve(r.id))
refused(openai.NotFoundError, "going on behind it",
        lambda: c.responses.create(previous_response_id=r.id, **ASK))
refused(openai.BadRequestError, "a hosted tool",
        lambda: c.responses.create(tools=[{"type": "web_search"}], **ASK))
refused(openai.BadRequestError, "a prompt that is too long",
        lambda: c.completions.create(prompt=[5] * 100000, **GREEDY))
rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))

# keys, and a full server, where the package tries again
with open(f"{sys.argv[2]}/keys", "w") as f:
    f.write("right-key\n")
s = Server(sys.argv[1], "--api-key-file", f"{sys.argv[2]}/keys", "--max-requests-per-key", 1)
base = f"http://{s.host}:{s.port}/v1"
wrong, patient = openai.OpenAI(base_url=base, api_key="wrong"), openai.OpenAI(base_url=base,
    api_key="right-key", max_retries=30, timeout=120)
refused(openai.AuthenticationError, "a wrong key", lambda: wrong.completions.create(prompt="a", **GREEDY))
slow = dict(GREEDY, max_tokens=200)
hasty = patient.with_options(max_retries=0)


def ask(client):
    def one():
        try:
            return len(client.completions.create(prompt="a", **slow).choices)
        except openai.RateLimitError:
            return "429"
    return one


claim("a key that asks too much is told", "429" in together([ask(hasty)] * 6))
claim("the package asks again until it is answered", together([ask(patient)] * 3) == [1, 1, 1])
s.stop()

# Answers and calls as classes: what the model does not know the grammar does.
tools_model = f"{sys.argv[2]}/o.model"
shutil.copytree(sys.argv[1], tools_model)
with open(f"{tools_model}/generation_config.json", "w") as f:
    json.dump({"eos_token_id": 0}, f)
with open(f"{tools_model}/chat_template.jinja", "a") as f:
    f.write("{# <tool_call> #}")


class Answer(pydantic.BaseModel):
    color: Literal["red", "green"]
    n: int = pydantic.Field(ge=10, le=99)
    words: list[Literal["a", "b"]] = pydantic.Field(max_length=3)


class get_weather(pydantic.BaseModel):
    city: Literal["Bonn", "K\u00f6ln"]
    days: int = pydantic.Field(ge=1, le=14)


class now(pydantic.BaseModel):
    pass


s = Server(tools_model)
c = openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="any", timeout=60)
ASK = dict(model="m", input="line 1", max_output_tokens=400, extra_body={"seed": 5})
for seed in range(3):
    p = c.responses.parse(text_format=Answer, **dict(ASK, extra_body={"seed": seed}))
    claim("an answer is parsed as its class", isinstance(p.output_parsed, Answer) and p.status == "completed",
          p)
with c.responses.stream(text_format=Answer, **ASK) as events:
    kinds = [e.type for e in events]
    final = events.get_final_response()
claim("and in a stream", isinstance(final.output_parsed, Answer) and "response.output_text.delta" in kinds,
      kinds)
anything = c.responses.create(text={"format": {"type": "json_object"}}, **dict(ASK, max_output_tokens=30))
claim("any object begins as one", anything.output_text.lstrip()[:1] == "{", anything)
TOOLS = [openai.pydantic_function_tool(get_weather), openai.pydantic_function_tool(now)]
ONE = dict(ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
called = c.responses.parse(**ONE)
calls = [x for x in called.output if x.type == "function_call"]
claim("a call is parsed as its class",
      calls and all(isinstance(x.parsed_arguments, (get_weather, now)) for x in calls)
      and called.output_text == "", called)
with c.responses.stream(**ONE) as events:
    told = list(events)
    final = events.get_final_response()
done = [e for e in told if e.type == "response.function_call_arguments.done"]
pieces = [e.delta for e in told if e.type == "response.function_call_arguments.delta"]
claim("and in a stream",
      [(x.name, x.arguments) for x in final.output] == [(x.name, x.arguments) for x in calls]
      and [e.arguments for e in done] == [x.arguments for x in calls] and "".join(pieces) == "".join(e.arguments for e in done),
      told)
FLAT = [{"type": "function", "name": "get_weather", "strict": True,
         "parameters": TOOLS[0]["function"]["parameters"]},
        {"type": "function", "name": "now", "strict": True, "parameters": TOOLS[1]["function"]["parameters"]}]
named = c.responses.create(tools=FLAT, tool_choice={"type": "function", "name": "get_weather"},
                           parallel_tool_calls=False, **ASK)
claim("a named tool is called, once", [x.name for x in named.output] == ["get_weather"]
      and get_weather.model_validate_json(named.output[0].arguments), named)
again = c.responses.create(previous_response_id=named.id, tools=FLAT, tool_choice="none", **dict(
    ASK, input=[{"type": "function_call_output", "call_id": named.output[0].call_id, "output": "rain"}],
        max_output_tokens=5))
claim("and its result sent", again.usage.input_tokens > named.usage.input_tokens, again)
raw = json.loads(s.request("POST", "/v1/responses",
                           dict(model="m", input="a", tools=FLAT, tool_choice="required",
                                                         parallel_tool_calls=False,
                                max_output_tokens=400))[1])
claim("a response with calls is what the package's types say", not valid(Response, raw), valid(Response, raw))
chat = c.chat.completions.parse(model="m", messages=[{"role": "user", "content": "line 1"}],
                                response_format=Answer, seed=5,
                                max_tokens=400)
parsed = c.responses.parse(text_format=Answer, **ASK)
claim("chats and responses are held alike", chat.choices[0].message.parsed == parsed.output_parsed,
      (chat, parsed))
refused(openai.BadRequestError, "a keyword that is not honoured", lambda: c.responses.create(text={"format": {
    "type": "json_schema", "name": "n", "schema": {"type": "array", "contains": {}}}}, **ASK))
s.stop()
finish()

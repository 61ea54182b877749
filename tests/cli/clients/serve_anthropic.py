"""serve_anthropic.py MODEL TMP - the anthropic package's own view of /v1/messages: messages, streams, tools, counts,
refusals, keys."""
import json
import os
import shutil
import sys
from typing import Literal
import anthropic
import pydantic
from anthropic.types import Message, RawMessageStreamEvent
from serve_server import Server, claim, finish

model, tmp = sys.argv[1:3]
with open(f"{tmp}/a.keys", "w") as f:
    f.write("right-key\n")
script = f"{tmp}/a.answer"
with open(script, "w") as f:
    f.write("<think>\nhm\n</think>\n\nLet me see.<tool_call>{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call>")
s = Server(model, "--api-key-file", f"{tmp}/a.keys")
base = f"http://{s.host}:{s.port}"
c = anthropic.Anthropic(base_url=base, api_key="right-key", timeout=60)
HI = dict(model="m", max_tokens=12, messages=[{"role": "user", "content": "line 1"}],
          extra_body={"ignore_eos": True, "temperature": 0})
whole = c.messages.create(system="Be brief.", **HI)
claim("a message",
      whole.type == "message" and whole.content[0].type == "text" and whole.stop_reason == "max_tokens"
      and whole.usage.output_tokens == 12, whole)
with c.messages.stream(system="Be brief.", **HI) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()


def plain(content):
    return [b.model_dump(exclude={"parsed_output"}) for b in content]


claim("its stream joins to it", text == whole.content[0].text and plain(final.content) == plain(whole.content)
      and final.stop_reason == whole.stop_reason and final.usage.output_tokens == 12, final)
count = c.messages.count_tokens(model="m", system="Be brief.", messages=HI["messages"])
claim("its tokens are counted",
      count.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
      (count, whole.usage))
token = anthropic.Anthropic(base_url=base, auth_token="right-key", timeout=60)
claim("a key may come as a token", token.messages.create(**HI).type == "message")


def refused(kind, what, ask):
    try:
        ask()
        claim(f"{what} is refused", False)
    except kind as e:
        claim(f"{what} is refused with a body of Anthropic's form", isinstance(e.body, dict) and
              e.body.get("type") == "error" and e.body["error"]["message"] and e.body["error"]["type"],
              e.body)
    except anthropic.AnthropicError as e:
        claim(f"{what}: {kind.__name__}", False, repr(e))


refused(anthropic.AuthenticationError, "a wrong key",
        lambda: anthropic.Anthropic(base_url=base, api_key="wrong").messages.create(**HI))
refused(anthropic.BadRequestError, "an unknown field",
        lambda: c.messages.create(**dict(HI, extra_body={"no_such": 1})))
refused(anthropic.NotFoundError, "another model", lambda: c.messages.create(**dict(HI, model="other")))
refused(anthropic.BadRequestError, "an image", lambda: c.messages.create(**dict(HI, messages=[
    {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]}])))
s.stop()

# the model's text is the test's
os.environ["SHARDLINE_ANSWER"] = script
shutil.copytree(model, f"{tmp}/a.model")
with open(f"{tmp}/a.model/generation_config.json", "w") as f:
    json.dump({"eos_token_id": 0}, f)
with open(f"{tmp}/a.model/chat_template.jinja", "a") as f:
    f.write("{# <tool_call> </think> #}")
s = Server(f"{tmp}/a.model")
c = anthropic.Anthropic(base_url=f"http://{s.host}:{s.port}", api_key="any", timeout=60)
TOOLS = [{"name": "now", "description": "d",
          "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}}}]
ASK = dict(model="m", max_tokens=200, messages=HI["messages"], tools=TOOLS)
m = c.messages.create(**ASK)
claim("a call is a block", [b.type for b in m.content] == ["thinking", "text", "tool_use"] and
      m.content[-1].input == {"zone": "UTC"} and m.stop_reason == "tool_use", m)
with c.messages.stream(**ASK) as stream:
    kinds = {e.type for e in stream}
    final = stream.get_final_message()
claim("its stream joins to it", plain(final.content) == plain(m.content) and {"text", "input_json"} <= kinds,
      (kinds, final))
again = c.messages.create(**dict(ASK, messages=HI["messages"] + [
    {"role": "assistant", "content": m.content},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m.content[-1].id, "content": "12:00"},
                                 {"type": "text", "text": "and?"}]}]))
claim("its blocks can be sent back", again.stop_reason == "tool_use", again)


def valid(kind, x):
    try:
        return pydantic.TypeAdapter(kind).validate_python(x) and ""
    except pydantic.ValidationError as e:
        return str(e)


raw = json.loads(s.request("POST", "/v1/messages", ASK)[1])
claim("a message is what the package's types say", not valid(Message, raw), valid(Message, raw))
lines = s.request("POST", "/v1/messages", dict(ASK, stream=True))[1].decode().split("\n")
wrong = [w for w in (valid(RawMessageStreamEvent, json.loads(x[6:])) for x in lines if x.startswith("data: ")
                     and "ping" not in x) if w]
claim("and so are its events", len(lines) > 20 and not wrong, wrong[:1])
stop = c.messages.create(stop_sequences=["me"], **ASK)
claim("a stop sequence is named", stop.stop_reason == "stop_sequence" and stop.stop_sequence == "me"
      and stop.content[-1].text == "Let ", stop)
s.stop()


# Answers and calls as classes: what the model does not know the grammar does.
class Answer(pydantic.BaseModel):
    color: Literal["red", "green"]
    n: int


del os.environ["SHARDLINE_ANSWER"]
with open(f"{tmp}/a.model/chat_template.jinja") as f:
    template = f.read().replace("</think>", "")
with open(f"{tmp}/a.model/chat_template.jinja", "w") as f:
    f.write(template)
s = Server(f"{tmp}/a.model")
c = anthropic.Anthropic(base_url=f"http://{s.host}:{s.port}", api_key="any", timeout=60)
ASK = dict(model="m", max_tokens=400, messages=HI["messages"], extra_body={"seed": 3})
got = c.messages.parse(output_format=Answer, **ASK)
claim("an answer is parsed as its class",
      isinstance(got.parsed_output, Answer) and got.stop_reason == "end_turn", got)
with c.messages.stream(output_format=Answer, **ASK) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
claim("and in a stream",
      final.parsed_output == got.parsed_output and Answer.model_validate_json(text) == got.parsed_output,
      final)
TOOLS = [{"name": "get_weather", "strict": True, "input_schema": {"type": "object", "properties": {
    "city": {"enum": ["Bonn", "K\u00f6ln"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"], "additionalProperties": False}},
         {"name": "now", "input_schema": {"type": "object", "properties": {},
                                                                                   "additionalProperties": False}}]


def fits(b):
    return b.type == "tool_use" and (b.name == "now" or (b.input["city"] in ("Bonn",
        "K\u00f6ln") and 1 <= b.input["days"] <= 14))


NAMED = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
for what, choice in (("any tool", {"type": "any", "disable_parallel_tool_use": True}),
                     ("a named tool", NAMED)):
    m = c.messages.create(tools=TOOLS, tool_choice=choice, **ASK)
    with c.messages.stream(tools=TOOLS, tool_choice=choice, **ASK) as stream:
        told = list(stream)
        final = stream.get_final_message()
    claim(f"{what} is called by its schema", m.stop_reason == "tool_use" and all(map(fits, m.content))
          and (choice is not NAMED or [b.name for b in m.content] == ["get_weather"]), m)
    claim(f"{what}: the stream joins to it",
          plain(final.content) == plain(m.content) and final.stop_reason == "tool_use"
          and [json.loads(b.content_block.input) if isinstance(b.content_block.input,
              str) else b.content_block.input
               for b in told if b.type == "content_block_stop"] == [b.input for b in m.content], told)
none = c.messages.create(tools=TOOLS, tool_choice={"type": "none"}, **dict(ASK, max_tokens=20))
claim("none of them may be called", [b.type for b in none.content] == ["text"], none)
refused(anthropic.BadRequestError, "a schema that cannot be followed", lambda: c.messages.create(tools=[
    {"name": "f", "strict": True,
     "input_schema": {"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}}], **ASK))
refused(anthropic.BadRequestError, "a tool that is not there",
        lambda: c.messages.create(tools=TOOLS, tool_choice={"type": "tool", "name": "g"}, **ASK))
s.stop()
finish()

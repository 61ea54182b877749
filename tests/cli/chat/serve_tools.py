"""serve_tools.py MODEL TMP quick|all - chats with tools over HTTP, by a model whose answers the test writes (SHARDLINE_ANSWER):
answers and streams, at every tp and with replicas; --chat-template, --tool-parser; the openai package where it is
there."""
import http.client
import json
import os
import sys
from serve_server import Server, claim, finish, skip

model, tmp, size = sys.argv[1:4]
LAYOUTS = [(), ("--tp", 2), ("--replicas", 2), ("--speculate", "ngram")] if size == "all" else [()]
script = os.environ["SHARDLINE_ANSWER"] = f"{tmp}/answer"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}}]
HI = dict(messages=[{"role": "user", "content": "Hi"}], tools=TOOLS)
TEMPLATE = ("{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>"
            "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "
            "\"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% if think %}<think>\n{% endif %}{% endif %}")


def say(text):
    with open(script, "w") as f:
        f.write(text)


def chat(s, **body):
    status, data, _ = s.request("POST", "/v1/chat/completions", dict(HI, **body))
    return status, json.loads(data, parse_float=str)


def stream(s, **body):
    """The message and finish that a stream joins to."""
    c = http.client.HTTPConnection(s.host, s.port, timeout=120)
    c.request("POST", "/v1/chat/completions", json.dumps(dict(HI, stream=True, **body)),
              {"Content-Type": "application/json"})
    m, finish = {"role": "assistant", "content": None}, None
    for line in c.getresponse():
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            d, finish = choice["delta"], choice["finish_reason"] or finish
            for key in ("content", "reasoning_content"):
                if d.get(key) is not None:
                    m[key] = (m.get(key) or "") + d[key]
            for t in d.get("tool_calls", ()):
                calls = m.setdefault("tool_calls", [])
                if t["index"] == len(calls):
                    calls.append({k: v for k, v in t.items() if k != "index"})
                else:
                    calls[t["index"]]["function"]["arguments"] += t["function"]["arguments"]
    c.close()
    return m, finish


def calls(message):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]


def without_refusal(message):
    return {k: v for k, v in message.items() if k != "refusal"}


with open(f"{model}/chat_template.jinja", "w") as f:
    f.write(TEMPLATE)
with open(f"{model}/generation_config.json", "w") as f:
    json.dump({"eos_token_id": 0}, f)
TWO = ("Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\u00f6ln \\\"x\\\"\\n\", "
       "\"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>")
first = None
for args in LAYOUTS[:3]:
    s = Server(model, *args)
    what = " ".join(map(str, args)) or "one rank"
    if not claim(f"{what}: it starts", s.port is not None, s.err):
        continue
    say(TWO)
    answers = [chat(s, seed=1, n=2, logprobs=True, top_logprobs=2) for _ in range(3)]
    status, whole = answers[0]
    choice = whole["choices"][0] if status == 200 else {}
    m = choice.get("message", {})
    claim(f"{what}: two calls behind a text", status == 200 and m.get("content") == "Let me see."
          and calls(m) == [("get_weather", {"city": "K\u00f6ln \"x\"\n", "days": 2}), ("now", {})]
          and choice["finish_reason"] == "tool_calls", whole)
    first = first or [c["message"] for c in whole["choices"]]
    claim(f"{what}: the same ids and calls every time, in every layout",
          all([c["message"] for c in a["choices"]] == first for _, a in answers))
    claim(f"{what}: every call has an id of its own",
          len({c["id"] for x in whole["choices"] for c in x["message"]["tool_calls"]}) == 4)
    claim(f"{what}: log-probs and usage count all tokens",
          len(choice["logprobs"]["content"]) * 2 == whole["usage"]["completion_tokens"] == 2 * len(TWO.encode()) + 2,
          whole["usage"])
    claim(f"{what}: the stream joins to it", stream(s, seed=1) == (without_refusal(m), "tool_calls"), stream(s))
    say("<think>\nhm <tool_call>\n</think>\n\n<tool_call>{\"name\": \"now\"}</tool_call>")
    whole = chat(s)[1]
    m, usage = whole["choices"][0]["message"], whole["usage"]
    thought = usage["completion_tokens_details"]["reasoning_tokens"]     # a token is a byte
    claim(f"{what}: its tokens are counted", thought == len("<think>\nhm <tool_call>"), usage)
    claim(f"{what}: reasoning is apart", m.get("reasoning_content") == "hm <tool_call>" and calls(m) == [("now", {})]
          and m["content"] is None, m)
    claim(f"{what}: in the stream, too", stream(s) == (without_refusal(m), "tool_calls"))
    m = chat(s, tool_choice="none", separate_reasoning=False)[1]["choices"][0]["message"]
    claim(f"{what}: tool_choice none leaves the text alone", "tool_calls" not in m and m["content"] == open(script).read(),
          m)
    cut = chat(s, max_tokens=30)[1]["choices"][0]
    claim(f"{what}: a length is a length", cut["finish_reason"] == "length" and "tool_calls" not in cut["message"], cut)
    status, e = chat(s, tool_choice={"type": "function", "function": {"name": "other"}})
    claim(f"{what}: a name that is no tool's is refused", status == 400 and e["error"]["param"] == "tool_choice", e)
    s.stop()

# ---- answers that must have a call, by a model of bytes that has hardly learned ----
STRICT = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1,
    "maximum": 14}, "unit": {"enum": ["c", "f"]}}, "required": ["city", "days", "unit"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "strict": True, "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}}]


def valid(call):
    name, a = call
    return a == {} if name == "now" else (name == "get_weather" and set(a) == {"city", "days", "unit"} and len(a["city"]) <= 8
                                          and 1 <= a["days"] <= 14 and a["unit"] in ("c", "f"))


def essence(answer):
    return [(c["message"], c["finish_reason"]) for c in answer["choices"]]


del os.environ["SHARDLINE_ANSWER"]
NAMED = {"type": "function", "function": {"name": "now"}}
HARD = dict(tools=STRICT, temperature=1.3, max_tokens=160, n=4 if size == "all" else 2)
want = None
for args in LAYOUTS:
    s = Server(model, *args)
    what = " ".join(map(str, args)) or "one rank"
    if not claim(f"{what}: it starts", s.port is not None, s.err):
        continue
    got = []
    for seed in range(3 if size == "all" else 1):
        for body in (dict(tool_choice="required"), dict(tool_choice=NAMED), dict(tool_choice="required", parallel_tool_calls=False),
                     dict(tool_choice="required", chat_template_kwargs={"think": True}, max_tokens=120)):
            status, a = chat(s, seed=seed, **dict(HARD, **body))
            if not claim(f"{what}: {body} is answered", status == 200, a):
                continue
            got.append(essence(a))
            for m, end in got[-1]:
                whole = end == "tool_calls"
                claim(f"{what}: {body}: calls by the schema, or cut", (end == "length" or whole)
                      and (not whole or all(valid(c) for c in calls(m)) and m["content"] is None
                           and (body["tool_choice"] != NAMED or calls(m)[0][0] == "now")
                           and ("parallel_tool_calls" not in body or len(calls(m)) == 1)), m)
    ends = [end for a in got for _, end in a]
    claim(f"{what}: many of them end", ends.count("tool_calls") > len(ends) / 4, ends)
    claim(f"{what}: the same as on one rank", want is None or got == want)
    want = want or got
    m, end = stream(s, seed=1, **dict(HARD, n=1, tool_choice="required"))
    c = chat(s, seed=1, **dict(HARD, n=1, tool_choice="required"))[1]["choices"][0]
    claim(f"{what}: the stream joins to the answer", (m, end) == (without_refusal(c["message"]), c["finish_reason"]), (m, c))
    s.stop()

# strict tools, and a format beside tools: the test begins an answer that the grammar must mend
os.environ["SHARDLINE_ANSWER"] = script
s = Server(model)
say("Ok <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 5, \"x\": []}}\n</tool_call>")
mended = [chat(s, seed=i, tools=STRICT, max_tokens=150)[1]["choices"][0] for i in range(3)]
claim("a strict tool's arguments follow its schema", all(c["message"]["content"] == "Ok" and all(valid(x) for x in calls(c["message"]))
      for c in mended if c["finish_reason"] == "tool_calls") and any(c["finish_reason"] == "tool_calls" for c in mended), mended)
loose = chat(s, max_tokens=300)[1]["choices"][0]["message"]
claim("another tool's are as the model writes them", calls(loose) == [("get_weather", {"city": 5, "x": []})], loose)
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "minimum": 10, "maximum": 99}}}
say("42")
m = chat(s, response_format=FORMAT)[1]["choices"][0]["message"]
claim("with a format the answer follows it", m["content"] == "42" and "tool_calls" not in m, m)
say("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>")
m = chat(s, response_format=FORMAT)[1]["choices"][0]["message"]
claim("or calls a tool", calls(m) == [("now", {})] and m["content"] is None, m)
status, e = chat(s, response_format=FORMAT, tool_choice="required")
claim("both together are a 400", status == 400 and e["error"]["param"] == "tool_choice", e)
bad = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {
    "a": {"type": "array", "contains": {}}}}}}]
status, e = chat(s, tools=bad)
claim("a keyword that a strict tool cannot be held to is named", status == 400 and e["error"]["param"] == "tools"
      and "contains" in e["error"]["message"] and "tool f" in e["error"]["message"], e)
s.stop()

# a conversation that goes on: what the model wrote comes back to it as it was
s = Server(model)
say(TWO)
m = chat(s)[1]["choices"][0]["message"]
results = [{"role": "tool", "tool_call_id": c["id"], "content": "12"} for c in m["tool_calls"]]
status, t, _ = s.request("POST", "/tokenize", dict(messages=HI["messages"] + [m] + results, tools=TOOLS))
claim("history goes through the template as the model wrote it",
      status == 200 and bytes(json.loads(t)["tokens"]).decode() == "[get_weather][now]<user>Hi<assistant>"
      + TWO.replace("\n<tool_call>\n", "<tool_call>").replace("\n</tool_call>", "</tool_call>")
      + "<tool>12<tool>12<assistant>", t)
try:
    import openai
    import pydantic
except ImportError:
    skip("no openai package here: its client was not asked")
else:
    c = openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="any", timeout=60)
    with c.chat.completions.stream(model="m", **HI) as events:
        kinds = {e.type for e in events}
        final = events.get_final_completion()
    claim("openai's stream() sees the calls", {"tool_calls.function.arguments.delta",
          "tool_calls.function.arguments.done"} <= kinds and [t.function.name for t in
          final.choices[0].message.tool_calls] == ["get_weather", "now"], kinds)
    got = c.chat.completions.create(model="m", **HI).choices[0].message
    again = c.chat.completions.create(model="m", tools=TOOLS, messages=HI["messages"] + [got] + results)
    claim("its message can be sent back", again.choices[0].finish_reason == "tool_calls", again)

    class get_weather(pydantic.BaseModel):
        city: str
        days: int

    class Answer(pydantic.BaseModel):
        n: int

    typed = dict(model="m", messages=HI["messages"], tools=[openai.pydantic_function_tool(get_weather)], max_tokens=300)
    say("Well. <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Bonn\",\"days\":3}}\n</tool_call>")
    call = c.chat.completions.parse(**typed).choices[0].message.tool_calls[0]
    claim("parse() gives a call's arguments as its class", call.function.parsed_arguments == get_weather(city="Bonn", days=3),
          call)
    with c.chat.completions.stream(**typed) as events:
        done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    claim("and stream(), too", [e.parsed_arguments for e in done] == [get_weather(city="Bonn", days=3)], done)
    say(open(script).read()[len("Well. "):])
    forced = c.chat.completions.parse(**typed, tool_choice="required").choices[0].message
    claim("a required call comes at once", forced.tool_calls and forced.content is None, forced)
    say("{\"n\": 7}")
    parsed = c.chat.completions.parse(**typed, response_format=Answer).choices[0].message
    claim("or an answer of the format's class", parsed.parsed == Answer(n=7) and not parsed.tool_calls, parsed)
s.stop()

# ---- templates and parsers by name ----
with open(f"{tmp}/other.jinja", "w") as f:
    f.write("{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}(assistant)")
s = Server(model, "--chat-template", f"{tmp}/other.jinja")
say("<tool_call>{\"name\": \"now\"}</tool_call>")
status, t, _ = s.request("POST", "/tokenize", dict(messages=HI["messages"]))
claim("--chat-template takes the place of the model's", bytes(json.loads(t)["tokens"]) == b"(user)Hi(assistant)", t)
claim("without a known form the answer is text", chat(s)[1]["choices"][0]["message"]["content"] == open(script).read())
s.stop()
claim("and the log says so", b"--tool-parser" in b"".join(s.err), s.err)
s = Server(model, "--chat-template", f"{tmp}/other.jinja", "--tool-parser", "mistral")
say("[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"a\": 1}}]")
m = chat(s)[1]["choices"][0]["message"]
claim("--tool-parser names the form", calls(m) == [("now", {"a": 1})], m)
status, t, _ = s.request("POST", "/tokenize", dict(messages=HI["messages"] + [m]))
claim("calls that the template does not show are written into the content",
      bytes(json.loads(t)["tokens"]).endswith(
          b"(assistant)[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {\"a\": 1}}](assistant)"), t)
s.stop()
for args, part in ((("--tool-parser", "hermess"), "use one of"), (("--chat-template", f"{tmp}/none.jinja"), "none.jinja")):
    s = Server(model, *args)
    s.p.wait()
    s.reader.join()
    claim(f"{args[0]}: what is not there is refused", s.port is None and part in b"".join(s.err).decode(), s.err)
finish()

"""serve_doors.py MODEL TMP LAYOUT... - /v1/responses and /v1/messages over HTTP: the same answers and log-probs as
/v1/chat/completions of the same conversation, in every layout; items, events, kept responses, refusals. Answers with
tools are written by the test (SHARDLINE_ANSWER)."""
import http.client
import json
import os
import sys
from serve_server import Server, claim, finish

model, tmp, *layouts = sys.argv[1:]
script = f"{tmp}/answer"
TEMPLATE = ("{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>"
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
            "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
            "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>\n{% endif %}{% endif %}")
with open(f"{model}/chat_template.jinja", "w") as f:
    f.write(TEMPLATE)
with open(f"{model}/generation_config.json", "w") as f:
    json.dump({"eos_token_id": 0}, f)


def post(s, path, body, headers=None):
    status, data, _ = s.request("POST", path, body, headers)
    return status, json.loads(data, parse_float=str)


def events(s, path, body, headers=None):
    """(name, data) of each event of a stream."""
    c = http.client.HTTPConnection(s.host, s.port, timeout=120)
    c.request("POST", path, json.dumps(dict(body, stream=True)),
              {"Content-Type": "application/json", **(headers or {})})
    out, name = [], None
    for line in c.getresponse():
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = json.loads(line[6:], parse_float=str)
            claim("an event has its name in its data", data["type"] == name, (name, data))
            out.append((name, data))
    c.close()
    return out


# ---- the same answers as chats ----
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "line 1"},
        {"role": "assistant", "content": "1 is"},
        {"role": "user", "content": [{"type": "text", "text": "line"},
                                                                             {"type": "text", "text": "2?"}]}]
ITEMS = [{"role": "user", "content": "line 1"},
         {"type": "message", "role": "assistant",
          "content": [{"type": "output_text", "text": "1 is", "annotations": []
                                                               }], "id": "msg_1", "status": "completed"},
         {"role": "user",
          "content": [{"type": "input_text", "text": "line"}, {"type": "input_text", "text": "2?"}]}]
ITEMS[1]["content"][0].pop("annotations")
BLOCKS = [{"role": "user",
           "content": [{"type": "text", "text": "line 1", "cache_control": {"type": "ephemeral"}}]},
          {"role": "assistant", "content": "1 is"},
          {"role": "user", "content": [{"type": "text", "text": "line"}, {"type": "text", "text": "2?"}]}]
DRAW = dict(seed=7, temperature=0.9, top_p=0.95, top_k=40, ignore_eos=True)
SCHEMA = {"type": "object",
          "properties": {"color": {"enum": ["red", "green"]}, "n": {"type": "integer", "minimum": 10,
          "maximum": 99}}, "required": ["color", "n"], "additionalProperties": False}
NO_END = dict(logit_bias={"60": -100})           # no "<", so no reasoning that a model of two steps does not end
first = None
for what in layouts:
    s = Server(model, *what.split())
    if not claim(f"{what}: it starts", s.port is not None, s.err):
        continue
    _, chat = post(s, "/v1/chat/completions",
                   dict(messages=TALK, max_tokens=20, logprobs=True, top_logprobs=3, **DRAW))
    status, r = post(s, "/v1/responses", dict(
        instructions="Be brief.", input=ITEMS, max_output_tokens=20, include=["message.output_text.logprobs"],
        top_logprobs=3, metadata={"k": "v"}, **DRAW))
    want = chat["choices"][0]
    part = r["output"][0]["content"][0] if status == 200 else {}
    claim(f"{what}: a response has the chat's text and log-probs",
          part.get("text") == want["message"]["content"]
          and part["logprobs"] == want["logprobs"]["content"], (r, want))
    claim(f"{what}: and says how it ended", status == 200 and r["status"] == "incomplete" and
          r["incomplete_details"] == {"reason": "max_output_tokens"} and r["output"][0]["status"] == "incomplete" and
          r["usage"]["output_tokens"] == 20 and r["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
          and r["metadata"] == {"k": "v"} and r["system_fingerprint"] == chat["system_fingerprint"], r)
    status, m = post(s, "/v1/messages", dict(system=[{"type": "text", "text": "Be brief."}], messages=BLOCKS,
                                             max_tokens=20, **DRAW))
    claim(f"{what}: a message has the chat's text", status == 200 and m["content"] == [
        {"type": "text", "text": want["message"]["content"]}] and m["stop_reason"] == "max_tokens", m)
    first = first or part
    claim(f"{what}: the same in every layout", part == first)

    es = events(s, "/v1/responses", dict(
        instructions="Be brief.", input=ITEMS, max_output_tokens=20, include=["message.output_text.logprobs"],
        top_logprobs=3, **DRAW))
    deltas = [d for n, d in es if n == "response.output_text.delta"]
    claim(f"{what}: a stream's events are numbered",
          [d["sequence_number"] for _, d in es] == list(range(len(es))))
    claim(f"{what}: they come in OpenAI's order", [n for n, _ in es if "delta" not in n] == [
        "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.incomplete"], [n for n, _ in es])
    claim(f"{what}: deltas join to the text and its log-probs",
          "".join(d["delta"] for d in deltas) == part["text"]
          and sum((d["logprobs"] for d in deltas), []) == part["logprobs"], deltas)
    last = es[-1][1]["response"]
    claim(f"{what}: the last event has the whole response", last["output"][0]["content"] == [part], last)
    status, got, _ = s.request("GET", f"/v1/responses/{last['id']}")
    claim(f"{what}: which is kept", status == 200 and json.loads(got, parse_float=str) == last, got)

    es = events(s, "/v1/messages", dict(system="Be brief.", messages=BLOCKS, max_tokens=20, **DRAW))
    claim(f"{what}: a message's events", [n for n, _ in es if n != "content_block_delta"] == [
        "message_start", "ping", "content_block_start", "content_block_stop", "message_delta",
            "message_stop"] and
        "".join(d["delta"]["text"]
                for n, d in es if n == "content_block_delta") == want["message"]["content"] and
        es[-2][1]["delta"]["stop_reason"] == "max_tokens" and es[-2][1]["usage"]["output_tokens"] == 20, es)

    # a conversation that goes on behind a kept response
    _, one = post(s, "/v1/responses", dict(input="line 1", max_output_tokens=5, **DRAW))
    status, two = post(s, "/v1/responses",
                       dict(input="line 2", previous_response_id=one["id"], max_output_tokens=5,
                                                instructions="Be brief.", **DRAW))
    text = one["output"][0]["content"][0]["text"]
    _, same = post(s, "/v1/chat/completions", dict(messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "line 1"},
        {"role": "assistant", "content": text}, {"role": "user", "content": "line 2"}], max_tokens=5, **DRAW))
    claim(f"{what}: previous_response_id goes on", status == 200 and two["output"][0]["content"][0]["text"] ==
          same["choices"][0]["message"]["content"] and two["previous_response_id"] == one["id"] and
          two["usage"]["input_tokens"] == same["usage"]["prompt_tokens"], (two, same))
    # answers and calls that are held to schemas: the chat's
    held = dict(seed=5, temperature=1.2, **NO_END)
    _, chat = post(s, "/v1/chat/completions", dict(messages=TALK, max_tokens=200, response_format={
        "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, **held))
    text = chat["choices"][0]["message"]["content"]
    claim(f"{what}: a schema is followed", chat["choices"][0]["finish_reason"] == "stop" and
          set(json.loads(text)) == {"color", "n"}, chat)
    _, r = post(s, "/v1/responses", dict(instructions="Be brief.", input=ITEMS, max_output_tokens=200, text={
        "format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}}, **held))
    _, m = post(s, "/v1/messages", dict(system="Be brief.", messages=BLOCKS, max_tokens=200, output_config={
        "format": {"type": "json_schema", "schema": SCHEMA}}, **held))
    claim(f"{what}: a response and a message as the chat", [x["text"] for x in m["content"]] == [text] and
          [x["text"] for x in r["output"][0]["content"]] == [text] and r["status"] == "completed", (r, m))
    tool = {"name": "paint", "description": "d", "parameters": SCHEMA}
    _, chat = post(s, "/v1/chat/completions",
                   dict(messages=TALK, max_tokens=200, tools=[{"type": "function", "function": tool}],
                                                   tool_choice="required", parallel_tool_calls=False, **held))
    want = [c["function"] for c in chat["choices"][0]["message"]["tool_calls"]]
    ask = dict(instructions="Be brief.", input=ITEMS, max_output_tokens=200,
               tools=[dict(tool, type="function")],
               tool_choice={"type": "function", "name": "paint"}, parallel_tool_calls=False, **held)
    _, r = post(s, "/v1/responses", ask)
    _, m = post(s, "/v1/messages", dict(
        system="Be brief.", messages=BLOCKS, max_tokens=200,
                                        tools=[dict(name="paint", description="d", input_schema=SCHEMA)],
        tool_choice={"type": "any", "disable_parallel_tool_use": True}, **held))
    got = [{k: x[k] for k in ("name", "arguments")} for x in r["output"]]
    claim(f"{what}: a call as the chat's",
          got == want and len(want) == 1 and m["stop_reason"] == "tool_use" and
          [(x["name"], x["input"]) for x in m["content"]] == [(x["name"],
              json.loads(x["arguments"])) for x in want],
          (want, r, m))
    es = events(s, "/v1/responses", ask)
    claim(f"{what}: its events", [n for n, _ in es if "delta" not in n] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.function_call_arguments.done", "response.output_item.done", "response.completed"] and
        "".join(d["delta"] for _, d in es if "delta" in d) == want[0]["arguments"] and
        [d["arguments"] for n, d in es if n.endswith("arguments.done")] == [want[0]["arguments"]], es)
    s.stop()

# ---- reasoning and calls: the model's text is the test's ----
os.environ["SHARDLINE_ANSWER"] = script
FLAT = [{"type": "function", "name": "get_weather", "description": "d", "strict": False, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
    {"type": "function", "name": "now"}]
NATIVE = [{"name": t["name"], "description": "d",
           "input_schema": t.get("parameters", {"type": "object"})} for t in FLAT]
SAID = ("<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\u00f6ln "
        "\\\"x\\\"\\n\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>")
with open(script, "w") as f:
    f.write(SAID)
with open(f"{tmp}/keys", "w") as f:
    f.write("one\ntwo\n")
s = Server(model, "--api-key-file", f"{tmp}/keys", "--response-memory", "40k")
ONE, TWO, OWN = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}, {"x-api-key": "one",
                                                                                 "anthropic-version": "2023-06-01"}
status, r = post(s, "/v1/responses", dict(input="Hi", tools=FLAT), ONE)
kinds = [i["type"] for i in r.get("output", ())]
claim("reasoning, text and calls are items",
      status == 200 and kinds == ["reasoning", "message", "function_call",
                                                                      "function_call"], r)
out = r["output"]
claim("each with what the model wrote", out[0]["content"] == [{"type": "reasoning_text", "text": "hm"}] and
      out[1]["content"][0]["text"] == "Let me see." and out[2]["name"] == "get_weather" and
      json.loads(out[2]["arguments"]) == {"city": "K\u00f6ln \"x\"\n", "days": 2} and
      json.loads(out[3]["arguments"]) == {} and r["status"] == "completed", out)
claim("ids differ", len({i["id"] for i in out}) == 4 and out[2]["call_id"] != out[3]["call_id"])
claim("reasoning tokens are counted", 4 < r["usage"]["output_tokens_details"]["reasoning_tokens"] < 30,
      r["usage"])
es = events(s, "/v1/responses", dict(input="Hi", tools=FLAT), ONE)
whole = es[-1][1]["response"]["output"]


def without_ids(x):
    return [{k: v for k, v in i.items() if k != "id"} for i in x]


claim("a stream ends with the same items", without_ids(whole) == without_ids(out), whole)
for index, item in enumerate(whole):
    mine = [(n, d) for n, d in es if d.get("output_index") == index]
    text = "".join(d["delta"] for n, d in mine if n.endswith(".delta"))
    is_call = item["type"] == "function_call"
    claim(f"deltas of item {index} join to it",
          text == (item["arguments"] if is_call else item["content"][0]["text"])
          and mine[0][0] == "response.output_item.added" and mine[-1][0] == "response.output_item.done" and
          mine[-1][1]["item"] == item and [d["item_id"] for _, d in mine if "item_id" in d][0] == item["id"],
          mine)
ends = [i for i, (n, _) in enumerate(es) if n == "response.output_item.done"]
begins = [i for i, (n, _) in enumerate(es) if n == "response.output_item.added"]
claim("an item ends before the next one begins", all(a < b for a, b in zip(ends, begins[1:])), (begins, ends))

status, m = post(s, "/v1/messages",
                 dict(messages=[{"role": "user", "content": "Hi"}], tools=NATIVE, max_tokens=999), OWN)
claim("a message has thinking, text and calls", status == 200 and [b["type"] for b in m["content"]] == [
    "thinking", "text", "tool_use", "tool_use"] and m["content"][0]["thinking"] == "hm" and
    m["content"][2]["input"] == {"city": "K\u00f6ln \"x\"\n",
                                 "days": 2} and m["content"][3]["input"] == {} and
    m["stop_reason"] == "tool_use", m)
es = events(s, "/v1/messages",
            dict(messages=[{"role": "user", "content": "Hi"}], tools=NATIVE, max_tokens=999), OWN)
for index, block in enumerate(m["content"]):
    mine = [d for _, d in es if d.get("index") == index]
    text = "".join(next(v for k, v in d["delta"].items() if k != "type") for d in mine if "delta" in d)
    claim(f"deltas of block {index} join to it",
          (json.loads(text) == block["input"]) if block["type"] == "tool_use"
          else text == block[block["type"]], mine)

# what came back goes through the template as the model wrote it
calls = [{"type": "function_call_output", "call_id": out[k]["call_id"], "output": "12"} for k in (2, 3)]
_, t, _ = s.request("POST", "/tokenize", dict(messages=[
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [
        {"id": out[k]["call_id"], "type": "function", "function": {"name": out[k]["name"], "arguments":
                                                                  out[k]["arguments"]}} for k in (2, 3)]},
    {"role": "tool", "tool_call_id": "a", "content": "12"},
                                                        {"role": "tool", "tool_call_id": "b",
                                                         "content": "12"}],
    tools=[{"type": "function", "function": {k: v for k, v in f.items() if k != "type"}} for f in FLAT]), ONE)
n = json.loads(t)["count"]
for what, body in (("sent again", dict(input=[{"role": "user", "content": "Hi"}] + out + calls)),
                   ("kept", dict(input=calls, previous_response_id=r["id"]))):
    status, again = post(s, "/v1/responses", dict(body, tools=FLAT, store=False), ONE)
    claim(f"items that are {what} are the chat's history",
          status == 200 and again["usage"]["input_tokens"] == n,
          (again.get("usage", again), n))
status, c = post(s, "/v1/messages/count_tokens", dict(messages=[
    {"role": "user", "content": "Hi"}, {"role": "assistant", "content": m["content"]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b["id"], "content": "12"} for b in
                                 m["content"][2:]]}], tools=NATIVE), OWN)
claim("so are blocks; their tokens can be counted", (status, c) == (200, {"input_tokens": n}), (c, n))

# kept responses: by key, as long as there is memory
claim("a key does not see another one's", s.request("GET", f"/v1/responses/{r['id']}", headers=TWO)[0] == 404)
status, e = post(s, "/v1/responses", dict(input="Hi", previous_response_id=r["id"]), TWO)
claim("nor goes on with them", status == 404 and e["error"]["code"] == "previous_response_not_found" and
      e["error"]["message"] == f"Previous response with id '{r['id']}' not found.", e)
claim("what is not stored is not kept",
      s.request("GET", f"/v1/responses/{again['id']}", headers=ONE)[0] == 404)
status, gone, _ = s.request("DELETE", f"/v1/responses/{r['id']}", headers=ONE)
claim("a response can be deleted", status == 200 and json.loads(gone)["deleted"] is True and
      s.request("GET", f"/v1/responses/{r['id']}", headers=ONE)[0] == 404, gone)
_, other = post(s, "/v1/responses", dict(input="Hi"), TWO)
ids = [post(s, "/v1/responses", dict(input="Hi", user="u" * 2000), ONE)[1]["id"] for _ in range(20)]
there = [s.request("GET", f"/v1/responses/{i}", headers=ONE)[0] for i in ids]
claim("the oldest are forgotten first",
      there[0] == 404 and there[-1] == 200 and there == sorted(there, reverse=True),
      there)
claim("and not those of another key", s.request("GET", f"/v1/responses/{other['id']}", headers=TWO)[0] == 200)

# refusals
HI = dict(messages=[{"role": "user", "content": "Hi"}], max_tokens=5)
for path, body, status, param, part in (
        ("responses", {}, 400, "input", "input must be"),
        ("responses", dict(input="a", no_such=1), 400, "no_such", "not known"),
        ("responses", dict(input="a", background=True), 400, "background", "not supported"),
        ("responses", dict(input="a", tools=[{"type": "web_search"}]), 400, "tools", "'web_search'"),
        ("responses", dict(input="a", truncation="auto"), 400, "truncation", "'auto'"),
        ("responses", dict(input="a", max_output_tokens=10**8), 400, "max_output_tokens",
         "maximum context length"),
        ("responses", dict(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
         400,
         "input", "input[0].content[0]"),
        ("responses", dict(input=[{"type": "item_reference", "id": "x"}]), 400, "input", "'item_reference'"),
        ("messages", dict(messages=HI["messages"]), 400, None, "max_tokens is missing"),
        ("messages", dict(HI, no_such=1), 400, None, "no_such"),
        ("messages", dict(HI, tools=[{"type": "bash_20250124", "name": "bash"}]), 400, None,
         "'bash_20250124'"),
        ("messages", dict(HI, max_tokens=10**8), 400, None, "exceed context limit: "),
        ("messages", dict(HI, messages=[{"role": "user", "content": [{"type": "image"}]}]), 400, None,
         "'image'"),
        ("messages", dict(HI, model="other"), 404, None, "'other'")):
    got, e = post(s, f"/v1/{path}", body, ONE)
    claim(f"{path} {str(body)[:60]}: refused by name", got == status and part in e["error"]["message"] and
          (path == "messages" or e["error"]["param"] == param) and
          (path == "responses" or e["type"] == "error"), e)
claim("a wrong key is told in Anthropic's form", post(s, "/v1/messages", HI, {"x-api-key": "no"})[1] == {
    "type": "error", "error": {"type": "authentication_error", "message":
                               "a key is needed: send Authorization: Bearer KEY with one of the server's keys"}})
rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))
finish()

"""serve_structured.py CHECKPOINT N - constrained answers of a model of bytes that has hardly learned: N of them are
valid, the same alone and among others and at every layout, and their log-probs are the model's own."""
import json
import re
import sys
from serve_server import Server, claim, finish, together

checkpoint, n_answers, template = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TREE = {"$ref": "#/$defs/t", "$defs": {"t": {
    "type": "object", "properties": {"v": {"type": "integer", "minimum": -20, "maximum": 999},
                                     "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/t"}]}},
    "required": ["v", "left"], "additionalProperties": False}}}
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 6},
                                           "age": {"type": "number", "minimum": 0.5, "maximum": 150},
    "kind": {"enum": ["a", "bé", 3, None]},
                                           "tags": {"type": "array", "items": {"type": "boolean"},
                                                    "minItems": 1,
                                                     "maxItems": 3},
    "when": {"type": "string", "format": "date-time"},
                                           "code": {"type": "string", "pattern": "^[A-F]{2}\\d+$",
                                                    "maxLength": 9}},
    "required": ["name", "age", "kind", "tags", "when", "code"], "additionalProperties": False}


def person(text):
    j = json.loads(text)
    when = r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T[0-2]\d:[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-][0-2]\d:[0-5]\d)"
    return (list(j) == ["name", "age", "kind", "tags", "when",
                        "code"] and 1 <= len(j["name"]) <= 6 and 0.5 <= j["age"] <= 150
            and j["kind"] in ("a", "bé", 3,
                              None) and 1 <= len(j["tags"]) <= 3 and all(t in (True,
                                  False) for t in j["tags"])
            and re.fullmatch(when, j["when"]) and re.fullmatch(r"[A-F]{2}\d+",
                j["code"]) and len(j["code"]) <= 9)


def tree(text):
    j = json.loads(text)
    while j is not None:
        if set(j) != {"v", "left"} or not isinstance(j["v"], int) or not -20 <= j["v"] <= 999:
            return False
        j = j["left"]
    return True


GBNF = 'root ::= sum "\\n"\nsum ::= part (("+" | "-") part){0,4}\npart ::= [0-9]{1,4} | "(" part ")"'
CASES = [(dict(response_format={"type": "json_schema",
                                "json_schema": {"name": "p", "schema": PERSON, "strict": True}}), person),
         (dict(structured_outputs={"json": TREE, "disable_any_whitespace": True}),
          lambda t: tree(t) and not re.search(r"\s", t)),
         (dict(structured_outputs={"regex": "(ab|[c-f]{2}é)+!{1,3}"}),
          lambda t: re.fullmatch("(ab|[c-f]{2}é)+!{1,3}", t)),
         (dict(structured_outputs={"choice": ["yes", "no", "perhaps é"]}),
          lambda t: t in ("yes", "no", "perhaps é")),
         (dict(structured_outputs={"grammar": GBNF}),
          lambda t: re.fullmatch(r"[0-9()]+([+-][0-9()]+){0,4}\n", t)),
         (dict(structured_outputs={"json": json.dumps({"type": "array", "items": {"const": 7}, "minItems": 2,
                                                       "maxItems": 5})}),
          lambda t: 2 <= len(json.loads(t)) <= 5 and set(json.loads(t)) == {7})]
DRAWN = dict(prompt="line 12: ", temperature=1.5, max_tokens=400)


def answers(server, body):
    return sorted(server.complete(**body)["choices"], key=lambda c: c["index"])


def generate(server, n):
    """n answers in all, of all cases in turn; every one is valid, or was cut off at max_tokens."""
    bad, cut = [], 0
    bodies = [dict(DRAWN, seed=i, n=16, **CASES[i % len(CASES)][0]) for i in range((n + 15) // 16)]
    for at in range(0, len(bodies), 4):
        for i, got in enumerate(together([lambda b=b: answers(server, b) for b in bodies[at:at + 4]])):
            for c in got:
                cut += c["finish_reason"] == "length"
                if c["finish_reason"] == "stop" and not CASES[(at + i) % len(CASES)][1](c["text"]):
                    bad.append(c["text"])
    claim(f"{n} answers are valid", not bad, bad[:3])
    claim("and few of them reach max_tokens", cut * 20 <= n, cut)


def same(server, reference, name):
    step = 1 if n_answers >= 1000 else 2
    got = together([lambda b=b: answers(server, b) for b in bodies[::step]])
    claim(f"answers are the same: {name}", got == reference[::step], name)


def raw_logprobs(server):
    """The log-probs of a constrained answer are those of the same tokens as a prompt."""
    for case, _ in CASES:
        body = dict(DRAWN, seed=5, logprobs=0, return_token_ids=True, **case)
        c = answers(server, body)[0]
        ids = c["prompt_token_ids"] + c["token_ids"]
        scored = server.complete(prompt=ids, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]
        n = len(c["token_ids"])
        claim(f"log-probs are the model's own: {str(case)[:60]}",
              c["logprobs"]["token_logprobs"] == scored["token_logprobs"][-n:],
              c["logprobs"]["token_logprobs"][:4])


def refusals(server):
    bad = [("uniqueItems", dict(response_format={"type": "json_schema", "json_schema": {
               "name": "x", "schema": {"type": "array", "uniqueItems": True}}})),
           ("structured_outputs: {\"json\"", dict(guided_json={"type": "object"})),
           ("structured_outputs", dict(guided_decoding_backend="x")),
           ("structural_tag", dict(structured_outputs={"structural_tag": "x"})),
           ("give one", dict(structured_outputs={"regex": "a", "choice": ["b"]})),
           ("give one", dict(structured_outputs={})),
           ("two grammars", dict(structured_outputs={"regex": "a"}, response_format={"type": "json_object"})),
           ("look-around", dict(structured_outputs={"regex": "(?=a)"})),
           ("left recursion", dict(structured_outputs={"grammar": "root ::= root \"a\" | \"b\""})),
           ("json_schema", dict(response_format={"type": "xml"})),
           ("is not known here", dict(structured_outputs={"regex": "a", "whitespace": 1})),
           ("contradicts itself",
            dict(structured_outputs={"json": {"type": "integer", "minimum": 2, "maximum": 1}})),
           ("must be a text", dict(structured_outputs={"regex": 1})),
           ("leave no token", dict(structured_outputs={"regex": "a"}, allowed_token_ids=[98]))]
    for words, body in bad:
        status, data, _ = server.request("POST", "/v1/completions", dict(DRAWN, **body))
        message = json.loads(data)["error"]["message"]
        claim(f"refused: {str(body)[:60]}", status == 400 and words in message, (status, message))


def ends(server):
    c = server.complete(**dict(DRAWN, structured_outputs={"choice": ["x"]}))
    claim("an answer that can only end does so without a step",
          c["usage"]["completion_tokens"] == 1 and c["choices"][0]["finish_reason"] == "stop", c)
    c = server.complete(**dict(DRAWN, max_tokens=3, structured_outputs={"regex": "abcdef"}))["choices"][0]
    claim("max_tokens cuts an answer", (c["text"], c["finish_reason"]) == ("abc", "length"), c)
    events = [json.loads(e)
              for e, _ in server.stream(**dict(DRAWN, structured_outputs={"regex": "ab{3}é"}))[1] if e[0] == "{"]
    claim("a stream has the same text", "".join(e["choices"][0]["text"] for e in events) == "abbbé", events)
    biased = dict(DRAWN, temperature=0, logit_bias={str(ord("n")): 90},
                  structured_outputs={"choice": ["yes", "no"]})
    claim("the mask comes behind the bias", server.complete(**biased)["choices"][0]["text"] == "no")


def chats(server):
    body = dict(messages=[{"role": "user", "content": "hi"}], temperature=1.5, seed=4, max_tokens=400,
                **CASES[0][0])
    status, data, _ = server.request("POST", "/v1/chat/completions", body)
    c = json.loads(data).get("choices", [{}])[0]
    claim("a chat's answer is JSON of the schema",
          status == 200 and c["finish_reason"] == "stop" and person(c["message"]["content"]), data)
    body = dict(token_ids=[65, 66],
                sampling_params=dict(seed=4, max_tokens=9, structured_outputs={"choice": ["abc"]}))
    status, data, _ = server.request("POST", "/inference/v1/generate", body)
    claim("token ids are constrained, too",
          status == 200 and json.loads(data)["choices"][0]["token_ids"] == [97, 98, 99], data)


s = Server(checkpoint, "--max-batch", 64, "--chat-template", template)
if not claim("the server starts", s.port is not None, b"".join(s.err)):
    finish()
bodies = [dict(DRAWN, seed=77 + i, logprobs=2, **case) for i, (case, _) in enumerate(CASES)]
alone = [answers(s, b) for b in bodies]
others = [dict(DRAWN, seed=1000 + i, n=29, **CASES[i][0]) for i in range(2)]
crowd = together([lambda b=b: answers(s, b) for b in others + bodies])
claim("answers are the same alone and among 63", crowd[2:] == alone)
generate(s, n_answers)
raw_logprobs(s)
refusals(s)
ends(s)
chats(s)
s.stop()
servers = [("tp 2, guesses", ("--tp", 2, "--speculate", "forced:4"))]
if n_answers >= 1000:
    servers += [("2 replicas", ("--replicas", 2)), ("pp 2", ("--pp", 2)),
                ("guesses, cp 2", ("--cp", 2, "--speculate", "ngram:4")),
                ("guesses, pp 2", ("--pp", 2, "--speculate", "suffix")),
                ("guesses of a model, few pages",
                 ("--speculate", checkpoint + ":3", "--ctx", 512, "--kv-memory", 3600000))]
for name, args in servers:
    s = Server(checkpoint, *args)
    if claim(f"starts: {name}", s.port is not None, b"".join(s.err)):
        same(s, alone, name)
        if "forced:4" in args:
            text = s.request("GET", "/metrics")[1].decode()
            forced, right = (int(re.search(rf"^{n}_total\{{.*\}} (\d+)", text, re.M).group(1)) for n in (
                "shardline:spec_decode_num_forced_tokens", "vllm:spec_decode_num_accepted_tokens"))
            # how many are guessed depends on what a guess costs, which the server measures: under load fewer
            claim("tokens that a grammar forces are guessed, and right",
                  5 < forced and right > 0.95 * forced, (forced, right))
        s.stop()
finish()

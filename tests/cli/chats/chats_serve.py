"""chats_serve.py make TMP: a tokenizer (TMP/tok), a template (TMP/form.jinja), conversations (TMP/talks.jsonl).
chats_serve.py serve TMP MODEL: what pserve makes of these conversations, against the token file TMP/talks.bin."""
import json
import os
import struct
import sys

what, tmp = sys.argv[1:3]
END = "<|end|>"
FORM = ("{{ bos_token }}{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "
        "\"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}")
WORDS = "the model rank tree sum of layer head token page".split()


def call(name, arguments):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def talks():
    for i in range(10):
        w = WORDS[i:] + WORDS[:i]
        yield {"messages": [{"role": "user", "content": f"{w[0]} {w[1]}? <|end|>"},
                            {"role": "assistant", "content": f"{w[2]} {i}.", "weight": 1 - i / 4},
                            {"role": "user", "content": w[3]}, {"role": "assistant", "content": w[4]}]}
    arguments = {"city": "Paris \u2764", "days": 3}
    for a in (arguments, json.dumps(arguments)):                    # an object and OpenAI's text: the same tokens
        yield {"messages": [{"role": "user", "content": "rain?"},
                            {"role": "assistant", "content": None, "tool_calls": [call("rain", a)]},
                            {"role": "tool", "tool_call_id": "call_1", "content": "no"},
                            {"role": "assistant", "content": "No."}],
               "tools": [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object"}}}]}


def alphabet():
    """The letters that stand for bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b if b in plain else 256 + rest.index(b)) for b in range(256)]


if what == "make":
    letters = alphabet()
    merges = ["t h", "th e", "o f", "\u0120 t", "r a", "< a"]
    vocab = {c: i for i, c in enumerate(letters + [m.replace(" ", "") for m in merges])}
    added = [{"id": 300 + i, "content": c, "special": True} for i, c in enumerate(("<|begin|>", END))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    os.makedirs(f"{tmp}/tok", exist_ok=True)
    json.dump({"added_tokens": added, "pre_tokenizer": level, "decoder": {"type": "ByteLevel"},
               "model": {"type": "BPE", "vocab": vocab, "merges": merges}}, open(f"{tmp}/tok/tokenizer.json", "w"))
    json.dump({"bos_token": "<|begin|>", "eos_token": {"content": END}}, open(f"{tmp}/tok/tokenizer_config.json", "w"))
    open(f"{tmp}/form.jinja", "w").write(FORM)
    with open(f"{tmp}/talks.jsonl", "w") as f:
        f.writelines(json.dumps(t) + "\n" for t in talks())
    sys.exit(0)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from serve_server import Server, claim, finish                      # noqa: E402


def documents(path):
    """The conversations of a token file (text/TOKENS.md)."""
    data = open(path, "rb").read()
    width, count, _, n, block = struct.unpack_from("<I4Q", data, 12)
    at = 64 + (count * width + 7) // 8 * 8 + 8 * -(-count * width // block)
    ends = struct.unpack_from(f"<{n}Q", data, at)
    ids = struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", data, 64)
    return [list(ids[a:b]) for a, b in zip((0,) + ends, ends)]


def post(s, path, **body):
    status, data, _ = s.request("POST", path, body)
    return json.loads(data) if status == 200 else {"error": data}


trained = documents(f"{tmp}/talks.bin")
s = Server(sys.argv[3])
for i, talk in enumerate(talks()):
    for m in talk["messages"]:
        m.pop("weight", None)
    whole = post(s, "/tokenize", add_generation_prompt=False, **talk)
    claim(f"conversation {i}: what was trained on is what the server reads", whole.get("tokens") == trained[i],
          f"{whole} {trained[i]}")
claim("it begins with the begin token, and texts cannot end it",
      trained[0][0] == 300 and trained[0].count(301) == 4, trained[0])
claim("arguments are one in either form", trained[10] == trained[11], trained[10:])
messages = [{"role": "user", "content": "the model?"}]
ids = post(s, "/tokenize", messages=messages)["tokens"]
chat = post(s, "/v1/chat/completions", messages=messages, temperature=0, max_tokens=12)
plain = post(s, "/v1/completions", prompt=ids, temperature=0, max_tokens=12)
claim("a chat is answered behind the template's prompt",
      chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
      and chat["usage"]["prompt_tokens"] == len(ids), f"{chat} {plain}")
finish()

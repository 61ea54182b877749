"""serve_vectors.py MODEL TMP CHAT - every vector of the reference in the folder CHAT, its messages sent to
/tokenize: a byte model's tokens are the text's bytes, then two special tokens. What the API cannot express
(contents that are objects) and what the template forbids is a 400. Calls whose arguments are a text, and several
in one message, become what the template expects (text/tools/history.c), so their text is not the reference's."""
import json
import shutil
import sys
from serve_server import Server, claim, finish

model, tmp, chat = sys.argv[1:4]
rows = [json.loads(line) for line in open(f"{chat}/vectors.jsonl")]


def sent(s, row):
    body = dict(messages=row["messages"], add_generation_prompt=row["add_generation_prompt"],
                chat_template_kwargs=row["extra"] or None)
    status, data, _ = s.request("POST", "/tokenize",
                                {k: v for k, v in dict(body, tools=row["tools"] or None).items()
                                 if v is not None})
    return status, json.loads(data)


def check(s, i, row):
    said = "messages" if "error" in row or any(isinstance(m["content"], dict) for m in row["messages"]) else None
    status, answer = sent(s, row)
    calls = [m["tool_calls"] for m in row["messages"] if m.get("tool_calls")]
    if any(len(c) > 1 or isinstance(c[0]["function"]["arguments"], str) for c in calls):
        return claim(f"vector {i} is taken, or refused by name", status == 200 or answer["error"]["param"] == said,
                     (status, answer))
    if said:
        return claim(f"vector {i} is refused by name", status == 400 and answer["error"]["param"] == said,
                     (status, answer))
    special = {256: row["bos_token"], 257: row["eos_token"]}
    text = b"".join(special[t].encode() if t in special else bytes([t]) for t in answer.get("tokens", ()))
    claim(f"vector {i} has the reference's text", status == 200 and text == row["text"].encode(),
          (row["text"], answer))


def rewrite(path, **changes):
    old = json.load(open(path))
    with open(path, "w") as f:
        json.dump(dict(old, **changes), f)


for name in sorted({r["template"] for r in rows}):
    mine = [(i, r) for i, r in enumerate(rows) if r["template"] == name]
    folder = f"{tmp}/{name}"
    shutil.copytree(model, folder)
    shutil.copy(f"{chat}/{name}.jinja", f"{folder}/chat_template.jinja")
    bos, eos = mine[0][1]["bos_token"], mine[0][1]["eos_token"]
    rewrite(f"{folder}/tokenizer_config.json", bos_token=bos, eos_token=eos)
    rewrite(f"{folder}/tokenizer.json",
            added_tokens=[dict(id=256 + k, content=t, single_word=False, lstrip=False, rstrip=False,
                               normalized=False, special=True)
                                                      for k, t in enumerate((bos, eos))])
    s = Server(folder)
    if claim(f"{name}: starts", s.port is not None, b"".join(s.err)):
        for i, row in mine:
            check(s, i, row)
        s.stop()
claim("there were some", len(rows) >= 450, len(rows))
finish()

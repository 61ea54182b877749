"""serve_embeddings.py MODEL LAYOUT... - /v1/embeddings: the same bits in every layout, alone and among others; pooling,
dimensions, encodings, refusals; against transformers where the python ($PEER_PYTHON) has it."""
import base64
import json
import math
import os
import struct
import subprocess
import sys
from serve_server import Server, claim, finish, skip, together

model, *layouts = sys.argv[1:]
LONG = "".join(f"line {i}: {i * i} is the square of {i}\n" for i in range(12))
TEXTS = ["line 1", "a", LONG, [108, 105, 110, 101]]


def ask(s, **body):
    status, data, _ = s.request("POST", "/v1/embeddings", body)
    return status, json.loads(data)


def vectors(answer):
    return [d["embedding"] for d in answer[1]["data"]]


def bits(v):
    return struct.pack(f"<{len(v)}f", *v)


first = None
for what in layouts:
    s = Server(model, *what.split())
    if not claim(f"{what}: it starts", s.port is not None, s.err):
        continue
    got = {}
    for pooling in ("last", "mean"):
        status, a = ask(s, input=TEXTS, pooling=pooling)
        claim(f"{what}: {pooling}: a vector a text", status == 200 and [d["index"] for d in a["data"]] == [0, 1, 2, 3] and
              a["usage"]["prompt_tokens"] == sum(map(len, TEXTS)), a)
        got[pooling] = list(map(bits, vectors((status, a))))
        alone = [bits(vectors(r)[0]) for r in together([lambda t=t: ask(s, input=t, pooling=pooling) for t in TEXTS])]
        claim(f"{what}: {pooling}: alone and together the same", alone == got[pooling])
        raw = vectors(ask(s, input=LONG, pooling=pooling, normalize=False))[0]
        cut = vectors(ask(s, input=LONG, pooling=pooling, dimensions=5))[0]
        length = math.sqrt(sum(x * x for x in raw[:5]))
        claim(f"{what}: {pooling}: dimensions are cut, then normalised", len(cut) == 5 and all(
            abs(c - x / length) < 1e-6 for c, x in zip(cut, raw)), (cut, raw[:5]))
        coded = vectors(ask(s, input=LONG, pooling=pooling, encoding_format="base64"))[0]
        claim(f"{what}: {pooling}: base64 has the same floats", base64.b64decode(coded) == got[pooling][2])
    claim(f"{what}: last is the default", bits(vectors(ask(s, input=LONG))[0]) == got["last"][2])
    claim(f"{what}: last and mean differ", got["last"][2] != got["mean"][2])
    first = first or got
    claim(f"{what}: the same bits in every layout", got == first)
    for body, param, part in ((dict(), "input", "missing"), (dict(input=[]), "input", "input is empty"),
                              (dict(input="a", dimensions=10**5), "dimensions", "dimensions is 100000"),
                              (dict(input="a", pooling="max"), "pooling", "must be"),
                              (dict(input="a", encoding_format="hex"), "encoding_format", "must be"),
                              (dict(input="a", no_such=1), "no_such", "not known"),
                              (dict(input=["a", 3]), "input", "input[1] must be")):
        status, e = ask(s, **body)
        claim(f"{what}: {body} is refused by name", status == 400 and e["error"]["param"] == param and
              part in e["error"]["message"], e)
    rc, err = s.stop()
    claim(f"{what}: it ends well", rc == 0, (rc, err))

# a folder of sentence-transformers says how its vectors are made
os.mkdir(f"{model}/1_Pooling")
for name, x in (("1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}),
                ("modules.json", [{"path": "", "type": "sentence_transformers.models.Transformer"},
                                  {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])):
    with open(f"{model}/{name}", "w") as f:
        json.dump(x, f)
s = Server(model)
mine = vectors(ask(s, input=LONG))[0]
claim("its pooling is the default, and its length", mine == vectors(ask(s, input=LONG, pooling="mean", normalize=False))[0]
      and bits(vectors(ask(s, input=LONG, normalize=True))[0]) == first["mean"][2], mine[:5])
s.stop()

PEER = """
import json, sys, torch, transformers
m = transformers.AutoModel.from_pretrained(sys.argv[1], torch_dtype=torch.float32).eval()
m.save_pretrained(sys.argv[3])
with torch.no_grad():
    h = m(torch.tensor([list(sys.argv[2].encode())])).last_hidden_state[0].double()
n = torch.nn.functional.normalize
print(json.dumps([n(x, dim=0).tolist() for x in (h[-1], h.mean(0))]))
"""
peer = os.environ.get("PEER_PYTHON")
run = peer and subprocess.run([peer, "-c", PEER, model, LONG, f"{model}-bare"], capture_output=True, text=True, timeout=300)
if not run or run.returncode:
    skip("no transformers here: vectors were not compared with its own")
else:
    for pooling, theirs in zip(("last", "mean"), json.loads(run.stdout.splitlines()[-1])):
        ours = struct.unpack(f"<{len(theirs)}f", first[pooling][2])
        far = max(abs(a - b) for a, b in zip(ours, theirs))
        claim(f"{pooling}: transformers' vector", far < 2e-6, far)
    s = Server(f"{model}-bare")                  # what AutoModel saves has no head
    claim("a model without a head makes the same vectors", [bits(vectors(ask(s, input=LONG, pooling=p))[0]) for p in (
        "last", "mean")] == [first["last"][2], first["mean"][2]], s.err)
    status, e, _ = s.request("POST", "/v1/completions", dict(prompt="a"))
    claim("and no text", status == 400 and b"no head" in e, e)
    s.stop()
finish()

"""quant_reload.py A B VALUES KEYS - weights that lie as codes are reloaded: other codes, values, and back. Answers and
fingerprints are those of servers that were started with each, and B's answers go on while A's memory is freed."""
import json
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from serve_server import Server, claim, finish  # noqa: E402

a, b, values, keys = sys.argv[1:5]
ASK = dict(prompt="line 7: ", max_tokens=40, temperature=1, seed=5, ignore_eos=True, logprobs=0, return_token_ids=True)


def answer(s):
    x = s.complete(**ASK)
    return x["system_fingerprint"], x["choices"][0]["token_ids"], x["choices"][0]["logprobs"]["token_logprobs"]


def server(folder):
    return Server(folder, "--tp", 2, "--quantized", "codes", "--admin-key-file", keys)


fresh = {}
for folder in (b, values):
    s = server(folder)
    fresh[folder] = answer(s)
    s.stop()
s = server(a)
fresh[a] = answer(s)
claim("three sets of weights", len({x[0] for x in fresh.values()}) == 3, [x[0] for x in fresh.values()])
claim("codes are named in the fingerprint, values are not",
      [fresh[f][0].endswith("-grp") for f in (a, b, values)] == [True, True, False], fresh)
for i, folder in enumerate((b, a, values, b, a)):
    status, data, _ = s.request("POST", "/admin/reload", {"path": folder}, {"Authorization": "Bearer admin-key"})
    if not claim(f"reload {i + 1} is done", status == 200, (status, data)):
        continue
    claim(f"reload {i + 1} is told with its fingerprint", json.loads(data)["system_fingerprint"] == fresh[folder][0],
          data)
    for _ in range(3):
        claim(f"after reload {i + 1} the answers are those of a fresh server", answer(s) == fresh[folder],
              (answer(s), fresh[folder]))
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
finish()

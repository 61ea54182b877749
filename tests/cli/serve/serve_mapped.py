"""serve_mapped.py CHECKPOINT DIGEST - weights used as rows of mapped files give the tokens and log-probs of
packed ones, alone and in a batch, at tp 1 and 2, and also where matrices are packed and switched in the middle
of a stream; the fingerprint that is known late is the right one."""
import os
import sys
import time
from serve_server import Server, claim, finish, together

checkpoint, digest = sys.argv[1:3]
GREEDY = dict(max_tokens=90, temperature=0, logprobs=2, ignore_eos=True, return_token_ids=True)
requests = [dict(GREEDY, prompt=[(5 * i + 3 * k) % 256 for k in range(n)]) for i, n in enumerate((1, 3, 20, 150))]


def essence(answer):
    return [(c["text"], c["token_ids"], c["logprobs"]["token_logprobs"]) for c in answer["choices"]]


def answers(how, tp):
    """Of requests one by one, and together."""
    if how:
        os.environ["SHARDLINE_MAP"] = how
    else:
        os.environ.pop("SHARDLINE_MAP", None)
    server = Server(checkpoint, "--tp", tp)
    mapped = maps(server)
    got = [essence(server.complete(**r)) for r in requests]
    got += together([lambda r=r: essence(server.complete(**r)) for r in requests])
    last = server.complete(**requests[0])
    server.stop()
    return got, mapped, last["system_fingerprint"]


def maps(server):
    """Are weights mapped by the first process?"""
    return ".safetensors" in open(f"/proc/{server.p.pid}/maps").read()


want, mapped, fingerprint = answers("off", 1)
claim("nothing is mapped with SHARDLINE_MAP=off", not mapped)
claim("the fingerprint names the weights", digest[:8] in fingerprint, f"{fingerprint}, {digest}")
for how, tp in (("rows", 1), ("rows", 2), ("4", 1), (None, 1)):
    got, mapped, name = answers(how, tp)
    if tp == 1:
        claim(f"files are mapped ({how})", mapped)
    claim(f"the fingerprint is the same ({how}, tp {tp})", name == fingerprint, f"{name} {fingerprint}")
    for i, (g, w) in enumerate(zip(got, want)):
        claim(f"answer {i} has the same floats ({how}, tp {tp})", g == w, f"{str(g)[:300]} expected {str(w)[:300]}")
finish()

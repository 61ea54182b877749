"""serve_kv.py CHECKPOINT KIND few|family|all [ARGS...] - pages of keys and values in 8 bits: one answer has
the same bits alone, in a batch, for every chunk, from a cached beginning, when pages run out, and at every
layout. ARGS: what every server has, too."""
import json
import re
import sys
from serve_server import Server, claim, finish, together

checkpoint, kind, part = sys.argv[1:4]
more = sys.argv[4:]
base = [(7 * k * k + 3 * k) % 256 for k in range(400)]
prompts = [base[:n] for n in (1, 17, 64, 129, 250)] + [base[:200] + base[5:50]]
GREEDY = dict(max_tokens=12, temperature=0, logprobs=3, echo=True, ignore_eos=True, return_token_ids=True)
requests = [dict(prompt=p, **GREEDY) for p in prompts]
requests += [dict(requests[1], temperature=1.0, seed=11, n=3),
             dict(prompt=base[:90], **dict(GREEDY, echo=False))]
long = [dict(prompt=p[:50 + i], **dict(GREEDY, max_tokens=150)) for i, p in enumerate(prompts[2:] * 2)]


def essence(answer):
    return [(c["index"], c["text"], c["token_ids"], c["logprobs"]["token_logprobs"],
             c["logprobs"]["top_logprobs"]) for c in sorted(answer["choices"], key=lambda c: c["index"])]


def ask(server, request):
    return lambda: essence(server.complete(**request))


def compare(name, got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        claim(f"{name}: request {i} has the same floats", g == w, f"{str(g)[:300]} expected {str(w)[:300]}")


def cached(server, prompt):
    body = dict(prompt=prompt, max_tokens=1, temperature=0, ignore_eos=True)
    answer = json.loads(server.request("POST", "/v1/completions", body)[1])
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


s = Server(checkpoint, "--kv-dtype", kind, "--verbose", *more)
if not claim("the server starts", s.port, b"".join(s.err)):
    finish()
want = [ask(s, r)() for r in requests]
want_long = [ask(s, r)() for r in long]
fingerprint = s.complete(prompt=base[:3], max_tokens=1)["system_fingerprint"]
claim("the fingerprint names the kind", fingerprint.endswith("-kv-" + kind), fingerprint)
compare("all at once", together([ask(s, r) for r in requests]), want)
claim("a beginning is found", cached(s, base[:250]) >= 192, cached(s, base[:250]))
again = dict(requests[4], echo=False)
compare("behind a cached beginning", [[c[1:3] for c in essence(s.complete(**again))]],
        [[(c[1][-len(c2[1]):], c[2]) for c, c2 in zip(want[4], essence(s.complete(**again)))]])
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
claim("the log names the kind", re.search(f"pages of 64 tokens in {kind}", err), err)

SERVERS = [("tp 4, chunks of 70", ("--tp", 4, "--prefill-chunk", 70)),
           ("tp 2, few pages", ("--tp", 2, "--ctx", 320, "--kv-memory", 800000, "--verbose")),
           ("drafts", ("--speculate", "ngram", "--prefill-chunk", 50))]
if part == "all":
    SERVERS += [("chunks of 7", ("--tp", 2, "--prefill-chunk", 7)),
                ("chunks of 1, batches of 2", ("--prefill-chunk", 1, "--max-batch", 2)),
                ("tp 8, three threads", ("--tp", 8, "--threads", 3)), ("tp 2", ("--tp", 2)),
                ("cp 2", ("--cp", 2, "--prefill-chunk", 200)), ("pp 2", ("--pp", 2)),
                ("cp 2 on two machines", ("--cp", 2, "--ranks-per-node", 1, "--prefill-chunk", 200)),
                ("no prefix cache", ("--prefix-cache", "off", "--prefill-chunk", 64)),
                ("replicas", ("--replicas", 2)),
                ("its own draft model", ("--speculate", f"{checkpoint}:4"))]
for name, args in SERVERS:
    if "pages" in name and kind == "bf16":
        continue
    s = Server(checkpoint, "--kv-dtype", kind, *args, *more)
    if not claim(f"{name}: starts", s.port is not None, b"".join(s.err)):
        continue
    compare(name, together([ask(s, r) for r in requests]), want)
    if part == "all" or "pages" in name:
        compare(name, together([ask(s, r) for r in long]), want_long)
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, f"{rc}: {err}")
    if "pages" in name and part != "family":
        claim("pages ran out", " 0 preempted" not in err and "preempted" in err, err)
finish()

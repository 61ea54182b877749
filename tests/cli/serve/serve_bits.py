"""serve_bits.py CHECKPOINT EVAL.jsonl all|few|experts - a token's log-prob has the same bits at every tp,
alone and in any batch, for every prefill chunk, with experts cut by tp or whole, when pages run out, and as
in ptrain --eval-logprobs. SERVE_BITS=all: also with exactly 31 others, at every tp, in every dtype."""
import http.client
import json
import os
import re
import sys
import time
from serve_server import Server, bits, claim, finish, together

checkpoint, eval_file = sys.argv[1:3]
every = os.environ.get("SERVE_BITS") == "all"
part = sys.argv[3]                           # few: another dtype runs the same code
windows = [json.loads(line) for line in open(eval_file)]
prompts = [w["ids"] for w in windows[:6]] + [windows[0]["ids"][:1], windows[1]["ids"][:17],
                                             (windows[2]["ids"] * 4)[:200]]
GREEDY = dict(max_tokens=12, temperature=0, logprobs=3, echo=True, ignore_eos=True, return_token_ids=True)
DRAWN = dict(GREEDY, temperature=1.0, top_p=0.95, seed=11, n=3)
requests = [dict(prompt=p, **GREEDY) for p in prompts] + [dict(prompt=p, **DRAWN) for p in prompts[4:]]


def essence(answer):
    return [(c["index"], c["text"], c["token_ids"], c["logprobs"]["token_logprobs"],
             c["logprobs"]["top_logprobs"], c["finish_reason"])
            for c in sorted(answer["choices"], key=lambda c: c["index"])]


def ask(server, request):
    return lambda: essence(server.complete(**request))


def compare(name, got, want):
    for i, (g, w) in enumerate(zip(got, want)):
        claim(f"{name}: request {i} has the same tokens and the same floats", g == w,
              f"{str(g)[:300]} expected {str(w)[:300]}")


def running(server):
    return int(re.search(r"^vllm:num_requests_running\{.*\} (\d+)",
                         server.request("GET", "/metrics")[1].decode(), re.M).group(1))


def crowd(name, server, n_others=31):
    """Requests, one at a time, while n_others of other lengths decode all the time; those disconnect at the
    end."""
    others = [http.client.HTTPConnection(server.host, server.port, timeout=120) for _ in range(n_others)]
    for i, c in enumerate(others):
        body = dict(prompt=[(7 * i + k * k) % 256 for k in range(1 + 5 * i)], temperature=1, seed=i,
                    ignore_eos=True, max_tokens=1800)
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    begin = time.monotonic()
    while running(server) < n_others and time.monotonic() - begin < 60:
        time.sleep(0.01)
    for i in (0, 5, len(prompts) - 1):
        before, got, after = running(server), ask(server, requests[i])(), running(server)
        claim(f"{name}: request {i} with {n_others} others", got == want[i],
              f"{str(got)[:300]} expected {str(want[i])[:300]}")
        # one more: the one that just ended
        claim(f"{name}: they were there", all(n_others <= x <= n_others + 1 for x in (before, after)),
              (before, after))
    for c in others:
        c.close()


s = Server(checkpoint, "--tp", 1)
want = [ask(s, r)() for r in requests]
for i in range(6):
    got = [None if x is None else bits(x) for x in want[i][0][3][:len(prompts[i])]]
    ref = [None if x is None else bits(x) for x in windows[i]["logprobs"]]
    claim(f"window {i}: the log-probs are the trainer's, bit for bit", got == ref,
          f"{got[:4]} expected {ref[:4]}")
claim("three drawn answers to one prompt differ", len({str(c[1]) for c in want[len(prompts)]}) == 3,
      str([c[1] for c in want[len(prompts)]])[:200])
compare("tp 1, all at once", together([ask(s, r) for r in requests]), want)
batch = essence(s.complete(prompt=prompts, **GREEDY))
compare("tp 1, one request of many prompts", [[(0, *c[1:])] for c in batch], want[:len(prompts)])
scored = essence(s.complete(prompt=prompts, **dict(GREEDY, max_tokens=0)))
compare("tp 1, scored without an answer", [c[3] for c in scored],
        [w[0][3][:len(p)] for w, p in zip(want, prompts)])
long = [dict(prompt=p[:50 + i], **dict(GREEDY, max_tokens=150)) for i, p in enumerate(prompts[:6])]
want_long = [ask(s, r)() for r in long]
if every:
    crowd("tp 1", s)
rc, err = s.stop()
claim("the server ends well", rc == 0, f"{rc}: {err}")

DENSE = [("chunks of 7", ("--tp", 1, "--prefill-chunk", 7)),
         ("chunks of 1, batches of 2", ("--tp", 2, "--prefill-chunk", 1, "--max-batch", 2)),
         ("tp 2", ("--tp", 2)),
         ("tp 4, three threads", ("--tp", 4, "--threads", 3)),
         ("tp 8, chunks of 50", ("--tp", 8, "--prefill-chunk", 50)),
         ("tp 2, few pages", ("--tp", 2, "--ctx", 256, "--kv-memory", 1200000, "--verbose"))]
EXPERTS = [("ep 4, chunks of 7", ("--tp", 4, "--ep", 4, "--prefill-chunk", 7)),
           ("ep 2, few pages", ("--tp", 2, "--ep", 2, "--ctx", 256, "--kv-memory", 1200000, "--verbose")),
           ("tp 4, no prefix cache", ("--tp", 4, "--prefix-cache", "off")),
           ("ep 2, chunks of 1, batches of 2",
            ("--tp", 2, "--ep", 2, "--prefill-chunk", 1, "--max-batch", 2)),
           ("ep 2, no prefix cache", ("--tp", 2, "--ep", 2, "--prefix-cache", "off")),
           ("ep 4, three threads", ("--tp", 4, "--ep", 4, "--threads", 3)),
           ("ep 8, chunks of 50", ("--tp", 8, "--ep", 8, "--prefill-chunk", 50)),
           ("ep 4, few pages", ("--tp", 4, "--ep", 4, "--ctx", 256, "--kv-memory", 1200000, "--verbose"))]
servers = (DENSE + EXPERTS if every and part == "experts" else EXPERTS[:2] if part == "experts" else DENSE
           if every or part == "all" else DENSE[3:])

for name, args in servers:
    s = Server(checkpoint, *args)
    if not claim(f"{name}: starts", s.port is not None, b"".join(s.err)):
        continue
    compare(name, together([ask(s, r) for r in requests]), want)
    if "pages" in name:
        compare(name, together([ask(s, r) for r in long]), want_long)
    elif every and "--max-batch" not in args:
        crowd(name, s)
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, f"{rc}: {err}")
    if "pages" in name:
        claim("pages ran out", " 0 preempted" not in err and "preempted" in err, err)
finish()

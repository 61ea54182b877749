"""serve_window.py CHECKPOINT EVAL.jsonl LAYERS - sequences of 1,100 tokens through a window of 150, in pools
that hold fewer tokens: the trainer's bits. LAYERS: how many of the three have no window."""
import json
import sys
from serve_server import Server, bits, claim, finish, together

checkpoint, eval_file, whole = sys.argv[1], sys.argv[2], int(sys.argv[3])
windows = [json.loads(line) for line in open(eval_file)]
LAYER = 2 * 2 * 64 * 8 * 4        # of a page: kv heads, keys and values, positions, head_dim, fp32


def pool(window_pages, ctx):
    return "--ctx", ctx, "--kv-memory", ((3 - whole) * window_pages + whole * ctx // 64) * LAYER


want = None
for name, args in (("all pages", ()),
                   ("6 pages, chunks of 64", ("--prefill-chunk", 64, *pool(6, 2048), "--verbose")),
                   ("9 pages, chunks of 200, no cache, tp 2",
                    ("--tp", 2, "--prefill-chunk", 200, *pool(9, 1152), "--prefix-cache", "off"))):
    s = Server(checkpoint, *args)
    if not claim(f"{name}: starts", s.port is not None, s.err):
        continue
    for i, w in enumerate(windows[:2]):
        got = s.complete(prompt=w["ids"], max_tokens=0, echo=True,
                         logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
        claim(f"{name}: window {i} has the trainer's bits",
              [bits(x) for x in got[1:]] == [bits(x) for x in w["logprobs"][1:]] and len(got) > 1000)
    jobs = [lambda w=w, n=n: s.complete(prompt=w["ids"][:n], max_tokens=400, temperature=0, ignore_eos=True,
                                        logprobs=1, return_token_ids=True)["choices"][0]
            for w in windows[:2] for n in (700, 40, 130, 300)]
    got = [(c["token_ids"], c["logprobs"]["token_logprobs"]) if isinstance(c, dict) else c
           for c in together(jobs)]
    want = want or got
    claim(f"{name}: eight answers at once are the same", got == want, str(got)[:300])
    cached = [s.complete(prompt=windows[0]["ids"][:700], max_tokens=1, temperature=0, logprobs=1)
              for _ in range(2)]
    claim(f"{name}: again, perhaps from the cache, the same",
          cached[0]["choices"][0]["logprobs"] == cached[1]["choices"][0]["logprobs"])
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, (rc, err))
finish()

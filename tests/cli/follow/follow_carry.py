"""follow_carry.py TMP many|small|none PSERVE-OPTION… - weights are swapped in mode keep while answers run.

many: their contexts are computed with the new weights before each swap, a few rows behind it; every token's
log-prob is the trainer's at its version, bit for bit. small: the pool does not hold an answer twice, and all
of it is computed again. none: nor does this layout carry anything over. ADAPTER: the answers are those of this
adapter, which the options name a."""
import http.client
import json
import os
import re
import subprocess
import sys
import threading
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from serve_server import Server, bits, claim, finish  # noqa: E402

tmp, many, args, adapter = sys.argv[1], sys.argv[2] == "many", sys.argv[3:], os.environ.get("ADAPTER")
BIN = os.environ["BIN"]
added = ["--lora-init", adapter] if adapter else []
dtype = "bf16" if "bf16" in args else "fp32"
N, LEAST = (1, 1100) if sys.argv[2] == "small" else (3, 40)
steps = {v: f"{tmp}/run/step-{v}" for v in (1, 2, 3)}


def figures(s):
    """Rows of running answers that were carried over, and that were computed again."""
    text = s.request("GET", "/metrics")[1].decode()
    return [sum(int(x) for x in re.findall(rf"^shardline:swap_{what}_rows_total{{.*}} (\d+)$", text, re.M))
            for what in ("carried", "recomputed")]


class Stream(threading.Thread):
    """An answer that is long enough for two swaps; `there` is notified of every token. end(): closes the
    connection."""

    def __init__(self, s, i):
        super().__init__(daemon=True)
        self.s, self.i, self.there = s, i, threading.Condition()
        self.ends = False
        self.fault, self.prompt, self.ids, self.versions, self.logprobs = b"", [], [], [], []
        self.start()

    def run(self):
        c = http.client.HTTPConnection(self.s.host, self.s.port, timeout=120)
        body = dict(prompt=list(b"line %d: " % self.i * (self.i + 1)), max_tokens=1980, temperature=1, seed=self.i,
                    ignore_eos=True, logprobs=0, return_token_ids=True, stream=True,
                    model="a" if adapter else "m")
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            with self.there:
                self.fault = r.read()
                self.there.notify()
        for line in r:
            if self.ends:
                break
            if not line.startswith(b"data: {"):
                continue
            for x in json.loads(line[6:], parse_float=str)["choices"]:
                with self.there:
                    self.prompt = x.get("prompt_token_ids") or self.prompt
                    self.ids += x["token_ids"]
                    self.versions += x["token_versions"]
                    self.logprobs += (x.get("logprobs") or {}).get("token_logprobs") or []
                    self.there.notify()
        c.close()

    def end(self):
        self.ends = True
        self.join(60)

    def wait(self, n):
        with self.there:
            return self.there.wait_for(lambda: len(self.ids) >= n or self.fault, 60) and not self.fault


def trainer_bits(version, conversations):
    with open(f"{tmp}/eval.jsonl", "w") as f:
        for ids in conversations:
            f.write(json.dumps({"ids": ids}) + "\n")
    subprocess.run([f"{BIN}/ptrain", "--eval-only", "--init", steps[version], "--eval-data", f"{tmp}/eval.jsonl",
                    "--seq-len", str(max(map(len, conversations))), "--global-batch", "1", "--threads", "1", "--dtype", dtype,
                    "--eval-logprobs", f"{tmp}/eval.out", *added], check=True, capture_output=True)
    return [[None if x is None else bits(x) for x in json.loads(line, parse_float=str)["logprobs"]]
            for line in open(f"{tmp}/eval.out")]


def reload(s, v):
    status, data, _ = s.request("POST", "/admin/reload", dict(path=steps[v], version=v, mode="keep"),
                                {"Authorization": "Bearer key"})
    return claim(f"version {v} is taken", status == 200, data)


def check(streams):
    n = same = 0
    for v in steps:
        want = trainer_bits(v, [x.prompt + x.ids for x in streams])
        for x, w in zip(streams, want):
            for i, version in enumerate(x.versions):
                if version == v:
                    n += 1
                    same += bits(x.logprobs[i]) == w[len(x.prompt) + i]
    claim("every token's log-prob is the trainer's at its version, bit for bit",
          n == same == sum(len(x.ids) for x in streams), (n, same))


with open(f"{tmp}/key", "w") as f:
    f.write("key\n")
# room for every answer twice, with windows too: their pool has a few pages a sequence
s = Server(steps[1], "--admin-key-file", f"{tmp}/key", "--max-batch", 2 * N + 2 if many else N + 1,
           "--ctx", 2048, *args)
claim("the server starts", s.port is not None, b"".join(s.err).decode()) or finish()
streams = [Stream(s, i) for i in range(N)]
claim("they run", all(x.wait(LEAST) for x in streams), [x.fault or len(x.ids) for x in streams]) or finish()
reload(s, 2)
if many:
    first = figures(s)
    claim("contexts were carried over", first[0] >= N * LEAST, first)
    claim("few rows were computed again behind the swap", first[1] <= first[0] // 2, first)
    late = Stream(s, 7)                          # one that comes between two swaps
    late.wait(20)
    streams.append(late)
for x in streams:
    x.wait(len(x.ids) + 20)
reload(s, 3)
if many:
    second = figures(s)
    claim("and at the next swap", second[0] - first[0] >= N * LEAST, (first, second))
else:
    carried, again = figures(s)
    claim("nothing is carried over", carried == 0 and again >= LEAST, (carried, again))
for x in streams:
    x.wait(len(x.ids) + 20)
    x.end()
claim("answers have all three versions, in order", all(x.versions == sorted(x.versions) for x in streams)
      and all(set(x.versions) == {1, 2, 3} for x in streams[:N]), [set(x.versions) for x in streams])
check(streams)
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
finish()

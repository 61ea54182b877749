"""follow_all.py TMP LAYOUT… - 20 versions of the weights taken under the load of 64 clients, at a layout
other than the trainer's: every answer names its versions, and its log-probs are the trainer's at its version,
bit for bit. Then kill -9 of either side in the middle of a transfer: a whole version is served before and
after."""
import json
import os
import re
import subprocess
import sys
import threading
import time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from live_server import Live, left_in_memory     # noqa: E402
from serve_server import Server, bits, claim, finish  # noqa: E402

tmp, layout = sys.argv[1], sys.argv[2:]
BIN, CLIENTS = os.environ["BIN"], 64
dtype = "bf16" if "bf16" in layout else "fp32"   # of the arithmetic; the trainer's weights are fp32
steps = sorted(int(d[5:]) for d in os.listdir(f"{tmp}/run") if re.fullmatch(r"step-\d+", d))


def folder(v):
    return f"{tmp}/run/step-{v}"


def digest_of(v):
    out = subprocess.run([f"{BIN}/reshard", "digest", folder(v)], capture_output=True, text=True).stdout
    return re.search(r"^weights_digest (\w+)", out, re.M).group(1)


digest = {v: digest_of(v) for v in steps}


def served(s):
    return json.loads(s.request("GET", "/v1/models")[1])["data"][0]["weight_version"]


def wait_served(s, v, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and served(s) != v:
        time.sleep(0.02)
    return claim(f"version {v} is taken", served(s) == v, b"".join(s.err).decode()[-500:])


class Client(threading.Thread):
    """One request after another, of other lengths and seeds."""

    def __init__(self, s, i):
        super().__init__(daemon=True)
        self.s, self.i, self.ends, self.answers, self.wrong = s, i, False, [], []
        self.start()

    def run(self):
        k = 0
        while not self.ends:
            k += 1
            try:
                self.answers.append(self.s.complete(
                    prompt=f"line {self.i * 31 + k}: ", max_tokens=4 + (self.i * 7 + k) % 29, temperature=1,
                    seed=self.i, ignore_eos=True, logprobs=0, return_token_ids=True))
            except (RuntimeError, OSError, ValueError) as e:
                self.wrong.append(str(e))


def trainer_bits(v, conversations):
    with open(f"{tmp}/eval.jsonl", "w") as f:
        for ids in conversations:
            f.write(json.dumps({"ids": ids}) + "\n")
    subprocess.run([f"{BIN}/ptrain", "--eval-only", "--init", folder(v), "--eval-data", f"{tmp}/eval.jsonl",
                    "--seq-len", "63", "--global-batch", "16", "--threads", "1", "--dtype", dtype,
                    "--eval-logprobs", f"{tmp}/eval.out"], check=True, capture_output=True)
    return [[None if x is None else bits(x) for x in json.loads(line, parse_float=str)["logprobs"]]
            for line in open(f"{tmp}/eval.out")]


live = Live()
live.publish(steps[0], folder(steps[0]), digest[steps[0]])
s = Server(live.url, "--follow", *layout)
claim("the server starts", s.port is not None, b"".join(s.err).decode())
clients = [Client(s, i) for i in range(CLIENTS)]
for v in steps[1:]:
    n = sum(len(c.answers) for c in clients)
    live.publish(v, folder(v), digest[v])
    wait_served(s, v)
    while sum(len(c.answers) for c in clients) < n + CLIENTS // 2 and s.p.poll() is None:
        time.sleep(0.02)                         # some answers of every version
for c in clients:
    c.ends = True
for c in clients:
    c.join(120)
answers = [a for c in clients for a in c.answers]
claim("no request failed", not any(c.wrong for c in clients), [c.wrong for c in clients if c.wrong][:2])

# a choice whose tokens all have one version was scored by it alone
pure = {v: [] for v in steps}
mixed = 0
for a in answers:
    c = a["choices"][0]
    versions = c["token_versions"]
    claim("every token names a version, in order", len(versions) == len(c["token_ids"])
          and versions == sorted(versions) and versions[-1:] in ([], [a["weight_version"]]), versions)
    mixed += len(set(versions)) > 1
    for v in set(versions):
        pure[v].append((c["prompt_token_ids"] + c["token_ids"], len(c["prompt_token_ids"]), versions,
                        [bits(x) for x in c["logprobs"]["token_logprobs"]]))
n = same = 0
for v in steps:
    want = trainer_bits(v, [p[0] for p in pure[v]]) if pure[v] else []
    for (_, prompt, versions, got), w in zip(pure[v], want):
        for i, version in enumerate(versions):
            if version == v:                     # with those before it as they are, at this version
                n += 1
                same += got[i] == w[prompt + i]
claim("the log-prob of every token is the trainer's at its version, bit for bit", n == same > 0, (n, same))
claim("there are answers of every version", all(pure[v] for v in steps), {v: len(p) for v, p in pure.items()})
print(f"{len(answers)} answers of {len(steps)} versions, {mixed} of them with two or more, {n} tokens",
      file=sys.stderr)

# ---- kill -9 of either side in the middle of a transfer ----
live.publish(1000, folder(steps[0]), digest[steps[0]])
wait_served(s, 1000)
for k in range(4):
    live.hold.clear()
    live.asked.clear()
    live.publish(1001 + k, folder(steps[k % 2]), digest[steps[k % 2]])
    live.asked.wait(30)
    port, was = live.port, served(s)
    live.stop()
    live.hold.set()
    a = s.complete(prompt="line 5: ", max_tokens=5, temperature=0, logprobs=0, return_token_ids=True)
    claim(f"killed trainer {k}: a whole old version is served", a["weight_version"] == was == 1000 + k, a)
    live = Live(port)
    live.publish(1001 + k, folder(steps[k % 2]), digest[steps[k % 2]])
    wait_served(s, 1001 + k)
for k in range(3):
    live.hold.clear()
    live.asked.clear()
    v = steps[-1 - k % 2]
    live.publish(2000 + k, folder(v), digest[v])
    live.asked.wait(30)
    for pid in s.ranks().values():
        os.kill(pid, 9)
    s.wait(30)
    live.hold.set()
    s = Server(live.url, "--follow", *layout)
    a = s.complete(prompt="line 5: ", max_tokens=5, temperature=0, logprobs=0, return_token_ids=True)
    claim(f"killed server {k}: the next one has a whole version",
          a["system_fingerprint"].endswith(digest[v]) and a["weight_version"] == 2000 + k, a)
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
claim("nothing is left in memory", not left_in_memory(live.url), left_in_memory(live.url))
finish()

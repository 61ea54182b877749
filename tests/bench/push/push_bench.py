"""push_bench.py CKPT [PSERVE-OPTION…] - how long a new version of the weights takes from its publication to
the first answer that names it, and the longest gap between two tokens of a stream meanwhile, beside the
longest gap of the same stream without a push. CKPT: a native checkpoint, published anew under higher
versions. PUSHES: how many. Needs the folder of tests/cli/lib in PYTHONPATH, and BIN."""
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from live_server import Live
from serve_server import Server

ckpt, args = sys.argv[1], sys.argv[2:]
pushes = int(os.environ.get("PUSHES", "5"))
out = subprocess.run([f"{os.environ['BIN']}/reshard", "digest", ckpt], capture_output=True, text=True).stdout
digest = re.search(r"^weights_digest (\w+)", out, re.M).group(1)
live = Live()
live.publish(1, ckpt, digest)
s = Server(live.url, "--follow", *args)


class Stream(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.times, self.ends = [], False
        self.start()

    def run(self):
        c = http.client.HTTPConnection(s.host, s.port, timeout=600)
        while not self.ends:
            body = dict(prompt=[5, 6, 7], max_tokens=int(os.environ.get("TOKENS", "64")), temperature=1,
                        seed=3, ignore_eos=True, stream=True)
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            self.times.append([])
            for line in c.getresponse():
                if line.startswith(b"data: {"):
                    self.times[-1].append(time.monotonic())
                if self.ends:
                    return


def gaps(stream, begin, end):
    """In ms, between tokens of one answer that come in this time."""
    return sorted((b - a) * 1e3 for t in stream.times for a, b in zip(t, t[1:]) if b > begin and a < end)


def served():
    return json.loads(s.request("GET", "/v1/models")[1])["data"][0]["weight_version"]


for beside in (False, True):
    stream = Stream() if beside else None
    time.sleep(2)
    quiet = 0
    if beside:
        now = time.monotonic()
        g = gaps(stream, now - 2, now)
        quiet = g[-1]
        print(f"a stream alone: median {g[len(g) // 2]:.1f} ms between tokens, at most {quiet:.1f} ms")
    for k in range(pushes):
        v = served() + 1
        sent, begin = live.sent, time.monotonic()
        live.publish(v, ckpt, digest)
        while served() != v:
            time.sleep(0.005)
        end = time.monotonic()
        time.sleep(1)
        line = f"push {k}: {end - begin:.2f} s, {(live.sent - sent) / 1e6:.0f} MB sent"
        if beside:
            g = gaps(stream, begin, end + 0.5)
            line += (f", gaps: median {g[len(g) // 2]:.1f} ms, 99 % {g[int(len(g) * 0.99)]:.1f} ms, "
                     f"longest {g[-1]:.1f} ms")
        print(line, flush=True)
    if stream:
        stream.ends = True
print("\n".join(x.decode().strip() for x in s.err if b"is served" in x))
s.stop()

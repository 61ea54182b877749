"""serve_start.py TMP - health while weights come slowly from a URL, a signal meanwhile, a context of
millions, threads with CPUs of their own."""
import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from serve_server import Server, bits, claim, finish

tmp = sys.argv[1]


class Slow(http.server.BaseHTTPRequestHandler):
    """A file server with ranges; large ones take their time."""
    pause_s = 0.08
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def log_message(self, *a):
        pass

    def do_GET(self):
        try:
            data = open(f"{tmp}/m" + self.path, "rb").read()
        except OSError:
            self.send_error(404)
            return
        lo, _, hi = (self.headers.get("Range") or f"bytes=0-{len(data) - 1}")[6:].partition("-")
        lo, hi = int(lo), min(int(hi or len(data) - 1), len(data) - 1)
        self.send_response(206 if self.headers.get("Range") else 200)
        for k, v in (("ETag", '"1"'), ("Content-Range", f"bytes {lo}-{hi}/{len(data)}"),
                     ("Content-Length", str(hi + 1 - lo))):
            self.send_header(k, v)
        self.end_headers()
        try:
            for at in range(lo, hi + 1, 1 << 18):
                if hi - lo > 1 << 16:
                    time.sleep(Slow.pause_s)
                self.wfile.write(data[at:min(at + (1 << 18), hi + 1)])
        except OSError:
            pass


class Files(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *a):
        """Clients that are killed disconnect."""


files = Files(("127.0.0.1", 0), Slow)
threading.Thread(target=files.serve_forever, daemon=True).start()
with socket.socket() as k:                       # a free port
    k.bind(("127.0.0.1", 0))
    port = k.getsockname()[1]

# ---- loading ----
s = Server(f"http://127.0.0.1:{files.server_port}/6", "--port", port, "--tp", 2, wait=False)
s.host, s.port = "127.0.0.1", port
seen, models, refused = [], None, None
while s.p.poll() is None and time.monotonic() - s.begin < 60:
    try:
        status, body, h = s.request("GET", "/health", timeout=5)
    except OSError:
        time.sleep(0.01)
        continue
    if status == 200:
        break
    j = json.loads(body)
    seen.append((status, j.get("progress"), h.get("retry-after"), j["error"]["message"]))
    models = models or s.request("GET", "/v1/models")[0]
    refused = refused or s.request("POST", "/v1/completions", {"prompt": "a"})[0]
    time.sleep(0.03)
progress = [x[1] for x in seen]
claim("health is 503 while weights are read", len(seen) > 2 and all(x[0] == 503 and x[2] for x in seen),
      seen[:3])
claim("with a progress that grows", progress == sorted(progress) and len(set(progress)) > 2
      and progress[0] < 1 and progress[-1] > 0, progress)
claim("everything else is a 503, too", models == 503 and refused == 503, (models, refused))
claim("then it is ready", s.health() == 200)
url = s.complete(prompt="line 7", max_tokens=5, temperature=0, logprobs=1)
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))

# ---- an end before it is ready ----
def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ended_early(layout, when):
    """when(server): returns when it is to end."""
    os.environ["SHARDLINE_CACHE"] = f"{tmp}/cache-{when.__name__}{'-'.join(layout)}"        # empty
    s = Server(f"http://127.0.0.1:{files.server_port}/6", "--port", port, *layout, wait=False)
    s.host, s.port, what = "127.0.0.1", port, f"{' '.join(layout)}: SIGTERM {when.__name__}"
    claim(f"{what}: comes before it is ready", when(s))
    ranks, begin = s.ranks(), time.monotonic()
    rc, err = s.stop()
    took = time.monotonic() - begin
    claim(f"{what}: ends within 10 s", took < 10, took)
    claim(f"{what}: status 1, and one line", rc == 1 and err.count("\n") == 1
          and "stopped by a signal while http" in err or
          # a busy machine: it had not even begun
          (when is at_once and rc == -signal.SIGTERM and not err), (rc, err))
    claim(f"{what}: no rank is left", not any(alive(p) for p in ranks.values()), ranks)


def at_once(s):
    time.sleep(0.1)
    return True


def while_it_reads(s):
    while s.p.poll() is None and time.monotonic() - s.begin < 60:
        try:
            status, body, _ = s.request("GET", "/health", timeout=5)
            if status == 200 or json.loads(body).get("progress", 0) > 0:
                return status == 503
        except OSError:
            pass
        time.sleep(0.01)
    return False


Slow.pause_s = 1
for layout in (("--tp", "1"), ("--tp", "2"), ("--tp", "1", "--replicas", "2")):
    for when in (at_once, while_it_reads):
        ended_early(layout, when)
Slow.pause_s = 0.08

# ---- a context of millions, positions far out ----
w = json.loads(open(f"{tmp}/eval.jsonl").readline())
s = Server(f"{tmp}/m/long", "--prefill-chunk", 1000, "--threads", 2)
claim("50 million positions are not waited for", s.port is not None and s.ready_s < 10, (s.ready_s, s.err))
local = s.complete(prompt="line 7", max_tokens=5, temperature=0, logprobs=1)
claim("a URL gives the answer of the folder", url["choices"] == local["choices"], (url, local))
claim("and the same weights, by name",
      url["system_fingerprint"] == local["system_fingerprint"] == "contract1-fp32-" + os.environ["DIGEST"],
      url)
got = s.complete(prompt=w["ids"], max_tokens=0, echo=True,
                 logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
claim("5,000 tokens have the trainer's log-probs, bit for bit", len(got) == len(w["ids"]) > 4900
      and [bits(x) for x in got[1:]] == [bits(x) for x in w["logprobs"][1:]])


def cpus():
    """Of every thread: the CPUs it may run on."""
    out = []
    for t in os.listdir(f"/proc/{s.p.pid}/task"):
        out += [line.split()[1] for line in open(f"/proc/{s.p.pid}/task/{t}/status")
                if line.startswith("Cpus_allowed_list")]
    return out


all_cpus = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cpus_allowed_list")][0]
if os.sched_getaffinity(0) and len(os.sched_getaffinity(0)) >= 2:
    tied = [c for c in cpus() if c != all_cpus]
    claim("the two threads that compute have CPUs of their own, others any", len(tied) == 2
          and len(set(tied)) == 2 and len(cpus()) > 3, cpus())
rc, err = s.stop()
claim("it ends well, too", rc == 0, (rc, err))
os.environ["SHARDLINE_PIN"] = "off"
s = Server(f"{tmp}/m/6", "--threads", 2, "--max-batch", 1)
claim("SHARDLINE_PIN=off leaves them all", set(cpus()) == {all_cpus}, cpus())

# ---- priorities: one place in the batch, and a request that may not wait ----
ends = {}


def ask(name, n, priority, choices=1):
    ends[name] = (s.complete(prompt="line 1", max_tokens=n, n=choices, temperature=0, ignore_eos=True,
                             logprobs=1, priority=priority)["choices"][0], time.monotonic())


ask("alone", 900, 0)
threads = [threading.Thread(target=ask, args=a) for a in (("late", 900, 5, 24), ("first", 20, -1))]
for t in threads:
    t.start()
    time.sleep(0.1)
for t in threads:
    t.join()
claim("a lower priority number takes the place of a running answer", ends["first"][1] < ends["late"][1],
      {k: v[1] for k, v in ends.items()})
claim("which has the bits it has alone", ends["late"][0] == ends["alone"][0])
s.stop()
finish()

"""serve_work.py CHECKPOINT - bodies that make work: others are answered meanwhile, the time limit ends the
work, and so does SIGTERM."""
import json
import re
import sys
import threading
import time
from serve_server import Server, claim, finish

checkpoint = sys.argv[1]
# of an answer that waits for nobody, on a loaded machine
SOON_S = 10
chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
slow = {"messages": [{"role": "slow", "content": "a"}], "max_tokens": 1}
names = {f"k{i}": i for i in range(80000)}


def ask(s, path, body, out=None):
    begin = time.monotonic()
    try:
        headers = {"Content-Type": "application/json"}
        status, data, _ = s.request("POST", path, body, headers)
    except OSError as e:                                         # the server has ended
        status, data = 0, repr(e).encode()
    got = status, data[:600].decode("utf-8", "replace"), time.monotonic() - begin
    if out is not None:
        out.append(got)
    return got


def begin(s, path, body, n):
    """n requests in threads of their own; their results."""
    out = []
    threads = [threading.Thread(target=ask, args=(s, path, body, out), daemon=True) for _ in range(n)]
    for t in threads:
        t.start()
    return threads, out


def peak_mib(s):
    return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{s.ranks()[0]}/status").read()).group(1)) >> 10


s = Server(checkpoint, "--tp", 1, "--ctx", 128)
claim("it starts", s.port is not None, s.err)

# ---- names ----
threads, out = begin(s, "/v1/chat/completions", {**chat, "chat_template_kwargs": names}, 2)
for path, body in (("/v1/chat/completions", chat), ("/tokenize", {"prompt": "a"})):
    status, data, took = ask(s, path, body)
    claim(f"{path} is answered beside two bodies of 80,000 names", status == 200 and took < SOON_S,
          (status, data, took))
for t in threads:
    t.join()
claim("80,000 names are taken in a moment", all(x[0] == 200 and x[2] < SOON_S for x in out), out)

# ---- lengths ----
for path, body, part in (("/tokenize", {"prompt":
    "ab" * 10000000}, "maximum context length"),
    ("/tokenize", {"messages": [{"role": "user", "content": "a" * 2000000}]}, "maximum context length"),
                         ("/detokenize", {"tokens": [97] * 1000000}, "maximum context length"),
                         ("/v1/completions", {"prompt": "a", "stop": "x" * 1025}, "1024"),
                         ("/v1/completions", {"prompt": "a", "stop": ["x", "y" * 2000000]}, "1024")):
    status, data, took = ask(s, path, body)
    claim(f"{path}: a length is refused at once, with its limit", status == 400 and part in data
          and took < SOON_S, (status, data, took))
got = ask(s, "/v1/completions", {"prompt": "a", "max_tokens": 1, "stop": "x" * 1024})
claim("a stop string of 1024 bytes is taken", got[0] == 200, got)

# ---- memory ----
before = peak_mib(s)
for body in (b'{"prompt":[' + b"[]," * 3000000 + b"[]]}",
             b'{"prompt":"a","metadata":[' + b"{}," * 3000000 + b"1]}",
             b'{"prompt":[' + b"1," * 10000000 + b"1]}"):
    status, data, took = ask(s, "/v1/completions", body)
    claim("many small values are refused", status == 400 and "are read here" in data, (status, data))
claim("and take no memory", peak_mib(s) - before < 200, (before, peak_mib(s)))

# ---- SIGTERM ----
# each takes about a second of one of three threads
threads, out = begin(s, "/v1/chat/completions", slow, 24)
deadline = time.monotonic() + 60
# the first has been rendered, others are waiting
while time.monotonic() < deadline and not out:
    time.sleep(0.02)
began = time.monotonic()
rc, err = s.stop(60)
claim("SIGTERM waits for no template", rc == 0 and time.monotonic() - began < 8,
      (rc, time.monotonic() - began, err))
for t in threads:
    t.join(10)
claim("what was waiting is told so", any(x[0] == 503 and "stopping" in x[1] for x in out), out)

# ---- the time limit ----
s = Server(checkpoint, "--tp", 1, "--ctx", 128, "--request-timeout", 0.05)
status, data, took = ask(s, "/v1/chat/completions", slow)
claim("a slow template ends with the time limit", status == 503 and "--request-timeout" in data,
      (status, data, took))
status, data, took = ask(s, "/tokenize", {"messages": slow["messages"]})
claim("/tokenize too", status == 503 and "--request-timeout" in data, (status, data, took))
text = s.request("GET", "/metrics")[1].decode()
claim("both are counted", sum(float(x)
                              for x in re.findall(r"^shardline:request_timeouts_total{[^}]*} (\S+)$", text,
                                                  re.M)) == 2, "")
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
finish()

"""serve_replicas.py CHECKPOINT [all] - the same bits from every replica, requests where their beginnings are
cached, disconnects, draining, ranks that die."""
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from serve_server import Server, claim, finish, together

checkpoint, every = sys.argv[1], sys.argv[2:] == ["all"]
layouts = (("--replicas", 3), ("--cp", 2, "--replicas", 2), ("--pp", 2, "--replicas", 2), ("--tp", 2, "--replicas", 2)) if every else (("--tp", 2, "--replicas", 2),
    ("--device", "cuda", "--replicas", 2))
# what --device cuda opens
os.environ["SHARDLINE_DEVICE"] = os.environ["BIN"] + "/../tests/devices/fake_device.so"
J = {"Content-Type": "application/json"}
BASE = dict(max_tokens=10, temperature=0, logprobs=2, return_token_ids=True, ignore_eos=True)
requests = [dict(BASE, prompt=f"line {i}: {i * i} is") for i in range(6)] + [
    dict(BASE, prompt="line 1", n=3, temperature=1.0, seed=5, top_p=0.9, top_k=50, min_p=0.01),
    dict(BASE, prompt=["line 2", [108, 105, 110]], echo=True, presence_penalty=0.5, frequency_penalty=0.5,
         repetition_penalty=1.1),
    dict(BASE, prompt="line 3", prompt_logprobs=1, logit_bias={"65": 3.5, "66": -100}, min_tokens=3,
         stop=["zz", "é"], stop_token_ids=[200, 201]),
    dict(BASE, prompt="line 4", max_tokens=0, echo=True),
    dict(BASE, prompt="line 5", cache_salt="tenant", priority=-3, return_tokens_as_token_ids=True)]


def essence(answer):
    return [{k: v for k, v in c.items()}
            for c in answer["choices"]], answer["usage"]["completion_tokens"], answer["system_fingerprint"]


def steps(s):
    time.sleep(0.5)                          # a replica sends its metrics a few times a second
    return [int(x) for x in re.findall(r'^shardline:steps_total\{[^}]*\} (\d+)$',
                                       s.request("GET", "/metrics")[1].decode(), re.M)]


one = Server(checkpoint)
want = [essence(one.complete(**r)) for r in requests]
one.stop()

for layout in layouts:
    s = Server(checkpoint, *layout, "--access-log", os.environ["TMPDIR"] + "/access")
    if not claim(f"{layout}: starts", s.port is not None and f"replicas={layout[-1]}," in s.line,
                 s.line + repr(s.err)):
        continue
    for again in range(layout[-1]):          # idle replicas take turns
        for i, r in enumerate(requests):
            got = essence(s.complete(**r))
            claim(f"{layout}: request {i} has the same bits, time {again}", got == want[i],
                  f"{str(got)[:300]} expected {str(want[i])[:300]}")
    claim("all at once, too", [essence(a) if isinstance(a, dict) else a
                               for a in together([lambda r=r: s.complete(**r) for r in requests])] == want)
    claim("every replica has worked", len(steps(s)) == layout[-1] and min(steps(s)) > 5, steps(s))
    for i in range(3):
        status, events = s.stream(**dict(BASE, prompt="line 1", n=2, temperature=0.8, seed=9,
                                         stream_options={"include_usage": True}))
        chunks = [json.loads(e, parse_float=str) for e, _ in events[:-1]]
        whole = s.complete(**dict(BASE, prompt="line 1", n=2, temperature=0.8, seed=9))
        claim("a stream joins to the answer",
              all("".join(c["choices"][0]["text"] for c in chunks if c["choices"]
                          and c["choices"][0]["index"] == k) ==
                                                  whole["choices"][k]["text"] for k in range(2))
                                                  and chunks[-1]["usage"]["completion_tokens"] == 20)
    for body, param in (({"prompt":
        "a", "x": 1}, "x"), ({"prompt": [300]}, "prompt"),
        ({"prompt": "a", "max_tokens": 10 ** 6}, "max_tokens")):
        status, data, _ = s.request("POST", "/v1/completions", body)
        claim(f"{param} is refused", status == 400 and json.loads(data)["error"]["param"] == param)

    # ---- requests go where their beginnings are cached ----
    long = ("line 2: 4 is the square of 2\n" * 12)[:300]
    found = [s.complete(prompt=long, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"]
             for _ in range(5)]
    claim("a beginning is found by every later request", found == [0, 256, 256, 256, 256], found)
    salted = [s.complete(prompt=long, max_tokens=2,
                         cache_salt="other")["usage"]["prompt_tokens_details"]["cached_tokens"]
                         for _ in range(2)]
    claim("but not under another salt", salted == [0, 256], salted)
    before = steps(s)
    together([lambda: s.complete(prompt=long, max_tokens=60, ignore_eos=True) for _ in range(40)])
    claim("too many for one replica are shared", min(b - a for a, b in zip(before, steps(s))) > 10,
          (before, steps(s)))

    # ---- clients that disconnect ----
    socks = []
    for i in range(8):
        k = socket.create_connection((s.host, s.port))
        body = json.dumps(dict(prompt="a", max_tokens=1000, ignore_eos=True, stream=i % 2 == 0,
                               n=16)).encode()
        k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        socks.append(k)
    time.sleep(0.5)
    for k in socks:
        k.close()
    begin = time.monotonic()
    running = [1]
    while sum(running) and time.monotonic() - begin < 10:
        time.sleep(0.3)
        text = s.request("GET", "/metrics")[1].decode()
        running = [int(x) for x in re.findall(r'^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\d+)$', text,
                                              re.M)]
    claim("nobody waits for clients that are gone", time.monotonic() - begin < 8, running)

    # ---- draining ----
    got = []
    threads = [threading.Thread(target=lambda: got.append(s.complete(prompt="b", max_tokens=300,
                                                                     ignore_eos=True)["usage"]["completion_tokens"])) for _ in range(6)]
    for t in threads:
        t.start()
    time.sleep(0.3)
    rc, err = s.stop()
    for t in threads:
        t.join()
    claim(f"{layout}: answers that were begun are finished, at every replica", got == [300] * 6, got)
    claim(f"{layout}: ends well", rc == 0
          and not [x for x in err.splitlines() if "goes between ranks through the host" not in x], (rc, err))
log = [json.loads(line) for line in open(os.environ["TMPDIR"] + "/access")]
claim("the log has every answer's tokens",
      sum(x.get("completion_tokens") == 300 for x in log) == 6 * len(layouts), len(log))

# ---- limits ----
s = Server(checkpoint, "--replicas", 2, "--max-requests", 2)
got = together([lambda: s.request("POST", "/v1/completions",
                                  json.dumps(dict(prompt="a", max_tokens=400, ignore_eos=True)), J)
                                  for _ in range(8)])
claim("limits count all replicas", sorted({g[0] for g in got}) == [200, 503]
      and sum(g[0] == 200 for g in got) <= 6 and
      all(g[2].get("retry-after") for g in got if g[0] == 503), [g[0] for g in got])
s.stop()


# ---- a rank that dies ----
def fault(layout, rank):
    s = Server(checkpoint, *layout)
    told = []

    def ask():
        while not told:
            try:
                s.complete(prompt="a", max_tokens=800, ignore_eos=True)
            except Exception as e:
                told.append(str(e))
    clients = [threading.Thread(target=ask) for _ in range(4)]
    for t in clients:
        t.start()
    time.sleep(0.5)
    ranks = s.ranks()
    begin = time.monotonic()
    os.kill(ranks[rank], signal.SIGKILL)
    rc, err = s.wait(20)
    took = time.monotonic() - begin
    for t in clients:
        t.join(10)
    claim(f"{layout}, rank {rank} killed: all end within 10 s", took < 10 and rc not in (0, "hung"),
          (took, rc))
    claim(f"{layout}, rank {rank} killed: one line says so", err.count("\n") == 1 and f"rank {rank}" in err,
          err)
    claim(f"{layout}, rank {rank} killed: clients are told", told and not any(t.is_alive() for t in clients)
          and (not rank or any("503" in x for x in told)), told)


fault(("--tp", 2, "--replicas", 2), 3)
if every:
    fault(("--replicas", 2), 1)
    fault(("--replicas", 2), 0)
finish()

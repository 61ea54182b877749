"""serve_faults.py CHECKPOINT - ranks that die or stop: one line, every client gets an answer, all processes
exit within 10 s, not with status 0."""
import http.client
import json
import os
import signal
import sys
import threading
import time
from serve_server import Server, claim, finish

checkpoint = sys.argv[1]
LONG = dict(prompt="a", max_tokens=1000, ignore_eos=True, temperature=0)


def end_by(name, s, ranks, rank, sig, clients):
    """A signal to one rank: every rank ends in time, one line says which it was."""
    begin = time.monotonic()
    os.kill(ranks[rank], sig)
    rc, err = s.wait(20)
    took = time.monotonic() - begin
    for t in clients:
        t.join(10)
    claim(f"{name}: all end within 10 s", took < 10, f"{took:.1f} s")
    claim(f"{name}: not as if all were well", rc not in (0, "hung"), rc)
    claim(f"{name}: one line says what happened", err.count("\n") == 1 and f"rank {rank}" in err, err)
    claim(f"{name}: no rank is left", not any(alive(p) for p in ranks.values()), ranks)


def fault(name, layout, rank, sig, busy):
    s = Server(checkpoint, *layout)
    if not claim(f"{name}: starts", s.port is not None, s.err):
        return
    got = []

    def ask():
        while not got:                       # one after the other, so that the fault happens during a request
            try:
                s.complete(**LONG)
            except Exception as e:
                got.append(str(e))
    clients = [threading.Thread(target=ask) for _ in range(2 if busy else 0)]
    ranks = s.ranks()
    for t in clients:
        t.start()
    time.sleep(0.5)
    end_by(name, s, ranks, rank, sig, clients)
    if busy:
        claim(f"{name}: clients are told", len(got) >= 1 and not any(t.is_alive() for t in clients), got)
        if rank:
            claim(f"{name}: with a 503", any("503" in g for g in got), got)


def under_load(rank, layout):
    """32 clients, half of them with streams, and a rank that is killed."""
    name = f"{' '.join(layout)}, rank {rank} killed while 32 clients are served"
    s = Server(checkpoint, *layout, "--threads", 1, "--max-batch", 32)
    if not claim(f"{name}: starts", s.port is not None, s.err):
        return
    ends, begun = [None] * 32, threading.Semaphore(0)

    def stream(i):
        c = http.client.HTTPConnection(s.host, s.port, timeout=30)
        try:
            c.request("POST", "/v1/completions",
                      json.dumps(dict(LONG, prompt=f"line {i}", max_tokens=1900, stream=True)),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            last = b""
            for line in r:
                begun.release() if not last else None
                last = line if line.startswith(b"data: {") else last
            ends[i] = (r.status, last)
        except (OSError, http.client.HTTPException) as e:
            ends[i] = (0, repr(e).encode())

    def whole(i):
        begun.release()
        try:
            status, data, _ = s.request("POST", "/v1/completions",
                                        dict(LONG, prompt=f"line {i}", max_tokens=1900), timeout=30)
            ends[i] = (status, data)
        except (OSError, http.client.HTTPException) as e:
            ends[i] = (0, repr(e).encode())
    clients = [threading.Thread(target=stream if i % 2 else whole, args=(i,), daemon=True) for i in range(32)]
    for t in clients:
        t.start()
    for _ in clients:
        begun.acquire(timeout=20)
    ranks = s.ranks()
    end_by(name, s, ranks, rank, signal.SIGKILL, clients)
    said = [e for e in ends if e and (e[0] == 503 or (e[0] == 200 and b'"error"' in e[1]))
            and b"stopping" in e[1]]
    claim(f"{name}: every client is told, in a 503 or an event", len(said) == 32
          and any(e[0] == 200 for e in said) and any(e[0] == 503 for e in said), (len(said), ends[:4]))


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


under_load(1, ("--tp", "2"))
under_load(1, ("--tp", "1", "--replicas", "2"))
fault("rank 1 killed while it computes", ("--tp", 2), 1, signal.SIGKILL, True)
fault("rank 1 of cp killed while it computes", ("--cp", 2), 1, signal.SIGKILL, True)
fault("the last stage killed while it computes", ("--pp", 2), 1, signal.SIGKILL, True)
fault("rank 3 killed while it idles", ("--cp", 2, "--pp", 2), 3, signal.SIGKILL, False)
fault("rank 0 killed while it computes", ("--tp", 2), 0, signal.SIGKILL, True)
fault("rank 1 stopped while it computes", ("--tp", 2), 1, signal.SIGSTOP, True)

s = Server(checkpoint, "--tp", 2)
other = Server(checkpoint, "--port", s.port, wait=False)        # the later --port counts
rc, err = other.wait()
claim("a port that is taken is one line and status 1", rc == 1 and err.count("\n") == 1
      and str(s.port) in err, (rc, err))
ranks = s.ranks()
begin = time.monotonic()
# the launcher itself, which cannot report anything
s.p.kill()
while any(alive(p) for p in ranks.values()) and time.monotonic() - begin < 15:
    time.sleep(0.05)
claim("ranks whose launcher is gone end", time.monotonic() - begin < 10, f"{time.monotonic() - begin:.1f} s")
finish()

"""serve_reload.py TMP - weights from a server that is slow, sends wrong bytes to one rank, or stops in the
middle: at a start, and in a reload beside streams, which must go on."""
import http.server
import json
import os
import sys
import threading
import time
from serve_server import Server, claim, finish

tmp = sys.argv[1]
UNIT = 65536                                     # bytes that are requested with a header
# two ranks with caches of their own, as on two machines
APART = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-n", "2", "bash", "-c",
         f'SHARDLINE_CACHE={tmp}/cache-$OMPI_COMM_WORLD_RANK-$RUN exec "$@"', "-"]


class Source(http.server.BaseHTTPRequestHandler):
    """/HOW/CHECKPOINT/FILE with ranges. Of weights: slow: 256 KiB take 0.25 s; one: the first answer has a
    wrong byte, others are right, and slow; rest: the first has a wrong byte, others never end; hang: none
    ends."""
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    lock, count, fault_s = threading.Lock(), 0, 0.0

    def log_message(self, *a):
        pass

    def do_GET(self):
        how, _, path = self.path.lstrip("/").partition("/")
        try:
            data = open(f"{tmp}/m/{path}", "rb").read()
        except OSError:
            self.send_error(404)
            return
        lo, _, hi = (self.headers.get("Range") or f"bytes=0-{len(data) - 1}")[6:].partition("-")
        lo, hi = int(lo), min(int(hi or len(data) - 1), len(data) - 1)
        body = bytearray(data[lo:hi + 1])
        self.send_response(206 if self.headers.get("Range") else 200)
        for k, v in (("ETag", '"1"'), ("Content-Range", f"bytes {lo}-{hi}/{len(data)}"),
                     ("Content-Length", str(len(body)))):
            self.send_header(k, v)
        self.end_headers()
        try:
            self.send(how, body, "/weights-" in path and len(body) > UNIT)
        except OSError:
            pass

    def send(self, how, body, weights):
        with Source.lock:
            Source.count += weights
            first = weights and Source.count == 1
        if first and how in ("one", "rest"):
            body[len(body) // 2] ^= 1
            self.wfile.write(body)
            Source.fault_s = time.monotonic()
        elif weights and how in ("hang", "rest"):
            self.wfile.write(body[:100])
            self.wfile.flush()
            Source.fault_s = Source.fault_s or time.monotonic()
            time.sleep(40)
        elif weights and how in ("slow", "one"):
            for at in range(0, len(body), 1 << 16):
                time.sleep(1 / 16)
                self.wfile.write(body[at:at + (1 << 16)])
        else:
            self.wfile.write(body)


class Files(http.server.ThreadingHTTPServer):
    daemon_threads = True


files = Files(("127.0.0.1", 0), Source)
threading.Thread(target=files.serve_forever, daemon=True).start()
runs = 0


def url(how, name):
    """Nothing of it is in a cache."""
    global runs
    runs += 1
    Source.count, Source.fault_s = 0, 0.0
    os.environ["RUN"] = str(runs)
    os.environ["SHARDLINE_CACHE"] = f"{tmp}/cache-{runs}"
    return f"http://127.0.0.1:{files.server_port}/{how}/{name}"


# ---- starts ----
def start_fails(what, how, apart, *words, within=10):
    s = Server(url(how, "a"), "--tp", 2, wait=False, launcher=APART if apart else ())
    rc, err = s.wait(50)
    took = time.monotonic() - Source.fault_s
    claim(f"{what}: the start fails", rc not in (0, "hung"), (rc, err))
    claim(f"{what}: within {within} s of the fault", took < within, took)
    claim(f"{what}: in one line that names {words}", err.count("\n") == 1 and all(w in err for w in words),
          err)


start_fails("a wrong byte for one rank", "one", True, "weights-00000.safetensors", "rank", "checksum")
start_fails("a wrong byte for one rank while the other waits for its bytes", "rest", True,
            "weights-00000.safetensors", "rank", "checksum")
start_fails("a wrong byte for ranks that share a cache", "one", False, "weights-00000.safetensors")
start_fails("a server that stops in the middle", "hang", True, "weights-00000.safetensors", within=45)


# ---- reloads beside streams ----
class Streams(threading.Thread):
    """One stream after another; the times between their tokens."""

    def __init__(self, s):
        super().__init__(daemon=True)
        self.s, self.ends, self.gaps, self.answers = s, False, [], []

    def run(self):
        while not self.ends:
            status, events = self.s.stream(prompt="line 7", max_tokens=400, temperature=1, seed=5,
                                           ignore_eos=True, return_token_ids=True)
            times = [t for _, t in events]
            self.gaps += [(b - a, b) for a, b in zip(times, times[1:])]
            self.answers.append([json.loads(e) for e, _ in events if e != "[DONE]"])

    def stop(self):
        self.ends = True
        self.join(60)


def ids_of(answer):
    return [i for e in answer for c in e.get("choices", ()) for i in c.get("token_ids") or ()]


def reload(s, path):
    begin = time.monotonic()
    status, data, _ = s.request("POST", "/admin/reload", {"checkpoint": path},
                                {"Authorization": "Bearer admin-key"}, timeout=60)
    return status, json.loads(data), begin, time.monotonic()


def never_long(gap, took):
    """Streams that wait for a reload wait for all of it; a busy machine makes them wait, too, but less
    long."""
    return gap is not None and gap < max(0.4, took / 2)


def longest_gap(streams, begin, end):
    return max((g for g, t in streams.gaps if begin < t - g / 2 < end), default=None)


for what, launcher, layout in (("one rank", (), ("--tp", 1)), ("ranks apart", APART, ("--tp", 2)),
                               ("replicas", (), ("--tp", 1, "--replicas", 2))):
    os.environ["RUN"] = "0"
    s = Server(f"{tmp}/m/a", *layout, "--threads", 1, "--admin-key-file", f"{tmp}/admin-keys",
               launcher=launcher)
    if not claim(f"{what}: starts", s.port is not None, s.err):
        continue
    ask = dict(prompt="line 7", max_tokens=400, temperature=1, seed=5, ignore_eos=True, return_token_ids=True)
    old = s.complete(**ask)["choices"][0]["token_ids"]
    os.environ["RUN"] = "1"

    def beside(how, name):
        """A reload, the streams beside it, the longest gap between their tokens until the new weights are
        there."""
        streams = Streams(s)
        streams.start()
        time.sleep(0.5)
        status, answer, begin, end = reload(s, url(how, name))
        time.sleep(0.5)
        streams.stop()
        return streams, status, answer, end - begin, longest_gap(streams, begin, end)

    # ranks keep the cache they were started with, so a fault must come first
    for how, word in (("one", "checksum"), ("hang", "weights-0000"))[:2 if launcher else 1]:
        streams, status, answer, took, gap = beside(how, "b")
        claim(f"{what}, {how}: refused", status == 400 and word in answer["error"]["message"],
              (status, answer))
        claim(f"{what}, {how}: it took {took:.1f} s, streams never waited long", never_long(gap, took), gap)
        claim(f"{what}, {how}: and have the old weights", all(ids_of(a) == old for a in streams.answers),
              len(streams.answers))
    streams, status, answer, took, gap = beside("slow", "b")
    print(f"{what}: a reload of {took:.2f} s, the longest gap of a stream {gap * 1000:.0f} ms",
          file=sys.stderr)
    claim(f"{what}: done", status == 200
          and answer["system_fingerprint"] == "contract1-fp32-" + os.environ["B"], (status, answer))
    claim(f"{what}: it took {took:.1f} s, streams never waited long", took > 1 and never_long(gap, took),
          (took, gap))
    new = s.complete(**ask)["choices"][0]["token_ids"]
    mixed = [ids_of(a) for a in streams.answers if "+" in (a[-1].get("system_fingerprint") or "")]
    claim(f"{what}: an answer has both weights", new != old and len(mixed) >= (1 if what != "replicas" else 0)
          and all(ids_of(a) in ([old, new] + mixed) for a in streams.answers), len(mixed))
    for ids in mixed:
        d = next((i for i, (x, y) in enumerate(zip(ids, old)) if x != y), len(ids))
        rest = s.complete(prompt=list(b"line 7") + ids[:d], max_tokens=len(ids) - d, temperature=1, seed=5,
                          ignore_eos=True, return_token_ids=True) if d < len(ids) else None
        claim(f"{what}: the old weights' tokens, and then the new ones'", rest is None
              or rest["choices"][0]["token_ids"] == ids[d:], d)
    rc, err = s.stop()
    # another launcher has an exit status of its own
    claim(f"{what}: ends well", rc == 0 or launcher, (rc, err))

# ---- no memory for both weights ----
# for two ranks that serve, not for the buffers of two that read
os.environ["SHARDLINE_MEMORY_ROOM"] = "130000000"
s = Server(f"{tmp}/m/a", "--tp", 2, "--kv-memory", "1MiB", "--admin-key-file", f"{tmp}/admin-keys")
del os.environ["SHARDLINE_MEMORY_ROOM"]
old = s.complete(prompt="line 7", max_tokens=5, temperature=0)["system_fingerprint"]
status, answer, _, _ = reload(s, f"{tmp}/m/b")
claim("a reload that memory is too small for is refused before it is begun", status == 503
      and "there are 123" in answer["error"]["message"], (status, answer))
claim("and the old weights serve on",
      s.complete(prompt="line 7", max_tokens=5, temperature=0)["system_fingerprint"] == old)
s.stop()

# ---- an end in the middle of a reload ----
s = Server(f"{tmp}/m/a", "--tp", 2, "--admin-key-file", f"{tmp}/admin-keys")
told = []
operator = threading.Thread(target=lambda: told.append(reload(s, url("hang", "b"))), daemon=True)
operator.start()
while not Source.fault_s:
    time.sleep(0.02)
begin = time.monotonic()
rc, err = s.stop()
operator.join(10)
claim("a server that is to end does not wait for a reload", rc == 0 and time.monotonic() - begin < 10,
      (rc, err, time.monotonic() - begin))
claim("which is told so", told and told[0][0] == 503, told)
finish()

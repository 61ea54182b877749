"""serve_limits.py CHECKPOINT - --request-timeout (alone, with replicas), --receive-timeout, request_id and
X-Request-Id."""
import json
import re
import socket
import sys
import time
from serve_server import Server, claim, finish, together

checkpoint = sys.argv[1]
LIMIT_S = 0.6
# far more than the limit allows: many answers at a time, up to the end of the context
LONG = dict(prompt="a", max_tokens=1900, n=16, ignore_eos=True, temperature=0)


def gauge(s, name):
    text = s.request("GET", "/metrics")[1].decode()
    return sum(float(x) for x in re.findall(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", text, re.M))


def settled(s):
    """Nothing runs, no page is held."""
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if gauge(s, "vllm:num_requests_running") == gauge(s, "vllm:num_requests_waiting") == gauge(s,
            "vllm:kv_cache_usage_perc") == 0:
            return True
        time.sleep(0.05)
    return False


# ---- requests that take too long ----
for layout in (("--tp", 1), ("--tp", 1, "--replicas", 2)):
    s = Server(checkpoint, *layout, "--request-timeout", LIMIT_S, "--threads", 1)
    if not claim(f"{layout}: starts", s.port is not None, s.err):
        continue

    def whole():
        begin = time.monotonic()
        status, data, h = s.request("POST", "/v1/completions", LONG)
        return status, json.loads(data), h, time.monotonic() - begin

    def stream():
        begin = time.monotonic()
        status, events = s.stream(**LONG)
        return status, [e for e, _ in events], time.monotonic() - begin
    got = together([whole, stream, whole, stream])               # every replica has some of each
    for i in (0, 2):
        status, body, h, took = got[i]
        claim(f"{layout}: what has not begun to answer is a 503", status == 503
              and "--request-timeout" in body["error"]["message"] and h.get("retry-after"), got[i])
        claim(f"{layout}: at its time", LIMIT_S <= took < LIMIT_S + 1, took)
    for i in (1, 3):
        status, events, took = got[i]
        begun = (status == 200 and len(events) > 2
                 and "--request-timeout" in json.loads(events[-2])["error"]["message"]
                 and events[-1] == "[DONE]")
        claim(f"{layout}: a stream ends with an error event", begun or status == 503, (status, events[-2:]))
        claim(f"{layout}: at its time, too", LIMIT_S <= took < LIMIT_S + 1, took)
    claim(f"{layout}: places and pages are free again", settled(s))
    claim(f"{layout}: they are counted", gauge(s, "shardline:request_timeouts_total") == 4,
          gauge(s, "shardline:request_timeouts_total"))
    short = s.complete(prompt="a", max_tokens=5, temperature=0, ignore_eos=True)
    claim(f"{layout}: a short one is answered", short["usage"]["completion_tokens"] == 5, short)
    rc, err = s.stop()
    claim(f"{layout}: ends well", rc == 0, (rc, err))

# ---- requests that do not arrive ----
s = Server(checkpoint, "--receive-timeout", 1)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps(dict(prompt="a", max_tokens=3)).encode()


def trickle(first, drops):
    """Sends a byte now and then; seconds until the server has closed."""
    with socket.create_connection((s.host, s.port)) as c:
        c.sendall(first)
        begin = time.monotonic()
        c.settimeout(0.2)
        for i in range(40):
            try:
                c.sendall(drops[i:i + 1])
                if not c.recv(4096):
                    break
            except socket.timeout:
                continue
            except OSError:
                break
        return time.monotonic() - begin


def patient():
    """Two requests on one connection, with more than the limit between them and before the first."""
    with socket.create_connection((s.host, s.port)) as c:
        f, said = c.makefile("rb"), []
        for _ in range(2):
            time.sleep(1.5)
            c.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
            said.append(f.readline())
            n = 0
            while (line := f.readline()) not in (b"\r\n", b""):
                n = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else n
            f.read(n)
        return said


head, body, longer, calm = together([lambda: trickle(HEAD + b"X-Slow: ", b"x" * 40),
                                     lambda: trickle(HEAD + b"Content-Length: 4000\r\n\r\n", b" " * 40),
                                     lambda: s.complete(**dict(LONG, n=8,
                                                               max_tokens=1500))["usage"]["completion_tokens"], patient])
claim("a head that does not end is cut off", 0.5 < head < 3, head)
claim("a body that does not end, too", 0.5 < body < 3, body)
claim("an answer may take longer", longer == 8 * 1500, longer)
claim("a connection may rest between requests", [x[9:12] for x in calm] == [b"200", b"200"], calm)
claim("and the server lives on", s.complete(prompt="a", max_tokens=2)["object"] == "text_completion")

# ---- names ----
def named(header=None, **more):
    status, data, h = s.request("POST", "/v1/completions", dict(prompt="a", max_tokens=1, **more),
                                {"X-Request-Id": header} if header else None)
    return status, json.loads(data), h["x-request-id"]


status, a, name = named()
claim("a request has a name of its own", status == 200 and re.fullmatch("cmpl-[0-9a-f]{32}", a["id"])
      and name == a["id"], (a["id"], name))
status, a, name = named(request_id="run.7:x")
claim("request_id stands in the answer's id", a["id"] == "cmpl-run.7:x" and name == a["id"], (a["id"], name))
status, a, name = named("from-header", request_id="run.7")
claim("the header goes before it, and comes back", a["id"] == "cmpl-from-header" and name == "from-header",
      (a["id"], name))
status, a, name = named("two words", request_id="run.8")
claim("a header that cannot be a name is left alone", a["id"] == "cmpl-run.8" and name == a["id"],
      (a["id"], name))
for bad in ("", "x" * 65, "two words", "line\n", 7, ["x"], {}):
    status, a, _ = named(request_id=bad)
    claim(f"request_id {bad!r:.20} is refused", status == 400 and a["error"]["param"] == "request_id",
          (status, a))
claim("null says nothing", named(request_id=None)[0] == 200)
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
finish()

"""serve_admin.py TMP - POST /admin/reload: refusals keep the old weights, requests in work go on, the bits
after it are the new checkpoint's; TLS."""
import http.server
import json
import os
import ssl
import sys
import threading
import urllib.request
from serve_server import Server, claim, finish, together

tmp = sys.argv[1]
ADMIN = {"Authorization": "Bearer admin-key"}
long = ("line 2: 4 is the square of 2\n" * 12)[:300]
ask = dict(prompt=long, max_tokens=8, temperature=0, ignore_eos=True, logprobs=3, return_token_ids=True)


def essence(a):
    return [(c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"])
            for c in a["choices"]]


def reload(s, checkpoint, headers=ADMIN, **more):
    status, data, h = s.request("POST", "/admin/reload", dict(checkpoint=checkpoint, **more), headers)
    return status, json.loads(data), h


def cached(a):
    return a["usage"]["prompt_tokens_details"]["cached_tokens"]


class Nothing(http.server.BaseHTTPRequestHandler):
    """A server without files, which answers when it is told to."""
    asked, may = threading.Event(), threading.Event()

    def do_GET(self):
        self.asked.set()
        self.may.wait(10)
        self.send_error(404)
    do_HEAD = do_GET

    def log_message(self, *a):
        pass


far = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
threading.Thread(target=far.serve_forever, daemon=True).start()


# ---- what is expected ----
s = Server(f"{tmp}/b")
want = s.complete(**ask)
status, e, _ = reload(s, f"{tmp}/a")
claim("without --admin-key-file nobody may reload", status == 403
      and e["error"]["type"] == "permission_error", e)
s.stop()

# what --device cuda opens; it reports a thread that touches its memory out of turn
os.environ["SHARDLINE_DEVICE"] = os.environ["BIN"] + "/../tests/devices/fake_device.so"
for layout in (("--tp", 1), ("--pp", 2, "--replicas", 2), ("--tp", 2, "--device", "cuda")):
    s = Server(f"{tmp}/a", *layout, "--api-key-file", f"{tmp}/keys", "--admin-key-file", f"{tmp}/admin-keys")
    if not claim(f"{layout}: starts", s.port is not None, s.err):
        continue
    key = {"Authorization": "Bearer api-key"}

    def complete(**body):
        status, data, _ = s.request("POST", "/v1/completions", body, key)
        j = json.loads(data, parse_float=str)
        if status != 200:
            raise RuntimeError(f"{status}: {j}")
        return j

    old = complete(**ask)
    claim("the old weights name themselves", old["system_fingerprint"] == "contract1-fp32-" + os.environ["A"],
          old["system_fingerprint"])

    # ---- refusals ----
    claim("nobody reloads without a key", reload(s, f"{tmp}/b", {})[0] == 401)
    claim("nor with a key of the API", reload(s, f"{tmp}/b", key)[0] == 401)
    claim("an operator's key opens nothing else", s.request("POST", "/v1/completions", ask, ADMIN)[0] == 401)
    for what, body, param, word in (("no checkpoint", {}, "checkpoint", ""), ("a number", {"checkpoint":
        1}, "checkpoint", ""), ("an empty path", {"checkpoint": ""}, "checkpoint", ""),
                                    ("a NUL in it", {"checkpoint": f"{tmp}/b\0x"}, None, ""),
                                    ("a very long one", {"checkpoint": "x" * 5000}, "checkpoint", ""),
                                    ("another field", {"checkpoint": f"{tmp}/b", "mode": 1}, "mode", ""),
                                    ("a list", [1], None, "object"),
                                    ("what is not there", {"checkpoint": f"{tmp}/none"}, "checkpoint",
                                     "none"), ("another shape", {"checkpoint": f"{tmp}/other/step-1"},
                                               "checkpoint", "in the model that is served"),
                                    ("a damaged one", {"checkpoint": f"{tmp}/bad"}, "checkpoint",
                                     "weights-00003")):
        status, data, _ = s.request("POST", "/admin/reload", body, ADMIN)
        e = json.loads(data)["error"]
        claim(f"{what} is refused", status == 400 and (what == "a NUL in it" or e["param"] == param)
              and word in e["message"], (status, e))
    got = s.request("GET", "/admin/reload", headers=ADMIN)
    claim("a GET is not a reload", got[0] == 405, got)
    Nothing.asked.clear()
    Nothing.may.clear()
    told = []
    operator = threading.Thread(target=lambda: told.append(reload(s,
                                                                  f"http://127.0.0.1:{far.server_port}/m")))
    operator.start()
    Nothing.asked.wait(10)
    complete(prompt="x", max_tokens=3)
    claim("nobody waits for a URL that does not answer", not told, told)
    Nothing.may.set()
    operator.join()
    claim("which is refused in the end", told[0][0] == 400
          and "manifest.json" in told[0][1]["error"]["message"], told)
    same = complete(**ask)
    claim("after them the old weights serve on", essence(same) == essence(old)
          and same["system_fingerprint"] == old["system_fingerprint"])

    # ---- while requests run ----
    result = {}

    def run(i):
        result[i] = complete(prompt=f"line {i}", max_tokens=1900, temperature=0, ignore_eos=True)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    complete(prompt="x", max_tokens=1)               # after the first of them
    both = together([lambda: reload(s, f"{tmp}/b"), lambda: reload(s, f"{tmp}/b")])
    claim("a reload is done, two at once are one after the other or refused",
          sorted(b[0] for b in both) in ([200, 200], [200, 409]), both)
    done = [b[1] for b in both if b[0] == 200][0]
    claim("it says what is served now", done["system_fingerprint"] == "contract1-fp32-" + os.environ["B"]
          and done["seconds"] > 0, done)
    for t in threads:
        t.join()
    claim("requests in work go on", len(result) == 4
          and all(r["usage"]["completion_tokens"] == 1900 for r in result.values()))
    marks = {r["system_fingerprint"] for r in result.values()}
    mixed = f"contract1-fp32-{os.environ['A']}+contract1-fp32-{os.environ['B']}"
    # of a request that ended before, or began after
    alone = {f"contract1-fp32-{os.environ[x]}" for x in "AB"}
    claim("and name both, where they had begun", mixed in marks and marks <= {mixed} | alone, marks)
    new = complete(**ask)
    claim("new answers are the new checkpoint's, bit for bit", essence(new) == essence(want)
          and essence(new) != essence(old))
    claim("they name it", new["system_fingerprint"] == want["system_fingerprint"] == "contract1-fp32-" +
          os.environ["B"])
    claim("no page of the old weights is found", cached(new) == 0 and cached(complete(**ask)) == 256,
          (cached(new)))
    claim("back again", reload(s, f"{tmp}/a")[0] == 200 and essence(complete(**ask)) == essence(old))
    rc, err = s.stop()
    claim(f"{layout}: ends well", rc == 0, (rc, err))
    claim("the log tells of every reload", err.count("loaded in") >= 2 and err.count("is refused") >= 3, err)

# ---- TLS ----
if os.path.exists(f"{tmp}/cert.pem"):
    s = Server(f"{tmp}/a", "--tls-cert", f"{tmp}/cert.pem", "--tls-key", f"{tmp}/key.pem", "--tp", 2)
    claim("it says https", "https://127.0.0.1:" in s.line, s.line + repr(s.err))
    port = s.line.split("127.0.0.1:")[1].split(" ")[0]
    trust = ssl.create_default_context(cafile=f"{tmp}/cert.pem")

    def post(body, context=trust):
        r = urllib.request.Request(f"https://localhost:{port}/v1/completions", json.dumps(body).encode(),
                                   {"Content-Type": "application/json"})
        return urllib.request.urlopen(r, context=context, timeout=60).read()
    got = json.loads(post(ask), parse_float=str)
    claim("an answer comes over TLS", essence(got) == essence(old))
    events = [line for line in post(dict(ask, stream=True, max_tokens=300)).split(b"\n\n") if line]
    claim("and a stream", len(events) == 301 and events[-1] == b"data: [DONE]", len(events))
    try:
        post(ask, ssl.create_default_context())
        claim("a client that does not know the certificate stays away", False)
    except OSError as e:
        claim("a client that does not know the certificate stays away", "CERTIFICATE" in str(e).upper(), e)
    s.host, s.port = "127.0.0.1", int(port)
    claim("plain HTTP gets nothing", s.health() != 200)
    claim("and the server lives on", essence(json.loads(post(ask), parse_float=str)) == essence(old))
    rc, err = s.stop()
    claim("it ends well", rc == 0, (rc, err))
finish()

"""follow.py TMP - a server that follows a trainer: it takes every version, whole or not at all; answers and
tokens name theirs, and have the bits that ptrain computes for it; what runs at a swap goes on, ends with the
old weights, or is aborted. live_server.py stands in for the trainer's end."""
import json
import os
import subprocess
import sys
import threading
import time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from live_server import Live, left_in_memory     # noqa: E402
from serve_server import Server, bits, claim, finish, together  # noqa: E402

tmp = sys.argv[1]
BIN = os.environ["BIN"]
ADMIN = {"Authorization": "Bearer admin-key"}
ASK = dict(prompt="line 7: ", max_tokens=12, temperature=1, seed=5, ignore_eos=True, logprobs=0,
           return_token_ids=True)


def digest_of(folder):
    out = subprocess.run([f"{BIN}/reshard", "digest", folder], capture_output=True, text=True).stdout
    return next(line.split()[1] for line in out.splitlines() if line.startswith("weights_digest "))


steps = {v: f"{tmp}/run/step-{v}" for v in (1, 2, 3, 4)}
digest = {v: digest_of(f) for v, f in steps.items()}


def wait_for(what, ready, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if ready():
            return True
        time.sleep(0.01)
    return claim(what, False, "not within 30 s")


def model(s):
    return json.loads(s.request("GET", "/v1/models")[1])["data"][0]


def serves(s, version):
    return wait_for(f"version {version} is taken", lambda: model(s)["weight_version"] == version)


def post(s, path, body=None, headers=ADMIN):
    status, data, _ = s.request("POST", path, {} if body is None else body, headers)
    return status, json.loads(data)


def gauge(s, name):
    """A figure of /metrics, of all replicas."""
    lines = s.request("GET", "/metrics")[1].decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))


def log_of(s):
    return b"".join(s.err).decode()


def trainer_bits(version, conversations):
    """ptrain's log-probs of tokens, as bits, for each list of ids: at this version, on two ranks."""
    with open(f"{tmp}/eval.jsonl", "w") as f:
        for ids in conversations:
            f.write(json.dumps({"ids": ids}) + "\n")
    subprocess.run([f"{BIN}/ptrain", "--eval-only", "--init", steps[version], "--eval-data",
                    f"{tmp}/eval.jsonl", "--seq-len", "512", "--ranks", "2", "--tp", "2", "--threads", "1",
                    "--eval-logprobs", f"{tmp}/eval.out"], check=True, capture_output=True)
    return [[None if x is None else bits(x) for x in json.loads(line, parse_float=str)["logprobs"]]
            for line in open(f"{tmp}/eval.out")]


def check_bits(what, answers):
    """Each answer's log-probs are the trainer's at its version."""
    for version in sorted({a["weight_version"] for a in answers}):
        mine = [a for a in answers if a["weight_version"] == version]
        choices = [c for a in mine for c in a["choices"]]
        want = trainer_bits(version, [c["prompt_token_ids"] + c["token_ids"] for c in choices])
        for c, w in zip(choices, want):
            got = [bits(x) for x in c["logprobs"]["token_logprobs"]]
            claim(f"{what}: log-probs of version {version} are the trainer's, bit for bit",
                  got == w[len(c["prompt_token_ids"]):][:len(got)], (got[:4], w[-len(got):][:4]))


class Stream(threading.Thread):
    """A long answer as a stream; begun is set at its first token."""

    def __init__(self, s, **more):
        super().__init__(daemon=True)
        self.s, self.more, self.begun, self.events, self.times = s, more, threading.Event(), [], []
        self.start()

    def run(self):
        import http.client
        c = http.client.HTTPConnection(self.s.host, self.s.port, timeout=120)
        body = {**ASK, "max_tokens": 1200, "stream": True, "stream_options": {"include_usage": True},
                **self.more}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        for line in c.getresponse():
            if line.startswith(b"data: {"):
                self.events.append(json.loads(line[6:]))
                self.times.append(time.monotonic())
                self.begun.set()
        c.close()

    def tokens(self):
        self.join(120)
        ids, versions = [], []
        for e in self.events:
            for c in e["choices"]:
                ids += c["token_ids"]
                versions += c["token_versions"]
        return ids, versions

    def finish(self):
        return [c["finish_reason"] for e in self.events for c in e["choices"] if c["finish_reason"]]


def begun(s, **more):
    x = Stream(s, **more)
    x.begun.wait(60)
    return x


# ---- following ----
live = Live()
live.publish(1, steps[1], digest[1])
os.environ["SHARDLINE_CACHE"] = f"{tmp}/cache"
s = Server(live.url, "--follow", "--tp", 2, "--admin-key-file", f"{tmp}/admin-keys")
claim("it starts from what is published", s.port is not None, log_of(s))
first = s.complete(**ASK)
claim("and names it", first["weight_version"] == 1 and digest[1] in first["system_fingerprint"]
      and first["choices"][0]["token_versions"] == [1] * 12, first)
claim("nothing goes to the cache on disk", not os.path.exists(f"{tmp}/cache"), os.listdir(tmp))
claim("so does /v1/models", model(s)["weight_version"] == 1
      and model(s)["weights_digest"] == digest[1], model(s))
x = begun(s)
live.publish(2, steps[2], digest[2])
serves(s, 2)
second = s.complete(**ASK)
check_bits("followed", [first, second])
ids, versions = x.tokens()
claim("a stream goes on through the swap, and its tokens name both versions", len(ids) == 1200
      and versions == sorted(versions) and set(versions) == {1, 2}, (len(ids), set(versions)))
at = versions.index(2)
rest = s.complete(**dict(ASK, prompt=list(b"line 7: ") + ids[:at], max_tokens=40))
claim("from there on they are those of the new weights", rest["choices"][0]["token_ids"] == ids[at:at + 40])
usage = x.events[-1]
claim("the last event, with the usage, names the version", usage["usage"]["completion_tokens"] == 1200
      and usage["weight_version"] == 2, usage)
status, data, _ = s.request("POST", "/inference/v1/generate", {
    "token_ids": list(b"line"), "sampling_params": {"max_tokens": 3, "temperature": 0}})
ids = json.loads(data)
claim("answers of ids have them too", ids["choices"][0]["token_versions"] == [2] * len(
    ids["choices"][0]["token_ids"]) and ids["weight_version"] == 2, ids)

# ---- the trainer's end, a transfer that breaks, a torn read, another digest ----
def cut_once(path, lo, body):
    if "weights-" in path and len(body) > 65536:
        live.fault = None
        raise ConnectionError
    return body


live.fault = cut_once
live.publish(3, steps[3], digest[3])
serves(s, 3)
live.hold.clear()
live.asked.clear()
live.publish(4, steps[4], digest[4])
live.asked.wait(20)
port = live.port
live.stop()                                      # killed in the middle of a transfer
live.hold.set()
wait_for("the log says that it cannot be reached", lambda: "the URL asked again" in log_of(s))
claim("a whole old version is served on", s.complete(**ASK)["weight_version"] == 3)
live = Live(port)
old = open(f"{steps[3]}/weights-00000.safetensors", "rb").read()
live.fault = lambda path, lo, body: old[lo:lo + len(body)] if "weights-00000" in path else body
live.publish(4, steps[4], digest[4])
wait_for("a torn read is refused", lambda: "version 4 is refused" in log_of(s))
claim("in one line", log_of(s).count("version 4 is refused") == 1, log_of(s))
claim("and the old version is served on", s.complete(**ASK)["weight_version"] == 3)
live.fault = None
serves(s, 4)
claim("until it is whole", s.complete(**ASK)["system_fingerprint"].endswith(digest[4]))
live.publish(2, steps[2], digest[2])
live.publish(5, steps[2], digest[3])
wait_for("another digest is refused", lambda: "version 5 is refused" in log_of(s))
claim("with both", f"has weights_digest {digest[2]}, {digest[3]} is expected" in log_of(s), log_of(s))
live.publish(6, steps[1], digest[1])
serves(s, 6)
claim("a newer one is taken all the same", s.complete(**ASK)["choices"][0]["token_ids"]
      == first["choices"][0]["token_ids"])
claim("one line a version", all(log_of(s).count(f"version {v} is served") == 1 for v in (2, 3, 4, 6)),
      log_of(s))
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
claim("and leaves nothing in memory", not left_in_memory(live.url), left_in_memory(live.url))

# ---- orders of an operator ----
s = Server(steps[1], "--replicas", 2, "--admin-key-file", f"{tmp}/admin-keys")
claim("without a key a push is refused", post(s, "/admin/reload", {"path": steps[2]}, {})[0] == 401)
for what, body, param, words in (
        ("another digest", dict(path=steps[2], expect_digest=digest[3]), "expect_digest",
         f"has weights_digest {digest[2]}, {digest[3]} is expected"),
        ("no digest", dict(path=steps[2], expect_digest="abc"), "expect_digest", "32 hex digits"),
        ("a version before it", dict(path=steps[2], version=0), "version", "version 0 with weights_digest"),
        ("its own version of other weights", dict(path=steps[2], version=1, expect_digest=digest[2]),
         "version", "give a higher version"),
        ("a negative version", dict(path=steps[2], version=-3), "version", "whole number"),
        ("a version that JSON's readers round", dict(path=steps[2], version=2**53 + 1), "version",
         "from 0 to 9007199254740992"),
        ("another mode", dict(path=steps[2], mode="now"), "mode", "keep, wait or abort"),
        ("two paths", dict(path=steps[2], checkpoint=steps[2]), None, "same member")):
    status, e = post(s, "/admin/reload", body)
    claim(f"{what} is refused in one line", status == 400 and words in e["error"]["message"]
          and "\n" not in e["error"]["message"] and param in (None, e["error"]["param"]), (status, e))
claim("after which the old ones serve", {s.complete(**ASK)["weight_version"] for _ in range(3)} == {1})
status, e = post(s, "/admin/reload", dict(path=steps[1], version=1))
claim("the same weights under their own version are no step back", status == 200 and e["version"] == 1, e)
x = begun(s)
told = []
waiter = threading.Thread(target=lambda: told.append(post(s, "/admin/reload", dict(
    path=steps[2], version=7, mode="wait", expect_digest=digest[2]))))
waiter.start()
ids, versions = x.tokens()
waiter.join(60)
claim("wait: what ran has one version", set(versions) == {1} and x.finish() == ["length"], set(versions))
claim("wait: then the new one is there", told and told[0][0] == 200 and told[0][1]["version"] == 7
      and told[0][1]["weights_digest"] == digest[2], told)
claim("wait: on all replicas",
      {a["weight_version"] for a in together([lambda: s.complete(**ASK)] * 4)} == {7})
live.fault = None
live.publish(8, steps[3], digest[3])
live.hold.clear()
live.asked.clear()
waiter = threading.Thread(target=lambda: told.append(post(s, "/admin/reload", dict(
    path=live.url, version=8, mode="abort"))))
waiter.start()
live.asked.wait(30)
xs = [begun(s), begun(s, seed=6)]
live.hold.set()
waiter.join(60)
status, e = told[-1]
for x in xs:
    ids, versions = x.tokens()
    claim("abort: what ran ends with what it has", x.finish() == ["abort"] and 0 < len(ids) < 1200
          and set(versions) == {7}, (x.finish(), len(ids), set(versions)))
    marks = {e["system_fingerprint"] for e in x.events}
    claim("abort: and names no other weights", len(marks) == 1 and marks.pop().endswith(digest[2]), marks)
claim("abort: the new one is there", status == 200 and s.complete(**ASK)["weight_version"] == 8, e)

# ---- routes of vLLM and SGLang ----
x = begun(s)
claim("a pause is told", post(s, "/pause?mode=keep") == (200, {"status": "paused"}))
n = len(x.events)
late = Stream(s, max_tokens=3)
claim("and seen", json.loads(s.request("GET", "/is_paused")[1]) == {"is_paused": True})
status, e = post(s, "/update_weights_from_disk", dict(model_path=steps[4], weight_version="9",
                                                      flush_cache=True))
claim("weights change in it", status == 200 and e["success"] is True, e)
claim("nothing goes on meanwhile", len(x.events) <= n + 2 and not late.events, (n, len(x.events)))
claim("it ends", post(s, "/resume") == (200, {"status": "resumed"}))
ids, versions = x.tokens()
claim("what was kept goes on with the new weights", set(versions) == {8, 9} and len(ids) == 1200,
      set(versions))
claim("what came meanwhile has the new ones", set(late.tokens()[1]) == {9}, late.events)
claim("the version is told",
      json.loads(s.request("GET", "/get_weight_version")[1]) == {"weight_version": "9"})
x = begun(s)
whole = threading.Thread(target=lambda: told.append(s.complete(**dict(ASK, n=8, max_tokens=1200))))
whole.start()
wait_for("an answer that is no stream runs", lambda: gauge(s, "num_requests_running") == 9)
status, e = post(s, "/pause_generation", {"mode": "abort"})
claim("a pause that aborts", status == 200 and x.tokens() and x.finish() == ["abort"],
      (status, e, x.finish()))
claim("nothing comes behind the abort", [c["finish_reason"] for e in x.events for c in e["choices"]][-1]
      == "abort", x.events[-3:])
whole.join(60)
claim("an answer that is no stream is aborted, too", [c["finish_reason"] for c in told[-1]["choices"]]
      == ["abort"] * 8, [c["finish_reason"] for c in told[-1]["choices"]])
claim("generation goes on", post(s, "/continue_generation")[0] == 200
      and s.complete(**ASK)["weight_version"] == 9)
for n, want in ((2, 10), (2, 10), (3, 11)):
    status, e = post(s, "/admin/reload", dict(path=steps[n]))
    claim(f"without a version other weights get a number that none had: {want}", status == 200
          and e["version"] == want and e["weights_digest"] == digest[n], e)
status, e = post(s, "/update_weights_from_disk", dict(model_path=steps[4], weight_version="9" * 30))
claim("a version that is no number of 64 bits is refused", status == 400
      and e["error"]["param"] == "weight_version", (status, e))
post(s, "/pause?mode=keep")
status, e = post(s, "/admin/reload", dict(path=steps[4], mode="wait"))
claim("a reload that waits is refused in a pause that keeps, whatever runs", status == 409, (status, e))
post(s, "/resume")
claim("and changes nothing", {s.complete(**ASK)["weight_version"] for _ in range(3)} == {11})
status, e = post(s, "/update_weights_from_tensor", {})
claim("what is not here says why", status == 501 and "weights are pulled here" in e["error"]["message"], e)
claim("a key is needed for all of them", all(post(s, p, {}, {})[0] == 401 for p in (
    "/pause", "/resume", "/pause_generation", "/continue_generation", "/update_weights_from_disk")))
x = begun(s)
post(s, "/pause?mode=keep")
rc, err = s.stop()
ids, versions = x.tokens()
claim("a server that is paused and ends finishes what runs", rc == 0 and len(ids) == 1200,
      (rc, err, len(ids)))

# ---- a pause that aborts, and what waits for its first step ----
s = Server(steps[1], "--max-batch", 1, "--admin-key-file", f"{tmp}/admin-keys")
x = begun(s)
late = Stream(s, max_tokens=20)
wait_for("a request waits", lambda: gauge(s, "num_requests_waiting") == 1)
claim("a pause aborts what runs", post(s, "/pause?mode=abort")[0] == 200 and x.tokens()
      and x.finish() == ["abort"], x.finish())
claim("and holds what waits", not late.events, late.events)
post(s, "/resume")
claim("until it ends", len(late.tokens()[0]) == 20 and late.finish() == ["length"], late.events)
s.stop()
finish()

"""follow_mirror.py TMP - pshare URL keeps the newest version of another pshare: by what changed where the other end has it
(--deltas), else whole; every version is the one that was published, bit for bit, and a server follows it."""
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from live_server import Live                       # noqa: E402
from serve_server import Server, claim, die_with_parent, finish, started  # noqa: E402

tmp, BIN = sys.argv[1], os.environ["BIN"]
FILES = f"{tmp}/shared"


def digest_of(path):
    out = subprocess.run([f"{BIN}/reshard", "digest", path], capture_output=True, text=True).stdout
    return re.search(r"^weights_digest (\w+)", out, re.M).group(1)


digest = {step: digest_of(f"{tmp}/run/step-{step}") for step in (1, 2, 3, 4)}


def publish(v, step):
    shutil.copytree(f"{tmp}/run/step-{step}", f"{FILES}/.next")
    os.rename(f"{FILES}/.next", f"{FILES}/step-{v}")


class Share:
    def __init__(self, source, *args):
        self.p = subprocess.Popen([f"{BIN}/pshare", source, "--port", "0", "--poll", "20", "--verbose", *args],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        started.append(self.p)
        self.err = []
        threading.Thread(target=lambda: self.err.extend(self.p.stderr), daemon=True).start()
        self.line = self.p.stdout.readline()
        self.url = (re.search(r"http://\S+", self.line) or [None])[0]

    def version(self, after=None):
        at = f"{self.url}/version" + (f"?after={after}&timeout=30" if after is not None else "")
        return json.load(urllib.request.urlopen(at))

    def stop(self):
        self.p.terminate()
        return self.p.wait(20)


def received(s, v):
    """Bytes of version v, and whether they are what changed. Its line may come after the version itself."""
    end, found = time.monotonic() + 20, None
    while not found and time.monotonic() < end:
        found = re.search(rf"version {v}: (\d+) bytes received(, what changed)?\n", "".join(s.err))
        time.sleep(0.01)
    return (int(found.group(1)), found.group(2) is not None) if found else (0, None)


os.makedirs(f"{tmp}/none")
none = Share(f"{tmp}/none").url                            # it has no version
early = [subprocess.Popen([f"{BIN}/{program}", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
         for program, *args in (("reshard", "digest", none), ("pshare", none, "--port", "0"))]

os.makedirs(FILES)
publish(1, 1)
first = Share(FILES, "--deltas")
mirror = Share(first.url)
claim("the mirror has the version", mirror.version()["weights_digest"] == digest[1], mirror.line)
s = Server(mirror.url, "--follow", "--tp", 2, "--threads", 1)
for v, step in ((2, 2), (3, 3)):
    publish(v, step)
    got = mirror.version(after=v - 1)
    claim(f"version {v} is the one that was published", (got["version"], got["weights_digest"]) == (v, digest[step]), got)
whole = received(mirror, 1)[0]
for v in (2, 3):
    n, is_delta = received(mirror, v)
    claim(f"version {v}: what changed came, which is less", is_delta and 0 < n < 0.8 * whole, (n, whole, mirror.err))
print(f"{whole} bytes whole, {received(mirror, 2)[0]} and {received(mirror, 3)[0]} of what changed", file=sys.stderr)
with open(f"{tmp}/config.json", "wb") as f:
    f.write(urllib.request.urlopen(f"{mirror.url}/config.json").read())
claim("small files are the same", open(f"{tmp}/config.json", "rb").read()
      == open(f"{tmp}/run/step-3/config.json", "rb").read())
end = time.monotonic() + 60
while json.loads(s.request("GET", "/v1/models")[1])["data"][0]["weight_version"] != 3 and time.monotonic() < end:
    time.sleep(0.02)
a = s.complete(prompt="line 7: ", max_tokens=3)
claim("a server follows the mirror", a["weight_version"] == 3 and a["system_fingerprint"].endswith(digest[3]), a)
s.stop()
for path, status in (("/delta?from=2", 200), ("/delta?from=1", 404), ("/delta?from=x", 404), ("/delta", 404)):
    try:
        n = urllib.request.urlopen(first.url + path).status
    except urllib.error.HTTPError as e:
        n = e.code
    claim(f"{path}: {status}", n == status, n)

# ---- a mirror that is behind, and one whose source is another now ----
mirror.p.send_signal(19)                                    # SIGSTOP
publish(4, 4)
first.version(after=3)
publish(5, 1)
first.version(after=4)
mirror.p.send_signal(18)
got = mirror.version(after=3)
claim("two versions behind, what changed since then comes", got["version"] == 5 and got["weights_digest"] == digest[1]
      and received(mirror, 5)[1] is True, (got, mirror.err))
port = first.url.rpartition(":")[2]
claim("the first one ends well", first.stop() == 0)
live = Live(int(port))                                     # without deltas, and what it sends is torn
old = open(f"{tmp}/run/step-2/weights-00000.safetensors", "rb").read()
live.fault = lambda path, lo, body: old[lo:lo + len(body)] if "weights-00000" in path else body
live.hold.clear()
live.asked.clear()
live.publish(6, f"{tmp}/run/step-3", digest[3])
live.asked.wait(20)                                         # the manifest has come, and the weights are coming
seen = [os.readlink(f"/proc/{mirror.p.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{mirror.p.pid}/fd")]
seen = [link.split("/")[-1].split(" ")[0] for link in seen if "shardline:live-6/" in link]
claim("a version that is not verified is not there for others", "weights-00000.safetensors" in seen
      and "manifest.json" not in seen, seen)
live.hold.set()
end = time.monotonic() + 30
while not any("passed over" in line and "version 6" in line for line in mirror.err) and time.monotonic() < end:
    time.sleep(0.02)
claim("a torn version is passed over", mirror.version()["version"] == 5 and "version 6" in "".join(mirror.err), mirror.err)
live.fault = None
claim("until it is whole", mirror.version(after=5)["weights_digest"] == digest[3], mirror.err)
claim("without deltas all of it is read, and one line says why", received(mirror, 6)[1] is False
      and "".join(mirror.err).count("no delta from version 5: the server has none") == 1, mirror.err)
live.hold.clear()
live.publish(7, f"{tmp}/run/step-4", digest[4])
live.asked.clear()
live.asked.wait(20)
claim("a signal ends it in the middle of a transfer", mirror.stop() == 0)
live.hold.set()
for p in early:
    said = p.communicate()[1]
    claim("a URL without a version: one line that says so", p.returncode and len(said.splitlines()) == 1
          and " no version yet" in said and "503" not in said, said)
alone = subprocess.run([f"{BIN}/pshare", "http://127.0.0.1:1", "--port", "0"], capture_output=True, text=True)
claim("a URL that nothing answers at: one line", alone.returncode and len(alone.stderr.splitlines()) == 1, alone.stderr)
finish()

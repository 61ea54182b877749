"""follow_slow.py TMP - pshare URL behind a slow wire: while it takes a version, two newer ones are published, always. It takes
one version after the other nevertheless, each of them whole."""
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import json
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from serve_server import claim, die_with_parent, finish, started  # noqa: E402

tmp, BIN = sys.argv[1], os.environ["BIN"]


def digest_of(path):
    out = subprocess.run([f"{BIN}/reshard", "digest", path], capture_output=True, text=True).stdout
    return re.search(r"^weights_digest (\w+)", out, re.M).group(1)


digest = {step: digest_of(f"{tmp}/run/step-{step}") for step in (1, 2, 3, 4)}


def share(source, *args):
    p = subprocess.Popen([f"{BIN}/pshare", source, "--port", "0", "--poll", "5", "--verbose", *args],
                         stdout=subprocess.PIPE, stderr=open(f"{tmp}/err", "a"), text=True, preexec_fn=die_with_parent)
    started.append(p)
    return p, re.search(r"http://\S+", p.stdout.readline()).group(0)


def version(url, after):
    return json.load(urllib.request.urlopen(f"{url}/version?after={after}&timeout=60"))


class Trainer:
    """A folder of versions; version V has the bits of step 1 + V % 3."""

    def __init__(self, name):
        self.folder, self.v = f"{tmp}/{name}", 0
        os.makedirs(self.folder)
        self.publish()

    def publish(self):
        self.v += 1
        shutil.copytree(f"{tmp}/run/step-{1 + self.v % 3}", f"{self.folder}/.next")
        os.rename(f"{self.folder}/.next", f"{self.folder}/step-{self.v}")


class Wire:
    """Passes a connection on. In the middle of every large answer `overtaken` is called, and nothing passes until it
    returns."""

    def __init__(self, to, overtaken):
        self.to, self.overtaken = to, overtaken
        self.listen = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listen.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listen.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self.up, args=(near, far), daemon=True).start()
            threading.Thread(target=self.down, args=(far, near), daemon=True).start()

    def up(self, near, far):
        self.large = 0
        self.copy(near, far, lambda n: None)

    def down(self, far, near):
        self.copy(far, near, self.count)

    def count(self, n):
        """Bytes since the last request, of a mirror that asks for one thing after the other."""
        self.large += n
        if self.large > 300000:
            self.large = -1 << 40
            self.overtaken()

    def copy(self, a, b, seen):
        try:
            while data := a.recv(65536):
                if seen == self.count:
                    seen(len(data))
                else:
                    self.large = 0
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


for name, args in (("whole", []), ("deltas", ["--deltas"])):
    trainer = Trainer(name)
    first, url = share(trainer.folder, *args)
    overtaken = 0

    def newer():
        global overtaken
        if overtaken < 40:                                   # without progress the test ends
            overtaken += 1
            for _ in range(2):
                trainer.publish()
                version(url, trainer.v - 1)

    wire = Wire(int(url.rpartition(":")[2]), newer)
    mirror, at = share(wire.url, "--http-only")
    taken, bits = [], []
    while len(taken) < 4 and overtaken < 40:
        got = version(at, taken[-1] if taken else -1)
        taken.append(got["version"])
        bits.append(got["weights_digest"] == digest[1 + got["version"] % 3])
    claim(f"{name}: a mirror that is overtaken twice in every transfer takes versions one after the other",
          len(taken) == 4 and taken == sorted(set(taken)) and overtaken <= 10, (taken, overtaken))
    claim(f"{name}: each of them whole", all(bits), (taken, bits))
    for p in (mirror, first):
        p.terminate()
        claim(f"{name}: a signal ends it", p.wait(20) == 0)
err = open(f"{tmp}/err").read()
claim("no version was passed over", "passed over" not in err, err)
claim("and what changed comes where the other end has it", err.count(", what changed") >= 3, err)
finish()

"""killed_trainer.py TMP - a real ptrain --publish, a proxy in front of it that stops in the middle of a version's
bytes, and a pserve that follows the proxy. The trainer is killed while the transfer stands still."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from serve_server import Server, claim, finish, started  # noqa: E402

tmp, BIN = sys.argv[1], os.environ["BIN"]


class Proxy:
    """Passes bytes on. While `armed`, the first connection to bring more than LIMIT bytes of weights stands still,
    with all later ones, until `go` is set; then they end in the middle."""
    LIMIT = 20000

    def __init__(self):
        self.listen = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listen.getsockname()[1]}"
        self.to, self.armed = None, False
        self.holds, self.go = threading.Event(), threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            c, _ = self.listen.accept()
            try:
                s = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                c.close()
                continue
            weights = threading.Event()
            threading.Thread(target=self.up, args=(c, s, weights), daemon=True).start()
            threading.Thread(target=self.down, args=(s, c, weights), daemon=True).start()

    def up(self, c, s, weights):
        try:
            while data := c.recv(65536):
                if b"/weights-" in data:
                    weights.set()
                s.sendall(data)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def down(self, s, c, weights):
        n = 0
        try:
            while data := s.recv(4096):
                # the server must not open the trainer's files itself
                data = data.replace(b"X-Shardline-File", b"X-Shardline-None")
                n += len(data) if weights.is_set() else 0
                if self.armed and n > self.LIMIT:
                    self.holds.set()
                    self.go.wait(120)
                    break
                c.sendall(data)
        except OSError:
            pass
        for x in (s, c):
            try:
                x.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def train():
    """A run of many steps, begun or gone on; returns it and the port of its versions."""
    err = open(f"{tmp}/train.err", "w")
    p = subprocess.Popen([f"{BIN}/ptrain", "--data", f"{tmp}/text", "--seq-len", "64", "--global-batch", "4", "--ranks",
                          "2", "--zero", "1", "--threads", "1", "--steps", "1000000", "--save-every", "100", "--keep", "2",
                          "--resume", "auto", "--publish", "127.0.0.1:0", "--publish-every", "100", "--out",
                          f"{tmp}/run"], stdout=subprocess.DEVNULL, stderr=err)
    started.append(p)
    while p.poll() is None:
        found = re.search(r"are at http://127.0.0.1:(\d+)", open(f"{tmp}/train.err").read())
        if found:
            return p, int(found.group(1))
        time.sleep(0.05)
    return p, None


def served(s):
    m = json.loads(s.request("GET", "/v1/models")[1])["data"][0]
    return m["weight_version"], m["weights_digest"]


def wait_for(what, ready, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not ready():
        time.sleep(0.05)
    return claim(what, ready())


proxy = Proxy()
trainer, proxy.to = train()
claim("the trainer publishes", proxy.to, open(f"{tmp}/train.err").read())
s = Server(proxy.url, "--follow", "--threads", "1")
claim("the server starts", s.port is not None, b"".join(s.err).decode())
wait_for("versions are taken", lambda: served(s)[0] >= 100)
proxy.armed = True
claim("a transfer stands still", proxy.holds.wait(120))
before = served(s)
trainer.send_signal(signal.SIGKILL)
trainer.wait()
proxy.armed = False
proxy.go.set()
a = s.complete(prompt="line 5: ", max_tokens=5, temperature=0)
wait_for("the server says that the trainer is gone", lambda: b"the URL asked again" in b"".join(s.err))
claim("it serves the whole version from before", served(s) == before, (served(s), before))
claim("and answers with it", a["system_fingerprint"].endswith(before[1]), (a, before))

trainer, proxy.to = train()
claim("the trainer goes on", proxy.to, open(f"{tmp}/train.err").read())
wait_for("the server takes newer versions", lambda: served(s)[0] > before[0])
trainer.send_signal(signal.SIGTERM)
claim("the trainer ends well", trainer.wait() == 0)
rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))
finish()

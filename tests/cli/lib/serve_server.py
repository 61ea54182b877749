"""serve_server.py - starts pserve and talks to it, for the serve_*.sh tests. Standard library only."""
import atexit
import ctypes
import http.client
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time

passed = failed = skipped = 0
started = []                                     # what must not outlive the test


def end_all(*_):
    """Ranks whose launcher is gone end by themselves."""
    for p in started:
        if p.poll() is None:
            p.kill()
    if _:
        os._exit(143)


atexit.register(end_all)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, end_all)
libc = ctypes.CDLL(None)


def die_with_parent():
    """In the child: a test that is killed takes its servers along."""
    libc.prctl(1, signal.SIGKILL)                # PR_SET_PDEATHSIG


def claim(what, ok, detail=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print(f"FAIL {what}: {detail}", flush=True)
    return ok


def skip(why):
    global skipped
    skipped += 1
    print(f"skip: {why}", flush=True)


class Answers:
    """SERVE_ANSWERS=FILE: the answers of a script that is run twice. The first run writes the file, one for each
    client and model; the second one, with other options (PSERVE_ARGS), claims that it gets the same answers to the
    same requests. Left out is what may differ: names, times, and what the cache had."""

    def __init__(self, path):
        if path:
            path = "-".join([path, os.path.basename(sys.argv[0]), *"".join(sys.argv[1:2]).split("/")[-2:]])
        self.path, self.n_same, self.lock = path, 0, threading.Lock()
        self.compares = bool(path) and os.path.exists(path)
        self.known = json.load(open(path)) if self.compares else {}

    def plain(self, x):
        if isinstance(x, dict):
            return {k: self.plain(v) for k, v in x.items()
                    if k not in ("id", "request_id", "created", "prompt_tokens_details")}
        return [self.plain(v) for v in x] if isinstance(x, (list, tuple)) else x

    def note(self, path, body, answer):
        if not self.path or (body.get("temperature", 1) and "seed" not in body):
            return
        key, answer = json.dumps([path, body], sort_keys=True), json.loads(json.dumps(self.plain(answer)))
        with self.lock:
            if not self.compares:
                self.known[key] = answer
            elif key in self.known:
                self.n_same += 1
                claim(f"the answer is as without {os.environ.get('PSERVE_ARGS')}", answer == self.known[key],
                      f"{key[:200]}: {str(answer)[:400]} expected {str(self.known[key])[:400]}")

    def end(self):
        if self.compares:
            claim("answers were compared", self.n_same > 0 or not self.known, self.path)
        elif self.path:
            json.dump(self.known, open(self.path, "w"))


answers = Answers(os.environ.get("SERVE_ANSWERS"))


def finish():
    answers.end()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)


class Server:
    def __init__(self, checkpoint, *args, wait=True, launcher=()):
        """launcher: a command in front, for ranks that are started otherwise. The parent that a child dies
        with is a thread, the main one lives longest."""
        self.begin = time.monotonic()
        more, args = os.environ.get("PSERVE_ARGS", ""), [*map(str, args)]
        if "itself" in more and "--kv-memory" in args:   # the draft model's pages count, too
            at = args.index("--kv-memory") + 1
            args[at] = re.sub(r"\d+", lambda m: str(2 * int(m.group())), args[at])
        self.p = subprocess.Popen([*launcher, os.path.join(os.environ["BIN"], "pserve"), checkpoint, "--port",
                                   "0", "--model-name", "m", *args,
                                   *(checkpoint + a[6:] if a.startswith("itself") else a for a in more.split())],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                  preexec_fn=die_with_parent
                                  if threading.current_thread() is threading.main_thread() else None)
        started.append(self.p)
        self.err = []
        self.reader = threading.Thread(target=lambda: self.err.extend(self.p.stderr), daemon=True)
        self.reader.start()
        self.line = self.p.stdout.readline().decode() if wait else ""
        m = re.search(r"ready on http://([^ :]*):(\d+) \(tp=(\d+), replicas=(\d+), kv=", self.line)
        self.host, self.port = (m.group(1), int(m.group(2))) if m else (None, None)
        self.ready_s = time.monotonic() - self.begin

    def request(self, method, path, body=None, headers=None, timeout=300):
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        if isinstance(body, (dict, list)):
            body, headers = json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            data = r.read()
            if answers.path and path.startswith("/v1/") and method == "POST" and isinstance(body, str):
                self.note(path, body, r.status, data)
            return r.status, data, {k.lower(): v for k, v in r.getheaders()}
        finally:
            c.close()

    def note(self, path, body, status, data):
        try:
            body, data = json.loads(body), json.loads(data, parse_float=str)
        except ValueError:
            return
        if status in (200, 400) and isinstance(body, dict):
            answers.note(path, body, data)

    def complete(self, **body):
        """The answer; floats stay texts, so that they can be compared as they were printed."""
        status, data, _ = self.request("POST", "/v1/completions", body)
        j = json.loads(data, parse_float=str)
        if status != 200:
            raise RuntimeError(f"{status}: {j}")
        return j

    def stream(self, **body):
        """The events' data, [DONE] included, and the time of each."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=120)
        c.request("POST", "/v1/completions", json.dumps(dict(body, stream=True)),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        events = [(line[6:].strip().decode(), time.monotonic()) for line in r if line.startswith(b"data: ")]
        c.close()
        if r.status == 200:
            answers.note("stream", body, sorted(json.dumps(answers.plain(json.loads(e))) for e, _ in events
                                                if e[0] == "{"))
        return r.status, events

    def health(self):
        try:
            return self.request("GET", "/health", timeout=5)[0]
        except OSError:
            return 0

    def ranks(self):
        """Process ids by rank (one entry, the process itself, without mpirun)."""
        found = {}
        for d in os.listdir("/proc"):
            try:
                env = open(f"/proc/{d}/environ", "rb").read().split(b"\0") if d.isdigit() else []
                exe = os.readlink(f"/proc/{d}/exe") if env else ""
            except OSError:
                continue
            rank = [e[21:] for e in env if e.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if rank and exe.endswith("pserve") and self.is_ours(int(d)):
                found[int(rank[0])] = int(d)
        return found or {0: self.p.pid}

    def is_ours(self, pid):
        while pid > 1:
            if pid == self.p.pid:
                return True
            try:
                pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
            except OSError:
                return False
        return False

    def wait(self, timeout=30):
        try:
            rc = self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            self.p.kill()
            rc = "hung"
        self.reader.join(5)
        return rc, b"".join(self.err).decode("utf-8", "replace")

    def stop(self, timeout=30):
        self.p.send_signal(signal.SIGTERM)
        return self.wait(timeout)


def bits(text):
    """The binary32 pattern of a printed float."""
    return struct.pack("<f", float(text)).hex()


def together(jobs):
    """Runs the functions at the same time; their results in order."""
    out = [None] * len(jobs)

    def run(i):
        try:
            out[i] = jobs[i]()
        except Exception as e:          # a failed job is a failed comparison, not a lost thread
            out[i] = e
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out

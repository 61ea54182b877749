"""push_bench.py CKPT [PSERVE-OPTION…] - a new version of the weights, from its publication by pshare to the swap in a
server that follows: idle, then beside a stream, whose longest gap between two tokens is printed beside its median.
After these the same without a push: reshard writes the checkpoint to the disk, and POST /admin/reload reads it.

CKPT: a native checkpoint, published anew under higher versions; beside it the folder CKPT.push is made and removed.
Needs the folder of tests/cli/lib in PYTHONPATH, and BIN. PUSHES (3): how many. WAYS ("files http"): the ways of a push,
the files themselves or bytes over HTTP. MODES ("keep wait"). FILE=0: no rows for files. TOKENS (64): of an answer.

A row: seconds; CPU seconds of the server and of pshare; pages that were touched for the first time, in MB."""
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from serve_server import Server, die_with_parent, started

ckpt, args = sys.argv[1].rstrip("/"), sys.argv[2:]
BIN, FILES = os.environ["BIN"], ckpt + ".push"
pushes, tokens = int(os.environ.get("PUSHES", "3")), int(os.environ.get("TOKENS", "64"))
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def publish(v):
    shutil.copytree(ckpt, f"{FILES}/.next", copy_function=os.link)
    os.rename(f"{FILES}/.next", f"{FILES}/step-{v}")


def share(*how):
    shutil.rmtree(FILES, ignore_errors=True)
    os.makedirs(FILES)
    publish(1)
    p = subprocess.Popen([f"{BIN}/pshare", FILES, "--port", "0", *how], stdout=subprocess.PIPE, text=True,
                         preexec_fn=die_with_parent)
    started.append(p)
    return p, re.search(r"http://\S+", p.stdout.readline()).group(0)


def figures(pids):
    """CPU seconds and fresh pages of these processes; with the seconds of programs that ended (a save)."""
    pages, cpu = 0, sum(os.times()[2:4]) * TICKS
    for pid in pids:
        f = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        pages += int(f[7]) + int(f[9])
        cpu += int(f[11]) + int(f[12])
    return cpu / TICKS, pages * PAGE / 1e6


def read_status(s):
    """Huge pages count as one fault, so what is touched is seen in the resident size's peak, too."""
    return max(int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1))
               for pid in s.ranks().values()) / 1e3


class Stream(threading.Thread):
    def __init__(self, s):
        super().__init__(daemon=True)
        self.s, self.times, self.ends = s, [], False
        self.start()

    def run(self):
        c = http.client.HTTPConnection(self.s.host, self.s.port, timeout=600)
        while not self.ends:
            body = dict(prompt=[5, 6, 7], max_tokens=tokens, temperature=1, seed=3, ignore_eos=True, stream=True)
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            self.times.append([])
            for line in c.getresponse():
                if line.startswith(b"data: {"):
                    self.times[-1].append(time.monotonic())
                if self.ends:
                    return

    def gaps(self, begin, end):
        """In ms, between tokens of one answer that come in this time; the longest with the second that it ends in."""
        return sorted(((b - a) * 1e3, b - begin) for t in self.times for a, b in zip(t, t[1:])
                      if b > begin and a < end)


def settle(s):
    """Waits until the server has touched the memory for the first version."""
    was, now = 0, 1
    while now > was:
        was = now
        time.sleep(1)
        now = sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in s.ranks().values())


def served(s):
    return json.loads(s.request("GET", "/v1/models")[1])["data"][0]["weight_version"]


def measure(what, s, others, change, n):
    """n changes, idle and beside a stream. change(v): makes version v the one that is served."""
    settle(s)
    for beside in (False, True):
        stream = Stream(s) if beside else None
        time.sleep(4 if beside else 1)
        if beside:
            now = time.monotonic()
            g = stream.gaps(now - 3, now)
            print(f"{what}: a stream alone: median {g[len(g) // 2][0]:.1f} ms, longest {g[-1][0]:.1f} ms", flush=True)
        for _ in range(n):
            v, pids = served(s) + 1, [*s.ranks().values(), *others]
            was, begin = figures(pids), time.monotonic()
            change(v)
            while served(s) != v:
                time.sleep(0.005)
            end = time.monotonic()
            time.sleep(1)
            now = figures(pids)
            line = f"{what}: {end - begin:.2f} s"
            if beside:
                g = stream.gaps(begin, end + 0.5)
                line += (f" beside a stream; gaps: median {g[len(g) // 2][0]:.1f} ms, 99 % "
                         f"{g[int(len(g) * 0.99)][0]:.1f} ms, longest "
                         + ", ".join(f"{ms:.0f} ms at {at:.2f} s" for ms, at in g[:-4:-1]))
            else:
                line += f" idle, {now[0] - was[0]:.2f} CPU s"
            print(f"{line}; {now[1] - was[1]:.0f} MB of fresh small pages, peak {read_status(s):.0f} MB", flush=True)
        if stream:
            stream.ends = True
            stream.join(60)


for way in os.environ.get("WAYS", "files http").split():
    for mode in os.environ.get("MODES", "keep wait").split():
        p, url = share(*(["--http-only"] if way == "http" else []))
        s = Server(url, "--follow", "--follow-mode", mode, *args)
        measure(f"push, {way}, {mode}", s, [p.pid], publish, pushes)
        print("\n".join(x.decode().strip() for x in s.err if b"is served" in x), flush=True)
        s.stop()
        p.terminate()
        p.wait()

if os.environ.get("FILE", "1") != "0":
    saved = FILES + "/saved"
    with open(FILES + "/key", "w") as f:
        f.write("key\n")
    s = Server(ckpt, "--admin-key-file", FILES + "/key", *args)
    saves = []

    def save_and_reload(v):
        shutil.rmtree(saved, ignore_errors=True)
        begin = time.monotonic()
        subprocess.run([f"{BIN}/reshard", "--weights-only", ckpt, saved], check=True, capture_output=True)
        saves.append(time.monotonic() - begin)
        s.request("POST", "/admin/reload", {"path": saved, "version": v}, {"Authorization": "Bearer key"})

    measure("file", s, [], save_and_reload, pushes)
    print("of these the save: " + ", ".join(f"{x:.2f} s" for x in saves))
    s.stop()
shutil.rmtree(FILES, ignore_errors=True)

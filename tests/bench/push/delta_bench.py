"""delta_bench.py CKPT [LR…] - what `pshare --deltas` sends to a mirror (`pshare URL`) for the next version, and how long that
takes, beside the whole version. Each next version is the one before with one step of AdamW: every weight moves by LR (1e-6,
1e-5, 1e-4) up or down, as it does in the first step of a run, from a master that lies anywhere in its rounding interval.

CKPT: a native checkpoint of weights in bf16, one file. Needs numpy, the folder of tests/cli/lib in PYTHONPATH, and BIN; beside
CKPT the folder CKPT.delta is made and removed."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import numpy
from serve_server import die_with_parent, started

ckpt, rates = sys.argv[1].rstrip("/"), [float(x) for x in sys.argv[2:]] or [1e-6, 1e-5, 1e-4]
BIN, FILES = os.environ["BIN"], ckpt + ".delta"
TICKS, CHUNK = os.sysconf("SC_CLK_TCK"), 1 << 23


def moved(bits, lr, rng):
    """bf16 values after the step."""
    w = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
    ulp = numpy.ldexp(numpy.float32(1), numpy.frexp(w)[1] - 8)
    w = w + (rng.random(w.size, numpy.float32) - numpy.float32(0.5)) * ulp * numpy.float32(0.999)
    w += numpy.float32(lr) * (2 * rng.integers(0, 2, w.size, numpy.int8) - 1)
    u = w.view(numpy.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(numpy.uint16)


def make_next(old, new, lr):
    """The share of weights whose bits changed."""
    rng, changed, n = numpy.random.default_rng(1), 0, 0
    hf = f"{FILES}/.hf"
    os.makedirs(hf)
    shutil.copy(f"{old}/config.json", hf)
    with open(f"{old}/weights-00000.safetensors", "rb") as a, open(f"{hf}/model.safetensors", "wb") as b:
        head = a.read(8)
        b.write(head + a.read(struct.unpack("<Q", head)[0]))
        while data := a.read(2 * CHUNK):
            bits = numpy.frombuffer(data, numpy.uint16)
            after = moved(bits, lr, rng)
            changed, n = changed + int((bits != after).sum()), n + bits.size
            b.write(after.tobytes())
    subprocess.run([f"{BIN}/reshard", hf, f"{FILES}/.next", "--format", "native"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(hf)
    os.rename(f"{FILES}/.next", new)
    return changed / n


class Share:
    def __init__(self, source, *args):
        begin = time.monotonic()
        self.p = subprocess.Popen([f"{BIN}/pshare", source, "--port", "0", "--http-only", "--verbose", *args],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        started.append(self.p)
        self.err = []
        threading.Thread(target=lambda: self.err.extend(self.p.stderr), daemon=True).start()
        self.url = re.search(r"http://\S+", self.p.stdout.readline()).group(0)
        self.ready_s = time.monotonic() - begin

    def version(self, after):
        return json.load(urllib.request.urlopen(f"{self.url}/version?after={after}&timeout=600"))

    def cpu_s(self):
        f = open(f"/proc/{self.p.pid}/stat").read().rpartition(")")[2].split()
        return (int(f[11]) + int(f[12])) / TICKS

    def received(self, v):
        while not (found := re.search(rf"version {v}: (\d+) bytes received(.*)\n", "".join(self.err))):
            time.sleep(0.01)
        return int(found.group(1)), found.group(2)


shutil.rmtree(FILES, ignore_errors=True)
os.makedirs(FILES)
try:
    shutil.copytree(ckpt, f"{FILES}/step-1", copy_function=os.link)
    first = Share(FILES, "--deltas")
    mirror = Share(first.url)
    n = mirror.received(1)[0]
    print(f"whole: {n:,} bytes, {mirror.ready_s:.1f} s until the mirror serves it, "
          f"processor time {first.cpu_s():.1f} and {mirror.cpu_s():.1f} s", flush=True)
    for v, lr in enumerate(rates, 2):
        os.makedirs(f"{FILES}/.made", exist_ok=True)
        share = make_next(f"{FILES}/step-{v - 1}", f"{FILES}/.made/step-{v}", lr)
        cpu, began = (first.cpu_s(), mirror.cpu_s()), time.monotonic()
        os.rename(f"{FILES}/.made/step-{v}", f"{FILES}/step-{v}")
        first.version(v - 1)
        made = None
        while made is None:                      # the mirror asks for the same one
            try:
                made = urllib.request.urlopen(f"{first.url}/delta/{v - 1}").status and time.monotonic() - began
            except urllib.error.HTTPError as e:
                if e.code != 503:
                    raise
        mirror.version(v - 1)
        all_s = time.monotonic() - began
        got, what = mirror.received(v)
        print(f"lr {lr:g}: {100 * share:.2f} % of the weights changed: {got:,} bytes ({100 * got / n:.1f} %{what}), made in "
              f"{made:.1f} s, {all_s:.1f} s until the mirror serves it, processor time {first.cpu_s() - cpu[0]:.1f} and "
              f"{mirror.cpu_s() - cpu[1]:.1f} s", flush=True)
        shutil.rmtree(f"{FILES}/step-{v - 1}")
finally:
    shutil.rmtree(FILES, ignore_errors=True)

#!/usr/bin/env python3
"""decode_bench.py - decoding of one sequence beside llama.cpp and beside reading the same bytes from memory.

usage: decode_bench.py [--bin DIR] [--other NAME=DIR] [--sizes 110m,1b] [--dtypes bf16,fp32] [--rounds N]
[--threads N] [--batch N] [--steps N] [--nice N] [--models DIR] [--options TEXT] [--start]
Contestants: pserve of --bin and of every --other build, llama.cpp with the GGUF file that reshard writes of
the same folder (PEER_PYTHON with llama-cpp-python), and read_bench. All are started first and sleep; in every
round each runs once, for well under a second, so that they meet the same machine. A step is the median of a
turn's; printed are the medians of the rounds, and the medians of the rounds' ratios. `reading` is the time to
read a step's weights (all but the table of embeddings) at the speed of that round.
--start: also a row of start to ready and resident memory, the contestants started in turn.
--nice: priority of the contestants, below 0 for root alone. Weights are random (serve_models.py)."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from contest import PYTHON, Table, log  # noqa: E402
from serve_models import SIZES, make_model, tensors  # noqa: E402

READ_S = 0.25


def weight_bytes(size, dtype):
    """Bytes that a step of one token reads."""
    s = SIZES[size]
    each = 2 if dtype == "bf16" else 4
    return sum(each * (shape[0] * (shape[1] if len(shape) > 1 else 1)) for name, shape in tensors(s)
               if not name.startswith("model.embed"))


def resident_bytes(pids):
    """Memory of the processes, shared pages counted once."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            total += sum(1024 * int(line.split()[1]) for line in f if line.startswith("Pss:"))
    return total


class Process:
    """A contestant that runs a turn when it is given a line."""

    def __init__(self, a, command, **options):
        nice = ["nice", "-n", str(a.nice)] if a.nice else []
        self.begin = time.perf_counter()
        self.p = subprocess.Popen(nice + command, stdout=subprocess.PIPE, text=True, **options)

    def line(self):
        said = self.p.stdout.readline()
        if not said:
            raise RuntimeError(f"contestant {self.p.pid} ended")
        return said

    def ask(self, text):
        self.p.stdin.write(text + "\n")
        self.p.stdin.flush()
        return self.line()

    def close(self):
        self.p.terminate()
        self.p.wait(30)


class Ours(Process):
    def __init__(self, a, bin_dir, model):
        self.a, self.bin = a, bin_dir
        super().__init__(a, [os.path.join(bin_dir, "pserve"), model, "--port", "0", "--threads",
                             str(a.threads), "--max-batch", str(a.batch), "--ctx", "1024",
                             "--prefix-cache", "off", *a.options.split()], stderr=subprocess.DEVNULL)
        said = self.line()
        self.ready_s = time.perf_counter() - self.begin
        self.url = said.split("ready on ")[1].split()[0]

    def step_s(self):
        n = self.a.batch
        nice = ["nice", "-n", str(self.a.nice)] if self.a.nice else []
        out = subprocess.run(nice + [os.path.join(self.bin, "pbench"), "--url", self.url, "--requests", str(n),
                              "--concurrency", str(n), "--prompt-tokens", "64", "--output-tokens",
                              str(self.a.steps), "--vocab", str(self.a.vocab), "--json"],
                             stdout=subprocess.PIPE, check=True)
        return json.loads(out.stdout)["median_itl_ms"] / 1000


class Llama(Process):
    def __init__(self, a, path):
        self.a = a
        super().__init__(a, [PYTHON, os.path.join(HERE, "llama_turns.py"), path, str(a.threads),
                             str(a.batch)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ready_s = json.loads(self.line())["load_s"]

    def step_s(self):
        return json.loads(self.ask(str(self.a.steps)))["step_s"]


class Reading(Process):
    def __init__(self, a, program, step_bytes):
        self.bytes = step_bytes
        super().__init__(a, [program, str(a.threads)], stdin=subprocess.PIPE)
        self.line()

    def step_s(self):
        return self.bytes / (float(self.ask(str(READ_S))) * 1e9)


def has_llama():
    return subprocess.run([PYTHON, "-c", "import llama_cpp"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def make_gguf(a, model):
    path = model + ".gguf"
    if not os.path.exists(path):
        subprocess.run([os.path.join(a.bin, "reshard"), "--format", "gguf", model, path], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def contestants(a, size, dtype, model):
    """name -> a function that starts it."""
    out = {"ours": lambda: Ours(a, a.bin, model)}
    for name, bin_dir in (x.split("=", 1) for x in a.other):
        out[name] = lambda bin_dir=bin_dir: Ours(a, bin_dir, model)
    if a.llama:
        path = make_gguf(a, model)
        out["llama.cpp"] = lambda: Llama(a, path)
    if a.batch == 1:
        program = os.path.join(os.path.dirname(a.bin), "tests", "bench", "decode", "read_bench")
        out["reading"] = lambda: Reading(a, program, weight_bytes(size, dtype))
    return out


def decode(a, size, dtype, model, table):
    running = {}
    try:
        for name, start in contestants(a, size, dtype, model).items():
            running[name] = start()
        for c in running.values():
            c.step_s()  # once for caches and clocks
        rounds = []
        for i in range(a.rounds):
            names = list(running) if i % 2 == 0 else list(running)[::-1]
            rounds.append({name: running[name].step_s() for name in names})
    finally:
        for c in running.values():
            c.close()
    for name in running:
        if name == "ours":
            continue
        table.add(f"{size} {dtype} decode batch {a.batch}, {a.threads} threads",
                  a.batch / statistics.median(r["ours"] for r in rounds),
                  a.batch / statistics.median(r[name] for r in rounds), name, "tokens/s",
                  ratio=statistics.median(r[name] / r["ours"] for r in rounds))
        log("    rounds: " + " ".join(f"{r[name] / r['ours']:.2f}" for r in rounds))


def start(a, size, dtype, model, table):
    """Start to ready and resident memory, of ours with what it starts (weights in the page cache)."""
    starts = {n: f for n, f in contestants(a, size, dtype, model).items() if n != "reading"}
    found = {name: [] for name in starts}
    for _ in range(a.rounds):
        for name, begin in starts.items():
            c = begin()
            found[name].append((c.ready_s, resident_bytes([c.p.pid])))
            c.close()

    def median(name, i):
        return statistics.median(x[i] for x in found[name])
    for name in found:
        if name != "ours" or len(found) == 1:
            table.add(f"{size} {dtype} start to ready", median("ours", 0), median(name, 0), name, "s",
                      better="lower")
            table.add(f"{size} {dtype} resident when ready", median("ours", 1) / 1e6, median(name, 1) / 1e6,
                      name, "MB", better="lower")


def options():
    top = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "release", "bin"))
    ap.add_argument("--other", action="append", default=[])
    ap.add_argument("--sizes", default="110m,1b")
    ap.add_argument("--dtypes", default="bf16,fp32")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--batch", type=int, default=1)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--nice", type=int, default=0)
    ap.add_argument("--models")
    ap.add_argument("--options", default="", help="more options of pserve")
    ap.add_argument("--start", action="store_true")
    a = ap.parse_args()
    a.bin = os.path.realpath(a.bin)
    a.llama = has_llama()
    return a


def main():
    a = options()
    tmp = a.models or tempfile.mkdtemp(prefix="shardline-bench-")
    table = Table(f"{'decode_bench':58s} {'ours':>10s} {'other':>10s} {'':14s} {'ratio':>6s}  unit")
    try:
        for size in a.sizes.split(","):
            for dtype in a.dtypes.split(","):
                model = os.path.join(tmp, f"{size}-{dtype}")
                if not os.path.exists(model):
                    make_model(size, dtype, model)
                a.vocab = SIZES[size].vocab
                decode(a, size, dtype, model, table)
                if a.start:
                    start(a, size, dtype, model, table)
                if not a.models:
                    shutil.rmtree(model)
        table.end()
    finally:
        if not a.models:
            shutil.rmtree(tmp)


if __name__ == "__main__":
    sys.exit(main())

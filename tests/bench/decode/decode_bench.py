#!/usr/bin/env python3
"""decode_bench.py - serving beside llama.cpp and beside reading the same bytes from memory.

usage: decode_bench.py [--bin DIR] [--other NAME=DIR] [--sizes 110m,1b] [--kinds bf16,fp32] [--tests 1]
[--rounds N] [--threads N] [--steps N] [--nice N] [--realtime] [--models DIR] [--options TEXT] [--start]
--kinds: stored forms of decode_kinds.py. --tests: batches to decode (1, 8, 32), and `prefill` of 512 tokens.
Contestants: pserve of --bin and of every --other build, llama.cpp with the GGUF file that reshard writes of
the same weights (PEER_PYTHON with llama-cpp-python), and read_bench. All are started first and sleep; in every
round each runs once, for well under a second, so that they meet the same machine. A step is the median of a
turn's; printed are the medians of the rounds, and the medians of the rounds' ratios. `reading` is the time to
read a step's weights (all but the table of embeddings) at the speed of that round.
--start: also a row of start to ready and resident memory, the contestants started in turn.
--nice: priority of the contestants, below 0 for root alone; --realtime: before all else (root alone: other
programs stand still during a turn). Weights are random (serve_models.py)."""
import argparse
import contextlib
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
from decode_kinds import KINDS, folder_of, gguf_of, weight_bytes  # noqa: E402
from serve_models import SIZES  # noqa: E402

READ_S = 0.25
PREFILL = 512


def resident_bytes(pids):
    """Memory of the processes, shared pages counted once."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            total += sum(1024 * int(line.split()[1]) for line in f if line.startswith("Pss:"))
    return total


def priority(a, client=False):
    """What a contestant's command begins with. A client comes before the threads that it waits for."""
    realtime = ["chrt", "-r", "2" if client else "1"] if a.realtime else []
    return realtime + (["nice", "-n", str(a.nice)] if a.nice else [])


def raise_io(pid):
    """Lets the threads of a server that answer clients come before those that compute."""
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # threads that verify end
            with open(f"/proc/{pid}/task/{tid}/comm") as f:
                name = f.read()
            if name.startswith("MHD"):
                os.sched_setscheduler(int(tid), os.SCHED_RR, os.sched_param(2))


class Process:
    """A contestant that runs a turn when it is given a line."""

    def __init__(self, a, command, **options):
        self.begin = time.perf_counter()
        self.p = subprocess.Popen(priority(a) + command, stdout=subprocess.PIPE, text=True, **options)

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
    def __init__(self, a, bin_dir, model, test, options):
        self.a, self.bin, self.test = a, bin_dir, test
        more = ["--prefill-chunk", str(PREFILL)] if test == "prefill" else []
        super().__init__(a, [os.path.join(bin_dir, "pserve"), model, "--port", "0", "--threads",
                             str(a.threads), "--max-batch", str(rows_of(test)), "--ctx", "1024",
                             "--prefix-cache", "off", *options.split(), *a.options.split(), *more],
                         stderr=subprocess.DEVNULL)
        said = self.line()
        self.ready_s = time.perf_counter() - self.begin
        self.url = said.split("ready on ")[1].split()[0]
        if a.realtime:
            raise_io(self.p.pid)

    def pbench(self, n, prompt, answer):
        out = subprocess.run(priority(self.a, client=True) + [
            os.path.join(self.bin, "pbench"), "--url", self.url, "--requests", str(n), "--concurrency",
            str(rows_of(self.test)), "--prompt-tokens", str(prompt), "--output-tokens", str(answer), "--vocab",
            str(self.a.vocab), "--json"], stdout=subprocess.PIPE, check=True)
        return json.loads(out.stdout)

    def step_s(self):
        if self.test == "prefill":
            return self.pbench(3, PREFILL, 1)["median_ttft_ms"] / 1000
        return self.pbench(rows_of(self.test), 64, self.a.steps)["median_itl_ms"] / 1000


class Llama(Process):
    def __init__(self, a, path, test):
        self.a, self.test = a, test
        super().__init__(a, [PYTHON, os.path.join(HERE, "llama_turns.py"), path, str(a.threads),
                             str(rows_of(test))], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ready_s = json.loads(self.line())["load_s"]

    def step_s(self):
        return json.loads(self.ask(f"prefill {PREFILL} 3" if self.test == "prefill"
                                   else f"decode {self.a.steps}"))["step_s"]


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


def rows_of(test):
    """Sequences that are computed at a time."""
    return 1 if test == "prefill" else int(test)


def contestants(a, size, kind, test):
    """name -> a function that starts it."""
    model, k = folder_of(a.bin, a.top, size, kind), KINDS[kind]
    out = {"ours": lambda: Ours(a, a.bin, model, test, k.options)}
    for name, bin_dir in (x.split("=", 1) for x in a.other):
        out[name] = lambda bin_dir=bin_dir: Ours(a, bin_dir, model, test, k.options)
    if a.llama:
        path = gguf_of(a.bin, a.top, size, kind)
        out["llama.cpp " + k.peer] = lambda: Llama(a, path, test)
    if test == "1":
        program = os.path.join(os.path.dirname(a.bin), "tests", "bench", "decode", "read_bench")
        out["reading"] = lambda: Reading(a, program, weight_bytes(size, kind))
    return out


def serve(a, size, kind, test, table):
    running = {}
    try:
        for name, start in contestants(a, size, kind, test).items():
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
    tokens = PREFILL if test == "prefill" else rows_of(test)
    what = "prefill 512" if test == "prefill" else "decode batch " + test
    for name in running:
        if name == "ours":
            continue
        table.add(f"{size} {kind} {what}, {a.threads} threads",
                  tokens / statistics.median(r["ours"] for r in rounds),
                  tokens / statistics.median(r[name] for r in rounds), name, "tokens/s",
                  ratio=statistics.median(r[name] / r["ours"] for r in rounds))
        log("    rounds: " + " ".join(f"{r[name] / r['ours']:.2f}" for r in rounds))


def start(a, size, kind, table):
    """Start to ready and resident memory, of ours with what it starts (weights in the page cache)."""
    starts = {n: f for n, f in contestants(a, size, kind, "1").items() if n != "reading"}
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
            table.add(f"{size} {kind} start to ready", median("ours", 0), median(name, 0), name, "s",
                      better="lower")
            table.add(f"{size} {kind} resident when ready", median("ours", 1) / 1e6, median(name, 1) / 1e6,
                      name, "MB", better="lower")


def options():
    top = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "release", "bin"))
    ap.add_argument("--other", action="append", default=[])
    ap.add_argument("--sizes", default="110m,1b")
    ap.add_argument("--kinds", default="bf16,fp32")
    ap.add_argument("--tests", default="1")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--nice", type=int, default=0)
    ap.add_argument("--realtime", action="store_true")
    ap.add_argument("--models")
    ap.add_argument("--options", default="", help="more options of pserve")
    ap.add_argument("--start", action="store_true")
    a = ap.parse_args()
    a.bin = os.path.realpath(a.bin)
    a.llama = has_llama()
    return a


def main():
    a = options()
    a.top = a.models or tempfile.mkdtemp(prefix="shardline-bench-")
    table = Table(f"{'decode_bench':58s} {'ours':>10s} {'other':>10s} {'':14s} {'ratio':>6s}  unit")
    try:
        for size in a.sizes.split(","):
            a.vocab = SIZES[size].vocab
            for kind in a.kinds.split(","):
                for test in a.tests.split(","):
                    serve(a, size, kind, test, table)
                if a.start:
                    start(a, size, kind, table)
        table.end()
    finally:
        if not a.models:
            shutil.rmtree(a.top)


if __name__ == "__main__":
    sys.exit(main())

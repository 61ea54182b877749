#!/usr/bin/env python3
"""elastic_bench.py [110m] [400m] [--rounds N] - how long a run stands still when its layout changes under it (tp2 dp2 -> dp4
-> pp2 tp2 -> tp2 dp2, through memory), and when a rank is killed, until the next step's first forward pass begins.

A change counts from the end of the last step in the old layout, a kill from the signal. Both models train in fp32 with
--zero 1 where dp is above 1. Prints a line a measurement, then best and median, with the load of the machine."""
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PTRAIN = os.path.join(os.environ.get("BIN") or os.path.join(HERE, "../../../build/bin"), "ptrain")
LAYOUTS = {  # the first one is where a run begins
    "tp2 dp2": "ranks = 4\ntp = 2\npp = 1\nzero = 1\n",
    "dp4": "ranks = 4\ntp = 1\npp = 1\nzero = 1\n",
    "pp2 tp2": "ranks = 4\ntp = 2\npp = 2\nzero = 0\n",
}
CONFIG_400M = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
               "num_key_value_heads": 16, "head_dim": 64, "intermediate_size": 3072, "vocab_size": 32000,
               "max_position_embeddings": 1024}
SHAPE = ["--seq-len", "16", "--global-batch", "8", "--threads", "1", "--steps", "100000"]
TARGET_S = {"110m": 3, "400m": 6}


def events(path, name):
    try:
        with open(path) as f:
            return [json.loads(x) for x in f if f'"event":"{name}"' in x and x.endswith("}\n")]
    except FileNotFoundError:
        return []


def steps(path):
    try:
        with open(path) as f:
            return sum('"loss_bits"' in x for x in f)
    except FileNotFoundError:
        return 0


class Run:
    """A run in a folder of its own."""

    def __init__(self, tmp, model, name, more):
        self.dir = os.path.join(tmp, name)
        os.mkdir(self.dir)
        self.log, self.layout = self.dir + "/log.jsonl", self.dir + "/layout.toml"
        self.write("tp2 dp2")
        self.err = open(self.dir + "/stderr", "w+")
        self.job = subprocess.Popen(
            [PTRAIN, "--data", tmp + "/text", "--model", model, *SHAPE, "--ranks", "4", "--tp", "2", "--zero", "1", "--out",
             self.dir + "/out", "--log", self.log, *more], stdout=subprocess.DEVNULL, stderr=self.err)

    def write(self, layout):
        with open(self.layout + ".new", "w") as f:
            f.write(LAYOUTS[layout])
        os.replace(self.layout + ".new", self.layout)

    def until(self, what, ready, limit=120):
        end = time.monotonic() + limit
        while not ready():
            if self.job.poll() is not None or time.monotonic() > end:
                self.err.seek(0)
                sys.exit(f"waited for {what}: status {self.job.poll()}: {self.err.read()[-2000:]}")
            time.sleep(0.005)

    def some_steps(self, n=2):
        begun = steps(self.log)
        self.until("steps", lambda: steps(self.log) >= begun + n)

    def end(self):
        self.job.send_signal(signal.SIGKILL)  # the state need not be saved
        self.job.wait()
        self.err.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def children(pid):
    return [int(x) for t in os.listdir(f"/proc/{pid}/task") for x in open(f"/proc/{pid}/task/{t}/children").read().split()]


def ranks_of(job):
    for p in children(job.pid):
        if open(f"/proc/{p}/comm").read().strip() == "mpirun":
            return children(p)
    return []


def changes(tmp, model, rounds, got):
    run = Run(tmp, model, "change", ["--layout-file", tmp + "/change/layout.toml"])
    names = list(LAYOUTS)
    run.some_steps()
    for i in range(rounds * len(names)):
        before, after = names[i % len(names)], names[(i + 1) % len(names)]
        seen = len(events(run.log, "layout"))
        run.write(after)
        run.until("the change", lambda: len(events(run.log, "layout")) > seen)
        got.setdefault(f"{before} -> {after}", []).append(events(run.log, "layout")[-1]["seconds"])
        report(f"{before} -> {after}", got)
        run.some_steps()
    run.end()


def kills(tmp, model, rounds, got):
    run = Run(tmp, model, "kill", ["--memory-every", "2"])
    rng = random.Random(7)
    for _ in range(rounds):
        seen, kept = len(events(run.log, "restart")), len(events(run.log, "keep"))
        run.until("a set in memory", lambda: len(events(run.log, "keep")) > kept)
        time.sleep(rng.uniform(0, 0.3))
        began = time.time()
        os.kill(rng.choice(ranks_of(run.job)), signal.SIGKILL)
        run.until("the restart", lambda: len(events(run.log, "restart")) > seen)
        got.setdefault("a rank killed", []).append(events(run.log, "restart")[-1]["time"] - began)
        report("a rank killed", got)
    run.end()


def report(what, got):
    print(f"  {what}: {got[what][-1]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)


def main():
    rounds, models = 3, []
    args = sys.argv[1:]
    while args:
        x = args.pop(0)
        if x == "--rounds":
            rounds = int(args.pop(0))
        elif x in TARGET_S:
            models.append(x)
        else:
            sys.exit(__doc__)
    tmp = tempfile.mkdtemp(prefix="shardline-elastic-bench-")
    try:
        with open(tmp + "/text", "wb") as f:
            f.write(random.Random(1).randbytes(1 << 16))
        with open(tmp + "/400m.json", "w") as f:
            json.dump(CONFIG_400M, f)
        for model in models or list(TARGET_S):
            print(f"{model}: asked for {TARGET_S[model]} s", flush=True)
            got = {}
            for part in (changes, kills):
                part(tmp, tmp + "/400m.json" if model == "400m" else model, rounds, got)
            for what, s in got.items():
                print(f"{model} {what}: best {min(s):.2f} s, median {statistics.median(s):.2f} s of {len(s)}", flush=True)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


if __name__ == "__main__":
    main()

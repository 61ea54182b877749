#!/usr/bin/env python3
"""before_after.py - speed of two builds, in turn: did a change make something slower?

usage: before_after.py OLD NEW [--rounds N] [--steps N] [--rows WORD,WORD]     OLD, NEW: folders with the
programs
Rows: training of the 110m model in fp32 and bf16 at 2 ranks (the best of --steps steps), decode of 1 and 32
sequences of the 110m model in bf16, reshard of 1.6 GB from one rank to tp 2. The builds take turns, and every
other round the new one goes first. Prints the median of each build and the median of the ratios new/old of
the
rounds (above 1: the new one is faster). Needs 6 GB in TMPDIR and a machine that does nothing else."""
import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from types import SimpleNamespace

import serve_bench
import train_bench
from contest import log


def training(bin_dir, a, dtype):
    setup = SimpleNamespace(bin=bin_dir, tmp=a.tmp, steps=a.steps)
    best = train_bench.ours(setup, "110m", "tp2 2x1", dtype, 256, "exact")
    return best and best["value"]


def decoding(bin_dir, a, sequences):
    model = os.path.join(a.tmp, "110m-bf16")
    if not os.path.exists(os.path.join(model, "config.json")):
        serve_bench.make_model("110m", "bf16", model)
    found = {}
    setup = SimpleNamespace(bin=bin_dir, tp=1, threads=2, rows=[f"b{sequences}"])
    serve_bench.ours(setup, "110m", model, "exact", found)
    return found[f"b{sequences}"]


def resharding(bin_dir, a):
    """GB/s of the source's bytes."""
    made = os.path.join(a.tmp, "source")
    source = os.path.join(made, "step-1")
    if not os.path.exists(source):
        subprocess.run([os.path.join(bin_dir, "ptrain"), "--data", os.path.join(a.tmp, "32000.u16"), "--out",
                        made,
                        "--model", os.path.join(a.tmp, "110m.json"), "--seq-len", "16", "--global-batch", "1",
                        "--steps", "1"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    target = os.path.join(a.tmp, "target")
    begin = time.perf_counter()
    subprocess.run([os.path.join(bin_dir, "reshard"), "--tp", "2", source, target], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = time.perf_counter() - begin
    shutil.rmtree(target)
    return sum(f.stat().st_size for f in os.scandir(source)) / took / 1e9


ROWS = {
    "train-fp32": ("training 110m fp32, tp 2", "tokens/s", lambda b, a: training(b, a, "fp32")),
    "train-bf16": ("training 110m bf16, tp 2", "tokens/s", lambda b, a: training(b, a, "bf16")),
    "decode-1": ("decode 110m bf16, 1 sequence", "tokens/s", lambda b, a: decoding(b, a, 1)),
    "decode-32": ("decode 110m bf16, 32 sequences", "tokens/s", lambda b, a: decoding(b, a, 32)),
    "reshard": ("reshard 1.6 GB to tp 2", "GB/s", resharding),
}


def compare(a, name, unit, run):
    speeds = {a.old: [], a.new: []}
    for turn in range(a.rounds):
        order = (a.old, a.new) if turn % 2 == 0 else (a.new, a.old)
        taken = {b: run(b, a) for b in order}
        if None in taken.values():
            return log(f"{name}: no figure")
        for b, speed in taken.items():
            speeds[b].append(speed)
    ratio = statistics.median(n / o for o, n in zip(speeds[a.old], speeds[a.new]))
    print(f"{name:34s} {statistics.median(speeds[a.old]):10.2f} {statistics.median(speeds[a.new]):10.2f}"
          f" {ratio:7.3f}  {unit}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("old")
    ap.add_argument("new")
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--steps", type=int, default=4)
    ap.add_argument("--rows", default=",".join(ROWS))
    a = ap.parse_args()
    a.tmp = tempfile.mkdtemp(prefix="shardline-bench-")
    try:
        train_bench.make_inputs(a.tmp)
        print(f"{'':34s} {'old':>10s} {'new':>10s} {'new/old':>7s}", flush=True)
        for row in a.rows.split(","):
            compare(a, *ROWS[row])
    finally:
        shutil.rmtree(a.tmp, ignore_errors=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""serve_share.py - the share of HTTP and the scheduler in a step of decoding: time between two calls of the
model, CPU time of HTTP's threads.

usage: serve_share.py [--bin DIR] [--size 110m] [--dtype bf16] [--threads N]
In the trace (pserve --trace) a step reaches from one first embed to the next, and the model's part ends with
its last kernel (ce_sum). The rest is sampling, text, answers and scheduling. HTTP's threads run at the same
time on the same cores; their CPU time is given per step."""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile

from contest import log
from serve_bench import SIZES, make_model

BATCHES = (1, 8, 32)


def thread_seconds(pid):
    """CPU time of every thread of the process, by id."""
    out = {}
    for t in os.listdir(f"/proc/{pid}/task"):
        fields = open(f"/proc/{pid}/task/{t}/stat").read().rsplit(")", 1)[1].split()
        out[int(t)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return out


def decode(a, tmp, n):
    trace = os.path.join(tmp, "trace.json")
    p = subprocess.Popen([os.path.join(a.bin, "pserve"), os.path.join(tmp, "model"), "--port", "0",
                          "--threads", str(a.threads), "--ctx", "1024",
                          "--trace", trace], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    url = p.stdout.readline().split("ready on ")[1].split()[0]
    before = thread_seconds(p.pid)
    subprocess.run([os.path.join(a.bin, "pbench"), "--url", url, "--requests", str(n), "--concurrency",
                    str(n), "--prompt-tokens", "16", "--output-tokens", "60",
                    "--vocab", str(SIZES[a.size][5])], stdout=subprocess.DEVNULL, check=True)
    after = thread_seconds(p.pid)
    p.send_signal(signal.SIGTERM)
    p.wait(60)
    spent = sorted((after[t] - before.get(t, 0) for t in after), reverse=True)
    return json.load(open(trace)), spent[a.threads:]         # the busiest compute


def steps(trace):
    """(seconds of a step, seconds of it outside the model) for every step but the last."""
    events = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in trace["traceEvents"]
                    if e.get("cat") == "kernel" and e["tid"] == 0)
    out, begin, end = [], None, None
    for b, e, name in events:
        if begin is None:
            begin = b
        if name == "ce_sum":
            end = e
        elif end is not None and name == "embed":
            out.append(((b - begin) / 1e6, (b - end) / 1e6))
            begin, end = b, None
    return out


def main():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "bin"))
    ap.add_argument("--size", default="110m")
    ap.add_argument("--dtype", default="bf16")
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    tmp = tempfile.mkdtemp(prefix="shardline-bench-")
    try:
        make_model(a.size, a.dtype, os.path.join(tmp, "model"))
        for n in BATCHES:
            trace, others = decode(a, tmp, n)
            all_steps = steps(trace)
            step, outside = (statistics.median(x) for x in zip(*all_steps))
            log(f"{a.size} {a.dtype} batch {n}: {1e3 * step:.2f} ms a step, {1e3 * outside:.3f} ms outside the model ({100 * outside / step:.2f} %), "
                f"other threads {1e3 * sum(others) / len(all_steps):.3f} ms of CPU a step")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""serve_bench.py - serving speed over HTTP beside llama.cpp (llama-cpp-python) and transformers.

usage: serve_bench.py [--bin DIR] [--sizes 110m,1b] [--dtypes bf16,fp32] [--tp N] [--threads N] [--rounds N]
[--fast] [--rows LIST] [--peers llama.cpp,transformers]
                      [--models DIR]
PEERS=DIR (serve_llama.py, serve_hf.py, llama_gguf.py) and PEER_PYTHON add the peers, which are called below
HTTP; ours is called through it. Rows: start to ready (weights in the page cache), prefill of 512 tokens, time
to the first token (64 tokens, an idle server), tokens/s while 1, 8, 32 sequences decode (n over the median
time between tokens). rN and tN, for the smallest model: requests/s of one token and tokens/s of answers of 16
over N connections. Contestants take --rounds turns: a figure is the best, a ratio the median. Weights are
random. The models are made in a folder of TMPDIR, or stay in --models DIR for the next run."""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from contest import Table, log, peer_has, peer_lines
from serve_models import SIZES, make_model

BATCHES = (1, 8, 32)
LOADS = {f"{kind}{n}": (n, tokens) for kind, tokens in (("r", 1), ("t", 16)) for n in (1, 32, 256)}


class Server:
    def __init__(self, a, model, numerics):
        cmd = [os.path.join(a.bin, "pserve"), model, "--port", "0", "--tp", str(a.tp), "--threads",
               str(a.threads), "--max-batch", "32", "--ctx", "1024",
               "--prefix-cache", "off"] + (["--numerics", numerics] if numerics != "exact" else [])
        begin = time.time()
        self.p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.p.stdout.readline()
        self.ready_s = time.time() - begin
        if "ready on " not in line:
            raise RuntimeError("pserve did not start: " + line)
        self.url = line.split("ready on ")[1].split()[0]

    def close(self):
        self.p.terminate()
        self.p.wait(30)

    def complete(self, ids, stream):
        body = {"prompt": ids, "max_tokens": 1 if not stream else 2, "ignore_eos": True, "temperature": 0,
                "stream": stream}
        ask = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
        begin = time.perf_counter()
        with urllib.request.urlopen(ask) as answer:
            while True:
                line = answer.readline()
                if not line or line.strip() or not stream:
                    break
            first = time.perf_counter() - begin
            answer.read()
        return first


def pbench(a, s, vocab, requests, connections, prompt, answer):
    out = subprocess.run([os.path.join(a.bin, "pbench"), "--url", s.url, "--requests", str(requests),
                          "--concurrency", str(connections), "--prompt-tokens", str(prompt),
                          "--output-tokens", str(answer), "--vocab", str(vocab), "--json"],
                          stdout=subprocess.PIPE, check=True)
    return json.loads(out.stdout)


def ours(a, size, model, numerics, into):
    vocab, rng = SIZES[size].vocab, random.Random()
    s = Server(a, model, numerics)
    try:
        def ids(n):
            return [rng.randrange(3, vocab) for _ in range(n)]
        s.complete(ids(64), False)
        found = {"ready": -s.ready_s}
        if "prefill" in a.rows:
            found["prefill"] = 512 / min(s.complete(ids(512), False) for _ in range(4))
        if "ttft" in a.rows:
            found["ttft"] = -1000 * min(s.complete(ids(64), True) for _ in range(5))
        for n in (n for n in BATCHES if f"b{n}" in a.rows):
            said = pbench(a, s, vocab, n, n, 64, 40 if n > 1 else 60)
            # 0: tokens of a small model come several in one read
            found[f"b{n}"] = 1000 * n / (said["median_itl_ms"] or said["median_tpot_ms"])
        for key in (k for k in LOADS if k in a.rows):
            n, tokens = LOADS[key]
            found[key] = pbench(a, s, vocab, max(400, 12 * n), n, 8, tokens)["request_throughput"
                if tokens == 1 else "output_throughput"]
    finally:
        s.close()
    into.update(found)


def peer_figures(lines, into):
    for line in lines:
        key = {"prefill": "prefill", "load": "ready"}.get(line["metric"].split()[0])
        if line["metric"].startswith("decode batch "):
            key = "b" + line["metric"].split()[2]
        # a decode row is the median of its steps, as ours is; the peer's programs give their best step first
        if key:
            into[key] = -line["value"] if key == "ready" else line["config"]["median"] if key[0] == "b" else line["value"]


def peers_for(a, size, dtype, model, tmp):
    """name -> a function that adds its figures to a dict."""
    out = {}
    if peer_has("llama_cpp", "serve_llama.py") and peer_has("gguf", "llama_gguf.py"):
        kind = "bf16" if dtype == "bf16" else "f32"
        path = os.path.join(tmp, f"{size}-{kind}.gguf")
        dense = [os.path.join(os.environ["PEERS"], "llama_gguf.py"), size, tmp, kind]
        mixture = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "moe_gguf.py"), model, path]
        if not os.path.exists(path) and (kind == "bf16" or not SIZES[size].experts):
            subprocess.run([os.environ["PEER_PYTHON"], *(mixture if SIZES[size].experts else dense)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if os.path.exists(path):
            out["llama.cpp"] = lambda into: peer_figures(peer_lines("serve_llama.py", a.threads * a.tp, path),
                                                         into)
    if peer_has("transformers", "serve_hf.py"):
        out["transformers"] = lambda into: peer_figures(peer_lines("serve_hf.py", a.threads * a.tp, "bfloat16"
                                                                   if dtype == "bf16" else "float32", model,
                                                                  env={"BATCHES": ",".join(str(n)
                                                                      for n in BATCHES if f"b{n}" in a.rows)
                                                                      or "1"}), into)
    return out


def main():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "bin"))
    ap.add_argument("--sizes", default="110m")
    ap.add_argument("--dtypes", default="bf16,fp32")
    ap.add_argument("--tp", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--fast", action="store_true", help="a contestant with --numerics fast")
    ap.add_argument("--rows", default="prefill,b1,b8,b32,ready,ttft",
                    help="which rows; also r1,r32,r256,t1,t32,t256 (a peer's program measures all of its own)")
    ap.add_argument("--peers", default="llama.cpp,transformers")
    ap.add_argument("--models", help="models are looked for here, made here if they are not, and stay")
    a = ap.parse_args()
    a.rows = a.rows.split(",")
    if a.models:
        os.makedirs(a.models, exist_ok=True)
    tmp = a.models or tempfile.mkdtemp(prefix="shardline-bench-")
    table = Table(f"{'serving':58s} {'ours':>10s} {'peer':>10s} {'':14s} {'ratio':>6s}")
    try:
        for size in a.sizes.split(","):
            for dtype in a.dtypes.split(","):
                contest(a, table, size, dtype, tmp)
    finally:
        if not a.models:
            shutil.rmtree(tmp, ignore_errors=True)
    table.end()


def contest(a, table, size, dtype, tmp):
    model = os.path.join(tmp, f"{size}-{dtype}-folder")
    if not os.path.exists(os.path.join(model, "config.json")):        # the last file of it
        make_model(size, dtype, model)
    run = {"ours": lambda into: ours(a, size, model, "exact", into)}
    if a.fast:
        run["fast"] = lambda into: ours(a, size, model, "fast", into)
    run.update({k: f for k, f in peers_for(a, size, dtype, model, tmp).items() if k in a.peers})
    rounds = [{name: {} for name in run} for _ in range(a.rounds)]
    for found in rounds:
        for name, f in run.items():
            try:
                f(found[name])
            except (RuntimeError, OSError, subprocess.SubprocessError) as why:
                log(f"{name}: {why}")

    def best(name, key):
        return max((r[name][key] for r in rounds if key in r[name]), default=None)

    # the speed of memory moves by a half within minutes: turns are compared, not the best of each
    def ratio(name, key, lower):
        both = [r["ours"][key] / r[name][key] for r in rounds if key in r["ours"] and key in r[name]]
        return statistics.median(1 / x if lower else x for x in both) if both else None
    rows = [("prefill", "prefill 512", "tokens/s")] + [(f"b{n}", f"decode batch {n}", "tokens/s")
                                                       for n in BATCHES]
    rows += [(k, f"{'one-token requests' if m == 1 else 'answers of 16'}, {n} connections", "requests/s"
              if m == 1 else "tokens/s") for k, (n, m) in LOADS.items()]
    rows += [("ready", "start to ready", "s"), ("ttft", "first token after 64", "ms")]
    for key, what, unit in rows:
        mine = best("ours", key)
        if mine is None or key not in a.rows:
            continue
        others = [n for n in run if n != "ours" and best(n, key) is not None]
        for n in others or [None]:
            lower = unit in ("s", "ms")
            table.add(f"{size} {dtype} {what}, tp {a.tp} x {a.threads} threads", abs(mine), abs(best(n, key))
                      if n else None, n or "-", unit,
                      better="lower" if lower else "higher", ratio=ratio(n, key, lower) if n else None)
    if not a.models:
        shutil.rmtree(model)


if __name__ == "__main__":
    main()

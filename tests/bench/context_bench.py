#!/usr/bin/env python3
"""context_bench.py - one long sequence, trained by one rank of two threads and by two ranks of one thread
that divide it (--cp 2): tokens/s, activations a rank, and whether the losses and the final state are the
same bits.

usage: context_bench.py [--bin DIR] [--rounds N] [--steps N] [--seq T] [--dtype fp32|bf16] [--no-torch]

The model: hidden 512, 8 heads, 4 layers. Contestants take turns; a ratio is the median of the turns'
ratios. Beside them stands transformers + torch with two threads where PEER_PYTHON names a python with both
(torch's own context parallelism has no attention for CPUs: its operators lack a sharding strategy)."""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

from contest import PYTHON, Table, log

MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
         "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_key_value_heads": 8, "vocab_size": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
WAYS = {  # ranks, threads, flags
    "cp 1, 2 threads": (1, 2, []),
    "cp 2, 1 thread": (2, 1, ["--cp", "2"]),
    "cp 1, 2 threads, C 1": (1, 2, ["--cp-grain", "1"]),
}
ORDER = "cp 1, 2 threads, C 1"       # another order: its bits are its own


def run(a, way):
    """{value: tokens/s of the median step behind the first, bits: what must be equal, rss}, or None."""
    ranks, threads, flags = WAYS[way]
    out, logs = os.path.join(a.tmp, "out"), os.path.join(a.tmp, "log.jsonl")
    shutil.rmtree(out, ignore_errors=True)
    if os.path.exists(logs):
        os.unlink(logs)
    cmd = [os.path.join(a.bin, "ptrain"), "--data", os.path.join(a.tmp, "text"), "--out", out, "--model",
           os.path.join(a.tmp, "config.json"), "--steps", a.steps, "--seq-len", a.seq, "--global-batch", 1,
           "--dtype", a.dtype, "--ranks", ranks, "--threads", threads, "--log", logs, *flags]
    p = subprocess.run([str(x) for x in cmd], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        log(f"{way}: {p.stderr.decode(errors='replace').strip()[-300:]}")
        return None
    with open(logs) as f:
        steps = [json.loads(line) for line in f if '"loss_bits"' in line]
    end = json.loads(p.stdout.decode().splitlines()[-1])
    return {"value": statistics.median(s["tokens_per_s"] for s in steps[1:] or steps),
            "bits": [s["loss_bits"] for s in steps] + [s["grad_norm_bits"] for s in steps] +
            [end["state_digest"]], "rss": max(s["rss_bytes"] for s in steps)}


def torch(a):
    here = os.path.dirname(os.path.abspath(__file__))
    cmd = [PYTHON, os.path.join(here, "train_torch.py"), "--config", os.path.join(a.tmp, "config.json"),
           "--dtype", a.dtype, "--threads", 2, "--seq", a.seq, "--batch", 1, "--steps", max(1, a.steps - 1)]
    out = subprocess.run([str(x) for x in cmd], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = [json.loads(line) for line in out.stdout.splitlines() if line.startswith(b"{")]
    if not lines:
        log(f"torch: {out.stderr.decode(errors='replace').strip()[-300:]}")
        return None
    return {"value": lines[-1]["median"], "rss": lines[-1]["rss"]}


def make_inputs(a):
    rng = random.Random(1)
    with open(os.path.join(a.tmp, "config.json"), "w") as f:
        json.dump(dict(MODEL, max_position_embeddings=a.seq), f)
    with open(os.path.join(a.tmp, "text"), "wb") as f:
        f.write(bytes(rng.choices(b"abcdefgh \n", k=(a.steps + 1) * a.seq + 1)))


def rows(a, table, figures):
    name = f"{a.dtype} seq {a.seq}"
    for way in [w for w in figures if w != "cp 2, 1 thread"]:
        pairs = [(x, y) for x, y in zip(figures["cp 2, 1 thread"], figures[way]) if x and y]
        if not pairs:
            log(f"{name}: {way} gave no figure")
            continue
        ours, theirs = [statistics.median(p[i]["value"] for p in pairs) for i in (0, 1)]
        note = "rss {:.2f} GB a rank against {:.2f}".format(*(max(p[i]["rss"] for p in pairs) / 1e9
                                                              for i in (0, 1)))
        table.add(f"{name}: cp 2 x 1 thread", ours, theirs, way, "tokens/s", note,
                  ratio=statistics.median(x["value"] / y["value"] for x, y in pairs))


def main():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "bin"))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--steps", type=int, default=3)
    ap.add_argument("--seq", type=int, default=16384)
    ap.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    ap.add_argument("--no-torch", action="store_true")
    a = ap.parse_args()
    a.tmp = tempfile.mkdtemp(prefix="shardline-bench-")
    try:
        make_inputs(a)
        who = {way: lambda way=way: run(a, way) for way in WAYS}
        if not a.no_torch:
            who["torch, 2 threads"] = lambda: torch(a)
        figures = {way: [] for way in who}
        for _ in range(a.rounds):
            for way, turn in who.items():
                figures[way].append(turn())
        table = Table(f"{'context parallelism':58s} {'ours':>10s} {'peer':>10s} {'':14s} {'ratio':>6s}")
        rows(a, table, figures)
        bits = {json.dumps(f["bits"]) for way in WAYS if way != ORDER for f in figures[way] if f}
        table.end()
    finally:
        shutil.rmtree(a.tmp, ignore_errors=True)
    if len(bits) != 1:
        sys.exit("the bits differ between cp 1 and cp 2")
    print("the bits are the same at cp 1 and cp 2")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""offload_bench.py - training with masters and moments in files (--offload DIR) beside training in memory,
and beside DeepSpeed's ZeRO-3 with its optimizer in files: tokens/s, the share of the disk's time that
training did not wait for, bytes a parameter and step.

usage: offload_bench.py --dir DIR [--bin DIR] [--rounds N] [--steps N] [--seq T] [--batch G] [--model FILE]
[--no-deepspeed]
DIR: a folder on the disk to be measured. One rank of two threads, bf16. Contestants take turns; a ratio is
the median of the turns' ratios. The peer needs PEER_PYTHON with deepspeed, torch and transformers, and
ninja in its PATH: DeepSpeed compiles its operators when it first runs."""
import argparse
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

from contest import PYTHON, Table, log

MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 768,
         "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
         "num_key_value_heads": 12, "vocab_size": 32000, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def ours(a, flags):
    """{value: tokens/s of the median step behind the first, rss, bits, parameters, steps}, or None."""
    out, logs = os.path.join(a.tmp, "out"), os.path.join(a.tmp, "log.jsonl")
    shutil.rmtree(out, ignore_errors=True)
    if os.path.exists(logs):
        os.unlink(logs)
    cmd = [os.path.join(a.bin, "ptrain"), "--data", os.path.join(a.tmp, "tokens.u16"), "--out", out,
           "--model", a.model, "--steps", a.steps + 1, "--seq-len", a.seq, "--global-batch", a.batch,
           "--ranks", 1, "--threads", 2, "--dtype", "bf16", "--log", logs, *flags]
    p = subprocess.run([str(x) for x in cmd], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        log(f"ptrain: {p.stderr.decode(errors='replace').strip()[-300:]}")
        return None
    with open(logs) as f:
        lines = [json.loads(line) for line in f]
    steps = [s for s in lines if "loss_bits" in s]
    parameters = next(s["parameters"] for s in lines if "parameters" in s)
    seconds = [a.batch * a.seq / s["tokens_per_s"] for s in steps[1:]]
    return {"value": a.batch * a.seq / statistics.median(seconds), "rss": max(s["rss_bytes"] for s in steps),
            "bits": [s["loss_bits"] for s in steps], "parameters": parameters, "steps": steps[1:]}


def deepspeed(a):
    here = os.path.dirname(os.path.abspath(__file__))
    files = os.path.join(a.tmp, "deepspeed")
    cmd = [PYTHON, os.path.join(here, "train_deepspeed.py"), "--config", a.model, "--dir", files,
           "--threads", 2, "--seq", a.seq, "--batch", a.batch, "--steps", a.steps]
    os.makedirs(files, exist_ok=True)
    path = os.path.dirname(os.path.abspath(PYTHON)) + ":" + os.environ["PATH"]
    out = subprocess.run([str(x) for x in cmd], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env=dict(os.environ, PATH=path))
    shutil.rmtree(files, ignore_errors=True)
    lines = [json.loads(line) for line in out.stdout.splitlines() if line.startswith(b'{"value"')]
    if not lines:
        log(f"deepspeed: {out.stderr.decode(errors='replace').strip()[-300:]}")
        return None
    return {"value": lines[-1]["median"], "rss": lines[-1]["rss"]}


def make_inputs(a):
    rng = random.Random(1)
    if not a.model:
        a.model = os.path.join(a.tmp, "config.json")
        with open(a.model, "w") as f:
            json.dump(MODEL, f)
    with open(a.model) as f:
        vocab = json.load(f)["vocab_size"]
    n = (a.steps + 2) * a.batch * a.seq + 1
    with open(os.path.join(a.tmp, "tokens.u16"), "wb") as f:
        f.write(struct.pack(f"<{n}H", *(rng.randrange(vocab) for _ in range(n))))


def disk_note(memory, files):
    """What the disk did in a step of `files`; hidden: of the smaller of its time and the computation's."""
    steps = files["steps"]
    disk = statistics.median(s["offload_s"] for s in steps)
    waited = statistics.median(s["offload_waited_s"] for s in steps)
    moved = steps[-1]["offload_read"] + steps[-1]["offload_written"]
    compute = statistics.median(s["tokens"] / s["tokens_per_s"] for s in memory["steps"]) if memory else disk
    hidden = 1 - waited / min(disk, compute)
    return (f"disk {disk:.1f} s a step, waited {waited:.2f} s: {100 * hidden:.0f} % hidden; "
            f"{moved / files['parameters']:.2f} B a parameter")


def main():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap = argparse.ArgumentParser()
    ap.add_argument("--dir", required=True)
    ap.add_argument("--bin", default=os.path.join(top, "build", "bin"))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--steps", type=int, default=4)
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--model")
    ap.add_argument("--no-deepspeed", action="store_true")
    a = ap.parse_args()
    a.tmp = tempfile.mkdtemp(prefix="shardline-bench-", dir=a.dir)
    try:
        make_inputs(a)
        who = {"in memory": lambda: ours(a, []),
               "in files": lambda: ours(a, ["--offload", os.path.join(a.tmp, "state")])}
        if not a.no_deepspeed:
            who["deepspeed"] = lambda: deepspeed(a)
        os.makedirs(os.path.join(a.tmp, "state"))
        figures = {name: [] for name in who}
        for _ in range(a.rounds):
            for name, turn in who.items():
                figures[name].append(turn())
        table = Table(f"{'optimizer state in files':58s} {'ours':>10s} {'peer':>10s} {'':14s} {'ratio':>6s}")
        for name in [n for n in who if n != "in files"]:
            pairs = [(x, y) for x, y in zip(figures["in files"], figures[name]) if x and y]
            if not pairs:
                log(f"{name} gave no figure")
                continue
            files, theirs = [statistics.median(p[i]["value"] for p in pairs) for i in (0, 1)]
            note = "rss {:.2f} GB against {:.2f}".format(*(max(p[i]["rss"] for p in pairs) / 1e9
                                                           for i in (0, 1)))
            table.add(f"{a.batch} x {a.seq} tokens a step", files, theirs, name, "tokens/s", note,
                      ratio=statistics.median(x["value"] / y["value"] for x, y in pairs))
        for memory, files in zip(figures["in memory"], figures["in files"]):
            if files:
                print(disk_note(memory, files))
        table.end()
    finally:
        shutil.rmtree(a.tmp, ignore_errors=True)
    bits = {json.dumps(f["bits"]) for name in ("in memory", "in files") for f in figures[name] if f}
    if len(bits) != 1:
        sys.exit("the bits differ between memory and files")


if __name__ == "__main__":
    main()

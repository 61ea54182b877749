#!/usr/bin/env python3
"""train_bench.py - training speed beside PyTorch and DeepSpeed: tokens/s of the best step, contestants in
turn.

usage: train_bench.py [--bin DIR] [--rounds N] [--steps N] [--into FILE [--seconds S]] [--list] [WORD...]
WORD...: only rows whose name has every WORD; WORD,WORD: one of the two. --into: adds new figures to FILE and
does not measure those in it again; no measurement begins after S seconds. The same command, repeated while
its status is 3, measures all rows in pieces. PEERS=DIR (a folder with train_torch.py) and PEER_PYTHON=python
with torch add the peers. MFU: operations of products and causal attention as a share of the speed of products
that the same run measures. Nothing is saved: the ranks are killed after the last step. Mixtures of experts
(10m-moe, 110m-moe) stand beside a dense model of equal active shape (the ratio is that of the MFUs) and
beside transformers + torch (train_torch.py, which needs PEER_PYTHON alone); their ratios are medians of
the ratios of the turns."""
import argparse
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from contest import PYTHON, Table, log, peer_has, peer_lines

# hidden, layers, heads, ffn, vocabulary: the shapes of the peers' program; sequences a step at 256 tokens,
# half as many at 512
SIZES = {
    "10m": (256, 6, 4, 704, 8192, 8),
    "110m": (768, 12, 12, 2048, 32000, 4),
}
# hidden, layers, heads, kv heads, width of an expert, vocabulary, sequences of 256 a step; 8 experts, 2 of
# them for a token: 256 rows an expert and step at least
MIXTURES = {
    "10m-moe": (384, 6, 8, 4, 512, 256, 8),
    "110m-moe": (768, 12, 12, 12, 1024, 32000, 4),
}
EXPERTS, CHOSEN = 8, 2
LAYOUTS = {  # ranks, threads, our flags, the peer's mode
    "1x2": (1, 2, [], "single"),
    "ddp 2x1": (2, 1, [], "ddp"),
    "zero3 2x1": (2, 1, ["--zero", "3"], "fsdp2"),
    "tp2 2x1": (2, 1, ["--tp", "2"], None),
}


def sequences(size, seq):
    return SIZES[size][5] * 256 // seq


def ours(a, size, layout, dtype, seq, numerics):
    ranks, threads, flags, _ = LAYOUTS[layout]
    batch = ["--ranks", ranks, "--threads", threads, "--seq-len", seq, "--global-batch", sequences(size, seq)]
    return best_step(a, size, SIZES[size][4], [*batch, "--dtype", dtype, "--numerics", numerics, *flags])


def logged_steps(cmd, logs, n, env=None):
    """Runs ptrain until its log has n steps, or for 300 s. Returns the log's lines of steps, and stderr."""
    p = subprocess.Popen([str(x) for x in cmd], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         start_new_session=True, env=env)
    steps, end = [], time.time() + 300
    while len(steps) < n and time.time() < end and p.poll() is None:
        time.sleep(0.05)
        if os.path.exists(logs):
            with open(logs) as f:
                steps = [json.loads(line) for line in f if line.endswith("\n") and '"loss_bits"' in line]
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return steps, p.communicate()[1].decode(errors="replace")


def best_step(a, model, vocab, flags):
    """The best step of a run of MODEL.json: {value, mfu, rss}, or None."""
    logs = os.path.join(a.tmp, "log.jsonl")
    if os.path.exists(logs):
        os.unlink(logs)
    out = os.path.join(a.tmp, "out")
    shutil.rmtree(out, ignore_errors=True)         # the last run may have saved
    cmd = [os.path.join(a.bin, "ptrain"), "--data", os.path.join(a.tmp, f"{vocab}.u16"), "--out", out,
           "--model", os.path.join(a.tmp, model + ".json"),
           "--steps", a.steps + 2, "--log", logs, *flags]
    steps, said = logged_steps(cmd, logs, a.steps + 1)
    if len(steps) < 2:
        log(f"ptrain: {said.strip()[-300:]}")
        return None
    best = max(steps[1:], key=lambda s: s["tokens_per_s"])
    return {"value": best["tokens_per_s"], "mfu": best["mfu"], "rss": best["rss_bytes"]}


def peer(size, layout, dtype, seq, steps, mode, compiled):
    ranks, threads, _, _ = LAYOUTS[layout]
    args = ["--mode", mode, "--size", size, "--dtype", dtype, "--ranks", ranks, "--threads", threads, "--seq",
            seq, "--batch", sequences(size, seq), "--steps", steps]
    lines = peer_lines("train_torch.py", *args, *(["--compile"] if compiled else []))
    return {"value": lines[-1]["value"],
            "rss": lines[-1]["config"].get("peak_rss_mib_per_rank", 0) * 2**20} if lines else None


def make_inputs(tmp):
    rng = random.Random(1)
    for size, (h, layers, heads, ffn, vocab, _) in SIZES.items():
        with open(os.path.join(tmp, size + ".json"), "w") as f:
            json.dump({"model_type": "llama", "hidden_size": h, "num_hidden_layers": layers,
                       "num_attention_heads": heads, "num_key_value_heads": heads,
                       "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": 2048,
                       "tie_word_embeddings": False}, f)
        make_tokens(tmp, rng, vocab)
    for name, (h, layers, heads, kv, width, vocab, _) in MIXTURES.items():
        shape = {"hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": heads,
                 "num_key_value_heads": kv, "vocab_size": vocab,
                 "max_position_embeddings": 2048, "tie_word_embeddings": False}
        with open(os.path.join(tmp, name + ".json"), "w") as f:
            json.dump(dict(shape, model_type="mixtral", intermediate_size=width, num_local_experts=EXPERTS,
                           num_experts_per_tok=CHOSEN), f)
        with open(os.path.join(tmp, name + "-dense.json"), "w") as f:
            json.dump(dict(shape, model_type="llama", intermediate_size=CHOSEN * width), f)
        make_tokens(tmp, rng, vocab)


def make_tokens(tmp, rng, vocab):
    with open(os.path.join(tmp, f"{vocab}.u16"), "wb") as f:
        f.write(struct.pack("<200000H", *(rng.randrange(vocab) for _ in range(200000))))


def names(words):
    """The rows that the words select: (name, size, layout, dtype, seq)."""
    for size in SIZES:
        for dtype in ("fp32", "bf16"):
            for seq in (256, 512):
                for layout in LAYOUTS:
                    name = f"{size} {dtype} seq {seq} {layout}"
                    if all(set(w.split(",")) & set(name.split()) for w in words):
                        yield name, size, layout, dtype, seq


class Kept:
    """Figures by row, contestant and round, also in a file when there is one."""

    def __init__(self, path, seconds):
        self.path, self.end, self.left, self.figure = path, time.monotonic() + seconds, 0, {}
        if path and os.path.exists(path):
            with open(path) as f:
                for line in f:
                    if line.endswith("\n"):
                        key, figure = json.loads(line)
                        self.figure[tuple(key)] = figure

    def turn(self, key, run):
        if key in self.figure:
            return
        if time.monotonic() >= self.end:
            self.left += 1
            return
        self.figure[key] = run()
        if self.path:
            with open(self.path, "a") as f:
                f.write(json.dumps([key, self.figure[key]]) + "\n")

    def best(self, name, who):
        return max((f for k, f in self.figure.items() if k[:2] == (name, who) and f),
                   key=lambda f: f["value"], default=None)


def contestants(a, size, layout, dtype, seq):
    mode = LAYOUTS[layout][3]
    who = {n: lambda n=n: ours(a, size, layout, dtype, seq, n) for n in ("exact", "fast")}
    peers = [("torch " + str(mode), mode, 0, a.torch and mode),
             ("torch compiled", mode, 1, a.torch and mode == "single"),
             ("deepspeed z3", "zero3", 0, a.deepspeed and mode == "fsdp2")]
    for label, how, compiled, there in peers:
        if there:
            who[label] = lambda how=how, compiled=compiled: peer(size, layout, dtype, seq, a.steps, how,
                                                                 compiled)
    return who


def row(a, table, kept, name, *what):
    """Contestants take turns; the row is printed when all of them are measured."""
    who, left = contestants(a, *what), kept.left
    for turn in range(a.rounds):
        for label, run in who.items():
            kept.turn((name, label, turn), run)
    exact, fast = kept.best(name, "exact"), kept.best(name, "fast")
    if kept.left > left:
        return
    if not exact:
        return log(f"{name}: no figure")
    note = f"mfu {100 * exact['mfu']:.0f} %, {exact['rss'] / 1e9:.2f} GB a rank"
    for label in [k for k in who if k not in ("exact", "fast")] or [None]:
        theirs = kept.best(name, label)
        if label and not theirs:
            log(f"{name}: {label} gave no figure")
        table.add(name, exact["value"], theirs and theirs["value"], label or "-", "tokens/s",
                  note + (f" (peer {theirs['rss'] / 1e9:.2f})" if theirs else ""))
    if fast:
        table.add(name + ": exact against fast", exact["value"], fast["value"], "fast", "tokens/s")


# ---- mixtures of experts ----
def mixture_names(words):
    for model in MIXTURES:
        for dtype in ("fp32", "bf16"):
            name = f"{model} {dtype} seq 256 1x2"
            if all(set(w.split(",")) & set(name.split()) for w in words):
                yield name, model, dtype


def mixture_peer(a, model, dtype, experts):
    """The best step of transformers + torch: {value, rss}, or None."""
    cmd = [PYTHON, os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_torch.py"), "--config",
           os.path.join(a.tmp, model + ".json"),
           "--dtype", dtype, "--experts", experts, "--threads", "2", "--batch", MIXTURES[model][6], "--steps",
           a.steps]
    out = subprocess.run([str(x) for x in cmd], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         timeout=900)
    lines = [json.loads(line) for line in out.stdout.splitlines() if line.startswith(b"{")]
    return lines[-1] if lines else None


def mixture_contestants(a, model, dtype):
    def run(name, numerics):
        flags = ["--ranks", 1, "--threads", 2, "--seq-len", 256, "--global-batch", MIXTURES[model][6],
                 "--dtype", dtype, "--numerics", numerics]
        return best_step(a, name, MIXTURES[model][5], flags)

    who = {"exact": lambda: run(model, "exact"), "dense": lambda: run(model + "-dense", "exact"),
           "fast": lambda: run(model, "fast")}
    if a.transformers:
        for experts in ("grouped_mm", "eager"):
            who["torch " + experts] = lambda experts=experts: mixture_peer(a, model, dtype, experts)
    return who


def mixture_flops(model):
    """Operations of a token in a step, of the mixture and of the dense model: products, and attention over
    half of the sequence."""
    h, layers, heads, kv, width, vocab, _ = MIXTURES[model]
    attention = 2 * h * h + 2 * h * h * kv // heads
    dense = 6.0 * (layers * (attention + 3 * h * CHOSEN * width) + h * vocab) + 6.0 * layers * h * 256
    return dense + 6.0 * layers * h * EXPERTS, dense


def mixture_row(a, table, kept, name, model, dtype):
    who, left = mixture_contestants(a, model, dtype), kept.left
    for turn in range(a.rounds):
        for label, run in who.items():
            kept.turn((name, label, turn), run)
    if kept.left > left:
        return
    figures = {label: [kept.figure[(name, label, t)] for t in range(a.rounds)] for label in who}
    median = {label: statistics.median(f["value"] for f in fs if f) for label, fs in figures.items()
              if any(fs)}
    if "exact" not in median:
        return log(f"{name}: no figure")
    rss = max(f["rss"] for f in figures["exact"] if f)
    for label in [x for x in who if x != "exact"]:
        pairs = [(x["value"], y["value"]) for x, y in zip(figures["exact"], figures[label]) if x and y]
        if not pairs:
            log(f"{name}: {label} gave no figure")
            continue
        of_mixture, of_dense = mixture_flops(model)
        factor = of_mixture / of_dense if label == "dense" else 1
        table.add(f"{name}: {'MFU ' if label == 'dense' else ''}against {label}", median["exact"],
                  median[label], label, "tokens/s",
                  f"{rss / 1e9:.2f} GB", ratio=factor * statistics.median(x / y for x, y in pairs))


def main():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "bin"))
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--steps", type=int, default=4)
    ap.add_argument("--into")
    ap.add_argument("--seconds", type=float, default=1e9)
    ap.add_argument("--list", action="store_true")
    ap.add_argument("words", nargs="*")
    a = ap.parse_args()
    if a.list:
        return print("\n".join(w[0] for w in [*names(a.words), *mixture_names(a.words)]))
    a.tmp = tempfile.mkdtemp(prefix="shardline-bench-")
    make_inputs(a.tmp)
    a.torch, a.deepspeed = peer_has("torch", "train_torch.py"), peer_has("deepspeed", "train_torch.py")
    a.transformers = subprocess.run([PYTHON, "-c", "import torch, transformers"],
                                    stderr=subprocess.DEVNULL).returncode == 0
    if not a.torch:
        log("no peers: PEERS and PEER_PYTHON are not set, or that python has no torch")
    kept = Kept(a.into, a.seconds)
    table = Table(f"{'training':58s} {'ours':>10s} {'peer':>10s} {'':14s} {'ratio':>6s}")
    try:
        for what in names(a.words):
            row(a, table, kept, *what)
        for what in mixture_names(a.words):
            mixture_row(a, table, kept, *what)
    finally:
        shutil.rmtree(a.tmp, ignore_errors=True)
    if kept.left:
        log(f"{kept.left} figures are left: the same command again takes the next ones")
        sys.exit(3)
    table.end()


if __name__ == "__main__":
    main()

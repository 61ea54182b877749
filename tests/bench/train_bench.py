#!/usr/bin/env python3
"""train_bench.py - training speed beside PyTorch's (and DeepSpeed's): tokens/s of the best step, contestants in turn.

usage: train_bench.py [--bin DIR] [--rounds N] [--steps N] [--into FILE [--seconds S]] [--list] [WORD...]     only rows whose name has every WORD;
WORD,WORD: one of them. --into: rows that FILE has are not taken again, new ones are added to it; no row is begun after S seconds, so that all rows can
be taken in pieces, by the same command again and again (status 3: some are left).
PEERS=DIR (a folder with train_torch.py) and PEER_PYTHON=python with torch put the peers beside. MFU: flops of the products and of
causal attention over the speed of products measured by the same run. Nothing is saved: the ranks are ended after the last step."""
import argparse
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from contest import Table, log, peer_has, peer_lines, turns

SIZES = {  # hidden, layers, heads, ffn, vocabulary: the shapes of the peers' program; sequences a step at 256 tokens, half as many at 512
    "10m": (256, 6, 4, 704, 8192, 8),
    "110m": (768, 12, 12, 2048, 32000, 4),
}
LAYOUTS = {  # ranks, threads, our flags, the peer's mode
    "1x2": (1, 2, [], "single"),
    "ddp 2x1": (2, 1, [], "ddp"),
    "zero3 2x1": (2, 1, ["--zero", "3"], "fsdp2"),
    "tp2 2x1": (2, 1, ["--tp", "2"], None),
}


def sequences(size, seq):
    return SIZES[size][5] * 256 // seq


def ours(a, size, layout, dtype, seq, numerics, detail):
    vocab = SIZES[size][4]
    ranks, threads, flags, _ = LAYOUTS[layout]
    logs = os.path.join(a.tmp, "log.jsonl")
    if os.path.exists(logs):
        os.unlink(logs)
    out = os.path.join(a.tmp, "out")
    cmd = [os.path.join(a.bin, "ptrain"), "--data", os.path.join(a.tmp, f"{vocab}.u16"), "--out", out, "--model", os.path.join(a.tmp, size + ".json"),
           "--ranks", ranks, "--threads", threads, "--seq-len", seq, "--global-batch", sequences(size, seq), "--steps", a.steps + 1, "--stop-after", a.steps + 1,
           "--dtype", dtype, "--numerics", numerics, "--log", logs, *flags]
    p = subprocess.Popen([str(x) for x in cmd], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    steps, deadline = [], time.time() + 300
    while len(steps) < a.steps and time.time() < deadline and p.poll() is None:
        time.sleep(0.05)
        if os.path.exists(logs):
            with open(logs) as f:
                steps = [json.loads(line) for line in f if line.endswith("\n") and '"loss_bits"' in line]
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    said = p.communicate()[1].decode(errors="replace")
    if len(steps) < 2:
        log(f"ptrain: {said.strip()[-300:]}")
        return None
    best = max(steps[1:], key=lambda s: s["tokens_per_s"])
    if best["tokens_per_s"] > detail.get("tokens_per_s", 0):
        detail.update(best)
    return best["tokens_per_s"]


def peer(size, layout, dtype, seq, steps, mode, compiled, detail):
    ranks, threads, _, _ = LAYOUTS[layout]
    args = ["--mode", mode, "--size", size, "--dtype", dtype, "--ranks", ranks, "--threads", threads, "--seq", seq, "--batch", sequences(size, seq), "--steps", steps]
    lines = peer_lines("train_torch.py", *args, *(["--compile"] if compiled else []))
    if not lines:
        return None
    detail["rss"] = lines[-1]["config"].get("peak_rss_mib_per_rank", 0) * 2**20
    return lines[-1]["value"]


def make_inputs(tmp):
    rng = random.Random(1)
    for size, (h, layers, heads, ffn, vocab, _) in SIZES.items():
        with open(os.path.join(tmp, size + ".json"), "w") as f:
            json.dump({"model_type": "llama", "hidden_size": h, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
                       "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": 2048, "tie_word_embeddings": False}, f)
        with open(os.path.join(tmp, f"{vocab}.u16"), "wb") as f:
            f.write(struct.pack("<200000H", *(rng.randrange(vocab) for _ in range(200000))))


def names(words):
    """The rows that are asked for: (name, size, layout, dtype, seq)."""
    for size in SIZES:
        for dtype in ("fp32", "bf16"):
            for seq in (256, 512):
                for layout in LAYOUTS:
                    name = f"{size} {dtype} seq {seq} {layout}"
                    if all(set(w.split(",")) & set(name.split()) for w in words):
                        yield name, size, layout, dtype, seq


def read_rows(path):
    if not path or not os.path.exists(path):
        return {}
    with open(path) as f:
        rows = [json.loads(line) for line in f if line.endswith("\n")]
    return {r["name"]: r for r in rows}


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
    wanted, done, begin, left = list(names(a.words)), read_rows(a.into), time.monotonic(), 0
    if a.list:
        return print("\n".join(("done  " if w[0] in done else "      ") + w[0] for w in wanted))
    a.tmp = tempfile.mkdtemp(prefix="shardline-bench-")
    make_inputs(a.tmp)
    a.torch, a.deepspeed = peer_has("torch", "train_torch.py"), peer_has("deepspeed", "train_torch.py")
    if not a.torch:
        log("no peers: PEERS and PEER_PYTHON are not set, or that python has no torch")
    table = Table(f"{'training':58s} {'ours':>10s} {'peer':>10s} {'':14s} {'ratio':>6s}")
    try:
        for name, *what in wanted:
            if name not in done and time.monotonic() - begin >= a.seconds:
                left += 1
                continue
            r = done.get(name) or measure(a, name, *what)
            if name not in done and a.into and "exact" in r["best"]:
                with open(a.into, "a") as f:
                    f.write(json.dumps(r) + "\n")
            show(table, name, r)
    finally:
        shutil.rmtree(a.tmp, ignore_errors=True)
    if left:
        log(f"{left} rows are left: the same command again takes the next ones")
        sys.exit(3)
    table.end()


def measure(a, name, size, layout, dtype, seq):
    """What a row says, as it is kept in --into."""
    exact, fast, rss, begin = {}, {}, {}, time.monotonic()
    mode = LAYOUTS[layout][3]
    who = {"exact": lambda: ours(a, size, layout, dtype, seq, "exact", exact), "fast": lambda: ours(a, size, layout, dtype, seq, "fast", fast)}

    def beside(label, mode, compiled=0):
        rss[label] = {}
        who[label] = lambda: peer(size, layout, dtype, seq, a.steps, mode, compiled, rss[label])
    if a.torch and mode:
        beside("torch " + mode, mode)
        if mode == "single":
            beside("torch compiled", mode, 1)
        if mode == "fsdp2" and a.deepspeed:
            beside("deepspeed z3", "zero3")
    best = turns(who, a.rounds)
    return {"name": name, "best": best, "peers": list(rss), "mfu": exact.get("mfu", 0), "rss": exact.get("rss_bytes", 0),
            "peer_rss": {k: v.get("rss", 0) for k, v in rss.items()}, "seconds": round(time.monotonic() - begin, 1)}


def show(table, name, r):
    if "exact" not in r["best"]:
        return log(f"{name}: no figure")
    note = f"mfu {100 * r['mfu']:.0f} %, {r['rss'] / 1e9:.2f} GB a rank"
    for k in r["peers"] or [None]:
        theirs = r["peer_rss"].get(k)
        if k and k not in r["best"]:
            log(f"{name}: {k} gave no figure")
        table.add(name, r["best"]["exact"], r["best"].get(k), k or "-", "tokens/s", note + (f" (peer {theirs / 1e9:.2f})" if theirs else ""))
    if "fast" in r["best"]:
        table.add(name + ": exact against fast", r["best"]["exact"], r["best"]["fast"], "fast", "tokens/s")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""foreign_bench.py [--bin DIR] [--dir DIR] [--gb 2] [--rounds 2] [--only zero3|dcp] [--make-only] - reshard
of a DeepSpeed ZeRO-3 folder and of a PyTorch DCP folder to tp 8, natively and for Megatron, beside the
frameworks' own converters and cp -r, in turn; wall time and peak memory of each process.

Where this python has torch and deepspeed they write the folders, else tests/cli/lib/foreign_make.py does, and
then there is no peer. DIR (/tmp/shardline-bench-foreign) keeps the folders for the next run and needs four
times --gb. The source is in the page cache for all programs. zero_to_fp32 writes the weights only, a third of
the bytes, so its peer is `reshard --weights-only`; the others write all of the state. reshard ends with its
files on the disk; +sync: the time of a sync after each program, which the others need for the same."""
import argparse, importlib.util, json, os, shutil, subprocess, sys, time

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here + "/../cli/foreign", here + "/../cli/lib"]
LAYER, WIDTH, VOCAB = 12.9e6, 1024, 8192       # parameters of a layer of the model below
LIMIT = 256 << 20

def has(module): return importlib.util.find_spec(module) is not None

def make(kind, gb, dir):
    if os.path.exists(dir + "/ckpt"): return
    os.makedirs(dir, exist_ok=True)
    tmp = dir + "/making"
    shutil.rmtree(tmp, ignore_errors=True)
    os.makedirs(tmp)
    if has("torch") and (kind == "dcp" or has("deepspeed")):
        subprocess.run([sys.executable, __file__, "--worker", kind, "--gb", str(gb), "--dir", tmp],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    else:
        subprocess.run([sys.executable, here + "/../cli/lib/foreign_make.py", kind + "-4", tmp,
                        str(int(gb * 1000))], check=True)
    if os.path.exists(tmp + "/config.json"): os.rename(tmp + "/config.json", dir + "/config.json")
    os.rename(tmp + "/ckpt", dir + "/ckpt")
    shutil.rmtree(tmp)

def worker(kind, gb, dir):
    import foreign_real as real
    import torch
    if kind == "zero3": import deepspeed
    else: import torch.distributed.fsdp, torch.distributed.checkpoint
    real.BIG = dict(hidden_size=WIDTH, intermediate_size=2816,
                    num_hidden_layers=max(1, round((gb * 1e9 / 12 - 2 * VOCAB * WIDTH) / LAYER)),
                    num_attention_heads=16,
                    num_key_value_heads=16, vocab_size=VOCAB)
    if kind == "zero3": real.launch(real.ds_worker, 2, dir, 3, ["big"])
    else: real.launch(real.dcp_worker, 2, dir, "fsdp2", ["big"])

def size(path):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)

def warm(path):
    for d, _, files in os.walk(path):
        for f in files:
            with open(os.path.join(d, f), "rb", buffering=0) as h:
                while h.read(1 << 22): pass

def run(command):
    """wall seconds, seconds of a sync behind it, peak bytes of the largest process"""
    os.sync()
    t = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = p.stdout.read()
    _, status, used = os.wait4(p.pid, 0)
    wall = time.monotonic() - t
    if status: sys.exit(f"{command[0]}: {text[-600:]}")
    os.sync()
    return wall, time.monotonic() - t - wall, used.ru_maxrss * 1024

def tools(kind, src, out, reshard):
    py = sys.executable
    yield "reshard", [reshard, "--tp", "8", src, out]
    yield "reshard weights", [reshard, "--tp", "8", "--weights-only", src, out]
    yield "reshard megatron", [reshard, "--format", "megatron-dist", "--tp", "8", src, out]
    yield "cp -r", ["cp", "-r", src, out]
    if kind == "zero3" and has("deepspeed"):
        tag = open(src + "/latest").read().strip()
        yield "zero_to_fp32", [py, src + "/zero_to_fp32.py", src, out]
        yield "ds_to_universal", [py, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                                  f"{src}/{tag}", "--output_folder", out]
    if kind == "dcp" and has("torch"):
        yield "dcp_to_torch_save", [py, "-c",
                                    f"from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as f; f({src!r}, {out!r})"]

def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", default=here + "/../../build/release/bin")
    a.add_argument("--dir", default="/tmp/shardline-bench-foreign")
    a.add_argument("--gb", type=float, default=2)
    a.add_argument("--rounds", type=int, default=2); a.add_argument("--only")
    a.add_argument("--make-only", action="store_true"); a.add_argument("--worker")
    o = a.parse_args()
    if o.worker: return worker(o.worker, o.gb, o.dir)
    rows = []
    print(f"{'source':8} {'tool':18} {'seconds':>22} {'+sync':>6} {'GB/s in':>8} {'peak MiB':>9}")
    for kind in ("zero3", "dcp"):
        if o.only and o.only != kind: continue
        dir = f"{o.dir}/{kind}-{o.gb:g}"
        make(kind, o.gb, dir)
        if o.make_only: continue
        src, out, walls, syncs, peaks = dir + "/ckpt", dir + "/out", {}, {}, {}
        n = size(src)
        warm(src)
        for _ in range(o.rounds):
            for name, command in tools(kind, src, out, o.bin + "/reshard"):
                wall, sync, peak = run(command)
                walls.setdefault(name, []).append(wall)
                syncs.setdefault(name, []).append(sync)
                peaks[name] = max(peaks.get(name, 0), peak)
                shutil.rmtree(out) if os.path.isdir(out) else os.unlink(out)
        best = {k: sorted(v)[len(v) // 2] for k, v in walls.items()}
        for name, wall in best.items():
            print(f"{kind:8} {name:18} {' '.join(f'{w:.2f}' for w in walls[name]):>22} {sorted(syncs[name])[len(walls[name]) // 2]:6.2f} {n / wall / 1e9:8.2f} {peaks[name] / 2**20:9.0f}")
            ours = best["reshard weights" if name == "zero_to_fp32" else "reshard"]
            if not name.startswith("reshard"):
                rows.append(dict(name=f"{kind} to tp 8", ours=n / ours / 1e9, peer=n / wall / 1e9,
                                 peer_name=name, unit="GB/s", ratio=wall / ours))
        ours, peer = best["reshard megatron"], best["cp -r"]
        rows.append(dict(name=f"{kind} to megatron-dist", ours=n / ours / 1e9, peer=n / peer / 1e9,
                         peer_name="cp -r", unit="GB/s", ratio=peer / ours))
        rows.append(dict(name=f"{kind} peak memory", ours=peaks["reshard"] / 2**20, peer=LIMIT / 2**20,
                         peer_name="limit", unit="MiB", ratio=LIMIT / peaks["reshard"]))
    print(json.dumps({"rows": rows}, separators=(",", ":")))

if __name__ == "__main__": main()

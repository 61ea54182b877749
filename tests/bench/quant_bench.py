#!/usr/bin/env python3
"""quant_bench.py [--bin DIR] [--dir DIR] [--gb 0.8] [--rounds 5] - reshard --dequantize bf16 of folders in several
forms, in turn with `cp -r` of the bf16 folder that comes out, and with compressed-tensors' own converter where
PEER_PYTHON has it; wall time and peak memory of each process.

The source is in the page cache for all. reshard ends with its files on the disk, read again and compared; cp is
timed with a sync behind it (cp, sync) and without. One line {"rows":[...]} at the end: ratio > 1, ours is better.
"""

import argparse, json, os, shutil, statistics, struct, subprocess, sys, time

WIDTH = 4096


def write(folder, tensors, config):
    """tensors: (name, dtype, shape, bytes)"""
    os.makedirs(folder)
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            f.write(data)
    with open(folder + "/config.json", "w") as f:
        json.dump(
            {
                "model_type": "none",
                "torch_dtype": "bfloat16",
                "quantization_config": config,
            },
            f,
        )


def f32(n):
    return struct.pack(f"<{n}f", *[2.0**-10 * (1 + i / n) for i in range(n)])


def half(n, first):
    return struct.pack(f"<{n}H", *[first + i % 512 for i in range(n)])


def no_nan(n):
    """Random E4M3 codes."""
    return os.urandom(n).translate(
        bytes(c if c & 127 != 127 else c - 1 for c in range(256))
    )


def forms():
    n = WIDTH
    codes, words, groups = no_nan(n * n), os.urandom(n * n // 2), n // 128
    yield "FP8 128x128", lambda x: [
        (x + "weight", "F8_E4M3", [n, n], codes),
        (x + "weight_scale_inv", "F32", [groups, groups], f32(groups * groups)),
    ], {"quant_method": "fp8", "weight_block_size": [128, 128]}
    yield "MXFP4 (compressed-tensors)", lambda x: [
        (x + "weight_packed", "U8", [n, n // 2], words),
        (
            x + "weight_scale",
            "U8",
            [n, n // 32],
            bytes([110 + i % 9 for i in range(n * n // 32)]),
        ),
    ], {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {
            "g": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "float",
                    "strategy": "group",
                    "group_size": 32,
                },
            }
        },
    }
    yield "GPTQ 4 bits", lambda x: [
        (x + "qweight", "I32", [n // 8, n], words),
        (x + "scales", "F16", [groups, n], half(groups * n, 0x1800)),
        (x + "qzeros", "I32", [groups, n // 8], words[: groups * n // 2]),
        (x + "g_idx", "I32", [n], struct.pack(f"<{n}i", *[i // 128 for i in range(n)])),
    ], {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": False,
    }
    yield "AWQ 4 bits", lambda x: [
        (x + "qweight", "I32", [n, n // 8], words),
        (x + "scales", "F16", [groups, n], half(groups * n, 0x1800)),
        (x + "qzeros", "I32", [groups, n // 8], words[: groups * n // 2]),
    ], {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    experts = n * n // 2880 // 2880 * 2 or 1
    b, k = os.urandom(experts * 2880 * 1440), bytes(
        [110 + i % 9 for i in range(experts * 2880 * 90)]
    )
    yield "MXFP4 of gpt-oss", lambda x: [
        (x + "experts.down_proj_blocks", "U8", [experts, 2880, 90, 16], b),
        (x + "experts.down_proj_scales", "U8", [experts, 2880, 90], k),
    ], {"quant_method": "mxfp4"}


PEER = """
import sys
from compressed_tensors.entrypoints.convert import convert_checkpoint, FP8BlockDequantizer
convert_checkpoint(sys.argv[1], sys.argv[2], FP8BlockDequantizer(targets=["re:.*proj$"]), max_workers=2)
"""


def run(command):
    """wall seconds, peak MiB"""
    os.sync()
    t = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = p.stderr.read()
    _, status, use = os.wait4(p.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: {text.decode()[-400:]}")
    return time.monotonic() - t, use.ru_maxrss / 1024


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default="build/release/bin")
    p.add_argument("--dir", default="/tmp/shardline-bench-quant")
    p.add_argument("--gb", type=float, default=0.8)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    python, rows = os.environ.get("PEER_PYTHON"), []
    print(
        f"{'':28} {'GB/s':>7} {'cp':>7} {'cp, sync':>8} {'x cp, sync':>10} {'peak MiB':>8}"
    )
    for title, tensors, config in forms():
        shutil.rmtree(a.dir, ignore_errors=True)
        src, out, copy = a.dir + "/src", a.dir + "/out", a.dir + "/copy"
        layers = max(1, round(a.gb * 1e9 / 2 / WIDTH / WIDTH))
        write(
            src,
            [
                t
                for i in range(layers)
                for t in tensors(
                    f"model.layers.{i}.mlp.up_proj."
                    if "oss" not in title
                    else f"model.layers.{i}.mlp."
                )
            ],
            config,
        )
        ours = [f"{a.bin}/reshard", "--format", "hf", "--dequantize", "bf16", src]
        run(ours + [out])
        ways = {
            "ours": ours + [copy],
            "cp": ["cp", "-r", out, copy],
            "sync": ["sh", "-c", f"cp -r {out} {copy} && sync -f {copy}"],
        }
        if python and title.startswith("FP8"):
            ways["peer"] = [python, "-c", PEER, src, copy]
        times, peak = {w: [] for w in ways}, {w: 0 for w in ways}
        for _ in range(a.rounds):
            for way, command in ways.items():
                shutil.rmtree(copy, ignore_errors=True)
                seconds, mib = run(command)
                times[way].append(seconds)
                peak[way] = max(peak[way], mib)
        size = sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out)) / 1e9
        speed = {w: size / statistics.median(t) for w, t in times.items()}
        print(
            f"{title:28} {speed['ours']:7.2f} {speed['cp']:7.2f} {speed['sync']:8.2f} {speed['ours'] / speed['sync']:10.2f} {peak['ours']:8.0f}",
            flush=True,
        )
        rows.append(
            dict(
                name=f"--dequantize bf16, {title}",
                ours=round(speed["ours"], 3),
                peer=round(speed["sync"], 3),
                peer_name="cp -r, sync",
                unit="GB/s",
                ratio=round(speed["ours"] / speed["sync"], 3),
            )
        )
        if "peer" in ways:
            print(
                f"{'  compressed-tensors':28} {speed['peer']:7.2f} {'':27} {peak['peer']:8.0f}",
                flush=True,
            )
            rows.append(
                dict(
                    name=f"--dequantize bf16, {title}",
                    ours=round(speed["ours"], 3),
                    peer=round(speed["peer"], 3),
                    peer_name="compressed-tensors convert_checkpoint",
                    unit="GB/s",
                    ratio=round(speed["ours"] / speed["peer"], 3),
                )
            )
    shutil.rmtree(a.dir, ignore_errors=True)
    print(json.dumps({"rows": rows}))


main()

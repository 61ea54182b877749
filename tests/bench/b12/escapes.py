#!/usr/bin/env python3
"""escapes.py - how much of a checkpoint's matrices 12 bits would hold (layout: kernels/gemm/b12.h).

usage: escapes.py FILE.safetensors…     needs numpy
Every matrix of at least 32 x 32 is rounded to bf16 and cut into pieces of 32 outputs x a leaf of the input
(8 leaves). Prints for each file the matrices that fit (no piece has more escapes than its head holds, at most
0.5 % in all), the share of escapes, and the worst matrix."""
import json
import sys

import numpy as np

LEAVES = 8
MOST = 0.005


def matrices(path):
    """Names and bf16 bits of a safetensors file's matrices; denormals are zeros, as kernels flush them."""
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__" or len(t["shape"]) != 2 or min(t["shape"]) < 32:
            continue
        part = data[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            bits = np.frombuffer(part, "<u2")
        elif t["dtype"] in ("F32", "F16"):
            wide = np.frombuffer(part, "<f4" if t["dtype"] == "F32" else "<f2").astype("<f4").view("<u4")
            wide = wide.astype(np.uint64)
            bits = (wide + 0x7FFF + (wide >> 16 & 1) >> 16).astype(np.uint16)
        else:
            continue
        yield name, np.where(bits & 0x7F80, bits, bits & 0x8000).reshape(t["shape"])


def escapes(bits):
    """Escapes of a matrix, and whether every piece's head holds its own."""
    leaf = -(-bits.shape[1] // LEAVES)
    value = (bits >> 8 & 127).astype(np.int64)
    words = 16 * (1 + 32 * leaf // 4096) - 4
    found, fits = 0, True
    for row in range(0, bits.shape[0], 32):
        for column in range(0, bits.shape[1], leaf):
            counts = np.bincount(value[row:row + 32, column:column + leaf].ravel(), minlength=128)
            n = int(counts.sum() - np.sort(counts)[-8:].sum())
            found += n
            fits = fits and n < words
    return found, fits and found <= MOST * bits.size


def main():
    for path in sys.argv[1:]:
        rows = [(name, *escapes(bits), bits.size) for name, bits in matrices(path)]
        if not rows:
            print(f"{path}: no matrices")
            continue
        size = sum(r[3] for r in rows)
        worst = max(rows, key=lambda r: r[1] / r[3])
        print(f"{path}: {sum(r[2] for r in rows)} of {len(rows)} matrices fit, escapes "
              f"{100 * sum(r[1] for r in rows) / size:.5f} %, worst {worst[0]} {100 * worst[1] / worst[3]:.4f} %")


if __name__ == "__main__":
    sys.exit(main())

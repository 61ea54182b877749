"""gpt-oss in MXFP4 as a GGUF file of random blocks, and as the folder that reshard makes of it.

gguf_fp4.py make FILE             writes the file
gguf_fp4.py check FILE FOLDER     every block of the file is in the folder as published: scales apart, nibbles 2 j and 2 j + 1 in byte j
gguf_fp4.py same FILE OTHER       the experts of both files have the same bytes"""

import json
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import gguf_make

EXPERTS, HIDDEN, INTER, BLOCK, MXFP4 = 3, 64, 32, 17, 39


def make(path):
    gguf_make.SIZE.update(h=HIDDEN, e=INTER, E=2 * INTER, q=64, k=32, d=16, v=20)
    model, rng = gguf_make.make("gpt-oss"), random.Random(3)
    for i, (name, shape, _, _) in enumerate(model.file):
        if name.endswith("exps.weight"):
            n = shape[0] * shape[1] * shape[2] // 32 * BLOCK
            model.file[i] = (name, shape, MXFP4, bytes(rng.randrange(256) for _ in range(n)))
    with open(path, "wb") as f:
        f.write(gguf_make.gguf_bytes(gguf_make.metadata(model), model.file))


def blocks(path):
    """The bytes of every tensor of experts, by name: found by its entry in the header."""
    data, out = open(path, "rb").read(), {}
    for layer in range(gguf_make.LAYERS):
        for what in ("gate", "up", "down"):
            name = f"blk.{layer}.ffn_{what}_exps.weight"
            at = data.index(gguf_make.text(name)) + 8 + len(name)
            dims = struct.unpack("<I3Q", data[at : at + 28])[1:]
            kind, offset = struct.unpack("<IQ", data[at + 28 : at + 40])
            assert kind == MXFP4, "%s has the type %d" % (name, kind)
            out[name] = (offset, dims[0] * dims[1] * dims[2] // 32 * BLOCK)
    begin = data_begin(data)
    return {k: data[begin + o : begin + o + n] for k, (o, n) in out.items()}


def data_begin(data):
    """Walks over the header."""
    n_tensors, n_keys = struct.unpack("<QQ", data[8:24])
    at = 24

    def text(at):
        return at + 8 + struct.unpack("<Q", data[at : at + 8])[0]

    def value(kind, at):
        if kind == 8:
            return text(at)
        if kind != 9:
            return at + (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)[kind]
        of, n = struct.unpack("<IQ", data[at : at + 12])
        at += 12
        for _ in range(n):
            at = value(of, at)
        return at

    for _ in range(n_keys):
        at = text(at)
        at = value(struct.unpack("<I", data[at : at + 4])[0], at + 4)
    for _ in range(n_tensors):
        at = text(at)
        at += 4 + 8 * struct.unpack("<I", data[at : at + 4])[0] + 12
    return -(-at // 32) * 32


def check(path, folder):
    raw = blocks(path)
    data = open(folder + "/model.safetensors", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])

    def tensor(name):
        a, b = header[name]["data_offsets"]
        return data[8 + n + a : 8 + n + b]

    rows = 0
    for layer in range(gguf_make.LAYERS):
        for hf, halves, count, width in (
            ("gate_up_proj", ("gate", "up"), INTER, HIDDEN),
            ("down_proj", ("down",), HIDDEN, INTER),
        ):
            name, k, per = f"model.layers.{layer}.mlp.experts.{hf}", len(halves), width // 32
            codes, scales = tensor(name + "_blocks"), tensor(name + "_scales")
            for e in range(EXPERTS):
                for r in range(count * k):
                    src = raw[f"blk.{layer}.ffn_{halves[r % k]}_exps.weight"]
                    at, to = (e * count + r // k) * per, (e * count * k + r) * per
                    for b in range(per):
                        block = src[(at + b) * BLOCK : (at + b + 1) * BLOCK]
                        q = [x & 15 for x in block[1:]] + [x >> 4 for x in block[1:]]
                        want = bytes(q[2 * j] | q[2 * j + 1] << 4 for j in range(16))
                        assert scales[to + b] == block[0], "%s: scale of row %d" % (name, r)
                        assert codes[(to + b) * 16 : (to + b + 1) * 16] == want, "%s: row %d" % (name, r)
                    rows += 1
    return "%d rows" % rows


def same(path, other):
    a, b = blocks(path), blocks(other)
    assert a == b, "the blocks differ"
    return "%d tensors" % len(a)


if __name__ == "__main__":
    try:
        print("ok", {"make": make, "check": check, "same": same}[sys.argv[1]](*sys.argv[2:]))
    except AssertionError as e:
        print("differs:", e)
        sys.exit(1)

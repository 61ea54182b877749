"""hf_fused.py - experts of a Hugging Face folder as two tensors a layer, by a reader and writer that are not
ours.

    fuse FROM TO           every expert into mlp.experts.gate_up_proj [E, 2 I, H] and mlp.experts.down_proj
                           [E, H, I]
    same A B               the same tensors, byte for byte
    edit FROM TO CODE      CODE changes t, a dict of name -> [dtype, shape, bytes]; turn(NAME…) swaps the two
                           last dims of those that end so
"""
import collections
import glob
import json
import os
import re
import shutil
import struct
import sys


def read(folder):
    tensors = {}
    for path in sorted(glob.glob(folder + "/*.safetensors")):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, v in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = v["data_offsets"]
                tensors[name] = [v["dtype"], v["shape"], data[8 + size + begin:8 + size + end]]
    return tensors


def write(tensors, folder, like):
    os.mkdir(folder)
    head, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(head).encode()
    open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
    for path in glob.glob(like + "/*.json"):
        if not path.endswith(".index.json"):
            shutil.copy(path, folder)


def fused(tensors):
    out, parts = {}, collections.defaultdict(dict)
    for name, (dtype, shape, values) in tensors.items():
        m = re.fullmatch(r"(model\.layers\.\d+\.)(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(\w+)\.weight",
                         name)
        if m:
            parts[m[1]][int(m[2]), {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(m[3],
                m[3])] = dtype, shape, values
        else:
            out[name.replace("block_sparse_moe.gate", "mlp.gate")] = [dtype, shape, values]
    for layer, of in parts.items():
        n = 1 + max(expert for expert, _ in of)
        dtype, (inter, hidden), _ = of[0, "gate_proj"]
        both = b"".join(of[e, part][2] for e in range(n) for part in ("gate_proj", "up_proj"))
        out[layer + "mlp.experts.gate_up_proj"] = [dtype, [n, 2 * inter, hidden], both]
        out[layer + "mlp.experts.down_proj"] = [dtype, [n, hidden, inter],
                                                b"".join(of[e, "down_proj"][2] for e in range(n))]
    return out


def turn(*endings):
    for name, (dtype, (n, rows, cols), values) in [(k, v) for k, v in t.items() if k.endswith(endings)]:
        size = len(values) // (n * rows * cols)
        at = lambda e, r, c: values[((e * rows + r) * cols + c) * size:][:size]
        t[name] = [dtype, [n, cols, rows],
                   b"".join(at(e, r, c) for e in range(n) for c in range(cols) for r in range(rows))]


what, a, b = sys.argv[1:4]
t = read(a)
if what == "same":
    sys.exit(t != read(b))
if what == "fuse":
    t = fused(t)
else:
    exec(sys.argv[4])
write(t, b, a)

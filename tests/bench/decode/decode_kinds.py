"""decode_kinds.py - the stored forms that decode_bench.py serves beside llama.cpp: how a folder of each is made
of the bf16 (or fp32) folder, the options of pserve, and the GGUF file that llama.cpp gets."""
import array
import json
import os
import random
import shutil
import subprocess
from types import SimpleNamespace as Kind

from serve_models import SIZES, config, make_model, tensors

GROUP = 128  # of int4


def reshard(bin_dir, *args):
    subprocess.run([os.path.join(bin_dir, "reshard"), *args], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def by_reshard(*args):
    return lambda bin_dir, size, source, where: reshard(bin_dir, *args, source, where)


def make_plain(dtype):
    return lambda bin_dir, size, source, where: make_model(size, dtype, where)


def parts(name, n, k, rng):
    """Random codes of 4 bits as compressed-tensors packs them, with scales that make weights of 0.02."""
    yield name + "_packed", "I32", (n, k // 8), rng.randbytes(n * k // 2)
    scales = array.array("H", (0x3b80 + i % 64 for i in range(n * k // GROUP)))
    yield name + "_scale", "BF16", (n, k // GROUP), scales.tobytes()
    yield name + "_shape", "I64", (2,), array.array("q", (n, k)).tobytes()


def plain(name, shape, rng):
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if len(shape) == 1:
        return name, "BF16", shape, b"\x80\x3f" * n
    some = array.array("H", (x >> 16 for x in array.array("I", array.array(
        "f", (rng.gauss(0, 0.02) for _ in range(1 << 16))).tobytes()))).tobytes()
    return name, "BF16", shape, (some * (2 * n // len(some) + 1))[:2 * n]


def make_int4(bin_dir, size, source, where):
    """The layers' matrices as int4 with a scale for 128 weights, in the form of compressed-tensors."""
    s, rng, header, at = SIZES[size], random.Random(7), {}, 0
    os.makedirs(where)
    with open(where + "/data", "wb") as f:
        for name, shape in tensors(s):
            is_codes = "_proj." in name
            for t, dtype, dims, data in (parts(name, *shape, rng) if is_codes else [plain(name, shape, rng)]):
                header[t] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + len(data)]}
                f.write(data)
                at += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(where + "/model.safetensors", "wb") as f, open(where + "/data", "rb") as data:
        f.write(len(head).to_bytes(8, "little") + head)
        shutil.copyfileobj(data, f, 1 << 22)
    os.remove(where + "/data")
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    with open(where + "/config.json", "w") as f:
        json.dump(dict(config(s, "bf16"), quantization_config={
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}), f)


# folder: the kind whose folder is served. make(bin, size, the source's folder, where). peer: the GGUF file's
# kind. bits: of a weight of the layers; of the head
KINDS = {
    "bf16": Kind(folder="bf16", make=make_plain("bf16"), options="", peer="bf16", bits=16, head=16),
    "fp32": Kind(folder="fp32", make=make_plain("fp32"), options="", peer="fp32", bits=32, head=32),
    "b12": Kind(folder="b12", make=by_reshard("--format", "serve", "--quantize", "b12"), options="",
                peer="bf16", bits=12.2, head=12.2),
    "int8": Kind(folder="int8", make=by_reshard("--format", "hf", "--quantize", "int8-g128"),
                 options="--quantized codes", peer="q8_0", bits=8.125, head=16),
    "int8-int": Kind(folder="int8", make=None, options="--act int8", peer="q8_0", bits=8.125, head=16),
    "mxfp4": Kind(folder="mxfp4", make=by_reshard("--format", "hf", "--quantize", "mxfp4"),
                  options="--quantized codes", peer="mxfp4", bits=4.25, head=16),
    "int4": Kind(folder="int4", make=make_int4, options="--quantized codes", peer="mxfp4", bits=4.125, head=16),
    "int4-int": Kind(folder="int4", make=None, options="--act int8", peer="mxfp4", bits=4.125, head=16),
}
KINDS["int8-int"].make = KINDS["int8"].make
KINDS["int4-int"].make = KINDS["int4"].make
PEERS = {
    "bf16": ("bf16", ["--format", "gguf"]),
    "fp32": ("fp32", ["--format", "gguf"]),
    "q8_0": ("bf16", ["--format", "gguf", "--quantize", "q8_0"]),
    "mxfp4": ("bf16", ["--format", "gguf", "--quantize", "mxfp4"]),
}


def folder_of(bin_dir, top, size, kind):
    """The folder that is served, made where it is not there."""
    k = KINDS[kind]
    where = os.path.join(top, f"{size}-{k.folder}")
    if os.path.exists(where):
        return where
    source = where if k.folder in ("bf16", "fp32", "int4") else folder_of(bin_dir, top, size, "bf16")
    k.make(bin_dir, size, source, where + ".made")
    os.rename(where + ".made", where)
    return where


def gguf_of(bin_dir, top, size, kind):
    source, how = PEERS[KINDS[kind].peer]
    where = os.path.join(top, f"{size}-{KINDS[kind].peer}.gguf")
    if not os.path.exists(where):
        reshard(bin_dir, *how, folder_of(bin_dir, top, size, source), where)
    return where


def weight_bytes(size, kind):
    """Bytes that a step of one token reads of ours: all but the table of embeddings."""
    k, total = KINDS[kind], 0
    for name, shape in tensors(SIZES[size]):
        if name.startswith("model.embed"):
            continue
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        total += n * (k.bits if "_proj." in name else k.head) / 8
    return total

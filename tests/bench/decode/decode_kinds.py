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


def int4_parts(name, n, k, rng):
    """Random codes of 4 bits as compressed-tensors packs them, with scales that make weights of 0.02."""
    yield name + "_packed", "I32", (n, k // 8), rng.randbytes(n * k // 2)
    scales = array.array("H", (0x3b80 + i % 64 for i in range(n * k // GROUP)))
    yield name + "_scale", "BF16", (n, k // GROUP), scales.tobytes()
    yield name + "_shape", "I64", (2,), array.array("q", (n, k)).tobytes()


def mxfp4_parts(name, n, k, rng):
    yield name + "_packed", "U8", (n, k // 2), rng.randbytes(n * k // 2)
    yield name + "_scale", "U8", (n, k // 32), rng.randbytes(n * k // 32).translate(
        bytes(118 + i % 4 for i in range(256)))


def plain(name, shape, rng):
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if len(shape) == 1:
        return name, "BF16", shape, b"\x80\x3f" * n
    some = array.array("H", (x >> 16 for x in array.array("I", array.array(
        "f", (rng.gauss(0, 0.02) for _ in range(1 << 16))).tobytes()))).tobytes()
    return name, "BF16", shape, (some * (2 * n // len(some) + 1))[:2 * n]


FORMS = {
    "int4": (int4_parts, "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group",
                                            "group_size": GROUP}),
    "mxfp4": (mxfp4_parts, "mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group",
                                                    "group_size": 32, "scale_dtype": "torch.uint8"}),
}


def codes_tensors(s, parts, rng):
    for name, shape in tensors(s):
        if "_proj." in name or name.startswith("lm_head"):
            yield from parts(name, *shape, rng)
        else:
            yield plain(name, shape, rng)


def make_codes(form):
    """Random codes of the layers' matrices and of the head, as in llama.cpp's files, in the form of
    compressed-tensors."""
    def make(bin_dir, size, source, where):
        s, rng, header, at = SIZES[size], random.Random(7), {}, 0
        parts, name, weights = FORMS[form]
        os.makedirs(where)
        with open(where + "/data", "wb") as f:
            for t, dtype, dims, data in codes_tensors(s, parts, rng):
                header[t] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + len(data)]}
                f.write(data)
                at += len(data)
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with open(where + "/model.safetensors", "wb") as f, open(where + "/data", "rb") as data:
            f.write(len(head).to_bytes(8, "little") + head)
            shutil.copyfileobj(data, f, 1 << 22)
        os.remove(where + "/data")
        groups = {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}}
        with open(where + "/config.json", "w") as f:
            json.dump(dict(config(s, "bf16"), quantization_config={
                "quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed",
                "ignore": [], "config_groups": groups}), f)
    return make


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
    "mxfp4": Kind(folder="mxfp4", make=make_codes("mxfp4"), options="--quantized codes", peer="mxfp4",
                  bits=4.25, head=4.25),
    "mxfp4-head16": Kind(folder="mxfp4-head16", make=by_reshard("--format", "hf", "--quantize", "mxfp4"),
                         options="--quantized codes", peer="mxfp4", bits=4.25, head=16),
    "int4": Kind(folder="int4", make=make_codes("int4"), options="--quantized codes", peer="mxfp4", bits=4.125,
                 head=4.125),
    "int4-int": Kind(folder="int4", make=None, options="--act int8", peer="mxfp4", bits=4.125, head=4.125),
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
    source = where if k.folder in ("bf16", "fp32", "int4", "mxfp4") else folder_of(bin_dir, top, size, "bf16")
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

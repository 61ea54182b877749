#!/usr/bin/env python3
"""Adapters of PEFT's form for the byte model of reshard_make.py, without a library, and what a merge must give.

adapter_make.py make DIR [KEY=JSON...] [-- DIR [KEY=JSON...]]...
                                         keys of adapter_config.json; names=[...] the modules; dtype="BF16";
                                         drop=, nan=, widen=, rename=A:B: a tensor left out, with a NaN, with a
                                         row more, with another name (the first that contains the text);
                                         after={...}: keys that the tensors do not follow
adapter_make.py want MODEL ADAPTER OUT   the merged model: binary64 in the order of format/peft.h, rounded once
"""

import json, math, os, random, re, struct, sys

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}
SHAPES = {
    "q_proj": (32, 32),
    "k_proj": (8, 32),
    "v_proj": (8, 32),
    "o_proj": (32, 32),
    "gate_proj": (40, 32),
    "up_proj": (40, 32),
    "down_proj": (32, 40),
}


def bf16(x):
    """Nearest, ties to even, from binary64 at once."""
    if x == 0 or math.isinf(x) or math.isnan(x):
        return struct.unpack("<I", struct.pack("<f", x))[0] >> 16
    m, e = math.frexp(abs(x))
    step = max(e - 8, -133)
    n = round(math.ldexp(abs(x), -step))  # round() takes ties to even, and ldexp is exact here
    value = math.ldexp(n, step)
    bits = 0x7F80 if value >= 2.0**128 else struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    return bits | (0x8000 if x < 0 else 0)


def pack(dtype, values):
    if dtype == "BF16":
        return struct.pack("<%dH" % len(values), *map(bf16, values))
    return struct.pack("<%d%s" % (len(values), {"F32": "f", "F16": "e", "F64": "d"}[dtype]), *values)


def unpack(dtype, data):
    n = len(data) // BYTES[dtype]
    if dtype == "BF16":
        return [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in struct.unpack("<%dH" % n, data)]
    return list(struct.unpack("<%d%s" % (n, {"F32": "f", "F16": "e", "F64": "d"}[dtype]), data))


def read(folder, name):
    with open(os.path.join(folder, name), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    head.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in head.items()}


def write(path, tensors):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(tensors[n][2] for n in sorted(tensors)))


def scale_of(config, module):
    def pick(key, other):
        for pattern, value in (config.get(key) or {}).items():
            if re.match(r"(.*\.)?(%s)$" % pattern, module):
                return value
        return config[other]

    r, alpha = pick("rank_pattern", "r"), pick("alpha_pattern", "lora_alpha")
    return r, alpha / math.sqrt(r) if config.get("use_rslora") else alpha / r


def make(folder, words):
    config = {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 8,
        "peft_version": "0.21.0",
        "base_model_name_or_path": "../../base",
        "target_modules": ["q_proj"],
    }
    how = {"names": ["q_proj", "o_proj", "down_proj", "k_proj"], "dtype": "F32"}
    for word in words:
        key, value = word.split("=", 1)
        (how if key in ("names", "dtype", "drop", "nan", "widen", "rename", "after") else config)[key] = (
            json.loads(value)
        )
    random.seed(5)
    tensors = {}
    for layer in range(2):
        for name in how["names"]:
            kind = name.split(".")[-1]  # "experts.3.up_proj"
            section = "self_attn" if kind in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
            module = "model.layers.%d.%s.%s" % (layer, section, name)
            r, (out, into) = scale_of(config, module)[0], SHAPES[kind]
            for part, shape in (("A", [r, into]), ("B", [out, r])):
                values = [random.gauss(0, 0.4) for _ in range(shape[0] * shape[1])]
                tensors["base_model.model.%s.lora_%s.weight" % (module, part)] = (
                    how["dtype"],
                    shape,
                    pack(how["dtype"], values),
                )
    first = lambda text: next(n for n in sorted(tensors) if text in n)
    if "drop" in how:
        del tensors[first(how["drop"])]
    if "nan" in how:
        dtype, shape, data = tensors[first(how["nan"])]
        tensors[first(how["nan"])] = (dtype, shape, pack(dtype, [math.nan]) + data[BYTES[dtype] :])
    if "widen" in how:
        name = first(how["widen"])
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, [shape[0] + 1, shape[1]], data + bytes(shape[1] * BYTES[dtype]))
    if "rename" in how:
        old, new = how["rename"].split(":")
        name = first(old)
        tensors[name.replace(old, new)] = tensors.pop(name)
    config.update(how.get("after", {}))
    os.mkdir(folder)
    with open(folder + "/adapter_config.json", "w") as f:
        json.dump(config, f, indent=2)
    write(folder + "/adapter_model.safetensors", tensors)


def want(model, adapter, out):
    base, config = read(model, "model.safetensors"), json.load(open(adapter + "/adapter_config.json"))
    parts = read(adapter, "adapter_model.safetensors")
    for name in parts:
        if not name.endswith(".lora_A.weight"):
            continue
        module = name[len("base_model.model.") : -len(".lora_A.weight")]
        a_type, (r, into), a = parts[name]
        b_type, (n_out, _), b = parts[name.replace("lora_A", "lora_B")]
        a, b = unpack(a_type, a), unpack(b_type, b)
        dtype, shape, data = base[module + ".weight"]
        w, scale = unpack(dtype, data), scale_of(config, module)[1]
        for o in range(n_out):
            for i in range(into):
                total = 0.0
                for k in range(r):
                    total += b[o * r + k] * a[k * into + i]
                w[o * into + i] += scale * total
        base[module + ".weight"] = (dtype, shape, pack(dtype, w))
    os.mkdir(out)
    write(out + "/model.safetensors", base)
    with open(model + "/config.json") as f, open(out + "/config.json", "w") as g:
        g.write(f.read())


if __name__ == "__main__" and sys.argv[1] == "make":
    words = sys.argv[2:]
    while words:
        n = words.index("--") if "--" in words else len(words)
        make(words[0], words[1:n])
        words = words[n + 1 :]
elif __name__ == "__main__":
    want(*sys.argv[2:5])

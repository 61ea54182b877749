#!/usr/bin/env python3
"""adapter_of.py MODEL OUT SEED [KEY=JSON...] - an adapter of PEFT's form for a Hugging Face folder, with random
values: r, lora_alpha and other keys of adapter_config.json; names=[...]: the last parts of its modules' names;
gain: the size of its values."""

import json, math, os, random, sys
from adapter_make import pack, read, scale_of, write

ALL = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "c_attn",
    "c_proj",
    "c_fc",
    "query_key_value",
    "dense",
    "dense_h_to_4h",
    "dense_4h_to_h",
]


def main(model, out, seed, words):
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "peft_version": "0.21.0", "target_modules": []}
    how = {"names": ALL, "gain": 1.0, "dtype": "F32"}
    for word in words:
        key, value = word.split("=", 1)
        (how if key in how else config)[key] = json.loads(value)
    draw, tensors = random.Random(int(seed)), {}
    base = {}
    for name in sorted(os.listdir(model)):
        if name.endswith(".safetensors"):
            base.update(read(model, name))
    for name in sorted(base):
        module, shape = name[: -len(".weight")], base[name][1]
        if not name.endswith(".weight") or module.split(".")[-1] not in how["names"] or len(shape) != 2:
            continue
        if module.split(".")[-1] in ("c_attn", "c_proj", "c_fc"):
            shape = shape[::-1]
        r = scale_of(config, module)[0]
        for part, (rows, cols) in (("A", (r, shape[1])), ("B", (shape[0], r))):
            size = how["gain"] / math.sqrt(cols)
            tensors["base_model.model.%s.lora_%s.weight" % (module, part)] = (
                how["dtype"],
                [rows, cols],
                pack(how["dtype"], [draw.gauss(0, size) for _ in range(rows * cols)]),
            )
    config["target_modules"] = sorted({n.split(".")[-3] for n in tensors})
    os.mkdir(out)
    with open(out + "/adapter_config.json", "w") as f:
        json.dump(config, f, indent=2)
    write(out + "/adapter_model.safetensors", tensors)


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])

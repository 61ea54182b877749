#!/usr/bin/env python3
"""experts_adapters.py MODEL OUT - an adapter of PEFT's form (target_parameters) of the experts that gpt-oss has in
one tensor each, and of its q_proj, with random values."""

import json, math, os, random, sys
from adapter_make import pack, read, write

R = 3


def main(model, out):
    base, draw, tensors = read(model, "model.safetensors"), random.Random(3), {}

    def put(module, rows, cols):
        values = [draw.gauss(0, 0.8 / math.sqrt(min(cols, 64))) for _ in range(rows * cols)]
        tensors["base_model.model." + module] = ("F32", [rows, cols], pack("F32", values))

    for name, (_, shape, _) in sorted(base.items()):
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            module, (experts, inputs, outputs) = name[: name.rindex(".")], shape
            module += ".base_layer" if name.endswith("gate_up_proj") else ""
        elif name.endswith("q_proj.weight"):
            module, (outputs, inputs), experts = name[: -len(".weight")], shape, 1
        else:
            continue
        put(module + ".lora_A.weight", experts * R, inputs)
        put(module + ".lora_B.weight", outputs, R * experts)
    config = {"peft_type": "LORA", "r": R, "lora_alpha": 5, "peft_version": "0.21.0", "target_modules": ["q_proj"]}
    config["target_parameters"] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    os.mkdir(out)
    with open(out + "/adapter_config.json", "w") as f:
        json.dump(config, f)
    write(out + "/adapter_model.safetensors", tensors)


main(*sys.argv[1:])

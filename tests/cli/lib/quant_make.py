#!/usr/bin/env python3
"""Tiny checkpoints of every quantised format, as their own libraries name and shape them; every byte is drawn.

    quant_make.py DIR SEED [SCHEME...]      DIR/SCHEME for each (default: all); prints the names
    quant_make.py sane DIR SEED SCHEME...   the same with scales and orders of columns that values come from
    quant_make.py same_all LIST             LIST has lines "A B": the same tensors, byte for byte, and the
                                            same quantization_config
    quant_make.py damage FROM TO "NAME HOW" a copy in which tensor NAME lacks its last row, column or index of
                                            the last dim (rows, columns, last), or is gone
    quant_make.py experts EACH FUSED MIXED  FP8 experts one by one, the same fused, and some whose blocks do
                                            not fit the fused form

Sizes come from SEED: widths at which tp cuts inside blocks, groups and words are usual. Shapes follow
compressed_tensors (compressors), transformers (integrations), GPTQModel, AutoGPTQ and AutoAWQ (packing)."""

import glob
import json
import os
import random
import struct
import sys

SIZE = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def up(a, b):
    return -(-a // b)


# ---- formats: the stored tensors of a weight [n, k] of module m; g: values of a group or block ----


def fp8_block(m, n, k, g):
    return [(m + ".weight", "F8_E4M3", [n, k]), (m + ".weight_scale_inv", "F32", [up(n, g), up(k, g)])]


def fp8_v4(m, n, k, g):
    if ".experts." in m:
        return [(m + ".weight", "I8", [n, k // 2]), (m + ".scale", "F8_E8M0", [n, k // 32])]
    return [(m + ".weight", "F8_E4M3", [n, k]), (m + ".scale", "F8_E8M0", [up(n, g), up(k, g)])]


def fp8_channel(m, n, k, g):
    return [(m + ".weight", "F8_E4M3", [n, k]), (m + ".weight_scale", "BF16", [n, 1])]


def fp8_tensor(m, n, k, g):
    return [
        (m + ".weight", "F8_E4M3", [n, k]),
        (m + ".weight_scale", "F32", []),
        (m + ".input_scale", "F32", []),
    ]


def mxfp8(m, n, k, g):
    return [(m + ".weight", "F8_E4M3", [n, k]), (m + ".weight_scale", "U8", [n, k // 32])]


def int8(m, n, k, g):
    return [
        (m + ".weight", "I8", [n, k]),
        (m + ".weight_scale", "BF16", [n, 1]),
        (m + ".weight_zero_point", "I8", [n, 1]),
    ]


def pack(bits, zeros=False, order=False):
    def make(m, n, k, g):
        groups = k // g if g else 1
        t = [
            (m + ".weight_packed", "I32", [n, up(k * bits, 32)]),
            (m + ".weight_scale", "BF16", [n, groups]),
            (m + ".weight_shape", "I64", [2], struct.pack("<2q", n, k)),
        ]
        if zeros:
            t.append((m + ".weight_zero_point", "I32", [up(n * bits, 32), groups]))
        if order:
            t.append((m + ".weight_g_idx", "I32", [k]))
        return t

    return make


def nvfp4(m, n, k, g):
    return [
        (m + ".weight_packed", "U8", [n, k // 2]),
        (m + ".weight_scale", "F8_E4M3", [n, k // 16]),
        (m + ".weight_global_scale", "F32", [1]),
        (m + ".input_global_scale", "F32", [1]),
    ]


def nvfp4_modelopt(m, n, k, g):
    return [
        (m + ".weight", "U8", [n, k // 2]),
        (m + ".weight_scale", "F8_E4M3", [n, k // 16]),
        (m + ".weight_scale_2", "F32", []),
        (m + ".input_scale", "F32", []),
    ]


def mxfp4(m, n, k, g):
    return [(m + ".weight_packed", "U8", [n, k // 2]), (m + ".weight_scale", "U8", [n, k // 32])]


def gptq(bits):
    def make(m, n, k, g):
        groups = k // g if g else 1
        return [
            (m + ".qweight", "I32", [k * bits // 32, n]),
            (m + ".scales", "F16", [groups, n]),
            (m + ".qzeros", "I32", [groups, n * bits // 32]),
            (m + ".g_idx", "I32", [k]),
        ]

    return make


def awq(m, n, k, g):
    return [
        (m + ".qweight", "I32", [k, n // 8]),
        (m + ".scales", "F16", [k // g, n]),
        (m + ".qzeros", "I32", [k // g, n // 8]),
    ]


def groups_of(**weights):
    return {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


# name: (model, group, what N and K are multiples of, maker, quantization_config)
SCHEMES = {
    "fp8-block": ("llama", 16, 8, fp8_block, {"quant_method": "fp8", "weight_block_size": [16, 16]}),
    "fp8-experts": ("qwen3_moe", 16, 8, fp8_block, {"quant_method": "fp8", "weight_block_size": [16, 16]}),
    "fp8-dot-scale": (
        "qwen3_moe",
        16,
        32,
        fp8_v4,
        {"quant_method": "fp8", "weight_block_size": [16, 16], "scale_fmt": "ue8m0"},
    ),
    "fp8-channel": ("llama", 0, 8, fp8_channel, groups_of(num_bits=8, type="float", strategy="channel")),
    "fp8-tensor": ("llama", 0, 8, fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "mxfp8": ("llama", 0, 32, mxfp8, groups_of(num_bits=8, type="float", group_size=32, strategy="group")),
    "int8": ("llama", 0, 8, int8, groups_of(num_bits=8, type="int", strategy="channel", symmetric=False)),
    "int4-pack": ("qwen3_moe", 32, 32, pack(4), groups_of(num_bits=4, type="int", group_size=32)),
    "int4-zeros": (
        "llama",
        32,
        32,
        pack(4, True),
        groups_of(num_bits=4, type="int", group_size=32, symmetric=False),
    ),
    "int4-order": (
        "llama",
        32,
        32,
        pack(4, False, True),
        groups_of(num_bits=4, type="int", group_size=32, actorder="group"),
    ),
    "int3-pack": ("llama", 0, 32, pack(3), groups_of(num_bits=3, type="int", strategy="channel")),
    "int3-odd": ("llama", 0, 20, pack(3), groups_of(num_bits=3, type="int", strategy="channel")),
    "int8-pack": ("llama", 0, 8, pack(8), groups_of(num_bits=8, type="int", strategy="channel")),
    "nvfp4": (
        "llama",
        16,
        16,
        nvfp4,
        groups_of(num_bits=4, type="float", group_size=16, strategy="tensor_group"),
    ),
    "nvfp4-modelopt": (
        "qwen3_moe",
        16,
        16,
        nvfp4_modelopt,
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ),
    "mxfp4-pack": ("llama", 32, 32, mxfp4, groups_of(num_bits=4, type="float", group_size=32)),
    "mxfp4": ("gpt_oss", 32, 32, None, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
    "gptq": (
        "llama",
        32,
        32,
        gptq(4),
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "desc_act": False,
            "sym": True,
            "checkpoint_format": "gptq",
        },
    ),
    "gptq-v2": (
        "qwen3_moe",
        32,
        32,
        gptq(8),
        {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq-order": (
        "llama",
        32,
        32,
        gptq(4),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    ),
    "gptq-3bit": ("llama", 0, 32, gptq(3), {"quant_method": "gptq", "bits": 3, "group_size": -1}),
    "gptq-2bit": ("llama", 32, 32, gptq(2), {"bits": 2, "group_size": 32, "desc_act": False}),
    "awq": (
        "llama",
        32,
        32,
        awq,
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
    ),
    "unknown": ("llama", 16, 8, fp8_block, {"quant_method": "novel", "bits": 8}),
}

# ---- models ----


def sizes(model, unit, r):
    """Hidden and intermediate sizes, multiples of unit; tp cuts the intermediate size in 8 blocks."""
    c = {
        "model_type": model,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    c["head_dim"] = 8 * r.choice([1, 2, 3]) if unit <= 8 else unit // 2
    c["hidden_size"] = unit * r.randint(2, 5)
    c["intermediate_size"] = 8 * unit * r.randint(1, 3) + unit * r.randint(0, 7)
    if model == "qwen3_moe":
        c |= {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": c["intermediate_size"],
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if model == "gpt_oss":
        c |= {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "swiglu_limit": 7.0,
        }
    return c


def tensors(c, make, g):
    """name, dtype, shape, and bytes where they are not drawn"""
    h, i, v = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    is_oss = c["model_type"] == "gpt_oss"
    linear = make or (lambda m, n, k, g: [(m + ".weight", "BF16", [n, k])])
    t = [
        ("model.embed_tokens.weight", "BF16", [v, h]),
        ("model.norm.weight", "BF16", [h]),
        ("lm_head.weight", "BF16", [v, h]),
    ]
    for l in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % l
        t += [
            (p + "input_layernorm.weight", "BF16", [h]),
            (p + "post_attention_layernorm.weight", "BF16", [h]),
        ]
        for x, n, k in ("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q):
            t += linear(p + "self_attn.%s_proj" % x, n, k, g)
            if is_oss:
                t.append((p + "self_attn.%s_proj.bias" % x, "BF16", [n]))
        if is_oss:
            m, e = p + "mlp.experts.", c["num_local_experts"]
            t += [
                (p + "self_attn.sinks", "BF16", [8]),
                (p + "mlp.router.weight", "BF16", [e, h]),
                (p + "mlp.router.bias", "BF16", [e]),
            ]
            for x, n, k in ("gate_up_proj", 2 * i, h), ("down_proj", h, i):
                t += [
                    (m + x + "_blocks", "U8", [e, n, k // 32, 16]),
                    (m + x + "_scales", "U8", [e, n, k // 32]),
                    (m + x + "_bias", "BF16", [e, n]),
                ]
            continue
        mlps = [p + "mlp."]
        if c["model_type"] == "qwen3_moe":
            mlps = [p + "mlp.experts.%d." % x for x in range(c["num_experts"])]
            t += [
                (p + "mlp.gate.weight", "BF16", [c["num_experts"], h]),
                (p + "self_attn.q_norm.weight", "BF16", [c["head_dim"]]),
                (p + "self_attn.k_norm.weight", "BF16", [c["head_dim"]]),
            ]
        for m in mlps:
            for x, n, k in ("gate", i, h), ("up", i, h), ("down", h, i):
                t += linear(m + x + "_proj", n, k, g)
    return t


def write(folder, config, list_of, r, extra=None):
    os.makedirs(folder)
    head, data = {}, []
    at = 0
    for name, dtype, shape, *given in list_of:
        n = SIZE[dtype]
        for d in shape:
            n *= d
        data.append(given[0] if given else r.randbytes(n))
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))
    for name, value in (("config.json", config), *(extra or {}).items()):
        with open(folder + "/" + name, "w") as f:
            json.dump(value, f, indent=2)


def sane(t, g, r):
    """Tensors with bytes: scales are finite and not 0, g_idx has every group."""
    for name, dtype, shape, *given in t:
        n = 1
        for d in shape:
            n *= d
        if name.endswith("g_idx"):
            groups = [i // (g or n) for i in range(n)]
            r.shuffle(groups)
            given = [struct.pack("<%di" % n, *groups)]
        elif "scale" in name and dtype in ("F32", "F16", "BF16"):
            numbers = [r.uniform(0.5, 1.5) / 64 for _ in range(n)]
            form = {"F32": "<%df" % n, "F16": "<%de" % n, "BF16": "<%df" % n}[dtype]
            data = struct.pack(form, *numbers)
            given = [b"".join(data[i + 2 : i + 4] for i in range(0, 4 * n, 4)) if dtype == "BF16" else data]
        elif "scale" in name and dtype in ("U8", "F8_E8M0"):
            given = [bytes(r.randint(100, 130) for _ in range(n))]
        elif "scale" in name and dtype == "F8_E4M3":
            given = [bytes(r.randint(40, 100) for _ in range(n))]
        yield (name, dtype, shape, *given)


def make(folder, scheme, seed, is_sane=False):
    model, g, unit, maker, quant = SCHEMES[scheme]
    r = random.Random("%s %s" % (seed, scheme))
    c = sizes(model, unit, r)
    t = tensors(c, maker, g)
    t = list(sane(t, g, r)) if is_sane else t
    if "quant_method" in quant or scheme == "unknown":
        write(folder, c | {"quantization_config": quant}, t, r)
    else:
        write(folder, c, t, r, {"quantize_config.json": quant})
    return t


# ---- comparing ----


def read(folder):
    found = {}
    for path in sorted(glob.glob(folder + "/*.safetensors")):
        with open(path, "rb") as f:
            data = f.read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, v in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = v["data_offsets"]
                found[name] = (v["dtype"], v["shape"], data[8 + size + begin : 8 + size + end])
    return found


def quant_of(folder):
    with open(folder + "/config.json") as f:
        text = json.load(f).get("quantization_config")
    old = folder + "/quantize_config.json"
    return text, open(old).read() if os.path.exists(old) else None


def same(a, b):
    x, y = read(a), read(b)
    if quant_of(a) != quant_of(b):
        print("%s: %s\n%s: %s" % (a, quant_of(a), b, quant_of(b)))
        return False
    wrong = sorted(n for n in x.keys() | y.keys() if x.get(n) != y.get(n))
    for n in wrong[:3]:
        print("%s and %s: %s differs: %s, %s" % (a, b, n, x.get(n, ("none",))[:2], y.get(n, ("none",))[:2]))
    return not wrong


def damage(source, folder, name, how):
    t = read(source)
    dtype, shape, data = t.pop(name)
    if how != "gone":
        shape = list(shape)
        shape[{"rows": 0, "columns": 1, "last": -1}[how]] -= 1
        n = SIZE[dtype]
        for d in shape:
            n *= d
        t[name] = (dtype, shape, data[:n])
    with open(source + "/config.json") as f:
        config = json.load(f)
    write(folder, config, [(n, *v) for n, v in t.items()], random.Random(1))


def fuse(t, experts):
    """Every expert into two tensors a layer, scales too; by nothing of ours."""
    out, parts = {}, {}
    for name, v in t.items():
        if ".experts." not in name:
            out[name] = v
            continue
        layer, rest = name.split(".experts.")
        number, rest = rest.split(".", 1)
        matrix, end = rest.split("_proj.weight")
        fused = layer + ".experts." + ("down_proj" if matrix == "down" else "gate_up_proj") + end
        parts.setdefault(fused, {})[int(number), matrix] = v
    for name, v in parts.items():
        matrices = ["down"] if "down_proj" in name else ["gate", "up"]
        dtype, shape, _ = v[0, matrices[0]]
        data = b"".join(v[e, m][2] for e in range(experts) for m in matrices)
        out[name] = (dtype, [experts, shape[0] * len(matrices), shape[1]], data)
    return out


def make_experts(each, fused, mixed):
    r = random.Random(5)
    for folder, width in (each, 160), (mixed, 152):
        c = sizes("qwen3_moe", 8, r)
        c["moe_intermediate_size"] = c["intermediate_size"] = width
        kept = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.mlp.experts.2.up_proj"]
        of_each = ["model.layers.1.mlp.experts.%d.%s_proj" % (e, m) for e in range(4) for m in ("gate", "up")]
        quant = {
            "quant_method": "fp8",
            "weight_block_size": [16, 16],
            "modules_to_not_convert": kept + of_each,
        }
        write(folder, c | {"quantization_config": quant}, tensors(c, fp8_block, 16), r)
        if folder == each:
            quant = quant | {"modules_to_not_convert": kept + ["model.layers.1.mlp.experts.gate_up_proj"]}
            write(
                fused,
                c | {"quantization_config": quant},
                [(n, *v) for n, v in fuse(read(each), 4).items()],
                r,
            )


def main(args):
    if args[0] == "same_all":
        with open(args[1]) as f:
            return 0 if all([same(*line.split()) for line in f]) else 1
    if args[0] == "damage":
        damage(args[1], args[2], *args[3].split())
        return 0
    if args[0] == "experts":
        make_experts(*args[1:])
        return 0
    is_sane = args[0] == "sane"
    args = args[is_sane:]
    for scheme in args[2:] or SCHEMES:
        make(args[0] + "/" + scheme, scheme, args[1], is_sane)
        print(scheme)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""quant_bench.py [--bin DIR] [--dir DIR] [--gb 0.8] [--rounds 5] [--only TEXT] - reshard --dequantize bf16 of models
in several forms, in turn with `cp -r` of the bf16 folder that comes out, and, where PEER_PYTHON has them, with
transformers (load and save) and compressed-tensors' convert_checkpoint.

GB/s are of the bf16 folder. One line {"rows":[...]} at the end: ratio > 1, ours is better."""

import argparse
import os
import shutil
import struct

import turns

HIDDEN, INTER, KV, VOCAB = 2048, 5632, 1024, 8192
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTER, HIDDEN),
    "mlp.up_proj": (INTER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTER),
}


# ---- forms ----
def f32(n):
    return struct.pack(f"<{n}f", *[2.0**-10 * (1 + i / n) for i in range(n)])


def half(n, first):
    return struct.pack(f"<{n}H", *[first + i % 512 for i in range(n)])


def exponents(n):
    return bytes(110 + i % 9 for i in range(n))


def no_nan(n):
    """Random E4M3 codes."""
    return os.urandom(n).translate(bytes(c if c & 127 != 127 else c - 1 for c in range(256)))


def fp8(x, n, k):
    blocks = [n // 128, k // 128]
    yield x + ".weight", "F8_E4M3", [n, k], no_nan(n * k)
    yield x + ".weight_scale_inv", "F32", blocks, f32(blocks[0] * blocks[1])


def mxfp4(x, n, k):
    yield x + ".weight_packed", "U8", [n, k // 2], os.urandom(n * k // 2)
    yield x + ".weight_scale", "U8", [n, k // 32], exponents(n * k // 32)


def int4(x, n, k):
    yield x + ".weight_packed", "I32", [n, k // 8], os.urandom(n * k // 2)
    yield x + ".weight_scale", "BF16", [n, k // 128], half(n * k // 128, 0x3A00)
    yield x + ".weight_shape", "I64", [2], struct.pack("<2q", n, k)


def gptq(x, n, k):
    groups = k // 128
    yield x + ".qweight", "I32", [k // 8, n], os.urandom(n * k // 2)
    yield x + ".scales", "F16", [groups, n], half(groups * n, 0x1800)
    yield x + ".qzeros", "I32", [groups, n // 8], os.urandom(groups * n // 2)
    yield x + ".g_idx", "I32", [k], struct.pack(f"<{k}i", *[i // 128 for i in range(k)])


def awq(x, n, k):
    groups = k // 128
    yield x + ".qweight", "I32", [k, n // 8], os.urandom(n * k // 2)
    yield x + ".scales", "F16", [groups, n], half(groups * n, 0x1800)
    yield x + ".qzeros", "I32", [groups, n // 8], os.urandom(groups * n // 2)


def compressed(form, **weights):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ["lm_head"],
    }


def forms():
    """title, tensors of a matrix, quantization_config, peers"""
    yield "FP8 128x128", fp8, {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }, {"compressed-tensors": "fp8-blocks", "transformers": "fp8"}
    yield "MXFP4 of compressed-tensors", mxfp4, compressed(
        "mxfp4-pack-quantized",
        num_bits=4,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype="torch.uint8",
    ), {"compressed-tensors": "compressed"}
    yield "int4 of compressed-tensors", int4, compressed(
        "pack-quantized", num_bits=4, type="int", strategy="group", group_size=128
    ), {"compressed-tensors": "compressed"}
    group = {"bits": 4, "group_size": 128}
    yield "GPTQ 4 bits", gptq, {
        "quant_method": "gptq",
        "desc_act": False,
        "sym": False,
        **group,
    }, {}
    yield "AWQ 4 bits", awq, {"quant_method": "awq", "version": "gemm", **group}, {}
    yield "MXFP4 of gpt-oss", None, {"quant_method": "mxfp4"}, {"transformers": "mxfp4"}


def ends(hidden):
    data = turns.bf16(VOCAB * hidden)
    yield "model.embed_tokens.weight", "BF16", [VOCAB, hidden], data
    yield "lm_head.weight", "BF16", [VOCAB, hidden], data
    yield "model.norm.weight", "BF16", [hidden], data[: 2 * hidden]


def layer_norms(at, hidden):
    for name in ("input", "post_attention"):
        yield f"{at}{name}_layernorm.weight", "BF16", [hidden], turns.bf16(hidden)


def renamed(layer, i):
    return [(n.replace("layers.0.", f"layers.{i}."), d, s, b) for n, d, s, b in layer]


def make_llama(folder, matrix, quant, gb):
    layer, values = [], sum(n * k for n, k in LINEARS.values())
    for x, (n, k) in LINEARS.items():
        layer += matrix("model.layers.0." + x, n, k)
    layer += layer_norms("model.layers.0.", HIDDEN)
    layers = max(1, round((gb * 5e8 - 2 * VOCAB * HIDDEN) / values))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    config.update(hidden_size=HIDDEN, intermediate_size=INTER, vocab_size=VOCAB)
    config.update(num_hidden_layers=layers, num_attention_heads=16)
    config.update(num_key_value_heads=8, max_position_embeddings=2048)
    config.update(torch_dtype="bfloat16", tie_word_embeddings=False)
    config.update(rms_norm_eps=1e-5, quantization_config=quant)
    tensors = [t for i in range(layers) for t in renamed(layer, i)]
    turns.write(folder, tensors + list(ends(HIDDEN)), config)


def make_gpt_oss(folder, quant, gb):
    h, experts, heads, kv, d = 2880, 4, 8, 2, 64
    at, bf16 = "model.layers.0.", turns.bf16
    layer = list(layer_norms(at, h))
    for x, n, k in (
        ("self_attn.q_proj", heads * d, h),
        ("self_attn.k_proj", kv * d, h),
        ("self_attn.v_proj", kv * d, h),
        ("self_attn.o_proj", h, heads * d),
        ("mlp.router", experts, h),
    ):
        layer.append((f"{at}{x}.weight", "BF16", [n, k], bf16(n * k)))
        layer.append((f"{at}{x}.bias", "BF16", [n], bf16(n)))
    layer.append((at + "self_attn.sinks", "BF16", [heads], bf16(heads)))
    for x, n in (("gate_up_proj", 2 * h), ("down_proj", h)):
        name, count = f"{at}mlp.experts.{x}", experts * n
        shape = [experts, n, h // 32]
        layer.append((name + "_blocks", "U8", [*shape, 16], os.urandom(count * h // 2)))
        layer.append((name + "_scales", "U8", shape, exponents(count * h // 32)))
        layer.append((name + "_bias", "BF16", shape[:2], bf16(count)))
    layers = max(1, round(gb * 5e8 / (experts * 3 * h * h)))
    config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
    config.update(hidden_size=h, intermediate_size=h, vocab_size=VOCAB)
    config.update(num_hidden_layers=layers, num_attention_heads=heads)
    config.update(num_key_value_heads=kv, head_dim=d, num_local_experts=experts)
    config.update(num_experts_per_tok=2, sliding_window=128, torch_dtype="bfloat16")
    config.update(layer_types=["full_attention"] * layers, attention_bias=True)
    config.update(tie_word_embeddings=False, quantization_config=quant)
    tensors = [t for i in range(layers) for t in renamed(layer, i)]
    turns.write(folder, tensors + list(ends(h)), config)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default="build/release/bin")
    p.add_argument("--dir", default="/tmp/shardline-bench-quant")
    p.add_argument("--gb", type=float, default=0.8)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--only", default="")
    a = p.parse_args()
    python, rows = os.environ.get("PEER_PYTHON"), []
    src, out, copy = a.dir + "/src", a.dir + "/out", a.dir + "/copy"
    for title, matrix, quant, peers in forms():
        if a.only not in title:
            continue
        shutil.rmtree(a.dir, ignore_errors=True)
        if matrix:
            turns.apart(make_llama, src, matrix, quant, a.gb)
        else:
            turns.apart(make_gpt_oss, src, quant, a.gb)
        ours = [f"{a.bin}/reshard", "--format", "hf", "--dequantize", "bf16", src]
        turns.run(ours + [out])
        ways = {**turns.copies(out, copy), "reshard": ours + [copy]}
        for name, what in peers.items() if python else ():
            ways[name] = turns.converter(what, src, copy)
        gb = turns.size(out) / 1e9
        turns.header(f"{title}, {gb:.2f} GB bf16")
        speed, peak = turns.take(ways, copy, a.rounds, gb)
        name = f"--dequantize bf16, {title}"
        for way in ways:
            if way != "reshard":
                rows.append(turns.row(name, speed["reshard"], speed[way], way))
        rows.append(turns.row(name + ", peak memory", peak["reshard"], 256, "limit", "MiB", "lower"))
    shutil.rmtree(a.dir, ignore_errors=True)
    turns.end(rows)


main()

#!/usr/bin/env python3
"""model_bench.py [--bin DIR] [--dir DIR] [--gb 2] [--rounds 5] - reshard of a bf16 Hugging Face folder to tp 8, to
another folder, to the serve format, to GGUF in bf16 and Q8_0 and back, in turn with `cp -r`; the plan of
45,000 tensors.

PEER_PYTHON with LLAMA_CPP (a folder of llama.cpp's source): its convert_hf_to_gguf of the same folder takes turns;
PEER_PYTHON: transformers' loader of GGUF files, too. DIR needs four times --gb."""

import argparse
import os
import shutil
import statistics

import turns

HIDDEN, INTER, KV, VOCAB = 2048, 5632, 1024, 32000
LIMIT, MANY = 256, 45000  # MiB; tensors


def make(folder, gb):
    tensors, layer = [], "model.layers.{}."
    shapes = {
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
        "self_attn.q_proj": [HIDDEN, HIDDEN],
        "self_attn.k_proj": [KV, HIDDEN],
        "self_attn.v_proj": [KV, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HIDDEN],
        "mlp.gate_proj": [INTER, HIDDEN],
        "mlp.up_proj": [INTER, HIDDEN],
        "mlp.down_proj": [HIDDEN, INTER],
    }
    data = {n: turns.bf16(s[0] * (s[1] if len(s) > 1 else 1)) for n, s in shapes.items()}
    ends, once = turns.bf16(VOCAB * HIDDEN), sum(map(len, data.values()))
    layers = max(1, round((gb * 1e9 - 2 * len(ends)) / once))
    for i in range(layers):
        tensors += [(layer.format(i) + n + ".weight", "BF16", s, data[n]) for n, s in shapes.items()]
    for name in ("model.embed_tokens", "lm_head"):
        tensors.append((name + ".weight", "BF16", [VOCAB, HIDDEN], ends))
    tensors.append(("model.norm.weight", "BF16", [HIDDEN], data["input_layernorm"]))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    config.update(hidden_size=HIDDEN, intermediate_size=INTER, num_hidden_layers=layers, vocab_size=VOCAB)
    config.update(num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=2048)
    config.update(tie_word_embeddings=False, rms_norm_eps=1e-5)
    turns.write(folder, tensors, config)


def make_many(folder):
    """45,000 tensors: a model of DeepSeek-V3's shape with rows of 16 numbers."""
    layers, experts, h, d = 59, 256, 16, 2
    tensors, b = [], {n: bytes(2 * n) for n in (d, h, h * h, 32 * h, experts * h)}

    def add(name, *shape):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors.append((name + ".weight", "BF16", list(shape), b[n]))

    add("model.embed_tokens", 32, h)
    for i in range(layers):
        at = f"model.layers.{i}."
        for norm, n in (
            ("input_layernorm", h),
            ("post_attention_layernorm", h),
            ("self_attn.q_norm", d),
            ("self_attn.k_norm", d),
        ):
            add(at + norm, n)
        for x in "qkvo":
            add(f"{at}self_attn.{x}_proj", h, h)
        add(at + "mlp.gate", experts, h)
        for e in range(experts):
            for x in ("gate", "up", "down"):
                add(f"{at}mlp.experts.{e}.{x}_proj", h, h)
    add("model.norm", h)
    add("lm_head", 32, h)
    config = dict(model_type="qwen3_moe", hidden_size=h, intermediate_size=h, moe_intermediate_size=h)
    config.update(
        num_hidden_layers=layers, num_attention_heads=h // d, num_key_value_heads=h // d, head_dim=d
    )
    config.update(num_experts=experts, num_experts_per_tok=2, vocab_size=32, max_position_embeddings=64)
    config.update(torch_dtype="bfloat16", tie_word_embeddings=False, norm_topk_prob=True)
    turns.write(folder, tensors, config)
    assert len(tensors) >= MANY


def rows_of(title, speed, peak, ours, peers):
    rows = [turns.row(title, speed[ours], speed[p], p) for p in peers if p in speed]
    rows.append(turns.row(title + ", peak memory", peak[ours], LIMIT, "limit", "MiB", "lower"))
    return rows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default="build/release/bin")
    p.add_argument("--dir", default="/tmp/shardline-bench-model")
    p.add_argument("--gb", type=float, default=2)
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    python, llama = os.environ.get("PEER_PYTHON"), os.environ.get("LLAMA_CPP")
    shutil.rmtree(a.dir, ignore_errors=True)
    src, dst, back, reshard = a.dir + "/hf", a.dir + "/dst.gguf", a.dir + "/back", a.bin + "/reshard"
    turns.apart(make, src, a.gb)
    gb, rows = turns.size(src) / 1e9, []

    ways = turns.copies(src, dst)
    ways["reshard --tp 8"] = [reshard, "--tp", "8", src, dst]
    ways["reshard --format hf"] = [reshard, "--format", "hf", src, dst]
    ways["reshard --format gguf"] = [reshard, "--format", "gguf", src, dst]
    q8 = "reshard --format gguf --quantize q8_0"
    ways[q8] = [reshard, "--format", "gguf", "--quantize", "q8_0", src, dst]
    b12 = "reshard --format serve --quantize b12"
    ways["reshard --format serve"] = [reshard, "--format", "serve", src, dst]
    ways[b12] = [reshard, "--format", "serve", "--quantize", "b12", src, dst]
    if python and llama:
        for form in ("bf16", "q8_0"):
            ways["convert_hf_to_gguf " + form] = turns.converter(form, src, dst, llama)
    turns.header(f"{gb:.2f} GB bf16, GB/s of the source")
    speed, peak = turns.take(ways, dst, a.rounds, gb)
    both = ["cp -r", "cp -r, sync"]
    for title, way, peers in (
        ("HF to tp 8", "reshard --tp 8", both),
        ("HF to HF", "reshard --format hf", both),
        ("HF to serve", "reshard --format serve", both),
        ("HF to serve in 12 bits", b12, both),
        ("HF to GGUF bf16", "reshard --format gguf", [*both, "convert_hf_to_gguf bf16"]),
        ("HF to GGUF Q8_0", q8, [*both, "convert_hf_to_gguf q8_0"]),
    ):
        rows += rows_of(title, speed, peak, way, peers)

    os.makedirs(back)
    turns.run([reshard, "--format", "gguf", src, back + "/model.gguf"])
    ways = turns.copies(back, dst)
    ways["reshard --format hf of GGUF"] = [reshard, "--format", "hf", back + "/model.gguf", dst]
    if python:
        ways["transformers, load and save"] = turns.converter("gguf", back, dst)
    turns.header(f"{gb:.2f} GB GGUF bf16")
    speed, peak = turns.take(ways, dst, a.rounds, gb)
    rows += rows_of(
        "GGUF bf16 to HF", speed, peak, "reshard --format hf of GGUF", [*both, "transformers, load and save"]
    )

    turns.apart(make_many, a.dir + "/many")
    plans = [turns.run([reshard, "plan", "--tp", "8", "--ep", "8", a.dir + "/many"]) for _ in range(a.rounds)]
    s = statistics.median(x for x, *_ in plans)
    print(f"{MANY} tensors planned at tp 8, ep 8: {s:.2f} s, {max(m for *_, m in plans):.0f} MiB")
    rows.append(turns.row(f"plan of {MANY} tensors", s, 1, "limit", "s", "lower"))
    shutil.rmtree(a.dir, ignore_errors=True)
    turns.end(rows)


main()

"""serve_models.py - the models that serve_bench.py serves: shapes, and Hugging Face folders of them with
random weights."""
import array
import json
import os
import random
from types import SimpleNamespace as Shape


def dense(h, layers, heads, kv, ffn, vocab, context=2048):
    return Shape(type="llama", h=h, layers=layers, heads=heads, kv=kv, d=h // heads, ffn=ffn, vocab=vocab,
                 experts=0, k=0, context=context)


def mixture(kind, h, layers, heads, kv, d, ffn, experts, k):
    return Shape(type=kind, h=h, layers=layers, heads=heads, kv=kv, d=d, ffn=ffn, vocab=32000,
                 experts=experts, k=k, context=2048)


# dense: the shapes of the peers' programs, and one whose long prompts are mostly attention. Mixtures: 1.0 billion parameters, of which a token uses 300 and
# 200 million
SIZES = {
    "260k": dense(64, 5, 8, 4, 172, 512),
    "tiny": dense(288, 6, 6, 6, 768, 32000),
    "110m": dense(768, 12, 12, 12, 2048, 32000),
    "1b": dense(2048, 22, 32, 4, 5632, 32000),
    "long": dense(512, 4, 8, 8, 1408, 32000, 131072),
    "mixtral-1b": mixture("mixtral", 1024, 12, 16, 4, 64, 3072, 8, 2),
    "qwen3moe-1b": mixture("qwen3_moe", 1024, 12, 16, 4, 64, 384, 64, 8),
}
FFN = {"llama": ("mlp.", "gate_proj", "up_proj", "down_proj"),
       "mixtral": ("block_sparse_moe.", "w1", "w3", "w2"),
       "qwen3_moe": ("mlp.", "gate_proj", "up_proj", "down_proj")}


def mlp(s, at):
    block, *names = FFN[s.type]
    shapes = (s.ffn, s.h), (s.ffn, s.h), (s.h, s.ffn)
    if s.experts:
        yield f"{at}{block}gate.weight", (s.experts, s.h)
    for e in range(s.experts or 1):
        for name, shape in zip(names, shapes):
            yield f"{at}{block}{f'experts.{e}.' if s.experts else ''}{name}.weight", shape


def tensors(s):
    yield "model.embed_tokens.weight", (s.vocab, s.h)
    for i in range(s.layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (s.h,)
        for part, shape in (("q", (s.heads * s.d, s.h)), ("k", (s.kv * s.d, s.h)), ("v", (s.kv * s.d, s.h)),
                            ("o", (s.h, s.heads * s.d))):
            yield at + f"self_attn.{part}_proj.weight", shape
        if s.type == "qwen3_moe":
            for part in "qk":
                yield at + f"self_attn.{part}_norm.weight", (s.d,)
        yield at + "post_attention_layernorm.weight", (s.h,)
        yield from mlp(s, at)
    yield "model.norm.weight", (s.h,)
    yield "lm_head.weight", (s.vocab, s.h)


def config(s, dtype):
    c = {"model_type": s.type, "hidden_size": s.h, "num_hidden_layers": s.layers,
         "num_attention_heads": s.heads, "num_key_value_heads": s.kv, "head_dim": s.d,
         "intermediate_size": s.ffn, "vocab_size": s.vocab, "max_position_embeddings": s.context,
         "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "hidden_act": "silu", "torch_dtype": "bfloat16" if dtype == "bf16" else "float32"}
    if s.type == "mixtral":
        c.update(architectures=["MixtralForCausalLM"], num_local_experts=s.experts, num_experts_per_tok=s.k,
                 sliding_window=None)
    elif s.type == "qwen3_moe":
        c.update(architectures=["Qwen3MoeForCausalLM"], num_experts=s.experts, num_experts_per_tok=s.k,
                 moe_intermediate_size=s.ffn, norm_topk_prob=True, decoder_sparse_step=1,
                 mlp_only_layers=[])
    return c


def make_model(size, dtype, where):
    """A Hugging Face folder. Matrices are normal numbers repeated, each from another place; norms are 1."""
    s, rng, width = SIZES[size], random.Random(7), 2 if dtype == "bf16" else 4
    floats = array.array("f", (rng.gauss(0, 0.02) for _ in range(1 << 18)))
    block = floats.tobytes() if width == 4 else array.array("H",
                                                            (x >> 16 for x in array.array("I",
                                                                floats.tobytes()))).tobytes()
    os.makedirs(where)
    header, at = {}, 0
    for name, shape in tensors(s):
        n = width * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16" if width == 2 else "F32", "shape": shape,
                        "data_offsets": [at, at + n]}
        at += n
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(where, "model.safetensors"), "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for name in header:
            begin, end = header[name]["data_offsets"]
            n, start = end - begin, rng.randrange(0, 1 << 16) * 4
            if len(header[name]["shape"]) == 1:
                f.write((b"\x80\x3f" if width == 2 else b"\0\0\x80\x3f") * (n // width))
                continue
            while n > 0:
                part = block[start:start + n]
                f.write(part)
                n, start = n - len(part), 0
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(config(s, dtype), f)

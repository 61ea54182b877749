"""Files for gguf_back.sh, and what the gguf package says of them.

gguf_back.py model TOKENIZER OUT          a Hugging Face folder of a small model with that tokenizer
gguf_back.py texts TOKENIZER              its vectors.jsonl as input of ptok encode
gguf_back.py blocks TYPE FILE             a GGUF file of a llama of random blocks (needs gguf, as the next)
gguf_back.py values FILE FP32 BF16        the numbers of both folders are those of the gguf package: prints ok
"""

import base64
import json
import shutil
import struct
import sys

HEADS, HIDDEN, INTER, WORDS = 4, 256, 512, 40
SHAPES = {
    "token_embd": (WORDS, HIDDEN),
    "output": (WORDS, HIDDEN),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (HIDDEN, HIDDEN),
    "blk.0.attn_v": (HIDDEN, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (INTER, HIDDEN),
    "blk.0.ffn_up": (INTER, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, INTER),
}
NORMS = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "blk.0.attn_norm": "model.layers.0.input_layernorm",
    "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm",
    "blk.0.attn_output": "model.layers.0.self_attn.o_proj",
    **{f"blk.0.attn_{x}": f"model.layers.0.self_attn.{x}_proj" for x in "qkv"},
    **{f"blk.0.ffn_{x}": f"model.layers.0.mlp.{x}_proj" for x in ("gate", "up", "down")},
}
# where a block has halves, which must not be NaN
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
HALVES.update({"Q6_K": (208,), "MXFP4": ()})


def model(tokenizer, out):
    shutil.copytree(tokenizer, out)
    t = json.load(open(out + "/tokenizer.json"))
    words = max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]) + 3
    h, layer = 16, "model.layers.0."
    shapes = {"model.embed_tokens.weight": [words, h], "lm_head.weight": [words, h], "model.norm.weight": [h]}
    shapes.update({layer + n + "_layernorm.weight": [h] for n in ("input", "post_attention")})
    shapes.update({layer + f"self_attn.{x}_proj.weight": [h, h] for x in "qkvo"})
    shapes.update({layer + f"mlp.{x}_proj.weight": [h, h] for x in ("gate", "up", "down")})
    header, at = {}, 0
    for name, shape in shapes.items():
        n = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    with open(out + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))
    config = {"model_type": "llama", "hidden_size": h, "intermediate_size": h, "vocab_size": words}
    config.update(num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
    json.dump(config, open(out + "/config.json", "w"))


def texts(tokenizer):
    for line in open(tokenizer + "/vectors.jsonl"):
        v = json.loads(line)
        if "text" not in v and "b64" not in v:  # a part of a corpus
            continue
        text = v["b64"] if "b64" in v else base64.b64encode(v["text"].encode()).decode()
        print(json.dumps({"n": v["n"], "text_b64": text}))


def blocks(kind, path):
    import gguf
    import numpy as np

    rng, t = np.random.default_rng(9), gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[t]
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(INTER)
    w.add_head_count(HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    for name, (n, k) in SHAPES.items():
        raw = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
        for at in HALVES.get(kind, (0,)):
            halves = (rng.standard_normal((n, k // values)) * 0.01).astype(np.float16)
            raw[..., at : at + 2] = halves.view(np.uint8).reshape(n, k // values, 2)
        if kind == "MXFP4":
            raw[..., 0] = rng.integers(100, 140, (n, k // values))
        w.add_tensor(name + ".weight", raw.reshape(n, -1), raw_dtype=t)
    for name in NORMS:
        w.add_tensor(name + ".weight", rng.standard_normal(HIDDEN).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def folder(path):
    """The tensors of a folder as fp32."""
    import numpy as np

    data, out = open(path + "/model.safetensors", "rb").read(), {}
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + n + t["data_offsets"][0] : 8 + n + t["data_offsets"][1]]
        wide = np.frombuffer(raw, np.uint16 if t["dtype"] == "BF16" else np.uint32).astype(np.uint32)
        out[name] = (wide << (16 if t["dtype"] == "BF16" else 0)).reshape(t["shape"])
    return out


def values(path, fp32, bf16):
    import gguf
    import numpy as np

    got, n = (folder(fp32), folder(bf16)), 0
    d = HIDDEN // HEADS
    order = [h * d + 2 * i + s for h in range(HEADS) for s in range(2) for i in range(d // 2)]
    for t in gguf.GGUFReader(path).tensors:
        name = t.name.removesuffix(".weight")
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        x = x[order] if name in ("blk.0.attn_q", "blk.0.attn_k") else x
        bits = np.ascontiguousarray(x).view(np.uint32)
        wide = bits.astype(np.uint64)
        rounded = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16 << 16).astype(np.uint32)
        for have, want in zip(got, (bits, rounded)):
            bad = np.nonzero(have[NAMES[name] + ".weight"] != want)[0]
            assert bad.size == 0, "%s: %d values differ" % (t.name, bad.size)
            n += want.size
    return "%d values" % n


if __name__ == "__main__":
    what, args = sys.argv[1], sys.argv[2:]
    try:
        said = {"model": model, "texts": texts, "blocks": blocks, "values": values}[what](*args)
        if said:
            print("ok", said)
    except AssertionError as e:
        print("differs:", e)
        sys.exit(1)

#!/usr/bin/env python3
"""moe_gguf.py - a mixture's Hugging Face folder (Mixtral, Qwen3-MoE; one file of bf16) as GGUF, for
llama.cpp: the same weights.

usage: moe_gguf.py FOLDER FILE.gguf        (needs numpy and gguf)
llama.cpp takes all experts of a layer as one tensor, norms and routers in fp32. Its arch "llama" (Mixtral)
rotates neighbouring components, so rows of q and k change places; "qwen3moe" rotates halves, as the folder
does."""
import json
import os
import sys

import gguf
import numpy as np

ARCH = {"mixtral": ("llama", "block_sparse_moe", "w1", "w3", "w2"),
        "qwen3_moe": ("qwen3moe", "mlp", "gate_proj", "up_proj", "down_proj")}
BF16 = gguf.GGMLQuantizationType.BF16


class Folder:
    def __init__(self, path):
        self.c = json.load(open(os.path.join(path, "config.json")))
        file = os.path.join(path, "model.safetensors")
        with open(file, "rb") as f:
            n = int.from_bytes(f.read(8), "little")
            self.header = json.loads(f.read(n))
        self.bytes = np.memmap(file, np.uint8, "r", 8 + n)

    def get(self, name):
        """The tensor's bits, uint16."""
        x = self.header[name + ".weight"]
        begin, end = x["data_offsets"]
        return self.bytes[begin:end].view(np.uint16).reshape(x["shape"])


def fp32(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


def neighbours(x, heads):
    """Rows of each head: component i of the first half, then component i of the second, in turn."""
    return x.reshape(heads, 2, -1, x.shape[-1]).swapaxes(1, 2).reshape(x.shape)


def vocabulary(w, n):
    w.add_tokenizer_model("llama")
    w.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % b for b in range(256)] +
                     [b"t%d" % i for i in range(259, n)])
    w.add_token_scores([0.0] * n)
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (n - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


def settings(w, c, ffn):
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(ffn)
    w.add_expert_feed_forward_length(ffn)
    w.add_expert_count(c.get("num_local_experts") or c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_vocab_size(c["vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def layer(w, f, i, arch):
    c, (kind, block, gate, up, down) = f.c, arch
    at, to = f"model.layers.{i}.", f"blk.{i}."

    def matrix(name, x):
        w.add_tensor(to + name + ".weight", np.ascontiguousarray(x).view(np.uint8), raw_dtype=BF16)
    w.add_tensor(to + "attn_norm.weight", fp32(f.get(at + "input_layernorm")))
    w.add_tensor(to + "ffn_norm.weight", fp32(f.get(at + "post_attention_layernorm")))
    for part, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"])):
        x = f.get(at + f"self_attn.{part}_proj")
        matrix("attn_" + part, neighbours(x, heads) if kind == "llama" else x)
        if kind == "qwen3moe":
            w.add_tensor(to + f"attn_{part}_norm.weight", fp32(f.get(at + f"self_attn.{part}_norm")))
    matrix("attn_v", f.get(at + "self_attn.v_proj"))
    matrix("attn_output", f.get(at + "self_attn.o_proj"))
    w.add_tensor(to + "ffn_gate_inp.weight", fp32(f.get(f"{at}{block}.gate")))
    n = c.get("num_local_experts") or c["num_experts"]
    for name, part in (("ffn_gate_exps", gate), ("ffn_up_exps", up), ("ffn_down_exps", down)):
        matrix(name, np.stack([f.get(f"{at}{block}.experts.{e}.{part}") for e in range(n)]))


def main():
    f, path = Folder(sys.argv[1]), sys.argv[2]
    arch = ARCH[f.c["model_type"]]
    w = gguf.GGUFWriter(path + ".part", arch[0])
    settings(w, f.c, f.c.get("moe_intermediate_size") or f.c["intermediate_size"])
    vocabulary(w, f.c["vocab_size"])
    w.add_tensor("token_embd.weight", np.ascontiguousarray(f.get("model.embed_tokens")).view(np.uint8),
                 raw_dtype=BF16)
    for i in range(f.c["num_hidden_layers"]):
        layer(w, f, i, arch)
    w.add_tensor("output_norm.weight", fp32(f.get("model.norm")))
    w.add_tensor("output.weight", np.ascontiguousarray(f.get("lm_head")).view(np.uint8), raw_dtype=BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.rename(path + ".part", path)


if __name__ == "__main__":
    main()

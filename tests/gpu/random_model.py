"""random_model.py DIR - fills a folder that holds a config.json (llama) with bf16 weights, small numbers
without meaning, to measure the speed of serving. Standard library only."""
import json
import os
import random
import struct
import sys

folder = sys.argv[1]
c = json.load(open(os.path.join(folder, "config.json")))
h, inter, vocab, d = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["head_dim"]
q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
tensors = {"model.embed_tokens.weight": [vocab, h], "model.norm.weight": [h], "lm_head.weight": [vocab, h]}
for i in range(c["num_hidden_layers"]):
    at = f"model.layers.{i}."
    tensors |= {at + "self_attn.q_proj.weight": [q, h], at + "self_attn.k_proj.weight": [kv, h],
                at + "self_attn.v_proj.weight": [kv, h],
                at + "self_attn.o_proj.weight": [h, q], at + "mlp.gate_proj.weight": [inter, h],
                at + "mlp.up_proj.weight": [inter, h],
                at + "mlp.down_proj.weight": [h, inter], at + "input_layernorm.weight": [h],
                at + "post_attention_layernorm.weight": [h]}
header, end = {}, 0
for name, shape in tensors.items():
    size = 2 * (shape[0] if len(shape) == 1 else shape[0] * shape[1])
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
    end += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
random.seed(1)
# of size 0.008 to 0.13
some = b"".join(struct.pack("<H", random.getrandbits(1) << 15 | 0x3c00 | random.getrandbits(9))
                for _ in range(1 << 20))
with open(os.path.join(folder, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for at in range(0, end, len(some)):
        f.write(some[:end - at])

#!/usr/bin/env python3
"""A small Hugging Face folder for the reshard scripts, every element its own value.

    reshard_make.py DIR [KEY=VALUE...]      keys of config.json, gauss=1 for values that look like weights,
                                            and derived=1 for
                                            the rotary tables that older folders carry too
"""
import json, os, random, struct, sys

c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
     "num_attention_heads": 8,
     "num_key_value_heads": 2, "intermediate_size": 40, "vocab_size": 256, "max_position_embeddings": 64,
     "rms_norm_eps": 1e-05,
     "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None}
gauss = derived = False
for word in sys.argv[2:]:
    key, value = word.split("=", 1)
    if key == "gauss":
        gauss = value == "1"
    elif key == "derived":
        derived = value == "1"
    else:
        c[key] = json.loads(value)
H, I, V, KV = (c["hidden_size"], c["intermediate_size"], c["vocab_size"],
               c["hidden_size"] // c["num_attention_heads"] * c["num_key_value_heads"])
t = [("model.embed_tokens.weight", [V, H])]
for l in range(c["num_hidden_layers"]):
    p = "model.layers.%d." % l
    t += [(p + "input_layernorm.weight", [H]), (p + "post_attention_layernorm.weight", [H]),
          (p + "self_attn.q_proj.weight", [H, H]),
          (p + "self_attn.k_proj.weight", [KV, H]), (p + "self_attn.v_proj.weight", [KV, H]),
          (p + "self_attn.o_proj.weight", [H, H]),
          (p + "mlp.gate_proj.weight", [I, H]), (p + "mlp.up_proj.weight", [I, H]),
          (p + "mlp.down_proj.weight", [H, I])]
t += [("model.norm.weight", [H])] + ([] if c["tie_word_embeddings"] else [("lm_head.weight", [V, H])])
t += [("model.layers.%d.self_attn.rotary_emb.inv_freq" % l, [H // c["num_attention_heads"] // 2])
      for l in range(c["num_hidden_layers"]) if derived]
head, data, at, r, seed = {}, [], 0, random.Random(1), 1
for name, shape in t:
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if gauss:
        b = struct.pack("<%df" % n, *[r.gauss(0, 0.02) for _ in range(n)])
    else:
        out = []
        for _ in range(n):
            seed = (seed * 6364136223846793005 + 1442695040888963407) & (1 << 64) - 1
            out.append((seed >> 40) / (1 << 24) - 0.5)
        b = struct.pack("<%df" % n, *out)
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(b)]}
    at += len(b)
    data.append(b)
os.mkdir(sys.argv[1])
json.dump(c, open(sys.argv[1] + "/config.json", "w"), indent=2)
h = json.dumps(head).encode()
open(sys.argv[1] + "/model.safetensors", "wb").write(struct.pack("<Q", len(h)) + h + b"".join(data))

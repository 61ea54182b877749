"""serve_mtp_peer.py DIR OUT - how many guesses of the checkpoint's layer for multi-token prediction are right, by
transformers: its DeepSeek-V3 gives the states, and computes the layer as a model of one layer whose inputs are
given. Reads OUT.in, lists of {"ids", "prompt", "allowed"}; writes OUT: for each {"drafts", "right"} at one guess
a step."""
import json
import os
import sys
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3ForCausalLM

folder, out = sys.argv[1:3]
config = json.load(open(os.path.join(folder, "config.json")))
stored = load_file(os.path.join(folder, "model.safetensors"))
n = config["num_hidden_layers"]
at = f"model.layers.{n}."
ends = {"shared_head.norm.weight": "model.norm.weight", "shared_head.head.weight": "lm_head.weight",
        "embed_tokens.weight": "model.embed_tokens.weight"}
own = {}
for name, x in stored.items():
    if name.startswith(at):
        rest = name[len(at):]
        if rest not in ("enorm.weight", "hnorm.weight", "eh_proj.weight"):
            own[ends.get(rest, "model.layers.0." + rest)] = x.clone()
one = out + ".layer"
os.makedirs(one, exist_ok=True)
save_file(own, os.path.join(one, "model.safetensors"), metadata=dict(format="pt"))
json.dump(dict(config, num_hidden_layers=1, first_k_dense_replace=0), open(os.path.join(one, "config.json"), "w"))
model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
layer = DeepseekV3ForCausalLM.from_pretrained(one, dtype=torch.float32, attn_implementation="eager").eval()


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight


def count(ids, prompt, allowed):
    ids_t = torch.tensor([ids])
    states = model.model(input_ids=ids_t).last_hidden_state[0]              # behind the last norm
    first = 0
    tokens = norm(stored[at + "embed_tokens.weight"][ids_t[0, first + 1:]], stored[at + "enorm.weight"])
    before = norm(states[first:-1], stored[at + "hnorm.weight"])
    x = torch.cat([tokens, before], -1) @ stored[at + "eh_proj.weight"].T
    logits = layer(inputs_embeds=x[None]).logits[0]
    guess = [allowed[int(row[allowed].argmax())] for row in logits]         # guess[k]: of ids[first + k + 2]
    have, drafts, right = prompt + 1, 0, 0
    while have < len(ids):
        asks = have + 1 < len(ids)
        ok = asks and guess[have - first - 2] == ids[have]
        drafts, right, have = drafts + asks, right + ok, have + 1 + ok
    return dict(drafts=drafts, right=right)


with torch.no_grad():
    json.dump([count(**q) for q in json.load(open(out + ".in"))], open(out, "w"))

"""parity_torch.py make DIR DOCS.bin DOCS.jsonl      reference runs of transformers, a folder each: init/,
                                                     run.json, steps.jsonl, *.safetensors
parity_torch.py compare RUN FILE WEIGHTS.safetensors   every tensor of RUN/FILE.safetensors against ours;
                                                       status 1: some differ

The folders are as those of $FIXTURES/hf/train, for the families that have none there. Every run is made in
fp32 and again in fp64: how far
the two drift apart is what sets the tolerance of a tensor, 20 times that, as the fixtures' own checker has
it."""
import json
import math
import os
import sys

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

HYPER = {"steps": 16, "batch": 8, "seq": 48, "window_stride": 7, "lr": 0.003, "min_lr": 0.0003, "warmup": 3,
         "betas": [0.9, 0.95], "eps": 1e-8,
         "weight_decay": 0.1, "clip": 1.0}
COMMON = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
          "intermediate_size": 104, "vocab_size": 261,
          "max_position_embeddings": 64, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 24}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 8, "n_inner": 104, "vocab_size": 261, "n_positions": 64,
        "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
MODELS = {  # model_type, what differs, documents: attention stops where they end
    "mistral-window": ("mistral", {"sliding_window": 9, "head_dim": 12}, 0),
    "qwen2-biases-tied": ("qwen2", {"tie_word_embeddings": True}, 0),
    "qwen2-yarn": ("qwen2", {"rope_scaling": YARN}, 0),
    "qwen3-norms": ("qwen3", {"head_dim": 18}, 0),
    "qwen3-tied": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True}, 0),
    "llama3-rope": ("llama", {"rope_scaling": LLAMA3}, 0),
    "llama3-rope-tied": ("llama", {"rope_scaling": LLAMA3, "tie_word_embeddings": True}, 0),
    "llama-linear-rope-biases": ("llama",
                                 {"rope_scaling": {"rope_type": "linear", "factor": 3.0},
                                  "attention_bias": True, "mlp_bias": True}, 0),
    "llama-documents": ("llama", {}, 1),
    "mistral-documents": ("mistral", {"sliding_window": 9, "head_dim": 12}, 1),
    "qwen3-documents": ("qwen3", {"head_dim": 18}, 1),
    "gpt2-documents": ("gpt2", GPT2, 1),
}


def config_of(kind, other):
    sizes = {} if kind == "gpt2" else dict(COMMON)
    sizes.update(other)
    theta = sizes.pop("rope_theta", None)
    if theta:
        sizes["rope_parameters"] = {"rope_theta": theta,
                                    **(sizes.pop("rope_scaling", None) or {"rope_type": "default"})}
    c = transformers.AutoConfig.for_model(kind, **sizes)
    c._attn_implementation = "eager"
    return c


def start(kind, other, seed):
    """Random weights; norms and biases too, which transformers starts at 1 and 0: an exchange of two would
    not be seen."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(kind, other), dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * (0.05 if name.endswith("bias") else 0.2))
    return model.train()


def tokens_of(path):
    """The documents of a JSONL as bytes: one sequence of tokens, and where each document begins."""
    data, begins = bytearray(), []
    with open(path) as f:
        for line in f:
            begins.append(len(data))
            data += json.loads(line)["text"].encode()
    return torch.tensor(list(data)), begins


def rows_of(tokens, step, h):
    n = (len(tokens) - 1) // h["seq"]
    at = [((step * h["batch"] + r) * h["window_stride"]) % n * h["seq"] for r in range(h["batch"])]
    return at, torch.stack([tokens[a:a + h["seq"]] for a in at]), torch.stack([tokens[a + 1:a + h["seq"] + 1]
        for a in at])


def packed(at, begins, seq, window, dtype):
    """position_ids that start anew with every document, and the additive mask that keeps attention inside one
    (and inside the window)."""
    starts = set(begins)
    pos = torch.zeros(len(at), seq, dtype=torch.long)
    doc = torch.zeros(len(at), seq, dtype=torch.long)
    for r, a in enumerate(at):
        for i in range(1, seq):
            new = a + i in starts
            pos[r, i] = 0 if new else pos[r, i - 1] + 1
            doc[r, i] = doc[r, i - 1] + new
    i = torch.arange(seq)
    seen = (doc[:, :, None] == doc[:, None, :]) & (i[None, None, :] <= i[None, :, None]) & (i[None, :,
        None] - i[None, None, :] < window)
    mask = torch.zeros(len(at), 1, seq, seq, dtype=dtype)
    return pos, mask.masked_fill(~seen[:, None], torch.finfo(dtype).min)


def learning_rate(step, h):
    if step < h["warmup"]:
        return h["lr"] * (step + 1) / h["warmup"]
    return h["min_lr"] + (h["lr"] - h["min_lr"]) / 2 * (1 +
                                                        math.cos(math.pi * (step - h["warmup"]) / (h["steps"] - h["warmup"])))


def train(model, tokens, begins, h):
    """-> lines of steps, {file: tensors}."""
    dtype, out, lines = next(model.parameters()).dtype, {}, []
    named = dict(model.named_parameters())
    groups = [{"params": [p for p in named.values() if (p.dim() > 1) == wide],
               "weight_decay": h["weight_decay"] * wide} for wide in (True, False)]
    opt = torch.optim.AdamW(groups, betas=tuple(h["betas"]), eps=h["eps"], foreach=False)
    for step in range(h["steps"]):
        at, x, y = rows_of(tokens, step, h)
        how = {}
        if begins:
            how["position_ids"], how["attention_mask"] = packed(at, begins, h["seq"],
                                                                getattr(model.config, "sliding_window", None)
                                                                or 1 << 30, dtype)
        loss = torch.nn.functional.cross_entropy(model(input_ids=x, use_cache=False, **how).logits.flatten(0,
            1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            out["grad0"] = {k: p.grad.clone() for k, p in named.items()}
        norm = torch.nn.utils.clip_grad_norm_(named.values(), h["clip"], foreach=False)
        for g in opt.param_groups:
            g["lr"] = learning_rate(step, h)
        opt.step()
        lines.append({"step": step, "lr": learning_rate(step, h), "loss": float(loss),
                      "grad_norm": float(norm)})
    out["final"] = {k: p.detach() for k, p in named.items()}
    out["adam_m"] = {k: opt.state[p]["exp_avg"] for k, p in named.items()}
    out["adam_v"] = {k: opt.state[p]["exp_avg_sq"] for k, p in named.items()}
    return lines, out


def drift(a, b):
    d = (a.double() - b.double()).abs()
    return [float(d.max()), float((d * d).mean().sqrt())]


def make(folder, data, docs):
    tokens, begins = tokens_of(docs)
    for seed, (name, (kind, other, documents)) in enumerate(MODELS.items()):
        run = os.path.join(folder, name)
        model = start(kind, other, seed)
        model.save_pretrained(os.path.join(run, "init"))
        twin = start(kind, other, seed).double()
        lines, out = train(model, tokens, begins if documents else None, HYPER)
        wide_lines, wide = train(twin, tokens, begins if documents else None, HYPER)
        for file, tensors in out.items():
            save_file({k: v.contiguous() for k, v in tensors.items()}, f"{run}/{file}.safetensors")
        with open(f"{run}/steps.jsonl", "w") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
        with open(f"{run}/run.json", "w") as f:
            json.dump({"run": name, "init": "init", "tokens": os.path.relpath(data, run), "hyper": HYPER,
                       "fp32_master": False, "documents": documents,
                       "drift_of_steps": {k: max(abs(a[k] - b[k]) for a, b in zip(lines, wide_lines))
                                          for k in ("loss", "grad_norm")},
                       "drift": {file: {k: drift(t[k], wide[file][k]) for k in t} for file,
                                 t in out.items()}}, f)
        print(name)


def compare(run, file, ours):
    """As in the fixtures' checker: the largest difference and its root mean square, each within 20 times the
    drift, or 1e-5 of the tensor's own."""
    with open(f"{run}/run.json") as f:
        allowed = json.load(f)["drift"][file]
    x, y, bad = load_file(ours), load_file(f"{run}/{file}.safetensors"), 0
    for k in sorted(y):
        if k not in x or x[k].shape != y[k].shape:
            print(f"{file}: {k} is missing or of another shape")
            bad += 1
            continue
        (most, rms), w = drift(x[k], y[k]), y[k].double()
        room = [max(20 * allowed[k][0], 1e-5 * float(w.abs().max())),
                max(20 * allowed[k][1], 1e-5 * float((w * w).mean().sqrt()))]
        if not (most <= room[0] and rms <= room[1]):
            print(f"{file}: {k} differs by {most:.3g}, rms {rms:.3g} (allowed {room[0]:.3g}, {room[1]:.3g})")
            bad += 1
    return 1 if bad or not y else 0


numpy.seterr(all="raise")
torch.set_num_threads(1)
if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:5])
    else:
        sys.exit(compare(*sys.argv[2:5]))

"""lora_peft.py make DIR TEXT               reference runs of PEFT, a folder each, as parity_torch.py makes them:
                                         init/ (the model), adapter/ (PEFT's folder before step 1), run.json,
                                         steps.jsonl, *.safetensors
lora_peft.py check DIR OURS TEXT         of every reference run NAME: tensors of OURS/NAME.grad0, .final, .adam_m
                                         and .adam_v against its own; PEFT loads our checkpoint OURS/NAME.ckpt:
                                         its logits, and those of the merged model OURS/NAME.merged, are near
                                         those of PEFT's own adapter

Tolerances are those of parity_torch.py: 20 times what fp32 and fp64 runs drift apart."""

import json
import os
import sys

sys.dont_write_bytecode = True
import parity_torch as base
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
MODELS = {  # model_type, what differs, the adapter
    "llama-linear": ("llama", {}, {"r": 8, "lora_alpha": 16, "target_modules": LINEAR}),
    "llama-random-b": (
        "llama",
        {"attention_bias": True, "mlp_bias": True},
        {"r": 5, "lora_alpha": 3, "target_modules": LINEAR, "init_lora_weights": False},
    ),
    "qwen2-tied-rslora": (
        "qwen2",
        {"tie_word_embeddings": True},
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    ),
    "qwen3-ranks": (
        "qwen3",
        {"head_dim": 18},
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "down_proj"],
            "rank_pattern": {"down_proj": 9},
            "alpha_pattern": {"layers.1.self_attn.q_proj": 2},
        },
    ),
    "mixtral-attention": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"r": 8, "lora_alpha": 16, "target_modules": ATTENTION},
    ),
    "gpt2-fused": (
        "gpt2",
        base.GPT2,
        {"r": 6, "lora_alpha": 12, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    ),
}


def adapted(name, seed):
    kind, other, how = MODELS[name]
    model = base.start(kind, other, seed)
    model.config._experts_implementation = "eager"  # the others have no fp64
    torch.manual_seed(100 + seed)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **how))


def plain(name):
    return name.replace(".default", "")


def tensors_of(text):
    with open(text, "rb") as f:
        return torch.tensor(list(f.read()))


def train(model, tokens, h):
    """-> lines of steps, {file: tensors}: of the adapter alone."""
    out, lines = {}, []
    named = {plain(k): p for k, p in model.named_parameters() if p.requires_grad}
    opt = torch.optim.AdamW(
        named.values(), betas=tuple(h["betas"]), eps=h["eps"], weight_decay=h["weight_decay"], foreach=False
    )
    for step in range(h["steps"]):
        _, x, y = base.rows_of(tokens, step, h)
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        if step == 0:
            out["grad0"] = {k: p.grad.clone() for k, p in named.items()}
        norm = torch.nn.utils.clip_grad_norm_(named.values(), h["clip"], foreach=False)
        for g in opt.param_groups:
            g["lr"] = base.learning_rate(step, h)
        opt.step()
        lines.append(
            {"step": step, "lr": base.learning_rate(step, h), "loss": float(loss), "grad_norm": float(norm)}
        )
    out["final"] = {k: p.detach() for k, p in named.items()}
    out["adam_m"] = {k: opt.state[p]["exp_avg"] for k, p in named.items()}
    out["adam_v"] = {k: opt.state[p]["exp_avg_sq"] for k, p in named.items()}
    return lines, out


def make(folder, text):
    tokens = tensors_of(text)
    for seed, name in enumerate(MODELS):
        run = os.path.join(folder, name)
        model = adapted(name, seed)
        base.start(MODELS[name][0], MODELS[name][1], seed).save_pretrained(os.path.join(run, "init"))
        model.save_pretrained(os.path.join(run, "adapter"))
        lines, out = train(model, tokens, base.HYPER)
        wide_lines, wide = train(adapted(name, seed).double(), tokens, base.HYPER)
        for file, tensors in out.items():
            save_file({k: v.contiguous() for k, v in tensors.items()}, f"{run}/{file}.safetensors")
        model.save_pretrained(os.path.join(run, "trained"))
        assert set(out["final"]) == set(get_peft_model_state_dict(model))
        with open(f"{run}/steps.jsonl", "w") as f:
            f.writelines(json.dumps(x) + "\n" for x in lines)
        with open(f"{run}/run.json", "w") as f:
            json.dump(
                {
                    "run": name,
                    "init": "init",
                    "tokens": os.path.relpath(text, run),
                    "hyper": base.HYPER,
                    "fp32_master": False,
                    "drift_of_steps": {
                        k: max(abs(a[k] - b[k]) for a, b in zip(lines, wide_lines))
                        for k in ("loss", "grad_norm")
                    },
                    "drift": {
                        file: {k: base.drift(t[k], wide[file][k]) for k in t} for file, t in out.items()
                    },
                },
                f,
            )
        print(name)


def load(run, ckpt, merged, text):
    x = tensors_of(text)[:48][None]

    def logits(folder, adapter):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        model = PeftModel.from_pretrained(model, adapter) if adapter else model
        with torch.no_grad():
            return model(input_ids=x).logits

    theirs, plain_ones = logits(f"{run}/init", f"{run}/trained"), logits(f"{run}/init", None)
    moved = float((theirs - plain_ones).abs().max())
    bad = 0
    for what, ours in (
        ("the checkpoint", logits(f"{run}/init", ckpt)),
        ("the merged model", logits(merged, None)),
    ):
        d = float((ours - theirs).abs().max())
        print(f"{what}: logits differ by {d:.3g}; the adapter moves them by {moved:.3g}")
        bad += not d <= 0.01 * moved
    return bad


def check(folder, ours, text):
    bad = 0
    for name in MODELS:
        print(f"{name}:")
        for file in ("grad0", "final", "adam_m", "adam_v"):
            bad += base.compare(f"{folder}/{name}", file, f"{ours}/{name}.{file}")
        bad += load(f"{folder}/{name}", f"{ours}/{name}.ckpt", f"{ours}/{name}.merged", text)
    return 1 if bad else 0


if __name__ == "__main__":
    command = {"make": make, "check": check}[sys.argv[1]]
    sys.exit(command(*sys.argv[2:]))

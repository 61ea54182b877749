#!/usr/bin/env python3
"""Adapters of the PEFT library: models and adapters for adapter_peers.sh, and what must come of a merge.

adapter_peers.py make DIR      DIR/CASE/{base,adapter,second}, DIR/CASE/want.pt and a list of cases on stdout
adapter_peers.py check DIR     compares DIR/CASE/merged: bits of the rule in binary64 with one rounding, and
                               PEFT's own merge within a bound
"""

import json, math, os, sys
import torch, peft, transformers
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import ParamWrapper

torch.manual_seed(7)
SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=96,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PARAMS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
MOE = dict(SIZES, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, head_dim=8)
F32, BF16 = torch.float32, torch.bfloat16
# name: config class, its members, dtype of the model, members of LoraConfig
CASES = {
    "list": ("LlamaConfig", SIZES, F32, dict(r=4, target_modules=LINEAR)),
    "bf16": (
        "LlamaConfig",
        SIZES,
        BF16,
        dict(
            r=5,
            lora_alpha=16,
            use_rslora=True,
            target_modules=LINEAR,
            rank_pattern={"k_proj": 2, r"layers\.1\.mlp\.up_proj": 7},
            alpha_pattern={"layers.0.self_attn.q_proj": 3},
        ),
    ),
    "regex": (
        "MistralConfig",
        SIZES,
        F32,
        dict(
            r=3,
            target_modules=r".*\.(q_proj|down_proj)$",
            layers_to_transform=None,
            modules_to_save=["lm_head"],
        ),
    ),
    "layer": ("LlamaConfig", SIZES, F32, dict(r=3, target_modules=["o_proj"], layers_to_transform=[1])),
    "all": ("Qwen2Config", SIZES, F32, dict(r=4, target_modules="all-linear", bias="all")),
    "biases": ("Qwen2Config", SIZES, BF16, dict(r=4, target_modules=["q_proj", "v_proj"], bias="lora_only")),
    "embed": (
        "Qwen2Config",
        dict(SIZES, tie_word_embeddings=True),
        BF16,
        dict(r=4, target_modules=["embed_tokens", "q_proj"]),
    ),
    "gpt2": (
        "GPT2Config",
        dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=96, n_inner=32),
        F32,
        dict(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    ),
    "qwen3moe": ("Qwen3MoeConfig", MOE, F32, dict(r=3, target_modules=["q_proj"], target_parameters=PARAMS)),
    "modules": (
        "Qwen3MoeConfig",
        MOE,
        F32,
        dict(r=3, lora_alpha=5, target_modules=LINEAR, rank_pattern={"k_proj": 2}),
    ),
    "square": (
        "Qwen3MoeConfig",
        dict(MOE, moe_intermediate_size=32),
        BF16,
        dict(r=3, target_modules=["q_proj"], target_parameters=PARAMS[1:]),
    ),
    "halves": (
        "Qwen3MoeConfig",
        dict(MOE, moe_intermediate_size=16),
        F32,
        dict(r=2, target_modules=["q_proj"], target_parameters=PARAMS[:1]),
    ),
    "mixtral": (
        "MixtralConfig",
        dict(SIZES, num_local_experts=4),
        F32,
        dict(r=2, target_modules=["v_proj"], target_parameters=PARAMS),
    ),
    "gptoss": (
        "GptOssConfig",
        dict(
            SIZES,
            intermediate_size=32,
            num_local_experts=4,
            head_dim=8,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=16,
        ),
        BF16,
        dict(r=3, target_modules=["q_proj"], target_parameters=PARAMS),
    ),
}


def randomise(module, scale, only=None):
    with torch.no_grad():
        for name, p in module.named_parameters():
            if only is None or only in name:
                p.copy_(torch.randn(p.shape).to(p.dtype) * scale)


def product(lhs, rhs):
    """sum over k of lhs[..., :, k] rhs[..., k, :], k ascending, in binary64."""
    out = torch.zeros(lhs.shape[:-1] + rhs.shape[-1:], dtype=torch.float64)
    for k in range(lhs.shape[-1]):
        out += lhs[..., :, k : k + 1] * rhs[..., k : k + 1, :]
    return out


def round_once(x, dtype):
    """Of binary64. torch goes to bf16 through binary32 and rounds twice: that step leaves an odd last bit."""
    if dtype == F32:
        return x.float()
    f = x.float()
    bits = f.view(torch.int32)
    inexact = (f.double() != x) & (bits & 1 == 0)
    away = (f.double() > x) == (x > 0)
    bits = torch.where(inexact, torch.where(away, bits - 1, bits + 1), bits)
    return bits.view(F32).to(dtype)


def delta(layer, name):
    scale = float(layer.scaling[name])
    if isinstance(layer, ParamWrapper):
        a, b, n = layer.lora_A[name].weight.double(), layer.lora_B[name].weight.double(), layer.num_experts
        a = a.reshape(n, -1, a.shape[-1])
        b = b.reshape(b.shape[0], -1, n).permute(2, 0, 1)
        if layer._did_swap_in_out_features:
            return scale * product(b, a)
        return scale * product(b, a).transpose(-2, -1)
    if name in layer.lora_embedding_A:
        a, b = layer.lora_embedding_A[name].double(), layer.lora_embedding_B[name].double()
        return scale * product(b, a).T
    d = scale * product(layer.lora_B[name].weight.double(), layer.lora_A[name].weight.double())
    return d.T if layer.fan_in_fan_out else d


def expected(model):
    """The model's state with every adapter layer added once, rounded once."""
    out = {}
    base = model.base_model.model
    for key, value in base.state_dict().items():
        if "lora_" in key or ".original_module." in key:
            continue
        out[key.replace(".base_layer", "").replace(".modules_to_save.default", "")] = value.clone()
    for key, layer in base.named_modules():
        if not isinstance(layer, LoraLayer) or (not layer.lora_A and not layer.lora_embedding_A):
            continue
        key = (
            key.replace(".base_layer", "")
            + "."
            + (layer.parameter_name if isinstance(layer, ParamWrapper) else "weight")
        )
        w = out[key]
        out[key] = round_once(w.double() + delta(layer, "default").reshape(w.shape), w.dtype)
    if base.config.tie_word_embeddings:
        out["lm_head.weight"] = out[next(k for k in out if k.endswith(("embed_tokens.weight", "wte.weight")))]
    return out


def make(where):
    for name, (kind, members, dtype, lora) in CASES.items():
        config = getattr(transformers, kind)(**members)
        model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
        randomise(model, 0.5)
        folder = os.path.join(where, name)
        model.save_pretrained(folder + "/base")
        p = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora))
        randomise(p, 0.3, "lora_")
        randomise(p, 0.3, "modules_to_save")
        if lora.get("bias"):
            randomise(p, 0.3, ".base_layer.bias")
        p.save_pretrained(folder + "/adapter")
        if name == "list":
            p.save_pretrained(folder + "/bin", safe_serialization=False)
        want = expected(p)
        merged = p.merge_and_unload()
        torch.save([want, {k: v.clone() for k, v in merged.state_dict().items()}], folder + "/want.pt")
        print(name)


def check(where):
    for name in CASES:
        folder = os.path.join(where, name)
        if not os.path.isdir(folder + "/merged"):
            print("%s: not merged" % name)
            continue
        want, peers = torch.load(folder + "/want.pt")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder + "/merged", dtype="auto", output_loading_info=True
        )
        got, bad, worst = model.state_dict(), [], 0.0
        for key, w in want.items():
            if key not in got:
                bad.append(key + " is missing")
            elif got[key].dtype != w.dtype or not torch.equal(got[key], w):
                n = int((got[key].float() != w.float()).sum()) if got[key].shape == w.shape else -1
                bad.append("%s differs in %d of %d" % (key, n, w.numel()))
            if key in got and key in peers and got[key].shape == peers[key].shape:
                d = (got[key].double() - peers[key].double()).abs().max()
                worst = max(worst, float(d / peers[key].double().abs().max()))
        bound = 1e-6 if next(iter(want.values())).dtype == F32 else 2e-2
        if info["missing_keys"] or info["unexpected_keys"]:
            bad.append("keys %s" % info)
        print(
            "%s: %s"
            % (
                name,
                "; ".join(bad[:3]) if bad else "ok" if worst <= bound else "PEFT's merge is %g away" % worst,
            )
        )


{"make": make, "check": check}[sys.argv[1]](sys.argv[2])

"""quant_make.py - what reshard --quantize made, against torch and the libraries that load it.
usage: quant_make.py RESHARD FOLDER"""

import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig
from transformers.quantizers.quantizers_utils import should_convert_module

reshard, top = sys.argv[1], sys.argv[2]
bf16 = torch.bfloat16


def run(*args):
    p = subprocess.run([reshard, *args], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(" ".join(args) + ": " + p.stderr.strip())


def tensors(folder):
    all = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            all.update(load_file(f"{folder}/{f}"))
    return all


def logits(folder, **more):
    model = AutoModelForCausalLM.from_pretrained(folder, **more).eval()
    with torch.no_grad():
        return model(torch.arange(1, 33)[None]).logits.float()


def same(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.contiguous().view(torch.uint8).tolist()
        == b.contiguous().view(torch.uint8).tolist()
    )


# ---- the rules of QUANT.md, in torch ----


def int8_g128(w):
    n, k = w.shape
    x = w.float().view(n, k // 128, 128)
    most = x.abs().amax(-1)
    scale = torch.where(most > 0, most / 127, 1.0).to(w.dtype)
    q = (
        (x / scale.float()[..., None])
        .round()
        .clamp(-128, 127)
        .to(torch.int32)
        .view(n, k)
    )
    u = (q + 128).view(n, k // 4, 4).to(torch.int64)
    words = (u << torch.tensor([0, 8, 16, 24])).sum(-1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return {
        ".weight_packed": words,
        ".weight_scale": scale,
        ".weight_shape": torch.tensor([n, k]),
    }


def fp8_b128(w):
    n, k = w.shape
    gn, gk = -(-n // 128), -(-k // 128)
    x = torch.zeros(gn * 128, gk * 128)
    x[:n, :k] = w.float()
    blocks = x.view(gn, 128, gk, 128)
    most = blocks.abs().amax((1, 3))
    scale = torch.where(most > 0, most / 448, 1.0)
    q = (blocks / scale[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {".weight": q.view(gn * 128, gk * 128)[:n, :k], ".weight_scale_inv": scale}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4(w):
    """w [..., K] as bytes [..., K / 2] and exponents [..., K / 32]."""
    x = w.float().unflatten(-1, (-1, 32))
    most = x.abs().amax(-1)
    e = torch.where(most > 0, torch.frexp(most)[1] - 3 + 127, 0).clamp(0, 254)
    y = (x / torch.exp2((e - 127).float())[..., None]).clamp(-6, 6)
    near = (y.abs()[..., None] - E2M1).abs()
    # ties go to the even code: of two nearest ones argmin takes the first
    code = near.argmin(-1)
    tie = (
        (code < 7)
        & (
            near.gather(-1, (code + 1).clamp(max=7)[..., None])[..., 0]
            == near.min(-1)[0]
        )
        & (code % 2 == 1)
    )
    code = (code + tie) | (y.signbit().long() << 3)
    code = code.flatten(-2)
    return (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8), e.to(torch.uint8)


def check_codes(kind, source, made):
    """Every matrix of a layer has the codes and scales of the rule, and nothing else changed."""
    want = {}
    for name, w in tensors(source).items():
        if (
            ".layers." in name
            and name.endswith(".weight")
            and w.dim() == 2
            and ".router." not in name
        ):
            x = name[: -len(".weight")]
            if kind == "mxfp4":
                packed, scale = mxfp4(w)
                want[x + ".weight_packed"], want[x + ".weight_scale"] = packed, scale
            else:
                want.update(
                    {
                        x + end: v
                        for end, v in (int8_g128 if kind == "int8-g128" else fp8_b128)(
                            w
                        ).items()
                    }
                )
        else:
            want[name] = w
    got = tensors(made)
    if set(got) != set(want):
        return f"tensors differ: {sorted(set(got) ^ set(want))[:4]}"
    wrong = [name for name in want if not same(got[name], want[name])]
    return f"{wrong[:4]} differ" if wrong else None


def check_gpt_oss(source, made):
    want = {}
    for name, w in tensors(source).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            packed, scale = mxfp4(w.transpose(1, 2))
            want[name + "_blocks"], want[name + "_scales"] = (
                packed.unflatten(-1, (-1, 16)),
                scale,
            )
        else:
            want[name] = w
    got = tensors(made)
    wrong = [
        name
        for name in sorted(set(want) | set(got))
        if name not in got or name not in want or not same(got[name], want[name])
    ]
    listed = json.load(open(made + "/config.json"))["quantization_config"]
    if not should_convert_module(
        "model.layers.0.mlp.experts", listed["modules_to_not_convert"]
    ):
        return "config.json says that experts are not quantised"
    return f"{wrong[:4]} differ" if wrong else None


def make_llama(folder):
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config, dtype=bf16).save_pretrained(folder)


def make_gpt_oss(folder):
    torch.manual_seed(6)
    config = GptOssConfig(
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=256,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=16,
    )
    AutoModelForCausalLM.from_config(config, dtype=bf16).save_pretrained(folder)


def report(what, wrong):
    print(f"{what}: {wrong or 'ok'}", flush=True)


def attempt(what, f, *args):
    try:
        report(what, f(*args))
    except Exception as e:  # a finding like any other: the others go on
        report(
            what,
            f"{type(e).__name__}: {str(e).splitlines()[0][:300] if str(e) else ''}",
        )


def check_loads(made, plain, **more):
    """The library computes from the codes what it computes from their values."""
    a, b = logits(made, **more), logits(plain, dtype=bf16)
    worst = (a - b).abs().max().item()
    return (
        None
        if worst <= 0.02 * b.abs().max().item()
        else f"logits differ by {worst} of {b.abs().max().item()}"
    )


llama, oss = top + "/llama", top + "/gpt-oss"
make_llama(llama)
make_gpt_oss(oss)
for kind in ("int8-g128", "fp8-b128", "mxfp4"):
    made, native, plain = f"{top}/{kind}", f"{top}/{kind}-native", f"{top}/{kind}-plain"
    run("--format", "hf", "--quantize", kind, llama, made)
    attempt(f"{kind}: codes", check_codes, kind, llama, made)
    run("--quantize", kind, "--tp", "2", llama, native)
    run("--format", "hf", native, native + "-hf")
    attempt(f"{kind}: tp 2 and back", check_codes, kind, llama, native + "-hf")
    run("--format", "hf", "--dequantize", "bf16", made, plain)
    more = {}
    if kind == "fp8-b128":
        from transformers import FineGrainedFP8Config

        more = {"quantization_config": FineGrainedFP8Config(dequantize=True)}
    attempt(f"{kind}: loads", lambda: check_loads(made, plain, dtype=bf16, **more))
    run("--format", "hf", "--requantize", plain, plain + "-back")
    attempt(f"{kind}: there and back", check_codes, kind, llama, plain + "-back")
    run("--tp", "4", "--dequantize", "bf16", made, plain + "-tp4")
    run("--tp", "4", plain, plain + "-then-tp4")
    p = subprocess.run(
        [reshard, "diff", plain + "-tp4", plain + "-then-tp4"],
        capture_output=True,
        text=True,
    )
    report(
        f"{kind}: dequantised with tp 4 as dequantised, then cut",
        None if p.returncode == 0 else p.stdout,
    )

run("--format", "hf", "--quantize", "mxfp4", oss, oss + "-mx")
attempt("gpt-oss: codes", check_gpt_oss, oss, oss + "-mx")
run("--format", "hf", "--dequantize", "bf16", oss + "-mx", oss + "-plain")
attempt("gpt-oss: loads", check_loads, oss + "-mx", oss + "-plain")

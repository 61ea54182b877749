"""quant_peers.py - values of quantised weights as their own libraries compute them, against reshard --dequantize,
and the bytes that --requantize gives back. usage: quant_peers.py RESHARD FOLDER"""

import json
import os
import subprocess
import sys

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import (
    FP8BlockDequantizer,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

reshard, top = sys.argv[1], sys.argv[2]
random = torch.Generator().manual_seed(11)
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}


def codes(*shape, dtype=torch.uint8, top=256):
    return torch.randint(0, top, shape, dtype=torch.int64, generator=random).to(dtype)


def words(*shape):
    x = torch.randint(0, 1 << 32, shape, dtype=torch.int64, generator=random)
    return torch.where(x >= 1 << 31, x - (1 << 32), x).to(torch.int32)


def scales(*shape, dtype=torch.float32):
    return (
        (torch.rand(shape, generator=random) + 0.5)
        * 2.0 ** torch.randint(-14, -4, shape, generator=random)
    ).to(dtype)


def fp8(n, k):
    return codes(n, k).view(torch.float8_e4m3fn)


# ---- sources: tensors, quantization_config, {weight: values} ----


def block(n, k, scale_dtype=torch.float32, config=FP8):
    def make(x):
        s = scales(-(-n // 128), -(-k // 128)).to(scale_dtype)
        if scale_dtype == torch.float8_e8m0fnu:
            s = (
                codes(-(-n // 128), -(-k // 128), top=30)
                .add(100)
                .view(torch.float8_e8m0fnu)
            )
        t = {x + ".weight": fp8(n, k), x + ".weight_scale_inv": s}
        if n % 128 == 0 and k % 128 == 0:
            value = Fp8Dequantize(None)._dequantize_one(
                t[x + ".weight"], s, torch.float32
            )
        else:
            value = FP8BlockDequantizer(dtype=torch.float32)._create_dequantized_weight(
                t[x + ".weight"], s
            )
        return t, config, {x + ".weight": value}

    return make


def compressed(format, n, k, scale, zero=None, more=None, activations=False, **args):
    """A module that the library's own compressor wrote or that has its tensors."""

    def make(x):
        weights = QuantizationArgs(**args)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=format)
        compressor = BaseCompressor.get_value_from_registry(format)
        state = {"weight_scale": scale(), **(more() if more else {})}
        if zero:
            state["weight_zero_point"] = zero()
        if format.endswith("fp4-pack-quantized"):
            state["weight_packed"] = codes(n, k // 2)
        elif format == "pack-quantized":
            from compressed_tensors.compressors.pack_quantized.helpers import (
                pack_to_int32,
            )

            half = 1 << (weights.num_bits - 1)
            q = (codes(n, k, dtype=torch.int32, top=2 * half) - half).to(torch.int8)
            state["weight_packed"] = pack_to_int32(q, weights.num_bits)
            state["weight_shape"] = torch.tensor([n, k])
            if zero:
                state["weight_zero_point"] = pack_to_int32(
                    state["weight_zero_point"], weights.num_bits, 0
                ).contiguous()
        elif weights.type == "float":
            state["weight"] = fp8(n, k)
        else:
            state["weight"] = codes(n, k).view(torch.int8)
        done = compressor.decompress(dict(state), scheme)["weight"]
        config = {
            "quant_method": "compressed-tensors",
            "format": format,
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "format": format,
                    "weights": json.loads(weights.model_dump_json()),
                }
            },
            "ignore": ["lm_head"],
            "quantization_status": "compressed",
        }
        return (
            {f"{x}.{name}": v for name, v in state.items()},
            config,
            {x + ".weight": done},
        )

    return make


def gpt_oss(e, n, k):
    def make(x):
        name = "model.layers.0.mlp.experts.gate_up_proj"
        t = {
            name + "_blocks": codes(e, n, k // 32, 16),
            name + "_scales": codes(e, n, k // 32, top=40).add(100),
        }
        value = convert_moe_packed_tensors(
            t[name + "_blocks"], t[name + "_scales"], dtype=torch.float32
        )
        return t, {"quant_method": "mxfp4"}, {name: value}

    return make


def unpack(word, bits, dim, n):
    """n codes, dense, low bits first, along dim of words: one bit after another."""
    w = word.to(torch.int64).movedim(dim, -1) & 0xFFFFFFFF
    stream = (w[..., None] >> torch.arange(32)) & 1
    stream = stream.flatten(-2)[..., : n * bits].unflatten(-1, (n, bits))
    return (stream << torch.arange(bits)).sum(-1).movedim(-1, dim)


def gptq(bits, k, n, group, v2=False, order=False):
    def make(x):
        groups = k // group
        t = {
            x + ".qweight": words(k * bits // 32, n),
            x + ".qzeros": words(groups, n * bits // 32),
            x + ".scales": scales(groups, n, dtype=torch.float16),
            x
            + ".g_idx": (
                torch.randperm(k, generator=random) if order else torch.arange(k)
            ).to(torch.int32)
            // group,
        }
        zero = t[x + ".qzeros"]
        if not v2 and bits != 3:  # 1 is added to a whole word, with carries
            zero = zero + sum(1 << b for b in range(0, 32, bits))
        zero = unpack(zero, bits, 1, n)
        if not v2 and bits == 3:
            zero = (zero + 1) & 7
        g = t[x + ".g_idx"].long()
        value = (unpack(t[x + ".qweight"], bits, 0, k) - zero[g]).float() * t[
            x + ".scales"
        ].float()[g]
        config = {
            "quant_method": "gptq",
            "bits": bits,
            "group_size": group,
            "desc_act": order,
            "sym": False,
        }
        config["checkpoint_format"] = "gptq_v2" if v2 else "gptq"
        return t, config, {x + ".weight": value.T}

    return make


def awq(k, n, group):
    def make(x):
        t = {x + ".qweight": words(k, n // 8), x + ".qzeros": words(k // group, n // 8)}
        t[x + ".scales"] = scales(k // group, n, dtype=torch.float16)
        q, s, z = AutoAWQConverter(4, group, True, "gemm")._convert_gemm_module(
            *[t[x + e] for e in (".qweight", ".scales", ".qzeros")]
        )
        value = (
            q.float() - z.float().repeat_interleave(group, 1)
        ) * s.float().repeat_interleave(group, 1)
        config = {
            "quant_method": "awq",
            "bits": 4,
            "group_size": group,
            "version": "gemm",
            "zero_point": True,
        }
        return t, config, {x + ".weight": value}

    return make


bf16 = torch.bfloat16
INT4 = {"num_bits": 4, "type": "int", "symmetric": True}
CASES = {
    "fp8 128x128": block(256, 384),
    "fp8 short blocks": block(192, 320),
    "fp8 e8m0 scales": block(256, 128, torch.float8_e8m0fnu),
    "fp8 bf16 scales": block(128, 2880, bf16),
    "fp8 channel": compressed(
        "float-quantized",
        96,
        200,
        lambda: scales(96, 1),
        num_bits=8,
        type="float",
        strategy="channel",
    ),
    "fp8 tensor": compressed(
        "float-quantized",
        96,
        200,
        lambda: scales(1),
        num_bits=8,
        type="float",
        strategy="tensor",
    ),
    "mxfp8": compressed(
        "mxfp8-quantized",
        64,
        320,
        lambda: codes(64, 10, top=30).add(100),
        num_bits=8,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype="torch.uint8",
    ),
    "int8 channel": compressed(
        "int-quantized",
        96,
        200,
        lambda: scales(96, 1),
        num_bits=8,
        type="int",
        strategy="channel",
    ),
    "int8 channel bf16": compressed(
        "int-quantized",
        96,
        200,
        lambda: scales(96, 1, dtype=bf16),
        num_bits=8,
        type="int",
        strategy="channel",
    ),
    "int4 g32": compressed(
        "pack-quantized",
        64,
        256,
        lambda: scales(64, 8),
        strategy="group",
        group_size=32,
        **INT4,
    ),
    "int4 g128 bf16": compressed(
        "pack-quantized",
        72,
        384,
        lambda: scales(72, 3, dtype=bf16),
        strategy="group",
        group_size=128,
        **INT4,
    ),
    "int4 channel": compressed(
        "pack-quantized", 40, 100, lambda: scales(40, 1), strategy="channel", **INT4
    ),
    "int4 asymmetric": compressed(
        "pack-quantized",
        48,
        256,
        lambda: scales(48, 4),
        zero=lambda: (codes(48, 4, dtype=torch.int32, top=16) - 8).to(torch.int8),
        strategy="group",
        group_size=64,
        num_bits=4,
        type="int",
        symmetric=False,
    ),
    "int8 g128": compressed(
        "pack-quantized",
        56,
        256,
        lambda: scales(56, 2),
        strategy="group",
        group_size=128,
        num_bits=8,
        type="int",
        symmetric=True,
    ),
    "int3 g32": compressed(
        "pack-quantized",
        40,
        192,
        lambda: scales(40, 6),
        strategy="group",
        group_size=32,
        num_bits=3,
        type="int",
        symmetric=True,
    ),
    "nvfp4": compressed(
        "nvfp4-pack-quantized",
        48,
        320,
        lambda: codes(48, 20, top=119).add(8).view(torch.float8_e4m3fn),
        more=lambda: {"weight_global_scale": torch.tensor([731.25])},
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        scale_dtype="torch.float8_e4m3fn",
    ),
    "mxfp4": compressed(
        "mxfp4-pack-quantized",
        48,
        320,
        lambda: codes(48, 10, top=30).add(100),
        num_bits=4,
        type="float",
        strategy="group",
        group_size=32,
        scale_dtype="torch.uint8",
    ),
    "mxfp4 of gpt-oss": gpt_oss(3, 192, 320),
    "gptq v1": gptq(4, 256, 96, 128),
    "gptq v2 act-order": gptq(4, 256, 96, 64, True, True),
    "gptq 8 bits": gptq(8, 256, 64, 128),
    "gptq 3 bits": gptq(3, 256, 64, 64, True),
    "gptq 2 bits": gptq(2, 192, 64, 32, False, True),
    "awq": awq(256, 96, 64),
}


# ---- checks ----


def run(*args):
    p = subprocess.run([reshard, *args], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(" ".join(args) + ": " + p.stderr.strip())


def same(a, b):
    """Equal values, -0 apart from 0; NaN where the other has one."""
    a, b = a.float(), b.float()
    nan = a.isnan() & b.isnan()
    return a.shape == b.shape and bool(
        ((a.view(torch.int32) == b.view(torch.int32)) | nan).all()
    )


def rounded_like(ours, theirs):
    """The library's values in the dtype that it gives them: ours are exact products rounded to fp32."""
    return same(ours.to(theirs.dtype), theirs)


def check(name, make):
    folder = os.path.join(top, name.replace(" ", "_"))
    tensors, config, values = make("model.layers.0.mlp.up_proj")
    tensors["model.norm.weight"] = torch.arange(64).to(bf16)
    os.makedirs(folder)
    save_file(
        {k: v.contiguous() for k, v in tensors.items()}, folder + "/model.safetensors"
    )
    with open(folder + "/config.json", "w") as f:
        json.dump(
            {
                "model_type": "unknown",
                "torch_dtype": "bfloat16",
                "rms_norm_eps": 1e-05,
                "quantization_config": config,
            },
            f,
        )

    for to, dtype in (("fp32", torch.float32), ("bf16", bf16)):
        out, back = f"{folder}-{to}", f"{folder}-{to}-back"
        run("--format", "hf", "--dequantize", to, folder, out)
        got = load_file(out + "/model.safetensors")
        for key, want in values.items():
            want = want.contiguous()
            if got[key].dtype != dtype:
                return f"{to}: {key} is {got[key].dtype}"
            good = (
                rounded_like(got[key], want)
                if dtype == torch.float32
                else same(got[key], want.to(bf16)) or want.dtype == torch.float16
            )
            if not good:
                wrong = (got[key].float() != want.float()).nonzero()
                return f"{to}: {key}: {len(wrong)} values differ, first {wrong[:1].tolist()}"
        if set(got) != set(values) | {"model.norm.weight"}:
            return f"{to}: tensors are {sorted(got)}"
        if name == "gptq 8 bits" and dtype == bf16:
            # codes from -255 to 255 have more bits than bf16: several have one value
            refused = subprocess.run(
                [reshard, "--requantize", out, back], capture_output=True, text=True
            )
            if "several codes have it" not in refused.stderr:
                return f"{to} back: is not refused"
            continue
        run("--format", "hf", "--requantize", out, back)
        again = load_file(back + "/model.safetensors")
        if set(again) != set(tensors):
            return f"{to} back: tensors are {sorted(again)}"
        for key, want in tensors.items():
            a, b = again[key], want.contiguous()
            if (
                a.dtype != b.dtype
                or a.shape != b.shape
                or a.view(torch.uint8).tolist() != b.view(torch.uint8).tolist()
            ):
                return f"{to} back: {key} differs"
        if open(folder + "/config.json").read() != open(back + "/config.json").read():
            return f"{to} back: config.json differs"
    return None


for name, make in CASES.items():
    try:
        wrong = check(name, make)
    except Exception as e:  # a case that cannot run is a finding, the others go on
        wrong = f"{type(e).__name__}: {e}"
    print(f"{name}: {wrong or 'ok'}")

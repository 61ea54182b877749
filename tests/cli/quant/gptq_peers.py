"""gptq_peers.py - weights that GPTQModel and AutoAWQ pack, and the values that they compute with, against
reshard --dequantize; and the bytes that --requantize gives back. usage: gptq_peers.py RESHARD FOLDER"""

import importlib.util
import json
import os
import subprocess
import sys
import types

import torch
from safetensors.torch import load_file, save_file

reshard, top = sys.argv[1], sys.argv[2]
os.environ["TMPDIR"] = top  # GPTQModel leaves folders there
random = torch.Generator().manual_seed(23)
NAME = "model.layers.0.mlp.up_proj"


def grid(bits, n, k, group, order, sym):
    """Scales, zero points and groups of columns that nobody else has; the numbers of all codes on them."""
    scales = ((torch.rand(n, k // group, generator=random) + 0.5) / 64).half().float()
    zeros = torch.randint(0, 1 << bits, (n, k // group), generator=random).float()
    zeros[0, 0] = 0
    if sym:
        zeros.fill_(1 << (bits - 1))
    g_idx = torch.randperm(k, generator=random) if order else torch.arange(k)
    g_idx = (g_idx // group).to(torch.int32)
    codes = torch.randint(0, 1 << bits, (n, k), generator=random).float()
    g = g_idx.long()
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = (codes - zeros[:, g]) * scales[:, g]
    return linear, scales, zeros, g_idx


def gptq(bits, n, k, group, v1=True, order=False, sym=False, says=None):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    linear, scales, zeros, g_idx = grid(bits, n, k, group, order, sym)
    m = TorchLinear(bits=bits, group_size=group, sym=sym, desc_act=order, in_features=k, out_features=n)
    m.pack_original(linear, scales, zeros, g_idx)
    m.post_init()
    m.scales = m.scales.float()  # products in fp32, as fused kernels have them
    want = m.dequantize_weight().T.float()
    m.scales = m.scales.half()
    if v1:
        convert_gptq_v2_to_v1_format_module(m, QuantizeConfig(bits=bits, group_size=group))
    tensors = {w: getattr(m, w).clone() for w in ("qweight", "qzeros", "scales", "g_idx")}
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": sym}
    config["checkpoint_format"] = says or ("gptq" if v1 else "gptq_v2")
    return tensors, config, want


def light(name, folder):
    """A package whose __init__ does not run: AutoAWQ's need a transformers of their time."""
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]


def awq(n, k, group):
    if "awq" not in sys.modules:
        folder = importlib.util.find_spec("awq").submodule_search_locations[0]
        light("awq", folder)
        light("awq.modules", folder + "/modules")
        light("awq.modules.linear", folder + "/modules/linear")
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    linear, scales, zeros, _ = grid(4, n, k, group, False, False)
    m = WQLinear_GEMM.from_linear(linear, 4, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    tensors = {w: getattr(m, w).clone().cpu() for w in ("qweight", "qzeros", "scales")}
    want = dequantize_gemm(m.qweight, m.qzeros, m.scales.float(), 4, group).T
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return tensors, config, want


CASES = {
    "gptq 4 bits v1": lambda: gptq(4, 96, 256, 64),
    "gptq 4 bits v1 act-order": lambda: gptq(4, 64, 384, 128, order=True),
    "gptq 4 bits v2": lambda: gptq(4, 96, 256, 32, v1=False, order=True),
    "gptq 4 bits v2 called v1": lambda: gptq(4, 64, 128, 64, v1=False, sym=True, says="gptq"),
    "gptq 4 bits v1 called v2": lambda: gptq(4, 64, 128, 64, sym=True, says="gptq_v2"),
    "gptq 2 bits v1": lambda: gptq(2, 64, 192, 64),
    "gptq 3 bits v1": lambda: gptq(3, 64, 256, 64),
    "gptq 3 bits v2": lambda: gptq(3, 96, 192, 32, v1=False, order=True),
    "gptq 8 bits v1": lambda: gptq(8, 40, 256, 128),
    "gptq 8 bits v2": lambda: gptq(8, 72, 256, 256, v1=False),
    "awq": lambda: awq(96, 256, 64),
    "awq one group": lambda: awq(64, 128, 128),
}


def run(*args):
    p = subprocess.run([reshard, *args], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(" ".join(args) + ": " + p.stderr.strip())


def check(name, make):
    tensors, config, want = make()
    folder = os.path.join(top, name.replace(" ", "_"))
    os.makedirs(folder)
    save_file({f"{NAME}.{k}": v.contiguous() for k, v in tensors.items()}, folder + "/model.safetensors")
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "unknown", "torch_dtype": "float16", "quantization_config": config}, f)

    run("--format", "hf", "--dequantize", "fp32", folder, folder + "-fp32")
    got = load_file(folder + "-fp32/model.safetensors")[NAME + ".weight"]
    if got.shape != want.shape or got.dtype != torch.float32:
        return f"is {got.dtype} {list(got.shape)}, not {list(want.shape)}"
    wrong = (got != want).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        return f"{len(wrong)} values differ, first {at}: {got[at]} for {want[at]}"
    run("--format", "hf", "--requantize", folder + "-fp32", folder + "-back")
    again = load_file(folder + "-back/model.safetensors")
    for key, value in tensors.items():
        if not torch.equal(again[f"{NAME}.{key}"], value):
            return f"back: {key} differs"
    return None


for name, make in CASES.items():
    try:
        wrong = check(name, make)
    except Exception as e:  # a case that cannot run is a finding, the others go on
        wrong = f"{type(e).__name__}: {e}"
    print(f"{name}: {wrong or 'ok'}")

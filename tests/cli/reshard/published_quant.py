"""Quantised published configurations: the tensors of a row of published_models.py, with those that are stored
in place of their matrices, and the quantization_config of the published file. Widths are scaled down with the
blocks, so that tp cuts inside blocks where it does in the published model: 768 rows in blocks of 128 at tp 4
are 96 rows in blocks of 16."""

import re
import struct
import sys
from os import path

sys.path.insert(0, path.join(path.dirname(path.abspath(__file__)), "../lib"))
import quant_make as q
from published_models import Tensors, configs

MATRIX = re.compile(r"(self_attn|linear_attn|attn|mlp|block_sparse_moe|feed_forward|ffn)\..*\.weight$")
KEPT = re.compile(
    r"norm|\.gate\.weight|router|conv1d|in_proj_[ab]\.|indexer|compressor|shared_expert_gate|vision|visual"
)
FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
INT4 = q.groups_of(num_bits=4, type="int", group_size=32, strategy="group")
WIDE = {"hidden_size": 64, "intermediate_size": 288, "moe_intermediate_size": 96}


def experts_alone(maker):
    """Matrices of experts are stored so, all others as they are."""
    return lambda m, n, k, g: maker(m, n, k, g) if ".experts." in m else None


def fused_fp8(name, e, n, k, g):
    rows, columns = q.up(n, g), q.up(k, g)
    return [(name, "F8_E4M3", [e, n, k]), (name + "_scale_inv", "F32", [e, rows, columns])]


def mxfp4(name, e, k, n, _):
    """gpt-oss: the matrices lie [K, N] in bf16, [N, K] in blocks."""
    return [(name + "_blocks", "U8", [e, n, k // 32, 16]), (name + "_scales", "U8", [e, n, k // 32])]


def gptq(bits, order=False, zeros=None):
    """order: columns of a group are apart. zeros: a word of zero points for all of them."""

    def make(m, n, k, g):
        groups = [(5 * i % k if order else i) // g for i in range(k)]
        given = {".g_idx": struct.pack("<%di" % k, *groups)}
        for name, dtype, shape in q.gptq(bits)(m, n, k, g):
            if zeros and name.endswith(".qzeros"):
                given[".qzeros"] = struct.pack("<I", zeros) * (shape[0] * shape[1])
            yield name, dtype, shape, given.get(name[len(m) :])

    return make


# name: (row it is made of, other sizes, maker of a matrix, of fused experts, group, quantization_config)
ROWS = {
    "deepseek-v3-fp8": ("deepseek-v3", WIDE, q.fp8_block, None, 16, FP8),
    "deepseek-v4-fp8": ("deepseek-v4", WIDE, q.fp8_v4, None, 16, FP8 | {"scale_fmt": "ue8m0"}),
    "deepseek-r1-nvfp4": (
        "deepseek-v3",
        WIDE,
        experts_alone(q.nvfp4_modelopt),
        None,
        16,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
    ),
    "deepseek-r1-awq": (
        "deepseek-v3",
        WIDE | {"qk_rope_head_dim": 8, "kv_lora_rank": 32, "q_lora_rank": 32},
        q.awq,
        None,
        32,
        AWQ,
    ),
    "kimi-k2-fp8": ("kimi-k2", WIDE, q.fp8_block, None, 16, FP8),
    "kimi-k2-thinking-int4": ("kimi-k2", WIDE, experts_alone(q.pack(4)), None, 32, INT4),
    "kimi-k2.5-int4": ("kimi-k2.5", WIDE, experts_alone(q.pack(4)), None, 32, INT4),
    "qwen3-30b-a3b-fp8": ("qwen3-30b-a3b", WIDE, q.fp8_block, None, 16, FP8),
    "qwen3-30b-a3b-gptq-int4": ("qwen3-30b-a3b", WIDE, gptq(4), None, 32, GPTQ),
    "qwen3-8b-fp8": ("qwen3-8b", WIDE, q.fp8_block, None, 16, FP8),
    "qwen3-8b-awq": ("qwen3-8b", WIDE, q.awq, None, 32, AWQ),
    "qwen3-next-80b-a3b-fp8": ("qwen3-next-80b-a3b", WIDE, q.fp8_block, None, 16, FP8),
    "qwen3.5-35b-a3b-fp8": ("qwen3.5-35b-a3b", WIDE, q.fp8_block, fused_fp8, 16, FP8),
    "qwen2.5-7b-gptq-int8": ("qwen2.5-7b", WIDE, gptq(8), None, 32, GPTQ | {"bits": 8}),
    "minimax-m2-fp8": ("minimax-m2", WIDE | {"intermediate_size": 192}, q.fp8_block, None, 16, FP8),
    "glm-4.5-air-fp8": (
        "glm-4.5-air",
        WIDE,
        q.fp8_channel,
        None,
        0,
        q.groups_of(num_bits=8, type="float", strategy="channel", symmetric=True),
    ),
    "gpt-oss-20b-mxfp4": ("gpt-oss-20b", WIDE, None, mxfp4, 32, {"quant_method": "mxfp4"}),
    "mixtral-8x7b-gptq": ("mixtral-8x7b", WIDE, gptq(4, order=True), None, 32, GPTQ | {"desc_act": True}),
    "mixtral-8x7b-awq": ("mixtral-8x7b", WIDE, q.awq, None, 32, AWQ),
    "llama-3.1-8b-gptq": ("llama-3.1-8b", WIDE, gptq(4), None, 32, GPTQ),
    "llama-3.1-8b-gptq-v2": (
        "llama-3.1-8b",
        WIDE,
        gptq(4),
        None,
        32,
        GPTQ | {"checkpoint_format": "gptq_v2"},
    ),
    "llama-3.1-8b-gptq-act-order": (
        "llama-3.1-8b",
        WIDE,
        gptq(4, order=True),
        None,
        32,
        GPTQ | {"desc_act": True, "sym": False},
    ),
    "llama-3.1-8b-gptq-mislabelled": (
        "llama-3.1-8b",
        WIDE,
        gptq(4, zeros=0x88888888),
        None,
        32,
        GPTQ | {"checkpoint_format": "gptq"},
    ),
    "llama-3.1-8b-awq": ("llama-3.1-8b", WIDE, q.awq, None, 32, AWQ),
    "llama-3.1-8b-fp8-dynamic": (
        "llama-3.1-8b",
        WIDE,
        q.fp8_channel,
        None,
        0,
        q.groups_of(num_bits=8, type="float", strategy="channel"),
    ),
    "llama-3.1-8b-fp8-static": (
        "llama-3.1-8b",
        WIDE,
        q.fp8_tensor,
        None,
        0,
        {"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
    "llama-3.1-8b-w8a8": (
        "llama-3.1-8b",
        WIDE,
        q.int8,
        None,
        0,
        q.groups_of(num_bits=8, type="int", strategy="channel", symmetric=False),
    ),
    "llama-3.1-8b-w4a16": ("llama-3.1-8b", WIDE, q.pack(4, True), None, 32, INT4 | {"ignore": ["lm_head"]}),
    "llama-3.1-8b-nvfp4": (
        "llama-3.1-8b",
        WIDE,
        q.nvfp4,
        None,
        16,
        q.groups_of(num_bits=4, type="float", group_size=16, strategy="tensor_group"),
    ),
    "llama-3.1-8b-mxfp4": (
        "llama-3.1-8b",
        WIDE,
        q.mxfp4,
        None,
        32,
        q.groups_of(num_bits=4, type="float", group_size=32, strategy="group"),
    ),
    "gemma-3-4b-w4a16": ("gemma-3-4b", WIDE, q.pack(4), None, 32, INT4),
    "mistral-small-3.1-24b-fp8": (
        "mistral-small-3.1-24b",
        WIDE,
        q.fp8_tensor,
        None,
        0,
        q.groups_of(num_bits=8, type="float", strategy="tensor"),
    ),
    "phi-3-mini-awq": ("phi-3-mini", WIDE, q.awq, None, 32, AWQ),
}


def stored(t, listed, maker, fused, group):
    """What the file holds in place of matrices, into t."""
    for name, shape, dtype in listed:
        is_matrix = len(shape) == 2 and MATRIX.search(name) and not KEPT.search(name)
        made = maker(name[: -len(".weight")], *shape, group) if maker and is_matrix else None
        if fused and len(shape) == 3 and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            made = fused(name, *shape, group)
        for n, d, s, *given in made or [(name, dtype, shape)]:
            t.list.append((n, s, d))
            if given and given[0]:
                t.bytes[n] = given[0]


def resized(keys, sizes):
    """The keys that the config has, with other sizes, also in text_config."""
    out = {k: sizes.get(k, v) for k, v in keys.items()}
    if "text_config" in keys:
        out["text_config"] = resized(keys["text_config"], sizes)
    return out


def add(name):
    base, sizes, maker, fused, group, quant = ROWS[name]
    keys, function = configs[base]
    keys = resized(keys, sizes)

    def listing(t):
        inner = Tensors(keys)
        function(inner)
        stored(t, inner.list, maker, fused, group)

    configs[name] = (keys | {"quantization_config": quant}, listing)


for row in ROWS:
    add(row)

#!/usr/bin/env python3
"""gguf_make.py - small models twice: as a Hugging Face folder and as a GGUF file, without any library.

usage: gguf_make.py OUT [FAMILY...]             OUT/FAMILY/hf/ and OUT/FAMILY/model.gguf; default: all families
       gguf_make.py --split N OUT [FAMILY...]   OUT/FAMILY/model-0000?-of-0000N.gguf
       gguf_make.py --wide OUT [FAMILY...]      OUT/FAMILY/model.gguf with a large vocabulary

Every number of a model is another one: 1.0 with a counter in its last bits. The rules by which the file differs
from the folder (llama.cpp's converter) are written here once more, element by element."""

import json
import os
import struct
import sys

L = "model.layers.%d."
B = "blk.%d."
LLAMA_LAYER = [
    (L + "input_layernorm.weight", B + "attn_norm.weight", "h", "same"),
    (L + "self_attn.q_proj.weight", B + "attn_q.weight", "qh", "same"),
    (L + "self_attn.k_proj.weight", B + "attn_k.weight", "kh", "same"),
    (L + "self_attn.v_proj.weight", B + "attn_v.weight", "kh", "same"),
    (L + "self_attn.o_proj.weight", B + "attn_output.weight", "hq", "same"),
    (L + "post_attention_layernorm.weight", B + "ffn_norm.weight", "h", "same"),
]
MLP = [
    (L + "mlp.gate_proj.weight", B + "ffn_gate.weight", "ih", "same"),
    (L + "mlp.up_proj.weight", B + "ffn_up.weight", "ih", "same"),
    (L + "mlp.down_proj.weight", B + "ffn_down.weight", "hi", "same"),
]
QKV_BIAS = [(L + f"self_attn.{x}_proj.bias", B + f"attn_{x}.bias", s, "same") for x, s in zip("qkv", "qkk")]
O_BIAS = (L + "self_attn.o_proj.bias", B + "attn_output.bias", "h", "same")
HEAD_NORMS = [(L + f"self_attn.{x}_norm.weight", B + f"attn_{x}_norm.weight", "d", "same") for x in "qk"]
ENDS = [
    ("model.embed_tokens.weight", "token_embd.weight", "vh", "same"),
    ("model.norm.weight", "output_norm.weight", "h", "same"),
    ("lm_head.weight", "output.weight", "vh", "same"),
]


def experts(names, router):
    """Rows of a layer's experts: names of gate, up and down with the expert's number in them."""
    file = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
    rows = [(L + n, B + f + ".weight", s, "expert") for n, f, s in zip(names, file, ["eh", "eh", "he"])]
    return [(L + router, B + "ffn_gate_inp.weight", "xh", "same")] + rows


def with_rope(rows):
    """llama.cpp's llama: the rows of q and k are permuted in each head."""
    forms = {"attn_q.": "rope_q", "attn_k.": "rope_k"}
    return [(h, f, s, next((v for k, v in forms.items() if k in f), form)) for h, f, s, form in rows]


def plus_one(rows):
    return [(h, f, s, "plus_one" if "norm" in f else form) for h, f, s, form in rows]


QWEN_EXPERTS = experts([f"mlp.experts.%d.{x}_proj.weight" for x in ("gate", "up", "down")], "mlp.gate.weight")
MIXTRAL_EXPERTS = experts(
    [f"block_sparse_moe.experts.%d.{x}.weight" for x in ("w1", "w3", "w2")], "block_sparse_moe.gate.weight"
)
SHARED = [
    (L + "mlp.shared_expert.gate_proj.weight", B + "ffn_gate_shexp.weight", "sh", "same"),
    (L + "mlp.shared_expert.up_proj.weight", B + "ffn_up_shexp.weight", "sh", "same"),
    (L + "mlp.shared_expert.down_proj.weight", B + "ffn_down_shexp.weight", "hs", "same"),
    (L + "mlp.shared_expert_gate.weight", B + "ffn_gate_inp_shexp.weight", "1h", "same"),
]
GEMMA = plus_one(
    [
        (L + "input_layernorm.weight", B + "attn_norm.weight", "h", "same"),
        (L + "post_attention_layernorm.weight", B + "post_attention_norm.weight", "h", "same"),
        (L + "pre_feedforward_layernorm.weight", B + "ffn_norm.weight", "h", "same"),
        (L + "post_feedforward_layernorm.weight", B + "post_ffw_norm.weight", "h", "same"),
    ]
    + LLAMA_LAYER[1:5]
    + MLP
    + HEAD_NORMS
)
GPT_OSS = (
    LLAMA_LAYER[:5]
    + QKV_BIAS
    + [
        O_BIAS,
        (L + "post_attention_layernorm.weight", B + "post_attention_norm.weight", "h", "same"),
        (L + "self_attn.sinks", B + "attn_sinks.weight", "n", "same"),
        (L + "mlp.router.weight", B + "ffn_gate_inp.weight", "xh", "same"),
        (L + "mlp.router.bias", B + "ffn_gate_inp.bias", "x", "same"),
        (
            L + "mlp.experts.gate_up_proj",
            (B + "ffn_gate_exps.weight", B + "ffn_up_exps.weight"),
            "xhE",
            "columns",
        ),
        (
            L + "mlp.experts.gate_up_proj_bias",
            (B + "ffn_gate_exps.bias", B + "ffn_up_exps.bias"),
            "xE",
            "columns",
        ),
        (L + "mlp.experts.down_proj", B + "ffn_down_exps.weight", "xeh", "turn"),
        (L + "mlp.experts.down_proj_bias", B + "ffn_down_exps.bias", "xh", "same"),
    ]
)
DEEPSEEK = (
    [LLAMA_LAYER[0]]
    + [
        (L + "self_attn.q_a_proj.weight", B + "attn_q_a.weight", "rh", "same"),
        (L + "self_attn.q_a_layernorm.weight", B + "attn_q_a_norm.weight", "r", "same"),
        (L + "self_attn.q_b_proj.weight", B + "attn_q_b.weight", "Qr", "same"),
        (L + "self_attn.kv_a_proj_with_mqa.weight", B + "attn_kv_a_mqa.weight", "Ah", "same"),
        (L + "self_attn.kv_a_layernorm.weight", B + "attn_kv_a_norm.weight", "R", "same"),
        (L + "self_attn.kv_b_proj.weight", (B + "attn_k_b.weight", B + "attn_v_b.weight"), "KR", "heads"),
        (L + "self_attn.o_proj.weight", B + "attn_output.weight", "hO", "same"),
        (L + "post_attention_layernorm.weight", B + "ffn_norm.weight", "h", "same"),
        (L + "mlp.gate.e_score_correction_bias", B + "exp_probs_b.bias", "x", "same32"),
    ]
    + QWEN_EXPERTS
    + [(h.replace("expert.", "experts."), f, s.replace("s", "e"), form) for h, f, s, form in SHARED[:3]]
)
H = "transformer.h.%d."
GPT2 = [
    (H + h + end, B + f + end, s if end == ".weight" else s[-1], form if end == ".weight" else "same")
    for h, f, s, form in (
        ("ln_1", "attn_norm", "h", "same"),
        ("attn.c_attn", "attn_qkv", "hW", "turn"),
        ("attn.c_proj", "attn_output", "hh", "turn"),
        ("ln_2", "ffn_norm", "h", "same"),
        ("mlp.c_fc", "ffn_up", "hi", "turn"),
        ("mlp.c_proj", "ffn_down", "ih", "turn"),
    )
    for end in (".weight", ".bias")
]
GPT2_ENDS = [
    ("transformer.wte.weight", "token_embd.weight", "vh", "same"),
    ("transformer.wpe.weight", "position_embd.weight", "ph", "same32"),
    ("transformer.ln_f.weight", "output_norm.weight", "h", "same"),
    ("transformer.ln_f.bias", "output_norm.bias", "h", "same"),
]
N = "gpt_neox.layers.%d."
NEOX = [
    (N + h + end, B + f + end, s if end == ".weight" else s[0], form)
    for h, f, s, form in (
        ("input_layernorm", "attn_norm", "h", "same"),
        ("post_attention_layernorm", "ffn_norm", "h", "same"),
        ("attention.query_key_value", "attn_qkv", "Wh", "qkv"),
        ("attention.dense", "attn_output", "hh", "same"),
        ("mlp.dense_h_to_4h", "ffn_up", "ih", "same"),
        ("mlp.dense_4h_to_h", "ffn_down", "hi", "same"),
    )
    for end in (".weight", ".bias")
]
NEOX_ENDS = [
    ("gpt_neox.embed_in.weight", "token_embd.weight", "vh", "same"),
    ("gpt_neox.final_layer_norm.weight", "output_norm.weight", "h", "same"),
    ("gpt_neox.final_layer_norm.bias", "output_norm.bias", "h", "same"),
    ("embed_out.weight", "output.weight", "vh", "same"),
]

# family: (general.architecture, model_type, rows of a layer, other rows, dtype)
FAMILIES = {
    "llama": ("llama", "llama", with_rope(LLAMA_LAYER + MLP), ENDS, "bf16"),
    "llama-f32": ("llama", "llama", with_rope(LLAMA_LAYER + MLP + QKV_BIAS + [O_BIAS]), ENDS[:2], "f32"),
    "llama-f16": ("llama", "llama", with_rope(LLAMA_LAYER + MLP), ENDS, "f16"),
    "mixtral": ("llama", "mixtral", with_rope(LLAMA_LAYER) + MIXTRAL_EXPERTS, ENDS, "bf16"),
    "qwen2": ("qwen2", "qwen2", LLAMA_LAYER + MLP + QKV_BIAS, ENDS[:2], "bf16"),
    "qwen3": ("qwen3", "qwen3", LLAMA_LAYER + MLP + HEAD_NORMS, ENDS, "bf16"),
    "qwen2moe": ("qwen2moe", "qwen2_moe", LLAMA_LAYER + QKV_BIAS + QWEN_EXPERTS + SHARED, ENDS, "bf16"),
    "qwen3moe": ("qwen3moe", "qwen3_moe", LLAMA_LAYER + HEAD_NORMS + QWEN_EXPERTS, ENDS, "bf16"),
    "gemma2": ("gemma2", "gemma2", GEMMA[:-2], plus_one(ENDS[:2]), "bf16"),
    "gemma3": ("gemma3", "gemma3_text", GEMMA, plus_one(ENDS[:2]), "bf16"),
    "gpt2": ("gpt2", "gpt2", GPT2, GPT2_ENDS, "f32"),
    "gptneox": ("gptneox", "gpt_neox", NEOX, NEOX_ENDS, "bf16"),
    "gpt-oss": ("gpt-oss", "gpt_oss", GPT_OSS, ENDS, "bf16"),
    "deepseek": ("deepseek2", "deepseek_v3", DEEPSEEK, ENDS, "bf16"),
}
LAYERS = 2
# h hidden, q k rows of q and of k, i e s E rows of MLP, expert, shared expert, gate and up; x experts; n heads
SIZE = {
    "h": 16,
    "q": 32,
    "k": 16,
    "d": 8,
    "i": 24,
    "e": 6,
    "E": 12,
    "s": 10,
    "v": 20,
    "x": 3,
    "n": 4,
    "1": 1,
    "p": 12,
    "W": 48,
    "r": 8,
    "R": 12,
    "Q": 40,
    "A": 16,
    "K": 44,
    "O": 20,
}
HEADS, KV_HEADS, NOPE, VALUE, ROPE = 4, 2, 6, 5, 4
F32, F16, BF16 = 0, 1, 30
WIDTH = {"F32": 4, "F16": 2, "BF16": 2}


class Maker:
    """The tensors of one model; a number is (bits of fp32, bits in the folder)."""

    def __init__(self, family):
        self.arch, self.model_type, self.layer, self.ends, self.dtype = FAMILIES[family]
        self.count = 0
        self.folder, self.file = [], []

    def number(self, form):
        self.count += 1
        if form == "plus_one":  # 1 + w is exact
            w = (self.count % 255 - 127) / 256
            bits = struct.unpack("<I", struct.pack("<f", w))[0]
            return bits, bits >> 16
        if form == "same32" or self.dtype == "f32":
            bits = 0x3F800000 + self.count * 0x111
            return bits, bits
        if self.dtype == "f16":
            half = 0x0400 + self.count % 0x7000
            bits = struct.unpack("<I", struct.pack("<f", struct.unpack("<e", struct.pack("<H", half))[0]))[0]
            return bits, half
        count = self.count % 0x7F80
        return count << 16, count

    def add(self, row, layer):
        hf, file, letters, form = row
        shape = [SIZE[c] for c in letters]
        if form == "expert":
            names = [hf % (layer, x) for x in range(SIZE["x"])]
            parts = [self.fill(n, shape, form) for n in names]
            self.put(file % layer, [len(names)] + shape, sum(parts, []), form)
            return
        name = hf % layer if "%" in hf else hf
        data = self.fill(name, shape, form)
        files = [f % layer if "%" in f else f for f in ([file] if isinstance(file, str) else file)]
        for f, (s, d) in zip(files, turned(form, shape, data)):
            self.put(f, s, d, form)

    def fill(self, name, shape, form):
        n = 1
        for s in shape:
            n *= s
        data = [self.number(form) for _ in range(n)]
        # of an fp16 model vectors are fp32 in the folder too: only the file's bits are known
        wide = form == "same32" or self.dtype == "f32" or (self.dtype == "f16" and len(shape) == 1)
        kind = "F32" if wide else self.dtype.upper()
        self.folder.append((name, kind, shape, [d[0] if wide else d[1] for d in data]))
        return data

    def put(self, name, shape, data, form):
        """Norms, vectors, routers and positions are fp32 in the file."""
        wide = len(shape) == 1 or self.dtype == "f32" or form == "same32" or "norm" in name
        wide = wide or "ffn_gate_inp" in name or name.endswith(".bias")
        if form == "plus_one":
            one = [struct.unpack("<f", struct.pack("<I", d[0]))[0] + 1 for d in data]
            values = struct.pack(f"<{len(one)}f", *one)
        elif wide:
            values = struct.pack(f"<{len(data)}I", *[d[0] for d in data])
        else:
            values = struct.pack(f"<{len(data)}H", *[d[1] for d in data])
        kind = F32 if wide else BF16 if self.dtype == "bf16" else F16
        self.file.append((name, shape, kind, values))


def turned(form, shape, data):
    """The shapes and numbers of the tensors of the file that hold a tensor of the folder."""
    rows, row = shape[0], len(data) // shape[0]
    take = lambda order: [x for r in order for x in data[r * row : (r + 1) * row]]
    if form in ("rope_q", "rope_k"):
        d = rows // (HEADS if form == "rope_q" else KV_HEADS)
        return [(shape, take([r // d * d + r % d % 2 * (d // 2) + r % d // 2 for r in range(rows)]))]
    if form == "qkv":
        d = rows // HEADS // 3
        return [
            (shape, take([(h * 3 + j) * d + i for j in range(3) for h in range(HEADS) for i in range(d)]))
        ]
    if form == "turn":
        a, b = shape[-2:]
        n = len(data) // (a * b)
        at = lambda e, i, j: data[(e * a + i) * b + j]
        return [(shape[:-2] + [b, a], [at(e, i, j) for e in range(n) for j in range(b) for i in range(a)])]
    if form == "columns":
        halves = [(shape[:-1] + [shape[-1] // 2], data[k::2]) for k in range(2)]
        return [turned("turn", s, d)[0] for s, d in halves] if len(shape) == 3 else halves
    if form == "heads":
        each = NOPE + VALUE
        keys = [data[(h * each + i) * row + c] for h in range(HEADS) for c in range(row) for i in range(NOPE)]
        values = take([h * each + NOPE + i for h in range(HEADS) for i in range(VALUE)])
        return [([HEADS, row, NOPE], keys), ([HEADS, VALUE, row], values)]
    return [(shape, data)]


def write_folder(m, path, config):
    os.makedirs(path)
    header, at = {}, 0
    for name, kind, shape, data in m.folder:
        n = len(data) * WIDTH[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, kind, shape, data in m.folder:
            f.write(struct.pack(f"<{len(data)}{'I' if kind == 'F32' else 'H'}", *data))
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    """Type and bytes of a value of the metadata."""
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, list):
        one = value(v[0])
        return struct.pack("<I", 9) + one[:4] + struct.pack("<Q", len(v)) + b"".join(value(x)[4:] for x in v)
    return struct.pack("<I", 8) + text(v)


def gguf_bytes(meta, tensors, align=32, version=3):
    """A GGUF file of (name, shape, type, bytes) and a dict of metadata."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(meta))
    out += b"".join(text(k) + value(v) for k, v in meta.items())
    at = 0
    for name, shape, kind, data in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += struct.pack("<IQ", kind, at)
        at += -(-len(data) // align) * align
    out += b"\0" * (-len(out) % align)
    return out + b"".join(t[3] + b"\0" * (-len(t[3]) % align) for t in tensors)


def metadata(m):
    """The settings of a model, as the converter writes them."""
    a = m.arch + "."
    wide = "e" if m.model_type in ("mixtral", "gpt_oss") else "i"
    meta = {
        "general.architecture": m.arch,
        a + "block_count": LAYERS,
        a + "context_length": SIZE["p"],
        a + "embedding_length": SIZE["h"],
        a + "feed_forward_length": SIZE[wide],
        a + "attention.head_count": HEADS,
        a + "attention.layer_norm_rms_epsilon": 1e-6,
    }
    if m.arch in ("gpt2", "gptneox"):
        meta[a + "attention.layer_norm_epsilon"] = 1e-5
        meta.update({a + "rope.dimension_count": 2} if m.arch == "gptneox" else {})
        return meta
    meta.update(
        {
            a + "attention.head_count_kv": KV_HEADS,
            a + "attention.key_length": SIZE["d"],
            a + "attention.value_length": SIZE["d"],
            a + "rope.freq_base": 10000.0,
        }
    )
    if any(r[3] == "expert" or "experts" in r[0] for r in m.layer):
        meta.update(
            {
                a + "expert_count": SIZE["x"],
                a + "expert_used_count": 2,
                a + "expert_feed_forward_length": SIZE["e"],
            }
        )
    if m.arch == "qwen2moe":
        meta[a + "expert_shared_feed_forward_length"] = SIZE["s"]
    if m.arch.startswith("gemma") or m.arch == "gpt-oss":
        meta[a + "attention.sliding_window"] = 16
    if m.arch == "deepseek2":
        meta.update(
            {
                a + "expert_gating_func": 2,
                a + "rope.dimension_count": ROPE,
                a + "attention.q_lora_rank": 8,
                a + "attention.kv_lora_rank": 12,
                a + "attention.key_length_mla": NOPE + ROPE,
                a + "attention.value_length_mla": VALUE,
                a + "attention.head_count_kv": 1,
                a + "leading_dense_block_count": 0,
                a + "expert_shared_count": 1,
            }
        )
    return meta


def make(family):
    m = Maker(family)
    for row in m.ends:
        m.add(row, 0)
    for layer in range(LAYERS):
        for row in m.layer:
            m.add(row, layer)
    return m


def write_file(m, path, n):
    """The file, or a set of n files whose first has the metadata, as llama-gguf-split writes it."""
    if n == 1:
        with open(os.path.join(path, "model.gguf"), "wb") as f:
            f.write(gguf_bytes(metadata(m), m.file))
        return
    each = -(-len(m.file) // n)
    for i in range(n):
        meta = {"split.no": i, "split.count": n, "split.tensors.count": len(m.file)}
        meta = {**metadata(m), **meta} if i == 0 else meta
        with open(os.path.join(path, f"model-{i + 1:05}-of-{n:05}.gguf"), "wb") as f:
            f.write(gguf_bytes(meta, m.file[i * each : (i + 1) * each]))


def main():
    args, n, folder = sys.argv[1:], 1, True
    if args[0] == "--split":
        n, folder, args = int(args[1]), False, args[2:]
    if args[0] == "--wide":  # data of some megabytes, in zeros
        SIZE["v"], folder, args = 100000, False, args[1:]
    for family in args[1:] or list(FAMILIES):
        m, path = make(family), os.path.join(args[0], family)
        if folder:
            write_folder(m, os.path.join(path, "hf"), {"model_type": m.model_type})
        os.makedirs(path, exist_ok=True)
        write_file(m, path, n)


if __name__ == "__main__":
    main()

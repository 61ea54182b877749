"""foreign_make.py CASE DIR [MiB] - a small model's full state, written as another framework would write it,
and once more as a DeepSpeed universal folder (DIR/universal), which holds every tensor whole: what reshard
reads of the two must be the same.

No framework is needed: the pickles name torch's classes, which are stand-ins here. Values are unique (a
function of name and index)."""
import json, os, pickle, struct, sys, types, zipfile
from collections import OrderedDict

# ---- stand-ins: only their names get into the files

def module(name):
    m = types.ModuleType(name)
    sys.modules[name] = m
    return m

torch, utils, dcp, fsys = (module("torch"), module("torch._utils"),
                           module("torch.distributed.checkpoint.metadata"),
                           module("torch.distributed.checkpoint.filesystem"))
module("torch.distributed"), module("torch.distributed.checkpoint")

def cls(m, name, base=object, **members):
    c = type(name, (base,), dict(members, __module__=m.__name__))
    setattr(m, name, c)
    return c

FloatStorage, BFloat16Storage = cls(torch, "FloatStorage"), cls(torch, "BFloat16Storage")
Size = cls(torch, "Size", tuple, __reduce__=lambda s: (Size, (tuple(s),)))
float32 = type("dtype", (), {"__reduce__": lambda s: "float32", "__module__": "torch"})()
torch.float32 = float32
def _rebuild_tensor_v2(*a): pass
_rebuild_tensor_v2.__module__ = "torch._utils"
utils._rebuild_tensor_v2 = _rebuild_tensor_v2
Metadata, TensorStorageMetadata, ChunkStorageMetadata, BytesStorageMetadata, TensorProperties, MetadataIndex = (
    cls(dcp, n) for n in "Metadata TensorStorageMetadata ChunkStorageMetadata BytesStorageMetadata TensorProperties MetadataIndex".split())
TensorProperties.__getstate__ = lambda s: s.state
_StorageInfo = cls(fsys, "_StorageInfo")
def obj(c, **members):
    o = c()
    o.__dict__.update(members)
    return o

class Storage:                          # one storage: bytes of fp32 values, or bf16 with width 2
    def __init__(self, data, width=4): self.data, self.width = data, width
class Tensor:                           # a view of a storage, in elements
    def __init__(self, storage, shape, offset=0, stride=None):
        self.storage, self.shape, self.offset = storage, tuple(shape), offset
        self.stride = tuple(stride) if stride else strides(shape)
    def __reduce__(self):
        return _rebuild_tensor_v2, (self.storage, self.offset, self.shape, self.stride, False, OrderedDict())

def strides(shape):
    out, n = [], 1
    for s in reversed(shape):
        out.insert(0, n)
        n *= s
    return tuple(out)

class Pickler(pickle.Pickler):
    def __init__(self, f, protocol):
        super().__init__(f, protocol)
        self.keys = OrderedDict()
    def persistent_id(self, o):
        if not isinstance(o, Storage): return None
        key, _ = self.keys.setdefault(id(o), (str(len(self.keys)), o))
        return ("storage", FloatStorage if o.width == 4 else BFloat16Storage, key, "cpu",
                len(o.data) // o.width)

def save(o, f, root="archive"):
    import io
    b = io.BytesIO()
    p = Pickler(b, 2)
    p.dump(o)
    with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
        z.writestr(root + "/data.pkl", b.getvalue())
        z.writestr(root + "/byteorder", "little")
        for key, s in p.keys.values(): z.writestr(f"{root}/data/{key}", bytes(s.data))

def save_to(o, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f: save(o, f)

# ---- the state: lists of fp32 bit patterns as bytes

def count(shape):
    n = 1
    for s in shape: n *= s
    return n

def values(name, shape):
    n, seed = count(shape), sum(ord(c) * (i + 1) for i, c in enumerate(name)) % 9973
    if n > 1 << 16:                     # benches: quick, still different everywhere
        block = struct.pack("<65536I",
                            *((0x3c000000 + (i * 2654435761 + seed) % (1 << 25)) for i in range(65536)))
        return (block * (n // 65536 + 1))[:4 * n]
    return struct.pack(f"<{n}I",
                       *((0x3c000000 + (i * 2654435761 + seed * 40503) % (1 << 25)) for i in range(n)))

def llama(layers, hidden, heads, groups, hd, ffn, vocab, bias=False, qk_norm=False):
    s = OrderedDict()
    s["model.embed_tokens.weight"] = (vocab, hidden)
    for l in range(layers):
        p = f"model.layers.{l}."
        s[p + "input_layernorm.weight"] = (hidden,)
        for x, n in (("q", heads), ("k", groups), ("v", groups)):
            s[p + f"self_attn.{x}_proj.weight"] = (n * hd, hidden)
            if bias: s[p + f"self_attn.{x}_proj.bias"] = (n * hd,)
        if qk_norm:
            for x in "qk": s[p + f"self_attn.{x}_norm.weight"] = (hd,)
        s[p + "self_attn.o_proj.weight"] = (hidden, heads * hd)
        s[p + "post_attention_layernorm.weight"] = (hidden,)
        s[p + "mlp.gate_proj.weight"] = s[p + "mlp.up_proj.weight"] = (ffn, hidden)
        s[p + "mlp.down_proj.weight"] = (hidden, ffn)
    s["model.norm.weight"] = (hidden,)
    s["lm_head.weight"] = (vocab, hidden)
    return s

# latent attention: Megatron's names, Hugging Face's, the shape; cut over tp: yes (1), by local layers only (0), no
MLA = dict(q_lora_rank=4, kv_lora_rank=6, qk_head_dim=4, qk_pos_emb_head_dim=2)
def mla_rows(heads, hidden, hd, **rest):
    q, kv, nope, rope = MLA.values()
    return [("linear_q_down_proj.weight", "q_a_proj.weight", (q, hidden), 0),
            ("linear_q_up_proj.weight", "q_b_proj.weight", (heads * (nope + rope), q), 1),
            ("linear_kv_down_proj.weight", "kv_a_proj_with_mqa.weight", (kv + rope, hidden), 0),
            ("linear_kv_up_proj.weight", "kv_b_proj.weight", (heads * (nope + hd), kv), 1),
            ("q_layernorm.weight", "q_a_layernorm.weight", (q,), -1),
            ("kv_layernorm.weight", "kv_a_layernorm.weight", (kv,), -1)]

def latent(m):
    s = llama(**{k: v for k, v in m.items() if k != "mla"})
    for l in range(m["layers"]):
        p = f"model.layers.{l}.self_attn."
        for x in "qkv": del s[p + x + "_proj.weight"]
        for _, n, shape, _ in mla_rows(**m): s[p + n] = shape
    return s

def gpt2(layers, hidden, ffn, vocab, **rest):       # matrices [in][out], q k v in one
    s = OrderedDict({"transformer.wte.weight": (vocab, hidden), "transformer.wpe.weight": (16, hidden)})
    for l in range(layers):
        p = f"transformer.h.{l}."
        for n in ("ln_1", "ln_2"): s[p + n + ".weight"] = s[p + n + ".bias"] = (hidden,)
        for n, i, o in (("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                        ("mlp.c_fc", hidden, ffn), ("mlp.c_proj", ffn, hidden)):
            s[p + n + ".weight"], s[p + n + ".bias"] = (i, o), (o,)
    s["transformer.ln_f.weight"] = s["transformer.ln_f.bias"] = (hidden,)
    return s

KINDS = "fp32", "exp_avg", "exp_avg_sq"
def state_of(shapes): return {k: {n: values(k + n, s) for n, s in shapes.items()} for k in KINDS}
STEP = Tensor(Storage(struct.pack("<f", 7.0)), ())

def universal(dir, shapes, state):
    for k in KINDS:
        for n, s in shapes.items():
            save_to({"param": Tensor(Storage(state[k][n]), s), "cat_dim": 0}, f"{dir}/zero/{n}/{k}.pt")
    for n in shapes: save_to(STEP, f"{dir}/zero/{n}/step.pt")

# ---- DeepSpeed

def zero3(dir, shapes, state, ranks, groups=2):
    names = list(shapes)
    per = [OrderedDict((n, Size(shapes[n])) for n in names[i::groups]) for i in range(groups)]
    for r in range(ranks):
        save_to({"module": OrderedDict(), "param_shapes": per, "buffer_names": [], "shared_params": {},
                 "global_steps": 7},
                f"{dir}/global_step7/zero_pp_rank_{r}_mp_rank_00_model_states.pt")
        flat = {}
        for k in KINDS:
            b = bytearray()
            for g in per:
                for n in g:
                    part = -(-count(shapes[n]) // ranks)
                    piece = state[k][n][4 * r * part:4 * (r + 1) * part]
                    # what lies behind the end is garbage
                    b += piece + b"\xee" * (4 * part - len(piece))
            flat[k] = bytes(b)
        cut = (len(flat["fp32"]) // 4 // 3 + 1) * 4                          # sub-groups that cut parameters
        parts = {k: [v[i:i + cut] for i in range(0, len(v), cut)] for k, v in flat.items()}
        T = lambda b: Tensor(Storage(b), (len(b) // 4,))
        save_to({"optimizer_state_dict": {"zero_stage": 3, "partition_count": ranks,
                                          "fp32_flat_groups": [T(b) for b in parts["fp32"]],
                                          "optimizer_state_dict": {"state": {i: {"step": STEP,
                                              "exp_avg": T(parts["exp_avg"][i]),
                                              "exp_avg_sq": T(parts["exp_avg_sq"][i])}
                                                                             for i in range(len(parts["fp32"]))}}}},
                f"{dir}/global_step7/zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
    open(f"{dir}/latest", "w").write("global_step7")

def zero2(dir, shapes, state, ranks, skip=3):
    names = list(shapes)
    groups = [[n for n in names if len(shapes[n]) > 1], [n for n in names if len(shapes[n]) == 1]]
    T = lambda b: Tensor(Storage(b), (len(b) // 4,))
    skips = [[(i % 2) * skip for i in range(len(g))] for g in groups]
    cut = []
    for g, sk in zip(groups, skips):
        flat = {k: b"".join(state[k][n] + b"\xdd" * (4 * s) for n, s in zip(g, sk)) for k in KINDS}
        n = len(flat["fp32"]) // 4
        total = -(-n // (2 * ranks)) * 2 * ranks
        size = total // ranks * 4
        cut.append({k: [(v + b"\0" * (4 * total - len(v)) if k != "fp32" else v)[r * size:(r + 1) * size]
                        for r in range(ranks)] for k, v in flat.items()})
    for r in range(ranks):
        save_to({"optimizer_state_dict": {"zero_stage": 2, "partition_count": [ranks] * 2,
                                          "single_partition_of_fp32_groups": [T(c["fp32"][r]) for c in cut],
                                          "param_alignment_paddings": skips,
                                          "base_optimizer_state": {"state": {g: {"exp_avg": T(c["exp_avg"][r]), "exp_avg_sq": T(c["exp_avg_sq"][r])} for g, c in enumerate(cut)},
                                                                   "param_groups": [{"step": 7, "params": [g]}
                                                                       for g in range(2)]}}},
                f"{dir}/global_step7/zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
    save_to({"module": OrderedDict((n, Tensor(Storage(state["fp32"][n]), shapes[n])) for n in names),
             "buffer_names": [],
             "param_shapes": [OrderedDict((n, Size(shapes[n])) for n in g) for g in groups],
             "shared_params": {}}, f"{dir}/global_step7/mp_rank_00_model_states.pt")
    open(f"{dir}/latest", "w").write("global_step7\n")

# ---- PyTorch DCP: rows cut over ranks; names at the top, no paths (as torchtitan flattens them)

def titan(shapes, state, m, fused):
    """The same as torchtitan's Llama has it: rows of queries and keys in pairs; fused: with the values in one"""
    names = [("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"),
             ("model.layers", "layers"), ("self_attn.o_proj", "attention.wo"), ("self_attn.", "attention.qkv_linear."),
             ("q_proj", "wq"), ("k_proj", "wk"), ("v_proj", "wv"), ("input_layernorm", "attention_norm"),
             ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "feed_forward.w1"),
             ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2")]
    out, data, hd, group = OrderedDict(), {k: {} for k in KINDS}, m["hd"], m["heads"] // m["groups"]
    def pairs(x, w):
        row = lambda h, i: x[(h * hd + i) * w:(h * hd + i + 1) * w]
        return b"".join(row(h, t * hd // 2 + i) for h in range(len(x) // w // hd) for i in range(hd // 2)
                        for t in (0, 1))
    for n, s in shapes.items():
        name, w = n, 4 * s[-1]
        for a, b in names: name = name.replace(a, b)
        out[name] = s
        for k in KINDS: data[k][name] = pairs(state[k][n], w) if name[-9:-7] in ("wq", "wk") else state[k][n]
    for n in [n for n in out if fused and n.endswith("wq.weight")]:
        one, w = n.replace("wq", "wqkv"), hd * 4 * m["hidden"]
        for k in KINDS:
            q, p, v = (data[k].pop(n.replace("wq", x)) for x in ("wq", "wk", "wv"))
            data[k][one] = b"".join(q[g * group * w:(g + 1) * group * w] + p[g * w:(g + 1) * w] + v[g * w:(g + 1) * w]
                                    for g in range(m["groups"]))
        for x in ("wq", "wk", "wv"): del out[n.replace("wq", x)]
        out[one] = ((m["heads"] + 2 * m["groups"]) * hd, m["hidden"])
    return out, data

def dcp_save(dir, shapes, state, ranks, wrapper=""):
    os.makedirs(dir, exist_ok=True)
    items, places, files = OrderedDict(), OrderedDict(), [open(f"{dir}/__{r}_0.distcp", "wb")
                                                          for r in range(ranks)]
    keys = [(wrapper + n, shapes[n], state["fp32"][n])
            for n in shapes] + [(f"optimizer.state.{wrapper}{n}.{k}", shapes[n], state[k][n])
                                for k in KINDS[1:] for n in shapes]
    import io
    for key, shape, data in keys:
        rows, row = -(-shape[0] // ranks), len(data) // shape[0]
        chunks = []
        for r in range(ranks):
            lo, hi = min(r * rows, shape[0]), min((r + 1) * rows, shape[0])
            start, size = (lo,) + (0,) * (len(shape) - 1), (hi - lo,) + tuple(shape[1:])
            chunks.append(obj(ChunkStorageMetadata, offsets=Size(start), sizes=Size(size)))
            b = io.BytesIO()
            save(Tensor(Storage(data[lo * row:hi * row]), size), b)
            index = obj(MetadataIndex, fqn=key, offset=Size(start), index=r)
            if hi > lo or lo == 0:
                places[index] = obj(_StorageInfo, relative_path=f"__{r}_0.distcp", offset=files[r].tell(),
                                    length=len(b.getvalue()))
                files[r].write(b.getvalue())
        items[key] = obj(TensorStorageMetadata,
                         properties=obj(TensorProperties, state=(float32, None, False, None, False)),
                         size=Size(shape), chunks=chunks)
    for n in shapes:
        b = io.BytesIO()
        save(STEP, b)
        key = f"optimizer.state.{wrapper}{n}.step"
        items[key] = obj(TensorStorageMetadata,
                         properties=obj(TensorProperties, state=(float32, None, False, None, False, ())),
                         size=Size(()),
                         chunks=[obj(ChunkStorageMetadata, offsets=Size(()), sizes=Size(()))])
        places[obj(MetadataIndex, fqn=key, offset=Size(()), index=0)] = obj(_StorageInfo,
            relative_path="__0_0.distcp", offset=files[0].tell(), length=len(b.getvalue()))
        files[0].write(b.getvalue())
    for f in files: f.close()
    with open(f"{dir}/.metadata", "wb") as f:
        pickle.Pickler(f, 4).dump(obj(Metadata, state_dict_metadata=items, planner_data=None,
                                      storage_data=places, version="1.0.0"))

# ---- Megatron legacy: tp x pp, virtual stages, query-key-value biases, query and key norms; distributed
# optimizer or by number

def rows(data, shape, lo, hi):
    w = len(data) // shape[0]
    return data[lo * w:hi * w]
def cols(data, shape, lo, hi):
    return b"".join(data[4 * (r * shape[1] + lo):4 * (r * shape[1] + hi)] for r in range(shape[0]))

def local_of(state, tp, m):
    """(kind, layer, Megatron's name, tp rank) -> bytes and shape of the rank's part"""
    pad = -(-m["vocab"] // (8 * tp)) * 8 * tp
    heads, groups, hd, ffn, hidden = m["heads"], m["groups"], m["hd"], m["ffn"], m["hidden"]
    q = heads // groups * hd
    def local(kind, l, name, t):
        get = lambda n: state[kind][f"model.layers.{l}.{n}" if l is not None else n]
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            n = "model.embed_tokens.weight" if name[0] == "e" else "lm_head.weight"
            return rows(get(n) + b"\xaa" * (4 * hidden * (pad - m["vocab"])), (pad, hidden), t * pad // tp,
                        (t + 1) * pad // tp), (pad // tp, hidden)
        if name.startswith("self_attention.linear_qkv.") and "layer_norm" not in name:
            w, end = (hidden, "weight") if name.endswith("weight") else (1, "bias")
            x, total = b"", groups * (q + 2 * hd)
            for g in range(groups):
                x += rows(get(f"self_attn.q_proj.{end}"), (heads * hd,), g * q, (g + 1) * q)
                for y in "kv":
                    x += rows(get(f"self_attn.{y}_proj.{end}"), (groups * hd,), g * hd, (g + 1) * hd)
            return rows(x, (total,), t * total // tp, (t + 1) * total // tp), (total // tp,
                hidden) if end == "weight" else (total // tp,)
        for mine, hf, shape, cut in mla_rows(**m) if "mla" in m else ():
            if name != "self_attention." + mine: continue
            parts, at = (tp, t) if cut == 1 or cut == 0 and m["mla"] == "cut" else (1, 0)
            n = shape[0] // parts
            return rows(get("self_attn." + hf), shape, at * n, (at + 1) * n), (n,) + shape[1:]
        if name == "mlp.linear_fc1.weight":
            f = ffn // tp
            return b"".join(rows(get(f"mlp.{x}_proj.weight"), (ffn,), t * f, (t + 1) * f)
                            for x in ("gate", "up")), (2 * f, hidden)
        if name == "mlp.linear_fc2.weight":
            return cols(get("mlp.down_proj.weight"), (hidden, ffn), t * ffn // tp,
                        (t + 1) * ffn // tp), (hidden, ffn // tp)
        if name == "self_attention.linear_proj.weight":
            a = heads * hd
            return cols(get("self_attn.o_proj.weight"), (hidden, a), t * a // tp, (t + 1) * a // tp), (hidden,
                a // tp)
        hf = {"self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
              "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
              "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
              "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
              "decoder.final_layernorm.weight": "model.norm.weight"}[name]
        return get(hf), (len(get(hf)) // 4,)
    return local

def turned(data, shape):
    return b"".join(data[4 * (i * shape[1] + j):4 * (i * shape[1] + j) + 4] for j in range(shape[1])
                    for i in range(shape[0]))

def local_of_gpt2(state, shapes, tp, m):
    pad, heads, hd, hidden = (-(-m["vocab"] // (8 * tp)) * 8 * tp, m["heads"], m["hidden"] // m["heads"],
                              m["hidden"])
    layer = {"self_attention.linear_qkv.layer_norm_": "ln_1.", "self_attention.linear_proj.": "attn.c_proj.",
             "self_attention.linear_qkv.": "attn.c_attn.",
             "mlp.linear_fc1.layer_norm_": "ln_2.", "mlp.linear_fc1.": "mlp.c_fc.",
             "mlp.linear_fc2.": "mlp.c_proj."}
    top = {"embedding.word_embeddings.": "transformer.wte.",
           "embedding.position_embeddings.": "transformer.wpe.",
           "decoder.final_layernorm.": "transformer.ln_f.",
           "output_layer.": "transformer.wte."}
    def local(kind, l, name, t):
        start = max((k for k in (layer if l is not None else top) if name.startswith(k)), key=len)
        hf = (f"transformer.h.{l}." + layer[start] if l is not None else top[start]) + name[len(start):]
        data, shape = state[kind][hf], shapes[hf]
        if l is not None and len(shape) == 2: data, shape = turned(data, shape), shape[::-1]
        if "c_attn" in hf:
            data = b"".join(rows(data, shape, p * hidden + g * hd, p * hidden + (g + 1) * hd)
                            for g in range(heads) for p in range(3))
        if "wte" in hf: data, shape = data + b"\xaa" * (4 * hidden * (pad - m["vocab"])), (pad, hidden)
        if "wte" in hf or "c_attn" in hf or "c_fc" in hf:
            return rows(data, shape, t * shape[0] // tp,
                        (t + 1) * shape[0] // tp), (shape[0] // tp,) + tuple(shape[1:])
        if len(shape) == 2 and l is not None:
            return cols(data, shape, t * shape[1] // tp, (t + 1) * shape[1] // tp), (shape[0], shape[1] // tp)
        return data, shape
    return local

ORDER = ["self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight",
         "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias",
         "self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight",
         "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"]

def order_of(shapes):
    if "transformer.wte.weight" in shapes:
        return [n for k in ("self_attention.linear_qkv.layer_norm_", "self_attention.linear_proj.",
                            "self_attention.linear_qkv.", "mlp.linear_fc1.layer_norm_",
                            "mlp.linear_fc1.", "mlp.linear_fc2.") for n in (k + "weight", k + "bias")]
    if "model.layers.0.self_attn.q_a_proj.weight" in shapes:
        return ORDER[:2] + ["self_attention." + x[0] for x in mla_rows(1, 1, 1)] + ORDER[6:]
    return [n for n in ORDER if "model.layers.0.self_attn.q_proj.bias" in shapes
            or (not n.endswith("bias") and "_layernorm" not in n)]

def megatron(dir, shapes, state, tp, pp, vp, distributed, m):
    is_gpt2 = "transformer.wte.weight" in shapes
    per, local, order = m["layers"] // (pp * vp), local_of_gpt2(state, shapes, tp,
                                                                m) if is_gpt2 else local_of(state, tp,
                                                                    m), order_of(shapes)
    last = ["decoder.final_layernorm.weight"] + (["decoder.final_layernorm.bias"] +
                                                 ["output_layer.weight"] * (pp > 1) if is_gpt2
                                                 else ["output_layer.weight"])
    for t in range(tp):
        for p in range(pp):
            chunks = []
            for v in range(vp):
                first, names = (v * pp + p) * per, []
                if v == 0 and p == 0:
                    names += [(None, n, n) for n in ["embedding.word_embeddings.weight"] +
                              ["embedding.position_embeddings.weight"] * is_gpt2]
                names += [(first + i, n, f"decoder.layers.{i}.{n}") for i in range(per) for n in order]
                if v == vp - 1 and p == pp - 1: names += [(None, n, n) for n in last]
                chunks.append(names)
            T = lambda k, x: (lambda d, s: Tensor(Storage(d), s))(*local(k, x[0], x[1], t))
            o = {"args": argparse_ns(m, tp, pp), "checkpoint_version": 3.0, "iteration": 9}
            for v, names in enumerate(chunks):
                d = OrderedDict((x[2], T("fp32", x)) for x in names)
                d[names[0][2].rsplit(".", 1)[0] + "._extra_state"] = None
                o["model" if vp == 1 else f"model{v}"] = d
            folder = f"{dir}/iter_0000009/mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
            if distributed:
                bufs = {"buckets_coalesced": True}
                for v, names in enumerate(chunks):
                    b = {k: bytearray() for k in KINDS}
                    for x in reversed(names):
                        for k in KINDS:
                            b[k] += b"\xcc" * (-len(b[k]) % 256)
                            b[k] += local(k, x[0], x[1], t)[0]
                    n = len(b["fp32"]) // 4
                    bufs[v] = {(float32, float32): dict({"param" if k == "fp32"
                                                         else k:
                                                             Tensor(Storage(bytes(b[k])), (n,))
                                                             for k in KINDS}, numel_unpadded=n)}
                save_to(bufs, folder + "/distrib_optim.pt")
                o["optimizer"] = {"optimizer": {"param_groups": [{"step": 7}]}}
            else:
                every = [x for names in chunks for x in names]
                every = [x for x in every if len(local("fp32", x[0], x[1], t)[1]) > 1] + [x for x in every
                    if len(local("fp32", x[0], x[1], t)[1]) == 1]
                n2 = sum(len(local("fp32", x[0], x[1], t)[1]) > 1 for x in every)
                o["optimizer"] = {"state": {i: {"step": STEP, "exp_avg": T("exp_avg", x),
                                                "exp_avg_sq": T("exp_avg_sq", x)} for i,
                                                x in enumerate(every)},
                                  "param_groups": [{"params": list(range(n2))},
                                                   {"params": list(range(n2, len(every)))}]}
            save_to(o, folder + "/model_optim_rng.pt")
    open(f"{dir}/latest_checkpointed_iteration.txt", "w").write("9")

# ---- Megatron torch_dist with dp_reshardable buffers: every parameter a chunk, cut once more where a
# data-parallel rank ends

def megatron_dist(dir, shapes, state, tp, pp, dp, m):
    import io, json
    folder, local, order, per = f"{dir}/iter_0000009", local_of(state, tp,
                                                                m), order_of(shapes), m["layers"] // pp
    os.makedirs(folder)
    items, places, f = OrderedDict(), OrderedDict(), open(f"{folder}/__0_0.distcp", "wb")
    def chunk(key, start, data, size):
        b = io.BytesIO()
        save(Tensor(Storage(data), size), b)
        places[obj(MetadataIndex, fqn=key, offset=Size(start), index=None)] = obj(_StorageInfo,
            relative_path="__0_0.distcp", offset=f.tell(), length=len(b.getvalue()))
        items[key].chunks.append(obj(ChunkStorageMetadata, offsets=Size(start), sizes=Size(size)))
        f.write(b.getvalue())
    def item(key, shape):
        items.setdefault(key, obj(TensorStorageMetadata,
                                  properties=obj(TensorProperties,
                                                 state=(float32, None, False, None, False, None)),
                                                 size=Size(shape), chunks=[]))
    def model(name, l):
        key = name if l is None else "decoder.layers." + name
        cols, lead = name.endswith(("linear_proj.weight", "fc2.weight")), () if l is None else (m["layers"],)
        for t in range(tp):
            data, shape = local("fp32", l, name, t)
            whole = name.endswith(("norm_weight", "layernorm.weight")) or m.get("mla") == "whole" and "down_proj" in name
            if whole and t: continue
            at = () if l is None else (l,)
            one = () if l is None else (1,)
            full = list(shape)
            if not whole: full[1 if cols else 0] *= tp
            item(key, lead + tuple(full))
            if name == "mlp.linear_fc1.weight":         # stored [gate; up], two chunks a rank
                h = shape[0] // 2
                for k in range(2):
                    chunk(key, at + (k * h * tp + t * h, 0), rows(data, shape, k * h, k * h + h),
                          one + (h, shape[1]))
            else:
                start = [0] * len(shape)
                if not whole: start[1 if cols else 0] = t * shape[1 if cols else 0]
                chunk(key, at + tuple(start), data, one + tuple(shape))
    stages = []
    for p in range(pp):
        names = [(None, "embedding.word_embeddings.weight")] if p == 0 else []
        names += [(l, n) for l in range(p * per, (p + 1) * per) for n in order]
        stages.append(names + ([(None, n) for n in ("decoder.final_layernorm.weight", "output_layer.weight")]
                               if p == pp - 1 else []))
        for l, n in stages[-1]: model(n, l)
    for p in range(pp):
        for t in range(tp):
            sizes = [(l, n, len(local("fp32", l, n, t)[0]) // 4) for l, n in reversed(stages[p])]
            buckets, at = [[]], 0       # two buckets: the second begins anew, without the gap of the first
            for i, x in enumerate(sizes):
                if i == len(sizes) // 2: buckets.append([]); at = 0
                at = -(-at // 64) * 64
                buckets[-1].append((at,) + x)
                at += x[2]
            for b, params in enumerate(buckets):
                n = params[-1][0] + params[-1][3]
                cuts = [-(-n // dp) * i for i in range(1, dp)]
                for k, kind in zip(("param", "exp_avg", "exp_avg_sq"), KINDS):
                    key = f"optimizer.distributed.dp_group_idx_{p * tp + t}.gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_{b}.{k}"
                    item(key, (n,))
                    for start, l, name, size in params:
                        data, ends = local(kind, l, name, t)[0], [c - start for c in cuts
                                                                  if 0 < c - start < size] + [size]
                        for lo, hi in zip([0] + ends, ends):
                            chunk(key, (start + lo,), data[4 * lo:4 * hi], (hi - lo,))
    f.close()
    with open(f"{folder}/.metadata", "wb") as g:
        pickle.Pickler(g, 4).dump(obj(Metadata, state_dict_metadata=items, planner_data=None,
                                      storage_data=places, version="1.0.0"))
    save_to({"args": argparse_ns(m, tp, pp), "iteration": 7, "checkpoint_version": 3.0,
             "optimizer": {"param_groups": [{"step": 7}]}}, f"{folder}/common.pt")
    json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1},
              open(f"{folder}/metadata.json", "w"))
    open(f"{dir}/latest_checkpointed_iteration.txt", "w").write("9")

def argparse_ns(m, tp, pp):
    import argparse
    return argparse.Namespace(num_layers=m["layers"], hidden_size=m["hidden"], num_attention_heads=m["heads"],
                              num_query_groups=m["groups"], group_query_attention="gpt2" not in m,
                              **(dict(MLA, multi_latent_attention=True) if "mla" in m else {}),
                              kv_channels=m["hd"], tensor_model_parallel_size=tp,
                              pipeline_model_parallel_size=pp, vocab_size=m["vocab"], swiglu="gpt2" not in m,
                              untie_embeddings_and_output_weights="gpt2" not in m,
                              position_embedding_type="learned_absolute" if "gpt2" in m else "rope")

def main():
    case, dir = sys.argv[1], sys.argv[2]
    m = dict(layers=8, hidden=24, heads=6, groups=2, hd=5, ffn=28, vocab=61)
    mib = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    if mib:                             # about that much in all, for benches
        m = dict(layers=max(1, mib * 1024 * 1024 // 12 // (1024 * 1024 * 12)), hidden=1024, heads=16,
                 groups=16, hd=64, ffn=2730, vocab=1024)
    if "gpt2" in case: m.update(gpt2=1, groups=6, hd=4)
    if "mla" in case: m.update(mla="whole" if "whole" in case else "cut", groups=6, hd=4)
    shapes = (gpt2(**m) if "gpt2" in case else latent(m) if "mla" in case else
              llama(**m, bias="bias" in case, qk_norm="bias" in case))
    state = state_of(shapes)
    out = dir + "/ckpt"
    if case.startswith("zero3"): zero3(out, shapes, state, int(case.split("-")[1]))
    elif case.startswith("zero2"): zero2(out, shapes, state, int(case.split("-")[1]))
    elif "titan" in case:
        m.update(hd=6)
        shapes = llama(**m)
        state = state_of(shapes)
        dcp_save(out, *titan(shapes, state, m, "fused" in case), int(case.split("-")[1]))
        json.dump(dict(model_type="llama", hidden_size=m["hidden"], num_hidden_layers=m["layers"], head_dim=m["hd"],
                       num_attention_heads=m["heads"], num_key_value_heads=m["groups"], vocab_size=m["vocab"],
                       intermediate_size=m["ffn"]), open(dir + "/config.json", "w"))
    elif case.startswith("dcp"):
        dcp_save(out, shapes, state, int(case.split("-")[1]), "_orig_mod." if "wrapped" in case else "")
    elif case.startswith("dist"):
        megatron_dist(out, shapes, state, *(int(x) for x in case.split("-")[1:4]), m)
    else:                               # legacy-TP-PP-VP[-distopt][-bias]
        w = case.split("-")
        megatron(out, shapes, state, int(w[1]), int(w[2]), int(w[3]), "distopt" in case, m)
    if not mib: universal(dir + "/universal", shapes, state)

if __name__ == "__main__": main()

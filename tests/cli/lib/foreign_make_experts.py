"""foreign_make_experts.py DIR CASE... - as foreign_make.py, for a small Qwen3-MoE whose experts are divided over
ranks: DIR/CASE/ckpt as the trainer would write it, DIR/CASE/universal whole and under Hugging Face's names.

plain-EP                       DeepSpeed MoE without ZeRO
moe-RANKS-EP[-before][-many]   DeepSpeed MoE, ZeRO-2; before: neighbouring ranks share experts; many: three
                               groups of experts
auto2-RANKS-EP, auto3-RANKS-EP DeepSpeed AutoEP with ZeRO-2 and ZeRO-3; experts lie in an order of their own
legacy-TP-PP-EP[-distopt][-grouped|-old][-etpN] Megatron's folders of ranks; grouped: linear_fc1.weight0 … in one
                    module; old: all in weight1 and weight2, [in][out]; etpN: experts are cut over N ranks
titan-DP-EP[-new]              torchtitan's names in a PyTorch DCP, experts in boxes over both; new: later names"""
import json, os, sys
from collections import OrderedDict

import foreign_make as M

L, H, I, E, HEADS, KV, HD, V = 3, 12, 10, 6, 4, 2, 6, 21
CONFIG = dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=H, num_hidden_layers=L,
              num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HD, intermediate_size=I,
              moe_intermediate_size=I, num_experts=E, num_experts_per_tok=2, vocab_size=V, mlp_only_layers=[1],
              decoder_sparse_step=1, norm_topk_prob=True, tie_word_embeddings=False)
PARTS = (("gate_proj", (I, H)), ("up_proj", (I, H)), ("down_proj", (H, I)))


def shapes_of():
    s = OrderedDict()
    for n, shape in M.llama(L, H, HEADS, KV, HD, I, V, qk_norm=True).items():
        layer = n.split(".")[2] if ".layers." in n else ""
        if ".mlp." not in n or layer == "1":
            s[n] = shape
        elif ".mlp.gate_proj" in n:
            s[f"model.layers.{layer}.mlp.gate.weight"] = (E, H)
            for e in range(E):
                for p, size in PARTS: s[f"model.layers.{layer}.mlp.experts.{e}.{p}.weight"] = size
    return s


def flat(parts): return M.Tensor(M.Storage(parts), (len(parts) // 4,))


def slices(data, n):
    """n equal slices; the padding of fp32 is left out, as DeepSpeed does."""
    size = -(-len(data) // 4 // (2 * n)) * 2 * 4
    return [data[i * size:(i + 1) * size] for i in range(n)], [
        (data + b"\0" * (size * n - len(data)))[i * size:(i + 1) * size] for i in range(n)]


class DeepSpeed:
    def __init__(self, dir, shapes, state, ranks, ep, before=False):
        self.dir, self.shapes, self.state, self.ranks, self.ep, self.before = dir, shapes, state, ranks, ep, before
        self.dense = [n for n in shapes if ".mlp.experts." not in n]
        self.layers = [l for l in range(L) if l != 1]

    def ep_rank(self, r): return r // (self.ranks // self.ep) if self.before else r % self.ep
    def edp_rank(self, r): return r % (self.ranks // self.ep) if self.before else r // self.ep
    def save(self, name, o): M.save_to(o, f"{self.dir}/global_step7/{name}")

    def optim(self, r, groups):
        """groups: for each kind its buffer over the ranks that share it, how many those are, this one's place"""
        one = {k: [] for k in M.KINDS}
        for data, n, at in groups:
            for k in M.KINDS: one[k].append(slices(data[k], n)[k != "fp32"][at])
        self.save(f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": {
            "zero_stage": 2, "partition_count": [g[1] for g in groups],
            "single_partition_of_fp32_groups": [flat(b) for b in one["fp32"]],
            "base_optimizer_state": {
                "state": {i: {k: flat(one[k][i]) for k in M.KINDS[1:]} for i in range(len(groups))},
                "param_groups": [{"step": 7, "params": [i], "moe": i > 0} for i in range(len(groups))]}}})

    def model(self, name, shapes, **more):
        self.save(name, dict(more, param_shapes=[OrderedDict((n, M.Size(s)) for n, s in g) for g in shapes],
                             buffer_names=[], shared_params={}, global_steps=7,
                             ds_config={"use_data_before_expert_parallelism": self.before}))

    def weights(self):
        return OrderedDict((self.router(n), M.Tensor(M.Storage(self.state["fp32"][n]), self.shapes[n]))
                           for n in self.dense)

    def finish(self): open(self.dir + "/latest", "w").write("global_step7")


class Moe(DeepSpeed):
    def router(self, n): return n.replace("mlp.gate.weight", "mlp.deepspeed_moe.gate.wg.weight")

    def write(self, many):
        own, place = E // self.ep, ".deepspeed_moe.experts.deepspeed_experts."
        names = [(l, i, p, s) for l in self.layers for i in range(own) for p, s in PARTS]
        cut = -(-len(names) // (3 if many else 1))
        groups = [names[i:i + cut] for i in range(0, len(names), cut)]
        for r in range(self.ranks):
            first = self.ep_rank(r) * own
            def data(g, k):
                return b"".join(self.state[k][f"model.layers.{l}.mlp.experts.{first + i}.{p}.weight"]
                                for l, i, p, s in g)
            self.optim(r, [({k: b"".join(self.state[k][n] for n in self.dense) for k in M.KINDS}, self.ranks, r)]
                       + [({k: data(g, k) for k in M.KINDS}, self.ranks // self.ep, self.edp_rank(r))
                          for g in groups])
        self.model("mp_rank_00_model_states.pt",
                   [[(self.router(n), self.shapes[n]) for n in self.dense]]
                   + [[(f"model.layers.{l}.mlp{place}{i}.{p}.weight", s) for l, i, p, s in g] for g in groups],
                   module=self.weights())
        self.experts(place)
        self.finish()

    def plain(self):
        """Without ZeRO: the whole state by number for each expert-parallel rank."""
        own, place = E // self.ep, ".deepspeed_moe.experts.deepspeed_experts."
        for r in range(self.ep):
            mine = [f"model.layers.{l}.mlp.experts.{r * own + i}.{p}.weight" for l in self.layers for i in range(own)
                    for p, s in PARTS]
            tensor = lambda k, n: M.Tensor(M.Storage(self.state[k][n]), self.shapes[n])
            self.save(f"expp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer": {
                "state": {i: {"step": M.STEP, "exp_avg": tensor("exp_avg", n), "exp_avg_sq": tensor("exp_avg_sq", n)}
                          for i, n in enumerate(self.dense + mine)},
                "param_groups": [{"params": list(range(len(self.dense)))},
                                 {"params": list(range(len(self.dense), len(self.dense) + len(mine))), "moe": True}]}})
        self.save("mp_rank_00_model_states.pt", {"module": self.weights(), "buffer_names": [], "global_steps": 7})
        self.experts(place)
        self.finish()

    def experts(self, place):
        for at, l in enumerate(self.layers):
            for e in range(E):
                self.save(f"layer_{at}_expert_{e}_mp_rank_00_model_states.pt", {
                    f"model.layers.{l}.mlp{place}{e}.{p}.weight":
                        M.Tensor(M.Storage(self.state["fp32"][f"model.layers.{l}.mlp.experts.{e}.{p}.weight"]), s)
                    for p, s in PARTS})


class Auto(DeepSpeed):
    W = (("w1", "gate_proj", (I, H)), ("w2", "down_proj", (H, I)), ("w3", "up_proj", (I, H)))

    def router(self, n): return n.replace("mlp.gate.weight", "mlp.router.gate.weight")

    def metadata(self, r, cut):
        own = E // self.ep
        ids = [(e * 5 + 1) % E for e in range(E)]           # a placement that is not in order
        self.ids = [ids[i * own:(i + 1) * own] for i in range(self.ep)]
        return [{"moe_layer_id": at, "module_path": f"model.layers.{l}.mlp", "num_experts": E,
                 "num_local_experts": own, "ep_size": self.ep, "ep_rank": self.ep_rank(r),
                 "expert_key_prefix": f"model.layers.{l}.mlp.experts",
                 "checkpoint_format": "zero3_partitioned" if cut else "per_expert_files",
                 "expert_placement": {"version": 1, "num_experts": E, "ep_size": self.ep,
                                      "ranks": [{"rank": i, "experts": x} for i, x in enumerate(self.ids)]}}
                for at, l in enumerate(self.layers)]

    def local(self, k, r, l, p):
        return b"".join(self.state[k][f"model.layers.{l}.mlp.experts.{e}.{p}.weight"]
                        for e in self.ids[self.ep_rank(r)])

    def shapes_local(self):
        own = E // self.ep
        return [[(self.router(n), self.shapes[n]) for n in self.dense],
                [(f"model.layers.{l}.mlp.experts.{w}", (own,) + s) for l in self.layers for w, p, s in self.W]]

    def write2(self):
        meta = self.metadata(0, False)
        for r in range(self.ranks):
            self.optim(r, [({k: b"".join(self.state[k][n] for n in self.dense) for k in M.KINDS}, self.ranks, r),
                           ({k: b"".join(self.local(k, r, l, p) for l in self.layers for w, p, s in self.W)
                             for k in M.KINDS}, self.ranks // self.ep, self.edp_rank(r))])
        module = self.weights()
        module["model.layers.0.mlp.gate.gate.weight"] = module["model.layers.0.mlp.router.gate.weight"]
        self.model("mp_rank_00_model_states.pt", self.shapes_local(), module=module, ds_autoep_layers=meta)
        for at, l in enumerate(self.layers):
            for e in range(E):
                self.save(f"layer_{at}_expert_{e}_mp_rank_00_model_states.pt", {
                    f"model.layers.{l}.mlp.experts.{w}.{e}":
                        M.Tensor(M.Storage(self.state["fp32"][f"model.layers.{l}.mlp.experts.{e}.{p}.weight"]), s)
                    for w, p, s in self.W})
        self.finish()

    def write3(self):
        for r in range(self.ranks):
            self.model(f"zero_pp_rank_{r}_mp_rank_00_model_states.pt", self.shapes_local(),
                       module=OrderedDict(), ds_autoep_layers=self.metadata(r, True))
            parts = {}
            for k in M.KINDS:
                parts[k] = []
                for data, n, at in (([self.state[k][n] for n in self.dense], self.ranks, r),
                                    ([self.local(k, r, l, p) for l in self.layers for w, p, s in self.W],
                                     self.ranks // self.ep, self.edp_rank(r))):
                    b = b""
                    for x in data:
                        size = -(-len(x) // 4 // n) * 4
                        one = x[at * size:(at + 1) * size]
                        b += one + b"\xee" * (size - len(one))
                    parts[k].append(flat(b))
            self.save(f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": {
                "zero_stage": 3, "partition_count": self.ranks, "fp32_flat_groups": parts["fp32"],
                "ds_zero_partition_groups": [
                    {"sub_group": 0, "partition_count": self.ranks, "partition_rank": r},
                    {"sub_group": 1, "partition_count": self.ranks // self.ep, "partition_rank": self.edp_rank(r)}],
                "optimizer_state_dict": {"state": {i: {"step": M.STEP, "exp_avg": parts["exp_avg"][i],
                                                       "exp_avg_sq": parts["exp_avg_sq"][i]} for i in range(2)}}}})
        self.finish()


class Legacy:
    """Megatron: what is of no expert is in the folders of all expert-parallel ranks."""

    def __init__(self, dir, state, tp, pp, ep, opts):
        self.dir, self.state, self.tp, self.pp, self.ep, self.opts = dir, state, tp, pp, ep, opts
        self.etp = next((int(o[3:]) for o in opts if o.startswith("etp")), tp)
        self.dense = M.local_of(state, tp, dict(heads=HEADS, groups=KV, hd=HD, ffn=I, hidden=H, vocab=V))

    def fc(self, kind, prefix, name, t):
        get = lambda n, s: (self.state[kind][prefix + n], s)
        if "fc2" in name:
            data, shape = get("down_proj.weight", (H, I))
            return M.cols(data, shape, t * I // self.etp, (t + 1) * I // self.etp), (H, I // self.etp)
        f = I // self.etp
        return b"".join(M.rows(get(x, None)[0], (I,), t * f, (t + 1) * f)
                        for x in ("gate_proj.weight", "up_proj.weight")), (2 * f, H)

    def local(self, kind, x, t):
        l, name, e = x
        if name.startswith("weight"):
            own, out = E // self.ep, b""
            for k in range(e, e + own):
                data, (n, m) = self.fc(kind, f"model.layers.{l}.mlp.experts.{k}.", "fc" + name[-1], t % self.etp)
                out += b"".join(data[4 * (i * m + j):4 * (i * m + j) + 4] for j in range(m) for i in range(n))
            return out, (m, own * n) if name[-1] == "1" else (own * m, n)
        if e is not None: return self.fc(kind, f"model.layers.{l}.mlp.experts.{e}.", name, t % self.etp)
        if name == "mlp.router.weight": return self.state[kind][f"model.layers.{l}.mlp.gate.weight"], (E, H)
        name = {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
                "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight"}.get(name, name)
        return self.dense(kind, l, name, t)

    def names(self, p, r):
        """(layer, name, expert) -> name in the file, in the order of the modules"""
        per, own, grouped = L // self.pp, E // self.ep, "grouped" in self.opts
        out = OrderedDict()
        if p == 0: out[None, "embedding.word_embeddings.weight", None] = "embedding.word_embeddings.weight"
        for i in range(per):
            l, at = p * per + i, f"decoder.layers.{i}."
            for n in ("input_layernorm", "self_attention.linear_proj", "self_attention.linear_qkv",
                      "self_attention.q_layernorm", "self_attention.k_layernorm", "pre_mlp_layernorm"):
                out[l, n + ".weight", None] = at + n + ".weight"
            if l == 1:
                for n in ("mlp.linear_fc1.weight", "mlp.linear_fc2.weight"): out[l, n, None] = at + n
                continue
            out[l, "mlp.router.weight", None] = at + "mlp.router.weight"
            if "old" in self.opts:
                for n in ("weight1", "weight2"): out[l, n, r * own] = at + "mlp.experts." + n
                continue
            both = [(k, n) for k in range(own) for n in ("linear_fc1", "linear_fc2")]
            for k, n in sorted(both, key=lambda x: x[1]) if grouped else both:
                out[l, n + ".weight", r * own + k] = at + "mlp.experts." + (
                    f"{n}.weight{k}" if grouped else f"local_experts.{k}.{n}.weight")
        if p == self.pp - 1:
            for n in ("decoder.final_layernorm.weight", "output_layer.weight"): out[None, n, None] = n
        return out

    def buffer(self, names, t):
        """One flat buffer: parameters in reverse order, each from a multiple of 64 elements on."""
        b = {k: bytearray() for k in M.KINDS}
        for x in reversed(list(names)):
            for k in M.KINDS:
                b[k] += b"\xcc" * (-len(b[k]) % 256)
                b[k] += self.local(k, x, t)[0]
        n = len(b["fp32"]) // 4
        return {0: {(M.float32, M.float32): dict({("param" if k == "fp32" else k): flat(bytes(b[k])) for k in M.KINDS},
                                                 numel_unpadded=n)}, "buckets_coalesced": True}

    def numbered(self, names, t, is_expert):
        tensor = lambda k, x: (lambda d, s: M.Tensor(M.Storage(d), s))(*self.local(k, x, t))
        dims = lambda x: len(self.local("fp32", x, t)[1])
        every = [x for x in names if dims(x) > 1] + [x for x in names if dims(x) == 1]
        n = sum(dims(x) > 1 for x in every)
        groups = [list(range(n)), list(range(n, len(every)))]
        return {"state": {i: {"step": M.STEP, "exp_avg": tensor("exp_avg", x), "exp_avg_sq": tensor("exp_avg_sq", x)}
                          for i, x in enumerate(every)},
                "param_groups": [{"params": g, "is_expert_parallel": is_expert} for g in groups if g]}

    def write(self):
        import argparse
        for t in range(self.tp):
            for p in range(self.pp):
                for r in range(self.ep):
                    if t // self.etp != r % max(self.tp // self.etp, 1): continue
                    names = self.names(p, r)
                    sets = [[x for x in names if (x[2] is not None) == e] for e in (False, True)]
                    tensor = lambda x: (lambda d, s: M.Tensor(M.Storage(d), s))(*self.local("fp32", x, t))
                    o = {"args": argparse.Namespace(
                        num_layers=L, hidden_size=H, num_attention_heads=HEADS, num_query_groups=KV,
                        group_query_attention=True, kv_channels=HD, vocab_size=V, tensor_model_parallel_size=self.tp,
                        pipeline_model_parallel_size=self.pp, expert_model_parallel_size=self.ep, num_experts=E,
                        expert_tensor_parallel_size=self.etp, swiglu=True, untie_embeddings_and_output_weights=True),
                        "checkpoint_version": 3.0, "iteration": 9,
                        "model": OrderedDict((file, tensor(x)) for x, file in names.items())}
                    folder = f"{self.dir}/iter_0000009/mp_rank_{t:02d}" + (f"_{p:03d}" if self.pp > 1 else "") + (
                        f"_{r:03d}" if self.ep > 1 else "")
                    if "distopt" in self.opts:
                        o["optimizer"] = [{"optimizer": {"param_groups": [{"step": 7, "is_expert_parallel": e}]}}
                                          for e in (False, True)]
                        M.save_to([self.buffer(sets[0], t) if r < self.tp // self.etp else None, self.buffer(sets[1], t)],
                                  folder + "/distrib_optim.pt")
                    else:
                        o["optimizer"] = [self.numbered(sets[e], t, bool(e)) for e in (0, 1)]
                    M.save_to(o, folder + "/model_optim_rng.pt")
        open(f"{self.dir}/latest_checkpointed_iteration.txt", "w").write("9")


def titan(dir, shapes, state, dp, ep, new):
    """Experts in boxes: their first dim over ep, their second over dp."""
    import io, os, pickle
    os.makedirs(dir)
    theirs = [("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"),
              ("model.layers", "layers"), ("self_attn.q_proj", "attention.wq"), ("self_attn.k_proj", "attention.wk"),
              ("self_attn.v_proj", "attention.wv"), ("self_attn.o_proj", "attention.wo"),
              ("self_attn", "attention"), ("input_layernorm", "attention_norm"), ("post_attention_layernorm", "ffn_norm"),
              ("mlp.gate.weight", "moe.router.gate.weight"), ("mlp.gate_proj", "feed_forward.w1"),
              ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2")]
    if new: theirs = [(a, b.replace("attention.w", "attention.qkv_linear.w") if b[-1] in "qkv" else b) for a, b in theirs]
    tensors = OrderedDict()
    for n, s in shapes.items():
        if ".mlp.experts." in n:
            at, part = n.split(".mlp.experts.")[0].replace("model.", ""), n.split(".")[-2]
            w = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[part]
            if new: w = {"w1": "w1_EFD", "w3": "w3_EFD", "w2": "w2_EDF"}[w]
            key = f"{at}.moe.{'routed_experts.inner_experts' if new else 'experts'}.{w}"
            tensors.setdefault(key, ((E,) + s, {k: b"" for k in M.KINDS}))
            for k in M.KINDS: tensors[key][1][k] += state[k][n]
            continue
        name = n
        for a, b in theirs: name = name.replace(a, b)
        tensors[name] = (s, {k: state[k][n] for k in M.KINDS})
    items, places, f = OrderedDict(), OrderedDict(), open(f"{dir}/__0_0.distcp", "wb")

    def put(key, start, size, data):
        b = io.BytesIO()
        M.save(M.Tensor(M.Storage(data), size), b)
        places[M.obj(M.MetadataIndex, fqn=key, offset=M.Size(start), index=0)] = M.obj(
            M._StorageInfo, relative_path="__0_0.distcp", offset=f.tell(), length=len(b.getvalue()))
        items[key].chunks.append(M.obj(M.ChunkStorageMetadata, offsets=M.Size(start), sizes=M.Size(size)))
        f.write(b.getvalue())

    def item(key, shape):
        items[key] = M.obj(M.TensorStorageMetadata, size=M.Size(shape), chunks=[],
                           properties=M.obj(M.TensorProperties, state=(M.float32, None, False, None, False, ())))

    for name, (shape, data) in tensors.items():
        for k in M.KINDS:
            key = name if k == "fp32" else f"optimizer.state.{name}.{k}"
            item(key, shape)
            row = len(data[k]) // shape[0]
            if len(shape) < 3:
                cut = -(-shape[0] // dp)
                for lo in range(0, shape[0], cut):
                    hi = min(lo + cut, shape[0])
                    put(key, (lo,) + (0,) * (len(shape) - 1), (hi - lo,) + tuple(shape[1:]), data[k][lo * row:hi * row])
                continue
            own, cut, col = shape[0] // ep, -(-shape[1] // dp), row // shape[1]
            for e in range(0, shape[0], own):
                for lo in range(0, shape[1], cut):
                    hi = min(lo + cut, shape[1])
                    put(key, (e, lo, 0), (own, hi - lo, shape[2]),
                        b"".join(data[k][x * row + lo * col:x * row + hi * col] for x in range(e, e + own)))
        item(f"optimizer.state.{name}.step", ())
        b = io.BytesIO()
        M.save(M.STEP, b)
        places[M.obj(M.MetadataIndex, fqn=f"optimizer.state.{name}.step", offset=M.Size(()), index=0)] = M.obj(
            M._StorageInfo, relative_path="__0_0.distcp", offset=f.tell(), length=len(b.getvalue()))
        items[f"optimizer.state.{name}.step"].chunks.append(
            M.obj(M.ChunkStorageMetadata, offsets=M.Size(()), sizes=M.Size(())))
        f.write(b.getvalue())
    f.close()
    with open(f"{dir}/.metadata", "wb") as g:
        pickle.Pickler(g, 4).dump(M.obj(M.Metadata, state_dict_metadata=items, planner_data=None,
                                        storage_data=places, version="1.0.0"))


def main(case, dir):
    os.makedirs(dir)
    kind, *rest = case.split("-")
    numbers = [int(x) for x in rest if x.isdigit()]
    shapes = shapes_of()
    state = M.state_of(shapes)
    json.dump(CONFIG, open(dir + "/config.json", "w"))
    M.universal(dir + "/universal", shapes, state)
    at = dir + "/ckpt"
    if kind == "moe": Moe(at, shapes, state, *numbers, "before" in rest).write("many" in rest)
    elif kind == "plain": Moe(at, shapes, state, numbers[0], numbers[0]).plain()
    elif kind == "auto2": Auto(at, shapes, state, *numbers).write2()
    elif kind == "auto3": Auto(at, shapes, state, *numbers).write3()
    elif kind == "legacy": Legacy(at, state, *numbers, rest).write()
    elif kind == "titan": titan(at, shapes, state, *numbers, "new" in rest)


if __name__ == "__main__":
    for one in sys.argv[2:]: main(one, f"{sys.argv[1]}/{one}")

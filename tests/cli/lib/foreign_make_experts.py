"""foreign_make_experts.py DIR CASE... - as foreign_make.py, for a small Qwen3-MoE whose experts are divided over
ranks: DIR/CASE/ckpt as the trainer would write it, DIR/CASE/universal whole and under Hugging Face's names.

moe-RANKS-EP[-before][-many]   DeepSpeed MoE, ZeRO-2; before: neighbouring ranks share experts; many: three
                               groups of experts
auto2-RANKS-EP, auto3-RANKS-EP DeepSpeed AutoEP with ZeRO-2 and ZeRO-3; experts lie in an order of their own"""
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
        for at, l in enumerate(self.layers):
            for e in range(E):
                self.save(f"layer_{at}_expert_{e}_mp_rank_00_model_states.pt", {
                    f"model.layers.{l}.mlp{place}{e}.{p}.weight":
                        M.Tensor(M.Storage(self.state["fp32"][f"model.layers.{l}.mlp.experts.{e}.{p}.weight"]), s)
                    for p, s in PARTS})
        self.finish()


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
    elif kind == "auto2": Auto(at, shapes, state, *numbers).write2()
    elif kind == "auto3": Auto(at, shapes, state, *numbers).write3()


if __name__ == "__main__":
    for one in sys.argv[2:]: main(one, f"{sys.argv[1]}/{one}")

"""foreign_experts.py CASE DIR - a small model with experts whose full state DeepSpeed's own engine trained a
few steps and saved: DIR/ckpt, DIR/config.json and DIR/ref.safetensors with the live state under Hugging
Face's names (weights, master., exp_avg., exp_avg_sq.), gathered from all ranks by DeepSpeed's own functions.
compare and the shapes of these files: foreign_real.py.

CASE: moe-RANKS-EP-STAGE, experts of deepspeed.moe.layer.MoE in files of their own; auto-RANKS-EP-STAGE, AutoEP
in a model of transformers; then options: bf16; grad32 (BF16_Optimizer); before (data before expert parallel);
small (several groups of experts); uni (DIR/ckpt is the universal form, converted by DeepSpeed).
The loss is a sum of products of each parameter with numbers of its own, so every value of the state is its
own, and a plain AdamW on whole tensors says what the state must be near."""
import glob, json, os, shutil, sys

import foreign_real as R

H, I, E, L, HEADS, KV, HD, V = 24, 10, 8, 3, 4, 2, 6, 59
STEPS = 3
CONFIG = dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=H, num_hidden_layers=L,
              num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HD, intermediate_size=I,
              moe_intermediate_size=I, num_experts=E, num_experts_per_tok=2, vocab_size=V, mlp_only_layers=[1],
              decoder_sparse_step=1, norm_topk_prob=True, rms_norm_eps=1e-6, rope_theta=10000.0,
              tie_word_embeddings=False, max_position_embeddings=64, hidden_act="silu")


def numbers(name, kind, shape):
    """Numbers of a tensor that no other tensor has."""
    import torch
    g = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name + "|" + kind)))
    return torch.randn(tuple(shape), generator=g) * 0.05


def hf_names(name, param, first):
    """A parameter under its name in a checkpoint: [(Hugging Face name, part of a tensor of its shape)]; first:
    the first expert of this rank."""
    moe = ".deepspeed_moe.experts.deepspeed_experts."
    if moe in name:
        head, tail = name.split(moe)
        local, rest = tail.split(".", 1)
        return [(f"{head}.experts.{first + int(local)}.{rest}", lambda t: t)]
    for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
        if name.endswith(".experts." + ours):
            return [(f"{name[:-2]}{first + i}.{theirs}.weight", lambda t, i=i: t[i])
                    for i in range(param.shape[0])]
    return [(name.replace(".deepspeed_moe.gate.wg.", ".gate.").replace(".router.gate.", ".gate."), lambda t: t)]


def fill(name, param, kind, first):
    """The numbers of a parameter, expert by expert."""
    import torch
    out = torch.empty(tuple(param.shape))
    for hf, part in hf_names(name, param, first):
        part(out).copy_(numbers(hf, kind, part(out).shape))
    return out


def moe_model(ep):
    """Qwen3-MoE's names, with DeepSpeed's MoE in place of the experts. No forward pass: see loss_of."""
    import torch
    from torch import nn
    from deepspeed.moe.layer import MoE

    def mlp(width):
        m = nn.Module()
        m.gate_proj, m.up_proj, m.down_proj = (nn.Linear(H, width, bias=False), nn.Linear(H, width, bias=False),
                                               nn.Linear(width, H, bias=False))
        return m

    def norm(n):
        m = nn.Module()
        m.weight = nn.Parameter(torch.ones(n))
        return m

    m, m.model = nn.Module(), nn.Module()
    m.model.embed_tokens, m.model.norm, m.lm_head = nn.Embedding(V, H), norm(H), nn.Linear(H, V, bias=False)
    m.model.layers = nn.ModuleList()
    for l in range(L):
        x, x.self_attn = nn.Module(), nn.Module()
        for k, n in (("q", HEADS), ("k", KV), ("v", KV)):
            setattr(x.self_attn, k + "_proj", nn.Linear(H, n * HD, bias=False))
        x.self_attn.o_proj = nn.Linear(HEADS * HD, H, bias=False)
        x.self_attn.q_norm, x.self_attn.k_norm = norm(HD), norm(HD)
        x.input_layernorm, x.post_attention_layernorm = norm(H), norm(H)
        x.mlp = mlp(I) if l in CONFIG["mlp_only_layers"] else MoE(H, mlp(I), num_experts=E, ep_size=ep, k=1)
        m.model.layers.append(x)
    return m


def auto_model():
    import transformers
    c = dict(CONFIG)
    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**c))


def worker(rank, world, dir, kind, ep, stage, extra):
    import torch, deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    m = moe_model(ep) if kind == "moe" else auto_model()
    edp = world // ep
    ep_rank = rank // edp if "before" in extra else rank % ep
    first = ep_rank * (E // ep)
    with torch.no_grad():
        for n, p in m.named_parameters():
            if kind == "moe" or n.split(".")[-1] not in ("gate_up_proj", "down_proj"):
                p.copy_(fill(n, p, "init", first))
                continue
            for e in range(E):  # transformers' fused form, whole in every rank
                def one(part):
                    return numbers(f"{n.rsplit('.', 1)[0]}.{e}.{part}.weight", "init",
                                   (I, H) if part != "down_proj" else (H, I))
                p[e] = one("down_proj") if n.endswith("down_proj") else torch.cat([one("gate_proj"), one("up_proj")])
    d = dict(train_micro_batch_size_per_gpu=1, train_batch_size=world, zero_allow_untested_optimizer=True,
             zero_force_ds_cpu_optimizer=False, steps_per_print=10**9, gradient_clipping=0.0,
             zero_optimization=dict(stage=stage, overlap_comm=False, contiguous_gradients=True))
    if "bf16" in extra: d["bf16"] = {"enabled": True}
    if "grad32" in extra: d["data_types"] = {"grad_accum_dtype": "fp32"}
    if "before" in extra: d["use_data_before_expert_parallelism"] = True
    if kind == "auto":
        d["expert_parallel"] = dict(enabled=True, autoep_size=ep, preset_model="qwen3_moe", use_grouped_mm=False)
        d["optimizer"] = dict(type="AdamW", params=dict(lr=R.LR, betas=R.BETAS, eps=R.EPS, weight_decay=R.DECAY,
                                                         torch_adam=True))
        args = dict(model_parameters=list(m.parameters()))
    else:
        from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split
        big = 4 * I * H if "small" in extra else 178956971
        groups = split({"params": list(m.parameters()), "name": "parameters"}, max_group_size=big)
        args = dict(optimizer=torch.optim.AdamW(groups, lr=R.LR, betas=R.BETAS, eps=R.EPS, weight_decay=R.DECAY))
    m.forward = lambda s: sum((p.float() * fill(n, p, f"g{s}", first)).sum() for n, p in params.items())
    e, *_ = deepspeed.initialize(model=m, config=d, **args)
    params = dict(m.named_parameters())
    for p in params.values() if stage == 3 else ():
        deepspeed.zero.register_external_parameter(m, p)  # whole during the forward pass of m
    for s in range(STEPS):
        e.backward(e(s))
        e.step()
    e.save_checkpoint(dir + "/ckpt")
    ref, narrow = {}, "bf16" in extra and stage < 3
    masters = {}
    if not stage and narrow:  # the optimizer around AdamW keeps a master of every parameter
        for ours, theirs in zip(e.optimizer.fp16_groups, e.optimizer.fp32_groups): masters.update(zip(ours, theirs))
    if hasattr(e.optimizer, "_lazy_init_hp_params_optimizer_state"):
        e.optimizer._hp_optimizer_states_linked = False  # linked after the first group's step: others lack it
        e.optimizer._lazy_init_hp_params_optimizer_state()
    for n, p in params.items():
        whole = {"": safe_get_full_fp32_param(p)} if stage else {"": masters.get(p, p)}
        for k in ("exp_avg", "exp_avg_sq"):
            whole[k + "."] = safe_get_full_optimizer_state(p, k) if stage else (
                e.optimizer.optimizer if masters else e.optimizer).state[masters.get(p, p)][k]
        if narrow: whole = {("master." if k == "" else k): v for k, v in whole.items()} | {"": p}
        for k, v in whole.items():
            for hf, part in hf_names(n, v, first):
                ref[k + hf] = part(v.detach()).clone()
    torch.save(ref, f"{dir}/ref.{rank}.pt")
    torch.distributed.barrier()
    if rank == 0: finish(dir, world, ep)
    torch.distributed.barrier()


def finish(dir, world, ep):
    """Joins the ranks' states, and checks them against AdamW on whole tensors."""
    import torch
    ref = {}
    for r in range(world):
        for k, v in torch.load(f"{dir}/ref.{r}.pt").items():
            assert k not in ref or torch.equal(ref[k], v), k
            ref[k] = v
        os.remove(f"{dir}/ref.{r}.pt")
    for k in [k for k in ref if not k.startswith(("exp_", "master."))]:
        p = torch.nn.Parameter(numbers(k, "init", ref[k].shape))
        o = torch.optim.AdamW([p], lr=R.LR, betas=R.BETAS, eps=R.EPS, weight_decay=R.DECAY)
        for s in range(STEPS):
            p.grad = numbers(k, f"g{s}", p.shape) / (ep if ".experts." in k else 1)  # a mean over all ranks
            o.step()
        near = ref.get("master." + k, ref[k])
        assert (near - p).abs().max() < 5e-3, f"{k} is not the parameter of this name"
        assert (ref["exp_avg." + k] - o.state[p]["exp_avg"]).abs().max() < 2e-3, k
    json.dump(CONFIG, open(dir + "/config.json", "w"))
    R.st_write(dir + "/ref.safetensors", ref)


def run(case, dir):
    os.makedirs(dir, exist_ok=True)
    kind, world, ep, stage, *extra = case.split("-")
    import torch, deepspeed
    if kind == "auto": import transformers
    R.launch(worker, int(world), dir, kind, int(ep), int(stage), extra)
    if "uni" in extra:
        tag = open(dir + "/ckpt/latest").read().strip()
        code = os.system(f"{sys.executable} -m deepspeed.checkpoint.ds_to_universal --input_folder {dir}/ckpt/{tag} "
                         f"--output_folder {dir}/universal --num_extract_workers 1 --num_merge_workers 1 >{dir}/log 2>&1")
        if code: sys.exit(open(dir + "/log").read()[-2000:])
        if "bf16" in extra:  # the converter keeps no bf16 weights of experts
            ref = {k: (d, s, b) for k, (d, s, b) in R.st_read(dir + "/ref.safetensors").items()}
            ref = {k: torch.frombuffer(bytearray(b), dtype=torch.float32).view(s) for k, (d, s, b) in ref.items()
                   if d == "F32"}
            R.st_write(dir + "/ref.safetensors", {k.removeprefix("master."): v for k, v in ref.items()})
        shutil.rmtree(dir + "/ckpt")
        os.rename(dir + "/universal", dir + "/ckpt")


CASES = """moe-2-2-1 moe-4-2-2 moe-4-4-2-bf16 moe-4-2-1-bf16-small moe-4-2-2-before moe-2-1-2 moe-4-2-1-bf16-grad32 moe-4-2-0 moe-2-2-0-bf16
auto-2-2-1 auto-4-2-2-bf16 auto-4-2-3 auto-2-2-3-bf16 auto-4-2-2-bf16-uni auto-4-2-3-uni""".split()

if __name__ == "__main__":
    if sys.argv[1] == "list":
        try: import deepspeed; print(" ".join(CASES))
        except ImportError: pass
    else: run(*sys.argv[1:3])

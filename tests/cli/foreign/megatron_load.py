"""What reshard writes for Megatron, loaded by megatron-core: every parameter, master and moment of every rank
must have the bits of the native checkpoint, the next step of the optimizer must be the one that they give, and
the loss must be that of transformers.

usage: megatron_load.py NATIVE HF WRITTEN JOB…    NATIVE: whole tensors with moments (tp 1, zero 0)
                                                  HF: the same weights, for transformers; - : no loss
JOB: KIND-TP-PP-EP-DP[-save=DIR]                  KIND: full (distributed optimizer), plain (the other one)
     save: megatron-core saves what it has loaded
A line for each: JOB ok. Without a GPU: what asks for CUDA gets the CPU."""
import contextlib, json, os, sys, warnings

warnings.filterwarnings("ignore")
import foreign_mcore as M
import foreign_real as R
import torch
os.environ["PEERS_RANK"] = "0"          # so that it imports what its ranks do
from foreign_peers import read_native, same

torch.set_num_threads(1)
GRAD, PAD = 2.0 ** -10, 16


def text_config(c, tp, pp, ep, dtype):
    """The config of megatron-core for a config.json."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    experts = c.get("num_local_experts") or c.get("num_experts") or c.get("n_routed_experts")
    kw = dict(num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"],
              num_attention_heads=c["num_attention_heads"], ffn_hidden_size=c["intermediate_size"],
              num_query_groups=c["num_key_value_heads"], normalization="RMSNorm",
              kv_channels=c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
              layernorm_epsilon=c.get("rms_norm_eps", 1e-6), gated_linear_unit=True,
              activation_func=torch.nn.functional.silu, add_bias_linear=False,
              add_qkv_bias=c["model_type"] in ("qwen2", "qwen2_moe"),
              qk_layernorm=c["model_type"] in ("qwen3", "qwen3_moe", "deepseek_v3"),
              tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
              params_dtype=dtype, pipeline_dtype=dtype, bf16=dtype == torch.bfloat16, hidden_dropout=0.0,
              attention_dropout=0.0, masked_softmax_fusion=False, bias_activation_fusion=False,
              bias_dropout_fusion=False, persist_layer_norm=False, gradient_accumulation_fusion=False,
              use_cpu_initialization=True)
    if experts:
        moe = c.get("moe_intermediate_size") or c["intermediate_size"]
        shared = c.get("shared_expert_intermediate_size") or moe * c.get("n_shared_experts", 0)
        kw.update(num_moe_experts=experts, moe_router_topk=c["num_experts_per_tok"], moe_ffn_hidden_size=moe,
                  moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none",
                  moe_router_pre_softmax=not c.get("norm_topk_prob", True),
                  moe_shared_expert_intermediate_size=shared or None,
                  moe_shared_expert_gate=c["model_type"] == "qwen2_moe")
        if c.get("first_k_dense_replace"):
            k, n = c["first_k_dense_replace"], c["num_hidden_layers"]
            kw.update(moe_layer_freq=[0] * k + [1] * (n - k))
    if c["model_type"] != "deepseek_v3":
        return TransformerConfig(**kw)
    kw.update(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
              moe_router_pre_softmax=False, moe_router_num_groups=c["n_group"],
              moe_router_group_topk=c["topk_group"], moe_router_topk_scaling_factor=c["routed_scaling_factor"])
    return MLATransformerConfig(multi_latent_attention=True, q_lora_rank=c["q_lora_rank"],
                                kv_lora_rank=c["kv_lora_rank"], qk_head_dim=c["qk_nope_head_dim"],
                                qk_pos_emb_head_dim=c["qk_rope_head_dim"], v_head_dim=c["v_head_dim"],
                                rope_type="rope", rotary_base=theta(c), **kw)


def padded(c):
    from megatron.core import parallel_state as ps
    unit = PAD * ps.get_tensor_model_parallel_world_size()
    return -(-c["vocab_size"] // unit) * unit


def theta(c):
    return c.get("rope_theta") or c["rope_parameters"]["rope_theta"]


class Attention(torch.nn.Module):
    """Attention with values of their own width: megatron-core has it only in Transformer Engine."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, softmax_scale=None, **kw):
        super().__init__()
        self.scale = softmax_scale

    def forward(self, q, k, v, *args, **kw):
        s, b = q.shape[:2]
        x = torch.einsum("sbnd,tbnd->bnst", q, k) * (self.scale or q.shape[-1] ** -0.5)
        x = x.masked_fill(torch.ones(s, s).triu(1).bool(), -1e9).softmax(-1)
        return torch.einsum("bnst,tbnd->sbnd", x, v).reshape(s, b, -1)


def build(c, tp, pp, ep, dtype):
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    import megatron.core.transformer.multi_latent_attention as mla
    mla.TELinear = type("TELinear", (), {})
    cfg = text_config(c, tp, pp, ep, dtype)
    spec = get_gpt_decoder_block_spec(cfg, use_transformer_engine=False, normalization="RMSNorm")
    for l in spec.layer_specs:
        if c["model_type"] == "deepseek_v3":
            l.submodules.self_attention.submodules.core_attention = Attention
    vocab = padded(c)
    return cfg, GPTModel(cfg, spec, vocab_size=vocab, max_sequence_length=c["max_position_embeddings"],
                         pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage(),
                         share_embeddings_and_output_weights=bool(c.get("tie_word_embeddings")),
                         position_embedding_type="rope", rotary_base=theta(c)), vocab


def whole(c, get, name, vocab):
    """A parameter in megatron-core's own layout, from tensors under Hugging Face names; get(name)."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        t = get("lm_head.weight" if name[0] == "o" and not c.get("tie_word_embeddings") else
                "model.embed_tokens.weight")
        return torch.cat([t, torch.zeros(vocab - len(t), *t.shape[1:], dtype=t.dtype)])
    if name == "decoder.final_layernorm.weight": return get("model.norm.weight")
    _, _, layer, rest = name.split(".", 3)
    p = f"model.layers.{layer}."
    moe = p + ("block_sparse_moe." if c["model_type"] == "mixtral" else "mlp.")
    if rest in ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias"):
        n, g = c["num_attention_heads"], c["num_key_value_heads"]
        q, k, v = (get(p + f"self_attn.{x}_proj.{rest[26:]}") for x in "qkv")
        d = q.shape[0] // n
        return torch.cat([torch.cat([q[i * n // g * d:(i + 1) * n // g * d], k[i * d:(i + 1) * d],
                                     v[i * d:(i + 1) * d]]) for i in range(g)])
    if rest.endswith("linear_fc1.weight"):
        at = {"mlp.linear_fc1.weight": p + "mlp.",
              "mlp.shared_experts.linear_fc1.weight":
              p + ("mlp.shared_expert." if "qwen" in c["model_type"] else "mlp.shared_experts.")}.get(rest)
        if at is None: at = moe + f"experts.{rest.split('.')[2]}."
        gate, up = ("w1", "w3") if c["model_type"] == "mixtral" and "experts" in rest else ("gate_proj",
                                                                                            "up_proj")
        return torch.cat([get(at + gate + ".weight"), get(at + up + ".weight")])
    if rest.endswith("linear_fc2.weight") and "experts." in rest:
        if "shared" in rest:
            return get(p + ("mlp.shared_expert." if "qwen" in c["model_type"] else "mlp.shared_experts.") +
                       "down_proj.weight")
        return get(moe + f"experts.{rest.split('.')[2]}." + ("w2" if c["model_type"] == "mixtral" else
                                                             "down_proj") + ".weight")
    a = "self_attn."
    latent = c["model_type"] == "deepseek_v3"
    return get({"input_layernorm.weight": p + "input_layernorm.weight",
                "pre_mlp_layernorm.weight": p + "post_attention_layernorm.weight",
                "self_attention.linear_proj.weight": p + a + "o_proj.weight",
                "self_attention.q_layernorm.weight": p + a + ("q_a_layernorm" if latent else "q_norm") +
                ".weight",
                "self_attention.k_layernorm.weight": p + a + "k_norm.weight",
                "self_attention.kv_layernorm.weight": p + a + "kv_a_layernorm.weight",
                "self_attention.linear_q_proj.weight": p + a + "q_proj.weight",
                "self_attention.linear_q_down_proj.weight": p + a + "q_a_proj.weight",
                "self_attention.linear_q_up_proj.weight": p + a + "q_b_proj.weight",
                "self_attention.linear_kv_down_proj.weight": p + a + "kv_a_proj_with_mqa.weight",
                "self_attention.linear_kv_up_proj.weight": p + a + "kv_b_proj.weight",
                "mlp.linear_fc2.weight": p + "mlp.down_proj.weight",
                "mlp.router.weight": moe + "gate.weight",
                "mlp.router.expert_bias": moe + "gate.e_score_correction_bias",
                "mlp.shared_experts.gate_weight": p + "mlp.shared_expert_gate.weight"}[rest])


class Source:
    """The tensors of the native checkpoint as this rank must have them."""

    def __init__(self, c, native, model, vocab):
        from megatron.core import parallel_state as ps
        self.c, self.native, self.vocab, self.ps = c, native, vocab, ps
        self.first = model.decoder.layers[0].layer_number - 1

    def name(self, n):
        w = n.split(".")
        if n.startswith("decoder.layers."): w[2] = str(int(w[2]) + self.first)
        if "local_experts" in n:
            ep, e = self.ps.get_expert_model_parallel_world_size(), (self.c.get("num_local_experts") or
                self.c.get("num_experts") or self.c.get("n_routed_experts"))
            w[6] = str(int(w[6]) + self.ps.get_expert_model_parallel_rank() * e // ep)
            del w[5]
        return ".".join(w)

    def local(self, n, p, kind):
        prefix = {"param": "master.", "weight": ""}.get(kind, kind + ".")
        get = lambda x: self.native[prefix + x if prefix + x in self.native else x]
        x = whole(self.c, get, self.name(n), self.vocab)
        tp, t = self.ps.get_tensor_model_parallel_world_size(), self.ps.get_tensor_model_parallel_rank()
        d = getattr(p, "partition_dim", -1)
        if tuple(x.shape) == tuple(p.shape) or d not in (0, 1): return x
        if "linear_fc1" in n: return torch.cat([y.chunk(tp)[t] for y in x.chunk(2)])
        return x.chunk(tp, d)[t].contiguous()


def states(opt, named, distributed):
    """Pairs (name, parameter, its optimizer's tensors, the elements that this rank has)."""
    for n, p in named:
        for o in getattr(opt, "chained_optimizers", [opt]):
            if distributed:
                if p not in o.model_param_gbuf_map: continue
                r = o._get_model_param_range_map(p)["param"]
                yield n, p, o, o._get_main_param_and_optimizer_states(p), slice(r.start, r.end)
            else:
                q = getattr(p, "main_param", p)
                if q in o.optimizer.state: yield n, p, o, {"param": q, **o.optimizer.state[q]}, slice(None)


def check_step(opt, named, distributed, source, run, step):
    """One step with GRAD times the parameter as gradient."""
    for n, p in named: p.main_grad.copy_(source.local(n, p, "param").float() * GRAD)
    opt.step()
    for n, p, o, s, at in states(opt, named, distributed):
        x, m, v = (source.local(n, p, k).double().reshape(-1)[at] for k in ("param", "exp_avg", "exp_avg_sq"))
        b1, b2, g = run["beta1"], run["beta2"], x * GRAD
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        decay = run["weight-decay"] if p.dim() > 1 else 0
        want = x * (1 - run["lr"] * decay) - run["lr"] * (m / (1 - b1 ** step)) / ((v / (1 - b2 ** step)).sqrt() +
            run["eps"])
        worst = float((s["param"].double().reshape(-1) - want).abs().max()) if len(want) else 0
        assert worst < 1e-6, f"{n}: the next step of the optimizer differs by {worst:g}"


def keep_step():
    """megatron-core 0.16.1 without Transformer Engine asks the checkpoint for the step of a parameter, which
    is in param_groups, and its load_state_dict has given all parameters one tensor as step just before."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer as D
    take = D._set_main_param_and_optimizer_states

    def with_step(self, p, tensors):
        group, order = self.model_param_group_index_map[p]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        state["step"] = state["step"].clone()
        take(self, p, {"step": state["step"], **tensors})

    D._set_main_param_and_optimizer_states = with_step


def one(rank, world, job, native_dir, hf, written):
    import torch.distributed as dist
    dist.init_process_group("gloo")
    keep_step()
    from megatron.core import dist_checkpointing, parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel as DDP, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.safe_globals import register_safe_globals
    from megatron.core.tensor_parallel import random as mr
    register_safe_globals()
    kind, *degrees = job.split("-save=")[0].split("-")
    tp, pp, ep, dp = map(int, degrees)
    ps.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    try: mr.model_parallel_cuda_manual_seed(1)
    except RuntimeError: pass                   # it wants a device; all values are loaded
    from megatron.core.transformer.moe import moe_utils
    moe_utils.te_general_gemm = None            # used where it is not defined
    mr.get_cuda_rng_tracker().fork = lambda *a: contextlib.nullcontext()
    c = json.load(open(written + "/config.json"))
    native, state = read_native(native_dir)
    run = {k: float.fromhex(v) if isinstance(v, str) and "0x" in v else v for k, v in state["run"].items()}
    dtype, distributed = native["model.norm.weight"].dtype, kind == "full"
    cfg, model, vocab = build(c, tp, pp, ep, dtype)
    outer = model
    if dtype == torch.bfloat16:
        from megatron.core.transformer.module import Float16Module
        outer = Float16Module(cfg, model)
    ddp = DDP(cfg, DistributedDataParallelConfig(use_distributed_optimizer=distributed,
                                                 grad_reduce_in_fp32=True), outer)
    opt = get_megatron_optimizer(OptimizerConfig(lr=0.5, adam_beta1=0.1, adam_beta2=0.2, adam_eps=1e-3,
                                                 weight_decay=0.9, bf16=dtype == torch.bfloat16,
                                                 params_dtype=dtype, use_distributed_optimizer=distributed,
                                                 clip_grad=0.0), [ddp])
    named = list(model.named_parameters())
    for n, p in named: p.main_grad.zero_()
    opt.step()
    torch.set_grad_enabled(False)
    for n, p in named: p.data.fill_(7)

    meta = dist_checkpointing.load_content_metadata(written)
    meta["dp_cp_group"] = ps.get_data_parallel_group(with_context_parallel=True)
    sd = {"model": outer.sharded_state_dict(metadata=meta)}
    sd["optimizer"] = opt.sharded_state_dict(sd, is_loading=True, metadata=meta)
    got = dist_checkpointing.load(sd, written)
    assert got["iteration"] == state["step"] and got["checkpoint_version"] == 3.0
    outer.load_state_dict(got["model"])
    opt.load_state_dict(got["optimizer"])

    source, seen = Source(c, native, model, vocab), 0
    buffers = [(n, b) for n, b in model.named_buffers() if n.endswith("expert_bias")]
    for n, p in named + buffers: same(n, p.data, source.local(n, p, "weight").to(p.dtype))
    for n, p, o, s, at in states(opt, named, distributed):
        for k in ("param", "exp_avg", "exp_avg_sq"):
            same(f"{k} of {n}", s[k].detach().reshape(-1), source.local(n, p, k).float().reshape(-1)[at])
            seen += 1
    assert seen or world > 1, "no optimizer state was compared"
    if "-save=" in job:             # before anything is computed: it forks
        save(job.split("-save=")[1], rank, outer, opt, got, distributed, meta)
    if hf != "-" and pp == 1: check_loss(outer.eval(), c, hf, dtype)
    check_step(opt, named, distributed, source, run, state["step"] + 1)
    dist.barrier()
    if rank == 0: print(job, "ok", flush=True)
    dist.barrier()
    R.end_children()
    os._exit(0)


def tokens(c):
    return torch.tensor([[(i * i * 7 + 3 * i) % c["vocab_size"] for i in range(24)]])


def check_loss(model, c, hf, dtype):
    ids = tokens(c)
    want = json.load(open(hf + "/loss"))[str(padded(c) - c["vocab_size"])]
    mask = torch.ones(23, 23).triu(1).bool()[None, None]
    have = float(model(ids[:, :-1], torch.arange(23)[None], mask, labels=ids[:, 1:]).float().mean())
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-4
    assert abs(have - want) < bound, f"the loss is {have:.6f}, transformers has {want:.6f}"


def write_loss(hf):
    """In a process of its own: transformers would import what ranks replace. Megatron's loss counts the padding
    rows of the vocabulary, whose logits are 0: a loss for each number of such rows."""
    import subprocess
    ids = tokens(json.load(open(hf + "/config.json"))).tolist()
    code = ("import sys, torch, transformers\n"
            "m = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()\n"
            f"x = torch.tensor({ids})\n"
            "with torch.no_grad(): y = m(x).logits.float()\n"
            "f = torch.nn.functional\n"
            "print({str(n): float(f.cross_entropy(f.pad(y[0, :-1], (0, n)), x[0, 1:])) for n in range(64)})\n")
    out = subprocess.run([sys.executable, "-c", code, hf], stdout=subprocess.PIPE, check=True, text=True)
    json.dump(eval(out.stdout.splitlines()[-1]), open(hf + "/loss", "w"))


def save(to, rank, model, opt, got, distributed, meta):
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    if rank == 0: os.makedirs(to, exist_ok=True)
    dist.barrier()
    sd = model.sharded_state_dict(metadata=meta)
    o = opt.sharded_state_dict(sd, metadata=meta) if distributed else opt.sharded_state_dict(sd)
    meta = {k: v for k, v in meta.items() if k != "dp_cp_group"}
    dist_checkpointing.save({"model": sd, "optimizer": o, "args": got["args"], "iteration": got["iteration"],
                             "checkpoint_version": 3.0}, to, content_metadata=meta)


if __name__ == "__main__":
    native, hf, written, *jobs = sys.argv[1:]
    if hf != "-": write_loss(hf)
    for job in jobs:
        tp, pp, ep, dp = map(int, job.split("-save=")[0].split("-")[1:])
        R.launch(one, tp * pp * dp, job, native, hf, written)

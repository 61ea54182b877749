"""foreign_mcore_experts.py KIND-TP-PP-EP-DP[-options] DIR - as foreign_mcore.py, for a small model with experts:
its full state is set to known values inside megatron-core's own model and optimizer at those degrees and saved
by megatron-core.

KIND: dpresh, full (torch_dist with a distributed optimizer), plain (torch_dist, its other optimizer), legacy,
legacydist (folders of ranks). DP: data-parallel ranks in all, EP divides DP. Options: bf16; mla (DeepSeek-V3:
latent attention, router bias, shared experts); shared (Qwen2-MoE's shared expert with its gate); dense (the
first layer is dense); single (metadata singleton_local_shards); noprefix (chained_optim_avoid_prefix);
etpN (experts are cut over N ranks); old (GroupedMLP: the experts of a rank in weight1 and weight2)."""
import json, os, sys

import foreign_mcore as C
import foreign_real as R
import torch

torch.cuda.get_rng_state = lambda *a: torch.get_rng_state()
torch.cuda.set_rng_state = lambda state, *a: torch.set_rng_state(state)
torch.cuda.manual_seed = torch.manual_seed

L, H, NH, NG, HD, F, FE, E, V, PAD = 2, 32, 8, 4, 4, 24, 20, 4, 59, 64
MLA = dict(q_lora_rank=12, kv_lora_rank=8, qk_head_dim=4, qk_pos_emb_head_dim=2, v_head_dim=4)
SHARED = 2 * FE


def rows_of(opts):
    """Shape of the whole tensor by its name in a layer; experts.# is one expert."""
    rows = {"input_layernorm.weight": (H,), "pre_mlp_layernorm.weight": (H,), "mlp.linear_fc1.weight": (2 * F, H),
            "mlp.linear_fc2.weight": (H, F), "mlp.router.weight": (E, H), "mlp.router.expert_bias": (E,),
            "mlp.experts.#.linear_fc1.weight": (2 * FE, H), "mlp.experts.#.linear_fc2.weight": (H, FE),
            "mlp.shared_experts.linear_fc1.weight": (2 * SHARED, H), "mlp.shared_experts.linear_fc2.weight": (H, SHARED),
            "mlp.shared_experts.gate_weight": (1, H)}
    if "mla" in opts:
        qk = MLA["qk_head_dim"] + MLA["qk_pos_emb_head_dim"]
        rows |= {"self_attention.linear_q_down_proj.weight": (MLA["q_lora_rank"], H),
                 "self_attention.q_layernorm.weight": (MLA["q_lora_rank"],),
                 "self_attention.linear_q_up_proj.weight": (NH * qk, MLA["q_lora_rank"]),
                 "self_attention.linear_kv_down_proj.weight": (MLA["kv_lora_rank"] + MLA["qk_pos_emb_head_dim"], H),
                 "self_attention.kv_layernorm.weight": (MLA["kv_lora_rank"],),
                 "self_attention.linear_kv_up_proj.weight": (NH * (MLA["qk_head_dim"] + MLA["v_head_dim"]),
                                                              MLA["kv_lora_rank"]),
                 "self_attention.linear_proj.weight": (H, NH * MLA["v_head_dim"])}
    else:
        rows |= {"self_attention.linear_qkv.weight": ((NH + 2 * NG) * HD, H), "self_attention.linear_proj.weight": (H, NH * HD),
                 "self_attention.q_layernorm.weight": (HD,), "self_attention.k_layernorm.weight": (HD,)}
    if "shared" in opts:  # Qwen2-MoE has biases, and no norms of queries and keys
        rows = {k: v for k, v in rows.items() if "_layernorm" not in k or "self_att" not in k}
        rows["self_attention.linear_qkv.bias"] = ((NH + 2 * NG) * HD,)
    return rows


TOP = {"embedding.word_embeddings.weight": (PAD, H), "decoder.final_layernorm.weight": (H,), "output_layer.weight": (PAD, H)}


def full(name, kind, rows):
    """The whole tensor of a global name: decoder.layers.3.mlp.experts.5.linear_fc1.weight."""
    w = name.split(".")
    key = ".".join(w[3:5] + ["#"] + w[6:]) if ".experts." in name else ".".join(w[3:])
    g = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name + kind)))
    x = torch.randn(TOP.get(name) or rows[key], generator=g) * 0.05
    return x.abs() if kind == "exp_avg_sq" else x


def is_dense(layer, opts): return "dense" in opts and layer == 0


def layer_names(layer, opts):
    rows = rows_of(opts)
    names = [n for n in rows if not n.startswith("mlp.")]
    if is_dense(layer, opts): return names + ["mlp.linear_fc1.weight", "mlp.linear_fc2.weight"]
    names += ["mlp.router.weight"] + [n.replace("#", str(e)) for n in rows if "#" in n for e in range(E)]
    if "mla" in opts: names.append("mlp.router.expert_bias")
    if "mla" in opts or "shared" in opts: names += [n for n in rows if "shared_experts.linear" in n]
    if "shared" in opts: names.append("mlp.shared_experts.gate_weight")
    return names


def to_hf(opts, bf16):
    rows, out = rows_of(opts), {}
    simple = {"self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
              "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
              "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
              "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
              "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
              "self_attention.linear_proj.weight": "self_attn.o_proj.weight", "mlp.router.weight": "mlp.gate.weight",
              "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
              "self_attention.q_layernorm.weight": "self_attn.q_a_layernorm.weight" if "mla" in opts
              else "self_attn.q_norm.weight",
              "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
              "pre_mlp_layernorm.weight": "post_attention_layernorm.weight", "input_layernorm.weight": "input_layernorm.weight",
              "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate.weight"}
    shared = "mlp.shared_experts" if "mla" in opts else "mlp.shared_expert"
    for kind in C.KINDS:
        pre = "" if kind == "param" else kind + "."
        put = {}
        for n, hf in (("embedding.word_embeddings.weight", "model.embed_tokens.weight"), ("output_layer.weight", "lm_head.weight"),
                      ("decoder.final_layernorm.weight", "model.norm.weight")):
            put[hf] = full(n, kind, rows)[:V] if "norm" not in n else full(n, kind, rows)
        for l in range(L):
            for n in layer_names(l, opts):
                x, p = full(f"decoder.layers.{l}.{n}", kind, rows), f"model.layers.{l}."
                if n.startswith("self_attention.linear_qkv"):
                    qkv, end, rest = x.view(NG, NH // NG + 2, HD, -1), n.rsplit(".", 1)[1], tuple(x.shape[1:])
                    put[p + f"self_attn.q_proj.{end}"] = qkv[:, :-2].reshape((-1,) + rest)
                    put[p + f"self_attn.k_proj.{end}"] = qkv[:, -2].reshape((-1,) + rest)
                    put[p + f"self_attn.v_proj.{end}"] = qkv[:, -1].reshape((-1,) + rest)
                elif "linear_fc" in n:
                    at = p + n[:n.index("linear_fc")].replace("mlp.shared_experts", shared)
                    if "fc2" in n: put[at + "down_proj.weight"] = x
                    else: put[at + "gate_proj.weight"], put[at + "up_proj.weight"] = x.chunk(2)
                elif "expert_bias" not in n or kind == "param": put[p + simple[n]] = x
        for k, v in put.items():
            v = v.contiguous()
            if kind == "param" and bf16 and "e_score" not in k: out["master." + k], v = v, v.to(torch.bfloat16)
            out[pre + k] = v
    return out


def config_of(opts):
    c = dict(hidden_size=H, num_hidden_layers=L, num_attention_heads=NH, intermediate_size=F, moe_intermediate_size=FE,
             num_experts_per_tok=2, vocab_size=V, rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=64)
    if "mla" in opts:
        return c | dict(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], n_routed_experts=E,
                        num_key_value_heads=NH, n_shared_experts=2, first_k_dense_replace=int("dense" in opts),
                        q_lora_rank=MLA["q_lora_rank"], kv_lora_rank=MLA["kv_lora_rank"],
                        qk_nope_head_dim=MLA["qk_head_dim"], qk_rope_head_dim=MLA["qk_pos_emb_head_dim"],
                        v_head_dim=MLA["v_head_dim"], n_group=1, topk_group=1, routed_scaling_factor=1.0, norm_topk_prob=True)
    kind = ("qwen2_moe", "Qwen2MoeForCausalLM") if "shared" in opts else ("qwen3_moe", "Qwen3MoeForCausalLM")
    return c | dict(model_type=kind[0], architectures=[kind[1]], num_experts=E, num_key_value_heads=NG, head_dim=HD,
                    shared_expert_intermediate_size=SHARED, norm_topk_prob=True, decoder_sparse_step=1,
                    mlp_only_layers=[0] if "dense" in opts else [])


def worker(rank, world, dir, kind, tp, pp, ep, opts):
    import argparse
    import torch.distributed as dist
    dist.init_process_group("gloo")
    from megatron.core import dist_checkpointing, parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel as DDP, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel import random as mr
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    etp = next((int(o[3:]) for o in opts if o.startswith("etp")), tp)
    ps.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
    mr.model_parallel_cuda_manual_seed(1)
    bf16, distopt, mla = "bf16" in opts, kind in ("dpresh", "full", "legacydist"), "mla" in opts
    dt, rows = torch.bfloat16 if bf16 else torch.float32, rows_of(opts)
    one = dict(MLA, multi_latent_attention=True, rope_type="rope", moe_router_score_function="sigmoid",
               moe_router_enable_expert_bias=True, moe_shared_expert_intermediate_size=SHARED) if mla else {}
    if "shared" in opts: one = dict(moe_shared_expert_intermediate_size=SHARED, moe_shared_expert_gate=True)
    from megatron.core.transformer import dot_product_attention as dot
    plain = dot.DotProductAttention.__init__  # the local attention has no use for the sizes of latent attention

    def init(self, *a, **k):
        for name in ("k_channels", "v_channels"): k.pop(name, None)
        plain(self, *a, **k)

    dot.DotProductAttention.__init__ = init
    from megatron.core.transformer import multi_latent_attention as latent
    latent.HAVE_TE = False
    from megatron.core.transformer.moe import experts
    experts.gg.assert_grouped_gemm_is_available = lambda: None  # it is for the forward pass
    cfg = (MLATransformerConfig if mla else TransformerConfig)(
        num_layers=L, hidden_size=H, num_attention_heads=NH, num_query_groups=NH if mla else NG,
        kv_channels=None if mla else HD, ffn_hidden_size=F, moe_ffn_hidden_size=FE, num_moe_experts=E, moe_router_topk=2,
        moe_layer_freq=[int(not is_dense(l, opts)) for l in range(L)], qk_layernorm="shared" not in opts,
        moe_grouped_gemm="old" in opts, moe_use_legacy_grouped_gemm="old" in opts, moe_token_dispatcher_type="alltoall", use_cpu_initialization=True, pipeline_dtype=dt, params_dtype=dt, bf16=bf16,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp, normalization="RMSNorm", gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, add_qkv_bias="shared" in opts, hidden_dropout=0.0, attention_dropout=0.0,
        masked_softmax_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False, persist_layer_norm=False,
        gradient_accumulation_fusion=False, **one)
    spec = get_gpt_decoder_block_spec(cfg, use_transformer_engine=False)
    m = GPTModel(cfg, spec, vocab_size=PAD, max_sequence_length=32, pre_process=ps.is_pipeline_first_stage(),
                 post_process=ps.is_pipeline_last_stage(), share_embeddings_and_output_weights=False,
                 position_embedding_type="rope")
    if bf16:
        from megatron.core.transformer.module import Float16Module
        m = Float16Module(cfg, m)
    inner = m.module if bf16 else m
    ddp = DDP(cfg, DistributedDataParallelConfig(use_distributed_optimizer=distopt), m)
    opt = get_megatron_optimizer(OptimizerConfig(lr=1e-3, bf16=bf16, params_dtype=dt, use_distributed_optimizer=distopt,
                                                 clip_grad=0.0), [ddp])
    first, t = ps.get_pipeline_model_parallel_rank() * (L // pp), ps.get_tensor_model_parallel_rank()
    e0 = ps.get_expert_model_parallel_rank() * (E // ep)

    def local(n, p, kind):
        w = n.split(".")
        if n.startswith("decoder.layers."): w[2] = str(int(w[2]) + first)
        if w[-1] in ("weight1", "weight2"):  # the experts one after another, each [in][out]
            fc, i = f"linear_fc{w[-1][-1]}.weight", ps.get_expert_tensor_parallel_rank()
            each = [full(".".join(w[:-1] + [str(e), fc]), kind, rows) for e in range(e0, e0 + E // ep)]
            each = [torch.cat([y.chunk(etp)[i] for y in x.chunk(2)]) if fc[9] == "1" else x.chunk(etp, 1)[i] for x in each]
            return torch.stack([x.T for x in each]).reshape(p.shape)
        if ".local_experts." in n:
            at = w.index("local_experts")
            w[at:at + 2] = [str(int(w[at + 1]) + e0)]
        x, d, k, i = full(".".join(w), kind, rows), getattr(p, "partition_dim", -1), tp, t
        if "_experts" in n and "shared" not in n: k, i = etp, ps.get_expert_tensor_parallel_rank()
        if "fc1" in n: return torch.cat([y.chunk(k)[i] for y in x.chunk(2)])
        return x.chunk(k, d)[i].contiguous() if d in (0, 1) and tuple(p.shape) != tuple(x.shape) else x

    named = list(inner.named_parameters())
    for n, p in named: p.main_grad.zero_()
    opt.step()
    torch.set_grad_enabled(False)
    chained = getattr(opt, "chained_optimizers", [opt])
    for n, p in named:
        p.data.copy_(local(n, p, "param").to(dt))
        for o in chained:
            if distopt:
                if p not in o.model_param_gbuf_map: continue
                try: x = o._get_main_param_and_optimizer_states(p)
                except KeyError: continue
                r = o._get_model_param_range_map(p)["param"]
                for k in C.KINDS: x[k].copy_(local(n, p, k).reshape(-1)[r.start:r.end])
            else:
                q = getattr(p, "main_param", p) if bf16 else p
                st = o.optimizer.state
                if q not in st: continue
                for k in C.KINDS: (q.data if k == "param" else st[q][k]).copy_(local(n, p, k))
    for x in inner.modules():
        if hasattr(x, "_maintain_float32_expert_bias"): x._maintain_float32_expert_bias()
    for n, b in inner.named_buffers():
        if n.endswith("expert_bias"): b.copy_(local(n, b, "param"))
    args = argparse.Namespace(
        num_layers=L, hidden_size=H, num_attention_heads=NH, num_query_groups=NH if mla else NG,
        group_query_attention=not mla, position_embedding_type="rope", kv_channels=HD, ffn_hidden_size=F, vocab_size=V,
        padded_vocab_size=PAD, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp, moe_grouped_gemm="old" in opts, moe_use_legacy_grouped_gemm="old" in opts,
        transformer_impl="local", num_experts=E, multi_latent_attention=mla, swiglu=True, untie_embeddings_and_output_weights=True, iteration=1, lr=1e-3)
    base = dir + "/ckpt/iter_0000001"
    if rank == 0:
        os.makedirs(base, exist_ok=True)
        open(dir + "/ckpt/latest_checkpointed_iteration.txt", "w").write("1")
    dist.barrier()
    if kind in ("dpresh", "full", "plain"):
        meta = {"singleton_local_shards": "single" in opts, "chained_optim_avoid_prefix": "noprefix" in opts}
        if distopt: meta["distrib_optim_sharding_type"] = "dp_reshardable" if kind == "dpresh" else "fully_reshardable"
        sd = m.sharded_state_dict(metadata=meta)
        o = opt.sharded_state_dict(sd, metadata=meta)
        dist_checkpointing.save({"model": sd, "optimizer": o, "args": args, "iteration": 1,
                                 "checkpoint_version": 3.0, "content_metadata": meta}, base)
    else:
        # as get_checkpoint_name of megatron.training names it
        d = base + f"/mp_rank_{t:02d}" + (f"_{ps.get_pipeline_model_parallel_rank():03d}" if pp > 1 else "") + (
            f"_{ps.get_expert_model_parallel_rank():03d}" if ep > 1 else "")
        writes = ps.get_expert_data_parallel_rank() == 0
        if writes: os.makedirs(d, exist_ok=True)
        dist.barrier()
        if distopt: opt.save_parameter_state(d + "/distrib_optim.pt")
        if writes:
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 1,
                        "model": m.state_dict_for_save_checkpoint(), "optimizer": opt.state_dict()},
                       d + "/model_optim_rng.pt")
    dist.barrier()
    if rank == 0:
        R.st_write(dir + "/ref.safetensors", to_hf(opts, bf16))
        json.dump(config_of(opts), open(dir + "/config.json", "w"))


if __name__ == "__main__":
    case, dir = sys.argv[1:3]
    kind, tp, pp, ep, dp, *opts = case.split("-")
    R.launch(worker, int(tp) * int(pp) * int(dp), dir, kind, int(tp), int(pp), int(ep), opts)

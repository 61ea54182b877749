"""foreign_mcore.py KIND-TP-PP-DP[-bf16][-tied][-buckets][-gpt2] DIR - a small model's full state, set to
known values inside megatron-core's own model and optimizer at those degrees and saved by megatron-core:
DIR/ckpt, DIR/config.json, DIR/ref.safetensors (what foreign_real.py compare takes).

KIND: dpresh, full (torch_dist with a distributed optimizer: dp_reshardable, fully_reshardable), plain
(torch_dist, its other optimizer), legacy, legacydist (folders of ranks). Without a GPU: what asks for CUDA
gets the CPU. buckets: gradients overlap, so the flat buffer has several."""
import os, sys
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
import foreign_real as R
import torch
def stub():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.is_available = lambda: False
    torch.cuda.set_device = lambda *a: None
    torch.cuda.get_device_capability = lambda *a: (8, 0)
    torch.cuda.empty_cache = lambda: None
    class S:
        def __init__(s,*a,**k): pass
        def wait_stream(s,*a): pass
        def wait_event(s,*a): pass
        def record_event(s,*a): return s
        def synchronize(s): pass
        def __enter__(s): return s
        def __exit__(s,*a): pass
    torch.cuda.Stream = S; torch.cuda.Event = S
    torch.cuda.current_stream = lambda *a: S(); torch.cuda.default_stream = lambda *a: S()
    import contextlib
    torch.cuda.stream = lambda *a: contextlib.nullcontext()
    torch.Tensor.cuda = lambda s, *a, **k: s
    torch.nn.Module.cuda = lambda s, *a, **k: s
    torch.cuda.nvtx = type("N", (),
                           {"range_push": staticmethod(lambda *a: None),
                            "range_pop": staticmethod(lambda *a: None)})
stub()
from torch.overrides import TorchFunctionMode
class ToCpu(TorchFunctionMode):
    def __torch_function__(self, f, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")): kwargs["device"] = "cpu"
        args = tuple("cpu" if isinstance(a, (str, torch.device)) and str(a).startswith("cuda") else a
                     for a in args)
        return f(*args, **kwargs)
ToCpu().__enter__()
_type = torch.Tensor.type
def fake(self, *a, **k):
    r = _type(self, *a, **k)
    return r.replace("torch.", "torch.cuda.") if isinstance(r, str) and "cuda" not in r else r
torch.Tensor.type = fake

L, H, NH, NG, HD, F, V, PAD = 4, 48, 8, 4, 6, 36, 59, 64
KINDS = ("param", "exp_avg", "exp_avg_sq")
ROWS = {"embedding.word_embeddings.weight": (PAD, H), "decoder.final_layernorm.weight": (H,),
        "output_layer.weight": (PAD, H),
        "input_layernorm.weight": (H,), "self_attention.linear_proj.weight": (H, NH * HD),
        "self_attention.linear_qkv.weight": ((NH + 2 * NG) * HD, H),
        "pre_mlp_layernorm.weight": (H,), "mlp.linear_fc1.weight": (2 * F, H),
        "mlp.linear_fc2.weight": (H, F)}
GPT2 = "gpt2" in (sys.argv[1].split("-") if len(sys.argv) > 1 else [])
if GPT2:                                # no groups, no gate, biases, a table of positions
    NG = NH
    for n in [n for n in ROWS if "norm" in n]: ROWS[n[:-6] + "bias"] = (H,)
    ROWS.update({"embedding.position_embeddings.weight": (32, H), "self_attention.linear_proj.bias": (H,),
                 "self_attention.linear_qkv.weight": (3 * NH * HD, H),
                 "self_attention.linear_qkv.bias": (3 * NH * HD,), "mlp.linear_fc1.weight": (F, H),
                 "mlp.linear_fc1.bias": (F,), "mlp.linear_fc2.bias": (H,)})
def full(name, kind):
    k = name.split(".", 3)[3] if name.startswith("decoder.layers.") else name
    g = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name + kind)))
    x = torch.randn(ROWS[k], generator=g) * 0.05
    return x.abs() if kind == "exp_avg_sq" else x
def to_gpt2():
    out = {}
    for kind in KINDS:
        pre = ("" if kind == "param" else kind + ".") + "transformer."
        out[pre + "wte.weight"] = full("embedding.word_embeddings.weight", kind)[:V]
        out[pre + "wpe.weight"] = full("embedding.position_embeddings.weight", kind)
        for end in ("weight", "bias"):
            out[pre + "ln_f." + end] = full("decoder.final_layernorm." + end, kind)
            for l in range(L):
                f, p = lambda n: full(f"decoder.layers.{l}.{n}.{end}", kind), f"{pre}h.{l}."
                qkv = f("self_attention.linear_qkv")
                qkv = torch.cat([qkv.view(NH, 3, HD, -1)[:, i].reshape(NH * HD, -1) for i in range(3)])
                out[p + f"attn.c_attn.{end}"] = qkv.t() if end == "weight" else qkv[:, 0]
                for ours, theirs in (("attn.c_proj", "self_attention.linear_proj"),
                                     ("mlp.c_fc", "mlp.linear_fc1"), ("mlp.c_proj", "mlp.linear_fc2")):
                    out[p + f"{ours}.{end}"] = f(theirs).t() if end == "weight" else f(theirs)
                out[p + f"ln_1.{end}"], out[p + f"ln_2.{end}"] = f("input_layernorm"), f("pre_mlp_layernorm")
    return {k: v.contiguous() for k, v in out.items()}
def to_hf(tied):
    if GPT2: return to_gpt2()
    out = {}
    for kind in KINDS:
        pre = {"param": "", "exp_avg": "exp_avg.", "exp_avg_sq": "exp_avg_sq."}[kind]
        out[pre + "model.embed_tokens.weight"] = full("embedding.word_embeddings.weight", kind)[:V]
        if not tied: out[pre + "lm_head.weight"] = full("output_layer.weight", kind)[:V]
        out[pre + "model.norm.weight"] = full("decoder.final_layernorm.weight", kind)
        for l in range(L):
            f, p = lambda n: full(f"decoder.layers.{l}.{n}", kind), f"{pre}model.layers.{l}."
            qkv = f("self_attention.linear_qkv.weight").view(NG, NH // NG + 2, HD, H)
            out[p + "self_attn.q_proj.weight"] = qkv[:, :-2].reshape(-1, H)
            out[p + "self_attn.k_proj.weight"] = qkv[:, -2].reshape(-1, H)
            out[p + "self_attn.v_proj.weight"] = qkv[:, -1].reshape(-1, H)
            out[p + "self_attn.o_proj.weight"] = f("self_attention.linear_proj.weight")
            out[p + "mlp.gate_proj.weight"], out[p +
                                                 "mlp.up_proj.weight"] = f("mlp.linear_fc1.weight").chunk(2)
            out[p + "mlp.down_proj.weight"] = f("mlp.linear_fc2.weight")
            out[p + "input_layernorm.weight"] = f("input_layernorm.weight")
            out[p + "post_attention_layernorm.weight"] = f("pre_mlp_layernorm.weight")
    return {k: v.contiguous() for k, v in out.items()}
def mg(rank, world, dir, kind, tp, pp, opts):
    import torch.distributed as dist, argparse, json
    dist.init_process_group("gloo")
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel import random as mr
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import get_megatron_optimizer, OptimizerConfig
    from megatron.core.distributed import DistributedDataParallel as DDP, DistributedDataParallelConfig
    from megatron.core import dist_checkpointing
    ps.initialize_model_parallel(tp, pp)
    try: mr.model_parallel_cuda_manual_seed(1)
    except Exception as e: print("seed", repr(e))
    bf16, distopt, tied, NORM = "bf16" in opts, kind in ("dpresh", "full",
                                                         "legacydist"), "tied" in opts or GPT2, "LayerNorm" if GPT2 else "RMSNorm"
    dt = torch.bfloat16 if bf16 else torch.float32
    cfg = TransformerConfig(num_layers=L, hidden_size=H, num_attention_heads=NH, num_query_groups=NG,
                            kv_channels=HD, ffn_hidden_size=F, use_cpu_initialization=True, pipeline_dtype=dt,
        params_dtype=dt, bf16=bf16, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        normalization=NORM, gated_linear_unit=not GPT2,
        activation_func=torch.nn.functional.gelu if GPT2 else torch.nn.functional.silu, add_bias_linear=GPT2,
        hidden_dropout=0.0, attention_dropout=0.0, masked_softmax_fusion=False, bias_activation_fusion=False,
        bias_dropout_fusion=False, persist_layer_norm=False,
        gradient_accumulation_fusion=False)
    m = GPTModel(cfg, get_gpt_layer_local_spec(normalization=NORM), vocab_size=PAD, max_sequence_length=32,
                 pre_process=ps.is_pipeline_first_stage(),
        post_process=ps.is_pipeline_last_stage(), share_embeddings_and_output_weights=tied,
        position_embedding_type="learned_absolute" if GPT2 else "rope")
    if bf16:
        from megatron.core.transformer.module import Float16Module
        m = Float16Module(cfg, m)
    inner = m.module if bf16 else m
    ddp = DDP(cfg, DistributedDataParallelConfig(use_distributed_optimizer=distopt,
                                                 overlap_grad_reduce="buckets" in opts, bucket_size=4000
                                                 if "buckets" in opts else None), m)
    opt = get_megatron_optimizer(OptimizerConfig(lr=1e-3, bf16=bf16, params_dtype=dt,
                                                 use_distributed_optimizer=distopt, clip_grad=0.0), [ddp])
    first, t = ps.get_pipeline_model_parallel_rank() * (L // pp), ps.get_tensor_model_parallel_rank()
    def local(n, p, kind):
        n = n.replace("output_layer.weight", "embedding.word_embeddings.weight") if tied else n
        w = n.split(".")
        if n.startswith("decoder.layers."): w[2] = str(int(w[2]) + first); n = ".".join(w)
        x, d = full(n, kind), getattr(p, "partition_dim", -1)
        if "fc1" in n and not GPT2: return torch.cat([y.chunk(tp)[t] for y in x.chunk(2)])
        return x.chunk(tp, d)[t].contiguous() if d in (0, 1) and tuple(p.shape) != tuple(x.shape) else x
    named = [(n, p) for n, p in inner.named_parameters()]
    for n, p in named: p.main_grad.zero_()
    if "buckets" in opts:
        for b in ddp.buffers: print("buckets", len(b.buckets), [x.numel_unpadded for x in b.buckets])
    opt.step()
    torch.set_grad_enabled(False)
    opts_ = getattr(opt, "chained_optimizers", [opt])
    for n, p in named:
        p.data.copy_(local(n, p, "param").to(dt))
        for o in opts_:
            if distopt:
                if p not in o.model_param_gbuf_map: continue
                try: x = o._get_main_param_and_optimizer_states(p)
                except KeyError: continue
                r = o._get_model_param_range_map(p)["param"]
                for k in KINDS: x[k].copy_(local(n, p, k).reshape(-1)[r.start:r.end])
            else:
                q = getattr(p, "main_param", p) if bf16 else p
                st = o.optimizer.state
                for k in KINDS: (q.data if k == "param" else st[q][k]).copy_(local(n, p, k))
    args = argparse.Namespace(num_layers=L, hidden_size=H, num_attention_heads=NH, num_query_groups=NG,
                              group_query_attention=not GPT2, position_embedding_type="learned_absolute"
                              if GPT2 else "rope", kv_channels=HD, ffn_hidden_size=F, vocab_size=V,
                              padded_vocab_size=PAD,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, swiglu=not GPT2,
        untie_embeddings_and_output_weights=not tied, iteration=1, lr=1e-3)
    base = dir + "/ckpt/iter_0000001"
    if rank == 0:
        os.makedirs(base, exist_ok=True)
        open(dir + "/ckpt/latest_checkpointed_iteration.txt", "w").write("1")
    dist.barrier()
    if kind in ("dpresh", "full", "plain"):
        sd = m.sharded_state_dict() if not bf16 else m.sharded_state_dict()
        meta = {"distrib_optim_sharding_type": "dp_reshardable" if kind == "dpresh" else "fully_reshardable"}
        o = opt.sharded_state_dict(sd, metadata=meta) if distopt else opt.sharded_state_dict(sd)
        dist_checkpointing.save({"model": sd, "optimizer": o, "args": args, "iteration": 1,
                                 "checkpoint_version": 3.0, "content_metadata": meta}, base)
    else:
        d = base + f"/mp_rank_{t:02d}" + (f"_{ps.get_pipeline_model_parallel_rank():03d}" if pp > 1 else "")
        if ps.get_data_parallel_rank() == 0: os.makedirs(d, exist_ok=True)
        dist.barrier()
        if distopt: opt.save_parameter_state(d + "/distrib_optim.pt")
        if ps.get_data_parallel_rank() == 0:
            torch.save({"args": args, "checkpoint_version": 3.0, "iteration": 1,
                        "model": m.state_dict_for_save_checkpoint(), "optimizer": opt.state_dict()},
                        d + "/model_optim_rng.pt")
    dist.barrier()
    if rank == 0:
        ref = to_hf(tied)
        if bf16:
            for k in [k for k in ref if not k.startswith("exp_")]:
                ref["master." + k] = ref[k]; ref[k] = ref[k].to(dt)
        R.st_write(dir + "/ref.safetensors", ref)
        if GPT2:
            config = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=H, n_layer=L,
                          n_head=NH, n_inner=F, n_positions=32, vocab_size=V)
            return json.dump(config, open(dir + "/config.json", "w"))
        json.dump(dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=H,
                       num_hidden_layers=L, num_attention_heads=NH, num_key_value_heads=NG, head_dim=HD,
                       intermediate_size=F,
            vocab_size=V, rms_norm_eps=1e-5, tie_word_embeddings=tied, max_position_embeddings=64),
            open(dir + "/config.json", "w"))
if __name__ == "__main__":
    case, dir = sys.argv[1:3]
    kind, tp, pp, dp, *opts = case.split("-")
    R.launch(mg, int(tp) * int(pp) * int(dp), dir, kind, int(tp), int(pp), opts)

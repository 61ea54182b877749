"""foreign_real.py CASE DIR - a small Llama trained a few steps by a framework itself and saved the way its
users save: DIR/ckpt (or what the case says), DIR/config.json, DIR/ref.safetensors with the full state of the
live objects (weights, master., exp_avg., exp_avg_sq., step), and DIR/losses.json: the losses of the next
steps, continued by the framework, on DIR/tokens.u16.

Shapes are odd, so that nothing divides evenly: five ranks leave some of them without rows. Needs torch; zero*
deepspeed; mcore* megatron-core. compare A.safetensors DIR: the native tp 1 checkpoint in DIR holds A, bit for
bit. list: the cases of this machine. tokens FILE: the tokens alone. continue DIR KIND RANKS split|one: the
next losses of a folder (the reference ones: recorded in foreign_resume.sh)."""
import glob, json, math, os, socket, struct, sys

os.environ.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                  GLOO_SOCKET_IFNAME="lo", DS_BUILD_OPS="0")
import warnings; warnings.filterwarnings("ignore")

DTYPES = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "I32": 4}
SHAPE = dict(hidden_size=36, intermediate_size=50, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=1, vocab_size=61)
BIG = None                              # a bench: another shape, one step, only the checkpoint
LR, BETAS, EPS, DECAY, STEPS, NEXT, ROWS, T = 3e-3, (0.9, 0.95), 1e-8, 0.1, 3, 3, 30, 8

# ---- safetensors without the library: old environments have none

def st_write(path, tensors):
    import torch
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64",
             torch.int64: "I64", torch.int32: "I32"}
    head, at, data = {}, 0, []
    for k, t in sorted(tensors.items()):
        t = t.detach().cpu().contiguous()
        b = bytes(t.reshape(-1).view(torch.uint8).tolist()) if t.numel() else b""
        head[k] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(b)]}
        at += len(b)
        data.append(b)
    h = json.dumps(head).encode()
    with open(path, "wb") as f: f.write(struct.pack("<Q", len(h)) + h + b"".join(data))

def st_read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    return {k: (v["dtype"], v["shape"], data[v["data_offsets"][0]:v["data_offsets"][1]]) for k,
            v in head.items() if k != "__metadata__"}

def compare(ref, folder):
    want, have = st_read(ref), {}
    for f in glob.glob(folder + "/*.safetensors"): have.update(st_read(f))
    want.pop("step", None)
    bad = [k for k in want if k not in have or want[k][2] != have[k][2]
           or (want[k][1] or [1]) != (have[k][1] or [1])] + [k for k in have if k not in want]
    if bad:
        print(f"{len(bad)} of {len(want)} differ: " +
              ", ".join(f"{k} {'missing' if k not in have else 'extra' if k not in want else have[k][:2]}"
                        for k in sorted(bad)[:6]))
    return 1 if bad else 0

# ---- the model: Hugging Face's names and arithmetic

def build(bias=False, tied=False, shape=None):
    import torch
    from torch import nn
    c = dict(BIG or SHAPE, **(shape or {}))
    h, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    hd = h // heads
    class Norm(nn.Module):
        def __init__(s):
            super().__init__()
            s.weight = nn.Parameter(torch.ones(h))
        def forward(s, x):
            y = x.float()
            return s.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    def rope(x):                        # [b, heads, t, hd]
        t = torch.arange(x.shape[-2], dtype=torch.float32)
        f = 1.0 / (10000.0 ** (torch.arange(0, hd, 2, dtype=torch.float32) / hd))
        a = torch.cat([torch.outer(t, f)] * 2, -1)
        r = torch.cat([-x[..., hd // 2:], x[..., :hd // 2]], -1)
        return x * a.cos().to(x.dtype) + r * a.sin().to(x.dtype)
    class Attention(nn.Module):
        def __init__(s):
            super().__init__()
            s.q_proj, s.k_proj, s.v_proj, s.o_proj = (nn.Linear(h, heads * hd, bias=bias),
                                                      nn.Linear(h, kv * hd, bias=bias),
                                                      nn.Linear(h, kv * hd, bias=bias),
                                                      nn.Linear(heads * hd, h, bias=False))
        def forward(s, x):
            b, t, _ = x.shape
            q = rope(s.q_proj(x).view(b, t, -1, hd).transpose(1, 2))
            k, v = (p(x).view(b, t, -1, hd).transpose(1, 2) for p in (s.k_proj, s.v_proj))
            k, n = rope(k), q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
            p = (q @ k.transpose(-1, -2)).float() / math.sqrt(hd) + torch.full((t, t), -1e30).triu(1)
            return s.o_proj((p.softmax(-1).to(x.dtype) @ v).transpose(1, 2).reshape(b, t, -1))
    class Mlp(nn.Module):
        def __init__(s):
            super().__init__()
            f = c["intermediate_size"]
            s.gate_proj, s.up_proj, s.down_proj = nn.Linear(h, f, bias=False), nn.Linear(h, f,
                bias=False), nn.Linear(f, h, bias=False)
        def forward(s, x): return s.down_proj(nn.functional.silu(s.gate_proj(x)) * s.up_proj(x))
    class Layer(nn.Module):
        def __init__(s):
            super().__init__()
            s.self_attn, s.mlp, s.input_layernorm, s.post_attention_layernorm = (Attention(), Mlp(), Norm(),
                Norm())
        def forward(s, x):
            x = x + s.self_attn(s.input_layernorm(x))
            return x + s.mlp(s.post_attention_layernorm(x))
    class Body(nn.Module):
        def __init__(s):
            super().__init__()
            s.embed_tokens = nn.Embedding(c["vocab_size"], h)
            s.layers = nn.ModuleList(Layer() for _ in range(c["num_hidden_layers"]))
            s.norm = Norm()
        def forward(s, ids):
            x = s.embed_tokens(ids)
            for l in s.layers: x = l(x)
            return s.norm(x)
    class Model(nn.Module):
        def __init__(s):
            super().__init__()
            s.model, s.lm_head = Body(), nn.Linear(h, c["vocab_size"], bias=False)
            if tied: s.lm_head.weight = s.model.embed_tokens.weight
        def forward(s, ids, targets):   # the mean over the rows of this rank
            return nn.functional.cross_entropy(s.lm_head(s.model(ids)).float().flatten(0, 1),
                                               targets.flatten())
    m = Model()
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.08 + (1.0 if p.dim() == 1 else 0.0))
    m.kinds = Layer
    config = dict(c, architectures=["Qwen2ForCausalLM" if bias else "LlamaForCausalLM"], model_type="qwen2"
                  if bias else "llama", rms_norm_eps=1e-5, rope_theta=10000.0,
                  tie_word_embeddings=tied, max_position_embeddings=64, hidden_act="silu")
    return m, config

# ZeRO-1 and 2: one, because DeepSpeed 0.19 cannot show the moments of a second
def groups_of(model, split=True):
    p = [x for x in model.parameters() if x.requires_grad]
    two = [dict(params=[x for x in p if x.dim() > 1], weight_decay=DECAY),
           dict(params=[x for x in p if x.dim() <= 1], weight_decay=0.0)]
    return two if split else [dict(params=p, weight_decay=DECAY)]
def adamw(model, split=True):
    import torch
    return torch.optim.AdamW(groups_of(model, split), lr=LR, betas=BETAS, eps=EPS)

TOKENS = [(i * i * 7 + i * 3 + i // 11) % SHAPE["vocab_size"] for i in range(ROWS * T * 8 + 1)]
# the rows of the steps that follow the save begin anew: no source knows another position
def batch(step, rank, world, next_step=False):
    import torch
    first = step if next_step else step + 5
    rows = range(first * ROWS + rank * ROWS // world, first * ROWS + (rank + 1) * ROWS // world)
    ids = torch.tensor([TOKENS[r % (ROWS * 8) * T:r % (ROWS * 8) * T + T + 1] for r in rows])
    return ids[:, :-1], ids[:, 1:]
def mean(x):
    import torch, torch.distributed as dist
    x = x.detach().float().clone()
    dist.all_reduce(x)
    return x.item() / dist.get_world_size()

# ---- ranks

def port():
    s = socket.socket(); s.bind(("127.0.0.1", 0)); p = s.getsockname()[1]; s.close(); return p

def end_children():
    """Of this rank: a save of Megatron leaves processes behind, which would live on."""
    import signal
    for task in glob.glob("/proc/self/task/*/children"):
        for pid in open(task).read().split():
            try: os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError: pass

def launch(worker, world, *args):
    p, pids = port(), []
    sys.stdout.flush()
    for r in range(world):
        pid = os.fork()
        if pid == 0:
            rc = 1
            try:
                os.environ.update(RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(world),
                                  LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(p))
                worker(r, world, *args)
                rc = 0
            except BaseException:
                import traceback; traceback.print_exc()
            finally:
                end_children()
                sys.stdout.flush(); sys.stderr.flush(); os._exit(rc)
        pids.append(pid)
    rc = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]
    if any(rc): sys.exit(f"ranks ended with {rc}")

def write_end(dir, config, ref, losses):
    json.dump(config, open(dir + "/config.json", "w"))
    st_write(dir + "/ref.safetensors", ref)
    json.dump(losses, open(dir + "/losses.json", "w"))
    open(dir + "/tokens.u16", "wb").write(struct.pack(f"<{len(TOKENS)}H", *TOKENS))

# ---- PyTorch: FSDP1, FSDP2, tensor parallel with FSDP, plain; saved by Distributed Checkpoint

def wrap(m, kind, world, extra):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel as F, ShardingStrategy as S
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        m = F(m, auto_wrap_policy=ModuleWrapPolicy({m.kinds}), use_orig_params="orig" in extra,
              device_id=torch.device("cpu"),
              sharding_strategy=S.SHARD_GRAD_OP if "grad" in extra else S.FULL_SHARD)
        return m
    from torch.distributed.fsdp import fully_shard
    if kind in ("fsdp2", "raw"):
        mesh = init_device_mesh("cpu", (world,)) if "hsdp" not in extra else init_device_mesh("cpu",
            (2, world // 2), mesh_dim_names=("r", "s"))
    if kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel as C, RowwiseParallel as R, parallelize_module
        two = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        plan = {"self_attn.q_proj": C(), "self_attn.k_proj": C(), "self_attn.v_proj": C(),
                "self_attn.o_proj": R(), "mlp.gate_proj": C(), "mlp.up_proj": C(), "mlp.down_proj": R()}
        for l in m.model.layers: parallelize_module(l, two["tp"], plan)
        mesh = two["dp"]
    for l in m.model.layers: fully_shard(l, mesh=mesh)
    if "emb" in extra: fully_shard(m.model.embed_tokens, mesh=mesh)
    fully_shard(m, mesh=mesh)
    return m

def full_of(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t

def dcp_worker(rank, world, dir, kind, extra):
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    dist.init_process_group("gloo")
    m, config = build("bias" in extra, "tied" in extra, dict(num_key_value_heads=2, intermediate_size=52)
                      if kind == "tp" else None)
    if "frozen" in extra: m.model.norm.weight.requires_grad_(False)
    if kind != "ddp": m = wrap(m, kind, world, extra)
    opt = adamw(m, "one" not in extra and kind != "fsdp1" or "orig" in extra)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1 / (1 + 0.1 * s)) if "sched" in extra else None
    dp, my = (world // 2, rank // 2) if kind == "tp" else (world, rank)
    def step(s, after):
        x, y = batch(s, my, dp, after)
        loss = m(x, y)
        loss.backward()
        if kind == "ddp":
            for p in m.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad); p.grad /= world
        opt.step(); opt.zero_grad()
        if sched: sched.step()
        return mean(loss)
    for s in range(1 if BIG else STEPS): step(s, False)
    from torch.distributed.checkpoint.state_dict import get_state_dict
    sm, so = get_state_dict(m, opt)
    state = {"model": sm, "optim": so}
    if "top" in extra: state = dict(sm, optimizer=so)
    if "app" in extra: state = {"app": {"model": sm, "optim": so}}
    if "weights" in extra: state = sm
    if "bf16" in extra: state = {k: v.to(torch.bfloat16) for k, v in sm.items()}
    if sched: state["lr_scheduler"] = sched.state_dict()
    if "loader" in extra:
        state["dataloader"] = {"version": 1, "dp_rank_0": b"abc", "n": torch.tensor(5)}
        state["train_state"] = {"step": torch.tensor(STEPS), "loss": [1.0, 2.0]}
    out = dir + "/ckpt"
    if "hf" in extra:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter as W
        if "hfc" in extra:
            dcp.save(sm, storage_writer=W(out, fqn_to_index_mapping={k: 1 + i % 2 for i, k in enumerate(sm)},
                                          save_distributed=True, enable_consolidation=True))
        else: dcp.save(sm, storage_writer=W(out, save_distributed=True))
    elif "perrank" in extra:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(out, single_file_per_rank=False))
    elif "async" in extra: dcp.async_save(state, checkpoint_id=out).result()
    elif "threads" in extra: dcp.save(state, storage_writer=dcp.FileSystemWriter(out, thread_count=3))
    elif "ser" in extra:
        from torch.distributed.checkpoint.filesystem import SerializationFormat
        dcp.save(state, storage_writer=dcp.FileSystemWriter(out,
                                                            serialization_format=SerializationFormat.SAFETENSORS))
    elif hasattr(dcp, "save"): dcp.save(state, storage_writer=dcp.FileSystemWriter(out))
    if BIG:
        if rank == 0: json.dump(config, open(dir + "/config.json", "w"))
        return dist.barrier()
    # the truth, gathered shard by shard: FSDP1's own gather on CPU mixes up the moments
    ref = {}
    if kind == "fsdp1":
        from torch.distributed._shard.sharded_tensor import ShardedTensor
        def whole(t):
            if not isinstance(t, ShardedTensor): return full_of(t).clone()
            full = torch.zeros(tuple(t.size()))
            for s in t.local_shards():
                o, n = s.metadata.shard_offsets, s.metadata.shard_sizes
                full[tuple(slice(a, a + b) for a, b in zip(o, n))] = s.tensor
            dist.all_reduce(full)
            return full
    else: whole = full_of
    for k, v in sm.items(): ref[k] = whole(v).detach().clone()
    if not ({"weights", "bf16", "hf"} & set(extra)):
        for n, d in so["state"].items():
            for k in ("exp_avg", "exp_avg_sq"): ref[f"{k}.{n}"] = whole(d[k]).detach().clone()
    if "bf16" in extra: ref = {k: v.to(torch.bfloat16) for k, v in ref.items()}
    losses = [step(s, True) for s in range(NEXT)]
    if rank == 0: write_end(dir, config, ref, losses)
    dist.barrier()

# ---- DeepSpeed

def ds_config(world, stage, extra):
    z = dict(stage=stage, overlap_comm=False, contiguous_gradients=True)
    for x in extra:
        if x.startswith("sub"): z["sub_group_size"] = int(x[3:])
        if x == "rr": z["round_robin_gradients"] = True
        if x.startswith("persist"): z["stage3_param_persistence_threshold"] = int(x[7:])
    d = dict(train_micro_batch_size_per_gpu=ROWS // world, train_batch_size=ROWS,
             zero_allow_untested_optimizer=True, zero_force_ds_cpu_optimizer=False, zero_optimization=z,
             steps_per_print=10**9)
    if "bf16" in extra: d["bf16"] = {"enabled": True}
    if "fp16" in extra: d["fp16"] = {"enabled": True, "initial_scale_power": 8}
    if "grad32" in extra: d["data_types"] = {"grad_accum_dtype": "fp32"}
    if "sched" in extra:
        d["scheduler"] = {"type": "WarmupDecayLR",
                          "params": {"warmup_min_lr": 0, "warmup_max_lr": LR, "warmup_num_steps": 2,
                                     "total_num_steps": 40, "warmup_type": "linear"}}
    return d

def ds_worker(rank, world, dir, stage, extra):
    import torch, deepspeed, logging
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    m, config = build("bias" in extra, "tied" in extra)
    if "frozen" in extra:
        for p in (m.model.embed_tokens.weight, m.model.layers[1].input_layernorm.weight):
            p.requires_grad_(False)
    if "buffer" in extra: m.register_buffer("steps_seen", torch.arange(7.0))
    names = {id(p): n for n, p in m.named_parameters()}
    params = dict(m.named_parameters())
    e, *_ = deepspeed.initialize(model=m, optimizer=adamw(m, stage == 3),
                                 config=ds_config(world, stage, extra))
    def step(s, after):
        x, y = batch(s, rank, world, after)
        loss = e(x, y)
        e.backward(loss); e.step()
        return mean(loss)
    for s in range(1 if BIG else STEPS): step(s, False)
    e.save_checkpoint(dir + "/ckpt", tag="some-tag" if "tag" in extra else None,
                      client_state={"mine": {"epoch": 2}} if "client" in extra else {})
    if BIG:
        if rank == 0: json.dump(config, open(dir + "/config.json", "w"))
        return torch.distributed.barrier()
    from deepspeed.utils import safe_get_full_fp32_param as get, safe_get_full_optimizer_state as opt
    ref = {}
    narrow = stage < 3 and ({"bf16", "fp16"} & set(extra))
    for n, p in params.items():
        if p.requires_grad:
            ref[("master." if narrow else "") + n] = get(p).detach().float().clone()
            for k in ("exp_avg", "exp_avg_sq"): ref[f"{k}.{n}"] = opt(p, k).detach().float().clone()
            if narrow: ref[n] = p.detach().clone()
        elif stage == 3:
            with deepspeed.zero.GatheredParameters([p]): ref[n] = p.detach().clone()
        else: ref[n] = p.detach().clone()
    if "buffer" in extra: ref["steps_seen"] = m.steps_seen.detach().clone()
    losses = [step(s, True) for s in range(NEXT)]
    if rank == 0: write_end(dir, config, ref, losses)
    torch.distributed.barrier()

# ---- a folder that is there, continued by the framework that wrote it

def continue_worker(rank, world, src, kind, split):
    import torch
    c = json.load(open(src + "/config.json"))
    m, _ = build(False, c["tie_word_embeddings"], {k: c[k] for k in SHAPE})
    if kind.startswith("zero"):
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        e, *_ = deepspeed.initialize(model=m, optimizer=adamw(m, split),
                                     config=ds_config(world, int(kind[4:]), []))
        e.load_checkpoint(src + "/ckpt")
        forward = e
        def step(loss): e.backward(loss); e.step()
    else:
        import torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        dist.init_process_group("gloo")
        m = wrap(m, kind, world, [])
        opt = adamw(m, split)
        if kind == "raw":
            for p in m.parameters(): p.grad = torch.zeros_like(p)
            opt.step()                  # so that there is a state to load into
        sm, so = get_state_dict(m, opt)
        if kind == "raw": so = opt.state_dict()
        dcp.load({"model": sm, "optim": so}, checkpoint_id=src + "/ckpt")
        if kind == "raw": m.load_state_dict(sm); opt.load_state_dict(so)
        else: set_state_dict(m, opt, model_state_dict=sm, optim_state_dict=so)
        forward = m
        def step(loss): loss.backward(); opt.step(); opt.zero_grad()
    losses = []
    for s in range(NEXT):
        x, y = batch(s, rank, world, True)
        loss = forward(x, y)
        step(loss)
        losses.append(mean(loss))
    if rank == 0: print(json.dumps(losses), flush=True)
    torch.distributed.barrier()

# ---- which cases

DCP = """fsdp2-3 fsdp2-5 fsdp2-5-tied-sched fsdp2-2-bias-emb fsdp2-4-hsdp fsdp2-3-top fsdp2-3-app fsdp2-3-weights fsdp2-3-bf16 fsdp2-3-frozen fsdp2-2-sched-loader
fsdp1-3 fsdp1-5-orig fsdp1-2-grad fsdp1-3-orig-bias tp-4 tp-6 ddp-2 fsdp2-3-perrank fsdp2-3-async fsdp2-3-threads fsdp2-3-ser fsdp2-3-hf fsdp2-3-hfc""".split()
ZERO = """zero1-3 zero1-5-bf16 zero2-3 zero2-5-bias zero2-3-bf16-frozen zero1-2-bf16-grad32 zero2-2-tied zero3-3 zero3-5-sub1000 zero3-5-tied zero3-3-bf16-bias
zero3-3-frozen-buffer zero3-2-persist0 zero3-3-tag-client zero2-3-sched zero3-3-sched""".split()

def run(case, dir):
    os.makedirs(dir, exist_ok=True)
    kind, world, *extra = case.split("-")
    import torch                        # once, before the ranks are forked
    if kind.startswith("zero"): import deepspeed
    else: import torch.distributed.fsdp, torch.distributed.checkpoint
    if kind.startswith("zero"): launch(ds_worker, int(world), dir, int(kind[4:]), extra)
    else: launch(dcp_worker, int(world), dir, kind, extra)

def main():
    if sys.argv[1] == "compare": return compare(*sys.argv[2:4])
    if sys.argv[1] == "tokens":
        return open(sys.argv[2], "wb").write(struct.pack(f"<{len(TOKENS)}H", *TOKENS)) and 0
    if sys.argv[1] == "continue":       # continue FIXTURE KIND RANKS split|one
        import torch, torch.distributed.fsdp, torch.distributed.checkpoint
        if sys.argv[3].startswith("zero"): import deepspeed
        return launch(continue_worker, int(sys.argv[4]), sys.argv[2], sys.argv[3], sys.argv[5] == "split")
    if sys.argv[1] == "list":
        cases = []
        try:
            import torch; cases += DCP
            import deepspeed; cases += ZERO
        except ImportError: pass
        return print(" ".join(cases))
    return run(*sys.argv[1:3])

if __name__ == "__main__": sys.exit(main())

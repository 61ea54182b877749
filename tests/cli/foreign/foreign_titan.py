"""foreign_titan.py titan-DP-EP[-bf16][-new] DIR - experts as torchtitan has them: three tensors [experts, out, in]
of a layer, DTensors over a mesh of DP x EP ranks (first dim over ep, second over dp) in torchtitan's names, saved
with their AdamW states by PyTorch's Distributed Checkpoint: DIR/ckpt, DIR/config.json, DIR/ref.safetensors with
the whole tensors under Hugging Face's names. new: the names of later versions. list: the cases."""
import json, sys

import foreign_experts as X
import foreign_real as R

CASES = "titan-2-2 titan-1-4-bf16 titan-2-2-new"


def titan_name(n, new):
    """Hugging Face's name of a tensor that is no expert's in torchtitan."""
    for a, b in (("model.embed_tokens", "tok_embeddings"), ("model.norm", "norm"), ("lm_head", "output"),
                 ("model.layers", "layers"), ("self_attn.o_proj", "attention.wo"),
                 ("self_attn.q_proj", "attention.qkv_linear.wq" if new else "attention.wq"),
                 ("self_attn.k_proj", "attention.qkv_linear.wk" if new else "attention.wk"),
                 ("self_attn.v_proj", "attention.qkv_linear.wv" if new else "attention.wv"),
                 ("self_attn", "attention"), ("post_attention_layernorm", "ffn_norm"),
                 ("input_layernorm", "attention_norm"), ("mlp.gate.weight", "moe.router.gate.weight"),
                 ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"),
                 ("mlp.down_proj", "feed_forward.w2")): n = n.replace(a, b)
    return n


def worker(rank, world, dir, dp, ep, opts):
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo")
    both = init_device_mesh("cpu", (dp, ep), mesh_dim_names=("dp", "ep"))
    flat, new = init_device_mesh("cpu", (world,)), "new" in opts
    dt, ref, state = torch.bfloat16 if "bf16" in opts else torch.float32, {}, {}
    E, H, I = X.E, X.H, X.I
    shapes = {n: tuple(p.shape) for n, p in X.moe_model(1).named_parameters() if ".deepspeed_experts." not in n}
    shapes = {n.replace(".deepspeed_moe.gate.wg.", ".gate."): s for n, s in shapes.items()}
    for l in range(X.L):
        if l in X.CONFIG["mlp_only_layers"]: continue
        for w, part, s in (("w1", "gate_proj", (I, H)), ("w2", "down_proj", (H, I)), ("w3", "up_proj", (I, H))):
            end = {"w1": "w1_EFD", "w3": "w3_EFD", "w2": "w2_EDF"}[w] if new else w
            key = f"layers.{l}.moe.{'routed_experts.inner_experts' if new else 'experts'}.{end}"
            shapes[key] = [(f"model.layers.{l}.mlp.experts.{e}.{part}.weight", s) for e in range(E)]
    model, optim = {}, {}
    for n, s in shapes.items():
        stacked = isinstance(s, list)
        whole = {}
        for k in ("", "exp_avg.", "exp_avg_sq."):
            parts = [X.numbers(hf, k, one) for hf, one in s] if stacked else [X.numbers(n, k, s)]
            parts = [x.to(dt) if k == "" else x for x in parts]
            for hf, x in zip([hf for hf, _ in s] if stacked else [n], parts): ref[k + hf] = x.clone()
            whole[k] = torch.stack(parts) if stacked else parts[0]
        place = dict(device_mesh=both, placements=[Shard(1), Shard(0)]) if stacked else dict(device_mesh=flat, placements=[Shard(0)])
        name = n if stacked else titan_name(n, new)
        model[name] = distribute_tensor(whole[""], **place)
        optim[f"state.{name}.step"] = torch.tensor(3.0)
        for k in ("exp_avg", "exp_avg_sq"): optim[f"state.{name}.{k}"] = distribute_tensor(whole[k + "."], **place)
    dcp.save(dict(model, optimizer=optim), storage_writer=dcp.FileSystemWriter(dir + "/ckpt"))
    if rank == 0:
        json.dump(X.CONFIG, open(dir + "/config.json", "w"))
        R.st_write(dir + "/ref.safetensors", ref)
    dist.barrier()


if __name__ == "__main__":
    if sys.argv[1] == "list":
        try: import deepspeed, torch.distributed.tensor; print(CASES)  # deepspeed: its MoE names the parameters
        except ImportError: pass
    else:
        _, dp, ep, *opts = sys.argv[1].split("-")
        import deepspeed, torch  # once, before the ranks are forked
        R.launch(worker, int(dp) * int(ep), sys.argv[2], int(dp), int(ep), opts)

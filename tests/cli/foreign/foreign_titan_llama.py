"""foreign_titan_llama.py llama-RANKS[-fused][-tied] DIR - torchtitan's own Llama, cut by FSDP2 over RANKS ranks, with
AdamW's moments, saved as torchtitan does: DIR/ckpt, DIR/config.json, DIR/ref.safetensors with the whole tensors as
torchtitan's own adapter gives them to Hugging Face. fused: queries, keys and values are one parameter, which the
weights are saved without and the optimizer's state with. list: the cases."""
import json, sys

import foreign_experts as X
import foreign_real as R

CASES = "llama-3 llama-2-fused-tied llama-5-fused"
DIM, HEADS, KV, VOCAB, LAYERS, HIDDEN = 48, 6, 2, 59, 2, 40


def config_of(fused, tied):
    import torchtitan.models.llama3 as L
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    return L.Llama3Model.Config(
        dim=DIM, vocab_size=VOCAB, enable_weight_tying=tied,
        tok_embeddings=Embedding.Config(num_embeddings=VOCAB, embedding_dim=DIM, param_init=L._EMBEDDING_INIT),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=L._NORM_INIT),
        lm_head=Linear.Config(in_features=DIM, out_features=VOCAB, param_init=L._output_linear_init(DIM)),
        layers=L._build_llama3_layers(
            fuse_qkv=fused, n_layers=LAYERS, dim=DIM, n_heads=HEADS, n_kv_heads=KV, hidden_dim=HIDDEN,
            rope=ComplexRoPE.Config(dim=DIM // HEADS, max_seq_len=64, theta=10000), attn_backend="flex"))


def fill(model, kind):
    """The tensors of one kind of all parameters, as the model would save them."""
    import torch
    with torch.no_grad():
        for n, p in model.named_parameters(): p.copy_(X.numbers(n, kind, p.shape))
    return {k: v.clone() for k, v in model.state_dict().items()}


def worker(rank, world, dir, fused, tied):
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
    dist.init_process_group("gloo")
    config = config_of(fused, tied)
    model = config.build()
    adapter, ref = Llama3StateDictAdapter(config, None), {}
    for kind in ("exp_avg", "exp_avg_sq", ""):      # the weights last: they stay
        whole = adapter.to_hf(fill(model, kind))
        ref.update({kind + "." * bool(kind) + k: v.contiguous() for k, v in whole.items()})
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optim = {}
    for n, p in model.named_parameters():
        optim[f"state.{n}.step"] = torch.tensor(3.0)
        for kind in ("exp_avg", "exp_avg_sq"):
            optim[f"state.{n}.{kind}"] = distribute_tensor(X.numbers(n, kind, p.shape), p.device_mesh, p.placements)
    dcp.save(dict(model.state_dict(), optimizer=optim), storage_writer=dcp.FileSystemWriter(dir + "/ckpt"))
    if rank == 0:
        json.dump(dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=DIM, num_hidden_layers=LAYERS,
                       num_attention_heads=HEADS, num_key_value_heads=KV, intermediate_size=HIDDEN, vocab_size=VOCAB,
                       tie_word_embeddings=tied, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0),
                  open(dir + "/config.json", "w"))
        R.st_write(dir + "/ref.safetensors", ref)
    dist.barrier()


if __name__ == "__main__":
    if sys.argv[1] == "list":
        try: import torchtitan.models.llama3; print(CASES)
        except ImportError: pass
    else:
        _, ranks, *opts = sys.argv[1].split("-")
        import torch, torchtitan.models.llama3          # once, before the ranks are forked
        R.launch(worker, int(ranks), sys.argv[2], "fused" in opts, "tied" in opts)

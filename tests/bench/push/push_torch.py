"""push_torch.py HF [N] - the way of new weights from a trainer to a server without Shardline, N (3) times in
turn, beside push_bench.py. PyTorch's Distributed Checkpoint writes the weights; then they are copied into the
tensors of a model that serves, as in vLLM's reload of weights.

    dcp     dcp.save, dcp.load into the serving tensors
    hf      dcp.save with the writer of safetensors files, then every tensor is read and copied, by name

HF: a model folder of transformers. Needs torch, transformers, safetensors. The folder HF.torch is made and
removed. Both models are in one process; nothing decodes meanwhile. A row: seconds of the save and of the
load."""
import os
import shutil
import sys
import time
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from transformers import AutoModelForCausalLM

src, turns = sys.argv[1].rstrip("/"), int(sys.argv[2]) if len(sys.argv) > 2 else 3
out = src + ".torch"


def model():
    return AutoModelForCausalLM.from_pretrained(src, dtype=torch.bfloat16)


def save_dcp(weights):
    dcp.save(weights, checkpoint_id=out, no_dist=True)


def load_dcp(weights):
    dcp.load(weights, checkpoint_id=out, no_dist=True)


def save_hf(weights):
    dcp.save(weights, storage_writer=HuggingFaceStorageWriter(out, dict.fromkeys(weights, 1)), no_dist=True)


def load_hf(weights):
    for name in os.listdir(out):
        if name.endswith(".safetensors"):
            with safe_open(f"{out}/{name}", "pt") as f:
                for key in f.keys():
                    weights[key].copy_(f.get_tensor(key))


def tensors(m):
    """Without the second name of a tied tensor, as such files are written."""
    seen = set()
    return {k: v for k, v in m.state_dict().items() if not (v.data_ptr() in seen or seen.add(v.data_ptr()))}


trained, serves = tensors(model()), tensors(model())
for turn in range(turns):
    for name, save, load in (("dcp", save_dcp, load_dcp), ("hf", save_hf, load_hf)):
        shutil.rmtree(out, ignore_errors=True)
        for v in trained.values():
            v += 0.25
        begin = time.monotonic()
        save(trained)
        saved = time.monotonic()
        load(serves)
        end = time.monotonic()
        assert all(torch.equal(serves[k], v) for k, v in trained.items())
        print(f"torch, {name}: {end - begin:.2f} s: save {saved - begin:.2f} s, load {end - saved:.2f} s",
              flush=True)
shutil.rmtree(out, ignore_errors=True)

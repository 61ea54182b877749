#!/usr/bin/env python3
"""train_deepspeed.py - training speed of a model of transformers with DeepSpeed's ZeRO-3, its optimizer state
in files (ZeRO-Infinity), for offload_bench.py: one process on a CPU.

usage: train_deepspeed.py --config config.json --dir DIR [--threads N] [--seq T] [--batch G] [--steps N]
Prints one JSON line: {"value": tokens/s of the best step, "median": …, "rss": bytes}. bf16 weights, fp32
optimizer state. DeepSpeed builds its operators for asynchronous files and AdamW when it first runs."""
import argparse
import json
import os
import resource
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", "29617")):
    os.environ.setdefault(name, value)

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def settings(a):
    """As Hugging Face's guide to DeepSpeed sets files: block 256 kiB, queue 32, one thread. Reading,
    updating and writing at the same time need 12 buffers."""
    return {"train_micro_batch_size_per_gpu": a.batch,
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3, "sub_group_size": a.group,
                                  "offload_optimizer": {"device": "nvme", "nvme_path": a.dir,
                                                        "buffer_count": 12, "pipeline_read": True,
                                                        "pipeline_write": True}},
            "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": False,
                    "overlap_events": True}}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", required=True)
    ap.add_argument("--dir", required=True)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--seq", type=int, default=512)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--steps", type=int, default=3)
    ap.add_argument("--group", type=int, default=int(25e6))
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo")
    config = AutoConfig.from_pretrained(a.config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings(a))
    speeds = []
    for _ in range(a.steps + 1):
        ids = torch.randint(0, config.vocab_size, (a.batch, a.seq))
        began = time.perf_counter()
        engine.backward(engine(input_ids=ids, labels=ids, use_cache=False).loss)
        engine.step()
        speeds.append(a.batch * a.seq / (time.perf_counter() - began))
    speeds = sorted(speeds[1:])                    # the first step allocates
    print(json.dumps({"value": speeds[-1], "median": speeds[len(speeds) // 2],
                      "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)


if __name__ == "__main__":
    main()

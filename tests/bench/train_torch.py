#!/usr/bin/env python3
"""train_torch.py - training speed of a model in transformers + torch, for train_bench.py and context_bench.py:
one process, AdamW.

usage: train_torch.py --config config.json --dtype fp32|bf16 [--experts grouped_mm|eager] [--threads N]
[--seq T] [--batch G] [--steps N] Prints one JSON line: {"value": tokens/s of the best step, "median": …,
"rss": bytes}. fp32 weights in both dtypes; bf16 is torch's autocast, and grouped_mm, which autocast does not
know, gets weights that are cast in front of it."""
import argparse
import contextlib
import json
import resource
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations import moe


def grouped_mm_in(dtype):
    """Makes transformers' grouped products run in dtype; their gradients come back in that of the weights."""
    product = moe._grouped_mm
    moe._grouped_mm = lambda x, w, offs: product(x.to(dtype), w.to(dtype), offs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", required=True)
    ap.add_argument("--dtype", choices=("fp32", "bf16"), required=True)
    ap.add_argument("--experts")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--seq", type=int, default=256)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--steps", type=int, default=4)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(a.config)
    how = {"experts_implementation": a.experts} if a.experts else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32, **how)
    model.train()
    if a.dtype == "bf16" and a.experts == "grouped_mm":
        grouped_mm_in(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    context = (lambda: torch.autocast("cpu", torch.bfloat16)) if a.dtype == "bf16" else contextlib.nullcontext
    speeds = []
    for _ in range(a.steps + 1):
        ids = torch.randint(0, config.vocab_size, (a.batch, a.seq))
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with context():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        speeds.append(a.batch * a.seq / (time.perf_counter() - began))
    speeds = sorted(speeds[1:])                    # the first step allocates
    print(json.dumps({"value": speeds[-1], "median": speeds[len(speeds) // 2],
                      "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)


if __name__ == "__main__":
    main()

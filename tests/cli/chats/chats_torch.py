"""chats_torch.py OUR.jsonl INIT DATA.u16 WEIGHTS.f32 STEPS BATCH SEQ STRIDE [DIVISOR]: our run's losses and gradient
norms against torch: sum of weight * cross entropy / targets whose weight is not 0. Status 1: some differ."""
import json
import sys

import numpy
import torch
import transformers

log, init, data, weights = sys.argv[1:5]
steps, batch, seq, stride = map(int, sys.argv[5:9])
divisor = int(sys.argv[9]) if len(sys.argv) > 9 else 0
ids = torch.tensor(numpy.fromfile(data, "<u2").astype("int64"))
w = torch.tensor(numpy.fromfile(weights, "<f4"))
model = transformers.AutoModelForCausalLM.from_pretrained(init, dtype=torch.float32, attn_implementation="eager").train()
named = list(model.parameters())
groups = [{"params": [p for p in named if (p.dim() > 1) == wide], "weight_decay": 0.1 * wide} for wide in (True, False)]
opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
ours = [x for x in map(json.loads, open(log)) if "loss_bits" in x]
n, bad, worst = (len(ids) - 1) // seq, 0, [0.0, 0.0]
for step in range(steps):
    at = [((step * batch + r) * stride) % n * seq for r in range(batch)]
    x, y, f = (torch.stack([v[a + d:a + d + seq] for a in at]) for v, d in ((ids, 0), (ids, 1), (w, 1)))
    each = torch.nn.functional.cross_entropy(model(input_ids=x, use_cache=False).logits.flatten(0, 1), y.flatten(),
                                             reduction="none")
    if set(f.unique().tolist()) <= {0.0, 1.0} and not divisor:        # then it is torch's own mean
        loss = torch.nn.functional.cross_entropy(model(input_ids=x, use_cache=False).logits.flatten(0, 1),
                                                 torch.where(f == 0, -100, y).flatten())
    else:
        loss = (each * f.flatten()).sum() / (divisor or int((f != 0).sum()))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(named, 1.0, foreach=False)
    opt.step()
    got = ours[step]["loss"], ours[step]["grad_norm"]
    for k, (a, b) in enumerate(zip(got, (float(loss), float(norm)))):
        worst[k] = max(worst[k], abs(a - b))
        bad += not abs(a - b) <= (2e-5, 2e-4)[k] * max(1, abs(b))
    bad += "targets" in ours[step] and ours[step]["targets"] != int((f != 0).sum())
print(f"{steps} steps, largest differences: loss {worst[0]:.3g}, norm {worst[1]:.3g}")
sys.exit(bad > 0 or len(ours) != steps)

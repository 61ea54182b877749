"""dcp_peers.py - quantised checkpoints as torch's distributed checkpoints: what reshard writes torch loads with the
published bits, and what torch saves comes back with them. usage: dcp_peers.py RESHARD FOLDER NAME..."""

import subprocess
import sys

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

reshard, top = sys.argv[1], sys.argv[2]


def run(*args):
    p = subprocess.run([reshard, *args], capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(" ".join(args) + ": " + p.stderr.strip())


def bits(x):
    return x.dtype, tuple(x.shape), bytes(x.contiguous().flatten().view(torch.uint8).tolist())


def different(a, b):
    return sorted(n for n in set(a) | set(b) if n not in a or n not in b or bits(a[n]) != bits(b[n]))


def check(folder):
    tensors = load_file(folder + "/model.safetensors")
    run("--format", "dcp", "--dp", "3", folder, folder + "-dcp")
    dcp_to_torch_save(folder + "-dcp", folder + ".pt")
    theirs = torch.load(folder + ".pt", weights_only=True)
    theirs = theirs.get("model", theirs)
    wrong = different(tensors, theirs)
    if wrong:
        return "ours, loaded by torch: " + " ".join(wrong[:3])

    dcp.save({"model": tensors}, checkpoint_id=folder + "-theirs", no_dist=True)
    with open(folder + "/config.json") as f, open(folder + "-theirs/config.json", "w") as g:
        g.write(f.read())
    run("--format", "hf", folder + "-theirs", folder + "-back")
    wrong = different(tensors, load_file(folder + "-back/model.safetensors"))
    return "torch's, read here: " + " ".join(wrong[:3]) if wrong else None


for name in sys.argv[3:]:
    try:
        wrong = check(top + "/" + name)
    except Exception as e:  # a case that cannot run is a finding, the others go on
        wrong = f"{type(e).__name__}: {e}"
    print(f"{name}: {wrong or 'ok'}")

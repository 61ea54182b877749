"""parity.py options RUN                          the options of ptrain for a reference run
parity.py compare RUN LOG CKPT HF_DIR TMP CKPT1   our run against it; status: 1 steps differ, + 2 tensors
                                                  differ, + 4 no numpy
parity.py steps RUN LOG TMP                       only the steps
parity.py moments CKPT PREFIX FILE                    the tensors of an optimizer file under their weights'
                                                      names

CKPT1 is a run of one step with --beta1 0 --clip 0: its first moments are the gradient.

Steps are compared here, with the standard library; tensors by the fixtures' own script, which needs numpy."""
import glob
import json
import os
import struct
import subprocess
import sys


def options(run):
    meta = json.load(open(f"{run}/run.json"))
    h = meta["hyper"]
    pairs = {"init": os.path.normpath(f"{run}/{meta['init']}"),
             "data": os.path.normpath(f"{run}/{meta['tokens']}"),
             "data-order": f"stride:{h['window_stride']}", "steps": h["steps"], "global-batch": h["batch"],
             "seq-len": h["seq"], "lr": h["lr"],
             "min-lr": h["min_lr"], "warmup": h["warmup"], "beta1": h["betas"][0], "beta2": h["betas"][1],
             "eps": h["eps"],
             "weight-decay": h["weight_decay"], "clip": h["clip"]}
    print(" ".join(f"--{k} {v}" for k, v in pairs.items()))


def lines(path):
    with open(path) as f:
        return [json.loads(x) for x in f if x.strip()]


def compare_steps(run, log, ours_path):
    """Our steps count finished updates from 1, theirs begin at 0."""
    meta = json.load(open(f"{run}/run.json"))
    bf16, drift = meta["fp32_master"], meta.get("drift_of_steps", {})
    # bf16: 6 times the drift in run.json
    tol = {"loss": 5e-3 if bf16 else 2e-5, "grad_norm": 0.035 if bf16 else 1e-4, "lr": 1e-9}
    tol = {k: max(v, 20 * drift.get(k, 0)) for k, v in tol.items()}
    ours = {x["step"] - 1: x for x in lines(log) if "loss_bits" in x}
    with open(ours_path, "w") as f:
        for step, x in sorted(ours.items()):
            f.write(json.dumps({"step": step, "loss": x["loss"], "grad_norm": x["grad_norm"],
                                "lr": x["lr"]}) + "\n")
    worst, bad = dict.fromkeys(tol, 0.0), 0
    theirs = lines(f"{run}/steps.jsonl")
    for r in theirs:
        for k in tol:
            d = abs(ours[r["step"]][k] - r[k]) if r["step"] in ours else float("inf")
            worst[k] = max(worst[k], d)
            bad += not d <= tol[k]
    print(f"{len(theirs)} steps, largest differences: " +
          ", ".join(f"{k} {worst[k]:.3g} (allowed {tol[k]:g})" for k in tol))
    return bad or len(ours) != len(theirs)


def moments(ckpt, prefix, path):
    """Tensors of one kind under their weights' names: the same bytes behind a shorter header."""
    (name,) = glob.glob(f"{ckpt}/optim-*.safetensors")
    with open(name, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    head = {k[len(prefix):]: v for k, v in head.items() if k.startswith(prefix)}
    out, body = {}, b""
    for k, v in head.items():
        begin, end = v["data_offsets"]
        out[k] = {"dtype": v["dtype"], "shape": v["shape"],
                  "data_offsets": [len(body), len(body) + end - begin]}
        body += data[begin:end]
    text = json.dumps(out).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def compare(run, log, ckpt, hf, tmp, first):
    status = 1 if compare_steps(run, log, f"{tmp}/ours.jsonl") else 0
    try:
        import numpy  # noqa: F401
    except ImportError:
        return status + 4
    moments(ckpt, "exp_avg.", f"{tmp}/m.safetensors")
    moments(ckpt, "exp_avg_sq.", f"{tmp}/v.safetensors")
    moments(first, "exp_avg.", f"{tmp}/g.safetensors")
    check = os.path.normpath(f"{run}/../../check_train.py")
    # the reference's final weights are its masters, not rounded
    if json.load(open(f"{run}/run.json"))["fp32_master"]:
        hf = f"{tmp}/master.safetensors"
        moments(ckpt, "master.", hf)
    args = []
    for option, theirs, ours in (("--final", "final", hf), ("--grad0", "grad0", f"{tmp}/g.safetensors"),
                                 ("--adam-m", "adam_m", f"{tmp}/m.safetensors"),
                                 ("--adam-v", "adam_v", f"{tmp}/v.safetensors")):
        if os.path.exists(f"{run}/{theirs}.safetensors"):      # the bf16 run has no moments on record
            args += [option, ours]
    r = subprocess.run([sys.executable, "-B", check, f"{tmp}/ours.jsonl", run, *args], capture_output=True,
                       text=True)
    print(" ".join([a for a in args if a.startswith("--")]), (r.stdout + r.stderr).strip())
    return status + (2 if r.returncode else 0)


if sys.argv[1] == "options":
    options(sys.argv[2])
elif sys.argv[1] == "steps":
    sys.exit(1 if compare_steps(*sys.argv[2:4], f"{sys.argv[4]}/ours.jsonl") else 0)
elif sys.argv[1] == "moments":
    moments(*sys.argv[2:5])
else:
    sys.exit(compare(*sys.argv[2:8]))

"""What reshard writes for PyTorch and DeepSpeed, loaded by them: every weight, moment and step must have the
bits of the native checkpoint, and the
next step of their AdamW must be the one that those numbers give.

usage: foreign_peers.py RANKS NATIVE KIND=WRITTEN…       NATIVE: fp32, whole tensors with moments (tp 1, zero
                                                         0)
KIND: dcp-save    torch.distributed.checkpoint.format_utils.dcp_to_torch_save
      dcp-plain   into a model without parallelism        dcp-flat   the same, options of the optimizer by
                  name of the parameter
      dcp-fsdp    into an FSDP2 model on RANKS ranks
      ds-1 ds-2 ds-3    into a DeepSpeed engine of that ZeRO stage on RANKS ranks
A line for each: KIND=WRITTEN ok, or what is wrong."""
import glob, json, os, socket, subprocess, sys, tempfile, traceback, warnings

warnings.filterwarnings("ignore")
RANK = os.environ.get("PEERS_RANK")
if RANK is not None:            # the process that starts the ranks needs none of them
    import torch
    import torch.distributed as dist
    from safetensors import safe_open
    torch.set_num_threads(1)
    Module = torch.nn.Module
else:
    Module = object
LR, BETAS, EPS, DECAY = 0.5, (0.1, 0.2), 1e-3, 0.9          # of a fresh optimizer: all must be replaced
GRAD = 2.0 ** -10           # the gradient is the parameter times this: small enough not to be clipped


def weights(native):
    return [k for k in native if not k.startswith("exp_avg")]


class Model(Module):
    """The parameters under their names (those with moments; others are buffers), and a loss whose gradients
    are not all the same."""

    def __init__(self, native):
        super().__init__()
        for name in weights(native):
            shape = native[name].shape
            at = self
            *path, last = name.split(".")
            for p in path:
                if p not in at._modules:
                    at.add_module(p, torch.nn.Module())
                at = at._modules[p]
            if "exp_avg." + name in native:
                at.register_parameter(last, torch.nn.Parameter(torch.full(shape, 0.25)))
            else:
                at.register_buffer(last, torch.full(shape, 0.25))

    def forward(self, x):
        # gradient: x times the parameter
        return x * sum((p * p).sum() for p in self.parameters()) / 2


def read_native(folder):
    out = {}
    for f in glob.glob(folder + "/*.safetensors"):
        with safe_open(f, "pt") as s:
            for k in s.keys():
                out[k] = s.get_tensor(k)
    return out, json.load(open(folder + "/manifest.json"))["state"]


def same(what, have, want):
    assert have.dtype == want.dtype and have.shape == want.shape, "%s is %s %s, not %s %s" % (what,
        have.dtype, list(have.shape), want.dtype, list(want.shape))
    assert torch.equal(have.view(torch.uint8),
                       want.contiguous().view(torch.uint8)), "%s has other bits" % what


def stepped(native, state, name, decay, late=0):
    """The parameter after one more AdamW step with GRAD times itself as gradient, in double."""
    run = {k: float.fromhex(v) if isinstance(v, str) and "0x" in v else v for k, v in state["run"].items()}
    p, m, v = (native[r + name].double() for r in ("", "exp_avg.", "exp_avg_sq."))
    b1, b2, t = run["beta1"], run["beta2"], state["step"] + 1 + late
    g = p * GRAD
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p * (1 - run["lr"] * decay) - run["lr"] * (m / (1 - b1 ** t)) / ((v / (1 - b2 ** t)).sqrt() +
        run["eps"])


def check_step(name, have, want):
    worst = float((have.double() - want).abs().max())
    assert worst < 1e-6, "%s: the next step of the optimizer differs by %g" % (name, worst)


def groups(model):
    return [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]


def full(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


# ---- PyTorch ----
def dcp_save(native, state, written):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    with tempfile.NamedTemporaryFile() as f:
        dcp_to_torch_save(written, f.name)
        got = torch.load(f.name, weights_only=True)
    names, params = weights(native), [n for n in weights(native) if "exp_avg." + n in native]
    for n in names: same(n, got["model"][n], native[n])
    for n in params:
        for r in ("exp_avg", "exp_avg_sq"):
            same(r + " of " + n, got["optim"]["state"][n][r], native[r + "." + n])
        assert got["optim"]["state"][n]["step"] == state["step"]
    assert sorted(got["model"]) == sorted(names) and sorted(got["optim"]["state"]) == sorted(params)


def dcp_load(native, state, written, kind):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    model = Model(native)
    if kind == "dcp-fsdp":
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
    flat = StateDictOptions(flatten_optimizer_state_dict=kind == "dcp-flat")
    optim = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, eps=EPS)
    m, o = get_state_dict(model, optim, options=flat)
    dcp.load({"model": m, "optim": o}, checkpoint_id=written)
    set_state_dict(model, optim, model_state_dict=m, optim_state_dict=o, options=flat)
    params = dict(model.named_parameters())
    for n, b in model.named_buffers(): same(n, b, native[n])
    for n in params:
        same(n, full(params[n]).detach(), native[n])
        s = optim.state[params[n]]
        for r in ("exp_avg", "exp_avg_sq"):
            same(r + " of " + n, full(s[r]), native[r + "." + n])
        assert float(full(s["step"])) == state["step"], "step %s" % s["step"]
    optim.zero_grad()
    model(torch.tensor(GRAD)).backward()
    optim.step()
    for n in params:
        check_step(n, full(params[n]).detach(),
                   stepped(native, state, n, 0.1 if params[n].dim() > 1 else 0.0))


# ---- DeepSpeed ----
def ds_load(native, state, written, stage):
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    model = Model(native)
    names = dict(model.named_parameters())      # DeepSpeed does not load buffers
    optim = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, eps=EPS)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untrusted_optimizer": True,
              "zero_force_ds_cpu_optimizer": False,
              "zero_optimization": {"stage": stage}, "checkpoint": {"load_universal": True}}
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optim, config=config)
    path, client = engine.load_checkpoint(written)
    assert path, "nothing was loaded"
    assert engine.global_steps == state["step"], "global_steps %d" % engine.global_steps
    assert json.loads(client["shardline_state"])["state"]["step"] == state["step"]
    params = dict(engine.module.named_parameters())
    for n in names:
        same(n, safe_get_full_fp32_param(params[n]), native[n])
        for r in ("exp_avg", "exp_avg_sq"):
            same(r + " of " + n, safe_get_full_optimizer_state(params[n], r).view(native[n].shape),
                 native[r + "." + n])
    loss = engine(torch.tensor(GRAD))
    engine.backward(loss)
    engine.step()
    # stage 3 of 0.19.8 takes the options of the first group for all, and its groups share one tensor as step,
    # which each counts up
    for n in names:
        vector = native[n].dim() < 2
        check_step(n, safe_get_full_fp32_param(params[n]).detach(),
                   stepped(native, state, n, 0.0 if vector and stage < 3 else 0.1, vector and stage == 3))


def one_rank(rank, ranks, port, native, jobs, out):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), DS_ACCELERATOR="cpu",
                      OMP_NUM_THREADS="1")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    tensors, state = read_native(native)
    for job in jobs:
        kind, written = job.split("=", 1)
        try:
            if kind == "dcp-save":
                dcp_save(tensors, state, written)
            elif kind.startswith("dcp"):
                dcp_load(tensors, state, written, kind)
            else:
                ds_load(tensors, state, written, int(kind[3:]))
            words = "ok"
        except BaseException as e:
            words = "%s: %s" % (type(e).__name__, str(e) or traceback.format_exc(limit=-1))
            traceback.print_exc()
        with open(out, "a") as f:
            f.write("%s %s\n" % (job, words))
        if words != "ok":
            break               # other ranks may be waiting for ever
    os._exit(0)                 # threads of the libraries may abort at an orderly end


def main():
    ranks, native, jobs = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if RANK is not None:
        one_rank(int(RANK), ranks, os.environ["PEERS_PORT"], native, jobs, os.environ["PEERS_OUT"])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as tmp:
        p = []
        for r in range(ranks):
            env = dict(os.environ, PEERS_RANK=str(r), PEERS_PORT=str(port), PEERS_OUT="%s/%d" % (tmp, r))
            # the libraries talk on stdout
            p.append(subprocess.Popen([sys.executable, "-B"] + sys.argv, env=env, stdout=sys.stderr))
        for x in p:
            x.wait()
        said = [open("%s/%d" % (tmp, r)).read().splitlines() if os.path.exists("%s/%d" % (tmp, r)) else []
                for r in range(ranks)]
    bad = 0
    for i, job in enumerate(jobs):
        words = [s[i] if i < len(s) else job + " ended without a word" for s in said]
        wrong = [w for w in words if w != job + " ok"]
        print(wrong[0] if wrong else words[0])
        bad |= bool(wrong)
    return bad


if __name__ == "__main__":
    sys.exit(main())

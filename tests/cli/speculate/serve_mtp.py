"""serve_mtp.py DIR few|all - a checkpoint's layer for multi-token prediction guesses: answers are those
without it. The models are made here, DeepSeek-V3 of two layers and one behind them.

random: all weights are. token, state: the layers of the model add nothing and its head says that PERM[t]
follows t; the layer behind them takes the one or the other half of its input, so that it is always right if the
halves are what they should be."""
import json
import os
import random
import re
import struct
import subprocess
import sys
from serve_server import Server, claim, finish, skip, together

folder, part = sys.argv[1:3]
os.environ["SHARDLINE_DEVICE"] = os.path.join(os.environ["BIN"], "..", "tests", "devices", "fake_device.so")
HIDDEN, VOCAB, LAYERS = 72, 256, 2
CONFIG = dict(
    model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], hidden_size=HIDDEN,
              num_hidden_layers=LAYERS,
    num_attention_heads=8, num_key_value_heads=8, vocab_size=VOCAB, intermediate_size=104,
              max_position_embeddings=512,
    n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, n_shared_experts=2, n_group=4,
              topk_group=2,
    q_lora_rank=28, kv_lora_rank=36, qk_rope_head_dim=6, qk_nope_head_dim=10, v_head_dim=14,
              first_k_dense_replace=1,
    num_nextn_predict_layers=1, rms_norm_eps=1e-6, tie_word_embeddings=False, torch_dtype="float32",
              eos_token_id=0,
    rope_scaling=dict(type="yarn", factor=4.0, mscale=1.0, mscale_all_dim=0.7,
                      original_max_position_embeddings=64))
MLP = dict(gate_proj=(1, 0), up_proj=(1, 0), down_proj=(0, 1))
r = random.Random(7)
PERM = list(range(VOCAB))
r.shuffle(PERM)


def mlp(at, width):
    return {f"{at}.{n}.weight": ((width, HIDDEN), (HIDDEN, width))[up == 0] for n, (up, _) in MLP.items()}


def layer(i):
    p, a = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
    shapes = {p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,),
              a + "q_a_proj.weight": (28, HIDDEN), a + "q_a_layernorm.weight": (28,),
              a + "q_b_proj.weight": (128, 28),
              a + "kv_a_proj_with_mqa.weight": (42, HIDDEN), a + "kv_a_layernorm.weight": (36,),
              a + "kv_b_proj.weight": (192, 36), a + "o_proj.weight": (HIDDEN, 112)}
    if not i:
        return dict(shapes, **mlp(p + "mlp", 104))
    for e in range(8):
        shapes.update(mlp(f"{p}mlp.experts.{e}", 40))
    return dict(shapes, **mlp(p + "mlp.shared_experts", 80), **{
        p + "mlp.gate.weight": (8, HIDDEN), p + "mlp.gate.e_score_correction_bias": (8,)})


def values(name, shape):
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if name.endswith("norm.weight"):
        return [r.uniform(0.5, 1.5) for _ in range(n)]
    wide = 1 if "embed" in name or "bias" in name else 0.3
    return [r.uniform(-wide, wide) for _ in range(n)]


def rows(x):
    return [x[i:i + HIDDEN] for i in range(0, len(x), HIDDEN)]


def head_of(embed, perm):
    out = [None] * VOCAB
    for t, row in enumerate(rows(embed)):
        out[perm[t]] = row
    return [v for row in out for v in row]


def write(path, tensors, shapes):
    head, at = {}, 0
    for name, v in tensors.items():
        head[name] = dict(dtype="F32", shape=shapes[name], data_offsets=[at, at + 4 * len(v)])
        at += 4 * len(v)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q",
                            len(text)) + text + b"".join(struct.pack(f"<{len(v)}f",
                                *v) for v in tensors.values()))


def make(kind, shares=False, **config):
    """The model in folder/kind. shares: the layer has no tables of its own."""
    n = f"model.layers.{LAYERS}."
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
              "lm_head.weight": (VOCAB, HIDDEN),
              n + "enorm.weight": (HIDDEN,), n + "hnorm.weight": (HIDDEN,),
              n + "eh_proj.weight": (HIDDEN, 2 * HIDDEN),
              n + "shared_head.norm.weight": (HIDDEN,)}
    for i in range(LAYERS + 1):
        shapes.update(layer(i))
    x = {name: values(name, shape) for name, shape in shapes.items()}
    if kind in ("token", "state"):
        for name in x:
            if "o_proj" in name or "down_proj" in name:
                x[name] = [0.0] * len(x[name])
            if name.endswith("norm.weight"):
                x[name] = [1.0] * len(x[name])
        twice = [PERM[PERM[t]] for t in range(VOCAB)]
        off = HIDDEN * (kind == "state")
        x[n + "eh_proj.weight"] = [float(j == i + off) for i in range(HIDDEN) for j in range(2 * HIDDEN)]
        embed = x["model.embed_tokens.weight"]
        x["lm_head.weight"] = head_of(embed, PERM)
        x[n + "shared_head.head.weight"] = head_of(embed, PERM if kind == "token" else twice)
        shapes[n + "shared_head.head.weight"] = (VOCAB, HIDDEN)
    if not shares and kind == "random":
        for own, name in (("shared_head.head", "lm_head"), ("embed_tokens", "model.embed_tokens")):
            shapes[f"{n}{own}.weight"] = (VOCAB, HIDDEN)
            x[f"{n}{own}.weight"] = x[name + ".weight"]
    path = os.path.join(folder, kind + "-shares" * shares)
    os.makedirs(path, exist_ok=True)
    json.dump(dict(CONFIG, **config), open(os.path.join(path, "config.json"), "w"))
    write(os.path.join(path, "model.safetensors"), x, shapes)
    return path


def serve(path, *args):
    os.environ["SHARDLINE_DRAFTER"] = "always"
    s = Server(path, *args)
    os.environ.pop("SHARDLINE_DRAFTER")
    return s if claim(f"{args}: starts", s.port is not None, b"".join(s.err)) else None


def counters(s):
    text = s.request("GET", "/metrics")[1].decode()
    return [int(re.search(rf"^vllm:spec_decode_num_{n}_total\{{.*\}} (\d+)", text, re.M).group(1))
            for n in ("drafts", "draft_tokens", "accepted_tokens")]


def essence(a):
    return [(c["text"], c["token_ids"], c["logprobs"], c["finish_reason"]) for c in a["choices"]]


PROMPTS = ["ab", "the square of the square", [10], "line 11: 121 is the square of 11\n" * 4,
           list(range(1, 60))]
HOW = dict(max_tokens=40, ignore_eos=True, return_token_ids=True, logprobs=1)
FOUR = [65, 90, 120, 200]
BODIES = [dict(HOW, prompt=p, **more) for p in PROMPTS for more in (
    dict(temperature=0), dict(temperature=1, seed=3, n=2, allowed_token_ids=FOUR),
    dict(temperature=0, allowed_token_ids=FOUR, repetition_penalty=1.05, echo=True))]


def same(path, layouts):
    s = Server(path)
    want = [essence(s.complete(**b)) for b in BODIES]
    s.stop()
    for args in layouts:
        s = serve(path, *args)
        if not s:
            continue
        got = together([lambda b=b: essence(s.complete(**b)) for b in BODIES])
        for b, g, w in zip(BODIES, got, want):
            claim(f"{args}: {b} is as without", g == w, f"{str(g)[:300]} expected {str(w)[:300]}")
        drafts, tokens, right = counters(s)
        claim(f"{args}: drafts were checked, some were right", 0 < right < tokens and drafts > 0,
              (drafts, tokens, right))
        rc, err = s.stop()
        claim(f"{args}: ends well", rc == 0, f"{rc}: {err}")


same(make("random"), [("--speculate", "mtp")] + [
    ("--speculate", "mtp:3", "--tp", 2), ("--speculate", "mtp:4", "--ctx", 256, "--kv-memory", 700000, "--tp", 4),
    ("--speculate", "mtp", "--cp", 2, "--prefill-chunk", 70), ("--speculate", "mtp", "--pp", 2),
    ("--speculate", "mtp:2", "--tp", 2, "--ep", 2),
                                                 ("--speculate", "mtp:3", "--device", "cuda",
                                                  "--prefill-chunk", 20),
                                                 ("--speculate", "mtp", "--dtype", "fp32", "--replicas",
                                                  2)] * (part == "all"))
if part == "all":
    same(make("random", shares=True), [("--speculate", "mtp:2", "--prefill-chunk", 9)])
for kind, most, share in (("token", 3, 1), ("state", 1, 1), ("state", 2, 0.5)):
    s = serve(make(kind), "--speculate", f"mtp:{most}")
    for p in PROMPTS:
        ids = s.complete(prompt=p, max_tokens=40, temperature=0, ignore_eos=True,
                         return_token_ids=True)["choices"][0]["token_ids"]
        claim(f"{kind}: a token follows from the one before", all(PERM[a] == b for a, b in zip(ids, ids[1:])),
              ids)
    drafts, tokens, right = counters(s)
    claim(f"{kind}: {share} of {most} drafts are right",
          tokens > 0 and abs(right - share * tokens) <= 0.03 * tokens, (drafts, tokens, right))
    s.stop()
def peer(path):
    """As many guesses are right as transformers says."""
    python, out = os.environ.get("PEER_PYTHON", "python3"), os.path.join(folder, "peer")
    if subprocess.run([python, "-c", "import transformers, safetensors, torch"],
                      capture_output=True).returncode:
        return skip("no transformers here: set PEER_PYTHON")
    s, asked, got = serve(path, "--speculate", "mtp:1", "--tp", 2), [], []
    for p in ([10, 20, 30, 40, 50], list(range(1, 100)), [5] * 30, list(range(200, 100, -1))):
        before = counters(s)
        ids = s.complete(prompt=p, max_tokens=150, temperature=0, ignore_eos=True, return_token_ids=True,
                         allowed_token_ids=FOUR)["choices"][0]["token_ids"]
        _, drafts, right = [a - b for a, b in zip(counters(s), before)]
        asked.append(dict(ids=p + ids, prompt=len(p), allowed=FOUR))
        got.append(dict(drafts=drafts, right=right))
    s.stop()
    json.dump(asked, open(out + ".in", "w"))
    here = os.path.dirname(os.path.abspath(__file__))
    run = subprocess.run([python, "-B", os.path.join(here, "serve_mtp_peer.py"), path, out],
                         capture_output=True, text=True)
    want = json.load(open(out)) if run.returncode == 0 else run.stderr[-400:]
    claim("transformers makes the same guesses", got == want, (got, want))


def long(path):
    """A prompt of more tokens than states are kept of."""
    body = dict(HOW, prompt=[r.randrange(VOCAB) for _ in range(5000)], temperature=1, seed=3,
                allowed_token_ids=FOUR)
    plain, s = Server(path), serve(path, "--speculate", "mtp:2", "--prefill-chunk", 700)
    want = essence(plain.complete(**body))
    for what in ("a long prompt", "most of it from the cache"):
        claim(f"{what}: as without", essence(s.complete(**body)) == want, what)
    drafts, tokens, right = counters(s)
    claim("a long prompt has drafts", drafts > 20 and 0 < right < tokens, (drafts, tokens, right))
    plain.stop(), s.stop()


if part == "all":
    long(make("random", max_position_embeddings=8192))
    peer(make("random"))
none = make("token", num_nextn_predict_layers=0)
s = Server(none, "--speculate", "mtp")
rc, err = s.wait()
claim("a checkpoint without such a layer is refused", rc == 2 and "num_nextn_predict_layers 0" in err,
      (rc, err))
finish()

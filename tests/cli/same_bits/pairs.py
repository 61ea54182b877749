"""pairs.py - runs of ptrain in which every pair of values of two dimensions occurs: a covering array.
usage: pairs.py dense|experts|bias CLASSES EXPERTS

bias: experts whose routers have a correction bias. CLASSES: the CPU classes of this machine, by comma.
EXPERTS: of a layer.

Prints a line a run: options of its reference | environment | options of its layout. Then "# WORDS" about each
pair that no run can have, and the count of pairs, which is taken from the printed lines alone. Status 1: a
pair is missing. The same arguments give the same lines."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from covering import Covering  # noqa: E402

BATCH = 16
# more than a few only where a pair needs them: they wait long on few cores
FEW_RANKS, MOST_RANKS = 8, 16
kind, classes, n_experts = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])

# ---- the dimensions: a value and its options ----
# The first group is bound by rules; values of the others go with everything.
PIPELINES = {"none": "", **{s: f"--pp 2 --schedule {s}" for s in ("1f1b", "gpipe", "zero-bubble")},
             "interleaved": "--pp 2 --schedule interleaved --virtual-stages 2",
             "four stages": "--pp 4 --schedule zero-bubble"}
BOUND = {"tp": {n: f"--tp {n}" for n in (1, 2, 4)},
         "dp": {n: f"--ranks {n}" for n in (1, 2, 4, 8)},           # times tp and stages
         "pipeline": PIPELINES,
         "sp": {"off": "", "on": "--sp"},
         "micro-batch": {1: "--micro-batch 1", 2: "--micro-batch 2", "all": "--micro-batch 0"},
         "overlap": {"off": "--overlap off", "on": "--overlap on"}}
FREE = {"zero": {n: f"--zero {n}" for n in range(4)},
        "recompute": {s: f"--recompute {s}" for s in ("none", "selective", "full")},
        "threads": {n: f"--threads {n}" for n in (1, 2)}}
ENVIRONMENT = {"class": {c: f"SHARDLINE_ISA={c}" for c in reversed(classes)}}
CHOICES = {"dtype": {s: f"--dtype {s}" for s in ("fp32", "bf16")}}
if kind != "dense":
    BOUND["ep"] = {n: f"--ep {n}" for n in (1, 2, 4, 8) if n <= n_experts}
    BOUND["leaf"] = {1: "", 2: "--expert-leaf 2"}
    FREE["rounds"] = {"one": "", "several": "--expert-buffer 0.5"}
    CHOICES["balance"] = {"none": "", "sequence": "--balance sequence --balance-rate 0.1 --z-loss 0.01",
                          "global": "--balance global --balance-rate 0.1"}
    if kind == "bias":
        CHOICES["balance"]["bias"] = "--balance bias --balance-rate 0.02"
# What a run computes. The portable class is the slowest by far.
SIZES = dict.fromkeys(classes, "--seq-len 72 --steps 3")
SIZES["portable"] = "--seq-len 8 --steps 2"
DIMENSIONS = {**BOUND, **FREE, **ENVIRONMENT, **CHOICES}
REFERENCE = [*CHOICES, "leaf"]          # options that change the bits: every value has a reference of its own


def stages(r):
    return {"none": 1, "four stages": 4}.get(r["pipeline"], 2)


def n_ranks(r):
    return r["tp"] * r["dp"] * stages(r)


def micro_batch(r):
    return BATCH // r["dp"] if r["micro-batch"] == "all" else r["micro-batch"]


def fold(r):
    """The dp ranks that share experts."""
    return max(1, r.get("ep", 1) // r["tp"])


def can_overlap(r):
    return r["dp"] > 1 or r.get("ep", 1) > 1


# ---- the rules: what ptrain refuses, or two cores do not run ----
RULES = [(f"over {MOST_RANKS} ranks", lambda r: n_ranks(r) > MOST_RANKS),
         ("sp shares a sequence among tp ranks", lambda r: r["sp"] == "on" and r["tp"] == 1),
         ("nothing overlaps at dp 1 and ep 1", lambda r: r["overlap"] == "on" and not can_overlap(r)),
         ("an expert group is tp ranks times a divisor of dp",
          lambda r: r.get("ep", 1) > 1 and (r["ep"] % r["tp"] or r["dp"] % (r["ep"] // r["tp"]))),
         ("interleaved stages take micro-batches in pairs",
          lambda r: r["pipeline"] == "interleaved" and BATCH // r["dp"] // micro_batch(r) % 2),
         ("a leaf is of sequences of one micro-step", lambda r: micro_batch(r) * fold(r) % r.get("leaf", 1))]


def refusal(r):
    return next((why for why, broken in RULES if broken(r)), None)


def line(row):
    r = dict(row)
    text = {d: DIMENSIONS[d][r[d]] for d in r}
    text["dp"] = f"--ranks {n_ranks(r)}"
    text["overlap"] = text["overlap"] if can_overlap(r) else ""
    layout = [d for d in r if d in {**BOUND, **FREE} and d not in REFERENCE]
    parts = [[d for d in r if d in REFERENCE], [d for d in r if d in ENVIRONMENT], layout]
    of, environment, layout = (" ".join(text[d] for d in names if text[d]) for names in parts)
    return f"{SIZES[r['class']]} {of} | {environment} | {layout}"


def read_back(printed):
    """The values of a printed line, found by its options alone."""
    words = " " + printed + " "
    r = {}
    for d in DIMENSIONS:
        fits = [v for v, text in DIMENSIONS[d].items() if d != "dp" and text and f" {text} " in words]
        r[d] = fits[0] if fits else next((v for v, text in DIMENSIONS[d].items() if not text), None)
    ranks = int(words.split("--ranks ")[1].split()[0])
    r["dp"] = ranks // r["tp"] // stages(r)
    r["overlap"] = r["overlap"] or "off"
    return r


free = {d: v for d, v in DIMENSIONS.items() if d not in BOUND}
array = Covering(BOUND, free, refusal, lambda r: n_ranks(r) <= FEW_RANKS)
lines = [line(row) for row in array.rows]
lines.sort(key=lambda x: x.split(" | ")[0])          # a reference is trained once
for text in lines:
    print(text)
sys.exit(array.report(read_back, lines))

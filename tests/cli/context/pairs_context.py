"""pairs_context.py - runs of ptrain over sequences of 8 leaves in which every pair of values of two
dimensions occurs: a covering array (../lib/covering.py). No arguments.

Prints a line a run: model | options of its reference | options of its layout. The model: "dense" or
"experts", then the window of every second layer, 0: none. Then "# WORDS" about each pair that no run can
have, and the count of pairs, which is taken from the printed lines alone. Status 1: a pair is missing."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from covering import Covering  # noqa: E402

# more than a few only where a pair needs them: they wait long on few cores
FEW_RANKS, MOST_RANKS, EXPERTS = 16, 32, 32
PIPELINES = {"none": "", **{s: f"--pp 2 --schedule {s}" for s in ("1f1b", "gpipe", "zero-bubble")},
             "interleaved": "--pp 2 --schedule interleaved --virtual-stages 2",
             "four stages": "--pp 4 --schedule zero-bubble"}
# cut by tp; whole on tp x cp ranks; on those of all dp ranks too, in several rounds
LOSSES = {"dense": "", "cut": "--balance sequence --balance-rate 0.1 --z-loss 0.01", "whole": "",
          "over dp": "--balance global --balance-rate 0.1"}
BOUND = {"cp": {n: f"--cp {n}" for n in (1, 2, 4, 8)},
         "tp": {n: f"--tp {n}" for n in (1, 2, 4)},
         "dp": {n: "" for n in (1, 2, 3, 4)},
         "pipeline": PIPELINES,
         "sp": {"off": "", "on": "--sp"},
         "experts": LOSSES}
FREE = {"zero": {n: f"--zero {n}" for n in range(4)},
        "recompute": {s: f"--recompute {s}" for s in ("none", "selective", "full")},
        "threads": {n: f"--threads {n}" for n in (1, 2)},
        "window": {0: "", 100: ""},
        "documents": {"whole": "", "several": "--documents 64"},
        "dtype": {s: f"--dtype {s}" for s in ("fp32", "bf16")}}


def stages(r):
    return {"none": 1, "four stages": 4}.get(r["pipeline"], 2)


def n_ranks(r):
    return r["cp"] * r["tp"] * r["dp"] * stages(r)


def ep(r):
    return {"whole": r["tp"] * r["cp"], "over dp": r["tp"] * r["cp"] * r["dp"]}.get(r["experts"], 1)


def batch(r):
    """dp 3 is in the tree of 3 sequences, and of 6 where each step adds one a rank."""
    return 4 if r["dp"] != 3 else 6 if r["cp"] > 1 else 3


def one_a_micro_batch(r):
    """With cp a micro-batch is one sequence; else it is all of a rank's, where no stage waits for them."""
    return "--micro-batch 1" if r["cp"] == 1 and stages(r) > 1 else ""


RULES = [("sp shares a sequence among tp ranks", lambda r: r["sp"] == "on" and r["tp"] == 1),
         ("one rank has no group", lambda r: r["experts"] == "whole" and ep(r) == 1),
         ("dp 1 adds no rank to a group", lambda r: r["experts"] == "over dp" and r["dp"] == 1),
         (f"a group is of {EXPERTS} ranks at most", lambda r: ep(r) > EXPERTS),
         ("interleaved stages take micro-batches in pairs",
          lambda r: r["pipeline"] == "interleaved" and batch(r) // r["dp"] % 2),
         (f"over {MOST_RANKS} ranks", lambda r: n_ranks(r) > MOST_RANKS)]


def refusal(r):
    return next((why for why, broken in RULES if broken(r)), None)


def line(row):
    r = dict(row)
    model = f"{'dense' if r['experts'] == 'dense' else 'experts'} {r['window']}"
    text = {d: {**BOUND, **FREE}[d][r[d]] for d in r}
    of = [f"--global-batch {batch(r)}"] + [text.pop(d) for d in ("dtype", "documents", "experts")]
    layout = list(text.values())
    layout += [f"--ranks {n_ranks(r)}", one_a_micro_batch(r)]
    if ep(r) > 1:
        layout += [f"--ep {ep(r)}", "--expert-buffer 0.5" if r["experts"] == "over dp" else ""]
    return " | ".join([model] + [" ".join(x for x in words if x) for words in (of, layout)])


def read_back(printed):
    """The values of a printed line, found by its options alone."""
    model, _, layout = printed.split(" | ")
    words = f" {printed} "
    r = {}
    for d, values in {**BOUND, **FREE}.items():
        fits = [v for v, text in values.items() if text and f" {text} " in words]
        r[d] = fits[0] if fits else next((v for v, text in values.items() if not text), None)
    options = layout.split()
    r["dp"] = 1
    r["dp"] = int(options[options.index("--ranks") + 1]) // n_ranks(r)
    r["window"] = int(model.split()[1])
    group = int(options[options.index("--ep") + 1]) if "--ep" in options else 1
    r["experts"] = "dense" if model.startswith("dense") else "cut" if group == 1 else "whole"
    if group > r["tp"] * r["cp"]:
        r["experts"] = "over dp"
    return r


array = Covering(BOUND, FREE, refusal, lambda r: n_ranks(r) <= FEW_RANKS)
lines = sorted(line(row) for row in array.rows)      # a reference is trained once
for text in lines:
    print(text)
sys.exit(array.report(read_back, lines))

#!/usr/bin/env python3
"""simulate_rows.py - steps of this machine beside what memplan --simulate predicts for them from single operations:
the rows of train_bench.py and layouts of 1 to 8 ranks, in interleaved rounds (calibrate, then every row).

usage: simulate_rows.py [--bin DIR] [--rounds N] [--steps N] [--set bench|ranks|all] [--save FILE] [--from FILE]...
                        [--list] [WORD...]
WORD...: only rows whose name has every WORD; WORD,WORD: one of the two. --save: keeps calibrations and seconds as
JSON, also when it is interrupted; --from: predicts again from such a file and measures nothing; given again, from
all of the files together. --fit ROW: the one calibration of memplan --fit, from this row, for all rows, whether
WORD has it or not; without it nothing is fitted. A step is the
median of a run's steps but for the first, a row the median of its rounds; predictions likewise, each from its
round's calibration. Layouts whose medians differ by less than the spread of either (half of the range of their
rounds and steps' quartiles) are a tie. Nothing is saved by the runs: they are killed after the last step."""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from train_bench import LAYOUTS, SIZES, logged_steps, make_inputs, sequences  # noqa: E402

RANKS = [("1", 1, [])]
for _n in (2, 4, 8):
    RANKS += [(f"dp {_n}", _n, []), (f"zero3 {_n}", _n, ["--zero", 3]), (f"tp {_n}", _n, ["--tp", _n])]
RANKS += [("pp2", 2, ["--pp", 2]), ("tp2 dp2", 4, ["--tp", 2]), ("pp2 tp2", 4, ["--tp", 2, "--pp", 2]),
          ("tp4 dp2", 8, ["--tp", 4])]


def rows(which, words):
    """The rows asked for: name, group of layouts that are ranked, model, flags, calibration."""
    out = []
    for size in SIZES if which != "ranks" else ():
        for dtype in ("fp32", "bf16"):
            for seq in (256, 512):
                for layout, (ranks, threads, flags, _) in LAYOUTS.items():
                    out.append({"name": f"{size} {dtype} {seq} {layout}", "group": f"{size} {dtype} {seq}",
                                "model": size, "seq": seq, "batch": sequences(size, seq), "dtype": dtype,
                                "ranks": ranks, "threads": threads, "flags": flags,
                                "calibration": f"{size} {seq}", "most": 2})
    for name, ranks, flags in RANKS if which != "bench" else ():
        out.append({"name": f"ranks {name}", "group": "ranks", "model": "preset", "seq": 128, "batch": 8,
                    "dtype": "fp32", "ranks": ranks, "threads": 1, "flags": flags, "calibration": "preset 128",
                    "most": 8})
    return [r for r in out if all(set(w.split(",")) & set(r["name"].split()) for w in words)]


def model_of(tmp, row):
    return "10m" if row["model"] == "preset" else os.path.join(tmp, row["model"] + ".json")


def data_of(tmp, row):
    return os.path.join(tmp, "text" if row["model"] == "preset" else f"{SIZES[row['model']][4]}.u16")


def run(cmd, env):
    p = subprocess.run([str(x) for x in cmd], capture_output=True, text=True, env=env)
    if p.returncode:
        sys.exit(f"simulate_rows: {' '.join(map(str, cmd))}: {p.stderr.strip()[-300:]}")
    return p.stdout


def measure(a, tmp, row, env):
    """Seconds of each step."""
    logs, out = os.path.join(tmp, "log.jsonl"), os.path.join(tmp, "out")
    shutil.rmtree(out, ignore_errors=True)
    if os.path.exists(logs):
        os.unlink(logs)
    steps = a.steps if row["model"] != "110m" else max(3, a.steps // 2)
    cmd = [os.path.join(a.bin, "ptrain"), "--data", data_of(tmp, row), "--out", out, "--log", logs, "--model",
           model_of(tmp, row), "--dtype", row["dtype"], "--seq-len", row["seq"], "--global-batch", row["batch"],
           "--ranks", row["ranks"], "--threads", row["threads"], "--steps", steps + 1, *row["flags"]]
    lines, said = logged_steps(cmd, logs, steps, env)
    if len(lines) < steps:
        sys.exit(f"simulate_rows: {row['name']}: {said.strip()[-300:]}")
    return [x["tokens"] / x["step"] / x["tokens_per_s"] for x in lines]


def predict(a, tmp, row, toml, env, more=()):
    """Seconds of a step, and where its time goes."""
    path = os.path.join(tmp, "c.toml")
    with open(path, "w") as f:
        f.write(toml)
    flags = {row["flags"][i]: row["flags"][i + 1] for i in range(0, len(row["flags"]), 2)}
    tp, pp = int(flags.get("--tp", 1)), int(flags.get("--pp", 1))
    dp = row["ranks"] // (tp * pp)
    out = run([os.path.join(a.bin, "memplan"), "--model", model_of(tmp, row), "--gpus", row["ranks"], "--threads",
               row["threads"], "--tp", tp, "--pp", pp, "--dp", dp, "--zero", flags.get("--zero", 0), "--dtype",
               row["dtype"], "--seq-len", row["seq"], "--global-batch", row["batch"], "--micro-batch",
               row["batch"] // dp, "--simulate", path, *more], env)
    return (float(re.search(r"^step ([0-9.e+-]+) s", out, re.M)[1]),
            re.search(r"^time +(.*)$", out, re.M)[1])


def fit(a, tmp, row, kept, env):
    """The one calibration: how much longer measured calls take in a step, from this row alone, for all files."""
    seconds = statistics.median(statistics.median(s[1:]) for s in kept["steps"][row["name"]])
    factor = []
    for toml in kept["calibrations"][row["calibration"]]:
        predict(a, tmp, row, toml, env, ["--fit", seconds])
        with open(os.path.join(tmp, "c.toml")) as f:
            factor.append(float(re.search(r"^measured = (.*)$", f.read(), re.M)[1]))
    print(f"fitted to {row['name']}: measured = {statistics.median(factor):.4g}")
    for tomls in kept["calibrations"].values():
        tomls[:] = [re.sub(r"^measured = .*$", f"measured = {statistics.median(factor):.6g}", t, flags=re.M)
                    for t in tomls]


def calibrate(a, tmp, row, env):
    path = os.path.join(tmp, "cal.toml")
    run([os.path.join(a.bin, "memplan"), "--model", model_of(tmp, row), "--gpus", row["most"], "--seq-len",
         row["seq"], "--global-batch", row["batch"], "--calibrate", path], env)
    with open(path) as f:
        return f.read()


def collect(a, tmp, chosen, env, kept):
    begin = time.time()
    for r in range(a.rounds):
        for name in dict.fromkeys(row["calibration"] for row in chosen):
            row = next(x for x in chosen if x["calibration"] == name)
            t = time.time()
            kept["calibrations"].setdefault(name, []).append(calibrate(a, tmp, row, env))
            print(f"[{time.time() - begin:5.0f} s] calibrated {name} in {time.time() - t:.0f} s", file=sys.stderr)
        for row in chosen:
            s = measure(a, tmp, row, env)
            kept["steps"].setdefault(row["name"], []).append(s)
            print(f"[{time.time() - begin:5.0f} s] {row['name']}: {statistics.median(s[1:]):.4g} s", file=sys.stderr)
            if a.save:
                with open(a.save + ".tmp", "w") as f:
                    json.dump(kept, f)
                os.replace(a.save + ".tmp", a.save)


def add(kept, source):
    """Rounds that another call has saved."""
    with open(source) as f:
        more = json.load(f)
    for part in kept:
        for name, rounds in more[part].items():
            kept[part].setdefault(name, []).extend(rounds)


def spread(rounds):
    """Half of the range of the rounds' medians, or of the quartiles of all steps, whichever is larger."""
    medians = [statistics.median(s[1:]) for s in rounds]
    q = statistics.quantiles([x for s in rounds for x in s[1:]], n=4)
    return max(max(medians) - min(medians), q[2] - q[0]) / 2


def table(chosen, kept, a, tmp, env):
    print(f"{'row':24s} {'measured':>9s} {'spread':>7s} {'predicted':>9s} {'error':>7s}  time")
    for row in chosen:
        rounds = kept["steps"][row["name"]]
        said = [predict(a, tmp, row, toml, env) for toml in kept["calibrations"][row["calibration"]]]
        row["measured"] = statistics.median(statistics.median(s[1:]) for s in rounds)
        row["predicted"] = statistics.median(x[0] for x in said)
        row["spread"], row["error"] = spread(rounds), row["predicted"] / row["measured"] - 1
        print(f"{row['name']:24s} {row['measured']:9.4g} {row['spread']:7.2g} {row['predicted']:9.4g} "
              f"{100 * row['error']:+6.1f} %  {said[0][1]}")
    errors = [abs(r["error"]) for r in chosen]
    print(f"{len(errors)} rows: {sum(e <= 0.1 for e in errors)} within 10 %, median {100 * statistics.median(errors):.1f} %, "
          f"largest {100 * max(errors):.1f} %")


def order(chosen):
    """Pairs of a group's layouts: predicted in the measured order, or not; ties by the measured spread."""
    for group in dict.fromkeys(r["group"] for r in chosen):
        of = sorted((r for r in chosen if r["group"] == group), key=lambda r: r["measured"])
        right, tied, wrong = 0, 0, []
        for i, x in enumerate(of):
            for y in of[i + 1:]:
                if y["measured"] - x["measured"] < max(x["spread"], y["spread"]):
                    tied += 1
                elif x["predicted"] < y["predicted"]:
                    right += 1
                else:
                    wrong.append(f"{x['name']} before {y['name']}")
        if len(of) > 1:
            print(f"order of {group}: {right} pairs right, {tied} tied, {len(wrong)} wrong"
                  f"{': ' + '; '.join(wrong) if wrong else ''}")
            print("  measured:  " + " < ".join(r["name"].removeprefix(group).strip() for r in of))
            print("  predicted: " + " < ".join(r["name"].removeprefix(group).strip()
                                               for r in sorted(of, key=lambda r: r["predicted"])))


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--bin", default=os.environ.get("BIN", "build/bin"))
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--set", default="all", choices=("bench", "ranks", "all"))
    p.add_argument("--save")
    p.add_argument("--from", dest="sources", action="append", default=[])
    p.add_argument("--fit", metavar="ROW")
    p.add_argument("--list", action="store_true")
    p.add_argument("words", nargs="*")
    a = p.parse_args()
    chosen = rows(a.set, a.words)
    if a.list:
        print("\n".join(r["name"] for r in chosen))
        return
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
    env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory() as tmp:
        make_inputs(tmp)
        with open(os.path.join(tmp, "text"), "w") as f:
            f.write("".join(chr(97 + i * i * 7919 % 10007 % 26) for i in range(400000)))
        kept = {"calibrations": {}, "steps": {}}
        for source in a.sources:
            add(kept, source)
        if a.sources:
            chosen = [r for r in chosen if r["name"] in kept["steps"]]
        else:
            collect(a, tmp, chosen, env, kept)
        if not chosen:
            sys.exit(f"simulate_rows: no row of {' '.join(a.words) or a.set} was measured: --list shows the names")
        if a.fit:
            of = [r for r in rows("all", []) if r["name"] == a.fit and a.fit in kept["steps"]]
            if not of:
                sys.exit(f"simulate_rows: --fit {a.fit}: this row was not measured: add it, or --from its file")
            fit(a, tmp, of[0], kept, env)
        table(chosen, kept, a, tmp, env)
        order(chosen)


if __name__ == "__main__":
    main()

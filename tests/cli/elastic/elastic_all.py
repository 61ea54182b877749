#!/usr/bin/env python3
"""elastic_all.py - a walk over random layouts, a change every few steps, and kills of ranks, machines, keepers, mpirun and the
first process at random moments, also within a change: every loss and the final state are those of a run that was left
alone, and a kill costs at most K steps. The number of kills and the seed: ELASTIC_KILLS, ELASTIC_SEED; without the walk:
ELASTIC_KILLS_ONLY=1."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BIN = os.environ.get("BIN") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../build/bin")
PTRAIN = os.path.join(BIN, "ptrain")
KILLS = int(os.environ.get("ELASTIC_KILLS", "100"))
SEED = int(os.environ.get("ELASTIC_SEED", "24"))
rng = random.Random(SEED)
tmp = tempfile.mkdtemp(prefix="shardline-elastic-")
failed = passed = 0


def claim(what, ok, more=""):
    global failed, passed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAIL", what, more)


def words(n):
    w = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7))) for _ in range(300)]
    return " ".join(rng.choice(w) for _ in range(n))


with open(tmp + "/text", "w") as f:
    f.write(words(20000))
with open(tmp + "/model.json", "w") as f:  # attention heads, layers and experts that every layout below divides
    json.dump({"model_type": "mixtral", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
               "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 32, "vocab_size": 256, "max_position_embeddings": 256,
               "num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.1}, f)


def common(steps):
    return [PTRAIN, "--data", tmp + "/text", "--model", tmp + "/model.json", "--seq-len", "256", "--global-batch", "8",
            "--cp-grain", "2", "--steps", str(steps), "--threads", "1"]


def steps_of(path):
    """step -> (loss, norm) as bits; a step that is there twice has both."""
    got = {}
    with open(path) as f:
        for line in f:
            if '"loss_bits"' in line and line.endswith("}\n"):
                d = json.loads(line)
                got.setdefault(d["step"], []).append((d["loss_bits"], d["grad_norm_bits"]))
    return got


def events(path, name):
    with open(path) as f:
        return [json.loads(x) for x in f if f'"event":"{name}"' in x]


def state_of(text):
    found = re.findall(r'"state_digest":"([0-9a-f]+)"', text)
    return found[-1] if found else None


def reference(steps):
    out = subprocess.run(common(steps) + ["--out", f"{tmp}/ref{steps}", "--log", f"{tmp}/ref{steps}.jsonl"],
                         capture_output=True, text=True)
    claim(f"the reference of {steps} steps runs", out.returncode == 0, out.stderr[-500:])
    return steps_of(f"{tmp}/ref{steps}.jsonl"), state_of(out.stdout)


def layouts():
    """All layouts of up to 8 ranks with the bits of one."""
    all_of = []
    for tp in (1, 2, 4):
        for pp in (1, 2, 4):
            for cp in (1, 2):
                for dp in (1, 2, 4):
                    if tp * pp * cp * dp > 8:
                        continue
                    for zero in (0, 1, 2, 3):
                        for ep in {1, tp * cp, tp * cp * dp}:
                            if ep in (1, 2, 4):
                                all_of.append({"ranks": tp * pp * cp * dp, "tp": tp, "pp": pp, "cp": cp, "zero": zero, "ep": ep})
    return all_of


def write_layout(layout):
    with open(tmp + "/new.toml", "w") as f:
        f.writelines(f"{k} = {v}\n" for k, v in layout.items())
    os.replace(tmp + "/new.toml", tmp + "/layout.toml")


def walk(steps=60, every=3):
    """Writes another layout as soon as the one before has done `every` steps."""
    want, state = reference(steps)
    choose = layouts()
    write_layout(rng.choice(choose))
    log = tmp + "/walk.jsonl"
    with open(tmp + "/walk.out", "w") as out, open(tmp + "/walk.err", "w") as err:
        job = subprocess.Popen(common(steps) + ["--out", tmp + "/walk", "--log", log, "--ranks", "1", "--layout-file",
                                                tmp + "/layout.toml"], stdout=out, stderr=err)
        at = 0
        while job.poll() is None:
            time.sleep(0.02)
            try:
                done = max(steps_of(log), default=0)
            except (OSError, ValueError):
                continue
            if done >= at + every:
                at = done
                write_layout(rng.choice(choose))
    err = open(tmp + "/walk.err").read()
    changes = events(log, "layout")
    claim("the walk ends well", job.returncode == 0, err[-800:])
    claim("the walk has the final state of a straight run", state_of(open(tmp + "/walk.out").read()) == state)
    got = steps_of(log)
    claim("every step of the walk is there once, with its bits", got == want,
          [s for s in want if got.get(s) != want[s]][:3])
    claim("no layout of the walk was refused or taken back", "the layout stays" not in err and "back to the old one" not in err,
          [x for x in err.split("\n") if "stays" in x or "back to" in x][:3])
    print(f"walk: {len(changes)} changes in {steps} steps, " +
          (f"{sum(c['seconds'] for c in changes) / len(changes):.2f} s each" if changes else ""))
    claim("the walk changed its layout often", len(changes) >= steps // every // 2, len(changes))


def children(pid):
    try:
        return [int(x) for t in os.listdir(f"/proc/{pid}/task")
                for x in open(f"/proc/{pid}/task/{t}/children").read().split()]
    except OSError:
        return []


def name_of(pid):
    try:
        return open(f"/proc/{pid}/comm").read().strip()
    except OSError:
        return ""


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return 1
    except ProcessLookupError:
        return 0


def victims(job, choose):
    """Who is killed next, and the processes of which one, or a machine's all, are."""
    here = children(job.pid)
    mpirun = [p for p in here if name_of(p) == "mpirun"]
    keepers = sorted(p for p in here if name_of(p) == "keeper")
    ranks = sorted(r for m in mpirun for r in children(m))
    what = choose.choice(["rank"] * 5 + ["machine"] * 2 + ["keeper", "mpirun", "first process"])
    if what == "machine":  # every two ranks are one, the keepers are in its order
        machines = min(len(ranks) // 2, len(keepers))
        if machines < 2:
            return what, []
        at = choose.randrange(machines)
        return what, [keepers[at]] + ranks[2 * at:2 * at + 2]
    one = {"rank": ranks, "keeper": keepers, "mpirun": mpirun, "first process": [job.pid]}[what]
    return what, [choose.choice(one)] if one else []


def wait_for(job, seconds):
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def wait_for_steps(job, log, n):
    """Until n more steps are in the log."""
    def have():
        return len(steps_of(log)) if os.path.exists(log) else 0
    begun = have()
    while job.poll() is None and have() < begun + n:
        time.sleep(0.02)


def kill_and_start(command, log, n, done, said):
    """Runs `command` to its end, a first process that is killed once more; kills until n are done. Returns the job."""
    choose = random.Random(rng.random())
    every = layouts()
    lost_at = -2  # sets that were kept when a keeper was killed last
    while True:
        err = open(tmp + "/k.err", "a")
        job = subprocess.Popen(command, stdout=open(tmp + "/k.out", "w"), stderr=err)
        what = None
        while job.poll() is None and what != "first process":
            if choose.random() < 0.4:  # the kill may come into the middle of a change
                write_layout(choose.choice(every))
            began = time.monotonic()
            if choose.random() < 0.6:  # else it may come before the first step, too
                wait_for_steps(job, log, choose.randint(1, 6))
            wait_for(job, choose.uniform(0, 0.5))
            wait = time.monotonic() - began
            if job.poll() is not None or sum(done.values()) >= n:
                wait_for(job, 1)
                continue
            what, target = victims(job, choose)
            if what in ("keeper", "machine"):  # two machines that are lost between two sets take the state with them
                sets = len(events(log, "keep")) if os.path.exists(log) else 0
                if sets < lost_at + 2:
                    what, target = None, []
                lost_at = sets if target else lost_at
            if sum(kill(p) for p in target):
                done[what] += 1
                said.append(f"{sum(done.values())}: {what} after {wait:.3f} s")
                print(said[-1], file=err, flush=True)
            else:
                what = None
        job.wait()
        err.close()
        if what != "first process":
            return job


def check_killed(job, runs, steps, want, state, said):
    out, log = f"{tmp}/k{runs}", f"{tmp}/k{runs}.jsonl"
    text = open(tmp + "/k.err").read()
    got = steps_of(log)
    result = state_of(open(tmp + "/k.out").read())
    if not result:  # killed behind its last save
        digest = subprocess.run([os.path.join(BIN, "reshard"), "digest", f"{out}/step-{steps}"], capture_output=True, text=True)
        result = state if state in digest.stdout else digest.stdout + digest.stderr
    before = failed
    claim(f"run {runs} ends well", job.returncode == 0, job.returncode)
    claim(f"run {runs} has every step once, with its bits", got == want, [s for s in want if got.get(s) != want[s]][:3])
    claim(f"run {runs} has the final state", result == state, result)
    if failed > before:
        print(f"kills of run {runs}:", "; ".join(said), "\nits messages:", text[-6000:])


def kills(n, steps=300, keep=3):
    """Kills until n are done, in runs whose layout changes; a run that ends starts again in a new folder."""
    want, state = reference(steps)
    done = {"rank": 0, "machine": 0, "keeper": 0, "mpirun": 0, "first process": 0}
    most_again = runs = changed = 0
    began = time.monotonic()
    while sum(done.values()) < n:
        runs += 1
        said = []
        out, log = f"{tmp}/k{runs}", f"{tmp}/k{runs}.jsonl"
        open(tmp + "/k.err", "w").close()
        write_layout({"ranks": 4, "tp": 2, "zero": 1})
        job = kill_and_start(common(steps) + ["--out", out, "--log", log, "--ranks", "4", "--tp", "2", "--zero", "1",
                                              "--ranks-per-node", "2", "--memory-every", str(keep), "--save-every", "50",
                                              "--keep", "2", "--restarts", "50", "--resume", "auto", "--layout-file",
                                              tmp + "/layout.toml"], log, n, done, said)
        check_killed(job, runs, steps, want, state, said)
        most_again = max([most_again] + [e["again"] for e in events(log, "restart")])
        changed += len(events(log, "layout"))
        shutil.rmtree(out)
    claim("a kill costs at most K steps", most_again <= keep, most_again)
    claim("kills cost steps", n < 50 or most_again > 0)
    claim("the kills came into changes of layout", n < 20 or changed >= n // 10, changed)
    print(f"kills: {done}, {runs} runs, {changed} changes of layout, at most {most_again} of K = {keep} steps again, "
          f"{time.monotonic() - began:.0f} s")


print(f"ELASTIC_SEED={SEED} ELASTIC_KILLS={KILLS}", flush=True)
try:
    if not os.environ.get("ELASTIC_KILLS_ONLY"):
        walk()
    kills(KILLS)
finally:
    shutil.rmtree(tmp, ignore_errors=True)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)

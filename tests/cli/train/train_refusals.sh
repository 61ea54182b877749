#!/usr/bin/env bash
# all
# train_refusals.sh - every refusal of ptrain's setup, found in its sources, is tried in train_errors.golden
# or train_refusals.golden (golden.sh runs them), and says what to change.
. "$(dirname "$0")/../lib/lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { skip "no python3 to read the sources"; finish; }
cat >"$TMP/find.py" <<'PY'
import glob, re, sys
top = sys.argv[1]
files = [f for p in ("train/**/*.c", "model/params.c", "model/config.c", "model/params_local.c", "comm/launch.c", "comm/world.c") for f in sorted(glob.glob(f"{top}/{p}", recursive=True))]
said = [line[2:].rstrip("\n") for f in sorted(glob.glob(f"{top}/tests/cli/*/*.golden")) for line in open(f) if line.startswith("! ")]
# cannot be reached by a command line, or not without a machine that has more: each with why
EXCUSED = {
    "config.json: %s is not computed yet": "no family that is computed has such a key now",
    "tp %d x cp %d x dp %d x pp %d is not": "setup has checked the product",
    "--%s %d: a degree is 1 or more": "the table of options has the limit",
    "--zero %d: the stages are": "the table of options has the limit",
    "--tp %d: at most %d are supported": "the table of options has the limit",
    "%d ranks: at most %d are possible": "mpirun would have to start them",
    "--ep %d": "experts are another room's",
    "--balance global: a batch of %lld tokens": "the schedule of 2^31 tokens needs too much memory",
    "Slurm gives %s tasks": "faults_comm.sh",
    "%s: mlp_only_layers": "of models with experts",
    "%s has no config.json": "the reader of folders says so first",
    "%s: original_max_position_embeddings": "hf config test",
    "%s: %s; --force starts it all the same": "memory_limits.sh",
    "config.json: %s": "model_config.c names the key and what to do",
}
ADVICE = re.compile(r"\b(use|choose|give|name|leave|lower|raise|start|make|change|take|needs?|must be|are|is|give it|see|converts|at most|neither|alone takes)\b")
bad, seen = 0, 0
for f in files:
    text = re.sub(r"/\*.*?\*/", "", open(f).read(), flags=re.S)
    for m in re.finditer(r'err_set\(\s*e,\s*ERR_(?:USAGE|CONFIG),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text):
        fmt = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', m.group(1))).replace('\\"', '"')
        seen += 1
        parts = [re.escape(x) for x in re.split(r"%[-+0-9.]*(?:ll|z)?[a-zA-Z]", fmt.replace("%%", "\0"))]
        pattern = re.compile(".*".join(parts).replace("\0", "%"))
        tried = any(pattern.search(line) for line in said)
        excused = [k for k in EXCUSED if fmt.startswith(k)]
        if not tried and not excused:
            print(f"{f[len(top) + 1:]}: not tried in any golden file: {fmt}")
            bad += 1
        if ": " in fmt and not excused and not ADVICE.search(fmt.rsplit(": ", 1)[1]):
            print(f"{f[len(top) + 1:]}: does not say what to change: {fmt}")
            bad += 1
print(f"{seen} refusals")
sys.exit(bad > 0 or seen < 50)
PY
run python3 "$TMP/find.py" "$here/../../.."
claim "every refusal is tried, and says what to change: $out" [ $rc = 0 ]
finish

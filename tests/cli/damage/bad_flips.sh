#!/usr/bin/env bash
# all
# bad_flips.sh - a thousand times one random bit flipped or a file cut in a checkpoint of four ranks: `reshard
# verify` names the file, `reshard` refuses, and every twentieth time ptrain and pserve do too. FLIPS: how
# often.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
run ptrain --data text --out run --steps 2 --seq-len 32 --global-batch 4 --ranks 4 --tp 2 --zero 1
claim "a model is trained" [ $rc = 0 ] || finish
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec python3 -B - run/step-2 "${FLIPS:-1000}" <<'PY'
import os, random, shutil, subprocess, sys
src, n, bin = sys.argv[1], int(sys.argv[2]), os.environ["BIN"]
r = random.Random(3)
passed = failed = 0
def claim(what, ok, detail=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok: print(f"FAIL {what}: {detail}", flush=True)
def run(*a):
    p = subprocess.run([f"{bin}/{a[0]}", *a[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120)
    return p.returncode, p.stderr.decode("utf-8", "replace")
shutil.copytree(src, "bad")
files = sorted(os.listdir("bad"))
for i in range(n):
    name = r.choice(files)
    data = open(f"bad/{name}", "rb").read()
    at, bit = r.randrange(len(data)), r.randrange(11)
    what = f"{i}: {name} {'cut to' if bit > 7 else f'bit {bit} of byte'} {at}"
    with open(f"bad/{name}", "r+b") as f:
        if bit > 7: f.truncate(at)
        else: f.seek(at); f.write(bytes([data[at] ^ 1 << bit]))
    rc, err = run("reshard", "verify", "bad")
    claim(f"{what}: verify names it", rc == 1 and name in err and err.count("\n") == 1, (rc, err))
    rc, err = run("reshard", "--tp", "4", "bad", "new")
    claim(f"{what}: reshard refuses", rc == 1 and name in err and not os.path.exists("new"), (rc, err))
    if i % 20 == 0:
        rc, err = run("ptrain", "--resume", "bad", "--data", "text", "--out", "run2", "--steps", "3", "--seq-len", "32", "--global-batch", "4", "--tp", str(1 + i // 20 % 2))
        claim(f"{what}: ptrain refuses", rc == 1 and name in err, (rc, err))
        rc, err = run("pserve", "bad", "--tp", str(1 + i // 20 % 2), "--once", "x", "--max-tokens", "1")
        claim(f"{what}: pserve refuses", rc == 1 and name in err, (rc, err))
    with open(f"bad/{name}", "wb") as f: f.write(data)
rc, err = run("reshard", "verify", "bad")
claim("the whole one verifies", rc == 0, err)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
PY

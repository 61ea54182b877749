#!/usr/bin/env bash
# quick
# live_view.sh - the progress line on a terminal: it shows what the log has, never wraps and follows a resize;
# without a terminal it is plain lines. Needs python3 for a terminal.
. "$(dirname "$0")/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3 to be a terminal"; finish; }
text 1 20000 >"$TMP/text"
cat >"$TMP/view.py" <<'PY'
"""COLUMNS[,LATER] PROGRAM ARGS...: runs it on a terminal, which shrinks to LATER after some frames; prints the frames, what followed and the status."""
import fcntl, json, os, pty, re, struct, sys, termios
def resize(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
columns = [int(c) for c in sys.argv[1].split(",")]
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.read(0, 1)                        # until the terminal has its size
    os.execv(sys.argv[2], sys.argv[2:])
resize(fd, columns[0])
os.write(fd, b"\n")
said, at = b"", None
while True:
    try:
        part = os.read(fd, 65536)
    except OSError:
        break
    if not part:
        break
    said += part
    if len(columns) > 1 and at is None and said.count(b"tokens/s") >= 3:
        resize(fd, columns[1])
        at = len(said)
frames = lambda text: [f.split("\r")[0].split("\n")[0] for f in text.decode().split("\r\x1b[K")[1:]]
# a line that was under way when the size changed
print(json.dumps({"frames": frames(said), "later": frames(said[at:])[2:] if at else [], "rc": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}))
PY
common=(--data "$TMP/text" --model tiny --seq-len 64 --global-batch 4 --threads 1)
view() {
    run python3 "$TMP/view.py" "$1" "$BIN/ptrain" "${common[@]}" --out "$TMP/$2" --log "$TMP/$2.jsonl" \
        "${@:3}"; printf '%s\n' "$out" >"$TMP/$2.seen"
}
cat >"$TMP/common.py" <<'PY'
import json, re, sys
def seen(name):
    d = json.loads(open(name + ".seen").read())
    return d, {x["step"]: x for x in map(json.loads, open(name + ".jsonl")) if "loss_bits" in x}
PY
true_line() {               # true_line NAME: every frame of a step says what the log says
    python3 -B - "$TMP" "$TMP/$1" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
from common import *
d, log = seen(sys.argv[2])
steps = [f for f in d["frames"] if " step " in f]
assert d["rc"] == 0 and len(steps) >= 3, d
for f in steps:
    m = re.fullmatch(r"ptrain: step (\d+)/(\d+)  loss ([\d.]+)  (\d+) tokens/s  left ([\d:]+(?: s)?)  mfu (\d+)%  comm (\d+)%  mem ([\d.]+) ([kMG]B)  norm ([\d.]+)  lr (\S+)", f)
    assert m, f
    x, unit = log[int(m[1])], {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    assert abs(float(m[3]) - x["loss"]) < 1e-4 and abs(float(m[4]) / x["tokens_per_s"] - 1) < 0.01, f
    assert abs(float(m[6]) - 100 * x["mfu"]) <= 1 and abs(float(m[7]) - 100 * x["comm_fraction"]) <= 1, f
    assert abs(float(m[8]) * unit[m[9]] / x["rss_bytes"] - 1) < 0.05 and abs(float(m[10]) - x["grad_norm"]) < 1e-3, f
    assert (m[5] == "0 s") or int(m[1]) < 40, f          # to the step it stops at, not to the end of the schedule
assert steps[-1].startswith("ptrain: step 40/900  ") and "left 0 s" in steps[-1], steps[-1]
assert all(0 < x["mfu"] < 1.5 and 0 <= x["comm_fraction"] <= 1 for x in log.values())
PY
}
view 200 wide --steps 900 --stop-after 40
claim "one rank: the line says what the log says" true_line wide
view 200 two --steps 900 --stop-after 40 --ranks 2 --tp 2
claim "two ranks under mpirun: the same" true_line two

narrow() {                  # narrow NAME COLUMNS KEY: no frame but the last line fills them
    python3 -B - "$TMP" "$TMP/$1" "$2" "$3" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
from common import *
d, log = seen(sys.argv[2])
most, steps = int(sys.argv[3]), [f for f in d[sys.argv[4]] if " step " in f]
assert d["rc"] == 0 and len(steps) >= 2, d
assert all(len(f) < most for f in steps[:-1]), max(steps[:-1], key=len)
assert any("loss" in f for f in steps) and all(re.search(r"(loss [\d.]+|tokens/s|left [\d:]+( s)?|step \d+/\d+|mfu \d+%|comm \d+%|mem [\d.]+ .B)$", f) for f in steps[:-1]), steps
PY
}
view 45 narrow --steps 40 --ranks 2
claim "a narrow terminal: whole fields, as many as fit" narrow narrow 45 frames
view 150,40 resized --steps 80
claim "a terminal that shrinks: so does the line" narrow resized 40 later

train plain --steps 20
claim "no terminal: no control characters" eval \
    '[ $rc = 0 ] && [[ $err != *$'"'\\r'"'* && $err != *$'"'\\033'"'* ]]'
claim "the first and the last step at least" eval '[[ $err == *"step 1/20"* && $err == *"step 20/20"* ]]'
finish
